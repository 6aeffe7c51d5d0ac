//! The code of an island, which a patched `svc` of aarch64 leads to. Nothing here depends on the machine, so the tests
//! run on every processor.
//!
//! A system call changes no register but x0, and no flag. So the island has no register of its own. It subtracts the
//! numbers that it serves from x8, which changes no flag, and adds them again. If one fits, the island saves six
//! registers below the program's stack pointer. Then it jumps to the code that takes a stack of anyring's.

/// `svc 0`.
pub const SVC: u32 = 0xd400_0001;
/// The most system call numbers that one island serves: those of io_uring.
pub const NUMBERS: usize = 3;
/// The most instructions of an island.
pub const WORDS: usize = 64;
/// Bytes by which the stack pointer is lowered. The six registers take 48. The highest 16 bytes stay as they are,
/// since Go keeps a frame pointer directly below its stack pointer.
pub const LOWERED: usize = 64;

/// Bytes of the data after the instructions ([`WORDS`]): for each number, and then the address that serves them.
const CALL: usize = 24;
/// The instructions of one number: the way to the code that serves it.
const TAKE: usize = 8;
/// The instructions of the way back to the program.
const BACK: usize = 5;

/// Distances that `b` reaches, in bytes.
const REACH: isize = 128 << 20;

/// The calls that an island serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The numbers of the calls, ascending. The last one is repeated if there are fewer.
    pub numbers: [u32; NUMBERS],
    /// The number under which a call traps, if a filter kills for its own.
    pub disguise: Option<u32>,
    /// The `svc` that was replaced.
    pub instruction: u32,
}

impl Plan {
    /// Returns the plan for ascending `numbers`, at least one and at most [`NUMBERS`].
    pub fn new(numbers: &[u32], disguise: Option<u32>, instruction: u32) -> Self {
        let numbers = core::array::from_fn(|index| numbers[index.min(numbers.len() - 1)]);
        Self { numbers, disguise, instruction }
    }

    fn distinct(&self) -> usize {
        (1..NUMBERS).take_while(|index| self.numbers[*index] != self.numbers[*index - 1]).count() + 1
    }
}

/// The place of a thread on an island, before one of its instructions: how the registers differ from those at the
/// `svc`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// The amount that x8 lacks.
    pub number_lacks: u32,
    /// True if the stack pointer is lowered by [`LOWERED`].
    pub is_lowered: bool,
    /// True if x12 to x17 are on the stack, and perhaps nowhere else.
    pub is_saved: bool,
    /// True if the call was made.
    pub is_made: bool,
}

/// An island's instructions, with the place before each.
pub struct Code {
    /// The instructions.
    pub words: [u32; WORDS],
    /// The places.
    pub places: [Place; WORDS],
    /// Each number, with the addresses that take a call of it to the program's own trap, and back to the program after
    /// the call.
    pub calls: [[usize; 3]; NUMBERS],
}

/// Builds instructions one after the other.
struct Assembler {
    address: usize,
    /// The address after the `svc`.
    return_address: usize,
    next: usize,
    place: Place,
    code: Code,
}

impl Assembler {
    /// Appends an instruction, which changes the place as `then` says.
    fn push(&mut self, word: u32, then: impl FnOnce(&mut Place)) {
        self.code.words[self.next] = word;
        self.code.places[self.next] = self.place;
        then(&mut self.place);
        self.next += 1;
    }

    fn here(&self) -> usize {
        self.address + self.next * 4
    }

    /// Adds `number` to x8, which lacks it.
    fn restore_number(&mut self, number: u32) {
        self.push(0x9100_0108 | number << 10, |place| place.number_lacks -= number);
    }

    /// Subtracts `number` from x8.
    fn subtract(&mut self, number: u32) {
        self.push(0xd100_0108 | number << 10, |place| place.number_lacks += number);
    }

    /// Restores the registers and the stack pointer.
    fn restore(&mut self) {
        for (pair, offset) in SAVED {
            self.push(pair_at(0xa940_0000, pair, offset), |_| {});
        }
        self.push(0x9100_03ff | (LOWERED as u32) << 10, |place| {
            (place.is_lowered, place.is_saved) = (false, false);
        });
    }

