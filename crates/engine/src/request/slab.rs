//! The memory of requests in flight: slots with a fixed place, named by index and generation, and the intrusive lists
//! through them.

use super::Request;
use crate::alloc;
use crate::Errno;
use std::collections::TryReserveError;

/// The name of a request. Once the request has ended, no request has that name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Id {
    index: u32,
    generation: u32,
}

impl Id {
    /// The slot index; unique among requests in flight.
    pub fn place(self) -> usize {
        self.index as usize
    }

    /// Packs the id into one word.
    pub fn to_word(self) -> u64 {
        u64::from(self.generation) << 32 | u64::from(self.index)
    }

    /// Unpacks an id from [`to_word`](Self::to_word).
    pub fn from_word(word: u64) -> Id {
        Id { index: word as u32, generation: (word >> 32) as u32 }
    }
}

#[derive(Default)]
struct Slot {
    generation: u32,
    /// The neighbours in the slot's bucket, [`NONE`] at the ends. Valid while there are buckets and the slot has a
    /// request.
    before: u32,
    after: u32,
    /// The value of [`Slab::arrivals`] when the request came.
    arrival: u64,
    /// The request's user_data, so that a search by user_data reads slots only.
    user_data: u64,
    request: Option<Box<Request>>,
}

/// The index that means no slot.
const NONE: u32 = u32::MAX;

/// All requests of a ring in this process.
#[derive(Default)]
pub struct Slab {
    slots: Vec<Slot>,
    free: Vec<u32>,
    /// Boxes of ended requests, kept so that the hot path does not allocate.
    #[allow(clippy::vec_box)] // a slot takes such a box as it is
    spare: Vec<Box<core::mem::MaybeUninit<Request>>>,
    /// The first slot of each list of requests whose user_data has the same hash. Empty while there are few slots. A
    /// search then reads all slots, and inserts and removals do not pay for buckets.
    buckets: Vec<u32>,
    /// Number of requests that have come so far.
    arrivals: u64,
    /// True if one more request finds a slot without allocating.
    has_room: bool,
    /// True if a request that has begun may not be on a list of its descriptor's entry.
    scattered: bool,
}

const SPARE: usize = 1024;
/// The number of slots above which the slab has buckets.
const SLOTS_WITHOUT_BUCKETS: usize = 64;

impl Slab {
    /// True if one more request finds a slot without allocating. This is a single load, since each SQE asks.
    #[inline]
    pub fn has_room(&self) -> bool {
        self.has_room
    }

    fn record_room(&mut self) {
        self.has_room = !self.free.is_empty() || self.slots.len() != self.slots.capacity();
    }

    /// The capacity to grow to when the slab is full.
    pub fn next_size(&self) -> usize {
        (2 * self.slots.len()).max(4)
    }

    /// Makes room for `size` requests in all.
    pub fn grow(&mut self, size: usize) -> Result<(), TryReserveError> {
        if size > SLOTS_WITHOUT_BUCKETS {
            let buckets = (2 * size).next_power_of_two();
            self.buckets.try_reserve_exact(buckets - self.buckets.len())?;
        }
        self.free.try_reserve_exact(size)?; // the list is empty now
                                            // The slots come last: `has_room` reads their capacity.
        let grown = self.slots.try_reserve_exact(size - self.slots.len());
        self.record_room();
        grown
    }

