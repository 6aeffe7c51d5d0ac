//! The interface's numbers, under the names of `include/uapi/linux/io_uring.h`. Each is asserted equal to the number
//! in linux-raw-sys, which is generated independently.
#![allow(missing_docs)] // the names are the kernel's; io_uring_setup(2), _enter(2) and _register(2) document them

macro_rules! constants {
    ($($name:ident : $type:ty = $value:expr;)*) => {
        $(pub const $name: $type = $value;)*
        const _: () = { $(assert!($name as i64 == linux_raw_sys::io_uring::$name as i64);)* };
    };
}

constants! {
    IORING_FILE_INDEX_ALLOC: i32 = -1;
    IORING_SETUP_IOPOLL: u32 = 1;
    IORING_SETUP_SQPOLL: u32 = 2;
    IORING_SETUP_SQ_AFF: u32 = 4;
    IORING_SETUP_CQSIZE: u32 = 8;
    IORING_SETUP_CLAMP: u32 = 0x10;
    IORING_SETUP_ATTACH_WQ: u32 = 0x20;
    IORING_SETUP_R_DISABLED: u32 = 0x40;
    IORING_SETUP_SUBMIT_ALL: u32 = 0x80;
    IORING_SETUP_COOP_TASKRUN: u32 = 0x100;
    IORING_SETUP_TASKRUN_FLAG: u32 = 0x200;
    IORING_SETUP_SQE128: u32 = 0x400;
    IORING_SETUP_CQE32: u32 = 0x800;
    IORING_SETUP_SINGLE_ISSUER: u32 = 0x1000;
    IORING_SETUP_DEFER_TASKRUN: u32 = 0x2000;
    IORING_SETUP_NO_MMAP: u32 = 0x4000;
    IORING_SETUP_REGISTERED_FD_ONLY: u32 = 0x8000;
    IORING_SETUP_NO_SQARRAY: u32 = 0x10000;
    IORING_SETUP_HYBRID_IOPOLL: u32 = 0x20000;
    IORING_URING_CMD_FIXED: u32 = 1;
    IORING_URING_CMD_MASK: u32 = 1;
    IORING_FSYNC_DATASYNC: u32 = 1;
    IORING_TIMEOUT_ABS: u32 = 1;
    IORING_TIMEOUT_UPDATE: u32 = 2;
    IORING_TIMEOUT_BOOTTIME: u32 = 4;
    IORING_TIMEOUT_REALTIME: u32 = 8;
    IORING_LINK_TIMEOUT_UPDATE: u32 = 0x10;
    IORING_TIMEOUT_ETIME_SUCCESS: u32 = 0x20;
    IORING_TIMEOUT_MULTISHOT: u32 = 0x40;
    IORING_TIMEOUT_CLOCK_MASK: u32 = 12;
    IORING_TIMEOUT_UPDATE_MASK: u32 = 0x12;
    SPLICE_F_FD_IN_FIXED: u32 = 0x80000000;
    IORING_POLL_ADD_MULTI: u32 = 1;
    IORING_POLL_UPDATE_EVENTS: u32 = 2;
    IORING_POLL_UPDATE_USER_DATA: u32 = 4;
    IORING_POLL_ADD_LEVEL: u32 = 8;
    IORING_ASYNC_CANCEL_ALL: u32 = 1;
    IORING_ASYNC_CANCEL_FD: u32 = 2;
    IORING_ASYNC_CANCEL_ANY: u32 = 4;
    IORING_ASYNC_CANCEL_FD_FIXED: u32 = 8;
    IORING_ASYNC_CANCEL_USERDATA: u32 = 0x10;
    IORING_ASYNC_CANCEL_OP: u32 = 0x20;
    IORING_RECVSEND_POLL_FIRST: u32 = 1;
    IORING_RECV_MULTISHOT: u32 = 2;
    IORING_RECVSEND_FIXED_BUF: u32 = 4;
    IORING_SEND_ZC_REPORT_USAGE: u32 = 8;
    IORING_RECVSEND_BUNDLE: u32 = 0x10;
    IORING_SEND_VECTORIZED: u32 = 0x20;
    IORING_NOTIF_USAGE_ZC_COPIED: u32 = 0x80000000;
    IORING_ACCEPT_MULTISHOT: u32 = 1;
    IORING_ACCEPT_DONTWAIT: u32 = 2;
    IORING_ACCEPT_POLL_FIRST: u32 = 4;
    IORING_MSG_RING_CQE_SKIP: u32 = 1;
    IORING_MSG_RING_FLAGS_PASS: u32 = 2;
    IORING_FIXED_FD_NO_CLOEXEC: u32 = 1;
    IORING_NOP_INJECT_RESULT: u32 = 1;
    IORING_NOP_FILE: u32 = 2;
    IORING_NOP_FIXED_FILE: u32 = 4;
    IORING_NOP_FIXED_BUFFER: u32 = 8;
    IORING_NOP_TW: u32 = 0x10;
    IORING_CQE_F_BUFFER: u32 = 1;
    IORING_CQE_F_MORE: u32 = 2;
    IORING_CQE_F_SOCK_NONEMPTY: u32 = 4;
    IORING_CQE_F_NOTIF: u32 = 8;
    IORING_CQE_F_BUF_MORE: u32 = 0x10;
    IORING_CQE_BUFFER_SHIFT: u32 = 16;
    IORING_OFF_SQ_RING: u32 = 0;
    IORING_OFF_CQ_RING: u32 = 0x8000000;
    IORING_OFF_SQES: u32 = 0x10000000;
    IORING_OFF_PBUF_RING: u32 = 0x80000000;
    IORING_OFF_PBUF_SHIFT: u32 = 16;
    IORING_OFF_MMAP_MASK: u32 = 0xf8000000;
    IORING_SQ_NEED_WAKEUP: u32 = 1;
    IORING_SQ_CQ_OVERFLOW: u32 = 2;
    IORING_SQ_TASKRUN: u32 = 4;
    IORING_CQ_EVENTFD_DISABLED: u32 = 1;
    IORING_ENTER_GETEVENTS: u32 = 1;
    IORING_ENTER_SQ_WAKEUP: u32 = 2;
    IORING_ENTER_SQ_WAIT: u32 = 4;
    IORING_ENTER_EXT_ARG: u32 = 8;
    IORING_ENTER_REGISTERED_RING: u32 = 0x10;
    IORING_ENTER_ABS_TIMER: u32 = 0x20;
    IORING_ENTER_EXT_ARG_REG: u32 = 0x40;
    IORING_ENTER_NO_IOWAIT: u32 = 0x80;
    IORING_FEAT_SINGLE_MMAP: u32 = 1;
    IORING_FEAT_NODROP: u32 = 2;
    IORING_FEAT_SUBMIT_STABLE: u32 = 4;
    IORING_FEAT_RW_CUR_POS: u32 = 8;
    IORING_FEAT_CUR_PERSONALITY: u32 = 0x10;
    IORING_FEAT_FAST_POLL: u32 = 0x20;
    IORING_FEAT_POLL_32BITS: u32 = 0x40;
    IORING_FEAT_SQPOLL_NONFIXED: u32 = 0x80;
    IORING_FEAT_EXT_ARG: u32 = 0x100;
    IORING_FEAT_NATIVE_WORKERS: u32 = 0x200;
    IORING_FEAT_RSRC_TAGS: u32 = 0x400;
    IORING_FEAT_CQE_SKIP: u32 = 0x800;
    IORING_FEAT_LINKED_FILE: u32 = 0x1000;
    IORING_FEAT_REG_REG_RING: u32 = 0x2000;
    IORING_FEAT_RECVSEND_BUNDLE: u32 = 0x4000;
    IORING_FEAT_MIN_TIMEOUT: u32 = 0x8000;
    IORING_FEAT_RW_ATTR: u32 = 0x10000;
    IORING_FEAT_NO_IOWAIT: u32 = 0x20000;
    IORING_RSRC_REGISTER_SPARSE: u32 = 1;
    IORING_REGISTER_FILES_SKIP: i32 = -2;
    IORING_TIMESTAMP_HW_SHIFT: u32 = 16;
    IORING_TIMESTAMP_TYPE_SHIFT: u32 = 17;
    IORING_RW_ATTR_FLAG_PI: u32 = 1;
    IO_URING_OP_SUPPORTED: u16 = 1;
}

