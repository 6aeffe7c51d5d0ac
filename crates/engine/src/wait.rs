//! Waiting for completions: by a thread in io_uring_enter(2), by the helper, and by a polling thread.

pub mod enter;
pub mod enter_wait;
pub mod helper;
pub mod iopoll;
mod sleep;
mod spin_first;
pub mod sqpoll;

use crate::resource::files;
use crate::{alloc, descriptors, memory, os, process, ring, Errno};
use core::sync::atomic::{AtomicBool, Ordering};

/// Questions to the kernel that are asked before a first ring. A seccomp filter may kill the process for such a
/// question.
static FIRST: [&os::Question; 6] = [
    &os::POLLS_FOR_NANOSECONDS,
    &os::ACCEPTS_FLAGS,
    &os::WAITS_FOR_NANOSECONDS,
    &os::WAITS_WITHOUT_MASK,
    &memory::MAPS_AGAIN,
    &descriptors::ASKS_SOCKETS,
];

/// Set once the questions of `FIRST` were asked. Relaxed: a thread that asks again gets the same answers.
static HAVE_ASKED: AtomicBool = AtomicBool::new(false);

/// Prepares the process for a ring. From then on a helper can start, and a fork is noticed. There is memory for work
/// that cannot be refused, and the program's POSIX locks are known. Forked children call `reset`.
///
/// # Errors
/// `ENOMEM`.
pub fn begin(reset: fn()) -> Result<(), Errno> {
    ring::helper::START.set(helper::start);
    for reset in [helper::reset_after_fork, reset] {
        let _ = process::at_fork(reset); // there are more slots than callers
    }
    // Not for each ring, since it is a question, too, whether there is a filter. Questions that a later filter may
    // kill for are asked one by one.
    if !HAVE_ASKED.swap(true, Ordering::Relaxed) {
        os::ask_together(&FIRST, || os::answers(&FIRST));
    }
    os::probe_flags();
    alloc::reserve()?;
    files::find_posix_locks();
    Ok(())
}
