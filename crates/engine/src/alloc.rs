//! The memory of the library itself: a slab allocator on mmap, apart from the program's malloc.
//!
//! A trapped instruction or a signal may arrive while a thread is inside the program's allocator. So this allocator
//! takes nothing from that allocator, and has no thread-locals and no lock. A thread may be interrupted anywhere in
//! this code. It may then fork, allocate again in a signal handler, or never return (siglongjmp). No other thread
//! waits for the interrupted thread. At worst the one block that it was about to take is lost.
//!
//! Sizes up to `LARGEST` are rounded up to a power of two. Each power has a stack of free blocks, cut from chunks
//! that are never given back to the kernel. Each larger block is a mapping of its own.
//!
//! **When the kernel refuses memory.** `Vec::push`, `Box::new` and the like end the process if an allocation fails.
//! So an allocation of up to `LARGEST` bytes never fails. It falls back to a reserve of chunks, which are mapped in
//! advance and used for nothing else.
//!
//! Code that is about to accept something from the program first calls [`reserve`]. This may be an SQE, an iocb, or
//! a call that makes or registers something. [`reserve`] fails if the reserve is partly used and cannot be
//! refilled, and too few free blocks can replace it. The call then fails as the kernel's would.
//!
//! An allocation that is larger than `LARGEST`, or grows with the program's input, uses `try_reserve` ([`filled`]).
//! Its failure is an error of the request or call. A thread may still find the reserve empty. It then waits for
//! memory, since it has no caller to report the error to.

#[cfg(feature = "forced-panics")]
pub mod failing;

use crate::mutation::{mutated, Mutation};
use crate::os::arch::page_bytes;
use crate::os::{self, arch, check, syscall, unlocked};
use crate::Errno;
use core::alloc::{GlobalAlloc, Layout};
use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

/// Bytes of the smallest block. `LARGEST` is the size of the largest block. Larger allocations get a mapping of their
/// own.
const SMALLEST: usize = 16;
const LARGEST: usize = 32 * 1024;
const CLASSES: usize = (LARGEST / SMALLEST).ilog2() as usize + 1;
/// Blocks are cut from chunks of this size and alignment.
const CHUNK: usize = 64 * 1024;
/// Number of chunks in each mapping.
const CHUNKS: usize = 16;

/// The library's memory.
pub static MEMORY: Slab = Slab::new();

/// Checks that a request's small allocations need no memory from the kernel: see the module's head. Costs one load
/// while the reserve is full.
///
/// # Errors
/// NOMEM if the reserve is used up and cannot be refilled.
#[inline]
pub fn reserve() -> Result<(), Errno> {
    #[cfg(feature = "forced-panics")]
    if failing::fails() {
        return Err(Errno::NOMEM);
    }
    match is_whole() {
        true => Ok(()),
        false => MEMORY.fill(),
    }
}

/// True if [`reserve`] has nothing to do.
#[inline]
pub fn is_whole() -> bool {
    !cfg!(feature = "forced-panics") & MEMORY.filled.load(Ordering::Relaxed)
}

/// Returns the error that the program gets for a failed `try_reserve`.
pub fn refused(_: std::collections::TryReserveError) -> Errno {
    Errno::NOMEM
}

/// Adds an element to a vector.
///
/// # Errors
/// NOMEM.
pub fn push<T>(vector: &mut Vec<T>, thing: T) -> Result<(), Errno> {
    vector.try_reserve(1).map_err(refused)?;
    vector.push(thing);
    Ok(())
}

/// Makes a vector of `count` times `value`.
///
/// # Errors
/// NOMEM.
pub fn filled<T: Clone>(value: T, count: usize) -> Result<Vec<T>, Errno> {
    let mut vector = Vec::new();
    vector.try_reserve_exact(count).map_err(refused)?;
    vector.resize(count, value);
    Ok(vector)
}

/// The allocator: see the module's head.
pub struct Slab {
    classes: [Class; CLASSES],
    chunks: Chunks,
    reserve: Chunks,
    /// True if the reserve is complete, or was when the kernel last refused memory.
    filled: AtomicBool,
}

