//! The only module that turns addresses in ring memory into loads and stores.
//!
//! Ring memory is untrusted, since the program may write any word at any moment. So it is read and written as
//! atomics. If the memory belongs to the program (`IORING_SETUP_NO_MMAP`), it may be unmapped at any time. The
//! guarded accessor is used for it.

use super::layout::{word, Layout};
use crate::os::{arch, user_read, user_write, GuardedWords};
use crate::Errno;
use anyring_abi::{Cqe, Sqe, IORING_CQE_F_32, IORING_CQE_F_SKIP};
use core::sync::atomic::{AtomicU32, Ordering};

/// One ring's memory, as mapped in this process.
#[derive(Clone, Copy)]
pub struct View {
    rings: usize,
    sqes: usize,
    /// True if the memory belongs to the program, so that every access may fault.
    guarded: bool,
    /// True if the engine has mapped the memory, and the SQ's tail gives the number of new SQEs.
    goes_by_tail: bool,
    layout: Layout,
}

impl View {
    /// Makes a view of the two areas. Unless `guarded`, the engine must keep both mapped for as long as the view is
    /// used.
    pub fn new(rings: usize, sqes: usize, guarded: bool, layout: Layout) -> View {
        View { rings, sqes, guarded, goes_by_tail: !guarded && !layout.rewinds, layout }
    }

    /// True if the areas belong to the program.
    pub fn is_of_program(&self) -> bool {
        self.guarded
    }

    /// True if the engine has mapped the memory and the SQ's tail counts, so that SQEs may be handled in place.
    #[inline]
    pub fn goes_by_tail(&self) -> bool {
        self.goes_by_tail
    }

    /// Returns the address of the rings.
    pub fn rings(&self) -> usize {
        self.rings
    }

    /// Returns a copy of the view with the rings at another address.
    pub fn with_rings_at(&self, rings: usize) -> View {
        View { rings, ..*self }
    }

    /// Returns the sizes and positions with which this view was made.
    #[inline]
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    #[inline]
    fn atomic(&self, offset: usize) -> &AtomicU32 {
        debug_assert!(!self.guarded && offset.is_multiple_of(4) && offset + 4 <= self.layout.rings_bytes);
        // SAFETY: `offset` is one of layout's 4-aligned offsets inside the rings area (asserted above). The engine's
        // own mapping outlives every view of it, and the word is only ever touched as an atomic.
        unsafe { &*((self.rings + offset) as *const AtomicU32) }
    }

    /// Loads a word with Acquire, which pairs with the program's release store of it (`io_uring_smp_store_release`).
    #[inline]
    pub fn load(&self, offset: usize) -> Result<u32, Errno> {
        if self.guarded {
            return GuardedWords::load(self.rings + offset);
        }
        Ok(self.atomic(offset).load(Ordering::Acquire))
    }

    /// Loads as [`load`](Self::load) does, in memory that the engine has mapped.
    #[inline]
    pub fn load_mapped(&self, offset: usize) -> u32 {
        debug_assert!(!self.guarded);
        self.atomic(offset).load(Ordering::Acquire)
    }

    /// Stores as [`store`](Self::store) does, in memory that the engine has mapped.
    #[inline]
    pub fn store_mapped(&self, offset: usize, value: u32) {
        debug_assert!(!self.guarded);
        self.atomic(offset).store(value, Ordering::Release);
    }

    /// Stores a word with Release, which pairs with the program's acquire load of it (`io_uring_smp_load_acquire`).
    #[inline]
    pub fn store(&self, offset: usize, value: u32) -> Result<(), Errno> {
        if self.guarded {
            return GuardedWords::store(self.rings + offset, value);
        }
        self.atomic(offset).store(value, Ordering::Release);
        Ok(())
    }

    /// Sets and clears bits of a word that only the engine writes (`SQ_FLAGS`).
    pub fn change_bits(&self, offset: usize, set: u32, clear: u32) -> Result<(), Errno> {
        if self.guarded {
            let old = GuardedWords::load(self.rings + offset)?;
            return GuardedWords::store(self.rings + offset, (old | set) & !clear);
        }
        // Release pairs with the program's acquire load of the flags.
        if clear != 0 {
            self.atomic(offset).fetch_and(!clear, Ordering::Release);
        }
        if set != 0 {
            self.atomic(offset).fetch_or(set, Ordering::Release);
        }
        Ok(())
    }

    /// Returns the SQE index that position `head` of the SQ array holds. The program wrote it, so it may be any
    /// value.
    #[inline]
    pub fn sq_index(&self, head: u32) -> Result<u32, Errno> {
        let position = head & (self.layout.sq_entries - 1);
        match self.layout.array {
            None => Ok(position),
            Some(array) if self.guarded => GuardedWords::load(self.rings + array + 4 * position as usize),
            Some(array) => Ok(self.atomic(array + 4 * position as usize).load(Ordering::Relaxed)),
        }
    }

