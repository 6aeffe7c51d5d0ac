//! Memory of requests in flight. It is copied when the request's turn comes, and compared when the request ends. The
//! engine first reads into a buffer of its own, so that the program's memory stays unchanged until then.
//!
//! From its turn until its CQE, a request's memory belongs to the kernel. If the program writes to that memory or
//! frees it, the file or the peer gets wrong data, or the request fails. With the kernel's io_uring this shows only
//! if the kernel is slow enough.

use crate::alloc::filled;
use crate::os::{check_writable, user_read_slice, user_write_slice};
use crate::request::Id;
use crate::Errno;
use core::mem::ManuallyDrop;
use std::sync::OnceLock;

/// The most bytes of a request's memory that are copied. Of longer data only the first part is copied.
const BYTES_MAX: usize = 1 << 20;
const PAGE_BYTES: usize = 4096;
/// The size, in bytes, of the parts in which memory is compared.
const PART_BYTES: usize = 512;

/// Returns the first poisoned address in a range of this address and size. 0 if there is none.
static POISONED: OnceLock<fn(usize, usize) -> usize> = OnceLock::new();

/// Sets the function that finds poisoned memory. From now on, memory that becomes poisoned counts as changed.
/// AddressSanitizer, which knows what was freed, provides it.
pub fn ask_for_poison(first: fn(usize, usize) -> usize) {
    let _ = POISONED.set(first);
}

/// A request whose memory is watched.
#[derive(Debug)]
pub struct Lifetime {
    /// The request.
    pub id: Id,
    /// The number of the request's SQE on the ring.
    pub number: u64,
    /// The number of the descriptor that the request works on. `None` if the program has no number for it.
    pub fd: Option<i32>,
    /// The time of the request's turn, in CLOCK_MONOTONIC nanoseconds.
    pub since_ns: u64,
    /// The place in the program at that time: see [`Chaos::at`](super::Chaos::at).
    pub at: String,
    /// The request's memory.
    pub memory: Memory,
    /// The engine's buffer into which a read or receive puts its data first. If a call may still write to the
    /// buffer, it is leaked instead of freed.
    pub inlet: Option<ManuallyDrop<Vec<u8>>>,
    /// True if the operation fills some of its memory even when it fails.
    pub fills_on_error: bool,
}

impl Lifetime {
    /// Copies the filled bytes into the request's memory, since the request ends with `result`.
    ///
    /// # Errors
    /// FAULT if the memory cannot be written.
    pub fn fill(&mut self, result: i32) -> Result<(), Errno> {
        let Some(inlet) = self.inlet.take() else { return Ok(()) };
        let fills = result >= 0 || self.fills_on_error;
        let was_interrupted = [-libc::ECANCELED, -libc::EINTR].contains(&result);
        let filled = match usize::try_from(result) {
            Err(_) if !fills => Ok(()),
            count => self.memory.fill(&inlet, count.unwrap_or(0)),
        };
        if !was_interrupted {
            drop(ManuallyDrop::into_inner(inlet)); // with a result, no call writes to it any more
        }
        filled
    }
}

/// A copy of memory as it was.
#[derive(Debug)]
pub struct Memory {
    /// Addresses and lengths, first of the data, then of `parts`.
    ranges: Vec<[usize; 2]>,
    /// The parts that are metadata of the request, by the manual's names.
    parts: Vec<&'static str>,
    /// The copied bytes, one range after the other.
    bytes: Vec<u8>,
    /// True if the memory is registered. The program may unmap such memory, while the kernel still holds the pages.
    registered: bool,
    /// True if part of the memory was poisoned already (a vector's spare capacity, for example).
    was_poisoned: bool,
}

/// A change to memory in flight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// A byte of the part, and perhaps others, has another value.
    Written {
        /// The byte's address.
        address: usize,
        /// Offset of the byte in its part.
        place: usize,
        /// The part that contains it.
        part: Part,
    },
    /// A byte of the part is poisoned now, and no byte of the request's memory was before.
    Poisoned {
        /// The byte's address.
        address: usize,
        /// Offset of the byte in its part.
        place: usize,
        /// The part that contains it.
        part: Part,
    },
    /// The page of a byte can no longer be read, or written.
    Unmapped {
        /// The byte's address.
        address: usize,
        /// The part that contains it.
        part: Part,
    },
}

/// A part of a request's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Part {
    /// The manual's name. `None` for the data.
    pub name: Option<&'static str>,
    /// Number of bytes of the part that are kept.
    pub bytes: usize,
}

impl Memory {
    /// Copies the memory at `ranges` (addresses and lengths): the data, then the parts named in `parts`. `None` if
    /// the ranges are empty, cannot be read, or there is no memory for the copy.
    pub fn keep(mut ranges: Vec<[usize; 2]>, parts: Vec<&'static str>, registered: bool) -> Option<Memory> {
        let mut room = BYTES_MAX;
        for [_, length] in &mut ranges {
            *length = room.min(*length);
            room -= *length;
        }
        let mut bytes = filled(0u8, BYTES_MAX - room).ok().filter(|bytes| !bytes.is_empty())?;
        let mut rest = &mut bytes[..];
        for [address, length] in &ranges {
            let (range, after) = rest.split_at_mut(*length);
            user_read_slice(*address as u64, range).ok()?;
            rest = after;
        }
        let was_poisoned = first_poisoned(&ranges).is_some();
        Some(Memory { ranges, parts, bytes, registered, was_poisoned })
    }

