//! TIMEOUT and TIMEOUT_REMOVE: clocks, counts, updates, multishot, and the waits that an expiry ends.

use super::prelude::*;
use std::time::{Duration, Instant};

topic!(since: "5.4", source: "io_uring_enter(2), io_uring/timeout.c");

#[case]
fn relative_timeout_is_etime(cx: &Context) {
    let mut ring = cx.ring(4);
    let ts = ms(5);
    ring.go(sqe::timeout(&ts, 0, 0).data(4));
    let cqe = ring.wait();
    assert_eq!((cqe.user_data, cqe.res, cqe.flags), (4, -ETIME, 0));
}

#[case]
fn zero_timeout_fires_at_once(cx: &Context) {
    assert_eq!(cx.ring(4).run(sqe::timeout(&ms(0), 0, 0)), -ETIME);
}

#[case]
fn timeout_takes_its_time(cx: &Context) {
    let (mut ring, start, ts) = (cx.ring(4), Instant::now(), ms(25));
    assert_eq!(ring.run(sqe::timeout(&ts, 0, 0)), -ETIME);
    let elapsed = start.elapsed();
    assert!(elapsed >= Duration::from_millis(25) && elapsed < crate::ring::PATIENCE, "{elapsed:?}");
}

fn later(clock: i32, milliseconds: i64) -> Timespec {
    let now = sys::clock(clock);
    let nsec = now.tv_nsec + milliseconds * 1_000_000;
    Timespec { tv_sec: now.tv_sec + nsec / 1_000_000_000, tv_nsec: nsec % 1_000_000_000 }
}

fn absolute(cx: &Context, clock: i32, flags: u32) {
    let (mut ring, start, ts) = (cx.ring(4), Instant::now(), later(clock, 20));
    assert_eq!(ring.run(sqe::timeout(&ts, 0, flags | IORING_TIMEOUT_ABS)), -ETIME);
    let elapsed = start.elapsed();
    assert!(elapsed > Duration::from_millis(15) && elapsed < crate::ring::PATIENCE, "{elapsed:?}");
}

#[case(since = "5.5")]
fn absolute_monotonic(cx: &Context) {
    absolute(cx, libc::CLOCK_MONOTONIC, 0);
}

#[case(since = "5.15")]
fn absolute_realtime(cx: &Context) {
    absolute(cx, libc::CLOCK_REALTIME, IORING_TIMEOUT_REALTIME);
}

#[case(since = "5.15")]
fn absolute_boottime(cx: &Context) {
    absolute(cx, libc::CLOCK_BOOTTIME, IORING_TIMEOUT_BOOTTIME);
}

#[case(since = "5.5")]
fn absolute_time_in_the_past_fires_at_once(cx: &Context) {
    assert_eq!(cx.ring(4).run(sqe::timeout(&ms(1), 0, IORING_TIMEOUT_ABS)), -ETIME);
}

#[case]
fn two_clocks_are_einval(cx: &Context) {
    assert_eq!(cx.ring(4).run(sqe::timeout(&ms(1), 0, IORING_TIMEOUT_CLOCK_MASK)), -EINVAL);
}

#[case]
fn unknown_flag_is_einval(cx: &Context) {
    assert_eq!(cx.ring(4).run(sqe::timeout(&ms(1), 0, 1 << 20)), -EINVAL);
    assert_eq!(cx.ring(4).run(sqe::timeout(&ms(1), 0, IORING_TIMEOUT_UPDATE)), -EINVAL);
}

#[case]
fn negative_nanoseconds_are_einval(cx: &Context) {
    let mut ring = cx.ring(4);
    let ts = Timespec { tv_sec: 0, tv_nsec: -1 };
    assert_eq!(ring.run(sqe::timeout(&ts, 0, 0)), -EINVAL);
}

