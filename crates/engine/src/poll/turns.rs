//! Turns: a waiting request is served before one that is submitted after its event came. Natively it was queued by
//! what made the descriptor ready (`io_async_wake` in io_uring/poll.c), and ran before that call returned.
//!
//! Between two SQEs of one submission nothing else runs natively. So what one of them may have made ready is left for
//! later.
//!
//! Part of a ring's state, as all of `poll`.

use crate::op::Direction;
use crate::poll::PollSet;

/// The waiting requests for which data or room may be there and that are yet to be served.
#[derive(Default)]
pub struct Due {
    /// No SQE of the submission under way can have made a descriptor readable.
    pub(crate) read: bool,
    /// No SQE of the submission under way can have made a descriptor writable.
    pub(crate) write: bool,
    /// Requests to read were armed without an attempt since the last poll. What is there for them is served before
    /// the call returns, and before something ends requests.
    pub(crate) unattempted: bool,
    /// A READ_MULTISHOT continues after its submission: its event is in the poll set, after those of others.
    pub(crate) multishot: bool,
}

/// The occasion of a poll.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum When {
    /// For requests that were just submitted without an attempt, which would have found what is there.
    InsteadOfAttempts,
    /// At any other time: what is there may have come later.
    Later,
}

impl PollSet {
    /// Begins a submission.
    #[inline]
    pub fn begin_turns(&mut self) {
        (self.due.read, self.due.write) = (true, true);
    }

    /// True if a request was armed without an attempt since the last poll, or waits for its first attempt.
    #[inline]
    pub fn has_unattempted(&self) -> bool {
        self.due.unattempted || self.has_postponed()
    }

    /// Records that a request is armed without an attempt.
    #[inline]
    pub fn mark_unattempted(&mut self, direction: Direction) {
        self.due.unattempted |= direction == Direction::Read;
    }

    /// Begins the turn of a transfer on `fd`: a read makes room for others' writes, and others can read what is
    /// written. True if requests that wait there in the same direction may be ready by now: they go first.
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
