//! Waits on a ring that gets messages in quick succession, with signals, deadlines and silence in between. An engine
//! may keep such a waiter awake for a while; a program must not notice.

use super::prelude::*;
use crate::polled::poll_until;
use crate::ring::PATIENCE;
use crate::sys::{count_signal, gettid, SIGNALS};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

topic!(since: "5.18", source: "io_uring/msg_ring.c, io_uring/io_uring.c");

const DEFERRED: u32 = IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN;
const ROUNDS: u32 = 24;
/// The number of messages in a round, before the wait under test.
const MESSAGES: u32 = 12;

/// The number of spins of a pause that is shorter than a sleep can be.
fn spin(us: u32) {
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_micros(us.into()) {
        std::hint::spin_loop();
    }
}

fn message(number: i32, user_data: u64) -> Sqe {
    prep(Opcode::MsgRing, number, IORING_MSG_DATA, 0, user_data)
}

/// Waits for one CQE for at most `span`.
fn wait_for(target: &mut Ring, span: Duration) -> isize {
    let time = Timespec { tv_sec: span.as_secs() as i64, tv_nsec: span.subsec_nanos().into() };
    let arg = GeteventsArg { ts: address(&time), ..GeteventsArg::default() };
    let flags = IORING_ENTER_GETEVENTS | IORING_ENTER_EXT_ARG;
    target.enter(0, 1, flags, address(&arg) as usize, size_of::<GeteventsArg>())
}

/// Runs rounds. In each of them a thread sends messages every few microseconds, and this thread waits for them one by
/// one. Then this thread calls `quiet`. Some 5 to 40 us later the sender calls `disturb`. It passes its ring, the
/// target's number and a function that returns true once `quiet` has returned. The next round begins when both have.
fn rounds(
    cx: &Context,
    flags: u32,
    disturb: impl Fn(&mut Ring, i32, &dyn Fn() -> bool) + Sync,
    mut quiet: impl FnMut(&mut Ring, u32),
) {
    let mut target = cx.ring_with(64, flags);
    let number = target.fd;
    let (begun, ended, disturbed) = (AtomicU32::new(0), AtomicU32::new(0), AtomicU32::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut sender = cx.ring(4);
            for round in 1..=ROUNDS {
                for n in 0..MESSAGES {
                    spin(5);
                    assert_eq!(sender.run(message(number, n.into())), 0);
                }
                poll_until("the receiver", || begun.load(Ordering::Acquire) >= round);
                spin(5 + round % 8 * 5);
                let is_over = || ended.load(Ordering::Acquire) >= round;
                disturb(&mut sender, number, &is_over);
                disturbed.store(round, Ordering::Release);
                poll_until("the receiver's wait to end", is_over);
            }
        });
        for round in 1..=ROUNDS {
            for n in 0..MESSAGES {
                assert_eq!(target.wait().user_data, u64::from(n));
            }
            begun.store(round, Ordering::Release);
            quiet(&mut target, round);
            ended.store(round, Ordering::Release);
            poll_until("the sender", || disturbed.load(Ordering::Acquire) >= round);
        }
    });
}

fn signal(thread: i32, signal: i32) {
    // SAFETY: no pointers; a signal that the case handles or ignores goes to a thread of its own process.
    assert_eq!(unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), thread, signal) }, 0);
}

/// A handler may run before the receiver is in the wait. So the sender signals until a handler has ended the wait.
#[case(since = "6.1")]
fn a_handler_ends_the_wait_for_the_next_message(cx: &Context) {
    count_signal(libc::SIGUSR1);
    let receiver = gettid();
    for flags in [0, DEFERRED] {
        let quiet = |target: &mut Ring, _| {
            assert_eq!(wait_for(target, PATIENCE), -libc::EINTR as isize, "{flags:#x}");
        };
        let disturb = |_: &mut Ring, _, is_over: &dyn Fn() -> bool| {
            while !is_over() {
                let before = SIGNALS.load(Ordering::SeqCst);
                signal(receiver, libc::SIGUSR1);
                poll_until("the handler", || SIGNALS.load(Ordering::SeqCst) != before);
            }
        };
        rounds(cx, flags, disturb, quiet);
    }
}

#[case(since = "6.1")]
fn an_ignored_signal_does_not_end_it(cx: &Context) {
    let receiver = gettid();
    for flags in [0, DEFERRED] {
        let quiet = |target: &mut Ring, _| {
            assert_eq!(wait_for(target, Duration::from_millis(2)), -libc::ETIME as isize, "{flags:#x}");
        };
        rounds(cx, flags, |_, _, _| signal(receiver, libc::SIGURG), quiet); // ignored by default
    }
}

/// A signal and a message end the same wait. Whichever comes first, in the end the message is there and the handler ran.
#[case(since = "6.1")]
fn a_handler_beside_a_message_takes_nothing_away(cx: &Context) {
    count_signal(libc::SIGUSR1);
    let receiver = gettid();
    for flags in [0, DEFERRED] {
        let before = SIGNALS.load(Ordering::SeqCst);
        let quiet = |target: &mut Ring, round: u32| {
            let cqe = loop {
                let answer = target.enter(0, 1, IORING_ENTER_GETEVENTS, 0, 0);
                assert!([0, -libc::EINTR as isize].contains(&answer), "{flags:#x}: {answer}");
                if let Some(cqe) = target.peek() {
                    break cqe;
                }
            };
            assert_eq!(cqe.user_data, 99);
            poll_until("the handler", || SIGNALS.load(Ordering::SeqCst) - before == round);
        };
        let disturb = |sender: &mut Ring, number, _: &dyn Fn() -> bool| {
            signal(receiver, libc::SIGUSR1);
            assert_eq!(sender.run(message(number, 99)), 0);
        };
        rounds(cx, flags, disturb, quiet);
    }
}

#[case(since = "6.1")]
fn a_deadline_ends_it(cx: &Context) {
    for flags in [0, DEFERRED] {
        let quiet = |target: &mut Ring, round: u32| {
            let span = Duration::from_micros((10 * round).into());
            let begin = Instant::now();
            assert_eq!(wait_for(target, span), -libc::ETIME as isize, "{flags:#x}");
            assert!(begin.elapsed() >= span, "{flags:#x}: after {:?} of {span:?}", begin.elapsed());
        };
        rounds(cx, flags, |_, _, _| {}, quiet);
    }
}

/// The time for which this thread has run.
fn cpu() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is one timespec.
    assert_eq!(unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) }, 0);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// The rounds count together, since a virtual machine may lose its CPU for some milliseconds, which count as used.
#[case(since = "6.1")]
fn a_ring_whose_messages_stop_uses_no_cpu(cx: &Context) {
    const SPAN: Duration = Duration::from_millis(20);
    for flags in [0, DEFERRED] {
        let mut used = Duration::ZERO;
        let quiet = |target: &mut Ring, _| {
            let before = cpu();
            assert_eq!(wait_for(target, SPAN), -libc::ETIME as isize, "{flags:#x}");
            used += cpu() - before;
        };
        rounds(cx, flags, |_, _, _| {}, quiet);
        assert!(used < SPAN * ROUNDS / 5, "{flags:#x}: {used:?} in {ROUNDS} waits of {SPAN:?}");
    }
}
