//! Requests whose turn has come, and requests that wait until the current group has had its turn.
//!
//! The requests of a submission form a group, like those of one run of task work in the kernel. Their successors come
//! after the whole group. A TIMEOUT in the group that counts completions counts all completions of the group.

use super::Id;
use std::collections::{TryReserveError, VecDeque};

/// Requests whose turn has come or will come, and TIMEOUTs that count completions.
#[derive(Default)]
pub struct Queue {
    /// Requests to issue: successors in chains, requests that a drain released, and requests that were ended.
    ready: VecDeque<Id>,
    /// Number of completions so far. Completions of TIMEOUTs are left out, since TIMEOUTs count the others.
    completions: u64,
    /// The value of `completions` when the present group began; `None` if there is no group.
    began_at: Option<u64>,
    /// Successors of the group's requests that have ended.
    successors: Vec<Id>,
    /// Multishot POLL_ADDs that the group armed. Their first results are posted after the group.
    found_polls: Vec<Id>,
    /// TIMEOUTs that count completions, each with the value of `completions` for which it waits. The lowest value is
    /// first.
    counting: Vec<(Id, u64)>,
}

impl Queue {
    /// True if there is no request to issue.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.ready.is_empty()
    }

    /// Number of requests to issue.
    #[inline]
    pub fn len(&self) -> usize {
        self.ready.len()
    }

    /// Adds a request after those whose turn has come.
    #[inline]
    pub fn push(&mut self, id: Id) {
        self.ready.push_back(id);
    }

    /// Takes the request whose turn it is.
    #[inline]
    pub fn pop(&mut self) -> Option<Id> {
        self.ready.pop_front()
    }

    /// Queues the next request of a chain. Its turn comes after the present group. In the kernel its task work is
    /// queued when the CQEs of the group are posted (`io_free_batch_list` in io_uring/io_uring.c).
    pub fn follow(&mut self, id: Id) {
        match self.began_at {
            Some(_) => self.successors.push(id),
            None => self.ready.push_back(id),
        }
    }

    /// Records that a multishot POLL_ADD was armed. Returns true if its first result is posted in its turn, false if
    /// the caller must post it at once.
    #[must_use]
    pub fn record_poll(&mut self, id: Id) -> bool {
        let together = self.is_together();
        if together {
            self.found_polls.push(id);
            self.ready.push_back(id);
        }
        together
    }

    /// True if the current group armed this poll.
    pub fn has_poll(&self, id: Id) -> bool {
        self.found_polls.contains(&id)
    }

    /// Makes room for `size` requests in each queue.
    pub fn reserve(&mut self, size: usize) -> Result<(), TryReserveError> {
        self.ready.try_reserve(size.saturating_sub(self.ready.len()))?;
        self.successors.try_reserve(size.saturating_sub(self.successors.len()))?;
        self.found_polls.try_reserve(size.saturating_sub(self.found_polls.len()))
    }
}

/// The group of requests that are issued together.
impl Queue {
    /// Begins a group.
    #[inline]
    pub fn begin_together(&mut self) {
        self.began_at = Some(self.completions);
    }

    /// True if there is a group now.
    #[inline]
    pub fn is_together(&self) -> bool {
        self.began_at.is_some()
    }

    /// Ends the group: its requests have had their turn. If true, the caller first ends the TIMEOUTs whose count was
    /// reached, and then calls [`queue_successors`](Self::queue_successors).
    #[inline]
    #[must_use]
    pub fn end_together(&mut self) -> bool {
        self.began_at = None;
        if !self.found_polls.is_empty() {
            self.found_polls.clear();
        }
        !self.successors.is_empty()
    }

    /// Queues the successors of the group that ended.
    pub fn queue_successors(&mut self) {
        self.ready.extend(self.successors.drain(..));
    }

    /// Interrupts the group. The caller later passes the returned value to [`resume`](Self::resume).
    pub fn suspend(&mut self) -> Option<u64> {
        self.began_at.take()
    }

    /// Resumes an interrupted group.
    pub fn resume(&mut self, began_at: Option<u64>) {
        self.began_at = began_at;
    }
}

/// Completions, and the TIMEOUTs that count them.
impl Queue {
    /// Counts a completion of a request that is no TIMEOUT.
    #[inline]
    pub fn count(&mut self) {
        self.completions += 1;
    }

    /// Counts skipped CQ entries as completions.
    pub fn count_skipped(&mut self, entries: u32) {
        self.completions += u64::from(entries);
    }

    /// Takes the last completion, which belongs to a TIMEOUT, out of the count.
    pub fn uncount(&mut self) {
        self.completions -= 1;
    }

    /// Makes room for one more counting TIMEOUT, when as many may count as there are `requests`.
    pub fn reserve_counting(&mut self, requests: usize) -> Result<(), TryReserveError> {
        self.counting.try_reserve((requests + 1).saturating_sub(self.counting.len()))
    }

    /// Makes a TIMEOUT end after `count` completions. In the kernel all completions of a group are posted together, so
    /// all of them count.
    pub fn begin_counting(&mut self, id: Id, count: u64) {
        let target = self.began_at.unwrap_or(self.completions) + count;
        let place = self.counting.partition_point(|(_, other)| *other <= target);
        self.counting.insert(place, (id, target));
    }

    /// Stops the count of a TIMEOUT.
    pub fn stop_counting(&mut self, id: Id) {
        self.counting.retain(|(counting, _)| *counting != id);
    }

    /// True if a TIMEOUT counts completions.
    #[inline]
    pub fn is_counted(&self) -> bool {
        !self.counting.is_empty()
    }

    /// The place of a TIMEOUT among those that count.
    pub fn place_of(&self, id: Id) -> Option<usize> {
        self.counting.iter().position(|(counting, _)| *counting == id)
    }

    /// The first TIMEOUT whose count is reached when [`completions`](Self::completions) is `completions`.
    pub fn reached(&self, completions: u64) -> Option<Id> {
        self.counting.first().filter(|(_, target)| *target <= completions).map(|(id, _)| *id)
    }

    /// Number of completions so far.
    pub fn completions(&self) -> u64 {
        self.completions
    }
}

/// The end of all requests.
impl Queue {
    /// Forgets all requests. The queues keep their capacity.
    pub fn clear(&mut self) {
        self.ready.clear();
        self.successors.clear();
        self.found_polls.clear();
        self.counting.clear();
        self.began_at = None;
    }

    /// Forgets all requests in a forked child without freeing their memory. Another thread of the parent may have been
    /// changing the queues.
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
    fn a_successor_comes_after_all_that_go_together() {
        let mut queue = Queue::default();
        queue.begin_together();
        queue.follow(id(1));
        queue.push(id(2));
        assert!(queue.record_poll(id(3)) && queue.has_poll(id(3)));
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
    fn an_interrupted_count_goes_on_from_where_it_began() {
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
