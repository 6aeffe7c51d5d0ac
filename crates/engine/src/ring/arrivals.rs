//! What others bring to a ring, to be taken by whoever holds its lock: a worker's results, tags of retired resources.
//!
//! Nothing stays lying. Who brings something counts it and then tries the ring's lock; who lets go of that lock looks at
//! the count afterwards ([`Lock::lock_again_if`]). A fence on both sides makes one of them succeed.

use crate::lock::Lock;
use crate::sync::{constructor, fence_after_swap, AtomicU32, Ordering};
use std::collections::VecDeque;

/// Things that have arrived and that nobody has taken.
pub struct Arrivals<T> {
    queue: Lock<VecDeque<T>>,
    /// Not 0 while there may be something: what a holder looks at without the queue's lock.
    count: AtomicU32,
}

impl<T> Arrivals<T> {
    constructor! {
        /// Nothing has arrived.
        #[allow(clippy::new_without_default)] // `Ring` makes the only ones
        pub fn new() -> Arrivals<T> {
            Arrivals { queue: Lock::new(VecDeque::new()), count: AtomicU32::new(0) }
        }
    }

    /// Adds things; the caller then tries the ring's lock.
    ///
    /// # Errors
    /// The things, in a signal handler that interrupted this very function, and where there is no memory.
    pub fn put<I: ExactSizeIterator<Item = T>>(&self, things: I) -> Result<(), I> {
        let Some(mut queue) = self.queue.lock() else { return Err(things) };
        if queue.try_reserve(things.len()).is_err() {
            return Err(things);
        }
        queue.extend(things);
        // SeqCst, and the fence: either the holder of the ring sees the count after it let go, or our caller gets the
        // ring. Partner: the fence in `lock_again_if`.
        self.count.fetch_add(1, Ordering::SeqCst);
        drop(queue);
        fence_after_swap();
        Ok(())
    }

    /// Whether the calling thread is inside one of these functions.
    pub fn held_by_me(&self) -> bool {
        self.queue.held_by_me()
    }

    /// Whether there is something.
    #[inline]
    pub fn any(&self) -> bool {
        self.count.load(Ordering::Relaxed) != 0
    }

    /// How many there are.
    pub fn number(&self) -> usize {
        self.queue.lock().map_or(0, |queue| queue.len())
    }

    /// Takes everything.
    pub fn take(&self) -> VecDeque<T> {
        let Some(mut queue) = self.queue.lock() else { return VecDeque::new() };
        self.count.store(0, Ordering::Relaxed);
        core::mem::take(&mut *queue)
    }

    /// Forgets everything, without dropping it, in a forked child.
    ///
    /// # Safety
    /// Only this thread may exist in the process.
    pub unsafe fn reset(&self) {
        // SAFETY: no other thread exists, and the queue is replaced right away.
        unsafe { self.queue.reset() };
        core::mem::forget(self.take());
    }
}

/// What was taken and is not received yet; after a panic it has to be found again.
pub struct Rest<T: 'static> {
    of: &'static Arrivals<T>,
    /// The next one first.
    pub things: VecDeque<T>,
}

impl<T> Rest<T> {
    /// Takes everything.
    pub fn take(of: &'static Arrivals<T>) -> Self {
        Rest { of, things: of.take() }
    }
}

impl<T> Drop for Rest<T> {
    fn drop(&mut self) {
        if !self.things.is_empty() {
            let _ = self.of.put(self.things.drain(..)).is_ok();
        }
    }
}
