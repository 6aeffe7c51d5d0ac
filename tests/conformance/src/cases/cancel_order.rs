//! The request that a cancel ends if several match, and the order of the CQEs. The cases are about ASYNC_CANCEL,
//! POLL_REMOVE, TIMEOUT_REMOVE and LINK_TIMEOUT.

use super::futex::wait_on;
use super::prelude::*;
use super::waitid::{self, Child};
use std::os::unix::net::UnixStream;
use std::sync::atomic::AtomicU32;
use std::time::Instant;

topic!(since: "5.5", source: "io_uring/cancel.c, io_uring/poll.c, io_uring/timeout.c");

/// Submits the requests as 1, 2 and 3, one a call, and cancels by their opcode until none is left. Returns the ended
/// requests in turn.
fn by_opcode(cx: &Context, requests: [Sqe; 3]) -> Vec<u64> {
    let mut ring = cx.ring(8);
    let opcode = requests[0].opcode;
    for (request, user_data) in requests.into_iter().zip(1..) {
        ring.go(request.data(user_data));
    }
    let cancel = Sqe { len: opcode.into(), ..sqe::cancel(0, IORING_ASYNC_CANCEL_OP) };
    let turns = (0..3).map(|_| {
        ring.go(cancel.data(9));
        let ended = ring.wait_sorted(2);
        assert_eq!(ended[0].1, -ECANCELED, "{ended:?}");
        ended[0].0
    });
    turns.collect()
}

#[case(since = "6.6")]
fn of_futexes_the_last(cx: &Context) {
    let words = [0; 3].map(AtomicU32::new);
    assert_eq!(by_opcode(cx, [0, 1, 2].map(|at| wait_on(&words[at], 0))), [3, 2, 1]);
}

#[case(since = "6.6")]
fn of_waits_for_children_the_last(cx: &Context) {
    let (children, mut infos) = ([1, 2, 3].map(Child::new), [waitid::none(); 3]);
    let requests = [0, 1, 2].map(|at| waitid::wait(libc::P_PID, children[at].pid, libc::WEXITED, &mut infos[at]));
    assert_eq!(by_opcode(cx, requests), [3, 2, 1]);
}

#[case(since = "6.6")]
fn of_timeouts_the_first(cx: &Context) {
    let long = ms(10_000);
    assert_eq!(by_opcode(cx, [sqe::timeout(&long, 0, 0); 3]), [1, 2, 3]);
}

/// Submits two requests of one user_data, on a pipe that gets one byte and on one that gets two. `cancel` ends one.
/// Returns the other's result.
fn of_one_user_data(cx: &Context, requests: impl Fn(i32, i32) -> [Sqe; 2], cancel: Sqe) -> i32 {
    let (one, two, mut ring) = (pipe(), pipe(), cx.ring(8));
    for request in requests(fd(&one.0), fd(&two.0)) {
        ring.go(request.data(1));
    }
    ring.go(cancel.data(9));
    assert_eq!(ring.wait_sorted(2), [(1, -ECANCELED), (9, 0)]);
    (&one.1).write_all(b"x").expect("write");
    (&two.1).write_all(b"yz").expect("write");
    ring.wait().res
}

fn polls(one: i32, two: i32) -> [Sqe; 2] {
    [sqe::poll_add(one, libc::POLLIN, 0), sqe::poll_add(two, libc::POLLRDNORM, 0)]
}

#[case]
fn of_polls_the_last(cx: &Context) {
    assert_eq!(of_one_user_data(cx, polls, sqe::cancel(1, 0)), i32::from(libc::POLLIN));
}

#[case]
fn poll_remove_ends_the_last(cx: &Context) {
    assert_eq!(of_one_user_data(cx, polls, sqe::poll_remove(1)), i32::from(libc::POLLIN));
}

#[case(undisturbed, since = "5.6")]
fn of_reads_the_last(cx: &Context) {
    let mut buffers = [[0; 2]; 2];
    let [first, second] = buffers.each_mut().map(address_mut);
    let read = |number, buffer| prep(Opcode::Read, number, buffer, 2, 0);
    assert_eq!(of_one_user_data(cx, |one, two| [read(one, first), read(two, second)], sqe::cancel(1, 0)), 1);
}

#[case]
fn timeout_remove_ends_the_first(cx: &Context) {
    let (long, short, mut ring) = (ms(10_000), ms(50), cx.ring(8));
    ring.go(sqe::timeout(&long, 0, 0).data(1));
    ring.go(sqe::timeout(&short, 0, 0).data(1));
    ring.go(sqe::timeout_remove(1).data(9));
    assert_eq!(ring.wait_sorted(3), [(1, -ECANCELED), (1, -ETIME), (9, 0)]);
}

