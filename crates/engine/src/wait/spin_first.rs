//! A thread that waits for messages spins before it sleeps: [`crate::driver::spin`] says when.
//!
//! A thread that spins has released the ring, as one that sleeps has. But it is no registered waiter, so a sender makes
//! no system call for it. It goes to sleep afterwards only by [`sleep`], which registers it under the post lock, after
//! a check of the CQ. So a spin changes nothing in how sleepers are woken.

use super::enter_wait::Wait;
use super::sleep::{sleep, Ended};
use crate::driver::spin::{Found, Limits, LONGEST_NS};
use crate::mutation::{mutated, Mutation};
use crate::os::{self, Clock};
use crate::ring::arrivals::Left;
use crate::ring::sleeps::{Awake, Kind, Sleep};
use crate::ring::RingGuard;
use crate::shared::control::Control;
use crate::sync::spin_loop;
use crate::Errno;
use core::sync::atomic::Ordering;

/// Number of rounds between two readings of the clock: about a microsecond.
const ROUNDS: u32 = 32;

/// Waits once, by a spin or a sleep. Answers as [`sleep`] does.
#[inline]
pub(super) fn spin_or_sleep(guard: &mut RingGuard, wait: &mut Wait) -> Option<Result<(), Ended>> {
    match guard.spin.messages() {
        0 => sleep(guard, wait),
        messages => wait_for_message(guard, wait, messages),
    }
}

/// Does the same on a ring that has had `messages` messages.
#[cold]
fn wait_for_message(guard: &mut RingGuard, wait: &mut Wait, messages: u32) -> Option<Result<(), Ended>> {
    let from_ns = Clock::Monotonic.now_ns();
    if !wait.has_spun && may_spin(guard, wait) && guard.spin.is_worth_it(from_ns) {
        return spin(guard, wait, from_ns, messages);
    }
    let slept = sleep(guard, wait)?;
    if !core::mem::take(&mut wait.has_spun) {
        let by_message = has_come(guard, messages);
        guard.spin.record_sleep(by_message, Clock::Monotonic.now_ns() - from_ns);
    }
    Some(slept)
}

/// True if nothing but the CQ and what other threads leave has to be watched during a spin.
fn may_spin(guard: &RingGuard, wait: &Wait) -> bool {
    let is_far = |left_ns: Option<u64>| left_ns.is_none_or(|left_ns| left_ns > 2 * LONGEST_NS);
    let is_plain = !wait.polled && wait.options.sigmask.is_none() && !guard.is_shared() && !guard.is_context();
    let waits_for_others = !guard.awaits_events() && is_far(guard.timers.next_ns()) && guard.chaos.is_none();
    is_plain && waits_for_others && is_far(wait.options.left_ns())
}

/// True if a message has come since there were `messages`. It may be left for the thread to post.
fn has_come(guard: &RingGuard, messages: u32) -> bool {
    guard.spin.messages() != messages || guard.ring().left.any(Left::MESSAGES)
}

/// Spins once, without the ring's lock.
fn spin(guard: &mut RingGuard, wait: &mut Wait, from_ns: u64, messages: u32) -> Option<Result<(), Ended>> {
    let (ring, control, cookie, driving) = (guard.ring(), guard.control, guard.cookie, wait.is_driving());
    let limits = guard.spin.limits;
    ring.sleepers.fetch_add(1, Ordering::Relaxed);
    let awake = Awake::after(Sleep { ring, control, kind: Kind::Spin, driving, rings: guard.memory.view.rings() });
    guard.unlock();
    let found = poll_cq(&control, &ring.left, wait, limits, from_ns);
    let is_there = guard.lock_again(cookie); // as in `sleep`
    let held_cqes = awake.held_cqes();
    drop(awake);
    if !is_there {
        return None;
    }
    let now_ns = Clock::Monotonic.now_ns();
    let by_message = has_come(guard, messages);
    guard.spin.record_spin(by_message, found, from_ns, now_ns);
    wait.has_spun = found != Found::Arrival;
    match found {
        Found::Handler => Some(Err(Ended { why: Errno::INTR, held_cqes })),
        _ => Some(Ok(())),
    }
}

