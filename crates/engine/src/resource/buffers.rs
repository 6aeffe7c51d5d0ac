//! Registered buffers: io_uring_register(2), IORING_REGISTER_BUFFERS and what works on it. Only the ranges are kept:
//! nothing is pinned, and the kernel checks the addresses again at each transfer.

use super::tag::{Tag, Tagged};
use crate::alloc;
use crate::mutation::{mutated, Mutation};
use crate::os::user_read;
use crate::Errno;
use core::ops::Range;
use std::sync::Arc;

/// The most buffers a ring takes (`IORING_MAX_REG_BUFFERS`).
pub const MAX_BUFFERS: u32 = 1 << 14;
/// The largest buffer, in bytes.
const MAX_BYTES: u64 = 1 << 30;

/// A range of program memory that requests may name by its index. Requests in flight keep theirs (`Arc`).
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
    /// How many slots there are, empty ones among them.
    pub fn size(&self) -> usize {
        self.slots.len()
    }

    /// Registers `count` iovecs found at `address`, with their tags (0, or missing, for none). An `address` of 0 leaves
    /// all slots empty.
    pub fn new(ring: &'static dyn Tagged, address: u64, count: u32, tags: &[u64]) -> Result<Buffers, Errno> {
        if address == 0 && tags.iter().any(|tag| *tag != 0) {
            return Err(Errno::INVAL); // `io_sqe_buffers_register` in io_uring/rsrc.c: a tag needs a buffer
        }
        let mut buffers = Buffers { slots: alloc::filled(None, count as usize)? };
        if address != 0 {
            let filled = buffers.fill_slots(ring, 0..count, address, tags);
            if let (_, Err(error)) = filled {
                buffers.slots.iter().flatten().flat_map(|buffer| &buffer.tag).for_each(Tag::forget);
                return Err(error);
            }
        }
        Ok(buffers)
    }

    /// Replaces `count` buffers from slot `first` on; answers how many were done before an error.
    pub fn fill(
        &mut self,
        ring: &'static dyn Tagged,
        first: u32,
        address: u64,
        count: u32,
        tags: &[u64],
    ) -> Result<usize, Errno> {
        let end = first.checked_add(count).ok_or(Errno::OVERFLOW)?;
        if end as usize > self.slots.len() {
            return Err(Errno::INVAL);
        }
        match self.fill_slots(ring, first..end, address, tags) {
            (0, Err(error)) => Err(error),
            (done, _) => Ok(done),
        }
    }

    /// The same for slots that there are: how many were done, and what ended it.
    fn fill_slots(
        &mut self,
        ring: &'static dyn Tagged,
        slots: Range<u32>,
        address: u64,
        tags: &[u64],
    ) -> (usize, Result<(), Errno>) {
        let slots = &mut self.slots[slots.start as usize..slots.end as usize];
        for (done, slot) in slots.iter_mut().enumerate() {
            let tag = tags.get(done).copied().unwrap_or(0);
            let range = alloc::reserve().and_then(|()| user_range(address, done as u64));
            match range {
                Ok(None) if tag != 0 => return (done, Err(Errno::INVAL)),
                Ok(range) => {
                    *slot =
                        range.map(|(address, bytes)| Arc::new(Buffer { address, bytes, tag: Tag::new(ring, tag) }));
                }
                Err(error) => return (done, Err(error)),
            }
        }
        (slots.len(), Ok(()))
    }

    /// How many slots there are.
    pub fn slot_count(&self) -> u32 {
        self.slots.len() as u32
    }

    /// The buffer with index `index`; `EFAULT` where none is.
    pub fn get(&self, index: u16) -> Result<&Arc<Buffer>, Errno> {
        self.slots.get(usize::from(index)).and_then(Option::as_ref).ok_or(Errno::FAULT)
    }

    /// The ranges (address, bytes) in these slots, with the empty ones as `None`.
    pub fn ranges(&self, slots: Range<u32>) -> Result<Vec<Option<(u64, u64)>>, Errno> {
        let slots = &self.slots[slots.start as usize..slots.end as usize];
        let mut ranges = Vec::new();
        ranges.try_reserve_exact(slots.len()).map_err(alloc::refused)?;
        ranges.extend(slots.iter().map(|slot| slot.as_ref().map(|buffer| (buffer.address, buffer.bytes))));
        Ok(ranges)
    }

    /// Puts untagged buffers of these ranges into the slots from `first` on, and makes the table larger where needed.
    ///
    /// # Errors
    /// NOMEM: some may have been placed.
    pub fn place(&mut self, first: u32, ranges: &[Option<(u64, u64)>]) -> Result<(), Errno> {
        let first = first as usize;
        let size = self.slots.len().max(first + ranges.len());
        self.slots.try_reserve_exact(size - self.slots.len()).map_err(alloc::refused)?;
        self.slots.resize(size, None);
        for (slot, range) in self.slots[first..].iter_mut().zip(ranges) {
            alloc::reserve()?;
            *slot = range.map(|(address, bytes)| Arc::new(Buffer { address, bytes, tag: None }));
        }
        Ok(())
    }

    /// The buffer with index `index`, which `address..address + bytes` must lie in. Source: `io_import_fixed` in
    /// io_uring/rsrc.c.
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

/// The `index`th iovec at `address`, if it could be pinned: both ends readable. `None` for an empty one.
fn user_range(address: u64, index: u64) -> Result<Option<(u64, u64)>, Errno> {
    let [base, bytes]: [u64; 2] = user_read(address.wrapping_add(16 * index))?;
    match (base, bytes) {
        (_, bytes) if bytes > isize::MAX as u64 => Err(Errno::INVAL), // no iovec at all
        (0, 0) => Ok(None),
        (0, _) | (_, 0) => Err(Errno::FAULT),
        (_, bytes) if bytes > MAX_BYTES => Err(Errno::FAULT),
        _ => {
            let end = base.checked_add(bytes).ok_or(Errno::OVERFLOW)?;
            user_read::<u8>(base)?;
            user_read::<u8>(end - 1)?;
            Ok(Some((base, bytes)))
        }
    }
}
