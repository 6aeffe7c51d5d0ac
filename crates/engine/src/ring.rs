//! A ring: its memory, its requests in flight in this process, and the threads that work on it.
//!
//! | part | guarded by |
//! |---|---|
//! | [`State`]: requests, poll set, timers, registered files and buffers | the lock `state` (the kernel's uring_lock) |
//! | CQ tail, backlog, waiters' words | the post lock in [`control`](crate::shared::control), shared by processes |
//! | `arrived` (results of workers), `messages`, `retired` (tags), `holder_work` | a lock each |
//! | `driver`, `sleeping` | atomics, see `wait::enter_wait` |
//!
//! The holder of `state` empties `arrived`, `messages`, `retired` and `holder_work`. A panic breaks a ring: [`broken`]
//! describes what follows.
//!
//! A `Ring` is never freed: an ended ring goes back to a pool. So a stale reference points to an ended ring, never to
//! freed memory.

pub mod arrivals;
pub mod batch;
pub mod broken;
pub mod cq;
mod guard;
pub(crate) mod helper;
pub mod holder_work;
mod life;
pub(crate) mod poller;
pub(crate) mod record;
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
use holder_work::HolderWork;
pub(crate) use state::records_of;
pub use state::{Records, State};
use std::sync::Arc;

/// One ring.
pub struct Ring {
    /// The ring's descriptor number in the program; -1 once the ring has ended. Changes under `state` only.
    pub fd: AtomicI32,
    /// Number of entries in the process's table of descriptors that belong to this ring.
    pub numbers: AtomicU32,
    /// `SO_COOKIE` of the program's end. It identifies the ring under a duplicate's number, or under a number that may
    /// have been reused.
    pub cookie: AtomicU64,
    /// `IORING_SETUP_*`. R_DISABLED is cleared when the ring is enabled, DEFER_TASKRUN when a panic has broken the
    /// ring.
    pub flags: AtomicU32,
    state: Lock<Option<Box<State>>>,
    /// The kinds of work left for the holder of `state`.
    pub left: Left,
    /// Jobs that workers have finished.
    pub arrived: Arrivals<Arc<Job>>,
    /// CQEs that other rings sent (`IORING_OP_MSG_RING`) while this ring was held, or that are kept for its owner.
    pub messages: Arrivals<Cqe>,
    /// Tags of resources that are no longer in use. The next holder of `state` posts them.
    retired: Arrivals<u64>,
    /// Work left by threads that do not wait for the ring's holder.
    holder_work: Arrivals<HolderWork>,
    /// True while the holder does the holder work that it has taken.
    holder_work_runs: AtomicBool,
    /// A thread has found the holder asleep with holder work left. Other threads then need not wait for the holder,
    /// either.
    close_gave_up: AtomicBool,
    /// The last holder's thread pointer and thread id. Both change only under `state`.
    holder: AtomicUsize,
    holder_id: AtomicU32,
    /// The engine's end of the descriptor, a copy of the field in the state.
    pub engine_end: AtomicI32,
    /// The address at which the ring's memory is mapped, a copy of that in the state. 0 if it is not mapped.
    pub mapped: AtomicUsize,
    /// The thread that polls and fires timers, and the way in which waiters sleep.
    pub driver: Driver,
    /// There was no memory to queue a tag's CQE: the next io_uring_enter(2) that waits fails with EBADR. Relaxed, since
    /// it orders no other memory.
    pub dropped: AtomicBool,
    /// SQEs that a signal handler submitted while the interrupted thread held the ring.
    pub owed: AtomicU32,
    /// The thread that polls the ring (`anyring_abi::IORING_SETUP_SQPOLL`).
    pub poller: Lock<Option<Arc<Poller>>>,
    /// The polling thread's id; 0 for a ring without one.
    pub polled_by: AtomicU32,
    /// A signal handler wanted to wake that thread while the interrupted code was looking it up.
    pub wake_owed: AtomicBool,
    /// The process has inherited the ring by a fork.
    inherited: AtomicBool,
    /// The table of descriptors that has the ring's number: [`thread::tables`](crate::thread::tables).
    pub table: AtomicU32,
    /// The program keeps the ring's memory from forked children. The engine then does the same with its own memory for
    /// the ring.
    pub kept_from_children: AtomicBool,
    /// The number of a ring whose request polls this ring's descriptor; -1 for none. Set without this ring's lock; this
    /// ring's next post checks it.
    pub polled_by_ring: AtomicI32,
    /// Requests that a panic interrupted before they got a slot or a CQE.
    uncompleted: Lock<Vec<LeftOver>>,
    /// The damage by a panic, and whether the ring's requests have been ended since: see [`broken`].
    health: Health,
    /// Threads that sleep on something of this ring, or are in a call for it, without the lock. Incremented under the
    /// lock.
    pub sleepers: AtomicU32,
    /// Those of the `sleepers` that are in a call: they take over no role.
    pub callers: AtomicU32,
}

