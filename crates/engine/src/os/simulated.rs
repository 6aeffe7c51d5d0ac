//! What stands in for the system in the build with the feature `simulated`: every call of the engine passes here.
//!
//! For tests only, never in a library that is used. `tests/simulation/` has the one implementation; without it calls go to the
//! kernel.

use crate::Errno;
use core::sync::atomic::AtomicU32;
use std::sync::OnceLock;

/// A system that takes the engine's calls. Every call may come from any thread.
pub trait System: Sync {
    /// A call, as [`super::syscall`]. With `stop` it ends with EINTR once that is not 0, as of [`super::interruptible`].
    fn call(&self, number: libc::c_long, args: [usize; 6], stop: Option<&AtomicU32>) -> isize;
    /// A call that rustix is about to make.
    ///
    /// # Errors
    /// What it is to fail with instead.
    fn before(&self, number: libc::c_long) -> Result<(), Errno>;
    /// The time of every clock, in nanoseconds.
    fn clock_ns(&self) -> u64;
    /// The calling thread is about to take a lock: another one may come first.
    fn point(&self);
    /// The calling thread looks for what another one does.
    fn spin(&self);
    /// The calling thread is about to start another one of the engine's: whether that is to work.
    fn starts(&self) -> bool;
    /// That thread has begun.
    fn begins(&self);
    /// It ends: the last call that it makes here.
    fn ends(&self);
    /// Whether a thread, by gettid(2), sleeps in a call; None for one that is not known.
    fn sleeps(&self, thread: u32) -> Option<bool>;
}

static SYSTEM: OnceLock<&'static dyn System> = OnceLock::new();

/// From now on `system` takes every call. Once a process, before its first ring.
///
/// # Panics
/// The second time.
pub fn stand_in(system: &'static dyn System) {
    assert!(SYSTEM.set(system).is_ok(), "there is a system");
}

/// Who takes the calls, if not the kernel.
#[inline]
pub fn system() -> Option<&'static dyn System> {
    SYSTEM.get().copied()
}

/// Before a call that rustix makes.
///
/// # Errors
/// What it is to fail with.
pub fn before(number: libc::c_long) -> Result<(), Errno> {
    system().map_or(Ok(()), |system| system.before(number))
}

/// The call itself, for a system that has let it through.
pub fn kernel(number: libc::c_long, args: [usize; 6]) -> isize {
    super::arch::kernel(number, args)
}

/// Before a thread of the engine's is started: whether that is to work.
pub fn starts() -> bool {
    system().is_none_or(|system| system.starts())
}

/// A thread of the engine's, until this is dropped.
pub struct Running(());

impl Running {
    /// It begins.
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
