//! A ring: its memory, what is in flight on it in this process, and who is at work on it.
//!
//! | part | guarded by |
//! |---|---|
//! | [`State`]: requests, poll set, timers, registered things | `state`, the lock that the kernel calls uring_lock |
//! | CQ tail, backlog, waiters' words | the post lock in [`control`], shared between processes |
//! | `arrived`: what workers bring back; `messages`; `notes` | each its own lock; drained by whoever holds `state` |
//! | `driver`, `sleeping` | atomics, see `wait::enter_wait` |
//!
//! `broken` says what a panic has done to the ring, see there.
//!
//! `Ring`s are never freed: one that has ended goes back to a pool, so that a thread which still holds a reference finds
//! a dead ring and not freed memory.

pub mod arrivals;
mod batch;
pub mod broken;
pub mod cq;
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
use crate::descriptors;
use crate::driver::Driver;
use crate::forced::{point, Point};
use crate::issue::{device, iopoll, msg_ring};
use crate::lock::{Held, Lock};
use crate::op::{Op, Verdict};
use crate::os::handlers;
use crate::resource::tag::Tagged;
use crate::ring::arrivals::Rest;
use crate::ring::poller::Poller;
use crate::shared::control::{self};
use crate::stats;
use crate::sync::{fence_after_swap, thread_pointer};
use crate::thread::tables;
use crate::wq;
use crate::wq::{Job, Origin};
use crate::Errno;
use anyring_abi::Cqe;
use arrivals::Arrivals;
use broken::{Health, LeftOver, Strike};
use core::ptr::NonNull;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use notes::{Due, Note};
pub(crate) use state::records_of;
pub use state::{Records, State};
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use wake::DueWake;

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
    /// Something that `settle` has to look at: results that the owner of a deferred ring has not been told of, or a panic
    /// in a thread that did not hold the ring.
    untold: AtomicBool,
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

/// What became ready of which a polling thread issues so much at a time (`IORING_TW_CAP_ENTRIES_VALUE` in io_uring/sqpoll.c).
const POLLER_SHARE: usize = 32;

