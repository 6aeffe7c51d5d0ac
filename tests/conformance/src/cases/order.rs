//! Order as io_uring_enter(2) specifies it. The cases are about parallel chains, failures that break one, the start
//! of a linked timeout, and drains. Drains span several submissions, and wait for requests with several CQEs.

use super::prelude::*;
use crate::ring::QUIET;
use std::time::{Duration, Instant};

topic!(since: "5.1", source: "io_uring_enter(2), io_uring/io_uring.c");

const LINK: u8 = IOSQE_IO_LINK;

fn byte(to: &mut std::fs::File) {
    to.write_all(b"x").expect("write");
}

#[case(since = "5.6")]
fn chains_run_side_by_side(cx: &Context) {
    let ((first, mut to_first), (second, mut to_second)) = (pipe(), pipe());
    let (mut ring, mut a, mut b) = (cx.ring(8), [0; 1], [0; 1]);
    ring.go_all(&[
        sqe::read(fd(&first), &mut a, 0).with(LINK).data(1),
        sqe::nop().data(2),
        sqe::read(fd(&second), &mut b, 0).with(LINK).data(3),
        sqe::nop().data(4),
    ]);
    ring.expect_quiet();
    byte(&mut to_second);
    assert_eq!(ring.wait_ordered(2), [(3, 1), (4, 0)]);
    ring.expect_quiet();
    byte(&mut to_first);
    assert_eq!(ring.wait_ordered(2), [(1, 1), (2, 0)]);
}

#[case(since = "5.6")]
fn chain_does_not_hold_back_what_follows_it(cx: &Context) {
    let ((reader, mut writer), mut ring, mut buffer) = (pipe(), cx.ring(8), [0; 1]);
    let read = sqe::read(fd(&reader), &mut buffer, 0).with(LINK).data(1);
    ring.go_all(&[read, sqe::nop().data(2), sqe::nop().data(3)]);
    assert_eq!(ring.wait_ordered(1), [(3, 0)]);
    ring.expect_quiet();
    byte(&mut writer);
    assert_eq!(ring.wait_ordered(2), [(1, 1), (2, 0)]);
}

#[case(since = "5.4")]
fn expired_timeout_breaks_its_chain(cx: &Context) {
    let (mut ring, ts) = (cx.ring(4), ms(5));
    ring.go_all(&[sqe::timeout(&ts, 0, 0).with(LINK).data(1), sqe::nop().data(2)]);
    assert_eq!(ring.wait_sorted(2), [(1, -ETIME), (2, -ECANCELED)]);
}

#[case(since = "5.16")]
fn expired_timeout_that_is_a_success_keeps_its_chain(cx: &Context) {
    let (mut ring, ts) = (cx.ring(4), ms(5));
    let timeout = sqe::timeout(&ts, 0, IORING_TIMEOUT_ETIME_SUCCESS).with(LINK).data(1);
    ring.go_all(&[timeout, sqe::nop().data(2)]);
    assert_eq!(ring.wait_ordered(2), [(1, -ETIME), (2, 0)]);
}

#[case(since = "5.4")]
fn counted_timeout_keeps_its_chain(cx: &Context) {
    let (mut ring, long) = (cx.ring(4), ms(10_000));
    ring.go_all(&[sqe::timeout(&long, 1, 0).with(LINK).data(1), sqe::nop().data(2)]);
    ring.expect_quiet();
    ring.go(sqe::nop().data(3));
    assert_eq!(ring.wait_sorted(3), [(1, 0), (2, 0), (3, 0)]);
}

#[case(since = "5.5")]
fn removed_timeout_breaks_its_chain(cx: &Context) {
    let (mut ring, long) = (cx.ring(4), ms(10_000));
    ring.go_all(&[sqe::timeout(&long, 0, 0).with(LINK).data(1), sqe::nop().data(2)]);
    ring.go(sqe::timeout_remove(1).data(3));
    assert_eq!(ring.wait_sorted(3), [(1, -ECANCELED), (2, -ECANCELED), (3, 0)]);
}

/// Returns the results of `first` and of a NOP linked after it.
fn linked_nop(cx: &Context, first: Sqe) -> Vec<(u64, i32)> {
    let mut ring = cx.ring(4);
    ring.go_all(&[first.with(LINK).data(1), sqe::nop().data(2)]);
    ring.wait_sorted(2)
}