    /// Copies the SQE at `index` (below `sq_entries`) once. Later changes by the program have no effect on the copy.
    #[inline]
    pub fn sqe(&self, index: u32) -> Result<Sqe, Errno> {
        debug_assert!(index < self.layout.sq_entries);
        if self.guarded {
            return user_read(self.sqe_address(index) as u64);
        }
        Ok(SqeRef(self.sqe_address(index) as *const Sqe).copy())
    }

    /// Returns the SQE that position `head` of the SQ array names, in memory that the engine has mapped. `None` if
    /// the index is invalid.
    #[inline(always)] // in the loop over SQEs
    pub fn sqe_at(&self, head: u32) -> Option<SqeRef> {
        debug_assert!(!self.guarded);
        let position = head & (self.layout.sq_entries - 1);
        let index = match self.layout.array {
            None => position,
            Some(array) => self.atomic(array + 4 * position as usize).load(Ordering::Relaxed),
        };
        (index < self.layout.sq_entries).then(|| SqeRef(self.sqe_address(index) as *const Sqe))
    }

    #[inline(always)] // in the loop over SQEs
    fn sqe_address(&self, index: u32) -> usize {
        self.sqes + ((index as usize) << self.layout.sqe_shift)
    }

    /// Writes a CQE at position `tail` of the CQ. With `IORING_SETUP_CQE32` the second half becomes `extra`.
    #[inline]
    fn write_cqe(&self, tail: u32, cqe: Cqe, extra: [u64; 2]) -> Result<(), Errno> {
        let position = (tail & (self.layout.cq_entries - 1)) as usize;
        let address = self.rings + word::CQES + (position << self.layout.cqe_shift);
        if self.guarded {
            return self.write_cqe_guarded(address, cqe, extra);
        }
        let entry = address as *mut Cqe;
        // SAFETY: the masked position lies inside the CQE array of the engine's mapping, 16-aligned. The program
        // reads it only after the release store of the tail. Written field by field, as it was put together: see
        // `sqe`.
        unsafe {
            (&raw mut (*entry).user_data).write_volatile(cqe.user_data);
            (&raw mut (*entry).res).write_volatile(cqe.res);
            (&raw mut (*entry).flags).write_volatile(cqe.flags);
            if self.layout.cqe_shift == 5 {
                ((address + 16) as *mut [u64; 2]).write_volatile(extra);
            }
        }
        Ok(())
    }

    /// Prefetches, for writing, the cache lines of the CQE at position `tail` and of the CQ's tail. Another core may
    /// own them, and an instruction that waits for stores would then wait for the transfer.
    #[inline]
    pub fn expect_write(&self, tail: u32) {
        let position = (tail & (self.layout.cq_entries - 1)) as usize;
        let cqe = self.rings + word::CQES + (position << self.layout.cqe_shift);
        for address in [self.rings + word::CQ_TAIL, cqe] {
            arch::expect_write(address);
        }
    }

    /// True if this CQE takes two entries of the CQ.
    #[inline]
    pub fn is_double(&self, cqe: &Cqe) -> bool {
        self.layout.mixed && cqe.flags & IORING_CQE_F_32 != 0
    }

    /// Returns the position of a CQE of two entries, and the number of such CQEs that have room there (1 or 0). The
    /// next position is `tail`, and `room` entries are free. The two entries must be neighbours. So the CQ's last
    /// entry may get a CQE marked to be skipped, as in `io_cqe_cache_refill` in io_uring/io_uring.c.
    pub fn place_double(&self, tail: u32, room: u32) -> (u32, u32) {
        let last = self.layout.cq_entries - 1;
        if tail & last != last || room == 0 {
            return (tail, u32::from(room >= 2));
        }
        let _ = self.write_cqe(tail, Cqe { flags: IORING_CQE_F_SKIP, ..Cqe::default() }, [0; 2]);
        (tail.wrapping_add(1), u32::from(room >= 3))
    }

    /// True if [`write_run`](Self::write_run) may write CQEs: the memory is the engine's mapping, and each entry has
    /// 16 bytes.
    #[inline]
    pub fn accepts_runs(&self) -> bool {
        !self.guarded && self.layout.cqe_shift == 4
    }

    /// Writes consecutive CQEs from position `tail` on. Requires [`accepts_runs`](Self::accepts_runs).
    #[inline]
    pub fn write_run(&self, tail: u32, cqes: &[Cqe]) {
        debug_assert!(self.accepts_runs() && cqes.len() <= self.layout.cq_entries as usize);
        let mask = self.layout.cq_entries - 1;
        let array = (self.rings + word::CQES) as *mut Cqe;
        for (place, cqe) in (tail..).zip(cqes) {
            // SAFETY: the masked position lies inside the CQE array of the engine's mapping, whose entries are as
            // large as `Cqe` (asserted above). The program reads it only after the release store of the tail.
            unsafe {
                let entry = array.add((place & mask) as usize);
                (&raw mut (*entry).user_data).write_volatile(cqe.user_data);
                (&raw mut (*entry).res).write_volatile(cqe.res);
                (&raw mut (*entry).flags).write_volatile(cqe.flags);
            }
        }
    }

