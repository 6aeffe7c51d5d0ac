//! TIMEOUTs that count completions: the CQEs that count, and the effect of an update, a chain or a drain on the
//! count.

use super::prelude::*;

topic!(since: "5.4", source: "io_uring_enter(2), io_uring/timeout.c");

/// A TIMEOUT of ten seconds that ends after `count` completions.
fn counting(long: &Timespec, count: u64) -> Sqe {
    sqe::timeout(long, count, 0)
}

#[case]
fn expired_timeouts_do_not_count(cx: &Context) {
    let (mut ring, long, short) = (cx.ring(8), ms(10_000), ms(5));
    ring.go(counting(&long, 1).data(1));
    ring.go(sqe::timeout(&short, 0, 0).data(2));
    assert_eq!(ring.wait_ordered(1), [(2, -ETIME)]);
    ring.expect_quiet();
    ring.go(sqe::nop().data(3));
    assert_eq!(ring.wait_sorted(2), [(1, 0), (3, 0)]);
}

#[case]
fn counted_timeouts_do_not_count(cx: &Context) {
    let (mut ring, long) = (cx.ring(8), ms(10_000));
    ring.go_all(&[counting(&long, 2).data(1), counting(&long, 1).data(2)]);
    ring.go(sqe::nop().data(3));
    assert_eq!(ring.wait_sorted(2), [(2, 0), (3, 0)]);
    ring.expect_quiet();
    ring.go(sqe::nop().data(4));
    assert_eq!(ring.wait_sorted(2), [(1, 0), (4, 0)]);
}

#[case]
fn failures_count(cx: &Context) {
    let (mut ring, long) = (cx.ring(8), ms(10_000));
    ring.go(counting(&long, 1).data(1));
    ring.go(sqe::read(9999, &mut [0; 1], 0).data(2));
    assert_eq!(ring.wait_sorted(2), [(1, 0), (2, -libc::EBADF)]);
}

#[case(since = "5.5")]
fn cancellations_count(cx: &Context) {
    let ((reader, _writer), mut ring, mut buffer, long) = (pipe(), cx.ring(8), [0; 1], ms(10_000));
    ring.go(sqe::read(fd(&reader), &mut buffer, 0).data(1));
    ring.go(counting(&long, 2).data(2));
    ring.go(sqe::cancel(1, 0).data(3));
    assert_eq!(ring.wait_sorted(3), [(1, -ECANCELED), (2, 0), (3, 0)]);
}

#[case(since = "5.13")]
fn shots_count(cx: &Context) {
    let ((reader, mut writer), mut ring, long) = (pipe(), cx.ring(8), ms(10_000));
    ring.go(sqe::poll_add(fd(&reader), libc::POLLIN, IORING_POLL_ADD_MULTI).data(1));
    ring.go(counting(&long, 2).data(2));
    writer.write_all(b"x").expect("write");
    assert_eq!(ring.wait().user_data, 1);
    ring.expect_quiet();
    writer.write_all(b"x").expect("write");
    let mut seen = [ring.wait().user_data, ring.wait().user_data];
    seen.sort_unstable();
    assert_eq!(seen, [1, 2]);
}

#[case(since = "5.18")]
fn messages_count(cx: &Context) {
    let (mut ring, mut other, long) = (cx.ring(8), cx.ring(8), ms(10_000));
    ring.go(counting(&long, 1).data(1));
    let message = Sqe { off: 7, ..prep(Opcode::MsgRing, ring.fd, IORING_MSG_DATA, 5, 7) };
    assert_eq!(other.run(message), 0);
    assert_eq!(ring.wait_ordered(1), [(7, 5)]);
    // On the kernel it is checked at the next completion of the ring itself.
    ring.go(sqe::nop().data(2));
    assert_eq!(ring.wait_sorted(2), [(1, 0), (2, 0)]);
}

#[case(since = "5.17")]
fn silent_requests_do_not_count(cx: &Context) {
    let (mut ring, long) = (cx.ring(8), ms(10_000));
    ring.go(counting(&long, 1).data(1));
    ring.go(sqe::nop().with(IOSQE_CQE_SKIP_SUCCESS).data(2));
    ring.expect_quiet();
    ring.go(sqe::nop().data(3));
    assert_eq!(ring.wait_sorted(2), [(1, 0), (3, 0)]);
}

