//! IORING_RECVSEND_POLL_FIRST on sockets that are ready already.

use super::prelude::*;
use crate::buffers::*;

topic!(since: "6.0", source: "io_uring_enter(2), io_uring/net.c, `io_queue_async` in io_uring/io_uring.c");

const FIRST: u16 = IORING_RECVSEND_POLL_FIRST as u16;

fn kinds() -> [(OwnedFd, OwnedFd); 3] {
    let (a, b) = tcp_pair();
    [unix_pair(libc::SOCK_STREAM), unix_pair(libc::SOCK_SEQPACKET), (a.into(), b.into())]
}

/// Sends, and waits until the data has arrived.
fn give(cx: &Context, from: &OwnedFd, to: &OwnedFd, bytes: &[u8]) {
    put(from, bytes);
    assert_eq!(cx.door.poll(fd(to), libc::POLLIN, 10_000), libc::POLLIN as isize);
}

/// Task work runs before the call returns.
#[case(own_flags, undisturbed)]
fn what_is_ready_is_made_in_the_submission(cx: &Context) {
    for flags in [0, IORING_SETUP_COOP_TASKRUN] {
        for (a, b) in kinds() {
            let (mut ring, mut bytes, mut others) = (cx.ring_with(8, flags), [0; 3], [0; 3]);
            give(cx, &b, &a, b"abc");
            give(cx, &a, &b, b"abc");
            let (mut vectors, mut sent) = ([iovec_mut(&mut others)], [iovec(b"xyz")]);
            let (mut room, out) = (message(&mut vectors), message(&mut sent));
            ring.go_all(&[
                sqe::recv(fd(&a), &mut bytes, 0).ioprio(FIRST).with(IOSQE_IO_LINK).data(1),
                sqe::nop().data(2),
                sqe::recvmsg(fd(&b), &mut room, 0).ioprio(FIRST).data(3),
                sqe::send(fd(&a), b"abc", 0).ioprio(FIRST).data(4),
                sqe::sendmsg(fd(&b), &out, 0).ioprio(FIRST).data(5),
            ]);
            assert_eq!(ring.cq_ready(), 5);
            assert_eq!(ring.wait_sorted(5), [(1, 3), (2, 0), (3, 3), (4, 3), (5, 3)]);
        }
    }
}

#[case(own_flags, undisturbed, since = "6.10")]
fn bundles_are_made_in_the_submission(cx: &Context) {
    let ((a, b), mut ring) = (unix_pair(libc::SOCK_STREAM), cx.ring_with(8, 0));
    let _group = BufferRing::filled(&ring, 1, 8, 4);
    give(cx, &b, &a, b"0123456789");
    ring.go(recv_select(fd(&a), 1, 0).ioprio(FIRST | IORING_RECVSEND_BUNDLE as u16));
    assert_eq!(ring.cq_ready(), 1);
    assert_eq!(ring.wait().res, 8, "the first two buffers");
}

#[case(own_flags, undisturbed, since = "6.10")]
fn bundles_are_sent_in_the_submission(cx: &Context) {
    for flags in [0, IORING_SETUP_COOP_TASKRUN] {
        for (a, _b) in [unix_pair(libc::SOCK_STREAM), pair()] {
            let mut ring = cx.ring_with(8, flags);
            let _group = BufferRing::filled(&ring, 1, 4, 8);
            let sqe = prep(Opcode::Send, fd(&a), 0, 0, 0).with(IOSQE_BUFFER_SELECT).buffer(1);
            ring.go(sqe.ioprio(FIRST | IORING_RECVSEND_BUNDLE as u16));
            assert_eq!(ring.cq_ready(), 1);
            assert_eq!(ring.wait().res, 32, "all four buffers");
        }
    }
}

/// Those that polled first come after the submission, in order.
#[case(undisturbed)]
fn several_on_one_socket(cx: &Context) {
    for (a, b) in [unix_pair(libc::SOCK_STREAM), pair()] {
        let (mut ring, mut bytes) = (cx.ring(8), [[0; 1]; 4]);
        give(cx, &b, &a, b"wxyz");
        let sqes: Vec<Sqe> = (1..).zip(&mut bytes).map(|(n, byte)| sqe::recv(fd(&a), byte, 0).data(n)).collect();
        ring.go_all(&[sqes[0].ioprio(FIRST), sqes[1].ioprio(FIRST), sqes[2], sqes[3].ioprio(FIRST)]);
        assert_eq!(ring.wait_ordered(4), [(3, 1), (1, 1), (2, 1), (4, 1)]);
        assert_eq!(bytes, [*b"x", *b"y", *b"w", *b"z"]);
    }
}

#[case]
fn several_that_wait(cx: &Context) {
    let ((a, b), mut ring, mut bytes) = (unix_pair(libc::SOCK_STREAM), cx.ring(8), [[0; 1]; 3]);
    let sqes: Vec<Sqe> = (1..).zip(&mut bytes).map(|(n, byte)| sqe::recv(fd(&a), byte, 0).data(n)).collect();
    ring.go_all(&[sqes[0].ioprio(FIRST), sqes[1].ioprio(FIRST), sqes[2]]);
    ring.expect_quiet();
    put(&b, b"xyz");
    assert_eq!(ring.wait_ordered(3), [(3, 1), (2, 1), (1, 1)]);
}

#[case]
fn may_not_wait_is_eagain_with_data_too(cx: &Context) {
    let ((a, b), mut ring, mut bytes) = (unix_pair(libc::SOCK_STREAM), cx.ring(4), [0; 4]);
    let recv = sqe::recv(fd(&a), &mut bytes, libc::MSG_DONTWAIT).ioprio(FIRST);
    assert_eq!(ring.run(recv), -EAGAIN);
    give(cx, &b, &a, b"abc");
    assert_eq!(ring.run(recv), -EAGAIN);
    assert_eq!(ring.run(sqe::recv(fd(&a), &mut bytes, 0).ioprio(FIRST)), 3);
}

#[case(undisturbed)]
fn the_peers_end_is_ready(cx: &Context) {
    for (a, b) in kinds() {
        let (mut ring, mut bytes) = (cx.ring(4), [0; 4]);
        drop(b);
        assert_eq!(cx.door.poll(fd(&a), libc::POLLIN, 10_000) & libc::POLLIN as isize, libc::POLLIN as isize);
        assert_eq!(ring.run(sqe::recv(fd(&a), &mut bytes, 0).ioprio(FIRST)), 0);
    }
}
