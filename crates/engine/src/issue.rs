//! Routing: follows the verdict on each attempt. Only this module picks a path, finishes a request and continues its
//! chain.

pub mod arm;
pub mod calls;
mod cancel;
pub(crate) mod chaos;
mod complete;
pub(crate) mod device;
pub mod files;
pub mod iopoll;
pub(crate) mod lint;
pub mod msg_ring;
mod on_ring;
mod plan;
pub mod punt;
pub(crate) mod registered;
mod select;
pub mod single;
pub mod stalls;
mod timer;
mod turns;
pub mod unwatched;

use crate::forced::{point, Point};
use crate::issue::arm::Arming;
use crate::issue::plan::Step;
use crate::issue::punt::refused_number;
use crate::op::{Direction, Op, Punt, Skip, Verdict};
use crate::os::{Os, Sys};
use crate::request::{Cancelled, Id, ListKind, Request, State, Target, Then, Tried};
use crate::ring::broken::Uncompleted;
use crate::ring::RingGuard;
use crate::shared::control::RECORD_IN_FLIGHT;
use crate::stats::Path;
use crate::wq::{self, Approach};
use crate::Errno;
use anyring_abi::{IOSQE_ASYNC, IOSQE_IO_HARDLINK, IOSQE_IO_LINK};
use core::sync::atomic::Ordering;

impl RingGuard {
    /// Puts a request into the slab, and gives it a record in shared memory.
    pub fn admit(&mut self, mut request: Request, on_its_way: Uncompleted) -> Id {
        let control = self.control;
        let record = self.records.take(&control);
        if let Some((chunk, index)) = record {
            let shared = control.record(chunk.into(), index.into());
            shared.user_data.store(request.user_data, Ordering::Relaxed);
            // Release: its partner is the Acquire load of a waiter that finds this process dead.
            shared.state.store(RECORD_IN_FLIGHT, Ordering::Release);
        }
        request.record = record;
        let id = self.slab.insert(request);
        self.record(|it| it.admitted(id));
        on_its_way.completed();
        id
    }

    /// Issues a request whose turn has come.
    pub fn issue(&mut self, id: Id) {
        self.run_holder_work();
        let Some(request) = self.slab.get_mut(id) else { return };
        match *request.state() {
            State::Cancelled(Cancelled { result, failed, .. }) => return self.finish(id, result, failed),
            State::Polling(_) => return self.complete_found_polls(),
            _ => request.begin_turn(),
        }
        if let Some(result) = request.failed {
            // If an SQE of a chain was refused, the whole chain ends, also after hard links: `io_queue_sqe_fallback`.
            request.flags = request.flags & !IOSQE_IO_HARDLINK | IOSQE_IO_LINK;
            self.finish(id, result, true);
            return;
        }
        self.start(id);
    }

    /// Begins a request whose turn has come: starts its timer, makes its first attempt, or gives it to a worker.
    pub fn start(&mut self, id: Id) {
        if self.slab[id].op.timeout().is_some() {
            self.start_timer(id);
            self.arm_link_timeout(id);
            return;
        }
        if self.chaos.is_some() && chaos::intervenes(self, id) {
            return;
        }
        match self.plan_turn(id) {
            Step::Worker(approach, why) => self.punt_unattempted(id, approach, why),
            Step::Refuse(error) => self.finish(id, -error.raw_os_error(), true),
            Step::Attempt | Step::Wait(..) | Step::Device => self.reissue(id),
        }
    }

    /// Attempts a request in the slab and follows the verdict.
    pub fn reissue(&mut self, id: Id) {
        if let Err(error) = self.keep_file(id) {
            return self.finish(id, -error.raw_os_error(), true);
        }
        let first = self.slab[id].path == Path::Inline;
        let verdict = self.attempt_request(id, first);
        self.follow(id, verdict);
    }

    /// Makes the next attempt at a multishot request.
    pub fn attempt_again(&mut self, id: Id) -> Verdict {
        match self.keep_file(id) {
            Ok(()) => self.attempt_request(id, false),
            Err(error) => Verdict::error(error),
        }
    }

    fn attempt_request(&mut self, id: Id, first: bool) -> Verdict {
        let request = &self.slab[id];
        if request.is_others() && !request.op.will_poll_first() {
            return self.leave_to_creds_pool(id);
        }
        if first && self.recorder.is_some() {
            let target = self.slab[id].target.clone();
            self.record_of(id, |it| it.file_get(&target));
        }
        self.with_op(id, |guard, op| {
            let verdict = guard.attempt_of(id, op, first);
            let request = &guard.slab[id];
            match request.in_worker || request.flags & IOSQE_ASYNC != 0 {
                true => op.verdict_in_worker(verdict, request.user_data, request.opcode),
                false => verdict,
            }
        })
    }

