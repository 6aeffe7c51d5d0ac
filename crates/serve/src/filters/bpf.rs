//! The instructions of seccomp filters, and programs that first select calls by number and arguments.
//!
//! The seccompiler crate does not fit: its filters kill every call of a foreign architecture, and cannot compare the
//! address of the instruction.

use crate::arch;
use core::mem::offset_of;
use core::ops::Range;
use libc::{seccomp_data, sock_filter};

/// The AUDIT_ARCH_* value of the calls this process makes (linux/audit.h: ELF machine, 64-bit and little-endian bits).
pub const NATIVE: u32 = arch::ELF_MACHINE | 0xc000_0000;

/// The answer that allows a call.
pub const ALLOW: u32 = libc::SECCOMP_RET_ALLOW;

/// The test of a [`jump`] that the loaded word equals the value.
pub const EQUAL: u32 = libc::BPF_JEQ;
/// The test that the loaded word, unsigned, is at least the value.
pub const AT_LEAST: u32 = libc::BPF_JGE;
/// The test that the loaded word, unsigned, is greater than the value.
pub const ABOVE: u32 = libc::BPF_JGT;
/// The test that the loaded word and the value have a bit in common.
pub const ANY_BIT: u32 = libc::BPF_JSET;

/// The offset of the call's number.
pub const NUMBER: usize = offset_of!(seccomp_data, nr);
/// The offset of its architecture.
pub const ARCH: usize = offset_of!(seccomp_data, arch);
/// The offsets of the two halves of the return address after the instruction, the lower first.
pub const ADDRESS: [usize; 2] = halves(offset_of!(seccomp_data, instruction_pointer));

/// Returns the offsets of the two halves of an argument (0 to 5), the lower first.
pub const fn argument(index: usize) -> [usize; 2] {
    halves(offset_of!(seccomp_data, args) + index * 8)
}

/// Returns the offsets of the two halves of a word. Both architectures are little-endian.
const fn halves(at: usize) -> [usize; 2] {
    [at, at + 4]
}

/// Loads the word at an offset of the call's description.
pub const fn load(offset: usize) -> sock_filter {
    instruction(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, offset as u32, 0, 0)
}

/// Keeps these bits of the loaded word.
pub const fn mask(bits: u32) -> sock_filter {
    instruction(libc::BPF_ALU | libc::BPF_AND | libc::BPF_K, bits, 0, 0)
}

/// Tests the loaded word, and skips `if_true` or `if_false` instructions.
pub const fn jump(test: u32, value: u32, if_true: u8, if_false: u8) -> sock_filter {
    instruction(libc::BPF_JMP | test | libc::BPF_K, value, if_true, if_false)
}

/// Skips that many instructions.
pub const fn skip(instructions: u32) -> sock_filter {
    instruction(libc::BPF_JMP | libc::BPF_JA, instructions, 0, 0)
}

/// Ends the program with an answer.
pub const fn ret(action: u32) -> sock_filter {
    instruction(libc::BPF_RET | libc::BPF_K, action, 0, 0)
}

const fn instruction(code: u32, k: u32, jt: u8, jf: u8) -> sock_filter {
    sock_filter { code: code as u16, jt, jf, k }
}

/// Splits `code` at multiples of 4 GiB. Returns for each piece the upper half of its addresses, and the lower
/// halves of its first and last address.
pub fn by_upper_half(code: &Range<usize>) -> impl Iterator<Item = (u32, [u32; 2])> {
    let (start, last) = (code.start, code.end.saturating_sub(1));
    (start >> 32..=last >> 32).map(move |high| {
        let within = |address: usize| address.clamp(high << 32, (high << 32) | 0xffff_ffff) as u32;
        (high as u32, [within(start), within(last)])
    })
}

/// Ends the program with `action` for an instruction in one piece of [`by_upper_half`].
pub fn in_range((high, [first, last]): (u32, [u32; 2]), action: u32) -> [sock_filter; SIZE_IN_RANGE] {
    let [lower, upper] = ADDRESS;
    [
        load(upper),
        jump(EQUAL, high, 0, 4),
        load(lower),
        jump(AT_LEAST, first, 0, 2),
        jump(ABOVE, last, 1, 0),
        ret(action),
    ]
}
/// Number of instructions of [`in_range`].
pub const SIZE_IN_RANGE: usize = 6;

/// A filter program that selects calls. For a selected call, the filter continues after this program. All other calls
/// are allowed, as are those of other architectures. Between any two of its tests, the loaded word is the call's
/// number.
pub struct Calls {
    program: Vec<sock_filter>,
    /// Tests that select a call if they hold. The length of their jumps is unknown until the end.
    found: Vec<usize>,
}

impl Calls {
    /// Returns a program that selects no call yet.
    #[allow(clippy::new_without_default)]
    pub fn new() -> Calls {
        let program = vec![load(ARCH), jump(EQUAL, NATIVE, 1, 0), ret(ALLOW), load(NUMBER)];
        Calls { program, found: Vec::new() }
    }

    /// Adds the caller's own tests.
    pub fn add(&mut self, instructions: &[sock_filter]) {
        self.program.extend_from_slice(instructions);
    }

    /// Selects the call if this test of the loaded word holds.
    pub fn found_if(&mut self, test: u32, value: u32) {
        self.found.push(self.program.len());
        self.add(&[jump(test, value, 0, 0)]);
    }

    /// Selects `number`, whatever the arguments.
    pub fn always(&mut self, number: i64) {
        self.found_if(EQUAL, number as u32);
    }

    /// Selects the numbers from `first` to `last`.
    pub fn all(&mut self, first: i64, last: i64) {
        self.add(&[jump(ABOVE, last as u32, 1, 0)]);
        self.found_if(AT_LEAST, first as u32);
    }

    /// Selects these numbers if the lower half of this argument is in `range`.
    pub fn within(&mut self, numbers: &[i64], index: usize, range: Range<i32>) {
        let [lower, _] = argument(index);
        for (place, number) in numbers.iter().enumerate() {
            self.add(&[jump(EQUAL, *number as u32, (numbers.len() - place) as u8, 0)]);
        }
        self.add(&[skip(4), load(lower), jump(AT_LEAST, range.end as u32, 1, 0)]);
        self.found_if(AT_LEAST, range.start as u32);
        self.add(&[load(NUMBER)]);
    }

    /// Returns the program. The selected calls continue at its end.
    pub fn end(mut self) -> Vec<sock_filter> {
        self.add(&[ret(ALLOW)]);
        for at in self.found {
            let over = self.program.len() - at - 1;
            debug_assert!(over <= usize::from(u8::MAX));
            self.program[at].jt = over as u8;
        }
        self.program
    }
}
