//! A jump of five bytes in place of one instruction, and memory in its reach.
//!
//! The jump is written into those bytes of one instruction that lie within one aligned word of eight bytes. If these
//! are fewer than five, the bytes after them stay, and become the upper part of the jump's distance. The island is then
//! placed where that distance leads, mostly in an empty part of the address space (instruction punning).

use super::decode::SYSCALL;
use super::run::Start;
use crate::sys;
use anyring_engine::log;
use core::ops::Range;
use core::sync::atomic::{AtomicU64, Ordering};

/// The size of a page, in bytes.
pub const PAGE: usize = 4096;
/// The bytes of `jmp rel32`.
pub const JUMP: usize = 5;
/// The alignment of an island's address.
pub const ALIGNMENT: usize = 8;

/// A jump to an island that is not built yet.
#[derive(Debug)]
pub struct Jump {
    /// The address of the instruction that it replaces.
    pub from: usize,
    /// Number of the jump's bytes that are written. The others are in the code already.
    pub written: usize,
    /// The smallest possible distance. `window` is the number of possible distances.
    distance: isize,
    window: usize,
}

impl Jump {
    /// Returns the jump at `start`, before the `syscall` at the offset `site`, in `code`, which begins at the address
    /// `base`. `None` if no island could be placed. Its distance must not be in `avoided`.
    pub fn new(code: &[u8], base: usize, start: &Start, site: usize, avoided: &Range<isize>) -> Option<Self> {
        let from = base + start.offset;
        let written = start.length.min(JUMP).min(8 - from % 8);
        if written == JUMP {
            return Some(Self { from, written, distance: 0, window: usize::MAX });
        }
        // The bytes that stay must never change. So they must belong to this patch, which ends with the `syscall`.
        if written < 2 || start.offset + JUMP > site + SYSCALL.len() {
            return None;
        }
        Self::with_rest(code, base, start.offset, written, avoided)
    }

    /// Returns the jump in place of the `syscall` at `offset` itself; `None` if no island could be placed. Only two
    /// of its five bytes are written. A thread that the kernel returns to the place after the `syscall` finds the
    /// original bytes there.
    pub fn in_place(code: &[u8], base: usize, offset: usize, avoided: &Range<isize>) -> Option<Self> {
        let is_in_one_word = (base + offset) % 8 <= 8 - SYSCALL.len();
        let is_there = code.get(offset..offset + SYSCALL.len()) == Some(&SYSCALL) && code.len() >= offset + JUMP;
        (is_in_one_word && is_there).then(|| Self::with_rest(code, base, offset, SYSCALL.len(), avoided)).flatten()
    }

    /// Returns the jump at `offset` that writes only the first `written` bytes.
    fn with_rest(code: &[u8], base: usize, offset: usize, written: usize, avoided: &Range<isize>) -> Option<Self> {
        let mut distance = [0; 4];
        distance[written - 1..].copy_from_slice(&code[offset + written..offset + JUMP]);
        let distance = i32::from_le_bytes(distance) as isize;
        let window = 1 << (8 * (written - 1));
        (!avoided.contains(&distance)).then_some(Self { from: base + offset, written, distance, window })
    }

    /// Returns the jumps at `starts` that can patch the `syscall` at the offset `site`, best first. Best are jumps that
    /// every call passes, then jumps whose island may be anywhere or below the program. Among equal jumps the latest is
    /// best, since computed branches may also skip the code before it.
    pub fn before(code: &[u8], base: usize, starts: &[Start], site: usize, avoided: &Range<isize>) -> Vec<Jump> {
        let jump = |start| Some((start, Jump::new(code, base, start, site, avoided)?));
        let mut possible: Vec<(&Start, Jump)> = starts.iter().filter_map(jump).collect();
        possible.sort_by_key(|(start, jump)| (start.is_passed, !jump.is_free(), jump.leads_up()));
        possible.into_iter().map(|(_, jump)| jump).collect()
    }

    /// True if the island may be anywhere in reach.
    pub fn is_free(&self) -> bool {
        self.written == JUMP
    }

    /// True if the island has to be above, where memory grows.
    pub fn leads_up(&self) -> bool {
        self.distance > 0
    }

