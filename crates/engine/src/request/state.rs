//! The states of a request, and the only functions that change one.
//!
//! A request is in exactly one [`State`]. All states change under the ring's lock, by the thread that holds the lock.
//! That is a submitter, the driver, the helper, or a worker that brings a result. The table shows which function enters
//! each state, and which event ends it.
//!
//! | state | place | entered by | ended by |
//! |---|---|---|---|
//! | `Issuing` | none: the ring's holder works on it | [`Request::new`], [`Request::begin_turn`], [`Slab::detach`] | the holder, before its release |
//! | `Chained` | after its predecessor (`next`) | [`Request::chain`] | the predecessor's completion, or the end of its submission |
//! | `Deferred` | the drain queue | [`Request::defer`] | the completion that empties the ring of earlier requests |
//! | `Ready` | `queue` | [`Request::make_ready`] | the thread that empties `queue` |
//! | `Polling` | a list of a descriptor's entry | [`Request::poll`] | the driver on readiness, or a cancellation |
//! | `Queued` | a worker's job | [`Slab::queue`] | the worker's result |
//! | `Staged` | the queue of requests for the device | [`Slab::stage`] | the submission to the device |
//! | `Submitted` | the kernel's AIO | [`Request::submit_to_device`] | its completion |
//! | `Timed` | the timers | [`Request::time`] | the driver at its deadline, the completion it counts, or a removal |
//! | `Cancelled` | `queue` | [`Request::cancel`] | the thread that empties `queue` |
//!
//! A request that is in no place any more is a [`Detached`]. The compiler warns if such a value is dropped unused.

use super::slab::{self, Id, Slab};
use super::{ListKind, Target};
use crate::op::{Identity, Op, Skip};
use crate::stats::Path;
use crate::thread;
use crate::wq::creds::Claim;
use crate::wq::Job;
use anyring_abi::{Opcode, IOSQE_ASYNC, IOSQE_CQE_SKIP_SUCCESS, IOSQE_IO_HARDLINK, IOSQE_IO_LINK};
use std::sync::Arc;

/// The state of a request: see the table at the head of this module.
#[derive(Debug)]
pub enum State {
    /// The thread that holds the ring works on the request.
    Issuing,
    /// The request waits for its predecessor in a chain, or for its chain to be complete.
    Chained,
    /// The request waits in the drain queue.
    Deferred,
    /// The request's turn has come: it is issued when the queue is emptied.
    Ready,
    /// The request waits for readiness.
    Polling(Polling),
    /// The request is at a worker, or queued for a worker.
    Queued(Arc<Job>),
    /// The request is in the queue for the kernel's AIO.
    Staged,
    /// The kernel's AIO makes the request.
    Submitted,
    /// The request waits for a deadline or a count of completions.
    Timed,
    /// The request was cancelled. It completes after the present submission, as by task work in the kernel: its CQE
    /// comes after that of the request that cancelled it.
    Cancelled(Cancelled),
}

/// The wait of a request for readiness.
#[derive(Debug, Clone, Copy)]
pub struct Polling {
    /// The descriptor number in whose entry the request waits.
    pub fd: i32,
    /// The list of that entry.
    pub list: ListKind,
    /// The outcome of the last attempt so far.
    pub tried: Tried,
    /// The action when an event comes.
    pub then: Then,
}

/// The outcome of the last attempt before a wait for readiness.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tried {
    /// An attempt found the file not ready.
    Empty,
    /// A worker's call that may sleep found the file not ready: the description has O_NONBLOCK.
    Plainly,
    /// No attempt was made.
    Skipped(Skip),
}

/// The action when an event comes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Then {
    /// Make an attempt.
    Retry,
    /// Let a worker make the plain call, since there is no nonblocking form.
    PlainCall,
}

/// The way in which a cancelled request ends.
#[derive(Debug, Clone, Copy)]
pub struct Cancelled {
    /// The result in its CQE.
    pub result: i32,
    /// True if the result breaks the request's chain.
    pub failed: bool,
    /// True if another cancel still finds the request: a poll stays in the kernel's table until its task work runs.
    pub found: bool,
}

/// A request that is in no queue or list any more.
#[must_use = "it is issued, followed, made ready, made to wait again, or ended"]
#[derive(Debug)]
pub struct Detached(Id);

impl Detached {
    /// The request's id, with which the caller continues it.
    pub fn id(self) -> Id {
        self.0
    }
}

/// One request.
#[derive(Debug)]
pub struct Request {
    /// The operation.
    pub op: Op,
    /// The opcode of the request's SQE.
    pub opcode: Opcode,
    /// `IOSQE_*`.
    pub flags: u8,
    /// The user_data for the CQE.
    pub user_data: u64,
    /// The file that the request works on.
    pub target: Target,
    state: State,
    /// The path on which the request is served.
    pub path: Path,
    /// `IORING_CQE_F_*` of the last CQE, and of a notification after it: see [`Op::cqe_flags`].
    pub cqe_flags: u32,
    /// The next request of the chain.
    pub next: Option<Id>,
    /// A worker issues the request in the kernel: see `ends_in_worker` in issue/punt.rs.
    pub in_worker: bool,
    /// The result with which a chain member that failed at submission will complete.
    pub failed: Option<i32>,
    /// The LINK_TIMEOUT that guards the request, once armed.
    pub guard: Option<Id>,
    /// The request that an armed LINK_TIMEOUT guards.
    pub guarded: Option<Id>,
    /// Neighbours in the list of a descriptor's entry.
    pub neighbours: slab::Neighbours,
    /// The request's index in the timer heap.
    pub timer_slot: u32,
    /// The request's deadline, when `Timed`.
    pub deadline_ns: u64,
    /// The request's shared record: chunk and index.
    pub record: Option<(u8, u8)>,
    /// The thread that submitted the request.
    pub submitter: u32,
    /// The request's claim to a worker with its submitter's identity, while it waits its turn.
    pub hold: Option<Claim>,
    /// The position of the request's SQE in the ring's life. Counted only on a ring with chaos: see `issue/chaos.rs`.
    pub number: u64,
}

