//! The engine's mutex: a futex word that holds the owner's thread pointer. Re-entry by the same thread is recognised
//! and does not hang. Signal handlers wait until their thread holds no lock (`os::handlers`). Signal handlers that
//! the program installed without anyring's notice do not wait.

use crate::sync::{
    before_lock, constructor, enter_critical, fence_after_swap, futex_wait, futex_wake_one, leave_critical,
    spin_loop, thread_pointer, AtomicUsize, Ordering, SPINS,
};
use core::cell::UnsafeCell;
use core::ops::{Deref, DerefMut};

const FREE: usize = 0;
/// Set in the word of a held lock when a thread may sleep on the lock. Thread pointers are even.
const CONTENDED: usize = 1;

/// A mutex around `T` within one process.
pub struct Lock<T> {
    /// [`FREE`], or the holder's thread pointer, perhaps with [`CONTENDED`]. Both are in one word, so that a signal
    /// handler never finds a held lock without a holder.
    word: AtomicUsize,
    value: UnsafeCell<T>,
}

// SAFETY: the word admits one thread at a time to `value`.
unsafe impl<T: Send> Sync for Lock<T> {}

/// Exclusive access to a [`Lock`]'s value until it is dropped.
pub struct Held<'a, T> {
    lock: &'a Lock<T>,
}

impl<T> Lock<T> {
    constructor! {
        /// Makes a free lock.
        pub fn new(value: T) -> Self {
            Lock { word: AtomicUsize::new(FREE), value: UnsafeCell::new(value) }
        }
    }

    /// Waits for the lock. `None` if this very thread already holds it.
    #[inline]
    pub fn lock(&self) -> Option<Held<'_, T>> {
        before_lock();
        enter_critical();
        // Acquire pairs with the Release swap in `drop`.
        if self.word.compare_exchange(FREE, thread_pointer(), Ordering::Acquire, Ordering::Relaxed).is_err() {
            if self.held_by_me() {
                leave_critical();
                return None;
            }
            self.wait();
        }
        Some(Held { lock: self })
    }

    /// Takes the lock if it is free now.
    #[inline]
    pub fn try_lock(&self) -> Option<Held<'_, T>> {
        enter_critical();
        // Acquire pairs with the Release swap in `drop`.
        if self.word.compare_exchange(FREE, thread_pointer(), Ordering::Acquire, Ordering::Relaxed).is_err() {
            leave_critical();
            return None;
        }
        Some(Held { lock: self })
    }

    /// Takes the lock if its holder releases it within moments. Never sleeps.
    pub fn lock_soon(&self) -> Option<Held<'_, T>> {
        for _ in 0..SPINS {
            if let Some(held) = self.try_lock() {
                return Some(held);
            }
            spin_loop();
        }
        None
    }

    /// Takes the lock again, for a thread that has just released it, if `left` says that work has arrived since it took
    /// the lock. `None` if there is no such work, or another thread holds the lock, which will then check for the work.
    /// Partner: the fence between leaving the work and a `try_lock`.
    #[inline(always)] // in each call
    pub fn lock_again_if(&self, left: impl FnOnce() -> bool) -> Option<Held<'_, T>> {
        // The release of the lock must not pass the load in `left`.
        fence_after_swap();
        if left() {
            self.try_lock()
        } else {
            None
        }
    }

    /// True if the calling thread holds the lock. The answer is exact, since only this thread can have stored its own
    /// pointer.
    #[inline]
    pub fn held_by_me(&self) -> bool {
        self.word.load(Ordering::Relaxed) & !CONTENDED == thread_pointer()
    }

    /// Returns the thread pointer of the lock's holder. 0 if the lock is free.
    pub fn holder(&self) -> usize {
        self.word.load(Ordering::Relaxed) & !CONTENDED
    }

    /// True if a thread may sleep on the lock, which must be held.
    pub fn is_contended(&self) -> bool {
        self.word.load(Ordering::Relaxed) & CONTENDED != 0
    }

    #[cold]
    fn wait(&self) {
        let me = thread_pointer();
        let (mut spins, mut slept) = (0, false);
        loop {
            let seen = self.word.load(Ordering::Relaxed);
            if seen == FREE {
                // A thread that slept takes the lock as contended, since other threads may sleep on it. Acquire pairs
                // with the Release swap in `drop`.
                let wanted = if slept { me | CONTENDED } else { me };
                if self.word.compare_exchange(FREE, wanted, Ordering::Acquire, Ordering::Relaxed).is_ok() {
                    return;
                }
            } else if spins < SPINS {
                spins += 1;
                spin_loop();
            } else if seen & CONTENDED != 0
                || self.word.compare_exchange(seen, seen | CONTENDED, Ordering::Relaxed, Ordering::Relaxed).is_ok()
            {
                futex_wait(&self.word, seen | CONTENDED);
                // The thread that woke this thread may retake the lock for a moment before this thread runs.
                (spins, slept) = (0, true);
            }
        }
    }

    /// True if a thread holds the lock, or did when the process was forked.
    pub fn is_held(&self) -> bool {
        self.word.load(Ordering::Relaxed) != FREE
    }

    /// Frees the lock in a forked child, where its holder does not exist.
    ///
    /// # Safety
    /// Only this thread may exist in the process, and the value must be put into a sound state before it is used.
    pub unsafe fn reset(&self) {
        self.word.store(FREE, Ordering::Relaxed);
    }
}

impl<T> Deref for Held<'_, T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: a `Held` exists only between acquiring and releasing the word.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T> DerefMut for Held<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as in `deref`, and `&mut self` makes this the only reference.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T> Held<'_, T> {
    /// Releases the lock. Signal handlers still wait until the returned value is dropped.
    #[inline]
    pub fn release(self) -> Released {
        self.free();
        core::mem::forget(self);
        Released(())
    }

    #[inline]
    fn free(&self) {
        // Release pairs with the Acquire of the next holder.
        if self.lock.word.swap(FREE, Ordering::Release) & CONTENDED != 0 {
            futex_wake_one(&self.lock.word);
        }
    }
}

impl<T> Drop for Held<'_, T> {
    #[inline]
    fn drop(&mut self) {
        self.free();
        leave_critical();
    }
}

/// Keeps signal handlers waiting after the thread has released a [`Lock`], until this is dropped.
pub struct Released(());

impl Drop for Released {
    #[inline]
    fn drop(&mut self) {
        leave_critical();
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_lock_excludes_other_threads_and_reports_re_entry() {
        static LOCK: Lock<u64> = Lock::new(0);
        let threads: Vec<_> = (0..4)
            .map(|_| {
                std::thread::spawn(|| {
                    for _ in 0..10_000 {
                        *LOCK.lock().unwrap() += 1;
                    }
                })
            })
            .collect();
        threads.into_iter().for_each(|t| t.join().unwrap());
        let held = LOCK.lock().unwrap();
        assert_eq!(*held, 40_000);
        assert!(LOCK.lock().is_none());
        drop(held);
        assert!(LOCK.try_lock().is_some());
    }
}
