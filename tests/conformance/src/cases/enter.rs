//! io_uring_enter(2): its descriptors and flags, submissions, the length of a wait, and the ends of a wait.

use super::prelude::*;
use std::time::{Duration, Instant};

topic!(since: "5.1", source: "io_uring_enter(2)");

const EXT: u32 = IORING_ENTER_GETEVENTS | IORING_ENTER_EXT_ARG;

fn enter_with(ring: &Ring, min_complete: u32, arg: GeteventsArg) -> i32 {
    ring.enter(0, min_complete, EXT, &raw const arg as usize, size_of::<GeteventsArg>()) as i32
}

fn wait_ms(ring: &Ring, min_complete: u32, milliseconds: i64) -> i32 {
    let ts = ms(milliseconds);
    enter_with(ring, min_complete, GeteventsArg { ts: address(&ts), ..GeteventsArg::default() })
}

#[case]
fn returns_how_many_were_submitted(cx: &Context) {
    let mut ring = cx.ring(8);
    for count in [1, 3, 8] {
        (0..count).for_each(|_| ring.push(sqe::nop()));
        assert_eq!(ring.submit(), count);
        ring.wait_all(count as usize);
    }
}

#[case]
fn submits_no_more_than_there_are(cx: &Context) {
    let mut ring = cx.ring(8);
    ring.push(sqe::nop());
    ring.push(sqe::nop());
    ring.publish();
    assert_eq!(ring.enter(100, 0, 0, 0, 0), 2);
    ring.wait_all(2);
    ring.expect_quiet();
}

#[case]
fn submits_no_more_than_asked(cx: &Context) {
    let mut ring = cx.ring(8);
    (0..4).for_each(|n| ring.push(sqe::nop().data(n)));
    ring.publish();
    assert_eq!(ring.enter(1, 0, 0, 0, 0), 1);
    assert_eq!(ring.sq_head(), 1);
    assert_eq!(ring.wait_ordered(1), [(0, 0)]);
    assert_eq!(ring.enter(3, 0, 0, 0, 0), 3);
    assert_eq!(ring.wait_ordered(3), [(1, 0), (2, 0), (3, 0)]);
}

#[case]
fn nothing_to_submit_is_zero(cx: &Context) {
    let ring = cx.ring(8);
    assert_eq!(ring.enter(0, 0, 0, 0, 0), 0);
    assert_eq!(ring.enter(5, 0, 0, 0, 0), 0);
    assert_eq!(ring.enter(0, 0, IORING_ENTER_GETEVENTS, 0, 0), 0);
}

#[case]
fn wait_already_satisfied_returns_at_once(cx: &Context) {
    let mut ring = cx.ring(8);
    ring.go(sqe::nop());
    assert_eq!(ring.enter(0, 1, IORING_ENTER_GETEVENTS, 0, 0), 0);
    assert_eq!(ring.enter(0, 1, IORING_ENTER_GETEVENTS, 0, 0), 0, "the CQE is still there");
    assert_eq!(ring.cq_ready(), 1);
}

#[case(since = "5.4")]
fn submit_and_wait_in_one_call(cx: &Context) {
    let mut ring = cx.ring(8);
    let soon = ms(10);
    ring.push(sqe::timeout(&soon, 0, 0).data(1));
    ring.push(sqe::nop().data(2));
    assert_eq!(ring.submit_and_wait(2), 2);
    assert_eq!(ring.cq_ready(), 2);
    assert_eq!(ring.wait_ordered(2), [(2, 0), (1, -ETIME)]);
}

#[case(since = "5.11")]
fn timeout_ends_the_wait_with_etime(cx: &Context) {
    let ring = cx.ring(8);
    let start = Instant::now();
    assert_eq!(wait_ms(&ring, 1, 20), -ETIME);
    assert!(start.elapsed() >= Duration::from_millis(20));
}

