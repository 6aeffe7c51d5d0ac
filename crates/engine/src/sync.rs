//! What the files that `tests/loom.rs` model-checks need of the machine: that test compiles them with loom's atomics and
//! a simulated futex in place of this module.

pub use crate::os::arch::{fence_after_swap, thread_pointer};
pub use crate::os::handlers::{hold, let_go};
use crate::os::{syscall, Os, Sys};
use core::sync::atomic::AtomicPtr;
pub use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::marker::PhantomData;

/// Rounds that a thread spins for a lock before it sleeps.
pub const SPINS: u32 = 100;

/// A function that is `const` here; loom's atomics cannot be made at compile time.
macro_rules! constructor {
    ($(#[$attribute:meta])* $visibility:vis fn $($rest:tt)*) => { $(#[$attribute])* $visibility const fn $($rest)* };
}
pub(crate) use constructor;

/// Where another thread may come first: of moment in the simulation only.
#[inline(always)]
pub fn before_lock() {
    #[cfg(feature = "simulated")]
    if let Some(system) = crate::os::simulated::system() {
        system.point();
    }
}

/// Waits a moment for what another thread does.
#[inline(always)]
pub fn spin_loop() {
    #[cfg(feature = "simulated")]
    if let Some(system) = crate::os::simulated::system() {
        return system.spin();
    }
    core::hint::spin_loop();
}

/// The half of a word that futex(2) compares.
fn low_half(word: &AtomicUsize) -> &AtomicU32 {
    const LOW: usize = if cfg!(target_endian = "little") { 0 } else { 4 };
    // SAFETY: a 4-aligned half of a live 8-byte word; the kernel alone reads it through this reference.
    unsafe { &*word.as_ptr().byte_add(LOW).cast::<AtomicU32>() }
}

/// Sleeps while the low half of `word` is that of `expected`, or wakes for no reason.
pub fn futex_wait(word: &AtomicUsize, expected: usize) {
    let args = [low_half(word).as_ptr() as usize, libc::FUTEX_WAIT as usize, expected as u32 as usize, 0, 0, 0];
    // Past `Sys::futex_wait`, which a thread that is to end does not sleep in: it gets its locks before.
    syscall(libc::SYS_futex, args);
}

/// Wakes one sleeper on `word`.
pub fn futex_wake_one(word: &AtomicUsize) {
    Sys::futex_wake(low_half(word), 1);
}

/// A function of a room above that this or another room below calls. None is called before the first ring is known.
pub struct Hook<A, R> {
    function: AtomicPtr<()>,
    kind: PhantomData<fn(A) -> R>,
}

impl<A, R> Hook<A, R> {
    /// Nobody is called.
    pub const fn new() -> Hook<A, R> {
        Hook { function: AtomicPtr::new(core::ptr::null_mut()), kind: PhantomData }
    }

    /// From now on it is `function` that is called.
    pub fn set(&self, function: fn(A) -> R) {
        self.function.store(function as *mut (), Ordering::Relaxed); // a function says nothing of other memory
    }

    /// What the function answers, if there is one.
    pub fn call(&self, argument: A) -> Option<R> {
        let function = self.function.load(Ordering::Relaxed);
        if function.is_null() {
            return None;
        }
        // SAFETY: `set` alone stores there, which takes functions of this very type.
        let function = unsafe { core::mem::transmute::<*mut (), fn(A) -> R>(function) };
        Some(function(argument))
    }
}
