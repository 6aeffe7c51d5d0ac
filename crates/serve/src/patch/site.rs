//! Instructions that make system calls, and what is known of their numbers.

use anyring_abi::{NR_IO_URING_REGISTER, NR_IO_URING_SETUP};
use anyring_engine::{alloc, Errno};

/// A confirmed instruction.
pub struct Site {
    /// The offset in the code.
    pub offset: usize,
    /// The system call's number, if the instructions before it load a constant.
    pub number: Option<u64>,
    /// True if decoding from nearly every starting point before it finds this instruction. If an instruction is
    /// replaced before it first runs, no trap has proved that it is one. So it must be certain that its bytes are
    /// not part of another instruction.
    pub(super) is_sure: bool,
}

/// An instruction that may make a call on rings.
pub struct OfRings {
    /// The offset in the code.
    pub offset: usize,
    /// True if the instruction loads one of io_uring's numbers itself. Also true if its number comes from elsewhere,
    /// and one of io_uring's numbers is near.
    pub is_likely: bool,
}

const _: () = assert!(NR_IO_URING_SETUP == 0x1a9 && NR_IO_URING_REGISTER == 0x1ab);

/// True if a call of this number is io_uring's.
pub fn is_number_of_rings(number: u64) -> bool {
    (NR_IO_URING_SETUP as u64..=NR_IO_URING_REGISTER as u64).contains(&number)
}

/// Returns the code around an instruction, as far as one function may reach.
pub fn around<'a>(code: &'a [u8], site: &Site) -> &'a [u8] {
    const FUNCTION: usize = 32 * 1024;
    &code[site.offset.saturating_sub(FUNCTION)..code.len().min(site.offset + FUNCTION)]
}

/// Collects the instructions that may make a call on rings, likely ones first.
///
/// # Errors
/// NOMEM.
pub(super) fn collect(found: impl Iterator<Item = OfRings>) -> Result<Vec<OfRings>, Errno> {
    let mut all = Vec::new();
    for site in found {
        alloc::push(&mut all, site)?;
    }
    all.sort_unstable_by_key(|site| (!site.is_likely, site.offset));
    Ok(all)
}
