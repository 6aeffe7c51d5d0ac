//! SEND and RECV with a registered buffer: IORING_RECVSEND_FIXED_BUF. For SEND_ZC see net_zero_copy.rs.

use super::prelude::*;

topic!(since: "6.0", source: "io_uring_enter(2), io_uring/net.c");

const FIXED: u16 = IORING_RECVSEND_FIXED_BUF as u16;

fn fixed(opcode: Opcode, socket: i32, bytes: &[u8]) -> Sqe {
    prep(opcode, socket, address(bytes), bytes.len() as u32, 0).ioprio(FIXED)
}

/// A ring with one registered buffer.
fn registered(cx: &Context) -> (Ring, &'static mut [u8]) {
    let (ring, room) = (cx.ring(8), pages(1));
    assert_eq!(ring.register_buffers(&[iovec(room)]), 0);
    (ring, room)
}

#[case(until = "7.3")]
fn only_zero_copy_sends_have_one(cx: &Context) {
    let ((a, _b), (mut ring, room)) = (pair(), registered(cx));
    assert_eq!(ring.run(fixed(Opcode::Send, fd(&a), &room[..4])), -EINVAL);
    assert_eq!(ring.run(fixed(Opcode::Recv, fd(&a), &room[..4])), -EINVAL);
}

#[case(from = "7.3")]
fn data_goes_from_and_to_it(cx: &Context) {
    let ((a, b), (mut ring, room)) = (pair(), registered(cx));
    room[..4].copy_from_slice(b"abcd");
    for flags in [0, IOSQE_ASYNC] {
        assert_eq!(ring.run(fixed(Opcode::Send, fd(&a), &room[..4]).with(flags)), 4);
        assert_eq!(ring.run(fixed(Opcode::Recv, fd(&b), &room[4090..4094]).with(flags)), 4);
        assert_eq!(std::hint::black_box(&*room)[4090..4094], *b"abcd");
        room[4090..].fill(0);
    }
    let first = IORING_RECVSEND_POLL_FIRST as u16;
    assert_eq!(ring.run(fixed(Opcode::Send, fd(&a), &room[..4]).ioprio(FIXED | first)), 4);
    assert_eq!(ring.run(fixed(Opcode::Recv, fd(&b), &room[8..12]).ioprio(FIXED | first)), 4);
    assert_eq!(ring.run(fixed(Opcode::Send, fd(&a), &room[..0])), 0);
}

#[case(from = "7.3")]
fn receive_that_waits_keeps_it(cx: &Context) {
    let ((a, b), (mut ring, room)) = (pair(), registered(cx));
    ring.go(fixed(Opcode::Recv, fd(&b), &room[..4]));
    ring.expect_quiet();
    put(&a, b"abcd");
    assert_eq!(ring.wait().res, 4);
    assert_eq!(std::hint::black_box(&*room)[..4], *b"abcd");
    let all = libc::MSG_WAITALL as u32;
    ring.go(fixed(Opcode::Recv, fd(&b), &room[..6]).op_flags(all));
    put(&a, b"xyz");
    ring.expect_quiet();
    put(&a, b"uvw");
    assert_eq!(ring.wait().res, 6);
    assert_eq!(std::hint::black_box(&*room)[..6], *b"xyzuvw");
}

#[case(from = "7.3")]
fn outside_of_it_is_efault(cx: &Context) {
    let ((a, b), (mut ring, room), other) = (pair(), registered(cx), [0; 4]);
    put(&a, b"abcd");
    for flags in [0, IOSQE_ASYNC] {
        for (opcode, socket) in [(Opcode::Send, fd(&a)), (Opcode::Recv, fd(&b))] {
            assert_eq!(ring.run(fixed(opcode, socket, &other).with(flags)), -EFAULT);
            assert_eq!(ring.run(fixed(opcode, socket, &room[..4]).buffer(1).with(flags)), -EFAULT);
            assert_eq!(cx.ring(4).run(fixed(opcode, socket, &room[..4]).with(flags)), -EFAULT, "no buffers");
        }
    }
    assert_eq!(ring.run(fixed(Opcode::Recv, fd(&b), &room[..4])), 4);
}

#[case(from = "7.3")]
fn the_wait_and_the_socket_come_before_it(cx: &Context) {
    let ((a, b), (reader, _writer), (mut ring, _room), other) = (pair(), pipe(), registered(cx), [0; 4]);
    for opcode in [Opcode::Send, Opcode::Recv] {
        assert_eq!(ring.run(fixed(opcode, fd(&reader), &other)), -ENOTSOCK);
        assert_eq!(ring.run(fixed(opcode, -1, &other)), -EBADF);
    }
    assert_eq!(ring.run(fixed(Opcode::Recv, fd(&b), &other)), -EFAULT, "without data");
    ring.go(fixed(Opcode::Recv, fd(&b), &other).ioprio(FIXED | IORING_RECVSEND_POLL_FIRST as u16));
    ring.expect_quiet();
    put(&a, b"abcd");
    assert_eq!(ring.wait().res, -EFAULT);
}

#[case(from = "7.3")]
fn other_forms_are_einval(cx: &Context) {
    let ((a, b), (mut ring, room)) = (pair(), registered(cx));
    put(&a, b"abcd");
    let (bundle, vector) = (IORING_RECVSEND_BUNDLE as u16, IORING_SEND_VECTORIZED as u16);
    let (send, receive) = (fixed(Opcode::Send, fd(&a), &room[..4]), fixed(Opcode::Recv, fd(&b), &room[..4]));
    let vectors = [iovec(&room[..4])];
    let of_vectors = Sqe { addr: address(&vectors), len: 1, ..send };
    // SAFETY: msghdr is plain numbers and pointers, for which zeroes are valid.
    let message: libc::msghdr = unsafe { std::mem::zeroed() };
    let with = |opcode, socket| prep(opcode, socket, address(&message), 1, 0).ioprio(FIXED);
    for refused in [
        send.with(IOSQE_BUFFER_SELECT),
        send.ioprio(FIXED | bundle),
        of_vectors.ioprio(FIXED | vector),
        with(Opcode::Sendmsg, fd(&a)),
        receive.with(IOSQE_BUFFER_SELECT),
        receive.ioprio(FIXED | bundle).with(IOSQE_BUFFER_SELECT),
        receive.ioprio(FIXED | IORING_RECV_MULTISHOT as u16).with(IOSQE_BUFFER_SELECT),
        receive.ioprio(FIXED | vector),
        with(Opcode::Recvmsg, fd(&b)),
    ] {
        assert_eq!(ring.run(refused), -EINVAL);
    }
}