macro_rules! register_opcodes {
    ($($name:ident = $value:expr;)*) => {
        $(pub const $name: u32 = $value;)*
        const _: () = {
            $(assert!($name == linux_raw_sys::io_uring::io_uring_register_op::$name as u32);)*
        };
    };
}

macro_rules! buffer_ring_flags {
    ($($name:ident = $value:expr;)*) => {
        $(pub const $name: u16 = $value;)*
        const _: () = {
            $(assert!($name as u32 == linux_raw_sys::io_uring::io_uring_register_pbuf_ring_flags::$name as u32);)*
        };
    };
}

buffer_ring_flags! {
    IOU_PBUF_RING_MMAP = 1;
    IOU_PBUF_RING_INC = 2;
}

register_opcodes! {
    IORING_REGISTER_BUFFERS = 0;
    IORING_UNREGISTER_BUFFERS = 1;
    IORING_REGISTER_FILES = 2;
    IORING_UNREGISTER_FILES = 3;
    IORING_REGISTER_EVENTFD = 4;
    IORING_UNREGISTER_EVENTFD = 5;
    IORING_REGISTER_FILES_UPDATE = 6;
    IORING_REGISTER_EVENTFD_ASYNC = 7;
    IORING_REGISTER_PROBE = 8;
    IORING_REGISTER_PERSONALITY = 9;
    IORING_UNREGISTER_PERSONALITY = 10;
    IORING_REGISTER_RESTRICTIONS = 11;
    IORING_REGISTER_ENABLE_RINGS = 12;
    IORING_REGISTER_FILES2 = 13;
    IORING_REGISTER_FILES_UPDATE2 = 14;
    IORING_REGISTER_BUFFERS2 = 15;
    IORING_REGISTER_BUFFERS_UPDATE = 16;
    IORING_REGISTER_IOWQ_AFF = 17;
    IORING_UNREGISTER_IOWQ_AFF = 18;
    IORING_REGISTER_IOWQ_MAX_WORKERS = 19;
    IORING_REGISTER_RING_FDS = 20;
    IORING_UNREGISTER_RING_FDS = 21;
    IORING_REGISTER_PBUF_RING = 22;
    IORING_UNREGISTER_PBUF_RING = 23;
    IORING_REGISTER_SYNC_CANCEL = 24;
    IORING_REGISTER_FILE_ALLOC_RANGE = 25;
    IORING_REGISTER_PBUF_STATUS = 26;
    IORING_REGISTER_NAPI = 27;
    IORING_UNREGISTER_NAPI = 28;
    IORING_REGISTER_CLOCK = 29;
    IORING_REGISTER_CLONE_BUFFERS = 30;
    IORING_REGISTER_SEND_MSG_RING = 31;
    IORING_REGISTER_ZCRX_IFQ = 32;
    IORING_REGISTER_RESIZE_RINGS = 33;
    IORING_REGISTER_MEM_REGION = 34;
    IORING_REGISTER_USE_REGISTERED_RING = 0x80000000;
}

