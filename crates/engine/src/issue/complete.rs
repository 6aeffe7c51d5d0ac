//! The end of a request: its result, its CQE, and the effect on its chain (IOSQE_IO_LINK, IOSQE_IO_HARDLINK, and
//! LINK_TIMEOUT on the request before it).
//!
//! A chain is built while its SQEs are consumed, and issued as a whole at its end. From then on each request knows its
//! successor, and `finish` issues or cancels that successor.

use crate::forced::{point, Point};
use crate::issue::chaos;
use crate::mutation::{mutated, Mutation};
use crate::op::row;
use crate::op::timeout::Timeout;
use crate::os::{syscall, Os, Sys};
use crate::request::{Cancelled, Chain, Detached, Id, Request};
use crate::ring::batch::Poster;
use crate::ring::broken::Uncompleted;
use crate::ring::RingGuard;
use crate::shared::control::RECORD_FREE;
use crate::stats::{self, Path};
use crate::{thread, Errno};
use anyring_abi::{
    Cqe, Opcode, IORING_CQE_F_32, IORING_CQE_F_MORE, IORING_CQE_F_NOTIF, IOSQE_ASYNC, IOSQE_IO_DRAIN,
};
use core::sync::atomic::Ordering;

/// Returns where the kernel would post a request's CQE: in the submitting call, in task work or in a worker. Task
/// work completes a request that waits for readiness or a device. It also completes a read that goes to an engine
/// worker because its data is not cached.
fn natively_posted_by(request: &Request) -> Poster {
    let Some(row) = row(request.opcode) else { return Poster::Task };
    let from_start = request.flags & IOSQE_ASYNC != 0 || request.op.is_forced(request.opcode);
    let by_worker = match request.path {
        Path::Inline => from_start,
        Path::Poll => from_start && row.on_worker,
        Path::Device => false,
        Path::Worker => from_start || row.hashed,
    };
    if by_worker {
        Poster::Worker
    } else {
        Poster::Task
    }
}

impl RingGuard {
    /// Raises SIGPIPE in the submitter if an engine thread found that the pipe or socket has no reader any more. In the
    /// kernel the submitter itself writes and gets the signal. If a kernel worker writes, no thread of the program
    /// gets the signal.
    #[cold]
    fn raise_broken_pipe(&self, id: Id) {
        let request = &self.slab[id];
        let by_worker = request.flags & IOSQE_ASYNC != 0 || request.path == Path::Worker;
        if by_worker || request.op.wanted_to_write().is_none() || !thread::is_ours() {
            return;
        }
        let thread = [Sys::process_id() as usize, request.submitter as usize];
        syscall(libc::SYS_tgkill, [thread[0], thread[1], libc::SIGPIPE as usize, 0, 0, 0]);
    }

    /// Checks that a LINK_TIMEOUT follows a request that it can guard.
    pub fn check_guarded(&self) -> Result<(), Errno> {
        let chain = self.chain.as_ref().ok_or(Errno::INVAL)?;
        if self.slab[chain.last].opcode == Opcode::LinkTimeout {
            return Err(Errno::INVAL);
        }
        Ok(())
    }

    /// Takes in a request that has to wait for its turn. Such a request is part of a chain, follows a drain, or
    /// goes to a worker.
    pub fn queue_in_order(&mut self, mut request: Request, on_its_way: Uncompleted) {
        let in_chain = self.chain.is_some();
        self.drain.mark(&mut request);
        let links = request.links();
        let failed = request.failed.is_some();
        let waits = links || in_chain || !self.drain.is_idle();
        let id = self.admit(request, on_its_way);
        let last = self.chain.as_ref().map(|chain| chain.last);
        if let Some(last) = last.filter(|_| !failed) {
            self.record(|it| it.link(last));
        }
        if waits {
            self.record_submitter(id);
        }
        let Some(chain) = &mut self.chain else {
            if links {
                self.slab[id].chain();
                self.chain = Some(Chain { head: id, last: id });
            } else {
                self.queue_head(id);
            }
            return;
        };
        let last = core::mem::replace(&mut chain.last, id);
        let head = chain.head;
        self.slab[last].next = Some(id);
        self.slab[id].chain();
        if failed && self.slab[head].failed.is_none() {
            self.slab[head].failed = Some(-Errno::CANCELED.raw_os_error());
        }
        if !links {
            self.end_chain();
        }
    }

