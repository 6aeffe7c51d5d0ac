//! Completions before they are copied to the CQ. [`RingGuard::flush`](super::RingGuard::flush) copies them.
//!
//! A batch is part of a ring's state, and guarded by the ring's lock.

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

/// The context in which the kernel posts a CQE. It decides how often the registered eventfd is signalled. Source:
/// io_uring/eventfd.c.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Poster {
    /// The submitting call or task work, which signals once for all CQEs that it posts.
    Task,
    /// The submitting call or task work, with a signal for each CQE (`io_post_aux_cqe` in io_uring/io_uring.c).
    Each,
    /// A worker of io-wq, with a signal for each CQE. `IORING_REGISTER_EVENTFD_ASYNC` counts only these.
    Worker,
}

/// The number of CQEs of each [`Poster`].
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
    /// The capacity: 1 for a CQE of 32 bytes, otherwise `BATCH`.
    pub(super) limit: usize,
    /// The second half of a CQE of 32 bytes.
    pub(super) extra: [u64; 2],
    /// The cached CQ head. The program's core owns that cache line, so the head is read again only if the CQ may have
    /// no room. The head only moves forward, so entries that seem free really are free.
    pub(super) head_seen: u32,
    /// Number of CQEs already in the CQ or the backlog. After a panic, posting continues from there.
    pub(super) posted: usize,
    /// Number of CQEs of TIMEOUTs in the batch: each ends every wait.
    pub(super) timeouts: u32,
    /// Number of CQEs by the way in which the kernel signals the registered eventfd for them: once for each, or once
    /// for all.
    pub(super) signals: Signals,
    /// Shared records that end with a CQE of the batch, and the place of that CQE. In the order of places.
    pub(super) ended: [((u8, u8), u8); BATCH],
    pub(super) ended_count: usize,
}

impl Batch {
    /// Returns the number of free CQ entries: at least as many as the batch needs, or all free entries.
    #[inline(always)] // each flush
    pub(super) fn room(&mut self, view: &View, tail: u32, shared: bool) -> u32 {
        let entries = view.layout().cq_entries;
        let free = |head| entries.saturating_sub(tail.wrapping_sub(head));
        // A CQE of 32 bytes takes two entries, and may have to leave one free.
        let needed = if self.limit == 1 { 3 } else { (self.count - self.posted) as u32 };
        // Other processes may post any number of CQEs between two reads of the head, and `tail` may wrap.
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

    /// Adds a CQE to a batch that is not full. Returns the CQE's place.
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

    /// The CQEs that are not posted yet.
    #[inline]
    pub(super) fn waiting(&self) -> &[Cqe] {
        self.cqes[..self.count].get(self.posted..).unwrap_or_default()
    }

    /// True if the batch holds CQEs of 16 bytes only, none is posted yet, and none belongs to a TIMEOUT.
    #[inline(always)] // each flush
    pub(super) fn is_plain(&self) -> bool {
        (self.posted == 0) & (self.limit == BATCH) & (self.timeouts == 0)
    }

    /// Writes a plain batch to the CQ from `tail` on. The caller has checked that all of it fits. Returns the next
    /// tail.
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

    /// Writes the batch to the CQ from `tail` on, into at most `room` entries. Returns the next tail, and the number of
    /// CQEs left.
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

    /// Moves CQEs that found no room in the CQ to the backlog, while the backlog has room. `may` is false if CQEs were
    /// spilled before.
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

    /// Empties the batch. Returns how its CQEs signal the registered eventfd.
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

    /// Empties the batch after posting. Returns how many CQEs it held.
    pub fn clear(&mut self, control: &Control, records: &mut Records) -> usize {
        self.free_ended(control, records);
        let count = self.count;
        self.timeouts = 0;
        self.begin_anew();
        count
    }

    /// The first `count` CQEs of the batch that was just cleared.
    pub fn cleared(&self, count: usize) -> &[Cqe] {
        self.cqes.get(..count).unwrap_or_default()
    }

    /// Writes into each record that ends the position that its CQE will have. Of the CQEs not posted yet, the first
    /// `room` go into the CQ from `tail` on, the others into the backlog. If this process dies before the CQEs are
    /// published, the requests count as still in flight.
    pub(super) fn locate_ended(&self, control: &Control, tail: u32, room: u32, backlog_tail: u32) {
        for ((chunk, index), place) in self.ended[..self.ended_count].iter().copied() {
            let Some(place) = usize::from(place).checked_sub(self.posted) else { continue };
            let place = place as u32;
            let state = match place.checked_sub(room) {
                None => RECORD_IN_CQ | u64::from(tail.wrapping_add(place)),
                Some(after) => RECORD_IN_BACKLOG | u64::from(backlog_tail.wrapping_add(after)),
            };
            // Release pairs with the Acquire load of `PostLock::repair`.
            control.record(chunk.into(), index.into()).state.store(state, Ordering::Release);
        }
    }

    /// Gives the records back once the CQEs are published.
    pub(super) fn free_ended(&mut self, control: &Control, records: &mut Records) {
        for ((chunk, index), _) in &self.ended[..core::mem::take(&mut self.ended_count)] {
            // Release: its partner is the same as in `admit`.
            control.record((*chunk).into(), (*index).into()).state.store(RECORD_FREE, Ordering::Release);
            records.give_back((*chunk, *index));
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
