//! The destination of this process's events: the file that `ANYRING_TRACE` names, a tracer that joined (`anyring trace
//! --pid`), or none.
//!
//! A process that no tracer has joined pays little. While a ring lives, the process has one descriptor, that of its
//! counters ([`stats`](crate::stats)). Each call on a ring costs a load and a branch that always goes the same way:
//! [`RingGuard::listen`]. The tracer finds the counters under /proc/PID/fd. The kernel grants access to users who may
//! inspect the process: its own user, and root. No signal, ptrace, socket or thread is involved.
//!
//! The tracer locks the counters with an OFD lock, so that there is only one tracer at a time and its death is noticed.
//! Then it stores a *trace request* into [`Tracer::wanted`](stats::Tracer). The request has a number, and the process
//! that it is meant for, since forked children share the counters. The next call on any ring of that process does what
//! the request asks, and reports so in `reply`:
//!
//! | request | the process | then the tracer |
//! |---|---|---|
//! | odd | makes an empty memfd, and answers its number | opens it in /proc/PID/fd, fills it, and seals its size |
//! | the next even number | maps the memfd, if it is sealed and valid, and gives every ring a recorder | reads |
//! | none | drops the recorders; the last one drops mapping and descriptor, too | frees the pages, even while mapped |
//!
//! Since the tracer gives the memfd its size and content, the memory is charged to the tracer. A ring that is locked
//! when a request comes follows it at its own next call. A tracer that is killed does not withdraw its request. When
//! events later find no room, the process notices that the lock is released, and stops.
//!
//! | | guarded by |
//! |---|---|
//! | `PRESENT` | its own lock, which is taken after a ring's |
//! | `State::tracer_seen`, `State::recorder` | the ring's lock |
//! | `MAPPED`, `NUMBER` | follow the room that joined last; read by a forked child, which has one thread |

use super::chunks::{map_file, map_prepared, ticks, Block};
use crate::descriptors::{self, Own};
use crate::memory::MAKES_MEMFDS;
use crate::os::calls;
use crate::os::{Os, Sys};
use crate::{stats, Errno};
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU32, Ordering};
use rustix::fd::AsRawFd;
use rustix::fs::MemfdFlags;
use std::sync::Arc;

/// The value in the lower half of `reply` that refuses a trace request: events already go elsewhere, or the memfd
/// cannot be used. Any other value is a descriptor's number plus 1.
pub const REFUSED: u32 = u32::MAX;

/// The number in place of a request's for the room that no tracer has joined: the file of `ANYRING_TRACE`.
const FOR_GOOD: u32 = 0;

/// Packs a trace request for `process`; 0 stands for no process. An answer has the same form, with a number as its
/// lower half.
pub const fn trace_request(number: u32, process: u32) -> u64 {
    (number as u64) << 32 | process as u64
}

/// A mapped file of events.
pub struct Room {
    block: &'static Block,
    /// The number of the trace request for which the room was mapped.
    number: u32,
    /// The memfd of a tracer that joined. It is kept open, so that the tracer finds it.
    _memfd: Option<Own>,
    /// Number of events that found no place.
    starved: AtomicU32,
}

impl Room {
    /// The mapped file. The caller keeps the room for as long as it uses the block.
    pub(crate) fn block(&self) -> &'static Block {
        self.block
    }

    /// True if the room lasts as long as the process, and its forked children share it.
    pub fn is_for_good(&self) -> bool {
        self.number == FOR_GOOD
    }

    /// Counts an event that found no place. Every 1024th such event checks for the tracer, and withdraws its request
    /// if the tracer is gone.
    #[cold]
    pub fn starve(&self) {
        const LOOK: u32 = 1024;
        let starved = self.starved.fetch_add(1, Ordering::Relaxed);
        if self.is_for_good() || !(starved + 1).is_multiple_of(LOOK) || stats::is_locked() {
            return;
        }
        let mine = trace_request(self.number, Sys::process_id());
        let _ = stats::stats().tracer.wanted.compare_exchange(mine, 0, Ordering::Relaxed, Ordering::Relaxed);
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        let block = core::ptr::from_ref(self.block).cast_mut();
        // First clear the words by which a forked child would unmap the block.
        if MAPPED.compare_exchange(block, core::ptr::null_mut(), Ordering::Relaxed, Ordering::Relaxed).is_ok() {
            NUMBER.store(-1, Ordering::Relaxed);
        }
        // SAFETY: the block was mapped for this room. The last owner drops the room: every writer had a share of it.
        unsafe { Block::unmap(block) };
    }
}

/// The state of the room for this process's events.
enum Present {
    Nothing,
    /// The memfd was made for this trace request. The tracer has yet to prepare it.
    Empty(u32, Own),
    Open(Arc<Room>),
}

impl Present {
    fn clock(&self) -> u32 {
        match self {
            Present::Open(room) if room.block.goes_by_counter() => BY_COUNTER,
            Present::Open(_) => BY_CLOCK,
            _ => 0,
        }
    }

    fn for_good(&self) -> Option<Arc<Room>> {
        match self {
            Present::Open(room) if room.is_for_good() => Some(room.clone()),
            _ => None,
        }
    }
}

