//! Ending requests that are in flight: by ASYNC_CANCEL, by POLL_REMOVE, and by a LINK_TIMEOUT that fires.

use crate::alloc;
use crate::forced::{point, Point};
use crate::issue::chaos;
use crate::mutation::{mutated, Mutation};
use crate::op::cancel::Cancel;
use crate::op::poll::{PollAdd, PollRemove};
use crate::op::Verdict;
use crate::request::{Cancelled, Id, Request, State, Target};
use crate::ring::arrivals::{Left, Rest};
use crate::ring::RingGuard;
use crate::Errno;
use anyring_abi::{Opcode, IORING_SETUP_DEFER_TASKRUN};

/// Returns the opcode for whose requests the kernel keeps a separate list, if there is one (`futex_list` and
/// `waitid_list` of io_ring_ctx).
fn list_of(opcode: Opcode) -> Option<Opcode> {
    match opcode {
        Opcode::FutexWait | Opcode::FutexWaitv => Some(Opcode::FutexWait),
        Opcode::Waitid => Some(opcode),
        _ => None,
    }
}

/// True if a cancel may find the request because the request waits for something.
fn is_reachable(request: &Request) -> bool {
    match request.state() {
        State::Polling(_) | State::Queued(_) => true,
        State::Timed => !chaos::is_out_of_reach(request),
        State::Cancelled(how) => how.found,
        _ => false,
    }
}

/// True if the timeout's time has passed. A cancel no longer finds such a timeout, since in the kernel the timer's
/// interrupt has taken it off the list.
pub(super) fn is_due(request: &Request) -> bool {
    match request.op.timeout() {
        Some(timeout) if matches!(request.state(), State::Timed) => {
            request.deadline_ns <= timeout.clock.now_ns() || chaos::fires(request)
        }
        _ => false,
    }
}

/// The order in which a cancel visits requests: first the kind of place, then the position there.
type Turn = (u8, u64);

impl RingGuard {
    /// Completes what has become ready or due, before a call that ends requests. In the kernel, task work has done so
    /// when the call begins, except with `IORING_SETUP_DEFER_TASKRUN`.
    #[cold]
    pub fn catch_up(&mut self) {
        if self.ring().has(IORING_SETUP_DEFER_TASKRUN) {
            return;
        }
        self.attempt_unattempted();
        if self.poll_set.armed() != 0 {
            self.poll_now();
        }
        self.fire_timers();
        self.issue_ready();
    }

    /// Ends one request with -ECANCELED. Its CQE is posted in its turn among the ready requests. Returns the result
    /// for the request that cancels. It is 0, or 1 for requests that the kernel keeps on separate lists and counts
    /// (io_cancel_remove). Fails with `EALREADY` if the request can no longer be stopped, and with `ENOENT` if a
    /// cancel does not find it.
    pub fn cancel_one(&mut self, id: Id) -> Result<i32, Errno> {
        let mut result = -Errno::CANCELED.raw_os_error();
        let request = self.slab.get(id).ok_or(Errno::NOENT)?;
        let opcode = request.opcode;
        let listed = list_of(opcode).is_some();
        let (mut found, mut is_in_turn) = (false, false);
        match request.state() {
            State::Polling(_) => {
                let _cancelled_below = self.disarm(id);
                found = !listed;
                // The bytes that a MSG_WAITALL has transferred become the result (`io_sendrecv_fail` in
                // io_uring/net.c).
                let done = self.slab[id].op.transferred();
                if done != 0 {
                    result = done as i32;
                }
            }
            State::Timed => {
                let _cancelled_below = self.stop_timer(id);
            }
            State::Queued(job) => {
                let job = job.clone();
                // A connect that sleeps does not touch the program's memory. The worker may be left alone: its late
                // result will find no request.
                let sleeps_single = opcode == Opcode::Connect;
                job.withdraw();
                if !job.cancel() && !sleeps_single {
                    return Err(if listed { Errno::NOENT } else { Errno::ALREADY });
                }
            }
            State::Cancelled(Cancelled { found: true, .. }) => return Ok(0),
            State::Cancelled(_) => return Err(Errno::NOENT),
            // The kernel's io_uring has no list on which it could find such a transfer, either.
            State::Staged | State::Submitted => return Err(Errno::NOENT),
            State::Ready if chaos::was_released(&self.slab[id]) => is_in_turn = true,
            State::Deferred | State::Chained | State::Ready | State::Issuing => return Err(Errno::NOENT),
        }
        if opcode == Opcode::Waitid {
            self.write_back_cancelled(id);
        }
        point(Point::Cancel);
        // The chain of a futex wait continues (`__io_futex_cancel` in io_uring/futex.c does not mark the wait as
        // failed).
        let failed = list_of(opcode) != Some(Opcode::FutexWait);
        self.slab[id].cancel(Cancelled { result, failed, found });
        if !is_in_turn {
            self.queue.push(id);
        }
        Ok(listed.into())
    }