#[case]
fn negative_seconds_are_einval(cx: &Context) {
    assert_eq!(cx.ring(4).run(sqe::timeout(&Timespec { tv_sec: -1, tv_nsec: 0 }, 0, 0)), -EINVAL);
}

#[case]
fn bad_timespec_address_is_efault(cx: &Context) {
    let mut ring = cx.ring(4);
    assert_eq!(ring.run(prep(Opcode::Timeout, -1, bad_address(), 1, 0)), -EFAULT);
    assert_eq!(ring.run(prep(Opcode::Timeout, -1, 0, 1, 0)), -EFAULT);
}

#[case]
fn length_must_be_one(cx: &Context) {
    let (mut ring, ts) = (cx.ring(4), ms(1));
    for len in [0, 2] {
        assert_eq!(ring.run(Sqe { len, ..sqe::timeout(&ts, 0, 0) }), -EINVAL);
    }
}

#[case]
fn fd_is_not_looked_at(cx: &Context) {
    let ts = ms(1);
    assert_eq!(cx.ring(4).run(Sqe { fd: 9999, ..sqe::timeout(&ts, 0, 0) }), -ETIME);
}

#[case]
fn buf_index_is_einval(cx: &Context) {
    assert_eq!(cx.ring(4).run(sqe::timeout(&ms(1), 0, 0).buffer(1)), -EINVAL);
}

#[case]
fn count_completes_with_zero(cx: &Context) {
    let (mut ring, long) = (cx.ring(4), ms(10_000));
    ring.go(sqe::timeout(&long, 1, 0).data(1));
    ring.expect_quiet();
    ring.go(sqe::nop().data(2));
    assert_eq!(ring.wait_sorted(2), [(1, 0), (2, 0)]);
}

#[case]
fn count_of_several(cx: &Context) {
    let (mut ring, long) = (cx.ring(8), ms(10_000));
    ring.go(sqe::timeout(&long, 3, 0).data(1));
    ring.go_all(&[sqe::nop().data(2), sqe::nop().data(3)]);
    assert_eq!(ring.wait_ordered(2), [(2, 0), (3, 0)]);
    ring.expect_quiet();
    ring.go(sqe::nop().data(4));
    assert_eq!(ring.wait_sorted(2), [(1, 0), (4, 0)]);
}

#[case]
fn count_that_is_not_reached_is_etime(cx: &Context) {
    let (mut ring, ts) = (cx.ring(4), ms(20));
    ring.go(sqe::timeout(&ts, 2, 0).data(1));
    ring.go(sqe::nop().data(2));
    assert_eq!(ring.wait_ordered(2), [(2, 0), (1, -ETIME)]);
}

#[case]
fn shorter_timeouts_fire_first(cx: &Context) {
    let (mut ring, times) = (cx.ring(4), [ms(60), ms(5), ms(30)]);
    for (n, ts) in times.iter().enumerate() {
        ring.push(sqe::timeout(ts, 0, 0).data(n as u64));
    }
    assert_eq!(ring.submit(), 3);
    assert_eq!(ring.wait_ordered(3), [(1, -ETIME), (2, -ETIME), (0, -ETIME)]);
}

#[case(since = "5.5")]
fn remove_cancels_the_timeout(cx: &Context) {
    let (mut ring, long) = (cx.ring(4), ms(10_000));
    ring.go(sqe::timeout(&long, 0, 0).data(1));
    ring.go(sqe::timeout_remove(1).data(2));
    assert_eq!(ring.wait_sorted(2), [(1, -ECANCELED), (2, 0)]);
}

#[case]
fn remove_of_nothing_is_enoent(cx: &Context) {
    assert_eq!(cx.ring(4).run(sqe::timeout_remove(1)), -ENOENT);
}

#[case]
fn remove_of_a_fired_timeout_is_enoent(cx: &Context) {
    let (mut ring, ts) = (cx.ring(4), ms(1));
    assert_eq!(ring.run(sqe::timeout(&ts, 0, 0).data(1)), -ETIME);
    assert_eq!(ring.run(sqe::timeout_remove(1)), -ENOENT);
}

