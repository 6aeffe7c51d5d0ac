//! Vectors of buffers in program memory: `struct iovec`.

use crate::os::user_read_slice;
use crate::Errno;
use anyring_abi::MAX_RW_COUNT;

/// Copies `count` iovecs and checks them as the kernel does. With `cut` they are limited to what one call transfers.
pub(crate) fn import(address: u64, count: usize, cut: bool) -> Result<Vec<[usize; 2]>, Errno> {
    let mut iovecs = crate::alloc::filled([0usize; 2], count)?;
    user_read_slice(address, &mut iovecs)?;
    let mut room = MAX_RW_COUNT;
    for [_, bytes] in &mut iovecs {
        if *bytes > isize::MAX as usize {
            return Err(Errno::INVAL);
        }
        if cut {
            *bytes = room.min(*bytes);
            room -= *bytes;
        }
    }
    Ok(iovecs)
}
