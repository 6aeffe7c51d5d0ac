//! Calls on memory that the engine has to know. mmap(2) of a ring's descriptor maps the ring's memory. madvise(2) may
//! keep memory from children. mlockall(2) affects later mappings.

use crate::next::{missing, next};
use crate::{entry, sanitizer};
use anyring_engine::os::unlocked;
use anyring_serve::memory::{mapped, substituted};
use anyring_serve::named::concerns;
use core::ffi::{c_int, c_void};

pub use anyring_serve::memory::advised;

next! {
    MMAP = c"mmap": fn(*mut c_void, usize, c_int, c_int, c_int, i64) -> *mut c_void;
    MLOCKALL = c"mlockall": fn(c_int) -> c_int;
    MADVISE = c"madvise": fn(*mut c_void, usize, c_int) -> c_int;
}

/// mmap(2).
///
/// # Safety
/// As libc's `mmap`.
#[cfg_attr(not(test), no_mangle)]
pub unsafe extern "C" fn mmap(
    address: *mut c_void,
    length: usize,
    protection: c_int,
    flags: c_int,
    fd: c_int,
    offset: i64,
) -> *mut c_void {
    let args = [address as usize, length, protection as usize, flags as usize, fd as usize, offset as usize];
    let mut result = Ok(args);
    if concerns(fd) {
        entry::aside(|| result = substituted(args));
    }
    let really = match result {
        Ok(really) => really,
        Err(register) => {
            if register > 0 {
                sanitizer::mapped(fd, offset, register as usize);
            }
            return entry::libc_answer(register) as *mut c_void;
        }
    };
    let [.., memory, at] = really;
    let Some(next) = MMAP.get() else { return missing() as isize as *mut c_void };
    // SAFETY: the caller's own arguments, or another descriptor and offset with the same meaning.
    let mapping = unsafe { next(address, length, protection, flags, memory as c_int, at as i64) };
    if memory as c_int != fd && mapping != libc::MAP_FAILED {
        mapped(&args, &really, mapping as usize);
        sanitizer::mapped(fd, offset, mapping as usize);
    }
    mapping
}

/// mmap64(2): the same function on x86-64.
///
/// # Safety
/// As libc's `mmap64`.
#[cfg_attr(not(test), no_mangle)]
pub unsafe extern "C" fn mmap64(
    address: *mut c_void,
    length: usize,
    protection: c_int,
    flags: c_int,
    fd: c_int,
    offset: i64,
) -> *mut c_void {
    // SAFETY: the caller's contract is the same.
    unsafe { mmap(address, length, protection, flags, fd, offset) }
}

/// madvise(2).
///
/// # Safety
/// As libc's `madvise`.
#[cfg_attr(not(test), no_mangle)]
pub unsafe extern "C" fn madvise(address: *mut c_void, length: usize, advice: c_int) -> c_int {
    // SAFETY: the caller's own arguments.
    let answer = MADVISE.get().map_or_else(missing, |next| unsafe { next(address, length, advice) });
    if answer == 0 {
        advised(address as usize, advice);
    }
    answer
}

/// mlockall(2).
///
/// # Safety
/// As libc's `mlockall`.
#[cfg_attr(not(test), no_mangle)]
pub unsafe extern "C" fn mlockall(flags: c_int) -> c_int {
    // SAFETY: the caller's own argument.
    let answer = MLOCKALL.get().map_or_else(missing, |next| unsafe { next(flags) });
    if answer == 0 {
        unlocked::record_mlockall(flags as usize);
    }
    answer
}