#[case]
fn vain_removal_breaks_its_chain(cx: &Context) {
    assert_eq!(linked_nop(cx, sqe::timeout_remove(9)), [(1, -ENOENT), (2, -ECANCELED)]);
}

#[case(since = "5.19")]
fn vain_cancel_breaks_its_chain(cx: &Context) {
    assert_eq!(linked_nop(cx, sqe::cancel(9, 0)), [(1, -ENOENT), (2, -ECANCELED)]);
    assert_eq!(linked_nop(cx, sqe::cancel(9, IORING_ASYNC_CANCEL_ALL)), [(1, 0), (2, 0)]);
}

#[case(since = "5.5")]
fn cancel_keeps_its_chain(cx: &Context) {
    let ((reader, _writer), mut ring, mut buffer) = (pipe(), cx.ring(4), [0; 1]);
    ring.go(sqe::read(fd(&reader), &mut buffer, 0).data(1));
    ring.go_all(&[sqe::cancel(1, 0).with(LINK).data(2), sqe::nop().data(3)]);
    assert_eq!(ring.wait_sorted(3), [(1, -ECANCELED), (2, 0), (3, 0)]);
}

#[case]
fn vain_poll_removal_breaks_its_chain(cx: &Context) {
    assert_eq!(linked_nop(cx, sqe::poll_remove(9)), [(1, -ENOENT), (2, -ECANCELED)]);
}

#[case(since = "5.6")]
fn short_write_breaks_the_chain(cx: &Context) {
    let (_reader, writer) = pipe_with(libc::O_NONBLOCK);
    let bytes = vec![1; 1 << 20];
    let mut ring = cx.ring(4);
    let write = sqe::write(fd(&writer), &bytes, 0).op_flags(libc::RWF_NOWAIT as u32);
    ring.go_all(&[write.with(LINK).data(1), sqe::nop().data(2)]);
    let results = ring.wait_sorted(2);
    assert_eq!((results[0].1, results[1]), (1 << 16, (2, -ECANCELED)));
}

#[case(since = "5.3")]
fn short_fixed_read_breaks_the_chain(cx: &Context) {
    let (file, mut ring, memory) = (file("f", b"abc"), cx.ring(4), pages(1));
    assert_eq!(ring.register_buffers(&[iovec_mut(memory)]), 0);
    let read = prep(Opcode::ReadFixed, fd(&file), address(memory), 8, 0);
    ring.go_all(&[read.with(LINK).data(1), sqe::nop().data(2)]);
    assert_eq!(ring.wait_sorted(2), [(1, 3), (2, -ECANCELED)]);
}

/// A short send breaks the chain if it has MSG_WAITALL.
#[case(since = "5.6")]
fn short_sendmsg_keeps_the_chain(cx: &Context) {
    let bytes = vec![1; 8 << 20];
    for (flags, after) in [(libc::MSG_DONTWAIT, 0), (libc::MSG_DONTWAIT | libc::MSG_WAITALL, -ECANCELED)] {
        let ((a, _b), mut ring) = (pair(), cx.ring(4));
        ring.go_all(&[sqe::send(fd(&a), &bytes, flags).with(LINK).data(1), sqe::nop().data(2)]);
        let results = ring.wait_sorted(2);
        assert!(results[0].1 > 0 && results[0].1 < 8 << 20, "{results:?}");
        assert_eq!(results[1], (2, after));
    }
}

#[case(since = "5.6")]
fn read_of_nothing_keeps_the_chain(cx: &Context) {
    let file = file("f", b"abc");
    assert_eq!(linked_nop(cx, prep(Opcode::Read, fd(&file), address(pages(1)), 0, 0)), [(1, 0), (2, 0)]);
}

