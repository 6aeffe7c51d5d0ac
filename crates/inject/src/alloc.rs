//! The memory of this library itself: a slab allocator on mmap, apart from the program's malloc.
//!
//! A trapped instruction or a signal may land inside the program's allocator, so ours takes nothing from it, has no
//! thread-locals and no lock: a thread that is interrupted anywhere in here and forks, allocates again in a signal
//! handler, or never comes back (siglongjmp), holds up nobody. At worst it loses the one block it was about to take.
//!
//! Sizes up to `LARGEST` are rounded up to a power of two and come from a stack of free blocks for each power;
//! chunks are never given back to the kernel. Everything larger is a mapping of its own.

use crate::sys;
use core::alloc::{GlobalAlloc, Layout};
use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Bytes of the smallest and of the largest block that is not a mapping of its own.
const SMALLEST: usize = 16;
const LARGEST: usize = 4096;
const CLASSES: usize = (LARGEST / SMALLEST).ilog2() as usize + 1;
/// Blocks are cut from chunks of this size and alignment.
const CHUNK: usize = 64 * 1024;
/// Chunks are cut from mappings of this many.
const CHUNKS: usize = 16;
const PAGE: usize = 4096;

/// See the module's head.
pub struct Slab {
    classes: [Class; CLASSES],
    /// The next chunk's address, with the number of chunks left in the low bits that its alignment leaves free.
    chunks: AtomicUsize,
}

/// One size of blocks.
struct Class {
    free: FreeBlocks,
    /// The next block of the newest chunk; a multiple of [`CHUNK`] when that is used up.
    cursor: AtomicUsize,
}

/// A stack of free blocks, each of which begins with the address of the next.
///
/// The head is the first block's address and a count of all changes ever made: 128 bits that change together, so that
/// an address which was taken and put back in the meantime is not mistaken for one that never left.
#[repr(C, align(16))]
struct FreeBlocks(UnsafeCell<[u64; 2]>);

// SAFETY: the head is only accessed by atomic instructions.
unsafe impl Sync for FreeBlocks {}

impl FreeBlocks {
    const fn new() -> Self {
        FreeBlocks(UnsafeCell::new([0; 2]))
    }

    /// The head as two separate loads: [`FreeBlocks::replace`] fails if they do not belong together.
    fn head(&self) -> [u64; 2] {
        let words = self.0.get().cast::<AtomicU64>();
        // SAFETY: both words of the head, aligned, alive as long as `self`.
        unsafe { [(*words).load(Ordering::Acquire), (*words.add(1)).load(Ordering::Acquire)] }
    }

    /// Replaces the head `old` by `new`, or answers what the head is.
    fn replace(&self, old: [u64; 2], new: [u64; 2]) -> Result<(), [u64; 2]> {
        let (low, high): (u64, u64);
        let replaced: u8;
        // SAFETY: the head is 16 bytes, aligned to 16 by its type. rbx, which the compiler keeps to itself, gets its
        // value back. The instruction is a full barrier, so every use here orders as acquire and release.
        unsafe {
            core::arch::asm!(
                "xchg rbx, rsi",
                "lock cmpxchg16b [rdi]",
                "sete r8b",
                "mov rbx, rsi",
                in("rdi") self.0.get(), inout("rsi") new[0] => _, in("rcx") new[1], inout("rax") old[0] => low,
                inout("rdx") old[1] => high, out("r8b") replaced, options(nostack),
            );
        }
        if replaced != 0 {
            Ok(())
        } else {
            Err([low, high])
        }
    }

    fn pop(&self) -> Option<*mut u8> {
        let mut head = self.head();
        while head[0] != 0 {
            // SAFETY: a block's memory stays mapped for good. If another thread has taken it meanwhile this reads
            // whatever it wrote there, and the count has changed, so the value is not used.
            let next = unsafe { (*(head[0] as *const AtomicU64)).load(Ordering::Relaxed) };
            match self.replace(head, [next, head[1].wrapping_add(1)]) {
                Ok(()) => return Some(head[0] as *mut u8),
                Err(now) => head = now,
            }
        }
        None
    }

