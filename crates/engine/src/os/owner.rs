//! Says whose memory the calling process runs in. It may be another process's: see [`borrowed`].
//!
//! Such a process makes no engine threads. They would end with it, although they serve the memory's owner, too.

use super::{borrowed, shares_memory_with, syscall, Access, ForkPage, Os, Sys};
use crate::mutation::{mutated, Mutation};
use core::sync::atomic::{AtomicU32, Ordering};

/// A word that reads 0 in a forked child, and 1 once the child is noticed.
pub static FORK_PAGE: ForkPage = ForkPage::new();

/// The process that the tables of this memory belong to. Relaxed: the number publishes nothing.
static OWNER: AtomicU32 = AtomicU32::new(0);

/// Returns the process that was recorded last. 0 before the first.
pub fn recorded() -> u32 {
    OWNER.load(Ordering::Relaxed)
}

/// Records the process that the tables of this memory belong to.
pub fn record(process: u32) {
    OWNER.store(process, Ordering::Relaxed);
}

/// True if the tables belong to the calling process. False in a process that only shares their memory (vfork(2)), and
/// in a forked child that has not been noticed yet.
pub fn is_noticed() -> bool {
    let word = FORK_PAGE.word(Access::ByLoad).map(|word| word.load(Ordering::Relaxed));
    word == Some(1) && recorded() == Sys::process_id()
}

/// Returns the process whose memory this is, and whose tables are in that memory. It is the calling process, unless
/// that is a child of vfork(2), for example.
pub fn of_memory() -> u32 {
    let Some(word) = FORK_PAGE.word(Access::ByLoad) else { return Sys::process_id() };
    match word.load(Ordering::Relaxed) {
        1 => recorded(),
        // In a child that libc's fork made, the page holds the process id.
        _ => match FORK_PAGE.child(Access::ByLoad).map_or(0, |child| child.load(Ordering::Relaxed)) {
            0 => by_memory(),
            child => child,
        },
    }
}

/// Does the work of [`of_memory`] in a child that was forked without the engine's notice.
fn by_memory() -> u32 {
    let (me, parent) = (Sys::process_id(), syscall(libc::SYS_getppid, [0; 6]) as u32);
    // The parent is 0 if it is outside of the PID namespace.
    if parent != 0 && shares_memory_with(parent) && !mutated(Mutation::BorrowersOwn) {
        parent
    } else {
        me
    }
}

/// `KCMP_FILES` of kcmp(2).
pub const KCMP_FILES: usize = 2;

/// True if the calling process shares its descriptor table with process `other`. False if kcmp(2) is refused.
pub fn shares_table_with(other: u32) -> bool {
    let args = [Sys::process_id() as usize, other as usize, KCMP_FILES, 0, 0, 0];
    syscall(libc::SYS_kcmp, args) == 0
}

/// True if the calling process runs in the memory of another one, and has another descriptor table.
pub fn has_other_table() -> bool {
    is_another() && !shares_table_with(of_memory())
}

/// True if the calling process runs in the memory of another one.
#[inline]
pub fn is_another() -> bool {
    borrowed::may_be() && of_memory() != Sys::process_id() && !mutated(Mutation::BorrowersMakeThreads)
}
