//! `raw/` on processors other than x86-64: instructions are neither looked for nor trapped, so that any may be there.

use crate::{backend, signals};
use anyring_engine::identity;

/// The process's code is not looked through.
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
pub fn note_alternate(_: &libc::stack_t) {}

/// Not known: a program that makes its rings by libc's `syscall()` and enters them by instructions waits for good.
pub fn enters_unseen() -> bool {
    false
}
