//! Finds `syscall` instructions in code.
//!
//! The two bytes 0f 05 also occur inside other instructions and in data between functions. So the code around each
//! candidate is decoded. Wherever decoding of x86 code starts, it finds the right instruction boundaries after a few
//! instructions. From most starting points before a real instruction the decoder therefore arrives exactly at it, and
//! the bytes after it decode as well.

use super::decode::{decode, length, LONGEST_INSTRUCTION, STARTS, SYSCALL};
use super::site;
pub use super::site::{around, is_number_of_rings, OfRings, Site};
use anyring_engine::Errno;
use memchr::arch::x86_64::sse2::packedpair::Finder;
use yaxpeax_x86::long_mode::{register_class, Instruction, Opcode, Operand, RegSpec};

/// Number of bytes after a `syscall` that have to be code.
const AFTER: usize = 24;
/// Distances in bytes before a place that is in doubt. From so far away, decoding is nearly always in step.
const FAR_STARTS: core::ops::Range<usize> = 64..192;

/// Returns the offsets at which the bytes 0f 05 occur. It uses the plain SSE2 searcher, which every x86-64 has. To
/// choose a faster searcher takes several CPUID instructions, which on a virtual machine cost more than the search
/// of most programs' code.
fn candidates(code: &[u8]) -> impl Iterator<Item = usize> + '_ {
    let finder = Finder::new(&SYSCALL);
    let mut from = 0;
    core::iter::from_fn(move || {
        let (finder, rest) = (finder.as_ref()?, &code[from..]);
        let at = if rest.len() >= finder.min_haystack_len() {
            finder.find(rest, &SYSCALL)?
        } else {
            rest.windows(SYSCALL.len()).position(|bytes| bytes == SYSCALL)?
        };
        from += at + SYSCALL.len();
        Some(from - SYSCALL.len())
    })
}

/// Returns the confirmed instructions of some code.
pub fn sites(code: &[u8]) -> impl Iterator<Item = Site> + '_ {
    candidates(code).filter_map(|offset| examine(code, offset))
}

impl Site {
    fn of_rings(&self, code: &[u8]) -> Option<OfRings> {
        let is_near = || rings_number_is_near(code, self);
        let is_likely = match self.number {
            Some(number) if is_number_of_rings(number) => true,
            None if self.is_sure => is_near() && copied_number(code, self.offset).is_none_or(is_number_of_rings),
            _ => return None,
        };
        Some(OfRings { offset: self.offset, is_likely })
    }
}

/// Returns the instructions that may make a call on rings, likely ones first.
///
/// # Errors
/// NOMEM.
pub fn of_rings(code: &[u8]) -> Result<Vec<OfRings>, Errno> {
    site::collect(sites(code).filter_map(|site| site.of_rings(code)))
}

/// True if one of io_uring's numbers is in the code nearby, as far as one function may reach.
pub fn rings_number_is_near(code: &[u8], site: &Site) -> bool {
    around(code, site).windows(4).any(|bytes| bytes[1..] == [1, 0, 0] && (0xa9..=0xab).contains(&bytes[0]))
}

/// True if one of these numbers is in the code nearby, as far as one function may reach.
pub fn number_is_near(code: &[u8], site: &Site, numbers: &[i64]) -> bool {
    let is_one = |bytes: &[u8]| numbers.iter().any(|number| (*number as u32).to_le_bytes() == *bytes);
    around(code, site).windows(4).any(is_one)
}

/// True if the instruction directly before the `syscall` at `offset` loads `number` into eax.
pub fn follows_load_of(code: &[u8], offset: usize, number: u32) -> bool {
    const LOAD: u8 = 0xb8;
    let [a, b, c, d] = number.to_le_bytes();
    code[..offset].ends_with(&[LOAD, a, b, c, d])
}

fn examine(code: &[u8], offset: usize) -> Option<Site> {
    if !code_follows(code, offset + SYSCALL.len()) {
        return None;
    }
    arrivals(code, offset)
}

