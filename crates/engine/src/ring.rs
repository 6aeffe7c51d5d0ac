//! A ring: its memory, what is in flight on it in this process, and who is at work on it.
//!
//! | part | guarded by |
//! |---|---|
//! | [`State`]: requests, poll set, timers, registered things | `state`, the lock that the kernel calls uring_lock |
//! | CQ tail, backlog, waiters' words | the post lock in [`control`](crate::shared::control), shared between processes |
//! | `arrived`: what workers bring back; `messages`; `notes` | each its own lock; drained by whoever holds `state` |
//! | `driver`, `sleeping` | atomics, see `wait::enter_wait` |
//!
//! `broken` says what a panic has done to the ring, see there.
//!
//! `Ring`s are never freed: one that has ended goes back to a pool, so that a thread which still holds a reference finds
//! a dead ring and not freed memory.

pub mod arrivals;
pub mod batch;
pub mod broken;
pub mod cq;
mod guard;
pub(crate) mod helper;
mod life;
pub mod notes;
pub(crate) mod poller;
mod record;
pub(crate) mod recorder;
pub(crate) mod resize;
pub mod sleeps;
mod spill;
pub mod sq;
mod state;
pub mod table;
#[cfg(test)]
mod tests;
pub(crate) mod wake;

use crate::alloc;
use crate::driver::Driver;
use crate::forced::{point, Point};
use crate::lock::{Held, Lock};
use crate::resource::tag::Tagged;
use crate::ring::poller::Poller;
use crate::sync::thread_pointer;
use crate::thread::tables;
use crate::wq::{Job, Origin};
use crate::Errno;
use anyring_abi::Cqe;
use arrivals::{Arrivals, Left};
use broken::{Health, LeftOver};
use core::ptr::NonNull;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, AtomicUsize, Ordering};
pub use guard::RingGuard;
use notes::Note;
pub(crate) use state::records_of;
pub use state::{Records, State};
use std::sync::Arc;

/// One ring.
pub struct Ring {
    /// The number the program knows it by; -1 when the ring has ended. Changes under `state` only.
    pub fd: AtomicI32,
    /// How many numbers of the ring are in the process's table.
    pub numbers: AtomicU32,
    /// `SO_COOKIE` of the program's end: recognises it under a number that is a duplicate or may have been reused.
    pub cookie: AtomicU64,
    /// `IORING_SETUP_*`; R_DISABLED goes when the ring is enabled, the others stay.
    pub flags: AtomicU32,
    state: Lock<Option<Box<State>>>,
    /// What is left for whoever holds it.
    pub left: Left,
    /// What workers bring back.
    pub arrived: Arrivals<Arc<Job>>,
    /// CQEs that other rings sent (`IORING_OP_MSG_RING`) while somebody held this one, or that wait for its owner.
    pub messages: Arrivals<Cqe>,
    /// Tags of resources that nobody uses any more, to be posted by whoever holds `state` next.
    retired: Arrivals<u64>,
    /// What others want of the ring who do not wait for its holder.
    notes: Arrivals<Note>,
    /// Its holder acts on notes that it has taken from there.
    heeds: AtomicBool,
    /// Somebody whose note nobody has acted on found the holder asleep: others need not wait for it, too.
    left_alone: AtomicBool,
    /// The last holder's thread pointer and thread id. Both change under `state`.
    holder: AtomicUsize,
    holder_id: AtomicU32,
    /// The engine's end of the descriptor, as in the state.
    pub engine_end: AtomicI32,
    /// Where its memory is mapped, as in the state; 0 for nowhere.
    pub mapped: AtomicUsize,
    /// Who polls and fires timers, and how whoever waits sleeps.
    pub driver: Driver,
    /// There was no memory for the CQE of some tag, and the program has not been told. Relaxed: it says nothing of anything else.
    pub dropped: AtomicBool,
    /// SQEs that a signal handler submitted while the interrupted thread held the ring.
    pub owed: AtomicU32,
    /// The thread that polls the ring (`anyring_abi::IORING_SETUP_SQPOLL`).
    pub poller: Lock<Option<Arc<Poller>>>,
    /// That thread's id, 0 for a ring that nobody polls.
    pub polled_by: AtomicU32,
    /// A signal handler asked for that thread to be woken while the interrupted code was looking it up.
    pub wake_owed: AtomicBool,
    /// The process got the ring by a fork.
    inherited: AtomicBool,
    /// Whose table of descriptors has the ring's: [`thread::tables`](crate::thread::tables).
    pub table: AtomicU32,
    /// The program keeps the ring's memory from forked children, and so does the engine with its own of it.
    pub kept_from_children: AtomicBool,
    /// A request of some ring polls this one's descriptor. Set without this ring's lock, seen at its next post.
    pub polled_by_ring: AtomicBool,
    /// Requests that a panic met on their way to a place or a CQE.
    unanswered: Lock<Vec<LeftOver>>,
    /// Whether a panic struck the ring, and its requests have been ended: [`broken`].
    health: Health,
    /// Threads asleep on something of this ring, or in a call for it, outside the lock. Goes up under the lock.
    pub sleepers: AtomicU32,
    /// Those in a call: nobody of them takes over anything.
    pub callers: AtomicU32,
}

