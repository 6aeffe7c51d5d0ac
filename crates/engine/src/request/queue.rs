//! Whose turn has come: requests that are to be issued, and what waits until those that go together have had their turn.
//!
//! The requests of a submission go together, as natively those of one run of task work do: what they lead to comes behind them
//! all, and a TIMEOUT among them that counts completions counts all of theirs.

use super::Id;
use std::collections::{TryReserveError, VecDeque};

/// Requests whose turn has come or is to come, and TIMEOUTs that count completions.
#[derive(Default)]
pub struct Queue {
    /// To be issued: successors in chains, those that drain let go, those that were ended.
    ready: VecDeque<Id>,
    /// Completions so far that are not timeouts': what those count.
    completions: u64,
    /// While requests go together: what `completions` was when they began.
    began_at: Option<u64>,
    /// What goes on behind those of them that have ended.
    successors: Vec<Id>,
    /// Multishot POLL_ADDs that were armed by them: what these found is answered behind them all.
    found_polls: Vec<Id>,
    /// TIMEOUTs that count completions, and what `completions` each waits for; those that wait for fewer first.
    counting: Vec<(Id, u64)>,
}

impl Queue {
    /// Nobody's turn has come.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.ready.is_empty()
    }

    /// How many are to be issued.
    #[inline]
    pub fn len(&self) -> usize {
        self.ready.len()
    }

    /// A request's turn comes behind those whose turn has come.
    #[inline]
    pub fn push(&mut self, id: Id) {
        self.ready.push_back(id);
    }

    /// Whose turn it is.
    #[inline]
    pub fn pop(&mut self) -> Option<Id> {
        self.ready.pop_front()
    }

    /// A request goes on behind another of its chain, natively by task work that is queued when the CQEs of those that go
    /// together are posted (`io_free_batch_list` in io_uring/io_uring.c).
    pub fn follow(&mut self, id: Id) {
        match self.began_at {
            Some(_) => self.successors.push(id),
            None => self.ready.push_back(id),
        }
    }

    /// A multishot POLL_ADD was armed. True: what it found is answered in its turn; false: at once.
    #[must_use]
    pub fn note_poll(&mut self, id: Id) -> bool {
        let together = self.is_together();
        if together {
            self.found_polls.push(id);
            self.ready.push_back(id);
        }
        together
    }

    /// Whether a poll was armed by those that go together.
    pub fn has_poll(&self, id: Id) -> bool {
        self.found_polls.contains(&id)
    }

    /// Makes room for each queue to have `size` requests.
    pub fn reserve(&mut self, size: usize) -> Result<(), TryReserveError> {
        self.ready.try_reserve(size.saturating_sub(self.ready.len()))?;
        self.successors.try_reserve(size.saturating_sub(self.successors.len()))?;
        self.found_polls.try_reserve(size.saturating_sub(self.found_polls.len()))
    }
}

/// What goes together.
impl Queue {
    /// From now on requests go together.
    #[inline]
    pub fn begin_together(&mut self) {
        self.began_at = Some(self.completions);
    }

    /// Whether requests go together now.
    #[inline]
    pub fn is_together(&self) -> bool {
        self.began_at.is_some()
    }

    /// Requests that went together have had their turn. True: [`queue_successors`](Self::queue_successors) has to follow, once
    /// TIMEOUTs whose count they reached have ended.
    #[inline]
    #[must_use]
    pub fn end_together(&mut self) -> bool {
        self.began_at = None;
        if !self.found_polls.is_empty() {
            self.found_polls.clear();
        }
        !self.successors.is_empty()
    }

    /// The turn of what goes on behind those that went together has come.
    pub fn queue_successors(&mut self) {
        self.ready.extend(self.successors.drain(..));
    }

    /// What goes together is interrupted: what [`resume`](Self::resume) takes.
    pub fn suspend(&mut self) -> Option<u64> {
        self.began_at.take()
    }

    /// What was interrupted goes on.
    pub fn resume(&mut self, began_at: Option<u64>) {
        self.began_at = began_at;
    }
}

