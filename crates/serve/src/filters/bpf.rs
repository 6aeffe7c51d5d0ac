//! The instructions of seccomp filters, and programs that first tell calls by number and arguments.
//!
//! The seccompiler crate is not used: what its compiler makes kills every call of a foreign architecture, and it does not
//! compare the address of the instruction.

use core::mem::offset_of;
use core::ops::Range;
use libc::{seccomp_data, sock_filter};

/// The AUDIT_ARCH_* value of the calls this process makes (linux/audit.h: ELF machine, 64-bit and little-endian bits).
#[cfg(target_arch = "x86_64")]
pub const NATIVE: u32 = 62 | 0xc000_0000;
#[cfg(target_arch = "aarch64")]
pub const NATIVE: u32 = 183 | 0xc000_0000;

/// The answer that lets a call pass.
pub const ALLOW: u32 = libc::SECCOMP_RET_ALLOW;

/// Tests of a [`jump`], unsigned.
pub const EQUAL: u32 = libc::BPF_JEQ;
/// See [`EQUAL`].
pub const AT_LEAST: u32 = libc::BPF_JGE;
/// See [`EQUAL`].
pub const ABOVE: u32 = libc::BPF_JGT;
/// See [`EQUAL`]: the two have a bit in common.
pub const ANY_BIT: u32 = libc::BPF_JSET;

/// Where the call's number is.
pub const NUMBER: usize = offset_of!(seccomp_data, nr);
/// Where its architecture is.
pub const ARCH: usize = offset_of!(seccomp_data, arch);
/// Where the halves of the address behind the instruction are, the lower first.
pub const ADDRESS: [usize; 2] = halves(offset_of!(seccomp_data, instruction_pointer));

/// Where the halves of an argument (0 to 5) are, the lower first.
pub const fn argument(index: usize) -> [usize; 2] {
    halves(offset_of!(seccomp_data, args) + index * 8)
}

/// Both architectures are little-endian.
const fn halves(at: usize) -> [usize; 2] {
    [at, at + 4]
}

/// Loads the word at an offset of the call's description.
pub const fn load(offset: usize) -> sock_filter {
    instruction(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, offset as u32, 0, 0)
}

/// Keeps these bits of what is loaded.
pub const fn mask(bits: u32) -> sock_filter {
    instruction(libc::BPF_ALU | libc::BPF_AND | libc::BPF_K, bits, 0, 0)
}

/// Tests what is loaded, and jumps over so many instructions.
pub const fn jump(test: u32, value: u32, if_true: u8, if_false: u8) -> sock_filter {
    instruction(libc::BPF_JMP | test | libc::BPF_K, value, if_true, if_false)
}

/// Jumps over so many instructions.
pub const fn skip(instructions: u32) -> sock_filter {
    instruction(libc::BPF_JMP | libc::BPF_JA, instructions, 0, 0)
}

/// Ends the program with an answer.
pub const fn answer(action: u32) -> sock_filter {
    instruction(libc::BPF_RET | libc::BPF_K, action, 0, 0)
}

const fn instruction(code: u32, k: u32, jt: u8, jf: u8) -> sock_filter {
    sock_filter { code: code as u16, jt, jf, k }
}

/// What of `code` lies in which 4 GiB: the upper half of its addresses there, and the lower halves of the first and the last.
pub fn by_upper_half(code: &Range<usize>) -> impl Iterator<Item = (u32, [u32; 2])> {
    let (start, last) = (code.start, code.end.saturating_sub(1));
    (start >> 32..=last >> 32).map(move |high| {
        let within = |address: usize| address.clamp(high << 32, (high << 32) | 0xffff_ffff) as u32;
        (high as u32, [within(start), within(last)])
    })
}

/// Ends the program with `action` for an instruction in what [`by_upper_half`] has told.
pub fn in_range((high, [first, last]): (u32, [u32; 2]), action: u32) -> [sock_filter; SIZE_IN_RANGE] {
    let [lower, upper] = ADDRESS;
    [
        load(upper),
        jump(EQUAL, high, 0, 4),
        load(lower),
        jump(AT_LEAST, first, 0, 2),
        jump(ABOVE, last, 1, 0),
        answer(action),
    ]
}
/// How many instructions that takes.
pub const SIZE_IN_RANGE: usize = 6;

/// A program in which the calls that are found go on behind it; all others are allowed, as are those of other architectures.
/// Between any two of its tests the number is loaded.
pub struct Calls {
    program: Vec<sock_filter>,
    /// Tests by which a call is found, if they hold: how far they jump is not known before the end.
    found: Vec<usize>,
}

impl Calls {
    /// One that finds no call yet.
    #[allow(clippy::new_without_default)]
    pub fn new() -> Calls {
        let program = vec![load(ARCH), jump(EQUAL, NATIVE, 1, 0), answer(ALLOW), load(NUMBER)];
        Calls { program, found: Vec::new() }
    }

    /// Adds tests of one's own.
    pub fn add(&mut self, instructions: &[sock_filter]) {
        self.program.extend_from_slice(instructions);
    }

    /// The call is found if this holds of what is loaded.
    pub fn found_if(&mut self, test: u32, value: u32) {
        self.found.push(self.program.len());
        self.add(&[jump(test, value, 0, 0)]);
    }

    /// Finds `number`, whatever the arguments.
    pub fn always(&mut self, number: i64) {
        self.found_if(EQUAL, number as u32);
    }

    /// Finds the numbers from `first` to `last`.
    pub fn all(&mut self, first: i64, last: i64) {
        self.add(&[jump(ABOVE, last as u32, 1, 0)]);
        self.found_if(AT_LEAST, first as u32);
    }

    /// Finds these numbers if the lower half of this argument is in `range`.
    pub fn within(&mut self, numbers: &[i64], index: usize, range: Range<i32>) {
        let [lower, _] = argument(index);
        for (place, number) in numbers.iter().enumerate() {
            self.add(&[jump(EQUAL, *number as u32, (numbers.len() - place) as u8, 0)]);
        }
        self.add(&[skip(4), load(lower), jump(AT_LEAST, range.end as u32, 1, 0)]);
        self.found_if(AT_LEAST, range.start as u32);
        self.add(&[load(NUMBER)]);
    }

    /// The program, to whose end come the calls that are found.
    pub fn end(mut self) -> Vec<sock_filter> {
        self.add(&[answer(ALLOW)]);
        for at in self.found {
            let over = self.program.len() - at - 1;
            debug_assert!(over <= usize::from(u8::MAX));
            self.program[at].jt = over as u8;
        }
        self.program
    }
}
