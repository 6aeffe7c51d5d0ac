//! The file of events: chunks of words, which a ring's processes fill and one reader empties.
//!
//! A chunk is free (its bit in `free` is set), or its owner's: the [`Writer`] of one ring in one process, which only the
//! holder of that ring's lock uses. It fills the chunk from the front, says after each record how far it got, and takes
//! another when it is full. So a record costs plain stores; a producer that is killed leaves no record half told. Only the
//! reader makes chunks free again: closed ones that it has read, and those of processes that died. Nobody waits: what finds
//! no chunk is counted and dropped.
//!
//! A record is one word (kind, opcode, what the descriptor names, [`has`] bits, request) and those that the bits announce.
//! A record of kind 0 says which thread the next ones are of.

use super::session::Room;
use super::{Event, FileKind, Kind, AIO};
use crate::descriptors::Own;
use crate::mutation::{mutated, Mutation};
use crate::os::calls;
use crate::os::{backing, Os, Sys};
use crate::{sync, thread, Errno};
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use rustix::fd::AsFd;
use rustix::fs::{Mode, OFlags, SealFlags};
use rustix::mm::{MapFlags, ProtFlags};
use rustix::process::Pid;
use std::path::Path;
use std::sync::Arc;

/// First word of the file: "anyring", and the layout's version with the high bit, which sets it apart from counters.
pub const MAGIC: u64 = u64::from_le_bytes(*b"anyring\x83");

/// Chunks in the file: 16 MiB.
pub const CHUNKS: usize = 2_048;
/// Words in a chunk.
pub const WORDS: usize = 1_024;
/// The most words that a record has, with one before it that names the thread.
const MOST: usize = 7;
/// In [`Head::written`]: nothing more comes.
const CLOSED: u32 = 1 << 31;

/// Which words follow a record's first, in this order, and [`FILE`](has::FILE), which is none.
pub mod has {
    /// The time, in ticks. Without it: the last one's.
    pub const TIME: u8 = 1;
    /// `user_data`.
    pub const USER_DATA: u8 = 2;
    /// `offset`.
    pub const OFFSET: u8 = 4;
    /// `fd` and `len`.
    pub const FD_LEN: u8 = 8;
    /// `result` and `flags`.
    pub const RESULT_FLAGS: u8 = 16;
    /// The descriptor was looked up: a FILE_GET follows from it.
    pub const FILE: u8 = 32;
}

/// What stands before a chunk.
#[repr(C, align(64))]
struct Head {
    /// Chunks taken until this one was, itself included; 0 for a free one. Written last by who takes it.
    ticket: AtomicU64,
    /// The time when it was taken, in ticks.
    ticks: AtomicU64,
    /// Whose it is.
    ring: AtomicU32,
    /// The process, 0 where the reader does not know it by its number.
    process: AtomicU32,
    /// Words that are complete, and [`CLOSED`].
    written: AtomicU32,
    /// [`AIO`] where the ring is an AIO context, else 0.
    interface: AtomicU32,
}

/// The file's layout; all words start at zero but those that [`Reader::create`] sets.
#[repr(C)]
pub(crate) struct Block {
    magic: AtomicU64,
    /// 1: times are the processor's time stamp counter. 0: CLOCK_MONOTONIC.
    by_counter: AtomicU32,
    /// The last ring's number.
    rings: AtomicU32,
    /// The last request number that some process took.
    requests: AtomicU32,
    /// Number of the PID namespace in which the reader is, 0 if it is not known.
    namespace: AtomicU64,
    /// Chunks taken until now.
    tickets: AtomicU64,
    /// Events that found no room.
    dropped: AtomicU64,
    free: [AtomicU64; CHUNKS / 64],
    heads: [Head; CHUNKS],
    chunks: [[AtomicU64; WORDS]; CHUNKS],
}

impl core::fmt::Debug for Block {
    fn fmt(&self, formatter: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        formatter.debug_struct("Block").field("rings", &self.rings).finish_non_exhaustive()
    }
}

