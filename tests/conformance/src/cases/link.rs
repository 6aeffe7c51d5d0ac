//! Links, hard links, link timeouts, drain and CQE_SKIP_SUCCESS.

use super::prelude::*;

topic!(since: "5.3", source: "io_uring_enter(2), io_uring/io_uring.c, io_uring/timeout.c");

const LINK: u8 = IOSQE_IO_LINK;
const HARD: u8 = IOSQE_IO_HARDLINK;

fn failing() -> Sqe {
    sqe::write(-1, b"x", 0)
}

#[case(since = "5.6")]
fn chain_runs_in_order(cx: &Context) {
    let ((reader, writer), mut ring, mut buffer) = (pipe(), cx.ring(4), [0; 4]);
    ring.go_all(&[
        sqe::write(fd(&writer), b"abcd", 0).with(LINK).data(1),
        sqe::read(fd(&reader), &mut buffer, 0).with(LINK).data(2),
        sqe::nop().data(3),
    ]);
    assert_eq!(ring.wait_ordered(3), [(1, 4), (2, 4), (3, 0)]);
}

#[case]
fn failure_cancels_the_rest(cx: &Context) {
    let mut ring = cx.ring(4);
    ring.go_all(&[failing().with(LINK).data(1), sqe::nop().with(LINK).data(2), sqe::nop().data(3)]);
    assert_eq!(ring.wait_ordered(3), [(1, -EBADF), (2, -ECANCELED), (3, -ECANCELED)]);
}

#[case]
fn failure_ends_at_the_chain(cx: &Context) {
    let mut ring = cx.ring(4);
    ring.go_all(&[failing().with(LINK).data(1), sqe::nop().data(2), sqe::nop().data(3)]);
    assert_eq!(ring.wait_sorted(3), [(1, -EBADF), (2, -ECANCELED), (3, 0)]);
}

#[case(since = "5.6")]
fn short_read_breaks_the_chain(cx: &Context) {
    let (file, mut ring) = (file("f", b"0123456789"), cx.ring(4));
    let mut buffer = [0; 20];
    ring.go_all(&[sqe::read(fd(&file), &mut buffer, 0).with(LINK).data(1), sqe::nop().data(2)]);
    assert_eq!(ring.wait_ordered(2), [(1, 10), (2, -ECANCELED)]);
}

#[case(since = "5.6")]
fn eof_breaks_the_chain(cx: &Context) {
    let (file, mut ring) = (file("f", b""), cx.ring(4));
    let mut buffer = [0; 20];
    ring.go_all(&[sqe::read(fd(&file), &mut buffer, 0).with(LINK).data(1), sqe::nop().data(2)]);
    assert_eq!(ring.wait_ordered(2), [(1, 0), (2, -ECANCELED)]);
}

#[case]
fn short_readv_breaks_the_chain(cx: &Context) {
    let (file, mut ring) = (file("f", b"0123456789"), cx.ring(4));
    let mut buffer = [0; 20];
    let vectors = [iovec_mut(&mut buffer)];
    ring.go_all(&[sqe::readv(fd(&file), &vectors, 0).with(LINK).data(1), sqe::nop().data(2)]);
    assert_eq!(ring.wait_ordered(2), [(1, 10), (2, -ECANCELED)]);
}

#[case(since = "5.11")]
fn short_recv_does_not_break_unless_waitall(cx: &Context) {
    let ((a, b), mut ring, mut buffer) = (unix_pair(libc::SOCK_STREAM), cx.ring(8), [0; 8]);
    assert_eq!(ring.run(sqe::send(fd(&b), b"abc", 0)), 3);
    ring.go_all(&[sqe::recv(fd(&a), &mut buffer, 0).with(LINK).data(1), sqe::nop().data(2)]);
    assert_eq!(ring.wait_ordered(2), [(1, 3), (2, 0)]);
    assert_eq!(ring.run(sqe::send(fd(&b), b"abc", 0)), 3);
    assert_eq!(ring.run(sqe::shutdown(fd(&b), libc::SHUT_WR)), 0);
    ring.go_all(&[sqe::recv(fd(&a), &mut buffer, libc::MSG_WAITALL).with(LINK).data(1), sqe::nop().data(2)]);
    assert_eq!(ring.wait_ordered(2), [(1, 3), (2, -ECANCELED)]);
}

