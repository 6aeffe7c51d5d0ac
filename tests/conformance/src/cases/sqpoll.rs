//! IORING_SETUP_SQPOLL: the polling thread submits, sleeps and is woken; results of io_uring_enter(2).

use super::prelude::*;
use crate::polled::*;
use crate::ring::QUIET;
use std::time::{Duration, Instant};

topic!(since: "5.11", source: "io_uring_setup(2), io_uring/sqpoll.c");

#[case(own_flags)]
fn submits_without_a_call(cx: &Context) {
    let mut ring = polled(cx, 4);
    go(&mut ring, &[sqe::nop().data(7)]); // wakes it; from here on it spins
    assert_eq!(seen(&mut ring).user_data, 7);
    for n in 0..100 {
        ring.push(sqe::nop().data(n));
        publish(&mut ring);
        assert_eq!(seen(&mut ring).user_data, n);
    }
    wait_consumed(&ring);
}

#[case(own_flags)]
fn fills_the_cq_without_a_call(cx: &Context) {
    let mut ring = polled(cx, 8);
    go(&mut ring, &[1, 2, 3].map(|n| sqe::nop().data(n)));
    poll_until("three CQEs", || ring.cq_ready() == 3);
    assert_eq!([1, 2, 3].map(|_| ring.peek().expect("a CQE").user_data), [1, 2, 3]);
}

#[case(own_flags)]
fn sleeps_after_the_idle_time_and_says_so(cx: &Context) {
    let mut ring = polled(cx, 4);
    go(&mut ring, &[sqe::nop()]);
    seen(&mut ring);
    wait_asleep(&ring);
    std::thread::sleep(Duration::from_millis(50)); // longer than the idle time: nothing else wakes it
    assert!(sleeps(&ring), "it went on sleeping");
}

/// Clock ticks that a thread of this process has run.
fn ticks_of(thread: i32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/self/task/{thread}/stat")).expect("the thread's stat");
    let fields: Vec<&str> = stat.rsplit_once(") ").expect("a name in parentheses").1.split(' ').collect();
    let number = |index: usize| fields[index].parse::<u64>().expect("a number");
    number(11) + number(12) // utime and stime, fields 14 and 15 of proc(5)
}

#[case(own_flags)]
fn sleeping_thread_uses_no_time(cx: &Context) {
    let ((reader, _writer), (mut ring, thread), mut buffer) = (pipe(), polled_by(cx), [0; 1]);
    go(&mut ring, &[sqe::read(fd(&reader), &mut buffer, 0)]);
    wait_consumed(&ring);
    wait_blocked(&ring);
    let before = ticks_of(thread);
    std::thread::sleep(Duration::from_millis(300)); // thirty ticks
    assert_eq!((ticks_of(thread), sleeps(&ring)), (before, true));
}

#[case(own_flags)]
fn sleeping_thread_does_not_look_at_the_tail(cx: &Context) {
    let mut ring = polled(cx, 4);
    wait_blocked(&ring);
    ring.push(sqe::nop());
    ring.publish();
    std::thread::sleep(QUIET);
    assert_eq!((ring.cq_ready(), ring.sq_head()), (0, 0));
}

#[case(own_flags)]
fn wakeup_flag_wakes_it(cx: &Context) {
    let mut ring = polled(cx, 4);
    wait_asleep(&ring);
    ring.push(sqe::nop().data(3));
    ring.publish();
    assert_eq!(ring.enter(1, 0, IORING_ENTER_SQ_WAKEUP, 0, 0), 1);
    assert_eq!(seen(&mut ring).user_data, 3);
}

#[case(own_flags)]
fn enter_without_the_wakeup_flag_does_not_wake_it(cx: &Context) {
    let mut ring = polled(cx, 4);
    wait_blocked(&ring);
    ring.push(sqe::nop());
    ring.publish();
    assert_eq!(ring.enter(1, 0, 0, 0, 0), 1);
    std::thread::sleep(QUIET);
    assert_eq!((ring.cq_ready(), sleeps(&ring)), (0, true));
}

#[case(own_flags)]
fn waits_for_its_first_sqe_asleep(cx: &Context) {
    let long = Params { sq_thread_idle: 60_000, ..params(0) };
    wait_asleep(&ring_of(cx, 4, long));
}

#[case(own_flags)]
fn enter_answers_to_submit_whatever_there_is(cx: &Context) {
    let ring = polled(cx, 4);
    for count in [0, 1, 17, 1 << 20] {
        assert_eq!(ring.enter(count, 0, 0, 0, 0), count as isize);
    }
    assert_eq!((ring.sq_head(), ring.cq_ready()), (0, 0));
}

#[case(own_flags)]
fn enter_answers_to_submit_and_waits(cx: &Context) {
    let mut ring = polled(cx, 4);
    ring.push(sqe::nop());
    ring.push(sqe::nop());
    ring.publish();
    let flags = IORING_ENTER_GETEVENTS | IORING_ENTER_SQ_WAKEUP;
    assert_eq!(ring.enter(2, 2, flags, 0, 0), 2);
    assert_eq!(ring.cq_ready(), 2);
}

