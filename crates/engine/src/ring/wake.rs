//! Waking whoever sleeps on a ring, in this process and in others.

use crate::driver::{AWAKE, IN_EPOLL};
use crate::mutation::{mutated, Mutation};
use crate::os::syscall;
use crate::os::{Os, Sys};
use crate::ring::helper::{answer, SET};
use crate::ring::RingGuard;
use anyring_abi::{IORING_SETUP_DEFER_TASKRUN, IORING_SETUP_TASKRUN_FLAG};
use core::sync::atomic::Ordering;

/// Sleepers that are to be woken once the ring's lock is free, which each of them takes first: woken before, they would go to
/// sleep again, on the lock.
#[must_use]
pub struct DueWake {
    /// The address of their futex word. The ring may have ended by then, and its memory with it: that is EFAULT, or wakes
    /// somebody for no reason, as every user of futex(2) has to expect.
    word: usize,
}

impl DueWake {
    /// The lock is free.
    #[cold]
    pub fn wake(self) {
        syscall(libc::SYS_futex, [self.word, libc::FUTEX_WAKE as usize, i32::MAX as usize, 0, 0, 0]);
    }
}

/// Somebody else who waits on this ring becomes its driver.
pub(crate) fn pass_role_on(guard: &RingGuard) {
    let control = guard.control;
    if control.header().waiters.waiting.load(Ordering::Relaxed) != 0 {
        control.lock_post().waiters().bump();
        guard.ring().driver.wake(&control);
    }
}

impl RingGuard {
    /// Wakes whoever waits on the ring, in this process and in others; the futex word has been changed under the post lock.
    /// On a ring of this process alone, those who sleep on that word are woken when the lock is let go of.
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
        // The number may have been closed and reused unseen. Without one, the others find out when they next look.
        if crate::descriptors::cookie_of(program_end) == Some(self.cookie) {
            control.kick_others(program_end, self.engine_end);
        }
    }

    /// Who has to be woken when the lock has been let go of.
    #[inline]
    pub fn take_due_wake(&mut self) -> Option<DueWake> {
        if !self.wake_due {
            return None;
        }
        self.wake_due = false;
        Some(DueWake { word: self.control.header().waiters.sequence.as_ptr() as usize })
    }

    /// A poll was armed or a timer started: whoever sleeps without regard to it must look again.
    pub fn work_appeared(&mut self, is_timer: bool) {
        if self.is_polled() {
            // Its thread looks at what it did itself before it goes on.
            if !self.serves_here() {
                self.ring().nudge_poller();
            }
            return;
        }
        let driver = &self.ring().driver;
        let sleeping = driver.sleeping.load(Ordering::Relaxed);
        let is_watched = !is_timer && !self.poll_set.has_unwatched();
        if sleeping == IN_EPOLL && is_watched {
            // The sleeper verified before it slept: what arrived between this request's attempt and its arming has made
            // its event already.
            return self.verify();
        }
        if sleeping != AWAKE {
            let control = self.control;
            control.lock_post().waiters().bump();
            driver.wake(&control);
        } else if driver.handover.is_watching() {
            self.tell_watching_helper(is_timer);
        }
    }
}

impl RingGuard {
    /// Leaves the ring to the helper if something is pending that the program may never come back for.
    #[inline]
    pub fn call_helper(&mut self) {
        let always = mutated(Mutation::EachEnterCallsTheHelper) && !self.is_polled();
        if (self.has_pending() && !self.ring().driver.handover.is_seen_to()) || always {
            self.leave_to_helper();
        }
    }

    /// Whether requests are armed, or timers run, for which somebody of this process has to look.
    #[inline(always)] // in each call
    pub fn has_pending(&self) -> bool {
        (self.awaits_events() || !self.timers.is_empty()) && !self.is_polled()
    }

    #[cold]
    fn leave_to_helper(&mut self) {
        let ring = self.ring();
        let handover = &ring.driver.handover;
        if ring.has(IORING_SETUP_DEFER_TASKRUN) && !self.is_watched() && !ring.has(IORING_SETUP_TASKRUN_FLAG) {
            return; // nobody could be told
        }
        if let Ok(head) = self.consumed() {
            handover.note_head(head);
        }
        // Who is in a call takes over nothing.
        let in_calls = ring.callers.load(Ordering::Relaxed);
        answer(ring, handover.leave(ring.sleepers.load(Ordering::Relaxed).saturating_sub(in_calls)));
    }

    /// Whether somebody may be told of completions by another file.
    fn is_watched(&self) -> bool {
        self.eventfd.is_some() || self.control.header().watched.load(Ordering::Relaxed) != 0
    }

    /// A thread asks for completions and is ready to wait: the helper need not be there before it, unless somebody is told of
    /// what it posts.
    #[inline]
    pub fn dismiss_helper(&mut self) {
        let handover = &self.ring().driver.handover;
        if handover.is_helpers() && !self.is_watched() && handover.dismiss() {
            self.detach();
        }
    }

    /// Makes the helper look at the ring now, to watch for its end.
    pub fn call_helper_now(&mut self) {
        answer(self.ring(), self.ring().driver.handover.call(true));
    }

    /// The helper sleeps on the ring's poll set, and a poll was armed or a timer started.
    #[cold]
    pub fn tell_watching_helper(&mut self, is_timer: bool) {
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

    /// The calling thread drives from now on: events are not the helper's any more.
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

    /// Puts the ring's poll set into the helper's.
    pub(crate) fn attach(&mut self) {
        let Some(epoll) = self.poll_set.epoll() else { return };
        if !self.ring().driver.handover.is_attached() {
            let (set, data) = (SET.load(Ordering::Relaxed), core::ptr::from_ref(self.ring()) as u64);
            let added = Sys::epoll_ctl(set, libc::EPOLL_CTL_ADD, epoll, libc::EPOLLIN as u32, data);
            self.ring().driver.handover.set_attached(added.is_ok());
        }
    }
}
