//! Whose turn it is: a request that waits is served before one that is submitted after there was something for it. Natively
//! it was queued by what made the descriptor ready (`io_async_wake` in io_uring/poll.c), and ran before that call returned.
//!
//! Between two SQEs of one submission nobody runs natively. So what one of them may have made ready is left for later.
//!
//! Part of a ring's state, as all of `poll`.

use crate::op::Direction;
use crate::poll::PollSet;

/// For whom something may be there that is yet to be served.
#[derive(Default)]
pub struct Due {
    /// Nothing that happened during the submission at work can have made a descriptor readable.
    pub(crate) read: bool,
    /// The same, writable.
    pub(crate) write: bool,
    /// Requests to read were armed without an attempt since the poll set was last looked at: what is there for them comes
    /// before the call returns, and before something ends requests.
    pub(crate) unattempted: bool,
    /// A READ_MULTISHOT goes on behind its submission: its event is in the poll set, behind those of others.
    pub(crate) multishot: bool,
}

/// When the poll set is looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum When {
    /// For those that were submitted just now without an attempt: it would have found what is there.
    InsteadOfAttempts,
    /// At any other time: what is there may have come later.
    Later,
}

impl PollSet {
    /// A submission begins.
    #[inline]
    pub fn begin_turns(&mut self) {
        (self.due.read, self.due.write) = (true, true);
    }

    /// Whether a request was armed without an attempt since the poll set was last looked at, or waits for its first one.
    #[inline]
    pub fn has_unattempted(&self) -> bool {
        self.due.unattempted || self.has_postponed()
    }

    /// A request is armed without an attempt.
    #[inline]
    pub fn note_unattempted(&mut self, direction: Direction) {
        self.due.unattempted |= direction == Direction::Read;
    }

    /// A transfer on `fd` has its turn now: a read makes room for others' writes, what is written others can read. True if
    /// there may be something by now for those that wait there for the same: they go first.
    #[inline]
    pub fn begin_turn(&mut self, fd: i32, direction: Direction) -> bool {
        let was_due = match direction {
            Direction::Read => {
                self.due.write = false;
                self.due.read
            }
            Direction::Write => {
                self.due.read = false;
                self.due.write
            }
        };
        was_due && self.has_waiting(fd, direction)
    }

    fn has_waiting(&self, fd: i32, direction: Direction) -> bool {
        let entry = usize::try_from(fd).ok().and_then(|fd| self.entries.get(fd)).and_then(Option::as_ref);
        entry.is_some_and(|entry| match direction {
            Direction::Read => !entry.readers.is_empty(),
            Direction::Write => !entry.writers.is_empty(),
        })
    }
}
