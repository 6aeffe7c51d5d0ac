//! Wakes the threads that sleep on a ring, in this process and in others.

use crate::driver::{AWAKE, IN_EPOLL};
use crate::mutation::{mutated, Mutation};
use crate::os::syscall;
use crate::os::{Os, Sys};
use crate::ring::helper::{carry_out, SET};
use crate::ring::RingGuard;
use anyring_abi::{IORING_SETUP_DEFER_TASKRUN, IORING_SETUP_TASKRUN_FLAG};
use core::sync::atomic::Ordering;

/// Sleepers to be woken once the ring's lock is free. Each of them takes that lock first. If they were woken earlier,
/// they would sleep again, on the lock.
#[must_use]
pub struct PendingWake {
    /// The address of the sleepers' futex word. At the time of the wake the ring may have ended, and its memory may be
    /// gone. The call then fails with EFAULT or wakes another sleeper for no reason, which every user of futex(2) has
    /// to expect.
    word: usize,
}

impl PendingWake {
    /// Wakes the sleepers. The caller has released the lock.
    #[cold]
    pub fn wake(self) {
        syscall(libc::SYS_futex, [self.word, libc::FUTEX_WAKE as usize, i32::MAX as usize, 0, 0, 0]);
    }
}

/// Hands the driver role of this ring to another waiter, if there is one.
pub(crate) fn pass_role_on(guard: &RingGuard) {
    let control = guard.control;
    if control.header().waiters.waiting.load(Ordering::Relaxed) != 0 {
        control.lock_post().waiters().bump();
        guard.ring().driver.wake(&control);
    }
}

impl RingGuard {
    /// Wakes the ring's sleepers, in this process and in others. The caller has changed the futex word under the post
    /// lock. If no other process shares the ring, sleepers on that word are woken when the ring's lock is released.
    pub fn wake(&mut self) {
        let control = self.control;
        let header = control.header();
        if !self.is_shared() {
            self.ring().driver.wake_from_epoll();
            self.wake_due |= header.waiters.in_futex.load(Ordering::Relaxed) != 0;
            return;
        }
        let asleep_here = self.ring().driver.wake(&control);
        let in_epoll = header
            .waiters
            .waiting
            .load(Ordering::Relaxed)
            .wrapping_sub(header.waiters.in_futex.load(Ordering::Relaxed));
        if in_epoll as i32 <= asleep_here.into() {
            return;
        }
        let program_end = self.ring().fd.load(Ordering::Relaxed);
        // The number may have been closed and reused without the engine's knowledge. Without a number, other processes
        // notice the change at their next check.
        if crate::descriptors::cookie_of(program_end) == Some(self.cookie) {
            control.kick_others(program_end, self.ends);
        }
    }

    /// Takes the wake that is due after the release of the lock.
    #[inline]
    pub fn take_pending_wake(&mut self) -> Option<PendingWake> {
        if !self.wake_due {
            return None;
        }
        self.wake_due = false;
        Some(PendingWake { word: self.control.header().waiters.sequence.as_ptr() as usize })
    }

    /// Wakes sleepers that do not yet watch for a poll that was just armed or a timer that was just started.
    pub fn work_appeared(&mut self, is_timer: bool) {
        if self.is_polled() {
            // The polling thread checks the effects of its own work before it continues.
            if !self.may_issue_here() {
                self.ring().nudge_poller();
            }
            return;
        }
        let driver = &self.ring().driver;
        let sleeping = driver.sleeping.load(Ordering::Relaxed);
        let is_watched = !is_timer && !self.poll_set.has_unwatched();
        if sleeping == IN_EPOLL && is_watched {
            // The sleeper called `verify` before it slept. An arrival between this request's attempt and its arming has
            // already raised its event.
            return self.verify();
        }
        if sleeping != AWAKE {
            let control = self.control;
            control.lock_post().waiters().bump();
            driver.wake(&control);
        } else if driver.handover.is_watching() {
            self.wake_watching_helper(is_timer);
        }
    }
}

