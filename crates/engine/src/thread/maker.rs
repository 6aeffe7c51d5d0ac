//! The maker: an engine thread that makes the threads which serve the whole process, in a process with several
//! threads.
//!
//! The thread that first needs another may be unsuitable to make it. It may have its own seccomp filter, or other CPUs
//! or priorities than the process. Its scheduling class may not permit new threads (SCHED_DEADLINE). It may be in a
//! signal handler that interrupted malloc(3). So the maker is made when such a process makes a ring.
//!
//! The maker makes the other threads while the asking thread waits, but only briefly. The maker may be stuck because
//! the asking thread holds something that it needs. Then the asking thread does without the new thread.
//!
//! | state | who uses it |
//! |---|---|
//! | `QUEUE` | asking threads, and the maker (a leaf lock) |
//! | `ASKED` | futex word of the maker, which changes for each queued request, and when the last ring has ended |
//! | `Asked::state` | the asking thread, the maker and the new thread compete for this word |

use super::make::{make, Entry, Like};
use super::{count, is_needed, name, tables};
use crate::lock::Lock;
use crate::os::{handlers, is_filtered, Clock, Os, Sys};
use crate::sync::thread_pointer;
use core::ffi::c_void;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::collections::VecDeque;
use std::sync::Arc;

/// The longest wait of an asking thread, in nanoseconds. Making a thread takes a hundredth of that.
const PATIENCE_NS: u64 = 50_000_000;
/// Interval at which the maker checks whether the process still has several threads, in nanoseconds.
const PERIOD_NS: u64 = 2_000_000_000;
/// The maker ends this long after the last ring, in nanoseconds.
const LINGER_NS: u64 = 100_000_000;

/// A thread that has been asked for.
struct Asked {
    entry: Entry,
    argument: usize,
    /// `WAITS`, `MADE`, `REFUSED` or `GIVEN_UP`. The Release of a thread that changes the state pairs with the
    /// Acquire of a thread that reads it.
    state: AtomicU32,
}

const WAITS: u32 = 0;
const MADE: u32 = 1;
const REFUSED: u32 = 2;
const GIVEN_UP: u32 = 3;