/// Returns the instruction at `offset`, if most starting points before it agree that an instruction begins there. The
/// result has the constant that eax then holds, if that is known.
fn arrivals(code: &[u8], offset: usize) -> Option<Site> {
    let (mut agree, mut tried) = (0, 0);
    let mut number = None;
    for back in STARTS.filter(|back| *back <= offset) {
        tried += 1;
        let (arrives, loaded) = walk(code, offset - back, offset);
        if arrives {
            agree += 1;
            number = loaded;
        }
    }
    // At the very beginning of a segment there are no starting points.
    let is_sure = agree * 8 >= tried * 7;
    let is_inside = agree * 2 < tried || !is_sure && number.is_none() && is_passed_over(code, offset);
    (!is_inside).then_some(Site { offset, number, is_sure })
}

/// True if decoding from far away passes over `offset`: the bytes there are then part of another instruction. Such
/// bytes may mislead most of the nearer starting points.
fn is_passed_over(code: &[u8], offset: usize) -> bool {
    const ENOUGH: usize = 32;
    let starts = || FAR_STARTS.filter(|back| *back <= offset);
    let passed = starts().filter(|back| !walk(code, offset - back, offset).0).count();
    passed >= ENOUGH && passed * 16 >= starts().count() * 15
}

/// Decodes from `from` to `until`. Returns true if an instruction begins exactly there, and the constant that eax
/// then holds, if that is known.
fn walk(code: &[u8], from: usize, until: usize) -> (bool, Option<u64>) {
    let mut at = from;
    let mut number = None;
    while at < until {
        match decode(code, at) {
            Some(instruction) => {
                if let Some(loaded) = effect_on_rax(&instruction) {
                    number = loaded;
                }
                at += length(&instruction);
            }
            None => {
                number = None;
                at += 1;
            }
        }
    }
    (at == until, number)
}

/// True if the bytes from `from` on decode as instructions, up to the function's end at most.
fn code_follows(code: &[u8], from: usize) -> bool {
    let mut at = from;
    while at < code.len().min(from + AFTER) {
        let Some(instruction) = decode(code, at) else {
            // Cut off by the end of the segment.
            return code.len() - at < LONGEST_INSTRUCTION;
        };
        if matches!(instruction.opcode(), Opcode::RETURN | Opcode::JMP | Opcode::UD2 | Opcode::HLT) {
            return true;
        }
        at += length(&instruction);
    }
    true
}

/// Returns the constant that eax holds at `until`, if it was loaded into another register and copied. Decodes the
/// code before `until` once, in order.
fn copied_number(code: &[u8], until: usize) -> Option<u64> {
    const BEFORE: usize = 256;
    let mut at = until.saturating_sub(BEFORE);
    let mut constants = [None; 16];
    while at < until {
        let Some(instruction) = decode(code, at) else {
            constants = [None; 16];
            at += 1;
            continue;
        };
        at += length(&instruction);
        let of_register = |operand| match operand {
            Operand::Register { reg } if [register_class::D, register_class::Q].contains(&reg.class()) => {
                Some(usize::from(reg.num()))
            }
            _ => None,
        };
        let reads = matches!(instruction.opcode(), Opcode::CMP | Opcode::TEST | Opcode::PUSH);
        let Some(to) = of_register(instruction.operand(0)).filter(|_| !reads) else { continue };
        constants[to] = match (instruction.opcode(), instruction.operand(1)) {
            (Opcode::MOV, Operand::ImmediateU32 { imm }) => Some(u64::from(imm)),
            (Opcode::MOV, Operand::ImmediateI32 { imm }) => Some(imm as u64),
            (Opcode::MOV, from) => of_register(from).and_then(|from| constants[from]),
            _ => None,
        };
    }
    constants[0].filter(|_| at == until)
}

