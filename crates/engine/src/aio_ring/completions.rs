//! The completion ring: events in memory that the program reads, and may write to, move or unmap. The engine has its
//! own mapping of the same pages.

use crate::mutation::{mutated, Mutation};
use crate::os::calls;
use crate::os::{user_move, user_write, user_write_slice, GuardedWords};
use crate::Errno;
use anyring_abi::{AioRing, IoEvent, AIO_RING_COMPAT_FEATURES, AIO_RING_MAGIC};
use core::mem::offset_of;
use rustix::mm::{MapFlags, MremapFlags, ProtFlags};

const PAGE: usize = 4096;
const HEADER: usize = size_of::<AioRing>();
const EVENT: usize = size_of::<IoEvent>();

/// A completion ring. Apart from the program, only a thread with the lock of the context's ring changes it.
pub struct Completions {
    /// The engine's mapping. It is the program's mapping if the engine could not make its own.
    base: usize,
    bytes: usize,
    /// The program's mapping, by which the program knows the context.
    address: usize,
    /// Number of places for events. One of them is always empty.
    places: u32,
    /// The place after the last event. The word in the ring is only a copy.
    tail: u32,
}

impl Completions {
    /// Checks `requests`. Fails with `INVAL` if a completion ring cannot have that many. Source: `ioctx_alloc` in
    /// fs/aio.c.
    pub fn check(requests: u32) -> Result<(), Errno> {
        if places_for(requests) > (0x1000_0000 / EVENT) as u64 {
            return Err(Errno::INVAL);
        }
        Ok(())
    }

