//! Requests that a worker makes, or that an engine thread waits for: their way to that thread and back.

use crate::forced::{point, Point};
use crate::issue::{iopoll, msg_ring};
use crate::mutation::{mutated, Mutation};
use crate::op::{row, Context, Direction, Identity, Op, Operation, Punt, Verdict, Waiter};
use crate::os::{file_status, owner};
use crate::request::Request;
use crate::request::{Id, State, Target, Then, Tried};
use crate::ring::arrivals::{Left, Rest};
use crate::ring::helper;
use crate::ring::RingGuard;
use crate::stats::Path;
use crate::thread::tables;
use crate::wq::creds::{Claim, CredsPool};
use crate::wq::hashed::Inode;
use crate::wq::{self, Approach, Job};
use crate::wq::{futex, waitid};
use crate::{alloc, identity};
use crate::{descriptors, Errno};
use anyring_abi::{Opcode, IORING_SETUP_DEFER_TASKRUN, IORING_SETUP_IOPOLL, IOSQE_ASYNC, IOSQE_BUFFER_SELECT};
use std::sync::Arc;

impl RingGuard {
    /// Waits for a WAITID whose child has no state to report yet, or that was not attempted. It waits on the child's
    /// pidfd, if that reports the event. Otherwise a thread waits for the child.
    #[cold]
    pub(crate) fn wait_for_child(&mut self, id: Id) {
        let state = &mut **self;
        let Op::Waitid(waitid) = &mut state.slab[id].op else { return };
        if let Some(new) = waitid.own_child() {
            state.poll_set.forget(new.fd);
        }
        // Attempt it: this may be the first attempt, and the child may have exited before its pidfd was opened.
        let verdict = waitid.issue(Context { fd: -1, nonblock: true });
        let to_poll = waitid.to_poll().cloned();
        match (verdict, to_poll) {
            (Verdict::NeedsWorker(_), Some(pidfd)) => {
                self.slab[id].target = Target::Private(pidfd);
                self.wait_for(id, Direction::Read, Tried::Empty, Then::Retry);
            }
            (Verdict::NeedsWorker(_), None) => self.punt_to_waiter(id, Waiter::Child),
            (verdict, _) => self.follow(id, verdict),
        }
    }

    /// Makes a separate thread wait on behalf of the request.
    fn punt_to_waiter(&mut self, id: Id, waiter: Waiter) {
        let op = core::mem::take(&mut self.slab[id].op);
        let job = Job::new(
            (self.ring(), self.cookie, id.to_word()),
            (self.slab[id].opcode, op),
            (-1, None),
            Approach::Plain,
            None,
        );
        self.slab[id].path = Path::Worker;
        self.slab.queue(id, job.clone());
        point(Point::Punt);
        self.arm_link_timeout(id);
        let waits = match waiter {
            Waiter::Futex => futex::arm(&job),
            Waiter::Child => waitid::wait(&job),
        };
        if let Err(error) = waits {
            self.finish(id, -error.raw_os_error(), true);
        }
    }

    /// Queues a request to a worker.
    pub fn punt(&mut self, id: Id, approach: Approach, why: Punt) {
        self.queue_to_worker(id, approach, why, false);
    }

    /// Queues a request to a worker that makes the plain call.
    pub(super) fn punt_plainly(&mut self, id: Id, why: Punt) {
        let approach = if why == Punt::Parallel { Approach::Parallel } else { self.plain_approach(id) };
        self.punt(id, approach, why);
    }

    /// Queues a request to a worker before any attempt.
    pub(super) fn punt_unattempted(&mut self, id: Id, approach: Approach, why: Punt) {
        self.queue_to_worker(id, approach, why, true);
    }

    /// True if the kernel gives a request to a worker from the start. `op` is its operation.
    fn is_natively_by_worker(&self, id: Id, op: &Op) -> bool {
        let request = &self.slab[id];
        request.in_worker || request.flags & IOSQE_ASYNC != 0 || op.is_forced(request.opcode)
    }