#[case]
fn remove_with_flags_is_einval(cx: &Context) {
    assert_eq!(cx.ring(4).run(sqe::timeout_remove(1).op_flags(IORING_TIMEOUT_ABS)), -EINVAL);
    assert_eq!(cx.ring(4).run(Sqe { len: 1, ..sqe::timeout_remove(1) }), -EINVAL);
}

#[case(since = "5.5")]
fn remove_takes_the_first_of_that_name(cx: &Context) {
    let (mut ring, long) = (cx.ring(4), ms(10_000));
    ring.go_all(&[sqe::timeout(&long, 0, 0).data(1), sqe::timeout(&long, 0, 0).data(1)]);
    ring.go(sqe::timeout_remove(1).data(2));
    assert_eq!(ring.wait_sorted(2), [(1, -ECANCELED), (2, 0)]);
    ring.expect_quiet();
}

#[case(since = "5.15")]
fn update_of_a_linked_one_alone_is_a_removal(cx: &Context) {
    let (mut ring, long, soon) = (cx.ring(4), ms(10_000), ms(5));
    let with_flags = |flags| sqe::timeout_update(1, &soon, 0).op_flags(flags).data(2);
    ring.go(sqe::timeout(&long, 0, 0).data(1));
    ring.go(with_flags(IORING_LINK_TIMEOUT_UPDATE));
    assert_eq!(ring.wait_sorted(2), [(1, -ECANCELED), (2, 0)]);
    // Its time is read all the same.
    assert_eq!(ring.run(Sqe { off: 8, ..with_flags(IORING_LINK_TIMEOUT_UPDATE) }), -EFAULT);
    let (reader, _writer) = pipe();
    let mut byte = [0; 1];
    let read = sqe::read(fd(&reader), &mut byte, 0).with(IOSQE_IO_LINK).data(3);
    ring.go_all(&[read, sqe::link_timeout(&long).data(1)]);
    assert_eq!(ring.run(with_flags(IORING_LINK_TIMEOUT_UPDATE)), -ENOENT);
}

#[case(since = "5.11")]
fn update_makes_it_sooner(cx: &Context) {
    let (mut ring, long, soon) = (cx.ring(4), ms(10_000), ms(5));
    ring.go(sqe::timeout(&long, 0, 0).data(1));
    assert_eq!(ring.run(sqe::timeout_update(1, &soon, 0).data(2)), 0);
    assert_eq!(ring.wait_ordered(1), [(1, -ETIME)]);
}

#[case(since = "5.11")]
fn update_makes_it_later(cx: &Context) {
    let (mut ring, soon, long) = (cx.ring(4), ms(300), ms(10_000));
    ring.go(sqe::timeout(&soon, 0, 0).data(1));
    assert_eq!(ring.run(sqe::timeout_update(1, &long, 0).data(2)), 0);
    assert_eq!(ring.wait_for(Duration::from_millis(350)), None);
}

#[case(since = "5.11")]
fn update_to_an_absolute_time(cx: &Context) {
    let (mut ring, long) = (cx.ring(4), ms(10_000));
    ring.go(sqe::timeout(&long, 0, 0).data(1));
    let soon = later(libc::CLOCK_MONOTONIC, 5);
    assert_eq!(ring.run(sqe::timeout_update(1, &soon, IORING_TIMEOUT_ABS).data(2)), 0);
    assert_eq!(ring.wait_ordered(1), [(1, -ETIME)]);
}

#[case]
fn update_of_nothing_is_enoent(cx: &Context) {
    assert_eq!(cx.ring(4).run(sqe::timeout_update(1, &ms(5), 0)), -ENOENT);
}