#[case(undisturbed, since = "5.6")]
fn link_timeout_begins_with_its_request(cx: &Context) {
    let ((first, mut to_first), (second, _to_second)) = (pipe(), pipe());
    let (mut ring, mut a, mut b, ts) = (cx.ring(8), [0; 1], [0; 1], ms(60));
    ring.go_all(&[
        sqe::read(fd(&first), &mut a, 0).with(LINK).data(1),
        sqe::read(fd(&second), &mut b, 0).with(LINK).data(2),
        sqe::link_timeout(&ts).data(3),
    ]);
    assert_eq!(ring.wait_for(Duration::from_millis(90)), None, "its time has not begun");
    byte(&mut to_first);
    let start = Instant::now();
    assert_eq!(ring.wait_ordered(1), [(1, 1)]);
    assert_eq!(ring.wait_sorted(2), [(2, -ECANCELED), (3, -ETIME)]);
    assert!(start.elapsed() >= Duration::from_millis(55), "{:?}", start.elapsed());
}

#[case(since = "5.5")]
fn link_timeout_of_a_timeout(cx: &Context) {
    let (mut ring, long, ts) = (cx.ring(4), ms(10_000), ms(10));
    ring.go_all(&[sqe::timeout(&long, 0, 0).with(LINK).data(1), sqe::link_timeout(&ts).data(2)]);
    assert_eq!(ring.wait_sorted(2), [(1, -ECANCELED), (2, -ETIME)]);
}

#[case(since = "5.5")]
fn link_timeout_of_a_poll(cx: &Context) {
    let ((reader, _writer), mut ring, ts) = (pipe(), cx.ring(4), ms(10));
    let poll = sqe::poll_add(fd(&reader), libc::POLLIN, 0);
    ring.go_all(&[poll.with(LINK).data(1), sqe::link_timeout(&ts).data(2)]);
    assert_eq!(ring.wait_sorted(2), [(1, -ECANCELED), (2, -ETIME)]);
}

#[case(undisturbed, since = "5.5")]
fn link_timeout_of_a_hard_link_lets_the_rest_run(cx: &Context) {
    let ((reader, _writer), mut ring, mut buffer, ts) = (pipe(), cx.ring(4), [0; 1], ms(10));
    ring.go_all(&[
        sqe::read(fd(&reader), &mut buffer, 0).with(IOSQE_IO_HARDLINK).data(1),
        sqe::link_timeout(&ts).with(IOSQE_IO_HARDLINK).data(2),
        sqe::nop().data(3),
    ]);
    assert_eq!(ring.wait_sorted(3), [(1, -ECANCELED), (2, -ETIME), (3, 0)]);
}

#[case(undisturbed, since = "5.5")]
fn link_timeout_of_an_async_read(cx: &Context) {
    let ((reader, _writer), mut ring, mut buffer, ts) = (pipe(), cx.ring(4), [0; 1], ms(20));
    let read = sqe::read(fd(&reader), &mut buffer, 0).with(LINK | IOSQE_ASYNC).data(1);
    ring.go_all(&[read, sqe::link_timeout(&ts).data(2)]);
    assert_eq!(ring.wait_sorted(2), [(1, -ECANCELED), (2, -ETIME)]);
}

#[case(since = "5.5")]
fn link_timeout_is_not_needed_for_a_failure(cx: &Context) {
    let (mut ring, long) = (cx.ring(4), ms(10_000));
    ring.go_all(&[sqe::read(9999, &mut [0; 1], 0).with(LINK).data(1), sqe::link_timeout(&long).data(2)]);
    assert_eq!(ring.wait_sorted(2), [(1, -libc::EBADF), (2, -ECANCELED)]);
}

#[case(since = "5.5")]
fn cancel_takes_the_linked_timeout_along(cx: &Context) {
    let ((reader, _writer), mut ring, mut buffer, long) = (pipe(), cx.ring(4), [0; 1], ms(10_000));
    ring.go_all(&[
        sqe::read(fd(&reader), &mut buffer, 0).with(LINK).data(1),
        sqe::link_timeout(&long).with(LINK).data(2),
        sqe::nop().data(3),
    ]);
    ring.go(sqe::cancel(1, 0).data(4));
    assert_eq!(ring.wait_sorted(4), [(1, -ECANCELED), (2, -ECANCELED), (3, -ECANCELED), (4, 0)]);
}

