//! Calls that may sleep and that the submitting thread makes: OPENAT, STATX, UNLINKAT, CLOSE and others. In the kernel
//! an io-wq worker makes most of them. The engine uses no worker for them, since waking a worker costs ten times as
//! much as a call.
//!
//! A call may sleep forever, for example on a server that is gone, so no thread holds the ring during a call. The
//! request is put in flight, like a request at a worker, and the submission continues. When the ring's lock is released
//! anyway, the thread makes the calls in order, and brings back each result. It does the same with small reads of data
//! in memory that have no nonblocking form, such as those of tmpfs and /proc.
//!
//! The kernel opens a cached path before it reads the next SQE. It also closes a file without data to write back before
//! then. For these two the engine interrupts the submission ([`RingGuard::stops_for_calls`]). While the submission
//! is interrupted, another thread in io_uring_enter(2) may take the next SQEs.
//!
//! Only a thread inside io_uring_enter(2) makes such calls. A call may also become due elsewhere, in a chain or on a
//! polled ring. Such a call goes to a worker, or to a credentials pool of the submitter.

use crate::descriptors;
use crate::forced::{point, Point};
use crate::issue::punt::Submission;
use crate::mutation::{mutated, Mutation};
use crate::op::rw::Rw;
use crate::op::{Op, Punt};
use crate::os::Clock;
use crate::request::{Id, Request, State};
use crate::ring::holder_work::AfterRelease;
use crate::ring::sleeps::{Awake, Kind, Sleep};
use crate::ring::RingGuard;
use crate::wq::{self, Approach, Job};
use core::sync::atomic::Ordering;
use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

/// A call to make when the ring's lock is released.
#[derive(Debug)]
pub struct Call {
    job: Arc<Job>,
    /// True if the call's duration is measured, to decide whether the next calls go to a worker.
    is_measured: bool,
}

/// The calls that the ring's holder makes when it releases the lock.
#[derive(Default)]
pub struct Calls {
    left: VecDeque<Call>,
    /// One of the calls must be made before the next SQE is taken.
    at_once: bool,
    /// True if the holder of the ring is submitting in io_uring_enter(2), and so makes calls itself.
    are_made: bool,
}

impl Calls {
    /// Records that the holder makes calls from now on.
    #[inline]
    pub fn begin(&mut self) {
        self.are_made = true;
    }

    /// Records that the holder makes no more calls.
    #[inline]
    pub fn end(&mut self) {
        self.are_made = false;
    }

    /// True if no call is left.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.left.is_empty()
    }

    /// True if a call must be made before the next SQE is taken.
    #[inline]
    pub fn is_urgent(&self) -> bool {
        self.at_once
    }

    /// Takes the next call out of `earlier` or else of the calls that were left. `earlier` gets the rest of them.
    fn take(&mut self, earlier: &mut VecDeque<Call>) -> Option<Call> {
        self.at_once = false;
        let next = earlier.pop_front().or_else(|| self.left.pop_front());
        if !self.left.is_empty() {
            earlier.append(&mut self.left);
        }
        next
    }

    /// Drops the calls that were left, without making them.
    pub fn clear(&mut self) {
        *self = Calls::default();
    }

    /// Drops the calls in a forked child, without freeing their memory.
    pub fn abandon(&mut self) {
        core::mem::forget(core::mem::take(self));
    }
}

impl RingGuard {
    /// Puts a request in flight whose call this thread makes. A worker gets the request instead if this thread may not
    /// make calls. A worker also gets a call that may wait for a server or a disk, and calls after others that took
    /// long.
    pub(crate) fn leave_to_caller(&mut self, id: Id) {
        let request = &self.slab[id];
        let is_forced = request.op.is_forced(request.opcode);
        let (is_measured, at_once) = match &request.op {
            Op::Fs(_) => (is_forced, !is_forced),
            _ => (false, false),
        };
        let asks_elsewhere = self.calls.are_made && request.op.asks_elsewhere();
        if !self.calls.are_made || asks_elsewhere || is_measured && self.stalls.goes_to_worker() {
            return self.punt(id, Approach::Plain, Punt::NoForm);
        }
        if let Err(error) = self.keep_file(id) {
            return self.finish(id, -error.raw_os_error(), true);
        }
        let request = &mut self.slab[id];
        let (opcode, (fd, file)) = (request.opcode, request.target.for_job());
        let is_timed = !request.is_timed_from_first_result();
        let op = core::mem::take(&mut request.op);
        let job =
            Job::new((self.ring(), self.cookie, id.to_word()), (opcode, op), (fd, file), Approach::ByCaller, None);
        self.slab.queue(id, job.clone());
        point(Point::Punt);
        descriptors::record_use(fd);
        if is_timed {
            self.arm_link_timeout(id);
        }
        self.calls.left.push_back(Call { job, is_measured });
        self.calls.at_once |= at_once;
    }

