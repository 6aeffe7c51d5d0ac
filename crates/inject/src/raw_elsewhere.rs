//! `raw/` on processors other than x86-64. Nothing here searches for the program's own system call instructions, or
//! traps them.

use crate::{backend, signals};
use anyring_engine::identity;

/// Does not scan the process's code. The program may therefore change a thread's identity without the engine's
/// knowledge.
pub fn start() {
    if backend::serves_instructions() && signals::owns_the_symbols() {
        identity::may_change_unseen();
    }
}

/// See [`start`].
pub fn start_late() {
    start();
}

/// dlopen(3) is libc's own.
#[cfg(not(test))]
pub(crate) fn resolve() {}

/// The library is linked to stay.
#[cfg(all(feature = "mutations", not(test)))]
pub(crate) fn stay() {}

/// A forked child has nothing to renew.
pub fn renew_after_fork() {}

/// Does nothing: no wait is trapped, not even once there is a ring.
pub fn ring_made() {}

/// Does nothing: no call is emulated on one of the library's own stacks.
pub fn leaving_by_jump() {}

/// See [`leaving_by_jump`].
pub fn record_alternate(_: &libc::stack_t) {}

/// Returns false, since the code is not scanned. A program that makes its rings by libc's `syscall()`, but calls
/// io_uring_enter(2) by its own instructions, waits forever.
pub fn enters_unseen() -> bool {
    false
}
