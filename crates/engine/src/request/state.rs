//! The states of a request, and the only functions that change one.
//!
//! A request is in exactly one [`State`]. All of them change under the ring's lock, by whichever thread holds it: a submitter,
//! the driver, the helper, or a worker that brings a result. The table says who moves a request on.
//!
//! | state | where it hangs | entered by | who moves it on |
//! |---|---|---|---|
//! | `Issuing` | nowhere: the holder of the ring is at it | [`Request::new`], [`Request::take_up`], [`Slab::detach`] | the holder, before it lets go |
//! | `Chained` | behind its predecessor (`next`) | [`Request::chain`] | the predecessor's completion, or the end of the chain's submission |
//! | `Deferred` | the drain queue | [`Request::defer`] | the completion that empties the ring of earlier requests |
//! | `Ready` | `queue` | [`Request::make_ready`] | whoever goes through `queue` |
//! | `Polling` | a list of a descriptor's entry | [`Request::poll`] | the driver that saw readiness, or a cancellation |
//! | `Queued` | a worker's job | [`Slab::queue`] | the worker's result |
//! | `Staged` | the queue of what the device is to get | [`Slab::stage`] | the submission to the device |
//! | `Submitted` | the kernel's AIO | [`Request::submit_to_device`] | its completion |
//! | `Timed` | the timers | [`Request::time`] | the driver at its deadline, the completion it counts, or a removal |
//! | `Cancelled` | `queue` | [`Request::cancel`] | whoever goes through `queue` |
//!
//! What hangs nowhere any more is a [`Detached`]: the compiler complains where nothing is made of it.

use super::slab::{self, Id, Slab};
use super::{ListKind, Target};
use crate::op::{Identity, Op, Skip};
use crate::stats::Path;
use crate::thread;
use crate::wq::creds::Hold;
use crate::wq::Job;
use anyring_abi::{Opcode, IOSQE_ASYNC, IOSQE_CQE_SKIP_SUCCESS, IOSQE_IO_HARDLINK, IOSQE_IO_LINK};
use std::sync::Arc;

/// Where a request is in its life; see the module's head.
#[derive(Debug)]
pub enum State {
    /// The thread that holds the ring is at it.
    Issuing,
    /// Waits for its predecessor in a chain, or for its chain to be complete.
    Chained,
    /// Waits in the drain queue.
    Deferred,
    /// Its turn has come: it is issued when what is ready is gone through.
    Ready,
    /// Waits for readiness.
    Polling(Polling),
    /// A worker has it, or will.
    Queued(Arc<Job>),
    /// The kernel's AIO is about to get it.
    Staged,
    /// The kernel's AIO has it.
    Submitted,
    /// Waits for a deadline or a count of completions.
    Timed,
    /// Was cancelled. It completes once what submits now is done, as natively by task work: its CQE comes behind that of
    /// the request that cancelled it.
    Cancelled(Cancelled),
}

/// How a request waits for readiness.
#[derive(Debug, Clone, Copy)]
pub struct Polling {
    /// The descriptor number whose entry it hangs on.
    pub fd: i32,
    /// On which of the entry's lists.
    pub list: ListKind,
    /// What is known of what is there.
    pub tried: Tried,
    /// What an event leads to.
    pub then: Then,
}

/// Whether something was tried before a request waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tried {
    /// An attempt found nothing.
    Empty,
    /// So did a worker's call that may sleep: the description has O_NONBLOCK.
    Plainly,
    /// Nothing was.
    Skipped(Skip),
}

/// What an event leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Then {
    /// An attempt.
    Retry,
    /// A worker's plain call, since there is no nonblocking form.
    PlainCall,
}

/// How a request ends that was cancelled.
#[derive(Debug, Clone, Copy)]
pub struct Cancelled {
    /// What its CQE says.
    pub result: i32,
    /// Whether that breaks its chain.
    pub failed: bool,
    /// Whether another cancel still finds it: a poll stays in the kernel's table until its task work runs.
    pub found: bool,
}

/// A request that hangs nowhere any more.
#[must_use = "it is issued, followed, made ready, made to wait again, or ended"]
#[derive(Debug)]
pub struct Detached(Id);

impl Detached {
    /// Its id, for going on with it.
    pub fn id(self) -> Id {
        self.0
    }
}

