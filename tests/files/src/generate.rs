//! The program of a seed. Offsets and lengths do not depend on the file's size, so that steps can be left out.

use crate::program::*;
use anyring_abi::*;
use anyring_test_kit::Choices;
use fastrand::Rng;

/// The number of steps.
const STEPS: usize = 60;

/// Returns the seed's program.
pub fn program(seed: u64) -> Program {
    let mut random = Rng::with_seed(seed);
    let processes = random.choose(&[1, 1, 2, 3]);
    let by_instructions = random.chance(1, 4);
    let mut setup_flags = [[0; RINGS as usize]; PROCESSES as usize];
    setup_flags.iter_mut().flatten().for_each(|flags| *flags = flags_of_ring(&mut random));
    let mut generator = Generator { random, processes, requests: 0 };
    let steps = (0..STEPS).map(|_| generator.step()).collect();
    Program { seed, processes, setup_flags, by_instructions, steps }
}

fn flags_of_ring(random: &mut Rng) -> u32 {
    let deferred = IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN;
    random.choose(&[
        0,
        0,
        IORING_SETUP_COOP_TASKRUN,
        deferred,
        deferred | IORING_SETUP_NO_SQARRAY,
        IORING_SETUP_SQPOLL,
    ])
}

struct Generator {
    random: Rng,
    processes: u8,
    /// The number of requests made.
    requests: u32,
}

impl Generator {
    fn step(&mut self) -> Step {
        match self.random.u32(0..20) {
            0 => Step::Compare(self.process()),
            1 => Step::Reopen(self.process(), self.ring()),
            2..=8 => self.free(),
            9..=12 => self.ordered(Order::Single, 3),
            13..=15 => self.ordered(Order::Linked, 6),
            16..=17 => self.ordered(Order::HardLinked, 6),
            _ => self.ordered(Order::Drained, 6),
        }
    }

    fn process(&mut self) -> u8 {
        self.random.u8(0..self.processes)
    }

    fn ring(&mut self) -> u8 {
        self.random.u8(0..RINGS)
    }

    fn request(&mut self, process: u8, ring: u8, work: Work) -> Request {
        self.requests += 1;
        let (on_worker, registered_file) = (self.random.chance(1, 5), self.random.chance(1, 3));
        Request { id: self.requests, process, ring, work, on_worker, registered_file }
    }

    fn ordered(&mut self, order: Order, most: usize) -> Step {
        let (process, ring) = (self.process(), self.ring());
        let count = self.random.usize(1..=most);
        let requests = (0..count).map(|_| {
            let mut work = self.work();
            while order != Order::Single && matches!(work, Work::Load(_) | Work::Store(_)) {
                work = self.work();
            }
            self.request(process, ring, work)
        });
        Step::Requests(order, requests.collect())
    }

    fn work(&mut self) -> Work {
        match self.random.u32(0..24) {
            0..=6 => self.transfer(true),
            7..=12 => self.transfer(false),
            13..=14 => Work::Truncate(self.size()),
            15..=17 => self.allocation(),
            18 => Work::Sync(self.random.bool()),
            19 => Work::SyncRange(self.bytes()),
            20 => Work::Drop(self.bytes()),
            21 => Work::Load(self.bytes()),
            _ => Work::Store(self.bytes()),
        }
    }

    /// Chooses a size, most often one in the middle: a file that is cut to nothing is no good test.
    fn size(&mut self) -> u32 {
        let size = self.random.u32(0..=FILE_BYTES);
        match self.random.u32(0..8) {
            0 => 0,
            1 => size / BLOCK * BLOCK,
            2..=3 => size,
            _ => FILE_BYTES / 2 + size / 2,
        }
    }

    /// Chooses a range of a transfer: short or long, at a page's border or not.
    fn bytes(&mut self) -> Range {
        let len = match self.random.u32(0..4) {
            0 => self.random.u32(1..64),
            1 => self.random.u32(1..=2 * BLOCK),
            _ => self.random.u32(1..=TRANSFER_BYTES),
        };
        let at = self.random.u32(0..=FILE_BYTES - len);
        match self.random.chance(1, 3) {
            true => Range { at: at / BLOCK * BLOCK, len },
            false => Range { at, len },
        }
    }

    fn blocks(&mut self) -> Range {
        let len = self.random.u32(1..=TRANSFER_BYTES / BLOCK) * BLOCK;
        Range { at: self.random.u32(0..=(FILE_BYTES - len) / BLOCK) * BLOCK, len }
    }

    fn memory(&mut self) -> Memory {
        self.random.choose(&[Memory::Single, Memory::Vector, Memory::Registered])
    }