/// Consecutive chunks: the address of the next chunk, with the number left in the low bits. These bits are zero in an
/// aligned address.
struct Chunks(AtomicUsize);

/// The blocks of one size.
struct Class {
    free: FreeBlocks,
    /// The next block of the newest chunk. A multiple of [`CHUNK`] when that chunk is used up.
    cursor: AtomicUsize,
}

/// A stack of free blocks. Each block begins with the address of the next.
///
/// The head is the first block's address and a count of all changes ever made: 128 bits that change together. The count
/// detects that an address was taken and put back between a load and the exchange (the ABA problem).
#[repr(C, align(16))]
struct FreeBlocks(UnsafeCell<[u64; 2]>);

// SAFETY: the head is only accessed by atomic instructions.
unsafe impl Sync for FreeBlocks {}

impl FreeBlocks {
    const fn new() -> Self {
        FreeBlocks(UnsafeCell::new([0; 2]))
    }

    /// Loads the head as two separate words. If they do not belong together, [`FreeBlocks::replace`] fails.
    fn head(&self) -> [u64; 2] {
        let words = self.0.get().cast::<AtomicU64>();
        // SAFETY: both words of the head, aligned, alive as long as `self`.
        unsafe { [(*words).load(Ordering::Acquire), (*words.add(1)).load(Ordering::Acquire)] }
    }

    /// Replaces the head `old` by `new`. If the head is not `old`, fails with the present head.
    fn replace(&self, old: [u64; 2], new: [u64; 2]) -> Result<(), [u64; 2]> {
        // SAFETY: the head is 16 bytes, aligned to 16 by its type, and alive as long as `self`.
        unsafe { arch::replace_pair(self.0.get(), old, new) }
    }

    fn pop(&self) -> Option<*mut u8> {
        let mut head = self.head();
        while head[0] != 0 {
            // SAFETY: a block's memory is never unmapped. If another thread has taken the block since `head` was
            // loaded, this reads that thread's data. In that case the count has changed, so the value is not used.
            let next = unsafe { (*(head[0] as *const AtomicU64)).load(Ordering::Relaxed) };
            match self.replace(head, [next, head[1].wrapping_add(1)]) {
                Ok(()) => return Some(head[0] as *mut u8),
                Err(now) => head = now,
            }
        }
        None
    }

    /// # Safety
    /// `block` must be memory of this allocator of at least eight bytes that nobody uses any longer.
    unsafe fn push(&self, block: *mut u8) {
        let mut head = self.head();
        loop {
            // SAFETY: the caller vouches for `block`. The store is atomic, since a slow `pop` may still read the
            // block.
            unsafe { (*block.cast::<AtomicU64>()).store(head[0], Ordering::Relaxed) };
            match self.replace(head, [block as u64, head[1].wrapping_add(1)]) {
                Ok(()) => return,
                Err(now) => head = now,
            }
        }
    }
}

impl Class {
    const fn new() -> Self {
        Class { free: FreeBlocks::new(), cursor: AtomicUsize::new(0) }
    }

    /// Allocates a block. `supply` provides a chunk if a new one is needed.
    fn allocate(&self, size: usize, supply: impl Fn() -> Option<usize>) -> Option<*mut u8> {
        if let Some(block) = self.free.pop() {
            return Some(block);
        }
        let mut cursor = self.cursor.load(Ordering::Relaxed);
        loop {
            let block = if cursor.is_multiple_of(CHUNK) { supply()? } else { cursor };
            // Relaxed: a fresh block's memory is reached by nothing but this address. If another thread was faster,
            // the chunk that was supplied stays unused. None of its pages was ever touched.
            match self.cursor.compare_exchange(cursor, block + size, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return Some(block as *mut u8),
                Err(now) => cursor = now,
            }
        }
    }
}

impl Chunks {
    const fn none() -> Chunks {
        Chunks(AtomicUsize::new(0))
    }

