//! fork(3) and _Fork(3). The engine is notified before and after each call.

use crate::next::{missing, next};
use anyring_engine::process;
use core::ffi::c_int;

next! {
    FORK = c"_Fork": fn() -> c_int;
}

/// Makes libc's fork(3) call `forks` before it, `has_forked` after it, and `forked` in the child. If libc lacks the
/// function for this, the engine notices a fork later, by itself.
pub fn register() {
    type Handler = Option<unsafe extern "C" fn()>;
    // Looked up by name: glibc's pthread_atfork is a static function around this one, which another libc's loader would
    // miss.
    // SAFETY: a C string; looks up the first definition in the process.
    let register = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"__register_atfork".as_ptr()) };
    if !register.is_null() {
        // SAFETY: glibc's own function of that name has this type. The handlers stay for as long as the process: the
        // library is never unloaded, and the last argument says that they belong to no object.
        unsafe {
            let register: unsafe extern "C" fn(Handler, Handler, Handler, *const ()) -> i32 =
                core::mem::transmute(register);
            register(Some(forks), Some(has_forked), Some(forked), core::ptr::null());
        }
    }
}

unsafe extern "C" fn forks() {
    process::forks();
}

unsafe extern "C" fn has_forked() {
    process::has_forked();
}

unsafe extern "C" fn forked() {
    process::forked();
}

/// _Fork(3), which calls no handlers. libc's own fork(3) does not call this.
///
/// # Safety
/// As libc's `_Fork`.
#[cfg_attr(not(test), no_mangle)]
#[allow(non_snake_case)] // its name
pub unsafe extern "C-unwind" fn _Fork() -> c_int {
    process::forks();
    // SAFETY: as the caller's own call.
    let answer = FORK.get().map_or_else(missing, |next| unsafe { next() });
    match answer {
        0 => process::forked(),
        _ => process::has_forked(),
    }
    answer
}
