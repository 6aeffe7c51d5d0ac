//! The memory of a ring's requests: a place for each, whose every byte is known before and after.

use crate::model::{fill, Made};
use crate::program::{Memory, Opened, Request, Work, BLOCK, REQUESTS, TRANSFER_BYTES};

/// The bytes of a place: a transfer in up to four pieces, and what lies around them.
pub const PLACE_BYTES: usize = TRANSFER_BYTES as usize + 6 * BLOCK as usize;
/// The byte that lies around transfers.
const AROUND: u8 = 0xa5;
/// The most pieces of a vector.
const PIECES: u32 = 4;

/// The places of one ring.
pub struct Places {
    address: *mut u8,
}

/// A piece of a transfer: its offset in the place, and its length.
pub type Piece = (usize, usize);

impl Places {
    /// Maps the memory, at the border of a page.
    pub fn new() -> Places {
        let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        let length = REQUESTS * PLACE_BYTES;
        // SAFETY: at an address of the kernel's choice, so it replaces nothing.
        let address = unsafe { libc::mmap(std::ptr::null_mut(), length, protection, flags, -1, 0) };
        assert_ne!(address, libc::MAP_FAILED, "mmap of {length} bytes");
        Places { address: address.cast() }
    }

    /// Returns a place's address.
    pub fn address(&self, place: usize) -> usize {
        assert!(place < REQUESTS);
        self.address as usize + place * PLACE_BYTES
    }

    /// Makes a place ready for a request that is not in flight yet.
    pub fn prepare(&mut self, place: usize, seed: u64, request: &Request) {
        let before = before(seed, request);
        // SAFETY: the place is inside the mapping, and no request that is in flight has it.
        unsafe { std::ptr::copy_nonoverlapping(before.as_ptr(), self.address(place) as *mut u8, PLACE_BYTES) };
    }

    /// Compares a place with what it must hold after its request's end. Returns the first difference.
    pub fn difference(&self, place: usize, seed: u64, made: &Made) -> Option<String> {
        let mut after = before(seed, &made.request);
        let mut left = &made.read[..];
        let mut free = Vec::new();
        for (at, length) in pieces(&made.request) {
            let (now, later) = left.split_at(left.len().min(length));
            after[at..at + now.len()].copy_from_slice(now);
            // A direct read may fill its last block beyond the file's end.
            if matches!(made.request.work, Work::Read(_, Opened::Direct, _)) {
                free.push(at + now.len()..at + length);
            }
            left = later;
        }
        // SAFETY: inside the mapping; the request has ended, so nothing writes to it.
        let found = unsafe { std::slice::from_raw_parts(self.address(place) as *const u8, PLACE_BYTES) };
        free.into_iter().for_each(|range| after[range.clone()].copy_from_slice(&found[range]));
        difference(&after, found).map(|text| format!("the memory differs: {text}"))
    }
}

impl Drop for Places {
    fn drop(&mut self) {
        // SAFETY: its own mapping; the ring that used it has no request in flight.
        unsafe { libc::munmap(self.address.cast(), REQUESTS * PLACE_BYTES) };
    }
}

/// Returns what a request's place holds before it.
fn before(seed: u64, request: &Request) -> Vec<u8> {
    let mut bytes = vec![AROUND; PLACE_BYTES];
    if let Work::Write(range, ..) = request.work {
        let mut content = vec![0; range.len as usize];
        fill(seed, request.id, &mut content);
        let mut left = &content[..];
        for (at, length) in pieces(request) {
            let (now, later) = left.split_at(length);
            bytes[at..at + length].copy_from_slice(now);
            left = later;
        }
    }
    bytes
}

/// Returns the pieces of a transfer in the file's order. Only direct ones are at the border of a block.
pub fn pieces(request: &Request) -> Vec<Piece> {
    let (Work::Read(range, opened, memory) | Work::Write(range, opened, memory)) = request.work else {
        return Vec::new();
    };
    let unit = if opened == Opened::Direct { BLOCK } else { 1 };
    let skew = if opened == Opened::Direct { 0 } else { request.id % 61 };
    let count = if memory == Memory::Vector { 1 + request.id % PIECES } else { 1 };
    let (mut at, mut left, mut pieces) = (BLOCK + skew, range.len, Vec::new());
    for piece in 0..count {
        let part = (left / (count - piece)).next_multiple_of(unit).min(left);
        let length = if piece + 1 == count { left } else { part };
        if length > 0 {
            pieces.push((at as usize, length as usize));
            at += (length + skew).next_multiple_of(unit) + unit;
            left -= length;
        }
    }
    pieces
}

/// Describes how found bytes differ from those that were expected.
pub fn difference(expected: &[u8], found: &[u8]) -> Option<String> {
    if expected == found {
        return None;
    }
    if expected.len() != found.len() {
        return Some(format!("{} bytes instead of {}", found.len(), expected.len()));
    }
    let differs = |at: &usize| expected[*at] != found[*at];
    let first = (0..found.len()).find(differs)?;
    let last = (0..found.len()).rfind(differs)?;
    let count = (first..=last).filter(differs).count();
    let part = first..found.len().min(first + 16);
    let (wanted, got) = (&expected[part.clone()], &found[part]);
    Some(format!("{count} bytes from {first:#x} to {last:#x}, which begin {got:02x?} instead of {wanted:02x?}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::program::Range;

    fn request(id: u32, len: u32, opened: Opened, memory: Memory) -> Request {
        let work = Work::Read(Range { at: 0, len }, opened, memory);
        Request { id, process: 0, ring: 0, work, on_worker: false, registered_file: false }
    }

    #[test]
    fn pieces_are_the_whole_transfer_inside_the_place() {
        for (id, len) in (0..200).zip([1, 3, 4097, BLOCK, TRANSFER_BYTES].into_iter().cycle()) {
            for opened in [Opened::Plain, Opened::Direct] {
                let len = if opened == Opened::Direct { len.next_multiple_of(BLOCK) } else { len };
                let pieces = pieces(&request(id, len, opened, Memory::Vector));
                assert_eq!(pieces.iter().map(|piece| piece.1).sum::<usize>(), len as usize);
                assert!(pieces.windows(2).all(|pair| pair[0].0 + pair[0].1 < pair[1].0), "{pieces:?}");
                assert!(pieces.last().is_some_and(|(at, length)| at + length < PLACE_BYTES), "{pieces:?}");
                let unit = if opened == Opened::Direct { BLOCK as usize } else { 1 };
                assert!(pieces.iter().all(|(at, length)| at % unit == 0 && length % unit == 0), "{pieces:?}");
            }
        }
    }

    #[test]
    fn a_byte_beside_a_read_is_a_difference() {
        let request = request(3, 100, Opened::Plain, Memory::Single);
        let made = Made { request, result: 40, read: vec![9; 40] };
        let mut places = Places::new();
        places.prepare(2, 1, &request);
        let at = pieces(&request)[0].0;
        let poke = |offset: usize, byte: u8| {
            // SAFETY: inside the place, which nothing else refers to now.
            unsafe { *((places.address(2) + offset) as *mut u8) = byte }
        };
        (at..at + 40).for_each(|offset| poke(offset, 9));
        assert_eq!(places.difference(2, 1, &made), None);
        poke(at + 40, 9);
        assert!(places.difference(2, 1, &made).is_some_and(|text| text.contains("1 bytes from")));
    }
}