    /// Takes the next chunk, if one is left.
    fn next(&self) -> Option<usize> {
        let mut word = self.0.load(Ordering::Relaxed);
        while word & (CHUNK - 1) != 0 {
            // Relaxed as in `Class::allocate`.
            match self.0.compare_exchange(word, word + CHUNK - 1, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return Some(word & !(CHUNK - 1)),
                Err(now) => word = now,
            }
        }
        None
    }

    /// Maps new chunks, and unmaps those that are left of `old`. False if the kernel gives no memory.
    fn map(&self, old: usize) -> bool {
        let Some(mapping) = map(MAPPED_CHUNKS, page_bytes()) else { return false };
        let first = mapping.next_multiple_of(CHUNK);
        let (unused, left) =
            match self.0.compare_exchange(old, first | CHUNKS, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(old) => (old & !(CHUNK - 1), (old & (CHUNK - 1)) * CHUNK),
                Err(_) => (mapping, MAPPED_CHUNKS), // another thread was faster
            };
        unmap(unused, left);
        true
    }
}

/// Bytes to map so that aligned chunks fit at any address. The surplus is never touched.
const MAPPED_CHUNKS: usize = (CHUNKS + 1) * CHUNK;

impl Slab {
    /// Makes an allocator that has no memory yet.
    pub const fn new() -> Self {
        Slab {
            classes: [const { Class::new() }; CLASSES],
            chunks: Chunks::none(),
            reserve: Chunks::none(),
            filled: AtomicBool::new(false),
        }
    }

    /// Refills the reserve. If the kernel refuses memory, enough free blocks serve instead.
    #[cold]
    fn fill(&self) -> Result<(), Errno> {
        let word = self.reserve.0.load(Ordering::Relaxed);
        if word & (CHUNK - 1) == CHUNKS || self.reserve.map(word) {
            self.filled.store(true, Ordering::Relaxed);
            return Ok(());
        }
        let enough = (0..CLASSES).all(|class| self.has_blocks(class));
        enough.then_some(()).ok_or(Errno::NOMEM)
    }

    /// True if enough blocks of this class are available without the kernel. Blocks that are cut for this check go
    /// to the class's stack of free blocks, so that no other class takes their chunk.
    fn has_blocks(&self, class: usize) -> bool {
        const MOST: usize = 64;
        const BYTES: usize = 64 * 1024;
        let size = SMALLEST << class;
        let mut taken = [core::ptr::null_mut(); MOST];
        let wanted = &mut taken[..(BYTES / size).min(MOST)];
        let supply = || self.chunks.next().or_else(|| self.reserve.next());
        let found = wanted.iter_mut().map_while(|block| {
            *block = self.classes[class].allocate(size, supply)?;
            Some(())
        });
        let (found, enough) = (found.count(), wanted.len());
        for block in &taken[..found] {
            // SAFETY: just taken, as large as any block, and nobody else knows it.
            unsafe { self.classes[class].free.push(*block) };
        }
        found == enough
    }

    /// Takes a chunk, from the kernel or else from the reserve. `None` only if both are exhausted.
    fn next_chunk(&self) -> Option<usize> {
        loop {
            let word = self.chunks.0.load(Ordering::Relaxed);
            if let Some(chunk) = self.chunks.next() {
                return Some(chunk);
            }
            if word & (CHUNK - 1) == 0 && !self.chunks.map(word) {
                self.filled.store(false, Ordering::Relaxed);
                if mutated(Mutation::NoReserve) {
                    return None;
                }
                return self.reserve.next();
            }
        }
    }

    /// Allocates a block of a class, waiting for memory if necessary.
    fn allocate(&self, class: usize) -> *mut u8 {
        loop {
            if let Some(block) = self.classes[class].allocate(SMALLEST << class, || self.next_chunk()) {
                return block;
            }
            if mutated(Mutation::NoReserve) {
                return core::ptr::null_mut();
            }
            wait();
        }
    }
}

/// Pauses for 1 ms, in which the program or another thread may free memory.
#[cold]
pub fn wait() {
    os::pause(1_000_000);
}

impl Default for Slab {
    fn default() -> Self {
        Slab::new()
    }
}

