//! Who waits for a ring's completions: the words that a post and a wait agree by, in memory shared over fork.
//!
//! | word | who writes | when |
//! |---|---|---|
//! | `waiting`, `in_futex` | the holder of the post lock; a leaving waiter decrements without it | |
//! | `target`, `sequence` | the holder of the post lock | |
//! | `timeouts` | the holder of the post lock | a TIMEOUT's CQE was posted |
//!
//! No wake is lost: a waiter looks at the CQ's tail and registers under the post lock, and sleeps only while `sequence` is
//! what it was then; whoever posts stores the tail and changes `sequence` under the same lock, if anybody is registered,
//! and wakes after it. So orderings are Relaxed: the lock, and futex(2)'s own comparison, order them.
//!
//! Positions are CQ tails counted without end ([`crate::shared::control::PostLock::cq_total`]): a target may stay for as long as
//! somebody waits, and the 32 bits of a tail in ring memory come round.
//! The file makes no system call: `tests/loom.rs` model-checks it as it stands.

use crate::sync::{AtomicU32, AtomicU64, Ordering};

/// The words. Zeroes are nobody.
#[repr(C)]
#[derive(Default)]
pub struct Waiters {
    /// Threads asleep, or about to be.
    pub waiting: AtomicU32,
    /// Those of them that sleep on the futex word `sequence`, not in an epoll wait.
    pub in_futex: AtomicU32,
    /// Futex word: changes when the waiters should look again.
    pub sequence: AtomicU32,
    /// The lowest CQ tail that one of them waits for.
    target: AtomicU64,
    /// TIMEOUT completions so far; a change ends every wait, as in the kernel.
    pub timeouts: AtomicU32,
}

impl Waiters {
    /// A thread is about to wait for CQ tail `target`, which is not reached; answers the value of `sequence` to sleep on.
    /// Being registered under the post lock means that every later post sees it.
    pub fn register(&self, target: u64, by_futex: bool) -> u32 {
        self.in_futex.fetch_add(by_futex.into(), Ordering::Relaxed);
        let others = self.waiting.fetch_add(1, Ordering::Relaxed);
        if others == 0 || target < self.target.load(Ordering::Relaxed) {
            self.target.store(target, Ordering::Relaxed);
        }
        self.sequence.load(Ordering::Relaxed)
    }

    /// So many waiters are awake again, or dead; of these, so many slept on the futex word.
    pub fn leave(&self, waiting: u32, in_futex: u32) {
        self.in_futex.fetch_sub(in_futex, Ordering::Relaxed);
        self.waiting.fetch_sub(waiting, Ordering::Relaxed);
    }

    /// Whether somebody wants to know that the tail is now `tail()`, and that so many TIMEOUTs completed; if so `sequence` has
    /// been changed, and the caller wakes after unlocking.
    #[inline]
    pub fn are_told(&self, tail: impl FnOnce() -> u64, timeouts: u32) -> bool {
        if self.waiting.load(Ordering::Relaxed) == 0 {
            return false;
        }
        let told = timeouts != 0 || tail() >= self.target.load(Ordering::Relaxed);
        if told {
            self.bump();
        }
        told
    }

    /// Whether nobody waits for more than CQ tail `tail`, at which whoever sleeps until its messages are all there wakes.
    pub fn are_satisfied_by(&self, tail: u64) -> bool {
        self.waiting.load(Ordering::Relaxed) == 0 || tail >= self.target.load(Ordering::Relaxed)
    }

    /// Keeps whoever is about to sleep on `sequence` from it.
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
            // The target is the lower one still, so this is far behind it.
            assert!(waiters.are_told(|| start + HALF + 14, 0) && waiters.are_satisfied_by(start + HALF + 14));
            assert!(waiters.are_told(|| start + 3 * HALF, 0));
        }
    }
}
