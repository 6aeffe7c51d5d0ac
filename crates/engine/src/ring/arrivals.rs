//! Work that other threads leave for the holder of a ring's lock: results of workers, tags of retired resources.
//!
//! No arrival is lost. A thread that brings an arrival sets its bit in the ring's word ([`Left`]) and then tries the
//! ring's lock. The holder checks the word after it releases the lock ([`Lock::lock_again_if`]). A fence on both sides
//! makes sure that one of the two succeeds.

use crate::lock::Lock;
use crate::sync::{constructor, fence_after_swap, AtomicU32, Ordering};
use std::collections::VecDeque;

/// The kinds of work left for a ring's holder: one bit for each kind, in a word that is read without any lock.
pub struct Left(AtomicU32);

impl Left {
    /// Results of workers.
    pub const RESULTS: u32 = 1;
    /// CQEs that other rings sent.
    pub const MESSAGES: u32 = 1 << 1;
    /// Tags of resources that are no longer in use.
    pub const TAGS: u32 = 1 << 2;
    /// Work left by threads that do not wait for the holder.
    pub const HOLDER_WORK: u32 = 1 << 3;
    /// Work that is still unannounced: results for a deferred ring's owner, holder work, or a panic in a thread that
    /// did not hold the ring.
    pub const UNANNOUNCED: u32 = 1 << 4;
    /// SQEs that a signal handler submitted while the interrupted thread held the ring.
    pub const OWED: u32 = 1 << 5;

    constructor! {
        /// Makes a word without any bit set.
        #[allow(clippy::new_without_default)] // `Ring` makes the only ones
        pub fn new() -> Left {
            Left(AtomicU32::new(0))
        }
    }

    /// Returns those bits of `kinds` that are set.
    #[inline]
    pub fn of(&self, kinds: u32) -> u32 {
        self.0.load(Ordering::Relaxed) & kinds
    }

    /// True if work of one of these `kinds` is left.
    #[inline]
    pub fn any(&self, kinds: u32) -> bool {
        self.of(kinds) != 0
    }

    /// Sets the bit of this kind. The caller then tries the ring's lock.
    pub fn set(&self, kind: u32) {
        // SeqCst, and the fence: either the ring's holder finds the bit after its release, or the caller of this
        // function gets the ring. Partners: the fence in `lock_again_if`, and the Acquire in `take`.
        self.0.fetch_or(kind, Ordering::SeqCst);
        fence_after_swap();
    }

    /// Clears the bit of this kind. True if the bit was set: that work now belongs to the caller.
    pub fn take(&self, kind: u32) -> bool {
        self.any(kind) && self.0.fetch_and(!kind, Ordering::Acquire) & kind != 0
    }

    /// Clears the bits of `kinds`.
    pub fn forget(&self, kinds: u32) {
        self.0.fetch_and(!kinds, Ordering::Relaxed);
    }
}

/// A queue of arrivals that have not been taken.
pub struct Arrivals<T> {
    queue: Lock<VecDeque<T>>,
    /// The queue's bit in [`Left`], set while the queue may not be empty.
    kind: u32,
}

impl<T> Arrivals<T> {
    constructor! {
        /// Makes an empty queue for this kind of work.
        pub fn new(kind: u32) -> Arrivals<T> {
            Arrivals { queue: Lock::new(VecDeque::new()), kind }
        }
    }

    /// Adds `things`. The caller then tries the ring's lock.
    ///
    /// # Errors
    /// Returns `things` if there is no memory, or in a signal handler that interrupted this very function.
    pub fn put<I: ExactSizeIterator<Item = T>>(&self, left: &Left, things: I) -> Result<(), I> {
        let Some(mut queue) = self.queue.lock() else { return Err(things) };
        if queue.try_reserve(things.len()).is_err() {
            return Err(things);
        }
        queue.extend(things);
        left.set(self.kind);
        drop(queue);
        Ok(())
    }

    /// True if the calling thread is inside one of the queue's functions.
    pub fn held_by_me(&self) -> bool {
        self.queue.held_by_me()
    }

    /// Number of arrivals in the queue.
    pub fn number(&self) -> usize {
        self.queue.lock().map_or(0, |queue| queue.len())
    }

    /// Takes all arrivals.
    pub fn take(&self, left: &Left) -> VecDeque<T> {
        match left.any(self.kind) {
            true => self.take_queue(left),
            false => VecDeque::new(),
        }
    }

    fn take_queue(&self, left: &Left) -> VecDeque<T> {
        let Some(mut queue) = self.queue.lock() else { return VecDeque::new() };
        left.forget(self.kind);
        core::mem::take(&mut *queue)
    }

    /// Forgets all arrivals without dropping them, in a forked child.
    ///
    /// # Safety
    /// Only this thread may exist in the process.
    pub unsafe fn reset(&self, left: &Left) {
        // SAFETY: no other thread exists, and the queue is replaced right away.
        unsafe { self.queue.reset() };
        core::mem::forget(self.take_queue(left)); // the bit may not be set yet
    }
}

/// Arrivals that were taken but not yet processed. Dropping the value puts them back, so a panic loses none.
pub struct Rest<T: 'static> {
    of: &'static Arrivals<T>,
    left: &'static Left,
    /// The arrivals that are left, in order.
    pub things: VecDeque<T>,
}

impl<T> Rest<T> {
    /// Takes all arrivals of a queue.
    pub fn take(of: &'static Arrivals<T>, left: &'static Left) -> Self {
        Rest { of, left, things: of.take(left) }
    }
}

impl<T> Drop for Rest<T> {
    fn drop(&mut self) {
        if !self.things.is_empty() {
            let _ = self.of.put(self.left, self.things.drain(..)).is_ok();
        }
    }
}
