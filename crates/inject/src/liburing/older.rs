//! Programs linked with liburing.so.1 (0.1 to 1.0), whose `struct io_uring` has another layout. This library's symbols
//! have no version, so the calls of such programs arrive here, too. They are passed on to the program's own liburing.
//! That one makes its system calls by libc's syscall(3), which this library also pre-empts.

use crate::next::next;
use core::ffi::{c_int, c_uint, c_void};
use core::sync::atomic::{AtomicU8, Ordering};

next! {
    QUEUE_INIT = c"io_uring_queue_init": fn(c_uint, *mut c_void, c_uint) -> c_int;
    // liburing 2.0 is the first to have it.
    FREE_PROBE = c"io_uring_free_probe": fn(*mut c_void);
}

/// True if the liburing that this library pre-empts is liburing.so.1.
#[inline]
pub fn is_next() -> bool {
    STATE.load(Ordering::Relaxed) != NEWER && is_older()
}

/// The result of [`is_older`]. Relaxed: every thread finds the same value.
static STATE: AtomicU8 = AtomicU8::new(UNKNOWN);
const UNKNOWN: u8 = 0;
/// This library pre-empts no other liburing, or liburing.so.2.
const NEWER: u8 = 1;
const OLDER: u8 = 2;

#[cold]
fn is_older() -> bool {
    if STATE.load(Ordering::Relaxed) == UNKNOWN {
        let is_older = QUEUE_INIT.get().is_some() && FREE_PROBE.get().is_none();
        STATE.store(if is_older { OLDER } else { NEWER }, Ordering::Relaxed);
    }
    STATE.load(Ordering::Relaxed) == OLDER
}

/// Begins each function that liburing.so.1 has, too. If the program was built for liburing.so.1, the function here
/// only returns the answer of that library's function. It does so before it reads the program's memory.
macro_rules! hand_on {
    ($name:ident($($arg:ident: $type:ty),*) $(-> $answer:ty)?) => {
        if $crate::liburing::older::is_next() {
            const NAME: &core::ffi::CStr =
                match core::ffi::CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                    Ok(name) => name,
                    Err(_) => panic!(),
                };
            type Function = unsafe extern "C-unwind" fn($($type),*) $(-> $answer)?;
            // SAFETY: the type is this function's own. In liburing.so.1 the function has the same type, except for the
            // structures that its pointers lead to.
            static NEXT: $crate::next::Next<Function> = unsafe { $crate::next::Next::new(NAME) };
            if let Some(next) = NEXT.get() {
                // SAFETY: the caller's own arguments.
                return unsafe { next($($arg),*) };
            }
        }
    };
}
pub(crate) use hand_on;