    fn queue_to_worker(&mut self, id: Id, approach: Approach, why: Punt, is_first: bool) {
        match self.slab[id].op.waiter() {
            Some(Waiter::Futex) => return self.punt_to_waiter(id, Waiter::Futex),
            Some(Waiter::Child) => return self.wait_for_child(id),
            None => {}
        }
        if let Err(error) = self.keep_file(id) {
            return self.finish(id, -error.raw_os_error(), true);
        }
        let request = &mut self.slab[id];
        let (fd, file) = request.target.for_job();
        let is_timed = !request.is_timed_from_first_result();
        let mut op = core::mem::take(&mut request.op);
        let (flags, target) = (request.flags, request.target.clone());
        request.path = Path::Worker;
        if !op.by_task_work() {
            self.record_of(id, |it| it.queue_async_work(flags, why));
        }
        if is_first && flags & IOSQE_ASYNC != 0 {
            self.record_of(id, |it| it.file_get(&target)); // in the kernel the worker does this
        }
        let by_number = matches!(self.slab[id].target, Target::Number(_));
        let refused = if by_number { refused_number(fd, &op) } else { None };
        let refused = refused.or_else(|| if self.iopoll.is_some() { self.refused_polled(&op, fd) } else { None });
        let mut receiver = None;
        let ready = match (refused, &mut op) {
            (Some(error), _) => Err(error),
            (None, op) if self.slab[id].flags & IOSQE_BUFFER_SELECT != 0 => self.check_and_keep_buffer(id, op, fd),
            (None, Op::MsgRing(message)) if message.sends_file() => {
                msg_ring::look_up_sent(self, message, fd).map(|target| receiver = Some(target))
            }
            (None, op) => op.look_up(self, fd).map(|()| {
                if let Some(new) = op.own_names() {
                    self.poll_set.forget(new);
                }
            }),
        };
        if let Err(error) = ready {
            return self.finish(id, -error.raw_os_error(), true);
        }
        let ring = self.ring();
        let by_task_work = approach == Approach::Plain && op.by_task_work();
        let as_caller = op.depends_on_caller(self.slab[id].opcode) || self.slab[id].hold.is_some();
        // Workers have the first table. A process that runs in another one's memory has no workers, and its credentials
        // and descriptors may differ. So it makes the call itself.
        let by_creds_pool = as_caller || tables::mine() != tables::FIRST || owner::is_another();
        let may_be_armed = approach == Approach::AttemptFirst || by_creds_pool || self.may_be_armed_later(id, fd);
        if may_be_armed {
            self.open_ahead();
        }
        if by_creds_pool {
            helper::ensure_started();
        }
        let approach = match approach {
            // In the kernel no worker makes this call, and the call does not wait. A program that opens both ends of a
            // FIFO waits for the result of the first open.
            _ if matches!(op, Op::Fs(_)) && !self.is_natively_by_worker(id, &op) => Approach::AttemptFirst,
            Approach::AttemptFirst if op.identity(self.slab[id].opcode) != Identity::Names => approach,
            _ if by_creds_pool => Approach::Plain,
            _ => approach,
        };
        let inode = self.inode_of(id, fd, approach);
        let by_caller = approach == Approach::Quick && self.reads_as_caller(&op, fd);
        let job =
            Job::new((ring, self.cookie, id.to_word()), (self.slab[id].opcode, op), (fd, file), approach, inode);
        self.slab.queue(id, job.clone());
        point(Point::Punt);
        descriptors::record_use(fd);
        if is_timed {
            self.arm_link_timeout(id);
        }
        if by_task_work {
            wq::run_alone(job);
            return;
        }
        let queued = match receiver {
            Some(receiver) => receiver.leave_file_for_holder(job),
            _ if by_creds_pool => self.queue_to_creds_pool(id, job),
            _ if by_caller => {
                self.leave_job_to_caller(job);
                true
            }
            _ => wq::queue(job),
        };
        if !queued {
            self.finish(id, -Errno::AGAIN.raw_os_error(), true);
        }
    }

