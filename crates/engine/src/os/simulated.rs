//! A replacement for the system in the build with the feature `simulated`: every call of the engine passes here.
//!
//! For tests only, never in a library that is used. The one implementation is in `tests/simulation/`; without it,
//! calls go to the kernel.

use crate::Errno;
use core::sync::atomic::AtomicU32;
use std::sync::OnceLock;

/// A system that takes the engine's calls. Every call may come from any thread.
pub trait System: Sync {
    /// Makes a call, as [`super::syscall`]. With `stop` it ends with EINTR once that is not 0, as
    /// [`super::interruptible`] does.
    fn call(&self, number: libc::c_long, args: [usize; 6], stop: Option<&AtomicU32>) -> isize;
    /// Called before a call that rustix makes.
    ///
    /// # Errors
    /// The error that the call must fail with instead.
    fn before(&self, number: libc::c_long) -> Result<(), Errno>;
    /// Returns the time of every clock, in nanoseconds.
    fn clock_ns(&self) -> u64;
    /// Called before the calling thread takes a lock: another thread may run first.
    fn point(&self);
    /// Called while the calling thread spins for another one's action.
    fn spin(&self);
    /// Called before the calling thread starts another one of the engine's; false if that must fail.
    fn starts(&self) -> bool;
    /// Called when the new thread has begun.
    fn begins(&self);
    /// Called when the thread ends: its last call here.
    fn ends(&self);
    /// True if a thread, by gettid(2), sleeps in a call; `None` if it is not known.
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

/// Returns the system that takes the calls, if it is not the kernel.
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

/// Makes the call itself, for a system that has let it through.
pub fn kernel(number: libc::c_long, args: [usize; 6]) -> isize {
    super::arch::kernel(number, args)
}

/// Called before a thread of the engine's is started; false if that must fail.
pub fn starts() -> bool {
    system().is_none_or(|system| system.starts())
}

/// A thread of the engine's, until this is dropped.
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