    /// True if this thread makes a small read that has no nonblocking form. The data must be in memory, and the last
    /// calls must not have taken long.
    pub(super) fn reads_as_caller(&mut self, op: &Op, fd: i32) -> bool {
        let is_known = self.poll_set.is_in_memory(fd);
        let is_seen = op.rw().is_some_and(Rw::reads_memory);
        if is_seen && !is_known {
            self.poll_set.mark_in_memory(fd);
        }
        (is_known || is_seen) && self.calls.are_made && !self.stalls.goes_to_worker()
    }

    /// Leaves a job to this thread, which measures how long the call takes.
    pub(super) fn leave_job_to_caller(&mut self, job: Arc<Job>) {
        self.calls.left.push_back(Call { job, is_measured: true });
    }

    /// True if the calling thread must make a call that was left to it before it takes the next SQE.
    #[cold]
    pub fn stops_for_calls(&self) -> bool {
        self.calls.is_urgent() && self.chain.is_none() && self.drain.is_idle()
    }

    /// Makes the calls that were left, including those that they lead to.
    #[cold]
    pub fn make_calls(&mut self) {
        let together = self.queue.suspend();
        let mut own = self.keep_own_chains();
        // No call stays in the state: another thread that submits would take it for its own.
        let mut calls = VecDeque::new();
        while let Some(Call { job, is_measured }) = self.calls.take(&mut calls) {
            point(Point::Calls);
            let begin_ns = if is_measured { Clock::Monotonic.now_ns() } else { 0 };
            let made = self.without_ring(|| wq::make(&job));
            if is_measured {
                self.stalls.record(Clock::Monotonic.now_ns().saturating_sub(begin_ns));
            }
            // The rest of the same chain still belongs to this thread.
            self.submission = own.take();
            if made {
                self.return_job(job);
            }
            self.issue_ready();
            own = self.submission.take();
        }
        self.submission = own;
        self.queue.resume(together);
    }

    /// Takes the requests of this thread that are not issued yet and that follow one of its calls in a chain. Until
    /// these are put back, no other thread issues them. The other requests get a credentials pool, and any thread
    /// may issue them.
    fn keep_own_chains(&mut self) -> Option<Box<Submission>> {
        let mut submission = self.submission.take()?;
        let is_issued = |request: &Request| matches!(request.state(), State::Queued(_));
        submission.waiting.retain(|id| self.slab.get(*id).is_some_and(|request| !is_issued(request)));
        if submission.waiting.is_empty() && submission.workers.is_none() {
            return None;
        }
        let mut after = BTreeSet::new();
        for call in &self.calls.left {
            let mut next = self.slab.get(Id::from_word(call.job.request)).and_then(|request| request.next);
            while let Some(id) = next {
                after.insert(id);
                next = self.slab.get(id).and_then(|request| request.next);
            }
        }
        self.submission = submission.split(|id| after.contains(&id)).map(Box::new);
        Some(submission)
    }

    /// Makes a call without holding the ring's lock. The ring does not end during the call.
    fn without_ring<T>(&mut self, call: impl FnOnce() -> T) -> T {
        if mutated(Mutation::CallsUnderTheLock) {
            return call();
        }
        let (ring, control) = (self.ring(), self.control);
        ring.sleepers.fetch_add(1, Ordering::Relaxed);
        ring.callers.fetch_add(1, Ordering::Relaxed);
        let awake = Awake::after(Sleep {
            ring,
            control,
            kind: Kind::Call,
            driving: false,
            rings: self.memory.view.rings(),
        });
        self.calls.end();
        self.unlock();
        let result = call();
        self.relock();
        self.calls.begin();
        drop(awake);
        // A thread that closed the ring during the call left it to this thread to end the ring.
        if self.is_closed() {
            self.after_release.add(AfterRelease::END);
        }
        result
    }
}
