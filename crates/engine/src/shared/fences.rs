//! Whether the process that made a ring orders its marks by fences of its own.
//!
//! While a ring has one member, that member stores its mark (`submitter`, `poster`), reads `shared`, and has no fence in
//! between. A process that joins then has to force a barrier on all processes, and membarrier(2) waits for a grace
//! period: some 10 ms. So from its first fork on a process has fences. A process that has several threads when it
//! forks goes on without: another thread may be between its mark and the load.
//!
//! A ring's maker is the joining process itself or one of its ancestors. It is identified by the number of forks from
//! the first process of the family to it.

use crate::mutation::{mutated, Mutation};
use crate::os::{borrowed, owner};
use core::sync::atomic::{compiler_fence, fence, AtomicU32, AtomicU64, Ordering};

/// Number of forks between the first process and this one. Relaxed: it changes only in a child that has one thread.
static DEPTH: AtomicU32 = AtomicU32::new(0);
/// A bit for each depth whose process has fences. Each process has its own copy. Relaxed: it changes only while the
/// process has one thread, and clone(2) orders that for the threads and children to come.
static FENCED: AtomicU64 = AtomicU64::new(0);

/// The depth of the calling process.
pub fn depth() -> u32 {
    DEPTH.load(Ordering::Relaxed)
}

/// The bit of a depth; 0 for those that are too deep, whose processes never have fences.
fn bit(depth: u32) -> u64 {
    1_u64.checked_shl(depth).unwrap_or(0)
}

/// Orders a mark that was just stored before the load of `shared` that follows.
#[inline(always)]
pub fn order_mark() {
    // A handler that interrupts this thread may fork. So `FENCED` is read after the mark is stored.
    compiler_fence(Ordering::SeqCst);
    if FENCED.load(Ordering::Relaxed) != 0 {
        fence(Ordering::SeqCst); // partner: the SeqCst operation in `Control::begin_sharing`
    }
}

/// Lets the process have fences from now on, if it can. Called before it forks. `is_alone` says whether the process has
/// only the calling thread.
pub fn before_fork(is_alone: fn() -> bool) {
    let own = bit(depth());
    if FENCED.load(Ordering::Relaxed) & own == own || !owner::is_noticed() || borrowed::may_be() {
        return;
    }
    if (is_alone() || mutated(Mutation::FencesBesideThreads)) && !mutated(Mutation::MakersHaveNoFences) {
        FENCED.fetch_or(own, Ordering::Relaxed);
    }
}

/// Counts a fork, in the child.
pub fn reset_after_fork() {
    DEPTH.fetch_add(1, Ordering::Relaxed);
}

/// True if the process of this depth has had fences since before it forked the calling process, or an ancestor of it.
pub fn are_made_by(depth: u32) -> bool {
    FENCED.load(Ordering::Relaxed) & bit(depth) != 0
}