// Newer than linux-raw-sys 0.12: read from Linux 6.18's header.
pub const IORING_REGISTER_QUERY: u32 = 35;
pub const IORING_SETUP_CQE_MIXED: u32 = 1 << 18;
pub const IORING_NOP_CQE32: u32 = 1 << 5;
pub const IORING_CQE_F_SKIP: u32 = 1 << 5;
pub const IORING_CQE_F_32: u32 = 1 << 15;
pub const IORING_URING_CMD_MULTISHOT: u32 = 1 << 1;
/// Set in the `flags` of a CQE of SOCKET_URING_OP_TX_TIMESTAMP if the time is the hardware's.
pub const IORING_CQE_F_TSTAMP_HW: u32 = 1 << IORING_TIMESTAMP_HW_SHIFT;

macro_rules! enumerations {
    ($($enumeration:ident { $($name:ident: $type:ty = $value:expr;)* })*) => {
        $($(pub const $name: $type = $value;)*)*
        const _: () = {
            $($(assert!($name as u64 == linux_raw_sys::io_uring::$enumeration::$name as u64);)*)*
        };
    };
}

enumerations! {
    io_uring_msg_ring_flags {
        IORING_MSG_DATA: u64 = 0;
        IORING_MSG_SEND_FD: u64 = 1;
    }
    io_uring_socket_op {
        SOCKET_URING_OP_SIOCINQ: u32 = 0;
        SOCKET_URING_OP_SIOCOUTQ: u32 = 1;
        SOCKET_URING_OP_GETSOCKOPT: u32 = 2;
        SOCKET_URING_OP_SETSOCKOPT: u32 = 3;
        SOCKET_URING_OP_TX_TIMESTAMP: u32 = 4;
    }
    io_wq_type {
        IO_WQ_BOUND: u32 = 0;
        IO_WQ_UNBOUND: u32 = 1;
    }
    io_uring_napi_op {
        IO_URING_NAPI_REGISTER_OP: u8 = 0;
        IO_URING_NAPI_STATIC_ADD_ID: u8 = 1;
        IO_URING_NAPI_STATIC_DEL_ID: u8 = 2;
    }
    io_uring_napi_tracking_strategy {
        IO_URING_NAPI_TRACKING_DYNAMIC: u32 = 0;
        IO_URING_NAPI_TRACKING_STATIC: u32 = 1;
        IO_URING_NAPI_TRACKING_INACTIVE: u32 = 255;
    }
    io_uring_zcrx_area_flags {
        IORING_ZCRX_AREA_DMABUF: u32 = 1;
    }
}