/// Why a ring could not be locked.
#[derive(Debug, PartialEq, Eq)]
pub enum LockFailure {
    /// The calling thread holds it already: a signal handler interrupted the engine.
    Reentry,
    /// Somebody keeps it, and the caller does not wait.
    Busy,
    /// The ring has ended.
    Ended,
    /// The process inherited the ring, and as many others use it as can.
    Crowded,
}

/// What a system call on the ring answers then.
impl From<LockFailure> for Errno {
    fn from(failure: LockFailure) -> Errno {
        match failure {
            LockFailure::Reentry | LockFailure::Busy => Errno::INTR,
            LockFailure::Ended => Errno::BADF,
            LockFailure::Crowded => Errno::NOMEM,
        }
    }
}

impl Ring {
    /// In [`fd`](Self::fd): a ring that has no descriptor. No number is this high.
    pub const NO_NUMBER: i32 = i32::MAX;

    /// A ring that does not exist yet, for the pool.
    pub fn unborn() -> Ring {
        Ring {
            fd: AtomicI32::new(-1),
            numbers: AtomicU32::new(0),
            cookie: AtomicU64::new(0),
            flags: AtomicU32::new(0),
            state: Lock::new(None),
            left: Left::new(),
            arrived: Arrivals::new(Left::RESULTS),
            messages: Arrivals::new(Left::MESSAGES),
            retired: Arrivals::new(Left::TAGS),
            notes: Arrivals::new(Left::NOTES),
            heeds: AtomicBool::new(false),
            left_alone: AtomicBool::new(false),
            holder: AtomicUsize::new(0),
            holder_id: AtomicU32::new(0),
            engine_end: AtomicI32::new(-1),
            mapped: AtomicUsize::new(0),
            driver: Driver::new(),
            dropped: AtomicBool::new(false),
            owed: AtomicU32::new(0),
            poller: Lock::new(None),
            polled_by: AtomicU32::new(0),
            wake_owed: AtomicBool::new(false),
            inherited: AtomicBool::new(false),
            table: AtomicU32::new(tables::FIRST),
            kept_from_children: AtomicBool::new(false),
            polled_by_ring: AtomicBool::new(false),
            unanswered: Lock::new(Vec::new()),
            health: Health::new(),
            sleepers: AtomicU32::new(0),
            callers: AtomicU32::new(0),
        }
    }

    /// Whether the calling thread has the table of descriptors that the ring's are in.
    #[inline]
    pub fn is_of_my_table(&self) -> bool {
        self.table.load(Ordering::Relaxed) == tables::mine()
    }

    /// Waits for the ring's state.
    #[inline(always)] // it is in every call's way
    pub fn lock(&'static self) -> Result<RingGuard, LockFailure> {
        self.guard(self.state.lock().ok_or(LockFailure::Reentry)?)
    }

    #[inline(always)]
    fn guard(&'static self, mut held: Held<'static, Option<Box<State>>>) -> Result<RingGuard, LockFailure> {
        let state = held.as_deref_mut().map(NonNull::from).ok_or(LockFailure::Ended)?;
        if self.holder.load(Ordering::Relaxed) != thread_pointer() {
            self.note_holder();
        }
        let guard = RingGuard { ring: self, state, held: Some(held) };
        if !self.health.is_whole() {
            return guard.in_order();
        }
        Ok(guard)
    }

    /// The ring's state if nobody has it now.
    #[inline]
    pub fn try_lock(&'static self) -> Option<RingGuard> {
        self.guard(self.state.try_lock()?).ok()
    }

    /// Whether somebody may sleep until the ring's lock, which is held, is free.
    pub fn is_contended(&self) -> bool {
        self.state.is_contended()
    }

    /// Whether the calling thread is inside the ring's lock.
    pub fn held_by_me(&self) -> bool {
        self.state.held_by_me()
    }

    /// Whether a `IORING_SETUP_*` flag was given.
    #[inline]
    pub fn has(&self, flag: u32) -> bool {
        self.flags.load(Ordering::Relaxed) & flag != 0
    }

