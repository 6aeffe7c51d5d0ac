//! Classic BPF programs that decide about a request. A program reads the words of a context and returns a number.
//!
//! The checks are those of `bpf_check_classic` in net/core/filter.c, and of `io_uring_check_cbpf_filter` in
//! io_uring/bpf_filter.c, which permits fewer instructions. A program that passed them ends: it only jumps forward.

use crate::os::user_read_slice;
use crate::{alloc, Errno};
use libc::{
    BPF_A, BPF_ABS, BPF_ADD, BPF_ALU, BPF_AND, BPF_DIV, BPF_IMM, BPF_JA, BPF_JEQ, BPF_JGE, BPF_JGT, BPF_JMP,
    BPF_JSET, BPF_LD, BPF_LDX, BPF_LEN, BPF_LSH, BPF_MEM, BPF_MISC, BPF_MUL, BPF_NEG, BPF_OR, BPF_RET, BPF_RSH,
    BPF_ST, BPF_STX, BPF_SUB, BPF_TAX, BPF_TXA, BPF_W, BPF_X, BPF_XOR,
};

/// The words of a context: `struct io_uring_bpf_ctx`.
pub type Words = [u32; 10];

/// Bytes of a context.
const CONTEXT_BYTES: u32 = size_of::<Words>() as u32;
/// Number of a program's memory words (`BPF_MEMWORDS`).
const MEMORY_WORDS: usize = 16;

/// The second operand of an instruction: its constant, or the register X.
#[derive(Debug, Clone, Copy)]
enum Operand {
    K(u32),
    X,
}

/// An arithmetic instruction.
#[derive(Debug, Clone, Copy)]
enum Sum {
    Add,
    Sub,
    Mul,
    Div,
    And,
    Or,
    Xor,
    Lsh,
    Rsh,
}

/// A comparison of the accumulator.
#[derive(Debug, Clone, Copy)]
enum Test {
    Equal,
    Above,
    AtLeast,
    AnyBit,
}

/// An instruction. A is the accumulator, and X the index register.
#[derive(Debug, Clone, Copy)]
enum Step {
    /// Loads a word of the context into A.
    LoadWord(usize),
    /// Loads a constant into A.
    LoadA(u32),
    /// Loads a constant into X.
    LoadX(u32),
    /// Loads a memory word into A.
    MemoryToA(usize),
    /// Loads a memory word into X.
    MemoryToX(usize),
    /// Stores A in a memory word.
    StoreA(usize),
    /// Stores X in a memory word.
    StoreX(usize),
    Calculate(Sum, Operand),
    Negate,
    /// Copies A to X.
    ToX,
    /// Copies X to A.
    ToA,
    /// Skips this number of instructions.
    Jump(usize),
    /// Skips the first number of instructions if the comparison is true, and else the second.
    Branch(Test, Operand, [usize; 2]),
    /// Ends with a constant.
    Return(u32),
    /// Ends with A.
    ReturnA,
}

/// A program that has passed all checks.
#[derive(Debug)]
pub struct Program(Box<[Step]>);

impl Program {
    /// Copies the `length` instructions (`struct sock_filter`) at `address`, and checks them.
    ///
    /// # Errors
    /// INVAL, FAULT, NOMEM.
    pub fn read(address: u64, length: u32) -> Result<Program, Errno> {
        if address == 0 || length == 0 || length > libc::BPF_MAXINSNS as u32 {
            return Err(Errno::INVAL);
        }
        let mut instructions = alloc::filled(0u64, length as usize)?;
        user_read_slice(address, &mut instructions)?;
        Program::new(&instructions)
    }

    /// Checks a program. An instruction is a `struct sock_filter`: code, two jumps, and a constant.
    fn new(instructions: &[u64]) -> Result<Program, Errno> {
        let mut steps = alloc::filled(Step::ReturnA, instructions.len())?;
        for (step, instruction) in steps.iter_mut().zip(instructions) {
            let [low, high, jump_true, jump_false, k @ ..] = instruction.to_ne_bytes();
            let code = u16::from_ne_bytes([low, high]);
            *step = decode(code.into(), [jump_true, jump_false], u32::from_ne_bytes(k)).ok_or(Errno::INVAL)?;
        }
        check_jumps(&steps)?;
        check_memory(&steps)?;
        Ok(Program(steps.into_boxed_slice()))
    }