#[case]
fn hard_link_goes_on_after_failure(cx: &Context) {
    let mut ring = cx.ring(4);
    ring.go_all(&[failing().with(HARD).data(1), failing().with(HARD).data(2), sqe::nop().data(3)]);
    assert_eq!(ring.wait_ordered(3), [(1, -EBADF), (2, -EBADF), (3, 0)]);
}

#[case(since = "5.6")]
fn hard_link_goes_on_after_a_short_read(cx: &Context) {
    let (file, mut ring) = (file("f", b"0123456789"), cx.ring(4));
    let mut buffer = [0; 20];
    ring.go_all(&[sqe::read(fd(&file), &mut buffer, 0).with(HARD).data(1), sqe::nop().data(2)]);
    assert_eq!(ring.wait_ordered(2), [(1, 10), (2, 0)]);
}

#[case(since = "5.5")]
fn hard_link_still_runs_in_order(cx: &Context) {
    let (mut ring, times) = (cx.ring(4), [ms(20), ms(1)]);
    ring.go_all(&[
        sqe::timeout(&times[0], 0, 0).with(HARD).data(1),
        sqe::timeout(&times[1], 0, 0).with(HARD).data(2),
        sqe::nop().data(3),
    ]);
    assert_eq!(ring.wait_ordered(3), [(1, -ETIME), (2, -ETIME), (3, 0)]);
}

#[case(since = "5.6")]
fn chain_waits_for_a_pending_head(cx: &Context) {
    let ((reader, mut writer), mut ring, mut buffer) = (pipe(), cx.ring(4), [0; 3]);
    ring.go_all(&[sqe::read(fd(&reader), &mut buffer, 0).with(LINK).data(1), sqe::nop().data(2)]);
    ring.expect_quiet();
    writer.write_all(b"abc").expect("write");
    assert_eq!(ring.wait_ordered(2), [(1, 3), (2, 0)]);
}

#[case(since = "5.5")]
fn pending_head_that_is_cancelled_cancels_the_rest(cx: &Context) {
    let ((reader, _writer), mut ring, mut buffer) = (pipe(), cx.ring(4), [0; 3]);
    ring.go_all(&[sqe::read(fd(&reader), &mut buffer, 0).with(LINK).data(1), sqe::nop().data(2)]);
    ring.go(sqe::cancel(1, 0).data(3));
    assert_eq!(ring.wait_sorted(3), [(1, -ECANCELED), (2, -ECANCELED), (3, 0)]);
}

#[case]
fn chain_ends_with_the_submission(cx: &Context) {
    let ((reader, _writer), mut ring, mut buffer) = (pipe(), cx.ring(4), [0; 3]);
    ring.go(sqe::read(fd(&reader), &mut buffer, 0).with(LINK).data(1));
    ring.go(sqe::nop().data(2));
    assert_eq!(ring.wait_ordered(1), [(2, 0)]);
    ring.expect_quiet();
}

#[case(since = "5.6")]
fn async_chain_runs_in_order(cx: &Context) {
    let ((reader, writer), mut ring, mut buffer) = (pipe(), cx.ring(4), [0; 4]);
    ring.go_all(&[
        sqe::write(fd(&writer), b"abcd", 0).with(LINK | IOSQE_ASYNC).data(1),
        sqe::read(fd(&reader), &mut buffer, 0).with(LINK | IOSQE_ASYNC).data(2),
        sqe::nop().with(IOSQE_ASYNC).data(3),
    ]);
    assert_eq!(ring.wait_ordered(3), [(1, 4), (2, 4), (3, 0)]);
}

#[case]
fn link_flag_on_the_last_is_ignored(cx: &Context) {
    let mut ring = cx.ring(4);
    ring.go_all(&[sqe::nop().with(LINK).data(1), sqe::nop().with(LINK).data(2)]);
    assert_eq!(ring.wait_ordered(2), [(1, 0), (2, 0)]);
}

#[case(undisturbed, since = "5.5")]
fn link_timeout_cancels_its_request(cx: &Context) {
    let ((reader, _writer), mut ring, mut buffer) = (pipe(), cx.ring(4), [0; 1]);
    let ts = ms(10);
    ring.go_all(&[sqe::read(fd(&reader), &mut buffer, 0).with(LINK).data(1), sqe::link_timeout(&ts).data(2)]);
    assert_eq!(ring.wait_sorted(2), [(1, -ECANCELED), (2, -ETIME)]);
}

