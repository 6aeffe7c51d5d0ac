//! A registered memory region: io_uring_register(2), IORING_REGISTER_MEM_REGION. Waits may read their arguments from
//! it (IORING_ENTER_EXT_ARG_REG). The region is program memory, or a memfd that the program maps through the ring's
//! descriptor. If memfds are refused, other shared memory takes the memfd's place.

use crate::memory::{sealed_memfd, Area, SharedArea, MAKES_MEMFDS};
use crate::os::arch::page_bytes;
use crate::os::calls;
use crate::os::{check_writable, user_read, user_write};
use crate::{descriptors, Errno};
use anyring_abi::{IORING_MAP_OFF_PARAM_REGION, IORING_MEM_REGION_REG_WAIT_ARG, IORING_MEM_REGION_TYPE_USER};
use rustix::fd::IntoRawFd;

/// The mmap(2) offset of a region that the engine made.
pub const MAP_OFFSET: u64 = IORING_MAP_OFF_PARAM_REGION;
/// Bytes of `struct io_uring_reg_wait`.
pub const ENTRY_BYTES: u64 = 64;

/// The region of a ring.
pub struct Region {
    memory: Memory,
    bytes: u64,
    waits: bool,
}

enum Memory {
    /// Program memory at this address.
    Program(u64),
    /// A memfd that belongs to the engine, closed with the region.
    Own(i32),
    /// Anonymous shared memory, where memfds are refused.
    Shared(SharedArea),
}

impl Drop for Region {
    fn drop(&mut self) {
        if let Memory::Own(memfd) = self.memory {
            descriptors::close(memfd);
        }
    }
}

impl Region {
    /// True if waits may read their arguments in the region.
    pub fn holds_waits(&self) -> bool {
        self.waits
    }

    /// Returns the memory of a region that the engine made. The program's mmap(2) maps it.
    pub fn area(&self) -> Option<Area> {
        match &self.memory {
            Memory::Program(_) => None,
            Memory::Own(memfd) => Some(Area::File(*memfd, 0)),
            Memory::Shared(area) => Some(area.area()),
        }
    }

    /// Reads the `struct io_uring_reg_wait` at `offset`, in words of eight bytes. They are seconds, nanoseconds,
    /// minimum wait and flags, signal mask's address, its size, padding. Source: `io_get_ext_arg_reg` in
    /// io_uring/io_uring.c.
    pub fn entry(&self, offset: u64) -> Result<[u64; 8], Errno> {
        let end = offset.checked_add(ENTRY_BYTES).ok_or(Errno::FAULT)?;
        if !offset.is_multiple_of(8) || end > self.bytes {
            return Err(Errno::FAULT);
        }
        match &self.memory {
            Memory::Program(address) => user_read(address + offset),
            Memory::Shared(area) => user_read(area.address() as u64 + offset),
            Memory::Own(memfd) => {
                let mut entry = [0u8; ENTRY_BYTES as usize];
                // SAFETY: the descriptor is the region's own, and open as long as the region lives.
                let memfd = unsafe { rustix::fd::BorrowedFd::borrow_raw(*memfd) };
                calls::pread(memfd, &mut entry, offset)?;
                let (words, _) = entry.as_chunks::<8>();
                Ok(core::array::from_fn(|index| u64::from_ne_bytes(words[index])))
            }
        }
    }
}

impl Region {
    /// Makes the region that the program describes. `disabled`: the ring is still disabled. `arg` is the address of a
    /// `struct io_uring_mem_region_reg`: address of the description, flags, padding. Source: `io_register_mem_region`
    /// in io_uring/register.c, `io_create_region` in io_uring/memmap.c.
    pub fn register(arg: u64, disabled: bool) -> Result<Region, Errno> {
        let [description, flags, padding @ ..]: [u64; 4] = user_read(arg)?;
        // The fields of struct io_uring_region_desc: user_addr, size, flags and id, mmap_offset, padding.
        let [address, bytes, kind, mmap_offset, reserved @ ..]: [u64; 8] = user_read(description)?;
        let waits = flags == IORING_MEM_REGION_REG_WAIT_ARG;
        if padding != [0; 2] || flags & !IORING_MEM_REGION_REG_WAIT_ARG != 0 || (waits && !disabled) {
            return Err(Errno::INVAL);
        }
        let (kind, id) = (kind as u32, kind >> 32);
        if reserved != [0; 4] || kind & !IORING_MEM_REGION_TYPE_USER != 0 {
            return Err(Errno::INVAL);
        }
        if (kind == IORING_MEM_REGION_TYPE_USER) != (address != 0) {
            return Err(Errno::FAULT);
        }
        if bytes == 0 || mmap_offset != 0 || id != 0 {
            return Err(Errno::INVAL);
        }
        let page_bytes = page_bytes() as u64;
        if bytes / page_bytes > i32::MAX as u64 {
            return Err(Errno::TOOBIG);
        }
        if !(address | bytes).is_multiple_of(page_bytes) {
            return Err(Errno::INVAL);
        }
        let memory = match address {
            0 => make(bytes)?,
            _ => {
                check_writable(address, bytes)?;
                Memory::Program(address)
            }
        };
        let own = !matches!(memory, Memory::Program(_));
        let region = Region { memory, bytes, waits };
        if own {
            user_write(description + 24, &MAP_OFFSET)?;
        }
        Ok(region)
    }
}

/// Makes a memfd of `bytes` bytes at the top of the descriptor table, or shared memory if memfds are refused.
fn make(bytes: u64) -> Result<Memory, Errno> {
    if !MAKES_MEMFDS.is_yes() {
        return SharedArea::create(c"anyring-region", bytes as usize).map(Memory::Shared);
    }
    let memfd = sealed_memfd("anyring-region", bytes)?;
    Ok(Memory::Own(descriptors::to_top(memfd)?.into_raw_fd()))
}
