//! Finds `syscall` instructions in mapped code.
//!
//! The two bytes 0f 05 also occur inside other instructions and in data between functions, and every false finding
//! would put a filter (and no_new_privs) on a process that needs none. So each candidate is decoded: x86 code falls
//! back into step within a few instructions wherever one starts, so from most starting points before a real
//! instruction the decoder arrives exactly at it, and what follows decodes as well.

use crate::backend;
use anyring_abi::{AIO_CALLS, NR_IO_URING_ENTER, NR_IO_URING_REGISTER, NR_IO_URING_SETUP};
use anyring_engine::{alloc, identity, Errno};
pub use anyring_serve::patch::decode::SYSCALL;
use anyring_serve::patch::decode::{decode, length, LONGEST_INSTRUCTION, STARTS};
use memchr::arch::x86_64::sse2::packedpair::Finder;
use yaxpeax_x86::long_mode::{Instruction, Opcode, Operand, RegSpec};

/// How many bytes after it have to be code.
const AFTER: usize = 24;

/// The `syscall` instructions of some code.
pub struct Sites {
    /// The offsets of those that may make one of our calls. Empty when there are some, but each loads another number itself
    /// and none of our numbers occurs near one (a futex call written out, say).
    pub offsets: Vec<usize>,
    /// Whether one, of these or others, may close or replace a descriptor, lock a file, or set what a signal does.
    pub may_close: bool,
    /// Whether one, of these or others, may make a process in this memory.
    pub may_lend_memory: bool,
    /// Whether one changes the identity of the thread that makes it. What has its number from elsewhere is not taken for such:
    /// nearly all of those never do, and were it believed each call that leaves something to a worker would make a thread.
    pub may_change_identity: bool,
}

/// An instruction that may make a call on rings.
pub struct OfRings {
    pub offset: usize,
    /// Whether it loads one of their numbers itself, or has its number from elsewhere and one of theirs is near.
    pub is_likely: bool,
}

/// Looks for them.
///
/// # Errors
/// NOMEM where there are too many.
pub fn sites(code: &[u8]) -> Result<Sites, Errno> {
    let mut found: Vec<Site> = Vec::new();
    for site in candidates(code).filter_map(|offset| examine(code, offset)) {
        alloc::push(&mut found, site)?;
    }
    let may_close = found.iter().any(|site| site.number.is_none_or(closes));
    let may_lend_memory = found.iter().any(|site| site.number.is_none_or(lends_memory));
    let changes_identity = |number| identity::NUMBERS.contains(&(number as i64));
    let may_change_identity = found.iter().any(|site| site.number.is_some_and(changes_identity));
    Ok(Sites { offsets: concerned_sites(code, found), may_close, may_lend_memory, may_change_identity })
}

/// Those of an object's instructions, at these offsets, that may make a call on rings: likely ones first.
///
/// # Errors
/// NOMEM.
pub fn of_rings(code: &[u8], offsets: impl Iterator<Item = usize>) -> Result<Vec<OfRings>, Errno> {
    let mut found = Vec::new();
    for site in offsets.filter_map(|offset| examine(code, offset)?.of_rings(code)) {
        alloc::push(&mut found, site)?;
    }
    found.sort_unstable_by_key(|site| (!site.is_likely, site.offset));
    Ok(found)
}

/// Whether a system call gives a descriptor number up, a lock on a file (fcntl(2) takes it, too), or a signal's action.
fn closes(number: u64) -> bool {
    let numbers = [
        libc::SYS_close,
        libc::SYS_close_range,
        libc::SYS_dup2,
        libc::SYS_dup3,
        libc::SYS_fcntl,
        libc::SYS_rt_sigaction,
    ];
    numbers.contains(&(number as i64))
}

/// Whether a system call may make a process that runs in its parent's memory.
fn lends_memory(number: u64) -> bool {
    [libc::SYS_vfork, libc::SYS_clone, libc::SYS_clone3].contains(&(number as i64))
}

