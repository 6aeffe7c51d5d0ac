//! `struct io_uring` and its two parts, as liburing 2.0 to 2.15 lay them out. The functions of this library share it
//! with the inline functions of any of these headers, which are compiled into the program.
//!
//! The rules for access to the fields:
//!
//! - Setup writes every field once, and io_uring_resize_rings(3) replaces both parts. At all other times the pointers
//!   and sizes are constant.
//! - `sqe_head` and `sqe_tail` belong to the program's thread that submits, and to the inline `io_uring_get_sqe` in that
//!   thread.
//! - `int_flags` and the descriptors belong to the thread that registers.
//! - A program may submit on one thread and reap on another. So shared references to a [`Ring`] coexist, and the
//!   changing fields are cells.

use crate::sanitizer;
use anyring_abi::{Cqe, Sqe, IORING_ENTER_NO_IOWAIT, IORING_ENTER_REGISTERED_RING, IORING_SETUP_CQE32};
use anyring_abi::{IORING_CQE_F_32, IORING_CQE_F_SKIP, IORING_SETUP_CQE_MIXED, IORING_SETUP_SQE128};
use core::cell::Cell;
use core::ffi::c_void;
use core::mem::offset_of;
use core::sync::atomic::{AtomicU32, Ordering};

/// One 32-bit word of ring memory, shared with the ring's server (the kernel or the engine).
#[derive(Debug, Clone, Copy)]
#[repr(transparent)]
pub struct Word(*mut u32);

impl Word {
    /// The value of a field if the ring lacks the word.
    pub const NULL: Word = Word(core::ptr::null_mut());

    /// Returns the word at `offset` bytes into the ring memory at `base`.
    pub fn at(base: *mut c_void, offset: u32) -> Word {
        Word(base.wrapping_byte_add(offset as usize).cast())
    }

    /// True if this ring lacks the word.
    pub fn is_null(self) -> bool {
        self.0.is_null()
    }

    /// Returns the word's address.
    pub fn as_ptr(self) -> *mut u32 {
        self.0
    }

    /// Reads the word.
    #[inline]
    pub fn load(self, order: Ordering) -> u32 {
        self.atomic().load(order)
    }

    /// Writes the word.
    #[inline]
    pub fn store(self, value: u32, order: Ordering) {
        self.atomic().store(value, order);
    }

    #[inline]
    fn atomic(&self) -> &AtomicU32 {
        // SAFETY: a `Word` comes from a `Ring` that setup has filled with 4-aligned addresses inside the mapped ring
        // memory. That stays mapped until `io_uring_queue_exit`, after which the program may make no call.
        unsafe { AtomicU32::from_ptr(self.0) }
    }
}

/// `struct io_uring_sq`.
#[derive(Debug)]
#[repr(C)]
pub struct Sq {
    /// The SQ head: SQEs before it are consumed. Written by the ring's server.
    pub khead: Word,
    /// The SQ tail: SQEs before it are submitted. Written by this library.
    pub ktail: Word,
    /// The place of `ring_mask` before liburing 2.4. Programs compiled against such a release read it.
    pub kring_mask: Word,
    /// The place of `ring_entries` before liburing 2.4.
    pub kring_entries: Word,
    /// `IORING_SQ_*`, written by the ring's server.
    pub kflags: Word,
    /// Number of invalid indices that were dropped.
    pub kdropped: Word,
    /// The index array; null with `IORING_SETUP_NO_SQARRAY`.
    pub array: *mut u32,
    /// The submission queue entries.
    pub sqes: *mut Sqe,
    /// SQEs before this index were made visible by a submit call.
    pub sqe_head: Cell<u32>,
    /// SQEs before this index were handed to the program.
    pub sqe_tail: Cell<u32>,
    /// Size of the mapping at `ring_ptr` in bytes, 0 if it has none of its own.
    pub ring_sz: usize,
    /// The ring's memory.
    pub ring_ptr: *mut c_void,
    /// Entries minus one.
    pub ring_mask: u32,
    /// A power of two.
    pub ring_entries: u32,
    /// Size of the mapping at `sqes` in bytes (padding before liburing 2.9).
    pub sqes_sz: u32,
    pad: u32,
}