    /// Returns the addresses to try for the island, best first. Those below the program come first, since the heap
    /// grows above it.
    pub fn places(&self) -> Vec<usize> {
        const STEP: usize = 1 << 20;
        const REACH: usize = (1 << 31) - 2 * STEP;
        // A null pointer with an offset should keep faulting.
        const LOWEST: usize = STEP;
        if self.is_free() {
            let here = self.from & !(STEP - 1);
            let below = (1..REACH / STEP).map_while(|steps| here.checked_sub(steps * STEP));
            let above = (1..REACH / STEP).map_while(|steps| here.checked_add(steps * STEP));
            return below.filter(|at| *at >= LOWEST).chain(above).collect();
        }
        let Some(first) = (self.from + JUMP).checked_add_signed(self.distance).filter(|at| *at >= LOWEST) else {
            return Vec::new();
        };
        let (alignment, tries) = if self.window > 2 * PAGE { (PAGE, 14) } else { (ALIGNMENT, 1) };
        let step = (self.window / 16).next_multiple_of(alignment);
        (0..tries).map(|index| first.next_multiple_of(alignment) + index * step).collect()
    }

    /// True if the jump can lead to `island` with the bytes that are not written.
    pub fn leads_from(&self, island: usize) -> bool {
        let distance = (island as isize).wrapping_sub((self.from + JUMP) as isize);
        i32::try_from(distance).is_ok()
            && (self.is_free()
                || (self.distance..).contains(&distance) && distance - self.distance < self.window as isize)
    }

    /// Returns the bytes that make the jump lead to `island`. The first [`Jump::written`] of them are written.
    pub fn bytes(&self, island: usize) -> [u8; JUMP] {
        let distance = (island as isize - (self.from + JUMP) as isize) as i32; // `places` are in reach
        let [a, b, c, d] = distance.to_le_bytes();
        [0xe9, a, b, c, d]
    }

    /// Makes the program jump to `island`.
    ///
    /// # Errors
    /// The reason why the code was not changed.
    pub fn store(&self, island: usize) -> Result<(), &'static str> {
        let (word, shift) = (self.from & !7, self.from % 8);
        let new = self.bytes(island);
        let protect = |protection: i32| {
            let start = word & !(PAGE - 1);
            // SAFETY: the page holds code of the object, which stays readable and executable throughout.
            unsafe { sys::call(libc::SYS_mprotect, [start, PAGE, protection as usize, 0, 0, 0]) == 0 }
        };
        // SAFETY: the bytes of the jump belong to code that the caller has examined.
        let there = unsafe { core::slice::from_raw_parts(self.from as *const u8, JUMP) };
        if there[self.written..] != new[self.written..] {
            return Err("the bytes after it have changed");
        }
        if !protect(libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC) {
            return Err("its page cannot be made writable");
        }
        // SAFETY: eight aligned bytes of the page that was just made writable. Other threads only fetch them.
        let code = unsafe { AtomicU64::from_ptr(word as *mut u64) };
        let old = code.load(Ordering::Relaxed);
        let mut bytes = old.to_le_bytes();
        bytes[shift..shift + self.written].copy_from_slice(&new[..self.written]);
        // Release: the island was written before.
        let stored = code.compare_exchange(old, u64::from_le_bytes(bytes), Ordering::Release, Ordering::Relaxed);
        if !protect(libc::PROT_READ | libc::PROT_EXEC) {
            log::line("a page of code stays writable: its protection could not be restored");
        }
        stored.map(drop).map_err(|_| "its bytes have changed")
    }
}

/// Returns the pages of an island of `bytes` at `address`: their start, and their size in bytes.
pub fn pages(address: usize, bytes: usize) -> (usize, usize) {
    let start = address & !(PAGE - 1);
    (start, (address + bytes).next_multiple_of(PAGE) - start)
}

/// Maps writable pages for an island of `bytes` at `address`. False if that is not possible.
pub fn map_at(address: usize, bytes: usize) -> bool {
    let (start, size) = pages(address, bytes);
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
    let args = [start, size, protection as usize, flags as usize, usize::MAX, 0];
    // SAFETY: a new private mapping, which replaces none. A kernel without MAP_FIXED_NOREPLACE takes the address as a
    // hint. A mapping elsewhere is unmapped again.
    unsafe {
        let mapped = sys::call(libc::SYS_mmap, args);
        if mapped > 0 && mapped as usize != start {
            sys::call(libc::SYS_munmap, [mapped as usize, size, 0, 0, 0, 0]);
        }
        mapped == start as isize
    }
}

/// Makes the pages of an island executable. False if the system refuses that.
pub fn make_executable(address: usize, bytes: usize) -> bool {
    let (start, size) = pages(address, bytes);
    let protection = (libc::PROT_READ | libc::PROT_EXEC) as usize;
    // SAFETY: the pages that `map_at` has mapped, and to which no jump leads yet.
    unsafe { sys::call(libc::SYS_mprotect, [start, size, protection, 0, 0, 0]) == 0 }
}

