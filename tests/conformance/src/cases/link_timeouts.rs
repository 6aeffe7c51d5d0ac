//! LINK_TIMEOUTs that are due as they start, linked to requests that wait.

use super::prelude::*;

topic!(since: "5.6", source: "io_uring_enter(2), io_uring/timeout.c");

/// The LINK_TIMEOUT's CQE comes first, and both come before the call returns.
#[case(undisturbed)]
fn due_as_it_starts_after_what_waits(cx: &Context) {
    let deferred = cx.flag_set.flags & IORING_SETUP_DEFER_TASKRUN != 0;
    let ((reader, _writer), (a, _b), mut bytes) = (pipe(), pair(), [0; 8]);
    let waiting = [
        sqe::read(fd(&reader), &mut bytes, -1),
        sqe::recv(fd(&a), &mut bytes, 0),
        sqe::poll_add(fd(&reader), libc::POLLIN, 0),
    ];
    let times = [Timespec::default(), Timespec { tv_sec: 0, tv_nsec: 1 }, Timespec { tv_sec: 1, tv_nsec: 0 }];
    let timeouts = [
        sqe::link_timeout(&times[0]),
        sqe::link_timeout(&times[2]).op_flags(IORING_TIMEOUT_ABS),
        sqe::link_timeout(&times[1]),
    ];
    for request in waiting {
        for (timeout, rest) in timeouts.iter().zip([false, true, false]) {
            let mut ring = cx.ring(8);
            ring.push(request.with(IOSQE_IO_LINK).data(1));
            ring.push(timeout.with(if rest { IOSQE_IO_LINK } else { 0 }).data(2));
            let mut expected = vec![(2, -ETIME), (1, -ECANCELED)];
            if rest {
                ring.push(sqe::nop().data(3));
                expected.push((3, -ECANCELED));
            }
            assert_eq!(ring.submit(), expected.len() as isize);
            if timeout.addr != address(&times[1]) {
                assert_eq!(ring.cq_ready(), if deferred { 0 } else { expected.len() as u32 });
            }
            assert_eq!(ring.wait_ordered(expected.len()), expected);
        }
    }
}

/// A TIMEOUT that is due as it starts fires in the call, too.
#[case(undisturbed)]
fn timeout_that_is_due_as_it_starts(cx: &Context) {
    let deferred = cx.flag_set.flags & IORING_SETUP_DEFER_TASKRUN != 0;
    let (mut ring, now) = (cx.ring(4), Timespec::default());
    ring.go(sqe::timeout(&now, 0, 0).data(1));
    assert_eq!(ring.cq_ready(), u32::from(!deferred));
    assert_eq!(ring.wait_ordered(1), [(1, -ETIME)]);
}