    /// Runs the program, and returns its answer. A division by zero ends it with 0.
    pub fn run(&self, words: &Words) -> u32 {
        let (mut a, mut x, mut memory) = (0u32, 0u32, [0u32; MEMORY_WORDS]);
        let mut at = 0;
        // The checks make sure that a RET comes first. If not, 0 denies the request.
        while let Some(step) = self.0.get(at) {
            at += 1;
            match *step {
                Step::LoadWord(word) => a = words[word],
                Step::LoadA(k) => a = k,
                Step::LoadX(k) => x = k,
                Step::MemoryToA(word) => a = memory[word],
                Step::MemoryToX(word) => x = memory[word],
                Step::StoreA(word) => memory[word] = a,
                Step::StoreX(word) => memory[word] = x,
                Step::Calculate(sum, operand) => match sum.of(a, operand.value(x)) {
                    Some(result) => a = result,
                    None => return 0,
                },
                Step::Negate => a = a.wrapping_neg(),
                Step::ToX => x = a,
                Step::ToA => a = x,
                Step::Jump(count) => at += count,
                Step::Branch(test, operand, [if_true, if_false]) => {
                    at += if test.of(a, operand.value(x)) { if_true } else { if_false };
                }
                Step::Return(k) => return k,
                Step::ReturnA => return a,
            }
        }
        0
    }
}

impl Operand {
    fn value(self, x: u32) -> u32 {
        match self {
            Operand::K(k) => k,
            Operand::X => x,
        }
    }
}

impl Sum {
    /// Returns the result. `None` for a division by zero. A shift uses the lower five bits of its distance.
    fn of(self, a: u32, b: u32) -> Option<u32> {
        Some(match self {
            Sum::Add => a.wrapping_add(b),
            Sum::Sub => a.wrapping_sub(b),
            Sum::Mul => a.wrapping_mul(b),
            Sum::Div => return a.checked_div(b),
            Sum::And => a & b,
            Sum::Or => a | b,
            Sum::Xor => a ^ b,
            Sum::Lsh => a.wrapping_shl(b),
            Sum::Rsh => a.wrapping_shr(b),
        })
    }
}

impl Test {
    fn of(self, a: u32, b: u32) -> bool {
        match self {
            Test::Equal => a == b,
            Test::Above => a > b,
            Test::AtLeast => a >= b,
            Test::AnyBit => a & b != 0,
        }
    }
}

const LOAD_WORD: u32 = BPF_LD | BPF_W | BPF_ABS;
const LOAD_LENGTH: u32 = BPF_LD | BPF_W | BPF_LEN;
const LOAD_LENGTH_TO_X: u32 = BPF_LDX | BPF_W | BPF_LEN;
const LOAD_CONSTANT: u32 = BPF_LD | BPF_IMM;
const LOAD_CONSTANT_TO_X: u32 = BPF_LDX | BPF_IMM;
const LOAD_MEMORY: u32 = BPF_LD | BPF_MEM;
const LOAD_MEMORY_TO_X: u32 = BPF_LDX | BPF_MEM;
const RETURN_A: u32 = BPF_RET | BPF_A;
const NEGATE: u32 = BPF_ALU | BPF_NEG;
const TO_X: u32 = BPF_MISC | BPF_TAX;
const TO_A: u32 = BPF_MISC | BPF_TXA;
const JUMP: u32 = BPF_JMP | BPF_JA;

