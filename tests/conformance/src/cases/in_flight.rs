//! Requests in flight while their resources go away. The descriptor is closed, the registered file or buffer is
//! replaced, the submitting thread ends, the ring is closed, or another request cancels them. Some cases are about the
//! moment at which a cancellation's CQEs are posted.

use super::prelude::*;
use crate::buffers::{buffer_of, BufferRing};
use std::net::TcpStream;
use std::time::{Duration, Instant};

topic!(since: "5.1", source: "io_uring_register(2), io_uring/rsrc.c, io_uring/cancel.c");

fn pending_read(ring: &mut Ring, file: &std::fs::File, user_data: u64) {
    let at = address(pages(1));
    ring.go(prep(Opcode::Read, fd(file), at, 1, 0).data(user_data));
}

/// io_uring_prep_cancel(3): a cancellation that succeeds has posted its target's CQE once submission returns.
#[case(since = "5.5")]
fn cancelled_request_is_posted_when_the_cancel_is(cx: &Context) {
    let ((reader, _writer), mut ring) = (pipe(), cx.ring(4));
    pending_read(&mut ring, &reader, 1);
    ring.push(sqe::cancel(1, 0).data(2));
    assert_eq!(ring.submit_and_wait(2), 1);
    assert_eq!(ring.cq_ready(), 2);
    assert_eq!(ring.wait_sorted(2), [(1, -ECANCELED), (2, 0)]);
}

#[case(since = "5.19")]
fn cancel_all_posts_every_one(cx: &Context) {
    let ((reader, _writer), mut ring) = (pipe(), cx.ring(16));
    for n in 1..=10 {
        pending_read(&mut ring, &reader, n);
    }
    ring.push(sqe::cancel_fd(fd(&reader), IORING_ASYNC_CANCEL_ALL).data(11));
    assert_eq!(ring.submit_and_wait(11), 1);
    let mut seen = ring.wait_sorted(11);
    assert_eq!(seen.pop(), Some((11, 10)));
    assert!(seen.iter().all(|(_, res)| *res == -ECANCELED));
}

#[case(since = "6.6")]
fn cancel_by_opcode_and_all(cx: &Context) {
    let ((reader, _writer), mut ring) = (pipe(), cx.ring(8));
    pending_read(&mut ring, &reader, 1);
    pending_read(&mut ring, &reader, 2);
    ring.go(sqe::poll_add(fd(&reader), libc::POLLIN, 0).data(3));
    let flags = IORING_ASYNC_CANCEL_OP | IORING_ASYNC_CANCEL_ALL;
    ring.go(Sqe { len: Opcode::Read as u32, ..sqe::cancel(0, flags) }.data(4));
    assert_eq!(ring.wait_sorted(3), [(1, -ECANCELED), (2, -ECANCELED), (4, 2)]);
    ring.expect_quiet();
    ring.go(sqe::poll_remove(3).data(5));
    assert_eq!(ring.wait_sorted(2), [(3, -ECANCELED), (5, 0)]);
}

#[case(since = "5.19")]
fn cancel_any_takes_polls_timeouts_and_transfers(cx: &Context) {
    let ((reader, _writer), (listener, _), mut ring, long) = (pipe(), listener(), cx.ring(8), ms(10_000));
    pending_read(&mut ring, &reader, 1);
    ring.go(sqe::poll_add(fd(&reader), libc::POLLIN, IORING_POLL_ADD_MULTI).data(2));
    ring.go(sqe::timeout(&long, 0, 0).data(3));
    ring.go(sqe::accept(fd(&listener), 0).data(4));
    ring.go(sqe::timeout(&long, 5, 0).data(5));
    ring.expect_quiet();
    ring.go(sqe::cancel(0, IORING_ASYNC_CANCEL_ANY).data(6));
    let mut seen = ring.wait_sorted(6);
    assert_eq!(seen.pop(), Some((6, 5)));
    assert!(seen.iter().all(|(_, res)| *res == -ECANCELED), "{seen:?}");
}