    /// True if a request that goes to a worker may come back to be armed, or if one that follows it in its chain may.
    fn may_be_armed_later(&mut self, id: Id, fd: i32) -> bool {
        self.slab[id].links() || fd >= 0 && !self.poll_set.has_blocks(fd)
    }

    /// Opens, in a call of the program, what an engine thread needs to arm requests of this ring and to watch for them.
    /// While it is opened, it has the number that the program's next open expects. If no descriptor is free, the
    /// arming of a request reports that.
    pub(super) fn open_ahead(&mut self) {
        if self.poll_set.epoll().is_none() {
            let ends = self.ends;
            let _ = self.poll_set.make_epoll(ends);
        } else if helper::is_open() {
            return;
        }
        helper::open_ahead();
    }

    /// Completes the jobs that workers brought back, and posts messages.
    pub fn complete_arrived(&mut self) {
        self.post_messages();
        let mut rest = Rest::take(&self.ring().arrived, &self.ring().left);
        if !rest.things.is_empty() {
            let (count, deferred) = (rest.things.len(), self.ring().defers());
            self.record(|it| it.work_run(count, deferred));
        }
        while let Some(job) = rest.things.pop_front() {
            self.receive(job);
        }
        if !self.ring().driver.handover.has_thread() {
            // A worker may have returned a request to be armed, or released one, while no thread is in
            // io_uring_enter(2).
            self.issue_ready();
            self.call_helper();
        }
    }

    /// Posts the messages that were left for the holder of the ring, in order.
    #[inline]
    pub fn post_messages(&mut self) {
        let ring = self.ring();
        if !ring.left.any(Left::MESSAGES) {
            return;
        }
        let mut rest = Rest::take(&ring.messages, &ring.left);
        while let Some(cqe) = rest.things.pop_front() {
            self.post_message(cqe);
        }
    }

    /// Takes in a worker's result.
    pub fn receive(&mut self, job: Arc<Job>) {
        match self.iopoll {
            Some(_) => iopoll::receive_polled(self, job),
            None => self.bring_back(job),
        }
    }

    /// Follows a job's verdict, if the job's request still exists.
    pub(crate) fn bring_back(&mut self, job: Arc<Job>) {
        // A result that arrives after its ring has ended must not reach a request of the ring's next life.
        if job.cookie != self.cookie {
            return;
        }
        let id = Id::from_word(job.request);
        let broken = self.is_broken();
        if let Some(times) = job.work_times() {
            self.record_of(id, |it| it.task_add_of_worker(times));
        }
        // The worker of a cancelled connect stays in its call, whose result is dropped.
        if !self.slab.get(id).is_some_and(|request| matches!(request.state(), State::Queued(_))) {
            return;
        }
        let id = self.slab.detach(id).id();
        let request = &mut self.slab[id];
        if let Some(mut op) = job.op.lock() {
            request.op = core::mem::take(&mut *op);
        }
        request.hold = job.take_claim();
        let verdict = job.verdict.lock().and_then(|mut verdict| verdict.take());
        let plainly = job.is_plain();
        drop(job);
        match verdict {
            Some(Verdict::WouldBlock(direction)) if plainly && !broken => {
                match self.finish_arrived(id, Verdict::WouldBlock(direction)) {
                    Verdict::WouldBlock(direction) => self.wait_for(id, direction, Tried::Plainly, Then::Retry),
                    verdict => self.follow(id, verdict),
                }
            }
            Some(verdict) if !broken || verdict.is_final() => {
                let verdict = self.finish_arrived(id, verdict);
                self.follow(id, verdict);
            }
            _ => self.finish(id, -Errno::IO.raw_os_error(), true),
        }
    }
}

