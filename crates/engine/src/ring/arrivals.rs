//! What others bring to a ring, to be taken by whoever holds its lock: a worker's results, tags of retired resources.
//!
//! Nothing stays lying. Who brings something sets its bit in the ring's word of what is left ([`Left`]) and then tries the
//! ring's lock; who lets go of that lock looks at the word afterwards ([`Lock::lock_again_if`]). A fence on both sides makes
//! one of them succeed.

use crate::lock::Lock;
use crate::sync::{constructor, fence_after_swap, AtomicU32, Ordering};
use std::collections::VecDeque;

/// What is left for whoever holds a ring: a bit for each kind, in one word, which is looked at without any lock.
pub struct Left(AtomicU32);

impl Left {
    /// Results of workers.
    pub const RESULTS: u32 = 1;
    /// CQEs that other rings sent.
    pub const MESSAGES: u32 = 1 << 1;
    /// Tags of resources that nobody uses any more.
    pub const TAGS: u32 = 1 << 2;
    /// Notes of those who do not wait for the holder.
    pub const NOTES: u32 = 1 << 3;
    /// Something that nobody has been told of: results for the owner of a deferred ring, notes, a panic in a thread that did not
    /// hold the ring.
    pub const UNTOLD: u32 = 1 << 4;
    /// SQEs that a signal handler submitted while the interrupted thread held the ring.
    pub const OWED: u32 = 1 << 5;

    constructor! {
        /// Nothing is left.
        #[allow(clippy::new_without_default)] // `Ring` makes the only ones
        pub fn new() -> Left {
            Left(AtomicU32::new(0))
        }
    }

    /// Those of `kinds` of which something is left.
    #[inline]
    pub fn of(&self, kinds: u32) -> u32 {
        self.0.load(Ordering::Relaxed) & kinds
    }

    /// Whether something of `kinds` is left.
    #[inline]
    pub fn any(&self, kinds: u32) -> bool {
        self.of(kinds) != 0
    }

    /// Leaves something of this kind; the caller then tries the ring's lock.
    pub fn set(&self, kind: u32) {
        // SeqCst, and the fence: either the holder of the ring sees the bit after it let go, or our caller gets the ring.
        // Partners: the fence in `lock_again_if`, and the Acquire in `take`.
        self.0.fetch_or(kind, Ordering::SeqCst);
        fence_after_swap();
    }

    /// Whether something of this kind was left, which is the caller's from now on.
    pub fn take(&self, kind: u32) -> bool {
        self.any(kind) && self.0.fetch_and(!kind, Ordering::Acquire) & kind != 0
    }

    /// Nothing is left of `kinds`.
    pub fn forget(&self, kinds: u32) {
        self.0.fetch_and(!kinds, Ordering::Relaxed);
    }
}

/// Things that have arrived and that nobody has taken.
pub struct Arrivals<T> {
    queue: Lock<VecDeque<T>>,
    /// Their bit in [`Left`], set while there may be something.
    kind: u32,
}

impl<T> Arrivals<T> {
    constructor! {
        /// Nothing of this kind has arrived.
        pub fn new(kind: u32) -> Arrivals<T> {
            Arrivals { queue: Lock::new(VecDeque::new()), kind }
        }
    }

    /// Adds things; the caller then tries the ring's lock.
    ///
    /// # Errors
    /// The things, in a signal handler that interrupted this very function, and where there is no memory.
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

    /// Whether the calling thread is inside one of these functions.
    pub fn held_by_me(&self) -> bool {
        self.queue.held_by_me()
    }

    /// How many there are.
    pub fn number(&self) -> usize {
        self.queue.lock().map_or(0, |queue| queue.len())
    }

    /// Takes everything.
    pub fn take(&self, left: &Left) -> VecDeque<T> {
        let Some(mut queue) = self.queue.lock() else { return VecDeque::new() };
        left.forget(self.kind);
        core::mem::take(&mut *queue)
    }

    /// Forgets everything, without dropping it, in a forked child.
    ///
    /// # Safety
    /// Only this thread may exist in the process.
    pub unsafe fn reset(&self, left: &Left) {
        // SAFETY: no other thread exists, and the queue is replaced right away.
        unsafe { self.queue.reset() };
        core::mem::forget(self.take(left));
    }
}

/// What was taken and is not received yet; after a panic it has to be found again.
pub struct Rest<T: 'static> {
    of: &'static Arrivals<T>,
    left: &'static Left,
    /// The next one first.
    pub things: VecDeque<T>,
}

impl<T> Rest<T> {
    /// Takes everything.
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
