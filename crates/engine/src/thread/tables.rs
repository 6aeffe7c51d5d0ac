//! Descriptor tables: a program thread may have a table of its own, by unshare(2) with CLONE_FILES or close_range(2)
//! with CLOSE_RANGE_UNSHARE.
//!
//! A number names a file in one table only. A ring belongs to the table of the thread that made it. The ring's own
//! descriptors are in that table, and its threads' requests name files there. So all work for a ring is done by
//! threads with the same table. If that is not the first table, submitting threads make credentials pools, which run
//! the calls that workers would make. No helper drives such a ring.
//!
//! While there is only one table, as usual, all this costs one load.

use crate::forced::{point, Point};
use crate::lock::Lock;
use crate::mutation::{mutated, Mutation};
use crate::os::owner::{self, KCMP_FILES};
use crate::os::{standard, syscall, Os, Sys};
use crate::thread;
use core::cell::Cell;
use core::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// The table that the process began with.
pub const FIRST: u32 = 0;
/// The table of a process that runs in the memory of another one, but does not share its descriptors.
const BORROWERS: u32 = u32::MAX - 1;
/// The thread's table is not known yet.
const UNKNOWN: u32 = u32::MAX;

/// Number of tables that threads have got for themselves. Changes under the lock of `THREADS`. Relaxed, like the
/// other atomics here: a thread asks only for its own table.
static MADE: AtomicU32 = AtomicU32::new(0);
/// The live tables that threads got for themselves: the table's number, from 1 on, and the thread that got it.
static THREADS: Lock<Vec<(u32, u32)>> = Lock::new(Vec::new());

thread_local! {
    static MINE: Cell<u32> = const { Cell::new(UNKNOWN) };
}

/// True if the process's threads have several tables.
#[inline]
pub fn differ() -> bool {
    MADE.load(Relaxed) != 0
}

/// Returns the calling thread's table.
#[inline]
pub fn mine() -> u32 {
    if differ() {
        find()
    } else {
        FIRST
    }
}

/// True if the calling thread uses the table that the memory's process began with. Engine threads that serve that
/// process use that table.
pub fn is_first() -> bool {
    mine() == FIRST && !owner::has_other_table()
}

/// Returns the table of a ring that the calling thread makes.
pub fn of_new_ring() -> u32 {
    if owner::has_other_table() {
        BORROWERS
    } else {
        mine()
    }
}

/// Finds the calling thread's table by kcmp(2), since a thread inherits its maker's table. If kcmp(2) is refused, the
/// thread counts as one with the first table.
#[cold]
fn find() -> u32 {
    let known = MINE.try_with(Cell::get).unwrap_or(UNKNOWN);
    if known != UNKNOWN {
        return known;
    }
    let me = Sys::thread_id() as usize;
    let same = |other: u32| syscall(libc::SYS_kcmp, [me, other as usize, KCMP_FILES, 0, 0, 0]) == 0;
    let Some(threads) = THREADS.lock() else { return FIRST };
    let table = threads.iter().find(|(_, thread)| same(*thread)).map_or(FIRST, |(table, _)| *table);
    drop(threads);
    set_mine(table);
    table
}

/// Records that the calling thread was made by a thread with table `table`.
pub fn set_mine(table: u32) {
    let _ = MINE.try_with(|mine| mine.set(table));
}

/// True if only engine threads share the calling thread's table, in the process that has this memory.
pub fn is_engines_only() -> bool {
    !shares_descriptors() && thread::is_only_one_of_program()
}

/// Records that the calling thread has got a table of its own. Records nothing if it is the process's only thread,
/// since the old table is gone. Records nothing either in a process that only borrows this memory, such as a child of
/// vfork(2).
pub fn unshared(is_borrowed: bool) {
    if is_borrowed {
        return;
    }
    if !thread::are_there() && thread::is_only_one_of_program() {
        return SHARES_DESCRIPTORS.store(0, Relaxed);
    }
    if mutated(Mutation::TablesDoNotDiffer) {
        return;
    }
    point(Point::Table);
    standard::stop_protecting();
    let Some(mut threads) = THREADS.lock() else { return };
    let process = Sys::process_id() as usize;
    threads.retain(|(_, thread)| syscall(libc::SYS_tgkill, [process, *thread as usize, 0, 0, 0, 0]) == 0);
    let table = MADE.load(Relaxed) + 1;
    threads.push((table, Sys::thread_id()));
    MADE.store(table, Relaxed);
    set_mine(table);
}

/// Resets everything in a forked child, which has one table.
///
/// # Safety
/// Only the forking thread may exist in the process.
pub unsafe fn reset_after_fork() {
    // SAFETY: the contract; the list is emptied.
    unsafe { THREADS.reset() };
    if let Some(mut threads) = THREADS.lock() {
        core::mem::forget(core::mem::take(&mut *threads));
    }
    MADE.store(0, Relaxed);
    set_mine(UNKNOWN);
}

/// Not 0 in a forked child that shares its descriptor table with its parent.
static SHARES_DESCRIPTORS: AtomicU32 = AtomicU32::new(0);

/// True if this process, a forked child, shares its descriptor table with its parent.
pub fn shares_descriptors() -> bool {
    SHARES_DESCRIPTORS.load(Relaxed) != 0
}

/// Records in a forked child whether it shares its descriptor table with its parent, by clone(2) with CLONE_FILES.
/// Then the child must not close the parent's open files. False if kcmp(2) is refused.
pub fn record_sharing_with(parent: u32) -> bool {
    let shared = owner::shares_table_with(parent);
    SHARES_DESCRIPTORS.store(shared.into(), Relaxed);
    shared
}