#[case(since = "5.6")]
fn drain_holds_back_later_submissions(cx: &Context) {
    let ((reader, mut writer), mut ring, mut buffer) = (pipe(), cx.ring(4), [0; 1]);
    ring.go(sqe::read(fd(&reader), &mut buffer, 0).data(1));
    ring.go(sqe::nop().with(IOSQE_IO_DRAIN).data(2));
    ring.go(sqe::nop().data(3));
    ring.expect_quiet();
    byte(&mut writer);
    assert_eq!(ring.wait_ordered(3), [(1, 1), (2, 0), (3, 0)]);
}

#[case(since = "6.4")]
fn drain_waits_for_later_shots(cx: &Context) {
    let (mut ring, ts) = (cx.ring(8), ms(20));
    ring.go(sqe::timeout(&ts, 3, IORING_TIMEOUT_MULTISHOT).data(1));
    ring.go(sqe::nop().with(IOSQE_IO_DRAIN).data(2));
    let shots = ring.wait_all(4);
    assert_eq!(shots.iter().map(|cqe| cqe.user_data).collect::<Vec<_>>(), [1, 1, 1, 2]);
    assert_eq!(shots[2].flags & IORING_CQE_F_MORE, 0);
}

#[case(since = "5.4")]
fn drain_waits_for_a_timeout(cx: &Context) {
    let (mut ring, ts) = (cx.ring(4), ms(40));
    ring.go_all(&[sqe::timeout(&ts, 0, 0).data(1), sqe::nop().with(IOSQE_IO_DRAIN).data(2)]);
    assert_eq!(ring.wait_ordered(2), [(1, -ETIME), (2, 0)]);
}

#[case(since = "5.6")]
fn drain_after_drain(cx: &Context) {
    let ((first, mut to_first), (second, mut to_second)) = (pipe(), pipe());
    let (mut ring, mut a, mut b) = (cx.ring(8), [0; 1], [0; 1]);
    ring.go_all(&[
        sqe::read(fd(&first), &mut a, 0).data(1),
        sqe::read(fd(&second), &mut b, 0).with(IOSQE_IO_DRAIN).data(2),
        sqe::nop().with(IOSQE_IO_DRAIN).data(3),
        sqe::nop().data(4),
    ]);
    byte(&mut to_second);
    ring.expect_quiet();
    byte(&mut to_first);
    assert_eq!(ring.wait_ordered(4), [(1, 1), (2, 1), (3, 0), (4, 0)]);
}

#[case(since = "5.6")]
fn failed_drain_lets_go_on(cx: &Context) {
    let ((reader, mut writer), mut ring, mut buffer) = (pipe(), cx.ring(4), [0; 1]);
    ring.go_all(&[
        sqe::read(fd(&reader), &mut buffer, 0).data(1),
        sqe::read(9999, &mut [0; 1], 0).with(IOSQE_IO_DRAIN).data(2),
        sqe::nop().data(3),
    ]);
    ring.expect_quiet();
    byte(&mut writer);
    assert_eq!(ring.wait_ordered(3), [(1, 1), (2, -libc::EBADF), (3, 0)]);
}

/// A drain may still count for a submission or two (see [`drain_that_ran_may_hold_back_the_next_submission`]), no
/// longer.
#[case(since = "5.6")]
fn drain_holds_nothing_back_once_it_ran(cx: &Context) {
    let ((reader, mut writer), mut ring, mut buffer) = (pipe(), cx.ring(8), [0; 1]);
    ring.go_all(&[
        sqe::read(fd(&reader), &mut buffer, 0).data(1),
        sqe::nop().with(IOSQE_IO_DRAIN).data(2),
        sqe::nop().data(3),
    ]);
    byte(&mut writer);
    assert_eq!(ring.wait_ordered(3), [(1, 1), (2, 0), (3, 0)]);
    for _ in 0..20 {
        ring.go(sqe::read(fd(&reader), &mut buffer, 0).data(4));
        ring.go(sqe::nop().data(5));
        if let Some(cqe) = ring.wait_for(QUIET) {
            return assert_eq!((cqe.user_data, cqe.res), (5, 0));
        }
        byte(&mut writer);
        assert_eq!(ring.wait_ordered(2), [(4, 1), (5, 0)]);
    }
    panic!("the drain held back 20 submissions after it ran");
}

