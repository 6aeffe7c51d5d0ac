//! Finds the calling thread's record by the guest's FS base, in a few instructions that change no flag (`island.rs`).
//!
//! An entry is made at a trap, where the thread is known by its id. The entry is valid as long as no other thread can
//! have that FS base. The host notices every way in which a thread gets an FS base. A thread begins with the one that
//! clone(2) names, or with its parent's, or sets it by arch_prctl(2). `patch.rs` searches for instructions that set it.
//! While several threads share an FS base, or a vforked child has its parent's, no thread is found by it, and their
//! calls trap.

use crate::world::{Block, NOT_FOUND};
use anyring_serve::crossing::Registers;
use core::mem::{offset_of, size_of};
use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

/// Number of entries: one for each value of the hash. Threads with the same value take the entry from each other.
const ENTRIES: usize = 1 << 16;
/// Number of FS bases that may be shared at the same time.
const SHARED: usize = 64;

/// The distance of a block from [`nobody`], by the hash of an FS base; 0 for no block.
static TABLE: [AtomicUsize; ENTRIES] = [const { AtomicUsize::new(0) }; ENTRIES];

/// Shared FS bases, each shifted by [`COUNT_BITS`]. The lower bits count the threads that began with it and may still
/// have it, not counting its first owner.
static SHARES: [AtomicU64; SHARED] = [const { AtomicU64::new(0) }; SHARED];
const COUNT_BITS: u32 = 16;

/// True if threads are no longer found by their FS base, so that all calls trap.
static GIVEN_UP: AtomicBool = AtomicBool::new(false);

/// Memory like that of a block that no thread has.
#[repr(C, align(64))]
struct Nobody([AtomicUsize; size_of::<Block>() / size_of::<usize>()]);

static NOBODY: Nobody = Nobody([const { AtomicUsize::new(NOT_FOUND) }; size_of::<Block>() / size_of::<usize>()]);

/// Returns the address of the table, for islands.
pub fn table() -> usize {
    TABLE.as_ptr() as usize
}

/// Returns the address from which the table's entries count. The block there matches no FS base.
pub fn nobody() -> usize {
    NOBODY.0.as_ptr() as usize
}

/// Hashes an FS base as the islands do.
fn hash(fs: usize) -> usize {
    fs.wrapping_mul(9).rotate_right(12) % ENTRIES
}

/// Records the calling thread, so that it is found by its FS base from now on. Does nothing if another thread may
/// have the same FS base. The thread has trapped on its first stack.
pub fn record(block: &Block, registers: &Registers) {
    let fs = registers.fs as usize;
    depart(block, fs);
    let entry = (block as *const Block as usize).wrapping_sub(nobody());
    let is_noted = block.minus_tp.load(Ordering::Relaxed) == fs.wrapping_neg()
        && TABLE[hash(fs)].load(Ordering::Relaxed) == entry;
    let is_lone = !block.is_borrowed.load(Ordering::Relaxed) && block.inherited_tp.load(Ordering::Relaxed) == 0;
    if is_noted || !is_lone || is_shared(fs) || GIVEN_UP.load(Ordering::Relaxed) {
        return;
    }
    let Some(top) = block.stack(0) else { return };
    block.frame.store(top - size_of::<Registers>(), Ordering::Relaxed);
    // Relaxed: another thread that reads them finds no match.
    block.minus_tp.store(fs.wrapping_neg(), Ordering::Relaxed);
    TABLE[hash(fs)].store(entry, Ordering::Relaxed);
}

/// Removes the entry of the thread that is found by `fs`, since another thread may have that FS base from now on.
pub fn forget(fs: usize) {
    let entry = &TABLE[hash(fs)];
    match entry.swap(0, Ordering::Relaxed) {
        0 => {}
        other => {
            // SAFETY: entries lead to blocks, which are never freed; the field is an atomic.
            let block = unsafe { &*(other.wrapping_add(nobody()) as *const Block) };
            // The block may have another FS base: it is noted again at its next trap.
            block.minus_tp.store(NOT_FOUND, Ordering::Relaxed);
        }
    }
}

/// Records that `child` is about to begin with the calling thread's FS base.
pub fn share(child: &Block, fs: usize) {
    child.inherited_tp.store(fs.wrapping_add(1), Ordering::Relaxed);
    let key = (fs as u64) << COUNT_BITS;
    let is_added = SHARES.iter().any(|share| {
        let add = |now: u64| {
            let count = now % (1 << COUNT_BITS);
            let is_this = now == key | count || count == 0;
            (is_this && count < (1 << COUNT_BITS) - 1).then_some(key | (count + 1))
        };
        share.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add).is_ok()
    });
    if !is_added {
        give_up();
    }
    forget(fs);
}

/// Records that the thread now has the FS base `fs`. If it began with another FS base that it shared, it no longer
/// shares that one.
pub fn depart(block: &Block, fs: usize) {
    let inherited = block.inherited_tp.load(Ordering::Relaxed);
    if inherited == 0 || inherited == fs.wrapping_add(1) {
        return;
    }
    block.inherited_tp.store(0, Ordering::Relaxed);
    let key = (inherited.wrapping_sub(1) as u64) << COUNT_BITS;
    let remove = |now: u64| {
        let count = now % (1 << COUNT_BITS);
        (count > 0 && now == key | count).then(|| now - 1)
    };
    let _ = SHARES.iter().any(|share| share.fetch_update(Ordering::Relaxed, Ordering::Relaxed, remove).is_ok());
}

fn is_shared(fs: usize) -> bool {
    let key = (fs as u64) << COUNT_BITS;
    SHARES.iter().any(|share| {
        let now = share.load(Ordering::Relaxed);
        let count = now % (1 << COUNT_BITS);
        count > 0 && now == key | count
    })
}

/// Stops finding threads: all calls trap.
pub fn give_up() {
    GIVEN_UP.store(true, Ordering::Relaxed);
    TABLE
        .iter()
        .filter(|entry| entry.load(Ordering::Relaxed) != 0)
        .for_each(|entry| entry.store(0, Ordering::Relaxed));
}

/// Clears the shares in a forked child: the threads with which its thread shared an FS base are the parent's.
pub fn renew_after_fork(kept: &Block) {
    SHARES.iter().for_each(|share| share.store(0, Ordering::Relaxed));
    kept.inherited_tp.store(0, Ordering::Relaxed);
}

const _: () = assert!(offset_of!(Block, minus_tp) + size_of::<usize>() <= size_of::<Nobody>());
