//! The file that a function comes from.

use std::ffi::{c_void, CStr};

/// Returns the file that holds `function`, by the loader's name (dladdr(3)).
pub fn of(function: *const c_void) -> String {
    let mut info = libc::Dl_info {
        dli_fname: std::ptr::null(),
        dli_fbase: std::ptr::null_mut(),
        dli_sname: std::ptr::null(),
        dli_saddr: std::ptr::null_mut(),
    };
    // SAFETY: `info` is writable; any address may be looked up.
    let found = unsafe { libc::dladdr(function, &mut info) };
    if found == 0 || info.dli_fname.is_null() {
        return "unknown".to_owned();
    }
    // SAFETY: the loader's own string, kept as long as the object is loaded; nothing is unloaded here.
    unsafe { CStr::from_ptr(info.dli_fname) }.to_string_lossy().into_owned()
}