    /// Brings finished jobs back. The worker itself completes them, unless somebody holds the ring (who will look before
    /// letting go) or completions wait for the program to ask for them (`IORING_SETUP_DEFER_TASKRUN`).
    fn receive_all(&'static self, jobs: Vec<Arc<Job>>) {
        // A worker does not interrupt itself: where there is no room, whoever holds the ring makes some.
        let mut jobs = jobs.into_iter();
        while let Err(left) = self.arrived.put(&self.left, jobs) {
            jobs = left;
            alloc::wait();
        }
        if self.defers() {
            self.signal_deferred();
        } else if !self.completes_here() {
            self.nudge_poller();
        } else {
            drop(self.try_lock());
        }
        // Relaxed: -1 is seen at the latest by whoever closed the ring, after the job is back.
        if self.fd.load(Ordering::Relaxed) < 0 {
            table::end_if_unused(self);
        }
    }

    /// Leaves a message for whoever holds the ring, or for its owner. False in a signal handler that interrupted another
    /// call of this in the same thread.
    #[must_use]
    pub fn leave_message(&'static self, cqe: Cqe) -> bool {
        if self.messages.put(&self.left, [cqe].into_iter()).is_err() {
            return false;
        }
        match self.keeps_messages() {
            true => self.signal_deferred(),
            false => drop(self.try_lock()),
        }
        true
    }

    /// Whether messages wait for the ring's owner to ask for them. A polled ring's CQ is anybody's to post to
    /// (`io_msg_need_remote` in io_uring/msg_ring.c).
    #[inline]
    pub fn keeps_messages(&self) -> bool {
        self.defers() && !self.has(anyring_abi::IORING_SETUP_IOPOLL)
    }

    /// Work has arrived for a ring whose owner must collect it: set the flag, wake the owner. If somebody holds the ring,
    /// that one does it before letting go: two rings are never locked in turn.
    #[cold]
    fn signal_deferred(&'static self) {
        self.left.set(Left::UNTOLD);
        drop(self.try_lock());
    }

    /// Whether results, tags or SQEs wait for the holder of the ring.
    #[inline]
    fn has_left_overs(&self) -> bool {
        self.left.any(!Left::NOTES) && self.has_left_overs_for_holder()
    }

    #[inline(never)] // seldom, and each call would pay for its registers
    fn has_left_overs_for_holder(&self) -> bool {
        // SQEs are owed to a signal handler that submitted while this thread held the ring, perhaps just before it let go.
        let for_anybody = self.left.any(Left::TAGS | Left::UNTOLD | Left::OWED);
        let results = self.left.any(Left::RESULTS) && self.completes_here();
        for_anybody || results || (self.left.any(Left::MESSAGES) && !self.keeps_messages())
    }

    /// Whether the calling thread may complete what workers brought back.
    #[inline(never)] // else the place of the thread's id is found before each look at what arrived
    pub fn completes_here(&self) -> bool {
        let polled_by = self.polled_by.load(Ordering::Relaxed);
        let polled_elsewhere = polled_by != 0 && polled_by != crate::thread::id();
        // The thread that polls an inherited ring is the parent's: it sees nothing of what arrives in the child.
        !self.defers() && (!polled_elsewhere || self.inherited.load(Ordering::Relaxed))
    }

    /// Whether completions wait for the ring's owner to ask for them. The owner is a thread of the process that made the
    /// ring: what reaches the ring in a forked child (a message) is posted there.
    #[inline]
    pub fn defers(&self) -> bool {
        self.has(anyring_abi::IORING_SETUP_DEFER_TASKRUN) && !self.inherited.load(Ordering::Relaxed)
    }

    /// Whether results wait to be completed, or messages to be posted.
    #[inline]
    pub fn has_arrived(&self) -> bool {
        self.left.any(Left::RESULTS | Left::MESSAGES)
    }
}

impl Tagged for Ring {
    /// The tag is posted now, or by whoever holds the ring before letting go.
    fn retire(&'static self, tag: u64) {
        if self.retired.put(&self.left, [tag].into_iter()).is_err() {
            self.dropped.store(true, Ordering::Relaxed);
        }
        // While a panic unwinds no guard is made: its drop could not tell that it is not the one that was struck.
        if !std::thread::panicking() {
            drop(self.try_lock());
        }
    }
}

impl Origin for Ring {
    fn deliver(&'static self, jobs: Vec<Arc<Job>>) {
        broken::contain(
            || Some(self),
            || {
                point(Point::WorkerAfter);
                self.receive_all(jobs);
            },
        );
    }

    fn strike(&'static self) {
        broken::after_panic(|| Some(self));
    }

    fn submits_singly(&self) -> bool {
        self.fd.load(Ordering::Relaxed) == Ring::NO_NUMBER
    }
}
