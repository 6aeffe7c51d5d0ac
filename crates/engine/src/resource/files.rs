//! Registered files: io_uring_register(2), IORING_REGISTER_FILES and the calls that work on them.
//!
//! A registered file is a private duplicate of the program's descriptor, so it stays open whatever the program does
//! with the number. Requests in flight keep their files open (`Arc`). Once a registered file is closed, another may
//! get its number. So the code that registers a file also makes the poll set forget what it knows of the number
//! (`PollSet::forget`).

use super::table::{Table, Update};
use super::tag::{Tag, Tagged};
use crate::alloc;
use crate::mutation::{mutated, Mutation};
use crate::os::calls;
use crate::os::handlers;
use crate::os::{file_status, for_now};
use crate::os::{standard, user_read, Os, Sys};
use crate::sync::Hook;
use crate::{descriptors, Errno};
use anyring_abi::{IORING_FILE_INDEX_ALLOC, IORING_REGISTER_FILES_SKIP};
use core::ops::Range;
use core::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::Arc;

/// Hands a descriptor to another thread to close, and returns true, if the calling thread has other rings to serve
/// (`wait::helper`).
pub static CLOSED_ELSEWHERE: Hook<i32, bool> = Hook::new();

/// A descriptor that belongs to the engine, closed after its last user.
#[derive(Debug)]
pub struct FixedFile {
    /// The descriptor's number.
    pub fd: i32,
    tag: Option<Tag>,
}

impl FixedFile {
    /// Takes ownership of `fd`, a descriptor at the top of the table.
    pub fn new(fd: i32, tag: Option<Tag>) -> Arc<FixedFile> {
        Arc::new(FixedFile { fd, tag })
    }

    /// Takes ownership of `fd`, at the top of the table, for a request in flight. A forked child closes it.
    pub fn in_flight(fd: i32) -> Arc<FixedFile> {
        descriptors::mark_in_flight(fd);
        FixedFile::new(fd, None)
    }

    /// Makes a duplicate of `fd`, one of the program's numbers, for a request in flight.
    pub fn private(fd: i32) -> Result<Arc<FixedFile>, Errno> {
        descriptors::duplicate_in_flight(fd).map(|private| FixedFile::new(private, None))
    }
}

impl Drop for FixedFile {
    fn drop(&mut self) {
        let fd = self.fd;
        // A close may linger, write back or wait for a server. The kernel makes it on the way out of the system call.
        handlers::without_locks(move || {
            if mutated(Mutation::HelperClosesFiles) || CLOSED_ELSEWHERE.call(fd) != Some(true) {
                close(fd);
            }
        });
    }
}

/// Closes a descriptor of a program's file. Closing any descriptor of a file gives up the process's POSIX locks on
/// that file (fcntl(2)). So if the program holds such a lock, the descriptor stays open.
pub fn close(fd: i32) {
    if !holds_lock(fd) {
        descriptors::close(fd);
    }
}

/// True if the entry points intercept every program call that takes a POSIX lock.
static LOCKS_ARE_SEEN: AtomicBool = AtomicBool::new(false);
/// Whether the program may hold a POSIX lock. Existing locks are searched once, before the first ring, since an
/// executed program keeps its locks. Relaxed: a thread that takes a lock stores this first, and a thread that learns
/// of the lock reads the store.
static MAY_HOLD: AtomicU8 = AtomicU8::new(UNKNOWN);
const UNKNOWN: u8 = 0;
const NONE: u8 = 1;
const SOME: u8 = 2;

/// Sets whether the entry points intercept every program call that takes a POSIX lock.
pub fn set_locks_are_seen(seen: bool) {
    LOCKS_ARE_SEEN.store(seen, Ordering::Relaxed);
}

/// Records that the program is about to take a POSIX lock.
pub fn mark_posix_lock() {
    MAY_HOLD.store(SOME, Ordering::Relaxed);
}