    fn transfer(&mut self, write: bool) -> Work {
        let opened = match self.random.u32(0..8) {
            0..=2 => Opened::Direct,
            3 if write => Opened::Append,
            _ => Opened::Plain,
        };
        let range = if opened == Opened::Direct { self.blocks() } else { self.bytes() };
        transfer(write, range, opened, self.memory())
    }

    fn allocation(&mut self) -> Work {
        let allocation = self.random.choose(&ALLOCATIONS);
        let range = if allocation.moves() || self.random.bool() { self.blocks() } else { self.bytes() };
        Work::Allocate(range, allocation)
    }

    /// Makes requests on ranges that do not overlap, of all processes and rings. Either all transfers are direct or none
    /// is: open(2) advises against both at a time on one file.
    fn free(&mut self) -> Step {
        let direct = self.random.chance(1, 3);
        let unit = if direct { BLOCK } else { self.random.choose(&[1, 1, 512, BLOCK]) };
        // All in one part of the file, so that they share pages and blocks.
        let span = self.random.choose(&[4 * BLOCK, 32 * BLOCK, FILE_BYTES]);
        let first = self.random.u32(0..=(FILE_BYTES - span) / BLOCK) * BLOCK;
        let count = self.random.usize(2..=REQUESTS);
        let mut cuts: Vec<u32> = (0..2 * count).map(|_| self.random.u32(0..=span / unit) * unit).collect();
        cuts.sort_unstable();
        let mut requests = Vec::new();
        for cut in cuts.chunks(2) {
            let range = Range { at: first + cut[0], len: (cut[1] - cut[0]).min(TRANSFER_BYTES) };
            if range.len > 0 {
                let work = self.work_on(range, direct);
                let (process, ring) = (self.process(), self.ring());
                requests.push(self.request(process, ring, work));
            }
        }
        Step::Requests(Order::Free, requests)
    }

    fn work_on(&mut self, range: Range, direct: bool) -> Work {
        let opened = if direct { Opened::Direct } else { Opened::Plain };
        match self.random.u32(0..16) {
            0 if !direct => Work::Load(range),
            1 if !direct => Work::Store(range),
            2 => Work::Allocate(range, self.random.choose(&[Allocation::PunchHole, Allocation::ZeroKeepSize])),
            3 => Work::Sync(self.random.bool()),
            4..=8 => transfer(false, range, opened, self.memory()),
            _ => transfer(true, range, opened, self.memory()),
        }
    }
}

fn transfer(write: bool, range: Range, opened: Opened, memory: Memory) -> Work {
    match write {
        true => Work::Write(range, opened, memory),
        false => Work::Read(range, opened, memory),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn requests(program: &Program) -> impl Iterator<Item = (Order, &Request)> {
        program.steps.iter().flat_map(of_step)
    }

    fn of_step(step: &Step) -> Vec<(Order, &Request)> {
        match step {
            Step::Requests(order, requests) => requests.iter().map(|request| (*order, request)).collect(),
            _ => Vec::new(),
        }
    }

    #[test]
    fn a_seed_stands_for_one_program() {
        assert_eq!(program(5), program(5));
        assert_ne!(program(5).steps, program(6).steps);
    }

    #[test]
    fn requests_of_any_order_do_not_overlap() {
        for step in (0..50).flat_map(|seed| program(seed).steps) {
            let Step::Requests(Order::Free, requests) = step else { continue };
            assert!(requests.len() <= REQUESTS);
            let ranges: Vec<Range> = requests.iter().filter_map(|request| request.work.range()).collect();
            assert!(ranges.windows(2).all(|pair| pair[0].end() <= pair[1].at), "{ranges:?}");
            let direct = |request: &Request| {
                matches!(request.work, Work::Read(_, Opened::Direct, _) | Work::Write(_, Opened::Direct, _))
            };
            let cached = |request: &Request| {
                matches!(request.work, Work::Read(_, Opened::Plain, _) | Work::Write(_, Opened::Plain, _))
            };
            assert!(!(requests.iter().any(direct) && requests.iter().any(cached)), "{requests:?}");
        }
    }

    #[test]
    fn fifty_seeds_have_each_kind_of_work_in_each_order() {
        let programs: Vec<Program> = (0..50).map(program).collect();
        let kind = |work: Work| {
            let text = format!("{work:?}");
            text.split('(').next().expect("a name").to_owned()
        };
        let seen: BTreeSet<(String, String)> = programs
            .iter()
            .flat_map(requests)
            .map(|(order, request)| (format!("{order:?}"), kind(request.work)))
            .collect();
        // Nine kinds one by one; in each of three other orders the seven without a mapping; six in any order.
        assert_eq!(seen.len(), 9 + 3 * 7 + 6, "{seen:?}");
        let ids: BTreeSet<u32> = requests(&programs[0]).map(|(_, request)| request.id).collect();
        assert_eq!(ids.len(), requests(&programs[0]).count());
    }
}
