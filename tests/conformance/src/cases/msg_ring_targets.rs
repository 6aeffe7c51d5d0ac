//! MSG_RING to every kind of ring, and to rings that wait, are polled, overflow, close, or belong to another process.

use super::prelude::*;
use crate::ring::PATIENCE;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::time::{Duration, Instant};

topic!(since: "5.18", source: "io_uring/msg_ring.c");

const DEFERRED: u32 = IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN;

/// Setup flags of the targets. IORING_SETUP_R_DISABLED, to which nothing can be sent, is in `msg_ring`.
const KINDS: [u32; 8] = [
    0,
    IORING_SETUP_COOP_TASKRUN | IORING_SETUP_TASKRUN_FLAG,
    IORING_SETUP_SINGLE_ISSUER,
    DEFERRED,
    DEFERRED | IORING_SETUP_TASKRUN_FLAG,
    IORING_SETUP_IOPOLL,
    IORING_SETUP_IOPOLL | DEFERRED,
    IORING_SETUP_SQPOLL,
];

fn to(number: i32, user_data: u64, len: u32) -> Sqe {
    prep(Opcode::MsgRing, number, IORING_MSG_DATA, len, user_data)
}

/// The number of spins of a pause that is shorter than a sleep can be.
fn spin(us: u64) {
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_micros(us) {
        std::hint::spin_loop();
    }
}

/// Sends `count` messages from another thread, with `pause` before each, while this thread `receives`. The pauses
/// only set the pace, and wait for nothing.
fn beside(
    cx: &Context,
    target: &mut Ring,
    count: u32,
    pause: impl Fn(u32) + Send + Sync,
    receive: impl FnOnce(&mut Ring),
) {
    let number = target.fd;
    std::thread::scope(|scope| {
        let sending = scope.spawn(|| {
            let mut sender = cx.ring(4);
            for n in 0..count {
                pause(n);
                assert_eq!(sender.run(to(number, n.into(), n)), 0);
            }
        });
        receive(target);
        sending.join().expect("the sender");
    });
}

fn expect_in_order(target: &mut Ring, count: u32) {
    for n in 0..count {
        let cqe = target.wait();
        assert_eq!((cqe.user_data, cqe.res, cqe.flags), (n.into(), n as i32, 0), "message {n}");
    }
}

#[case(since = "6.1")]
fn to_every_kind(cx: &Context) {
    for flags in KINDS {
        let (mut sender, mut target) = (cx.ring(4), cx.ring_with(8, flags));
        for n in 0..3 {
            assert_eq!(sender.run(to(target.fd, n.into(), n)), 0, "{flags:#x}");
        }
        expect_in_order(&mut target, 3);
        target.expect_quiet();
    }
}

#[case(since = "6.1")]
fn to_every_kind_from_another_thread(cx: &Context) {
    for flags in KINDS {
        let mut target = cx.ring_with(8, flags);
        beside(cx, &mut target, 10, |_| {}, |target| expect_in_order(target, 10));
        target.expect_quiet();
    }
}

/// Messages come at several paces: quicker than a thread goes to sleep, about as quick, and slower.
#[case(since = "6.1")]
fn to_every_kind_that_waits(cx: &Context) {
    for flags in KINDS {
        let mut target = cx.ring_with(8, flags);
        let pause = |n| match n / 100 {
            0 => spin(5),
            1 => spin(u64::from(n % 60)),
            2 => std::thread::sleep(Duration::from_micros(100)),
            _ => {}
        };
        let receive = |target: &mut Ring| {
            let mut next = 0;
            while next < 400 {
                assert_eq!(target.enter(0, 1, IORING_ENTER_GETEVENTS, 0, 0), 0, "{flags:#x}");
                while let Some(cqe) = target.peek() {
                    assert_eq!((cqe.user_data, cqe.res), (next, next as i32), "{flags:#x}");
                    next += 1;
                }
            }
        };
        beside(cx, &mut target, 400, pause, receive);
    }
}

