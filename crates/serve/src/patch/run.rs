//! Finds the instructions directly before a `syscall` that do the same at another address. A patch of the `syscall` may
//! begin at these.

use super::decode::{decode, length, STARTS, SYSCALL};
use yaxpeax_x86::long_mode::{register_class, Instruction, Opcode, Operand, RegSpec};

/// The most bytes before a `syscall` that are moved to an island.
pub const MOVED_AT_MOST: usize = 48;

/// Number of bytes on both sides of a `syscall` that are searched for branches.
pub const AROUND: usize = 4096;

/// An instruction at which a patch may begin. This instruction and all up to the `syscall` may run elsewhere.
#[derive(Debug, PartialEq, Eq)]
pub struct Start {
    /// The offset in the code at which it begins.
    pub offset: usize,
    /// The length of this one instruction, in bytes.
    pub length: usize,
    /// True if a branch nearby leads to an instruction after it, so that a patch there does not see every call.
    pub is_passed: bool,
}

/// Returns the places where the `syscall` at `offset` may be patched, the last place first. No branch of the code
/// nearby leads into the middle of the instructions that would be moved. Without `memory`, these include none that
/// reads or writes memory. `code` is the program's original code, without patches ([`super::origin::restore`]),
/// since a jump differs in length from the instruction that it replaced.
pub fn starts(code: &[u8], offset: usize, memory: bool) -> Vec<Start> {
    if code.get(offset..offset + SYSCALL.len()) != Some(&SYSCALL) {
        return Vec::new();
    }
    let from = offset.saturating_sub(MOVED_AT_MOST);
    let targets = branch_targets(code, from..offset);
    let mut starts = Vec::new();
    let mut end = offset;
    for at in boundaries(code, from..offset).into_iter().rev() {
        let Some(instruction) = decode(code, at) else { break };
        let length = length(&instruction);
        if at + length != end || !may_move(&instruction, memory) {
            break;
        }
        if !targets.iter().any(|target| (at + 1..end).contains(target)) {
            let is_passed = targets.iter().any(|target| *target > at);
            starts.push(Start { offset: at, length, is_passed });
        }
        end = at;
    }
    starts
}

/// Returns the offsets in `within` at which an instruction begins. At least three of four starting points before it
/// must agree on that.
fn boundaries(code: &[u8], within: core::ops::Range<usize>) -> Vec<usize> {
    let mut votes = [0; MOVED_AT_MOST];
    let mut tried = 0;
    for back in STARTS.filter(|back| *back <= within.start) {
        tried += 1;
        let mut at = within.start - back;
        while at < within.end {
            let decoded = decode(code, at);
            if decoded.is_some() && at >= within.start {
                votes[at - within.start] += 1;
            }
            at += decoded.map_or(1, |instruction| length(&instruction));
        }
    }
    let agreed = |at: &usize| tried > 0 && votes[*at - within.start] * 4 >= tried * 3;
    within.clone().filter(agreed).collect()
}

/// Returns the offsets `within` to which branches of the code nearby lead.
fn branch_targets(code: &[u8], within: core::ops::Range<usize>) -> Vec<usize> {
    let end = code.len().min(within.end + AROUND);
    let mut at = within.start.saturating_sub(AROUND);
    let mut targets = Vec::new();
    while at < end {
        let Some(instruction) = decode(code, at) else {
            at += 1;
            continue;
        };
        at += length(&instruction);
        let distance = match instruction.operand(0) {
            Operand::ImmediateI8 { imm } => imm as isize,
            Operand::ImmediateI32 { imm } => imm as isize,
            _ => continue,
        };
        let target = at.wrapping_add_signed(distance);
        if within.contains(&target) {
            targets.push(target);
        }
    }
    targets
}

/// True if an instruction moves or computes something in the same way at any address. If the instruction may fault, the
/// fault must be reported at its original address. `memory` says that the caller does that
/// ([`super::origin::origin_of`]).
fn may_move(instruction: &Instruction, memory: bool) -> bool {
    if instruction.opcode() == Opcode::NOP {
        return true;
    }
    let plain = (0..instruction.operand_count()).all(|index| match instruction.operand(index) {
        Operand::Register { reg } => is_plain(reg) && (index > 0 || !is_stack_pointer(reg)),
        operand if is_immediate(&operand) => true,
        operand => (memory || instruction.opcode() == Opcode::LEA) && is_relative_to_registers(&operand),
    });
    moves_or_computes(instruction.opcode()) && plain && !instruction.prefixes.lock()
}

