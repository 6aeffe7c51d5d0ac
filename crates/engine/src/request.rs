//! Requests that outlive the call which submitted them, and their chains.
//!
//! All of this is part of a ring's state, and is accessed under the ring's lock only. `request/state.rs` lists the
//! states of a request and the events that change them.

pub mod drain;
pub mod queue;
pub mod slab;
mod state;
pub mod timer;

pub use slab::{Id, Slab};
pub use state::{Cancelled, Detached, Polling, Request, State, Then, Tried};

use crate::op::{Direction, Op};
use crate::resource::files::FixedFile;
use std::sync::Arc;

/// The lists in the entry that the poll set has for a descriptor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ListKind {
    /// Requests that wait to read.
    Read,
    /// Requests that wait to write.
    Write,
    /// Requests of POLL_ADD.
    Poll,
}

impl ListKind {
    /// The list for an operation that waits in this direction.
    #[inline]
    pub fn of(op: &Op, direction: Direction) -> ListKind {
        match op.poll() {
            Some(_) => ListKind::Poll,
            None => direction.into(),
        }
    }
}

impl From<Direction> for ListKind {
    fn from(direction: Direction) -> ListKind {
        match direction {
            Direction::Read => ListKind::Read,
            Direction::Write => ListKind::Write,
        }
    }
}

/// The file that a request works on.
#[derive(Debug, Clone)]
pub enum Target {
    /// No file.
    None,
    /// One of the program's descriptor numbers. It is resolved when the request is issued, as in the kernel
    /// (`IORING_FEAT_LINKED_FILE`).
    Number(i32),
    /// An index into the registered files that has not been looked up yet.
    Index(u32),
    /// A registered file, which the request keeps open.
    Fixed(Arc<FixedFile>),
    /// A private duplicate, since the program closed its number while the request was in flight.
    Private(Arc<FixedFile>),
}

impl Target {
    /// The descriptor number to use; `None` if there is no file, or it is not looked up yet.
    pub fn number(&self) -> Option<i32> {
        match self {
            Target::Number(fd) => Some(*fd),
            Target::Fixed(file) | Target::Private(file) => Some(file.fd),
            Target::None | Target::Index(_) => None,
        }
    }

    /// The number for a worker's job, or -1. Also the file that keeps that number open, unless the program's number is
    /// used.
    pub fn for_job(&self) -> (i32, Option<Arc<FixedFile>>) {
        match self {
            Target::Fixed(file) | Target::Private(file) => (file.fd, Some(file.clone())),
            other => (other.number().unwrap_or(-1), None),
        }
    }
}

/// The chain under construction.
#[derive(Debug, Clone, Copy)]
pub struct Chain {
    pub(crate) head: Id,
    pub(crate) last: Id,
}
