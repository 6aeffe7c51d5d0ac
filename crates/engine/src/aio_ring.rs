//! The parts of a Linux AIO context that a ring's state lacks: its completion ring, and a place for each request in
//! flight. They are part of a ring's state, under its lock.

pub(crate) mod cold;
pub(crate) mod completions;

use crate::event::Known;
use crate::op::Op;
use crate::resource::files::FixedFile;
use crate::Errno;
use anyring_abi::Opcode;
use cold::Cold;
use completions::Completions;
use std::sync::Arc;

/// A request that waits for its descriptor without a slot in the slab. No other request waits for that descriptor.
pub struct Single {
    /// The request's identity in traced events, if there is a tracer.
    pub(crate) name: Known,
    pub(crate) op: Op,
    /// The opcode that the request came with.
    pub opcode: Opcode,
    /// The descriptor whose entry in the poll set names the request's place.
    pub fd: i32,
}

/// The parts of a context that a ring's state lacks.
pub struct Context {
    pub(crate) completions: Completions,
    /// Requests without an event yet. The index is the `user_data` by which the ring knows the request.
    pub(crate) pending: Vec<Option<Pending>>,
    /// Free places in `pending`.
    pub(crate) free: Vec<u32>,
    /// Number of pending transfers through the page cache. The kernel's io_submit(2) would have waited for these.
    pub(crate) overdue: u32,
    pub(crate) cold: Cold,
    /// Duplicates of eventfds that requests named, by the program's number.
    pub(crate) eventfds: Vec<(i32, Arc<FixedFile>)>,
    /// True once io_destroy(2) has begun.
    pub(crate) dead: bool,
    /// Number of requests that the context was made for.
    pub(crate) requests: u32,
}

/// A request without an event yet, and the facts that the event reports.
pub(crate) struct Pending {
    pub(crate) data: u64,
    pub(crate) obj: u64,
    pub(crate) eventfd: Option<Arc<FixedFile>>,
    /// True for a transfer through the page cache: [`Context::overdue`] counts these.
    pub(crate) overdue: bool,
    /// The request itself, if it waits without a slot in the slab.
    pub(crate) single: Option<Single>,
}

impl Context {
    /// Returns the number of requests asked for, and the number of places for events.
    pub fn size(&self) -> [u32; 2] {
        [self.requests, self.completions.places()]
    }

    /// Returns the address of the completion ring, by which the program knows the context.
    pub fn address(&self) -> u64 {
        self.completions.address()
    }

    /// Reserves a place for one more request, if the completion ring is sure to have room for its event. Source:
    /// `get_reqs_available` in fs/aio.c.
    pub(crate) fn reserve_place(&mut self, pending: Pending) -> Result<u32, Errno> {
        let in_flight = (self.pending.len() - self.free.len()) as u32;
        if self.free.is_empty() && self.pending.len() == self.pending.capacity() {
            let size = (2 * self.pending.len()).max(4);
            self.free.try_reserve(size).map_err(|_| Errno::AGAIN)?;
            self.pending.try_reserve(size - self.pending.len()).map_err(|_| Errno::AGAIN)?;
        }
        if in_flight + self.completions.unread() >= self.completions.places() - 1 {
            return Err(Errno::AGAIN);
        }
        if let Some(place) = self.free.pop() {
            self.pending[place as usize] = Some(pending);
            return Ok(place);
        }
        self.pending.push(Some(pending));
        Ok(self.pending.len() as u32 - 1)
    }

    /// Frees a place, since its request has its event, or was refused.
    pub(crate) fn give_place(&mut self, place: u64) -> Option<Pending> {
        let pending = self.pending.get_mut(place as usize)?.take()?;
        self.free.push(place as u32);
        self.overdue -= u32::from(pending.overdue);
        Some(pending)
    }

    /// Returns the request that waits at `place` without a slot in the slab, or room for one.
    pub fn single(&mut self, place: u32) -> Option<&mut Option<Single>> {
        Some(&mut self.pending.get_mut(place as usize)?.as_mut()?.single)
    }

    /// Finds the first request, from this place on, that waits without a slot. Returns its place and descriptor.
    pub fn waiting_singly(&self, from: usize) -> Option<(usize, i32)> {
        let fd = |pending: &Option<Pending>| Some(pending.as_ref()?.single.as_ref()?.fd);
        (from..).zip(self.pending.iter().skip(from)).find_map(|(place, pending)| Some((place, fd(pending)?)))
    }

    /// Takes out a request that waits without a slot. Returns its place and opcode.
    pub fn take_single(&mut self) -> Option<(u32, Opcode)> {
        let mut places = (0..).zip(&mut self.pending);
        places.find_map(|(place, pending)| Some((place, pending.as_mut()?.single.take()?.opcode)))
    }

    /// Returns the duplicate of an eventfd that was named before.
    pub(crate) fn eventfd(&self, fd: i32) -> Option<Arc<FixedFile>> {
        self.eventfds.iter().find(|(number, _)| *number == fd).map(|(_, file)| file.clone())
    }

    /// Forgets the duplicate of `fd`, which the program closes.
    pub fn forget(&mut self, fd: i32) {
        self.eventfds.retain(|(number, _)| *number != fd);
    }
}