impl Block {
    /// Takes the free chunk with the lowest number: the one whose memory was used last.
    fn take(&self) -> Option<usize> {
        for (place, word) in self.free.iter().enumerate() {
            let mut free = word.load(Ordering::Relaxed);
            while free != 0 {
                let bit = free & free.wrapping_neg();
                // Acquire pairs with the Release in `Reader::give_back`: the chunk has been read.
                free = word.fetch_and(!bit, Ordering::Acquire);
                if free & bit != 0 {
                    return Some(place * 64 + bit.trailing_zeros() as usize);
                }
            }
        }
        None
    }

    /// Gives a mapping back.
    ///
    /// # Safety
    /// It was made by [`map`], and nothing refers to it any more.
    pub(crate) unsafe fn unmap(block: *mut Block) {
        backing::forget(block as usize);
        // SAFETY: as the contract says; the size is that of every such mapping.
        let _ = unsafe { calls::munmap(block.cast(), size_of::<Block>()) };
    }

    /// Whether times are the processor's time stamp counter.
    pub(crate) fn goes_by_counter(&self) -> bool {
        self.by_counter.load(Ordering::Relaxed) != 0
    }

    fn ticks(&self) -> u64 {
        ticks(self.goes_by_counter())
    }
}

/// The time by one of two clocks.
#[inline(always)]
pub(crate) fn ticks(by_counter: bool) -> u64 {
    #[cfg(target_arch = "x86_64")]
    if by_counter {
        // SAFETY: every x86-64 processor has the instruction, and libc's own clock uses it.
        return unsafe { core::arch::x86_64::_rdtsc() };
    }
    let _ = by_counter;
    Sys::clock_ns(libc::CLOCK_MONOTONIC)
}

/// Whether the kernel itself takes the time from the processor's counter, so that it is the same on all of them.
fn counter_is_a_clock() -> bool {
    const SOURCE: &str = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
    let source = calls::read_text(SOURCE).unwrap_or_default();
    cfg!(target_arch = "x86_64") && ["tsc", "kvm-clock"].contains(&source.trim())
}

/// The number of the process's PID namespace; 0 where there is no /proc.
fn namespace() -> u64 {
    calls::stat("/proc/self/ns/pid").map_or(0, |found| found.st_ino)
}

fn map(file: &impl rustix::fd::AsFd) -> Result<*mut Block, Errno> {
    let prot = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping at an address that the kernel chooses.
    let mapped =
        unsafe { calls::mmap(core::ptr::null_mut(), size_of::<Block>(), prot, MapFlags::SHARED, file, 0)? };
    Ok(mapped.cast())
}

/// Maps `file`. EINVAL when it is none that [`Reader::create`] made.
pub(crate) fn map_file(file: &str) -> Result<&'static Block, Errno> {
    let fd = calls::open(file, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).map(crate::os::for_now)?;
    map_checked(&fd)
}

/// Maps what [`Reader::in_file`] made of a memfd. EINVAL when it is something else, or could still become smaller.
pub(crate) fn map_prepared(memfd: &Own) -> Result<&'static Block, Errno> {
    if !calls::fcntl_get_seals(memfd)?.contains(SealFlags::SHRINK) {
        return Err(Errno::INVAL);
    }
    map_checked(memfd)
}

fn map_checked(fd: &impl AsFd) -> Result<&'static Block, Errno> {
    let mut magic = [0u8; 8];
    #[expect(clippy::disallowed_methods, reason = "a file of the engine's own")]
    let bytes = calls::fstat(fd)?.st_size;
    if bytes != size_of::<Block>() as i64
        || calls::pread(fd, &mut magic, 0)? != magic.len()
        || u64::from_ne_bytes(magic) != MAGIC
    {
        return Err(Errno::INVAL);
    }
    let block = map(fd)?;
    backing::note(block as usize, size_of::<Block>());
    // SAFETY: mapped just now, as large as a Block, of atomics only. Who has it unmapped later gives up its uses first.
    Ok(unsafe { &*block })
}

