//! Engine mappings that do not count towards the limit on locked memory.
//!
//! After mlockall(2) with MCL_FUTURE each new mapping is touched and locked as a whole. It counts towards
//! RLIMIT_MEMLOCK, which belongs to the program. The memory of the kernel's io_uring does not count. So after such a
//! call, the engine first maps one page, unlocks it, and then grows the mapping (`vma_to_resize` in mm/mremap.c).

use super::{check, syscall};
use crate::Errno;
use core::sync::atomic::{AtomicBool, Ordering::Relaxed};

const PAGE: usize = 4096;

/// True once the program has called mlockall(2) with MCL_FUTURE. Relaxed: a thread that reads it late gets EAGAIN, or
/// has mapped before the call.
static IS_LOCKED: AtomicBool = AtomicBool::new(false);

/// Records that mlockall(2) with these flags succeeded.
pub fn record_mlockall(flags: usize) {
    if flags & libc::MCL_FUTURE as usize != 0 {
        IS_LOCKED.store(true, Relaxed);
    }
}

/// True if new mappings are locked, as far as is known.
pub fn is_locked() -> bool {
    IS_LOCKED.load(Relaxed)
}

/// Maps `bytes` bytes that are not locked. The function `map` gets a size and maps that much new memory. The size is
/// `bytes`, or a single page.
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
