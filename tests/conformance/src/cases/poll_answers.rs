//! Results of POLL_ADD in three situations: the file has nothing to wait for, the waker supplies the events, or the
//! poll's own CQE wakes it.

use super::prelude::*;
use crate::aio::{poll, Aio};

topic!(since: "5.1", source: "io_uring/poll.c");

const IN: i16 = libc::POLLIN;
const OUT: i16 = libc::POLLOUT;
const PRI: i16 = libc::POLLPRI;
const BAND: i16 = libc::POLLRDBAND;

fn multishot(file: &impl std::os::fd::AsRawFd, events: i16) -> Sqe {
    sqe::poll_add(fd(file), events, IORING_POLL_ADD_MULTI)
}

/// Files that epoll(7) refuses.
fn without_a_queue() -> Vec<std::fs::File> {
    let open = |path| std::fs::File::open(path).expect("open");
    let mut files = vec![file("f", b"x"), open("."), open("/dev/null"), open("/dev/zero")];
    files.extend(std::fs::File::open("/proc/self/status")); // where there is /proc
    files
}

#[case(since = "5.13")]
fn multishot_of_a_file_that_does_not_wait_ends_with_what_there_is(cx: &Context) {
    let mut ring = cx.ring(4);
    for file in &without_a_queue() {
        for events in [IN, OUT, IN | OUT, libc::POLLRDNORM] {
            ring.go(multishot(file, events));
            let cqe = ring.wait();
            assert_eq!((cqe.res, cqe.flags), (i32::from(events), 0));
        }
    }
    ring.expect_quiet();
}

#[case]
fn nothing_to_wait_for_is_einval(cx: &Context) {
    let mut ring = cx.ring(4);
    for file in &without_a_queue() {
        for events in [0, PRI, libc::POLLERR, libc::POLLRDHUP, BAND] {
            assert_eq!(ring.run(sqe::poll_add(fd(file), events, 0)), -EINVAL, "{events:#x}");
            assert_eq!(ring.run(multishot(file, events)), -EINVAL, "{events:#x}");
        }
    }
}

#[case]
fn nothing_to_wait_for_breaks_a_chain(cx: &Context) {
    let (mut ring, file) = (cx.ring(4), file("f", b"x"));
    for poll in [sqe::poll_add(fd(&file), PRI, 0), multishot(&file, PRI)] {
        ring.go_all(&[poll.with(IOSQE_IO_LINK).data(1), sqe::nop().data(2)]);
        assert_eq!(ring.wait_ordered(2), [(1, -EINVAL), (2, -ECANCELED)]);
    }
}

#[case(since = "5.13")]
fn an_answer_without_waiting_keeps_a_chain(cx: &Context) {
    let (mut ring, file) = (cx.ring(4), file("f", b"x"));
    ring.go_all(&[multishot(&file, IN).with(IOSQE_IO_LINK).data(1), sqe::nop().data(2)]);
    assert_eq!(ring.wait_ordered(2), [(1, i32::from(IN)), (2, 0)]);
}

#[case(since = "5.13")]
fn with_async_of_a_file_that_does_not_wait(cx: &Context) {
    let (mut ring, file) = (cx.ring(4), file("f", b"x"));
    assert_eq!(ring.run(multishot(&file, IN).with(IOSQE_ASYNC)), i32::from(IN));
    assert_eq!(ring.run(multishot(&file, PRI).with(IOSQE_ASYNC)), -EINVAL);
    assert_eq!(ring.run(sqe::poll_add(fd(&file), PRI, 0).with(IOSQE_ASYNC)), -EINVAL);
}

#[case(own_flags)]
fn aio_poll_of_what_does_not_wait(cx: &Context) {
    let aio = Aio::new(cx.door, 8);
    for file in &without_a_queue() {
        assert_eq!(aio.run(poll(file, IN)), i64::from(IN));
        for events in [0, PRI, libc::POLLERR] {
            assert_eq!(aio.submit(&mut [poll(file, events)]), -EINVAL as isize, "{events:#x}");
        }
    }
}