#[case(since = "6.1")]
fn to_itself_with_every_kind(cx: &Context) {
    for flags in KINDS {
        // A polled ring (IORING_SETUP_IOPOLL) refuses the request, so another ring sends it.
        let mut ring = cx.ring_with(8, flags);
        let sqe = to(ring.fd, 5, 6).data(1);
        if flags & IORING_SETUP_SQPOLL != 0 {
            // Woken even if it does not sleep, as a new thread may. So the case's answers are the same in each run.
            ring.push(sqe);
            ring.publish();
            assert_eq!(ring.enter(0, 0, IORING_ENTER_SQ_WAKEUP, 0, 0), 0);
        } else {
            ring.go(sqe);
        }
        assert_eq!(ring.wait_sorted(2), [(1, 0), (5, 6)], "{flags:#x}");
    }
}

/// Plain memory, whose address the message carries.
fn parcel(n: u64) -> u64 {
    Box::into_raw(Box::new([n; 16])) as u64
}

fn open(parcel: u64, n: u64) {
    // SAFETY: the address of a box that `parcel` gave up, and that only this message names.
    let content = unsafe { Box::from_raw(parcel as *mut [u64; 16]) };
    assert_eq!(*content, [n; 16]);
}

/// Sends 300 parcels from a thread, which this one receives and opens.
fn send_parcels(cx: &Context, target: &mut Ring, receive: impl Fn(&mut Ring) -> Cqe) {
    let number = target.fd;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut sender = cx.ring(4);
            for n in 0..300 {
                assert_eq!(sender.run(to(number, parcel(n), 0).data(1)), 0);
            }
        });
        (0..300).for_each(|n| open(receive(target).user_data, n));
    });
}

#[case(since = "6.1")]
fn memory_written_before_is_seen_by_every_kind(cx: &Context) {
    for flags in KINDS {
        let mut target = cx.ring_with(8, flags);
        send_parcels(cx, &mut target, Ring::wait);
    }
}

/// A receiver that only polls the CQ sees the memory that the sender wrote before. It makes no system call, so only its
/// load of the CQ's tail orders the accesses.
#[case(since = "6.0")]
fn memory_written_before_is_seen_by_a_program_that_only_looks(cx: &Context) {
    for flags in [0, IORING_SETUP_SINGLE_ISSUER, IORING_SETUP_IOPOLL, IORING_SETUP_SQPOLL] {
        let mut target = cx.ring_with(512, flags);
        send_parcels(cx, &mut target, crate::polled::seen);
    }
}

#[case(since = "6.1")]
fn a_wait_for_several_ends_with_the_last(cx: &Context) {
    for flags in [0, IORING_SETUP_SINGLE_ISSUER, DEFERRED, IORING_SETUP_SQPOLL] {
        let mut target = cx.ring_with(8, flags);
        let pause = |n| match n % 5 {
            0 => std::thread::sleep(Duration::from_millis(2)),
            _ => spin(30),
        };
        let receive = |target: &mut Ring| {
            for round in 0..10 {
                assert_eq!(target.enter(0, 5, IORING_ENTER_GETEVENTS, 0, 0), 0);
                assert!(target.cq_ready() >= 5, "{flags:#x}: {} of 5", target.cq_ready());
                for n in 0..5 {
                    assert_eq!(target.peek().map(|cqe| cqe.user_data), Some(5 * round + n));
                }
            }
        };
        beside(cx, &mut target, 50, pause, receive);
    }
}

/// Returns the number of times that this thread slept.
fn sleeps() -> i64 {
    // SAFETY: all-zero bytes are a value of this C struct of integers.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: `usage` is one rusage.
    assert_eq!(unsafe { libc::getrusage(libc::RUSAGE_THREAD, &raw mut usage) }, 0);
    usage.ru_nvcsw
}

