//! Counters of the engine's work, in shared memory. They are in a file that `ANYRING_STATS` names, which survives any
//! end of the process, or in a memfd called `anyring-counters`. Children add to the same block. The file is open
//! while a ring lives. So `anyring trace --pid` finds it in a running program, and can ask for events in it
//! (`event::session`).
//!
//! All counters are Relaxed, since each is independent and is read after the fact. Counters that every call changes
//! are spread over a few shards. With no more threads than shards, each thread has its own. A counter whose cache
//! line moves between two cores costs as much as a call.

use crate::descriptors::{self, Own};
use crate::lock::Lock;
use crate::memory::{sealed_memfd, with_file_size};
use crate::os::calls;
use crate::os::{backing, check, syscall, ForNow};
use crate::Errno;
use anyring_abi::Opcode;
use core::ffi::CStr;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU64, Ordering};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, IntoRawFd};
use rustix::fs::{Mode, OFlags};
use rustix::mm::{MapFlags, ProtFlags};

/// The first word of the block: "anyring" and the layout's version, which changes whenever [`Stats`] does.
pub const MAGIC: u64 = u64::from_le_bytes(*b"anyring\x07");

/// The block's layout. All words start at zero.
#[repr(C)]
pub struct Stats {
    /// Always [`MAGIC`].
    pub magic: AtomicU64,
    /// The errno with which the kernel refused io_uring. 0 if the kernel was not asked or did not refuse.
    pub kernel_refused_errno: AtomicU64,
    /// Number of rings that the engine made.
    pub rings: AtomicU64,
    /// Number of rings that the kernel made, in programs that load the library for rings that the kernel refuses.
    pub kernel_rings: AtomicU64,
    /// Number of CQEs that found the CQ full.
    pub overflows: AtomicU64,
    /// Number of completions with a negative result.
    pub errors: AtomicU64,
    /// Number of system calls that came by a trap (SIGSYS) since the counters were opened.
    pub traps: AtomicU64,
    /// Number of instructions that trapped and were replaced by a jump.
    pub patches: AtomicU64,
    /// Number of programs whose io_uring `anyring run` left to the kernel, and number of those whose Linux AIO it
    /// left. No other counter includes their requests.
    pub left_to_kernel: [AtomicU64; 2],
    /// Number of programs that were executed and cannot be served.
    pub unserved_children: AtomicU64,
    /// The log's messages about the first such programs, each in bytes that end with the first zero.
    pub unserved: [[AtomicU64; UNSERVED_BYTES / 8]; UNSERVED],
    /// Words by which a tracer and the process communicate.
    pub tracer: Tracer,
    /// The counters of each shard, to be summed.
    pub shards: [Shard; SHARDS],
}

/// The words of a tracer, in a cache line of their own. Every call reads that line, and a counter beside it would
/// make the line move between cores.
#[repr(C, align(64))]
pub struct Tracer {
    /// The tracer's request for the events of a process (`event::session`); 0 if it wants none. The tracer writes it.
    pub wanted: AtomicU64,
    /// The process's answer to the last request for its events.
    pub reply: AtomicU64,
}

/// The path that completed a request, for the counters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Path {
    /// The submitting call completes the request.
    Inline,
    /// The request completes after readiness, or by a timer.
    Poll,
    /// The kernel's AIO completes it.
    Device,
    /// A worker completes it.
    Worker,
}

/// Number of shards.
const SHARDS: usize = 8;
/// Number of children that are named because they cannot be served.
const UNSERVED: usize = 8;
/// The most bytes kept of each child's message.
const UNSERVED_BYTES: usize = 256;

/// Number of paths.
pub const PATHS: usize = Path::Worker as usize + 1;

/// Counters for some of the threads.
#[repr(C, align(64))]
pub struct Shard {
    /// Number of io_uring_enter(2) calls that the engine served.
    pub enters: AtomicU64,
    /// Number of completions by opcode and path: inline, poll, kernel AIO, worker.
    pub completions: [[AtomicU64; PATHS]; Opcode::COUNT],
}