/// One end to poll, and one to write to.
fn sockets() -> [(OwnedFd, OwnedFd); 2] {
    [unix_pair(libc::SOCK_STREAM), unix_pair(libc::SOCK_DGRAM)]
}

fn put(file: &OwnedFd) {
    let byte = [0u8; 1];
    // SAFETY: the byte lives until the call returns.
    assert_eq!(unsafe { libc::write(fd(file), byte.as_ptr().cast(), 1) }, 1);
}

#[case]
fn armed_on_a_socket_answers_what_woke_it(cx: &Context) {
    let mut ring = cx.ring(4);
    for (a, b) in sockets() {
        ring.go(sqe::poll_add(fd(&a), IN | PRI | BAND, 0));
        ring.expect_quiet();
        put(&b);
        assert_eq!(ring.wait().res, i32::from(IN | PRI | BAND));
    }
}

#[case(since = "5.13")]
fn ready_socket_answers_what_is_there(cx: &Context) {
    for (a, b) in sockets() {
        let mut ring = cx.ring(4);
        put(&b);
        assert_eq!(ring.run(sqe::poll_add(fd(&a), IN | PRI | BAND, 0)), i32::from(IN));
        ring.go(multishot(&a, IN | PRI));
        assert_eq!(ring.wait().res, i32::from(IN));
    }
}

#[case(since = "5.13")]
fn multishot_on_a_socket_answers_what_woke_it(cx: &Context) {
    let mut ring = cx.ring(4);
    let (a, b) = unix_pair(libc::SOCK_STREAM);
    put(&b);
    ring.go(multishot(&a, IN | PRI));
    assert_eq!(ring.wait().res, i32::from(IN));
    for _ in 0..2 {
        put(&b);
        let cqe = ring.wait();
        assert_eq!((cqe.res, cqe.flags), (i32::from(IN | PRI), IORING_CQE_F_MORE));
    }
}

#[case]
fn armed_on_a_socket_answers_only_the_end_that_came(cx: &Context) {
    let ((a, b), mut ring) = (unix_pair(libc::SOCK_STREAM), cx.ring(4));
    ring.go(sqe::poll_add(fd(&a), IN | PRI, 0));
    ring.expect_quiet();
    drop(b);
    assert_eq!(ring.wait().res, i32::from(IN | libc::POLLHUP | libc::POLLRDHUP));
}

#[case]
fn armed_on_a_pipe_answers_what_is_there(cx: &Context) {
    let ((reader, mut writer), mut ring) = (pipe(), cx.ring(4));
    ring.go(sqe::poll_add(fd(&reader), IN | PRI | BAND, 0));
    ring.expect_quiet();
    writer.write_all(b"x").expect("write");
    assert_eq!(ring.wait().res, i32::from(IN));
}

/// The result names the events that woke the request, even if the data is gone when the result is posted. liburing's
/// poll-bench relies on this.
#[case(since = "5.13")]
fn armed_answers_data_that_the_program_took_meanwhile(cx: &Context) {
    let ((mut reader, mut writer), mut ring) = (pipe(), cx.ring(4));
    for flags in [0, IORING_POLL_ADD_MULTI] {
        ring.go(sqe::poll_add(fd(&reader), IN, flags));
        writer.write_all(b"x").expect("write");
        reader.read_exact(&mut [0]).expect("read");
        let cqe = ring.wait_for(crate::ring::PATIENCE).expect("the wake is an answer");
        assert_eq!(cqe.res, i32::from(IN));
    }
}