/// Completions, and who counts them.
impl Queue {
    /// A request that is no TIMEOUT completes.
    #[inline]
    pub fn count(&mut self) {
        self.completions += 1;
    }

    /// Entries of the CQ are skipped, which count as completions.
    pub fn count_skipped(&mut self, entries: u32) {
        self.completions += u64::from(entries);
    }

    /// The completion just counted is a TIMEOUT's.
    pub fn uncount(&mut self) {
        self.completions -= 1;
    }

    /// Makes room for one more TIMEOUT that counts, of so many requests.
    pub fn reserve_counting(&mut self, requests: usize) -> Result<(), TryReserveError> {
        self.counting.try_reserve((requests + 1).saturating_sub(self.counting.len()))
    }

    /// A TIMEOUT ends after this many completions. Natively what goes together is posted together, so all of that counts.
    pub fn begin_counting(&mut self, id: Id, count: u64) {
        let target = self.began_at.unwrap_or(self.completions) + count;
        let place = self.counting.partition_point(|(_, other)| *other <= target);
        self.counting.insert(place, (id, target));
    }

    /// A TIMEOUT counts no more.
    pub fn stop_counting(&mut self, id: Id) {
        self.counting.retain(|(counting, _)| *counting != id);
    }

    /// Whether a TIMEOUT counts completions.
    #[inline]
    pub fn is_counted(&self) -> bool {
        !self.counting.is_empty()
    }

    /// The place of a TIMEOUT among those that count.
    pub fn place_of(&self, id: Id) -> Option<usize> {
        self.counting.iter().position(|(counting, _)| *counting == id)
    }

    /// A TIMEOUT whose count has been reached by `completions` of [`completions`](Self::completions).
    pub fn reached(&self, completions: u64) -> Option<Id> {
        self.counting.first().filter(|(_, target)| *target <= completions).map(|(id, _)| *id)
    }

    /// Completions so far.
    pub fn completions(&self) -> u64 {
        self.completions
    }
}

/// The end of all requests.
impl Queue {
    /// No request is there any more; there is room for as many as before.
    pub fn clear(&mut self) {
        self.ready.clear();
        self.successors.clear();
        self.found_polls.clear();
        self.counting.clear();
        self.began_at = None;
    }

    /// In a forked child, where a thread that the child does not have may have been changing it: nothing is freed.
    pub fn abandon(&mut self) {
        let completions = self.completions;
        core::mem::forget(core::mem::replace(self, Queue { completions, ..Queue::default() }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(place: u64) -> Id {
        Id::from_word(place)
    }

    #[test]
    fn what_follows_comes_behind_all_that_go_together() {
        let mut queue = Queue::default();
        queue.begin_together();
        queue.follow(id(1));
        queue.push(id(2));
        assert!(queue.note_poll(id(3)) && queue.has_poll(id(3)));
        assert!(queue.end_together() && !queue.has_poll(id(3)));
        queue.queue_successors();
        queue.follow(id(4));
        let order: Vec<Id> = core::iter::from_fn(|| queue.pop()).collect();
        assert_eq!(order, [2, 3, 1, 4].map(id));
    }

    #[test]
    fn a_timeout_counts_all_completions_of_those_it_goes_with() {
        let mut queue = Queue::default();
        queue.begin_together();
        queue.count();
        queue.begin_counting(id(1), 2);
        queue.begin_counting(id(2), 1);
        assert_eq!(queue.reached(queue.completions()), Some(id(2)));
        queue.stop_counting(id(2));
        assert!(!queue.end_together());
        assert_eq!((queue.reached(queue.completions()), queue.place_of(id(1))), (None, Some(0)));
        queue.count();
        assert_eq!(queue.reached(queue.completions()), Some(id(1)));
    }

    #[test]
    fn what_is_interrupted_goes_on_with_what_it_counted_from() {
        let mut queue = Queue::default();
        queue.begin_together();
        let suspended = queue.suspend();
        assert!(!queue.is_together());
        queue.count();
        queue.resume(suspended);
        queue.begin_counting(id(1), 1);
        assert_eq!(queue.reached(queue.completions()), Some(id(1)));
    }
}
