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

/// First word of the block: "anyring" and the layout's version.
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

/// Adds one completion.
#[inline]
pub fn completed(opcode: Opcode, path: Path, result: i32) {
    let stats = stats();
    stats.completions[opcode as usize][path as usize].fetch_add(1, Ordering::Relaxed);
    if result < 0 {
        stats.errors.fetch_add(1, Ordering::Relaxed);
    }
}

/// Puts the counters into `file` (made if missing, kept if it has counters already), or into a memfd.
pub fn open(file: Option<&str>) -> Result<(), Errno> {
    let fd = match file {
        Some(path) => rustix::fs::open(path, OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC, Mode::from(0o644))?,
        None => rustix::fs::memfd_create("anyring-counters", MemfdFlags::CLOEXEC)?,
    };
    rustix::fs::ftruncate(&fd, size_of::<Stats>() as u64)?;
    let prot = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping at an address that the kernel chooses; the descriptor may be closed, the mapping stays.
    let block = unsafe {
        rustix::mm::mmap(core::ptr::null_mut(), size_of::<Stats>(), prot, MapFlags::SHARED, &fd, 0)
    }?;
    let block = block.cast::<Stats>();
    // SAFETY: the mapping holds a Stats of atomics, for which zeroes are values.
    unsafe { (*block).magic.store(MAGIC, Ordering::Relaxed) };
    BLOCK.store(block, Ordering::Release); // partner: the Acquire load in `stats`
    Ok(())
}
