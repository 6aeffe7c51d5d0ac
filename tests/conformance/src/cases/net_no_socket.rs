//! RECV and RECVMSG of files that are no sockets: which of them wait, and how each ends.

use super::prelude::*;
use crate::buffers::*;

topic!(since: "6.8", source: "io_uring/net.c, io_uring/io_uring.c");

const FIRST: u16 = IORING_RECVSEND_POLL_FIRST as u16;
const SHOTS: u16 = IORING_RECV_MULTISHOT as u16;

/// Files that are not readable yet, and what makes them readable.
fn waiting() -> [(OwnedFd, OwnedFd); 2] {
    let (reader, writer) = pipe();
    let counter = eventfd(0, 0);
    let same = counter.try_clone().expect("a duplicate");
    [(reader.into(), writer.into()), (counter.into(), same.into())]
}

fn wake(file: OwnedFd) {
    std::fs::File::from(file).write_all(&1u64.to_ne_bytes()).expect("room");
}

fn recvmsg_select(file: i32, message: &mut libc::msghdr) -> Sqe {
    sqe::recvmsg(file, message, 0).with(IOSQE_BUFFER_SELECT).buffer(1)
}

/// Checks that the request waits until the file is readable, and then ends without a buffer.
fn waits_and_finds_no_socket(ring: &mut Ring, sqe: Sqe, writer: OwnedFd) {
    ring.go(sqe);
    ring.expect_quiet();
    wake(writer);
    let cqe = ring.wait();
    assert_eq!((cqe.res, cqe.flags), (-ENOTSOCK, 0));
}

#[case(until = "7.3")]
fn recv_that_polls_first_waits(cx: &Context) {
    let mut ring = cx.ring(8);
    let buffers = BufferRing::filled(&ring, 1, 8, 64);
    for options in [FIRST, FIRST | SHOTS] {
        for (file, writer) in waiting() {
            let sqe = recv_select(fd(&file), 1, 0).ioprio(options);
            waits_and_finds_no_socket(&mut ring, sqe, writer);
        }
    }
    assert_eq!(buffers.head(&ring), 0);
}

#[case]
fn recvmsg_that_polls_first_does_not_wait(cx: &Context) {
    let (mut ring, mut message) = (cx.ring(8), message(&mut []));
    let buffers = BufferRing::filled(&ring, 1, 8, 64);
    for options in [FIRST, FIRST | SHOTS] {
        for (file, _writer) in waiting() {
            let sqe = recvmsg_select(fd(&file), &mut message).ioprio(options);
            assert_eq!(run_taking(&mut ring, sqe), (-ENOTSOCK, None));
        }
    }
    assert_eq!(buffers.head(&ring), 0);
}

#[case]
fn multishot_receives_of_a_worker_wait(cx: &Context) {
    let (mut ring, mut message) = (cx.ring(8), message(&mut []));
    let buffers = BufferRing::filled(&ring, 1, 8, 64);
    for (file, writer) in waiting() {
        let sqe = recv_select(fd(&file), 1, 0).ioprio(SHOTS).with(IOSQE_ASYNC | IOSQE_BUFFER_SELECT);
        waits_and_finds_no_socket(&mut ring, sqe, writer);
    }
    for (file, writer) in waiting() {
        let sqe = recvmsg_select(fd(&file), &mut message).ioprio(SHOTS).with(IOSQE_ASYNC | IOSQE_BUFFER_SELECT);
        waits_and_finds_no_socket(&mut ring, sqe, writer);
    }
    assert_eq!(buffers.head(&ring), 0);
}

#[case]
fn multishot_receives_of_a_worker_need_a_file_that_polls(cx: &Context) {
    let (mut ring, mut message) = (cx.ring(8), message(&mut []));
    let _buffers = BufferRing::filled(&ring, 1, 8, 64);
    let null = std::fs::File::open("/dev/null").expect("it is there");
    let flags = IOSQE_ASYNC | IOSQE_BUFFER_SELECT;
    for file in [file("file", b"x"), null] {
        for options in [SHOTS, SHOTS | FIRST] {
            let recv = recv_select(fd(&file), 1, 0).ioprio(options).with(flags);
            assert_eq!(run_taking(&mut ring, recv), (-EBADFD, None));
            let recvmsg = recvmsg_select(fd(&file), &mut message).ioprio(options).with(flags);
            assert_eq!(run_taking(&mut ring, recvmsg), (-EBADFD, None));
        }
    }
}

#[case(until = "7.3")]
fn multishot_receive_of_a_file_is_an_error(cx: &Context) {
    let mut ring = cx.ring(8);
    let buffers = BufferRing::filled(&ring, 1, 8, 64);
    let file = file("file", b"x");
    assert_eq!(run_taking(&mut ring, recv_select(fd(&file), 1, 0).ioprio(SHOTS)), (-ENOTSOCK, None));
    assert_eq!(run_taking(&mut ring, recv_select(fd(&file), 1, 0).ioprio(SHOTS | FIRST)), (-EBADFD, None));
    assert_eq!(buffers.head(&ring), 0);
}
