//! The structures of Linux AIO, laid out as in `include/uapi/linux/aio_abi.h`. The completion ring is not in that
//! header, but in `struct aio_ring` in fs/aio.c. libaio and fio read it.

use core::mem::offset_of;

/// io_setup(2).
pub const NR_IO_SETUP: i64 = linux_raw_sys::general::__NR_io_setup as i64;
/// io_destroy(2).
pub const NR_IO_DESTROY: i64 = linux_raw_sys::general::__NR_io_destroy as i64;
/// io_getevents(2).
pub const NR_IO_GETEVENTS: i64 = linux_raw_sys::general::__NR_io_getevents as i64;
/// io_submit(2).
pub const NR_IO_SUBMIT: i64 = linux_raw_sys::general::__NR_io_submit as i64;
/// io_cancel(2).
pub const NR_IO_CANCEL: i64 = linux_raw_sys::general::__NR_io_cancel as i64;
/// io_pgetevents(2).
pub const NR_IO_PGETEVENTS: i64 = linux_raw_sys::general::__NR_io_pgetevents as i64;

/// The calls of Linux AIO.
pub const AIO_CALLS: [i64; 6] =
    [NR_IO_SETUP, NR_IO_DESTROY, NR_IO_GETEVENTS, NR_IO_SUBMIT, NR_IO_CANCEL, NR_IO_PGETEVENTS];

/// A request, `struct iocb`. It has 64 bytes, in 32-bit and in 64-bit programs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Iocb {
    /// Copied into the event.
    pub data: u64,
    /// Written by io_submit(2), and checked by io_cancel(2).
    pub key: u32,
    /// `RWF_*`.
    pub rw_flags: u32,
    /// `IOCB_CMD_*`.
    pub opcode: u16,
    /// I/O priority, with [`IOCB_FLAG_IOPRIO`].
    pub priority: u16,
    /// The descriptor to work on.
    pub fd: u32,
    /// Address of a buffer or of iovecs. For a poll, its events.
    pub buf: u64,
    /// Length in bytes, or the number of iovecs.
    pub bytes: u64,
    /// File offset.
    pub offset: i64,
    /// Must be 0.
    pub reserved: u64,
    /// `IOCB_FLAG_*`.
    pub flags: u32,
    /// The eventfd to signal, with [`IOCB_FLAG_RESFD`].
    pub eventfd: u32,
}

/// A completion, `struct io_event`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(C)]
pub struct IoEvent {
    /// The iocb's `data`.
    pub data: u64,
    /// The iocb's address.
    pub obj: u64,
    /// The result: the system call's return value, or `-errno`.
    pub res: i64,
    /// Always 0.
    pub res2: i64,
}

/// The head of the completion ring, at the address that io_setup(2) returns. The events follow it. Source:
/// `struct aio_ring` in fs/aio.c.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(C)]
pub struct AioRing {
    /// The context's index, private to the kernel.
    pub id: u32,
    /// Number of places for events. One place stays empty, so this is the capacity plus one.
    pub nr: u32,
    /// Index of the next event to read. The reader, which is the kernel or the program, stores it.
    pub head: u32,
    /// Index of the next event to write. The kernel stores it.
    pub tail: u32,
    /// Always [`AIO_RING_MAGIC`], by which libaio recognizes a ring.
    pub magic: u32,
    /// Always [`AIO_RING_COMPAT_FEATURES`].
    pub compat_features: u32,
    /// Always 0: a reader that knows the layout above may read the ring.
    pub incompat_features: u32,
    /// Offset of the first event, in bytes.
    pub header_bytes: u32,
}

impl AioRing {
    /// True if the ring is laid out as above, so that programs may read it. gVisor maps memory that it never fills.
    pub const fn is_laid_out(&self) -> bool {
        let known = self.magic == AIO_RING_MAGIC && self.compat_features == AIO_RING_COMPAT_FEATURES;
        known && self.incompat_features == 0 && self.header_bytes as usize == size_of::<AioRing>()
    }
}

/// The value of [`AioRing::magic`].
pub const AIO_RING_MAGIC: u32 = 0xa10a_10a1;
/// The value of [`AioRing::compat_features`].
pub const AIO_RING_COMPAT_FEATURES: u32 = 1;

/// pread(2).
pub const IOCB_CMD_PREAD: u16 = 0;
/// pwrite(2).
pub const IOCB_CMD_PWRITE: u16 = 1;
/// fsync(2).
pub const IOCB_CMD_FSYNC: u16 = 2;
/// fdatasync(2).
pub const IOCB_CMD_FDSYNC: u16 = 3;
/// poll(2), once.
pub const IOCB_CMD_POLL: u16 = 5;
/// Defined in the header, but refused by every kernel with EINVAL.
pub const IOCB_CMD_NOOP: u16 = 6;
/// preadv(2).
pub const IOCB_CMD_PREADV: u16 = 7;
/// pwritev(2).
pub const IOCB_CMD_PWRITEV: u16 = 8;

/// Signal [`Iocb::eventfd`].
pub const IOCB_FLAG_RESFD: u32 = 1;
/// Use [`Iocb::priority`].
pub const IOCB_FLAG_IOPRIO: u32 = 2;

const _: () = {
    assert!(size_of::<Iocb>() == 64 && size_of::<IoEvent>() == 32 && size_of::<AioRing>() == 32);
    assert!(offset_of!(Iocb, rw_flags) == 12 && offset_of!(Iocb, opcode) == 16 && offset_of!(Iocb, fd) == 20);
    assert!(offset_of!(Iocb, buf) == 24 && offset_of!(Iocb, offset) == 40 && offset_of!(Iocb, flags) == 56);
    assert!(offset_of!(AioRing, head) == 8 && offset_of!(AioRing, tail) == 12);
};
