//! Deadlines: starts and stops timers, and fires those that are due.

use crate::alloc;
use crate::forced::{point, Point};
use crate::issue::cancel::is_due;
use crate::issue::chaos;
use crate::mutation::{mutated, Mutation};
use crate::op::timeout::{Timeout, TimeoutRemove};
use crate::op::Verdict;
use crate::os::{version, Clock};
use crate::request::{Detached, Id, Request, State};
use crate::ring::RingGuard;
use crate::stats::Path;
use crate::Errno;
use anyring_abi::Opcode;

impl RingGuard {
    /// Makes room for the timer of an operation that has a timer, before the operation is taken in.
    ///
    /// # Errors
    /// NOMEM, as in the kernel without memory for the timer's data (`__io_timeout_prep` in io_uring/timeout.c).
    pub fn reserve_timer(&mut self, timeout: &Timeout) -> Result<(), Errno> {
        let requests = self.slab.len();
        if timeout.counts().is_some() {
            self.queue.reserve_counting(requests).map_err(alloc::refused)?;
        }
        self.timers.make_room(timeout.clock, requests)
    }

    /// Starts the timer of a TIMEOUT or LINK_TIMEOUT.
    pub fn start_timer(&mut self, id: Id) {
        let state = &mut **self;
        let Some(timeout) = state.slab[id].op.timeout() else { return };
        let (clock, when, count) = (timeout.clock, timeout.when, timeout.counts());
        let request = &mut state.slab[id];
        request.deadline_ns = deadline_ns(clock, when);
        request.time();
        request.path = Path::Poll;
        state.poll_set.due.rest |= when.is_over(clock);
        if let Some(count) = count {
            let count = u64::from(count.get()) + u64::from(mutated(Mutation::TimeoutCountsOneMore));
            state.queue.begin_counting(id, count);
        }
        state.timers.insert(&mut state.slab, clock, id);
        self.work_appeared(true);
    }

    /// Stops a request's timer. The request remains.
    pub fn stop_timer(&mut self, id: Id) -> Detached {
        let state = &mut **self;
        if let Some(timeout) = state.slab[id].op.timeout() {
            let (clock, counts) = (timeout.clock, timeout.counts().is_some());
            state.timers.remove(&mut state.slab, clock, id);
            if counts {
                state.queue.stop_counting(id);
            }
        } else {
            chaos::stop_timer(state, id);
        }
        state.slab.detach(id)
    }

    /// Completes every timer whose deadline has passed. True if any timer was due.
    pub fn fire_timers(&mut self) -> bool {
        let mut fired = false;
        if self.poll_set.has_unattempted() && self.timers.next_ns() == Some(0) {
            self.attempt_unattempted();
        }
        loop {
            let state = &mut **self;
            let Some(id) = state.timers.pop_due(&mut state.slab) else { return fired };
            fired = true;
            point(Point::Timer);
            let id = self.stop_timer(id).id();
            match self.slab[id].opcode {
                Opcode::LinkTimeout => self.fire_link_timeout(id),
                Opcode::Timeout => self.fire_timeout(id),
                _ => chaos::release(self, id),
            }
        }
    }

    fn fire_timeout(&mut self, id: Id) {
        let expired = -Errno::TIME.raw_os_error();
        let request = &mut self.slab[id];
        let Some(timeout) = request.op.timeout_mut() else { return };
        let success = timeout.expiry_is_success;
        if timeout.multishot && timeout.count != 1 {
            timeout.count = timeout.count.saturating_sub(1);
            let (clock, span_ns) = (timeout.clock, timeout.when.time_ns);
            request.deadline_ns = request.deadline_ns.saturating_add(span_ns).max(clock.now_ns());
            request.time();
            if !self.shot(id, expired, 0) {
                return self.finish(id, expired, !success);
            }
            self.count_timeout();
            let state = &mut **self;
            state.timers.insert(&mut state.slab, clock, id);
            return;
        }
        self.finish(id, expired, !success);
    }

    /// Cancels the guarded request. Source: `io_req_task_link_timeout` in io_uring/timeout.c.
    fn fire_link_timeout(&mut self, id: Id) {
        let Some(guarded) = self.slab[id].guarded.take() else { return };
        if let Some(request) = self.slab.get_mut(guarded) {
            request.guard = None;
        }
        if self.chaos.is_some() && chaos::outruns_timeout(self, guarded) {
            return self.finish(id, -Errno::ALREADY.raw_os_error(), false);
        }
        let result = match self.cancel_one(guarded) {
            Ok(0) if mutated(Mutation::LinkTimeoutIsCancelled) => -Errno::CANCELED.raw_os_error(),
            Ok(count) if count != 0 && !version::answers_as_7_3() => count,
            Ok(_) => -Errno::TIME.raw_os_error(),
            Err(error) => -error.raw_os_error(),
        };
        // The kernel does not count this as a failure: IOSQE_CQE_SKIP_SUCCESS suppresses the CQE.
        self.finish(id, result, false);
    }

    /// Ends the LINK_TIMEOUT of a guarded request that has completed.
    pub fn disarm_guard(&mut self, guard: Id) {
        if self.slab.get(guard).is_none() {
            return;
        }
        let guard = self.stop_timer(guard).id();
        self.end(guard, -Errno::CANCELED.raw_os_error(), false, false);
    }

    /// Completes the TIMEOUTs that have counted all their completions.
    #[cold]
    pub fn fire_counting(&mut self) {
        let completions = self.queue.completions();
        while let Some(id) = self.queue.reached(completions) {
            if self.chaos.is_some() && chaos::outlasts_count(self, id) {
                self.queue.stop_counting(id);
                continue;
            }
            let id = self.stop_timer(id).id();
            self.finish(id, 0, false);
        }
    }

    /// Returns the timeout that a TIMEOUT_REMOVE names.
    ///
    /// # Errors
    /// NOENT if there is none.
    pub fn timeout_to_remove(&self, remove: &TimeoutRemove) -> Result<Id, Errno> {
        let linked = remove.update.is_some_and(|(_, linked)| linked);
        let kind = if linked { Opcode::LinkTimeout } else { Opcode::Timeout };
        let wanted = |request: &Request| {
            request.opcode == kind && matches!(request.state(), State::Timed) && !is_due(request)
        };
        // This is the first on the kernel's list: see `turn`.
        self.slab.first_with_user_data(remove.target, wanted, |id| self.turn(id)).ok_or(Errno::NOENT)
    }

    /// Carries out a TIMEOUT_REMOVE: ends a timeout or moves it. Source: io_uring_enter(2); io_uring/timeout.c.
    pub fn end_timeout(&mut self, remove: &TimeoutRemove) -> Verdict {
        let id = match self.timeout_to_remove(remove) {
            Ok(id) => id,
            Err(error) => return Verdict::error(error),
        };
        let Some((when, _)) = remove.update else {
            return match self.cancel_one(id) {
                Ok(_) => Verdict::Done(0),
                Err(error) => Verdict::error(error),
            };
        };
        let id = self.stop_timer(id).id();
        if let Some(timeout) = self.slab[id].op.timeout_mut() {
            timeout.when = when;
            timeout.count = 0; // a multishot timeout then has no limit (`io_timeout_update`)
        }
        self.start_timer(id);
        Verdict::Done(0)
    }
}

fn deadline_ns(clock: Clock, when: crate::op::timeout::When) -> u64 {
    match when.absolute {
        true => when.time_ns,
        false => clock.now_ns().saturating_add(when.time_ns),
    }
}