impl Asked {
    /// Changes the state from `WAITS` to `state`. False if it was not `WAITS`.
    fn becomes(&self, state: u32) -> bool {
        self.state.compare_exchange(WAITS, state, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }
}

/// The requests that the maker has not taken yet.
static QUEUE: Lock<VecDeque<Arc<Asked>>> = Lock::new(VecDeque::new());
/// True if the maker exists, or is about to be made. Changes under the lock of `QUEUE`. Without the lock it is a
/// hint, read relaxed.
static EXISTS: AtomicBool = AtomicBool::new(false);
static ASKED: AtomicU32 = AtomicU32::new(0);
/// The maker's thread pointer, once it runs. Relaxed: only the maker finds its own pointer there.
static THREAD: AtomicUsize = AtomicUsize::new(0);

fn exists() -> bool {
    EXISTS.load(Ordering::Relaxed)
}

/// True if the calling thread is the maker.
pub(super) fn is_this_thread() -> bool {
    THREAD.load(Ordering::Relaxed) == thread_pointer()
}

/// Makes sure, when a ring was made, that a process with several threads has a maker.
pub fn keep_maker() {
    if !exists() && count::program_has_several() && !handlers::is_running() && tables::is_first() {
        start();
    }
}

/// Calls [`keep_maker`] for a caller that needs another thread. Does nothing if the calling thread has a filter,
/// which the maker would inherit.
pub(super) fn keep_maker_if_unfiltered() {
    if !exists() && count::program_has_several() && !is_filtered() {
        keep_maker();
    }
}

fn start() {
    let Some(queue) = QUEUE.lock().filter(|_| !exists()) else { return };
    EXISTS.store(true, Ordering::Relaxed);
    drop(queue);
    if !make(live, null_mut(), Like::Process) {
        let _queue = QUEUE.lock();
        EXISTS.store(false, Ordering::Relaxed);
    }
}

/// Asks the maker for a thread that serves the process. True if the maker made one. `None` if there is no maker, or
/// the maker does not proceed.
pub(super) fn ask(entry: Entry, argument: *mut c_void) -> Option<bool> {
    if !exists() || is_this_thread() || !tables::is_first() {
        return None;
    }
    let asked = Arc::new(Asked { entry, argument: argument as usize, state: AtomicU32::new(WAITS) });
    let mut queue = QUEUE.lock().filter(|_| exists())?;
    queue.try_reserve(1).ok()?;
    queue.push_back(asked.clone());
    drop(queue);
    wake();
    let until_ns = Clock::Monotonic.now_ns() + PATIENCE_NS;
    loop {
        match asked.state.load(Ordering::Acquire) {
            WAITS => {}
            state => return Some(state == MADE),
        }
        match until_ns.checked_sub(Clock::Monotonic.now_ns()) {
            Some(left_ns) => drop(Sys::futex_wait(&asked.state, WAITS, Some(left_ns))),
            None if asked.becomes(GIVEN_UP) => return None,
            None => {}
        }
    }
}

fn wake() {
    ASKED.fetch_add(1, Ordering::Release); // partner: the Acquire in `live`
    Sys::futex_wake(&ASKED, 1);
}

extern "C" fn live(_: *mut c_void) -> *mut c_void {
    name(c"anyring-maker");
    THREAD.store(thread_pointer(), Ordering::Relaxed);
    loop {
        let seen = ASKED.load(Ordering::Acquire); // partner: the Release in `wake`
        let Some(mut queue) = QUEUE.lock() else { continue };
        if let Some(asked) = queue.pop_front() {
            drop(queue);
            make_asked(&asked);
            continue;
        }
        drop(queue);
        let idle_ns = if is_needed() { PERIOD_NS } else { LINGER_NS };
        let slept = Sys::futex_wait(&ASKED, seen, Some(idle_ns));
        let is_idle = slept == Err(crate::Errno::TIMEDOUT) && !(is_needed() && count::is_one_of_several());
        let Some(_queue) = QUEUE.lock().filter(|queue| is_idle && queue.is_empty()) else { continue };
        EXISTS.store(false, Ordering::Relaxed);
        let _ = THREAD.compare_exchange(thread_pointer(), 0, Ordering::Relaxed, Ordering::Relaxed);
        return null_mut();
    }
}

fn make_asked(asked: &Arc<Asked>) {
    if asked.state.load(Ordering::Acquire) != WAITS {
        return; // the asking thread has given up
    }
    let argument = Arc::into_raw(asked.clone());
    if !make(run, argument.cast_mut().cast(), Like::Process) {
        // SAFETY: from `into_raw` above, and no thread was made that would take it.
        drop(unsafe { Arc::from_raw(argument) });
        asked.becomes(REFUSED);
        Sys::futex_wake(&asked.state, 1);
    }
}

extern "C" fn run(argument: *mut c_void) -> *mut c_void {
    // SAFETY: `make_asked` has given this reference to the thread.
    let asked = unsafe { Arc::from_raw(argument.cast_const().cast::<Asked>()) };
    if !asked.becomes(MADE) {
        return null_mut();
    }
    Sys::futex_wake(&asked.state, 1);
    (asked.entry)(asked.argument as *mut c_void)
}

/// Wakes the maker, since the process's last ring has ended.
pub fn rings_are_gone() {
    if exists() {
        wake();
    }
}

/// Resets everything in a forked child, which has no maker.
///
/// # Safety
/// Only the forking thread may exist in the process.
pub(super) unsafe fn reset_after_fork() {
    THREAD.store(0, Ordering::Relaxed);
    EXISTS.store(false, Ordering::Relaxed);
    // SAFETY: the contract, and the value is replaced right away.
    unsafe { QUEUE.reset() };
    if let Some(mut queue) = QUEUE.lock() {
        core::mem::forget(core::mem::take(&mut *queue));
    }
}
