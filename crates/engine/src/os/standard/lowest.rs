//! Reports, on standard error, engine threads that make descriptors. The program's tests then fail.

use super::super::linux::syscall;
use core::cell::Cell;
use core::panic::Location;
use core::sync::atomic::{AtomicBool, Ordering};

thread_local! {
    static IS_EXCUSED: Cell<bool> = const { Cell::new(false) };
    /// True for engine threads.
    static IS_REPORTED: Cell<bool> = const { Cell::new(false) };
}

/// Reports the calling thread from now on, an engine thread.
pub fn report_this_thread() {
    IS_REPORTED.set(true);
}

/// Set once a descriptor could not be made. An engine thread may then have to make what could not be made in a call of
/// the program. Relaxed: a report more or less does not matter.
static HAS_FAILED: AtomicBool = AtomicBool::new(false);

/// Records that a descriptor could not be made, or not be moved to the engine's own numbers.
pub fn record_failure() {
    HAS_FAILED.store(true, Ordering::Relaxed);
}

/// Lives while the calling thread may make descriptors.
pub(super) struct Excused(bool);

impl Excused {
    pub(super) fn begin() -> Excused {
        Excused(IS_EXCUSED.replace(true))
    }
}

impl Drop for Excused {
    fn drop(&mut self) {
        IS_EXCUSED.set(self.0);
    }
}

/// Makes a descriptor, and reports an engine thread that has no excuse.
#[track_caller]
pub(super) fn reported<T, E>(make: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
    let made = make();
    if IS_EXCUSED.get() {
        return made;
    }
    if made.is_err() {
        record_failure();
    } else if IS_REPORTED.get() && !HAS_FAILED.load(Ordering::Relaxed) {
        let line = format!("anyring: an engine thread takes the lowest number: {}\n", Location::caller());
        syscall(libc::SYS_write, [2, line.as_ptr() as usize, line.len(), 0, 0, 0]);
    }
    made
}