static NOWHERE: Stats = Stats {
    magic: AtomicU64::new(MAGIC),
    kernel_refused_errno: AtomicU64::new(0),
    rings: AtomicU64::new(0),
    kernel_rings: AtomicU64::new(0),
    overflows: AtomicU64::new(0),
    errors: AtomicU64::new(0),
    traps: AtomicU64::new(0),
    patches: AtomicU64::new(0),
    left_to_kernel: [const { AtomicU64::new(0) }; 2],
    unserved_children: AtomicU64::new(0),
    unserved: [const { [const { AtomicU64::new(0) }; UNSERVED_BYTES / 8] }; UNSERVED],
    tracer: Tracer { wanted: AtomicU64::new(0), reply: AtomicU64::new(0) },
    shards: [const {
        Shard {
            enters: AtomicU64::new(0),
            completions: [const { [const { AtomicU64::new(0) }; PATHS] }; Opcode::COUNT],
        }
    }; SHARDS],
};
/// The name of the memfd.
const NAME: &str = "anyring-counters";

/// The place of the counters.
enum Source {
    Nowhere,
    Memfd,
    /// The file with this path, device and inode.
    Named(String, [u64; 2]),
}

/// Guards `FILE` and the memory mapped at `BLOCK`.
static SOURCE: Lock<Source> = Lock::new(Source::Nowhere);
/// The file's descriptor, which belongs to the engine. -1 while no ring lives.
static FILE: AtomicI32 = AtomicI32::new(-1);
static BLOCK: AtomicPtr<Stats> = AtomicPtr::new(core::ptr::addr_of!(NOWHERE).cast_mut());

/// Returns the process's counters.
#[inline]
pub fn stats() -> &'static Stats {
    // SAFETY: the pointer is NOWHERE's or that of a mapping which is never unmapped, and every field is an atomic.
    // Acquire pairs with the Release store in `open`.
    unsafe { &*BLOCK.load(Ordering::Acquire) }
}

/// Returns the calling thread's shard.
#[inline]
pub fn shard() -> &'static Shard {
    // The thread pointers of two threads differ by the size of a stack. That is a multiple of a page, and rarely of
    // eight pages.
    &stats().shards[(crate::sync::thread_pointer() >> 12) % SHARDS]
}

/// A run of successful completions of one opcode in the submitting call.
#[derive(Debug)]
pub struct Tally {
    /// The opcode of the completions.
    pub opcode: Opcode,
    /// The number of completions.
    pub count: u64,
}

impl Default for Tally {
    fn default() -> Tally {
        Tally { opcode: Opcode::Nop, count: 0 }
    }
}

impl Tally {
    /// Adds the run to the shared counters.
    #[inline]
    pub fn flush(&mut self) {
        if self.count != 0 {
            let paths = &shard().completions[self.opcode as usize];
            paths[Path::Inline as usize].fetch_add(core::mem::take(&mut self.count), Ordering::Relaxed);
        }
    }
}

/// Counts one failure.
pub fn failed() {
    stats().errors.fetch_add(1, Ordering::Relaxed);
}

/// Counts one completion.
#[inline]
pub fn completed(opcode: Opcode, path: Path, result: i32) {
    shard().completions[opcode as usize][path as usize].fetch_add(1, Ordering::Relaxed);
    if result < 0 {
        failed();
    }
}

/// Puts the counters into `file`, or into a memfd. The file is made if it is missing, and kept if it has counters
/// already. Fails with EINVAL if the file is of another kind, named by mistake. The file is then unchanged.
pub fn open(file: Option<&str>) -> Result<(), Errno> {
    let fd = match file {
        Some(path) => calls::open(path, OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC, Mode::from(0o644))?,
        None => sealed_memfd(NAME, size_of::<Stats>() as u64)?,
    };
    #[expect(clippy::disallowed_methods, reason = "a file of the engine's own")]
    let found = calls::fstat(&fd)?;
    if found.st_size != 0 && found.st_size != size_of::<Stats>() as i64 {
        return Err(Errno::INVAL);
    }
    if file.is_some() {
        make_room(&fd)?;
    }
    // SAFETY: a new mapping at an address that the kernel chooses. It stays when the descriptor is closed.
    let block = unsafe { map(core::ptr::null_mut(), MapFlags::SHARED, fd.as_fd()) }?;
    backing::record(block as usize, size_of::<Stats>());
    // SAFETY: the mapping is as large as a Stats, of atomics, for which any bytes are values.
    let magic = unsafe { &(*block).magic };
    // Another process may be doing the same just now.
    if magic.compare_exchange(0, MAGIC, Ordering::Relaxed, Ordering::Relaxed).is_err_and(|found| found != MAGIC) {
        backing::forget(block as usize);
        // SAFETY: the mapping made above, which nothing refers to any more.
        unsafe { calls::munmap(block.cast(), size_of::<Stats>()) }?;
        return Err(Errno::INVAL);
    }
    BLOCK.store(block, Ordering::Release); // partner: the Acquire load in `stats`
    if let Some(mut source) = SOURCE.lock() {
        *source = match file {
            Some(path) => Source::Named(path.to_owned(), [found.st_dev, found.st_ino]),
            None => Source::Memfd,
        };
    }
    Ok(())
}