#[case(since = "5.6")]
fn link_timeout_is_cancelled_by_completion(cx: &Context) {
    let ((reader, mut writer), mut ring, mut buffer) = (pipe(), cx.ring(4), [0; 1]);
    let long = ms(10_000);
    ring.go_all(&[sqe::read(fd(&reader), &mut buffer, 0).with(LINK).data(1), sqe::link_timeout(&long).data(2)]);
    ring.expect_quiet();
    writer.write_all(b"x").expect("write");
    assert_eq!(ring.wait_sorted(2), [(1, 1), (2, -ECANCELED)]);
}

#[case]
fn link_timeout_without_predecessor_is_einval(cx: &Context) {
    assert_eq!(cx.ring(4).run(sqe::link_timeout(&ms(1))), -EINVAL);
}

#[case]
fn link_timeout_after_an_unlinked_request_is_einval(cx: &Context) {
    let (mut ring, ts) = (cx.ring(4), ms(1));
    ring.go_all(&[sqe::nop().data(1), sqe::link_timeout(&ts).data(2)]);
    assert_eq!(ring.wait_sorted(2), [(1, 0), (2, -EINVAL)]);
}

#[case(since = "5.6")]
fn link_timeout_first_in_a_submission_is_einval(cx: &Context) {
    let ((reader, mut writer), mut ring, mut buffer) = (pipe(), cx.ring(4), [0; 1]);
    let ts = ms(1);
    ring.go(sqe::read(fd(&reader), &mut buffer, 0).with(LINK).data(1));
    assert_eq!(ring.run(sqe::link_timeout(&ts).data(2)), -EINVAL);
    writer.write_all(b"x").expect("write");
    assert_eq!(ring.wait_ordered(1), [(1, 1)]);
}

#[case(since = "5.6")]
fn link_timeout_in_the_middle_of_a_chain(cx: &Context) {
    let ((reader, mut writer), mut ring, mut buffer) = (pipe(), cx.ring(4), [0; 1]);
    let long = ms(10_000);
    ring.go_all(&[
        sqe::read(fd(&reader), &mut buffer, 0).with(LINK).data(1),
        sqe::link_timeout(&long).with(LINK).data(2),
        sqe::nop().data(3),
    ]);
    ring.expect_quiet();
    writer.write_all(b"x").expect("write");
    assert_eq!(ring.wait_sorted(3), [(1, 1), (2, -ECANCELED), (3, 0)]);
}

#[case(undisturbed, since = "5.5")]
fn link_timeout_that_fires_cancels_the_rest(cx: &Context) {
    let ((reader, _writer), mut ring, mut buffer) = (pipe(), cx.ring(4), [0; 1]);
    let ts = ms(10);
    ring.go_all(&[
        sqe::read(fd(&reader), &mut buffer, 0).with(LINK).data(1),
        sqe::link_timeout(&ts).with(LINK).data(2),
        sqe::nop().data(3),
    ]);
    assert_eq!(ring.wait_sorted(3), [(1, -ECANCELED), (2, -ETIME), (3, -ECANCELED)]);
}

#[case(since = "5.5")]
fn two_link_timeouts_are_einval(cx: &Context) {
    let (mut ring, ts) = (cx.ring(4), ms(1));
    ring.go_all(&[
        sqe::nop().with(LINK).data(1),
        sqe::link_timeout(&ts).with(LINK).data(2),
        sqe::link_timeout(&ts).data(3),
    ]);
    assert_eq!(ring.wait_sorted(3), [(1, -ECANCELED), (2, -ECANCELED), (3, -EINVAL)]);
}

#[case(since = "5.5")]
fn link_timeout_on_a_request_that_completes_at_once(cx: &Context) {
    let (mut ring, long) = (cx.ring(4), ms(10_000));
    ring.go_all(&[sqe::nop().with(LINK).data(1), sqe::link_timeout(&long).data(2)]);
    assert_eq!(ring.wait_sorted(2), [(1, 0), (2, -ECANCELED)]);
}

#[case]
fn link_timeout_bad_timespec_fails_the_chain(cx: &Context) {
    let (mut ring, bad) = (cx.ring(4), Timespec { tv_sec: -1, tv_nsec: 0 });
    ring.go_all(&[sqe::nop().with(LINK).data(1), sqe::link_timeout(&bad).data(2)]);
    assert_eq!(ring.wait_sorted(2), [(1, -ECANCELED), (2, -EINVAL)]);
}