#[case(since = "5.11")]
fn timeout_is_not_reported_when_a_cqe_is_there(cx: &Context) {
    let mut ring = cx.ring(8);
    ring.go(sqe::nop());
    assert_eq!(wait_ms(&ring, 1, 20), 0);
}

#[case(since = "5.11")]
fn submitted_count_wins_over_etime(cx: &Context) {
    let mut ring = cx.ring(8);
    ring.push(sqe::nop());
    let (count, ts) = (ring.publish(), ms(20));
    let arg = GeteventsArg { ts: address(&ts), ..GeteventsArg::default() };
    assert_eq!(ring.enter(count, 2, EXT, &raw const arg as usize, size_of::<GeteventsArg>()), 1);
}

#[case(since = "5.11")]
fn zero_timeout_only_looks(cx: &Context) {
    let ring = cx.ring(8);
    assert_eq!(wait_ms(&ring, 1, 0), -ETIME);
}

#[case(since = "6.12")]
fn abs_timer_takes_an_absolute_time(cx: &Context) {
    let ring = cx.ring(8);
    let mut until = clock(libc::CLOCK_MONOTONIC);
    until.tv_nsec += 20_000_000;
    until.tv_sec += until.tv_nsec / 1_000_000_000;
    until.tv_nsec %= 1_000_000_000;
    let arg = GeteventsArg { ts: address(&until), ..GeteventsArg::default() };
    let (start, flags) = (Instant::now(), EXT | IORING_ENTER_ABS_TIMER);
    let answer = ring.enter(0, 1, flags, &raw const arg as usize, size_of::<GeteventsArg>());
    assert_eq!(answer as i32, -ETIME);
    assert!(start.elapsed() < crate::ring::PATIENCE);
    let now = clock(libc::CLOCK_MONOTONIC);
    assert!((now.tv_sec, now.tv_nsec) >= (until.tv_sec, until.tv_nsec));
}

#[case(since = "5.11")]
fn ext_arg_without_a_timeout_waits(cx: &Context) {
    let mut ring = cx.ring(8);
    let soon = ms(10);
    ring.go(sqe::timeout(&soon, 0, 0));
    assert_eq!(enter_with(&ring, 1, GeteventsArg::default()), 0);
    assert_eq!(ring.cq_ready(), 1);
}

#[case]
fn ext_arg_size_must_be_exact(cx: &Context) {
    let ring = cx.ring(8);
    let arg = GeteventsArg::default();
    for size in [0, 8, 16, 23, 25, 32] {
        assert_eq!(ring.enter(0, 0, EXT, &raw const arg as usize, size) as i32, -EINVAL, "size {size}");
    }
}

#[case]
fn ext_arg_bad_address_is_efault(cx: &Context) {
    let ring = cx.ring(8);
    assert_eq!(ring.enter(0, 1, EXT, bad_address() as usize, size_of::<GeteventsArg>()) as i32, -EFAULT);
}

#[case]
fn ext_arg_bad_timespec_address_is_efault(cx: &Context) {
    let ring = cx.ring(8);
    assert_eq!(enter_with(&ring, 1, GeteventsArg { ts: bad_address(), ..GeteventsArg::default() }), -EFAULT);
}

#[case]
fn signal_ends_the_wait_with_eintr(cx: &Context) {
    count_signal(libc::SIGUSR1);
    let ring = cx.ring(8);
    let sender = signal_once_asleep(libc::SIGUSR1);
    assert_eq!(ring.enter(0, 1, IORING_ENTER_GETEVENTS, 0, 0) as i32, -EINTR);
    assert_eq!(SIGNALS.load(std::sync::atomic::Ordering::SeqCst), 1);
    sender.join().expect("the sender");
}

