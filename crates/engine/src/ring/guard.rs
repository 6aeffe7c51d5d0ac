//! A held ring: what its holder does before it lets go.

use super::arrivals::{Left, Rest};
use super::broken::Strike;
use super::notes::{self, Due, Note};
use super::wake::DueWake;
use super::{record, LockFailure, Ring, State};
use crate::forced::{point, Point};
use crate::issue::{device, iopoll, msg_ring};
use crate::lock::Held;
use crate::op::{Op, Verdict};
use crate::os::handlers;
use crate::ring::batch::Poster;
use crate::shared::control;
use crate::wq::{self, Job};
use crate::{descriptors, stats, Errno};
use anyring_abi::Cqe;
use core::ptr::NonNull;
use core::sync::atomic::Ordering;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

/// What became ready of which a polling thread issues so much at a time (`IORING_TW_CAP_ENTRIES_VALUE` in io_uring/sqpoll.c).
const POLLER_SHARE: usize = 32;

/// Exclusive access to a ring's state. Dropping it issues what became ready, posts what is batched, and looks again for
/// results that arrived meanwhile.
pub struct RingGuard {
    pub(super) ring: &'static Ring,
    /// The state inside `held`, so that the hot path need not look through two options.
    pub(super) state: NonNull<State>,
    pub(super) held: Option<Held<'static, Option<Box<State>>>>,
}

impl RingGuard {
    /// What a new holder does first with a ring that is not whole: a forked child becomes a member of one that it
    /// inherited, and what a panic left is put in order.
    #[cold]
    pub(super) fn in_order(mut self) -> Result<RingGuard, LockFailure> {
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
        if self.ring.left.any(Left::RESULTS) && self.ring.completes_here() {
            self.complete_arrived();
        }
    }

    #[cold]
    fn post_tags(&mut self) {
        for user_data in self.ring.retired.take(&self.ring.left) {
            self.post(Cqe { user_data, res: 0, flags: 0 }, Poster::Each);
        }
    }

    /// What [`Left::UNTOLD`] was set for.
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
        self.ring.left.any(!(Left::NOTES | Left::OWED))
            || !self.queue.is_empty()
            || self.device.has_to_submit()
            || self.submission.is_some()
    }

    #[inline(never)] // or who has nothing to settle pays for its registers
    fn settle_all(&mut self) {
        if self.ring.left.take(Left::UNTOLD) {
            self.attend();
        }
        if self.ring.has_arrived() {
            self.settle_arrived_here();
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
        self.ring.left.any(Left::NOTES)
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
        let mut rest = Rest::take(&self.ring.notes, &self.ring.left);
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
        let owed = if self.ring.left.take(Left::OWED) { self.ring.owed.swap(0, Ordering::Relaxed) } else { 0 };
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
        if let Err(left) = self.ring.arrived.put(&self.ring.left, [job].into_iter()) {
            return left.for_each(|job| self.receive(job));
        }
        self.ring.left.set(Left::UNTOLD); // for `settle`, which this thread comes to
    }
}