#[case(own_flags)]
fn wait_sleeps_until_the_thread_posts(cx: &Context) {
    let ((reader, mut writer), (mut ring, thread), mut buffer) = (pipe(), polled_by(cx), [0; 4]);
    go(&mut ring, &[sqe::read(fd(&reader), &mut buffer, 0).data(9)]);
    wait_consumed(&ring);
    let feeder = once_asleep(move || {
        wait_thread_asleep(thread);
        writer.write_all(b"fed").expect("write");
    });
    let cqe = ring.wait();
    assert_eq!((cqe.user_data, cqe.res, &buffer[..3]), (9, 3, &b"fed"[..]));
    feeder.join().expect("the feeder");
}

#[case(own_flags)]
fn wait_times_out(cx: &Context) {
    let ((reader, _writer), mut ring, mut buffer) = (pipe(), polled(cx, 4), [0; 4]);
    go(&mut ring, &[sqe::read(fd(&reader), &mut buffer, 0)]);
    let (ts, start) = (ms(30), Instant::now());
    let arg = GeteventsArg { ts: &raw const ts as u64, ..GeteventsArg::default() };
    let flags = IORING_ENTER_GETEVENTS | IORING_ENTER_EXT_ARG;
    let answer = ring.enter(0, 1, flags, &raw const arg as usize, size_of::<GeteventsArg>());
    assert_eq!(answer as i32, -ETIME);
    assert!(start.elapsed() >= Duration::from_millis(29));
    let answer = ring.enter(5, 1, flags, &raw const arg as usize, size_of::<GeteventsArg>());
    assert_eq!(answer, 5, "what is submitted hides the error");
}

#[case(own_flags)]
fn wait_is_interrupted_by_a_signal(cx: &Context) {
    let ring = polled(cx, 4);
    count_signal(libc::SIGUSR1);
    let sender = signal_once_asleep(libc::SIGUSR1);
    assert_eq!(ring.enter(0, 1, IORING_ENTER_GETEVENTS, 0, 0) as i32, -EINTR);
    sender.join().expect("the sender");
}

#[case(own_flags)]
fn wait_with_a_mask_is_woken(cx: &Context) {
    let ((reader, mut writer), mut ring, mut buffer) = (pipe(), polled(cx, 4), [0; 4]);
    let mask = kernel_set(libc::SIGUSR2);
    for round in 0..3 {
        go(&mut ring, &[sqe::read(fd(&reader), &mut buffer, 0).data(round)]);
        let mut other = writer.try_clone().expect("a duplicate");
        let feeder = once_asleep(move || other.write_all(b"x").expect("write"));
        assert_eq!(ring.enter(0, 1, IORING_ENTER_GETEVENTS, &raw const mask as usize, 8), 0);
        assert_eq!(ring.peek().map(|cqe| (cqe.user_data, cqe.res)), Some((round, 1)));
        feeder.join().expect("the feeder");
    }
    writer.write_all(b"").expect("the writer is kept open");
}

#[case(own_flags)]
fn wait_with_a_mask_is_interrupted_by_what_it_admits(cx: &Context) {
    let ring = polled(cx, 4);
    count_signal(libc::SIGUSR1);
    block_signal(libc::SIGUSR1);
    raise(libc::SIGUSR1);
    let mask = 0u64;
    assert_eq!(ring.enter(0, 1, IORING_ENTER_GETEVENTS, &raw const mask as usize, 8) as i32, -EINTR);
    assert_eq!(SIGNALS.load(std::sync::atomic::Ordering::SeqCst), 1);
}

/// A ring whose SQ is full and whose thread sleeps.
fn full(cx: &Context) -> Ring {
    let mut ring = polled(cx, 4);
    wait_blocked(&ring);
    (0..4).for_each(|n| ring.push(sqe::nop().data(n)));
    ring.publish();
    ring
}

#[case(own_flags)]
fn sq_wait_waits_for_room(cx: &Context) {
    let ring = full(cx);
    assert_eq!(ring.sq_head(), 0);
    assert_eq!(ring.enter(0, 0, IORING_ENTER_SQ_WAKEUP | IORING_ENTER_SQ_WAIT, 0, 0), 0);
    assert!(ring.sq_head() > 0, "there is room");
}

#[case(own_flags)]
fn sq_wait_with_room_returns_at_once(cx: &Context) {
    let mut ring = polled(cx, 4);
    assert_eq!(ring.enter(0, 0, IORING_ENTER_SQ_WAIT, 0, 0), 0);
    wait_asleep(&ring);
    ring.push(sqe::nop());
    ring.publish();
    assert_eq!(ring.enter(1, 0, IORING_ENTER_SQ_WAIT, 0, 0), 1);
}

#[case(own_flags)]
fn sq_wait_is_ended_by_a_signal(cx: &Context) {
    let ring = full(cx);
    count_signal(libc::SIGUSR1);
    let sender = signal_once_asleep(libc::SIGUSR1);
    assert_eq!(ring.enter(0, 0, IORING_ENTER_SQ_WAIT, 0, 0), 0, "no error");
    assert_eq!(SIGNALS.load(std::sync::atomic::Ordering::SeqCst), 1, "it waited");
    assert_eq!(ring.sq_head(), 0);
    sender.join().expect("the sender");
}