/// Returns the instruction. `None` if it is not permitted.
fn decode(code: u32, [jump_true, jump_false]: [u8; 2], k: u32) -> Option<Step> {
    let memory = || Some(k as usize).filter(|word| *word < MEMORY_WORDS);
    Some(match code {
        LOAD_WORD if k < CONTEXT_BYTES && k.is_multiple_of(4) => Step::LoadWord(k as usize / 4),
        LOAD_LENGTH => Step::LoadA(CONTEXT_BYTES),
        LOAD_LENGTH_TO_X => Step::LoadX(CONTEXT_BYTES),
        LOAD_CONSTANT => Step::LoadA(k),
        LOAD_CONSTANT_TO_X => Step::LoadX(k),
        LOAD_MEMORY => Step::MemoryToA(memory()?),
        LOAD_MEMORY_TO_X => Step::MemoryToX(memory()?),
        BPF_ST => Step::StoreA(memory()?),
        BPF_STX => Step::StoreX(memory()?),
        BPF_RET => Step::Return(k),
        RETURN_A => Step::ReturnA,
        NEGATE => Step::Negate,
        TO_X => Step::ToX,
        TO_A => Step::ToA,
        JUMP => Step::Jump(k as usize),
        _ => {
            let operand = if code & BPF_X == 0 { Operand::K(k) } else { Operand::X };
            match code & !BPF_X {
                of if of & 7 == BPF_ALU => Step::Calculate(sum(of & !7, operand)?, operand),
                of if of & 7 == BPF_JMP => {
                    Step::Branch(test(of & !7)?, operand, [jump_true.into(), jump_false.into()])
                }
                _ => return None,
            }
        }
    })
}

/// Returns the arithmetic instruction with this number. `None` if there is none, or if its constant is out of range.
fn sum(number: u32, operand: Operand) -> Option<Sum> {
    Some(match (number, operand) {
        (BPF_ADD, _) => Sum::Add,
        (BPF_SUB, _) => Sum::Sub,
        (BPF_MUL, _) => Sum::Mul,
        (BPF_DIV, Operand::K(0)) | (BPF_LSH | BPF_RSH, Operand::K(32..)) => return None,
        (BPF_DIV, _) => Sum::Div,
        (BPF_AND, _) => Sum::And,
        (BPF_OR, _) => Sum::Or,
        (BPF_XOR, _) => Sum::Xor,
        (BPF_LSH, _) => Sum::Lsh,
        (BPF_RSH, _) => Sum::Rsh,
        _ => return None,
    })
}

fn test(number: u32) -> Option<Test> {
    Some(match number {
        BPF_JEQ => Test::Equal,
        BPF_JGT => Test::Above,
        BPF_JGE => Test::AtLeast,
        BPF_JSET => Test::AnyBit,
        _ => return None,
    })
}

/// Checks that every jump leads to an instruction, and that the last instruction ends the program.
fn check_jumps(steps: &[Step]) -> Result<(), Errno> {
    let leads_on = steps.iter().enumerate().all(|(at, step)| {
        let after = steps.len() - at - 1;
        match step {
            Step::Jump(count) => *count < after,
            Step::Branch(_, _, counts) => counts.iter().all(|count| *count < after),
            _ => true,
        }
    });
    match steps.last() {
        Some(Step::Return(_) | Step::ReturnA) if leads_on => Ok(()),
        _ => Err(Errno::INVAL),
    }
}