static PRESENT: crate::lock::Lock<Present> = crate::lock::Lock::new(Present::Nothing);
/// True once a room that lasts as long as the process is open. That room stays open.
static FOR_EVER: AtomicBool = AtomicBool::new(false);
/// The clock of the room's events; 0 without a room. Read without the lock, so the value may be a moment old.
static CLOCK: AtomicU32 = AtomicU32::new(0);
const BY_CLOCK: u32 = 1;
const BY_COUNTER: u32 = 2;
/// The mapping and the memfd of the last room that a tracer joined, kept for a forked child.
static MAPPED: AtomicPtr<Block> = AtomicPtr::new(core::ptr::null_mut());
static NUMBER: AtomicI32 = AtomicI32::new(-1);

/// True if a tracer wants events.
#[inline]
pub fn wanted() -> bool {
    CLOCK.load(Ordering::Relaxed) != 0
}

/// The time now, in the room's ticks.
pub fn now_ticks() -> u64 {
    ticks(CLOCK.load(Ordering::Relaxed) == BY_COUNTER)
}

/// Makes new rings write their events to `file`. Fails with EINVAL unless `Reader::create` made the file.
pub fn open(file: &str) -> Result<(), Errno> {
    let block = map_file(file)?;
    let room = Room { block, number: FOR_GOOD, _memfd: None, starved: AtomicU32::new(0) };
    let mut present = PRESENT.lock().ok_or(Errno::AGAIN)?;
    *present = Present::Open(Arc::new(room));
    FOR_EVER.store(true, Ordering::Relaxed);
    CLOCK.store(present.clock(), Ordering::Relaxed);
    Ok(())
}

/// The destination of a new ring's events.
pub fn room() -> Option<Arc<Room>> {
    follow(stats::stats().tracer.wanted.load(Ordering::Relaxed)).ok().flatten()
}

/// Does what `wanted` asks of this process, and returns the new destination. Fails with AGAIN in a signal handler that
/// interrupted this very function.
pub(crate) fn follow(wanted: u64) -> Result<Option<Arc<Room>>, Errno> {
    let mut present = PRESENT.lock().ok_or(Errno::AGAIN)?;
    let number = (wanted >> 32) as u32;
    let is_meant = wanted != 0 && wanted as u32 == Sys::process_id();
    let reply = |what: u32| stats::stats().tracer.reply.store(trace_request(number, what), Ordering::Relaxed);
    if let Some(room) = present.for_good() {
        if is_meant {
            reply(REFUSED);
        }
        return Ok(Some(room));
    }
    let next = match core::mem::replace(&mut *present, Present::Nothing) {
        _ if !is_meant => Present::Nothing,
        Present::Open(room) if room.number == number => Present::Open(room),
        Present::Empty(made, memfd) if made == number => Present::Empty(made, memfd),
        Present::Empty(made, memfd) if made.wrapping_add(1) == number => join(number, memfd, reply),
        _ if !number.is_multiple_of(2) => invite(number, reply),
        _ => Present::Nothing,
    };
    CLOCK.store(next.clock(), Ordering::Relaxed);
    *present = next;
    match &*present {
        Present::Open(room) => Ok(Some(room.clone())),
        _ => Ok(None),
    }
}

/// Makes the memfd for the tracer to prepare.
fn invite(number: u32, reply: impl Fn(u32)) -> Present {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let made = if MAKES_MEMFDS.is_yes() { calls::memfd_create("anyring-events", flags) } else { Err(Errno::NOSYS) };
    match made.and_then(descriptors::to_top) {
        Ok(memfd) => {
            reply(memfd.as_raw_fd() as u32 + 1);
            Present::Empty(number, memfd)
        }
        Err(_) => {
            reply(REFUSED);
            Present::Nothing
        }
    }
}

/// Maps the memfd, which the tracer has prepared.
fn join(number: u32, memfd: Own, reply: impl Fn(u32)) -> Present {
    match map_prepared(&memfd) {
        Ok(block) => {
            reply(memfd.as_raw_fd() as u32 + 1);
            NUMBER.store(memfd.as_raw_fd(), Ordering::Relaxed);
            MAPPED.store(core::ptr::from_ref(block).cast_mut(), Ordering::Relaxed);
            Present::Open(Arc::new(Room { block, number, _memfd: Some(memfd), starved: AtomicU32::new(0) }))
        }
        Err(_) => {
            reply(REFUSED);
            Present::Nothing
        }
    }
}

/// Stops the events for a tracer that joined the parent, in a forked child: the tracer did not ask for the child's
/// events.
///
/// # Safety
/// Only the forking thread may exist in the process, and no recorder of such a room may be left.
pub unsafe fn reset_after_fork() {
    let block = MAPPED.swap(core::ptr::null_mut(), Ordering::Relaxed);
    let memfd = NUMBER.swap(-1, Ordering::Relaxed);
    // SAFETY: no other thread exists.
    unsafe { PRESENT.reset() };
    if FOR_EVER.load(Ordering::Relaxed) {
        return;
    }
    CLOCK.store(0, Ordering::Relaxed);
    if let Some(mut present) = PRESENT.lock() {
        // Not dropped: a thread that the child does not have may have been changing the value.
        core::mem::forget(core::mem::replace(&mut *present, Present::Nothing));
    }
    if !block.is_null() {
        // SAFETY: this is the mapping of the room. By the contract the child's recorders are gone, so the child has no
        // use for it.
        unsafe { Block::unmap(block) };
    }
    if memfd >= 0 {
        descriptors::close(memfd);
    }
}
