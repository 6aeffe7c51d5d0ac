//! Calls on memory. mmap(2) of a ring's descriptor maps the ring's memory. madvise(2) may keep memory from forked
//! children.

use crate::door::Mapping;
use crate::{arch, descriptor, door, entry, named, sys};
use anyring_engine::forced::{point, Point};
use anyring_engine::memory::mapped;
use anyring_engine::os::check;
use anyring_engine::Errno;
use core::ffi::c_int;

/// Returns mmap(2)'s arguments, with the descriptor and offset of a ring replaced by those of its memory. Protection
/// and flags stay as the program asked. `Err` holds the call's answer if the mapping was made here, or if the ring
/// cannot be mapped with these arguments.
pub fn substituted(args: [usize; 6]) -> Result<[usize; 6], isize> {
    let [address, length, protection, flags, fd, offset] = args;
    // The kernel refuses an empty or unaligned mapping before it checks the file.
    let refused = length == 0 || offset % PAGE != 0;
    if !named::concerns(fd as i32) || flags as i32 & libc::MAP_ANONYMOUS != 0 || refused {
        return Ok(args);
    }
    if door::is_own(fd as i32) {
        return Err(-(libc::EBADF as isize));
    }
    point(Point::Mmap);
    match door::map_area(fd as i32, offset as u64, |from| again(from, &args)) {
        Ok(Mapping::File(memory, at)) => Ok([address, length, protection, flags, memory as usize, at as usize]),
        Ok(Mapping::Made(address)) => {
            mapped::record(address, length);
            Err(address as isize)
        }
        Ok(Mapping::Another) => Ok(args),
        Err(error) => Err(-(error.raw_os_error() as isize)),
    }
}

/// The flags of mmap(2) that limit where a mapping may be.
pub const PLACES: i32 = libc::MAP_FIXED | libc::MAP_FIXED_NOREPLACE | arch::MAP_32BIT;

/// Maps the shared memory at `from` a second time, at the place that mmap(2) with these arguments would choose.
fn again(from: usize, args: &[usize; 6]) -> Result<usize, Errno> {
    const READ_WRITE: i32 = libc::PROT_READ | libc::PROT_WRITE;
    let [hint, length, protection, flags, ..] = *args;
    // SAFETY: only maps at a place of the kernel's choice, or where the program asked for a mapping.
    let call = |number, args| check(unsafe { sys::call(number, args) });
    let (mut how, mut place) = (libc::MREMAP_MAYMOVE, 0);
    if hint != 0 || flags as i32 & PLACES != 0 {
        let kind = flags as i32 & PLACES | libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        place = call(libc::SYS_mmap, [hint, length, libc::PROT_NONE as usize, kind as usize, usize::MAX, 0])?;
        how |= libc::MREMAP_FIXED;
    }
    let mapping = call(libc::SYS_mremap, [from, 0, length, how as usize, place, 0]).and_then(|mapping| {
        place = mapping;
        match protection as i32 {
            READ_WRITE => Ok(0),
            _ => call(libc::SYS_mprotect, [mapping, length, protection, 0, 0, 0]),
        }
    });
    if mapping.is_err() && place != 0 {
        let _ = call(libc::SYS_munmap, [place, length, 0, 0, 0, 0]);
    }
    mapping.map(|_| place)
}

/// Records the mapping at `address`. The program asked for it with `args`, and it was made with the arguments `really`.
pub fn mapped(args: &[usize; 6], really: &[usize; 6], address: usize) {
    if args[4] != really[4] {
        mapped::record(address, args[1]);
    }
}

/// The smallest page of x86-64 and AArch64. The offset of mmap(2) is a multiple of it.
const PAGE: usize = 4096;

/// Follows a madvise(2): if the program keeps a ring's memory from children, the engine keeps it from them, too.
pub fn advised(address: usize, advice: c_int) {
    if advice == libc::MADV_DONTFORK && descriptor::rings_exist() {
        entry::aside(|| door::keep_from_children(address));
    }
}
