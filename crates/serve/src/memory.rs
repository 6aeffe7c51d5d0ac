//! mmap(2): a mapping of a ring's descriptor is a mapping of the memory behind it. madvise(2): what is kept from children.

use crate::{descriptor, door, entry, named};
use anyring_engine::forced::{point, Point};
use anyring_engine::memory::mapped;
use core::ffi::c_int;

/// mmap(2)'s arguments with the descriptor and offset of a ring replaced by those of its memory, or `-errno` where a
/// ring cannot be mapped so. Protection and flags stay as the program asked.
pub fn substituted(args: [usize; 6]) -> Result<[usize; 6], isize> {
    let [address, length, protection, flags, fd, offset] = args;
    // An empty or unaligned mapping is refused by the kernel before it looks at the file.
    let refused = length == 0 || offset % PAGE != 0;
    if !named::concerns(fd as i32) || flags as i32 & libc::MAP_ANONYMOUS != 0 || refused {
        return Ok(args);
    }
    if door::is_own(fd as i32) {
        return Err(-(libc::EBADF as isize));
    }
    point(Point::Mmap);
    match door::ring_mapping(fd as i32, offset as u64) {
        Ok(Some((memory, at))) => Ok([address, length, protection, flags, memory as usize, at as usize]),
        Ok(None) => Ok(args),
        Err(error) => Err(-(error.raw_os_error() as isize)),
    }
}

/// A mapping that the program asked for with `args`, and that was made with `really`, is at `address`.
pub fn mapped(args: &[usize; 6], really: &[usize; 6], address: usize) {
    if args[4] != really[4] {
        mapped::note(address, args[1]);
    }
}

/// The smallest page of x86-64 and AArch64, of which mmap(2)'s offset is a multiple.
const PAGE: usize = 4096;

/// The program advised the kernel so: what it keeps from children, the engine does, too.
pub fn advised(address: usize, advice: c_int) {
    if advice == libc::MADV_DONTFORK && descriptor::rings_exist() {
        entry::aside(|| door::keep_from_children(address));
    }
}