    /// Runs `work` on a request's operation, which is out of the slab while `work` runs.
    #[inline]
    pub(crate) fn with_op<R>(&mut self, id: Id, work: impl FnOnce(&mut RingGuard, &mut Op) -> R) -> R {
        let mut op = core::mem::take(&mut self.slab[id].op);
        let result = work(self, &mut op);
        // The slot is still there: only the code that works on a request ends it. What stood in owns nothing.
        core::mem::forget(core::mem::replace(&mut self.slab[id].op, op));
        result
    }

    /// Makes one nonblocking attempt of a request in the slab, or returns the verdict of the plan that replaces it
    /// (`plan` in issue/plan.rs). `op` is the request's operation.
    pub(super) fn attempt_of(&mut self, id: Id, op: &mut Op, first: bool) -> Verdict {
        let target = &self.slab[id].target;
        match self.number_of(target) {
            Ok(fd) => self.attempt(op, fd, matches!(target, Target::Number(_)), first),
            Err(error) => Verdict::error(error),
        }
    }

    /// Makes one nonblocking attempt on a number. `of_program` says that the program chose this number.
    #[inline(never)] // the intake uses the inlined copy below
    pub fn attempt(&mut self, op: &mut Op, fd: i32, of_program: bool, first: bool) -> Verdict {
        self.attempt_on(op, fd, of_program, first)
    }

    /// Makes the first attempt of a request that is not in the slab, inlined for the intake.
    #[inline(always)] // else each SQE costs some 40 instructions more
    pub(crate) fn attempt_inline(&mut self, op: &mut Op, target: &Target) -> Verdict {
        match self.number_of(target) {
            Ok(fd) => self.attempt_on(op, fd, matches!(target, Target::Number(_)), true),
            Err(error) => Verdict::error(error),
        }
    }

    #[inline(always)] // for the same reason
    fn attempt_on(&mut self, op: &mut Op, fd: i32, of_program: bool, first: bool) -> Verdict {
        // This check comes before anything is postponed. A refusal comes at submission, and a registered buffer is kept
        // from then on.
        if let (true, Some(error)) = (of_program, refused_number(fd, op)) {
            return Verdict::error(error);
        }
        if let Err(error) = op.look_up(self, fd) {
            return Verdict::error(error);
        }
        match self.plan(op, fd, first) {
            Step::Attempt => {}
            Step::Wait(direction, why) => return Verdict::Skipped(direction, why),
            Step::Worker(_, why) => return Verdict::NeedsWorker(why),
            Step::Device => return Verdict::NeedsDevice,
            Step::Refuse(error) => return Verdict::error(error),
        }
        point(Point::Attempt);
        let read = first && op.waits_for() == Some(Direction::Read);
        let verdict = self.attempt_now(op, fd);
        if read {
            self.poll_set.record_first_read(fd, verdict == Verdict::WouldBlock(Direction::Read));
        }
        verdict
    }

    /// Makes the attempt without consulting the plan.
    #[inline]
    fn attempt_now(&mut self, op: &mut Op, fd: i32) -> Verdict {
        match op.selects() {
            true => self.issue_selecting(op, fd),
            false => op.issue_on(self, fd),
        }
    }

    /// Follows a verdict on a request in the slab.
    pub fn follow(&mut self, id: Id, verdict: Verdict) {
        match verdict {
            Verdict::Done(result) => self.finish(id, result, result < 0),
            Verdict::DoneShort(result) => {
                self.record_short(id, result);
                self.finish(id, result, true);
            }
            Verdict::DoneWith { result, flags, failed } => {
                self.slab[id].cqe_flags = flags;
                self.finish(id, result, failed);
            }
            Verdict::Shot { result, flags } => self.shoot(id, result, flags),
            Verdict::Descriptor(fd) => {
                let verdict = self.install_descriptor(id, fd);
                self.follow(id, verdict);
            }
            Verdict::NeedsWorker(why) => self.punt_plainly(id, why),
            Verdict::NeedsCaller => self.leave_to_caller(id),
            Verdict::NeedsDevice => device::stage(self, id),
            Verdict::WouldBlock(direction) => self.wait_for(id, direction, Tried::Empty, Then::Retry),
            Verdict::Skipped(direction, why) => self.wait_for(id, direction, Tried::Skipped(why), Then::Retry),
            Verdict::NeedsWorkerWhenReady(direction) if self.is_ready(id, direction) => {
                self.punt(id, Approach::Plain, Punt::NoForm)
            }
            Verdict::NeedsWorkerWhenReady(direction) => {
                self.wait_for(id, direction, Tried::Skipped(Skip::NoForm), Then::PlainCall)
            }
        }
    }