#[case(undisturbed, since = "5.5")]
fn link_timeout_absolute(cx: &Context) {
    let ((reader, _writer), mut ring, mut buffer) = (pipe(), cx.ring(4), [0; 1]);
    let past = ms(1);
    ring.go_all(&[
        sqe::read(fd(&reader), &mut buffer, 0).with(LINK).data(1),
        sqe::link_timeout(&past).op_flags(IORING_TIMEOUT_ABS).data(2),
    ]);
    assert_eq!(ring.wait_sorted(2), [(1, -ECANCELED), (2, -ETIME)]);
}

#[case(undisturbed, since = "5.15")]
fn link_timeout_of_other_clocks(cx: &Context) {
    let ((reader, _writer), mut ring, ts) = (pipe(), cx.ring(4), ms(20));
    for clock in [IORING_TIMEOUT_BOOTTIME, IORING_TIMEOUT_REALTIME] {
        let (start, mut buffer) = (std::time::Instant::now(), [0; 1]);
        ring.go_all(&[
            sqe::read(fd(&reader), &mut buffer, 0).with(LINK).data(1),
            sqe::link_timeout(&ts).op_flags(clock).data(2),
        ]);
        assert_eq!(ring.wait_sorted(2), [(1, -ECANCELED), (2, -ETIME)]);
        assert!(start.elapsed().as_millis() >= 20);
        let past = sqe::link_timeout(&ts).op_flags(clock | IORING_TIMEOUT_ABS).data(2);
        ring.go_all(&[sqe::read(fd(&reader), &mut buffer, 0).with(LINK).data(1), past]);
        assert_eq!(ring.wait_sorted(2), [(1, -ECANCELED), (2, -ETIME)]);
    }
    let both = IORING_TIMEOUT_BOOTTIME | IORING_TIMEOUT_REALTIME;
    ring.go_all(&[sqe::nop().with(LINK).data(1), sqe::link_timeout(&ts).op_flags(both).data(2)]);
    assert_eq!(ring.wait_sorted(2), [(1, -ECANCELED), (2, -EINVAL)]);
}

#[case]
fn link_timeout_with_a_count_is_einval(cx: &Context) {
    let (mut ring, ts) = (cx.ring(4), ms(1));
    ring.go_all(&[sqe::nop().with(LINK).data(1), Sqe { off: 1, ..sqe::link_timeout(&ts) }.data(2)]);
    assert_eq!(ring.wait_sorted(2), [(1, -ECANCELED), (2, -EINVAL)]);
}

#[case(undisturbed, since = "5.6")]
fn cancel_of_a_link_timeout(cx: &Context) {
    let ((reader, mut writer), mut ring, mut buffer) = (pipe(), cx.ring(4), [0; 1]);
    let ts = ms(60);
    ring.go_all(&[sqe::read(fd(&reader), &mut buffer, 0).with(LINK).data(1), sqe::link_timeout(&ts).data(2)]);
    assert_eq!(ring.run(sqe::timeout_remove(2).data(3)), -ENOENT, "a link timeout is no timeout");
    writer.write_all(b"x").expect("write");
    assert_eq!(ring.wait_sorted(2), [(1, 1), (2, -ECANCELED)]);
}

#[case(since = "5.6")]
fn drain_waits_for_what_came_before(cx: &Context) {
    let ((reader, mut writer), mut ring, mut buffer) = (pipe(), cx.ring(4), [0; 1]);
    ring.go_all(&[sqe::read(fd(&reader), &mut buffer, 0).data(1), sqe::nop().with(IOSQE_IO_DRAIN).data(2)]);
    ring.expect_quiet();
    writer.write_all(b"x").expect("write");
    assert_eq!(ring.wait_ordered(2), [(1, 1), (2, 0)]);
}

#[case(since = "5.6")]
fn drain_holds_back_what_comes_after(cx: &Context) {
    let ((reader, mut writer), mut ring, mut buffer) = (pipe(), cx.ring(4), [0; 1]);
    ring.go_all(&[
        sqe::read(fd(&reader), &mut buffer, 0).data(1),
        sqe::nop().with(IOSQE_IO_DRAIN).data(2),
        sqe::nop().data(3),
    ]);
    ring.expect_quiet();
    writer.write_all(b"x").expect("write");
    assert_eq!(ring.wait_ordered(3), [(1, 1), (2, 0), (3, 0)]);
}

