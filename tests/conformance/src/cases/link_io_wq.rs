//! Requests that a worker of io-wq issues without IOSQE_ASYNC. The first kind is the next of a chain after a request
//! that a worker completed. The second is a chain that the end of its submission cuts off. Such a request fails with
//! EAGAIN if its file has O_NONBLOCK.

use super::prelude::*;
use crate::buffers::BufferRing;
use crate::ring::QUIET;

topic!(since: "5.5", source: "io_wq_submit_work in io_uring/io_uring.c");

/// True if results go to the submitter before the chain goes on. The next request is then issued by the submitter or by
/// the worker, whichever drops the completed request last (`io_wq_free_work`). Both orders are right.
fn defers(cx: &Context) -> bool {
    cx.flag_set.flags & IORING_SETUP_DEFER_TASKRUN != 0
}

fn nonblocking() -> std::fs::File {
    eventfd(0, libc::EFD_NONBLOCK)
}

fn fsync(file: &std::fs::File) -> Sqe {
    prep(Opcode::Fsync, fd(file), 0, 0, 0)
}

/// Submits `sqe` after an FSYNC. The request fails with EAGAIN. With DEFER_TASKRUN it may wait instead.
fn gives_up(cx: &Context, ring: &mut Ring, sqe: Sqe) {
    let file = file("f", b"x");
    ring.go_all(&[fsync(&file).with(IOSQE_IO_LINK).data(1), sqe.data(2)]);
    assert_eq!(ring.wait_ordered(1), [(1, 0)]);
    if !second_gives_up(cx, ring) {
        ring.go(sqe::cancel(2, 0).data(3));
        assert_eq!(ring.wait_sorted(2), [(2, -ECANCELED), (3, 0)]);
    }
}

/// True if the second request of a chain ended, with EAGAIN. With DEFER_TASKRUN it may wait.
fn second_gives_up(cx: &Context, ring: &mut Ring) -> bool {
    let cqe = if defers(cx) { ring.wait_for(QUIET) } else { Some(ring.wait()) };
    if let Some(cqe) = cqe {
        assert_eq!((cqe.user_data, cqe.res), (2, -EAGAIN));
    }
    cqe.is_some()
}

#[case(since = "5.6")]
fn read_after_a_punted_request_is_eagain(cx: &Context) {
    let (event, mut ring, mut buffer) = (nonblocking(), cx.ring(8), [0u8; 8]);
    let read = sqe::read(fd(&event), &mut buffer, 0);
    gives_up(cx, &mut ring, read);
    ring.go(read.data(4));
    ring.expect_quiet();
    gives_up(cx, &mut ring, read); // beside one that waits already
    (&event).write_all(&1u64.to_ne_bytes()).expect("write");
    assert_eq!(ring.wait_ordered(1), [(4, 8)]);
}

#[case(since = "5.6")]
fn read_after_a_punted_request_finds_what_is_there(cx: &Context) {
    let (event, file, mut ring, mut buffer) = (nonblocking(), file("f", b"x"), cx.ring(8), [0u8; 8]);
    let read = sqe::read(fd(&event), &mut buffer, 0);
    for _ in 0..6 {
        (&event).write_all(&1u64.to_ne_bytes()).expect("write");
        ring.go_all(&[fsync(&file).with(IOSQE_IO_LINK).data(1), read.data(2)]);
        assert_eq!(ring.wait_ordered(2), [(1, 0), (2, 8)]);
    }
}

#[case(since = "5.6")]
fn read_after_an_inline_request_waits(cx: &Context) {
    let (event, mut ring, mut buffer) = (nonblocking(), cx.ring(8), [0u8; 8]);
    ring.go_all(&[sqe::nop().with(IOSQE_IO_LINK).data(1), sqe::read(fd(&event), &mut buffer, 0).data(2)]);
    assert_eq!(ring.wait_ordered(1), [(1, 0)]);
    ring.expect_quiet();
    (&event).write_all(&1u64.to_ne_bytes()).expect("write");
    assert_eq!(ring.wait_ordered(1), [(2, 8)]);
}

