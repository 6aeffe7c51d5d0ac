//! Which of several requests a cancel ends that asks for one: ASYNC_CANCEL, POLL_REMOVE and TIMEOUT_REMOVE.

use super::futex::wait_on;
use super::prelude::*;
use super::waitid::{self, Child};
use std::sync::atomic::AtomicU32;

cases! {
    any_flags: [
        of_futexes_the_last,
        of_waits_for_children_the_last,
        of_timeouts_the_first,
        of_polls_the_last,
        of_reads_the_last,
        poll_remove_ends_the_last,
        timeout_remove_ends_the_first,
    ],
    own_flags: [],
}

/// Submits the requests as 1, 2 and 3, one a call, and cancels by their opcode until nothing is left. Which went, in turn.
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

fn of_futexes_the_last(cx: &Context) {
    let words = [0; 3].map(AtomicU32::new);
    assert_eq!(by_opcode(cx, [0, 1, 2].map(|at| wait_on(&words[at], 0))), [3, 2, 1]);
}

fn of_waits_for_children_the_last(cx: &Context) {
    let (children, mut infos) = ([1, 2, 3].map(Child::new), [waitid::none(); 3]);
    let requests = [0, 1, 2].map(|at| waitid::wait(libc::P_PID, children[at].pid, libc::WEXITED, &mut infos[at]));
    assert_eq!(by_opcode(cx, requests), [3, 2, 1]);
}

fn of_timeouts_the_first(cx: &Context) {
    let long = ms(10_000);
    assert_eq!(by_opcode(cx, [sqe::timeout(&long, 0, 0); 3]), [1, 2, 3]);
}

/// Two requests of one user_data, on a pipe that has a byte in the end and on one that has two; `cancel` ends one. What the
/// other one says.
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

fn of_polls_the_last(cx: &Context) {
    assert_eq!(of_one_user_data(cx, polls, sqe::cancel(1, 0)), i32::from(libc::POLLIN));
}

fn poll_remove_ends_the_last(cx: &Context) {
    assert_eq!(of_one_user_data(cx, polls, sqe::poll_remove(1)), i32::from(libc::POLLIN));
}

fn of_reads_the_last(cx: &Context) {
    let mut buffers = [[0; 2]; 2];
    let [first, second] = buffers.each_mut().map(address_mut);
    let read = |number, buffer| prep(Opcode::Read, number, buffer, 2, 0);
    assert_eq!(of_one_user_data(cx, |one, two| [read(one, first), read(two, second)], sqe::cancel(1, 0)), 1);
}

fn timeout_remove_ends_the_first(cx: &Context) {
    let (long, short, mut ring) = (ms(10_000), ms(50), cx.ring(8));
    ring.go(sqe::timeout(&long, 0, 0).data(1));
    ring.go(sqe::timeout(&short, 0, 0).data(1));
    ring.go(sqe::timeout_remove(1).data(9));
    assert_eq!(ring.wait_sorted(3), [(1, -ECANCELED), (1, -ETIME), (9, 0)]);
}