#[case]
fn drain_of_nothing_runs_at_once(cx: &Context) {
    assert_eq!(cx.ring(4).run(sqe::nop().with(IOSQE_IO_DRAIN)), 0);
}

#[case(since = "5.6")]
fn drained_chain(cx: &Context) {
    let ((reader, mut writer), mut ring, mut buffer) = (pipe(), cx.ring(4), [0; 1]);
    ring.go_all(&[
        sqe::read(fd(&reader), &mut buffer, 0).data(1),
        sqe::nop().with(IOSQE_IO_DRAIN | LINK).data(2),
        sqe::nop().data(3),
    ]);
    ring.expect_quiet();
    writer.write_all(b"x").expect("write");
    assert_eq!(ring.wait_ordered(3), [(1, 1), (2, 0), (3, 0)]);
}

/// A drain flag inside a chain counts for the whole chain, and for the request after it.
#[case(since = "5.6")]
fn chain_with_a_drain_holds_back_what_follows(cx: &Context) {
    let ((reader, mut writer), mut ring, mut buffer) = (pipe(), cx.ring(8), [0; 1]);
    ring.go_all(&[
        sqe::nop().with(LINK).data(1),
        sqe::read(fd(&reader), &mut buffer, 0).with(LINK | IOSQE_IO_DRAIN).data(2),
        sqe::nop().data(3),
        sqe::nop().data(4),
        sqe::nop().data(5),
    ]);
    assert_eq!(ring.wait_ordered(1), [(1, 0)]);
    ring.expect_quiet();
    writer.write_all(b"x").expect("write");
    assert_eq!(ring.wait_ordered(4), [(2, 1), (3, 0), (4, 0), (5, 0)]);
}

#[case(since = "5.6")]
fn chain_with_a_drain_waits_as_a_whole(cx: &Context) {
    let ((reader, mut writer), mut ring, mut buffer) = (pipe(), cx.ring(8), [0; 1]);
    ring.go_all(&[
        sqe::read(fd(&reader), &mut buffer, 0).data(1),
        sqe::nop().with(LINK).data(2),
        sqe::nop().with(LINK | IOSQE_IO_DRAIN).data(3),
        sqe::nop().data(4),
        sqe::nop().data(5),
    ]);
    ring.expect_quiet();
    writer.write_all(b"x").expect("write");
    assert_eq!(ring.wait_ordered(5), [(1, 1), (2, 0), (3, 0), (4, 0), (5, 0)]);
}

const SKIP: u8 = IOSQE_CQE_SKIP_SUCCESS;

#[case(since = "5.17")]
fn skip_success_gives_no_cqe(cx: &Context) {
    let mut ring = cx.ring(4);
    ring.go_all(&[sqe::nop().with(SKIP).data(1), sqe::nop().data(2)]);
    assert_eq!(ring.wait_ordered(1), [(2, 0)]);
    ring.expect_quiet();
}

#[case]
fn skip_success_still_reports_failure(cx: &Context) {
    let mut ring = cx.ring(4);
    assert_eq!(ring.run(failing().with(SKIP).data(1)), -EBADF);
}

#[case(since = "5.17")]
fn skip_success_of_a_pending_read(cx: &Context) {
    let ((reader, mut writer), mut ring, mut buffer) = (pipe(), cx.ring(4), [0; 1]);
    ring.go(sqe::read(fd(&reader), &mut buffer, 0).with(SKIP));
    writer.write_all(b"x").expect("write");
    ring.expect_quiet();
    assert_eq!(readable_bytes(&reader), 0, "it was read");
}

#[case(since = "5.17")]
fn skip_success_in_a_chain(cx: &Context) {
    let mut ring = cx.ring(4);
    ring.go_all(&[sqe::nop().with(SKIP | LINK).data(1), sqe::nop().with(SKIP | LINK).data(2), sqe::nop().data(3)]);
    assert_eq!(ring.wait_ordered(1), [(3, 0)]);
    ring.expect_quiet();
}

/// A request that fails posts a CQE. Requests with CQE_SKIP_SUCCESS that it cancels do not.
#[case(since = "5.17")]
fn skip_success_chain_that_breaks_reports_once(cx: &Context) {
    let mut ring = cx.ring(4);
    ring.go_all(&[
        failing().with(SKIP | LINK).data(1),
        sqe::nop().with(SKIP | LINK).data(2),
        sqe::nop().with(SKIP).data(3),
    ]);
    assert_eq!(ring.wait_ordered(1), [(1, -EBADF)]);
    ring.expect_quiet();
}

