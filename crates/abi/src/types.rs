//! The structures that programs and the kernel share, laid out as in `include/uapi/linux/io_uring.h`.
//!
//! Each union of the C header is flattened into its widest plain field, named after its first use. The size and
//! field offsets of each structure are asserted against linux-raw-sys below.

use linux_raw_sys::io_uring as kernel;

/// Submission queue entry, `struct io_uring_sqe`. It has 64 bytes. With `IORING_SETUP_SQE128` 64 more follow.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Sqe {
    /// `IORING_OP_*`.
    pub opcode: u8,
    /// `IOSQE_*`.
    pub flags: u8,
    /// I/O priority, or the flags of some operations (recv, send, accept).
    pub ioprio: u16,
    /// Descriptor, or index into the registered files with `IOSQE_FIXED_FILE`.
    pub fd: i32,
    /// File offset. Also `addr2` and `cmd_op` of the C header.
    pub off: u64,
    /// Address of a buffer, iovec array or path, for example. Also `splice_off_in` of the C header.
    pub addr: u64,
    /// Length in bytes, or a count.
    pub len: u32,
    /// The operation's own flags, for example `rw_flags`, `fsync_flags`, `poll32_events`, `msg_flags`,
    /// `timeout_flags`.
    pub op_flags: u32,
    /// Copied into the CQE.
    pub user_data: u64,
    /// Index of a registered buffer. Also `buf_group` of the C header.
    pub buf_index: u16,
    /// Id of the registered credentials to use; 0 for none.
    pub personality: u16,
    /// `splice_fd_in`, `file_index`, `optlen` or `addr_len` of the C header.
    pub file_index: u32,
    /// `addr3` of the C header.
    pub addr3: u64,
    /// Padding that most operations require to be zero.
    pub pad2: u64,
}

/// Completion queue entry, `struct io_uring_cqe`. It has 16 bytes. With `IORING_SETUP_CQE32` 16 more follow.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Cqe {
    /// The submission's `user_data`.
    pub user_data: u64,
    /// Result: what the system call would have returned, or `-errno`.
    pub res: i32,
    /// `IORING_CQE_F_*`.
    pub flags: u32,
}

/// Offsets of the submission ring's words, `struct io_sqring_offsets`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(C)]
#[allow(missing_docs)] // io_uring_setup(2)
pub struct SqringOffsets {
    pub head: u32,
    pub tail: u32,
    pub ring_mask: u32,
    pub ring_entries: u32,
    pub flags: u32,
    pub dropped: u32,
    pub array: u32,
    pub resv1: u32,
    pub user_addr: u64,
}

/// Offsets of the completion ring's words, `struct io_cqring_offsets`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(C)]
#[allow(missing_docs)] // io_uring_setup(2)
pub struct CqringOffsets {
    pub head: u32,
    pub tail: u32,
    pub ring_mask: u32,
    pub ring_entries: u32,
    pub overflow: u32,
    pub cqes: u32,
    pub flags: u32,
    pub resv1: u32,
    pub user_addr: u64,
}

/// The argument of io_uring_setup(2), `struct io_uring_params`. The call also fills it in.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(C)]
#[allow(missing_docs)] // io_uring_setup(2)
pub struct Params {
    pub sq_entries: u32,
    pub cq_entries: u32,
    pub flags: u32,
    pub sq_thread_cpu: u32,
    pub sq_thread_idle: u32,
    pub features: u32,
    pub wq_fd: u32,
    pub resv: [u32; 3],
    pub sq_off: SqringOffsets,
    pub cq_off: CqringOffsets,
}

/// The extended argument of io_uring_enter(2) with `IORING_ENTER_EXT_ARG`, `struct io_uring_getevents_arg`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(C)]
pub struct GeteventsArg {
    /// Address of the signal mask, or 0.
    pub sigmask: u64,
    /// Size of the signal mask in bytes.
    pub sigmask_sz: u32,
    /// Minimum wait in microseconds (`IORING_FEAT_MIN_TIMEOUT`).
    pub min_wait_usec: u32,
    /// Address of a [`Timespec`], or 0.
    pub ts: u64,
}

/// `struct __kernel_timespec`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Timespec {
    /// Seconds.
    pub tv_sec: i64,
    /// Nanoseconds.
    pub tv_nsec: i64,
}

macro_rules! same_layout {
    ($ours:ty, $theirs:ty, $($field:ident = $their_field:ident),*) => {
        const _: () = {
            assert!(size_of::<$ours>() == size_of::<$theirs>());
            assert!(align_of::<$ours>() == align_of::<$theirs>());
            $(assert!(core::mem::offset_of!($ours, $field) == core::mem::offset_of!($theirs, $their_field));)*
        };
    };
}

same_layout!(
    Sqe,
    kernel::io_uring_sqe,
    opcode = opcode,
    flags = flags,
    ioprio = ioprio,
    fd = fd,
    off = __bindgen_anon_1,
    addr = __bindgen_anon_2,
    len = len,
    op_flags = __bindgen_anon_3,
    user_data = user_data,
    buf_index = __bindgen_anon_4,
    personality = personality,
    file_index = __bindgen_anon_5,
    addr3 = __bindgen_anon_6
);
same_layout!(Cqe, kernel::io_uring_cqe, user_data = user_data, res = res, flags = flags);
same_layout!(
    SqringOffsets,
    kernel::io_sqring_offsets,
    head = head,
    tail = tail,
    ring_mask = ring_mask,
    ring_entries = ring_entries,
    flags = flags,
    dropped = dropped,
    array = array,
    user_addr = user_addr
);
same_layout!(
    CqringOffsets,
    kernel::io_cqring_offsets,
    head = head,
    tail = tail,
    ring_mask = ring_mask,
    ring_entries = ring_entries,
    overflow = overflow,
    cqes = cqes,
    flags = flags,
    user_addr = user_addr
);
same_layout!(
    Params,
    kernel::io_uring_params,
    sq_entries = sq_entries,
    cq_entries = cq_entries,
    flags = flags,
    sq_thread_cpu = sq_thread_cpu,
    sq_thread_idle = sq_thread_idle,
    features = features,
    wq_fd = wq_fd,
    resv = resv,
    sq_off = sq_off,
    cq_off = cq_off
);
same_layout!(
    GeteventsArg,
    kernel::io_uring_getevents_arg,
    sigmask = sigmask,
    sigmask_sz = sigmask_sz,
    min_wait_usec = min_wait_usec,
    ts = ts
);
same_layout!(Timespec, linux_raw_sys::general::__kernel_timespec, tv_sec = tv_sec, tv_nsec = tv_nsec);