    /// Puts a request into a free slot.
    #[inline] // otherwise the request would be copied once more
    pub fn insert(&mut self, request: Request) -> Id {
        let user_data = request.user_data;
        let boxed = match self.spare.pop() {
            Some(spare) => Box::write(spare, request),
            None => Box::new(request),
        };
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot::default());
            self.slots.len() as u32 - 1
        });
        self.record_room();
        self.arrivals += 1;
        let slot = &mut self.slots[index as usize];
        (slot.user_data, slot.arrival) = (user_data, self.arrivals);
        slot.request = Some(boxed);
        let id = Id { index, generation: slot.generation };
        if self.slots.len() > SLOTS_WITHOUT_BUCKETS {
            self.enter_bucket(index);
        }
        id
    }

    /// The request, if it has not ended.
    pub fn get(&self, id: Id) -> Option<&Request> {
        let slot = self.slots.get(id.index as usize)?;
        slot.request.as_deref().filter(|_| slot.generation == id.generation)
    }

    /// The request, if it has not ended.
    pub fn get_mut(&mut self, id: Id) -> Option<&mut Request> {
        let slot = self.slots.get_mut(id.index as usize)?;
        slot.request.as_deref_mut().filter(|_| slot.generation == id.generation)
    }

    /// Drops the request, if it has not ended. From then on its id names nothing.
    pub fn remove(&mut self, id: Id) {
        let Some(slot) = self.slots.get_mut(id.index as usize).filter(|slot| slot.generation == id.generation)
        else {
            return;
        };
        let Some(boxed) = slot.request.take() else { return };
        slot.generation = slot.generation.wrapping_add(1);
        self.leave_bucket(id.index);
        self.free.push(id.index);
        self.has_room = true;
        let spare = Box::into_raw(boxed);
        // SAFETY: the value is dropped exactly once, in its place: moving it out would cost more. The allocation is
        // kept as uninitialised memory of the same layout.
        let spare = unsafe {
            spare.drop_in_place();
            Box::from_raw(spare.cast::<core::mem::MaybeUninit<Request>>())
        };
        if self.spare.len() < SPARE {
            self.spare.push(spare);
        }
    }

    /// Takes out the first request from slot `place` on for which `stays` returns false. Also returns the place from
    /// which to continue. It uses only the slots, so it works after a panic. The ids of requests that stay remain
    /// valid. When no request is left to take, the other fields are rebuilt from the slots.
    pub fn sweep(&mut self, place: usize, mut stays: impl FnMut(&mut Request) -> bool) -> Option<(usize, Request)> {
        let mut slots = (place..).zip(self.slots.iter_mut().skip(place));
        let found = slots.find_map(|(place, slot)| {
            if slot.request.as_deref_mut().is_none_or(&mut stays) {
                return None;
            }
            slot.generation = slot.generation.wrapping_add(1);
            slot.request.take().map(|boxed| (place + 1, *boxed))
        });
        if found.is_none() {
            self.free.clear(); // its capacity is enough for all slots
            let free = (0..).zip(&self.slots).filter(|(_, slot)| slot.request.is_none());
            self.free.extend(free.map(|(index, _)| index));
            self.record_room();
            if !self.buckets.is_empty() {
                self.fill_buckets();
            }
        }
        found
    }

    /// Changes a request's user_data.
    pub fn rename(&mut self, id: Id, user_data: u64) {
        let Some(request) = self.get_mut(id) else { return };
        request.user_data = user_data;
        self.leave_bucket(id.index);
        self.slots[id.index as usize].user_data = user_data;
        if !self.buckets.is_empty() {
            self.enter_bucket(id.index);
        }
    }

    /// Number of requests.
    pub fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// True if there are no requests.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The ids of all requests, in the order of slots.
    pub fn ids(&self) -> impl Iterator<Item = Id> + '_ {
        self.slots_where(|_| true)
    }

    /// The id of the first request from this slot on. Lets a caller walk all requests while they change.
    pub fn next_from(&self, place: usize) -> Option<Id> {
        let mut slots = (place..).zip(self.slots.get(place..)?);
        let (index, slot) = slots.find(|(_, slot)| slot.request.is_some())?;
        Some(Id { index: index as u32, generation: slot.generation })
    }

    /// True if a request that has begun may not be on a list of its descriptor's entry, but at a worker, for example.
    /// This is a hint: a close has to check all requests only if it is true.
    pub fn is_scattered(&self) -> bool {
        self.scattered
    }

    /// Sets the hint, or clears it after a check of all requests has found no such request.
    pub fn set_scattered(&mut self, scattered: bool) {
        self.scattered = scattered;
    }

    /// Number of requests that have come since this one.
    pub fn age(&self, id: Id) -> u64 {
        self.arrivals - self.slots[id.index as usize].arrival
    }

    /// The ids of the requests with this user_data for which `wanted` returns true, the youngest first. Fails with
    /// NOMEM if there are too many.
    pub fn with_user_data(&self, user_data: u64, wanted: impl Fn(&Request) -> bool) -> Result<Vec<Id>, Errno> {
        let (mut found, mut pushed) = (Vec::new(), Ok(()));
        self.visit(user_data, wanted, |id| {
            if pushed.is_ok() {
                pushed = alloc::push(&mut found, id);
            }
        });
        found.sort_unstable_by_key(|id| self.age(*id));
        pushed.map(|()| found)
    }

    /// The one of these requests for which `key` is lowest. Mostly there is only one.
    pub fn first_with_user_data<K: Ord>(
        &self,
        user_data: u64,
        wanted: impl Fn(&Request) -> bool,
        key: impl Fn(Id) -> K,
    ) -> Option<Id> {
        let mut first = None;
        self.visit(user_data, wanted, |id| match first {
            Some(before) if key(before) <= key(id) => {}
            _ => first = Some(id),
        });
        first
    }

    fn visit(&self, user_data: u64, wanted: impl Fn(&Request) -> bool, mut each: impl FnMut(Id)) {
        let same = |slot: &Slot| slot.user_data == user_data && slot.request.as_deref().is_some_and(&wanted);
        if self.buckets.is_empty() {
            return self.slots_where(same).for_each(each);
        }
        let mut next = self.buckets[self.bucket(user_data)];
        while let Some(slot) = self.slots.get(next as usize) {
            if same(slot) {
                each(Id { index: next, generation: slot.generation });
            }
            next = slot.after;
        }
    }

    fn slots_where<'a>(&'a self, wanted: impl Fn(&Slot) -> bool + 'a) -> impl Iterator<Item = Id> + 'a {
        let all = self.slots.iter().enumerate();
        all.filter(move |(_, slot)| wanted(slot) && slot.request.is_some())
            .map(|(index, slot)| Id { index: index as u32, generation: slot.generation })
    }

    /// The bucket for this user_data. Programs use counters or addresses. The upper bits of the product depend on all
    /// bits of either.
    fn bucket(&self, user_data: u64) -> usize {
        const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15; // 2^64 divided by the golden ratio
        (user_data.wrapping_mul(GOLDEN) >> (64 - self.buckets.len().trailing_zeros())) as usize
    }

    /// Puts a slot that has a request at the front of its bucket. Rebuilds all buckets if there are more slots than
    /// buckets.
    fn enter_bucket(&mut self, index: u32) {
        if self.slots.len() > self.buckets.len() {
            return self.fill_buckets();
        }
        let bucket = self.bucket(self.slots[index as usize].user_data);
        let after = core::mem::replace(&mut self.buckets[bucket], index);
        if let Some(neighbour) = self.slots.get_mut(after as usize) {
            neighbour.before = index;
        }
        let slot = &mut self.slots[index as usize];
        (slot.before, slot.after) = (NONE, after);
    }

    /// Takes a slot out of its bucket, if there are buckets.
    fn leave_bucket(&mut self, index: u32) {
        if self.buckets.is_empty() {
            return;
        }
        let Slot { before, after, user_data, .. } = self.slots[index as usize];
        match self.slots.get_mut(before as usize) {
            Some(neighbour) => neighbour.after = after,
            None => {
                let bucket = self.bucket(user_data);
                self.buckets[bucket] = after;
            }
        }
        if let Some(neighbour) = self.slots.get_mut(after as usize) {
            neighbour.before = before;
        }
    }

    /// Rebuilds the buckets. Afterwards there are at least twice as many buckets as slots.
    #[cold]
    fn fill_buckets(&mut self) {
        self.buckets.clear();
        self.buckets.resize((2 * self.slots.len()).next_power_of_two(), NONE);
        for index in 0..self.slots.len() as u32 {
            if self.slots[index as usize].request.is_some() {
                self.enter_bucket(index);
            }
        }
    }
}