    /// Continues in the program after its `svc`.
    fn continue_after_svc(&mut self) {
        let word = jump(self.here(), self.return_address);
        self.push(word, |_| {});
    }

    /// Makes the call by a `svc` that traps, and continues in the program.
    fn make(&mut self, instruction: u32) {
        self.push(instruction, |place| place.is_made = true);
    }
}

/// The pairs of registers on the program's stack, by their first register, with their offsets from the stack pointer.
const SAVED: [(u32, u32); 3] = [(16, 0), (14, 16), (12, 32)];

/// Returns `stp` or `ldp` of a register and the next one, at an offset from the stack pointer.
fn pair_at(operation: u32, first: u32, offset: u32) -> u32 {
    const SP: u32 = 31;
    operation | (offset / 8) << 15 | (first + 1) << 10 | SP << 5 | first
}

/// Returns the instructions of the island at `address`, for the `svc` at `site`.
pub fn code_at(address: usize, site: usize, plan: &Plan) -> Code {
    let code = Code { words: [0; WORDS], places: [Place::default(); WORDS], calls: [[0; 3]; NUMBERS] };
    let mut island = Assembler { address, return_address: site + 4, next: 0, place: Place::default(), code };
    let count = plan.distinct();
    let numbers = &plan.numbers[..count];
    let head = 2 * count + 3;
    let give_up = if plan.disguise.is_some() { 8 } else { 5 };
    let first_give_up = head + count * TAKE;
    let back = first_give_up + count * give_up;

    let mut before = 0;
    for (index, number) in numbers.iter().enumerate() {
        island.subtract(number - before);
        // cbz w8
        let words = head + index * TAKE - island.next;
        island.push(0x3400_0008 | (words as u32) << 5, |_| {});
        before = *number;
    }
    island.restore_number(before);
    let other = island.here();
    island.make(plan.instruction);
    island.continue_after_svc();
    for (index, number) in numbers.iter().enumerate() {
        island.place = Place { number_lacks: *number, ..Place::default() };
        island.restore_number(*number);
        island.push(0xd100_03ff | (LOWERED as u32) << 10, |place| place.is_lowered = true);
        for (pair, offset) in SAVED {
            island.push(pair_at(0xa900_0000, pair, offset), |_| {});
        }
        island.place.is_saved = true;
        // adr x17, the call's data; ldr x16, the address that serves it; br x16
        let words = |to: usize, from: usize| ((to / 4 - from) as u32) << 5;
        let word = 0x1000_0011 | words(WORDS * 4 + index * CALL, island.next);
        island.push(word, |_| {});
        let word = 0x5800_0010 | words(WORDS * 4 + NUMBERS * CALL, island.next);
        island.push(word, |_| {});
        island.push(0xd61f_0200, |_| {});
    }
    for (index, number) in numbers.iter().enumerate() {
        island.place = Place { is_lowered: true, is_saved: true, ..Place::default() };
        island.code.calls[index] = [*number as usize, island.here(), address + back * 4];
        island.restore();
        match plan.disguise {
            None => island.push(jump(island.here(), other), |_| {}),
            Some(other) => {
                island.subtract(number - other);
                island.make(SVC);
                island.restore_number(number - other);
                island.continue_after_svc();
            }
        }
    }
    island.place = Place { is_lowered: true, is_saved: true, is_made: true, ..Place::default() };
    island.restore();
    island.continue_after_svc();
    debug_assert_eq!(island.next, back + BACK);
    island.code
}

/// Returns `b` from one address to another. `None` if that is out of its reach.
pub fn branch(from: usize, to: usize) -> Option<u32> {
    let distance = to.wrapping_sub(from) as isize;
    (distance % 4 == 0 && (-REACH..REACH).contains(&distance)).then(|| jump(from, to))
}

/// Returns `b` to an address in its reach.
fn jump(from: usize, to: usize) -> u32 {
    0x1400_0000 | (to.wrapping_sub(from) >> 2) as u32 & 0x03ff_ffff
}