fn moves_or_computes(opcode: Opcode) -> bool {
    use Opcode::*;
    let moves =
        matches!(opcode, MOV | MOVSXD | MOVSX | MOVZX | LEA | MOVUPS | MOVAPS | MOVDQA | MOVDQU | MOVQ | MOVD);
    let computes =
        matches!(opcode, XOR | AND | OR | ADD | SUB | ADC | SBB | CMP | TEST | NEG | NOT | SHL | SHR | SAR)
            || matches!(opcode, IMUL | INC | DEC | XORPS | PXOR);
    let depends = matches!(opcode, CMOVA | CMOVB | CMOVG | CMOVGE | CMOVL | CMOVLE | CMOVNA | CMOVNB)
        || matches!(opcode, CMOVNO | CMOVNP | CMOVNS | CMOVNZ | CMOVO | CMOVP | CMOVS | CMOVZ)
        || matches!(
            opcode,
            SETA | SETAE | SETB | SETBE | SETG | SETGE | SETL | SETLE | SETZ | SETNZ | SETS | SETNS
        );
    moves || computes || depends
}

fn is_plain(reg: RegSpec) -> bool {
    use register_class::{B, D, Q, RB, W, X};
    [Q, D, W, B, RB, X].contains(&reg.class())
}

fn is_stack_pointer(reg: RegSpec) -> bool {
    const RSP: u8 = 4;
    reg.num() == RSP && reg.class() != register_class::X
}

fn is_immediate(operand: &Operand) -> bool {
    use Operand::*;
    matches!(operand, ImmediateI8 { .. } | ImmediateI16 { .. } | ImmediateI32 { .. } | ImmediateI64 { .. })
        || matches!(operand, ImmediateU8 { .. } | ImmediateU16 { .. } | ImmediateU32 { .. } | ImmediateU64 { .. })
}