/// One request.
#[derive(Debug)]
pub struct Request {
    /// What to do.
    pub op: Op,
    /// The opcode it came with.
    pub opcode: Opcode,
    /// `IOSQE_*`.
    pub flags: u8,
    /// For the CQE.
    pub user_data: u64,
    /// What it works on.
    pub target: Target,
    state: State,
    /// Which path it is on.
    pub path: Path,
    /// `IORING_CQE_F_*` of its last CQE, and of a notification after it: see [`Op::cqe_flags`].
    pub cqe_flags: u32,
    /// The next request of its chain.
    pub next: Option<Id>,
    /// Natively a worker issues it: see `gives_up_in_worker` in issue/punt.rs.
    pub in_worker: bool,
    /// A chain member that already failed at submission: the result it will complete with.
    pub failed: Option<i32>,
    /// The LINK_TIMEOUT that guards it, once armed.
    pub guard: Option<Id>,
    /// On an armed LINK_TIMEOUT: the request it guards.
    pub guarded: Option<Id>,
    /// Neighbours in the list of a descriptor's entry.
    pub neighbours: slab::Neighbours,
    /// Its place in the timer heap.
    pub timer_slot: u32,
    /// Its deadline, when `Timed`.
    pub deadline_ns: u64,
    /// Its shared record: chunk and index.
    pub record: Option<(u8, u8)>,
    /// The thread that submitted it.
    pub submitter: u32,
    /// Its claim to a thread of its submitter's identity, while it waits its turn.
    pub hold: Option<Hold>,
    /// Which SQE of its ring it was, where that is disturbed: see `issue/chaos.rs`.
    pub number: u64,
}

impl Request {
    /// A request as prepared from an SQE.
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

    /// Where it is in its life.
    #[inline]
    pub fn state(&self) -> &State {
        &self.state
    }

    /// It waits for its predecessor, or for the end of its chain.
    pub fn chain(&mut self) {
        self.state = State::Chained;
    }

    /// It waits in the drain queue.
    pub fn defer(&mut self) {
        self.state = State::Deferred;
    }

    /// Its turn has come; whoever calls this puts it into a queue.
    pub fn make_ready(&mut self) {
        self.state = State::Ready;
    }

    /// Its turn is now: the holder of the ring issues it.
    pub fn take_up(&mut self) {
        self.state = State::Issuing;
    }

    /// It waits for readiness, on a list of the descriptor's entry.
    pub fn poll(&mut self, how: Polling) {
        self.state = State::Polling(how);
    }

    /// It waits on: an attempt has found nothing.
    pub fn finds_nothing(&mut self) {
        if let State::Polling(how) = &mut self.state {
            how.tried = Tried::Empty;
        }
    }

    /// The device has got it.
    pub fn submit_to_device(&mut self) {
        self.state = State::Submitted;
    }

    /// It waits for its timer.
    pub fn time(&mut self) {
        self.state = State::Timed;
    }

    /// It ends so when its turn comes; whoever calls this puts it into a queue.
    pub fn cancel(&mut self, how: Cancelled) {
        self.state = State::Cancelled(how);
    }

    /// A removed poll is found by no cancel any more.
    pub fn hide_cancelled(&mut self) {
        if let State::Cancelled(how) = &mut self.state {
            how.found = false;
        }
    }

    /// True if an event, a worker, the device or a timer moves the request on.
    fn waits(&self) -> bool {
        match self.state {
            State::Deferred | State::Polling(_) | State::Queued(_) => true,
            State::Staged | State::Submitted | State::Timed => true,
            State::Issuing | State::Chained | State::Ready | State::Cancelled(_) => false,
        }
    }

    /// A successor in the chain follows.
    pub fn links(&self) -> bool {
        self.flags & (IOSQE_IO_LINK | IOSQE_IO_HARDLINK) != 0
    }

    /// Its failure does not break the chain.
    pub fn hard_links(&self) -> bool {
        self.flags & IOSQE_IO_HARDLINK != 0
    }

    /// Whether a LINK_TIMEOUT behind it starts with its first answer: the worker that arms it first does not start the timer
    /// (`io_wq_submit_work` in io_uring/io_uring.c). Asked while the request has its operation.
    pub fn is_timed_from_first_answer(&self) -> bool {
        self.flags & IOSQE_ASYNC != 0 && self.op.is_multishot()
    }

    /// A worker is to make it, as with IOSQE_ASYNC.
    pub fn send_to_worker(&mut self) {
        self.flags |= IOSQE_ASYNC;
        self.op.take_submitted();
    }

    /// Its submitter's identity decides what it leads to: see `wq::creds`.
    pub fn depends_on_caller(&self) -> bool {
        self.op.depends_on_caller(self.opcode)
    }

    /// True if the submitter's identity still matters after a wait for readiness.
    pub fn acts_when_ready(&self) -> bool {
        self.op.identity(self.opcode) == Identity::Ready
    }

    /// No CQE for success.
    pub fn skips_success(&self) -> bool {
        self.flags & IOSQE_CQE_SKIP_SUCCESS != 0
    }
}

impl Slab {
    /// A worker, or a thread that waits for it, gets a request.
    pub fn queue(&mut self, id: Id, job: Arc<Job>) {
        self[id].state = State::Queued(job);
        self.note_scattered(true);
    }

    /// The device is to get a request.
    pub fn stage(&mut self, id: Id) {
        self[id].state = State::Staged;
        self.note_scattered(true);
    }

    /// A request has left what it waited for: its list or queue, its job, the device or the timers.
    pub fn detach(&mut self, id: Id) -> Detached {
        debug_assert!(self[id].waits(), "{:?}", self[id].state);
        self[id].state = State::Issuing;
        Detached(id)
    }
}
