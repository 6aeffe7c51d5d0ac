//! A replacement for the system in the build with the feature `simulated`: every call of the engine passes here.
//!
//! For tests only, never in a library that is used. `tests/simulation/` has the one implementation. Without it, calls
//! go to the kernel.

use crate::Errno;
use core::sync::atomic::AtomicU32;
use std::sync::OnceLock;

/// A system that takes the engine's calls. Any thread may make any call.
pub trait System: Sync {
    /// Makes a call, as [`super::syscall`] does. With `stop`, the call ends with EINTR once that word is not 0, as in
    /// [`super::interruptible`].
    fn call(&self, number: libc::c_long, args: [usize; 6], stop: Option<&AtomicU32>) -> isize;
    /// Called before a call that rustix makes.
    ///
    /// # Errors
    /// The error that the call must fail with instead.
    fn before(&self, number: libc::c_long) -> Result<(), Errno>;
    /// Returns the time, in nanoseconds. All clocks are the same.
    fn clock_ns(&self) -> u64;
    /// Called before the calling thread takes a lock: another thread may run first.
    fn point(&self);
    /// Called while the calling thread spins until another thread acts.
    fn spin(&self);
    /// Called before the calling thread starts another engine thread. False if the start must fail.
    fn starts(&self) -> bool;
    /// Called when the new thread has begun.
    fn begins(&self);
    /// Called when the thread ends, as its last call to the system.
    fn ends(&self);
    /// True if the given thread, by gettid(2), sleeps in a call. `None` if that is not known.
    fn sleeps(&self, thread: u32) -> Option<bool>;
}

static SYSTEM: OnceLock<&'static dyn System> = OnceLock::new();

/// Makes `system` take every call from now on. Called once per process, before its first ring.
///
/// # Panics
/// On the second call.
pub fn stand_in(system: &'static dyn System) {
    assert!(SYSTEM.set(system).is_ok(), "there is a system");
}

/// Returns the system that takes the calls. `None` if that is the kernel.
#[inline]
pub fn system() -> Option<&'static dyn System> {
    SYSTEM.get().copied()
}

/// Called before a call that rustix makes.
///
/// # Errors
/// The error that the call must fail with.
pub fn before(number: libc::c_long) -> Result<(), Errno> {
    system().map_or(Ok(()), |system| system.before(number))
}

/// Makes the call itself, on the kernel, for a system that has let it through.
pub fn kernel(number: libc::c_long, args: [usize; 6]) -> isize {
    super::arch::kernel(number, args)
}

/// Called before an engine thread is started. False if the start must fail.
pub fn starts() -> bool {
    system().is_none_or(|system| system.starts())
}

/// Lives while an engine thread runs.
pub struct Running(());

impl Running {
    /// Marks the beginning of the thread.
    pub fn begin() -> Running {
        if let Some(system) = system() {
            system.begins();
        }
        Running(())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(system) = system() {
            system.ends();
        }
    }
}
