//! The file of events: chunks of words, which processes with rings fill and one reader empties.
//!
//! A chunk is free (its bit in `free` is set) or has an owner: the [`Writer`] of one ring in one process. Only the
//! holder of that ring's lock uses the writer. The writer fills the chunk from the front, and after each record
//! publishes how far it has got. When the chunk is full, the writer takes another. So a record costs plain stores, and
//! a producer that is killed leaves no partial record.
//!
//! Only the reader frees chunks: closed chunks that it has read, and chunks of processes that died. No producer waits:
//! an event that finds no chunk is counted and dropped.
//!
//! A record is one word (kind, opcode, file kind, [`has`] bits, request), followed by the words that the bits announce.
//! A record of kind 0 names the thread that caused the following records.

use super::session::Room;
use super::{Event, FileKind, Kind, AIO};
use crate::descriptors::Own;
use crate::mutation::{mutated, Mutation};
use crate::os::calls;
use crate::os::{arch, backing, Os, Sys};
use crate::{sync, thread, Errno};
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use rustix::fd::AsFd;
use rustix::fs::{Mode, OFlags, SealFlags};
use rustix::mm::{MapFlags, ProtFlags};
use rustix::process::Pid;
use std::path::Path;
use std::sync::Arc;

/// First word of the file: "anyring" and the layout's version. The version's high bit distinguishes this file from one
/// of counters.
pub const MAGIC: u64 = u64::from_le_bytes(*b"anyring\x84");

/// Number of chunks in the file. They take 16 MiB.
pub const CHUNKS: usize = 2_048;
/// Words in a chunk.
pub const WORDS: usize = 1_024;
/// The most words of a record, plus one word for a record before it that names the thread.
const MOST: usize = 7;
/// Bit of [`Head::written`]: the owner writes no more to the chunk.
const CLOSED: u32 = 1 << 31;

/// The words that follow the first word of a record, in this order. [`FILE`](has::FILE) adds no word.
pub mod has {
    /// The time, in ticks. In a record without it, the previous record's time holds.
    pub const TIME: u8 = 1;
    /// `user_data`.
    pub const USER_DATA: u8 = 2;
    /// `offset`.
    pub const OFFSET: u8 = 4;
    /// `fd` and `len`.
    pub const FD_LEN: u8 = 8;
    /// `result` and `flags`.
    pub const RESULT_FLAGS: u8 = 16;
    /// The descriptor was looked up: the reader adds a FILE_GET event.
    pub const FILE: u8 = 32;
}

/// The header of a chunk.
#[repr(C, align(64))]
struct Head {
    /// The number of chunks taken so far when this chunk was taken, this chunk included; 0 for a free chunk. The writer
    /// that takes the chunk stores this field last.
    ticket: AtomicU64,
    /// The time at which the chunk was taken, in ticks.
    ticks: AtomicU64,
    /// The number of the ring whose events the chunk holds.
    ring: AtomicU32,
    /// The process ID, or 0 if the reader is in another PID namespace.
    process: AtomicU32,
    /// Number of complete words in the chunk, and the bit [`CLOSED`].
    written: AtomicU32,
    /// [`AIO`] if the ring is an AIO context, otherwise 0.
    interface: AtomicU32,
}

/// The file's layout. All words start at zero except those that [`Reader::create`] sets.
#[repr(C)]
pub(crate) struct Block {
    magic: AtomicU64,
    /// 1 if times are values of the processor's time stamp counter, 0 if they are CLOCK_MONOTONIC.
    by_counter: AtomicU32,
    /// The number that the last ring got.
    rings: AtomicU32,
    /// The last request number that a process took.
    requests: AtomicU32,
    /// Number of the reader's PID namespace; 0 if unknown.
    namespace: AtomicU64,
    /// Number of chunks taken so far.
    tickets: AtomicU64,
    /// Number of events that were dropped for want of a chunk.
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
    /// Claims the free chunk with the lowest number, whose memory was used most recently.
    fn claim_free(&self) -> Option<usize> {
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

    /// Unmaps a block.
    ///
    /// # Safety
    /// The block was made by [`map`], and nothing refers to it any more.
    pub(crate) unsafe fn unmap(block: *mut Block) {
        backing::forget(block as usize);
        // SAFETY: the caller keeps the contract above. Every such mapping has this size.
        let _ = unsafe { calls::munmap(block.cast(), size_of::<Block>()) };
    }

    /// True if times are values of the processor's time stamp counter.
    pub(crate) fn goes_by_counter(&self) -> bool {
        self.by_counter.load(Ordering::Relaxed) != 0
    }

    fn ticks(&self) -> u64 {
        ticks(self.goes_by_counter())
    }
}

/// The time now: a value of the time stamp counter, or CLOCK_MONOTONIC in nanoseconds.
#[inline(always)]
pub(crate) fn ticks(by_counter: bool) -> u64 {
    arch::ticks(by_counter, || Sys::clock_ns(libc::CLOCK_MONOTONIC))
}

/// True if the kernel itself takes the time from the processor's counter. The counter is then the same on all CPUs.
fn counter_is_a_clock() -> bool {
    const SOURCE: &str = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
    let source = calls::read_text(SOURCE).unwrap_or_default();
    arch::COUNTER_CLOCKS.contains(&source.trim())
}

/// The number of the process's PID namespace; 0 without /proc.
fn namespace() -> u64 {
    calls::stat("/proc/self/ns/pid").map_or(0, |found| found.st_ino)
}

fn map(file: &impl rustix::fd::AsFd) -> Result<*mut Block, Errno> {
    let prot = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: this is a new mapping, at an address that the kernel chooses.
    let mapped =
        unsafe { calls::mmap(core::ptr::null_mut(), size_of::<Block>(), prot, MapFlags::SHARED, file, 0)? };
    Ok(mapped.cast())
}

/// Maps `file`. Fails with EINVAL unless [`Reader::create`] made the file.
pub(crate) fn map_file(file: &str) -> Result<&'static Block, Errno> {
    let fd = calls::open(file, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    map_checked(&fd)
}

/// Maps a memfd that [`Reader::in_file`] prepared. Fails with EINVAL if the file is something else, or could still
/// shrink.
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
    backing::record(block as usize, size_of::<Block>());
    // SAFETY: the block was mapped just now. It is as large as a Block, and has atomics only. All its uses end before
    // it is unmapped.
    Ok(unsafe { &*block })
}

