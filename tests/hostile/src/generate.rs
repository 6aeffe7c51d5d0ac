//! Makes a hostile program from a seed. Its requests mostly do something real, with something wrong about most of
//! them.
//!
//! It never makes a path out of the folder, or an address of another machine. It gives no advice about memory beyond
//! the arena, or to the hardware. It neither signals nor waits for another process, and never waits without an end.

mod odd;
mod register;
mod requests;

use crate::arena::{self, Area};
use crate::program::*;
use anyring_abi::*;
use anyring_test_kit::Choices;

/// The offsets of structures in [`Area::Structs`], and their distances.
pub mod place {
    #![allow(missing_docs)]
    pub const VECTORS: u32 = 0;
    pub const VECTORS_COUNT: u32 = 64;
    pub const HEADERS: u32 = 0x800;
    pub const HOWS: u32 = 0x1000;
    pub const EVENTS: u32 = 0x1400;
    pub const TIMES: u32 = 0x1800;
    pub const FUTEXES: u32 = 0x1c00;
    pub const IOCBS: u32 = 0x2000;
    pub const POINTERS: u32 = 0x3000;
    pub const WAITS: u32 = 0x3800;
    pub const NUMBERS: u32 = 0x3c00;
    pub const BLOBS: u32 = 0x4000;
    pub const BLOB_BYTES: u32 = 0x100;
    pub const BLOBS_COUNT: u32 = 32;
}

/// The program of `seed`.
pub fn program(seed: u64) -> Program {
    let mut generator = Generator { random: fastrand::Rng::with_seed(seed), next_id: 1 };
    let raw = generator.chance(1, 2);
    let unprivileged = generator.chance(1, 4);
    let mut steps = Vec::new();
    generator.structures(&mut steps);
    for slot in 0..=1 + generator.below(2) as u8 {
        steps.push(generator.good_setup(slot));
    }
    generator.standard(&mut steps);
    generator.odd_beginning(&mut steps);
    if generator.chance(1, 3) {
        steps.push(Step::AioSetup { slot: 0, events: 1 + generator.below(64), context: None });
    }
    for _ in 0..generator.below(4) {
        let limit = generator.limit();
        steps.push(limit);
    }
    for _ in 0..generator.below(4) {
        let nuisance = generator.nuisance();
        steps.push(nuisance);
    }
    let length = steps.len() + 20 + generator.below(240) as usize;
    while steps.len() < length {
        match generator.below(40) {
            0..=3 => generator.registration(&mut steps),
            4 | 5 => {
                let step = generator.odd();
                steps.push(step);
            }
            _ => {
                let step = generator.step();
                steps.push(step);
            }
        }
    }
    generator.witness(&mut steps);
    odd::leave_out_names(&mut steps);
    let twice = generator.chance(1, 16) && !steps.iter().any(odd::is_for_one_copy);
    Program { seed, raw, unprivileged, twice, steps }
}

struct Generator {
    random: fastrand::Rng,
    next_id: u64,
}

impl Choices for Generator {
    fn random(&mut self) -> &mut fastrand::Rng {
        &mut self.random
    }
}

impl Generator {
    /// Returns some bits of `from`, each with a low probability.
    fn bits(&mut self, from: &[u32], part: u32, of: u32) -> u32 {
        from.iter().fold(0, |bits, bit| if self.chance(part, of) { bits | bit } else { bits })
    }

    fn slot(&mut self) -> u8 {
        // The first ones exist most often.
        self.choose(&[0, 0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 3, 4, 5])
    }

    /// Returns a number near a usual limit.
    fn number(&mut self) -> u64 {
        let common = [0, 1, 2, 3, 4, 7, 8, 16, 64, 255, 256, 4095, 4096, 4097, 0x7fff, 0x8000, 0xffff, 0x1_0000];
        let large =
            [0x7fff_ffff, 0x8000_0000, 0xffff_ffff, 1 << 32, i64::MAX as u64, 1 << 63, u64::MAX - 1, u64::MAX];
        if self.chance(3, 4) {
            self.choose(&common)
        } else {
            self.choose(&large)
        }
    }