#[case]
fn skip_success_with_drain_is_eopnotsupp(cx: &Context) {
    let mut ring = cx.ring(4);
    assert_eq!(ring.run(sqe::nop().with(SKIP | IOSQE_IO_DRAIN)), -EOPNOTSUPP);
}

#[case(since = "5.17")]
fn skip_success_of_a_cancelled_link_timeout(cx: &Context) {
    let (mut ring, long) = (cx.ring(4), ms(10_000));
    ring.go_all(&[sqe::nop().with(LINK).data(1), sqe::link_timeout(&long).with(SKIP).data(2)]);
    assert_eq!(ring.wait_ordered(1), [(1, 0)]);
    ring.expect_quiet();
}

/// A LINK_TIMEOUT never fails.
#[case(since = "5.17")]
fn skip_success_of_a_link_timeout_that_fires(cx: &Context) {
    let ((reader, _writer), mut ring, mut buffer, ts) = (pipe(), cx.ring(4), [0; 1], ms(1));
    for skip_read in [0, SKIP] {
        ring.go_all(&[
            sqe::read(fd(&reader), &mut buffer, 0).with(LINK | skip_read).data(1),
            sqe::link_timeout(&ts).with(SKIP).data(2),
        ]);
        assert_eq!(ring.wait_ordered(1), [(1, -ECANCELED)]);
        ring.expect_quiet();
    }
}

#[case(since = "5.17")]
fn skip_success_of_a_timeout(cx: &Context) {
    let (mut ring, ts) = (cx.ring(4), ms(1));
    assert_eq!(ring.run(sqe::timeout(&ts, 0, 0).with(SKIP)), -ETIME, "a timeout that fires is a failure");
    ring.go(sqe::timeout(&ts, 0, IORING_TIMEOUT_ETIME_SUCCESS).with(SKIP));
    ring.expect_quiet();
}

#[case(since = "5.7")]
fn splice_short_breaks_the_chain(cx: &Context) {
    let ((reader, mut writer), (_target, sink), mut ring) = (pipe(), pipe(), cx.ring(4));
    writer.write_all(b"abc").expect("write");
    ring.go_all(&[sqe::splice(fd(&reader), -1, fd(&sink), -1, 10).with(LINK).data(1), sqe::nop().data(2)]);
    assert_eq!(ring.wait_ordered(2), [(1, 3), (2, -ECANCELED)]);
}

#[case]
fn long_chain(cx: &Context) {
    let mut ring = cx.ring(128);
    ring.go_all(&(0..128).map(|n| sqe::nop().with(if n < 127 { LINK } else { 0 }).data(n)).collect::<Vec<_>>());
    assert_eq!(ring.wait_ordered(128), (0..128).map(|n| (n, 0)).collect::<Vec<_>>());
}

fn bad() -> Sqe {
    Sqe { opcode: 255, ..Sqe::default() }
}

#[case(own_flags)]
fn bad_sqe_in_a_chain_cancels_it(cx: &Context) {
    let mut ring = cx.ring_with(4, 0);
    ring.push(sqe::nop().with(LINK).data(1));
    ring.push(bad().data(2));
    ring.push(sqe::nop().data(3));
    assert_eq!(ring.submit(), 2);
    assert_eq!(ring.wait_sorted(2), [(1, -ECANCELED), (2, -EINVAL)]);
    assert_eq!(ring.enter(1, 0, 0, 0, 0), 1);
    assert_eq!(ring.wait_ordered(1), [(3, 0)]);
}

#[case(own_flags)]
fn bad_first_sqe_cancels_the_chain(cx: &Context) {
    let mut ring = cx.ring_with(4, 0);
    ring.push(bad().with(LINK).data(1));
    ring.push(sqe::nop().data(2));
    let answer = ring.submit();
    assert_eq!(answer, 2);
    assert_eq!(ring.wait_sorted(2), [(1, -EINVAL), (2, -ECANCELED)]);
}

#[case(own_flags)]
fn bad_sqe_in_a_hard_chain_cancels_it(cx: &Context) {
    let mut ring = cx.ring_with(4, 0);
    ring.push(sqe::nop().with(HARD).data(1));
    ring.push(bad().with(HARD).data(2));
    ring.push(sqe::nop().data(3));
    assert_eq!(ring.submit(), 3);
    assert_eq!(ring.wait_sorted(3), [(1, -ECANCELED), (2, -EINVAL), (3, -ECANCELED)]);
}