/// Where one ring of one process puts its events.
pub struct Writer {
    /// Keeps `block` mapped, but for tests, whose reader does.
    room: Option<Arc<Room>>,
    block: &'static Block,
    /// The ring's number.
    ring: u32,
    /// The process, as in [`Head`].
    process: u32,
    /// As in [`Head`].
    interface: u16,
    by_counter: bool,
    head: Option<&'static Head>,
    /// The chunk's words, and how many of them are written.
    words: &'static [AtomicU64],
    at: usize,
    /// The last event's time, in ticks.
    ticks: u64,
    /// Which thread the last event is of, and how [`sync::thread_pointer`] tells it from the others.
    thread: u32,
    thread_pointer: usize,
}

impl Writer {
    /// For a ring that puts no events into this room yet; `interface` is [`AIO`] for an AIO context, else 0.
    pub fn in_room(room: Arc<Room>, interface: u16) -> Writer {
        let mut writer = Writer::new(room.block(), interface);
        writer.room = Some(room);
        writer
    }

    /// Whether its events go into this room.
    pub fn is_in(&self, room: &Arc<Room>) -> bool {
        self.room.as_ref().is_some_and(|own| Arc::ptr_eq(own, room))
    }

    fn new(block: &'static Block, interface: u16) -> Writer {
        Writer::of_ring(block, block.rings.fetch_add(1, Ordering::Relaxed) + 1, interface)
    }

    fn of_ring(block: &'static Block, ring: u32, interface: u16) -> Writer {
        let is_known = namespace() == block.namespace.load(Ordering::Relaxed);
        Writer {
            room: None,
            block,
            ring,
            process: if is_known { Sys::process_id() } else { 0 },
            interface,
            by_counter: block.goes_by_counter(),
            head: None,
            words: &[],
            at: 0,
            ticks: 0,
            thread: 0,
            thread_pointer: 0,
        }
    }

    /// The same ring's in a forked child, if events are wanted there, too: this one stays the parent's.
    pub fn in_child(&self) -> Option<Writer> {
        let room = self.room.clone();
        if room.as_ref().is_some_and(|room| !room.is_for_good()) {
            core::mem::forget(room);
            return None;
        }
        let mut writer = Writer::of_ring(self.block, self.ring, self.interface);
        writer.room = room;
        Some(writer)
    }

    /// The first of `count` request numbers that no other process has.
    pub fn take_numbers(&self, count: u32) -> u32 {
        self.block.requests.fetch_add(count, Ordering::Relaxed).wrapping_add(1)
    }

    /// The thread at work may be another one than its thread pointer tells: those of threads that have ended are used
    /// again.
    pub fn look_at_thread(&mut self) {
        if thread::id() != self.thread {
            self.thread_pointer = 0;
        }
    }

    /// Puts an event in of which `HAS` says what it has ([`has`]), or counts it as dropped. `time_ns`, `ring` and
    /// `thread` are told from here.
    #[inline(always)]
    pub fn put<const HAS: u8>(&mut self, event: &Event) {
        if self.words.len() - self.at < MOST && !self.change_chunk() {
            let events = if HAS & has::FILE != 0 { 2 } else { 1 };
            let events = if mutated(Mutation::DroppedEventsAreNotCounted) { 0 } else { events };
            self.block.dropped.fetch_add(events, Ordering::Relaxed);
            if let Some(room) = &self.room {
                room.starve();
            }
            return;
        }
        if self.thread_pointer != sync::thread_pointer() {
            self.name_thread();
        }
        let pair = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
        // The other half of the opcode is the chunk's `interface`.
        let small = u32::from_le_bytes([event.kind as u8, event.opcode as u8, event.file as u8, HAS]);
        let Some(room) = self.words.get(self.at..).and_then(|rest| rest.first_chunk::<{ MOST - 1 }>()) else {
            return;
        };
        room[0].store(pair(small, event.request), Ordering::Relaxed);
        let mut count = 1;
        let mut add = |word: u64| {
            room[count].store(word, Ordering::Relaxed);
            count += 1;
        };
        if HAS & has::TIME != 0 {
            // The counter may be read early, and another thread's be a little behind: time does not go back.
            self.ticks = self.ticks.max(ticks(self.by_counter));
            add(self.ticks);
        }
        if HAS & has::USER_DATA != 0 {
            add(event.user_data);
        }
        if HAS & has::OFFSET != 0 {
            add(event.offset);
        }
        if HAS & has::FD_LEN != 0 {
            add(pair(event.fd as u32, event.len));
        }
        if HAS & has::RESULT_FLAGS != 0 {
            add(pair(event.result as u32, event.flags));
        }
        self.at += count;
        self.tell();
    }