/// Exclusive access to a ring's state. Dropping it issues what became ready, posts what is batched, and looks again for
/// results that arrived meanwhile.
pub struct RingGuard {
    ring: &'static Ring,
    /// The state inside `held`, so that the hot path need not look through two options.
    state: NonNull<State>,
    held: Option<Held<'static, Option<Box<State>>>>,
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
            arrived: Arrivals::new(),
            messages: Arrivals::new(),
            retired: Arrivals::new(),
            notes: Arrivals::new(),
            heeds: AtomicBool::new(false),
            left_alone: AtomicBool::new(false),
            holder: AtomicUsize::new(0),
            holder_id: AtomicU32::new(0),
            engine_end: AtomicI32::new(-1),
            mapped: AtomicUsize::new(0),
            driver: Driver::new(),
            untold: AtomicBool::new(false),
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
        while let Err(left) = self.arrived.put(jobs) {
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
        if self.messages.put([cqe].into_iter()).is_err() {
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
        // SeqCst: partner is the fence in RingGuard's drop, and the Acquire in `settle`.
        self.untold.swap(true, Ordering::SeqCst);
        fence_after_swap();
        drop(self.try_lock());
    }

    /// Whether results, tags or SQEs wait for the holder of the ring.
    #[inline]
    fn has_left_overs(&self) -> bool {
        // SQEs are owed to a signal handler that submitted while this thread held the ring, perhaps just before it let go.
        let owed = self.owed.load(Ordering::Relaxed) != 0;
        let arrived = self.arrived.any() && self.completes_here();
        let messages = self.messages.any() && !self.keeps_messages();
        arrived || messages || self.untold.load(Ordering::Relaxed) || self.retired.any() || owed
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
        self.arrived.any() | self.messages.any()
    }
}

impl Tagged for Ring {
    /// The tag is posted now, or by whoever holds the ring before letting go.
    fn retire(&'static self, tag: u64) {
        if self.retired.put([tag].into_iter()).is_err() {
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

impl RingGuard {
    /// What a new holder does first with a ring that is not whole: a forked child becomes a member of one that it
    /// inherited, and what a panic left is put in order.
    #[cold]
    fn in_order(mut self) -> Result<RingGuard, LockFailure> {
        if self.control.member == control::NO_MEMBER {
            if self.join().is_err() {
                self.held = None; // nothing was done that must be settled
                return Err(LockFailure::Crowded);
            }
            self.ring.health.join();
        }
        self.put_in_order();
        Ok(self)
    }

    /// The ring that is held.
    #[inline]
    pub fn ring(&self) -> &'static Ring {
        self.ring
    }

    /// Issues what became ready, or has the thread do it that polls the ring.
    pub fn issue_ready(&mut self) {
        if !self.serves_here() {
            return self.ring.nudge_poller();
        }
        // A polling thread goes on after it has let others have the lock.
        let mut left = if self.is_polled() { POLLER_SHARE } else { usize::MAX };
        // What is there goes together, as task work does, and what that makes ready behind it.
        let mut together = 0;
        let in_submission = self.queue.is_together(); // its first SQE has what happened before told
        while left != 0 {
            if together == 0 {
                self.end_together();
                together = self.queue.len();
                self.queue.begin_together();
            }
            let Some(id) = self.queue.pop() else { break };
            together -= 1;
            left -= 1;
            if self.poll_set.armed() != 0 {
                self.serve_before(id);
            }
            self.issue(id);
        }
        self.end_together();
        if in_submission {
            self.queue.begin_together();
        }
    }

    /// What has arrived and need not wait for anybody else. Messages go first: one that its sender sends next is not left,
    /// but posted behind them.
    #[cold]
    fn settle_arrived_here(&mut self) {
        if !self.ring.keeps_messages() {
            self.post_messages();
        }
        if self.ring.arrived.any() && self.ring.completes_here() {
            self.complete_arrived();
        }
    }

    #[cold]
    fn post_tags(&mut self) {
        for user_data in self.ring.retired.take() {
            self.post(Cqe { user_data, res: 0, flags: 0 }, true);
        }
    }

    /// What [`Ring::untold`] was set for.
    #[cold]
    fn attend(&mut self) {
        self.put_in_order();
        self.heed_notes();
        if !self.is_broken() && !self.is_abandoned() && self.ring.has_arrived() {
            iopoll::keep_transfers(self);
            if self.ring.has_arrived() {
                self.announce_work();
            }
        }
    }

    /// Issues what became ready and posts what is batched. Called before the lock is released.
    #[inline]
    pub fn settle(&mut self) {
        point(Point::Settle);
        if self.has_to_settle() {
            return self.settle_all();
        }
        self.flush();
    }

    /// Whether there is more to do than to post what is batched.
    #[inline(always)] // in each call, twice
    fn has_to_settle(&self) -> bool {
        let ring = self.ring;
        let brought = ring.has_arrived() | ring.retired.any() | ring.untold.load(Ordering::Relaxed);
        brought || !self.queue.is_empty() || self.device.has_to_submit() || self.submission.is_some()
    }

    #[inline(never)] // or who has nothing to settle pays for its registers
    fn settle_all(&mut self) {
        // Acquire: partner is the SeqCst of whoever sets it.
        if self.ring.untold.load(Ordering::Relaxed) && self.ring.untold.swap(false, Ordering::Acquire) {
            self.attend();
        }
        if self.ring.has_arrived() {
            self.settle_arrived_here();
        }
        if self.ring.retired.any() {
            self.post_tags();
        }
        loop {
            if !self.queue.is_empty() {
                self.issue_ready();
            }
            if !device::submit_staged(self) {
                break;
            }
        }
        if self.submission.is_some() {
            self.leave_submission();
        }
        self.flush();
    }
}

impl Deref for RingGuard {
    type Target = State;
    #[inline]
    fn deref(&self) -> &State {
        // SAFETY: `held` keeps the lock for as long as the guard can be used, and the box stays in place under it.
        unsafe { self.state.as_ref() }
    }
}

impl DerefMut for RingGuard {
    #[inline]
    fn deref_mut(&mut self) -> &mut State {
        // SAFETY: as in `deref`, and `&mut self` makes this the only reference made from the pointer.
        unsafe { self.state.as_mut() }
    }
}

impl Drop for RingGuard {
    #[inline]
    fn drop(&mut self) {
        // A panic that unwinds through here must not meet another: it only leaves a note for the next holder.
        if std::thread::panicking() {
            return self.ring.health.strike();
        }
        // For a panic in what follows, which does not come through here again.
        let struck = Strike(self.ring);
        self.let_go();
        struck.averted();
    }
}

impl RingGuard {
    /// Looks whether somebody joined, or left.
    #[inline]
    pub fn listen(&mut self) {
        if stats::stats().tracer.wanted.load(Ordering::Relaxed) != self.heard {
            record::hear(self);
        }
    }

    /// Whether a thread polls the ring: nobody else issues or completes its requests then.
    #[inline]
    pub fn is_polled(&self) -> bool {
        self.ring().polled_by.load(Ordering::Relaxed) != 0
    }

    /// Whether the calling thread may issue and complete requests.
    #[inline]
    pub fn serves_here(&self) -> bool {
        let thread = self.ring().polled_by.load(Ordering::Relaxed);
        thread == 0 || thread == crate::thread::id()
    }
}

impl RingGuard {
    /// Whether notes were left.
    #[inline]
    pub fn has_notes(&self) -> bool {
        self.ring.notes.any()
    }

    /// Acts on the notes that were left.
    #[inline]
    pub fn heed_notes(&mut self) {
        if self.has_notes() {
            self.act_on_notes();
        }
    }

    #[cold]
    fn act_on_notes(&mut self) {
        // Put down last: what a panic leaves here is back among the notes by then.
        let _heeding = notes::Heeding::begin(self.ring);
        let mut rest = Rest::take(&self.ring.notes);
        while let Some(note) = rest.things.pop_front() {
            match note {
                Note::Closed(fd, private) => self.detach_number(fd, Some(private)),
                Note::LostNumber(others) => self.lose_number(others),
                Note::End => self.due.add(Due::END),
                Note::Helper => self.due.add(Due::HELPER),
                Note::Poller => self.due.add(Due::POLLER),
                Note::File(job) => self.take_file(job),
                Note::Identity(claim) => self.keep_identity(Some(&claim)),
            }
        }
    }

    /// Makes the request of another ring that sends a file, unless it was cancelled. Its ring is told once this one is let go of.
    fn take_file(&mut self, job: Arc<Job>) {
        if !job.begin() {
            return;
        }
        let sent = job.op.lock().and_then(|op| match &*op {
            Op::MsgRing(message) => Some(msg_ring::hand_over(message, self)),
            _ => None,
        });
        handlers::without_locks(move || wq::conclude(job, Verdict::of(sent.unwrap_or(Err(Errno::INVAL)))));
    }

    /// A number of the ring's was closed: if that was the last copy the ring ends, once it is let go of; if not the helper
    /// watches for it.
    pub fn lose_number(&mut self, others: bool) {
        if descriptors::last_copy_gone(self.engine_end) || (!others && self.is_left_by_child()) {
            self.note_closed();
            self.due.add(Due::END);
        } else {
            self.note_orphan();
            self.call_helper_now();
        }
    }
}

impl RingGuard {
    /// Lets go of the ring, with all that somebody left for whoever does.
    pub fn let_go(&mut self) {
        while self.held.is_some() {
            self.settle();
            self.release();
        }
    }

    /// Lets go of a ring that was settled, and not touched since.
    #[inline(always)] // in each call
    pub fn leave(mut self) {
        // A panic is met by the drop of the guard.
        self.release();
        if self.held.is_some() {
            self.let_go();
        }
        core::mem::forget(self); // it holds nothing
    }

    /// Releases the lock, and takes it again if somebody has left something meanwhile.
    #[inline(always)] // in each call
    fn release(&mut self) {
        let due = self.take_due_wake();
        let later = self.due;
        if later != Due::NOTHING {
            self.due = Due::NOTHING;
        }
        let handlers_wait = self.held.take().map(Held::release);
        if due.is_some() || later != Due::NOTHING {
            self.act_released(due, later);
        }
        if let Some(held) = self.ring.state.lock_again_if(|| self.ring.has_left_overs()) {
            self.go_on_holding(held);
        }
        // A handler that jumps away has nothing behind it left undone.
        drop(handlers_wait);
    }

    /// What is to be done once the lock is released.
    #[cold]
    #[inline(never)]
    fn act_released(&mut self, due: Option<DueWake>, later: Due) {
        if let Some(due) = due {
            due.wake();
        }
        if later != Due::NOTHING {
            later.act(self.ring);
        }
    }

    /// The lock was taken again for what was left.
    #[cold]
    #[inline(never)]
    fn go_on_holding(&mut self, mut held: Held<'static, Option<Box<State>>>) {
        let Some(state) = held.as_deref_mut().map(NonNull::from) else { return };
        self.state = state;
        self.held = Some(held);
        self.put_in_order();
        let owed = self.ring.owed.swap(0, Ordering::Relaxed);
        if owed != 0 {
            self.submit_owed(owed);
        }
    }

    /// Takes the ring again after [`let_go`](Self::let_go), by a thread that is counted as using it: so it has not ended.
    pub fn take_again(&mut self) {
        let mut held = self.ring.state.lock().expect("this thread has let go of it");
        self.state = held.as_deref_mut().map(NonNull::from).expect("a ring that is in use does not end");
        self.held = Some(held);
        self.put_in_order();
    }

    /// Brings a job back that this very thread has done.
    pub fn bring_here(&mut self, job: Arc<Job>) {
        if self.ring.completes_here() {
            return self.receive(job);
        }
        // Where there is no memory to keep it, it is received early.
        if let Err(left) = self.ring.arrived.put([job].into_iter()) {
            return left.for_each(|job| self.receive(job));
        }
        self.ring.untold.store(true, Ordering::Relaxed); // for `settle`, which this thread comes to
    }
}