    /// Ends a chain that the submission leaves open. The kernel gives such a chain to a worker (`io_submit_state_end`).
    pub fn end_open_chain(&mut self) {
        if let Some(chain) = &self.chain {
            let head = chain.head;
            self.slab[head].in_worker = self.drain.is_idle();
            self.end_chain();
        }
    }

    /// Ends the chain under construction: its last SQE, or the last SQE of the submission, was consumed.
    pub fn end_chain(&mut self) {
        if let Some(chain) = self.chain.take() {
            self.queue_head(chain.head);
        }
    }

    /// Issues the head of a chain, or puts the chain into the drain queue. Source: `io_queue_sqe_fallback` in
    /// io_uring/io_uring.c.
    fn queue_head(&mut self, id: Id) {
        if self.slab[id].failed.is_some() {
            self.drain.pass_by();
        } else if !self.drain.is_idle() {
            return self.hold_back(id);
        }
        self.issue(id);
    }

    /// Returns the first request of the chain under construction.
    pub fn chain_head(&self) -> Option<Id> {
        self.chain.as_ref().map(|chain| chain.head)
    }

    /// Fails the requests that are linked after a failed request. Their CQEs come in turn. In the kernel task work
    /// posts them, after the rest of the present submission. With `quietly` they have no CQEs. Source: `io_fail_links`
    /// in io_uring/timeout.c.
    pub fn fail_links(&mut self, first: Option<Id>, quietly: bool) {
        let state = &mut **self;
        if let Some(recorder) = &mut state.recorder {
            let all = core::iter::successors(first, |member| state.slab[*member].next);
            all.for_each(|id| recorder.fail_link(id));
        }
        let mut next = first;
        while let Some(id) = next {
            let request = &mut self.slab[id];
            next = request.next.take();
            let result = request.failed.unwrap_or(-Errno::CANCELED.raw_os_error());
            // The CQE does not announce the notification, which comes nevertheless.
            request.cqe_flags &= !IORING_CQE_F_MORE;
            match quietly {
                true => self.end(id, result, true, true),
                false => self.end_in_turn(id, result, true),
            }
        }
    }

    /// Ends a request without successors. Its CQE comes in its turn among the ready requests.
    pub fn end_in_turn(&mut self, id: Id, result: i32, failed: bool) {
        self.slab[id].cancel(Cancelled { result, failed, found: false });
        self.queue.follow(id);
    }

    /// Queues a detached request after those that are ready already.
    pub fn make_ready(&mut self, detached: Detached) {
        let id = detached.id();
        self.slab[id].make_ready();
        self.queue.push(id);
    }

    /// Ends a batch of requests that were issued together.
    #[inline]
    pub fn end_together(&mut self) {
        if self.queue.end_together() {
            self.queue_successors();
        }
    }

    #[cold]
    fn queue_successors(&mut self) {
        if self.queue.is_counted() {
            self.flush(); // TIMEOUTs that count these completions come first
        }
        self.queue.queue_successors();
    }

    /// Arms the LINK_TIMEOUT that follows `id`, if there is one. Called when `id` has been issued and is still in
    /// flight.
    #[inline]
    pub fn arm_link_timeout(&mut self, id: Id) {
        if self.slab.get(id).is_some_and(|request| request.next.is_some()) {
            self.arm_following_link_timeout(id);
        }
    }

    fn arm_following_link_timeout(&mut self, id: Id) {
        let Some(request) = self.slab.get(id) else { return };
        let Some(next) = request
            .next
            .filter(|next| self.slab[*next].opcode == Opcode::LinkTimeout && self.slab[*next].failed.is_none())
        else {
            return;
        };
        if request.is_timed_from_first_result() {
            return;
        }
        let after = self.slab[next].next.take();
        self.slab[id].next = after;
        self.slab[id].guard = Some(next);
        self.slab[next].guarded = Some(id);
        self.start_timer(next);
    }
}

