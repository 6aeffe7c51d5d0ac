//! The layout of a ring's memory, as pure arithmetic. It is that of Linux 6.18 (`struct io_rings` in
//! `include/linux/io_uring_types.h`). The offsets are those that this kernel reports.

use crate::os::arch::page_bytes;
use crate::Errno;
use anyring_abi::{
    CqringOffsets, Params, SqringOffsets, IORING_OFF_CQ_RING, IORING_OFF_SQES, IORING_SETUP_CLAMP,
    IORING_SETUP_CQE32, IORING_SETUP_CQE_MIXED, IORING_SETUP_CQSIZE, IORING_SETUP_NO_SQARRAY, IORING_SETUP_SQE128,
    IORING_SETUP_SQE_MIXED, IORING_SETUP_SQ_REWIND,
};

/// Number of CQEs that are published together.
pub const BATCH: usize = 32;

/// Byte offsets of the words at the start of the rings area.
#[allow(missing_docs)] // the names are those of struct io_rings
pub mod word {
    pub const SQ_HEAD: usize = 0;
    pub const SQ_TAIL: usize = 4;
    pub const CQ_HEAD: usize = 8;
    pub const CQ_TAIL: usize = 12;
    pub const SQ_MASK: usize = 16;
    pub const CQ_MASK: usize = 20;
    pub const SQ_ENTRIES: usize = 24;
    pub const CQ_ENTRIES: usize = 28;
    pub const SQ_DROPPED: usize = 32;
    pub const SQ_FLAGS: usize = 36;
    pub const CQ_FLAGS: usize = 40;
    pub const CQ_OVERFLOW: usize = 44;
    pub const CQES: usize = 64;
}

/// The largest submission queue (`IORING_MAX_ENTRIES`). The completion queue may be twice as large.
pub const MAX_ENTRIES: u32 = 32_768;
/// log2 of the bytes of a large SQE.
pub const LARGE_SHIFT: u32 = 7;

/// Sizes and positions of one ring's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    /// Entries of the submission queue, a power of two.
    pub sq_entries: u32,
    /// Entries of the completion queue, a power of two.
    pub cq_entries: u32,
    /// log2 of a CQE's size in bytes.
    pub cqe_shift: u32,
    /// True if a CQE with `IORING_CQE_F_32` takes two entries (`IORING_SETUP_CQE_MIXED`).
    pub mixed: bool,
    /// log2 of an SQE's size in bytes.
    pub sqe_shift: u32,
    /// True if an SQE of an opcode of 128 bytes takes two entries (`IORING_SETUP_SQE_MIXED`).
    pub mixed_sqes: bool,
    /// True if each submission begins with the first SQE, so that head and tail mean nothing
    /// (`IORING_SETUP_SQ_REWIND`).
    pub rewinds: bool,
    /// Byte offset of the SQ index array, if the ring has one.
    pub array: Option<usize>,
    /// Bytes of the rings area, in whole pages.
    pub rings_bytes: usize,
    /// Bytes of the SQE array, in whole pages.
    pub sqes_bytes: usize,
}

impl Layout {
    /// Returns the layout that io_uring_setup(2) makes for `entries` and `params`. Fails with `EINVAL` where that
    /// call does.
    pub fn new(entries: u32, params: &Params) -> Result<Layout, Errno> {
        let clamp = params.flags & IORING_SETUP_CLAMP != 0;
        let sq_entries = round(entries, MAX_ENTRIES, clamp)?;
        let cq_entries = if params.flags & IORING_SETUP_CQSIZE != 0 {
            let cq_entries = round(params.cq_entries, 2 * MAX_ENTRIES, clamp)?;
            if cq_entries < sq_entries {
                return Err(Errno::INVAL);
            }
            cq_entries
        } else {
            2 * sq_entries
        };
        let mixed = params.flags & IORING_SETUP_CQE_MIXED != 0;
        let mixed_sqes = params.flags & IORING_SETUP_SQE_MIXED != 0;
        if mixed && cq_entries < 2 || mixed_sqes && sq_entries < 2 {
            return Err(Errno::OVERFLOW);
        }
        let cqe_shift = if params.flags & IORING_SETUP_CQE32 != 0 { 5 } else { 4 };
        let sqe_shift = if params.flags & IORING_SETUP_SQE128 != 0 { LARGE_SHIFT } else { 6 };
        // With CQE32 the kernel also doubles the header's room (`rings_size` in io_uring/io_uring.c).
        let cqes_end = (word::CQES + ((cq_entries as usize) << 4)) << (cqe_shift - 4);
        let (array, end) = if params.flags & IORING_SETUP_NO_SQARRAY != 0 {
            (None, cqes_end)
        } else {
            let array = cqes_end.next_multiple_of(64);
            (Some(array), array + 4 * sq_entries as usize)
        };
        Ok(Layout {
            sq_entries,
            cq_entries,
            cqe_shift,
            mixed,
            sqe_shift,
            mixed_sqes,
            rewinds: params.flags & IORING_SETUP_SQ_REWIND != 0,
            array,
            rings_bytes: end.next_multiple_of(page_bytes()),
            sqes_bytes: ((sq_entries as usize) << sqe_shift).next_multiple_of(page_bytes()),
        })
    }