#[case]
fn update_with_a_bad_time_is_einval(cx: &Context) {
    let bad = Timespec { tv_sec: -1, tv_nsec: 0 };
    assert_eq!(cx.ring(4).run(sqe::timeout_update(1, &bad, 0)), -EINVAL);
    let unreadable = Sqe { off: bad_address(), ..sqe::timeout_update(1, &bad, 0) };
    assert_eq!(cx.ring(4).run(unreadable), -EFAULT);
}

#[case]
fn update_with_unknown_flags_is_einval(cx: &Context) {
    assert_eq!(cx.ring(4).run(sqe::timeout_update(1, &ms(5), 1 << 20)), -EINVAL);
    assert_eq!(cx.ring(4).run(sqe::timeout_update(1, &ms(5), IORING_TIMEOUT_CLOCK_MASK)), -EINVAL);
}

#[case(since = "5.15")]
fn update_of_a_link_timeout_needs_its_flag(cx: &Context) {
    let ((reader, _writer), mut ring, mut buffer) = (pipe(), cx.ring(4), [0; 1]);
    let (long, soon) = (ms(10_000), ms(5));
    ring.go_all(&[
        sqe::read(fd(&reader), &mut buffer, 0).with(IOSQE_IO_LINK).data(1),
        sqe::link_timeout(&long).data(2),
    ]);
    assert_eq!(ring.run(sqe::timeout_update(2, &soon, 0).data(3)), -ENOENT);
    assert_eq!(ring.run(sqe::timeout_update(2, &soon, IORING_LINK_TIMEOUT_UPDATE).data(4)), 0);
    assert_eq!(ring.wait_sorted(2), [(1, -ECANCELED), (2, -ETIME)]);
}

#[case(since = "5.16")]
fn etime_success_is_still_etime(cx: &Context) {
    let (mut ring, ts) = (cx.ring(4), ms(1));
    ring.go_all(&[
        sqe::timeout(&ts, 0, IORING_TIMEOUT_ETIME_SUCCESS).with(IOSQE_IO_LINK).data(1),
        sqe::nop().data(2),
    ]);
    assert_eq!(ring.wait_ordered(2), [(1, -ETIME), (2, 0)]);
    ring.go_all(&[sqe::timeout(&ts, 0, 0).with(IOSQE_IO_LINK).data(1), sqe::nop().data(2)]);
    assert_eq!(ring.wait_ordered(2), [(1, -ETIME), (2, -ECANCELED)]);
}

#[case(since = "6.4")]
fn multishot_fires_again_and_again(cx: &Context) {
    let (mut ring, ts) = (cx.ring(4), ms(5));
    ring.go(sqe::timeout(&ts, 0, IORING_TIMEOUT_MULTISHOT).data(1));
    for _ in 0..4 {
        let cqe = ring.wait();
        assert_eq!((cqe.user_data, cqe.res, cqe.flags), (1, -ETIME, IORING_CQE_F_MORE));
    }
}

#[case(since = "6.4")]
fn multishot_count_limits_the_shots(cx: &Context) {
    let (mut ring, ts) = (cx.ring(4), ms(5));
    ring.go(sqe::timeout(&ts, 3, IORING_TIMEOUT_MULTISHOT).data(1));
    let flags: Vec<u32> = ring.wait_all(3).iter().map(|cqe| cqe.flags).collect();
    assert_eq!(flags, [IORING_CQE_F_MORE, IORING_CQE_F_MORE, 0]);
    ring.expect_quiet();
}

#[case(since = "6.4")]
fn multishot_ends_at_removal(cx: &Context) {
    let (mut ring, ts) = (cx.ring(4), ms(200));
    ring.go(sqe::timeout(&ts, 0, IORING_TIMEOUT_MULTISHOT).data(1));
    assert_eq!(ring.wait().flags, IORING_CQE_F_MORE);
    ring.go(sqe::timeout_remove(1).data(2));
    assert_eq!(ring.wait_sorted(2), [(1, -ECANCELED), (2, 0)]);
}