#[case(since = "6.1")]
fn a_wait_for_several_is_not_woken_for_each(cx: &Context) {
    for flags in [0, DEFERRED] {
        let mut target = cx.ring_with(32, flags);
        let receive = |target: &mut Ring| {
            let before = sleeps();
            assert_eq!(target.enter(0, 30, IORING_ENTER_GETEVENTS, 0, 0), 0);
            let slept = sleeps() - before;
            assert!(slept < 15, "{flags:#x}: slept {slept} times for 30 messages");
            expect_in_order(target, 30);
        };
        beside(cx, &mut target, 30, |_| std::thread::sleep(Duration::from_millis(2)), receive);
    }
}

#[case(since = "6.1")]
fn a_wait_for_several_that_times_out_leaves_what_came(cx: &Context) {
    for flags in [0, DEFERRED] {
        let mut target = cx.ring_with(8, flags);
        let receive = |target: &mut Ring| {
            let time = ms(300);
            let arg = GeteventsArg { ts: address(&time), ..GeteventsArg::default() };
            let flags = IORING_ENTER_GETEVENTS | IORING_ENTER_EXT_ARG;
            let answer = target.enter(0, 5, flags, address(&arg) as usize, size_of::<GeteventsArg>());
            assert!(answer == 0 || answer == -libc::ETIME as isize, "{answer}");
            expect_in_order(target, 3);
        };
        beside(cx, &mut target, 3, |_| std::thread::sleep(Duration::from_millis(5)), receive);
        target.expect_quiet();
    }
}

#[case(since = "6.1")]
fn a_wait_with_a_mask_ends(cx: &Context) {
    for flags in [0, DEFERRED, IORING_SETUP_SQPOLL] {
        let mut target = cx.ring_with(8, flags);
        let receive = |target: &mut Ring| {
            for n in 0..100u64 {
                let mask = 1u64 << (libc::SIGUSR1 - 1);
                let answer = target.enter(0, 1, IORING_ENTER_GETEVENTS, address(&mask) as usize, 8);
                assert_eq!(answer, 0);
                assert_eq!(target.peek().map(|cqe| cqe.user_data), Some(n));
            }
        };
        // One at a time: after a wait that finds two messages, another would wait in vain.
        let pause = |n| if n % 2 == 0 { spin(200) } else { std::thread::sleep(Duration::from_micros(200)) };
        beside(cx, &mut target, 100, pause, receive);
    }
}

/// The receiver waits for a descriptor at the same time, which becomes ready last.
#[case(since = "6.1")]
fn a_wait_beside_a_poll_ends(cx: &Context) {
    for flags in [0, DEFERRED] {
        let (mut target, (reader, mut writer)) = (cx.ring_with(8, flags), pipe());
        target.go(sqe::poll_add(fd(&reader), libc::POLLIN, 0).data(1000));
        let pause = |n| if n % 2 == 0 { spin(20) } else { std::thread::sleep(Duration::from_micros(200)) };
        beside(cx, &mut target, 100, pause, |target| expect_in_order(target, 100));
        target.expect_quiet();
        writer.write_all(b"x").expect("write to the pipe");
        assert_eq!(target.wait().user_data, 1000);
    }
}

#[case(since = "6.1")]
fn nothing_is_lost_when_any_kind_is_full(cx: &Context) {
    for flags in KINDS {
        let (mut sender, mut target) = (cx.ring(4), cx.ring_with(4, flags));
        for n in 0..100 {
            assert_eq!(sender.run(to(target.fd, n.into(), n)), 0, "{flags:#x}");
        }
        expect_in_order(&mut target, 100);
        target.expect_quiet();
        assert_eq!(target.cq_overflow(), 0);
    }
}

#[case(since = "6.1")]
fn senders_in_several_threads_to_every_kind(cx: &Context) {
    const EACH: u64 = 200;
    for flags in KINDS {
        let mut target = cx.ring_with(8, flags);
        let number = target.fd;
        let mut next = [0u64; 3];
        std::thread::scope(|scope| {
            for who in 0..3u64 {
                scope.spawn(move || {
                    let mut sender = cx.ring(4);
                    for n in 0..EACH {
                        assert_eq!(sender.run(to(number, who << 32 | n, 0)), 0);
                    }
                });
            }
            for _ in 0..3 * EACH {
                let user_data = target.wait().user_data;
                let who = (user_data >> 32) as usize;
                assert_eq!(u64::from(user_data as u32), next[who], "in the sender's order, {flags:#x}");
                next[who] += 1;
            }
        });
        target.expect_quiet();
    }
}

