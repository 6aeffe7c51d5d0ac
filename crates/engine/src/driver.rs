//! The driver: the thread that drives a ring, and how it sleeps.
//!
//! The words of this module say which thread *sleeps* on the ring's poll set. Any thread may poll it and handle its
//! events, under the ring's lock. So handing the role over loses nothing at any moment, since an event is only a hint
//! to try again.

pub mod owner;
pub mod spin;

use crate::mutation::{mutated, Mutation};
use crate::os::{shares_memory_with, syscall, Os, Sys};
use crate::shared::control::Control;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, Ordering};
use owner::Handover;

/// Set once another process may run in this memory. Such a process may drive, and may be killed. Relaxed: set before
/// the first of them runs.
static STRANGERS: AtomicBool = AtomicBool::new(false);

/// Records that another process is about to run in this memory.
pub fn mark_memory_shared() {
    STRANGERS.store(true, Ordering::Relaxed);
}

/// True if another process ever ran in this memory.
pub(crate) fn may_be_killed() -> bool {
    STRANGERS.load(Ordering::Relaxed)
}

pub(crate) const AWAKE: u32 = 0;

pub(crate) const IN_FUTEX: u32 = 1;

pub(crate) const IN_EPOLL: u32 = 2;

/// The driver of a ring, and how it sleeps.
pub struct Driver {
    /// Says who drives, a thread or the helper, and hands the role over.
    pub handover: Handover,
    /// How the driving thread sleeps. Written under the ring's lock. Read under this lock, and by `wake` after a post.
    pub(crate) sleeping: AtomicU32,
    /// The descriptor that ends the driving thread's epoll wait.
    pub(crate) kick: AtomicI32,
    announced: AtomicBool,
}

impl Driver {
    /// Makes a driver state in which no thread drives.
    #[allow(clippy::new_without_default)] // `Ring` makes the only ones
    pub fn new() -> Driver {
        Driver {
            handover: Handover::new(),
            sleeping: AtomicU32::new(AWAKE),
            kick: AtomicI32::new(-1),
            announced: AtomicBool::new(false),
        }
    }

    /// True if the owner of a deferred ring was notified of work and has not called io_uring_enter(2) since.
    pub fn is_announced(&self) -> bool {
        self.announced.load(Ordering::Relaxed)
    }

    /// Sets whether the owner was notified and has not called io_uring_enter(2) since.
    pub fn set_announced(&self, announced: bool) {
        self.announced.store(announced, Ordering::Relaxed);
    }

    /// Resets the state in a forked child, where the parent's threads do not exist.
    pub fn reset(&self) {
        self.handover.reset();
        self.sleeping.store(AWAKE, Ordering::Relaxed);
        self.announced.store(false, Ordering::Relaxed);
    }

    /// Takes the role from a driver that was killed, since it no longer runs in this memory. If the kernel cannot tell,
    /// the driver may still live. It then notices the loss, as it does when a signal handler has taken the role.
    pub(crate) fn bury(&self) -> bool {
        let dead = self.handover.thread().filter(|thread| may_be_killed() && !shares_memory_with(*thread));
        dead.inspect(|thread| self.handover.give_back_if_mine(*thread)).is_some()
    }

    /// Wakes all threads that sleep on the ring. The futex word must have been changed under the post lock. True if a
    /// thread of this process sleeps in an epoll wait on the ring.
    #[cold]
    pub fn wake(&self, control: &Control) -> bool {
        let header = control.header();
        let in_epoll = self.wake_from_epoll();
        if header.waiters.in_futex.load(Ordering::Relaxed) != 0 {
            Sys::futex_wake(&header.waiters.sequence, i32::MAX as u32);
        }
        in_epoll
    }

    /// True if a thread that drives the ring sleeps.
    pub(crate) fn sleeps(&self) -> bool {
        self.sleeping.load(Ordering::Relaxed) != AWAKE
    }

    /// Wakes the thread of this process that sleeps in an epoll wait on the ring. False if none does.
    #[cold]
    pub fn wake_from_epoll(&self) -> bool {
        let in_epoll = self.sleeping.load(Ordering::Relaxed) == IN_EPOLL;
        if in_epoll && !mutated(Mutation::SleeperIsNotKicked) {
            let one = 1u64;
            let kick = self.kick.load(Ordering::Relaxed) as usize;
            syscall(libc::SYS_write, [kick, &one as *const u64 as usize, 8, 0, 0, 0]);
        }
        in_epoll
    }
}
