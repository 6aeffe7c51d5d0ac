//! Calls by which a thread changes only its own identity, not that of the other threads. The engine is notified before
//! each call; libc makes the call itself. See `anyring_engine::identity`. Calls that libc makes for all threads
//! (setuid(3) and its like) are not intercepted.

use crate::entry;
use crate::next::{missing, next};
use anyring_engine::process;
use core::ffi::{c_int, c_void};

next! {
    SETFSUID = c"setfsuid": fn(u32) -> c_int;
    SETFSGID = c"setfsgid": fn(u32) -> c_int;
    CAPSET = c"capset": fn(*mut c_void, *const c_void) -> c_int;
    SETNS = c"setns": fn(c_int, c_int) -> c_int;
}

/// Notifies the engine that the program is about to make one of `anyring_engine::identity::NUMBERS`.
pub fn before(number: i64, first: usize) {
    entry::aside(|| process::before_identity_call(number, first));
}

/// setfsuid(2).
///
/// # Safety
/// As libc's `setfsuid`.
#[cfg_attr(not(test), no_mangle)]
pub unsafe extern "C-unwind" fn setfsuid(user: u32) -> c_int {
    before(libc::SYS_setfsuid, user as usize);
    // SAFETY: the caller's own argument.
    SETFSUID.get().map_or_else(missing, |next| unsafe { next(user) })
}

/// setfsgid(2).
///
/// # Safety
/// As libc's `setfsgid`.
#[cfg_attr(not(test), no_mangle)]
pub unsafe extern "C-unwind" fn setfsgid(group: u32) -> c_int {
    before(libc::SYS_setfsgid, group as usize);
    // SAFETY: the caller's own argument.
    SETFSGID.get().map_or_else(missing, |next| unsafe { next(group) })
}

/// capset(2).
///
/// # Safety
/// As libc's `capset`.
#[cfg_attr(not(test), no_mangle)]
pub unsafe extern "C-unwind" fn capset(header: *mut c_void, data: *const c_void) -> c_int {
    before(libc::SYS_capset, 0);
    // SAFETY: the caller's own arguments.
    CAPSET.get().map_or_else(missing, |next| unsafe { next(header, data) })
}

/// setns(2).
///
/// # Safety
/// As libc's `setns`.
#[cfg_attr(not(test), no_mangle)]
pub unsafe extern "C-unwind" fn setns(fd: c_int, kind: c_int) -> c_int {
    before(libc::SYS_setns, 0);
    // SAFETY: the caller's own arguments.
    SETNS.get().map_or_else(missing, |next| unsafe { next(fd, kind) })
}