    #[inline(always)]
    fn tell(&self) {
        if let Some(head) = self.head {
            head.written.store(self.at as u32, Ordering::Release); // partner: the Acquire in `Reader::read`
        }
    }

    #[cold]
    fn name_thread(&mut self) {
        (self.thread, self.thread_pointer) = (thread::id(), sync::thread_pointer());
        if let Some(word) = self.words.get(self.at) {
            word.store(u64::from(self.thread) << 32, Ordering::Relaxed);
            self.at += 1;
        }
    }

    /// Closes the chunk and takes another. False when there is none.
    #[cold]
    fn change_chunk(&mut self) -> bool {
        self.close();
        let Some(index) = self.block.take() else { return false };
        let head = &self.block.heads[index];
        self.ticks = self.ticks.max(ticks(self.by_counter));
        head.ticks.store(self.ticks, Ordering::Relaxed);
        head.ring.store(self.ring, Ordering::Relaxed);
        head.process.store(self.process, Ordering::Relaxed);
        head.interface.store(self.interface.into(), Ordering::Relaxed);
        let ticket = self.block.tickets.fetch_add(1, Ordering::Relaxed) + 1;
        // Release pairs with the Acquire in `Reader::drain`: whoever sees this chunk sees the one before it closed.
        head.ticket.store(ticket, Ordering::Release);
        (self.head, self.words, self.at) = (Some(head), &self.block.chunks[index], 0);
        self.thread_pointer = 0;
        true
    }

    fn close(&mut self) {
        if let Some(head) = self.head.take() {
            head.written.store(self.at as u32 | CLOSED, Ordering::Release); // partner: the Acquire in `Reader::read`
        }
        (self.words, self.at) = (&[], 0);
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.close();
    }
}

/// How far the reader is in a chunk.
#[derive(Debug, Clone, Copy, Default)]
struct Cursor {
    at: usize,
    ticks: u64,
    thread: u32,
}

/// Empties a file of events.
#[derive(Debug)]
pub struct Reader {
    block: &'static Block,
    cursors: Vec<Cursor>,
    /// Chunks that are not free, with their tickets; empty between two calls.
    taken: Vec<(u64, usize)>,
    /// Both clocks when the file was made, and when they were last compared.
    clocks: [Clocks; 2],
    /// The last time that was converted.
    last_ns: u64,
}

/// What two clocks showed at the same time.
#[derive(Debug, Clone, Copy)]
struct Clocks {
    ticks: u64,
    time_ns: u64,
}

impl Clocks {
    fn read(block: &Block) -> Clocks {
        let (before, time_ns, after) = (block.ticks(), Sys::clock_ns(libc::CLOCK_MONOTONIC), block.ticks());
        Clocks { ticks: before + after.saturating_sub(before) / 2, time_ns }
    }
}

