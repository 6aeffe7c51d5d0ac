//! The generator's model of the program's state. It need not be right, only right often enough.

use crate::program::*;
use std::collections::{BTreeMap, BTreeSet};

/// A resource that two requests of one submission must not share, unless they are in one chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Claim {
    /// Both ends of a pipe or a pair, a file: its kind and number.
    Thing(u8, u8),
    /// Names in a directory.
    Names(u8),
    /// Descriptor numbers.
    Numbers,
    /// The registered files, to change them.
    Table,
    /// The registered files, to use one.
    TableUse,
    /// A group of buffers.
    Group(u16),
    /// A registered buffer.
    Buffer(u16),
    /// Timeouts.
    Timers,
    /// A request that was submitted before.
    Request(u64),
    /// CQEs of the other ring.
    Messages,
}

impl Claim {
    /// Returns the object that a descriptor is one end of.
    pub fn of(end: End) -> Claim {
        match end {
            End::PipeRead(index) | End::PipeWrite(index) => Claim::Thing(0, index),
            End::File(index) => Claim::Thing(1, index),
            End::Stream(index, _) => Claim::Thing(2, index),
            End::Datagram(index, _) => Claim::Thing(3, index),
            End::Tcp(index, _) => Claim::Thing(4, index),
            End::Listener => Claim::Thing(5, 0),
            End::Unconnected(index) => Claim::Thing(6, index),
            End::Eventfd(index) => Claim::Thing(7, index),
            End::Epoll => Claim::Thing(8, 0),
            End::Word(index) => Claim::Thing(9, index),
            End::Child(index) => Claim::Thing(10, index),
            End::Directory(index) => Claim::Names(index),
            End::OtherRing | End::ThisRing => Claim::Messages,
            End::Made(id) => Claim::Request(id),
        }
    }
}

/// A request that waits, as far as is known.
#[derive(Debug, Clone, Copy)]
pub struct Waiting {
    /// Its `user_data`.
    pub id: u64,
    /// Its opcode.
    pub opcode: u8,
    /// The object that the request waits for; `None` for a timeout.
    pub end: Option<End>,
}

