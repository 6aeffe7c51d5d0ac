//! The engine's `sync` module, with loom's atomics, threads and a futex made of loom's condition variable.

pub use loom::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use loom::sync::{Condvar, Mutex};

/// Each round is a branch to explore, and one round shows everything.
pub const SPINS: u32 = 1;

macro_rules! constructor {
    ($($function:tt)*) => { $($function)* };
}
pub(crate) use constructor;

loom::thread_local! {
    static MARK: Box<u64> = Box::new(0);
}

/// Returns a value unique to the thread, and even, like a thread pointer.
pub fn thread_pointer() -> usize {
    MARK.with(|mark| core::ptr::from_ref::<u64>(mark) as usize)
}

/// Loom chooses at the word itself.
pub fn before_lock() {}

/// Called in loops that check again.
pub fn spin_loop() {
    core::hint::spin_loop();
}

/// On machines other than x86-64 it is a fence, and on those the swap before it is one.
pub fn fence_after_swap() {
    loom::sync::atomic::fence(Ordering::SeqCst);
}

/// No signals here.
pub fn enter_critical() {}
/// See [`enter_critical`].
pub fn leave_critical() {}

loom::lazy_static! {
    /// All sleepers: a thread that is woken for nothing checks again, as with the real futex.
    static ref FUTEX: (Mutex<()>, Condvar) = (Mutex::new(()), Condvar::new());
}

/// Compares and sleeps in one step, as FUTEX_WAIT.
pub fn futex_wait(word: &AtomicUsize, expected: usize) {
    let held = FUTEX.0.lock().unwrap();
    if word.load(Ordering::Relaxed) == expected {
        drop(FUTEX.1.wait(held).unwrap());
    }
}

/// Wakes all sleepers: a wake-up that the real one saves must not be needed, and a superfluous one must do no harm.
pub fn futex_wake_one(_word: &AtomicUsize) {
    let _held = FUTEX.0.lock().unwrap();
    FUTEX.1.notify_all();
}
