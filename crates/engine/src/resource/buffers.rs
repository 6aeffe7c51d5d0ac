//! Registered buffers: io_uring_register(2), IORING_REGISTER_BUFFERS and the calls that work on them. The engine
//! keeps only the ranges. It pins nothing, and the kernel checks the addresses again at each transfer.

use super::table::{Table, Update};
use super::tag::{Tag, Tagged};
use crate::alloc;
use crate::mutation::{mutated, Mutation};
use crate::os::arch::page_bytes;
use crate::os::mapping::Mappings;
use crate::os::{check_writable, user_read, version};
use crate::Errno;
use core::ops::Range;
use std::sync::Arc;

/// The most buffers that a ring takes (`IORING_MAX_REG_BUFFERS`).
pub const MAX_BUFFERS: u32 = 1 << 14;
/// The largest buffer, in bytes, and the error of a larger one.
const MAX_BYTES: (u64, Errno) = (1 << 30, Errno::FAULT);
/// The largest buffer from Linux 7.3 on, and its error. There a buffer must also have fewer pages than `PAGES`.
const MAX_BYTES_7_3: (u64, Errno) = (1 << 40, Errno::INVAL);
const PAGES: u64 = 1 << 28;

/// A range of program memory that requests may name by its index. A request in flight keeps its range (`Arc`).
#[derive(Debug)]
pub struct Buffer {
    address: u64,
    bytes: u64,
    tag: Option<Tag>,
}

/// The table of registered buffers of a ring.
#[derive(Debug, Default)]
pub struct Buffers {
    slots: Vec<Option<Arc<Buffer>>>,
}

impl Buffers {
    /// Returns the number of slots, including empty ones.
    pub fn size(&self) -> usize {
        self.slots.len()
    }

    /// Registers the iovecs of `table` with their tags. An address of 0 leaves all slots empty.
    pub fn new(ring: &'static dyn Tagged, table: &Table) -> Result<Buffers, Errno> {
        let mut buffers = Buffers { slots: alloc::filled(None, table.count as usize)? };
        let mut mappings = Mappings::default();
        for (index, slot) in (0..).zip(&mut buffers.slots) {
            match buffer_of(ring, table, index, &mut mappings) {
                Ok(buffer) => *slot = buffer,
                Err(error) => {
                    buffers.slots.iter().flatten().flat_map(|buffer| &buffer.tag).for_each(Tag::forget);
                    return Err(error);
                }
            }
        }
        Ok(buffers)
    }

    /// Replaces the buffers in existing slots. Returns the number of slots replaced before an error.
    pub fn update(&mut self, ring: &'static dyn Tagged, update: &Update) -> Result<u32, Errno> {
        let mut mappings = Mappings::default();
        for (done, slot) in (0..update.table.count).zip(&mut self.slots[update.first as usize..]) {
            match buffer_of(ring, &update.table, done, &mut mappings) {
                Ok(buffer) => *slot = buffer,
                Err(error) if done == 0 => return Err(error),
                Err(_) => return Ok(done),
            }
        }
        Ok(update.table.count)
    }

    /// Returns the number of slots.
    pub fn slot_count(&self) -> u32 {
        self.slots.len() as u32
    }

    /// Returns the buffer with index `index`. Fails with `EFAULT` if there is none.
    pub fn get(&self, index: u16) -> Result<&Arc<Buffer>, Errno> {
        self.slots.get(usize::from(index)).and_then(Option::as_ref).ok_or(Errno::FAULT)
    }

    /// Returns the ranges (address, bytes) in these slots, with `None` for empty slots.
    pub fn ranges(&self, slots: Range<u32>) -> Result<Vec<Option<(u64, u64)>>, Errno> {
        let slots = &self.slots[slots.start as usize..slots.end as usize];
        let mut ranges = Vec::new();
        ranges.try_reserve_exact(slots.len()).map_err(alloc::refused)?;
        ranges.extend(slots.iter().map(|slot| slot.as_ref().map(|buffer| (buffer.address, buffer.bytes))));
        Ok(ranges)
    }

