//! Says whether threads of the process may differ in identity, which is their credentials, directory, root and umask.
//!
//! In nearly every program no thread differs. Then any thread may make a request, except for operations on paths: see
//! `wq::creds`. A thread that is about to change its own identity, while there are other threads, records that in
//! this module first. From then on a thread with the submitter's identity makes each request that acts for its
//! submitter.
//!
//! libc's setuid(3) and its like change all threads, so the threads stay equal. Source for the attributes of a single
//! thread: credentials(7), clone(2), unshare(2).

use crate::forced::{point, Point};
use crate::mutation::{mutated, Mutation};
use core::sync::atomic::{AtomicU32, Ordering};

/// A set of [`CHANGED`], [`UNSEEN`] and [`KEPT`]. Relaxed: a thread that changes its identity stores the bit first,
/// and takes each ring's lock afterwards. A later holder of such a lock reads the bit, and so does any thread that
/// learns of the change.
static DIFFER: AtomicU32 = AtomicU32::new(0);
/// Set once a thread was about to change its own identity.
const CHANGED: u32 = 1;
/// Set if one of the program's instructions may change an identity without the engine's notice.
const UNSEEN: u32 = 2;
/// Set once requests in flight at the first change keep the identity that all threads had. Until it is set, every
/// changing thread arranges that, and does so again after a panic.
const KEPT: u32 = 4;

/// Number of changes that the engine has noticed.
static CHANGES: AtomicU32 = AtomicU32::new(0);

/// System calls that change only the calling thread's identity.
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

/// True if two threads of the process may have different identities.
#[inline]
pub fn may_differ() -> bool {
    DIFFER.load(Ordering::Relaxed) != 0 && !mutated(Mutation::WorkersKeepTheirMakersRights)
}

/// Returns the number of changes of identity that the engine has noticed so far.
pub fn changes() -> u32 {
    CHANGES.load(Ordering::Relaxed)
}

/// True if system call `number`, one of [`NUMBERS`], may change an identity when `argument` is its first argument.
pub fn may_be_changed_by(number: i64, argument: usize) -> bool {
    const KEYCTL_JOIN_SESSION_KEYRING: usize = 1;
    const NO_IDENTITY: i32 = libc::CLONE_FILES | libc::CLONE_SYSVSEM;
    match number {
        libc::SYS_unshare => argument as i32 & !NO_IDENTITY != 0,
        libc::SYS_keyctl => argument == KEYCTL_JOIN_SESSION_KEYRING,
        libc::SYS_setfsuid | libc::SYS_setfsgid => argument as u32 != u32::MAX, // u32::MAX only asks for the present id
        _ => true,
    }
}

/// Records that the calling thread is about to change its identity, while there are other threads. `keep` makes
/// requests in flight keep the common identity.
pub fn changing(keep: impl FnOnce()) {
    DIFFER.fetch_or(CHANGED, Ordering::Relaxed);
    point(Point::Identity);
    if !is_kept() {
        keep();
        DIFFER.fetch_or(KEPT, Ordering::Relaxed);
    }
    count_change();
}

/// True once requests in flight at the first change keep their identity. Each further change is only counted.
pub fn is_kept() -> bool {
    DIFFER.load(Ordering::Relaxed) & KEPT != 0
}

/// Counts a change of the calling thread's identity, which it is about to make.
pub fn count_change() {
    CHANGES.fetch_add(1, Ordering::Relaxed);
}

/// Records that some code may change a thread's identity without the engine's notice.
pub fn may_change_unseen() {
    DIFFER.fetch_or(UNSEEN, Ordering::Relaxed);
}

/// Resets the state in a forked child, which has one thread.
pub fn reset_after_fork() {
    DIFFER.fetch_and(UNSEEN, Ordering::Relaxed);
}