/// The reason why a ring could not be locked.
#[derive(Debug, PartialEq, Eq)]
pub enum LockFailure {
    /// The calling thread already holds the ring: a signal handler interrupted the engine.
    Reentry,
    /// Another thread holds the ring, and the caller does not wait.
    Busy,
    /// The ring has ended.
    Ended,
    /// The process inherited the ring, which has no room for another member.
    Crowded,
}

/// The error that a system call on the ring returns for each failure.
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
    /// The value of [`fd`](Self::fd) for a ring that has no descriptor. No descriptor has this number.
    pub const NO_NUMBER: i32 = i32::MAX;

    /// Makes a ring without a state, for the pool.
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
            holder_work: Arrivals::new(Left::HOLDER_WORK),
            holder_work_runs: AtomicBool::new(false),
            close_gave_up: AtomicBool::new(false),
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
            polled_by_ring: AtomicI32::new(-1),
            uncompleted: Lock::new(Vec::new()),
            health: Health::new(),
            sleepers: AtomicU32::new(0),
            callers: AtomicU32::new(0),
        }
    }

    /// True if the calling thread uses the table of descriptors that has the ring's number.
    #[inline]
    pub fn is_of_my_table(&self) -> bool {
        self.table.load(Ordering::Relaxed) == tables::mine()
    }

    /// Waits for the ring's lock and returns its state.
    #[inline(always)] // each call goes through it
    pub fn lock(&'static self) -> Result<RingGuard, LockFailure> {
        self.guard(self.state.lock().ok_or(LockFailure::Reentry)?)
    }

    #[inline(always)]
    fn guard(&'static self, mut held: Held<'static, Option<Box<State>>>) -> Result<RingGuard, LockFailure> {
        let state = held.as_deref_mut().ok_or(LockFailure::Ended)?;
        if self.holder.load(Ordering::Relaxed) != thread_pointer() {
            self.record_holder();
            state.holder_has_context = false;
        }
        let state = NonNull::from(state);
        let guard = RingGuard { ring: self, state, held: Some(held) };
        if !self.health.is_whole() {
            return guard.in_order();
        }
        Ok(guard)
    }

    /// Returns the ring's state if its lock is free now.
    #[inline]
    pub fn try_lock(&'static self) -> Option<RingGuard> {
        self.guard(self.state.try_lock()?).ok()
    }

    /// True if a thread may be asleep on the ring's lock, which is held.
    pub fn is_contended(&self) -> bool {
        self.state.is_contended()
    }

    /// True if the calling thread holds the ring's lock.
    pub fn held_by_me(&self) -> bool {
        self.state.held_by_me()
    }

    /// True if the ring has this `IORING_SETUP_*` flag.
    #[inline]
    pub fn has(&self, flag: u32) -> bool {
        self.flags.load(Ordering::Relaxed) & flag != 0
    }

    /// Brings finished jobs back. The worker completes them itself, with two exceptions. If another thread holds the
    /// ring, that thread finds them after it releases the lock. With `IORING_SETUP_DEFER_TASKRUN` the program must ask
    /// for them.
    fn receive_all(&'static self, jobs: Vec<Arc<Job>>) {
        // This worker must not give up: if memory is short, it waits until the holder of the ring frees some.
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
        // Relaxed: the thread that closed the ring reads the -1, at the latest after the job is back.
        if self.fd.load(Ordering::Relaxed) < 0 {
            table::end_if_unused(self);
        }
    }

    /// Leaves a message for the ring's holder, or for its owner. False if there is no memory, or in a signal handler
    /// that interrupted this function in the same thread.
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

    /// True if messages wait until the ring's owner asks for them. On an IOPOLL ring any thread may post to the CQ
    /// (`io_msg_need_remote` in io_uring/msg_ring.c).
    #[inline]
    pub fn keeps_messages(&self) -> bool {
        self.defers() && !self.has(anyring_abi::IORING_SETUP_IOPOLL)
    }

    /// Announces work that the ring's owner must collect: sets the flag and wakes the owner. If another thread holds
    /// the ring, that thread announces the work before it releases the lock. Two rings are never locked in turn.
    #[cold]
    fn signal_deferred(&'static self) {
        self.left.set(Left::UNANNOUNCED);
        drop(self.try_lock());
    }

    /// True if work is left for the holder of the ring. It may be results of workers, messages, tags, SQEs that a signal
    /// handler submitted, or a wake-up for deferred work.
    #[inline]
    fn has_left_overs(&self) -> bool {
        self.left.any(!Left::HOLDER_WORK) && self.has_left_overs_for_holder()
    }

    #[inline(never)] // rare, and inlined it would cost every call registers
    fn has_left_overs_for_holder(&self) -> bool {
        // SQEs are owed if a signal handler submitted while this thread held the ring, perhaps just before the release.
        let for_anybody = self.left.any(Left::TAGS | Left::UNANNOUNCED | Left::OWED);
        let results = self.left.any(Left::RESULTS) && self.completes_here();
        for_anybody || results || (self.left.any(Left::MESSAGES) && !self.keeps_messages())
    }

    /// True if the calling thread may complete results of workers.
    #[inline(never)] // otherwise the thread id's address is computed before each check of what arrived
    pub fn completes_here(&self) -> bool {
        let polled_by = self.polled_by.load(Ordering::Relaxed);
        let polled_elsewhere = polled_by != 0 && polled_by != crate::thread::id();
        // An inherited ring's polling thread belongs to the parent: it does not notice what arrives in the child.
        !self.defers() && (!polled_elsewhere || self.inherited.load(Ordering::Relaxed))
    }

    /// True if completions wait until the ring's owner asks for them. The owner is a thread of the process that made
    /// the ring. In a forked child, a message to the ring is posted at once.
    #[inline]
    pub fn defers(&self) -> bool {
        self.has(anyring_abi::IORING_SETUP_DEFER_TASKRUN) && !self.inherited.load(Ordering::Relaxed)
    }

    /// True if results wait to be completed, or messages wait to be posted.
    #[inline]
    pub fn has_arrived(&self) -> bool {
        self.left.any(Left::RESULTS | Left::MESSAGES)
    }
}

impl Tagged for Ring {
    /// Posts the tag at once, or leaves it to the holder of the ring, which posts it before it releases the lock.
    fn retire(&'static self, tag: u64) {
        if self.retired.put(&self.left, [tag].into_iter()).is_err() {
            self.dropped.store(true, Ordering::Relaxed);
        }
        // No guard is made while a panic unwinds: the guard's drop would take that panic for one that hit its own ring.
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

    fn mark_panicked(&'static self) {
        broken::after_panic(|| Some(self));
    }

    fn submits_singly(&self) -> bool {
        self.fd.load(Ordering::Relaxed) == Ring::NO_NUMBER
    }
}