fn concerned_sites(code: &[u8], found: Vec<Site>) -> Vec<usize> {
    let concerned = found.iter().any(|site| site.number.is_none_or(is_ours) || our_number_is_near(code, site));
    if concerned {
        found.into_iter().map(|site| site.offset).collect()
    } else {
        Vec::new()
    }
}

/// `mov $number, %eax`: this byte and four of the number.
const LOAD: u8 = 0xb8;

/// Whether the bytes of the instruction directly before the `syscall` at `offset` load the number of io_uring_enter(2).
pub fn follows_load_of_enter(code: &[u8], offset: usize) -> bool {
    let [a, b, c, d] = (NR_IO_URING_ENTER as u32).to_le_bytes();
    code[..offset].ends_with(&[LOAD, a, b, c, d])
}

/// Where the two bytes are. The plain SSE2 searcher that every x86-64 has: choosing a better one takes several CPUID
/// instructions, which on a virtual machine cost more than most programs' code takes to search.
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

/// A confirmed instruction.
struct Site {
    offset: usize,
    /// The system call's number, where the instructions before it load a constant.
    number: Option<u64>,
    /// Whether hardly any starting point before it says otherwise: a trap proves itself, what is replaced before it must not be a
    /// part of another instruction.
    is_sure: bool,
}

impl Site {
    fn of_rings(&self, code: &[u8]) -> Option<OfRings> {
        let is_near = || rings_number_is_near(code, self);
        let is_likely = match self.number {
            Some(number) if is_of_rings(number) => true,
            Some(_) if is_near() && self.is_sure => false,
            None if self.is_sure => is_near(),
            _ => return None,
        };
        Some(OfRings { offset: self.offset, is_likely })
    }
}

const _: () = assert!(NR_IO_URING_SETUP == 0x1a9 && NR_IO_URING_REGISTER == 0x1ab);

fn is_of_rings(number: u64) -> bool {
    (NR_IO_URING_SETUP as u64..=NR_IO_URING_REGISTER as u64).contains(&number)
}

/// Whether calls of this number are served here.
pub fn is_ours(number: u64) -> bool {
    is_of_rings(number) || (AIO_CALLS.contains(&(number as i64)) && backend::finds_aio())
}

/// Whether one of our numbers is in the code around `site`, so far as one function may reach: compilers let branches
/// of it that end alike share the instruction.
fn our_number_is_near(code: &[u8], site: &Site) -> bool {
    let is_of_aio = |bytes: &[u8]| AIO_CALLS.iter().any(|number| (*number as u32).to_le_bytes() == *bytes);
    rings_number_is_near(code, site) || (backend::finds_aio() && around(code, site).windows(4).any(is_of_aio))
}

fn rings_number_is_near(code: &[u8], site: &Site) -> bool {
    around(code, site).windows(4).any(|bytes| bytes[1..] == [1, 0, 0] && (0xa9..=0xab).contains(&bytes[0]))
}

fn around<'a>(code: &'a [u8], site: &Site) -> &'a [u8] {
    const FUNCTION: usize = 32 * 1024;
    &code[site.offset.saturating_sub(FUNCTION)..code.len().min(site.offset + FUNCTION)]
}

fn examine(code: &[u8], offset: usize) -> Option<Site> {
    if !code_follows(code, offset + SYSCALL.len()) {
        return None;
    }
    arrivals(code, offset)
}

/// The instruction at `offset`, if most starting points before it agree that one begins there, with the constant that eax then
/// holds, if it is known.
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
    // At the very beginning of a segment there is nothing to judge by.
    let is_sure = agree * 8 >= tried * 7;
    (agree * 2 >= tried).then_some(Site { offset, number, is_sure })
}

/// Decodes from `from` until `until`: whether an instruction begins exactly there, and the constant that eax then
/// holds, if it is known.
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

/// Whether code follows, as far as the function goes on.
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