#[case]
fn completions_on_the_backlog_count(cx: &Context) {
    let (mut ring, long) = (cx.ring(2), ms(10_000));
    let room = u64::from(ring.params.cq_entries);
    ring.go(counting(&long, room + 2).data(100));
    for n in 0..room + 2 {
        ring.go(sqe::nop().data(n));
    }
    let mut seen: Vec<_> = ring.wait_all(room as usize + 3).iter().map(|cqe| (cqe.user_data, cqe.res)).collect();
    seen.sort_unstable();
    assert_eq!(seen.last(), Some(&(100, 0)));
}

#[case]
fn earlier_completions_do_not_count(cx: &Context) {
    let (mut ring, long) = (cx.ring(8), ms(10_000));
    ring.go_all(&[sqe::nop().data(1), sqe::nop().data(2)]);
    ring.go(counting(&long, 1).data(3));
    assert_eq!(ring.wait_ordered(2), [(1, 0), (2, 0)]);
    ring.expect_quiet();
}

#[case]
fn smaller_counts_end_first(cx: &Context) {
    let (mut ring, long) = (cx.ring(8), ms(10_000));
    ring.go_all(&[counting(&long, 3).data(13), counting(&long, 1).data(11), counting(&long, 2).data(12)]);
    for n in 1..=3 {
        ring.go(sqe::nop().data(n));
        assert_eq!(ring.wait_sorted(2), [(n, 0), (10 + n, 0)]);
    }
}

#[case]
fn equal_counts_end_together(cx: &Context) {
    let (mut ring, long) = (cx.ring(8), ms(10_000));
    ring.go_all(&[counting(&long, 1).data(11), counting(&long, 1).data(12)]);
    ring.go(sqe::nop().data(1));
    assert_eq!(ring.wait_sorted(3), [(1, 0), (11, 0), (12, 0)]);
}

#[case]
fn later_timeout_counts_from_its_own_submission(cx: &Context) {
    let (mut ring, long) = (cx.ring(8), ms(10_000));
    ring.go(counting(&long, 2).data(11));
    ring.go(sqe::nop().data(1));
    ring.go(counting(&long, 2).data(12));
    assert_eq!(ring.wait_ordered(1), [(1, 0)]);
    ring.go(sqe::nop().data(2));
    assert_eq!(ring.wait_sorted(2), [(2, 0), (11, 0)]);
    ring.expect_quiet();
    ring.go(sqe::nop().data(3));
    assert_eq!(ring.wait_sorted(2), [(3, 0), (12, 0)]);
}

#[case(since = "5.11")]
fn update_forgets_the_count(cx: &Context) {
    let (mut ring, long, soon) = (cx.ring(8), ms(10_000), ms(60));
    ring.go(counting(&long, 2).data(1));
    assert_eq!(ring.run(sqe::timeout_update(1, &soon, 0).data(2)), 0);
    ring.go_all(&[sqe::nop().data(3), sqe::nop().data(4)]);
    assert_eq!(ring.wait_ordered(2), [(3, 0), (4, 0)]);
    assert_eq!(ring.wait_ordered(1), [(1, -ETIME)]);
}

#[case(since = "5.5")]
fn removal_ends_it(cx: &Context) {
    let (mut ring, long) = (cx.ring(8), ms(10_000));
    ring.go(counting(&long, 2).data(1));
    ring.go(sqe::timeout_remove(1).data(2));
    assert_eq!(ring.wait_sorted(2), [(1, -ECANCELED), (2, 0)]);
    ring.go_all(&[sqe::nop().data(3), sqe::nop().data(4)]);
    assert_eq!(ring.wait_ordered(2), [(3, 0), (4, 0)]);
}

/// The kernel counts a removed timeout like any other request. It does not count one that expires.
#[case(since = "5.5", until = "7.3")]
fn removed_timeouts_count(cx: &Context) {
    let (mut ring, long) = (cx.ring(8), ms(10_000));
    ring.go(counting(&long, 4).data(1));
    ring.go(sqe::timeout(&long, 0, 0).data(2));
    ring.go(sqe::timeout_remove(2).data(3));
    assert_eq!(ring.wait_sorted(2), [(2, -ECANCELED), (3, 0)]);
    ring.expect_quiet();
    ring.go(sqe::timeout(&long, 0, 0).data(4));
    ring.go(sqe::cancel(4, 0).data(5));
    assert_eq!(ring.wait_sorted(3), [(1, 0), (4, -ECANCELED), (5, 0)]);
}