    /// Lets a cancelled WAITID report zeroes to the program, even while a thread waits for the child. Other operations
    /// report nothing, since a worker holds the lock of its operation for as long as its call takes.
    #[cold]
    fn write_back_cancelled(&self, id: Id) {
        let request = &self.slab[id];
        request.op.write_back_cancelled();
        if let State::Queued(job) = request.state() {
            if let Some(op) = job.op.lock().as_deref() {
                op.write_back_cancelled();
            }
        }
    }

    /// Arms the requests for which a worker has found nothing, on a ring that leaves workers' results to its owner. In
    /// the kernel the worker has armed them.
    #[cold]
    fn arm_arrived(&mut self) {
        let mut rest = Rest::take(&self.ring().arrived, &self.ring().left);
        for _ in 0..rest.things.len() {
            let Some(job) = rest.things.pop_front() else { break };
            match job.verdict.lock().and_then(|verdict| *verdict) {
                Some(Verdict::WouldBlock(_)) => self.receive(job),
                _ => rest.things.push_back(job), // the job arrives again when `rest` is dropped
            }
        }
    }

    /// Carries out an ASYNC_CANCEL. Source: io_uring_enter(2); io_uring/cancel.c.
    pub fn cancel_requests(&mut self, cancel: &Cancel) -> Verdict {
        self.attempt_unattempted();
        if self.ring().defers() && self.ring().left.any(Left::RESULTS) {
            self.arm_arrived();
        }
        let file = match self.cancelled_file(cancel) {
            Ok(file) => file,
            Err(error) => return Verdict::error(error),
        };
        let mut ended = 0;
        let mut refused = None;
        // With IORING_ASYNC_CANCEL_ALL each of the kernel's lists counts once.
        let mut lists_counted = Vec::new();
        let mut candidates = match self.candidates(cancel) {
            Ok(candidates) => candidates,
            Err(error) => return Verdict::error(error),
        };
        candidates.sort_unstable_by_key(|(turn, _)| *turn); // no two are the same
        for (_, id) in candidates {
            let Some(request) = self.slab.get(id) else { continue };
            let guard = request.opcode == Opcode::LinkTimeout;
            let is_timer = request.op.timeout().is_some();
            let timer_by_file = is_timer && cancel.fd.is_some() && !cancel.any;
            if !is_reachable(request) || guard || timer_by_file || is_due(request) {
                continue;
            }
            // The descriptor of a WAITID belongs to the engine.
            let has_file = request.opcode != Opcode::Waitid;
            let same_file = file.is_some_and(|file| has_file && self.same_file(id, file));
            if !cancel.matches(request.user_data, request.opcode, same_file) {
                continue;
            }
            let list = list_of(request.opcode);
            match self.cancel_one(id) {
                Ok(count) if !cancel.all => return Verdict::Done(count),
                Ok(_) if cancel.by_list && list.is_some_and(|list| lists_counted.contains(&list)) => {}
                Ok(_) => {
                    ended += 1;
                    lists_counted.extend(list);
                }
                Err(error) => refused = Some(error),
            }
            if !cancel.all || (mutated(Mutation::CancelAllMissesSome) && ended == 2) {
                break;
            }
        }
        match (cancel.all, refused) {
            (true, _) => Verdict::Done(ended),
            (false, Some(error)) => Verdict::error(error),
            (false, None) => Verdict::error(Errno::NOENT),
        }
    }