#[case(since = "5.13")]
fn multishot_of_its_own_eventfd_ends(cx: &Context) {
    let (mut ring, file) = (cx.ring(8), eventfd(0, 0));
    let number = fd(&file);
    assert_eq!(ring.register(IORING_REGISTER_EVENTFD, &raw const number as usize, 1), 0);
    ring.go(multishot(&file, IN).data(1));
    ring.go(sqe::nop().data(2));
    assert_eq!(ring.wait_sorted(2), [(1, i32::from(IN)), (2, 0)]);
    ring.expect_quiet();
    assert_eq!(ring.run(sqe::poll_remove(1)), -ENOENT);
}

#[case(since = "5.13")]
fn multishot_of_its_own_eventfd_when_another_signals_it(cx: &Context) {
    let (mut ring, file) = (cx.ring(8), eventfd(0, 0));
    let number = fd(&file);
    assert_eq!(ring.register(IORING_REGISTER_EVENTFD, &raw const number as usize, 1), 0);
    ring.go(multishot(&file, IN));
    ring.expect_quiet();
    let one = 1u64;
    // SAFETY: the number lives until the call returns.
    assert_eq!(unsafe { libc::write(number, (&raw const one).cast(), 8) }, 8);
    let cqes = [ring.wait(), ring.wait()].map(|cqe| (cqe.res, cqe.flags));
    assert_eq!(cqes, [(i32::from(IN), IORING_CQE_F_MORE), (i32::from(IN), 0)]);
    ring.expect_quiet();
}

/// A ring with one submission. It has a multishot poll (1), which finds its descriptor ready, then `second` (2).
fn found_and(cx: &Context, second: Sqe) -> (OwnedFd, Ring) {
    let ((_reader, writer), mut ring) = (pipe(), cx.ring(8));
    let poll = sqe::poll_add(fd(&writer), libc::POLLOUT, IORING_POLL_ADD_MULTI);
    ring.go_all(&[poll.data(1), second.data(2)]);
    (writer.into(), ring)
}

/// A multishot poll posts its CQE by task work, unlike one that ends with its first.
#[case(since = "5.13")]
fn multishot_answers_what_it_finds_after_its_submission(cx: &Context) {
    let ((reader, writer), mut ring) = (pipe(), cx.ring(8));
    let poll = |flags| sqe::poll_add(fd(&writer), libc::POLLOUT, flags);
    ring.go_all(&[poll(IORING_POLL_ADD_MULTI).data(1), sqe::nop().data(2), poll(0).data(3)]);
    let answer = libc::POLLOUT.into();
    assert_eq!(ring.wait_ordered(3), [(2, 0), (3, answer), (1, answer)]);
    drop(reader);
}

/// The answer has all that there is once somebody asks for events.
#[case(own_flags, since = "6.1")]
fn multishot_answers_what_it_finds_once_asked(cx: &Context) {
    let mut ring = cx.ring_with(8, IORING_SETUP_DEFER_TASKRUN | IORING_SETUP_SINGLE_ISSUER);
    let (a, b) = pair();
    ring.go(multishot(&a, IN | OUT).data(1));
    assert_eq!(ring.cq_ready(), 0);
    ring.go(sqe::poll_remove(1).data(2));
    put(&b);
    assert_eq!(ring.wait_ordered(2), [(2, -EALREADY), (1, i32::from(IN | OUT))]);
    ring.expect_quiet();
}

#[case(since = "5.13")]
fn multishot_that_found_something_is_not_removed(cx: &Context) {
    let (_writer, mut ring) = found_and(cx, sqe::poll_remove(1));
    let first = ring.wait_all(2);
    assert_eq!((first[0].user_data, first[0].res), (2, -EALREADY));
    assert_eq!((first[1].user_data, first[1].flags), (1, IORING_CQE_F_MORE));
}

#[case(since = "5.5")]
fn multishot_that_found_something_is_cancelled(cx: &Context) {
    let (_writer, mut ring) = found_and(cx, sqe::cancel(1, 0));
    assert_eq!(ring.wait_ordered(2), [(2, 0), (1, -ECANCELED)]);
    ring.expect_quiet();
}