#[case(since = "5.6")]
fn chains_after_a_drain(cx: &Context) {
    let ((reader, mut writer), mut ring, mut buffer) = (pipe(), cx.ring(8), [0; 1]);
    ring.go_all(&[
        sqe::read(fd(&reader), &mut buffer, 0).data(1),
        sqe::nop().with(IOSQE_IO_DRAIN).data(2),
        sqe::nop().with(LINK).data(3),
        sqe::read(9999, &mut [0; 1], 0).with(LINK).data(4),
        sqe::nop().data(5),
    ]);
    ring.expect_quiet();
    byte(&mut writer);
    assert_eq!(ring.wait_ordered(5), [(1, 1), (2, 0), (3, 0), (4, -libc::EBADF), (5, -ECANCELED)]);
}

/// A drain holds back later requests even if nothing was in flight before it.
#[case(since = "5.6")]
fn drain_that_starts_at_once_holds_back_what_follows(cx: &Context) {
    let ((reader, mut writer), mut ring, mut buffer) = (pipe(), cx.ring(8), [0; 1]);
    ring.go(sqe::read(fd(&reader), &mut buffer, 0).with(IOSQE_IO_DRAIN).data(1));
    ring.go(sqe::nop().data(2));
    ring.expect_quiet();
    byte(&mut writer);
    assert_eq!(ring.wait_ordered(2), [(1, 1), (2, 0)]);
}

#[case(since = "5.6")]
fn chain_that_drains_holds_back_what_follows(cx: &Context) {
    let ((reader, mut writer), mut ring, mut buffer) = (pipe(), cx.ring(8), [0; 1]);
    let drains = sqe::nop().with(IOSQE_IO_DRAIN | LINK).data(1);
    ring.go_all(&[drains, sqe::read(fd(&reader), &mut buffer, 0).data(2)]);
    ring.go(sqe::nop().data(3));
    assert_eq!(ring.wait_ordered(1), [(1, 0)]);
    ring.expect_quiet();
    byte(&mut writer);
    assert_eq!(ring.wait_ordered(2), [(2, 1), (3, 0)]);
}

/// A drain that ran mostly still holds the next submission back. The kernel forgets the drain once it finds nothing
/// held back, and checks that when its task work runs. On a busy machine, one of some 200 runs on the kernel differs.
#[case(since = "5.6")]
fn drain_that_ran_may_hold_back_the_next_submission(cx: &Context) {
    let ((reader, mut writer), mut ring, mut buffer) = (pipe(), cx.ring(8), [0; 1]);
    let read = sqe::read(fd(&reader), &mut buffer, 0).data(2);
    ring.go_all(&[sqe::nop().with(IOSQE_IO_DRAIN).data(1), read]);
    assert_eq!(ring.wait_ordered(1), [(1, 0)]);
    ring.go(sqe::nop().data(3));
    let early = ring.wait_for(QUIET).map(|cqe| (cqe.user_data, cqe.res));
    assert!(matches!(early, None | Some((3, 0))), "only the NOP can complete: {early:?}");
    byte(&mut writer);
    match early {
        None => assert_eq!(ring.wait_ordered(2), [(2, 1), (3, 0)], "held back by the read"),
        Some(_) => assert_eq!(ring.wait_ordered(1), [(2, 1)]),
    }
}

#[case(since = "5.6")]
fn refused_drain_holds_back_what_follows(cx: &Context) {
    let ((reader, mut writer), mut ring, mut buffer) = (pipe(), cx.ring(8), [0; 1]);
    ring.go(sqe::read(fd(&reader), &mut buffer, 0).data(1));
    ring.go(Sqe { personality: 9, ..sqe::nop().with(IOSQE_IO_DRAIN) }.data(2));
    assert_eq!(ring.wait_ordered(1), [(2, -EINVAL)]);
    ring.go(sqe::nop().data(3));
    ring.expect_quiet();
    byte(&mut writer);
    assert_eq!(ring.wait_ordered(2), [(1, 1), (3, 0)]);
}