/// `struct io_uring_cq`.
#[derive(Debug)]
#[repr(C)]
pub struct Cq {
    /// The CQ head: CQEs before it are reaped. Written by the program and by this library.
    pub khead: Word,
    /// The CQ tail: CQEs before it are posted. Written by the ring's server.
    pub ktail: Word,
    /// The place of `ring_mask` before liburing 2.4.
    pub kring_mask: Word,
    /// The place of `ring_entries` before liburing 2.4.
    pub kring_entries: Word,
    /// `IORING_CQ_*`, written by the program; null if the server has none.
    pub kflags: Word,
    /// Number of CQEs that were lost for lack of memory.
    pub koverflow: Word,
    /// The completion queue entries.
    pub cqes: *mut Cqe,
    /// Size of the mapping at `ring_ptr` in bytes.
    pub ring_sz: usize,
    /// The address of the CQ's mapping. With `IORING_FEAT_SINGLE_MMAP` it is the SQ's mapping.
    pub ring_ptr: *mut c_void,
    /// Entries minus one.
    pub ring_mask: u32,
    /// A power of two.
    pub ring_entries: u32,
    pad: [u32; 2],
}

/// `struct io_uring`.
#[derive(Debug)]
#[repr(C)]
pub struct Ring {
    /// The submission side.
    pub sq: Sq,
    /// The completion side.
    pub cq: Cq,
    /// `IORING_SETUP_*`, as setup accepted them.
    pub flags: u32,
    /// The ring's descriptor, -1 if only a registered index exists.
    pub ring_fd: Cell<i32>,
    /// `IORING_FEAT_*`.
    pub features: u32,
    /// The first argument of io_uring_enter(2): the descriptor or the registered index.
    pub enter_ring_fd: Cell<i32>,
    /// `INT_*`; private to the library, no inline function reads it.
    pub int_flags: Cell<u8>,
    pad: [u8; 3],
    pad2: u32,
}

/// `int_flags`: register calls go to the registered index.
pub const INT_REGISTER_REGISTERED: u8 = 1;
/// `int_flags`: the ring's memory is the program's.
pub const INT_PROGRAM_MEMORY: u8 = 2;
/// `int_flags`: completions only appear during an io_uring_enter(2) call (IOPOLL without SQPOLL).
pub const INT_CQ_NEEDS_ENTER: u8 = 4;
/// `int_flags`: io_uring_enter(2) gets the registered index. The value is that of the call's own flag.
pub const INT_ENTER_REGISTERED: u8 = IORING_ENTER_REGISTERED_RING as u8;
/// `int_flags`: waits are not accounted as I/O wait. The value is that of io_uring_enter(2)'s own flag.
pub const INT_NO_IOWAIT: u8 = IORING_ENTER_NO_IOWAIT as u8;

// The layout built into programs that were compiled against any header from 2.0 to 2.15, on 64-bit machines.
const _: () = {
    assert!(size_of::<Sq>() == 104 && size_of::<Cq>() == 88 && size_of::<Ring>() == 216);
    assert!(offset_of!(Sq, array) == 48 && offset_of!(Sq, sqe_head) == 64 && offset_of!(Sq, ring_sz) == 72);
    assert!(offset_of!(Sq, ring_mask) == 88 && offset_of!(Sq, sqes_sz) == 96);
    assert!(offset_of!(Cq, cqes) == 48 && offset_of!(Cq, ring_sz) == 56 && offset_of!(Cq, ring_mask) == 72);
    assert!(offset_of!(Ring, cq) == 104 && offset_of!(Ring, flags) == 192 && offset_of!(Ring, int_flags) == 208);
};

impl Sq {
    /// A side without memory.
    pub const fn empty() -> Sq {
        Sq {
            khead: Word::NULL,
            ktail: Word::NULL,
            kring_mask: Word::NULL,
            kring_entries: Word::NULL,
            kflags: Word::NULL,
            kdropped: Word::NULL,
            array: core::ptr::null_mut(),
            sqes: core::ptr::null_mut(),
            sqe_head: Cell::new(0),
            sqe_tail: Cell::new(0),
            ring_sz: 0,
            ring_ptr: core::ptr::null_mut(),
            ring_mask: 0,
            ring_entries: 0,
            sqes_sz: 0,
            pad: 0,
        }
    }
}

impl Cq {
    /// A side without memory.
    pub const fn empty() -> Cq {
        Cq {
            khead: Word::NULL,
            ktail: Word::NULL,
            kring_mask: Word::NULL,
            kring_entries: Word::NULL,
            kflags: Word::NULL,
            koverflow: Word::NULL,
            cqes: core::ptr::null_mut(),
            ring_sz: 0,
            ring_ptr: core::ptr::null_mut(),
            ring_mask: 0,
            ring_entries: 0,
            pad: [0; 2],
        }
    }
}