/// Unmaps an island to which no jump leads.
pub fn unmap(address: usize, bytes: usize) {
    let (start, size) = pages(address, bytes);
    // SAFETY: the caller vouches that no jump leads there.
    unsafe { sys::call(libc::SYS_munmap, [start, size, 0, 0, 0, 0]) };
}

#[cfg(test)]
mod tests {
    use super::*;

    const BASE: usize = 0x5555_5555_4000;
    const AVOIDED: Range<isize> = -(1 << 20)..1 << 26;

    /// Returns the jump at an instruction of `length` bytes at `offset`, in code of the bytes 0, 1, ..., before the
    /// `syscall` at 60.
    fn jump(offset: usize, length: usize) -> Option<Jump> {
        let code: Vec<u8> = (0..64).collect();
        Jump::new(&code, BASE, &Start { offset, length, is_passed: false }, 60, &AVOIDED)
    }

    #[test]
    fn a_jump_within_one_word_leads_anywhere() {
        for offset in [16, 19] {
            let jump = jump(offset, 6).expect("five bytes");
            assert!(jump.is_free() && jump.written == JUMP);
            let places = jump.places();
            assert!(places[0] < BASE && places.iter().all(|place| place.abs_diff(BASE) < 1 << 31));
        }
    }

    #[test]
    fn bytes_that_stay_say_where_it_leads() {
        // Two bytes of the distance stay, since the word or the instruction ends before them. The byte before the last
        // counts 64 Ki, the last 16 Mi.
        for (offset, length, written) in [(21, 6, 3), (16, 3, 3), (20, 7, 4), (17, 4, 4), (22, 5, 2)] {
            let jump = jump(offset, length).expect("a window");
            assert_eq!(jump.written, written);
            for place in jump.places() {
                let bytes = jump.bytes(place);
                let stay: Vec<u8> = (offset + written..offset + JUMP).map(|at| at as u8).collect();
                assert_eq!(bytes[written..], stay, "{offset}");
                let distance = i32::from_le_bytes(bytes[1..].try_into().expect("four bytes"));
                assert_eq!((BASE + offset + JUMP).wrapping_add_signed(distance as isize), place);
                assert!(distance as usize > 1 << 26 && place.is_multiple_of(ALIGNMENT));
            }
            assert!(!jump.is_free() && jump.leads_up());
        }
    }

    #[test]
    fn a_jump_is_not_written_where_its_other_bytes_may_change_or_lead_nearby() {
        // One byte alone; bytes after the `syscall`.
        assert!(jump(23, 5).is_none() && jump(16, 1).is_none());
        assert!(jump(57, 3).is_some() && jump(58, 2).is_none());
        // mov $426, %eax: its zeroes would lead to within 16 MiB. A negative distance leads down, but not below 1 MiB.
        let at = |code: &[u8], base| {
            Jump::new(code, base, &Start { offset: 4, length: 5, is_passed: false }, 9, &AVOIDED)
        };
        assert!(at(&[0x90, 0x90, 0x90, 0x90, 0xb8, 0xaa, 1, 0, 0, 0x0f, 0x05], BASE).is_none());
        let down = [0x90, 0x90, 0x90, 0x90, 0xb8, 0xaa, 1, 0, 0x80, 0x0f, 0x05];
        assert!(at(&down, BASE).is_some_and(|jump| !jump.leads_up() && jump.places()[0] < BASE - (1 << 30)));
        assert!(at(&down, 0x40_0000).is_some_and(|jump| jump.places().is_empty()));
        assert!(at(&[0x90, 0x90, 0x90, 0x90, 0xb8, 0xaa, 1, 0xff, 0xff, 0x0f, 0x05], BASE + 1).is_none());
    }

    #[test]
    fn a_syscall_itself_is_replaced_by_two_bytes() {
        // cmp $-4095, %rax after it: 0x013d48 times 256.
        let code = [&[0x90; 4][..], &SYSCALL, &[0x48, 0x3d, 0x01, 0xf0, 0xff, 0xff]].concat();
        let jump = Jump::in_place(&code, BASE, 4, &(-(1 << 20)..1 << 20)).expect("a window");
        assert_eq!(jump.written, 2);
        let place = jump.places()[0];
        assert!((0x013d_4800..0x013d_4900).contains(&(place - (BASE + 4 + JUMP))));
        assert_eq!(jump.bytes(place)[2..], code[6..9]);
        // Too close; across words; nothing after it; not there.
        assert!(Jump::in_place(&code, BASE, 4, &AVOIDED).is_none());
        assert!(Jump::in_place(&code, BASE + 3, 4, &(0..1)).is_none());
        assert!(Jump::in_place(&code[..8], BASE, 4, &(0..1)).is_none());
        assert!(Jump::in_place(&code, BASE, 3, &(0..1)).is_none());
    }
}
