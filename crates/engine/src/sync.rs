//! Access to the machine for the files that `tests/loom.rs` model-checks. That test compiles them with loom's atomics
//! and a simulated futex in place of this module.

pub use crate::os::arch::{fence_after_swap, thread_pointer};
pub use crate::os::handlers::{enter_critical, leave_critical};
use crate::os::{syscall, Os, Sys};
use core::sync::atomic::AtomicPtr;
pub use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::marker::PhantomData;

/// Number of rounds that a thread spins for a lock before it sleeps.
pub const SPINS: u32 = 100;

/// Makes a function `const`. In the model test it is not, since loom's atomics cannot be made at compile time.
macro_rules! constructor {
    ($(#[$attribute:meta])* $visibility:vis fn $($rest:tt)*) => { $(#[$attribute])* $visibility const fn $($rest)* };
}
pub(crate) use constructor;

/// Marks a point where another thread may run first. That matters in the simulation only.
#[inline(always)]
pub fn before_lock() {
    #[cfg(feature = "simulated")]
    if let Some(system) = crate::os::simulated::system() {
        system.point();
    }
}

/// Spins once while waiting for another thread.
#[inline(always)]
pub fn spin_loop() {
    #[cfg(feature = "simulated")]
    if let Some(system) = crate::os::simulated::system() {
        return system.spin();
    }
    core::hint::spin_loop();
}

/// Returns the half of a word that futex(2) compares.
fn low_half(word: &AtomicUsize) -> &AtomicU32 {
    const LOW: usize = if cfg!(target_endian = "little") { 0 } else { 4 };
    // SAFETY: a 4-aligned half of a live 8-byte word. Only the kernel reads it through this reference.
    unsafe { &*word.as_ptr().byte_add(LOW).cast::<AtomicU32>() }
}

/// Sleeps while the low half of `word` equals that of `expected`. May also wake for no reason.
pub fn futex_wait(word: &AtomicUsize, expected: usize) {
    let args = [low_half(word).as_ptr() as usize, libc::FUTEX_WAIT as usize, expected as u32 as usize, 0, 0, 0];
    // `Sys::futex_wait` is not used, since it does not sleep in a thread that must end. Such a thread still needs its
    // locks.
    syscall(libc::SYS_futex, args);
}

/// Wakes one sleeper on `word`.
pub fn futex_wake_one(word: &AtomicUsize) {
    Sys::futex_wake(low_half(word), 1);
}

/// A function that a higher module sets, so that lower modules can call it. No hook is called before the first ring is
/// known.
pub struct Hook<A, R> {
    function: AtomicPtr<()>,
    kind: PhantomData<fn(A) -> R>,
}

impl<A, R> Hook<A, R> {
    /// Makes a hook without a function.
    pub const fn new() -> Hook<A, R> {
        Hook { function: AtomicPtr::new(core::ptr::null_mut()), kind: PhantomData }
    }

    /// Sets the function to call.
    pub fn set(&self, function: fn(A) -> R) {
        self.function.store(function as *mut (), Ordering::Relaxed); // a function pointer publishes no other memory
    }

    /// Calls the function, if there is one, and returns its result.
    pub fn call(&self, argument: A) -> Option<R> {
        let function = self.function.load(Ordering::Relaxed);
        if function.is_null() {
            return None;
        }
        // SAFETY: only `set` stores there, and it takes functions of this very type.
        let function = unsafe { core::mem::transmute::<*mut (), fn(A) -> R>(function) };
        Some(function(argument))
    }
}