impl RingGuard {
    /// Begins a drain: an SQE with IOSQE_IO_DRAIN was read, and may still be refused. The drain applies to its whole
    /// chain.
    pub fn begin_drain(&mut self) {
        self.drain.active = true;
        if let Some(head) = self.chain_head() {
            self.slab[head].send_to_worker();
            self.slab[head].flags |= IOSQE_IO_DRAIN;
            self.drain.next = true;
        }
    }

    /// Puts the chain that starts with `id` into the drain queue. The chain may leave the queue at once.
    pub fn hold_back(&mut self, id: Id) {
        self.record_of(id, |it| it.defer());
        self.slab[id].defer();
        self.drain.held += self.chain_length(id);
        self.drain.queue.push_back(id);
        self.release_held();
        if !self.drain.queue.is_empty() {
            self.open_ahead(); // a worker may release it
        } else if self.slab[id].flags & IOSQE_IO_DRAIN == 0 {
            self.drain.active = false;
        }
    }

    /// Releases, at the end of a submission, the requests that the drain queue need no longer hold.
    pub fn release_submitted(&mut self) {
        self.drain.passed_by = false;
        self.release_held();
    }

    /// Releases, after a completion, the requests that no longer have to wait for a drain.
    pub fn release_held(&mut self) {
        // The first request in the queue waits for all that were released before it. Those after it leave with it, up
        // to the next request that drains.
        let mut waits = true;
        while let Some(id) = self.drain.queue.front().copied() {
            waits |= self.slab[id].flags & IOSQE_IO_DRAIN != 0;
            let in_flight = self.slab.len() - self.drain.held;
            let passes = mutated(Mutation::DrainPasses) && in_flight < 1_000;
            if waits && ((in_flight != 0 && !passes) || self.drain.passed_by) {
                return;
            }
            self.drain.queue.pop_front();
            self.drain.held -= self.chain_length(id);
            let detached = self.slab.detach(id);
            self.make_ready(detached);
            waits = self.slab[id].flags & IOSQE_IO_DRAIN != 0;
        }
    }

    fn chain_length(&self, id: Id) -> usize {
        core::iter::successors(Some(id), |member| self.slab[*member].next).count()
    }
}

impl RingGuard {
    /// Completes a request: posts its CQE, ends its LINK_TIMEOUT, and continues with its successors and with requests
    /// that a drain held back. `failed` breaks soft links.
    pub fn finish(&mut self, id: Id, result: i32, failed: bool) {
        let (result, failed) = match self.chaos.is_some() {
            true => chaos::result(self, id, result, failed),
            false => (result, failed),
        };
        if result == -Errno::PIPE.raw_os_error() {
            self.raise_broken_pipe(id);
        }
        let request = &self.slab[id];
        if request.next.is_some() || request.guard.is_some() || self.recorder.is_some() {
            self.finish_in_chain(id, result, failed);
        } else {
            self.end(id, result, failed, false);
        }
        if !self.drain.is_idle() {
            self.release_held();
        }
    }

    /// Ends a request that has a successor or a LINK_TIMEOUT, and continues with these.
    fn finish_in_chain(&mut self, id: Id, result: i32, failed: bool) {
        let to_worker = self.slab[id].next.is_some() && self.hands_chain_to_worker(id, result);
        let request = &mut self.slab[id];
        let quiet = failed && request.skips_success();
        let next = request.next.take();
        let guard = request.guard.take();
        let hard = request.hard_links();
        let links = request.links();
        self.end(id, result, failed, false);
        self.record(|it| it.may_fail_links());
        if let Some(guard) = guard {
            self.disarm_guard(guard);
        }
        if let Some(next) = next {
            // A LINK_TIMEOUT that was never armed ends with the request that it would have guarded.
            let guards =
                self.slab[next].opcode == anyring_abi::Opcode::LinkTimeout && self.slab[next].failed.is_none();
            let next = if guards {
                let after = self.slab[next].next.take();
                self.end_in_turn(next, self.result_of_unarmed(next, result), false);
                after
            } else {
                Some(next)
            };
            if failed && links && !hard {
                if self.recorder.is_some() {
                    self.flush(); // failures that it causes are recorded after its own end
                }
                self.fail_links(next, quiet);
            } else if let Some(next) = next {
                self.slab[next].make_ready();
                self.slab[next].in_worker = to_worker;
                self.queue.follow(next);
            }
        }
    }