/// Returns the class of a layout and the size of its blocks. `None` if the layout gets a mapping of its own. Blocks
/// of a power of two, cut from an aligned chunk, are aligned to their size.
fn class_of(layout: Layout) -> Option<(usize, usize)> {
    let size = layout.size().max(layout.align()).max(SMALLEST).checked_next_power_of_two()?;
    (size <= LARGEST).then(|| ((size / SMALLEST).ilog2() as usize, size))
}

/// Returns the size in bytes of the separate mapping for a layout.
fn mapped_size(layout: Layout) -> usize {
    // A layout's size is at most isize::MAX when rounded up to its alignment.
    layout.size().next_multiple_of(page_bytes())
}

// SAFETY: blocks are handed out once until they are given back, since the stack and the cursor change atomically.
// They are as large and as aligned as the layout says, and a layout always leads to the same class.
unsafe impl GlobalAlloc for Slab {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        match class_of(layout) {
            Some((class, _)) => self.allocate(class),
            None => {
                map(mapped_size(layout), layout.align()).map_or(core::ptr::null_mut(), |address| address as *mut u8)
            }
        }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        match class_of(layout) {
            // SAFETY: the caller gives back a block that `alloc` made for this layout.
            Some((class, _)) => unsafe { self.classes[class].free.push(block) },
            None => unmap(block as usize, mapped_size(layout)),
        }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's own layout. A block of a class may have been used before, while a new mapping is
        // zeroed.
        unsafe {
            let block = self.alloc(layout);
            if !block.is_null() && class_of(layout).is_some() {
                block.write_bytes(0, layout.size());
            }
            block
        }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller vouches that `size`, rounded up to the alignment, does not overflow.
        let new_layout = unsafe { Layout::from_size_align_unchecked(size, layout.align()) };
        let fits = match (class_of(layout), class_of(new_layout)) {
            (None, None) => mapped_size(layout) == mapped_size(new_layout),
            (old, new) => old == new,
        };
        if fits {
            return block;
        }
        if class_of(layout).is_none() && class_of(new_layout).is_none() && layout.align() <= page_bytes() {
            return remap(block as usize, mapped_size(layout), mapped_size(new_layout));
        }
        // SAFETY: a new block, distinct from the old one. Both hold the bytes copied, and the old block is given back
        // once.
        unsafe {
            let new = self.alloc(new_layout);
            if !new.is_null() {
                core::ptr::copy_nonoverlapping(block, new, layout.size().min(size));
                self.dealloc(block, layout);
            }
            new
        }
    }
}

/// Maps new zeroed memory, aligned to `alignment` (a power of two).
fn map(size: usize, alignment: usize) -> Option<usize> {
    #[cfg(feature = "forced-panics")]
    if failing::fails() {
        return None;
    }
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    let surplus = alignment.saturating_sub(page_bytes());
    let whole = size.checked_add(surplus)?;
    // A new private mapping at an address that the kernel chooses.
    let map =
        |bytes| check(syscall(libc::SYS_mmap, [0, bytes, protection as usize, flags as usize, usize::MAX, 0]));
    let address = unlocked::map(whole, map).ok()?;
    let start = address.next_multiple_of(alignment);
    unmap(address, start - address);
    unmap(start + size, address + whole - start - size);
    Some(start)
}

/// Resizes one of this allocator's mappings, which may move. Returns null on failure, and leaves the mapping
/// unchanged.
fn remap(address: usize, old: usize, new: usize) -> *mut u8 {
    #[cfg(feature = "forced-panics")]
    if new > old && failing::fails() {
        return core::ptr::null_mut();
    }
    let moved = syscall(libc::SYS_mremap, [address, old, new, libc::MREMAP_MAYMOVE as usize, 0, 0]);
    match moved {
        -4095..0 => core::ptr::null_mut(),
        moved => moved as *mut u8,
    }
}

/// Unmaps memory that this allocator mapped and that is no longer used.
fn unmap(address: usize, size: usize) {
    if size > 0 {
        syscall(libc::SYS_munmap, [address, size, 0, 0, 0, 0]);
    }
}

/// The library's global allocator.
pub struct Global;

