//! What a context of Linux AIO has besides a ring's state: its completion ring, and a place for each request in flight.
//! Part of a ring's state: touched under its lock only.

pub(crate) mod cold;
pub(crate) mod completions;

use crate::event::Known;
use crate::op::Op;
use crate::os::calls;
use crate::resource::files::FixedFile;
use crate::Errno;
use anyring_abi::Opcode;
use cold::Cold;
use completions::Completions;
use core::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

/// A request that waits alone.
pub struct Single {
    /// What its events are called, where somebody listens.
    pub(crate) told: Known,
    pub(crate) op: Op,
    /// With which it came.
    pub opcode: Opcode,
    /// The descriptor whose entry names its place.
    pub fd: i32,
}

/// What a context has besides a ring's state.
pub struct Context {
    pub(crate) completions: Completions,
    /// Requests without an event, by the `user_data` that the ring knows them under.
    pub(crate) pending: Vec<Option<Pending>>,
    /// Free places in `pending`.
    pub(crate) free: Vec<u32>,
    /// How many of the pending ones io_submit(2) would have waited for natively: transfers through the page cache.
    pub(crate) overdue: u32,
    pub(crate) cold: Cold,
    /// Duplicates of eventfds that requests named, by the program's number.
    pub(crate) eventfds: Vec<(i32, Arc<FixedFile>)>,
    /// io_destroy(2) has begun.
    pub(crate) dead: bool,
    pub(crate) counted: Counted,
}

/// What an event tells of its request.
pub(crate) struct Pending {
    pub(crate) data: u64,
    pub(crate) obj: u64,
    pub(crate) eventfd: Option<Arc<FixedFile>>,
    /// See [`Context::overdue`].
    pub(crate) overdue: bool,
    /// The request itself, where it waits alone on its descriptor.
    pub(crate) single: Option<Single>,
}

impl Context {
    /// Requests that it was asked for, and places for events.
    pub fn size(&self) -> [u32; 2] {
        [self.counted.0, self.completions.places()]
    }

    /// The address of the completion ring, by which the program knows the context.
    pub fn address(&self) -> u64 {
        self.completions.address()
    }

    /// A place for one more request, if its event is sure to find room. Source: `get_reqs_available` in fs/aio.c.
    pub(crate) fn take_place(&mut self, pending: Pending) -> Result<u32, Errno> {
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

    /// The request in this place has its event, or never was.
    pub(crate) fn give_place(&mut self, place: u64) -> Option<Pending> {
        let pending = self.pending.get_mut(place as usize)?.take()?;
        self.free.push(place as u32);
        self.overdue -= u32::from(pending.overdue);
        Some(pending)
    }

    /// Where the request of this place may wait alone.
    pub fn single(&mut self, place: u32) -> Option<&mut Option<Single>> {
        Some(&mut self.pending.get_mut(place as usize)?.as_mut()?.single)
    }

    /// The descriptor of the first request from this place on that waits alone, and its place.
    pub fn waiting_singly(&self, from: usize) -> Option<(usize, i32)> {
        let fd = |pending: &Option<Pending>| Some(pending.as_ref()?.single.as_ref()?.fd);
        (from..).zip(self.pending.iter().skip(from)).find_map(|(place, pending)| Some((place, fd(pending)?)))
    }

    /// Takes out a request that waits alone: its place and opcode.
    pub fn take_single(&mut self) -> Option<(u32, Opcode)> {
        let mut places = (0..).zip(&mut self.pending);
        places.find_map(|(place, pending)| Some((place, pending.as_mut()?.single.take()?.opcode)))
    }

    /// The duplicate of an eventfd that was named before.
    pub(crate) fn eventfd(&self, fd: i32) -> Option<Arc<FixedFile>> {
        self.eventfds.iter().find(|(number, _)| *number == fd).map(|(_, file)| file.clone())
    }

    /// The program closes `fd`.
    pub fn forget(&mut self, fd: i32) {
        self.eventfds.retain(|(number, _)| *number != fd);
    }
}

/// Requests that all contexts were asked for.
pub(crate) static ASKED_FOR: AtomicU64 = AtomicU64::new(0);

/// A context's part of [`ASKED_FOR`].
pub(crate) struct Counted(u32);

impl Counted {
    /// Source: `ioctx_alloc` in fs/aio.c.
    pub(crate) fn new(requests: u32) -> Result<Counted, Errno> {
        Completions::check(requests)?;
        let before = ASKED_FOR.fetch_add(requests.into(), Ordering::Relaxed);
        let counted = Counted(requests);
        if before + u64::from(requests) > limit() {
            return Err(Errno::AGAIN);
        }
        Ok(counted)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        ASKED_FOR.fetch_sub(self.0.into(), Ordering::Relaxed);
    }
}

/// How many requests all contexts may ask for: `fs.aio-max-nr`, which counts here for each process, or its default where
/// the kernel has no AIO.
pub(crate) fn limit() -> u64 {
    use rustix::fs::{Mode, OFlags};
    const DEFAULT: u64 = 65_536;
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let file = calls::open("/proc/sys/fs/aio-max-nr", flags, Mode::empty()).map(crate::os::for_now);
    let mut text = [0u8; 24];
    let bytes = file.and_then(|file| calls::read(&file, &mut text)).unwrap_or(0);
    core::str::from_utf8(&text[..bytes]).ok().and_then(|text| text.trim().parse().ok()).unwrap_or(DEFAULT)
}