/// Returns the effect of `instruction` on rax. `None`: it leaves rax alone. `Some(None)`: it changes rax in an unknown
/// way. `Some(Some(n))`: it loads the constant n.
fn effect_on_rax(instruction: &Instruction) -> Option<Option<u64>> {
    let rax = [RegSpec::rax(), RegSpec::eax(), RegSpec::ax(), RegSpec::al(), RegSpec::ah()];
    if matches!(instruction.opcode(), Opcode::CALL | Opcode::SYSCALL | Opcode::CPUID) {
        return Some(None);
    }
    let Operand::Register { reg } = instruction.operand(0) else {
        return None;
    };
    let only_reads = matches!(instruction.opcode(), Opcode::CMP | Opcode::TEST | Opcode::PUSH);
    if only_reads || !rax.contains(&reg) {
        return None;
    }
    Some(match (instruction.opcode(), instruction.operand(1)) {
        (Opcode::MOV, Operand::ImmediateU32 { imm }) => Some(u64::from(imm)),
        (Opcode::MOV, Operand::ImmediateI32 { imm }) => Some(imm as u64),
        (Opcode::MOV, Operand::ImmediateU64 { imm }) => Some(imm),
        (Opcode::MOV, Operand::ImmediateI64 { imm }) => Some(imm as u64),
        (Opcode::XOR, Operand::Register { reg: other }) if other == reg => Some(0),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::super::between::between_code;
    use super::*;

    #[test]
    fn bytes_inside_an_instruction_are_none_however_the_code_before_is_read() {
        // add %rax, %rcx; mov 8(%rsi), %rax; mov 8(%rsi), %rax; call
        let first = [0x48, 0x01, 0xc1, 0x48, 0x8b, 0x46, 8, 0x48, 0x8b, 0x46, 8, 0xe8, 0xa5, 0xe8, 0xfd, 0xff];
        let jump = [0x0f, 0x84, 0xd0, 0xfd, 0xff, 0xff];
        // nop; mov 8(%rsi), %rax; xor %r8d, %r8d; test %edx, %edx
        let last = [0x0f, 0x1f, 0, 0x48, 0x8b, 0x46, 8, 0x45, 0x31, 0xc0, 0x85, 0xd2];
        let address = [0x4c, 0x8d, 0x0d, 0x41, 0x0f, 0x05, 0]; // lea 0x50f41(%rip), %r9
        let (code, start) = between_code(&[&first[..], &jump.repeat(4), &last, &address].concat());
        let inside = start + first.len() + 4 * jump.len() + last.len() + 4;
        let arrived = STARTS.filter(|back| walk(&code, inside - back, inside).0).count();
        assert!(2 * arrived > STARTS.len(), "most near starting points are misled: {arrived}");
        assert_eq!(sites(&code).count(), 0);
    }

    #[test]
    fn an_instruction_that_may_call_on_rings_is_reported_for_sure() {
        let of_rings = |middle: &[u8], offset| {
            let (code, start) = between_code(middle);
            let found = of_rings(&code).expect("memory");
            let found = found.iter().find(|site| site.offset == start + offset)?;
            Some((offset, found.is_likely))
        };
        let futex = [0xb8, 0xca, 0, 0, 0, 0x0f, 0x05];
        let enter = [0xb8, 0xaa, 0x01, 0, 0, 0x0f, 0x05];
        let any = [0x48, 0x89, 0xf8, 0x0f, 0x05];
        assert_eq!(of_rings(&enter, 5), Some((5, true)));
        assert_eq!(of_rings(&futex, 5), None);
        assert_eq!(of_rings(&any, 3), Some((3, false)));
        assert_eq!(of_rings(&[&futex[..], &enter].concat(), 5), None);
        assert_eq!(of_rings(&[&any[..], &enter].concat(), 3), Some((3, true)));
        // mov $0xe7, %esi; jmp; mov %esi, %eax; syscall, as in glibc's _exit(2), near another
        let exit = [0xbe, 0xe7, 0, 0, 0, 0xeb, 0, 0x89, 0xf0, 0x0f, 0x05];
        assert_eq!(of_rings(&[&exit[..], &enter].concat(), 9), Some((9, false)));
        // The bytes of a loop in V8: movzbl 5(%rdi,%rcx,1), %edx; mov %dl, 5(%rsi,%rcx,1) and the like.
        let copy = |at: u8| [0x0f, 0xb6, 0x54, 0x0f, at, 0x88, 0x54, 0x0e, at];
        let copies = [1, 2, 3, 4, 5, 6, 7].map(copy).concat();
        assert_eq!(of_rings(&copies, 9 * 4 + 3), None);
    }
}