#[case(since = "5.19")]
fn cancel_of_a_whole_chain_by_descriptor(cx: &Context) {
    let ((reader, _writer), mut ring, at) = (pipe(), cx.ring(8), address(pages(1)));
    let read = prep(Opcode::Read, fd(&reader), at, 1, 0);
    ring.go_all(&[read.with(IOSQE_IO_LINK).data(1), read.with(IOSQE_IO_LINK).data(2), sqe::nop().data(3)]);
    ring.go(sqe::cancel_fd(fd(&reader), IORING_ASYNC_CANCEL_ALL).data(4));
    assert_eq!(ring.wait_sorted(4), [(1, -ECANCELED), (2, -ECANCELED), (3, -ECANCELED), (4, 1)]);
}

#[case(since = "5.6")]
fn cancel_of_a_linked_request_by_its_user_data(cx: &Context) {
    let ((reader, mut writer), mut ring, at) = (pipe(), cx.ring(8), address(pages(1)));
    ring.go_all(&[prep(Opcode::Read, fd(&reader), at, 1, 0).with(IOSQE_IO_LINK).data(1), sqe::nop().data(2)]);
    ring.go(sqe::cancel(2, 0).data(3));
    assert_eq!(ring.wait_ordered(1), [(3, -ENOENT)], "it has not begun");
    writer.write_all(b"x").expect("write");
    assert_eq!(ring.wait_ordered(2), [(1, 1), (2, 0)]);
}

#[case]
fn closing_the_poll_lets_it_complete(cx: &Context) {
    let ((reader, mut writer), mut ring) = (pipe(), cx.ring(4));
    ring.go(sqe::poll_add(fd(&reader), libc::POLLIN, 0));
    ring.expect_quiet();
    drop(reader);
    ring.expect_quiet();
    writer.write_all(b"x").expect("the request keeps the pipe's end open");
    assert_eq!(ring.wait().res, i32::from(libc::POLLIN));
}

#[case(since = "5.5")]
fn closing_the_listener_lets_accept_complete(cx: &Context) {
    let ((listener, _), mut ring) = (listener(), cx.ring(4));
    listener.set_nonblocking(true).expect("O_NONBLOCK");
    let address = listener.local_addr().expect("the address");
    ring.go(sqe::accept(fd(&listener), 0));
    ring.expect_quiet();
    drop(listener);
    let _client = TcpStream::connect(address).expect("the request keeps the listener open");
    assert!(ring.wait().res >= 0);
}

#[case(since = "5.6")]
fn closing_the_writer_ends_the_read(cx: &Context) {
    let ((reader, writer), mut ring) = (pipe(), cx.ring(4));
    pending_read(&mut ring, &reader, 1);
    ring.expect_quiet();
    drop(writer);
    assert_eq!(ring.wait_ordered(1), [(1, 0)]);
}

#[case(since = "5.6")]
fn closing_by_a_request(cx: &Context) {
    let ((reader, mut writer), mut ring) = (pipe(), cx.ring(4));
    pending_read(&mut ring, &reader, 1);
    let number = std::os::fd::IntoRawFd::into_raw_fd(reader);
    assert_eq!(ring.run(sqe::close(number).data(2)), 0);
    assert!(!is_open(number));
    writer.write_all(b"x").expect("the request keeps the pipe's end open");
    assert_eq!(ring.wait_ordered(1), [(1, 1)]);
}

#[case(since = "5.11")]
fn shutdown_by_a_request_ends_recv(cx: &Context) {
    let ((a, _b), mut ring, mut buffer) = (pair(), cx.ring(4), [0; 1]);
    ring.go(sqe::recv(fd(&a), &mut buffer, 0).data(1));
    ring.expect_quiet();
    ring.go(sqe::shutdown(fd(&a), libc::SHUT_RD).data(2));
    assert_eq!(ring.wait_sorted(2), [(1, 0), (2, 0)]);
}

#[case(since = "5.6")]
fn unregistered_files_stay_for_their_requests(cx: &Context) {
    let ((reader, mut writer), mut ring, at) = (pipe(), cx.ring(4), address(pages(1)));
    ring.register_files(&[fd(&reader)]);
    drop(reader);
    ring.go(prep(Opcode::Read, 0, at, 1, 0).with(IOSQE_FIXED_FILE).data(1));
    ring.expect_quiet();
    assert_eq!(ring.register(IORING_UNREGISTER_FILES, 0, 0), 0);
    writer.write_all(b"x").expect("the request keeps the pipe's end open");
    assert_eq!(ring.wait_ordered(1), [(1, 1)]);
}

