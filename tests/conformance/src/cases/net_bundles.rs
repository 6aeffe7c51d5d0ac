//! IORING_RECVSEND_BUNDLE: a RECV or SEND that uses several buffers of a group for one result. Also SENDs that choose
//! one buffer.

use super::prelude::*;
use crate::buffers::{buffer_of, BufferRing};

topic!(since: "6.10", source: "io_uring_enter(2), io_uring/net.c, io_uring/kbuf.c");

const BUNDLE: u16 = IORING_RECVSEND_BUNDLE as u16;
const MULTISHOT: u16 = IORING_RECV_MULTISHOT as u16;
const MORE: u32 = IORING_CQE_F_MORE;
const LEFT: u32 = IORING_CQE_F_SOCK_NONEMPTY;
const PARTLY: u32 = IORING_CQE_F_BUF_MORE;

fn recv(from: &OwnedFd, len: u32) -> Sqe {
    prep(Opcode::Recv, fd(from), 0, len, 0).with(IOSQE_BUFFER_SELECT).ioprio(BUNDLE).buffer(1)
}

fn send(to: &OwnedFd, len: u32) -> Sqe {
    prep(Opcode::Send, fd(to), 0, len, 0).with(IOSQE_BUFFER_SELECT).ioprio(BUNDLE).buffer(1)
}

fn multishot(from: &OwnedFd, len: u32) -> Sqe {
    recv(from, len).ioprio(BUNDLE | MULTISHOT)
}

/// Result, flags without the buffer's, and the buffer.
fn seen(cqe: &Cqe) -> (i32, u32, Option<u16>) {
    (cqe.res, cqe.flags & 0xfffe, buffer_of(cqe))
}

fn next(ring: &mut Ring) -> (i32, u32, Option<u16>) {
    seen(&ring.wait())
}

/// Submits a request and returns its only CQE.
fn only(ring: &mut Ring, sqe: Sqe) -> (i32, u32, Option<u16>) {
    ring.go(sqe);
    let seen = next(ring);
    ring.expect_quiet();
    seen
}

/// Buffers of four bytes in group 1.
fn group(ring: &Ring, count: u16, flags: u16) -> BufferRing {
    let mut buffers = BufferRing::new(ring, 1, 16, 4, flags);
    (0..count).for_each(|id| buffers.give(id));
    buffers
}

#[case]
fn recv_fills_several_buffers(cx: &Context) {
    let ((a, b), mut ring) = (pair(), cx.ring(8));
    let buffers = group(&ring, 16, 0);
    put(&b, b"0123456789abcdef01");
    assert_eq!(only(&mut ring, recv(&a, 0)), (16, LEFT, Some(0)));
    assert_eq!((buffers.head(&ring), buffers.content(0, 16)), (4, &b"0123456789abcdef"[..]));
    assert_eq!(only(&mut ring, recv(&a, 0)), (2, 0, Some(4)));
    assert_eq!(buffers.head(&ring), 5);
}

#[case]
fn recv_of_a_length_fills_whole_buffers(cx: &Context) {
    let ((a, b), mut ring) = (pair(), cx.ring(8));
    let buffers = group(&ring, 16, 0);
    put(&b, b"0123456789abcdef01");
    assert_eq!(only(&mut ring, recv(&a, 10)), (8, LEFT, Some(0)));
    assert_eq!(buffers.head(&ring), 2);
    assert_eq!(only(&mut ring, recv(&a, 2)), (2, LEFT, Some(2)));
    assert_eq!((buffers.head(&ring), buffers.entry(2).1), (3, 4));
}

#[case(since = "6.12")]
fn recv_of_a_length_in_an_incremental_group_goes_beyond_it(cx: &Context) {
    let ((a, b), mut ring) = (pair(), cx.ring(8));
    let buffers = group(&ring, 16, IOU_PBUF_RING_INC);
    put(&b, b"0123456789abcdef01");
    assert_eq!(only(&mut ring, recv(&a, 10)), (18, PARTLY, Some(0)));
    assert_eq!(buffers.head(&ring), 4);
}