/// Requests on an empty pipe, with their names.
fn waiting(pipe: i32, buffer: &mut [u8; 8]) -> [(&'static str, Sqe); 3] {
    [
        ("POLL_ADD", sqe::poll_add(pipe, libc::POLLIN, 0)),
        ("POLL_ADD, multishot", sqe::poll_add(pipe, libc::POLLIN, IORING_POLL_ADD_MULTI)),
        ("READ", prep(Opcode::Read, pipe, address_mut(buffer), 8, 0)),
    ]
}

/// Runs `then` with each request of `waiting` submitted as 1, and what writes into its pipe.
fn with_each(cx: &Context, then: impl Fn(&str, &mut Ring, &mut dyn FnMut())) {
    let mut buffer = [0; 8];
    for at in 0..3 {
        let (pipe, mut ring) = (pipe(), cx.ring(8));
        let (name, request) = waiting(fd(&pipe.0), &mut buffer)[at];
        ring.go(request.data(1));
        then(name, &mut ring, &mut || (&pipe.1).write_all(b"abc").expect("write"));
    }
}

#[case]
fn the_cancelled_comes_last(cx: &Context) {
    let nop = prep(Opcode::Nop, 0, 0, 0, 0);
    with_each(cx, |name, ring, _| {
        ring.go_all(&[sqe::cancel(1, 0).data(10), nop.data(11)]);
        assert_eq!(ring.wait_ordered(3), [(10, 0), (11, 0), (1, -ECANCELED)], "{name}");
    });
    let (long, mut ring) = (ms(10_000), cx.ring(8));
    ring.go(sqe::timeout(&long, 0, 0).data(1));
    ring.go_all(&[sqe::cancel(1, 0).data(10), nop.data(11)]);
    assert_eq!(ring.wait_ordered(3), [(10, 0), (11, 0), (1, -ECANCELED)], "TIMEOUT");
}

#[case]
fn a_removed_poll_or_timeout_comes_last(cx: &Context) {
    let (pipe, long, mut ring) = (pipe(), ms(10_000), cx.ring(8));
    ring.go(sqe::poll_add(fd(&pipe.0), libc::POLLIN, 0).data(1));
    ring.go(sqe::poll_remove(1).data(10));
    assert_eq!(ring.wait_ordered(2), [(10, 0), (1, -ECANCELED)]);
    ring.go(sqe::timeout(&long, 0, 0).data(1));
    ring.go(sqe::timeout_remove(1).data(10));
    assert_eq!(ring.wait_ordered(2), [(10, 0), (1, -ECANCELED)]);
}

#[case]
fn a_chain_after_the_cancelled_comes_last(cx: &Context) {
    let (pipe, mut buffer, mut ring) = (pipe(), [0; 8], cx.ring(8));
    let nop = prep(Opcode::Nop, 0, 0, 0, 0);
    let read = prep(Opcode::Read, fd(&pipe.0), address_mut(&mut buffer), 8, 0);
    ring.go_all(&[read.with(IOSQE_IO_LINK).data(1), nop.data(2)]);
    ring.go(sqe::cancel(1, 0).data(10));
    assert_eq!(ring.wait_ordered(3), [(10, 0), (1, -ECANCELED), (2, -ECANCELED)]);
}

/// A cancelled poll stays in the table of polls until its task work runs. Until then ASYNC_CANCEL finds it again.
/// POLL_REMOVE finds it, too, but is too late.
#[case(undisturbed, since = "5.19")]
fn a_poll_that_was_cancelled_is_found_again(cx: &Context) {
    with_each(cx, |name, ring, _| {
        ring.go_all(&[sqe::cancel(1, 0).data(10), sqe::cancel(1, IORING_ASYNC_CANCEL_ALL).data(11)]);
        assert_eq!(ring.wait_ordered(3), [(10, 0), (11, 1), (1, -ECANCELED)], "{name}");
    });
    with_each(cx, |name, ring, _| {
        let late = if name == "READ" { -ENOENT } else { -EALREADY };
        ring.go_all(&[sqe::cancel(1, 0).data(10), sqe::poll_remove(1).data(11)]);
        assert_eq!(ring.wait_ordered(3), [(10, 0), (11, late), (1, -ECANCELED)], "{name}");
    });
}

#[case]
fn a_timeout_that_was_cancelled_is_not(cx: &Context) {
    let (long, mut ring) = (ms(10_000), cx.ring(8));
    ring.go(sqe::timeout(&long, 0, 0).data(1));
    ring.go_all(&[sqe::cancel(1, 0).data(10), sqe::cancel(1, 0).data(11), sqe::timeout_remove(1).data(12)]);
    assert_eq!(ring.wait_ordered(4), [(10, 0), (11, -ENOENT), (12, -ENOENT), (1, -ECANCELED)]);
}

#[case]
fn a_poll_that_was_removed_is_not(cx: &Context) {
    let (pipe, mut ring) = (pipe(), cx.ring(8));
    ring.go(sqe::poll_add(fd(&pipe.0), libc::POLLIN, 0).data(1));
    ring.go_all(&[sqe::poll_remove(1).data(10), sqe::poll_remove(1).data(11), sqe::cancel(1, 0).data(12)]);
    assert_eq!(ring.wait_ordered(4), [(10, 0), (11, -ENOENT), (12, -ENOENT), (1, -ECANCELED)]);
}

#[case(undisturbed)]
fn what_a_link_timeout_ends_comes_after_it(cx: &Context) {
    let (pipe, mut buffer, short, mut ring) = (pipe(), [0; 8], ms(2), cx.ring(8));
    let read = prep(Opcode::Read, fd(&pipe.0), address_mut(&mut buffer), 8, 0);
    let nop = prep(Opcode::Nop, 0, 0, 0, 0);
    let guard = sqe::link_timeout(&short).with(IOSQE_IO_LINK).data(2);
    ring.go_all(&[read.with(IOSQE_IO_LINK).data(1), guard, nop.data(3)]);
    assert_eq!(ring.wait_ordered(3), [(2, -ETIME), (1, -ECANCELED), (3, -ECANCELED)]);
}

/// True if events are reported before a call arrives, instead of when the ring's owner asks for them.
fn reports_at_once(cx: &Context) -> bool {
    cx.flag_set.flags & IORING_SETUP_DEFER_TASKRUN == 0
}

#[case(undisturbed)]
fn data_that_came_before_is_reported(cx: &Context) {
    with_each(cx, |name, ring, write| {
        write();
        ring.go(sqe::cancel(1, 0).data(10));
        let multishot = name.ends_with("multishot");
        let res = if name == "READ" { 3 } else { libc::POLLIN.into() };
        match (reports_at_once(cx), multishot) {
            (true, true) => assert_eq!(ring.wait_ordered(3), [(1, res), (10, 0), (1, -ECANCELED)], "{name}"),
            (true, false) => assert_eq!(ring.wait_ordered(2), [(1, res), (10, -ENOENT)], "{name}"),
            (false, _) => assert_eq!(ring.wait_ordered(2), [(10, 0), (1, -ECANCELED)], "{name}"),
        }
        ring.expect_quiet();
    });
}

#[case(undisturbed)]
fn part_of_a_waitall_is_reported(cx: &Context) {
    let ((one, other), mut buffer, mut ring) = (UnixStream::pair().expect("a pair"), [0; 8], cx.ring(8));
    let recv = sqe::recv(fd(&one), &mut buffer, libc::MSG_WAITALL);
    ring.go(recv.data(1));
    (&other).write_all(b"abc").expect("write");
    ring.go(sqe::cancel(1, 0).data(10));
    let res = if reports_at_once(cx) { 3 } else { -ECANCELED };
    assert_eq!(ring.wait_ordered(2), [(10, 0), (1, res)]);
}

#[case]
fn a_timeout_that_is_due_is_not_found(cx: &Context) {
    for cancel in [sqe::cancel(1, 0), sqe::timeout_remove(1)] {
        let (short, mut ring) = (ms(1), cx.ring(8));
        ring.go(sqe::timeout(&short, 0, 0).data(1));
        // A spin instead of a sleep, so that no part of this process sees that it is due.
        let start = Instant::now();
        while start.elapsed() < std::time::Duration::from_micros(1500) {
            std::hint::spin_loop();
        }
        ring.go(cancel.data(10));
        let mut seen = [(1, -ETIME), (10, -ENOENT)];
        if !reports_at_once(cx) {
            seen.reverse();
        }
        assert_eq!(ring.wait_ordered(2), seen);
    }
}

#[case(undisturbed, since = "5.6")]
fn of_link_timeouts_with_one_user_data_its_own(cx: &Context) {
    let ([one, other], mut ring, mut rooms) = ([pipe(), pipe()], cx.ring(8), [[0; 1]; 2]);
    let long = ms(10_000);
    for ((reader, _), (room, user_data)) in [&one, &other].into_iter().zip(rooms.iter_mut().zip(1..)) {
        let read = sqe::read(fd(reader), room, 0).with(IOSQE_IO_LINK).data(user_data);
        ring.go_all(&[read, sqe::link_timeout(&long).data(9)]);
    }
    ring.go(sqe::cancel(1, 0).data(3));
    assert_eq!(ring.wait_sorted(3), [(1, -ECANCELED), (3, 0), (9, -ECANCELED)]);
    (&other.1).write_all(b"x").expect("room");
    assert_eq!(ring.wait_sorted(2), [(2, 1), (9, -ECANCELED)]);
}