impl Reader {
    /// Makes the file, which only its owner may open. All its room is taken now: a producer that found none left on the
    /// disk would get a SIGBUS.
    ///
    /// # Errors
    /// What open(2), fallocate(2) or mmap(2) answered.
    pub fn create(file: &Path) -> Result<Reader, Errno> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let fd = calls::open(file, flags, Mode::from(0o600))?;
        Reader::in_file(&fd, || Ok(())).inspect_err(|_| {
            let _ = calls::remove_file(file);
        })
    }

    /// Makes a file of events of an empty one; `seal` is called when it has its size.
    ///
    /// # Errors
    /// As [`create`](Self::create), and those of `seal`.
    pub fn in_file(fd: &impl AsFd, seal: impl FnOnce() -> Result<(), Errno>) -> Result<Reader, Errno> {
        calls::fallocate(fd, rustix::fs::FallocateFlags::empty(), 0, size_of::<Block>() as u64)?;
        seal()?;
        let block = map(fd)?;
        backing::note(block as usize, size_of::<Block>());
        // SAFETY: mapped just now, unmapped only when the reader ends, of atomics only.
        let block: &'static Block = unsafe { &*block };
        block.by_counter.store(counter_is_a_clock().into(), Ordering::Relaxed);
        block.namespace.store(namespace(), Ordering::Relaxed);
        block.free.iter().for_each(|word| word.store(u64::MAX, Ordering::Relaxed));
        block.magic.store(MAGIC, Ordering::Relaxed); // nobody knows the file yet
        let (cursors, clocks) = (vec![Cursor::default(); CHUNKS], [Clocks::read(block); 2]);
        Ok(Reader { block, cursors, taken: Vec::new(), clocks, last_ns: 0 })
    }

    /// Moves what has happened to `events`, each ring's in order, with times in ticks. True when there was something and
    /// more than half of the room was in use, so that it is time for the next call already.
    pub fn drain(&mut self, events: &mut Vec<Event>) -> bool {
        self.clocks[1] = Clocks::read(self.block);
        // Acquire pairs with the Release in `change_chunk`. All tickets first: of two chunks of one writer the second is
        // known only when the first is, and so by their order the first is read to its end.
        let mut known = 0;
        loop {
            self.taken.clear();
            let heads = self.block.heads.iter().enumerate();
            self.taken.extend(heads.filter_map(|(index, head)| match head.ticket.load(Ordering::Acquire) {
                0 => None,
                ticket => Some((ticket, index)),
            }));
            if self.taken.len() <= known {
                break;
            }
            known = self.taken.len();
        }
        self.taken.sort_unstable();
        let (crowded, before) = (known > CHUNKS / 2, events.len());
        for (_, index) in core::mem::take(&mut self.taken) {
            self.read(index, crowded, events);
        }
        crowded && events.len() > before
    }

    fn read(&mut self, index: usize, crowded: bool, events: &mut Vec<Event>) {
        let (head, words) = (&self.block.heads[index], &self.block.chunks[index]);
        let process = head.process.load(Ordering::Relaxed);
        // Asked before its last words are looked at.
        let is_left = crowded && is_dead(process) && !mutated(Mutation::ChunksOfTheDeadStay);
        // Acquire pairs with the Release in `tell` and in `close`.
        let written = head.written.load(Ordering::Acquire);
        let mut cursor = self.cursors[index];
        if cursor.at == 0 {
            cursor.ticks = head.ticks.load(Ordering::Relaxed);
        }
        let ring = head.ring.load(Ordering::Relaxed);
        let interface = head.interface.load(Ordering::Relaxed) as u16 & AIO;
        let end = ((written & !CLOSED) as usize).min(WORDS);
        while cursor.at < end {
            cursor.read_record(&words[cursor.at..end], ring, interface, events);
        }
        self.cursors[index] = cursor;
        if written & CLOSED != 0 || is_left {
            self.give_back(index);
        }
    }

    fn give_back(&mut self, index: usize) {
        let head = &self.block.heads[index];
        self.cursors[index] = Cursor::default();
        head.written.store(0, Ordering::Relaxed);
        head.ticket.store(0, Ordering::Relaxed);
        // Release pairs with the Acquire in `take`.
        self.block.free[index / 64].fetch_or(1 << (index % 64), Ordering::Release);
    }

    /// A writer of a new ring's.
    #[cfg(test)]
    pub(crate) fn writer(&self) -> Writer {
        Writer::new(self.block, 0)
    }

    /// The time now, as in the file.
    #[cfg(test)]
    pub(crate) fn now_ticks(&self) -> u64 {
        self.block.ticks()
    }

    /// CLOCK_MONOTONIC at the last [`drain`](Self::drain), in the ticks of its events.
    pub fn drained_ticks(&self) -> u64 {
        self.clocks[1].ticks
    }

    /// Turns times in ticks into nanoseconds of CLOCK_MONOTONIC, of `events` in the order of time.
    pub fn convert(&mut self, events: &mut [Event]) {
        let [first, last] = self.clocks;
        let (ticks, ns) = (last.ticks.saturating_sub(first.ticks), last.time_ns - first.time_ns);
        let rate = if ticks == 0 { 1.0 } else { ns as f64 / ticks as f64 };
        let moment = |ticks: u64| {
            let since_last = ticks.wrapping_sub(last.ticks) as i64;
            last.time_ns.wrapping_add_signed((since_last as f64 * rate) as i64)
        };
        for event in events {
            self.last_ns = self.last_ns.max(moment(event.time_ns));
            event.time_ns = self.last_ns;
            event.convert_worked(moment, rate);
        }
    }

    /// Events that found no room.
    pub fn dropped(&self) -> u64 {
        self.block.dropped.load(Ordering::Relaxed)
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        // SAFETY: the mapping that `in_file` made; only this reader refers to it.
        unsafe { Block::unmap(core::ptr::from_ref(self.block).cast_mut()) };
    }
}