/// The writer of one ring's events in one process.
pub struct Writer {
    /// Keeps `block` mapped. `None` in tests, whose reader keeps it mapped.
    room: Option<Arc<Room>>,
    block: &'static Block,
    /// The ring's number.
    ring: u32,
    /// The process, as in [`Head::process`].
    process: u32,
    /// The interface, as in [`Head::interface`].
    interface: u16,
    by_counter: bool,
    head: Option<&'static Head>,
    /// The chunk's words, and the number of words that are written.
    words: &'static [AtomicU64],
    at: usize,
    /// The last event's time, in ticks.
    ticks: u64,
    /// The last event's thread, and its [`sync::thread_pointer`].
    thread: u32,
    thread_pointer: usize,
}

impl Writer {
    /// Makes a writer for a ring that has none in this room. `interface` is [`AIO`] for an AIO context, otherwise 0.
    pub fn in_room(room: Arc<Room>, interface: u16) -> Writer {
        let mut writer = Writer::new(room.block(), interface);
        writer.room = Some(room);
        writer
    }

    /// True if the events go into this room.
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

    /// Makes the writer of the same ring in a forked child, if events are wanted in the child too. The parent keeps
    /// this writer.
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

    /// Reserves `count` request numbers that no other process has. Returns the first.
    pub fn reserve_numbers(&self, count: u32) -> u32 {
        self.block.requests.fetch_add(count, Ordering::Relaxed).wrapping_add(1)
    }

    /// Checks whether another thread writes now. The thread pointer alone does not show that: a new thread may have the
    /// thread pointer of a thread that ended.
    pub fn check_thread(&mut self) {
        if thread::id() != self.thread {
            self.thread_pointer = 0;
        }
    }