/// Returns the error if an operation may not use this number among the program's descriptors.
#[inline]
pub(crate) fn refused_number(fd: i32, op: &Op) -> Option<Errno> {
    if descriptors::is_own(fd) {
        return Some(Errno::BADF); // to the program this number is not open
    }
    if !descriptors::is_ring(fd) {
        return None;
    }
    op.refused_by_ring()
}

impl RingGuard {
    /// Returns the inode whose queue a request joins when a worker makes it on `fd`. `None` if the request need not
    /// wait its turn.
    pub fn inode_of(&mut self, id: Id, fd: i32, approach: Approach) -> Option<Inode> {
        let opcode = self.slab[id].opcode;
        if fd < 0 || approach != Approach::Plain || !row(opcode).is_some_and(|row| row.hashed) {
            return None;
        }
        let status = file_status(fd).ok()?;
        let in_turn = match status.kind {
            // File systems make direct writes to one file in parallel (`FOP_DIO_PARALLEL_WRITE`).
            libc::S_IFREG => !self.poll_set.is_direct(fd),
            // In the kernel a single worker makes all queued requests that need not wait for others.
            libc::S_IFCHR | libc::S_IFIFO => !matches!(opcode, Opcode::Splice | Opcode::Tee),
            _ => false,
        };
        in_turn.then_some((status.device, status.inode))
    }

    /// True if a request would have to wait for others at a worker.
    pub fn waits_for_others(&mut self, id: Id, fd: i32) -> bool {
        let inode = self.inode_of(id, fd, Approach::Plain);
        inode.is_some_and(wq::is_busy)
    }
}

impl RingGuard {
    /// True if the worker that completes this request also issues the next request of its chain. With the setup flags
    /// tested here, results go to the submitter first (`io_req_complete_post`).
    pub(crate) fn hands_chain_to_worker(&self, id: Id, result: i32) -> bool {
        let deferred = self.ring().has(IORING_SETUP_DEFER_TASKRUN) || self.ring().has(IORING_SETUP_IOPOLL);
        !deferred && ends_in_worker(&self.slab[id], result)
    }

    /// Ends a request that a worker issued and whose file was not ready. True if it ended, or if the postponed attempt
    /// had a result.
    #[cold]
    pub(crate) fn ends_in_worker(&mut self, id: Id, tried: Tried) -> bool {
        let request = &self.slab[id];
        let gives_up = request.flags & IOSQE_ASYNC == 0
            && !request.op.is_multishot()
            && request.op.worker_fails_with_eagain(request.target.number());
        if !gives_up {
            return false;
        }
        // A worker's plain call is final. Another attempt would be made with the identity of the thread that now holds
        // the ring.
        let verdict = (tried != Tried::Plainly).then(|| self.attempt_again(id));
        match verdict {
            None | Some(Verdict::WouldBlock(_) | Verdict::Skipped(..) | Verdict::NeedsWorkerWhenReady(_)) => {}
            Some(verdict) => {
                self.follow(id, verdict);
                return true;
            }
        }
        if self.slab[id].flags & IOSQE_BUFFER_SELECT != 0 {
            // A worker takes its buffer before it reads.
            let _ = self.with_op(id, |guard, op| guard.keep_buffer(id, op)); // the attempt has found a buffer
        }
        self.finish(id, -Errno::AGAIN.raw_os_error(), true);
        true
    }
}

/// True if the kernel completes the request in a worker.
fn ends_in_worker(request: &Request, result: i32) -> bool {
    if request.failed.is_some() {
        return false;
    }
    if request.op.is_forced(request.opcode) {
        return result != -Errno::BADF.raw_os_error(); // a missing file fails before the call
    }
    // Errors of such requests go to the submitter, and so do requests that another request ends.
    let brought = request.op.is_brought(result, request.path == Path::Inline);
    let sent = request.in_worker || request.flags & IOSQE_ASYNC != 0;
    let by_worker = match request.path {
        Path::Inline => sent,
        Path::Worker => sent || request.target.number().is_some_and(|fd| request.op.waits_for_storage(fd)),
        Path::Poll | Path::Device => false,
    };
    by_worker && !brought
}

