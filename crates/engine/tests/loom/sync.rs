//! The engine's `sync` module, with loom's atomics, threads and a futex made of loom's condition variable.

pub use loom::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use loom::sync::{Condvar, Mutex};

/// Number of rounds. Each is a branch to explore, and a single round shows everything.
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

/// Does nothing, since loom chooses the order at the word itself.
pub fn before_lock() {}

/// Spins once, in loops that check again. Loom then runs other threads.
pub fn spin_loop() {
    core::hint::spin_loop();
}

/// Makes a fence. The engine's function does so on machines other than x86-64. On x86-64 the swap before it is one.
pub fn fence_after_swap() {
    loom::sync::atomic::fence(Ordering::SeqCst);
}

/// Does nothing, since the models have no signals.
pub fn enter_critical() {}
/// Does nothing, like [`enter_critical`].
pub fn leave_critical() {}

loom::lazy_static! {
    /// All sleepers. A thread that is woken for nothing checks again, as with the real futex.
    static ref FUTEX: (Mutex<()>, Condvar) = (Mutex::new(()), Condvar::new());
}

/// Compares and sleeps in one step, as FUTEX_WAIT does.
pub fn futex_wait(word: &AtomicUsize, expected: usize) {
    let held = FUTEX.0.lock().unwrap();
    if word.load(Ordering::Relaxed) == expected {
        drop(FUTEX.1.wait(held).unwrap());
    }
}

/// Wakes all sleepers. So no model may need a wake-up that the real function saves, or be harmed by a superfluous
/// one.
pub fn futex_wake_one(_word: &AtomicUsize) {
    let _held = FUTEX.0.lock().unwrap();
    FUTEX.1.notify_all();
}