    /// # Safety
    /// `block` is memory of ours of at least eight bytes that nobody uses any longer.
    unsafe fn push(&self, block: *mut u8) {
        let mut head = self.head();
        loop {
            // SAFETY: the caller vouches for `block`; atomic since a slow `pop` may still read it.
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

    fn take(&self, size: usize, chunks: &AtomicUsize) -> *mut u8 {
        if let Some(block) = self.free.pop() {
            return block;
        }
        let mut cursor = self.cursor.load(Ordering::Relaxed);
        loop {
            let block = if cursor.is_multiple_of(CHUNK) { take_chunk(chunks) } else { Some(cursor) };
            let Some(block) = block else {
                return core::ptr::null_mut();
            };
            // Relaxed: a fresh block's memory is reached by nothing but this address. A chunk that was taken for
            // nothing, because another thread was faster, stays unused: it never had a page.
            match self.cursor.compare_exchange(cursor, block + size, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return block as *mut u8,
                Err(now) => cursor = now,
            }
        }
    }
}

fn take_chunk(chunks: &AtomicUsize) -> Option<usize> {
    let mut word = chunks.load(Ordering::Relaxed);
    loop {
        let (next, left) = (word & !(CHUNK - 1), word & (CHUNK - 1));
        let new_mapping = if left == 0 { Some(map_chunks()?) } else { None };
        let (chunk, left) = new_mapping
            .map_or((next, left.wrapping_sub(1)), |mapping| (mapping.next_multiple_of(CHUNK), CHUNKS - 1));
        // Relaxed as in `Class::take`.
        match chunks.compare_exchange(word, (chunk + CHUNK) | left, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => return Some(chunk),
            Err(now) => {
                if let Some(mapping) = new_mapping {
                    unmap(mapping, MAPPED_CHUNKS);
                }
                word = now;
            }
        }
    }
}

/// Room for the chunks wherever the mapping lies; what is too much is never touched.
const MAPPED_CHUNKS: usize = (CHUNKS + 1) * CHUNK;

fn map_chunks() -> Option<usize> {
    map(MAPPED_CHUNKS, PAGE)
}

impl Slab {
    /// An allocator that has no memory yet.
    pub const fn new() -> Self {
        Slab { classes: [const { Class::new() }; CLASSES], chunks: AtomicUsize::new(0) }
    }
}

impl Default for Slab {
    fn default() -> Self {
        Slab::new()
    }
}

/// The class of a layout and the size of its blocks, or `None` for a mapping of its own. Blocks of a power of two,
/// cut from an aligned chunk, are aligned to their size.
fn class_of(layout: Layout) -> Option<(usize, usize)> {
    let size = layout.size().max(layout.align()).max(SMALLEST).checked_next_power_of_two()?;
    (size <= LARGEST).then(|| ((size / SMALLEST).ilog2() as usize, size))
}

/// Bytes of the mapping for a layout that has one of its own.
fn mapped_size(layout: Layout) -> usize {
    // A layout's size is at most isize::MAX when rounded up to its alignment.
    layout.size().next_multiple_of(PAGE)
}

// SAFETY: blocks are handed out once until they are given back (the stack and the cursor change atomically), are as
// large and as aligned as the layout says, and a layout always leads to the same class.
unsafe impl GlobalAlloc for Slab {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        match class_of(layout) {
            Some((class, size)) => self.classes[class].take(size, &self.chunks),
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
        // SAFETY: the caller's own layout; a block of a class may have been used before, a new mapping is zeroed.
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
        // SAFETY: a new block, distinct from the old one; both hold the bytes copied; the old one is given back once.
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

/// New zeroed memory, aligned to `alignment` (a power of two).
fn map(size: usize, alignment: usize) -> Option<usize> {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    let surplus = alignment.saturating_sub(PAGE);
    let whole = size.checked_add(surplus)?;
    let args = [0, whole, protection as usize, flags as usize, usize::MAX, 0];
    // SAFETY: a new private mapping at a place of the kernel's choice.
    let address = unsafe { sys::call(libc::SYS_mmap, args) };
    if (-4095..0).contains(&address) {
        return None;
    }
    let address = address as usize;
    let start = address.next_multiple_of(alignment);
    unmap(address, start - address);
    unmap(start + size, address + whole - start - size);
    Some(start)
}

fn unmap(address: usize, size: usize) {
    if size > 0 {
        // SAFETY: callers pass memory that they mapped and that nobody uses.
        unsafe { sys::call(libc::SYS_munmap, [address, size, 0, 0, 0, 0]) };
    }
}

#[cfg(all(not(test), feature = "allocator"))]
#[global_allocator]
static GLOBAL: Slab = Slab::new();

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
        // SAFETY: sizes are not zero; each byte was written before it is read; the block is given back once.
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

    /// A child forked while other threads are inside the allocator can go on allocating at once.
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
                // SAFETY: the child only uses this allocator, which takes no lock, and ends without running anything.
                unsafe {
                    let child = libc::fork();
                    if child == 0 {
                        for _ in 0..1000 {
                            slab.dealloc(slab.alloc(layout(64, 8)), layout(64, 8));
                        }
                        libc::_exit(0);
                    }
                    let mut status = -1;
                    assert_eq!(libc::waitpid(child, &mut status, 0), child);
                    assert_eq!(status, 0);
                }
            }
            stop.store(true, Ordering::Relaxed);
        });
    }
}
