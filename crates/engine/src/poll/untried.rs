//! Requests that were armed without an attempt. There may be something for them all the same, and natively they would
//! complete when they are submitted. So the poll set is looked at before a call returns that does not wait
//! ([`RingGuard::look_for_unlooked`]), and before a request is cancelled or a timer fires.
//!
//! Part of a ring's state, as all of `poll`.

use crate::op::Direction;
use crate::poll::PollSet;
use crate::ring::RingGuard;

impl PollSet {
    /// Whether a request was armed without an attempt since the poll set was last looked at, or waits for its first one.
    #[inline]
    pub fn has_unlooked(&self) -> bool {
        self.unlooked || self.has_put_off()
    }

    /// A request is armed without an attempt.
    #[inline]
    pub fn note_unlooked(&mut self, direction: Direction) {
        self.unlooked |= direction == Direction::Read;
    }
}

impl RingGuard {
    /// Serves what is there already of requests that were armed without an attempt, if there are such.
    #[inline]
    pub fn look_for_unlooked(&mut self) {
        if core::mem::take(&mut self.poll_set.unlooked) {
            self.poll_set.looking = true;
            self.poll_now();
            self.poll_set.looking = false;
        }
    }

    /// The same before something ends requests: also first attempts that were put off are made.
    #[inline]
    pub fn attempt_unlooked(&mut self) {
        if self.poll_set.has_unlooked() {
            self.look_for_unlooked();
            self.attempt_all_put_off();
        }
    }

    /// At the end of a submission: what became ready before it, and what its READ_MULTISHOTs have left behind, has its turn.
    #[inline]
    pub fn go_on(&mut self) {
        if core::mem::take(&mut self.poll_set.goes_on) {
            self.poll_now();
            self.settle();
        }
    }
}