/// Returns addresses of `bytes` that branches from all of `code` reach, best first, each a multiple of `alignment`. Those
/// below the program come first, since the heap grows above it.
pub fn places(code: core::ops::Range<usize>, bytes: usize, alignment: usize) -> impl Iterator<Item = usize> {
    const STEP: usize = 1 << 20;
    /// A null pointer with an offset should keep faulting.
    const LOWEST: usize = STEP;
    /// Bytes above the program that are left to its heap, if possible.
    const HEAP: usize = 64 << 20;
    let steps = REACH as usize / STEP;
    let (start, end) = (code.start & !(alignment - 1), code.end.next_multiple_of(alignment));
    let room = bytes.next_multiple_of(STEP);
    let below = (0..steps).filter_map(move |step| start.checked_sub(room + step * STEP));
    let above = |from: usize, to: usize| (from / STEP..to / STEP).map(move |step| end + step * STEP);
    let reaches =
        move |at: &usize| *at >= LOWEST && branch(code.start, at + bytes).and(branch(code.end, *at)).is_some();
    below.chain(above(HEAP, REACH as usize)).chain(above(STEP, HEAP)).filter(reaches)
}

/// Returns whether the page at `address` is guarded (BTI), according to `maps`, the text of /proc/self/smaps.
/// `None` if the text does not have the page.
pub fn is_guarded(maps: &str, address: usize) -> Option<bool> {
    let contains = |line: &str| {
        let (start, end) = line.split_once(' ')?.0.split_once('-')?;
        let number = |text| usize::from_str_radix(text, 16).ok();
        Some((number(start)?..number(end)?).contains(&address))
    };
    let mut lines = maps.lines();
    lines.find(|line| contains(line) == Some(true))?;
    let flags = lines.find_map(|line| line.strip_prefix("VmFlags:"))?;
    Some(flags.split_whitespace().any(|flag| flag == "bt"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ADDRESS: usize = 0x5555_0000_0000;
    const SITE: usize = ADDRESS + 0x10_0000;

    /// The registers that an island uses.
    #[derive(Clone, Debug, PartialEq)]
    struct Machine {
        x: [u64; 32],
        stack: Vec<u64>,
        pc: usize,
    }

    /// The end of a run on an island.
    #[derive(Debug, PartialEq)]
    enum End {
        /// At the code that serves the call, with the call's index.
        Taken(usize),
        /// At a `svc`, with this number in x8.
        Svc(u32),
        Program,
    }

    const SP: usize = 31;
    const TOP: u64 = 0x1000;

    impl Machine {
        fn new(number: u64) -> Self {
            let mut x = core::array::from_fn(|index| 0x1_0000 + index as u64);
            (x[8], x[SP]) = (number, TOP);
            Self { x, stack: vec![7; TOP as usize / 8], pc: ADDRESS }
        }

        /// Runs the code until it leaves the island or is at a `svc`. Calls `at` before each instruction.
        fn run(&mut self, code: &Code, mut at: impl FnMut(&Self)) -> End {
            loop {
                at(self);
                let index = (self.pc - ADDRESS) / 4;
                let word = code.words[index];
                self.pc += 4;
                let immediate = u64::from(word >> 10 & 0xfff);
                let (to, from) = (word as usize & 31, word as usize >> 5 & 31);
                let relative = |bits: u32, low: u32| {
                    let words = (word >> low) as i32;
                    ((words << (32 - bits) >> (32 - bits)) * 4) as isize
                };
                let pair = word as usize >> 10 & 31;
                let place = || (self.x[SP] / 8 + u64::from(word >> 15 & 0x7f)) as usize;
                match word {
                    SVC => return End::Svc(self.x[8] as u32),
                    _ if word >> 24 == 0x91 => self.x[to] = self.x[from].wrapping_add(immediate),
                    _ if word >> 24 == 0xd1 => self.x[to] = self.x[from].wrapping_sub(immediate),
                    _ if word >> 24 == 0x34 && self.x[to] as u32 != 0 => {}
                    _ if word >> 24 == 0x34 => self.pc = (self.pc - 4).wrapping_add_signed(relative(19, 5)),
                    _ if word >> 22 == 0x2a4 => {
                        let place = place();
                        (self.stack[place], self.stack[place + 1]) = (self.x[to], self.x[pair]);
                    }
                    _ if word >> 22 == 0x2a5 => {
                        let place = place();
                        (self.x[to], self.x[pair]) = (self.stack[place], self.stack[place + 1]);
                    }
                    _ if word >> 26 == 5 => {
                        self.pc = (self.pc - 4).wrapping_add_signed(relative(26, 0));
                        if self.pc == SITE + 4 {
                            return End::Program;
                        }
                    }
                    // adr x17; ldr x16; br x16
                    _ if word & 0xff00_001f == 0x1000_0011 => {
                        let data = (index * 4).wrapping_add_signed(relative(19, 5));
                        assert_eq!(code.words[index + 2], 0xd61f_0200);
                        let entry = index * 4 + 4 + (code.words[index + 1] as usize >> 5 & 0x7ffff) * 4;
                        assert_eq!(code.words[index + 1] & 0xff00_001f, 0x5800_0010);
                        assert_eq!(entry, WORDS * 4 + NUMBERS * CALL);
                        return End::Taken((data - WORDS * 4) / CALL);
                    }
                    _ => panic!("{word:08x}"),
                }
            }
        }
    }

    fn plans() -> [Plan; 4] {
        let all = [425, 426, 427];
        [
            Plan::new(&[426], None, SVC),
            Plan::new(&[2], None, SVC),
            Plan::new(&all, None, SVC),
            Plan::new(&all, Some(135), SVC),
        ]
    }

    #[test]
    fn served_numbers_are_taken_and_others_change_nothing() {
        for plan in plans() {
            let code = code_at(ADDRESS, SITE, &plan);
            for number in [0, 1, 2, 3, 135, 424, 425, 426, 427, 428, u64::from(u32::MAX), 1 << 40 | 426, 1 << 40] {
                let mut machine = Machine::new(number);
                let served = plan.numbers.iter().position(|served| u64::from(*served) == number & 0xffff_ffff);
                let end = machine.run(&code, |_| {});
                if let Some(index) = served {
                    assert_eq!(end, End::Taken(index), "{number}");
                    let mut expected = Machine::new(number);
                    (expected.x[SP], expected.pc) = (TOP - LOWERED as u64, machine.pc);
                    for (pair, offset) in SAVED {
                        for register in [pair, pair + 1] {
                            let place = (TOP as usize - LOWERED + offset as usize) / 8 + (register - pair) as usize;
                            expected.stack[place] = 0x1_0000 + u64::from(register);
                        }
                    }
                    assert_eq!(machine, expected, "{number}");
                    continue;
                }
                assert_eq!(end, End::Svc(number as u32));
                let expected = Machine { pc: machine.pc, ..Machine::new(number) };
                assert_eq!(machine, expected);
                assert_eq!(machine.run(&code, |_| {}), End::Program);
            }
        }
    }

    #[test]
    fn a_call_that_was_taken_goes_back_or_traps() {
        for plan in plans() {
            let code = code_at(ADDRESS, SITE, &plan);
            for index in 0..plan.distinct() {
                let [number, give_up, back] = code.calls[index];
                assert_eq!(number as u32, plan.numbers[index]);
                let mut taken = Machine::new(number as u64);
                assert_eq!(taken.run(&code, |_| {}), End::Taken(index));
                // The code that serves the call may change these.
                taken.x[12..18].fill(0);
                let mut served = Machine { pc: back, ..taken.clone() };
                assert_eq!(served.run(&code, |_| {}), End::Program);
                assert_eq!(served.x, Machine::new(number as u64).x);
                let mut given_up = Machine { pc: give_up, ..taken };
                let shown = plan.disguise.unwrap_or(number as u32);
                assert_eq!(given_up.run(&code, |_| {}), End::Svc(shown));
                assert_eq!(given_up.run(&code, |_| {}), End::Program);
                assert_eq!(given_up.x, Machine::new(number as u64).x);
            }
        }
    }

    #[test]
    fn a_thread_can_be_set_back_from_every_place() {
        /// Returns the registers that the place promises.
        fn set_back(machine: &Machine, code: &Code) -> [u64; 32] {
            let place = code.places[(machine.pc - ADDRESS) / 4];
            let mut x = machine.x;
            x[8] = x[8].wrapping_add(u64::from(place.number_lacks));
            for (pair, offset) in SAVED.iter().filter(|_| place.is_saved) {
                let at = (x[SP] + u64::from(*offset)) as usize / 8;
                x[*pair as usize..*pair as usize + 2].copy_from_slice(&machine.stack[at..at + 2]);
            }
            x[SP] += if place.is_lowered { LOWERED as u64 } else { 0 };
            x
        }
        for plan in plans() {
            let code = code_at(ADDRESS, SITE, &plan);
            let is_made = |machine: &Machine| code.places[(machine.pc - ADDRESS) / 4].is_made;
            for number in [1, 424, 425, 426, 427, 428] {
                let expected = Machine::new(number).x;
                let mut machine = Machine::new(number);
                let before = |machine: &Machine| {
                    assert_eq!(set_back(machine, &code), expected);
                    assert!(!is_made(machine));
                };
                let end = machine.run(&code, before);
                let End::Taken(index) = end else {
                    machine.run(&code, |machine| {
                        assert_eq!(set_back(machine, &code), expected);
                        assert!(is_made(machine));
                    });
                    continue;
                };
                machine.x[12..18].fill(0);
                let [_, give_up, back] = code.calls[index];
                let mut given_up = Machine { pc: give_up, ..machine.clone() };
                given_up.run(&code, before);
                for pc in [given_up.pc, back] {
                    let mut made = Machine { pc, ..if pc == back { machine.clone() } else { given_up.clone() } };
                    made.run(&code, |machine| {
                        assert_eq!(set_back(machine, &code), expected);
                        assert!(is_made(machine));
                    });
                }
            }
        }
    }

    #[test]
    fn a_branch_is_encoded_within_its_reach() {
        assert_eq!(branch(0x1000, 0x1008), Some(0x1400_0002));
        assert_eq!(branch(0x1008, 0x1000), Some(0x17ff_fffe));
        let far = 128 << 20;
        assert_eq!(branch(far, 0), Some(0x1600_0000));
        assert_eq!(branch(0, far - 4), Some(0x15ff_ffff));
        assert_eq!([branch(far + 4, 0), branch(0, far), branch(0, 6)], [None; 3]);
    }

    #[test]
    fn places_are_in_reach_of_all_code() {
        let code = 0x40_0000..0x40_0000 + (20 << 20);
        let bytes = 256 << 10;
        let all: Vec<usize> = places(code.clone(), bytes, 0x1_0000).collect();
        assert!(all[0] < code.start && all.len() > 50);
        for at in all {
            assert!(at.is_multiple_of(0x1_0000) && at >= 1 << 20);
            assert!(at + bytes <= code.start || at >= code.end);
            for (from, to) in [(code.start, at), (code.start, at + bytes), (code.end, at), (code.end, at + bytes)] {
                assert!(branch(from, to).and(branch(to, from)).is_some(), "{from:#x} {to:#x}");
            }
        }
        assert_eq!(places(0x40_0000..0x4000_0000, bytes, 4096).count(), 0);
    }

    #[test]
    fn a_guarded_page_is_known_by_its_flags() {
        let maps = "aaaa0000-aaaa2000 r-xp 00000000 fe:00 7   /bin/a\nSize:   8 kB\nVmFlags: rd ex mr mw me bt \n\
                    aaaa2000-aaaa3000 r-xp 00002000 fe:00 7   /bin/a\nSize:   4 kB\nVmFlags: rd ex mr mw me \n";
        let at = |address| is_guarded(maps, address);
        assert_eq!([0xaaaa_0000, 0xaaaa_1ffc, 0xaaaa_2000].map(at), [Some(true), Some(true), Some(false)]);
        assert_eq!([0xaaa9_fffc, 0xaaaa_3000].map(at), [None; 2]);
    }
}