/// True if the address of an operand in memory depends on general registers only, and not on the instruction's own
/// address.
fn is_relative_to_registers(operand: &Operand) -> bool {
    let general = |reg: RegSpec| reg.class() == register_class::Q;
    match *operand {
        Operand::MemDeref { base } | Operand::Disp { base, .. } => general(base),
        Operand::MemIndexScale { index, .. } | Operand::MemIndexScaleDisp { index, .. } => general(index),
        Operand::MemBaseIndexScale { base, index, .. } | Operand::MemBaseIndexScaleDisp { base, index, .. } => {
            general(base) && general(index)
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// mov $426,%eax
    const LOAD: [u8; 5] = [0xb8, 0xaa, 0x01, 0, 0];

    /// Returns the distances from the `syscall` after `middle` of the places where it may be patched, and of those
    /// that a branch passes by. The code before `middle` is plain and may not be moved.
    fn distances(middle: &[u8], memory: bool) -> (Vec<usize>, Vec<usize>) {
        // push %rbx; mov %rdi,%rbx; pop %rbx; call far away
        let plain = [0x53, 0x48, 0x89, 0xfb, 0x5b, 0xe8, 0, 0, 0x10, 0];
        let code = [&plain.repeat(12), middle, &SYSCALL, &plain.repeat(4), &[0xc3]].concat();
        let site = plain.len() * 12 + middle.len();
        let starts = starts(&code, site, memory);
        let passed = starts.iter().filter(|start| start.is_passed);
        (
            starts.iter().map(|start| site - start.offset).collect(),
            passed.map(|start| site - start.offset).collect(),
        )
    }

    fn all(middle: &[&[u8]]) -> Vec<usize> {
        distances(&middle.concat(), true).0
    }

    #[test]
    fn every_instruction_that_may_move_is_a_start() {
        assert_eq!(all(&[&LOAD]), [5]);
        // xor %edx,%edx; mov %r12d,%edi; or $1,%r10d; mov %rsp,%rdx; lea 0x11(%rax),%r10d; cmove %eax,%r10d
        assert_eq!(all(&[&LOAD, &[0x31, 0xd2], &[0x44, 0x89, 0xe7]]), [3, 5, 10]);
        assert_eq!(all(&[&[0x41, 0x83, 0xca, 0x01], &[0x48, 0x89, 0xe2], &LOAD]), [5, 8, 12]);
        assert_eq!(all(&[&[0x44, 0x8d, 0x50, 0x11], &[0x44, 0x0f, 0x44, 0xd0], &LOAD]), [5, 9, 13]);
        // mov %r15d,%eax: the number comes in a register.
        assert_eq!(all(&[&[0x44, 0x89, 0xf8]]), [3]);
        // No more instructions are moved than fit into an island.
        assert_eq!(all(&[&[0x44, 0x89, 0xe7].repeat(20)]).len(), MOVED_AT_MOST / 3);
    }

    #[test]
    fn memory_is_read_and_written_elsewhere_if_faults_are_reported() {
        // mov 0xc4(%rbx),%edi; mov 0x8(%rsp),%r10; movslq 0xc(%r12),%r9; testb $1,0xd0(%rdi); mov %rdx,-0x20(%rsp)
        let (fd, set) = (&[0x8b, 0xbb, 0xc4, 0, 0, 0][..], &[0x4c, 0x8b, 0x54, 0x24, 0x08][..]);
        let (size, test) = (&[0x4d, 0x63, 0x4c, 0x24, 0x0c][..], &[0xf6, 0x87, 0xd0, 0, 0, 0, 0x01][..]);
        let store = &[0x48, 0x89, 0x54, 0x24, 0xe0][..];
        assert_eq!(all(&[store, test, size, &LOAD, set, fd]), [6, 11, 16, 21, 28, 33]);
        for access in [fd, set, size, test, store] {
            assert_eq!(distances(&[&LOAD, access].concat(), false).0, [0; 0], "{access:02x?}");
            assert_eq!(distances(&[access, &LOAD].concat(), false).0, [5], "{access:02x?}");
        }
    }

    #[test]
    fn an_instruction_that_depends_on_its_place_or_the_stack_pointer_stays() {
        for other in [
            &[0x48, 0x8d, 0x15, 0, 0, 0, 0][..], // lea 0(%rip),%rdx
            &[0x48, 0x8b, 0x15, 0, 0, 0, 0],     // mov 0(%rip),%rdx
            &[0x67, 0x8b, 0x15, 0, 0, 0, 0],     // mov 0(%eip),%edx
            &[0x53],                             // push %rbx
            &[0x48, 0x83, 0xec, 0x08],           // sub $8,%rsp
            &[0x48, 0x89, 0xec],                 // mov %rbp,%rsp
            &[0x74, 0x00],                       // je
            &[0xf0, 0x01, 0x17],                 // lock add %edx,(%rdi)
            &[0xf3, 0xa4],                       // rep movsb
            &[0x8e, 0xe8],                       // mov %eax,%gs
            &[0xf3, 0x0f, 0x1e, 0xfa],           // endbr64
            &[0xba],                             // half an instruction
        ] {
            assert_eq!(all(&[&LOAD, other]), [0; 0], "{other:02x?}");
            if other.len() > 1 {
                assert_eq!(all(&[other, &LOAD]), [5], "{other:02x?}");
            }
        }
    }

    #[test]
    fn branches_count() {
        // jmp over the first byte of the mov; to the mov; to the xor; to the syscall.
        let load_and_xor = [&LOAD[..], &[0x31, 0xd2]].concat();
        let with = |distance: u8| distances(&[&[0xeb, distance], &load_and_xor[..]].concat(), true);
        assert_eq!(with(1), (vec![2], vec![]));
        assert_eq!(with(0), (vec![2, 7], vec![]));
        assert_eq!(with(5), (vec![2, 7], vec![7]));
        assert_eq!(with(7), (vec![2, 7], vec![]));
    }

    #[test]
    fn nothing_is_a_start_where_the_instructions_are_unclear() {
        // The prefix belongs to the mov that it stands before.
        assert_eq!(all(&[&[0x41], &LOAD]), [6]);
        let code = [&LOAD[..], &SYSCALL].concat();
        assert_eq!(starts(&code, LOAD.len(), true), []);
        assert_eq!(starts(&code, 0, true), []);
    }
}