#[case(since = "6.12")]
fn recv_uses_an_incremental_group_up_piece_by_piece(cx: &Context) {
    let ((a, b), mut ring) = (pair(), cx.ring(8));
    let buffers = group(&ring, 16, IOU_PBUF_RING_INC);
    put(&b, b"0123456789abcdef01");
    assert_eq!(only(&mut ring, recv(&a, 0)), (18, PARTLY, Some(0)));
    assert_eq!((buffers.head(&ring), buffers.entry(4)), (4, (buffers.start(4) + 2, 2)));
    put(&b, b"23");
    assert_eq!(only(&mut ring, recv(&a, 0)), (2, 0, Some(4)));
    assert_eq!((buffers.head(&ring), buffers.content(0, 20)), (5, &b"0123456789abcdef0123"[..]));
}

#[case]
fn recv_ends_with_the_last_buffer(cx: &Context) {
    let ((a, b), mut ring) = (pair(), cx.ring(8));
    let buffers = group(&ring, 2, 0);
    put(&b, b"0123456789");
    assert_eq!(only(&mut ring, recv(&a, 0)), (8, LEFT, Some(0)));
    assert_eq!(buffers.head(&ring), 2);
}

#[case]
fn recv_waits_for_data(cx: &Context) {
    let ((a, b), mut ring) = (pair(), cx.ring(8));
    let buffers = group(&ring, 16, 0);
    for (round, flags) in [0, IORING_RECVSEND_POLL_FIRST as u16].into_iter().enumerate() {
        ring.go(recv(&a, 0).ioprio(BUNDLE | flags));
        ring.expect_quiet();
        assert_eq!(buffers.head(&ring), 2 * round as u32);
        put(&b, b"0123456");
        assert_eq!(next(&mut ring), (7, 0, Some(2 * round as u16)));
    }
}

#[case(until = "7.3")]
fn recv_waitall_waits_for_all(cx: &Context) {
    let ((a, b), mut ring) = (pair(), cx.ring(8));
    let buffers = group(&ring, 16, 0);
    put(&b, b"012345");
    ring.go(recv(&a, 8).op_flags(libc::MSG_WAITALL as u32));
    ring.expect_quiet();
    put(&b, b"6789");
    // All eight bytes, and those that were there before.
    assert_eq!(next(&mut ring), (10, 0, Some(0)));
    assert_eq!((buffers.head(&ring), buffers.content(0, 10)), (3, &b"0123456789"[..]));
}

#[case]
fn recv_at_the_end_is_zero(cx: &Context) {
    let ((a, b), mut ring) = (pair(), cx.ring(8));
    let buffers = group(&ring, 16, 0);
    drop(b);
    assert_eq!(only(&mut ring, recv(&a, 0)), (0, 0, None));
    assert_eq!(only(&mut ring, multishot(&a, 0)), (0, 0, None));
    assert_eq!(buffers.head(&ring), 0);
}

#[case]
fn recv_of_a_datagram(cx: &Context) {
    let ((a, b), mut ring) = (unix_pair(libc::SOCK_DGRAM), cx.ring(8));
    let buffers = group(&ring, 16, 0);
    put(&b, b"0123456789");
    put(&b, b"abcdefghij");
    assert_eq!(only(&mut ring, recv(&a, 0)), (4, 0, Some(0)), "nothing says how long it is");
    assert_eq!(only(&mut ring, recv(&a, 12)), (10, 0, Some(1)));
    assert_eq!((buffers.head(&ring), buffers.content(1, 10)), (4, &b"abcdefghij"[..]));
}

#[case]
fn recv_from_provided_buffers(cx: &Context) {
    let ((a, b), mut ring, mut room) = (pair(), cx.ring(8), [0; 16]);
    assert_eq!(ring.run(prep(Opcode::ProvideBuffers, 4, address_mut(&mut room), 4, 10).buffer(1)), 0);
    put(&b, b"0123456");
    assert_eq!(only(&mut ring, recv(&a, 0)), (7, 0, Some(10)));
    assert_eq!(&std::hint::black_box(&room)[..7], b"0123456");
    put(&b, b"789abcdef");
    assert_eq!(only(&mut ring, recv(&a, 0)), (8, LEFT, Some(12)));
}

