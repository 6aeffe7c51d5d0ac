//! Register calls.

use super::{place, Generator};
use crate::arena::{self, Area};
use crate::program::*;
use anyring_abi::*;
use anyring_test_kit::Choices;

/// IORING_REGISTER_USE_REGISTERED_RING, which may be added to any register call.
const BY_REGISTERED: u32 = 1 << 31;

impl Generator {
    /// Adds the step that fills the argument, most often correctly, then the register call.
    pub fn registration(&mut self, steps: &mut Vec<Step>) {
        let common = [
            IORING_REGISTER_BUFFERS,
            IORING_REGISTER_FILES,
            IORING_REGISTER_FILES,
            IORING_REGISTER_FILES2,
            IORING_REGISTER_PBUF_RING,
            IORING_REGISTER_PBUF_RING,
            IORING_REGISTER_EVENTFD,
            IORING_REGISTER_ENABLE_RINGS,
            IORING_REGISTER_RESIZE_RINGS,
        ];
        let opcode = if self.chance(1, 2) { self.choose(&common) } else { self.below(40) };
        let blob = self.below(place::BLOBS_COUNT);
        let at = Word::At(Area::Structs, place::BLOBS + place::BLOB_BYTES * blob);
        let numbers = Word::At(Area::Structs, place::NUMBERS);
        let (argument, count) = match opcode {
            IORING_REGISTER_BUFFERS if self.chance(1, 2) => {
                (Word::At(Area::Fixed, arena::VECTORS), 1 + self.below(u32::from(arena::EXACT)))
            }
            IORING_REGISTER_BUFFERS => (self.vectors(), self.choose(&[1, 2, 8, 16, 0, 16384, 16385])),
            IORING_REGISTER_FILES => (numbers, self.choose(&[1, 4, 8, 0, 32768, 32769])),
            IORING_REGISTER_EVENTFD | IORING_REGISTER_EVENTFD_ASYNC => (numbers, 1),
            IORING_REGISTER_PROBE => (self.address(), self.choose(&[64, 256, 257, 0])),
            IORING_REGISTER_ENABLE_RINGS | IORING_REGISTER_PERSONALITY => (Word::Plain(0), 0),
            IORING_UNREGISTER_PERSONALITY => (Word::Plain(0), self.below(4)),
            IORING_UNREGISTER_BUFFERS | IORING_UNREGISTER_FILES | IORING_UNREGISTER_EVENTFD => (Word::Plain(0), 0),
            IORING_REGISTER_FILES2 | IORING_REGISTER_BUFFERS2 => (at, 32),
            IORING_REGISTER_FILES_UPDATE2 | IORING_REGISTER_BUFFERS_UPDATE => (at, 32),
            IORING_REGISTER_IOWQ_AFF => (at, self.choose(&[1, 8, 128])),
            IORING_REGISTER_IOWQ_MAX_WORKERS => (at, 2),
            IORING_REGISTER_CLOCK | IORING_REGISTER_QUERY => (at, 0),
            IORING_REGISTER_RING_FDS | IORING_UNREGISTER_RING_FDS => (at, self.choose(&[1, 2, 16, 17])),
            IORING_REGISTER_RESTRICTIONS => (at, self.choose(&[1, 4, 0, 4096])),
            _ => (at, self.choose(&[1, 1, 1, 1, 0, 2])),
        };
        if opcode == IORING_REGISTER_FILES || opcode == IORING_REGISTER_EVENTFD {
            let step = self.structure(9);
            steps.push(step);
        }
        let step = self.argument(blob, opcode);
        steps.push(step);
        // Where the argument is an array of descriptors' numbers, the other addresses are unmapped ones. Other memory
        // might hold a number that must not be named.
        let names =
            matches!(opcode, IORING_REGISTER_FILES | IORING_REGISTER_EVENTFD | IORING_REGISTER_EVENTFD_ASYNC);
        let argument = match self.chance(1, 16) {
            true if names => Word::At(Area::Unmapped, 64 * self.below(64)),
            true => self.address(),
            false => argument,
        };
        let count = if self.chance(1, 16) { self.number() as u32 } else { count };
        let registered = if self.chance(1, 24) { BY_REGISTERED } else { 0 };
        let ring = match self.below(24) {
            0 => Fd::Number(-1),
            1 => self.fd(),
            _ => Fd::Ring(self.slot()),
        };
        steps.push(Step::Register { ring, opcode: opcode | registered, argument, count });
    }

