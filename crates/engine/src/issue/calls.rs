//! Calls that may sleep, made by the submitting thread (OPENAT, STATX, UNLINKAT, CLOSE ...). Natively a worker of io-wq makes
//! most of them; waking one costs ten times what such a call takes. But whoever makes one may sleep for ever, on a server
//! that is gone, so nobody holds a ring meanwhile: the request is put in flight as one at a worker is, the submission goes on,
//! and when the ring is let go of anyway the calls are made, in their order, and each result is brought back.
//!
//! An OPENAT and a CLOSE natively are done before the next SQE is looked at (where the path is cached, or the file has nothing
//! to write back): for them the submission is interrupted ([`RingGuard::stops_for_calls`]). Another thread that enters
//! meanwhile takes the next SQEs.
//!
//! Only a thread inside io_uring_enter(2) makes such calls. What becomes due elsewhere (in a chain, on a polled ring) goes to
//! a worker, or a credentials pool of the submitter's.

use crate::descriptors;
use crate::forced::{point, Point};
use crate::issue::punt::Submission;
use crate::mutation::{mutated, Mutation};
use crate::op::{Op, Punt};
use crate::os::Clock;
use crate::request::Id;
use crate::ring::notes::Due;
use crate::ring::sleeps::{Awake, Kind, Sleep};
use crate::ring::RingGuard;
use crate::wq::{self, Approach, Job};
use core::sync::atomic::Ordering;
use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

/// A call that the holder of the ring makes when it lets go.
#[derive(Debug)]
pub struct Call {
    job: Arc<Job>,
    /// How long it takes tells whether the next ones go to a worker.
    is_measured: bool,
}

/// Calls that the holder of the ring makes when it lets go.
#[derive(Default)]
pub struct Calls {
    left: Vec<Call>,
    /// One of them comes before the next SQE.
    at_once: bool,
    /// The holder is in a submission of its own: it makes calls itself.
    are_made: bool,
}

impl Calls {
    /// The holder makes calls from now on.
    #[inline]
    pub fn begin(&mut self) {
        self.are_made = true;
    }

    /// It makes no more.
    #[inline]
    pub fn end(&mut self) {
        self.are_made = false;
    }

    /// None is left.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.left.is_empty()
    }

    /// One that is left comes before the next SQE.
    #[inline]
    pub fn is_urgent(&self) -> bool {
        self.at_once
    }

    /// Those that were left.
    fn take(&mut self) -> Vec<Call> {
        self.at_once = false;
        core::mem::take(&mut self.left)
    }

    /// Those that were left are not made.
    pub fn clear(&mut self) {
        *self = Calls::default();
    }

    /// The same in a forked child, where nothing of them is freed.
    pub fn abandon(&mut self) {
        core::mem::forget(core::mem::take(self));
    }
}

impl RingGuard {
    /// Puts a request in flight whose call this thread makes, if it may, is not known to wait for somebody else, and those before it
    /// did not take long.
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
        let is_timed = !request.is_timed_from_first_answer();
        let op = core::mem::take(&mut request.op);
        let job =
            Job::new((self.ring(), self.cookie, id.to_word()), (opcode, op), (fd, file), Approach::ByCaller, None);
        self.slab.queue(id, job.clone());
        point(Point::Punt);
        descriptors::note_use(fd);
        if is_timed {
            self.arm_link_timeout(id);
        }
        self.calls.left.push(Call { job, is_measured });
        self.calls.at_once |= at_once;
    }

    /// Whether the next SQE has to wait for a call.
    #[cold]
    pub fn stops_for_calls(&self) -> bool {
        self.calls.is_urgent() && self.chain.is_none() && self.drain.is_idle()
    }

    /// Makes the calls that were left, those which they lead to included.
    #[cold]
    pub fn make_calls(&mut self) {
        let together = self.queue.suspend();
        let mut own = self.keep_own_chains();
        let mut calls = VecDeque::new();
        loop {
            // None stays in the state, where another thread that submits would take it for its own.
            calls.extend(self.calls.take());
            let Some(Call { job, is_measured }) = calls.pop_front() else { break };
            point(Point::Calls);
            let begin_ns = if is_measured { Clock::Monotonic.now_ns() } else { 0 };
            let made = self.without_ring(|| wq::make(&job));
            if is_measured {
                self.stalls.note(Clock::Monotonic.now_ns().saturating_sub(begin_ns));
            }
            // What else is in the same chain is still this thread's.
            self.submission = own.take();
            if made {
                self.bring_here(job);
            }
            self.issue_ready();
            own = self.submission.take();
        }
        self.submission = own;
        self.queue.resume(together);
    }

    /// Takes those of what this thread submitted and has yet to be issued that come after a call of its own: nobody else issues
    /// them meanwhile. The rest may be, and gets a credentials pool.
    fn keep_own_chains(&mut self) -> Option<Box<Submission>> {
        let mut submission = self.submission.take()?;
        let mut behind = BTreeSet::new();
        for call in &self.calls.left {
            let mut next = self.slab.get(Id::from_word(call.job.request)).and_then(|request| request.next);
            while let Some(id) = next {
                behind.insert(id);
                next = self.slab.get(id).and_then(|request| request.next);
            }
        }
        self.submission = submission.split(|id| behind.contains(&id)).map(Box::new);
        Some(submission)
    }

    /// Makes a call while nobody holds the ring, which does not end meanwhile.
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
        self.let_go();
        let result = call();
        self.take_again();
        self.calls.begin();
        drop(awake);
        // Who closed it left its end to this thread.
        if self.is_closed() {
            self.due.add(Due::END);
        }
        result
    }
}
