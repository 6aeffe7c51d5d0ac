//! liburing's exported functions, implemented on [`crate::door`]. In the preloaded library they pre-empt those of the
//! installed liburing. Linked with a version map (`cargo xtask dropin`), they are a `liburing.so.2` and a
//! `liburing-ffi.so.2`.
//!
//! All functions follow liburing's man pages. Results are a value or `-errno`, and errno is never touched. Nothing is
//! allocated except the probe that the program frees, and there are no thread-locals. [`setup`] makes and unmakes a
//! ring, [`queue`] submits and reaps, [`register`] is io_uring_register(2), [`ffi`] holds the inline functions of
//! liburing's header. [`layout`] says who may touch which field of `struct io_uring`.
//!
//! As in C, each function's pointer arguments must be what its man page says. For example, a ring must have been set up
//! and not exited. An SQE must belong to such a ring, and memory must have the stated size. That is the safety contract
//! of every function here.
#![allow(clippy::missing_safety_doc)] // the contract is the paragraph above, the same for all

pub mod ffi;
pub mod layout;
pub mod older;
pub mod queue;
pub mod register;
pub mod setup;
#[cfg(test)]
mod tests;

use anyring_engine::forced::{point, Point};
use anyring_engine::ring::broken::contain_any;
use core::ffi::c_int;
use layout::Ring;
pub(crate) use older::hand_on;

/// The version of liburing whose functions are all here.
pub const VERSION: (c_int, c_int) = (2, 15);

/// A function's answer after a panic in this library: the value of its type that is closest to `-EIO`.
pub trait Broken {
    /// The answer.
    const BROKEN: Self;
}

macro_rules! broken {
    ($($type:ty = $answer:expr),*) => { $(impl Broken for $type { const BROKEN: Self = $answer; })* };
}
broken!(i32 = -libc::EIO, isize = -(libc::EIO as isize), u32 = 0, u64 = 0, bool = false, () = ());

impl<T> Broken for *mut T {
    const BROKEN: Self = core::ptr::null_mut();
}

/// Runs an exported function's body so that no panic unwinds into the program. Costs nothing unless there is a panic.
#[inline(always)]
pub(crate) fn guard<T: Broken>(body: impl FnOnce() -> T) -> T {
    // The body holds no lock. The ring stays the program's own memory: whatever the body wrote there is consistent
    // enough for -EIO.
    let body = || {
        point(Point::Liburing);
        body()
    };
    contain_any(body).unwrap_or(T::BROKEN)
}

/// Returns the ring that the program passed.
///
/// # Safety
/// `ring` points to a `struct io_uring` that was set up and not exited, for the length of the call.
#[inline(always)]
pub(crate) unsafe fn ring<'call>(ring: *const Ring) -> &'call Ring {
    // SAFETY: the caller's promise; the fields that other threads may write during the call are cells.
    unsafe { &*ring }
}

/// Returns liburing's major version, whose functions are all here.
#[no_mangle]
pub extern "C" fn io_uring_major_version() -> c_int {
    VERSION.0
}

/// Returns liburing's minor version, whose functions are all here.
#[no_mangle]
pub extern "C" fn io_uring_minor_version() -> c_int {
    VERSION.1
}

/// True if this library is *older* than `major.minor` (io_uring_check_version(3)).
#[no_mangle]
pub extern "C" fn io_uring_check_version(major: c_int, minor: c_int) -> bool {
    (major, minor) > VERSION
}