    /// Fills this blob with the argument of the register call.
    pub fn argument(&mut self, blob: u32, call: u32) -> Step {
        let low = |low: u64, high: u64| Word::Plain((low & 0xffff_ffff) | high << 32);
        let at = |offset: u32| Word::At(Area::Structs, place::BLOBS + place::BLOB_BYTES * blob + offset);
        let numbers = Word::At(Area::Structs, place::NUMBERS);
        let number = self.number();
        let small = u64::from(self.below(8));
        let mut words = match call {
            IORING_REGISTER_FILES2 => vec![
                low(self.choose(&[1, 4, 16, 0, 1 << 20]), self.choose(&[0, 1, 2])),
                Word::Plain(0),
                numbers,
                Word::Plain(0),
            ],
            IORING_REGISTER_BUFFERS2 => {
                let tags = if self.chance(1, 2) { Word::Plain(0) } else { self.address() };
                vec![
                    low(self.choose(&[1, 4, 16, 0, 1 << 20]), self.choose(&[0, 1, 2])),
                    Word::Plain(0),
                    self.vectors(),
                    tags,
                ]
            }
            IORING_REGISTER_FILES_UPDATE => vec![low(small, 0), numbers],
            IORING_REGISTER_FILES_UPDATE2 => {
                vec![low(small, 0), numbers, Word::Plain(0), low(self.choose(&[1, 4, number]), 0)]
            }
            IORING_REGISTER_BUFFERS_UPDATE => {
                vec![low(small, 0), self.vectors(), self.address(), low(self.choose(&[1, 4, number]), 0)]
            }
            IORING_REGISTER_PBUF_RING | IORING_UNREGISTER_PBUF_RING | IORING_REGISTER_PBUF_STATUS => {
                let mine = Word::At(Area::BufferRing(self.below(4) as u8), self.choose(&[0, 0, 0, 0, 0x1000, 64]));
                let (flags, ring) = match self.below(10) {
                    0 => (0, self.address()),
                    1 => (2, mine),
                    2..=4 => (1, Word::Plain(0)),
                    5 => (0xffff, mine),
                    _ => (0, mine),
                };
                let entries = self.choose(&[1, 2, 8, 8, 64, 256, 32768, 65536, 3, 0]);
                let group = u64::from(self.below(5));
                match call {
                    IORING_REGISTER_PBUF_RING => vec![ring, low(entries, group | flags << 16)],
                    IORING_UNREGISTER_PBUF_RING => vec![Word::Plain(0), low(0, group)],
                    _ => vec![low(group, 0)],
                }
            }
            IORING_REGISTER_SYNC_CANCEL => {
                let fd = self.fd_number() as u32 as u64;
                let flags = u64::from(self.bits(&[1, 2, 4, 8, 16, 32], 1, 3));
                let time = [Word::Plain(self.choose(&[0, u64::MAX])), Word::Plain(self.choose(&[1000, u64::MAX]))];
                [&[Word::Plain(small), low(fd, flags)], &time[..]].concat()
            }
            IORING_REGISTER_CLONE_BUFFERS => {
                vec![low(512 + small, self.choose(&[0, 0, 1, 2])), low(small, number), low(number, 0)]
            }
            IORING_REGISTER_RESIZE_RINGS => {
                let flags = self.choose(&[IORING_SETUP_CQSIZE, 0, IORING_SETUP_CQSIZE | IORING_SETUP_CLAMP]);
                let entries = [self.choose(&[1, 8, 64, 32768, 0]), self.choose(&[8, 64, 128, 65536, 0])];
                vec![low(entries[0], entries[1]), low(u64::from(flags), 0)]
            }
            IORING_REGISTER_MEM_REGION => {
                let size = self.choose(&[4096, 4096, 8192, 0, 1, number]);
                let mut words = vec![at(64), Word::Plain(self.choose(&[0, 1, 2])), Word::Plain(0), Word::Plain(0)];
                words.extend([Word::Plain(0); 4]);
                let area =
                    Word::At(self.choose(&[Area::Scratch, Area::Scratch, Area::Shaky]), 0x1000 * self.below(4));
                words.extend([area, Word::Plain(size), low(self.choose(&[1, 1, 0, 2]), 0), Word::Plain(0)]);
                words
            }
            IORING_REGISTER_QUERY => {
                let next = if self.chance(1, 2) { at(0) } else { Word::Plain(0) };
                vec![next, self.address(), low(small % 4, self.choose(&[0, 8, 64, 4096]))]
            }
            IORING_REGISTER_RESTRICTIONS => (0..8)
                .flat_map(|_| {
                    [Word::Plain(u64::from(self.below(5)) | u64::from(self.below(64)) << 16), Word::Plain(0)]
                })
                .collect(),
            IORING_REGISTER_RING_FDS | IORING_UNREGISTER_RING_FDS => {
                let fd = u64::from(9 + self.below(8));
                (0..16)
                    .flat_map(|index| [low(self.choose(&[index, 0, u64::MAX]), 0), Word::Plain(512 + fd % 4)])
                    .collect()
            }
            IORING_REGISTER_FILE_ALLOC_RANGE => vec![low(small, self.choose(&[1, 4, number]))],
            IORING_REGISTER_IOWQ_MAX_WORKERS => vec![low(self.choose(&[0, 1, 4, number]), self.choose(&[0, 1, 4]))],
            IORING_REGISTER_IOWQ_AFF => vec![Word::Plain(self.choose(&[1, 2, 3, 0, u64::MAX]))],
            IORING_REGISTER_CLOCK => vec![low(self.choose(&[1, 7, 0, 2, number]), 0)],
            // The call names no ring, and the SQE that it takes can only be a message.
            IORING_REGISTER_SEND_MSG_RING => vec![low(u64::from(Opcode::MsgRing as u8), 512 + small % 4)],
            _ => (0..8).map(|_| if self.chance(1, 2) { self.address() } else { low(small, number) }).collect(),
        };
        while words.len() < 16 {
            words.push(Word::Plain(0));
        }
        Step::Write { at: at(0), words }
    }
}