#[case(own_flags)]
fn bad_first_sqe_cancels_a_hard_chain(cx: &Context) {
    let mut ring = cx.ring_with(4, 0);
    ring.push(bad().with(HARD).data(1));
    ring.push(sqe::nop().data(2));
    assert_eq!(ring.submit(), 2);
    assert_eq!(ring.wait_sorted(2), [(1, -EINVAL), (2, -ECANCELED)]);
}

/// Operations whose error the kernel does not count as a failure: they return it without `req_set_fail`.
fn unnoticed_errors(file: &std::fs::File, socket: &OwnedFd) -> Vec<(Sqe, i32)> {
    let (missing, name) = (c"missing".as_ptr() as u64, c"user.missing".as_ptr() as u64);
    let at_missing = |opcode, off, len| prep(opcode, libc::AT_FDCWD, missing, len, off);
    let statx = sys::pages(1).as_mut_ptr() as u64;
    vec![
        (prep(Opcode::Fsync, fd(socket), 0, 0, 0), -EINVAL),
        (prep(Opcode::SyncFileRange, fd(socket), 0, 0, 0), -ESPIPE),
        (prep(Opcode::Fallocate, fd(file), 0, 0, 0), -EINVAL),
        (prep(Opcode::Ftruncate, fd(socket), 0, 0, 0), -EINVAL),
        (prep(Opcode::Madvise, -1, 0, 4096, 0).op_flags(9999), -EINVAL),
        (at_missing(Opcode::Statx, statx, 0), -ENOENT),
        (Sqe { len: libc::AT_FDCWD as u32, ..at_missing(Opcode::Renameat, missing, 0) }, -ENOENT),
        (at_missing(Opcode::Unlinkat, 0, 0), -ENOENT),
        (prep(Opcode::Mkdirat, libc::AT_FDCWD, c".".as_ptr() as u64, 0, 0), -EEXIST),
        (prep(Opcode::Symlinkat, libc::AT_FDCWD, missing, 0, c".".as_ptr() as u64), -EEXIST),
        (Sqe { len: libc::AT_FDCWD as u32, ..at_missing(Opcode::Linkat, missing, 0) }, -ENOENT),
        (prep(Opcode::Fgetxattr, fd(file), name, 8, statx), -ENODATA),
        (sqe::shutdown(fd(socket), 9), -EINVAL),
    ]
}

#[case]
fn errors_that_do_not_break_the_chain(cx: &Context) {
    let (file, (socket, _other)) = (file("f", b"0123456789"), unix_pair(libc::SOCK_STREAM));
    for (sqe, error) in unnoticed_errors(&file, &socket) {
        for flags in [LINK, LINK | IOSQE_ASYNC] {
            let mut ring = cx.ring(4);
            ring.go_all(&[sqe.with(flags).data(1), sqe::nop().data(2)]);
            assert_eq!(ring.wait_ordered(2), [(1, error), (2, 0)], "{:?}", Opcode::from_u8(sqe.opcode));
        }
    }
}

#[case(since = "5.17")]
fn errors_that_do_not_break_skip_their_cqe(cx: &Context) {
    let (file, (socket, _other)) = (file("f", b"0123456789"), unix_pair(libc::SOCK_STREAM));
    for (sqe, _) in unnoticed_errors(&file, &socket) {
        let mut ring = cx.ring(4);
        ring.go_all(&[sqe.with(LINK | IOSQE_CQE_SKIP_SUCCESS).data(1), sqe::nop().data(2)]);
        assert_eq!(ring.wait_ordered(1), [(2, 0)], "{:?}", Opcode::from_u8(sqe.opcode));
    }
}