#[case(since = "5.6")]
fn blocking_read_after_a_punted_request_waits(cx: &Context) {
    let (event, file, mut ring, mut buffer) = (eventfd(0, 0), file("f", b"x"), cx.ring(8), [0u8; 8]);
    let read = sqe::read(fd(&event), &mut buffer, 0);
    ring.go_all(&[fsync(&file).with(IOSQE_IO_LINK).data(1), read.data(2)]);
    assert_eq!(ring.wait_ordered(1), [(1, 0)]);
    ring.expect_quiet();
    (&event).write_all(&1u64.to_ne_bytes()).expect("write");
    assert_eq!(ring.wait_ordered(1), [(2, 8)]);
}

#[case(since = "5.6")]
fn read_after_an_async_write_is_eagain(cx: &Context) {
    let (event, file, mut ring, mut buffer) = (nonblocking(), file("f", b"x"), cx.ring(8), [0u8; 8]);
    let write = sqe::write(fd(&file), b"abc", 0).with(IOSQE_IO_LINK | IOSQE_ASYNC);
    ring.go_all(&[write.data(1), sqe::read(fd(&event), &mut buffer, 0).data(2)]);
    assert_eq!(ring.wait_ordered(1), [(1, 3)]);
    second_gives_up(cx, &mut ring);
}

#[case]
fn accept_after_a_punted_request_is_eagain(cx: &Context) {
    let ((listener, _), mut ring) = (listener(), cx.ring(8));
    listener.set_nonblocking(true).expect("nonblocking");
    gives_up(cx, &mut ring, sqe::accept(fd(&listener), 0));
}

#[case]
fn epoll_wait_after_a_punted_request_is_eagain(cx: &Context) {
    let (set, mut ring, mut events) = (epoll(), cx.ring(8), [0u64; 4]);
    gives_up(cx, &mut ring, prep(Opcode::EpollWait, fd(&set), address_mut(&mut events), 1, 0));
}

#[case(since = "5.19")]
fn read_with_a_buffer_after_a_punted_request_takes_it(cx: &Context) {
    let (event, file, mut ring) = (nonblocking(), file("f", b"x"), cx.ring(8));
    let buffers = BufferRing::filled(&ring, 1, 4, 16);
    let read = prep(Opcode::Read, fd(&event), 0, 0, 0).with(IOSQE_BUFFER_SELECT).buffer(1);
    ring.go_all(&[fsync(&file).with(IOSQE_IO_LINK).data(1), read.data(2)]);
    assert_eq!(ring.wait_ordered(1), [(1, 0)]);
    let cqe = if defers(cx) { ring.wait_for(QUIET) } else { Some(ring.wait()) };
    if let Some(cqe) = cqe {
        assert_eq!((cqe.user_data, cqe.res, cqe.flags & IORING_CQE_F_BUFFER), (2, -EAGAIN, IORING_CQE_F_BUFFER));
        assert_eq!(buffers.head(&ring), 1);
    }
}

#[case]
fn read_in_a_chain_cut_off_is_eagain(cx: &Context) {
    let (event, mut ring, mut buffer) = (nonblocking(), cx.ring(8), [0u8; 8]);
    ring.go(sqe::read(fd(&event), &mut buffer, 0).with(IOSQE_IO_LINK).data(1));
    assert_eq!(ring.wait_ordered(1), [(1, -EAGAIN)]);
}

/// A failure goes to the submitter, who continues a hard link, unless the worker drops the request later.
#[case]
fn read_after_one_that_failed_there_waits(cx: &Context) {
    let (event, file, mut ring, mut buffers) = (nonblocking(), file("f", b"x"), cx.ring(8), [[0u8; 8]; 2]);
    let [first, second] = &mut buffers;
    ring.go_all(&[
        fsync(&file).with(IOSQE_IO_LINK).data(1),
        sqe::read(fd(&event), first, 0).with(IOSQE_IO_HARDLINK).data(2),
        sqe::read(fd(&event), second, 0).data(3),
    ]);
    assert_eq!(ring.wait_ordered(1), [(1, 0)]);
    second_gives_up(cx, &mut ring);
    if let Some(cqe) = ring.wait_for(QUIET) {
        assert_eq!((cqe.user_data, cqe.res), (3, -EAGAIN));
    }
}