/// The model: see the module's documentation.
pub struct Model {
    bytes: BTreeMap<End, i64>,
    names: [BTreeMap<&'static str, bool>; 2],
    table: Vec<Option<End>>,
    waiting: Vec<Waiting>,
    claimed: BTreeSet<Claim>,
    own: BTreeSet<Claim>,
    connections: u32,
    /// Descriptors that requests made in earlier submissions.
    pub made: Vec<u64>,
    fresh: Vec<u64>,
    /// Buffers in the ring group and the list group.
    pub buffers: [i64; 2],
    /// Sockets and pipes that were shut down.
    pub shut: BTreeSet<End>,
    /// Unconnected sockets, by what was done with them: 0 new, 1 bound, 2 listening or connected.
    pub sockets: [u8; 4],
    /// The members of the epoll set.
    pub watched: BTreeSet<End>,
    /// Requests that take buffers of the ring group for as long as they live.
    pub group_users: Vec<u64>,
    /// The names of attributes that were set, by directory.
    pub attributes: BTreeSet<(u8, &'static str)>,
    /// True if a request may poll the listener.
    pub polled_listener: bool,
    /// The children.
    pub children: [ChildState; CHILDREN as usize],
}

impl Model {
    /// Returns the state in which `execute` begins.
    pub fn new() -> Model {
        let table = INITIAL_FILES.map(|target| match target {
            Target::Of(end) => Some(end),
            _ => None,
        });
        Model {
            bytes: BTreeMap::new(),
            names: [BTreeMap::new(), BTreeMap::new()],
            table: table.to_vec(),
            waiting: Vec::new(),
            claimed: BTreeSet::new(),
            own: BTreeSet::new(),
            connections: 0,
            made: Vec::new(),
            fresh: Vec::new(),
            buffers: [i64::from(GROUP_ENTRIES), 0],
            shut: BTreeSet::new(),
            sockets: [0; 4],
            watched: BTreeSet::new(),
            group_users: Vec::new(),
            attributes: BTreeSet::new(),
            polled_listener: false,
            children: INITIAL_CHILDREN,
        }
    }

    /// Begins a submission: nothing is claimed.
    pub fn begin_batch(&mut self) {
        self.claimed.clear();
        self.own.clear();
        self.made.append(&mut self.fresh);
    }

    /// Makes the chain's claims unavailable to other chains.
    pub fn end_chain(&mut self) {
        self.claimed.append(&mut self.own);
    }

    /// Claims it for the current request, if no other chain has claimed it. True if claimed.
    pub fn claim(&mut self, claim: Claim) -> bool {
        let free = match claim {
            Claim::Table => !self.claimed.contains(&Claim::Table) && !self.claimed.contains(&Claim::TableUse),
            Claim::TableUse => !self.claimed.contains(&Claim::Table),
            _ => !self.claimed.contains(&claim),
        };
        if free {
            self.own.insert(claim);
        }
        free
    }

    /// Excludes it for the rest of this submission, even for the current chain.
    pub fn exclude(&mut self, claim: Claim) {
        self.claimed.insert(claim);
    }

    /// Records that request `id` makes a descriptor, for later submissions.
    pub fn makes(&mut self, id: u64) {
        self.fresh.push(id);
    }

    /// Returns the end at which data written here can be read.
    fn other_side(end: End) -> Option<End> {
        Some(match end {
            End::PipeWrite(index) => End::PipeRead(index),
            End::Stream(index, side) => End::Stream(index, 1 - side),
            End::Datagram(index, side) => End::Datagram(index, 1 - side),
            End::Tcp(index, side) => End::Tcp(index, 1 - side),
            End::Eventfd(index) => End::Eventfd(index),
            _ => return None,
        })
    }

    /// Returns the end to write to so that this end becomes readable.
    pub fn writer_of(end: End) -> Option<End> {
        match end {
            End::PipeRead(index) => Some(End::PipeWrite(index)),
            other => Self::other_side(other),
        }
    }

    /// Returns the bytes (or datagrams, or an eventfd's value) that can be read at this end.
    pub fn readable(&self, end: End) -> i64 {
        self.bytes.get(&end).copied().unwrap_or(0)
    }

    /// Bytes that can be written without waiting.
    pub fn room(&self, end: End) -> u32 {
        let capacity = match end {
            End::PipeWrite(1) => 4096,
            End::Datagram(..) => 8,
            _ => 30_000,
        };
        let inside = Self::other_side(end).map_or(0, |other| self.readable(other));
        (capacity - inside).max(0) as u32
    }

    /// Records that `bytes` were written at this end. A request that waits at the other end takes some of it. When it does
    /// so differs (docs/limits.md), so the rest of the submission writes no more there, and uses none of its buffers.
    pub fn wrote(&mut self, end: End, bytes: u32) {
        let Some(other) = Self::other_side(end) else { return };
        *self.bytes.entry(other).or_default() += i64::from(bytes);
        if let Some(at) = self.waiting.iter().position(|waiting| waiting.end == Some(other)) {
            self.exclude(Claim::of(end));
            if self.group_users.contains(&self.waiting[at].id) {
                self.exclude(Claim::Group(RING_GROUP));
            }
            self.waiting.remove(at);
            self.read(other, bytes);
        }
    }

    /// Records that `bytes` were read at this end.
    pub fn read(&mut self, end: End, bytes: u32) {
        let inside = self.bytes.entry(end).or_default();
        *inside = (*inside - i64::from(bytes)).max(0);
    }

    /// Records that a client connected.
    pub fn connected(&mut self) {
        match self.waiting.iter().position(|waiting| waiting.end == Some(End::Listener)) {
            Some(at) => drop(self.waiting.remove(at)),
            None => self.connections += 1,
        }
    }

    /// Accepts a connection, if there is one.
    pub fn accepted(&mut self) -> bool {
        let any = self.connections > 0;
        self.connections -= u32::from(any);
        any
    }

    /// The number of connections that were not accepted yet.
    pub fn connections(&self) -> u32 {
        self.connections
    }

    /// True if a waiting request takes buffers of the ring group. With another one, it would be open which of them
    /// gets which buffer.
    pub fn group_is_held(&self) -> bool {
        self.group_users.iter().any(|id| self.waits(*id))
    }

    /// Records that the request is expected to wait.
    pub fn wait(&mut self, id: u64, opcode: u8, end: Option<End>) {
        self.waiting.push(Waiting { id, opcode, end });
    }

    /// True if request `id` waits.
    pub fn waits(&self, id: u64) -> bool {
        self.waiting.iter().any(|waiting| waiting.id == id)
    }

    /// True if request `id` waits for an action of the program.
    pub fn waits_for_something(&self, id: u64) -> bool {
        self.waiting.iter().any(|waiting| waiting.id == id && waiting.end.is_some())
    }

    /// True if a request waits at this end.
    pub fn waits_at(&self, end: End) -> bool {
        self.waiting.iter().any(|waiting| waiting.end.is_some_and(|at| Claim::of(at) == Claim::of(end)))
    }

    /// Requests that wait.
    pub fn waiting(&self) -> &[Waiting] {
        &self.waiting
    }

    /// Objects that requests wait for.
    pub fn waiting_ends(&self) -> Vec<End> {
        self.waiting.iter().filter_map(|waiting| waiting.end).collect()
    }

    /// Removes the waiting requests for which `ends` is true.
    pub fn ended(&mut self, ends: impl Fn(&Waiting) -> bool) {
        self.waiting.retain(|waiting| !ends(waiting));
    }

    /// Wakes `count` of the requests that wait for the word. A request that waits for several words is woken as a
    /// whole.
    pub fn woken(&mut self, word: u8, count: u32) {
        for _ in 0..count {
            let first = self.waiting.iter().find(|waiting| waiting.end == Some(End::Word(word)));
            let Some(id) = first.map(|waiting| waiting.id) else { return };
            self.ended(|waiting| waiting.id == id);
        }
    }

    /// Ends the child. A request that waits for it counts as reaping it, even if it only peeks (WNOWAIT).
    pub fn exited(&mut self, index: u8) {
        self.children[usize::from(index)] =
            if self.waits_at(End::Child(index)) { ChildState::Gone } else { ChildState::Exited };
        self.ended(|waiting| waiting.end == Some(End::Child(index)));
    }

    /// Returns a slot of the registered files that holds this end, unless another chain changes them now.
    pub fn slot_of(&mut self, end: End) -> Option<u32> {
        if self.claimed.contains(&Claim::Table) {
            return None;
        }
        self.table.iter().position(|slot| *slot == Some(end)).map(|slot| slot as u32)
    }

    /// Returns an empty slot.
    pub fn free_slot(&self) -> Option<u32> {
        self.table.iter().position(Option::is_none).map(|slot| slot as u32)
    }

    /// Returns a full slot.
    pub fn full_slot(&self, from: u32) -> Option<u32> {
        let slots = self.table.len() as u32;
        (0..slots).map(|at| (from + at) % slots).find(|slot| self.table[*slot as usize].is_some())
    }

    /// The table's size.
    pub fn slots(&self) -> u32 {
        self.table.len() as u32
    }

    /// Sets the content of a slot.
    pub fn set_slot(&mut self, slot: u32, end: Option<End>) {
        if let Some(place) = self.table.get_mut(slot as usize) {
            *place = end;
        }
    }

    /// Sets a new table.
    pub fn set_table(&mut self, table: Vec<Option<End>>) {
        self.table = table;
    }

    /// `Some` if the name exists; true for a directory.
    pub fn name(&self, directory: u8, name: &'static str) -> Option<bool> {
        self.names[usize::from(directory)].get(name).copied()
    }

    /// Adds the name, or removes it.
    pub fn set_name(&mut self, directory: u8, name: &'static str, kind: Option<bool>) {
        match kind {
            Some(kind) => drop(self.names[usize::from(directory)].insert(name, kind)),
            None => drop(self.names[usize::from(directory)].remove(name)),
        }
    }
}
