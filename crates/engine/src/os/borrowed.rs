//! Says whether the calling process may be *borrowing* another process's memory: it runs there after vfork(2), or
//! after clone(2) with CLONE_VM and without CLONE_THREAD.
//!
//! This is checked before asking the kernel, since wrappers of frequent calls have no time for a system call.
//!
//! Code that makes a child in its own memory records that child in this module. A child of vfork(2) is recorded in
//! the thread's memory, which the child shares. The first child of any other kind is recorded for the whole process,
//! and the record is never cleared.

use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// True if every call that makes a child in this memory is recorded.
static SEEN: AtomicBool = AtomicBool::new(false);
/// Set once a child was made other than by vfork(2). Relaxed, like `SEEN`: it is stored before the child is made, and
/// the child runs in the same memory.
pub static MADE: AtomicBool = AtomicBool::new(false);

crate::thread_local_memory!("anyring_thread_vforks", 16);

/// Not 0 in a child of vfork(2), and in the calling thread while it makes one.
fn vforks() -> &'static AtomicU32 {
    let own: *const AtomicU32 = crate::own_memory!("anyring_thread_vforks");
    // SAFETY: thread-local memory lives as long as the thread, which hands this reference to no other.
    unsafe { &*own }
}

/// True if the process may be a child in another process's memory. If it is not, it is the process that last recorded
/// itself in this memory.
#[inline]
pub fn may_be() -> bool {
    !SEEN.load(Ordering::Relaxed) || MADE.load(Ordering::Relaxed) || vforks().load(Ordering::Relaxed) != 0
}

/// True in a child of vfork(2) that is recorded, and in the calling thread while it makes one.
#[inline]
pub fn is_vforked() -> bool {
    vforks().load(Ordering::Relaxed) != 0
}

/// Sets whether all children in this memory are recorded from now on.
pub fn are_seen(seen: bool) {
    SEEN.store(seen, Ordering::Relaxed);
}
