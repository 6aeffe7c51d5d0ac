//! Whose turn it is: a request that waits is served before one that is submitted after there was something for it. Natively
//! it was queued by what made the descriptor ready (`io_async_wake` in io_uring/poll.c), and ran before that call returned.
//!
//! Between two SQEs of one submission nobody runs natively. So what one of them may have made ready is left for later.
//!
//! Part of a ring's state, as all of `poll`.

use crate::mutation::{mutated, Mutation};
use crate::op::net::Net;
use crate::op::{Direction, Op};
use crate::poll::PollSet;
use crate::request::Target;
use crate::ring::RingGuard;

/// Directions in which nothing that happened during the submission at work can have made a descriptor ready.
#[derive(Default)]
pub struct Due {
    read: bool,
    write: bool,
}

impl PollSet {
    /// A submission begins.
    #[inline]
    pub fn begin_turns(&mut self) {
        self.due = Due { read: true, write: true };
    }

    fn has_waiting(&self, fd: i32, direction: Direction) -> bool {
        let entry = usize::try_from(fd).ok().and_then(|fd| self.entries.get(fd)).and_then(Option::as_ref);
        entry.is_some_and(|entry| match direction {
            Direction::Read => !entry.readers.is_empty(),
            Direction::Write => !entry.writers.is_empty(),
        })
    }
}

impl RingGuard {
    /// An operation is about to be issued that was just submitted: those that wait for the same go first, and notes are heeded.
    #[inline]
    pub fn serve_turns(&mut self, op: &Op, target: &Target) {
        let due = self.poll_set.armed() != 0 && (self.poll_set.due.read || self.poll_set.due.write);
        if due || self.has_notes() {
            self.serve_those_before(due, op, target);
        }
    }

    fn serve_those_before(&mut self, due: bool, op: &Op, target: &Target) {
        self.heed_notes();
        if !due {
            return;
        }
        let direction = match op {
            Op::Nop(_) | Op::Poll(_) | Op::Timeout(_) => return,
            Op::Net(Net::Accept(_)) => Some(Direction::Read),
            op => op.waits_for(),
        };
        let due = &mut self.poll_set.due;
        let Some(direction) = direction else {
            *due = Due::default(); // nobody knows what it makes ready
            return;
        };
        // A read makes room for others' writes, what is written others can read.
        let was_due = match direction {
            Direction::Read => {
                due.write = false;
                due.read
            }
            Direction::Write => {
                due.read = false;
                due.write
            }
        };
        let Ok(fd) = self.number_of(target) else { return };
        if was_due && self.poll_set.has_waiting(fd, direction) && !mutated(Mutation::LateComersGoFirst) {
            self.poll_set.due = Due::default();
            self.poll_now();
        }
    }
}
