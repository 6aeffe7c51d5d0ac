//! Whether threads of the process may differ in identity: credentials, and directory, root and umask.
//!
//! While none does, which is so in nearly every program, any thread may make a request, but for operations on names: see
//! `wq::creds`. A thread that is about to change its own identity, beside others, says so here first. From then on each
//! request that acts for its submitter is made by a thread with the identity of its submission.
//!
//! libc's setuid(3) and its like change all threads and make no difference between them. Source of what is a thread's own:
//! credentials(7), clone(2), unshare(2).

use crate::forced::{point, Point};
use crate::mutation::{mutated, Mutation};
use core::sync::atomic::{AtomicU32, Ordering};

/// Of [`CHANGED`], [`UNSEEN`] and [`KEPT`]. Relaxed: a thread that changes its identity sets it before that, and takes each ring's
/// lock afterwards; who has one of these locks later, and any thread that was told of the change, sees it set.
static DIFFER: AtomicU32 = AtomicU32::new(0);
/// A thread was about to change its own.
const CHANGED: u32 = 1;
/// An instruction of the program's may do so without anybody seeing it.
const UNSEEN: u32 = 2;
/// What was in flight then keeps the identity that all had: who comes before that, or again since a panic struck, sees to it, too.
const KEPT: u32 = 4;

/// How many changes were seen.
static CHANGES: AtomicU32 = AtomicU32::new(0);

/// System calls that change the identity of the calling thread alone.
pub const NUMBERS: [i64; 14] = [
    libc::SYS_setuid,
    libc::SYS_setgid,
    libc::SYS_setreuid,
    libc::SYS_setregid,
    libc::SYS_setresuid,
    libc::SYS_setresgid,
    libc::SYS_setfsuid,
    libc::SYS_setfsgid,
    libc::SYS_setgroups,
    libc::SYS_capset,
    libc::SYS_unshare,
    libc::SYS_setns,
    libc::SYS_keyctl,
    libc::SYS_landlock_restrict_self,
];

/// Whether two threads of the process may have different identities.
#[inline]
pub fn may_differ() -> bool {
    DIFFER.load(Ordering::Relaxed) != 0 && !mutated(Mutation::WorkersKeepTheirMakersRights)
}

/// How many changes of identity were seen so far.
pub fn changes() -> u32 {
    CHANGES.load(Ordering::Relaxed)
}

/// Whether system call `number`, one of [`NUMBERS`], with this first argument changes an identity.
pub fn may_be_changed_by(number: i64, argument: usize) -> bool {
    const KEYCTL_JOIN_SESSION_KEYRING: usize = 1;
    const NO_IDENTITY: i32 = libc::CLONE_FILES | libc::CLONE_SYSVSEM;
    match number {
        libc::SYS_unshare => argument as i32 & !NO_IDENTITY != 0,
        libc::SYS_keyctl => argument == KEYCTL_JOIN_SESSION_KEYRING,
        libc::SYS_setfsuid | libc::SYS_setfsgid => argument as u32 != u32::MAX, // that only asks
        _ => true,
    }
}

/// The calling thread is about to change its identity, beside others. `keep` has what is in flight keep the one that all have.
pub fn changing(keep: impl FnOnce()) {
    DIFFER.fetch_or(CHANGED, Ordering::Relaxed);
    point(Point::Identity);
    if DIFFER.load(Ordering::Relaxed) & KEPT == 0 {
        keep();
        DIFFER.fetch_or(KEPT, Ordering::Relaxed);
    }
    CHANGES.fetch_add(1, Ordering::Relaxed);
}

/// There is code that may change a thread's identity unseen.
pub fn may_change_unseen() {
    DIFFER.fetch_or(UNSEEN, Ordering::Relaxed);
}

/// In a forked child, which has one thread.
pub fn reset_after_fork() {
    DIFFER.fetch_and(UNSEEN, Ordering::Relaxed);
}