#[case]
fn errors_before_the_call_break_the_chain(cx: &Context) {
    let file = file("f", b"0123456789");
    let missing = c"missing".as_ptr() as u64;
    let failing = [
        (sqe::fsync(-1, 0), -EBADF),
        (sqe::shutdown(fd(&file), 0), -ENOTSOCK),
        (prep(Opcode::Unlinkat, libc::AT_FDCWD, missing, 0, 0).op_flags(1), -EINVAL),
        (prep(Opcode::Fadvise, fd(&file), 0, 0, 0).op_flags(9999), -EINVAL),
        (prep(Opcode::Openat, libc::AT_FDCWD, missing, 0, 0), -ENOENT),
        (prep(Opcode::Listen, fd(&file), 0, 0, 0), -ENOTSOCK),
    ];
    for (sqe, error) in failing {
        let mut ring = cx.ring(4);
        ring.go_all(&[sqe.with(LINK).data(1), sqe::nop().data(2)]);
        assert_eq!(ring.wait_ordered(2), [(1, error), (2, -ECANCELED)], "{:?}", Opcode::from_u8(sqe.opcode));
    }
}

#[case(since = "5.5")]
fn link_timeout_of_a_timeout(cx: &Context) {
    let (mut ring, long, short) = (cx.ring(4), ms(10_000), ms(5));
    ring.go_all(&[sqe::timeout(&long, 0, 0).with(LINK).data(1), sqe::link_timeout(&short).data(2)]);
    assert_eq!(ring.wait_sorted(2), [(1, -ECANCELED), (2, -ETIME)]);
}

#[case]
fn no_free_slot_for_a_socket_does_not_break_the_chain(cx: &Context) {
    let mut ring = cx.ring(4);
    let anywhere = IORING_FILE_INDEX_ALLOC as u32;
    let socket = sqe::socket(libc::AF_UNIX, libc::SOCK_STREAM, 0).file_index(anywhere);
    ring.go_all(&[socket.with(LINK).data(1), sqe::nop().data(2)]);
    assert_eq!(ring.wait_ordered(2), [(1, -libc::ENFILE), (2, 0)]);
    let open = sqe::openat(libc::AT_FDCWD, c".", libc::O_RDONLY, 0).file_index(anywhere);
    ring.go_all(&[open.with(LINK).data(1), sqe::nop().data(2)]);
    assert_eq!(ring.wait_ordered(2), [(1, -libc::ENFILE), (2, -ECANCELED)]);
}

#[case(since = "5.6")]
fn open_of_a_fifo_after_what_waited_waits_for_nobody(cx: &Context) {
    let mut ring = cx.ring(4);
    // SAFETY: a C string.
    assert_eq!(unsafe { libc::mkfifo(c"fifo".as_ptr(), 0o600) }, 0);
    let (mut opened, mut bytes) = (Vec::new(), [0; 1]);
    for (how, error) in [(libc::O_WRONLY, -libc::ENXIO), (libc::O_RDONLY, 0), (libc::O_WRONLY, 0)] {
        let (reader, mut writer) = pipe();
        let read = sqe::read(fd(&reader), &mut bytes, 0).with(IOSQE_IO_LINK).data(1);
        ring.go_all(&[read, sqe::openat(libc::AT_FDCWD, c"fifo", how, 0).data(2)]);
        writer.write_all(b"x").expect("write");
        let cqes = ring.wait_ordered(2);
        assert_eq!(cqes[0], (1, 1));
        match error {
            0 => opened.push(owned(cqes[1].1, "an end")),
            error => assert_eq!(cqes[1].1, error),
        }
    }
}

#[case(undisturbed, since = "5.6")]
fn link_timeout_that_is_over_as_it_begins(cx: &Context) {
    let (file, mut ring, mut bytes) = (file("f", b"abc"), cx.ring(4), [0; 8]);
    let (now, past) = (Timespec::default(), Timespec { tv_sec: 1, tv_nsec: 0 });
    let absolute = sqe::link_timeout(&past).op_flags(IORING_TIMEOUT_ABS);
    for (request, timeout, answers) in [
        (sqe::nop(), sqe::link_timeout(&now), [0, -ENOENT]),
        (sqe::nop(), absolute, [0, -ENOENT]),
        (sqe::nop(), sqe::link_timeout(&past), [0, -ECANCELED]),
        (sqe::read(fd(&file), &mut bytes, 0), sqe::link_timeout(&now), [3, -ENOENT]),
        (sqe::poll_remove(77), sqe::link_timeout(&now), [-ENOENT, -ENOENT]),
        (sqe::read(-1, &mut bytes, 0), sqe::link_timeout(&now), [-libc::EBADF, -ECANCELED]),
    ] {
        ring.go_all(&[request.with(IOSQE_IO_LINK).data(1), timeout.data(2)]);
        assert_eq!(ring.wait_ordered(2), [(1, answers[0]), (2, answers[1])]);
    }
}