/// Finds out, in the program's own call before a ring is made, whether the program holds a POSIX lock already. So no
/// engine thread has to, which would take the lowest number for /proc/locks.
pub fn find_posix_locks() {
    if !LOCKS_ARE_SEEN.load(Ordering::Relaxed) || MAY_HOLD.load(Ordering::Relaxed) != UNKNOWN {
        return;
    }
    let is_programs = |first: &str| first.parse().is_ok_and(|first: u64| first < descriptors::LOCKS_FROM);
    let found = if own_locks_have(|_, first| is_programs(first)).unwrap_or(true) { SOME } else { NONE };
    // The exchange fails if `mark_posix_lock` was called since the load.
    let _ = MAY_HOLD.compare_exchange(UNKNOWN, found, Ordering::Relaxed, Ordering::Relaxed);
}

/// True if this process holds a POSIX lock on the file that `fd` names.
fn holds_lock(fd: i32) -> bool {
    if LOCKS_ARE_SEEN.load(Ordering::Relaxed) && MAY_HOLD.load(Ordering::Relaxed) == NONE {
        return false;
    }
    own_lock_conflicts(fd).unwrap_or_else(|| is_among_own_locks(fd))
}

/// True if a lock of this process conflicts with a lock of the whole file by the description of `fd`. `None` if that
/// is unknown. F_OFD_GETLK names one lock, with its process, so further questions are about the bytes around that lock.
/// A lock of another process for reading may hide one of this process on the same bytes.
fn own_lock_conflicts(fd: i32) -> Option<bool> {
    const MOST_QUESTIONS: usize = 32;
    let own = Sys::process_id() as i32;
    // The first byte of each range to ask for, and the byte after it. A question takes one away and leaves two at most.
    let (mut ranges, mut count, mut may_hide) = ([(0, i64::MAX); MOST_QUESTIONS + 1], 1, false);
    for _ in 0..MOST_QUESTIONS {
        if count == 0 {
            return (!may_hide).then_some(false);
        }
        count -= 1;
        let (first, end) = ranges[count];
        let Some(found) = conflicting_lock(fd, first, end) else { continue };
        if found.l_pid == own {
            return Some(true);
        }
        may_hide |= found.l_type != libc::F_WRLCK as i16;
        let after = if found.l_len == 0 { i64::MAX } else { found.l_start.saturating_add(found.l_len) };
        for range in [(first, found.l_start), (after, end)].into_iter().filter(|(from, to)| from < to) {
            ranges[count] = range;
            count += 1;
        }
    }
    None
}

/// True if this process holds a POSIX lock on the file that `fd` names, according to /proc/locks. Without that file,
/// a lock of any process counts. The file takes the lowest number for a moment.
#[cold]
fn is_among_own_locks(fd: i32) -> bool {
    let Ok(status) = file_status(fd) else { return false };
    let (major, minor) = (rustix::fs::major(status.device), rustix::fs::minor(status.device));
    let file = format!("{major:02x}:{minor:02x}:{}", status.inode);
    standard::on_any_thread(|| own_locks_have(|locked, _| locked == file)).unwrap_or(true)
}

/// True if `is_it` accepts a POSIX lock of this process. It gets the lock's file and first byte, as in /proc/locks.
fn own_locks_have(is_it: impl Fn(&str, &str) -> bool) -> Option<bool> {
    use rustix::fs::{Mode, OFlags};
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let locks = calls::open("/proc/locks", flags, Mode::empty()).ok()?;
    let mut text = Vec::new();
    let mut portion = vec![0u8; 4096];
    while let Ok(bytes @ 1..) = calls::read(&locks, &mut portion) {
        text.try_reserve(bytes).ok()?;
        text.extend_from_slice(&portion[..bytes]);
    }
    let pid = std::process::id().to_string();
    Some(String::from_utf8_lossy(&text).lines().any(|line| {
        let mut words = line.split_whitespace();
        let is_own = words.nth(1) == Some("POSIX") && words.nth(2) == Some(&pid);
        let (file, first) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
        is_own && is_it(file, first)
    }))
}

/// True if the kernel would refuse a lock of the whole file by the description of `fd`. A POSIX lock of this process
/// also causes that, since the two kinds of lock conflict.
pub fn is_locked(fd: i32) -> bool {
    conflicting_lock(fd, 0, i64::MAX).is_some()
}