#[case]
fn sigmask_lets_a_signal_in(cx: &Context) {
    count_signal(libc::SIGUSR1);
    block_signal(libc::SIGUSR1);
    let ring = cx.ring(8);
    raise(libc::SIGUSR1);
    let none = 0u64;
    let arg = GeteventsArg { sigmask: address(&none), sigmask_sz: 8, ..GeteventsArg::default() };
    assert_eq!(enter_with(&ring, 1, arg), -EINTR);
    assert_eq!(SIGNALS.load(std::sync::atomic::Ordering::SeqCst), 1);
}

#[case(since = "5.11")]
fn sigmask_keeps_a_signal_out(cx: &Context) {
    count_signal(libc::SIGUSR1);
    let ring = cx.ring(8);
    let (set, ts) = (kernel_set(libc::SIGUSR1), ms(60));
    let arg = GeteventsArg { sigmask: address(&set), sigmask_sz: 8, ts: address(&ts), ..GeteventsArg::default() };
    let sender = signal_once_asleep(libc::SIGUSR1);
    assert_eq!(enter_with(&ring, 1, arg), -ETIME);
    sender.join().expect("the sender");
    assert_eq!(SIGNALS.load(std::sync::atomic::Ordering::SeqCst), 1, "it came after the wait");
}

#[case]
fn negative_numbers_of_completions_are_there_at_once(cx: &Context) {
    let ring = cx.ring(8);
    for wanted in [u32::MAX, 0xffff_fff0, 0xffff_ff00, 0xf000_0000, 0x8000_0001] {
        assert_eq!(ring.enter(0, wanted, IORING_ENTER_GETEVENTS, 0, 0), 0, "{wanted:#x}");
    }
}

/// The lowest number has no positive counterpart, and CQEs that are there bring the next ones to it.
#[case(since = "5.11")]
fn lowest_numbers_of_completions_are_waited_for(cx: &Context) {
    let mut ring = cx.ring(8);
    let answers = |ring: &Ring| [0x7fff_ffff, 0x8000_0000, 0x8000_0001, 0x8000_0002].map(|n| wait_ms(ring, n, 20));
    assert_eq!(answers(&ring), [-ETIME, -ETIME, 0, 0]);
    assert_eq!(wait_ms(&ring, 0xffff_ffef, 20), 0);
    ring.push(sqe::nop());
    assert_eq!(ring.submit(), 1);
    let begun = Instant::now();
    // A wait that ends with CQEs in the CQ is no error.
    assert_eq!(answers(&ring)[..3], [0; 3]);
    assert!(begun.elapsed() >= Duration::from_millis(60), "each of them has waited");
    assert_eq!(wait_ms(&ring, 0x8000_0002, 600_000), 0);
}

#[case]
fn plain_sigmask_argument(cx: &Context) {
    count_signal(libc::SIGUSR1);
    block_signal(libc::SIGUSR1);
    let ring = cx.ring(8);
    raise(libc::SIGUSR1);
    let none = 0u64;
    assert_eq!(ring.enter(0, 1, IORING_ENTER_GETEVENTS, address(&none) as usize, 8) as i32, -EINTR);
    assert_eq!(SIGNALS.load(std::sync::atomic::Ordering::SeqCst), 1);
}

#[case]
fn sigmask_size_must_be_eight(cx: &Context) {
    let ring = cx.ring(8);
    let none = 0u64;
    assert_eq!(ring.enter(0, 1, IORING_ENTER_GETEVENTS, address(&none) as usize, 4) as i32, -EINVAL);
    let arg = GeteventsArg { sigmask: address(&none), sigmask_sz: 16, ..GeteventsArg::default() };
    assert_eq!(enter_with(&ring, 1, arg), -EINVAL);
}

#[case(since = "5.11")]
fn sigmask_is_restored_after_the_wait(cx: &Context) {
    count_signal(libc::SIGUSR1);
    let ring = cx.ring(8);
    let (set, ts) = (kernel_set(libc::SIGUSR1), ms(5));
    let arg = GeteventsArg { sigmask: address(&set), sigmask_sz: 8, ts: address(&ts), ..GeteventsArg::default() };
    assert_eq!(enter_with(&ring, 1, arg), -ETIME);
    raise(libc::SIGUSR1);
    assert_eq!(SIGNALS.load(std::sync::atomic::Ordering::SeqCst), 1);
}