/// True if [`open`] has succeeded.
pub fn are_open() -> bool {
    SOURCE.lock().is_some_and(|source| !matches!(*source, Source::Nowhere))
}

/// Counts a program that cannot be served, in the file whose name is the string at `path`, made if missing. If there
/// is room, also records the message `child` about the program in that file. Keeps nothing open, and allocates
/// nothing, since it runs just before an exec, perhaps in a child of vfork(2).
pub fn count_unserved(path: usize, child: &[u8]) {
    in_passing(path, |counters| {
        let before = counters.unserved_children.fetch_add(1, Ordering::Relaxed);
        let Some(place) = counters.unserved.get(before as usize) else { return };
        for (word, bytes) in place.iter().zip(child.chunks(8)) {
            let mut whole = [0; 8];
            whole[..bytes.len()].copy_from_slice(bytes);
            word.store(u64::from_ne_bytes(whole), Ordering::Relaxed);
        }
    });
}

/// Counts a ring that the kernel has made, in the file of that name. Keeps nothing open, since the process may never
/// have an anyring ring.
pub fn count_kernel_ring(path: &CStr) {
    in_passing(path.as_ptr() as usize, |counters| _ = counters.kernel_rings.fetch_add(1, Ordering::Relaxed));
}

/// Calls `count` with the counters in the file whose name is the string at `path`. The file is mapped for the call
/// only.
fn in_passing(path: usize, count: impl FnOnce(&Stats)) {
    let flags = libc::O_RDWR | libc::O_CREAT | libc::O_CLOEXEC | libc::O_NONBLOCK;
    let file = syscall(libc::SYS_openat, [libc::AT_FDCWD as usize, path, flags as usize, 0o644, 0, 0]);
    let Ok(file) = check(file) else { return };
    let size = check(syscall(libc::SYS_lseek, [file, 0, libc::SEEK_END as usize, 0, 0, 0]));
    let is_ready = match size {
        // Give it the size that `open` gives it.
        Ok(0) => check(syscall(libc::SYS_ftruncate, [file, size_of::<Stats>(), 0, 0, 0, 0])).is_ok(),
        size => size == Ok(size_of::<Stats>()),
    };
    let protection = (libc::PROT_READ | libc::PROT_WRITE) as usize;
    let map = [0, size_of::<Stats>(), protection, libc::MAP_SHARED as usize, file, 0];
    if let Some(block) = is_ready.then(|| check(syscall(libc::SYS_mmap, map))).and_then(Result::ok) {
        // SAFETY: a mapping as large as a Stats, of atomics, for which any bytes are values.
        let counters = unsafe { &*(block as *const Stats) };
        let magic = counters.magic.compare_exchange(0, MAGIC, Ordering::Relaxed, Ordering::Relaxed);
        if magic.is_ok() || magic == Err(MAGIC) {
            count(counters);
        }
        syscall(libc::SYS_munmap, [block, size_of::<Stats>(), 0, 0, 0, 0]);
    }
    syscall(libc::SYS_close, [file, 0, 0, 0, 0, 0]);
}

/// Gives the counters' file its size, with blocks if its file system can allocate them in advance. So a full disk is
/// reported by this call, and not by SIGBUS (see `os::backing`).
fn make_room(fd: &ForNow) -> Result<(), Errno> {
    use crate::os::calls::{fallocate, ftruncate};
    use rustix::fs::FallocateFlags;
    let bytes = size_of::<Stats>() as u64;
    with_file_size(bytes, || match fallocate(fd, FallocateFlags::empty(), 0, bytes) {
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => ftruncate(fd, bytes),
        answer => answer,
    })
}

/// Maps the counters' file.
///
/// # Safety
/// As for mmap(2) at that address with those flags.
unsafe fn map(at: *mut Stats, flags: MapFlags, fd: BorrowedFd) -> Result<*mut Stats, Errno> {
    let prot = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: the caller's contract.
    unsafe { calls::mmap(at.cast(), size_of::<Stats>(), prot, flags, fd, 0) }.map(|block| block.cast())
}

