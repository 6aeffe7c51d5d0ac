//! The waiters for a ring's completions: the words by which posts and waits synchronise, in memory shared over fork.
//!
//! | word | who writes | when |
//! |---|---|---|
//! | `waiting`, `in_futex` | the holder of the post lock, or a leaving waiter, which decrements without it | |
//! | `target`, `sequence` | the holder of the post lock | |
//! | `timeouts` | the holder of the post lock | a TIMEOUT has fired |
//!
//! No wake is lost. A waiter reads the CQ's tail and registers, both under the post lock. It sleeps only while
//! `sequence` keeps the value that it had then. A post stores the tail under the same lock and, if a waiter is
//! registered, changes `sequence`. It wakes the waiters after that. All orderings are Relaxed, since the lock and
//! futex(2)'s own comparison order these steps.
//!
//! Positions are CQ tails counted in 64 bits ([`crate::shared::control::PostLock::cq_total`]). A target may stay as
//! long as a thread waits, while the 32 bits of a tail in ring memory wrap around.
//!
//! The file makes no system call: `tests/loom.rs` model-checks it unchanged.

use crate::sync::{AtomicU32, AtomicU64, Ordering};

/// The waiters' words. All zeroes mean no waiter.
#[repr(C)]
#[derive(Default)]
pub struct Waiters {
    /// Number of threads that sleep, or are about to.
    pub waiting: AtomicU32,
    /// Number of those threads that sleep on the futex word `sequence`, not in an epoll wait.
    pub in_futex: AtomicU32,
    /// Futex word: changes when the waiters must check again.
    pub sequence: AtomicU32,
    /// The lowest CQ tail that a waiter waits for.
    target: AtomicU64,
    /// Number of TIMEOUT completions so far. A change ends every wait, as in the kernel.
    pub timeouts: AtomicU32,
}

impl Waiters {
    /// Registers a thread that is about to wait for CQ tail `target`, which is not reached. Returns the value of
    /// `sequence` to sleep on. The thread registers under the post lock, so every later post finds it.
    pub fn register(&self, target: u64, by_futex: bool) -> u32 {
        if by_futex {
            self.in_futex.fetch_add(1, Ordering::Relaxed);
        }
        let others = self.waiting.fetch_add(1, Ordering::Relaxed);
        if others == 0 || target < self.target.load(Ordering::Relaxed) {
            self.target.store(target, Ordering::Relaxed);
        }
        self.sequence.load(Ordering::Relaxed)
    }

    /// Removes `waiting` waiters that are awake again, or dead. `in_futex` of them slept on the futex word.
    pub fn leave(&self, waiting: u32, in_futex: u32) {
        if in_futex != 0 {
            self.in_futex.fetch_sub(in_futex, Ordering::Relaxed);
        }
        self.waiting.fetch_sub(waiting, Ordering::Relaxed);
    }

    /// True if a waiter must be woken, because the tail is now `tail()` or `timeouts` TIMEOUTs completed. In that
    /// case `sequence` has been changed, and the caller wakes the waiters after unlocking.
    #[inline]
    pub fn should_wake(&self, tail: impl FnOnce() -> u64, timeouts: u32) -> bool {
        if self.waiting.load(Ordering::Relaxed) == 0 {
            return false;
        }
        let is_reached = timeouts != 0 || tail() >= self.target.load(Ordering::Relaxed);
        if is_reached {
            self.bump();
        }
        is_reached
    }

    /// True if no waiter waits for more than CQ tail `tail`. That wakes threads which sleep until their messages have
    /// all arrived.
    pub fn are_satisfied_by(&self, tail: u64) -> bool {
        self.waiting.load(Ordering::Relaxed) == 0 || tail >= self.target.load(Ordering::Relaxed)
    }

    /// Changes `sequence`, so that threads that are about to sleep on it do not.
    pub fn bump(&self) {
        self.sequence.fetch_add(1, Ordering::Relaxed);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_target_that_stays_for_2_to_the_31_completions_is_reached() {
        const HALF: u64 = 1 << 31;
        for start in [0, HALF, 2 * HALF - 10, 1 << 40] {
            let waiters = Waiters::default();
            waiters.register(start + 10, true);
            waiters.register(start + HALF + 5, true);
            waiters.leave(1, 1);
            assert!(!waiters.are_satisfied_by(start + 9));
            // The target is still the lower one, so this is far past it.
            assert!(waiters.should_wake(|| start + HALF + 14, 0) && waiters.are_satisfied_by(start + HALF + 14));
            assert!(waiters.should_wake(|| start + 3 * HALF, 0));
        }
    }
}
