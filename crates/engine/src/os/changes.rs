//! Keeps changes of the engine's own numbers apart from forks, and from calls of the program that close numbers.
//!
//! A forked child closes the numbers that it has no use for, as its memory records them. The kernel copies the
//! descriptor table first and the memory later. If a number were opened or closed between the two, the child's table
//! and memory would differ. The child would then keep that file open forever.
//!
//! A close of a range spares the numbers that the memory records. A number opened meanwhile would be closed, and the
//! engine would use, or close, whatever file the program opens under it later.
//!
//! So each of these waits until no change is under way, and new changes wait for it. Both give up after a while. A
//! close may linger. Also, a signal handler that interrupted malloc would wait for a fork that waits for malloc.

use super::{borrowed, handlers, nap};
use crate::mutation::{mutated, Mutation};
use core::marker::PhantomData;
use core::sync::atomic::{AtomicU32, Ordering};

/// Number of threads with changes under way, plus [`OTHER`] times the number of forks and closes.
static STATE: AtomicU32 = AtomicU32::new(0);
const OTHER: u32 = 1 << 16;
/// Number of changes that wait. The next close lets them go first. Otherwise threads that close all the time would keep
/// them waiting. Relaxed: a hint.
static WAITING: AtomicU32 = AtomicU32::new(0);
/// Number of times that a fork or a close checks for changes under way. The checks take about 100 ms together, since
/// a thread in the middle of a change may wait that long for a CPU.
const LOOKS_OF_OTHERS: u32 = 140;
/// Number of times that a change checks for a fork or a close under way. The checks take about 200 ms together, since
/// a fork takes longer the more memory there is.
const LOOKS_OF_CHANGES: u32 = 240;

/// Lives while a change is under way. A change begins before a descriptor is opened. It ends once the descriptor has its
/// last number and that number is recorded, or once the descriptor is closed. As long as a `Change` lives, no signal
/// handler runs on its thread, since a handler might fork.
pub struct Change(PhantomData<*mut ()>);

impl Change {
    /// Begins a change, perhaps inside another one of this thread.
    #[inline]
    pub fn begin() -> Change {
        handlers::enter_critical();
        let depth = handlers::changes();
        let outer = depth.load(Ordering::Relaxed);
        depth.store(outer + 1, Ordering::Relaxed);
        // Acquire: partner is the Release in `Apart`, after which the closed numbers are free.
        if outer == 0 && STATE.fetch_add(1, Ordering::Acquire) >= OTHER {
            wait_for_others();
        }
        Change(PhantomData)
    }
}

impl Drop for Change {
    fn drop(&mut self) {
        let depth = handlers::changes();
        let outer = depth.load(Ordering::Relaxed) - 1;
        depth.store(outer, Ordering::Relaxed);
        if outer == 0 {
            STATE.fetch_sub(1, Ordering::Release); // partner: the Acquire load in `exclude`
        }
        handlers::leave_critical();
    }
}

/// Runs `change`, which opens or closes a number and records that.
#[inline]
pub fn change<T>(change: impl FnOnce() -> T) -> T {
    let _under_way = Change::begin();
    change()
}

/// Takes the change back until nothing excludes it.
#[cold]
fn wait_for_others() {
    WAITING.fetch_add(1, Ordering::Relaxed);
    for look in 0..LOOKS_OF_CHANGES {
        STATE.fetch_sub(1, Ordering::Relaxed);
        nap(look);
        // Acquire: as in `begin`.
        if STATE.fetch_add(1, Ordering::Acquire) < OTHER {
            break;
        }
    }
    WAITING.fetch_sub(1, Ordering::Relaxed);
}

/// Keeps new changes from beginning, and waits for those under way.
fn exclude() {
    STATE.fetch_add(OTHER, Ordering::Relaxed);
    for look in 0..LOOKS_OF_OTHERS {
        // Acquire: partner is the Release of the last change, so that the caller gets that change's records.
        if STATE.load(Ordering::Acquire).is_multiple_of(OTHER) {
            return;
        }
        nap(look);
    }
}

/// Begins a fork in the calling thread, whose handlers must be deferred.
pub fn fork_begins() {
    if !mutated(Mutation::ForksMeetChanges) {
        exclude();
    }
}

/// Ends a fork, even one that failed.
pub fn fork_ends() {
    if !mutated(Mutation::ForksMeetChanges) {
        STATE.fetch_sub(OTHER, Ordering::Relaxed);
    }
}

/// Lives while numbers are closed apart from changes. As long as it lives, no signal handler runs on its thread, since
/// a handler might begin a change.
struct Apart;

impl Drop for Apart {
    fn drop(&mut self) {
        STATE.fetch_sub(OTHER, Ordering::Release); // partner: the Acquire in `Change::begin`
        handlers::leave_critical();
    }
}

/// Runs `close`, which closes numbers of the program, while no change is under way. A child of vfork(2) has a table of
/// its own, which no change concerns. It may also be killed, and nobody would end the exclusion then. A close within a
/// change of the thread's own is one of the engine's, which std makes, and waits for nothing.
pub fn apart<T>(close: impl FnOnce() -> T) -> T {
    let is_own = handlers::changes().load(Ordering::Relaxed) != 0;
    if is_own || borrowed::is_vforked() || mutated(Mutation::ClosesMeetChanges) {
        return close();
    }
    handlers::enter_critical();
    (0..LOOKS_OF_OTHERS).take_while(|_| WAITING.load(Ordering::Relaxed) != 0).for_each(nap);
    exclude();
    let _apart = Apart;
    close()
}

/// True if a thread changes the engine's own numbers.
#[inline]
pub fn are_under_way() -> bool {
    !STATE.load(Ordering::Relaxed).is_multiple_of(OTHER)
}

/// Forgets, in a forked child, the changes under way, which are the parent's.
pub fn reset_after_fork() {
    STATE.store(0, Ordering::Relaxed);
    WAITING.store(0, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_close_within_a_change_waits_for_nothing() {
        let mine = change(|| apart(|| handlers::changes().load(Ordering::Relaxed)));
        assert_eq!(mine, 1);
        // If the close excluded changes, it would wait for this one.
        let excluded = change(|| apart(|| STATE.load(Ordering::Relaxed) / OTHER));
        assert_eq!(excluded, 0);
    }
}