/// Counts a new ring, which is in the list of live rings already. From the first ring on, a tracer can find the
/// counters.
pub fn ring_made() {
    // Called first, since a forked child separated from its parent's counters uses private ones until then.
    show();
    stats().rings.fetch_add(1, Ordering::Relaxed);
}

fn show() {
    // Under the lock, so that `rings_are_gone` either finds the ring or has ended.
    let Some(source) = SOURCE.lock() else { return };
    if FILE.load(Ordering::Relaxed) < 0 {
        let shown = match &*source {
            Source::Nowhere => return,
            Source::Memfd => show_memfd(),
            Source::Named(path, identity) => show_file(path, *identity),
        };
        // Without a descriptor no tracer can join.
        if let Ok(own) = shown {
            FILE.store(own.into_raw_fd(), Ordering::Relaxed);
        }
    }
}

/// Makes a new memfd in place of the closed one, with the same counters at the same address.
fn show_memfd() -> Result<Own, Errno> {
    let fd = sealed_memfd(NAME, size_of::<Stats>() as u64)?;
    let block = BLOCK.load(Ordering::Relaxed);
    // The kernel makes this copy, since it may read the counters while they change.
    let args = [fd.as_raw_fd() as usize, block as usize, size_of::<Stats>(), 0, 0, 0];
    check(syscall(libc::SYS_write, args))?;
    // SAFETY: maps over the mapping that `open` made, which has this size and is never unmapped. The new mapping has
    // the same counters. No ring lived until now, so hardly any thread counts.
    unsafe { map(block, MapFlags::SHARED | MapFlags::FIXED, fd.as_fd()) }?;
    descriptors::to_top(fd)
}

/// Opens the file, if its name still leads to the same file, and maps it at the same address.
fn show_file(path: &str, identity: [u64; 2]) -> Result<Own, Errno> {
    let fd = calls::open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    #[expect(clippy::disallowed_methods, reason = "a file of the engine's own")]
    let found = calls::fstat(&fd)?;
    if [found.st_dev, found.st_ino] != identity {
        return Err(Errno::NOENT);
    }
    // SAFETY: maps over the mapping that `open` made, which has this size and is never unmapped. That mapping holds
    // the same counters, or those of a forked child separated from its parent's. The child's are a few calls without
    // a ring, and are lost.
    unsafe { map(BLOCK.load(Ordering::Relaxed), MapFlags::SHARED | MapFlags::FIXED, fd.as_fd()) }?;
    descriptors::to_top(fd)
}

/// Closes the file if the last ring has gone, as `are_gone` says. It stays open for a tracer, which may want to trace
/// the next ring.
pub fn rings_are_gone(are_gone: impl Fn() -> bool) {
    let Some(source) = SOURCE.lock() else { return };
    let are_parents = ARE_PARENTS.load(Ordering::Relaxed);
    if (are_parents || stats().tracer.wanted.load(Ordering::Relaxed) == 0) && are_gone() {
        let file = FILE.swap(-1, Ordering::Relaxed);
        if file >= 0 {
            descriptors::close(file);
        }
        if are_parents && !matches!(*source, Source::Nowhere) {
            let _ = part_with_parent();
        }
    }
}

/// True if the counters belong to the process that forked this one.
static ARE_PARENTS: AtomicBool = AtomicBool::new(false);

/// Gives a forked child, which has given up its parent's rings, private counters from now on.
fn part_with_parent() -> Result<(), Errno> {
    let (prot, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE | MapFlags::FIXED);
    let block = BLOCK.load(Ordering::Relaxed);
    // SAFETY: maps over the mapping that `open` made, which has this size and is never unmapped. Zeroes are a value
    // of a Stats.
    unsafe { calls::mmap_anonymous(block.cast(), size_of::<Stats>(), prot, flags) }?;
    stats().magic.store(MAGIC, Ordering::Relaxed);
    ARE_PARENTS.store(false, Ordering::Relaxed);
    Ok(())
}

/// Records, in a forked child, that the counters are the parent's.
///
/// # Safety
/// Only the forking thread may exist in the process.
pub unsafe fn reset_after_fork() {
    // SAFETY: no other thread exists, and only `open` changes the value, before the first ring.
    unsafe { SOURCE.reset() };
    ARE_PARENTS.store(true, Ordering::Relaxed);
}

