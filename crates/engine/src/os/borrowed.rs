//! Whether the calling process may run in another's memory (vfork(2), or clone(2) with CLONE_VM and without CLONE_THREAD).
//!
//! Asked before the kernel is, since wrappers of frequent calls have no time for a system call.
//!
//! Who makes such children says so here: for vfork(2) in its thread's memory, which the child has too, and for all others once
//! and for good.

use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// Whether all such children are seen when they are made.
static SEEN: AtomicBool = AtomicBool::new(false);
/// One was made of which its thread's memory does not tell. Relaxed, both: who makes one stores it before, and the child runs in
/// the same memory.
pub static MADE: AtomicBool = AtomicBool::new(false);

crate::thread_local_memory!("anyring_thread_vforks", 16);

/// Not 0 in a child of vfork(2), and in the calling thread while it makes one.
fn vforks() -> &'static AtomicU32 {
    let own: *const AtomicU32 = crate::own_memory!("anyring_thread_vforks");
    // SAFETY: thread-local memory lives as long as the thread, which hands this reference to no other.
    unsafe { &*own }
}

/// Whether the process may be such a child: if not, the process that was last seen in this memory is the one.
#[inline]
pub fn may_be() -> bool {
    !SEEN.load(Ordering::Relaxed) || MADE.load(Ordering::Relaxed) || vforks().load(Ordering::Relaxed) != 0
}

/// All such children say so from now on, or not.
pub fn are_seen(seen: bool) {
    SEEN.store(seen, Ordering::Relaxed);
}