#[case(undisturbed, since = "5.6")]
fn replaced_file_stays_for_its_request(cx: &Context) {
    let ((first, mut to_first), (second, mut to_second)) = (pipe(), pipe());
    let (mut ring, at) = (cx.ring(4), address(pages(1)));
    ring.register_files(&[fd(&first)]);
    drop(first);
    let read = prep(Opcode::Read, 0, at, 1, 0).with(IOSQE_FIXED_FILE);
    ring.go(read.data(1));
    let number = fd(&second);
    // struct io_uring_files_update: offset, resv, data.
    let update = [0, address(&number)];
    assert_eq!(ring.register(IORING_REGISTER_FILES_UPDATE, address(&update) as usize, 1), 1);
    ring.go(read.data(2));
    to_second.write_all(b"x").expect("write");
    assert_eq!(ring.wait_ordered(1), [(2, 1)]);
    to_first.write_all(b"x").expect("the request keeps the pipe's end open");
    assert_eq!(ring.wait_ordered(1), [(1, 1)]);
}

#[case(since = "5.6")]
fn closed_slot_stays_for_its_request(cx: &Context) {
    let ((reader, mut writer), mut ring, at) = (pipe(), cx.ring(4), address(pages(1)));
    ring.register_files(&[fd(&reader)]);
    drop(reader);
    ring.go(prep(Opcode::Read, 0, at, 1, 0).with(IOSQE_FIXED_FILE).data(1));
    assert_eq!(ring.run(sqe::close(0).file_index(1).data(2)), 0);
    writer.write_all(b"x").expect("the request keeps the pipe's end open");
    assert_eq!(ring.wait_ordered(1), [(1, 1)]);
}

#[case]
fn unregistered_buffers_stay_for_their_requests(cx: &Context) {
    let ((reader, mut writer), mut ring, memory) = (pipe(), cx.ring(4), pages(1));
    assert_eq!(ring.register_buffers(&[iovec_mut(memory)]), 0);
    ring.go(prep(Opcode::ReadFixed, fd(&reader), address(memory), 4, 0).data(1));
    ring.expect_quiet();
    assert_eq!(ring.register(IORING_UNREGISTER_BUFFERS, 0, 0), 0);
    writer.write_all(b"abcd").expect("write");
    assert_eq!(ring.wait_ordered(1), [(1, 4)]);
    assert_eq!(&memory[..4], b"abcd");
}

#[case(since = "6.0")]
fn multishot_recv_of_a_closed_socket_goes_on(cx: &Context) {
    let ((a, b), mut ring) = (pair(), cx.ring(4));
    let _buffers = BufferRing::filled(&ring, 1, 4, 16);
    ring.go(crate::buffers::recv_multishot(fd(&a), 0));
    ring.expect_quiet();
    drop(a);
    put(&b, b"abc");
    let cqe = ring.wait();
    assert_eq!((cqe.res, buffer_of(&cqe)), (3, Some(0)));
    drop(b);
    assert_eq!(ring.wait().res, 0);
}

#[case(own_flags, since = "5.4")]
fn timeout_of_a_thread_that_exited_expires(cx: &Context) {
    let (mut ring, soon) = (cx.ring_with(4, 0), ms(50));
    let at = address(&soon);
    let mut ring = std::thread::spawn(move || {
        ring.go(prep(Opcode::Timeout, -1, at, 1, 0).data(1));
        ring
    })
    .join()
    .expect("the submitter");
    assert_eq!(ring.wait_ordered(1), [(1, -ETIME)]);
}

/// Time for the kernel to end a closed ring's requests, or to run the rest of it: no event reports that.
const SOON: Duration = Duration::from_millis(20);

/// True if a pipe's last reader is gone soon.
fn lets_go(writer: &std::fs::File) -> bool {
    let start = Instant::now();
    while start.elapsed() < crate::ring::PATIENCE {
        let mut entry = libc::pollfd { fd: fd(writer), events: 0, revents: 0 };
        // SAFETY: one entry is passed, and it lives until the call returns.
        if unsafe { libc::poll(&mut entry, 1, 10) } == 1 && entry.revents & libc::POLLERR != 0 {
            return true;
        }
    }
    false
}

