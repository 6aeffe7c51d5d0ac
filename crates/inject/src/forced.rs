//! How a test program chooses the moment of a panic. Only in the build with the feature `forced-panics`.

use core::ffi::{c_char, c_int, CStr};

/// Arms `POINT` or `POINT:N` of `anyring_engine::forced` from now on; -1 when there is no such point.
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