    /// Writes a CQE at position `tail`. `double` must be the result of [`is_double`](Self::is_double).
    #[inline]
    pub fn write(&self, tail: u32, cqe: Cqe, extra: [u64; 2], double: bool) -> Result<(), Errno> {
        match double {
            false => self.write_cqe(tail, cqe, extra),
            true => self.write_double(tail, cqe, extra),
        }
    }

    /// Writes a CQE of 32 bytes over positions `tail` and `tail + 1`, which are neighbours in the array.
    #[cold]
    fn write_double(&self, tail: u32, cqe: Cqe, extra: [u64; 2]) -> Result<(), Errno> {
        let [first, second] = extra;
        let second_half = Cqe { user_data: first, res: second as i32, flags: (second >> 32) as u32 };
        self.write_cqe(tail.wrapping_add(1), second_half, [0; 2])?;
        self.write_cqe(tail, cqe, [0; 2])
    }

    #[cold]
    fn write_cqe_guarded(&self, address: usize, cqe: Cqe, extra: [u64; 2]) -> Result<(), Errno> {
        user_write(address as u64, &cqe)?;
        if self.layout.cqe_shift == 5 {
            user_write(address as u64 + 16, &extra)?;
        }
        Ok(())
    }

    /// Copies the SQE at `position` of the SQ to the same position in another ring.
    pub fn copy_sqe_to(&self, to: &View, position: u32) -> Result<(), Errno> {
        debug_assert!(self.layout.sqe_shift == to.layout.sqe_shift);
        let at = |view: &View| {
            let index = (position & (view.layout.sq_entries - 1)) as usize;
            (view.sqes + (index << view.layout.sqe_shift)) as u64
        };
        copy_words(at(self), at(to), 1 << self.layout.sqe_shift)
    }

    /// Copies the CQE at `position` of the CQ to the same position in another ring.
    pub fn copy_cqe_to(&self, to: &View, position: u32) -> Result<(), Errno> {
        debug_assert!(self.layout.cqe_shift == to.layout.cqe_shift);
        let at = |view: &View| {
            let index = (position & (view.layout.cq_entries - 1)) as usize;
            (view.rings + word::CQES + (index << view.layout.cqe_shift)) as u64
        };
        copy_words(at(self), at(to), 1 << self.layout.cqe_shift)
    }

    /// Fills in the constant words of a new ring.
    pub fn initialise(&self) -> Result<(), Errno> {
        self.store(word::SQ_MASK, self.layout.sq_entries - 1)?;
        self.store(word::CQ_MASK, self.layout.cq_entries - 1)?;
        self.store(word::SQ_ENTRIES, self.layout.sq_entries)?;
        self.store(word::CQ_ENTRIES, self.layout.cq_entries)
    }
}

/// An SQE in memory that the engine has mapped. The program may change it at any moment, so a caller that needs a
/// field twice must keep a copy.
pub struct SqeRef(*const Sqe);

macro_rules! sqe_fields {
    ($($field:ident: $type:ty),*) => {
        #[allow(clippy::len_without_is_empty)] // a field
        impl SqeRef {
            $(
                #[doc = concat!("`", stringify!($field), "`, as it is now.")]
                #[inline(always)] // in the loop over SQEs
                pub fn $field(&self) -> $type {
                    // SAFETY: only `View` makes such a reference, with an index below `sq_entries`, so the 64 bytes
                    // lie inside the engine's mapping, 64-aligned. The program may be writing them, so this is a
                    // volatile read of a plain integer.
                    unsafe { (&raw const (*self.0).$field).read_volatile() }
                }
            )*

            /// Copies the whole SQE, field by field. A wider load would have to wait until the program's stores of
            /// several fields have left the core.
            #[inline]
            fn copy(&self) -> Sqe {
                Sqe { $($field: self.$field()),* }
            }
        }
    };
}

sqe_fields!(
    opcode: u8,
    flags: u8,
    ioprio: u16,
    fd: i32,
    off: u64,
    addr: u64,
    len: u32,
    op_flags: u32,
    user_data: u64,
    buf_index: u16,
    personality: u16,
    file_index: u32,
    addr3: u64,
    pad2: u64
);

/// True if the CQ whose rings area is at this address is empty. False if the words cannot be read.
pub fn cq_at_is_empty(rings: usize) -> bool {
    let words = [word::CQ_HEAD, word::CQ_TAIL].map(|word| GuardedWords::load(rings + word));
    words[0].is_ok() && words[0] == words[1]
}

/// Copies `bytes` bytes, a multiple of 16, between any addresses, by the guarded accessor.
pub(crate) fn copy_words(from: u64, to: u64, bytes: u64) -> Result<(), Errno> {
    for offset in (0..bytes).step_by(16) {
        let words: [u64; 2] = user_read(from + offset)?;
        user_write(to + offset, &words)?;
    }
    Ok(())
}
