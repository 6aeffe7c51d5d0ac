//! Completions on their way to the CQ. [`RingGuard::flush`](super::RingGuard::flush) says where they go.
//!
//! A batch is part of a ring's state, under its lock.

use super::Records;
use crate::forced::{point, Point};
use crate::memory::layout::word;
use crate::memory::layout::BATCH;
use crate::memory::view::View;
use crate::mutation::{mutated, Mutation};
use crate::request::queue::Queue;
use crate::shared::control::{Control, PostLock, RECORD_FREE, RECORD_IN_BACKLOG, RECORD_IN_CQ};
use anyring_abi::Cqe;
use core::sync::atomic::Ordering;

/// The native poster of a CQE, which decides how often the registered eventfd is signalled. Source:
/// io_uring/eventfd.c.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Poster {
    /// The submitting call or task work, which signals once for all that it posts.
    Task,
    /// The submitting call or task work, with a signal for each CQE (`io_post_aux_cqe` in io_uring/io_uring.c).
    Each,
    /// A worker of io-wq: a signal for each CQE. `IORING_REGISTER_EVENTFD_ASYNC` counts only these.
    Worker,
}

/// Number of CQEs of each poster.
#[derive(Debug, Clone, Copy, Default)]
pub struct Signals {
    /// CQEs of [`Poster::Task`], known when the batch ends.
    pub together: u32,
    /// CQEs of [`Poster::Each`].
    pub alone: u32,
    /// CQEs of [`Poster::Worker`].
    pub by_worker: u32,
}

impl Signals {
    /// Counts one more CQE.
    #[inline(always)] // in the loop over SQEs, where it compiles to nothing
    pub(super) fn add(&mut self, poster: Poster) {
        match poster {
            Poster::Task => {}
            Poster::Each => self.alone += 1,
            Poster::Worker => self.by_worker += 1,
        }
    }
}

/// Completions not yet copied to the CQ.
pub struct Batch {
    pub(super) cqes: [Cqe; BATCH],
    pub(super) count: usize,
    /// The capacity: 1 for a CQE of 32 bytes, else `BATCH`.
    pub(super) limit: usize,
    /// The second half of a CQE of 32 bytes.
    pub(super) extra: [u64; 2],
    /// The cached CQ head. The program's core owns that cache line, so the head is read again only when there may be
    /// no room. The head only moves forward, so entries that seem free are.
    pub(super) head_seen: u32,
    /// Number of CQEs already in the CQ or the backlog. After a panic the rest is posted from there on.
    pub(super) posted: usize,
    /// Number of TIMEOUTs' own CQEs in the batch: each ends every wait.
    pub(super) timeouts: u32,
    /// Number of CQEs by how they natively signal the registered eventfd: each for itself, or all together.
    pub(super) signals: Signals,
    /// Shared records that end with a CQE of the batch, and that CQE's place in it, in the order of places.
    pub(super) ended: [((u8, u8), u8); BATCH],
    pub(super) ended_count: usize,
}

impl Batch {
    /// Returns the number of free CQ entries: at least as many as the batch needs, or all there are.
    #[inline(always)] // each flush
    pub(super) fn room(&mut self, view: &View, tail: u32, shared: bool) -> u32 {
        let entries = view.layout().cq_entries;
        let free = |head| entries.saturating_sub(tail.wrapping_sub(head));
        // A large CQE takes two entries, and may have to leave one free.
        let needed = if self.limit == 1 { 3 } else { (self.count - self.posted) as u32 };
        // Other processes may post any number between two reads of the head by this one, and `tail` may wrap.
        if free(self.head_seen) >= needed && !shared {
            return free(self.head_seen);
        }
        match view.load(word::CQ_HEAD) {
            Ok(head) => {
                self.head_seen = head;
                free(head)
            }
            Err(_) => 0,
        }
    }

    /// True if the batch takes no more.
    #[inline]
    pub fn is_full(&self) -> bool {
        self.count >= self.limit
    }

    /// Adds a CQE to a batch that is not full; returns its place.
    #[inline(always)] // in the loop over SQEs
    pub fn add(&mut self, cqe: Cqe) -> usize {
        let place = self.count;
        self.cqes[place] = cqe;
        self.count += 1;
        place
    }

    /// Empties the batch in a forked child, which has none of the parent's completions.
    pub fn forget(&mut self) {
        *self = Batch { head_seen: self.head_seen, ..Batch::default() };
    }

    /// Records that the CQE just added is the last of the request with this shared record.
    pub fn ends(&mut self, record: (u8, u8)) {
        self.ended[self.ended_count] = (record, self.count as u8 - 1);
        self.ended_count += 1;
    }

    /// Returns the next CQE that has not been posted, and counts it as posted.
    pub fn next_to_post(&mut self) -> Option<Cqe> {
        let next = self.cqes[..self.count].get(self.posted).copied();
        self.posted += usize::from(next.is_some());
        next
    }

    /// CQEs that were not posted.
    #[inline]
    pub(super) fn waiting(&self) -> &[Cqe] {
        self.cqes[..self.count].get(self.posted..).unwrap_or_default()
    }