impl core::ops::Index<Id> for Slab {
    type Output = Request;
    fn index(&self, id: Id) -> &Request {
        self.get(id).expect("a request that is on a list or in a chain has not ended")
    }
}

impl core::ops::IndexMut<Id> for Slab {
    fn index_mut(&mut self, id: Id) -> &mut Request {
        self.get_mut(id).expect("a request that is on a list or in a chain has not ended")
    }
}

/// A request's neighbours in a [`List`].
#[derive(Debug, Default, Clone, Copy)]
pub struct Neighbours {
    before: Option<Id>,
    after: Option<Id>,
}

/// A list through the requests of a slab. It is served from the front.
#[derive(Debug, Default, Clone, Copy)]
pub struct List {
    first: Option<Id>,
    last: Option<Id>,
}

impl List {
    /// The member that is served next.
    pub fn first(&self) -> Option<Id> {
        self.first
    }

    /// True if the list has no member.
    pub fn is_empty(&self) -> bool {
        self.first.is_none()
    }

    /// The member after `id` on its list.
    pub fn after(slab: &Slab, id: Id) -> Option<Id> {
        slab[id].neighbours.after
    }

    /// The member that is served last.
    pub fn last(&self) -> Option<Id> {
        self.last
    }

    /// The member before `id` on its list.
    pub fn before(slab: &Slab, id: Id) -> Option<Id> {
        slab[id].neighbours.before
    }