impl Ring {
    /// Returns a ring of zeroes, as the C library's `memset` makes it.
    pub const fn empty() -> Ring {
        Ring {
            sq: Sq::empty(),
            cq: Cq::empty(),
            flags: 0,
            ring_fd: Cell::new(0),
            features: 0,
            enter_ring_fd: Cell::new(0),
            int_flags: Cell::new(0),
            pad: [0; 3],
            pad2: 0,
        }
    }

    /// True if all of the `INT_*` bits in `mask` are set.
    #[inline]
    pub fn has(&self, mask: u8) -> bool {
        self.int_flags.get() & mask == mask
    }

    /// Returns the `IORING_ENTER_*` flags that every io_uring_enter(2) call on this ring carries.
    #[inline]
    pub fn enter_flags(&self) -> u32 {
        u32::from(self.int_flags.get() & (INT_ENTER_REGISTERED | INT_NO_IOWAIT))
    }

    /// Returns the SQ head: the server has consumed the SQEs before it.
    #[inline]
    pub fn sq_head(&self) -> u32 {
        // Acquire pairs with the server's release of the head after it has read the SQEs: they may be overwritten.
        self.sq.khead.load(Ordering::Acquire)
    }

    /// Returns the number of SQEs handed out and not yet consumed.
    #[inline]
    pub fn sq_ready(&self) -> u32 {
        self.sq.sqe_tail.get().wrapping_sub(self.sq_head())
    }

    /// Returns the SQE of `index`, a free-running counter.
    #[inline]
    pub fn sqe(&self, index: u32) -> *mut Sqe {
        let slot = (index & self.sq.ring_mask) << sqe_shift(self.flags);
        self.sq.sqes.wrapping_add(slot as usize)
    }

    /// Returns the CQ's head and tail. The program has reaped the CQEs before the head, and the server has posted those
    /// before the tail.
    #[inline]
    pub fn cq_range(&self) -> (u32, u32) {
        // Acquire pairs with the server's release of the tail after it has written the CQEs. Only the program's side
        // writes the head.
        let range = (self.cq.khead.load(Ordering::Relaxed), self.cq.ktail.load(Ordering::Acquire));
        sanitizer::sees(self.cq.ktail.as_ptr());
        range
    }

    /// Returns the CQE of `index`, a free-running counter.
    #[inline]
    pub fn cqe(&self, index: u32) -> *mut Cqe {
        let slot = (index & self.cq.ring_mask) << cqe_shift(self.flags);
        self.cq.cqes.wrapping_add(slot as usize)
    }

    /// True if a CQE with these flags is the padding of a ring with `IORING_SETUP_CQE_MIXED`. On other rings the flags
    /// of a message (`IORING_MSG_RING_FLAGS_PASS`) may look like it.
    #[inline]
    pub fn is_padding(&self, cqe_flags: u32) -> bool {
        cqe_flags & IORING_CQE_F_SKIP != 0 && self.flags & IORING_SETUP_CQE_MIXED != 0
    }

    /// Returns the number of CQ slots that a CQE with these flags takes in this ring.
    #[inline]
    pub fn slots_of(&self, cqe_flags: u32) -> u32 {
        match self.flags & IORING_SETUP_CQE_MIXED {
            0 => 1,
            _ => cqe_slots(cqe_flags),
        }
    }

    /// Gives `count` CQ slots back to the server.
    #[inline]
    pub fn cq_advance(&self, count: u32) {
        let head = self.cq.khead.load(Ordering::Relaxed);
        // Release pairs with the server's acquire of the head: our reads of the CQEs come before its next writes.
        self.cq.khead.store(head.wrapping_add(count), Ordering::Release);
    }
}

/// Returns the shift of an SQE's size: `1 << shift` units of 64 bytes.
#[inline]
pub const fn sqe_shift(setup_flags: u32) -> u32 {
    (setup_flags & IORING_SETUP_SQE128 != 0) as u32
}

/// Returns the shift of a CQE's size: `1 << shift` units of 16 bytes.
#[inline]
pub const fn cqe_shift(setup_flags: u32) -> u32 {
    (setup_flags & IORING_SETUP_CQE32 != 0) as u32
}

/// Returns the number of CQ slots that the CQE takes: 2 for a big one in a ring with `IORING_SETUP_CQE_MIXED`.
#[inline]
pub const fn cqe_slots(cqe_flags: u32) -> u32 {
    1 << (cqe_flags & IORING_CQE_F_32 != 0) as u32
}