/// True if a tracer has locked the counters. Only locks of other processes are reported.
pub fn is_locked() -> bool {
    // SAFETY: all-zero bytes are a value of this C struct of integers.
    let mut lock: libc::flock = unsafe { core::mem::zeroed() };
    lock.l_type = libc::F_WRLCK as _;
    let args = [FILE.load(Ordering::Relaxed) as usize, libc::F_GETLK as usize, &raw mut lock as usize, 0, 0, 0];
    check(syscall(libc::SYS_fcntl, args)).is_ok() && lock.l_type != libc::F_UNLCK as libc::c_short
}

/// A copy of the counters. A program that is not served reads it, after the fact or while the counters change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot {
    /// The errno with which the kernel refused io_uring, or 0.
    pub kernel_refused_errno: u64,
    /// Number of rings that the engine made.
    pub rings: u64,
    /// Number of rings that the kernel made.
    pub kernel_rings: u64,
    /// Number of CQEs that found the CQ full.
    pub overflows: u64,
    /// Number of completions with a negative result.
    pub errors: u64,
    /// Number of system calls that came by a trap (SIGSYS).
    pub traps: u64,
    /// Number of instructions that were replaced by a jump.
    pub patches: u64,
    /// Number of programs whose io_uring was left to the kernel, and of those whose Linux AIO was.
    pub left_to_kernel: [u64; 2],
    /// Number of programs that were executed and cannot be served.
    pub unserved_children: u64,
    /// The log's messages about the first such programs.
    pub unserved: Vec<String>,
    /// Number of io_uring_enter(2) calls that the engine served.
    pub enters: u64,
    /// Number of completions by opcode and path, of all shards together.
    pub completions: [[u64; PATHS]; Opcode::COUNT],
}

/// The reason why bytes are not a [`Snapshot`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoCounters {
    /// The first word is not [`MAGIC`] of any version.
    Foreign,
    /// The layout has this version, and this code reads that of [`MAGIC`].
    Version(u8),
    /// The block has this many bytes, which is not the size of [`Stats`].
    Size(usize),
}

impl core::fmt::Display for NoCounters {
    fn fmt(&self, formatter: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            NoCounters::Foreign => formatter.write_str("not a counters file of anyring"),
            NoCounters::Version(version) => {
                write!(
                    formatter,
                    "the counters have layout version {version}, this anyring reads {}",
                    version_of(MAGIC)
                )
            }
            NoCounters::Size(bytes) => {
                write!(formatter, "the counters are damaged: {bytes} bytes, not {}", size_of::<Stats>())
            }
        }
    }
}

const fn version_of(magic: u64) -> u8 {
    magic.to_le_bytes()[7]
}

impl Snapshot {
    /// Reads the block that [`open`] made, from a file's bytes.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, NoCounters> {
        let (words, rest) = bytes.as_chunks::<8>();
        let mut words = words.iter().map(|word| u64::from_ne_bytes(*word));
        let magic = words.next().ok_or(NoCounters::Foreign)?;
        if magic.to_le_bytes()[..7] != MAGIC.to_le_bytes()[..7] {
            return Err(NoCounters::Foreign);
        }
        if magic != MAGIC {
            return Err(NoCounters::Version(version_of(magic)));
        }
        if bytes.len() != size_of::<Stats>() || !rest.is_empty() {
            return Err(NoCounters::Size(bytes.len()));
        }
        let words: Vec<u64> = core::iter::once(magic).chain(words).collect();
        let (shared, shards) = words.split_at(core::mem::offset_of!(Stats, shards) / 8);
        let mut snapshot = Snapshot {
            kernel_refused_errno: shared[core::mem::offset_of!(Stats, kernel_refused_errno) / 8],
            rings: shared[core::mem::offset_of!(Stats, rings) / 8],
            kernel_rings: shared[core::mem::offset_of!(Stats, kernel_rings) / 8],
            overflows: shared[core::mem::offset_of!(Stats, overflows) / 8],
            errors: shared[core::mem::offset_of!(Stats, errors) / 8],
            traps: shared[core::mem::offset_of!(Stats, traps) / 8],
            patches: shared[core::mem::offset_of!(Stats, patches) / 8],
            left_to_kernel: [0, 1].map(|index| shared[core::mem::offset_of!(Stats, left_to_kernel) / 8 + index]),
            unserved_children: shared[core::mem::offset_of!(Stats, unserved_children) / 8],
            unserved: unserved(shared),
            enters: 0,
            completions: [[0; PATHS]; Opcode::COUNT],
        };
        for shard in shards.chunks_exact(size_of::<Shard>() / 8) {
            snapshot.enters += shard[core::mem::offset_of!(Shard, enters) / 8];
            let counted = &shard[core::mem::offset_of!(Shard, completions) / 8..];
            for (sum, word) in snapshot.completions.as_flattened_mut().iter_mut().zip(counted) {
                *sum += word;
            }
        }
        Ok(snapshot)
    }
}