#[case]
fn multishot_with_absolute_time_is_einval(cx: &Context) {
    let flags = IORING_TIMEOUT_MULTISHOT | IORING_TIMEOUT_ABS;
    assert_eq!(cx.ring(4).run(sqe::timeout(&ms(1), 0, flags)), -EINVAL);
}

#[case]
fn firing_timeout_wakes_a_waiter_for_more(cx: &Context) {
    let (mut ring, ts, start) = (cx.ring(4), ms(10), Instant::now());
    ring.push(sqe::timeout(&ts, 0, 0));
    assert_eq!(ring.submit_and_wait(3), 1);
    assert_eq!(ring.cq_ready(), 1);
    assert!(start.elapsed() < crate::ring::PATIENCE);
}

#[case]
fn timespec_may_be_reused_after_submit(cx: &Context) {
    let mut ring = cx.ring(4);
    let mut ts = ms(5);
    ring.go(sqe::timeout(&ts, 0, 0));
    let at = &raw mut ts;
    // SAFETY: `ts` is a local that nothing else accesses; the kernel has copied it.
    unsafe { at.write_volatile(Timespec { tv_sec: -1, tv_nsec: -1 }) };
    assert_eq!(ring.wait().res, -ETIME);
}

#[case(since = "5.6")]
fn async_timeout_fires(cx: &Context) {
    let ts = ms(5);
    assert_eq!(cx.ring(4).run(sqe::timeout(&ts, 0, 0).with(IOSQE_ASYNC)), -ETIME);
}

#[case(since = "5.5")]
fn remove_may_come_in_the_same_submission(cx: &Context) {
    let (mut ring, long) = (cx.ring(4), ms(10_000));
    ring.go_all(&[sqe::timeout(&long, 0, 0).data(1), sqe::timeout_remove(1).data(2)]);
    assert_eq!(ring.wait_sorted(2), [(1, -ECANCELED), (2, 0)]);
}

#[case]
fn timeout_waits_for_completions_after_it_only(cx: &Context) {
    let (mut ring, ts) = (cx.ring(8), ms(30));
    ring.go_all(&[sqe::nop().data(1), sqe::nop().data(2)]);
    ring.wait_all(2);
    ring.go(sqe::timeout(&ts, 1, 0).data(3));
    assert_eq!(ring.wait_ordered(1), [(3, -ETIME)]);
}

#[case]
fn padding_is_einval(cx: &Context) {
    let (mut ring, ts) = (cx.ring(4), ms(1));
    assert_eq!(ring.run(Sqe { pad2: 1, ..sqe::timeout(&ts, 0, 0) }), -EINVAL);
    ring.go_all(&[sqe::nop().with(IOSQE_IO_LINK).data(1), Sqe { pad2: 1, ..sqe::link_timeout(&ts) }.data(2)]);
    assert_eq!(ring.wait_sorted(2), [(1, -ECANCELED), (2, -EINVAL)]);
}

#[case]
fn remove_with_unused_fields_is_einval(cx: &Context) {
    let mut ring = cx.ring(4);
    assert_eq!(ring.run(Sqe { addr3: 1, ..sqe::timeout_remove(9) }), -EINVAL);
    assert_eq!(ring.run(Sqe { pad2: 1, ..sqe::timeout_remove(9) }), -EINVAL);
}

/// The updated timeout repeats forever.
#[case(since = "6.4", until = "7.3")]
fn update_of_a_multishot_forgets_its_count(cx: &Context) {
    let (mut ring, long, soon) = (cx.ring(8), ms(10_000), ms(5));
    ring.go(sqe::timeout(&long, 2, IORING_TIMEOUT_MULTISHOT).data(1));
    assert_eq!(ring.run(sqe::timeout_update(1, &soon, 0).data(2)), 0);
    for shot in ring.wait_all(5) {
        assert_eq!((shot.user_data, shot.res, shot.flags), (1, -ETIME, IORING_CQE_F_MORE));
    }
}