/// Returns a lock that conflicts with one of the description of `fd` on the bytes from `first` up to `end`. An `end` of
/// `i64::MAX` stands for all bytes that follow. The kernel names only one of several locks.
fn conflicting_lock(fd: i32, first: i64, end: i64) -> Option<libc::flock> {
    let mut lock = libc::flock {
        l_type: libc::F_WRLCK as i16,
        l_whence: libc::SEEK_SET as i16,
        l_start: first,
        l_len: if end == i64::MAX { 0 } else { end - first },
        l_pid: 0,
    };
    let args = [fd as usize, libc::F_OFD_GETLK as usize, &mut lock as *mut _ as usize, 0, 0, 0];
    let answer = crate::os::syscall(libc::SYS_fcntl, args);
    (answer == 0 && lock.l_type != libc::F_UNLCK as i16).then_some(lock)
}

/// The table of registered files of a ring.
#[derive(Debug)]
pub struct Files {
    slots: Vec<Option<Arc<FixedFile>>>,
    /// The slots that allocation (`IORING_FILE_INDEX_ALLOC`) searches.
    range: Range<usize>,
    /// The slot at which the search begins, if it is in the range. It is the slot after the one filled last, or the
    /// slot emptied last if that was later. Source: `alloc_hint` in io_uring/filetable.h.
    hint: usize,
}

/// The most files that a ring takes (`IORING_MAX_FIXED_FILES`).
pub const MAX_FILES: u32 = 1 << 20;

impl Files {
    /// Returns the number of slots, including empty ones.
    pub fn size(&self) -> usize {
        self.slots.len()
    }

    /// Registers the descriptors of `table` with their tags. A descriptor of -1 leaves its slot empty.
    pub fn new(ring: &'static dyn Tagged, table: &Table) -> Result<Files, Errno> {
        let mut slots: Vec<Option<Arc<FixedFile>>> = Vec::new();
        slots.try_reserve_exact(table.count as usize).map_err(alloc::refused)?;
        for slot in 0..table.count {
            match table.tag(slot).and_then(|tag| open(ring, table.fd(slot)?, tag)) {
                Ok(file) => slots.push(file),
                Err(error) => {
                    slots.iter().flatten().flat_map(|file| &file.tag).for_each(Tag::forget);
                    return Err(error);
                }
            }
        }
        Ok(Files { range: 0..slots.len(), slots, hint: 0 })
    }

    /// Returns the number of slots.
    pub fn slot_count(&self) -> u32 {
        self.slots.len() as u32
    }

    /// Returns the file in slot `index`.
    pub fn get(&self, index: u32) -> Result<&Arc<FixedFile>, Errno> {
        self.slots.get(index as usize).and_then(Option::as_ref).ok_or(Errno::BADF)
    }

    /// Returns the files in these slots. Empty slots are left out.
    pub fn in_slots(&self, slots: Range<u32>) -> impl Iterator<Item = &Arc<FixedFile>> {
        let slots = (slots.start as usize).min(self.slots.len())..(slots.end as usize).min(self.slots.len());
        self.slots[slots].iter().flatten()
    }

    /// Replaces the files in existing slots. Returns the number of slots replaced before an error.
    pub fn update(&mut self, ring: &'static dyn Tagged, update: &Update) -> Result<u32, Errno> {
        for done in 0..update.table.count {
            match self.update_slot(ring, (update.first + done) as usize, &update.table, done) {
                Ok(()) => {}
                Err(error) if done == 0 => return Err(error),
                Err(_) => return Ok(done),
            }
        }
        Ok(update.table.count)
    }

    /// Replaces the file in slot `index` by the file at `place` of `table`. Source: `__io_sqe_files_update` in
    /// io_uring/rsrc.c.
    fn update_slot(
        &mut self,
        ring: &'static dyn Tagged,
        index: usize,
        table: &Table,
        place: u32,
    ) -> Result<(), Errno> {
        let (tag, fd) = (table.tag(place)?, user_read(table.fd_address(place))?);
        if tag != 0 && matches!(fd, IORING_REGISTER_FILES_SKIP | -1) {
            return Err(Errno::INVAL); // a tag for a slot that keeps its file
        }
        if fd == IORING_REGISTER_FILES_SKIP {
            return Ok(());
        }
        if !mutated(Mutation::StaleRegisteredFile) {
            self.empty(index);
        }
        if let Some(file) = open(ring, fd, tag)? {
            self.fill(index, file);
        }
        Ok(())
    }