    /// Returns an address, most often a good one.
    fn address(&mut self) -> Word {
        let offset = |generator: &mut Generator, area: Area| {
            let bytes = area.bytes() as u32;
            let near_end = bytes - 1 - generator.below(64);
            let (anywhere, aligned) = (generator.below(bytes), generator.below(bytes) & !0x3f);
            generator.choose(&[0, aligned, aligned, anywhere, near_end])
        };
        let area = match self.below(32) {
            0..=11 => Area::Scratch,
            12..=15 => Area::Shaky,
            16..=17 => Area::Half,
            18 => Area::Cut,
            19..=20 => Area::ReadOnly,
            21 => Area::Unmapped,
            22..=23 => Area::Structs,
            24 => {
                let slot = self.slot();
                return Word::At(Area::Rings(slot), self.choose(&[0, 4, 8, 12, 32, 36, 40, 64, 0x140, 0x1000]));
            }
            // The beginning of an SQE: a write there spoils an address before a length.
            25 => return Word::At(Area::Sqes(self.slot()), self.choose(&[0, 64, 0x100, 0xfc0])),
            26 => return Word::At(Area::BufferRing(self.below(4) as u8), self.choose(&[0, 14, 16, 64])),
            27 => return Word::Plain(0),
            28 => Area::Fixed,
            29 => return Word::Plain(self.choose(&[1, 0xfff, 0x7fff_ffff_f000, 1 << 47, 0x8000_0000_0000_0000])),
            30 => {
                return Word::Plain(self.choose(&[
                    0xffff_8000_0000_0000,
                    u64::MAX,
                    u64::MAX - 63,
                    0xffff_ffff_ff60_0000,
                ]))
            }
            _ => Area::Scratch,
        };
        Word::At(area, offset(self, area))
    }

    fn path(&mut self) -> Word {
        match self.below(16) {
            0 => Word::At(Area::Fixed, arena::LONG_PATH + self.below(8)),
            1 => self.address(),
            _ => Word::At(Area::Fixed, arena::PATH_ROOM * self.below(arena::PATHS.len() as u32)),
        }
    }

    fn struct_at(&mut self, place: u32, each: u32, count: u32) -> Word {
        if self.chance(1, 12) {
            return self.address();
        }
        let unaligned = if self.chance(1, 30) { 4 } else { 0 };
        Word::At(Area::Structs, place + each * self.below(count) + unaligned)
    }

    fn vectors(&mut self) -> Word {
        self.struct_at(place::VECTORS, 16, place::VECTORS_COUNT)
    }

    fn time(&mut self) -> Word {
        if self.chance(5, 6) {
            Word::At(Area::Fixed, arena::TIMES + 16 * self.below(arena::TIMES_COUNT))
        } else {
            self.struct_at(place::TIMES, 16, 16)
        }
    }

    /// Chooses a descriptor, most often an open one.
    fn fd(&mut self) -> Fd {
        match self.below(24) {
            0..=19 => Fd::Number(self.victim()),
            20 => Fd::Ring(self.slot()),
            21 => Fd::Number(self.choose(&[-1, -100, i32::MIN, i32::MAX, 9999, 70_000])),
            // Numbers that the engine's own descriptors and rings could have.
            22 if self.chance(1, 2) => Fd::Number(3584 + self.below(16) as i32),
            22 => Fd::Number(self.choose(&[4095, 4094, 4080, 512, 513, 514, 64, 65])),
            _ => Fd::Number(10 + self.below(40) as i32),
        }
    }

    fn victim(&mut self) -> i32 {
        FIRST_VICTIM + self.below(VICTIMS as u32) as i32
    }

    fn length(&mut self) -> u32 {
        match self.below(8) {
            0 => self.number() as u32,
            1 => 0,
            2 => 0x1000,
            _ => 1 + self.below(8192),
        }
    }