#[case]
fn recv_into_a_bad_second_buffer_is_efault(cx: &Context) {
    let ((a, b), mut ring) = (pair(), cx.ring(8));
    let mut buffers = group(&ring, 1, 0);
    buffers.give_at(1, bad_address(), 4);
    buffers.give(2);
    put(&b, b"0123456789");
    assert_eq!(only(&mut ring, recv(&a, 12)), (-EFAULT, 0, None));
    assert_eq!((buffers.head(&ring), readable_bytes(&a)), (0, 10));
}

#[case]
fn recv_stops_before_an_empty_buffer(cx: &Context) {
    let ((a, b), mut ring) = (pair(), cx.ring(8));
    let mut buffers = group(&ring, 1, 0);
    buffers.give_at(1, buffers.start(1), 0);
    buffers.give(2);
    put(&b, b"0123456789");
    assert_eq!(only(&mut ring, recv(&a, 0)), (4, 0, Some(0)));
    assert_eq!(buffers.head(&ring), 1);
}

#[case]
fn recv_of_an_empty_first_buffer_of_a_length_is_enobufs(cx: &Context) {
    let ((a, b), mut ring) = (pair(), cx.ring(8));
    let mut buffers = group(&ring, 0, 0);
    buffers.give_at(0, buffers.start(0), 0);
    buffers.give(1);
    put(&b, b"0123456789");
    assert_eq!(only(&mut ring, recv(&a, 8)), (-libc::ENOBUFS, 0, None));
    assert_eq!(only(&mut ring, recv(&a, 0)), (0, LEFT, None));
}

#[case]
fn recv_without_group_is_enoent(cx: &Context) {
    let ((a, b), mut ring, (reader, _writer)) = (pair(), cx.ring(8), pipe());
    put(&b, b"0123456789");
    assert_eq!(only(&mut ring, recv(&a, 0)), (-ENOENT, 0, None));
    assert_eq!(only(&mut ring, multishot(&a, 0)), (-ENOENT, 0, None));
    assert_eq!(only(&mut ring, recv(&OwnedFd::from(reader), 0)), (-ENOTSOCK, 0, None));
}

#[case]
fn recv_of_an_empty_group_is_enobufs(cx: &Context) {
    let ((a, b), mut ring) = (pair(), cx.ring(8));
    let _buffers = group(&ring, 0, 0);
    put(&b, b"0123456789");
    assert_eq!(only(&mut ring, recv(&a, 0)), (-libc::ENOBUFS, 0, None));
    assert_eq!(only(&mut ring, multishot(&a, 4)), (-libc::ENOBUFS, 0, None));
}

#[case]
fn recv_without_select_is_plain(cx: &Context) {
    let ((a, b), mut ring, mut room) = (pair(), cx.ring(8), [0; 8]);
    put(&b, b"0123456789");
    assert_eq!(only(&mut ring, sqe::recv(fd(&a), &mut room[..4], 0).ioprio(BUNDLE)), (4, LEFT, None));
    assert_eq!(only(&mut ring, sqe::recv(fd(&a), &mut room, 0).ioprio(BUNDLE)), (6, 0, None));
    assert_eq!(only(&mut ring, sqe::recv(fd(&a), &mut room, 0).ioprio(BUNDLE | MULTISHOT)), (-EINVAL, 0, None));
}

#[case]
fn recv_breaks_no_link(cx: &Context) {
    let ((a, b), mut ring) = (pair(), cx.ring(8));
    let _buffers = group(&ring, 16, 0);
    ring.go_all(&[recv(&a, 0).with(IOSQE_IO_LINK).data(1), sqe::nop().data(2)]);
    ring.expect_quiet();
    put(&b, b"0123456789");
    assert_eq!(ring.wait_ordered(2), [(1, 8), (2, 0)]);
}

