//! The file as it must be: the result and the effect of each request.

use crate::program::{Allocation, Opened, Order, Range, Request, Work, BLOCK, FILE_BYTES};

/// The content of the file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Model {
    /// Its bytes.
    pub bytes: Vec<u8>,
    /// Allocations that the file system refuses, with the answer to each.
    pub refused: Vec<(Allocation, i32)>,
}

/// A request that is made, and its outcome.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Made {
    /// The request.
    pub request: Request,
    /// The CQE's result.
    pub result: i32,
    /// The bytes that a read finds.
    pub read: Vec<u8>,
}

/// Writes the bytes of a request: splitmix64, so that those of any two differ almost everywhere.
pub fn fill(seed: u64, id: u32, bytes: &mut [u8]) {
    let mut state = seed ^ u64::from(id) << 32;
    for chunk in bytes.chunks_mut(8) {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = (state ^ state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^= word >> 31;
        chunk.copy_from_slice(&word.to_le_bytes()[..chunk.len()]);
    }
}

impl Model {
    /// Returns the file's size.
    pub fn size(&self) -> u32 {
        self.bytes.len() as u32
    }

    /// Returns the requests of a step that are made, and brings the content up to date. Leaves out what has no certain
    /// outcome at the present size.
    pub fn step(&mut self, seed: u64, order: Order, requests: &[Request]) -> Vec<Made> {
        let before = self.size();
        let grows = requests.iter().any(|request| self.grows(request.work));
        let (mut made, mut broken) = (Vec::new(), false);
        for &request in requests {
            let is_certain = match request.work {
                Work::Read(range, ..) if order == Order::Free => range.end() <= before || !grows,
                // The file system may fill the last block in the page cache, which open(2) advises against beside direct
                // transfers: XFS then says EIO.
                Work::Write(range, Opened::Direct, _) if order == Order::Free => {
                    range.end() <= before || before.is_multiple_of(BLOCK)
                }
                work => self.fits(work, if order == Order::Free { before } else { self.size() }),
            };
            if !is_certain {
                continue;
            }
            let (result, read) = match broken {
                true => (-libc::ECANCELED, Vec::new()),
                false => self.apply(seed, &request),
            };
            // A failed FALLOCATE breaks no chain: the kernel's io_fallocate() does not mark the request as failed.
            let is_short = matches!(request.work, Work::Read(range, ..) if (result as u32) < range.len);
            broken |= order == Order::Linked && is_short;
            made.push(Made { request, result, read });
        }
        made
    }

    fn grows(&self, work: Work) -> bool {
        matches!(work, Work::Write(range, ..) if range.end() > self.size())
    }

    /// True if a file of this size does not become too large, and has the bytes that must be there.
    fn fits(&self, work: Work, size: u32) -> bool {
        match work {
            // XFS of Linux 6.18 answers EIO to later requests if it has zeroed blocks behind the end.
            Work::Load(range) | Work::Store(range) | Work::Allocate(range, Allocation::ZeroKeepSize) => {
                range.end() <= size
            }
            Work::Write(range, Opened::Append, _) | Work::Allocate(range, Allocation::Insert) => {
                size + range.len <= FILE_BYTES
            }
            _ => true,
        }
    }

    fn apply(&mut self, seed: u64, request: &Request) -> (i32, Vec<u8>) {
        match request.work {
            Work::Read(range, ..) | Work::Load(range) => {
                let read =
                    self.bytes[range.at.min(self.size()) as usize..range.end().min(self.size()) as usize].to_vec();
                (read.len() as i32, read)
            }
            Work::Write(range, opened, _) => {
                let at = if opened == Opened::Append { self.size() } else { range.at };
                self.write(seed, request.id, Range { at, ..range });
                (range.len as i32, Vec::new())
            }
            Work::Store(range) => {
                self.write(seed, request.id, range);
                (0, Vec::new())
            }
            Work::Truncate(size) => {
                self.bytes.resize(size as usize, 0);
                (0, Vec::new())
            }
            Work::Allocate(range, allocation) => (self.allocate(range, allocation), Vec::new()),
            Work::Sync(_) | Work::SyncRange(_) | Work::Drop(_) => (0, Vec::new()),
        }
    }

    fn write(&mut self, seed: u64, id: u32, range: Range) {
        self.extend(range.end());
        fill(seed, id, &mut self.bytes[range.at as usize..range.end() as usize]);
    }

    fn extend(&mut self, size: u32) {
        self.bytes.resize(self.size().max(size) as usize, 0);
    }

    fn allocate(&mut self, range: Range, allocation: Allocation) -> i32 {
        if let Some((_, answer)) = self.refused.iter().find(|(refused, _)| *refused == allocation) {
            return *answer;
        }
        let (at, end) = (range.at as usize, range.end() as usize);
        match allocation {
            Allocation::KeepSize => {}
            Allocation::Extend => self.extend(range.end()),
            Allocation::Collapse if end >= self.bytes.len() => return -libc::EINVAL,
            Allocation::Insert if at >= self.bytes.len() => return -libc::EINVAL,
            Allocation::Collapse => drop(self.bytes.drain(at..end)),
            Allocation::Insert => drop(self.bytes.splice(at..at, vec![0; end - at])),
            Allocation::PunchHole | Allocation::Zero | Allocation::ZeroKeepSize => {
                if allocation == Allocation::Zero {
                    self.extend(range.end());
                }
                let size = self.bytes.len();
                self.bytes[at.min(size)..end.min(size)].fill(0);
            }
        }
        0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::program::Memory;

    fn request(id: u32, work: Work) -> Request {
        Request { id, process: 0, ring: 0, work, on_worker: false, registered_file: false }
    }

    fn range(at: u32, len: u32) -> Range {
        Range { at, len }
    }

    fn write(id: u32, at: u32, len: u32) -> Request {
        request(id, Work::Write(range(at, len), Opened::Plain, Memory::Single))
    }

    fn read(id: u32, at: u32, len: u32) -> Request {
        request(id, Work::Read(range(at, len), Opened::Plain, Memory::Single))
    }

    fn results(made: &[Made]) -> Vec<(u32, i32)> {
        made.iter().map(|made| (made.request.id, made.result)).collect()
    }

    #[test]
    fn a_short_read_breaks_a_chain_unless_it_is_hard() {
        for (order, last) in [(Order::Linked, -libc::ECANCELED), (Order::HardLinked, 5)] {
            let mut model = Model::default();
            let made = model.step(1, order, &[write(1, 0, 10), read(2, 8, 10), write(3, 20, 5)]);
            assert_eq!(results(&made), [(1, 10), (2, 2), (3, last)]);
            assert_eq!(model.size(), if last < 0 { 10 } else { 25 });
        }
    }

    #[test]
    fn a_read_behind_the_end_is_left_out_beside_writes_that_move_the_end() {
        let mut model = Model { bytes: vec![7; 100], ..Model::default() };
        let reads = [read(1, 90, 20), read(2, 0, 10), request(3, Work::Load(range(90, 20)))];
        assert_eq!(results(&model.clone().step(1, Order::Free, &reads)), [(1, 10), (2, 10)]);
        let beside = [&reads[..], &[write(4, 200, 4)]].concat();
        assert_eq!(results(&model.step(1, Order::Free, &beside)), [(2, 10), (4, 4)]);
        assert_eq!((model.size(), &model.bytes[100..200]), (204, &[0; 100][..]));
    }

    #[test]
    fn allocations_zero_move_and_extend() {
        let mut model = Model { bytes: vec![7; 3 * BLOCK as usize], ..Model::default() };
        let mut answer = |at, len, allocation| {
            let made = model.step(1, Order::Single, &[request(1, Work::Allocate(range(at, len), allocation))]);
            (made[0].result, model.size(), model.bytes.iter().filter(|byte| **byte == 0).count())
        };
        assert_eq!(answer(10, 20, Allocation::PunchHole), (0, 3 * BLOCK, 20));
        assert_eq!(answer(3 * BLOCK, 20, Allocation::KeepSize), (0, 3 * BLOCK, 20));
        assert_eq!(answer(2 * BLOCK, BLOCK, Allocation::Collapse), (-libc::EINVAL, 3 * BLOCK, 20));
        assert_eq!(answer(0, BLOCK, Allocation::Collapse), (0, 2 * BLOCK, 0));
        assert_eq!(answer(BLOCK, BLOCK, Allocation::Insert), (0, 3 * BLOCK, BLOCK as usize));
        assert_eq!(answer(3 * BLOCK, 5, Allocation::Zero), (0, 3 * BLOCK + 5, BLOCK as usize + 5));
        assert_eq!(answer(0, 2 * BLOCK, Allocation::ZeroKeepSize), (0, 3 * BLOCK + 5, 2 * BLOCK as usize + 5));
    }

    #[test]
    fn writes_of_two_requests_differ() {
        let mut bytes = [[0; 64]; 3];
        for (content, id) in bytes.iter_mut().zip([1, 2, 1]) {
            fill(9, id, content);
        }
        assert_eq!(bytes[0], bytes[2]);
        assert!(bytes[0].iter().zip(&bytes[1]).filter(|(one, other)| one == other).count() < 8);
    }
}