impl RingGuard {
    /// Leaves the ring to the helper if requests or timers are pending for which the program may never call again.
    #[inline]
    pub fn call_helper(&mut self) {
        let always = mutated(Mutation::EachEnterCallsTheHelper) && !self.is_polled();
        if (self.has_pending() && !self.ring().driver.handover.is_seen_to()) || always {
            self.leave_to_helper();
        }
    }

    /// True if requests are armed or timers run, and a thread of this process has to watch for them.
    #[inline(always)] // in each call
    pub fn has_pending(&self) -> bool {
        (self.awaits_events() || !self.timers.is_empty()) && !self.is_polled()
    }

    #[cold]
    fn leave_to_helper(&mut self) {
        let ring = self.ring();
        let handover = &ring.driver.handover;
        if ring.has(IORING_SETUP_DEFER_TASKRUN) && !self.is_watched() && !ring.has(IORING_SETUP_TASKRUN_FLAG) {
            return; // no thread could be notified
        }
        if let Ok(head) = self.consumed() {
            handover.record_head(head);
        }
        // A thread in a call does not take over the role.
        let in_calls = ring.callers.load(Ordering::Relaxed);
        carry_out(ring, handover.leave(ring.sleepers.load(Ordering::Relaxed).saturating_sub(in_calls)));
    }

    /// True if completions are signalled through another file: the registered eventfd, or the ring's descriptor, which
    /// has watchers.
    fn is_watched(&self) -> bool {
        self.eventfd.is_some() || self.control.header().watched.load(Ordering::Relaxed) != 0
    }

    /// Sends the helper away when a thread asks for completions and is ready to wait. The helper stays if completions
    /// are signalled through another file.
    #[inline]
    pub fn dismiss_helper(&mut self) {
        let handover = &self.ring().driver.handover;
        if handover.is_helpers() && !self.is_watched() && handover.dismiss() {
            self.detach();
        }
    }

    /// Makes the helper check the ring at once, to watch for its end.
    pub fn call_helper_now(&mut self) {
        carry_out(self.ring(), self.ring().driver.handover.call(true));
    }

    /// Informs the helper, which sleeps on the ring's poll set, that a poll was armed or a timer started.
    #[cold]
    pub fn wake_watching_helper(&mut self, is_timer: bool) {
        let handover = &self.ring().driver.handover;
        if !is_timer && !self.poll_set.has_unwatched() && handover.is_attached() {
            return self.verify();
        }
        let next_ns = self.timers.next_ns().filter(|_| is_timer);
        if next_ns.is_none_or(|next_ns| {
            Sys::clock_ns(libc::CLOCK_MONOTONIC).saturating_add(next_ns) < handover.watches_until_ns()
        }) {
            self.call_helper_now();
        }
    }

    /// Takes the ring's events away from the helper: the calling thread drives the ring from now on.
    #[inline]
    pub fn leave_helper(&mut self) {
        if self.ring().driver.handover.is_attached() && self.ring().driver.handover.has_thread() {
            self.detach();
        }
    }

    #[cold]
    pub(crate) fn detach(&mut self) {
        if self.ring().driver.handover.set_attached(false) {
            if let Some(epoll) = self.poll_set.epoll() {
                let _ = Sys::epoll_ctl(SET.load(Ordering::Relaxed), libc::EPOLL_CTL_DEL, epoll, 0, 0);
            }
        }
    }

    /// Adds the ring's poll set to the helper's.
    pub(crate) fn attach(&mut self) {
        let Some(epoll) = self.poll_set.epoll() else { return };
        if !self.ring().driver.handover.is_attached() {
            let (set, data) = (SET.load(Ordering::Relaxed), core::ptr::from_ref(self.ring()) as u64);
            let added = Sys::epoll_ctl(set, libc::EPOLL_CTL_ADD, epoll, libc::EPOLLIN as u32, data);
            self.ring().driver.handover.set_attached(added.is_ok());
        }
    }
}