/// What `instruction` does to rax: `None` nothing, `Some(None)` something, `Some(Some(n))` loads the constant n.
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
    use super::*;

    fn sites(code: &[u8]) -> Sites {
        super::sites(code).expect("memory")
    }

    /// Some plain code on both sides of `middle`, with the offset at which `middle` starts.
    fn between_code(middle: &[u8]) -> (Vec<u8>, usize) {
        // mov rdi,[rsi+8]; add rdi,rdx; mov [rsp+16],rdi
        let plain = [0x48, 0x8b, 0x7e, 0x08, 0x48, 0x01, 0xd7, 0x48, 0x89, 0x7c, 0x24, 0x10];
        let before = plain.repeat(8);
        let start = before.len();
        ([&before, middle, &plain.repeat(4), &[0xc3]].concat(), start)
    }

    #[test]
    fn finds_a_written_out_call() {
        let (code, start) = between_code(&[0xb8, 0xaa, 0x01, 0, 0, 0x0f, 0x05]);
        assert_eq!(sites(&code).offsets, [start + 5]);
        assert!(follows_load_of_enter(&code, start + 5) && !follows_load_of_enter(&code, start));
    }

    #[test]
    fn finds_a_call_whose_number_comes_in_a_register() {
        let (code, start) = between_code(&[0x48, 0x89, 0xf8, 0x0f, 0x05]);
        assert_eq!(sites(&code).offsets, [start + 3]);
    }

    #[test]
    fn what_may_call_on_rings_is_told_for_sure() {
        let of_rings = |middle: &[u8], offset| {
            let (code, start) = between_code(middle);
            let found = of_rings(&code, [start + offset].into_iter()).expect("memory");
            found.first().map(|site| (site.offset - start, site.is_likely))
        };
        let futex = [0xb8, 0xca, 0, 0, 0, 0x0f, 0x05];
        let enter = [0xb8, 0xaa, 0x01, 0, 0, 0x0f, 0x05];
        let any = [0x48, 0x89, 0xf8, 0x0f, 0x05];
        assert_eq!(of_rings(&enter, 5), Some((5, true)));
        assert_eq!(of_rings(&futex, 5), None);
        assert_eq!(of_rings(&any, 3), Some((3, false)));
        // Branches may share one that loads another number, or none.
        assert_eq!(of_rings(&[&futex[..], &enter].concat(), 5), Some((5, false)));
        assert_eq!(of_rings(&[&any[..], &enter].concat(), 3), Some((3, true)));
        // The bytes in a loop of V8's: movzbl 5(%rdi,%rcx,1), %edx; mov %dl, 5(%rsi,%rcx,1) and its like.
        let copy = |at: u8| [0x0f, 0xb6, 0x54, 0x0f, at, 0x88, 0x54, 0x0e, at];
        let copies = [1, 2, 3, 4, 5, 6, 7].map(copy).concat();
        assert_eq!(of_rings(&copies, 9 * 4 + 3), None);
    }

    #[test]
    fn leaves_calls_that_can_only_be_others() {
        let futex = [0xb8, 0xca, 0, 0, 0, 0x0f, 0x05];
        assert!(sites(&between_code(&futex).0).offsets.is_empty());
        // The same beside an io_uring_enter: a compiler may have merged their ends, so all count.
        let both = [&futex[..], &[0xb8, 0xaa, 0x01, 0, 0, 0x0f, 0x05]].concat();
        assert_eq!(sites(&between_code(&both).0).offsets.len(), 2);
    }

    #[test]
    fn leaves_the_bytes_inside_other_instructions() {
        // jmp to a far place whose distance has the bytes, lea with such a displacement, a 64-bit constant.
        for other in [
            &[0xe9, 0x10, 0x0f, 0x05, 0x00][..],
            &[0x48, 0x8d, 0x05, 0x0f, 0x05, 0x00, 0x00],
            &[0x48, 0xb9, 0xc7, 0xc0, 0x0f, 0x00, 0x00, 0x00, 0x0f, 0x05],
        ] {
            assert!(sites(&between_code(other).0).offsets.is_empty(), "{other:02x?}");
        }
    }
}
