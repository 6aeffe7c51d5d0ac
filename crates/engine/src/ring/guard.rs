//! A held ring: what its holder does before it releases the ring.

use super::arrivals::{Left, Rest};
use super::broken::PanicMark;
use super::holder_work::{self, AfterRelease, HolderWork};
use super::wake::PendingWake;
use super::{record, LockFailure, Ring, State};
use crate::descriptors::ends;
use crate::forced::{point, Point};
use crate::issue::{device, iopoll, msg_ring};
use crate::lock::Held;
use crate::op::{Op, Verdict};
use crate::os::handlers;
use crate::ring::batch::Poster;
use crate::shared::control;
use crate::wq::{self, Job};
use crate::{stats, Errno};
use anyring_abi::Cqe;
use core::ptr::NonNull;
use core::sync::atomic::Ordering;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

/// The most ready requests that a polling thread issues in one turn (`IORING_TW_CAP_ENTRIES_VALUE` in
/// io_uring/sqpoll.c).
const POLLER_SHARE: usize = 32;

/// Exclusive access to a ring's state. Dropping the guard issues ready requests and posts the batch. It then checks for
/// results that arrived while the lock was held.
pub struct RingGuard {
    pub(super) ring: &'static Ring,
    /// A pointer to the state inside `held`, so that the hot path does not check two options.
    pub(super) state: NonNull<State>,
    pub(super) held: Option<Held<'static, Option<Box<State>>>>,
}

