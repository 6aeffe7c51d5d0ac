//! Counters of what the engine did, in shared memory: a file that `ANYRING_STATS` names, so that they survive any end of
//! the process, or a memfd called `anyring-counters`, so that tools find them in a running program. Children add to the
//! same block.
//!
//! All counters are Relaxed: each is a sum of its own, and readers look at them after the fact.

use crate::request::Path;
use crate::Errno;
use anyring_abi::Opcode;
use core::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use rustix::fs::{MemfdFlags, Mode, OFlags};
use rustix::mm::{MapFlags, ProtFlags};

/// First word of the block: "anyring" and the layout's version, which changes whenever [`Stats`] does.
pub const MAGIC: u64 = u64::from_le_bytes(*b"anyring\x01");

/// The block's layout; all words start at zero.
#[repr(C)]
pub struct Stats {
    /// [`MAGIC`].
    pub magic: AtomicU64,
    /// The errno with which the kernel refused io_uring, 0 when it was not asked or did not refuse.
    pub kernel_refused_errno: AtomicU64,
    /// Rings made by the engine.
    pub rings: AtomicU64,
    /// io_uring_enter(2) calls served by the engine.
    pub enters: AtomicU64,
    /// CQEs that found the CQ full.
    pub overflows: AtomicU64,
    /// Completions with a negative result.
    pub errors: AtomicU64,
    /// Completions by opcode and path (inline, poll, worker).
    pub completions: [[AtomicU64; 3]; Opcode::COUNT],
}

static NOWHERE: Stats = Stats {
    magic: AtomicU64::new(MAGIC),
    kernel_refused_errno: AtomicU64::new(0),
    rings: AtomicU64::new(0),
    enters: AtomicU64::new(0),
    overflows: AtomicU64::new(0),
    errors: AtomicU64::new(0),
    completions: [const { [const { AtomicU64::new(0) }; 3] }; Opcode::COUNT],
};
static BLOCK: AtomicPtr<Stats> = AtomicPtr::new(core::ptr::addr_of!(NOWHERE).cast_mut());

/// The process's counters.
#[inline]
pub fn stats() -> &'static Stats {
    // SAFETY: the pointer is NOWHERE's or that of a mapping which is never unmapped; every field is an atomic. Acquire
    // pairs with the Release store in `open`.
    unsafe { &*BLOCK.load(Ordering::Acquire) }
}

/// A run of successful completions of one opcode in the submitting call.
#[derive(Debug)]
pub struct Tally {
    /// Whose they are.
    pub opcode: Opcode,
    /// How many.
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
            let paths = &stats().completions[self.opcode as usize];
            paths[Path::Inline as usize].fetch_add(core::mem::take(&mut self.count), Ordering::Relaxed);
        }
    }
}

/// Adds one failure.
pub fn failed() {
    stats().errors.fetch_add(1, Ordering::Relaxed);
}

/// Adds one completion.
#[inline]
pub fn completed(opcode: Opcode, path: Path, result: i32) {
    let stats = stats();
    stats.completions[opcode as usize][path as usize].fetch_add(1, Ordering::Relaxed);
    if result < 0 {
        failed();
    }
}

/// Puts the counters into `file` (made if missing, kept if it has counters already), or into a memfd. EINVAL when the
/// file is of another kind, named by mistake: it stays as it is.
pub fn open(file: Option<&str>) -> Result<(), Errno> {
    let fd = match file {
        Some(path) => rustix::fs::open(path, OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC, Mode::from(0o644))?,
        None => rustix::fs::memfd_create("anyring-counters", MemfdFlags::CLOEXEC)?,
    };
    let bytes = rustix::fs::fstat(&fd)?.st_size;
    if bytes != 0 && bytes != size_of::<Stats>() as i64 {
        return Err(Errno::INVAL);
    }
    rustix::fs::ftruncate(&fd, size_of::<Stats>() as u64)?;
    let prot = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping at an address that the kernel chooses; the descriptor may be closed, the mapping stays.
    let block =
        unsafe { rustix::mm::mmap(core::ptr::null_mut(), size_of::<Stats>(), prot, MapFlags::SHARED, &fd, 0) }?;
    let block = block.cast::<Stats>();
    // SAFETY: the mapping is as large as a Stats, of atomics, for which any bytes are values.
    let magic = unsafe { &(*block).magic };
    // Another process may be doing the same just now.
    if magic.compare_exchange(0, MAGIC, Ordering::Relaxed, Ordering::Relaxed).is_err_and(|found| found != MAGIC) {
        // SAFETY: the mapping made above, which nothing refers to any more.
        unsafe { rustix::mm::munmap(block.cast(), size_of::<Stats>()) }?;
        return Err(Errno::INVAL);
    }
    BLOCK.store(block, Ordering::Release); // partner: the Acquire load in `stats`
    Ok(())
}

/// The counters as a program that is not served reads them, after the fact or while they count.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot {
    /// See [`Stats::kernel_refused_errno`].
    pub kernel_refused_errno: u64,
    /// See [`Stats::rings`].
    pub rings: u64,
    /// See [`Stats::enters`].
    pub enters: u64,
    /// See [`Stats::overflows`].
    pub overflows: u64,
    /// See [`Stats::errors`].
    pub errors: u64,
    /// See [`Stats::completions`].
    pub completions: [[u64; 3]; Opcode::COUNT],
}

/// Why bytes are no [`Snapshot`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoCounters {
    /// The first word is not [`MAGIC`] of any version.
    Foreign,
    /// The layout has this version, and this code reads that of [`MAGIC`].
    Version(u8),
    /// There are this many bytes, not those of [`Stats`].
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
        let mut next = || words.next().unwrap_or(0); // as many as Stats has, by the check above
        Ok(Snapshot {
            kernel_refused_errno: next(),
            rings: next(),
            enters: next(),
            overflows: next(),
            errors: next(),
            completions: core::array::from_fn(|_| core::array::from_fn(|_| next())),
        })
    }
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
        assert_eq!(snapshot.enters, word(core::mem::offset_of!(Stats, enters)));
        assert_eq!(snapshot.overflows, word(core::mem::offset_of!(Stats, overflows)));
        assert_eq!(snapshot.errors, word(core::mem::offset_of!(Stats, errors)));
        let first = word(core::mem::offset_of!(Stats, completions));
        let read = Opcode::Read as u64;
        assert_eq!(snapshot.completions[Opcode::Nop as usize], [first, first + 1, first + 2]);
        assert_eq!(snapshot.completions[Opcode::Read as usize][Path::Worker as usize], first + 3 * read + 2);
    }

    #[test]
    fn what_is_no_block_is_refused() {
        let mut bytes = block();
        assert_eq!(Snapshot::from_bytes(&bytes[..bytes.len() - 8]), Err(NoCounters::Size(bytes.len() - 8)));
        assert_eq!(Snapshot::from_bytes(&bytes[..7]), Err(NoCounters::Foreign));
        assert_eq!(Snapshot::from_bytes(&[0; 4096]), Err(NoCounters::Foreign));
        bytes[7] = 0xfe;
        assert_eq!(Snapshot::from_bytes(&bytes), Err(NoCounters::Version(0xfe)));
    }
}