    /// Returns the result of a LINK_TIMEOUT whose request completed at once, with `result`. In the kernel the timer has
    /// started by then, unless the request's file does not exist. A timer that is due as it starts has expired.
    fn result_of_unarmed(&self, id: Id, result: i32) -> i32 {
        /// A duration in nanoseconds. Each request of the kernel's io_uring takes longer.
        const AT_ONCE_NS: u64 = 1_000;
        let expires = |timeout: &Timeout| match timeout.when.absolute {
            true => timeout.when.time_ns <= timeout.clock.now_ns(),
            false => timeout.when.time_ns <= AT_ONCE_NS,
        };
        let has_expired = self.slab[id].op.timeout().is_some_and(expires);
        let error =
            if has_expired && result != -Errno::BADF.raw_os_error() { Errno::NOENT } else { Errno::CANCELED };
        -error.raw_os_error()
    }

    /// Posts a request's CQE and frees its slot. No CQE is posted if `quiet`, or if the request succeeded and asked for
    /// none (IOSQE_CQE_SKIP_SUCCESS).
    pub fn end(&mut self, id: Id, result: i32, failed: bool, quiet: bool) {
        self.record_of(id, |it| it.ends());
        let Some(request) = self.slab.get(id) else { return };
        let cqe = Cqe { user_data: request.user_data, res: result, flags: request.cqe_flags };
        let (opcode, record, number) = (request.opcode, request.record, request.number);
        let skips = request.skips_success() && !mutated(Mutation::SkipPostsAllTheSame);
        // Only an eventfd is signalled in different ways.
        let poster = if self.eventfd.is_some() { natively_posted_by(request) } else { Poster::Task };
        // A larger CQE, or a notification after it. Most CQEs have neither.
        let more = (cqe.flags & (IORING_CQE_F_32 | IORING_CQE_F_NOTIF) != 0)
            .then(|| (request.op.extra(), request.op.notified().unwrap_or(cqe.user_data)));
        let on_its_way = Uncompleted::new(self.ring(), cqe.user_data, record);
        stats::completed(opcode, request.path, result);
        self.slab.remove(id);
        point(Point::Finish);
        let posts = !quiet && (failed || !skips);
        if !posts {
            self.record(|it| it.ends_quietly());
        }
        // A TIMEOUT that is removed counts like any other request (`io_timeout_extract` in io_uring/timeout.c).
        let ends_waits = opcode == Opcode::Timeout && result != -Errno::CANCELED.raw_os_error();
        if posts {
            match more {
                None => self.post(cqe, poster),
                Some(_) if cqe.flags & IORING_CQE_F_NOTIF != 0 => {
                    self.post(Cqe { flags: cqe.flags & IORING_CQE_F_MORE, ..cqe }, poster);
                }
                Some((extra, _)) => self.post_large(cqe, extra.unwrap_or_default(), poster),
            }
            if let Some(record) = record {
                self.batch.ends(record);
            }
            if ends_waits {
                self.count_timeout();
            }
        } else if let Some((chunk, index)) = record {
            let control = self.control;
            // Release: its partner is the same as in `admit`.
            control.record(chunk.into(), index.into()).state.store(RECORD_FREE, Ordering::Release);
            self.records.give_back((chunk, index));
        }
        if ends_waits && !posts {
            self.end_waits();
        }
        if let Some((_, notified)) = more.filter(|_| cqe.flags & IORING_CQE_F_NOTIF != 0) {
            self.notify(opcode, number, Cqe { user_data: notified, ..cqe });
        }
        on_its_way.completed();
    }

    /// Posts the notification of a request that has ended, unless chaos delays it.
    #[cold]
    fn notify(&mut self, opcode: Opcode, number: u64, notification: Cqe) {
        if self.chaos.is_none() || !chaos::delays_notification(self, opcode, number, &notification) {
            self.post_notification(notification.user_data, notification.flags);
        }
    }
}