impl RingGuard {
    /// Repairs a ring that is not whole, for a new holder. In a forked child, the process becomes a member of the
    /// inherited ring. If a panic has hit the ring, its requests are ended.
    #[cold]
    pub(super) fn in_order(mut self) -> Result<RingGuard, LockFailure> {
        if self.control.member == control::NO_MEMBER {
            if self.join().is_err() {
                self.held = None; // the guard has done nothing that must be settled
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

    /// Issues ready requests, or leaves that to the thread that polls the ring.
    pub fn issue_ready(&mut self) {
        if !self.may_issue_here() {
            return self.ring.nudge_poller();
        }
        // A polling thread continues after it has released the lock to others.
        let mut left = if self.is_polled() { POLLER_SHARE } else { usize::MAX };
        // Issues the present queue as one group, like one run of task work. Requests that become ready while the group
        // is issued form the next group.
        let mut together = 0;
        let in_submission = self.queue.is_together(); // restored below: `catch_up` may call this in a submission
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
                self.handle_events_before(id);
            }
            self.issue(id);
        }
        self.end_together();
        if in_submission {
            self.queue.begin_together();
        }
    }

    /// Processes arrivals that need not wait for another thread. Messages go first: a message sent after them is posted
    /// directly, and must come later.
    #[cold]
    fn handle_arrived(&mut self) {
        if !self.ring.keeps_messages() {
            self.post_messages();
        }
        if self.ring.left.any(Left::RESULTS) && self.ring.completes_here() {
            self.complete_arrived();
        }
    }

    /// Posts the tags of resources that nobody uses any more. A request that takes a file out of its slot calls this, so
    /// that the tag comes before the request's own CQE (`io_post_aux_cqe`).
    #[cold]
    pub(crate) fn post_tags(&mut self) {
        for user_data in self.ring.retired.take(&self.ring.left) {
            self.post(Cqe { user_data, res: 0, flags: 0 }, Poster::Each);
        }
    }

    /// Handles the events that set [`Left::UNANNOUNCED`]: a panic elsewhere, holder work, or results to announce to the
    /// owner.
    #[cold]
    fn handle_unannounced(&mut self) {
        self.put_in_order();
        self.run_holder_work();
        if !self.is_broken() && !self.is_abandoned() && self.ring.has_arrived() {
            iopoll::keep_transfers(self);
            if self.ring.has_arrived() {
                self.announce_work();
            }
        }
    }

    /// Issues ready requests and posts the batch. Called before the lock is released.
    #[inline]
    pub fn finish_batch(&mut self) {
        point(Point::FinishBatch);
        if self.has_more_than_batch() {
            return self.finish_batch_slowly();
        }
        self.flush();
    }

    /// True if there is more to do before the release than to post the batch.
    #[inline(always)] // in each call, twice
    fn has_more_than_batch(&self) -> bool {
        self.ring.left.any(!(Left::HOLDER_WORK | Left::OWED))
            || !self.queue.is_empty()
            || self.device.has_to_submit()
            || self.submission.is_some()
    }

    #[inline(never)] // or a caller with nothing to finish would pay for its registers
    fn finish_batch_slowly(&mut self) {
        if self.ring.left.take(Left::UNANNOUNCED) {
            self.handle_unannounced();
        }
        if self.ring.has_arrived() {
            self.handle_arrived();
        }
        if self.ring.left.any(Left::TAGS) {
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
        // SAFETY: as in `deref`. `&mut self` makes this the only reference from the pointer.
        unsafe { self.state.as_mut() }
    }
}

impl Drop for RingGuard {
    #[inline]
    fn drop(&mut self) {
        // A panic that unwinds through this drop must not cause another: the drop only marks the ring for the next
        // holder.
        if std::thread::panicking() {
            return self.ring.health.mark_panicked();
        }
        // The mark covers a panic in `unlock`, which does not come through this drop again.
        let mark = PanicMark(self.ring);
        self.unlock();
        mark.disarm();
    }
}

impl RingGuard {
    /// Starts or stops recording if a tracer has come or gone.
    #[inline]
    pub fn check_tracer(&mut self) {
        if stats::stats().tracer.wanted.load(Ordering::Relaxed) != self.tracer_seen {
            record::follow_tracer(self);
        }
    }

    /// True if a thread polls the ring. No other thread then issues or completes its requests.
    #[inline]
    pub fn is_polled(&self) -> bool {
        self.ring().polled_by.load(Ordering::Relaxed) != 0
    }

    /// True if the calling thread may issue and complete requests.
    #[inline]
    pub fn may_issue_here(&self) -> bool {
        let thread = self.ring().polled_by.load(Ordering::Relaxed);
        thread == 0 || thread == crate::thread::id()
    }
}

impl RingGuard {
    /// True if work was left for the holder.
    #[inline]
    pub fn has_holder_work(&self) -> bool {
        self.ring.left.any(Left::HOLDER_WORK)
    }

    /// Does the work that was left for the holder.
    #[inline]
    pub fn run_holder_work(&mut self) {
        if self.has_holder_work() {
            self.run_holder_work_slow();
        }
    }

    #[cold]
    fn run_holder_work_slow(&mut self) {
        // Dropped last. By then, work that a panic leaves undone is back in the queue.
        let _running = holder_work::HolderWorkRuns::begin(self.ring);
        let mut rest = Rest::take(&self.ring.holder_work, &self.ring.left);
        while let Some(work) = rest.things.pop_front() {
            match work {
                HolderWork::Closed(fd, private) => self.detach_number(fd, Some(private)),
                HolderWork::OwnNumberClosed(others) => self.own_number_closed(others),
                HolderWork::End => self.after_release.add(AfterRelease::END),
                HolderWork::Helper => self.after_release.add(AfterRelease::HELPER),
                HolderWork::Poller => self.after_release.add(AfterRelease::POLLER),
                HolderWork::File(job) => self.send_file_here(job),
                HolderWork::Identity(claim) => self.keep_identity(Some(&claim)),
            }
        }
    }

    /// Carries out another ring's request that sends a file to this ring, unless the request was cancelled. The other
    /// ring gets the result once this ring is released.
    fn send_file_here(&mut self, job: Arc<Job>) {
        if !job.begin() {
            return;
        }
        let sent = job.op.lock().and_then(|op| match &*op {
            Op::MsgRing(message) => Some(msg_ring::hand_over(message, self)),
            _ => None,
        });
        handlers::without_locks(move || wq::conclude(job, Verdict::of(sent.unwrap_or(Err(Errno::INVAL)))));
    }

    /// Handles the close of one of the ring's numbers. If that was the last copy of the descriptor, the ring ends once
    /// it is released. Otherwise the helper watches for its end.
    pub fn own_number_closed(&mut self, others: bool) {
        if ends::last_copy_gone(self.ends.sender) || (!others && self.is_left_by_child()) {
            self.mark_closed();
            self.after_release.add(AfterRelease::END);
        } else {
            self.mark_orphan();
            self.call_helper_now();
        }
    }
}

impl RingGuard {
    /// Releases the ring once no work is left for its holder.
    pub fn unlock(&mut self) {
        while self.held.is_some() {
            self.finish_batch();
            self.release();
        }
    }

    /// Releases a ring that was settled and not touched since.
    #[inline(always)] // in each call
    pub fn leave(mut self) {
        // If this panics, the guard's drop breaks the ring.
        self.unlock_settled();
        core::mem::forget(self); // the guard holds nothing any more
    }

    /// Does what [`unlock`](Self::unlock) does for a ring that was settled and not touched since.
    #[inline(always)] // in each call
    pub fn unlock_settled(&mut self) {
        debug_assert!(self.batch.count == 0, "the ring is not settled");
        self.release();
        if self.held.is_some() {
            self.unlock();
        }
    }

    /// Releases the lock. Takes it again if work was left for the holder before the release.
    #[inline(always)] // in each call
    fn release(&mut self) {
        let due = self.take_pending_wake();
        let later = self.after_release;
        if later != AfterRelease::NOTHING {
            self.after_release = AfterRelease::NOTHING;
        }
        let handlers_wait = self.held.take().map(Held::release);
        if due.is_some() || later != AfterRelease::NOTHING {
            self.act_released(due, later);
        }
        if let Some(held) = self.ring.state.lock_again_if(|| self.ring.has_left_overs()) {
            self.keep_lock(held);
        }
        // Signal handlers run from now on: a handler that jumps away leaves nothing undone.
        drop(handlers_wait);
    }

    /// Does the work that is due after the release of the lock.
    #[cold]
    #[inline(never)]
    fn act_released(&mut self, due: Option<PendingWake>, later: AfterRelease) {
        if let Some(due) = due {
            due.wake();
        }
        if later != AfterRelease::NOTHING {
            later.act(self.ring);
        }
    }

    /// Continues with the lock, which `release` took again for work left for the holder.
    #[cold]
    #[inline(never)]
    fn keep_lock(&mut self, mut held: Held<'static, Option<Box<State>>>) {
        let Some(state) = held.as_deref_mut().map(NonNull::from) else { return };
        self.state = state;
        self.held = Some(held);
        self.put_in_order();
        let owed = if self.ring.left.take(Left::OWED) { self.ring.owed.swap(0, Ordering::Relaxed) } else { 0 };
        if owed != 0 {
            self.submit_owed(owed);
        }
    }

    /// Takes the ring again after [`unlock`](Self::unlock). The thread still counts as a user of the ring, so the ring
    /// has not ended.
    pub fn relock(&mut self) {
        let mut held = self.ring.state.lock().expect("this thread has let go of it");
        self.state = held.as_deref_mut().map(NonNull::from).expect("a ring that is in use does not end");
        self.held = Some(held);
        self.put_in_order();
    }

    /// Takes the ring again after [`unlock`](Self::unlock) and a sleep. False if the ring with this cookie ended during
    /// the sleep, even if another ring now uses its memory: then the guard holds nothing. A ring can end during a sleep
    /// only if a jump out of a signal handler gave up the sleep, which keeps the ring.
    #[inline]
    pub fn lock_again(&mut self, cookie: u64) -> bool {
        let again = self.ring.lock().ok().filter(|guard| guard.cookie == cookie);
        again.is_some_and(|again| {
            core::mem::forget(core::mem::replace(self, again)); // what it replaces holds nothing
            true
        })
    }

    /// Brings back a job that this very thread has done.
    pub fn return_job(&mut self, job: Arc<Job>) {
        if self.ring.completes_here() {
            return self.receive(job);
        }
        // If there is no memory to keep the job, it is received early.
        if let Err(left) = self.ring.arrived.put(&self.ring.left, [job].into_iter()) {
            return left.for_each(|job| self.receive(job));
        }
        self.ring.left.set(Left::UNANNOUNCED); // for `finish_batch`, which this thread calls later
    }
}