#[case]
fn head_beyond_the_tail_keeps_nobody_waiting(cx: &Context) {
    let mut ring = cx.ring(4);
    let head = ring.params.cq_off.head;
    ring.set_word_at(head, 3);
    assert_eq!([0, 1, 4].map(|count| ring.enter(0, count, IORING_ENTER_GETEVENTS, 0, 0)), [0; 3]);
    ring.set_word_at(head, 0);
    assert_eq!(ring.run(sqe::nop()), 0);
}

#[case]
fn waits_for_as_many_as_asked(cx: &Context) {
    let mut ring = cx.ring(8);
    let (reader, mut writer) = pipe();
    let mut bytes = [[0; 1]; 3];
    for (n, byte) in bytes.iter_mut().enumerate() {
        ring.push(sqe::read(fd(&reader), byte, 0).data(n as u64));
    }
    let tid = gettid();
    let feeder = std::thread::spawn(move || {
        for byte in [b"a", b"b", b"c"] {
            wait_thread_asleep(tid);
            writer.write_all(byte).expect("write");
        }
        writer
    });
    assert_eq!(ring.submit_and_wait(3), 3);
    assert_eq!(ring.cq_ready(), 3);
    feeder.join().expect("the feeder");
}

#[case(since = "5.11")]
fn min_wait_returns_what_came(cx: &Context) {
    let mut ring = cx.ring(8);
    let (soon, long) = (ms(5), ms(20_000));
    ring.go(sqe::timeout(&soon, 0, 0));
    let arg = GeteventsArg { ts: address(&long), min_wait_usec: 30_000, ..GeteventsArg::default() };
    let start = Instant::now();
    assert_eq!(enter_with(&ring, 2, arg), 0, "one of the two came within the minimum wait");
    assert!(start.elapsed() < crate::ring::PATIENCE);
    assert_eq!(ring.cq_ready(), 1);
}

/// IORING_ENTER_NO_IOWAIT changes only how the wait is accounted for.
#[case(since = "6.15")]
fn no_iowait_waits_all_the_same(cx: &Context) {
    let (mut ring, soon) = (cx.ring(4), ms(10));
    ring.push(sqe::timeout(&soon, 0, 0).data(1));
    let (count, flags) = (ring.publish(), IORING_ENTER_GETEVENTS | IORING_ENTER_NO_IOWAIT);
    assert_eq!(ring.enter(count, 1, flags, 0, 0), 1);
    assert_eq!(ring.peek().map(|cqe| (cqe.user_data, cqe.res)), Some((1, -ETIME)));
}

#[case(own_flags)]
fn bad_descriptor_is_ebadf(cx: &Context) {
    for number in [-1, 9999] {
        assert_eq!(cx.door.enter(number, 0, 0, 0, 0, 0) as i32, -EBADF);
    }
}

#[case(own_flags)]
fn another_file_is_eopnotsupp(cx: &Context) {
    let (reader, _writer) = pipe();
    assert_eq!(cx.door.enter(fd(&reader), 0, 0, 0, 0, 0) as i32, -EOPNOTSUPP);
    assert_eq!(cx.door.enter(fd(&reader), 0, 0, 1 << 30, 0, 0) as i32, -EINVAL, "flags are looked at first");
}

#[case(own_flags)]
fn unknown_flag_is_einval(cx: &Context) {
    let ring = cx.ring_with(4, 0);
    assert_eq!(ring.enter(0, 0, 1 << 30, 0, 0) as i32, -EINVAL);
    assert_eq!(ring.enter(0, 0, 1 << 8, 0, 0) as i32, -EINVAL);
}