#[case]
fn recv_peek_takes_buffers(cx: &Context) {
    let ((a, b), mut ring) = (pair(), cx.ring(8));
    let buffers = group(&ring, 16, 0);
    put(&b, b"012345");
    assert_eq!(only(&mut ring, recv(&a, 10).op_flags(libc::MSG_PEEK as u32)), (6, LEFT, Some(0)));
    assert_eq!((buffers.head(&ring), readable_bytes(&a)), (2, 6));
}

#[case]
fn async_recv_takes_one_buffer(cx: &Context) {
    let ((a, b), mut ring) = (pair(), cx.ring(8));
    let buffers = group(&ring, 16, 0);
    ring.go(recv(&a, 0).with(IOSQE_ASYNC));
    ring.expect_quiet();
    put(&b, b"0123");
    assert_eq!(next(&mut ring), (4, 0, Some(0)));
    assert_eq!(buffers.head(&ring), 1);
}

#[case]
fn recvmsg_is_einval(cx: &Context) {
    let ((a, _b), mut ring) = (pair(), cx.ring(8));
    let _buffers = group(&ring, 16, 0);
    // SAFETY: msghdr is plain numbers and pointers, for which zeroes are valid.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    let sqe = sqe::recvmsg(fd(&a), &mut message, 0).with(IOSQE_BUFFER_SELECT).buffer(1);
    assert_eq!(ring.run(sqe.ioprio(BUNDLE)), -EINVAL);
    assert_eq!(ring.run(sqe.ioprio(BUNDLE | MULTISHOT)), -EINVAL);
}

/// Reaps results until there are `total` bytes. Each begins in the buffer after the previous result's last. Returns
/// the bytes and the last flags.
fn gather(ring: &mut Ring, buffers: &BufferRing, mut id: u16, total: usize) -> (Vec<u8>, u32) {
    let (mut bytes, mut flags) = (Vec::new(), MORE);
    while bytes.len() < total {
        assert_ne!(flags & MORE, 0, "it ended after {} bytes", bytes.len());
        let cqe = ring.wait();
        assert!(cqe.res > 0, "result {}", cqe.res);
        assert_eq!(buffer_of(&cqe), Some(id));
        bytes.extend_from_slice(buffers.content(id, cqe.res as usize));
        id += (cqe.res as u16).div_ceil(buffers.bytes as u16);
        flags = cqe.flags & 0xfffe;
    }
    (bytes, flags)
}

#[case]
fn multishot_goes_on(cx: &Context) {
    let ((a, b), mut ring) = (pair(), cx.ring(8));
    let buffers = group(&ring, 16, 0);
    put(&b, b"0123456789abcdef01");
    ring.go(multishot(&a, 0));
    assert_eq!(next(&mut ring), (16, MORE | LEFT, Some(0)));
    assert_eq!(next(&mut ring), (2, MORE, Some(4)));
    put(&b, b"0123456789");
    assert_eq!(gather(&mut ring, &buffers, 5, 10), (b"0123456789".to_vec(), MORE));
    ring.expect_quiet();
    drop(b);
    assert_eq!(next(&mut ring), (0, 0, None));
}

#[case]
fn multishot_of_a_length(cx: &Context) {
    let ((a, b), mut ring) = (pair(), cx.ring(8));
    let buffers = group(&ring, 16, 0);
    put(&b, b"0123456789");
    ring.go(multishot(&a, 8));
    assert_eq!(next(&mut ring), (8, MORE | LEFT, Some(0)));
    assert_eq!(next(&mut ring), (2, MORE, Some(2)));
    assert_eq!(buffers.head(&ring), 3);
}

/// After a result of `len` bytes it is the turn of others.
#[case(own_flags, undisturbed, since = "6.16")]
fn multishots_of_a_length_take_turns(cx: &Context) {
    let mut ring = cx.ring_with(8, IORING_SETUP_DEFER_TASKRUN | IORING_SETUP_SINGLE_ISSUER);
    let (sockets, _buffers) = ([pair(), pair()], group(&ring, 16, 0));
    for ((a, _), data) in sockets.iter().zip([1, 2]) {
        ring.go(multishot(a, 4).data(data));
    }
    for (_, b) in &sockets {
        put(b, b"0123456789ab");
    }
    assert_eq!(ring.wait_ordered(6), [(1, 4), (2, 4), (1, 4), (2, 4), (1, 4), (2, 4)]);
}

