//! Completions on their way to the CQ. [`RingGuard::flush`](super::RingGuard::flush) says where they go.
//!
//! Part of a ring's state: under its lock.

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

/// Who posts a CQE natively, which decides how often the registered eventfd is signalled. Source: io_uring/eventfd.c.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Poster {
    /// The submitting call or task work, which signals once for all that it posts.
    Task,
    /// The same, with a signal for each (`io_post_aux_cqe` in io_uring/io_uring.c).
    Each,
    /// A worker of io-wq: a signal for each, and the only ones for `IORING_REGISTER_EVENTFD_ASYNC`.
    Worker,
}

/// How many CQEs each of them posts.
#[derive(Debug, Clone, Copy, Default)]
pub struct Signals {
    /// Those by [`Poster::Task`], known when the batch ends.
    pub together: u32,
    /// Those by [`Poster::Each`].
    pub alone: u32,
    /// These by [`Poster::Worker`].
    pub by_worker: u32,
}

impl Signals {
    /// One more.
    #[inline(always)] // in the loop over SQEs, where nothing is left of it
    pub(super) fn add(&mut self, poster: Poster) {
        match poster {
            Poster::Task => {}
            Poster::Each => self.alone += 1,
            Poster::Worker => self.by_worker += 1,
        }
    }
}

/// Completions that were not copied to the CQ yet.
pub struct Batch {
    pub(super) cqes: [Cqe; BATCH],
    pub(super) count: usize,
    /// How many it takes: one, where that is a CQE of 32 bytes.
    pub(super) limit: usize,
    /// The second half of that one.
    pub(super) extra: [u64; 2],
    /// The CQ's head when it was last looked at: the program's core has that word, so it is asked for only when there may
    /// be no room. The head goes forward only, so that what seems free is.
    pub(super) head_seen: u32,
    /// The first ones of these are in the CQ or the backlog: what a panic in the middle leaves is posted from there on.
    pub(super) posted: usize,
    /// How many of them are TIMEOUTs' own: each ends every wait.
    pub(super) timeouts: u32,
    /// How many of them natively signal the registered eventfd alone, and how many as the others do, together.
    pub(super) signals: Signals,
    /// Shared records that end with a CQE of the batch, and its place there; in the order of places.
    pub(super) ended: [((u8, u8), u8); BATCH],
    pub(super) ended_count: usize,
}

impl Batch {
    /// Free entries of the CQ: as many as the batch needs, or as there are.
    #[inline(always)] // each flush
    pub(super) fn room(&mut self, view: &View, tail: u32, shared: bool) -> u32 {
        let entries = view.layout().cq_entries;
        let free = |head| entries.saturating_sub(tail.wrapping_sub(head));
        // A large one takes two, and may have to leave one free.
        let needed = if self.limit == 1 { 3 } else { (self.count - self.posted) as u32 };
        // Other processes may post any number between two looks of this one, and `tail` come round.
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

    /// Whether it takes no more.
    #[inline]
    pub fn is_full(&self) -> bool {
        self.count >= self.limit
    }

    /// Adds a CQE to one that is not full: its place.
    #[inline(always)] // in the loop over SQEs
    pub fn add(&mut self, cqe: Cqe) -> usize {
        let place = self.count;
        self.cqes[place] = cqe;
        self.count += 1;
        place
    }

    /// In a forked child, which has none of the parent's completions.
    pub fn forget(&mut self) {
        *self = Batch { head_seen: self.head_seen, ..Batch::default() };
    }

    /// The CQE just added is the last of the request with this shared record.
    pub fn ends(&mut self, record: (u8, u8)) {
        self.ended[self.ended_count] = (record, self.count as u8 - 1);
        self.ended_count += 1;
    }

    /// The next CQE that has not been posted.
    pub fn next_to_post(&mut self) -> Option<Cqe> {
        let next = self.cqes[..self.count].get(self.posted).copied();
        self.posted += usize::from(next.is_some());
        next
    }

    /// Those that were not posted.
    #[inline]
    pub(super) fn waiting(&self) -> &[Cqe] {
        self.cqes[..self.count].get(self.posted..).unwrap_or_default()
    }

    /// Whether it holds CQEs of 16 bytes only, none of which was posted or is a TIMEOUT's.
    #[inline(always)] // each flush
    pub(super) fn is_plain(&self) -> bool {
        (self.posted == 0) & (self.limit == BATCH) & (self.timeouts == 0)
    }

    /// Writes a plain one to the CQ from `tail` on, where there is room for all of it: the next tail.
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

    /// Writes it to the CQ from `tail` on as far as `room` entries go: the next tail, and how many CQEs are left.
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

    /// What found no room goes to the backlog, as far as that has some and nothing was spilled before.
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

    /// Forgets the CQEs: how they signal the registered eventfd.
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

    /// All of it was posted: how many that were.
    pub fn clear(&mut self, control: &Control, records: &mut Records) -> usize {
        self.free_ended(control, records);
        let count = self.count;
        self.timeouts = 0;
        self.begin_anew();
        count
    }

    /// The `count` CQEs of which [`clear`](Self::clear) told.
    pub fn cleared(&self, count: usize) -> &[Cqe] {
        self.cqes.get(..count).unwrap_or_default()
    }

    /// Writes into the records that end where their CQEs, those not posted yet, are about to be: `room` of them in the CQ
    /// from `tail` on, the others in the backlog. Should this process die before these are published, the requests are
    /// still in flight.
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

    /// The CQEs were published: gives the records back.
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