    /// Makes the step that writes a structure at one of its places.
    fn structure(&mut self, kind: u32) -> Step {
        let at = |place: u32, each: u32, number: u32| Word::At(Area::Structs, place + each * number);
        match kind {
            0 => {
                let words = (0..16).flat_map(|_| [self.address(), Word::Plain(u64::from(self.length()))]).collect();
                Step::Write { at: at(place::VECTORS, 16, 16 * self.below(4)), words }
            }
            1 => {
                let name = Word::At(Area::Fixed, arena::SOCKADDRS + 32 * self.below(5));
                let name = if self.chance(1, 3) { self.address() } else { name };
                let name = if self.chance(1, 3) { Word::Plain(0) } else { name };
                let name_bytes = self.choose(&[16, 16, 0, 9, 32, 128, 0xffff_ffff]);
                let (count, control) = (self.choose(&[0, 1, 2, 3, 8, 64, 1024, 1025, 1 << 40]), self.address());
                let control_bytes = self.choose(&[0, 0, 16, 24, 64, 4096, u64::MAX]);
                let words = [
                    name,
                    Word::Plain(name_bytes),
                    self.vectors(),
                    Word::Plain(count),
                    control,
                    Word::Plain(control_bytes),
                    Word::Plain(0),
                ];
                Step::Write { at: at(place::HEADERS, 64, self.below(16)), words: words.to_vec() }
            }
            2 => {
                let flags = self.open_flags();
                let words = [
                    u64::from(flags),
                    self.choose(&[0, 0o600, 0o7777, 1 << 40]),
                    self.choose(&[0, 0, 8, 0x10, 0x20, 0xff]),
                ];
                Step::Write { at: at(place::HOWS, 32, self.below(16)), words: words.map(Word::Plain).to_vec() }
            }
            3 => {
                let words = (0..16).map(|_| Word::Plain(self.random.u64(..) & 0x4000_001f_c000_001f)).collect();
                Step::Write { at: at(place::EVENTS, 16, 0), words }
            }
            4 => {
                let words = (0..8)
                    .map(|_| Word::Plain(self.choose(&[0, 1, 0, 1000, 999_999_999, 1 << 30, u64::MAX])))
                    .collect();
                Step::Write { at: at(place::TIMES, 16, 4 * self.below(4)), words }
            }
            5 => {
                let flags = [2, 2, 2 | 128, 0, 1, 3, 6, 0xff];
                let words = (0..8)
                    .flat_map(|_| {
                        [
                            Word::Plain(self.choose(&[0, 0, DATA_WORD])),
                            self.address(),
                            Word::Plain(self.choose(&flags)),
                        ]
                    })
                    .collect();
                Step::Write { at: at(place::FUTEXES, 24, 0), words }
            }
            6 => self.iocb(),
            7 => {
                let words = (0..16).map(|_| self.struct_at(place::IOCBS, 64, 32)).collect();
                Step::Write { at: at(place::POINTERS, 8, 16 * self.below(8)), words }
            }
            8 => {
                // A mask may block the alarm, so the time is always short.
                let masked = self.chance(1, 2);
                let mask =
                    if masked { Word::At(Area::Fixed, arena::MASKS + 8 * self.below(4)) } else { Word::Plain(0) };
                let size = u64::from(self.choose(&[8u32, 8, 0, 4, 128]))
                    | u64::from(self.choose(&[0u32, 100, 5000])) << 32;
                let words = [mask, Word::Plain(size), self.time()];
                Step::Write { at: at(place::WAITS, 32, self.below(8)), words: words.to_vec() }
            }
            9 => {
                let words = (0..16).map(|_| {
                    let pair = [self.fd_number(), self.fd_number()].map(|fd| u64::from(fd as u32));
                    Word::Plain(pair[0] | pair[1] << 32)
                });
                let words = words.collect();
                Step::Write { at: at(place::NUMBERS, 8, 0), words }
            }
            10 => {
                // Entries of a buffer ring; its tail is in the first one's last two bytes.
                let tail = u64::from(self.choose(&[1u16, 2, 4, 8, 8, 8, 100, u16::MAX])) << 48;
                let mut words = Vec::new();
                for id in 0..8 {
                    words.push(self.address());
                    words.push(Word::Plain(u64::from(self.length()) | id << 32 | if id == 0 { tail } else { 0 }));
                }
                Step::Write { at: Word::At(Area::BufferRing(self.below(4) as u8), 0), words }
            }
            _ => {
                let (blob, call) = (self.below(place::BLOBS_COUNT), self.below(36));
                self.argument(blob, call)
            }
        }
    }

    fn fd_number(&mut self) -> i32 {
        match self.fd() {
            Fd::Number(number) => number,
            Fd::Ring(slot) => 512 + i32::from(slot),
        }
    }

    /// Writes every structure once.
    fn structures(&mut self, steps: &mut Vec<Step>) {
        for kind in [0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 3, 4, 4, 5, 6, 6, 6, 6, 6, 6, 7, 7, 7, 8, 8, 8, 9] {
            let step = self.structure(kind);
            steps.push(step);
        }
    }

