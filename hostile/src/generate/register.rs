//! Register calls.

use super::{place, Generator};
use crate::arena::{self, Area};
use crate::program::*;
use anyring_abi::*;

/// As the header numbers it: what may be added to any register call.
const BY_REGISTERED: u32 = 1 << 31;

impl Generator {
    fn a_blob(&mut self) -> Word {
        self.struct_at(place::BLOBS, place::BLOB_BYTES, place::BLOBS_COUNT)
    }

    /// A register call with an argument as it should be, more or less. What it points to are blobs, and what is in these is
    /// for one of the calls: see [`Generator::blob`].
    pub fn registration(&mut self) -> Step {
        let common = [
            IORING_REGISTER_BUFFERS,
            IORING_REGISTER_BUFFERS,
            IORING_REGISTER_FILES,
            IORING_REGISTER_FILES,
            IORING_REGISTER_PBUF_RING,
            IORING_REGISTER_PBUF_RING,
            IORING_REGISTER_EVENTFD,
            IORING_REGISTER_ENABLE_RINGS,
            IORING_REGISTER_RESIZE_RINGS,
        ];
        let opcode = if self.chance(1, 2) { self.choose(&common) } else { self.below(40) };
        let (argument, count) = match opcode {
            IORING_REGISTER_BUFFERS if self.chance(1, 4) => {
                (Word::At(Area::Fixed, arena::VECTORS), 1 + self.below(u32::from(arena::EXACT)))
            }
            IORING_REGISTER_BUFFERS => (self.vectors(), self.choose(&[1, 2, 8, 16, 0, 16384, 16385, u32::MAX])),
            IORING_REGISTER_FILES => (self.struct_at(place::NUMBERS, 8, 16), self.choose(&[1, 8, 16, 0, 32768, 32769, u32::MAX])),
            IORING_REGISTER_EVENTFD | IORING_REGISTER_EVENTFD_ASYNC => (self.struct_at(place::NUMBERS, 8, 16), 1),
            IORING_REGISTER_PROBE => (self.address(), self.choose(&[64, 256, 257, 0])),
            IORING_REGISTER_ENABLE_RINGS | IORING_REGISTER_PERSONALITY => (Word::Plain(0), 0),
            IORING_UNREGISTER_PERSONALITY => (Word::Plain(0), self.below(4)),
            IORING_UNREGISTER_BUFFERS | IORING_UNREGISTER_FILES | IORING_UNREGISTER_EVENTFD => (Word::Plain(0), 0),
            IORING_REGISTER_FILES2 | IORING_REGISTER_BUFFERS2 => (self.a_blob(), 32),
            IORING_REGISTER_FILES_UPDATE2 | IORING_REGISTER_BUFFERS_UPDATE => (self.a_blob(), 32),
            _ => (self.a_blob(), self.choose(&[1, 1, 1, 2, 0, 16, u32::MAX])),
        };
        let argument = if self.chance(1, 12) { self.address() } else { argument };
        let count = if self.chance(1, 16) { self.number() as u32 } else { count };
        let registered = if self.chance(1, 24) { BY_REGISTERED } else { 0 };
        let ring = match self.below(24) {
            0 => Fd::Number(-1),
            1 => self.fd(),
            _ => Fd::Ring(self.slot()),
        };
        Step::Register { ring, opcode: opcode | registered, argument, count }
    }

    /// The argument of some register call, in some blob.
    pub fn blob(&mut self) -> Step {
        let low = |low: u64, high: u64| Word::Plain((low & 0xffff_ffff) | high << 32);
        let blob = self.below(place::BLOBS_COUNT);
        let number = self.number();
        let small = u64::from(self.below(8));
        let words = match self.below(12) {
            // RSRC_REGISTER
            0 => vec![low(self.choose(&[1, 4, 16, 0, 1 << 20]), self.choose(&[0, 1, 2])), Word::Plain(0), self.vectors(), self.address()],
            // RSRC_UPDATE2
            1 => vec![low(small, 0), self.struct_at(place::NUMBERS, 8, 16), self.address(), low(self.choose(&[1, 4, number]), 0)],
            // PBUF_RING, STATUS
            2..=4 => {
                let mine = Word::At(Area::BufferRing(self.below(4) as u8), self.choose(&[0, 0, 0, 0x1000, 64]));
                let ring = match self.below(8) {
                    0 => self.address(),
                    1 => Word::Plain(0),
                    _ => mine,
                };
                let entries = self.choose(&[1, 2, 8, 64, 256, 4096, 32768, 65536, 3, 0]);
                let group = u64::from(self.below(5)) | self.choose(&[0, 0, 0, 1, 2, 3, 0xffff]) << 16;
                vec![ring, low(entries, group), Word::Plain(0), Word::Plain(0), Word::Plain(0)]
            }
            // SYNC_CANCEL
            5 => {
                let time = [Word::Plain(self.choose(&[0, u64::MAX])), Word::Plain(self.choose(&[1000, u64::MAX]))];
                let fd = self.fd_number() as u32 as u64;
                let mut words = vec![Word::Plain(small), low(fd, u64::from(self.bits(&[1, 2, 4, 8, 16, 32], 1, 3)))];
                words.extend(time);
                words.extend([Word::Plain(0); 5]);
                words
            }
            // CLONE_BUFFERS
            6 => vec![low(512 + small, self.choose(&[0, 1, 2])), low(small, number), low(number, 0), Word::Plain(0)],
            // RESIZE_RINGS: parameters
            7 => {
                let flags = self.choose(&[IORING_SETUP_CQSIZE, 0, IORING_SETUP_CQSIZE | IORING_SETUP_CLAMP]);
                let entries = [self.choose(&[1, 8, 64, 32768, 0]), self.choose(&[1, 8, 64, 65536, 0])];
                let mut words = vec![low(entries[0], entries[1]), low(u64::from(flags), 0)];
                words.extend([Word::Plain(0); 13]);
                words
            }
            // MEM_REGION, and the region's description behind it
            8 => {
                let region = Word::At(Area::Structs, place::BLOBS + place::BLOB_BYTES * blob + 64);
                let size = self.choose(&[4096, 8192, 0, 1, number]);
                let mut words = vec![region, Word::Plain(self.choose(&[0, 1, 2])), Word::Plain(0), Word::Plain(0)];
                words.extend([Word::Plain(0); 4]);
                words.extend([self.address(), Word::Plain(size), low(self.choose(&[0, 1, 2]), 0), Word::Plain(0)]);
                words
            }
            // QUERY: a header whose successor may be itself
            9 => {
                let own = Word::At(Area::Structs, place::BLOBS + place::BLOB_BYTES * blob);
                let next = if self.chance(1, 2) { own } else { self.a_blob() };
                let next = if self.chance(1, 3) { Word::Plain(0) } else { next };
                vec![next, self.address(), low(small % 4, self.choose(&[0, 8, 64, 4096])), Word::Plain(0), Word::Plain(0)]
            }
            // RESTRICTIONS, RING_FDS: pairs
            10 => (0..16).map(|_| Word::Plain(u64::from(self.below(6)) | u64::from(self.below(64)) << 16)).collect(),
            _ => (0..8).map(|_| if self.chance(1, 2) { self.address() } else { low(small, number) }).collect(),
        };
        Step::Write { at: Word::At(Area::Structs, place::BLOBS + place::BLOB_BYTES * blob), words }
    }
}