/// A child with a ring of its own sends `count` messages with a pause before each.
fn child_that_sends(cx: &Context, number: i32, count: u32, pause_ms: u64) -> crate::sys::Child {
    crate::sys::start_child(|| {
        let mut sender = cx.ring_with(4, 0);
        for n in 0..count {
            std::thread::sleep(Duration::from_millis(pause_ms));
            assert_eq!(sender.run(to(number, n.into(), n)), 0);
        }
    })
}

#[case(since = "6.1")]
fn another_process_sends_to_every_kind(cx: &Context) {
    for flags in KINDS {
        let mut target = cx.ring_with(8, flags);
        assert_eq!(child_that_sends(cx, target.fd, 40, 0).wait(), 0, "{flags:#x}");
        expect_in_order(&mut target, 40);
        target.expect_quiet();
    }
}

#[case(since = "6.1")]
fn another_process_wakes_every_kind(cx: &Context) {
    for flags in KINDS {
        let mut target = cx.ring_with(8, flags);
        let child = child_that_sends(cx, target.fd, 5, 3);
        let begin = Instant::now();
        expect_in_order(&mut target, 5);
        assert!(begin.elapsed() < PATIENCE / 2, "{flags:#x}: woken by {:?} only", begin.elapsed());
        assert_eq!(child.wait(), 0);
    }
}

/// Senders race with the close: each message is sent or refused, and the senders continue.
#[case(since = "6.1")]
fn to_a_ring_that_is_closed_meanwhile(cx: &Context) {
    let (number, stop, refused) = (AtomicI32::new(-1), AtomicBool::new(false), AtomicBool::new(false));
    let begin = std::sync::Barrier::new(3); // no sender's ring gets the number of a closed target
    std::thread::scope(|scope| {
        let senders: Vec<_> = (0..2)
            .map(|_| {
                scope.spawn(|| {
                    let (mut sender, mut sent) = (cx.ring(4), 0u32);
                    begin.wait();
                    while !stop.load(Ordering::Relaxed) {
                        spin(20); // the closing thread must get its turn on a busy machine, too
                        match sender.run(to(number.load(Ordering::Relaxed), 1, 0)) {
                            0 => sent += 1,
                            answer if answer == -EBADF => refused.store(true, Ordering::Relaxed),
                            answer => assert_eq!(answer, -libc::EBADFD),
                        }
                    }
                    sent
                })
            })
            .collect();
        begin.wait();
        for round in 0..20 {
            let flags = [0, DEFERRED][round % 2];
            let mut target = cx.ring_with(4, flags);
            number.store(target.fd, Ordering::Relaxed);
            if round % 4 < 2 {
                target.wait();
            }
            spin(50 * round as u64);
        }
        crate::polled::poll_until("a message to a closed ring", || refused.load(Ordering::Relaxed));
        stop.store(true, Ordering::Relaxed);
        let sent: u32 = senders.into_iter().map(|sender| sender.join().expect("a sender")).sum();
        assert!(sent > 0);
    });
}

#[case(since = "6.1")]
fn to_a_ring_that_was_closed_is_ebadf(cx: &Context) {
    for flags in KINDS {
        let (mut sender, target) = (cx.ring(4), cx.ring_with(4, flags));
        let number = target.fd;
        drop(target);
        assert_eq!(sender.run(to(number, 1, 0)), -EBADF, "{flags:#x}");
    }
}

#[case(own_flags, since = "6.13")]
fn register_sends_to_every_kind(cx: &Context) {
    for flags in KINDS {
        let mut target = cx.ring_with(4, flags);
        for n in 0..20u32 {
            let sqe = to(target.fd, n.into(), n);
            assert_eq!(cx.door.register(-1, IORING_REGISTER_SEND_MSG_RING, address(&sqe) as usize, 1), 0);
        }
        expect_in_order(&mut target, 20);
    }
}