    fn iocb(&mut self) -> Step {
        let number = self.below(32);
        let opcode = self.choose(&[0, 0, 0, 1, 1, 2, 3, 5, 5, 5, 6, 7, 7, 8, 8, 4, 99]);
        let (rw_flags, priority) =
            (self.choose(&[0u64, 0, 0, 8, 1, 0x10, 0xffff_ffff]), self.choose(&[0u64, 0, 1, 0xffff]));
        let fd = u64::from(self.fd_number() as u32);
        let buffer = match opcode {
            5 => Word::Plain(self.choose(&[1, 4, 5, 0, 0xffff, u64::MAX])),
            7 | 8 => self.vectors(),
            _ => self.address(),
        };
        let bytes = if opcode >= 7 { self.choose(&[0, 1, 2, 8, 1024, 1025]) } else { u64::from(self.length()) };
        let flags = self.choose(&[0u64, 0, 1, 2, 3, 0xffff_ffff]);
        let eventfd = u64::from(self.fd_number() as u32);
        let words = [
            Word::Plain(u64::from(number)),
            Word::Plain(rw_flags << 32),
            Word::Plain(opcode | priority << 16 | fd << 32),
            buffer,
            Word::Plain(if opcode == 5 || opcode == 2 || opcode == 3 { 0 } else { bytes }),
            Word::Plain(self.choose(&[0, 0, 4096, 1, u64::MAX])),
            Word::Plain(self.choose(&[0, 0, 0, 0, 0, 1])),
            Word::Plain(flags | eventfd << 32),
        ];
        Step::Write { at: Word::At(Area::Structs, place::IOCBS + 64 * number), words: words.to_vec() }
    }

    fn setup(&mut self, slot: u8) -> Step {
        const COMMON: [u32; 9] = [
            0,
            0,
            0,
            IORING_SETUP_COOP_TASKRUN | IORING_SETUP_TASKRUN_FLAG,
            IORING_SETUP_SINGLE_ISSUER,
            IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN,
            IORING_SETUP_SQPOLL,
            IORING_SETUP_NO_MMAP,
            IORING_SETUP_IOPOLL,
        ];
        let more = [
            IORING_SETUP_CQSIZE,
            IORING_SETUP_CLAMP,
            IORING_SETUP_R_DISABLED,
            IORING_SETUP_SUBMIT_ALL,
            IORING_SETUP_SQE128,
            IORING_SETUP_CQE32,
            IORING_SETUP_NO_SQARRAY,
            IORING_SETUP_CQE_MIXED,
            IORING_SETUP_ATTACH_WQ,
            IORING_SETUP_SQ_AFF,
            IORING_SETUP_REGISTERED_FD_ONLY,
            IORING_SETUP_HYBRID_IOPOLL,
            1 << 19,
        ];
        let flags = self.choose(&COMMON) | self.bits(&more, 1, 14);
        let entries = self.choose(&[1, 2, 4, 8, 8, 8, 16, 32, 64, 128, 3, 1000, 4096, 32768, 0, 32769, u32::MAX]);
        let params = self.chance(1, 30).then(|| self.address());
        let attach = self.fd();
        Step::Setup {
            slot,
            entries,
            cq_entries: self.choose(&[0, 1, 8, 16, 64, 256, 65536, u32::MAX]),
            flags,
            idle_ms: self.choose(&[0, 1, 10, 50]),
            attach,
            params,
            map: !self.chance(1, 20),
        }
    }

