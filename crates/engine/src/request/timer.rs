//! Deadlines of a ring's TIMEOUT and LINK_TIMEOUT requests. There is one heap for each clock. Each request knows its
//! place in the heap, so the cost of arming and cancelling is logarithmic in the number of timers.

use super::{Id, Slab};
use crate::alloc;
use crate::os::Clock;
use crate::Errno;

#[derive(Default)]
struct Heap {
    /// Deadline, order of arming, request: the smallest deadline first.
    entries: Vec<(u64, u64, Id)>,
}

/// All timers of a ring.
#[derive(Default)]
pub struct Timers {
    heaps: [Heap; 3],
    /// Number of timers that have been armed so far.
    armed: u64,
    /// Number of timers that are armed now.
    number: usize,
}

impl Timers {
    /// True if no timer is armed.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.number == 0
    }

    /// Makes room for one more timer, where each of the `requests` requests may have an armed timer.
    ///
    /// # Errors
    /// NOMEM.
    pub(crate) fn make_room(&mut self, clock: Clock, requests: usize) -> Result<(), Errno> {
        let heap = &mut self.heaps[clock as usize].entries;
        heap.try_reserve((requests + 1).saturating_sub(heap.len())).map_err(alloc::refused)
    }

    /// Arms the timer of `id` for the request's `deadline_ns`.
    pub fn insert(&mut self, slab: &mut Slab, clock: Clock, id: Id) {
        (self.armed, self.number) = (self.armed + 1, self.number + 1);
        let heap = &mut self.heaps[clock as usize].entries;
        heap.push((slab[id].deadline_ns, self.armed, id));
        let last = heap.len() - 1;
        sift_up(heap, slab, last);
    }

    /// Disarms the timer of `id`, if it is armed.
    pub fn remove(&mut self, slab: &mut Slab, clock: Clock, id: Id) {
        let heap = &mut self.heaps[clock as usize].entries;
        let slot = slab[id].timer_slot as usize;
        if heap.get(slot).is_none_or(|entry| entry.2 != id) {
            return;
        }
        slab[id].timer_slot = u32::MAX;
        self.number -= 1;
        heap.swap_remove(slot);
        if slot < heap.len() {
            sift_down(heap, slab, slot);
            sift_up(heap, slab, slot);
        }
    }

    /// Takes one request whose deadline has passed off its heap; `None` if no deadline has passed.
    pub fn pop_due(&mut self, slab: &mut Slab) -> Option<Id> {
        for clock in Clock::ALL {
            let first = self.heaps[clock as usize].entries.first().copied();
            if let Some((_, _, id)) = first.filter(|(deadline_ns, ..)| *deadline_ns <= clock.now_ns()) {
                self.remove(slab, clock, id);
                return Some(id);
            }
        }
        None
    }

    /// Nanoseconds until the next deadline, 0 when a deadline has passed; `None` if no timer is armed.
    #[inline]
    pub fn next_ns(&self) -> Option<u64> {
        if self.is_empty() {
            return None;
        }
        self.first_ns()
    }

    fn first_ns(&self) -> Option<u64> {
        let spans = Clock::ALL.iter().filter_map(|clock| {
            let (deadline_ns, ..) = self.heaps[*clock as usize].entries.first()?;
            Some(deadline_ns.saturating_sub(clock.now_ns()))
        });
        spans.min()
    }
}

fn key(entry: &(u64, u64, Id)) -> (u64, u64) {
    (entry.0, entry.1)
}

fn sift_up(heap: &mut [(u64, u64, Id)], slab: &mut Slab, mut at: usize) {
    while at > 0 {
        let parent = (at - 1) / 2;
        if key(&heap[parent]) <= key(&heap[at]) {
            break;
        }
        heap.swap(parent, at);
        slab[heap[at].2].timer_slot = at as u32;
        at = parent;
    }
    slab[heap[at].2].timer_slot = at as u32;
}

fn sift_down(heap: &mut [(u64, u64, Id)], slab: &mut Slab, mut at: usize) {
    loop {
        let children = 2 * at + 1..(2 * at + 3).min(heap.len());
        let Some(child) = children.min_by_key(|child| key(&heap[*child])) else { break };
        if key(&heap[at]) <= key(&heap[child]) {
            break;
        }
        heap.swap(at, child);
        slab[heap[at].2].timer_slot = at as u32;
        at = child;
    }
    slab[heap[at].2].timer_slot = at as u32;
}