fn with_a_bad_one(cx: &Context, flags: u32) -> (isize, Ring) {
    let mut ring = cx.ring_with(8, flags);
    ring.push(sqe::nop().data(1));
    ring.push(Sqe { opcode: 255, ..Sqe::default() }.data(2));
    ring.push(sqe::nop().data(3));
    (ring.submit(), ring)
}

#[case(own_flags)]
fn bad_sqe_stops_the_submission(cx: &Context) {
    let (answer, mut ring) = with_a_bad_one(cx, 0);
    assert_eq!((answer, ring.sq_head()), (2, 2));
    assert_eq!(ring.wait_ordered(2), [(1, 0), (2, -EINVAL)]);
    assert_eq!(ring.enter(1, 0, 0, 0, 0), 1);
    assert_eq!(ring.wait_ordered(1), [(3, 0)]);
}

#[case(own_flags, since = "5.18")]
fn submit_all_goes_on_after_a_bad_sqe(cx: &Context) {
    let (answer, mut ring) = with_a_bad_one(cx, IORING_SETUP_SUBMIT_ALL);
    assert_eq!(answer, 3);
    assert_eq!(ring.wait_ordered(3), [(1, 0), (2, -EINVAL), (3, 0)]);
}

#[case(own_flags)]
fn index_out_of_range_is_dropped(cx: &Context) {
    let mut ring = cx.ring_with(4, 0);
    ring.push(sqe::nop().data(1));
    ring.push(sqe::nop().data(2));
    ring.push(sqe::nop().data(3));
    ring.set_sq_array(1, 4);
    let answer = ring.submit();
    assert_eq!((answer, ring.sq_dropped(), ring.sq_head()), (1, 1, 2));
    assert_eq!(ring.wait_ordered(1), [(1, 0)]);
    assert_eq!(ring.enter(1, 0, 0, 0, 0), 1);
    assert_eq!(ring.wait_ordered(1), [(3, 0)]);
}

#[case(own_flags)]
fn array_may_permute_the_entries(cx: &Context) {
    let mut ring = cx.ring_with(4, 0);
    (0..4).for_each(|n| ring.push(sqe::nop().data(n)));
    for (slot, index) in [2, 0, 0, 3].into_iter().enumerate() {
        ring.set_sq_array(slot as u32, index);
    }
    assert_eq!(ring.submit(), 4);
    assert_eq!(ring.wait_ordered(4), [(2, 0), (0, 0), (0, 0), (3, 0)]);
}

#[case(own_flags)]
fn sq_array_is_read_modulo_the_size(cx: &Context) {
    let mut ring = cx.ring_with(2, 0);
    for n in 0..5 {
        ring.go(sqe::nop().data(n));
        assert_eq!(ring.wait_ordered(1), [(n, 0)]);
    }
}

#[case(own_flags)]
fn registered_ring_without_registration_is_ebadf(cx: &Context) {
    let _ring = cx.ring_with(4, 0);
    assert_eq!(cx.door.enter(0, 0, 0, IORING_ENTER_REGISTERED_RING, 0, 0) as i32, -EBADF);
}

#[case(own_flags, since = "6.12")]
fn abs_timer_needs_ext_arg(cx: &Context) {
    let mut ring = cx.ring_with(4, 0);
    ring.go(sqe::nop());
    let answer = ring.enter(0, 1, IORING_ENTER_GETEVENTS | IORING_ENTER_ABS_TIMER, 0, 0);
    assert_eq!(answer, 0, "without an argument the flag means nothing");
}

#[case(own_flags)]
fn ext_arg_reg_without_region_is_an_error(cx: &Context) {
    let ring = cx.ring_with(4, 0);
    let answer = ring.enter(0, 1, EXT | IORING_ENTER_EXT_ARG_REG, 0, size_of::<GeteventsArg>());
    assert_eq!(answer as i32, -EINVAL);
}
