//! mmap(2): a mapping of a ring's descriptor is a mapping of the memory behind it. madvise(2): what is kept from children.

use crate::next::{missing, next};
use crate::{descriptor, door, entry};
use anyring_engine::forced::{point, Point};
use core::ffi::{c_int, c_void};

next! {
    MMAP = c"mmap": fn(*mut c_void, usize, c_int, c_int, c_int, i64) -> *mut c_void;
    MADVISE = c"madvise": fn(*mut c_void, usize, c_int) -> c_int;
}

/// mmap(2)'s arguments with the descriptor and offset of a ring replaced by those of its memory, or `-errno` where a
/// ring cannot be mapped so. Protection and flags stay as the program asked.
pub fn substituted(args: [usize; 6]) -> Result<[usize; 6], isize> {
    let [address, length, protection, flags, fd, offset] = args;
    // An empty or unaligned mapping is refused by the kernel before it looks at the file.
    let refused = length == 0 || offset % PAGE != 0;
    if !door::is_ring(fd as i32) || flags as i32 & libc::MAP_ANONYMOUS != 0 || refused {
        return Ok(args);
    }
    point(Point::Mmap);
    match door::ring_mapping(fd as i32, offset as u64) {
        Ok(Some((memory, at))) => Ok([address, length, protection, flags, memory as usize, at as usize]),
        Ok(None) => Ok(args),
        Err(error) => Err(-(error.raw_os_error() as isize)),
    }
}

/// The smallest page of x86-64 and AArch64, of which mmap(2)'s offset is a multiple.
const PAGE: usize = 4096;

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
    if door::is_ring(fd) {
        entry::aside(|| result = substituted(args));
    }
    let (fd, offset) = match result {
        Ok([.., fd, offset]) => (fd as c_int, offset as i64),
        Err(register) => return entry::libc_answer(register) as *mut c_void,
    };
    match MMAP.get() {
        // SAFETY: the caller's own arguments, or another descriptor and offset with the same meaning.
        Some(next) => unsafe { next(address, length, protection, flags, fd, offset) },
        None => missing() as isize as *mut c_void,
    }
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

/// The program advised the kernel so: what it keeps from children, the engine does, too.
pub fn advised(address: usize, advice: c_int) {
    if advice == libc::MADV_DONTFORK && descriptor::rings_exist() {
        entry::aside(|| door::keep_from_children(address));
    }
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
