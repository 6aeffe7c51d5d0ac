//! Where requests live while they are in flight: slots that keep their place, named by index and generation, and the
//! intrusive lists through them.

use super::Request;

/// Names a request; a stale one names nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Id {
    index: u32,
    generation: u32,
}

struct Slot {
    generation: u32,
    /// The request's, so that a search by it looks at slots only.
    user_data: u64,
    request: Option<Box<Request>>,
}

/// All requests of a ring in this process.
#[derive(Default)]
pub struct Slab {
    slots: Vec<Slot>,
    free: Vec<u32>,
    /// Boxes of ended requests, so that the hot path does not allocate.
    #[allow(clippy::vec_box)] // the boxes are what is kept: a slot takes one as it is
    spare: Vec<Box<core::mem::MaybeUninit<Request>>>,
}

const SPARE: usize = 1024;

impl Slab {
    /// Puts a request into a free slot.
    pub fn insert(&mut self, request: Request) -> Id {
        let user_data = request.user_data;
        let boxed = match self.spare.pop() {
            Some(spare) => Box::write(spare, request),
            None => Box::new(request),
        };
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot { generation: 0, user_data: 0, request: None });
            self.slots.len() as u32 - 1
        });
        let slot = &mut self.slots[index as usize];
        slot.user_data = user_data;
        slot.request = Some(boxed);
        Id { index, generation: slot.generation }
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

    /// Takes the request out; its id names nothing from now on.
    pub fn remove(&mut self, id: Id) -> Option<Request> {
        let slot = self.slots.get_mut(id.index as usize)?;
        if slot.generation != id.generation {
            return None;
        }
        let boxed = slot.request.take()?;
        slot.generation = slot.generation.wrapping_add(1);
        self.free.push(id.index);
        let (request, spare) = {
            let spare: *mut Request = Box::into_raw(boxed);
            // SAFETY: the value is moved out exactly once, and the allocation goes on as uninitialised memory of the
            // same layout.
            unsafe { (spare.read(), Box::from_raw(spare.cast::<core::mem::MaybeUninit<Request>>())) }
        };
        if self.spare.len() < SPARE {
            self.spare.push(spare);
        }
        Some(request)
    }

    /// Takes out every request that does not stay. Relies on nothing but the slots themselves, so that it can follow a
    /// panic; the ids of those that stay go on naming them.
    pub fn sweep(&mut self, mut stays: impl FnMut(&mut Request) -> bool) -> Vec<Request> {
        let mut ended = Vec::new();
        for slot in &mut self.slots {
            if slot.request.as_deref_mut().is_some_and(|request| !stays(request)) {
                slot.generation = slot.generation.wrapping_add(1);
                ended.extend(slot.request.take().map(|boxed| *boxed));
            }
        }
        let free = self.slots.iter().enumerate().filter(|(_, slot)| slot.request.is_none());
        self.free = free.map(|(index, _)| index as u32).collect();
        ended
    }

    /// Gives a request another user_data.
    pub fn rename(&mut self, id: Id, user_data: u64) {
        if let Some(request) = self.get_mut(id) {
            request.user_data = user_data;
            self.slots[id.index as usize].user_data = user_data;
        }
    }

    /// How many requests there are.
    pub fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Every request's id, oldest slot first.
    pub fn ids(&self) -> Vec<Id> {
        self.slots_where(|_| true).collect()
    }

    /// The ids of the requests with this user_data, oldest slot first.
    pub fn with_user_data(&self, user_data: u64) -> impl Iterator<Item = Id> + '_ {
        self.slots_where(move |slot| slot.user_data == user_data)
    }

    fn slots_where<'a>(&'a self, wanted: impl Fn(&Slot) -> bool + 'a) -> impl Iterator<Item = Id> + 'a {
        let all = self.slots.iter().enumerate();
        all.filter(move |(_, slot)| wanted(slot) && slot.request.is_some())
            .map(|(index, slot)| Id { index: index as u32, generation: slot.generation })
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

/// A request's place in a [`List`].
#[derive(Debug, Default, Clone, Copy)]
pub struct Neighbours {
    before: Option<Id>,
    after: Option<Id>,
}

/// A list through the requests of a slab, served from its first member on.
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

    /// Whether the list has no member.
    pub fn is_empty(&self) -> bool {
        self.first.is_none()
    }

    /// The member after `id` on the list that it is on.
    pub fn after(slab: &Slab, id: Id) -> Option<Id> {
        slab[id].neighbours.after
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

    /// Takes `id`, which must be on this list, off it.
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

    fn request(user_data: u64) -> Request {
        Request::new(Op::placeholder(), Opcode::Nop, 0, user_data, Target::None)
    }

    #[test]
    fn stale_ids_name_nothing() {
        let mut slab = Slab::default();
        let first = slab.insert(request(1));
        assert_eq!(slab.remove(first).unwrap().user_data, 1);
        let second = slab.insert(request(2));
        assert!(slab.get(first).is_none() && slab.remove(first).is_none());
        assert_eq!(slab[second].user_data, 2);
        assert_eq!((slab.len(), slab.ids().len()), (1, 1));
    }

    #[test]
    fn requests_are_found_by_their_user_data() {
        let mut slab = Slab::default();
        let ids: Vec<Id> = [7, 8, 7, 7].into_iter().map(|n| slab.insert(request(n))).collect();
        slab.rename(ids[1], 7);
        slab.rename(ids[2], 9);
        slab.remove(ids[3]);
        assert_eq!(slab.with_user_data(7).collect::<Vec<_>>(), ids[..2]);
        assert_eq!((slab.with_user_data(8).next(), slab.with_user_data(9).next()), (None, Some(ids[2])));
    }

    #[test]
    fn a_sweep_leaves_what_stays_where_it_is() {
        let mut slab = Slab::default();
        let ids: Vec<Id> = (0..4).map(|n| slab.insert(request(n))).collect();
        slab.free.push(ids[1].index); // as a panic might leave it
        let ended = slab.sweep(|request| request.user_data == 2);
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