/// The requests of the ring's present holder that depend on the holder's identity.
#[derive(Default)]
pub struct Submission {
    pub(crate) workers: Option<Arc<CredsPool>>,
    /// Requests that may have to wait their turn.
    pub(crate) waiting: Vec<Id>,
}

impl Submission {
    /// Keeps the requests for which `keeps` is true; returns the others.
    pub fn split(&mut self, keeps: impl Fn(Id) -> bool) -> Option<Submission> {
        let (kept, others) = core::mem::take(&mut self.waiting).into_iter().partition(|id| keeps(*id));
        self.waiting = kept;
        let others: Vec<Id> = others;
        (!others.is_empty()).then(|| Submission { workers: self.workers.clone(), waiting: others })
    }
}

impl RingGuard {
    /// If another thread may issue the request, and that thread's identity would make a difference, records the
    /// request.
    pub fn record_submitter(&mut self, id: Id) {
        if self.slab[id].depends_on_caller() && !mutated(Mutation::ChainGoesOnAsAnyThread) {
            // Without memory, no credentials pool is held for the request. It ends with an error if it has to wait.
            let _ = alloc::push(&mut self.submission.get_or_insert_default().waiting, id);
        }
    }

    /// Makes requests that the calling thread submitted, and that were not issued, hold a credentials pool. Called
    /// before the ring's lock is released.
    #[cold]
    pub fn leave_submission(&mut self) {
        let Some(mut submission) = self.submission.take() else { return };
        for id in submission.waiting {
            self.claim_workers(id, &mut submission.workers);
        }
    }

    /// Makes requests in flight keep the identity that all threads have had in common. The calling thread is about to
    /// be the first to change its own identity.
    #[cold]
    pub fn keep_identity(&mut self, claim: Option<&Claim>) {
        if self.ring().defers() {
            return; // the thread that submitted a request completes it
        }
        let (mut place, mut workers) = (0, claim.map(|claim| claim.0.clone()));
        while let Some(id) = self.slab.next_from(place) {
            place = id.place() + 1;
            let request = &self.slab[id];
            let acts = match request.state() {
                State::Polling(_) | State::Staged | State::Submitted => request.acts_when_ready(),
                _ => request.depends_on_caller(),
            };
            if acts {
                self.claim_workers(id, &mut workers);
            }
        }
    }

    /// Makes a waiting request hold `workers`, which is the calling thread's pool. If there is no pool yet, makes one.
    fn claim_workers(&mut self, id: Id, workers: &mut Option<Arc<CredsPool>>) {
        if self.is_polled() {
            return; // the thread that submitted the request also continues it
        }
        let waits = |request: &&mut Request| {
            let waits = match request.state() {
                State::Chained | State::Deferred | State::Polling(_) | State::Staged | State::Submitted => true,
                State::Issuing | State::Ready | State::Queued(_) | State::Timed | State::Cancelled(_) => false,
            };
            waits && request.hold.is_none()
        };
        if let Some(request) = self.slab.get_mut(id).filter(waits) {
            request.hold = Some(Claim::new(workers.get_or_insert_with(CredsPool::new)));
        }
    }

    /// Records a request that is about to wait for readiness, if another thread may continue it after the wait.
    #[inline]
    pub fn record_waiting(&mut self, id: Id) {
        if identity::may_differ() && self.slab[id].acts_when_ready() && !self.ring().defers() {
            self.record_submitter(id);
        }
    }

    /// Queues a request to a credentials pool of its submitter. False if no such pool can exist any more.
    pub fn queue_to_creds_pool(&mut self, id: Id, job: Arc<Job>) -> bool {
        match self.slab[id].hold.take().filter(|hold| !hold.is_mine()) {
            Some(hold) => hold.0.queue(job, false),
            None => {
                let submission = self.submission.get_or_insert_default();
                submission.workers.get_or_insert_with(CredsPool::new).clone().queue(job, true)
            }
        }
    }
}