impl Request {
    /// Makes a request from a prepared SQE.
    #[inline]
    pub fn new(op: Op, opcode: Opcode, flags: u8, user_data: u64, target: Target) -> Request {
        Request {
            cqe_flags: op.cqe_flags(),
            op,
            opcode,
            flags,
            user_data,
            target,
            state: State::Issuing,
            path: Path::Inline,
            next: None,
            in_worker: false,
            failed: None,
            guard: None,
            guarded: None,
            neighbours: slab::Neighbours::default(),
            timer_slot: u32::MAX,
            deadline_ns: 0,
            record: None,
            submitter: thread::id(),
            hold: None,
            number: 0,
        }
    }

    /// The state.
    #[inline]
    pub fn state(&self) -> &State {
        &self.state
    }

    /// Makes the request wait for its predecessor, or for the end of its chain.
    pub fn chain(&mut self) {
        self.state = State::Chained;
    }

    /// Makes the request wait in the drain queue.
    pub fn defer(&mut self) {
        self.state = State::Deferred;
    }

    /// Records that the request's turn has come. The caller puts the request into a queue.
    pub fn make_ready(&mut self) {
        self.state = State::Ready;
    }

    /// Begins the request's turn: the holder of the ring issues it.
    pub fn begin_turn(&mut self) {
        self.state = State::Issuing;
    }

    /// Makes the request wait for readiness, on a list of the descriptor's entry.
    pub fn poll(&mut self, how: Polling) {
        self.state = State::Polling(how);
    }

    /// Records that an attempt has found the file not ready. The request continues to wait.
    pub fn finds_nothing(&mut self) {
        if let State::Polling(how) = &mut self.state {
            how.tried = Tried::Empty;
        }
    }

    /// Records that the kernel's AIO has the request.
    pub fn submit_to_device(&mut self) {
        self.state = State::Submitted;
    }

    /// Makes the request wait for its timer.
    pub fn time(&mut self) {
        self.state = State::Timed;
    }

    /// Makes the request end with this result when its turn comes. The caller puts the request into a queue.
    pub fn cancel(&mut self, how: Cancelled) {
        self.state = State::Cancelled(how);
    }

    /// Hides a removed poll from further cancels.
    pub fn hide_cancelled(&mut self) {
        if let State::Cancelled(how) = &mut self.state {
            how.found = false;
        }
    }

    /// True if an event, a worker, the device, a timer, or a drain will continue the request.
    fn waits(&self) -> bool {
        match self.state {
            State::Deferred | State::Polling(_) | State::Queued(_) => true,
            State::Staged | State::Submitted | State::Timed => true,
            State::Issuing | State::Chained | State::Ready | State::Cancelled(_) => false,
        }
    }

    /// True if the request has a successor in its chain.
    pub fn links(&self) -> bool {
        self.flags & (IOSQE_IO_LINK | IOSQE_IO_HARDLINK) != 0
    }

    /// True if the request's failure does not break the chain.
    pub fn hard_links(&self) -> bool {
        self.flags & IOSQE_IO_HARDLINK != 0
    }

    /// True if a LINK_TIMEOUT on the request starts with the request's first result. The worker that first arms the
    /// request does not start the timer (`io_wq_submit_work` in io_uring/io_uring.c). Valid while the request has its
    /// operation.
    pub fn is_timed_from_first_result(&self) -> bool {
        self.flags & IOSQE_ASYNC != 0 && self.op.is_multishot()
    }

    /// Marks the request for a worker, as if it had IOSQE_ASYNC.
    pub fn send_to_worker(&mut self) {
        self.flags |= IOSQE_ASYNC;
        self.op.take_submitted();
    }

    /// True if the request's effect depends on its submitter's identity: see `wq::creds`.
    pub fn depends_on_caller(&self) -> bool {
        self.op.depends_on_caller(self.opcode)
    }

    /// True if the submitter's identity still matters after a wait for readiness.
    pub fn acts_when_ready(&self) -> bool {
        self.op.identity(self.opcode) == Identity::Ready
    }

    /// True if a credentials pool must make the request, since the calling thread is not its submitter.
    #[inline]
    pub fn is_others(&self) -> bool {
        self.hold.as_ref().is_some_and(|hold| !hold.is_mine())
    }

    /// True if the request posts no CQE when it succeeds.
    pub fn skips_success(&self) -> bool {
        self.flags & IOSQE_CQE_SKIP_SUCCESS != 0
    }
}

impl Slab {
    /// Gives a request to a worker, or to a thread that waits on its behalf.
    pub fn queue(&mut self, id: Id, job: Arc<Job>) {
        self[id].state = State::Queued(job);
        self.set_scattered(true);
    }

    /// Puts a request into the queue for the kernel's AIO.
    pub fn stage(&mut self, id: Id) {
        self[id].state = State::Staged;
        self.set_scattered(true);
    }

    /// Takes a request out of its place: its list or queue, its job, the kernel's AIO or the timers.
    pub fn detach(&mut self, id: Id) -> Detached {
        debug_assert!(self[id].waits(), "{:?}", self[id].state);
        self[id].state = State::Issuing;
        Detached(id)
    }
}
