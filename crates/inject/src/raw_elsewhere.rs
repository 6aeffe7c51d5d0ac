//! `raw/` on processors other than x86-64: instructions are neither looked for nor trapped, so the program may have
//! any.

use crate::{backend, signals};
use anyring_engine::identity;

/// Does not scan the process's code, so the program may change a thread's identity unseen.
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

/// Nothing is trapped with a ring either.
pub fn ring_made() {}

/// Nothing runs on a stack of ours.
pub fn leaving_by_jump() {}

/// See [`leaving_by_jump`].
pub fn record_alternate(_: &libc::stack_t) {}

/// False, as it is not known. A program that makes its rings by libc's `syscall()` and enters them by instructions
/// waits forever.
pub fn enters_unseen() -> bool {
    false
}
