//! Functions by which a test program chooses the moment of a panic or an allocation failure. Built with the feature
//! `forced-panics` only.

use anyring_engine::alloc::failing;
use core::ffi::{c_char, c_int, c_long, CStr};

/// Arms `POINT` or `POINT:N` of `anyring_engine::forced` from now on; -1 if there is no such point.
///
/// # Safety
/// `wanted` is a C string.
#[no_mangle]
pub unsafe extern "C" fn anyring_force_panic(wanted: *const c_char) -> c_int {
    // SAFETY: the caller's promise.
    let wanted = unsafe { CStr::from_ptr(wanted) };
    match wanted.to_str().is_ok_and(anyring_engine::forced::arm) {
        true => 0,
        false => -1,
    }
}

/// Lets the next `before` fallible allocations succeed, then makes `count` in a row fail. Returns 1 if an allocation
/// has failed since the last call of this function.
#[no_mangle]
pub extern "C" fn anyring_fail_memory(before: c_long, count: c_long) -> c_int {
    let has_failed = failing::has_failed();
    failing::fail(before, count);
    has_failed.into()
}
