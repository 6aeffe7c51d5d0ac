//! What every entry point does alike: no panic leaves it, and errno is what libc would have left.

use crate::sys;
use std::panic::{catch_unwind, AssertUnwindSafe};

/// Runs an entry point's body; a panic in it becomes -EIO.
#[inline]
pub fn answer(body: impl FnOnce() -> isize) -> isize {
    catch_unwind(AssertUnwindSafe(body)).unwrap_or(-(libc::EIO as isize))
}

/// Runs what an entry point has to do before the real call. The program's call goes on whatever happens here, with
/// errno as it was.
#[inline]
pub fn aside(body: impl FnOnce()) {
    let errno = sys::errno();
    // A panic has been written to the log by the hook; the call itself must not suffer from it.
    let _ = catch_unwind(AssertUnwindSafe(body));
    sys::set_errno(errno);
}

/// Turns the kernel's register into libc's answer: -1 and errno for an error, else the value with errno untouched.
#[inline]
pub fn libc_answer(register: isize) -> isize {
    if (-4095..0).contains(&register) {
        sys::set_errno(-register as i32);
        return -1;
    }
    register
}
