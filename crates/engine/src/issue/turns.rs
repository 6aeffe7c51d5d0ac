//! Turns: the order in which requests are served. Once the event of a waiting request has come, that request is served
//! before any request that is submitted later. It is also served before a call that does not wait returns, before a
//! request is cancelled, and before a timer fires.
//!
//! In the kernel no other request runs between two SQEs of one submission: `io_async_wake` in io_uring/poll.c only
//! queues it. So the requests that an SQE may have made ready are served later.

use crate::issue::arm::{events_for, is_ready};
use crate::issue::{device, single};
use crate::mutation::{mutated, Mutation};
use crate::op::net::socket_option;
use crate::op::{Op, Skip, Turn};
use crate::os::{Os, Sys};
use crate::poll::turns::When;
use crate::poll::{READ, WRITE};
use crate::request::{Id, ListKind, Target, Tried};
use crate::ring::holder_work::AfterRelease;
use crate::ring::{table, Ring, RingGuard};
use crate::stats::Path;
use crate::{descriptors, Errno};
use anyring_abi::IOSQE_ASYNC;
use core::sync::atomic::Ordering;

impl RingGuard {
    /// Polls for requests that were armed without an attempt, and serves those that are ready. False if there are no
    /// such requests.
    #[inline]
    pub fn poll_for_unattempted(&mut self) -> bool {
        let is_due = core::mem::take(&mut self.poll_set.due.unattempted);
        if is_due {
            self.poll_when(When::InsteadOfAttempts);
        }
        is_due
    }

    /// Serves requests that were armed without an attempt, and makes postponed first attempts. Called before anything
    /// ends requests.
    #[inline]
    pub fn attempt_unattempted(&mut self) {
        if self.poll_set.has_unattempted() {
            self.poll_for_unattempted();
            self.attempt_all_postponed();
        }
    }

    /// Serves, at the end of a submission, what became ready before it. Continues READ_MULTISHOTs whose files have more
    /// data, and fires timers that were due as they started.
    #[inline(always)] // in each enter
    pub fn go_on(&mut self) {
        if self.poll_set.due.rest {
            self.go_on_with_rest();
        }
    }

    #[cold]
    fn go_on_with_rest(&mut self) {
        self.poll_set.due.rest = false;
        self.poll_now();
        self.fire_timers();
        self.finish_batch();
    }
}

impl RingGuard {
    /// Handles requests that have waited for the same file and direction as an operation that was just submitted. Also
    /// does holder work.
    #[inline]
    pub fn handle_earlier(&mut self, op: &Op, target: &Target) {
        let due = self.poll_set.armed() != 0 && (self.poll_set.due.read || self.poll_set.due.write);
        if due || self.has_holder_work() {
            self.handle_those_before(due, op, target);
        }
    }

    fn handle_those_before(&mut self, due: bool, op: &Op, target: &Target) {
        self.run_holder_work();
        if !due {
            return;
        }
        let direction = match op.turn() {
            Turn::Nobody => return,
            Turn::Behind(direction) => direction,
            Turn::Unknown => {
                (self.poll_set.due.read, self.poll_set.due.write) = (false, false);
                return;
            }
        };
        let fd = self.number_of(target).unwrap_or(-1);
        if self.poll_set.begin_turn(fd, direction) && !mutated(Mutation::LateComersGoFirst) {
            (self.poll_set.due.read, self.poll_set.due.write) = (false, false);
            self.poll_now();
        }
    }

    /// Completes everything that can be completed without waiting, except the poll set's events.
    pub(crate) fn collect(&mut self) {
        if self.is_polled() {
            return self.flush_overflow(); // its polling thread does the rest
        }
        if self.ring().has_arrived() {
            self.clear_announcement();
            self.complete_arrived();
        }
        device::reap(self);
        if !self.timers.is_empty() {
            self.fire_timers();
        }
        self.finish_batch();
        self.flush_overflow();
    }

    /// Serves all events that are ready and completes everything that is due.
    pub(crate) fn drive(&mut self) {
        self.poll_now();
        self.collect();
    }

    /// A cheap first pass of a wait: polls and collects under the lock, without the driver role. False: call
    /// `wait_until`.
    pub fn poll_once(&mut self) -> bool {
        let handover = &self.ring().driver.handover;
        if !self.poll_set.has_unverified() || handover.is_attached() {
            return false;
        }
        handover.visit();
        let served = self.poll_now();
        self.collect();
        served
    }

    /// Runs what is due in the helper's turn. Afterwards no event is left that a sleep on the poll set would miss.
    pub fn stand_in(&mut self) {
        loop {
            // Take events even if no request is armed: an event that stays in the poll set keeps the helper's own epoll
            // set awake.
            self.poll_events(When::Later);
            self.collect();
            if !self.poll_set.has_unverified() {
                return;
            }
            self.verify();
            self.collect();
        }
    }
}

impl Ring {
    /// Completes the requests of another ring that poll this one, which has just posted. In the kernel they complete as
    /// the posting call returns. If another thread holds or drives the other ring, it gets the event. So does a thread
    /// that polls a third ring, by way of the helper.
    pub(crate) fn serve_ring_that_polls(&'static self) {
        let other = table::ring(self.polled_by_ring.load(Ordering::Relaxed));
        let Some(other) = other.filter(|other| !other.defers() && !core::ptr::eq(*other, self)) else { return };
        if other.driver.sleeps() {
            return;
        }
        let Some(mut guard) = other.try_lock() else { return };
        if guard.is_polled() || guard.is_broken() || guard.is_closed() {
            return;
        }
        guard.poll_now();
        guard.finish_batch();
        guard.after_release.remove(AfterRelease::RING_THAT_POLLS);
    }
}

