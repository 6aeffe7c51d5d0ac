//! Finds the `syscall` instructions that may make calls served here. Every false finding would put a filter (and
//! no_new_privs) on a process that needs none.

use crate::{arch, backend};
use anyring_abi::{AIO_CALLS, NR_IO_URING_ENTER};
use anyring_engine::{alloc, identity, Errno};
pub use anyring_serve::patch::decode::SYSCALL;
use anyring_serve::patch::scan::{follows_load_of, is_number_of_rings, number_is_near, rings_number_is_near, Site};

/// The `syscall` instructions of some code.
pub struct Sites {
    /// The offsets of instructions that may make a call served here. Empty if each instruction loads another number
    /// itself (for a futex call, say), and none of the served numbers occurs near it.
    pub offsets: Vec<usize>,
    /// True if any instruction may close or replace a descriptor, lock a file, or set a signal's action.
    pub may_close: bool,
    /// True if any instruction may make a process that runs in this memory.
    pub may_lend_memory: bool,
    /// True if an instruction changes the identity of its thread. Only an instruction that loads its own number counts.
    /// Nearly all others never make such a call. If they counted, each call that leaves work to a worker would have to
    /// make a new thread.
    pub may_change_identity: bool,
}

/// Scans code for `syscall` instructions.
///
/// # Errors
/// NOMEM if there are too many.
pub fn sites(code: &[u8]) -> Result<Sites, Errno> {
    let mut found: Vec<Site> = Vec::new();
    for site in anyring_serve::patch::scan::sites(code) {
        alloc::push(&mut found, site)?;
    }
    let may_close = found.iter().any(|site| site.number.is_none_or(closes));
    let may_lend_memory = found.iter().any(|site| site.number.is_none_or(lends_memory));
    let changes_identity = |number| identity::NUMBERS.contains(&(number as i64));
    let may_change_identity = found.iter().any(|site| site.number.is_some_and(changes_identity));
    Ok(Sites { offsets: concerned_sites(code, found), may_close, may_lend_memory, may_change_identity })
}

/// True if a system call closes a descriptor number, takes or drops a file lock (fcntl(2)), or changes a signal's
/// action.
fn closes(number: u64) -> bool {
    let numbers = [libc::SYS_close, libc::SYS_close_range, libc::SYS_dup3, libc::SYS_fcntl, libc::SYS_rt_sigaction];
    numbers.contains(&(number as i64)) || arch::CLOSES.contains(&(number as i64))
}

/// True if a system call may make a process that runs in its parent's memory.
fn lends_memory(number: u64) -> bool {
    [libc::SYS_clone, libc::SYS_clone3].contains(&(number as i64)) || arch::LENDERS.contains(&(number as i64))
}

fn concerned_sites(code: &[u8], found: Vec<Site>) -> Vec<usize> {
    let concerned = found.iter().any(|site| site.number.is_none_or(is_ours) || our_number_is_near(code, site));
    if concerned {
        found.into_iter().map(|site| site.offset).collect()
    } else {
        Vec::new()
    }
}

/// True if the instruction directly before the `syscall` at `offset` loads the number of io_uring_enter(2).
pub fn follows_load_of_enter(code: &[u8], offset: usize) -> bool {
    follows_load_of(code, offset, NR_IO_URING_ENTER as u32)
}

/// True if calls of this number are served here.
pub fn is_ours(number: u64) -> bool {
    is_number_of_rings(number) || (AIO_CALLS.contains(&(number as i64)) && backend::finds_aio())
}

/// True if the number of a call served here is in the code around `site`, as far as one function may reach. Compilers
/// let several branches of a function share one `syscall` instruction.
fn our_number_is_near(code: &[u8], site: &Site) -> bool {
    rings_number_is_near(code, site) || (backend::finds_aio() && number_is_near(code, site, &AIO_CALLS))
}

#[cfg(test)]
#[path = "../../../serve/src/patch/between.rs"]
mod between;

#[cfg(test)]
mod tests {
    use super::between::between_code;
    use super::*;

    fn sites(code: &[u8]) -> Sites {
        super::sites(code).expect("memory")
    }

    #[test]
    fn a_written_out_call_is_found() {
        let (code, start) = between_code(&[0xb8, 0xaa, 0x01, 0, 0, 0x0f, 0x05]);
        assert_eq!(sites(&code).offsets, [start + 5]);
        assert!(follows_load_of_enter(&code, start + 5) && !follows_load_of_enter(&code, start));
    }

    #[test]
    fn a_call_whose_number_comes_in_a_register_is_found() {
        let (code, start) = between_code(&[0x48, 0x89, 0xf8, 0x0f, 0x05]);
        assert_eq!(sites(&code).offsets, [start + 3]);
    }

    #[test]
    fn calls_that_can_only_be_others_are_left() {
        let futex = [0xb8, 0xca, 0, 0, 0, 0x0f, 0x05];
        assert!(sites(&between_code(&futex).0).offsets.is_empty());
        // If a futex call is beside an io_uring_enter, a compiler may have merged their ends. So both count.
        let both = [&futex[..], &[0xb8, 0xaa, 0x01, 0, 0, 0x0f, 0x05]].concat();
        assert_eq!(sites(&between_code(&both).0).offsets.len(), 2);
    }

    #[test]
    fn the_bytes_inside_other_instructions_are_left() {
        // The bytes are in the distance of a jmp, in the displacement of a lea, and in a 64-bit constant.
        for other in [
            &[0xe9, 0x10, 0x0f, 0x05, 0x00][..],
            &[0x48, 0x8d, 0x05, 0x0f, 0x05, 0x00, 0x00],
            &[0x48, 0xb9, 0xc7, 0xc0, 0x0f, 0x00, 0x00, 0x00, 0x0f, 0x05],
        ] {
            assert!(sites(&between_code(other).0).offsets.is_empty(), "{other:02x?}");
        }
    }
}