    /// True if the batch holds CQEs of 16 bytes only, none is posted yet, and none is a TIMEOUT's.
    #[inline(always)] // each flush
    pub(super) fn is_plain(&self) -> bool {
        (self.posted == 0) & (self.limit == BATCH) & (self.timeouts == 0)
    }

    /// Writes a plain batch to the CQ from `tail` on, where all of it fits. Returns the next tail.
    #[inline(always)] // each flush
    pub(super) fn write_run(&mut self, control: &Control, view: &View, tail: u32) -> u32 {
        let count = self.count as u32;
        if self.ended_count != 0 {
            self.locate_ended(control, tail, count, 0);
        }
        view.write_run(tail, &self.cqes[..self.count]);
        self.posted = self.count;
        tail.wrapping_add(count)
    }

    /// Writes the batch to the CQ from `tail` on, as far as `room` entries go. Returns the next tail, and the number
    /// of CQEs left.
    pub(super) fn place(
        &mut self,
        post: &mut PostLock,
        view: &View,
        (mut tail, mut room): (u32, u32),
        queue: &mut Queue,
    ) -> (u32, usize) {
        let double = self.limit == 1 && view.is_double(&self.cqes[0]);
        if double {
            let place = view.place_double(tail, room);
            queue.count_skipped(place.0.wrapping_sub(tail));
            (tail, room) = place;
        }
        if self.ended_count != 0 {
            self.locate_ended(post.control(), tail, room, post.backlog_tail());
        }
        for cqe in self.cqes[..self.count].iter().skip(self.posted) {
            if room == 0 || view.write(tail, *cqe, self.extra, double).is_err() {
                break;
            }
            tail = tail.wrapping_add(1 + u32::from(double));
            room -= 1;
            self.posted += 1;
        }
        (tail, self.count - self.posted)
    }

    /// Moves CQEs that found no room to the backlog, while it has room and if `may` is true (nothing was spilled
    /// before).
    #[cold]
    #[inline(never)]
    pub(super) fn push_to_backlog(&mut self, post: &mut PostLock, may: bool) {
        while may && self.posted != self.count {
            let cqe = self.cqes[self.posted];
            if !post.push_backlog(cqe, self.extra) {
                break;
            }
            if mutated(Mutation::OverflowPostsTwice) {
                let _ = post.push_backlog(cqe, self.extra);
            }
            self.posted += 1;
            point(Point::Backlog);
        }
    }

    /// Forgets the CQEs. Returns how they signal the registered eventfd.
    #[inline(always)] // each flush
    pub(super) fn begin_anew(&mut self) -> Signals {
        let together = self.count as u32;
        (self.count, self.posted) = (0, 0);
        if self.limit != BATCH {
            (self.limit, self.extra) = (BATCH, [0; 2]);
        }
        let Signals { alone, by_worker, .. } = core::mem::take(&mut self.signals);
        Signals { together: together.saturating_sub(alone + by_worker), alone, by_worker }
    }

    /// Empties the batch after posting; returns how many CQEs it held.
    pub fn clear(&mut self, control: &Control, records: &mut Records) -> usize {
        self.free_ended(control, records);
        let count = self.count;
        self.timeouts = 0;
        self.begin_anew();
        count
    }

    /// The CQEs of the batch last cleared.
    pub fn cleared(&self, count: usize) -> &[Cqe] {
        self.cqes.get(..count).unwrap_or_default()
    }

    /// Writes the positions of their coming CQEs into the records that end. Of the CQEs not posted yet, `room` go
    /// into the CQ from `tail` on, the others into the backlog. If this process dies before these are published, the
    /// requests are still in flight.
    pub(super) fn locate_ended(&self, control: &Control, tail: u32, room: u32, backlog_tail: u32) {
        for ((chunk, index), place) in self.ended[..self.ended_count].iter().copied() {
            let Some(place) = usize::from(place).checked_sub(self.posted) else { continue };
            let place = place as u32;
            let state = match place.checked_sub(room) {
                None => RECORD_IN_CQ | u64::from(tail.wrapping_add(place)),
                Some(behind) => RECORD_IN_BACKLOG | u64::from(backlog_tail.wrapping_add(behind)),
            };
            // Release pairs with the Acquire load of `PostLock::repair`.
            control.record(chunk.into(), index.into()).state.store(state, Ordering::Release);
        }
    }

    /// Gives the records back once the CQEs are published.
    pub(super) fn free_ended(&mut self, control: &Control, records: &mut Records) {
        for ((chunk, index), _) in &self.ended[..core::mem::take(&mut self.ended_count)] {
            // Release: partner as in `admit`.
            control.record((*chunk).into(), (*index).into()).state.store(RECORD_FREE, Ordering::Release);
            records.give((*chunk, *index));
        }
    }
}

impl Default for Batch {
    fn default() -> Batch {
        Batch {
            cqes: [Cqe::default(); BATCH],
            count: 0,
            limit: BATCH,
            extra: [0; 2],
            head_seen: 0,
            posted: 0,
            timeouts: 0,
            signals: Signals::default(),
            ended: [((0, 0), 0); BATCH],
            ended_count: 0,
        }
    }
}
