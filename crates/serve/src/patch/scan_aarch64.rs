//! Finds `svc` instructions in code: the same names as in `scan.rs`.
//!
//! Every instruction is an aligned word, so a search by words finds them all. Data between functions may have the
//! same value, and no scan can distinguish the two.

use super::site;
pub use super::site::{around, is_number_of_rings, OfRings, Site};
use anyring_abi::{NR_IO_URING_REGISTER, NR_IO_URING_SETUP};
use anyring_engine::Errno;

/// The register of a system call's number.
const X8: u32 = 8;
/// The most instructions before a `svc` in which the load of its number is looked for.
const BEFORE: usize = 64;

/// Returns the instructions of some code, which begins at a multiple of 4 in memory.
pub fn sites(code: &[u8]) -> impl Iterator<Item = Site> + '_ {
    let words = code.chunks_exact(4).enumerate();
    words.filter(|(_, bytes)| is_call(word(bytes))).map(|(index, _)| {
        let offset = index * 4;
        Site { offset, number: loaded_number(code, offset), is_sure: is_among_instructions(code, offset) }
    })
}

fn word(bytes: &[u8]) -> u32 {
    bytes.first_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes))
}

/// True for `svc` with any operand: Linux ignores it.
pub fn is_call(instruction: u32) -> bool {
    instruction & 0xffe0_001f == 0xd400_0001
}

/// True if the words before and after are possible instructions. In data between functions, one of them is mostly none.
fn is_among_instructions(code: &[u8], offset: usize) -> bool {
    let is_none = |word: u32| match word >> 25 & 15 {
        0 => word >> 31 == 0,
        group => group == 1 || group == 3,
    };
    let beside = [offset.checked_sub(4).map(|before| &code[before..]), code.get(offset + 4..)];
    beside
        .into_iter()
        .flatten()
        .filter_map(|bytes| bytes.first_chunk())
        .all(|bytes| !is_none(u32::from_le_bytes(*bytes)))
}

/// Returns the constant that the instructions before `until` load into x8. `None` if another instruction may write it
/// later, or if none is found.
fn loaded_number(code: &[u8], until: usize) -> Option<u64> {
    let before = code[..until].rchunks_exact(4).take(BEFORE).map(word);
    for instruction in before {
        match constant(instruction) {
            Some((X8, number)) => return Some(number),
            Some(_) => {}
            None if may_write_x8(instruction) || leaves(instruction) => return None,
            None => {}
        }
    }
    None
}

/// Returns the register and the constant of `mov xN, #constant` or `mov wN, #constant`, below 65,536.
fn constant(instruction: u32) -> Option<(u32, u64)> {
    let is_movz = instruction & 0x7fe0_0000 == 0x5280_0000;
    is_movz.then_some((instruction & 31, u64::from(instruction >> 5 & 0xffff)))
}

/// True if the instruction may write x8. True also for some that only read it.
fn may_write_x8(instruction: u32) -> bool {
    // Loads and stores: the second register of a pair, and a base that is written back.
    let is_memory = instruction & 0x0a00_0000 == 0x0800_0000;
    instruction & 31 == X8 || is_memory && (instruction >> 10 & 31 == X8 || instruction >> 5 & 31 == X8)
}

/// True for a call, a return, or a jump without a condition: the code before it is another path.
fn leaves(instruction: u32) -> bool {
    instruction & 0x7c00_0000 == 0x1400_0000 || instruction & 0xfe00_0000 == 0xd600_0000
}

/// Returns the instructions that may make a call on rings, likely ones first.
///
/// # Errors
/// NOMEM.
pub fn of_rings(code: &[u8]) -> Result<Vec<OfRings>, Errno> {
    let of_rings = |site: Site| match site.number {
        Some(number) => is_number_of_rings(number).then_some(OfRings { offset: site.offset, is_likely: true }),
        None => site.is_sure.then(|| OfRings { offset: site.offset, is_likely: rings_number_is_near(code, &site) }),
    };
    site::collect(sites(code).filter_map(of_rings))
}

/// True if one of io_uring's numbers is loaded in the code nearby, as far as one function may reach.
pub fn rings_number_is_near(code: &[u8], site: &Site) -> bool {
    number_is_near(code, site, &[NR_IO_URING_SETUP, NR_IO_URING_SETUP + 1, NR_IO_URING_REGISTER])
}

/// True if one of these numbers is loaded in the code nearby, as far as one function may reach.
pub fn number_is_near(code: &[u8], site: &Site, numbers: &[i64]) -> bool {
    let loaded = around(code, site).chunks_exact(4).filter_map(|bytes| constant(word(bytes)));
    loaded.into_iter().any(|(_, number)| numbers.contains(&(number as i64)))
}

/// True if the instruction directly before the `svc` at `offset` loads `number` into x8.
pub fn follows_load_of(code: &[u8], offset: usize, number: u32) -> bool {
    let before = offset.checked_sub(4).map(|at| constant(word(&code[at..])));
    before.flatten() == Some((X8, u64::from(number)))
}