#[case(since = "5.6")]
fn refused_request_passes_a_drain_by(cx: &Context) {
    let ((reader, mut writer), mut ring, mut buffer) = (pipe(), cx.ring(8), [0; 1]);
    let refused = Sqe { personality: 9, ..sqe::nop() };
    ring.go(sqe::read(fd(&reader), &mut buffer, 0).data(1));
    ring.go(sqe::nop().with(IOSQE_IO_DRAIN).data(2));
    ring.go(refused.data(3));
    ring.go_all(&[sqe::nop().with(LINK).data(4), refused.data(5)]);
    assert_eq!(ring.wait_ordered(3), [(3, -EINVAL), (4, -ECANCELED), (5, -EINVAL)]);
    ring.expect_quiet();
    byte(&mut writer);
    assert_eq!(ring.wait_ordered(2), [(1, 1), (2, 0)]);
}

/// The flag inside a chain counts for every request after the chain.
#[case(since = "5.6")]
fn chain_after_a_chain_that_drains_drains_too(cx: &Context) {
    let ((first, mut to_first), (second, mut to_second)) = (pipe(), pipe());
    let (mut ring, mut a, mut b) = (cx.ring(8), [0; 1], [0; 1]);
    ring.go_all(&[
        sqe::read(fd(&first), &mut a, 0).with(LINK).data(1),
        sqe::nop().with(IOSQE_IO_DRAIN).data(2),
        sqe::nop().with(LINK).data(3),
        sqe::read(fd(&second), &mut b, 0).data(4),
    ]);
    ring.go(sqe::nop().data(5));
    ring.expect_quiet();
    byte(&mut to_first);
    assert_eq!(ring.wait_ordered(3), [(1, 1), (2, 0), (3, 0)]);
    ring.expect_quiet();
    byte(&mut to_second);
    assert_eq!(ring.wait_ordered(2), [(4, 1), (5, 0)]);
}

/// The bundle is cancelled like one with IOSQE_ASYNC, since a worker does not make bundles.
#[case(since = "5.19")]
fn send_bundle_after_a_drain_is_made_by_a_worker(cx: &Context) {
    let ((a, _b), mut ring) = (pair(), cx.ring(8));
    let group = crate::buffers::BufferRing::filled(&ring, 1, 4, 8);
    let send = prep(Opcode::Send, fd(&a), 0, 0, 0).with(IOSQE_BUFFER_SELECT);
    let bundle = send.ioprio(IORING_RECVSEND_BUNDLE as u16).buffer(1);
    ring.go_all(&[sqe::nop().with(IOSQE_IO_DRAIN).data(1), bundle.data(2)]);
    assert_eq!(ring.wait_ordered(2), [(1, 0), (2, -ECANCELED)]);
    drop(group);
}

/// Task work cancels the rest of a failed chain, so these CQEs come after those of the submission.
#[case]
fn rest_of_a_failed_chain_comes_after_its_submission(cx: &Context) {
    let mut ring = cx.ring(8);
    let fails = || sqe::timeout_remove(99).with(LINK);
    ring.go_all(&[fails().data(1), sqe::nop().with(LINK).data(2), sqe::nop().data(3), sqe::nop().data(4)]);
    assert_eq!(ring.wait_ordered(4), [(1, -ENOENT), (4, 0), (2, -ECANCELED), (3, -ECANCELED)]);
    ring.go_all(&[fails().data(1), sqe::nop().data(2), fails().data(3), sqe::nop().data(4)]);
    assert_eq!(ring.wait_ordered(4), [(1, -ENOENT), (3, -ENOENT), (2, -ECANCELED), (4, -ECANCELED)]);
}

#[case(since = "5.5")]
fn timeout_of_a_link_comes_after_its_submission(cx: &Context) {
    let (mut ring, long) = (cx.ring(8), ms(10_000));
    ring.go_all(&[sqe::nop().with(LINK).data(1), sqe::link_timeout(&long).data(2), sqe::nop().data(3)]);
    assert_eq!(ring.wait_ordered(3), [(1, 0), (3, 0), (2, -ECANCELED)]);
}

#[case(since = "5.5")]
fn chain_goes_on_after_what_its_submission_ended(cx: &Context) {
    let (mut ring, long) = (cx.ring(8), ms(10_000));
    ring.go(sqe::timeout(&long, 0, 0).data(1));
    ring.go_all(&[sqe::nop().with(LINK).data(2), sqe::nop().data(3), sqe::timeout_remove(1).data(4)]);
    assert_eq!(ring.wait_ordered(4), [(2, 0), (4, 0), (1, -ECANCELED), (3, 0)]);
}