/// Whether there is no process of that number any more; 0 is nobody's, and never dead.
fn is_dead(process: u32) -> bool {
    let Some(process) = Pid::from_raw(process as i32) else { return false };
    calls::test_kill_process(process) == Err(Errno::SRCH)
}

impl Cursor {
    /// Reads the record with which `words` begins. Words that make none are passed over.
    fn read_record(&mut self, words: &[AtomicU64], ring: u32, interface: u16, events: &mut Vec<Event>) {
        let mut words = words.iter().map(|word| word.load(Ordering::Relaxed));
        let mut next = || {
            self.at += 1;
            words.next().unwrap_or(0)
        };
        let first = next();
        let (small, request) = (first as u32, (first >> 32) as u32);
        let [kind, opcode, file, bits] = small.to_le_bytes();
        let Some(kind) = kind.checked_sub(1) else {
            self.thread = request;
            return;
        };
        let Some(kind) = Kind::ALL.get(usize::from(kind)) else { return };
        let mut word = |bit: u8| if bits & bit != 0 { next() } else { 0 };
        let time = word(has::TIME);
        let (user_data, offset) = (word(has::USER_DATA), word(has::OFFSET));
        let (which, outcome) = (word(has::FD_LEN), word(has::RESULT_FLAGS));
        if bits & has::TIME != 0 {
            self.ticks = time;
        }
        let (fd, len) = (which as u32 as i32, (which >> 32) as u32);
        let event = Event {
            time_ns: self.ticks,
            user_data,
            offset,
            ring,
            request,
            thread: self.thread,
            fd,
            len,
            result: outcome as u32 as i32,
            flags: (outcome >> 32) as u32,
            kind: *kind,
            opcode: interface | u16::from(opcode),
            file: FileKind::from_u8(file),
        };
        if bits & has::FILE == 0 {
            return events.push(event);
        }
        let found = Event { kind: Kind::FileGet, offset: 0, len: 0, result: 0, flags: 0, ..event };
        events.extend([Event { file: FileKind::Unknown, ..event }, found]);
    }
}