// SAFETY: passes each call on to `MEMORY`, a `Slab`, which fulfils the contract.
unsafe impl GlobalAlloc for Global {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promise, passed on. The other functions do the same.
        unsafe { MEMORY.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { MEMORY.dealloc(block, layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as above.
        unsafe { MEMORY.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: as above.
        unsafe { MEMORY.realloc(block, layout, size) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;

    fn layout(size: usize, align: usize) -> Layout {
        Layout::from_size_align(size, align).expect("a valid layout")
    }

    #[test]
    fn blocks_are_aligned_distinct_and_writable() {
        let slab = Slab::new();
        let mut blocks = Vec::new();
        for size in [1, 15, 16, 17, 100, 1000, 4096, 4097, 100_000] {
            for align in [1, 8, 64, 4096, 65_536] {
                let layout = layout(size, align);
                // SAFETY: the size is not zero; the block is as large as the layout.
                let block = unsafe {
                    let block = slab.alloc(layout);
                    assert!(!block.is_null() && (block as usize).is_multiple_of(align), "{size} {align}");
                    block.write_bytes(blocks.len() as u8, size);
                    block
                };
                blocks.push((block, layout));
            }
        }
        for (mark, (block, layout)) in blocks.into_iter().enumerate() {
            // SAFETY: written above and given back once.
            unsafe {
                let bytes = core::slice::from_raw_parts(block, layout.size());
                assert!(bytes.iter().all(|byte| *byte == mark as u8));
                slab.dealloc(block, layout);
            }
        }
    }

    #[test]
    fn a_block_that_grows_keeps_its_bytes() {
        let slab = Slab::new();
        let mut size = 1;
        // SAFETY: sizes are not zero, each byte was written before it is read, and the block is given back once.
        unsafe {
            let mut block = slab.alloc(layout(size, 1));
            block.write(7);
            while size < 1 << 20 {
                block = slab.realloc(block, layout(size, 1), size * 2 + 1);
                size = size * 2 + 1;
                assert_eq!(*block, 7);
                block.add(size - 1).write(7);
            }
            block = slab.realloc(block, layout(size, 1), 10);
            assert_eq!(*block, 7);
            slab.dealloc(block, layout(10, 1));
        }
    }

    #[test]
    fn threads_never_share_a_block() {
        const ROUNDS: usize = 20_000;
        let slab = Slab::new();
        std::thread::scope(|scope| {
            for mark in 1..=4_u64 {
                let slab = &slab;
                scope.spawn(move || {
                    let mut held = [core::ptr::null_mut::<u64>(); 16];
                    for round in 0..ROUNDS {
                        let slot = &mut held[round * 7 % 16];
                        // SAFETY: each block holds two words, is written by its owner alone and given back once.
                        unsafe {
                            if !slot.is_null() {
                                assert_eq!([slot.read(), slot.add(1).read()], [mark; 2], "another thread wrote");
                                slab.dealloc(slot.cast(), layout(16, 8));
                            }
                            *slot = slab.alloc(layout(16, 8)).cast();
                            slot.write(mark);
                            slot.add(1).write(mark);
                        }
                    }
                });
            }
        });
        let used = slab.classes[0].cursor.load(Ordering::Relaxed) % CHUNK;
        assert!(used > 0 && used <= 4 * 17 * SMALLEST, "freed blocks were not used again: {used}");
    }

    /// A child forked while other threads are inside the allocator can allocate at once.
    #[test]
    fn a_forked_child_goes_on() {
        let (slab, stop) = (Slab::new(), AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    // SAFETY: not of size zero, and given back once.
                    unsafe { slab.dealloc(slab.alloc(layout(64, 8)), layout(64, 8)) };
                }
            });
            for _ in 0..100 {
                let child = || {
                    for _ in 0..1000 {
                        // SAFETY: not of size zero, and given back once.
                        unsafe { slab.dealloc(slab.alloc(layout(64, 8)), layout(64, 8)) };
                    }
                    0
                };
                assert_eq!(crate::os::in_child::in_child(child), 0);
            }
            stop.store(true, Ordering::Relaxed);
        });
    }
}
