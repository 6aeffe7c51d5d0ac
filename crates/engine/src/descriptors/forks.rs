//! Forks and changes of the engine's own numbers keep out of each other's way.
//!
//! A forked child closes what it has no use for by what is remembered of the numbers. The kernel copies the table of
//! descriptors first and the memory a while later, so of a number that is had or given back meanwhile a child's table and
//! memory would tell different things, and it would keep the file for good. So a fork waits until no change is under way, and
//! changes that come wait for the fork. Both give up after a while: a close may linger, and a handler that interrupted
//! malloc would wait for a fork that waits for malloc.

use crate::mutation::{mutated, Mutation};
use crate::os::{handlers, nap};
use core::sync::atomic::{AtomicU32, Ordering};

/// How many changes are under way, and, by [`FORK`] for each, how many forks.
static STATE: AtomicU32 = AtomicU32::new(0);
const FORK: u32 = 1 << 16;
/// How often a fork looks whether changes are through: some 100 ms, since a thread may wait as long for a CPU in the middle of one.
const LOOKS_OF_FORKS: u32 = 140;
/// How often a change looks whether a fork is through, which takes the longer the more memory there is: some 200 ms.
const LOOKS_OF_CHANGES: u32 = 240;

/// A change that is under way. No handler of its thread's, which might fork, runs meanwhile.
struct Change;

impl Drop for Change {
    fn drop(&mut self) {
        STATE.fetch_sub(1, Ordering::Release); // partner: the Acquire load in `begin`
        handlers::let_go();
    }
}

/// Has a number, or gives one back, together with what is remembered of it.
#[inline]
pub fn change<T>(change: impl FnOnce() -> T) -> T {
    handlers::hold();
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

/// The calling thread is about to fork. To be called while its handlers wait.
pub fn begin() {
    if mutated(Mutation::ForksMeetChanges) {
        return;
    }
    STATE.fetch_add(FORK, Ordering::Relaxed);
    for look in 0..LOOKS_OF_FORKS {
        // Acquire: partner is the Release of the last change, whose marks the child is to have.
        if STATE.load(Ordering::Acquire).is_multiple_of(FORK) {
            return;
        }
        nap(look);
    }
}

/// It has forked, or failed to.
pub fn end() {
    if !mutated(Mutation::ForksMeetChanges) {
        STATE.fetch_sub(FORK, Ordering::Relaxed);
    }
}

/// In a forked child: what was under way is the parent's.
pub fn reset_after_fork() {
    STATE.store(0, Ordering::Relaxed);
}