    /// Returns the requests that a cancel may match, each with its turn.
    fn candidates(&self, cancel: &Cancel) -> Result<Vec<(Turn, Id)>, Errno> {
        let mut candidates = Vec::new();
        let mut add = |id| alloc::push(&mut candidates, (self.turn(id), id));
        match cancel.user_data {
            // Requests that an IOSQE_IO_DRAIN holds back are left out: there may be thousands.
            Some(user_data) => {
                self.slab.with_user_data(user_data, is_reachable)?.into_iter().try_for_each(&mut add)?
            }
            None => self.slab.ids().try_for_each(&mut add)?,
        }
        Ok(candidates)
    }

    /// Returns a request's turn in a cancel. The kernel first searches its workers, then its lists. It adds new
    /// requests at the head of a list. It adds timeouts at the tail of theirs, after those that count completions
    /// (`io_timeout` in io_uring/timeout.c). Source: `io_try_cancel` in io_uring/cancel.c.
    pub(super) fn turn(&self, id: Id) -> Turn {
        let age = self.slab.age(id);
        match (self.slab[id].state(), list_of(self.slab[id].opcode)) {
            (_, Some(Opcode::Waitid)) => (2, age),
            (_, Some(_)) => (3, age),
            (State::Timed, None) => match self.queue.place_of(id) {
                Some(place) => (4, place as u64),
                None => (5, u64::MAX - age),
            },
            (State::Queued(_), None) => (0, u64::MAX - age),
            _ => (1, age),
        }
    }

    /// Returns the descriptor that an ASYNC_CANCEL by file names.
    fn cancelled_file(&self, cancel: &Cancel) -> Result<Option<i32>, Errno> {
        match cancel.fd {
            None => Ok(None),
            Some((index, true)) => {
                let files = self.files.as_ref().ok_or(Errno::BADF)?;
                Ok(Some(files.get(index as u32)?.fd))
            }
            Some((fd, false)) => {
                crate::descriptors::check_open(fd)?;
                Ok(Some(fd))
            }
        }
    }

    /// True if a request works on the file that `fd` names: the same number, or the same open file description.
    fn same_file(&self, id: Id, fd: i32) -> bool {
        match &self.slab[id].target {
            Target::Number(number) if *number == fd => true,
            Target::Number(number) => crate::descriptors::same_description(*number, fd),
            Target::Fixed(file) | Target::Private(file) => {
                file.fd == fd || crate::descriptors::same_description(file.fd, fd)
            }
            Target::None | Target::Index(_) => false,
        }
    }

    /// Carries out a POLL_REMOVE: ends a poll request, or changes its events or user_data. Source: io_uring_enter(2);
    /// `io_poll_remove` in io_uring/poll.c.
    pub fn end_poll(&mut self, remove: &PollRemove) -> Verdict {
        let wanted = |request: &Request| {
            matches!(request.state(), State::Polling(_) | State::Cancelled(Cancelled { found: true, .. }))
                && request.op.poll().is_some()
        };
        let Some(id) = self.slab.first_with_user_data(remove.target, wanted, |id| self.slab.age(id)) else {
            return Verdict::error(Errno::NOENT);
        };
        let found = self.slab[id].op.poll().is_some_and(PollAdd::found_at_once);
        let answers = found && (self.ring().defers() || self.queue.has_poll(id));
        if answers || matches!(self.slab[id].state(), State::Cancelled(_)) {
            return Verdict::error(Errno::ALREADY); // task work has it (`io_poll_disarm`)
        }
        if remove.events.is_none() && remove.user_data.is_none() {
            return match self.cancel_one(id) {
                Ok(_) => {
                    self.slab[id].hide_cancelled();
                    Verdict::Done(0)
                }
                Err(error) => Verdict::error(error),
            };
        }
        let id = self.disarm(id).id();
        if let Some(user_data) = remove.user_data {
            self.slab.rename(id, user_data);
        }
        if let (Some(events), Some(poll)) = (remove.events, self.slab[id].op.poll_mut()) {
            poll.events = events;
        }
        // Arm the poll again. Task work reports events that are ready already, after the rest of the submission.
        match self.attempt_again(id) {
            Verdict::Done(result) => self.end_in_turn(id, result, result < 0),
            verdict => self.follow(id, verdict),
        }
        Verdict::Done(0)
    }
}