#[case]
fn multishot_limit_ends_it(cx: &Context) {
    let ((a, b), mut ring) = (pair(), cx.ring(8));
    let buffers = group(&ring, 16, 0);
    put(&b, b"0123456789abcdef01");
    ring.go(multishot(&a, 0).file_index(9));
    assert_eq!(next(&mut ring), (8, MORE | LEFT, Some(0)));
    assert_eq!(next(&mut ring), (1, LEFT, Some(2)));
    ring.expect_quiet();
    assert_eq!((buffers.head(&ring), readable_bytes(&a)), (3, 9));
}

#[case(since = "6.12")]
fn multishot_limit_of_whole_results(cx: &Context) {
    let ((a, b), mut ring) = (pair(), cx.ring(8));
    let buffers = group(&ring, 16, IOU_PBUF_RING_INC);
    put(&b, b"0123456789abcdef01");
    ring.go(multishot(&a, 6).file_index(12));
    assert_eq!(next(&mut ring), (6, MORE | LEFT | PARTLY, Some(0)));
    assert_eq!(next(&mut ring), (6, LEFT, Some(1)));
    ring.expect_quiet();
    assert_eq!(buffers.head(&ring), 3);
}

#[case]
fn multishot_ends_with_the_last_buffer(cx: &Context) {
    let ((a, b), mut ring) = (pair(), cx.ring(8));
    let buffers = group(&ring, 2, 0);
    put(&b, b"0123456789");
    ring.go(multishot(&a, 0));
    assert_eq!(next(&mut ring), (8, LEFT, Some(0)));
    ring.expect_quiet();
    assert_eq!(buffers.head(&ring), 2);
}

#[case]
fn multishot_of_much_data(cx: &Context) {
    let ((a, b), mut ring) = (pair(), cx.ring(64));
    let mut buffers = BufferRing::new(&ring, 1, 2048, 4, 0);
    (0..2048).for_each(|id| buffers.give(id));
    let content: Vec<u8> = (0..8000).map(|n| (n % 251) as u8).collect();
    put(&b, &content);
    ring.go(multishot(&a, 0));
    assert_eq!(gather(&mut ring, &buffers, 0, 8000).0, content);
    assert_eq!(buffers.head(&ring), 2000);
}

#[case]
fn multishot_skips_no_results(cx: &Context) {
    let ((a, b), mut ring) = (pair(), cx.ring(8));
    let _buffers = group(&ring, 16, 0);
    ring.go(multishot(&a, 0).with(IOSQE_CQE_SKIP_SUCCESS).data(1));
    put(&b, b"0123");
    assert_eq!(next(&mut ring), (4, MORE, Some(0)));
    ring.go(sqe::cancel(1, 0).data(2));
    assert_eq!(ring.wait_sorted(2), [(1, -ECANCELED), (2, 0)]);
}

#[case]
fn multishot_is_cancelled(cx: &Context) {
    let ((a, b), mut ring) = (pair(), cx.ring(8));
    let buffers = group(&ring, 16, 0);
    ring.go(multishot(&a, 0).data(1));
    put(&b, b"012345");
    assert_eq!(gather(&mut ring, &buffers, 0, 6).0, b"012345");
    ring.go(sqe::cancel(1, 0).data(2));
    let mut cqes = ring.wait_all(2);
    cqes.sort_by_key(|cqe| cqe.user_data);
    assert_eq!((seen(&cqes[0]), cqes[1].res), ((-ECANCELED, 0, None), 0));
}

fn receive(from: &OwnedFd, room: &mut [u8]) -> usize {
    // SAFETY: the buffer has the length passed.
    let count = unsafe { libc::recv(fd(from), room.as_mut_ptr().cast(), room.len(), libc::MSG_DONTWAIT) };
    count.max(0) as usize
}

