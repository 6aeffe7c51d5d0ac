//! First looks of POLL_ADDs that directly follow each other in a submission, made together by one poll(2).
//!
//! POLL_ADD answers at once where its file is ready. Where that was in vain for a descriptor the last times, its look is
//! *gathered*: the request is armed, and looked at with those behind it, before any other SQE is taken in and before the
//! submission ends. So the CQEs, and their order, are as if each had been looked at in its turn; what becomes ready after the
//! look is an event of the registration, which was there before.
//!
//! Part of a ring's state, as all of `poll`; nothing is gathered whenever the ring's lock is free.

use crate::issue::arm::events_of;
use crate::op::poll::PollAdd;
use crate::os::{Os, Sys};
use crate::poll::EDGE;
use crate::ring::RingGuard;
use crate::stats::Path;
use crate::{descriptors, Errno};

/// Looks in vain in a row after which the next one is gathered.
const IN_VAIN: u8 = 2;
impl RingGuard {
    /// Gathers the look of a poll that is about to be armed. False where it is to be made in its turn: its file is not known,
    /// or others wait there, who would be answered in another order.
    pub(crate) fn gathers_look(&mut self, poll: &PollAdd, fd: i32) -> bool {
        let Some(entry) = self.poll_set.existing(fd).filter(|entry| entry.facts.looks_in_vain() >= IN_VAIN) else {
            return false;
        };
        let wanted = events_of(poll) | EDGE;
        let known = entry.registered & wanted == wanted && entry.idle() && descriptors::closes_are_seen();
        if !known || poll.multishot || self.recorder.is_some() || self.aio.is_some() || descriptors::is_ring(fd) {
            return false;
        }
        let events = poll.matching(u16::MAX) as i16;
        self.poll_set.gathered.push(libc::pollfd { fd, events, revents: 0 });
        true
    }

    /// The poll that waits alone on `fd` completes in the submitting call, as one that is looked at in its turn.
    fn complete_inline(&mut self, fd: i32) {
        if let Some(id) = self.poll_set.existing(fd).and_then(|entry| entry.polls.first()) {
            self.slab[id].path = Path::Inline;
        }
    }

    /// Makes the looks that were gathered, and answers in the order of their SQEs.
    #[inline]
    pub fn look_at_gathered(&mut self) {
        if self.poll_set.has_gathered() {
            self.look_at_all_gathered();
        }
    }

    fn look_at_all_gathered(&mut self) {
        let mut gathered = core::mem::take(&mut self.poll_set.gathered);
        let looked = loop {
            match Sys::poll(&mut gathered, Some(0), None) {
                Err(Errno::INTR) => {}
                looked => break looked,
            }
        };
        for look in &gathered {
            if looked.is_err() || look.revents & libc::POLLNVAL != 0 {
                self.reissue_all(look.fd);
                continue;
            }
            self.poll_set.note_look(look.fd, look.revents == 0);
            if look.revents != 0 {
                self.complete_inline(look.fd);
                self.answer_polls(look.fd, look.revents as u16);
            }
        }
        gathered.clear();
        self.poll_set.gathered = gathered;
    }
}
