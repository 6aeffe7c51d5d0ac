//! Registered buffers: io_uring_register(2), IORING_REGISTER_BUFFERS. Only the ranges are kept: nothing is pinned, and
//! the kernel checks the addresses again at each transfer.

use crate::os::user_read;
use crate::Errno;

/// The most buffers a ring takes (`IORING_MAX_REG_BUFFERS`).
const MAX_BUFFERS: u32 = 1 << 14;
/// The largest buffer, in bytes.
const MAX_BYTES: u64 = 1 << 30;

/// The table of registered buffers of a ring: address and length, empty slots with length 0.
#[derive(Debug)]
pub struct Buffers {
    slots: Vec<(u64, u64)>,
}

impl Buffers {
    /// Registers `count` iovecs found at `address`.
    pub fn new(address: u64, count: u32) -> Result<Buffers, Errno> {
        if count == 0 || count > MAX_BUFFERS {
            return Err(Errno::INVAL);
        }
        let mut slots = Vec::with_capacity(count as usize);
        for index in 0..u64::from(count) {
            let [base, bytes]: [u64; 2] = user_read(address + 16 * index)?;
            slots.push(check(base, bytes)?);
        }
        Ok(Buffers { slots })
    }

    /// Whether `address..address + bytes` lies inside buffer `index`. Source: `io_import_fixed` in io_uring/rsrc.c.
    pub fn admits(&self, index: u16, address: u64, bytes: u64) -> Result<(), Errno> {
        let (base, length) = *self.slots.get(usize::from(index)).ok_or(Errno::FAULT)?;
        let end = address.checked_add(bytes).ok_or(Errno::FAULT)?;
        if length == 0 || address < base || end > base + length {
            return Err(Errno::FAULT);
        }
        Ok(())
    }
}

/// A buffer that could be pinned: both ends readable.
fn check(base: u64, bytes: u64) -> Result<(u64, u64), Errno> {
    match (base, bytes) {
        (0, 0) => Ok((0, 0)),
        (0, _) | (_, 0) => Err(Errno::FAULT),
        (_, bytes) if bytes > MAX_BYTES => Err(Errno::FAULT),
        _ => {
            base.checked_add(bytes).ok_or(Errno::OVERFLOW)?;
            user_read::<u8>(base)?;
            user_read::<u8>(base + bytes - 1)?;
            Ok((base, bytes))
        }
    }
}