/// Group 1 with the letters from a on in buffers of four bytes.
fn letters(ring: &Ring, count: u16, flags: u16) -> BufferRing {
    let mut buffers = BufferRing::new(ring, 1, 16, 4, flags);
    for id in 0..count {
        buffers.content_mut(id).fill(b'a' + id as u8);
        buffers.give(id);
    }
    buffers
}

fn arrived(from: &OwnedFd) -> String {
    let mut room = [0; 64];
    let count = receive(from, &mut room);
    String::from_utf8_lossy(&room[..count]).into()
}

#[case]
fn send_takes_all_buffers(cx: &Context) {
    let ((a, b), mut ring) = (pair(), cx.ring(8));
    let buffers = letters(&ring, 3, 0);
    assert_eq!(only(&mut ring, send(&a, 0)), (12, 0, Some(0)));
    assert_eq!((buffers.head(&ring), arrived(&b)), (3, "aaaabbbbcccc".into()));
}

#[case]
fn send_of_a_length_is_for_the_first_result(cx: &Context) {
    let ((a, b), mut ring) = (pair(), cx.ring(8));
    let buffers = letters(&ring, 3, 0);
    ring.go(send(&a, 6));
    assert_eq!([next(&mut ring), next(&mut ring)], [(4, MORE, Some(0)), (8, 0, Some(1))]);
    assert_eq!((buffers.head(&ring), arrived(&b)), (3, "aaaabbbbcccc".into()));
}

#[case(since = "6.12")]
fn send_uses_an_incremental_group_up(cx: &Context) {
    let ((a, b), mut ring) = (pair(), cx.ring(8));
    let buffers = letters(&ring, 3, IOU_PBUF_RING_INC);
    ring.go(send(&a, 6));
    assert_eq!([next(&mut ring), next(&mut ring)], [(6, MORE | PARTLY, Some(0)), (6, 0, Some(1))]);
    assert_eq!((buffers.head(&ring), arrived(&b)), (3, "aaaabbbbcccc".into()));
}

#[case]
fn send_of_many_buffers(cx: &Context) {
    let ((a, b), mut ring) = (pair(), cx.ring(8));
    let mut buffers = BufferRing::new(&ring, 1, 512, 4, 0);
    (0..512).for_each(|id| buffers.give(id));
    ring.go(send(&a, 0));
    assert_eq!([next(&mut ring), next(&mut ring)], [(1024, MORE, Some(0)), (1024, 0, Some(256))]);
    assert_eq!((buffers.head(&ring), readable_bytes(&b)), (512, 2048));
}

#[case]
fn send_of_provided_buffers(cx: &Context) {
    let ((a, b), mut ring, mut room) = (pair(), cx.ring(8), *b"aaaabbbbcccc");
    for len in [0, 6] {
        assert_eq!(ring.run(prep(Opcode::ProvideBuffers, 3, address_mut(&mut room), 4, 10).buffer(1)), 0);
        ring.go(send(&a, len));
        assert_eq!([next(&mut ring), next(&mut ring)], [(4, MORE, Some(10)), (4, MORE, Some(11))]);
        assert_eq!(next(&mut ring), (4, 0, Some(12)));
        assert_eq!(arrived(&b), "aaaabbbbcccc");
    }
}

/// Group 1 with eight buffers of 64 KiB.
fn large(ring: &Ring) -> BufferRing {
    BufferRing::filled(ring, 1, 8, 1 << 16)
}

#[case]
fn send_waits_with_its_buffers(cx: &Context) {
    let ((a, b), mut ring) = (pair(), cx.ring(8));
    let buffers = large(&ring);
    fill(&a);
    ring.go(send(&a, 0));
    ring.expect_quiet();
    assert_eq!(buffers.head(&ring), 8);
    let (mut room, start) = (vec![0; 1 << 16], std::time::Instant::now());
    while ring.cq_ready() == 0 && start.elapsed() < crate::ring::PATIENCE {
        receive(&b, &mut room);
        ring.enter(0, 0, IORING_ENTER_GETEVENTS, 0, 0);
    }
    assert_eq!(next(&mut ring), (8 << 16, 0, Some(0)));
}