    /// Puts untagged buffers of these ranges into the slots from `first` on, and grows the table if needed.
    ///
    /// # Errors
    /// NOMEM. Some buffers may have been placed.
    pub fn place(&mut self, first: u32, ranges: &[Option<(u64, u64)>]) -> Result<(), Errno> {
        let first = first as usize;
        let size = self.slots.len().max(first + ranges.len());
        self.slots.try_reserve_exact(size - self.slots.len()).map_err(alloc::refused)?;
        self.slots.resize(size, None);
        // In this order the tags of the buffers that were there before are reported: see `drop`.
        for (slot, range) in self.slots[first..first + ranges.len()].iter_mut().zip(ranges).rev() {
            alloc::reserve()?;
            *slot = range.map(|(address, bytes)| Arc::new(Buffer { address, bytes, tag: None }));
        }
        Ok(())
    }

    /// Returns the buffer with index `index`, which must contain `address..address + bytes`. Source:
    /// `io_import_fixed` in io_uring/rsrc.c.
    pub fn find(&self, index: u16, address: u64, bytes: u64) -> Result<&Arc<Buffer>, Errno> {
        let buffer = self.get(index)?;
        let end = address.checked_add(bytes).ok_or(Errno::FAULT)?;
        let outside = mutated(Mutation::FirstByteIsOutside) && address == buffer.address;
        if address < buffer.address || end > buffer.address + buffer.bytes || outside {
            return Err(Errno::FAULT);
        }
        Ok(buffer)
    }
}

impl Drop for Buffers {
    /// Reports tags from the last slot to the first (`io_rsrc_data_free` in io_uring/rsrc.c).
    fn drop(&mut self) {
        while self.slots.pop().is_some() {}
    }
}

/// Makes the buffer at `index` of `table`. `None` if the slot stays empty. Source: `io_sqe_buffers_register` in
/// io_uring/rsrc.c.
fn buffer_of(
    ring: &'static dyn Tagged,
    table: &Table,
    index: u32,
    mappings: &mut Mappings,
) -> Result<Option<Arc<Buffer>>, Errno> {
    alloc::reserve()?;
    let range = if table.address == 0 { None } else { user_range(table.address, index.into(), mappings)? };
    match (range, table.tag(index)?) {
        (None, 0) => Ok(None),
        (None, _) => Err(Errno::INVAL), // a tag needs a buffer
        (Some((address, bytes)), tag) => Ok(Some(Arc::new(Buffer { address, bytes, tag: Tag::new(ring, tag) }))),
    }
}

/// Reads the `index`th iovec at `address`. Checks that it could be pinned: both ends must be writable, and no part may
/// map a file on a disk. `None` for an empty iovec.
fn user_range(address: u64, index: u64, mappings: &mut Mappings) -> Result<Option<(u64, u64)>, Errno> {
    let [base, bytes]: [u64; 2] = user_read(address.wrapping_add(16 * index))?;
    match (base, bytes) {
        (_, bytes) if bytes > isize::MAX as u64 => Err(Errno::INVAL), // no iovec at all
        (0, 0) => Ok(None),
        (0, _) | (_, 0) => Err(Errno::FAULT),
        _ => {
            let (most, error) = if version::answers_as_7_3() { MAX_BYTES_7_3 } else { MAX_BYTES };
            if bytes > most {
                return Err(error);
            }
            let end = base.checked_add(bytes).ok_or(Errno::OVERFLOW)?;
            let page = page_bytes() as u64;
            if end.div_ceil(page) - base / page >= PAGES {
                return Err(Errno::OVERFLOW);
            }
            for byte in [base, end - 1] {
                check_writable(byte & !3, 1)?;
            }
            if mappings.is_written_back(base, end) {
                return Err(Errno::FAULT);
            }
            Ok(Some((base, bytes)))
        }
    }
}