/// Returns the children named in the words before the shards.
fn unserved(shared: &[u64]) -> Vec<String> {
    let words = &shared[core::mem::offset_of!(Stats, unserved) / 8..][..UNSERVED * UNSERVED_BYTES / 8];
    let child = |words: &[u64]| {
        let bytes: Vec<u8> =
            words.iter().flat_map(|word| word.to_ne_bytes()).take_while(|byte| *byte != 0).collect();
        // A name may hold any bytes, and the result is printed.
        String::from_utf8_lossy(&bytes).replace(char::is_control, "\u{fffd}")
    };
    words.chunks_exact(UNSERVED_BYTES / 8).map(child).filter(|child| !child.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block() -> Vec<u8> {
        let words = size_of::<Stats>() / 8;
        let mut bytes: Vec<u8> = (0..words as u64).flat_map(u64::to_ne_bytes).collect();
        bytes[..8].copy_from_slice(&MAGIC.to_ne_bytes());
        bytes
    }

    #[test]
    fn words_are_read_where_the_block_has_them() {
        let snapshot = Snapshot::from_bytes(&block()).expect("a block");
        let word = |offset: usize| (offset / 8) as u64;
        assert_eq!(snapshot.kernel_refused_errno, word(core::mem::offset_of!(Stats, kernel_refused_errno)));
        assert_eq!(snapshot.rings, word(core::mem::offset_of!(Stats, rings)));
        assert_eq!(snapshot.kernel_rings, word(core::mem::offset_of!(Stats, kernel_rings)));
        assert_eq!(snapshot.overflows, word(core::mem::offset_of!(Stats, overflows)));
        assert_eq!(snapshot.errors, word(core::mem::offset_of!(Stats, errors)));
        assert_eq!(snapshot.traps, word(core::mem::offset_of!(Stats, traps)));
        assert_eq!(snapshot.patches, word(core::mem::offset_of!(Stats, patches)));
        let left = core::mem::offset_of!(Stats, left_to_kernel);
        assert_eq!(snapshot.left_to_kernel, [word(left), word(left + 8)]);
        assert_eq!(snapshot.unserved_children, word(core::mem::offset_of!(Stats, unserved_children)));
        let sum = |offset: usize| {
            let shards = core::mem::offset_of!(Stats, shards);
            (0..SHARDS).map(|index| word(shards + index * size_of::<Shard>() + offset)).sum::<u64>()
        };
        assert_eq!(snapshot.enters, sum(core::mem::offset_of!(Shard, enters)));
        let of = |opcode: Opcode, path: Path| {
            sum(core::mem::offset_of!(Shard, completions) + 8 * (PATHS * opcode as usize + path as usize))
        };
        assert_eq!(snapshot.completions[Opcode::Nop as usize][0], of(Opcode::Nop, Path::Inline));
        assert_eq!(snapshot.completions[Opcode::Read as usize][3], of(Opcode::Read, Path::Worker));
        let last = snapshot.completions.as_flattened()[PATHS * Opcode::COUNT - 1];
        assert_eq!(last, sum(core::mem::offset_of!(Shard, completions) + 8 * (PATHS * Opcode::COUNT - 1)));
    }

    #[test]
    fn a_file_that_is_no_block_is_refused() {
        let mut bytes = block();
        assert_eq!(Snapshot::from_bytes(&bytes[..bytes.len() - 8]), Err(NoCounters::Size(bytes.len() - 8)));
        assert_eq!(Snapshot::from_bytes(&bytes[..7]), Err(NoCounters::Foreign));
        assert_eq!(Snapshot::from_bytes(&[0; 4096]), Err(NoCounters::Foreign));
        bytes[7] = 0xfe;
        assert_eq!(Snapshot::from_bytes(&bytes), Err(NoCounters::Version(0xfe)));
    }
}