    /// Makes a ring with room for at least `requests` events. Like the kernel's, it fills whole pages.
    pub fn create(requests: u32) -> Result<Completions, Errno> {
        // One place stays empty, and one more is kept as the kernel does (`aio_setup_ring`).
        let wanted = places_for(requests) as usize + 2;
        let bytes = (HEADER + wanted * EVENT).next_multiple_of(PAGE);
        let places = ((bytes - HEADER) / EVENT) as u32;
        let (prot, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        // SAFETY: a new anonymous mapping at an address that the kernel chooses. It is shared, since a forked child
        // has it in the kernel, too.
        let base = unsafe { calls::mmap_anonymous(core::ptr::null_mut(), bytes, prot, flags) }? as usize;
        let mut made = Completions { base, bytes, address: base, places, tail: 0 };
        // SAFETY: with an old size of 0 no bytes are moved. The shared pages are mapped a second time, where the
        // kernel chooses.
        let second = unsafe { calls::mremap(base as *mut _, 0, bytes, MremapFlags::MAYMOVE) };
        made.base = second.map_or(base, |second| second as usize);
        let (id, head, tail, incompat_features) = (u32::MAX, 0, 0, 0);
        let (magic, compat_features) = (AIO_RING_MAGIC, AIO_RING_COMPAT_FEATURES);
        let words = [id, places, head, tail, magic, compat_features, incompat_features, HEADER as u32];
        user_write_slice(base as u64, &words)?;
        Ok(made)
    }

    /// Returns the address at which the program finds the completion ring.
    pub fn address(&self) -> u64 {
        self.address as u64
    }

    /// True if the pages are now also mapped at `address`, since the program has moved them there (mremap(2)).
    pub fn has_moved_to(&mut self, address: usize) -> bool {
        const ANOTHER: u32 = AIO_RING_COMPAT_FEATURES | 1 << 31;
        let word = offset_of!(AioRing, compat_features);
        let stored = GuardedWords::store(self.base + word, ANOTHER);
        let seen = GuardedWords::load(address.wrapping_add(word));
        let _ = GuardedWords::store(self.base + word, AIO_RING_COMPAT_FEATURES);
        let moved = stored.is_ok() && seen == Ok(ANOTHER) && !mutated(Mutation::MovedContextIsUnknown);
        if moved {
            self.address = address;
        }
        moved
    }

    /// Stores the context's index in the table.
    pub fn set_id(&self, id: u32) -> Result<(), Errno> {
        GuardedWords::store(self.base + offset_of!(AioRing, id), id)
    }

    /// Returns the number of places for events. One of them is always empty.
    pub fn places(&self) -> u32 {
        self.places
    }

    /// Returns the program's index of the next event to read, whatever the program has put there.
    pub fn head(&self) -> Result<u32, Errno> {
        GuardedWords::load(self.base + offset_of!(AioRing, head))
    }

    /// Returns the number of unread events. The program's head counts modulo the places, as in
    /// `aio_read_events_ring`. 0 if the program has unmapped the ring.
    pub fn unread(&self) -> u32 {
        self.read_head().map_or(0, |head| self.count_from(head))
    }

    /// Returns the index of the next event to read.
    fn read_head(&self) -> Result<u32, Errno> {
        // A division would cost as much as the rest of a check.
        self.head().map(|head| if head < self.places { head } else { head % self.places })
    }

    /// Returns the number of events from index `head` on.
    fn count_from(&self, head: u32) -> u32 {
        if self.tail >= head {
            self.tail - head
        } else {
            self.tail + self.places - head
        }
    }

    /// Returns the index after `index`.
    fn after(&self, index: u32) -> u32 {
        if index + 1 == self.places {
            0
        } else {
            index + 1
        }
    }

    /// Gives the memory back. If the program has mapped something else at its address, that is unmapped, too
    /// (`kill_ioctx` in fs/aio.c). So the caller does this before io_destroy(2) returns.
    pub fn unmap(&mut self) {
        let (own, programs) = (core::mem::take(&mut self.base), core::mem::take(&mut self.address));
        let second = (own != programs).then_some(own);
        for base in [programs].into_iter().chain(second).filter(|base| *base != 0) {
            // SAFETY: mapped by `create`, once at each of two addresses. The fields that named them are 0 now, so
            // nothing is unmapped twice. Later accesses, near 0, are guarded, and fail.
            let _ = unsafe { calls::munmap(base as *mut _, self.bytes) };
        }
    }

    fn place(&self, index: u32) -> u64 {
        (self.base + HEADER + index as usize * EVENT) as u64
    }

    /// Appends an event. The caller must make sure that there is room. If the program has unmapped the ring, the
    /// event is lost.
    pub fn push(&mut self, event: &IoEvent) {
        let words = [event.data, event.obj, event.res as u64, event.res2 as u64];
        let _ = user_write(self.place(self.tail), &words);
        self.tail = self.after(self.tail);
        // As strong as a Release store. Partner: the load of the tail by a thread that reads events from memory.
        let _ = GuardedWords::store(self.base + offset_of!(AioRing, tail), self.tail);
    }

    /// Moves up to `room` events to the program's array at `to`. Returns their number. After `FAULT` all events are
    /// still in the ring.
    pub fn read_events(&mut self, to: u64, room: u64) -> Result<u64, Errno> {
        let Ok(mut head) = self.read_head() else { return Ok(0) };
        let taken = room.min(self.count_from(head).into());
        if taken == 0 {
            return Ok(0);
        }
        let before_the_end = taken.min((self.places - head).into());
        user_move(to, self.place(head), before_the_end as usize * EVENT)?;
        if before_the_end == taken {
            head += taken as u32;
            head = if head == self.places { 0 } else { head };
        } else {
            head = (taken - before_the_end) as u32;
            user_move(to.wrapping_add(before_the_end * EVENT as u64), self.place(0), head as usize * EVENT)?;
        }
        if !mutated(Mutation::EventsAreReadAgain) {
            GuardedWords::store(self.base + offset_of!(AioRing, head), head)?;
        }
        Ok(taken)
    }
}

impl Drop for Completions {
    fn drop(&mut self) {
        self.unmap();
    }
}

/// Returns the number of events that `ioctx_alloc` in fs/aio.c makes room for. In the kernel each processor
/// reserves some of the places.
fn places_for(requests: u32) -> u64 {
    // SAFETY: takes and answers integers.
    let processors = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_CONF) }.max(1) as u64;
    u64::from(requests).max(processors * 4) * 2
}
