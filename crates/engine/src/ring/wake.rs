//! Waking whoever sleeps on a ring, in this process and in others.

use crate::driver::{AWAKE, IN_EPOLL};
use crate::os::syscall;
use crate::ring::RingGuard;
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
        if sleeping == IN_EPOLL && !is_timer {
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