/// A TIMEOUT, or LINK_TIMEOUT, of `time_ns` nanoseconds, which the SQE holds itself.
fn immediate(opcode: Opcode, time_ns: u64, flags: u32) -> Sqe {
    prep(opcode, -1, time_ns, 1, 0).op_flags(IORING_TIMEOUT_IMMEDIATE_ARG | flags)
}

#[case(since = "7.1")]
fn time_in_the_sqe(cx: &Context) {
    let (mut ring, start) = (cx.ring(4), Instant::now());
    assert_eq!(ring.run(immediate(Opcode::Timeout, 25_000_000, 0)), -ETIME);
    assert!(start.elapsed() >= Duration::from_millis(25));
    assert_eq!(ring.run(immediate(Opcode::Timeout, 0, 0)), -ETIME);
    assert_eq!(ring.run(immediate(Opcode::Timeout, 1000, IORING_TIMEOUT_ABS)), -ETIME);
    let now = sys::clock(libc::CLOCK_REALTIME).tv_sec as u64;
    let realtime = IORING_TIMEOUT_ABS | IORING_TIMEOUT_REALTIME;
    assert_eq!(ring.run(immediate(Opcode::Timeout, (now - 1) * 1_000_000_000, realtime)), -ETIME);
    assert_eq!(ring.run(immediate(Opcode::Timeout, u64::MAX, 0)), -EINVAL);
    assert_eq!(ring.run(immediate(Opcode::Timeout, 1 << 63, 0)), -EINVAL);
    assert_eq!(ring.run(Sqe { len: 0, ..immediate(Opcode::Timeout, 1000, 0) }), -EINVAL);
    ring.go(Sqe { off: 2, ..immediate(Opcode::Timeout, 1000, IORING_TIMEOUT_MULTISHOT) });
    assert_eq!([ring.wait(), ring.wait()].map(|cqe| (cqe.res, cqe.flags)), [(-ETIME, 2), (-ETIME, 0)]);
}

#[case(since = "7.1")]
fn time_in_the_sqe_of_a_link(cx: &Context) {
    let ((reader, _writer), mut ring, mut room) = (pipe(), cx.ring(4), [0; 4]);
    let read = sqe::read(fd(&reader), &mut room, 0).with(IOSQE_IO_LINK).data(1);
    ring.go_all(&[read, immediate(Opcode::LinkTimeout, 5_000_000, 0).data(2)]);
    assert_eq!(ring.wait_sorted(2), [(1, -ECANCELED), (2, -ETIME)]);
}

#[case(since = "7.1")]
fn time_in_the_sqe_of_an_update(cx: &Context) {
    let (mut ring, hour) = (cx.ring(4), ms(3_600_000));
    let update = |flags| {
        let flags = flags | IORING_TIMEOUT_UPDATE | IORING_TIMEOUT_IMMEDIATE_ARG;
        prep(Opcode::TimeoutRemove, -1, 1, 0, 5_000_000).op_flags(flags).data(2)
    };
    for flags in [0, IORING_TIMEOUT_ABS] {
        ring.go_all(&[sqe::timeout(&hour, 0, 0).data(1), update(flags)]);
        assert_eq!(ring.wait_ordered(2), [(2, 0), (1, -ETIME)]);
    }
    let bare = prep(Opcode::TimeoutRemove, -1, 1, 0, 0).op_flags(IORING_TIMEOUT_IMMEDIATE_ARG);
    assert_eq!(ring.run(bare), -EINVAL);
}