#[case(undisturbed)]
fn count_is_of_32_bits(cx: &Context) {
    let (mut ring, soon) = (cx.ring(8), ms(30));
    ring.go(sqe::timeout(&soon, 1 << 32, 0).data(1));
    ring.go(sqe::nop().data(2));
    assert_eq!(ring.wait_ordered(2), [(2, 0), (1, -ETIME)]);
    ring.go(sqe::timeout(&soon, 1 << 32 | 1, 0).data(3));
    ring.go(sqe::nop().data(4));
    assert_eq!(ring.wait_sorted(2), [(3, 0), (4, 0)]);
}

#[case]
fn largest_count_is_not_reached(cx: &Context) {
    let (mut ring, soon) = (cx.ring(8), ms(60));
    for count in [u64::MAX, 1 << 31, u64::from(u32::MAX) - 5] {
        ring.go(sqe::timeout(&soon, count, 0).data(1));
        for n in 2..5 {
            ring.go(sqe::nop().data(n));
        }
        assert_eq!(ring.wait_ordered(4), [(2, 0), (3, 0), (4, 0), (1, -ETIME)]);
    }
}

#[case]
fn count_with_the_rest_of_its_submission(cx: &Context) {
    let (mut ring, long) = (cx.ring(8), ms(10_000));
    ring.go_all(&[sqe::nop().data(1), counting(&long, 2).data(2), sqe::nop().data(3), sqe::nop().data(4)]);
    assert_eq!(ring.wait_sorted(4), [(1, 0), (2, 0), (3, 0), (4, 0)]);
}

#[case]
fn wakes_a_waiter_for_more(cx: &Context) {
    let (mut ring, long) = (cx.ring(8), ms(10_000));
    ring.go(counting(&long, 1).data(1));
    ring.push(sqe::nop().data(2));
    assert_eq!(ring.submit_and_wait(2), 1);
    assert_eq!(ring.cq_ready(), 2);
}

#[case(since = "5.5")]
fn absolute_time_with_a_count(cx: &Context) {
    let (mut ring, mut until) = (cx.ring(8), clock(libc::CLOCK_MONOTONIC));
    until.tv_sec += 100;
    ring.go(sqe::timeout(&until, 1, IORING_TIMEOUT_ABS).data(1));
    ring.go(sqe::nop().data(2));
    assert_eq!(ring.wait_sorted(2), [(1, 0), (2, 0)]);
    until.tv_sec = 0; // past, however young the machine is
    ring.go(sqe::timeout(&until, 1, IORING_TIMEOUT_ABS).data(3));
    assert_eq!(ring.wait_ordered(1), [(3, -ETIME)]);
}

/// Completions of requests before it count, too: they are posted after the submission.
#[case]
fn completions_of_its_submission_count(cx: &Context) {
    let (mut ring, long) = (cx.ring(8), ms(10_000));
    ring.go_all(&[sqe::nop().data(1), sqe::timeout_remove(99).data(2), counting(&long, 2).data(3)]);
    assert_eq!(ring.wait_ordered(3), [(1, 0), (2, -ENOENT), (3, 0)]);
}

#[case]
fn smaller_count_ends_first_of_those_reached_together(cx: &Context) {
    let (mut ring, long) = (cx.ring(8), ms(10_000));
    ring.go_all(&[counting(&long, 2).data(11), counting(&long, 1).data(12)]);
    ring.go_all(&[sqe::nop().data(1), sqe::nop().data(2)]);
    assert_eq!(ring.wait_ordered(4), [(1, 0), (2, 0), (12, 0), (11, 0)]);
}

#[case(since = "5.19")]
fn smaller_counts_are_cancelled_first(cx: &Context) {
    let (mut ring, long) = (cx.ring(8), ms(10_000));
    ring.go_all(&[
        sqe::timeout(&long, 0, 0).data(1),
        counting(&long, 20).data(2),
        counting(&long, 10).data(3),
        sqe::timeout(&long, 0, 0).data(4),
    ]);
    ring.go(sqe::cancel(0, IORING_ASYNC_CANCEL_ANY).data(9));
    let ended = [3, 2, 1, 4].map(|ended| (ended, -ECANCELED));
    assert_eq!(ring.wait_ordered(5), [&[(9, 4)][..], &ended].concat());
}

#[case]
fn counts_end_before_chains_go_on(cx: &Context) {
    let (mut ring, long) = (cx.ring(8), ms(10_000));
    ring.go(counting(&long, 1).data(1));
    ring.go_all(&[sqe::nop().with(IOSQE_IO_LINK).data(2), sqe::nop().data(3)]);
    assert_eq!(ring.wait_ordered(3), [(2, 0), (1, 0), (3, 0)]);
}