    /// True if a transfer that only a plain call can make goes to a worker now. Either its file is ready, or transfers
    /// at a worker come before it. The worker's queue keeps the order of transfers. If these requests waited for
    /// readiness, the last would be served first.
    fn is_ready(&mut self, id: Id, direction: Direction) -> bool {
        let request = &self.slab[id];
        let number = request.target.number().filter(|_| request.op.rw().is_some() && !request.op.is_multishot());
        let Some(fd) = number else { return false };
        let events = if direction == Direction::Write { libc::POLLOUT } else { libc::POLLIN } as u16;
        // Check the queue first: a terminal is not ready while one of the queued requests writes.
        self.waits_for_others(id, fd) || Sys::poll_now(fd, events).is_ok_and(|seen| seen & events != 0)
    }

    /// Records a transfer that ended short. The kernel ends writes short on file systems with blocks.
    fn record_short(&mut self, id: Id, result: i32) {
        let Some(request) = self.slab.get(id).filter(|_| self.recorder.is_some()) else { return };
        let Some(fd) = request.target.number() else { return };
        if let Some(wanted) = request.op.wanted_to_write() {
            self.record_of(id, |it| it.short_write_to(fd, wanted, result));
        }
    }

    /// Makes a new descriptor the request's result, or installs it as a registered file.
    pub(crate) fn install_descriptor(&mut self, id: Id, fd: i32) -> Verdict {
        let slot = self.slab[id].op.slot();
        let installed = if slot == 0 { Ok(fd) } else { self.install_in_slot(id, fd, slot) };
        self.post_tags();
        self.slab[id].op.verdict_installed(installed)
    }

    /// Arms a request for readiness. If the file cannot be polled, a worker takes the request, unless a worker has
    /// already made the plain call.
    pub(crate) fn wait_for(&mut self, id: Id, direction: Direction, tried: Tried, then: Then) {
        let request = &self.slab[id];
        let list = ListKind::of(&request.op, direction);
        let is_postponed = matches!(tried, Tried::Skipped(why) if why.is_postponed());
        let first_look = is_postponed && request.op.is_multishot();
        if request.in_worker && self.ends_in_worker(id, tried) {
            return;
        }
        self.record_held_buffer(id);
        let kept = self.keep_file(id);
        if kept.is_ok() && self.has_turn_instead(id, list, tried) {
            return;
        }
        let armed = kept.and_then(|()| self.arm(id, list, tried, then));
        match armed {
            Ok(Arming::Waits) => {
                // The request may have completed while it was armed. If a thread sleeps already, a postponed attempt is
                // made at once.
                let Some(request) = self.slab.get(id) else { return };
                let looks_again = request.op.poll().is_some_and(|poll| poll.multishot);
                if request.next.is_some() {
                    self.arm_link_timeout(id);
                }
                // The registration's event reports what is ready already. With IORING_SETUP_DEFER_TASKRUN it does so
                // once somebody asks for events.
                if looks_again && !self.ring().defers() && !self.queue.record_poll(id) {
                    self.complete_found_polls();
                }
                if first_look {
                    self.retry_first(id);
                }
            }
            Ok(Arming::CannotPoll) => self.go_on_unpolled(id, tried, then),
            Err(error) => self.finish(id, -error.raw_os_error(), true),
        }
    }

    /// Continues a request whose file cannot be polled, although its attempt found the file not ready.
    fn go_on_unpolled(&mut self, id: Id, tried: Tried, then: Then) {
        let request = &mut self.slab[id];
        let fd = request.target.number().unwrap_or(-1);
        let verdict = match request.op.verdict_unpolled(fd) {
            Some(verdict) => verdict,
            // A worker's plain call has found nothing, and another call would not either (`io_wq_submit_work`).
            None if tried == Tried::Plainly => Verdict::error(Errno::AGAIN),
            None if then == Then::PlainCall => return self.punt(id, Approach::Plain, Punt::NoForm),
            None => {
                let approach = wq::approach_to_missed(&request.op);
                return self.punt(id, approach, Punt::WouldWait);
            }
        };
        self.follow(id, verdict);
    }

    /// Lets a multishot POLL_ADD report that its file was ready when it was armed. In a submission this comes after all
    /// other SQEs. The kernel leaves it to task work (`__io_arm_poll_handler` in io_uring/poll.c).
    fn complete_found_polls(&mut self) {
        self.signalled = false;
        self.poll_now();
    }
}