#[case]
fn send_is_cancelled_with_its_buffers(cx: &Context) {
    let ((a, _b), mut ring) = (pair(), cx.ring(8));
    let buffers = large(&ring);
    fill(&a);
    ring.go(send(&a, 0).data(1));
    ring.expect_quiet();
    ring.go(sqe::cancel(1, 0).data(2));
    let mut cqes = ring.wait_all(2);
    cqes.sort_by_key(|cqe| cqe.user_data);
    assert_eq!((seen(&cqes[0]), cqes[1].res), ((-ECANCELED, 0, Some(0)), 0));
    assert_eq!(buffers.head(&ring), 8);
}

#[case]
fn send_dontwait_to_a_full_socket_loses_its_buffer(cx: &Context) {
    let ((a, _b), mut ring) = (pair(), cx.ring(8));
    let buffers = large(&ring);
    fill(&a);
    let dontwait = libc::MSG_DONTWAIT as u32;
    assert_eq!(only(&mut ring, send(&a, 0).op_flags(dontwait).ioprio(0)), (-EAGAIN, 0, Some(0)));
    assert_eq!(buffers.head(&ring), 1);
    assert_eq!(only(&mut ring, send(&a, 0).op_flags(dontwait)), (-EAGAIN, 0, Some(1)));
    assert_eq!(buffers.head(&ring), 8);
}

#[case]
fn send_poll_first_has_one_result(cx: &Context) {
    let ((a, b), mut ring) = (pair(), cx.ring(8));
    let buffers = letters(&ring, 3, 0);
    // The second time, the ring has waited on the socket before, and the socket has not changed since.
    for place in 0..3 {
        let first = send(&a, 6).ioprio(BUNDLE | IORING_RECVSEND_POLL_FIRST as u16);
        assert_eq!(only(&mut ring, first), (4, 0, Some(place)));
    }
    assert_eq!((buffers.head(&ring), arrived(&b)), (3, "aaaabbbbcccc".into()));
}

#[case]
fn send_of_a_datagram(cx: &Context) {
    let ((a, b), mut ring) = (unix_pair(libc::SOCK_DGRAM), cx.ring(8));
    let _buffers = letters(&ring, 3, 0);
    assert_eq!(only(&mut ring, send(&a, 0)), (12, 0, Some(0)));
    assert_eq!(arrived(&b), "aaaabbbbcccc");
}

#[case]
fn send_without_group_is_enoent(cx: &Context) {
    let ((a, _b), mut ring, (_reader, writer)) = (pair(), cx.ring(8), pipe());
    for ioprio in [0, BUNDLE] {
        assert_eq!(only(&mut ring, send(&a, 0).ioprio(ioprio)), (-ENOENT, 0, None));
        let to_pipe = Sqe { fd: fd(&writer), ..send(&a, 0) };
        assert_eq!(only(&mut ring, to_pipe.ioprio(ioprio)), (-ENOTSOCK, 0, None));
    }
}

#[case]
fn send_of_an_empty_group_is_enobufs(cx: &Context) {
    let ((a, _b), mut ring) = (pair(), cx.ring(8));
    let _buffers = letters(&ring, 0, 0);
    for ioprio in [0, BUNDLE] {
        assert_eq!(only(&mut ring, send(&a, 0).ioprio(ioprio)), (-libc::ENOBUFS, 0, None));
    }
}

#[case]
fn send_without_select_has_two_results(cx: &Context) {
    let ((a, b), mut ring) = (pair(), cx.ring(8));
    ring.go(sqe::send(fd(&a), b"hello", 0).ioprio(BUNDLE));
    assert_eq!([next(&mut ring), next(&mut ring)], [(5, MORE, None), (0, 0, None)]);
    assert_eq!(arrived(&b), "hello");
}