    /// Returns the offsets of the submission ring that io_uring_setup(2) reports.
    pub fn sq_offsets(&self) -> SqringOffsets {
        SqringOffsets {
            head: word::SQ_HEAD as u32,
            tail: word::SQ_TAIL as u32,
            ring_mask: word::SQ_MASK as u32,
            ring_entries: word::SQ_ENTRIES as u32,
            flags: word::SQ_FLAGS as u32,
            dropped: word::SQ_DROPPED as u32,
            array: self.array.unwrap_or(0) as u32,
            ..SqringOffsets::default()
        }
    }

    /// Returns the offsets of the completion ring that io_uring_setup(2) reports.
    pub fn cq_offsets(&self) -> CqringOffsets {
        CqringOffsets {
            head: word::CQ_HEAD as u32,
            tail: word::CQ_TAIL as u32,
            ring_mask: word::CQ_MASK as u32,
            ring_entries: word::CQ_ENTRIES as u32,
            overflow: word::CQ_OVERFLOW as u32,
            cqes: word::CQES as u32,
            flags: word::CQ_FLAGS as u32,
            ..CqringOffsets::default()
        }
    }

    /// Returns the offset in the ring's memory for an mmap(2) offset. The offsets of the SQ ring and of the CQ ring
    /// name the same area, which the SQEs follow.
    pub fn area_offset(&self, mmap_offset: u64) -> Option<u64> {
        match mmap_offset {
            0 => Some(0),
            offset if offset == u64::from(IORING_OFF_CQ_RING) => Some(0),
            offset if offset == u64::from(IORING_OFF_SQES) => Some(self.rings_bytes as u64),
            _ => None,
        }
    }
}

fn round(entries: u32, most: u32, clamp: bool) -> Result<u32, Errno> {
    match entries {
        0 => Err(Errno::INVAL),
        n if n > most && clamp => Ok(most),
        n if n > most => Err(Errno::INVAL),
        n => Ok(n.next_power_of_two()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(entries: u32, flags: u32, cq_entries: u32) -> Result<Layout, Errno> {
        Layout::new(entries, &Params { flags, cq_entries, ..Params::default() })
    }

    #[test]
    fn the_layout_is_the_kernels() {
        assert_eq!(layout(1, 0, 0).unwrap().array, Some(128));
        assert_eq!(layout(16, 0, 0).unwrap().array, Some(576));
        assert_eq!(layout(256, IORING_SETUP_CQE32, 0).unwrap().array, Some(16512));
        assert_eq!(layout(16, IORING_SETUP_NO_SQARRAY, 0).unwrap().array, None);
        assert_eq!(layout(1, IORING_SETUP_CQSIZE, 100).unwrap().cq_entries, 128);
        assert_eq!(layout(256, IORING_SETUP_CQSIZE, 100), Err(Errno::INVAL));
        assert_eq!(layout(1, IORING_SETUP_CQSIZE | IORING_SETUP_CQE_MIXED, 1), Err(Errno::OVERFLOW));
        assert_eq!(layout(0, IORING_SETUP_CLAMP, 0), Err(Errno::INVAL));
        assert_eq!(layout(32769, 0, 0), Err(Errno::INVAL));
        assert_eq!(layout(1 << 20, IORING_SETUP_CLAMP, 0).unwrap().cq_entries, 65536);
    }
}