    /// Puts a new descriptor, which becomes the engine's, into the slot that an SQE's `file_index` names.
    /// `file_index` is slot + 1, or `IORING_FILE_INDEX_ALLOC` for any free slot. Returns the CQE's result: 0, or the
    /// slot that was found.
    pub fn install(&mut self, fd: i32, file_index: u32) -> Result<i32, Errno> {
        let moved = descriptors::to_top(for_now(descriptors::owned(fd as usize)))?;
        let file = FixedFile::new(rustix::fd::IntoRawFd::into_raw_fd(moved), None);
        if file_index == IORING_FILE_INDEX_ALLOC as u32 {
            let slot = self.find_free().ok_or(Errno::NFILE)?;
            self.fill(slot, file);
            return Ok(slot as i32);
        }
        let index = file_index as usize - 1;
        if index >= self.slots.len() {
            return Err(Errno::INVAL);
        }
        self.fill(index, file);
        Ok(0)
    }

    /// Finds an empty slot. Source: `io_file_bitmap_get` in io_uring/filetable.c.
    fn find_free(&mut self) -> Option<usize> {
        let Range { start, end } = self.range.clone();
        if !self.range.contains(&self.hint) {
            self.hint = start;
        }
        let free = |slots: Range<usize>| slots.into_iter().find(|slot| self.slots[*slot].is_none());
        let after = free(self.hint..end);
        if after.is_some() || self.hint == start {
            return after;
        }
        let before = free(start..self.hint);
        self.hint = start;
        before
    }

    fn fill(&mut self, index: usize, file: Arc<FixedFile>) {
        if self.slots[index].replace(file).is_none() {
            self.hint = index + 1;
        }
    }

    /// Empties a slot. True if it had a file.
    fn empty(&mut self, index: usize) -> bool {
        let was_full = self.slots[index].take().is_some();
        if was_full {
            self.hint = index;
        }
        was_full
    }

    /// Restricts allocation to `length` slots from `first` on (`IORING_REGISTER_FILE_ALLOC_RANGE`).
    pub fn set_range(&mut self, first: u32, length: u32) -> Result<(), Errno> {
        let end = first.checked_add(length).ok_or(Errno::OVERFLOW)? as usize;
        if end > self.slots.len() {
            return Err(Errno::INVAL);
        }
        self.range = first as usize..end;
        self.hint = first as usize;
        Ok(())
    }

    /// Empties a slot, for CLOSE of a registered file.
    pub fn remove(&mut self, index: u32) -> Result<(), Errno> {
        if index >= self.slot_count() {
            return Err(Errno::INVAL);
        }
        self.empty(index as usize).then_some(()).ok_or(Errno::BADF)
    }
}

impl Drop for Files {
    /// Reports tags from the last slot to the first (`io_rsrc_data_free` in io_uring/rsrc.c).
    fn drop(&mut self) {
        while self.slots.pop().is_some() {}
    }
}

fn open(ring: &'static dyn Tagged, fd: i32, tag: u64) -> Result<Option<Arc<FixedFile>>, Errno> {
    match fd {
        -1 if tag != 0 => Err(Errno::INVAL),
        -1 => Ok(None),
        fd => {
            alloc::reserve()?;
            let duplicate = duplicate_to_register(fd)?;
            Ok(Some(FixedFile::new(duplicate, Tag::new(ring, tag))))
        }
    }
}

/// Makes the duplicate of a file that the program registers. The kernel refuses rings, and files with O_PATH.
pub fn duplicate_to_register(fd: i32) -> Result<i32, Errno> {
    descriptors::of_program(fd)?;
    if descriptors::is_ring(fd) || descriptors::status_flags(fd)? & libc::O_PATH != 0 {
        return Err(Errno::BADF);
    }
    descriptors::duplicate(fd)
}