#[case(since = "5.19")]
fn cancel_finds_itself(cx: &Context) {
    let mut ring = cx.ring(8);
    assert_eq!(ring.run(sqe::cancel(7, 0).data(7)), -libc::ENOENT);
    ring.go(sqe::cancel(7, 0).with(IOSQE_ASYNC).data(7));
    assert_eq!(ring.wait_ordered(1), [(7, -libc::EALREADY)]);
    ring.go(sqe::cancel(7, IORING_ASYNC_CANCEL_ALL).with(IOSQE_ASYNC).data(7));
    assert_eq!(ring.wait_ordered(1), [(7, 0)]);
    ring.go(sqe::cancel(8, 0).with(IOSQE_ASYNC).data(7));
    assert_eq!(ring.wait_ordered(1), [(7, -libc::ENOENT)]);
}

#[case]
fn cancel_after_a_punted_request_finds_itself(cx: &Context) {
    let (file, mut ring) = (file("f", b"x"), cx.ring(8));
    ring.go_all(&[fsync(&file).with(IOSQE_IO_LINK).data(1), sqe::cancel(2, 0).data(2)]);
    assert_eq!(ring.wait_ordered(1), [(1, 0)]);
    let res = ring.wait().res;
    assert!(res == -libc::EALREADY || (defers(cx) && res == -libc::ENOENT), "{res}");
}

/// A bundle may post several CQEs, which no worker's request does (`io_wq_submit_work`).
#[case]
fn bundle_after_a_punted_request_is_cancelled(cx: &Context) {
    let (file, (a, b), mut ring) = (file("f", b"x"), pair(), cx.ring(8));
    let send = sqe::send(fd(&a), b"hello", 0).ioprio(IORING_RECVSEND_BUNDLE as u16);
    ring.go_all(&[fsync(&file).with(IOSQE_IO_LINK).data(1), send.data(2)]);
    assert_eq!(ring.wait_ordered(1), [(1, 0)]);
    let cqe = ring.wait();
    if defers(cx) && cqe.res == 5 {
        return;
    }
    assert_eq!((cqe.user_data, cqe.res, readable_bytes(&b)), (2, -ECANCELED, 0));
}

#[case(since = "6.8")]
fn async_recv_that_polls_first_takes_no_buffer(cx: &Context) {
    let ((_a, b), mut ring) = (pair(), cx.ring(8));
    let buffers = BufferRing::filled(&ring, 1, 4, 16);
    let recv = prep(Opcode::Recv, fd(&b), 0, 0, 0).with(IOSQE_BUFFER_SELECT | IOSQE_ASYNC).buffer(1);
    ring.go(recv.ioprio(IORING_RECVSEND_POLL_FIRST as u16).data(1));
    ring.expect_quiet();
    ring.go(sqe::cancel(1, 0).data(2));
    let mut cqes = ring.wait_all(2);
    cqes.sort_by_key(|cqe| cqe.user_data);
    assert_eq!((cqes[0].res, cqes[0].flags), (-ECANCELED, 0));
    assert_eq!(buffers.head(&ring), 0);
}

#[case(since = "6.8")]
fn async_read_of_a_bad_descriptor_takes_no_buffer(cx: &Context) {
    let mut ring = cx.ring(8);
    let buffers = BufferRing::filled(&ring, 1, 4, 16);
    ring.go(prep(Opcode::Read, 9999, 0, 0, 0).with(IOSQE_BUFFER_SELECT | IOSQE_ASYNC).buffer(1));
    let cqe = ring.wait();
    assert_eq!((cqe.res, cqe.flags, buffers.head(&ring)), (-libc::EBADF, 0, 0));
}