pub const IORING_REG_WAIT_TS: u32 = linux_raw_sys::io_uring::IORING_REG_WAIT_TS as u32;
pub const IORING_MEM_REGION_TYPE_USER: u32 = linux_raw_sys::io_uring::IORING_MEM_REGION_TYPE_USER as u32;
pub const IORING_MEM_REGION_REG_WAIT_ARG: u64 = linux_raw_sys::io_uring::IORING_MEM_REGION_REG_WAIT_ARG as u64;
pub const IORING_REGISTER_SRC_REGISTERED: u32 = linux_raw_sys::io_uring::IORING_REGISTER_SRC_REGISTERED as u32;
pub const IORING_REGISTER_DST_REPLACE: u32 = linux_raw_sys::io_uring::IORING_REGISTER_DST_REPLACE as u32;
pub const IORING_MAP_OFF_PARAM_REGION: u64 = 0x2000_0000;
pub const IO_URING_QUERY_OPCODES: u32 = 0;
pub const IO_URING_QUERY_ZCRX: u32 = 1;
pub const IO_URING_QUERY_SCQ: u32 = 2;
pub const IO_URING_QUERY_ZCRX_EVENT: u32 = 3;
pub const IORING_SETUP_SQE_MIXED: u32 = 1 << 19;
pub const IORING_SETUP_SQ_REWIND: u32 = 1 << 20;
pub const IORING_TIMEOUT_IMMEDIATE_ARG: u32 = 1 << 7;
pub const SOCKET_URING_OP_GETSOCKNAME: u32 = 5;
pub const IORING_REGISTER_ZCRX_CTRL: u32 = 36;
pub const IORING_REGISTER_BPF_FILTER: u32 = 37;
pub const IO_URING_BPF_CMD_FILTER: u16 = 1;
pub const IO_URING_BPF_FILTER_DENY_REST: u32 = 1;
pub const IO_URING_BPF_FILTER_SZ_STRICT: u32 = 2;

macro_rules! restriction_kinds {
    ($($name:ident = $value:expr;)*) => {
        $(pub const $name: u32 = $value;)*
        const _: () = {
            $(assert!($name == linux_raw_sys::io_uring::io_uring_register_restriction_op::$name as u32);)*
        };
    };
}

restriction_kinds! {
    IORING_RESTRICTION_REGISTER_OP = 0;
    IORING_RESTRICTION_SQE_OP = 1;
    IORING_RESTRICTION_SQE_FLAGS_ALLOWED = 2;
    IORING_RESTRICTION_SQE_FLAGS_REQUIRED = 3;
}

macro_rules! sqe_flags {
    ($($name:ident = $bit:ident;)*) => {
        $(pub const $name: u8 = 1 << linux_raw_sys::io_uring::io_uring_sqe_flags_bit::$bit as u8;)*
    };
}

sqe_flags! {
    IOSQE_FIXED_FILE = IOSQE_FIXED_FILE_BIT;
    IOSQE_IO_DRAIN = IOSQE_IO_DRAIN_BIT;
    IOSQE_IO_LINK = IOSQE_IO_LINK_BIT;
    IOSQE_IO_HARDLINK = IOSQE_IO_HARDLINK_BIT;
    IOSQE_ASYNC = IOSQE_ASYNC_BIT;
    IOSQE_BUFFER_SELECT = IOSQE_BUFFER_SELECT_BIT;
    IOSQE_CQE_SKIP_SUCCESS = IOSQE_CQE_SKIP_SUCCESS_BIT;
}

/// The system call number of io_uring_setup(2), the same on every architecture.
pub const NR_IO_URING_SETUP: i64 = 425;
/// The system call number of io_uring_enter(2), the same on every architecture.
pub const NR_IO_URING_ENTER: i64 = 426;
/// The system call number of io_uring_register(2), the same on every architecture.
pub const NR_IO_URING_REGISTER: i64 = 427;