/// Checks that every path to a load from memory has stored that word. Source: `check_load_and_stores` in
/// net/core/filter.c.
fn check_memory(steps: &[Step]) -> Result<(), Errno> {
    // For each instruction, the words that all jumps to it have stored.
    let mut stored_by_jumps = alloc::filled(u16::MAX, steps.len())?;
    let mut stored = 0u16;
    for (at, step) in steps.iter().enumerate() {
        stored &= stored_by_jumps[at];
        match *step {
            Step::StoreA(word) | Step::StoreX(word) => stored |= 1 << word,
            Step::MemoryToA(word) | Step::MemoryToX(word) if stored & 1 << word == 0 => return Err(Errno::INVAL),
            Step::Jump(count) => {
                stored_by_jumps[at + 1 + count] &= stored;
                stored = u16::MAX;
            }
            Step::Branch(_, _, counts) => {
                counts.iter().for_each(|count| stored_by_jumps[at + 1 + count] &= stored);
                stored = u16::MAX;
            }
            _ => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use libc::{BPF_B, BPF_H, BPF_IND, BPF_K, BPF_MOD, BPF_MSH};

    fn instruction(code: u32, jumps: [u8; 2], k: u32) -> u64 {
        u64::from(code) | u64::from(jumps[0]) << 16 | u64::from(jumps[1]) << 24 | u64::from(k) << 32
    }

    fn plain(code: u32, k: u32) -> u64 {
        instruction(code, [0, 0], k)
    }

    /// The answer of a program, or its error.
    fn answer(instructions: &[u64]) -> Result<u32, Errno> {
        let words = [0x10, 0x20, 0x30, 0x40, 0x50, 0x60, 0x70, 0x80, 0x90, 0xa0];
        Program::new(instructions).map(|program| program.run(&words))
    }

    /// The answer of a program that calculates with A and then with X.
    fn calculated(a: u32, code: u32, b: u32) -> [Result<u32, Errno>; 2] {
        let ends = plain(RETURN_A, 0);
        [
            answer(&[plain(LOAD_CONSTANT, a), plain(BPF_ALU | code, b), ends]),
            answer(&[
                plain(LOAD_CONSTANT, a),
                plain(LOAD_CONSTANT_TO_X, b),
                plain(BPF_ALU | code | BPF_X, 0),
                ends,
            ]),
        ]
    }

    #[test]
    fn arithmetic_wraps() {
        for (a, code, b, result) in [
            (u32::MAX, BPF_ADD, 2, 1),
            (1, BPF_SUB, 2, u32::MAX),
            (0x8000_0001, BPF_MUL, 2, 2),
            (7, BPF_DIV, 2, 3),
            (6, BPF_AND, 3, 2),
            (6, BPF_OR, 3, 7),
            (6, BPF_XOR, 3, 5),
            (3, BPF_LSH, 31, 0x8000_0000),
            (u32::MAX, BPF_RSH, 31, 1),
        ] {
            assert_eq!(calculated(a, code, b), [Ok(result); 2], "{code:#x}");
        }
        assert_eq!(answer(&[plain(LOAD_CONSTANT, 1), plain(NEGATE, 0), plain(RETURN_A, 0)]), Ok(u32::MAX));
        assert_eq!(calculated(7, BPF_DIV, 0), [Err(Errno::INVAL), Ok(0)], "a division by zero denies");
        assert_eq!(calculated(3, BPF_LSH, 32), [Err(Errno::INVAL), Ok(3)], "the distance has five bits");
        assert_eq!(calculated(7, BPF_MOD, 2), [Err(Errno::INVAL); 2]);
    }

    #[test]
    fn comparisons_have_no_sign() {
        for (code, than_more, than_equal, than_less) in
            [(BPF_JEQ, 0, 1, 0), (BPF_JGT, 0, 0, 1), (BPF_JGE, 0, 1, 1), (BPF_JSET, 0x80, 0x80, 0)]
        {
            let wanted = [(u32::MAX, than_more), (0x8000_0080, than_equal), (0x7fff_ff7f, than_less)];
            for (k, taken) in wanted {
                let ends = [plain(BPF_RET, 0), plain(BPF_RET, 1)];
                let load = plain(LOAD_CONSTANT, 0x8000_0080);
                let by_k = answer(&[load, instruction(BPF_JMP | code, [1, 0], k), ends[0], ends[1]]);
                let x = plain(LOAD_CONSTANT_TO_X, k);
                let by_x = answer(&[load, x, instruction(BPF_JMP | code | BPF_X, [1, 0], 0), ends[0], ends[1]]);
                let taken = match code {
                    BPF_JSET => u32::from(0x8000_0080 & k != 0),
                    _ => taken,
                };
                assert_eq!([by_k, by_x], [Ok(taken); 2], "{code:#x} {k:#x}");
            }
        }
    }

    #[test]
    fn loads_are_aligned_words_of_the_context() {
        let load = |code, k| answer(&[plain(code, k), plain(RETURN_A, 0)]);
        assert_eq!([0, 16, 36].map(|k| load(LOAD_WORD, k)), [Ok(0x10), Ok(0x50), Ok(0xa0)]);
        assert_eq!([2, 40, u32::MAX - 3].map(|k| load(LOAD_WORD, k)), [Err(Errno::INVAL); 3]);
        assert_eq!(load(LOAD_LENGTH, 0), Ok(40));
        let to_x = |code, k| answer(&[plain(code, k), plain(TO_A, 0), plain(RETURN_A, 0)]);
        assert_eq!([to_x(LOAD_LENGTH_TO_X, 0), to_x(LOAD_CONSTANT_TO_X, 9)], [Ok(40), Ok(9)]);
        for code in
            [BPF_LD | BPF_H | BPF_ABS, BPF_LD | BPF_B | BPF_ABS, BPF_LD | BPF_IND, BPF_LDX | BPF_B | BPF_MSH]
        {
            assert_eq!(load(code, 0), Err(Errno::INVAL), "{code:#x}");
        }
        assert_eq!(load(BPF_RET | BPF_X, 0), Err(Errno::INVAL));
        assert_eq!(load(BPF_MISC | BPF_K | 0x40, 0), Err(Errno::INVAL));
    }

    #[test]
    fn a_program_ends_and_jumps_inside() {
        let (allow, jump) = (plain(BPF_RET, 1), |k| plain(JUMP, k));
        assert_eq!(answer(&[]), Err(Errno::INVAL));
        assert_eq!(answer(&[plain(LOAD_CONSTANT, 1)]), Err(Errno::INVAL));
        assert_eq!(answer(&[jump(1), plain(BPF_RET, 0), allow]), Ok(1));
        assert_eq!(answer(&[jump(1), allow]), Err(Errno::INVAL));
        assert_eq!(answer(&[jump(u32::MAX), allow]), Err(Errno::INVAL));
        for jumps in [[1, 0], [0, 1], [255, 255]] {
            assert_eq!(answer(&[instruction(BPF_JMP | BPF_JEQ, jumps, 0), allow]), Err(Errno::INVAL), "{jumps:?}");
        }
    }

    #[test]
    fn memory_is_stored_before_it_is_loaded() {
        let (store, load, ends) = (plain(BPF_ST, 15), plain(LOAD_MEMORY, 15), plain(RETURN_A, 0));
        let seven = plain(LOAD_CONSTANT, 7);
        assert_eq!(answer(&[seven, store, plain(LOAD_CONSTANT, 0), load, ends]), Ok(7));
        let by_x =
            [plain(LOAD_CONSTANT_TO_X, 8), plain(BPF_STX, 0), plain(LOAD_MEMORY_TO_X, 0), plain(TO_A, 0), ends];
        assert_eq!(answer(&by_x), Ok(8));
        assert_eq!(answer(&[load, ends]), Err(Errno::INVAL));
        assert_eq!(answer(&[seven, plain(BPF_ST, 16), ends]), Err(Errno::INVAL));
        // One of two paths has not stored it.
        let branch = instruction(BPF_JMP | BPF_JEQ, [1, 0], 0);
        assert_eq!(answer(&[branch, store, load, ends]), Err(Errno::INVAL));
        assert_eq!(answer(&[store, branch, store, load, ends]), Ok(0));
    }

    #[test]
    fn addresses_and_lengths_are_checked() {
        let program = [plain(BPF_RET, 1); 2];
        let read = |length| Program::read(program.as_ptr() as u64, length).map(|_| ()).err();
        assert_eq!([1, 2, 0, 4097].map(read), [None, None, Some(Errno::INVAL), Some(Errno::INVAL)]);
        assert_eq!(Program::read(0, 1).map(|_| ()).err(), Some(Errno::INVAL));
        assert_eq!(Program::read(8, 1).map(|_| ()).err(), Some(Errno::FAULT));
    }
}