    /// Returns the ranges of the data, and those of the parts.
    fn data_and_parts(&self) -> (&[[usize; 2]], &[[usize; 2]]) {
        self.ranges.split_at(self.ranges.len() - self.parts.len())
    }

    /// Copies an [`inlet`](Self::inlet) into the request's memory: `count` bytes of data, and all parts.
    fn fill(&self, inlet: &[u8], count: usize) -> Result<(), Errno> {
        let (data, parts) = self.data_and_parts();
        let (mut rest, mut left) = (inlet, count);
        for [address, length] in data {
            let (range, after) = rest.split_at(*length);
            user_write_slice(*address as u64, &range[..left.min(*length)])?;
            left = left.saturating_sub(*length);
            rest = after;
        }
        for [address, length] in parts {
            let (range, after) = rest.split_at(*length);
            user_write_slice(*address as u64, range)?;
            rest = after;
        }
        Ok(())
    }

    /// Returns a buffer to read into, with the memory's current content. `None` if part of the memory is not kept or
    /// cannot be written, or there is no memory for the buffer.
    pub fn inlet(&self) -> Option<Vec<u8>> {
        let is_writable = |[address, length]: &[usize; 2]| {
            let begin = address & !(PAGE_BYTES - 1);
            *length == 0 || check_writable(begin as u64, (address + length - begin) as u64).is_ok()
        };
        let all = self.bytes.len() < BYTES_MAX && self.ranges.iter().all(is_writable);
        let mut inlet = all.then(|| filled(0u8, self.bytes.len()).ok())??;
        inlet.copy_from_slice(&self.bytes);
        Some(inlet)
    }

    /// Returns the addresses of the parts in an inlet that begins at `to`.
    pub fn parts_at(&self, to: usize) -> impl Iterator<Item = usize> + '_ {
        let (data, parts) = self.data_and_parts();
        let mut next = to + data.iter().map(|[_, length]| length).sum::<usize>();
        parts.iter().map(move |[_, length]| {
            let at = next;
            next += length;
            at
        })
    }

    /// Returns the part that contains this range.
    fn part(&self, range: usize) -> Part {
        let (data, parts) = self.data_and_parts();
        match range.checked_sub(data.len()) {
            None => Part { name: None, bytes: data.iter().map(|[_, length]| length).sum() },
            Some(part) => Part { name: Some(self.parts[part]), bytes: parts[part][1] },
        }
    }

    /// Returns the change that says that the memory can no longer be written.
    pub fn unwritable(&self) -> Change {
        Change::Unmapped { address: self.ranges.first().map_or(0, |range| range[0]), part: self.part(0) }
    }

    /// Returns the first change since [`keep`](Self::keep).
    pub fn change(&self) -> Option<Change> {
        // Poison is checked first, since the new owner of freed memory may have written to it, too.
        if let Some(poisoned) = self.poisoned() {
            return Some(poisoned);
        }
        let mut before = 0;
        for (range, [address, length]) in self.ranges.iter().enumerate() {
            let kept = &self.bytes[before..before + length];
            if let Some((at, gone)) = first_change(*address, kept) {
                let (address, part) = (address.wrapping_add(at), self.part(range));
                let place = if part.name.is_some() { at } else { before + at };
                match gone {
                    true if self.registered => return None,
                    true => return Some(Change::Unmapped { address, part }),
                    false => return Some(Change::Written { address, place, part }),
                }
            }
            before += length;
        }
        None
    }

    /// Returns the first byte that has become poisoned.
    fn poisoned(&self) -> Option<Change> {
        let (range, at) = first_poisoned(&self.ranges).filter(|_| !self.was_poisoned)?;
        let (address, part) = (self.ranges[range][0] + at, self.part(range));
        let before: usize = self.ranges[..range].iter().map(|[_, length]| length).sum();
        Some(Change::Poisoned { address, place: if part.name.is_some() { at } else { before + at }, part })
    }
}

/// Returns the index of the range with the first poisoned byte, and the byte's offset in it.
fn first_poisoned(ranges: &[[usize; 2]]) -> Option<(usize, usize)> {
    let first = POISONED.get()?;
    ranges.iter().enumerate().find_map(|(range, [address, length])| {
        let at = first(*address, *length);
        (at != 0).then(|| (range, at - address))
    })
}