/// A refused field fails with EINVAL even if the timespec is at an address that cannot be read.
#[case(since = "5.15")]
fn a_refused_field_comes_before_a_bad_time(cx: &Context) {
    let (mut ring, bad) = (cx.ring(4), Timespec { tv_sec: 0, tv_nsec: -1 });
    let both_clocks = IORING_TIMEOUT_BOOTTIME | IORING_TIMEOUT_REALTIME;
    for opcode in [Opcode::Timeout, Opcode::LinkTimeout] {
        let good = prep(opcode, -1, address(&bad), 1, 0);
        let unreadable = Sqe { addr: bad_address(), ..good };
        let refused = [
            (good, -EINVAL),
            (unreadable, -EFAULT),
            (Sqe { len: 2, ..unreadable }, -EINVAL),
            (Sqe { ioprio: 1, ..unreadable }, -EINVAL),
            (unreadable.buffer(3), -EINVAL),
            (unreadable.op_flags(1 << 30), -EINVAL),
            (unreadable.op_flags(both_clocks), -EINVAL),
        ];
        for (sqe, error) in refused {
            if opcode == Opcode::Timeout {
                assert_eq!(ring.run(sqe), error);
                continue;
            }
            ring.go_all(&[sqe::nop().with(IOSQE_IO_LINK).data(1), sqe.data(2)]);
            assert_eq!(ring.wait_sorted(2), [(1, -ECANCELED), (2, error)]);
        }
    }
}

/// A TIMEOUT that fires without a CQE ends waits all the same.
#[case(undisturbed, since = "5.17")]
fn expiry_without_a_cqe_ends_the_wait(cx: &Context) {
    let (mut ring, short, long) = (cx.ring(8), ms(20), ms(10_000));
    let quiet = |ts| sqe::timeout(ts, 0, IORING_TIMEOUT_ETIME_SUCCESS).with(IOSQE_CQE_SKIP_SUCCESS);
    for chained in [0, IOSQE_IO_LINK, IOSQE_IO_HARDLINK] {
        ring.push(quiet(&short).with(chained));
        if chained != 0 {
            ring.push(sqe::nop().with(IOSQE_CQE_SKIP_SUCCESS));
        }
        let (count, start) = (ring.publish(), Instant::now());
        assert_eq!(ring.enter(count, 3, IORING_ENTER_GETEVENTS, 0, 0), count as isize);
        assert!(start.elapsed() >= Duration::from_millis(20) && ring.cq_ready() == 0);
    }
    ring.push(quiet(&short));
    ring.push(sqe::timeout(&long, 0, 0).data(2));
    assert_eq!((ring.submit_and_wait(2), ring.cq_ready()), (2, 0));
    assert_eq!(ring.run(sqe::timeout_remove(2).data(3)), 0);
}

#[case(own_flags, undisturbed, since = "5.17")]
fn expiry_without_a_cqe_ends_the_wait_of_another_thread(cx: &Context) {
    let (mut ring, short) = (cx.ring_with(8, 0), ms(30));
    let (number, door) = (ring.fd, ring.door);
    let waiter = asleep_in(move || door.enter(number, 0, 3, IORING_ENTER_GETEVENTS, 0, 0));
    ring.go(sqe::timeout(&short, 0, IORING_TIMEOUT_ETIME_SUCCESS).with(IOSQE_CQE_SKIP_SUCCESS));
    assert_eq!((waiter.join().expect("the waiter"), ring.cq_ready()), (0, 0));
}

/// Requests without a CQE do not count.
#[case(since = "5.17")]
fn count_leaves_out_what_has_no_cqe(cx: &Context) {
    let (mut ring, long) = (cx.ring(8), ms(10_000));
    let quiet = sqe::nop().with(IOSQE_CQE_SKIP_SUCCESS);
    ring.go_all(&[quiet, sqe::timeout(&long, 2, 0).data(1), quiet, quiet]);
    ring.go_all(&[quiet, sqe::nop().data(2), quiet]);
    assert_eq!(ring.wait_ordered(1), [(2, 0)]);
    ring.expect_quiet();
    ring.go(sqe::nop().data(3));
    assert_eq!(ring.wait_ordered(2), [(3, 0), (1, 0)]);
}