#[case]
fn ring_closed_with_a_chain_in_flight_runs_no_more_of_it(cx: &Context) {
    let ((reader, mut writer), mut ring, at) = (pipe(), cx.ring(4), address(pages(1)));
    let made = c"made";
    ring.go_all(&[
        prep(Opcode::Read, fd(&reader), at, 1, 0).with(IOSQE_IO_LINK).data(1),
        prep(Opcode::Mkdirat, libc::AT_FDCWD, made.as_ptr() as u64, 0o700, 0).data(2),
    ]);
    drop(ring);
    std::thread::sleep(SOON);
    writer.write_all(b"x").expect("the reader is the case's own, too");
    std::thread::sleep(SOON);
    assert!(!std::path::Path::new("made").exists());
    assert_eq!(readable_bytes(&reader), 1);
}

#[case]
fn ring_closed_with_a_pending_accept_leaves_the_connection(cx: &Context) {
    let ((listener, _), mut ring) = (listener(), cx.ring(4));
    listener.set_nonblocking(true).expect("O_NONBLOCK");
    ring.go(sqe::accept(fd(&listener), 0));
    drop(ring);
    std::thread::sleep(SOON);
    let _client = TcpStream::connect(listener.local_addr().expect("the address")).expect("connect");
    listener.accept().expect("nobody else took it");
}

#[case(since = "5.13")]
fn ring_closed_with_multishot_requests(cx: &Context) {
    let ((reader, mut writer), (listener, _), mut ring) = (pipe(), listener(), cx.ring(4));
    listener.set_nonblocking(true).expect("O_NONBLOCK");
    ring.go(sqe::poll_add(fd(&reader), libc::POLLIN, IORING_POLL_ADD_MULTI));
    ring.go(sqe::accept(fd(&listener), 0).ioprio(IORING_ACCEPT_MULTISHOT as u16));
    writer.write_all(b"x").expect("write");
    assert!(ring.wait().res > 0);
    drop(ring);
    drop(reader);
    assert!(lets_go(&writer), "the poll lets the pipe go");
    let _client = TcpStream::connect(listener.local_addr().expect("the address")).expect("connect");
    listener.accept().expect("nobody else took it");
}

#[case]
fn ring_closed_with_a_read_on_a_worker(cx: &Context) {
    let ((reader, writer), mut ring, at) = (pipe(), cx.ring(4), address(pages(1)));
    ring.go(prep(Opcode::Read, fd(&reader), at, 1, 0).with(IOSQE_ASYNC));
    ring.expect_quiet();
    drop(ring);
    drop(reader);
    assert!(lets_go(&writer));
}

#[case]
fn ring_closed_with_drained_requests(cx: &Context) {
    let ((reader, writer), mut ring, at) = (pipe(), cx.ring(4), address(pages(1)));
    let read = prep(Opcode::Read, fd(&reader), at, 1, 0);
    ring.go_all(&[read.data(1), read.with(IOSQE_IO_DRAIN).data(2), read.data(3)]);
    drop(ring);
    drop(reader);
    assert!(lets_go(&writer));
}

#[case]
fn ring_closed_with_fixed_files_lets_them_go(cx: &Context) {
    let ((reader, writer), mut ring, at) = (pipe(), cx.ring(4), address(pages(1)));
    ring.register_files(&[fd(&reader)]);
    drop(reader);
    ring.go(prep(Opcode::Read, 0, at, 1, 0).with(IOSQE_FIXED_FILE));
    ring.expect_quiet();
    drop(ring);
    assert!(lets_go(&writer));
}

#[case(own_flags, since = "6.1")]
fn ring_of_a_thread_that_exited_can_be_closed(cx: &Context) {
    let ((reader, writer), at) = (pipe(), address(pages(1)));
    for flags in [0, IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN] {
        let (context, number) = (*cx, fd(&reader));
        let ring = std::thread::spawn(move || {
            let mut ring = context.ring_with(4, flags);
            ring.go(prep(Opcode::Read, number, at, 1, 0));
            ring
        });
        drop(ring.join().expect("the submitter"));
    }
    drop(reader);
    assert!(lets_go(&writer));
}
