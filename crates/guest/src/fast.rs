//! The calling thread's record by the FS base of the guest's, in a few instructions that change no flag (`island.rs`).
//!
//! An entry is made where the thread is known by its id, at a trap. It holds for as long as no other thread can have that FS
//! base, and all ways to get one are seen: a thread begins with the one that clone(2) names, or with its parent's, or sets it by
//! arch_prctl(2). Instructions that set it are looked for (`patch.rs`). As long as threads share one, or a vforked child has its
//! parent's, nobody is found by it, and their calls trap.

use crate::world::{self, Block, NOT_FOUND};
use anyring_serve::crossing::Registers;
use core::mem::size_of;
use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

/// Entries: one for each value that the hash may have. Threads of the same value take it from each other.
const ENTRIES: usize = 1 << 16;
/// How many FS bases may be shared at the same time.
const SHARED: usize = 64;

/// By hash: how far behind [`nobody`] a block is; 0 for none.
static TABLE: [AtomicUsize; ENTRIES] = [const { AtomicUsize::new(0) }; ENTRIES];

/// Each is an FS base, shifted by [`COUNT_BITS`], with the number of threads that began with it and may have it still beside
/// the one whose it was.
static SHARES: [AtomicU64; SHARED] = [const { AtomicU64::new(0) }; SHARED];
const COUNT_BITS: u32 = 16;

/// Nobody is found any more.
static GIVEN_UP: AtomicBool = AtomicBool::new(false);

/// Bytes as a block has them that nobody has.
#[repr(C, align(64))]
struct Nobody([AtomicUsize; size_of::<Block>() / size_of::<usize>()]);

static NOBODY: Nobody = Nobody([const { AtomicUsize::new(NOT_FOUND) }; size_of::<Block>() / size_of::<usize>()]);

/// The address of the table, for islands.
pub fn table() -> usize {
    TABLE.as_ptr() as usize
}

/// The address from which the table's entries count. What looks like a block there matches no FS base.
pub fn nobody() -> usize {
    NOBODY.0.as_ptr() as usize
}

/// As the islands do it.
fn hash(fs: usize) -> usize {
    fs.wrapping_mul(9).rotate_right(12) % ENTRIES
}

/// The calling thread is found by its FS base from now on, if nobody else may have that. It has trapped on its first stack.
pub fn note(block: &Block, registers: &Registers) {
    let fs = registers.fs as usize;
    depart(block, fs);
    let entry = (block as *const Block as usize).wrapping_sub(nobody());
    let is_noted = block.minus_fs.load(Ordering::Relaxed) == fs.wrapping_neg()
        && TABLE[hash(fs)].load(Ordering::Relaxed) == entry;
    let is_lone = !block.is_borrowed.load(Ordering::Relaxed) && block.inherited_fs.load(Ordering::Relaxed) == 0;
    if is_noted || !is_lone || is_shared(fs) || GIVEN_UP.load(Ordering::Relaxed) {
        return;
    }
    let Some(top) = block.stack(0) else { return };
    block.frame.store(top - size_of::<Registers>(), Ordering::Relaxed);
    // Relaxed: only the thread itself reads them in earnest.
    block.minus_fs.store(fs.wrapping_neg(), Ordering::Relaxed);
    TABLE[hash(fs)].store(entry, Ordering::Relaxed);
}

/// Whoever was found by `fs` is not any more: another thread may have it from now on.
pub fn forget(fs: usize) {
    let entry = &TABLE[hash(fs)];
    match entry.swap(0, Ordering::Relaxed) {
        0 => {}
        other => {
            // SAFETY: entries are of blocks, which are never freed; the field is an atomic.
            let block = unsafe { &*(other.wrapping_add(nobody()) as *const Block) };
            // Of another FS base: it is noted again at its next trap.
            block.minus_fs.store(NOT_FOUND, Ordering::Relaxed);
        }
    }
}

/// `child` is about to begin with the calling thread's FS base.
pub fn share(child: &Block, fs: usize) {
    child.inherited_fs.store(fs.wrapping_add(1), Ordering::Relaxed);
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

/// The thread has the FS base `fs` now: if that is not the one that it began with, it shares that no more.
pub fn depart(block: &Block, fs: usize) {
    let inherited = block.inherited_fs.load(Ordering::Relaxed);
    if inherited == 0 || inherited == fs.wrapping_add(1) {
        return;
    }
    block.inherited_fs.store(0, Ordering::Relaxed);
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

/// Nobody is to be found any more: all calls trap.
pub fn give_up() {
    GIVEN_UP.store(true, Ordering::Relaxed);
    TABLE
        .iter()
        .filter(|entry| entry.load(Ordering::Relaxed) != 0)
        .for_each(|entry| entry.store(0, Ordering::Relaxed));
}

/// In a forked child: those with whom its thread shared an FS base are the parent's.
pub fn renew_after_fork(kept: &Block) {
    SHARES.iter().for_each(|share| share.store(0, Ordering::Relaxed));
    kept.inherited_fs.store(0, Ordering::Relaxed);
}

const _: () = assert!(world::MINUS_FS + size_of::<usize>() <= size_of::<Nobody>());