#[case]
fn send_without_select_sends_an_empty_datagram(cx: &Context) {
    let ((a, b), mut ring) = (unix_pair(libc::SOCK_DGRAM), cx.ring(8));
    ring.go(sqe::send(fd(&a), b"hello", 0).ioprio(BUNDLE));
    assert_eq!([next(&mut ring), next(&mut ring)], [(5, MORE, None), (0, 0, None)]);
    assert_eq!(ring.run(sqe::recv(fd(&b), &mut [0; 8], 0)), 5);
    assert_eq!(ring.run(sqe::recv(fd(&b), &mut [0; 8], libc::MSG_DONTWAIT)), 0);
}

#[case]
fn send_goes_on_with_its_chain(cx: &Context) {
    let ((a, _b), mut ring) = (pair(), cx.ring(8));
    let _buffers = letters(&ring, 3, 0);
    let quiet = send(&a, 6).with(IOSQE_CQE_SKIP_SUCCESS | IOSQE_IO_LINK);
    ring.go_all(&[quiet.data(1), sqe::nop().data(2)]);
    let cqes = ring.wait_all(2);
    assert_eq!(seen(&cqes[0]), (4, MORE, Some(0)));
    assert_eq!((cqes[1].user_data, cqes[1].res), (2, 0));
    ring.expect_quiet();
}

#[case]
fn async_send_is_cancelled(cx: &Context) {
    let ((a, _b), mut ring) = (pair(), cx.ring(8));
    let buffers = letters(&ring, 3, 0);
    assert_eq!(only(&mut ring, send(&a, 0).with(IOSQE_ASYNC)), (-ECANCELED, 0, None));
    let plain = sqe::send(fd(&a), b"hello", 0).ioprio(BUNDLE).with(IOSQE_ASYNC);
    assert_eq!(only(&mut ring, plain), (-ECANCELED, 0, None));
    assert_eq!(buffers.head(&ring), 0);
}

#[case]
fn sendmsg_is_einval(cx: &Context) {
    let ((a, _b), mut ring) = (pair(), cx.ring(8));
    // SAFETY: msghdr is plain numbers and pointers, for which zeroes are valid.
    let message: libc::msghdr = unsafe { std::mem::zeroed() };
    assert_eq!(ring.run(sqe::sendmsg(fd(&a), &message, 0).ioprio(BUNDLE)), -EINVAL);
}

#[case]
fn single_send_is_cut_to_its_length(cx: &Context) {
    let ((a, b), mut ring) = (pair(), cx.ring(8));
    let buffers = letters(&ring, 3, 0);
    assert_eq!(only(&mut ring, send(&a, 2).ioprio(0)), (2, 0, Some(0)));
    assert_eq!(only(&mut ring, send(&a, 100).ioprio(0)), (4, 0, Some(1)));
    assert_eq!((buffers.head(&ring), arrived(&b)), (2, "aabbbb".into()));
}

#[case]
fn single_send_waits_with_its_buffer(cx: &Context) {
    let ((a, _b), mut ring) = (pair(), cx.ring(8));
    let buffers = large(&ring);
    fill(&a);
    for round in 1..3 {
        ring.go(send(&a, 0).ioprio(0).data(1));
        ring.expect_quiet();
        assert_eq!(buffers.head(&ring), round);
        ring.go(sqe::cancel(1, 0).data(2));
        let mut cqes = ring.wait_all(2);
        cqes.sort_by_key(|cqe| cqe.user_data);
        assert_eq!((seen(&cqes[0]), cqes[1].res), ((-ECANCELED, 0, Some(round as u16 - 1)), 0));
    }
}

#[case(since = "6.17")]
fn single_send_vector_flag_is_ignored(cx: &Context) {
    let ((a, b), mut ring) = (pair(), cx.ring(8));
    let _buffers = letters(&ring, 1, 0);
    assert_eq!(only(&mut ring, send(&a, 0).ioprio(IORING_SEND_VECTORIZED as u16)), (4, 0, Some(0)));
    assert_eq!(arrived(&b), "aaaa");
}
