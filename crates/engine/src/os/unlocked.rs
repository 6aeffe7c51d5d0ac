//! Memory of ours that counts towards no limit on locked memory.
//!
//! After mlockall(2) with MCL_FUTURE the whole of each new mapping is touched and locked, and counts towards RLIMIT_MEMLOCK,
//! which is the program's to spend: what the kernel keeps for io_uring counts towards nothing. So then only a page is mapped
//! at first, which grows once it is unlocked (`vma_to_resize` in mm/mremap.c).

use super::{check, syscall};
use crate::Errno;
use core::sync::atomic::{AtomicBool, Ordering::Relaxed};

const PAGE: usize = 4096;

/// The program has called mlockall(2) with MCL_FUTURE. Relaxed: whoever sees it too late finds EAGAIN, or has mapped before.
static IS_LOCKED: AtomicBool = AtomicBool::new(false);

/// mlockall(2) with these flags answered 0.
pub fn note_mlockall(flags: usize) {
    if flags & libc::MCL_FUTURE as usize != 0 {
        IS_LOCKED.store(true, Relaxed);
    }
}

/// Whether new mappings are locked, as far as is known.
pub fn is_locked() -> bool {
    IS_LOCKED.load(Relaxed)
}

/// New memory of so many bytes, of whose first bytes `map` maps as many as it is told.
///
/// # Errors
/// Those of `map`.
pub fn map(bytes: usize, map: impl Fn(usize) -> Result<usize, Errno>) -> Result<usize, Errno> {
    if !is_locked() || bytes <= PAGE {
        match map(bytes) {
            Err(Errno::AGAIN) if bytes > PAGE => {}
            answer => return answer,
        }
    }
    let page = map(PAGE)?;
    let args = [page, PAGE, bytes, libc::MREMAP_MAYMOVE as usize, 0, 0];
    let unlocked = check(syscall(libc::SYS_munlock, [page, PAGE, 0, 0, 0, 0]));
    unlocked.and_then(|_| check(syscall(libc::SYS_mremap, args))).inspect_err(|_| {
        syscall(libc::SYS_munmap, [page, PAGE, 0, 0, 0, 0]);
    })
}