/// Requests that were armed without an attempt, or without checking their number.
impl RingGuard {
    /// Gives a request its turn if it polls first and its file is ready already. The attempt follows the present group.
    /// In the kernel task work makes it (`io_queue_async` in io_uring/io_uring.c). With IORING_SETUP_DEFER_TASKRUN the
    /// request is armed: nothing is attempted before somebody asks.
    #[inline]
    pub fn has_turn_instead(&mut self, id: Id, list: ListKind, tried: Tried) -> bool {
        match tried {
            Tried::Skipped(Skip::PollFirst | Skip::LookOnceArmed) => self.has_turn_if_ready(id, list),
            _ => false,
        }
    }

    #[cold]
    fn has_turn_if_ready(&mut self, id: Id, list: ListKind) -> bool {
        let request = &self.slab[id];
        let by_worker = request.in_worker || request.flags & IOSQE_ASYNC != 0;
        let Some(fd) = request.target.number() else { return false };
        let is_multishot = request.op.is_multishot() && !request.op.sends_bundle();
        if by_worker || is_multishot || self.ring().defers() {
            return false;
        }
        // A worker makes a request on a file that cannot be polled.
        let is_ready = is_ready(fd, events_for(&request.op, list)) && socket_option(fd, libc::SO_TYPE).is_ok();
        if is_ready {
            self.slab[id].make_ready();
            self.slab[id].path = Path::Poll; // whatever is remembered of the file, this attempt is made
            self.queue.follow(id);
        }
        is_ready
    }

    /// Makes sure, before a sleep, that the number of each newly armed entry still names the file that its requests
    /// wait for. Also makes postponed first attempts that no event has led to yet.
    pub fn verify(&mut self) {
        self.attempt_all_postponed();
        for _ in 0..self.poll_set.unverified.len() {
            self.verify_next();
        }
    }

    pub(crate) fn attempt_all_postponed(&mut self) {
        if mutated(Mutation::PutOffIsNotMadeUpFor) {
            return;
        }
        for _ in 0..self.poll_set.postponed.len() {
            self.attempt_next_postponed();
        }
    }

    pub(super) fn verify_next(&mut self) {
        let Some(fd) = self.poll_set.unverified.pop_front() else { return };
        let epoll = self.poll_set.epoll();
        let Some(entry) = self.poll_set.existing(fd) else { return };
        entry.unverified = false;
        if entry.idle() || entry.unwatched {
            return;
        }
        let wanted = entry.registered;
        if self.poll_set.control_registration(epoll, fd, wanted) != Ok(true) {
            // The number now names another file, or none. Attempt the requests, which will find out.
            self.reissue_all(fd);
        }
    }

    pub(super) fn attempt_next_postponed(&mut self) {
        let Some(fd) = self.poll_set.postponed.pop_front() else { return };
        let Some(entry) = self.poll_set.existing(fd) else { return };
        entry.postponed = false;
        if entry.single.is_some() {
            return single::attempt_single(self, fd);
        }
        if !entry.polls.is_empty() {
            self.check_deferred_polls(fd);
        }
        let Some(entry) = self.poll_set.existing(fd) else { return };
        let waiting = entry.readers.first();
        let Some(first) = waiting else { return };
        if !entry.facts.is_empty() {
            if self.wants_buffer(first) && Sys::poll_now(fd, libc::POLLIN as u16) == Ok(0) {
                return; // the attempt after its event will find no buffer
            }
            self.retry(fd, ListKind::Read);
        }
        match self.poll_set.existing(fd) {
            Some(entry) if entry.readers.first() != waiting => entry.facts.end_streak(),
            _ => self.end_nonblocking_reads(fd),
        }
    }

    /// Makes the postponed poll for Linux AIO's poll requests.
    fn check_deferred_polls(&mut self, fd: i32) {
        if !self.is_context() {
            return;
        }
        let Ok(seen @ 1..) = Sys::poll_now(fd, (READ | WRITE) as u16) else { return };
        let first = self.poll_set.existing(fd).and_then(|entry| entry.polls.first());
        self.complete_polls(fd, seen);
        if let Some(entry) = self.poll_set.existing(fd).filter(|entry| entry.polls.first() != first) {
            entry.facts.end_streak();
        }
    }

    /// Ends reads of Linux AIO that found nothing, if their file description has become nonblocking. io_submit(2) would
    /// have answered EAGAIN, had the engine not postponed the attempt.
    pub(crate) fn end_nonblocking_reads(&mut self, fd: i32) {
        if !self.is_context() || !descriptors::is_nonblocking(fd) {
            return;
        }
        single::join_list(self, fd);
        self.poll_set.forget_access(fd);
        while let Some(id) = self.poll_set.existing(fd).and_then(|entry| entry.readers.first()) {
            let id = self.disarm(id).id();
            self.finish(id, -Errno::AGAIN.raw_os_error(), true);
        }
    }

    /// True if the request needs a buffer and its group is empty.
    fn wants_buffer(&mut self, id: Id) -> bool {
        self.with_op(id, |guard, op| !guard.finds_buffer(op))
    }
}