    /// Adds `id` at the end.
    pub fn push(&mut self, slab: &mut Slab, id: Id) {
        slab[id].neighbours = Neighbours { before: self.last, after: None };
        match self.last {
            Some(last) => slab[last].neighbours.after = Some(id),
            None => self.first = Some(id),
        }
        self.last = Some(id);
    }

    /// Adds `id` at the beginning.
    pub fn push_front(&mut self, slab: &mut Slab, id: Id) {
        slab[id].neighbours = Neighbours { before: None, after: self.first };
        match self.first {
            Some(first) => slab[first].neighbours.before = Some(id),
            None => self.last = Some(id),
        }
        self.first = Some(id);
    }

    /// Removes `id`, which must be on this list.
    pub fn remove(&mut self, slab: &mut Slab, id: Id) {
        let Neighbours { before, after } = core::mem::take(&mut slab[id].neighbours);
        match before {
            Some(before) => slab[before].neighbours.after = after,
            None => self.first = after,
        }
        match after {
            Some(after) => slab[after].neighbours.before = before,
            None => self.last = before,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Target;
    use super::*;
    use crate::op::Op;
    use anyring_abi::Opcode;

    fn sweep_all(slab: &mut Slab, mut stays: impl FnMut(&mut Request) -> bool) -> Vec<Request> {
        let (mut ended, mut place) = (Vec::new(), 0);
        while let Some((next, request)) = slab.sweep(place, &mut stays) {
            place = next;
            ended.push(request);
        }
        ended
    }

    fn request(user_data: u64) -> Request {
        Request::new(Op::default(), Opcode::Nop, 0, user_data, Target::None)
    }

    #[test]
    fn stale_ids_name_nothing() {
        let mut slab = Slab::default();
        let first = slab.insert(request(1));
        assert_eq!(slab[first].user_data, 1);
        slab.remove(first);
        let second = slab.insert(request(2));
        assert!(slab.get(first).is_none());
        slab.remove(first); // does nothing
        assert_eq!(slab[second].user_data, 2);
        assert_eq!((slab.len(), slab.ids().count()), (1, 1));
    }

    #[test]
    fn requests_are_found_by_their_user_data() {
        let mut slab = Slab::default();
        let ids: Vec<Id> = [7, 8, 7, 7].into_iter().map(|n| slab.insert(request(n))).collect();
        slab.rename(ids[1], 7);
        slab.rename(ids[2], 9);
        slab.remove(ids[3]);
        assert_eq!(slab.with_user_data(7, |_| true), Ok(vec![ids[1], ids[0]]));
        assert_eq!(
            (slab.with_user_data(8, |_| true), slab.with_user_data(9, |_| true)),
            (Ok(vec![]), Ok(vec![ids[2]]))
        );
    }

    #[test]
    fn many_requests_are_found_as_few_are() {
        let mut slab = Slab::default();
        let mut live: Vec<(Id, u64)> = Vec::new();
        let mut random = 1_u64;
        for turn in 0..20_000_u64 {
            random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let (choice, place) = (random >> 33, (random >> 40) as usize);
            let grows = turn < 10_000;
            match choice % 8 {
                0 if !live.is_empty() => {
                    let at = place % live.len();
                    live[at].1 = choice % 50;
                    slab.rename(live[at].0, live[at].1);
                }
                1 if turn % 1000 == 1 => {
                    sweep_all(&mut slab, |request| request.user_data != choice % 50);
                    live.retain(|(_, user_data)| *user_data != choice % 50);
                }
                2..=5 if grows => {
                    let user_data = if choice % 3 == 0 { choice % 50 } else { choice };
                    live.push((slab.insert(request(user_data)), user_data));
                }
                _ if !live.is_empty() => {
                    let (id, user_data) = live.swap_remove(place % live.len());
                    assert_eq!(slab[id].user_data, user_data);
                    slab.remove(id);
                }
                _ => {}
            }
            let wanted = if choice % 2 == 0 { choice % 50 } else { live.first().map_or(0, |one| one.1) };
            let mut expected: Vec<Id> = live.iter().filter(|one| one.1 == wanted).map(|one| one.0).collect();
            expected.sort_unstable_by_key(|id| slab.age(*id));
            assert_eq!(slab.with_user_data(wanted, |_| true), Ok(expected));
        }
        assert!(slab.slots.len() > SLOTS_WITHOUT_BUCKETS && !slab.buckets.is_empty());
    }

    #[test]
    fn a_sweep_leaves_what_stays_where_it_is() {
        let mut slab = Slab::default();
        let ids: Vec<Id> = (0..4).map(|n| slab.insert(request(n))).collect();
        slab.free.push(ids[1].index); // a panic might leave the free list like this
        let ended = sweep_all(&mut slab, |request| request.user_data == 2);
        assert_eq!(ended.iter().map(|request| request.user_data).collect::<Vec<_>>(), [0, 1, 3]);
        assert_eq!((slab.len(), slab[ids[2]].user_data), (1, 2));
        assert!([0, 1, 3].iter().all(|n| slab.get(ids[*n]).is_none()));
        assert_eq!(slab.insert(request(4)).index, 3);
        assert_eq!(slab.len(), 2);
    }

    #[test]
    fn lists_keep_order_and_lose_members_anywhere() {
        let mut slab = Slab::default();
        let mut list = List::default();
        let ids: Vec<Id> = (0..4).map(|n| slab.insert(request(n))).collect();
        ids.iter().for_each(|id| list.push(&mut slab, *id));
        list.remove(&mut slab, ids[1]);
        list.remove(&mut slab, ids[3]);
        list.remove(&mut slab, ids[0]);
        assert_eq!((list.first(), List::after(&slab, ids[2])), (Some(ids[2]), None));
        list.remove(&mut slab, ids[2]);
        assert!(list.is_empty());
    }
}
