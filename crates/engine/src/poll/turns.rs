//! Whose turn it is: a request that waits is served before one that is submitted after there was something for it. Natively
//! it was queued by what made the descriptor ready (`io_async_wake` in io_uring/poll.c), and ran before that call returned.
//!
//! Between two SQEs of one submission nobody runs natively. So what one of them may have made ready is left for later.
//!
//! Part of a ring's state, as all of `poll`.

use crate::op::Direction;
use crate::poll::PollSet;

/// Directions in which nothing that happened during the submission at work can have made a descriptor ready.
#[derive(Default)]
pub struct Due {
    pub(crate) read: bool,
    pub(crate) write: bool,
}

impl PollSet {
    /// A submission begins.
    #[inline]
    pub fn begin_turns(&mut self) {
        self.due = Due { read: true, write: true };
    }

    pub(crate) fn has_waiting(&self, fd: i32, direction: Direction) -> bool {
        let entry = usize::try_from(fd).ok().and_then(|fd| self.entries.get(fd)).and_then(Option::as_ref);
        entry.is_some_and(|entry| match direction {
            Direction::Read => !entry.readers.is_empty(),
            Direction::Write => !entry.writers.is_empty(),
        })
    }
}