/// Returns the offset of the first byte at `address` that differs from `kept`, and whether it cannot be read.
fn first_change(address: usize, kept: &[u8]) -> Option<(usize, bool)> {
    let mut now = [0u8; PART_BYTES];
    let mut begin = 0;
    while begin < kept.len() {
        // Read in parts that never cross a page boundary.
        let at = address.wrapping_add(begin);
        let bytes = (PART_BYTES - at % PART_BYTES).min(kept.len() - begin);
        if user_read_slice(at as u64, &mut now[..bytes]).is_err() {
            return Some((begin, true));
        }
        let other = (0..bytes).find(|place| now[*place] != kept[begin + place]);
        if let Some(place) = other {
            return Some((begin + place, false));
        }
        begin += bytes;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::os::syscall;

    fn keep(ranges: &[&[u8]]) -> Option<Memory> {
        let ranges = ranges.iter().map(|range| [range.as_ptr() as usize, range.len()]);
        Memory::keep(ranges.collect(), Vec::new(), false)
    }

    #[test]
    fn the_first_byte_that_was_written_is_reported() {
        let (first, mut second) = (vec![1u8; 700], vec![2u8; 3_000]);
        let memory = keep(&[&first, &second]).expect("readable memory");
        let part = Part { name: None, bytes: 3_700 };
        assert_eq!((memory.part(1), memory.change()), (part, None));
        (second[2_999], second[1_500]) = (9, 9);
        let address = second[1_500..].as_ptr() as usize;
        assert_eq!(memory.change(), Some(Change::Written { address, place: 2_200, part }));
        second[1_500] = 2;
        assert!(matches!(memory.change(), Some(Change::Written { place: 3_699, .. })));
    }

    #[test]
    fn memory_that_is_gone_is_reported_unless_it_is_registered() {
        let flags = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS) as usize;
        let at = syscall(libc::SYS_mmap, [0, 4096, libc::PROT_READ as usize, flags, usize::MAX, 0]) as usize;
        let mut memory = Memory::keep(vec![[at + 96, 1_000]], Vec::new(), false).expect("readable memory");
        assert_eq!(memory.change(), None);
        // Not unmapped, so that no other test gets this memory.
        assert_eq!(syscall(libc::SYS_mprotect, [at, 4096, libc::PROT_NONE as usize, 0, 0, 0]), 0);
        assert_eq!(memory.change(), Some(Change::Unmapped { address: at + 96, part: memory.part(0) }));
        memory.registered = true;
        assert_eq!(memory.change(), None);
    }

    #[test]
    fn data_that_was_read_comes_into_the_memory_at_the_end() {
        let (first, second) = ([1u8; 4], [2u8; 4]);
        let memory = keep(&[&first, &second]).expect("readable memory");
        let mut inlet = memory.inlet().expect("memory that can be written");
        inlet.copy_from_slice(b"abcdefgh");
        let id = Id::from_word(1);
        let inlet = Some(ManuallyDrop::new(inlet));
        let at = String::new();
        let mut lifetime =
            Lifetime { id, number: 1, fd: None, since_ns: 0, at, memory, inlet, fills_on_error: false };
        assert_eq!((lifetime.memory.change(), lifetime.fill(6)), (None, Ok(())));
        let now = |range: &[u8; 4]| crate::os::user_read::<u32>(range.as_ptr() as u64).map(u32::to_ne_bytes);
        assert_eq!((now(&first), now(&second)), (Ok(*b"abcd"), Ok([b'e', b'f', 2, 2])));
    }

    #[test]
    fn a_part_that_is_no_data_is_reported_by_its_name_and_filled_whole() {
        let (data, mut name) = ([1u8; 4], [2u8; 3]);
        let ranges = vec![[data.as_ptr() as usize, 4], [name.as_ptr() as usize, 3]];
        let memory = Memory::keep(ranges, vec!["msg_name"], false).expect("readable memory");
        let inlet = memory.inlet().expect("memory that can be written");
        assert_eq!((&inlet[..], memory.parts_at(100).collect::<Vec<_>>()), (&[1, 1, 1, 1, 2, 2, 2][..], vec![104]));
        name[1] = 9;
        let (address, part) = (name[1..].as_ptr() as usize, Part { name: Some("msg_name"), bytes: 3 });
        assert_eq!(memory.change(), Some(Change::Written { address, place: 1, part }));
        assert_eq!(memory.fill(b"abcdxyz", 1), Ok(()));
        let (mut data_now, mut name_now) = ([0; 4], [0; 3]);
        assert_eq!(user_read_slice(data.as_ptr() as u64, &mut data_now), Ok(()));
        assert_eq!(user_read_slice(name.as_ptr() as u64, &mut name_now), Ok(()));
        assert_eq!((data_now, name_now), (*b"a\x01\x01\x01", *b"xyz"));
    }

    #[test]
    fn memory_that_cannot_be_read_is_not_kept_and_of_much_the_beginning() {
        assert!(keep(&[]).is_none() && keep(&[&[]]).is_none());
        assert!(Memory::keep(vec![[16, 1]], Vec::new(), false).is_none());
        let mut much = vec![0u8; BYTES_MAX + 1];
        let memory = keep(&[&much, &[1]]).expect("readable memory");
        assert_eq!(memory.part(0).bytes, BYTES_MAX);
        much[BYTES_MAX] = 1;
        assert_eq!(memory.change(), None);
    }
}