/// Polls until something comes for the waiting thread, or a limit ends it.
fn poll_cq(control: &Control, left: &Left, wait: &Wait, limits: Limits, from_ns: u64) -> Found {
    let mut last_ns = from_ns;
    loop {
        for _ in 0..ROUNDS {
            // A hint: the caller checks it under the post lock.
            if wait.may_be_reached(control) || left.any(Left::RESULTS | Left::MESSAGES | Left::TAGS) {
                return Found::Arrival;
            }
            spin_loop();
        }
        if os::has_handled() && !mutated(Mutation::HandlersDoNotEndSpins) {
            return Found::Handler;
        }
        let now_ns = Clock::Monotonic.now_ns();
        if now_ns - last_ns > limits.lost_ns {
            return Found::Harm;
        }
        if now_ns - from_ns > limits.longest_ns {
            return Found::Nothing;
        }
        last_ns = now_ns;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::spin::Spin;
    use crate::issue::msg_ring;
    use crate::op::msg_ring::MsgRing;
    use crate::op::Verdict;
    use crate::os::{Os, Sys};
    use crate::process;
    use crate::ring::{sleeps, table, Ring};
    use crate::wait::enter::{enter, Enter};
    use anyring_abi::{Opcode, Params, Sqe, IORING_ENTER_GETEVENTS, IORING_MSG_DATA};
    use core::sync::atomic::AtomicU32;
    use std::thread::JoinHandle;
    use std::time::{Duration, Instant};

    const ENDLESS: Limits = Limits { longest_ns: u64::MAX / 2, lost_ns: u64::MAX / 2 };
    const NONE: Limits = Limits { longest_ns: 0, lost_ns: u64::MAX / 2 };

    /// A ring whose waiting thread spins from the first wait on.
    struct Target(i32);

    impl Target {
        fn new(limits: Limits) -> Target {
            let mut params = Params::default();
            let fd = crate::setup(64, &raw mut params as u64).expect("a ring");
            table::ring(fd).expect("the ring").lock().expect("the ring").spin = Spin::eager(limits);
            Target(fd)
        }

        fn ring(&self) -> &'static Ring {
            table::ring(self.0).expect("the ring")
        }

        /// The value of the futex word, and the number of waiters that have to be woken.
        fn words(&self) -> (u32, u32) {
            let guard = self.ring().lock().expect("the ring");
            let waiters = &guard.control.header().waiters;
            (waiters.sequence.load(Ordering::Relaxed), waiters.waiting.load(Ordering::Relaxed))
        }

        /// Starts a thread that waits for `count` CQEs more than there are.
        fn wait_for(&self, count: u32) -> JoinHandle<Result<u32, Errno>> {
            let (fd, flags) = (self.0 as u32, IORING_ENTER_GETEVENTS);
            let call = Enter { fd, to_submit: 0, min_complete: count, flags, arg: 0, arg_size: 0 };
            std::thread::spawn(move || enter(&call))
        }

        fn send(&self) {
            let sqe = Sqe { opcode: Opcode::MsgRing as u8, addr: IORING_MSG_DATA, user_data: 7, ..Sqe::default() };
            let message = MsgRing::prep(&sqe).expect("a message");
            assert_eq!(msg_ring::send(&message, self.0), Verdict::Done(0));
        }

        fn close(self) {
            process::closing(self.0);
            Sys::close(self.0);
        }
    }

    fn until(what: &str, mut done: impl FnMut() -> bool) {
        let patience = Instant::now() + Duration::from_secs(30);
        while !done() {
            assert!(Instant::now() < patience, "{what}");
            std::thread::yield_now();
        }
    }

    #[test]
    fn a_message_to_a_spinning_thread_wakes_nobody() {
        let target = Target::new(ENDLESS);
        let waiter = target.wait_for(1);
        until("nobody waits", || target.ring().sleepers.load(Ordering::Relaxed) == 1);
        let (sequence, waiting) = target.words();
        assert_eq!(waiting, 0, "the thread spins");
        target.send();
        assert_eq!(waiter.join().expect("the thread"), Ok(0));
        assert_eq!(target.words(), (sequence, 0));
        target.close();
    }

    #[test]
    fn a_thread_that_sleeps_after_a_spin_is_woken() {
        let target = Target::new(NONE);
        for count in 1..=50 {
            target.ring().lock().expect("the ring").spin = Spin::eager(NONE);
            let waiter = target.wait_for(count);
            until("nobody sleeps", || target.words().1 == 1);
            target.send();
            assert_eq!(waiter.join().expect("the thread"), Ok(0));
        }
        target.close();
    }

    #[test]
    fn no_message_between_a_spin_and_a_sleep_is_missed() {
        let target = Target::new(NONE);
        for count in 1..=60 {
            let limits = Limits { longest_ns: u64::from(count % 10) * 1_000, ..NONE };
            target.ring().lock().expect("the ring").spin = Spin::eager(limits);
            let waiter = target.wait_for(count);
            until("nobody waits", || target.ring().sleepers.load(Ordering::Relaxed) == 1 || waiter.is_finished());
            for _ in 0..count * 37 % 400 {
                spin_loop();
            }
            target.send();
            until("the message is missed", || waiter.is_finished());
            assert_eq!(waiter.join().expect("the thread"), Ok(0));
        }
        target.close();
    }

    static HANDLED: AtomicU32 = AtomicU32::new(0);

    /// Does what the library's handler does about the wait that it interrupts.
    extern "C" fn handle(_signal: i32) {
        sleeps::handler_begins();
        HANDLED.fetch_add(1, Ordering::Relaxed);
        os::handled(0, 0);
    }

    #[test]
    fn a_signal_handler_runs_during_a_spin_and_ends_it() {
        use std::os::unix::thread::JoinHandleExt;
        // SAFETY: a plain handler, which only stores to atomics, of a signal that no other test uses.
        unsafe {
            let mut action: libc::sigaction = core::mem::zeroed();
            action.sa_sigaction = handle as *const () as usize;
            assert_eq!(libc::sigaction(libc::SIGUSR2, &action, core::ptr::null_mut()), 0);
        }
        let target = Target::new(ENDLESS);
        let waiter = target.wait_for(1);
        until("nobody waits", || target.ring().sleepers.load(Ordering::Relaxed) == 1);
        // SAFETY: the thread is not joined yet.
        assert_eq!(unsafe { libc::pthread_kill(waiter.as_pthread_t(), libc::SIGUSR2) }, 0);
        assert_eq!(waiter.join().expect("the thread"), Err(Errno::INTR));
        assert_eq!(HANDLED.load(Ordering::Relaxed), 1);
        assert_eq!(target.words().1, 0);
        target.close();
    }
}
