//! Requests that left the call which submitted them, and how they hang together.
//!
//! Everything here is part of a ring's state and only touched under the ring's lock, by whichever thread holds it: a
//! submitter, the driver, the helper, or a worker that brings a result. A request is in exactly one [`State`]; the table
//! says who moves it on.
//!
//! | state | where it hangs | who ends it |
//! |---|---|---|
//! | `Chained` | behind its predecessor (`next`) | the predecessor's completion |
//! | `Deferred` | the drain queue | the completion that empties the ring of earlier requests |
//! | `Armed` | a list of a descriptor's entry | the driver that saw readiness, or a cancellation |
//! | `Queued` | a worker's job | the worker's result |
//! | `Direct` | staged for the kernel's AIO, then with the kernel | its completion |
//! | `Timed` | the timers | the driver at its deadline, the completion it counts, or a removal |

pub mod cancel;
pub mod drain;
pub mod link;
pub mod slab;
pub mod timer;

pub use slab::{Id, Slab};

use crate::op::{Direction, Op};
use crate::resource::files::FixedFile;
use crate::wq::creds::Hold;
use crate::wq::Job;
use anyring_abi::{Opcode, IOSQE_ASYNC, IOSQE_CQE_SKIP_SUCCESS, IOSQE_IO_HARDLINK, IOSQE_IO_LINK};
use std::sync::Arc;

/// Where a request is in its life.
#[derive(Debug)]
pub enum State {
    /// Waits for its predecessor in a chain, or for its chain to be complete.
    Chained,
    /// Waits in the drain queue.
    Deferred,
    /// Being attempted right now by the thread that holds the ring.
    Issuing,
    /// Waits for readiness of descriptor number `fd`.
    Armed {
        /// The number whose entry it hangs on.
        fd: i32,
        /// On which of the entry's lists.
        list: ListKind,
        /// When ready, a worker makes the call (there is no nonblocking form).
        worker_when_ready: bool,
    },
    /// A worker has it, or will.
    Queued(Arc<Job>),
    /// The kernel's AIO has it, or is about to get it.
    Direct,
    /// Waits for a deadline or a count of completions.
    Timed,
    /// Was cancelled. It completes once what submits now is done, as natively by task work: its CQE comes behind that of
    /// the request that cancelled it.
    Cancelled {
        /// What its CQE says.
        result: i32,
        /// Whether that breaks its chain.
        failed: bool,
        /// Whether another cancel still finds it: a poll stays in the kernel's table until its task work runs.
        found: bool,
    },
}

/// The lists of a descriptor's entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ListKind {
    /// Waits to read.
    Read,
    /// Waits to write.
    Write,
    /// A POLL_ADD.
    Poll,
}

impl From<Direction> for ListKind {
    fn from(direction: Direction) -> ListKind {
        match direction {
            Direction::Read => ListKind::Read,
            Direction::Write => ListKind::Write,
        }
    }
}

/// What a request works on.
#[derive(Debug, Clone)]
pub enum Target {
    /// No file.
    None,
    /// A descriptor number of the program's; resolved when issued, as the kernel does (`IORING_FEAT_LINKED_FILE`).
    Number(i32),
    /// An index into the registered files that has not been looked up yet.
    Index(u32),
    /// A registered file, kept open by the request.
    Fixed(Arc<FixedFile>),
    /// The program closed its number while the request was in flight: a private duplicate.
    Private(Arc<FixedFile>),
}

impl Target {
    /// The descriptor number to use, once it is known.
    pub fn number(&self) -> Option<i32> {
        match self {
            Target::Number(fd) => Some(*fd),
            Target::Fixed(file) | Target::Private(file) => Some(file.fd),
            Target::None | Target::Index(_) => None,
        }
    }

    /// The number for a job, -1 for none, and what keeps it open unless it is the program's.
    pub fn for_job(&self) -> (i32, Option<Arc<FixedFile>>) {
        match self {
            Target::Fixed(file) | Target::Private(file) => (file.fd, Some(file.clone())),
            other => (other.number().unwrap_or(-1), None),
        }
    }
}

/// Which path completed a request, for the counters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Path {
    /// In the submitting call.
    Inline,
    /// After readiness (or a timer).
    Poll,
    /// By the kernel's AIO.
    KernelAio,
    /// By a worker.
    Worker,
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
    /// Where it is in its life.
    pub state: State,
    /// Which path it is on.
    pub path: Path,
    /// `IORING_CQE_F_*` of its last CQE, and of a notification after it: see [`Op::cqe_flags`].
    pub cqe_flags: u32,
    /// The next request of its chain.
    pub next: Option<Id>,
    /// Natively a worker issues it: see `issue::in_worker`.
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
    /// Its claim to a thread of its submitter's identity, while it waits its turn.
    pub hold: Option<Hold>,
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
            hold: None,
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

    /// A worker is to make it, as with IOSQE_ASYNC.
    pub fn send_to_worker(&mut self) {
        self.flags |= IOSQE_ASYNC;
        if let Op::Rw(rw) = &mut self.op {
            rw.take_submitted();
        }
    }

    /// No CQE for success.
    pub fn skips_success(&self) -> bool {
        self.flags & IOSQE_CQE_SKIP_SUCCESS != 0
    }
}