    /// Makes the step that sets up a ring, most probably with success.
    fn good_setup(&mut self, slot: u8) -> Step {
        const KINDS: [u32; 10] = [
            0,
            0,
            0,
            0,
            IORING_SETUP_COOP_TASKRUN | IORING_SETUP_TASKRUN_FLAG,
            IORING_SETUP_SINGLE_ISSUER,
            IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN,
            IORING_SETUP_SQPOLL,
            IORING_SETUP_NO_MMAP,
            IORING_SETUP_IOPOLL,
        ];
        let shapes = [
            IORING_SETUP_SUBMIT_ALL,
            IORING_SETUP_SQE128,
            IORING_SETUP_CQE32,
            IORING_SETUP_NO_SQARRAY,
            IORING_SETUP_CQE_MIXED,
            IORING_SETUP_CLAMP,
            IORING_SETUP_CQSIZE,
        ];
        let mut flags = self.choose(&KINDS) | self.bits(&shapes, 1, 8);
        if flags & IORING_SETUP_CQE32 != 0 {
            flags &= !IORING_SETUP_CQE_MIXED;
        }
        let entries = self.choose(&[1, 2, 4, 8, 8, 8, 16, 32, 64]);
        let cq_entries = self.choose(&[64, 64, 128, 1024]);
        Step::Setup {
            slot,
            entries,
            cq_entries,
            flags,
            idle_ms: 10,
            attach: Fd::Number(0),
            params: None,
            map: true,
        }
    }

    fn enter(&mut self) -> Enter {
        let mut flags = if self.chance(1, 2) { IORING_ENTER_GETEVENTS } else { 0 };
        flags |= self.bits(&[IORING_ENTER_SQ_WAKEUP, IORING_ENTER_SQ_WAIT, 64, 128, 1 << 8], 1, 24);
        flags |=
            self.bits(&[IORING_ENTER_REGISTERED_RING, IORING_ENTER_EXT_ARG_REG, IORING_ENTER_ABS_TIMER], 1, 30);
        let ring = if self.chance(1, 20) { self.fd() } else { Fd::Ring(self.slot()) };
        let (argument, size) = match self.below(8) {
            0..=3 => {
                flags |= IORING_ENTER_EXT_ARG;
                (Word::At(Area::Fixed, arena::WAITS + 32 * self.below(arena::WAITS_COUNT)), 24)
            }
            4 => {
                flags |= IORING_ENTER_EXT_ARG;
                (self.struct_at(place::WAITS, 32, 8), self.choose(&[24, 24, 24, 8, 0, 64, 4096, u64::MAX]))
            }
            // Only masks that leave the alarm unblocked: nothing else would end this wait.
            5 => (Word::At(Area::Fixed, arena::MASKS + 8 * self.below(4)), self.choose(&[8, 8, 4, 16])),
            _ => (Word::Plain(0), 8),
        };
        let to_submit = self.choose(&[0, 0, 0, 1, 2, 8, 64, u32::MAX]);
        let min_complete = self.choose(&[0, 0, 1, 1, 2, 8, 1000, u32::MAX]);
        Enter { ring, to_submit, min_complete, flags, argument, size }
    }

    fn limit(&mut self) -> Step {
        let (resource, values): (u32, &[u64]) = match self.below(7) {
            0 | 1 => (libc::RLIMIT_NOFILE, &[0, 3, 16, 64, 100, 128, 200, 256, 512, 515, 520, 1024]),
            // In MiB, above the current use: see `execute`.
            2 => (libc::RLIMIT_AS, &[0, 1, 4, 64, 256]),
            3 => (libc::RLIMIT_FSIZE, &[0, 1, 100, 4096, 65536]),
            4 => (libc::RLIMIT_NPROC, &[0, 1, 2, 4, 8]),
            5 => (libc::RLIMIT_SIGPENDING, &[0, 0, 1, 4]),
            _ => (libc::RLIMIT_MEMLOCK, &[0, 4096, 65536]),
        };
        let value = if self.chance(1, 4) { None } else { Some(self.choose(values)) };
        Step::Limit { resource, value }
    }

    fn nuisance(&mut self) -> Step {
        use Nuisance as N;
        let kind = self.choose(&[
            N::Rewrites,
            N::Rewrites,
            N::Unmaps,
            N::Unmaps,
            N::Closes,
            N::Enters,
            N::Signals,
            N::Forks,
            N::Scrambles,
        ]);
        Step::Start(kind, self.random.u64(..))
    }

