//! Decodes instructions.

use yaxpeax_arch::LengthedInstruction;
use yaxpeax_x86::long_mode::{InstDecoder, Instruction, Opcode};

/// `syscall`.
pub const SYSCALL: [u8; 2] = [0x0f, 0x05];
/// Distances in bytes before a place. Decoding starts at each of them in turn, to find out whether an instruction
/// begins at the place.
pub const STARTS: core::ops::Range<usize> = 16..48;
/// The most bytes of one instruction.
pub const LONGEST_INSTRUCTION: usize = 15;

/// Returns the instruction at `at`, if the bytes there are one.
pub fn decode(code: &[u8], at: usize) -> Option<Instruction> {
    let end = code.len().min(at + LONGEST_INSTRUCTION);
    InstDecoder::default().decode_slice(&code[at..end]).ok()
}

/// Returns the instruction's length in bytes.
pub fn length(instruction: &Instruction) -> usize {
    instruction.len().to_const() as usize
}

/// True for a no-operation of any length.
pub fn does_nothing(instruction: &Instruction) -> bool {
    instruction.opcode() == Opcode::NOP
}
