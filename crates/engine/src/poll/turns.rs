//! Turns: once the event of a waiting request has come, that request is served before any request that is submitted
//! later. In the kernel, whatever makes a descriptor ready queues the waiting request (`io_async_wake` in
//! io_uring/poll.c). That request runs before the call returns.
//!
//! In the kernel, nothing else runs between two SQEs of one submission. So a request that one of these SQEs may have
//! made ready is left for later.
//!
//! Like all of `poll`, this is part of a ring's state.

use crate::op::Direction;
use crate::poll::PollSet;

/// Says which waiting requests are still to be served, since data or room may be there for them.
#[derive(Default)]
pub struct Due {
    /// True if no SQE of the submission under way can have made a descriptor readable.
    pub(crate) read: bool,
    /// True if no SQE of the submission under way can have made a descriptor writable.
    pub(crate) write: bool,
    /// True if requests to read were armed without an attempt since the last poll. If data is there for them, they
    /// are served before the call returns, and before something ends requests.
    pub(crate) unattempted: bool,
    /// True if something is due at the end of the submission. A READ_MULTISHOT continues: its event is in the poll set,
    /// after the events of others. Or a timer was due as it started.
    pub(crate) rest: bool,
}

/// The occasion of a poll.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum When {
    /// The poll replaces the first attempts of requests that were just submitted. It finds what the attempts would have
    /// found.
    InsteadOfAttempts,
    /// Any other occasion. What the poll finds may have come after the submission.
    Later,
}

impl PollSet {
    /// Begins a submission: none of its SQEs has made a descriptor ready yet.
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

    /// Begins the turn of a transfer on `fd`. A read makes room for the writes of others, and a write makes data for
    /// their reads. True if requests that wait on `fd` in the same direction may be ready by now, so that they go
    /// first.
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
