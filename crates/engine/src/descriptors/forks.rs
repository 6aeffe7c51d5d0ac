//! Keeps forks and changes of the engine's own numbers apart.
//!
//! A forked child closes the numbers that it has no use for, as its memory records them. The kernel copies the
//! descriptor table first and the memory later. If a number were opened or closed between the two, the child's table
//! and memory would differ. The child would then keep that file open forever.
//!
//! So a fork waits until no change is under way, and new changes wait for the fork. Both give up after a while. A close
//! may linger. Also, a signal handler that interrupted malloc would wait for a fork that waits for malloc.

use crate::mutation::{mutated, Mutation};
use crate::os::{handlers, nap};
use core::sync::atomic::{AtomicU32, Ordering};

/// Number of changes under way, plus [`FORK`] times the number of forks.
static STATE: AtomicU32 = AtomicU32::new(0);
const FORK: u32 = 1 << 16;
/// Number of times that a fork checks for changes under way. The checks take about 100 ms together, since a thread in
/// the middle of a change may wait that long for a CPU.
const LOOKS_OF_FORKS: u32 = 140;
/// Number of times that a change checks for a fork under way. The checks take about 200 ms together, since a fork
/// takes longer the more memory there is.
const LOOKS_OF_CHANGES: u32 = 240;

/// Lives while a change is under way. As long as it lives, no signal handler runs on its thread, since a handler might
/// fork.
struct Change;

impl Drop for Change {
    fn drop(&mut self) {
        STATE.fetch_sub(1, Ordering::Release); // partner: the Acquire load in `begin`
        handlers::leave_critical();
    }
}

/// Runs `change`, which opens or closes a number and records that.
#[inline]
pub fn change<T>(change: impl FnOnce() -> T) -> T {
    handlers::enter_critical();
    if STATE.fetch_add(1, Ordering::Acquire) >= FORK {
        wait_for_fork();
    }
    let _under_way = Change;
    change()
}

/// Takes the change back until no fork is under way.
#[cold]
fn wait_for_fork() {
    for look in 0..LOOKS_OF_CHANGES {
        STATE.fetch_sub(1, Ordering::Relaxed);
        nap(look);
        // Acquire: as in `change`.
        if STATE.fetch_add(1, Ordering::Acquire) < FORK {
            return;
        }
    }
}

/// Begins a fork in the calling thread, whose handlers must be deferred.
pub fn begin() {
    if mutated(Mutation::ForksMeetChanges) {
        return;
    }
    STATE.fetch_add(FORK, Ordering::Relaxed);
    for look in 0..LOOKS_OF_FORKS {
        // Acquire: partner is the Release of the last change, so that the child gets that change's records.
        if STATE.load(Ordering::Acquire).is_multiple_of(FORK) {
            return;
        }
        nap(look);
    }
}

/// Ends a fork, even one that failed.
pub fn end() {
    if !mutated(Mutation::ForksMeetChanges) {
        STATE.fetch_sub(FORK, Ordering::Relaxed);
    }
}

/// Forgets, in a forked child, the changes under way, which are the parent's.
pub fn reset_after_fork() {
    STATE.store(0, Ordering::Relaxed);
}