    /// Makes any step.
    fn step(&mut self) -> Step {
        match self.below(100) {
            0..=39 => self.submission(),
            40..=46 => Step::Enter(self.enter()),
            47..=62 => {
                let kind = self.below(14);
                self.structure(kind)
            }
            63..=65 => self.scramble(),
            66..=69 => Step::Reap { slot: self.slot() },
            70 => Step::Poll { slot: self.slot(), how: self.below(3) as u8 },
            71..=72 => self.protection(),
            73 => Step::Close(self.fd()),
            74 => {
                let first = self.victim();
                Step::CloseRange { first, last: (first + self.below(4) as i32).min(FIRST_VICTIM + VICTIMS - 1) }
            }
            75 => Step::Dup { from: self.fd(), onto: if self.chance(1, 4) { -1 } else { self.victim() } },
            76..=77 => Step::Reopen { victim: self.victim(), kind: self.below(40) as u8 },
            78..=81 => {
                let bytes = self.choose(&[1, 7, 64, 512, 4096, 20_000]);
                Step::Feed { victim: self.victim(), write: self.chance(2, 3), bytes }
            }
            82 if self.chance(1, 3) => {
                Step::MapBufferRing { slot: self.slot(), group: self.below(5), number: self.below(4) as u8 }
            }
            82 => self.limit(),
            83 | 84 => Step::Within { place: self.place(), steps: 1 + self.below(6) as u8 },
            99 => Step::Signal { signal: self.choose(&crate::child::SIGNALS), to_process: self.chance(1, 2) },
            85 => self.nuisance(),
            86..=88 => {
                let slot = self.slot();
                if self.chance(1, 2) {
                    self.good_setup(slot)
                } else {
                    self.setup(slot)
                }
            }
            89..=97 => self.aio(),
            _ => Step::Pause,
        }
    }

    fn scramble(&mut self) -> Step {
        let slot = self.slot();
        let value = self.choose(&[
            0,
            1,
            2,
            8,
            0x7f,
            0x1000,
            0x7fff_ffff,
            0x8000_0000,
            u32::MAX,
            u32::MAX - 1,
            u32::MAX - 8,
        ]);
        let pair = u64::from(value) | u64::from(self.choose(&[0, 1, u32::MAX])) << 32;
        let at = match self.below(3) {
            0 => Word::At(Area::BufferRing(self.below(4) as u8), self.choose(&[0, 8, 16, 24, 32, 48])),
            1 => Word::At(Area::Rings(slot), 8 * self.below(24)),
            _ => Word::At(Area::Rings(slot), self.choose(&[0, 4, 8, 12, 16, 20, 24, 28, 32, 36, 40, 44])),
        };
        Step::Write { at, words: vec![Word::Plain(pair)] }
    }

    fn protection(&mut self) -> Step {
        let slot = self.slot();
        let number = self.below(4) as u8;
        let area = self.choose(&[
            Area::Shaky,
            Area::Shaky,
            Area::Shaky,
            Area::Rings(slot),
            Area::Sqes(slot),
            Area::BufferRing(number),
            Area::Cut,
        ]);
        Step::Protect { area, page: self.below(4) as u8, pages: 1 + self.below(4) as u8, how: self.below(6) as u8 }
    }

    fn aio(&mut self) -> Step {
        let slot = self.below(u32::from(CONTEXTS)) as u8;
        let context = self.chance(1, 12).then(|| self.address());
        match self.below(16) {
            0 | 1 => Step::AioSetup { slot, events: self.choose(&[1, 8, 64, 128, 0, 65536, u32::MAX]), context },
            2..=8 => {
                let count = self.choose(&[0, 1, 1, 2, 4, 8, 16, 64, -1, i64::MAX, i64::MIN]);
                Step::AioSubmit { slot, count, pointers: self.struct_at(place::POINTERS, 8, 64), context }
            }
            9..=11 => {
                let (min, max) =
                    (self.choose(&[0, 0, 1, 2, 100, -1, i64::MAX]), self.choose(&[0, 1, 4, 16, 64, -1, i64::MAX]));
                // Room for many events is given only where the end of the area stops the writes.
                Step::AioGetevents { slot, min, max, events: self.address(), timeout: self.time(), context }
            }
            12 | 13 => {
                let iocb = self.struct_at(place::IOCBS, 64, 32);
                Step::AioCancel { slot, iocb, result: self.address(), context }
            }
            14 => Step::AioDestroy { slot, context },
            _ => {
                let value = self.choose(&[0, 1, 7, 8, 100, 0x7fff_ffff, u32::MAX]);
                Step::AioScramble { slot, word: self.below(10) as u8, value }
            }
        }
    }
}

/// Four bytes of [`arena::DATA`].
const DATA_WORD: u64 = arena::DATA as u64 * 0x0101_0101;
