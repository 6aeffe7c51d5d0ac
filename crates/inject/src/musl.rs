//! A program that inherited LD_PRELOAD and whose C library is not glibc: it starts and runs, unserved.
//!
//! musl's loader ends a program when a preloaded library needs a library or a function that it does not have. So
//! libanyring.so needs `libc.so.6` alone, which musl takes for itself (build.rs), and none of the functions that only
//! glibc has. The standard library and the unwinder call two of them; they get those below, which stay hidden in this
//! library. All that is wrapped then ends in musl's own functions.

use crate::next::next;
use core::ffi::{c_char, c_int, c_void};

next! {
    FIND_OBJECT = c"_dl_find_object": fn(*mut c_void, *mut c_void) -> c_int;
    VERSION = c"gnu_get_libc_version": fn() -> *const c_char;
}

/// Whether the engine can work in this process: not without the function by which panics are caught.
#[cfg(not(test))]
pub fn is_glibc() -> bool {
    FIND_OBJECT.get().is_some()
}

/// As glibc's: -1 where it does not know the address.
extern "C" fn find_object(address: *mut c_void, result: *mut c_void) -> c_int {
    match FIND_OBJECT.get() {
        // SAFETY: the unwinder's own arguments.
        Some(next) => unsafe { next(address, result) },
        None => -1,
    }
}

/// As glibc's. The standard library asks before it uses what newer ones have.
extern "C" fn version() -> *const c_char {
    match VERSION.get() {
        // SAFETY: takes no arguments.
        Some(next) => unsafe { next() },
        None => c"0".as_ptr(),
    }
}

// Not #[no_mangle], which would put them before the program's own.
core::arch::global_asm!(
    ".globl _dl_find_object",
    ".hidden _dl_find_object",
    ".type _dl_find_object, @function",
    "_dl_find_object: jmp {find_object}",
    ".globl gnu_get_libc_version",
    ".hidden gnu_get_libc_version",
    ".type gnu_get_libc_version, @function",
    "gnu_get_libc_version: jmp {version}",
    find_object = sym find_object,
    version = sym version,
);