    /// Writes an event, or counts it as dropped. `HAS` says which fields the event has ([`has`]). The writer supplies
    /// `time_ns`, `ring` and `thread`.
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
        // The upper half of the opcode is the chunk's `interface`.
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
            // The processor may read the counter early, and another CPU's counter may lag a little. So make sure that
            // time never goes back.
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
        self.publish();
    }

    #[inline(always)]
    fn publish(&self) {
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

    /// Closes the chunk and takes another. False if no chunk is free.
    #[cold]
    fn change_chunk(&mut self) -> bool {
        self.close();
        let Some(index) = self.block.claim_free() else { return false };
        let head = &self.block.heads[index];
        self.ticks = self.ticks.max(ticks(self.by_counter));
        head.ticks.store(self.ticks, Ordering::Relaxed);
        head.ring.store(self.ring, Ordering::Relaxed);
        head.process.store(self.process, Ordering::Relaxed);
        head.interface.store(self.interface.into(), Ordering::Relaxed);
        let ticket = self.block.tickets.fetch_add(1, Ordering::Relaxed) + 1;
        // Release pairs with the Acquire in `Reader::drain`. A reader that finds this chunk also finds the previous
        // chunk closed.
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

/// The reader's position within one chunk.
#[derive(Debug, Clone, Copy, Default)]
struct Cursor {
    at: usize,
    ticks: u64,
    thread: u32,
}

/// The reader of a file of events, which empties the file.
#[derive(Debug)]
pub struct Reader {
    block: &'static Block,
    cursors: Vec<Cursor>,
    /// Chunks that are not free, with their tickets. Empty between two calls of `drain`.
    in_use: Vec<(u64, usize)>,
    /// The values of both clocks when the file was made and at the last comparison.
    clocks: [Clocks; 2],
    /// The last time that was converted, in nanoseconds.
    last_ns: u64,
}

/// The values of two clocks at the same time.
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
    /// Makes the file, which only its owner may open. All its room is allocated at once. Otherwise a full disk would
    /// raise SIGBUS in a producer.
    ///
    /// # Errors
    /// The error of open(2), fallocate(2) or mmap(2).
    pub fn create(file: &Path) -> Result<Reader, Errno> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let fd = calls::open(file, flags, Mode::from(0o600))?;
        Reader::in_file(&fd, || Ok(())).inspect_err(|_| {
            let _ = calls::remove_file(file);
        })
    }

    /// Turns an empty file into a file of events. `seal` is called once the file has its size.
    ///
    /// # Errors
    /// The errors of [`create`](Self::create), and those of `seal`.
    pub fn in_file(fd: &impl AsFd, seal: impl FnOnce() -> Result<(), Errno>) -> Result<Reader, Errno> {
        calls::fallocate(fd, rustix::fs::FallocateFlags::empty(), 0, size_of::<Block>() as u64)?;
        seal()?;
        let block = map(fd)?;
        backing::record(block as usize, size_of::<Block>());
        // SAFETY: the block was mapped just now, and is unmapped only when the reader ends. It has atomics only.
        let block: &'static Block = unsafe { &*block };
        block.by_counter.store(counter_is_a_clock().into(), Ordering::Relaxed);
        block.namespace.store(namespace(), Ordering::Relaxed);
        block.free.iter().for_each(|word| word.store(u64::MAX, Ordering::Relaxed));
        block.magic.store(MAGIC, Ordering::Relaxed); // no other process knows the file yet
        let (cursors, clocks) = (vec![Cursor::default(); CHUNKS], [Clocks::read(block); 2]);
        Ok(Reader { block, cursors, in_use: Vec::new(), clocks, last_ns: 0 })
    }

    /// Moves new events to `events`. The events of each ring are in order, with times in ticks. True if there were
    /// events and more than half of the chunks were in use: the next call should come soon.
    pub fn drain(&mut self, events: &mut Vec<Event>) -> bool {
        self.clocks[1] = Clocks::read(self.block);
        // Acquire pairs with the Release in `change_chunk`. All tickets are read before any chunk. So if the second of
        // two chunks of one writer is known, the first is known, too. Chunks are read in the order of their tickets, so
        // the first is read to its end.
        let mut known = 0;
        loop {
            self.in_use.clear();
            let heads = self.block.heads.iter().enumerate();
            self.in_use.extend(heads.filter_map(|(index, head)| match head.ticket.load(Ordering::Acquire) {
                0 => None,
                ticket => Some((ticket, index)),
            }));
            if self.in_use.len() <= known {
                break;
            }
            known = self.in_use.len();
        }
        self.in_use.sort_unstable();
        let (crowded, before) = (known > CHUNKS / 2, events.len());
        for (_, index) in core::mem::take(&mut self.in_use) {
            self.read(index, crowded, events);
        }
        crowded && events.len() > before
    }

    fn read(&mut self, index: usize, crowded: bool, events: &mut Vec<Event>) {
        let (head, words) = (&self.block.heads[index], &self.block.chunks[index]);
        let process = head.process.load(Ordering::Relaxed);
        // Check this before the last words are read.
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

    /// The writer of a new ring.
    #[cfg(test)]
    pub(crate) fn writer(&self) -> Writer {
        Writer::new(self.block, 0)
    }

    /// The time now, in the file's ticks.
    #[cfg(test)]
    pub(crate) fn now_ticks(&self) -> u64 {
        self.block.ticks()
    }

    /// The time of the last [`drain`](Self::drain), in the ticks of its events.
    pub fn drained_ticks(&self) -> u64 {
        self.clocks[1].ticks
    }

    /// Converts times from ticks to nanoseconds of CLOCK_MONOTONIC. `events` are in the order of time.
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
            event.convert_times(moment, rate);
        }
    }

    /// Number of events that were dropped for want of a chunk.
    pub fn dropped(&self) -> u64 {
        self.block.dropped.load(Ordering::Relaxed)
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        // SAFETY: this is the mapping that `in_file` made. Only this reader refers to it.
        unsafe { Block::unmap(core::ptr::from_ref(self.block).cast_mut()) };
    }
}

/// True if no process has this number. False for 0.
fn is_dead(process: u32) -> bool {
    let Some(process) = Pid::from_raw(process as i32) else { return false };
    calls::test_kill_process(process) == Err(Errno::SRCH)
}

impl Cursor {
    /// Reads the record at the start of `words`. Skips words that form no record.
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
