//! Every name of the interface of Linux 7.3 (`include/uapi/linux/io_uring.h`), in groups. docs/conformance.md has a
//! line for each name. A conformance case compares the masks and counts of IORING_REGISTER_QUERY with these lists.

use crate::constants::*;
use crate::{Opcode, Sqe};

/// The place in an SQE where a name that belongs to one operation stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Field {
    /// A bit of `ioprio`.
    Ioprio,
    /// A bit of the flags word (`rw_flags`, `msg_flags`, `timeout_flags` ...).
    OpFlags,
    /// A bit of `len`.
    Len,
    /// A bit of `attr_type_mask`.
    AttributeTypes,
    /// The value of `addr`.
    Addr,
    /// The value of `cmd_op`, the lower half of `off`.
    Command,
    /// The value of `file_index`.
    FileIndex,
    /// The value of `off`, as 32 bits.
    Offset,
}

impl Field {
    /// True if `sqe` holds `value` in this place.
    pub fn holds(self, sqe: &Sqe, value: u64) -> bool {
        match self {
            Field::Ioprio => u64::from(sqe.ioprio) & value != 0,
            Field::OpFlags => u64::from(sqe.op_flags) & value != 0,
            Field::Len => u64::from(sqe.len) & value != 0,
            Field::AttributeTypes => sqe.pad2 & value != 0,
            Field::Addr => sqe.addr == value,
            Field::Command | Field::Offset => sqe.off & 0xffff_ffff == value,
            Field::FileIndex => u64::from(sqe.file_index) == value,
        }
    }
}

/// The part of the interface that a name belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Scope {
    /// The interface as a whole.
    Ring,
    /// One operation, and the name's place in its SQE.
    Operation(Opcode, Field),
    /// The argument of one register call.
    Register(u32),
}

/// One name of the header, in one of the places where it has a meaning.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Name {
    /// The spelling of the header.
    pub name: &'static str,
    /// The name's number or bit.
    pub value: u64,
    /// The part of the interface that the name belongs to.
    pub scope: Scope,
}

impl core::fmt::Display for Name {
    /// Writes the name, for example `IORING_SETUP_SQPOLL`. Before the name of an operation or register call, writes
    /// that operation or call.
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self.scope {
            Scope::Ring => f.write_str(self.name),
            Scope::Operation(opcode, _) => write!(f, "{}: {}", opcode.name(), self.name),
            Scope::Register(call) => match REGISTER_CALLS.iter().find(|known| known.value == u64::from(call)) {
                Some(known) => {
                    write!(f, "{}: {}", known.name.strip_prefix("IORING_").unwrap_or(known.name), self.name)
                }
                None => f.write_str(self.name),
            },
        }
    }
}

/// Names of one kind.
#[derive(Debug, Clone, Copy)]
pub struct Group {
    /// The group's heading.
    pub title: &'static str,
    /// The names, in the header's order.
    pub names: &'static [Name],
}

macro_rules! of_ring {
    ($($name:ident),* $(,)?) => {
        &[$(Name { name: stringify!($name), value: $name as u64, scope: Scope::Ring }),*]
    };
}

macro_rules! of_operations {
    ($($name:ident: $field:ident of [$($opcode:ident),*];)*) => {
        &[$($(Name {
            name: stringify!($name),
            value: $name as u32 as u64,
            scope: Scope::Operation(Opcode::$opcode, Field::$field),
        },)*)*]
    };
}

macro_rules! of_register_calls {
    ($($name:ident of [$($call:ident),*];)*) => {
        &[$($(Name {
            name: stringify!($name),
            value: $name as u64,
            scope: Scope::Register($call),
        },)*)*]
    };
}

/// Every `IORING_OP_*`. [`Name::name`] lacks that prefix, as [`Opcode::name`] does.
pub const OPCODES: &[Name] = &{
    let mut names = [Name { name: "", value: 0, scope: Scope::Ring }; Opcode::COUNT];
    let mut number = 0;
    while number < Opcode::COUNT {
        names[number] = Name { name: Opcode::ALL[number].name(), value: number as u64, scope: Scope::Ring };
        number += 1;
    }
    names
};

/// Flags of an SQE, `sqe->flags`.
pub const SQE_FLAGS: &[Name] = of_ring![
    IOSQE_FIXED_FILE,
    IOSQE_IO_DRAIN,
    IOSQE_IO_LINK,
    IOSQE_IO_HARDLINK,
    IOSQE_ASYNC,
    IOSQE_BUFFER_SELECT,
    IOSQE_CQE_SKIP_SUCCESS,
];

/// Flags and commands of single operations.
pub const OPERATION_FLAGS: &[Name] = of_operations![
    IORING_NOP_INJECT_RESULT: OpFlags of [Nop];
    IORING_NOP_FILE: OpFlags of [Nop];
    IORING_NOP_FIXED_FILE: OpFlags of [Nop];
    IORING_NOP_FIXED_BUFFER: OpFlags of [Nop];
    IORING_NOP_TW: OpFlags of [Nop];
    IORING_NOP_CQE32: OpFlags of [Nop];
    IORING_FSYNC_DATASYNC: OpFlags of [Fsync];
    IORING_TIMEOUT_ABS: OpFlags of [Timeout, LinkTimeout, TimeoutRemove];
    IORING_TIMEOUT_UPDATE: OpFlags of [TimeoutRemove];
    IORING_TIMEOUT_BOOTTIME: OpFlags of [Timeout, LinkTimeout];
    IORING_TIMEOUT_REALTIME: OpFlags of [Timeout, LinkTimeout];
    IORING_LINK_TIMEOUT_UPDATE: OpFlags of [TimeoutRemove];
    IORING_TIMEOUT_ETIME_SUCCESS: OpFlags of [Timeout];
    IORING_TIMEOUT_MULTISHOT: OpFlags of [Timeout];
    IORING_TIMEOUT_IMMEDIATE_ARG: OpFlags of [Timeout, LinkTimeout, TimeoutRemove];
    SPLICE_F_FD_IN_FIXED: OpFlags of [Splice, Tee];
    IORING_POLL_ADD_MULTI: Len of [PollAdd, PollRemove];
    IORING_POLL_UPDATE_EVENTS: Len of [PollRemove];
    IORING_POLL_UPDATE_USER_DATA: Len of [PollRemove];
    IORING_POLL_ADD_LEVEL: Len of [PollAdd];
    IORING_ASYNC_CANCEL_ALL: OpFlags of [AsyncCancel];
    IORING_ASYNC_CANCEL_FD: OpFlags of [AsyncCancel];
    IORING_ASYNC_CANCEL_ANY: OpFlags of [AsyncCancel];
    IORING_ASYNC_CANCEL_FD_FIXED: OpFlags of [AsyncCancel];
    IORING_ASYNC_CANCEL_USERDATA: OpFlags of [AsyncCancel];
    IORING_ASYNC_CANCEL_OP: OpFlags of [AsyncCancel];
    IORING_RECVSEND_POLL_FIRST: Ioprio of [Send, Sendmsg, Recv, Recvmsg, SendZc, SendmsgZc];
    IORING_RECV_MULTISHOT: Ioprio of [Recv, Recvmsg];
    IORING_RECVSEND_FIXED_BUF: Ioprio of [SendZc, SendmsgZc];
    IORING_SEND_ZC_REPORT_USAGE: Ioprio of [SendZc, SendmsgZc];
    IORING_RECVSEND_BUNDLE: Ioprio of [Send, Recv];
    IORING_SEND_VECTORIZED: Ioprio of [Send, SendZc];
    IORING_ACCEPT_MULTISHOT: Ioprio of [Accept];
    IORING_ACCEPT_DONTWAIT: Ioprio of [Accept];
    IORING_ACCEPT_POLL_FIRST: Ioprio of [Accept];
    IORING_FILE_INDEX_ALLOC: FileIndex of [Accept, Openat, Openat2, Socket, Pipe, MsgRing];
    IORING_FILE_INDEX_ALLOC: Offset of [FilesUpdate];
    IORING_MSG_DATA: Addr of [MsgRing];
    IORING_MSG_SEND_FD: Addr of [MsgRing];
    IORING_MSG_RING_CQE_SKIP: OpFlags of [MsgRing];
    IORING_MSG_RING_FLAGS_PASS: OpFlags of [MsgRing];
    IORING_FIXED_FD_NO_CLOEXEC: OpFlags of [FixedFdInstall];
    IORING_URING_CMD_FIXED: OpFlags of [UringCmd];
    IORING_URING_CMD_MULTISHOT: OpFlags of [UringCmd];
    SOCKET_URING_OP_SIOCINQ: Command of [UringCmd];
    SOCKET_URING_OP_SIOCOUTQ: Command of [UringCmd];
    SOCKET_URING_OP_GETSOCKOPT: Command of [UringCmd];
    SOCKET_URING_OP_SETSOCKOPT: Command of [UringCmd];
    SOCKET_URING_OP_TX_TIMESTAMP: Command of [UringCmd];
    SOCKET_URING_OP_GETSOCKNAME: Command of [UringCmd];
    IORING_RW_ATTR_FLAG_PI: AttributeTypes of [Read, Write];
];

/// Flags of io_uring_setup(2).
pub const SETUP_FLAGS: &[Name] = of_ring![
    IORING_SETUP_IOPOLL,
    IORING_SETUP_SQPOLL,
    IORING_SETUP_SQ_AFF,
    IORING_SETUP_CQSIZE,
    IORING_SETUP_CLAMP,
    IORING_SETUP_ATTACH_WQ,
    IORING_SETUP_R_DISABLED,
    IORING_SETUP_SUBMIT_ALL,
    IORING_SETUP_COOP_TASKRUN,
    IORING_SETUP_TASKRUN_FLAG,
    IORING_SETUP_SQE128,
    IORING_SETUP_CQE32,
    IORING_SETUP_SINGLE_ISSUER,
    IORING_SETUP_DEFER_TASKRUN,
    IORING_SETUP_NO_MMAP,
    IORING_SETUP_REGISTERED_FD_ONLY,
    IORING_SETUP_NO_SQARRAY,
    IORING_SETUP_HYBRID_IOPOLL,
    IORING_SETUP_CQE_MIXED,
    IORING_SETUP_SQE_MIXED,
    IORING_SETUP_SQ_REWIND,
];

/// Bits of `params.features`.
pub const FEATURES: &[Name] = of_ring![
    IORING_FEAT_SINGLE_MMAP,
    IORING_FEAT_NODROP,
    IORING_FEAT_SUBMIT_STABLE,
    IORING_FEAT_RW_CUR_POS,
    IORING_FEAT_CUR_PERSONALITY,
    IORING_FEAT_FAST_POLL,
    IORING_FEAT_POLL_32BITS,
    IORING_FEAT_SQPOLL_NONFIXED,
    IORING_FEAT_EXT_ARG,
    IORING_FEAT_NATIVE_WORKERS,
    IORING_FEAT_RSRC_TAGS,
    IORING_FEAT_CQE_SKIP,
    IORING_FEAT_LINKED_FILE,
    IORING_FEAT_REG_REG_RING,
    IORING_FEAT_RECVSEND_BUNDLE,
    IORING_FEAT_MIN_TIMEOUT,
    IORING_FEAT_RW_ATTR,
    IORING_FEAT_NO_IOWAIT,
];

/// Flags of io_uring_enter(2).
pub const ENTER_FLAGS: &[Name] = of_ring![
    IORING_ENTER_GETEVENTS,
    IORING_ENTER_SQ_WAKEUP,
    IORING_ENTER_SQ_WAIT,
    IORING_ENTER_EXT_ARG,
    IORING_ENTER_REGISTERED_RING,
    IORING_ENTER_ABS_TIMER,
    IORING_ENTER_EXT_ARG_REG,
    IORING_ENTER_NO_IOWAIT,
];

/// Bits of `cqe->flags`, and the bit in `cqe->res` by which SEND_ZC and SENDMSG_ZC report copies.
pub const CQE_FLAGS: &[Name] = of_ring![
    IORING_CQE_F_BUFFER,
    IORING_CQE_F_MORE,
    IORING_CQE_F_SOCK_NONEMPTY,
    IORING_CQE_F_NOTIF,
    IORING_CQE_F_BUF_MORE,
    IORING_CQE_F_SKIP,
    IORING_CQE_F_32,
    IORING_CQE_F_TSTAMP_HW,
    IORING_NOTIF_USAGE_ZC_COPIED,
];

/// Bits of the SQ's flags word.
pub const SQ_FLAGS: &[Name] = of_ring![IORING_SQ_NEED_WAKEUP, IORING_SQ_CQ_OVERFLOW, IORING_SQ_TASKRUN];

/// Bits of the CQ's flags word, which the program sets.
pub const CQ_FLAGS: &[Name] = of_ring![IORING_CQ_EVENTFD_DISABLED];

/// The offsets that mmap(2) on a ring's descriptor takes.
pub const AREAS: &[Name] = of_ring![IORING_OFF_SQ_RING, IORING_OFF_CQ_RING, IORING_OFF_SQES, IORING_OFF_PBUF_RING];

/// Opcodes of io_uring_register(2).
pub const REGISTER_CALLS: &[Name] = of_ring![
    IORING_REGISTER_BUFFERS,
    IORING_UNREGISTER_BUFFERS,
    IORING_REGISTER_FILES,
    IORING_UNREGISTER_FILES,
    IORING_REGISTER_EVENTFD,
    IORING_UNREGISTER_EVENTFD,
    IORING_REGISTER_FILES_UPDATE,
    IORING_REGISTER_EVENTFD_ASYNC,
    IORING_REGISTER_PROBE,
    IORING_REGISTER_PERSONALITY,
    IORING_UNREGISTER_PERSONALITY,
    IORING_REGISTER_RESTRICTIONS,
    IORING_REGISTER_ENABLE_RINGS,
    IORING_REGISTER_FILES2,
    IORING_REGISTER_FILES_UPDATE2,
    IORING_REGISTER_BUFFERS2,
    IORING_REGISTER_BUFFERS_UPDATE,
    IORING_REGISTER_IOWQ_AFF,
    IORING_UNREGISTER_IOWQ_AFF,
    IORING_REGISTER_IOWQ_MAX_WORKERS,
    IORING_REGISTER_RING_FDS,
    IORING_UNREGISTER_RING_FDS,
    IORING_REGISTER_PBUF_RING,
    IORING_UNREGISTER_PBUF_RING,
    IORING_REGISTER_SYNC_CANCEL,
    IORING_REGISTER_FILE_ALLOC_RANGE,
    IORING_REGISTER_PBUF_STATUS,
    IORING_REGISTER_NAPI,
    IORING_UNREGISTER_NAPI,
    IORING_REGISTER_CLOCK,
    IORING_REGISTER_CLONE_BUFFERS,
    IORING_REGISTER_SEND_MSG_RING,
    IORING_REGISTER_ZCRX_IFQ,
    IORING_REGISTER_RESIZE_RINGS,
    IORING_REGISTER_MEM_REGION,
    IORING_REGISTER_QUERY,
    IORING_REGISTER_ZCRX_CTRL,
    IORING_REGISTER_BPF_FILTER,
];

/// Flags that any opcode of io_uring_register(2) may carry.
pub const REGISTER_FLAGS: &[Name] = of_ring![IORING_REGISTER_USE_REGISTERED_RING];

/// Flags, kinds and special values in the arguments of register calls.
pub const REGISTER_ARGUMENTS: &[Name] = of_register_calls![
    IORING_RSRC_REGISTER_SPARSE of [IORING_REGISTER_FILES2, IORING_REGISTER_BUFFERS2];
    IORING_REGISTER_FILES_SKIP of [IORING_REGISTER_FILES_UPDATE, IORING_REGISTER_FILES_UPDATE2];
    IO_URING_OP_SUPPORTED of [IORING_REGISTER_PROBE];
    IORING_RESTRICTION_REGISTER_OP of [IORING_REGISTER_RESTRICTIONS];
    IORING_RESTRICTION_SQE_OP of [IORING_REGISTER_RESTRICTIONS];
    IORING_RESTRICTION_SQE_FLAGS_ALLOWED of [IORING_REGISTER_RESTRICTIONS];
    IORING_RESTRICTION_SQE_FLAGS_REQUIRED of [IORING_REGISTER_RESTRICTIONS];
    IO_WQ_BOUND of [IORING_REGISTER_IOWQ_MAX_WORKERS];
    IO_WQ_UNBOUND of [IORING_REGISTER_IOWQ_MAX_WORKERS];
    IOU_PBUF_RING_MMAP of [IORING_REGISTER_PBUF_RING];
    IOU_PBUF_RING_INC of [IORING_REGISTER_PBUF_RING];
    IORING_ASYNC_CANCEL_ALL of [IORING_REGISTER_SYNC_CANCEL];
    IORING_ASYNC_CANCEL_FD of [IORING_REGISTER_SYNC_CANCEL];
    IORING_ASYNC_CANCEL_ANY of [IORING_REGISTER_SYNC_CANCEL];
    IORING_ASYNC_CANCEL_FD_FIXED of [IORING_REGISTER_SYNC_CANCEL];
    IORING_ASYNC_CANCEL_USERDATA of [IORING_REGISTER_SYNC_CANCEL];
    IORING_ASYNC_CANCEL_OP of [IORING_REGISTER_SYNC_CANCEL];
    IO_URING_NAPI_REGISTER_OP of [IORING_REGISTER_NAPI];
    IO_URING_NAPI_STATIC_ADD_ID of [IORING_REGISTER_NAPI];
    IO_URING_NAPI_STATIC_DEL_ID of [IORING_REGISTER_NAPI];
    IO_URING_NAPI_TRACKING_DYNAMIC of [IORING_REGISTER_NAPI];
    IO_URING_NAPI_TRACKING_STATIC of [IORING_REGISTER_NAPI];
    IO_URING_NAPI_TRACKING_INACTIVE of [IORING_REGISTER_NAPI];
    IORING_REGISTER_SRC_REGISTERED of [IORING_REGISTER_CLONE_BUFFERS];
    IORING_REGISTER_DST_REPLACE of [IORING_REGISTER_CLONE_BUFFERS];
    IORING_ZCRX_AREA_DMABUF of [IORING_REGISTER_ZCRX_IFQ];
    IORING_MEM_REGION_TYPE_USER of [IORING_REGISTER_MEM_REGION];
    IORING_MEM_REGION_REG_WAIT_ARG of [IORING_REGISTER_MEM_REGION];
    IORING_REG_WAIT_TS of [IORING_REGISTER_MEM_REGION];
    IO_URING_QUERY_OPCODES of [IORING_REGISTER_QUERY];
    IO_URING_QUERY_ZCRX of [IORING_REGISTER_QUERY];
    IO_URING_QUERY_SCQ of [IORING_REGISTER_QUERY];
    IO_URING_QUERY_ZCRX_EVENT of [IORING_REGISTER_QUERY];
    IO_URING_BPF_CMD_FILTER of [IORING_REGISTER_BPF_FILTER];
    IO_URING_BPF_FILTER_DENY_REST of [IORING_REGISTER_BPF_FILTER];
    IO_URING_BPF_FILTER_SZ_STRICT of [IORING_REGISTER_BPF_FILTER];
];

/// The whole interface.
pub const GROUPS: &[Group] = &[
    Group { title: "Operations", names: OPCODES },
    Group { title: "SQE flags", names: SQE_FLAGS },
    Group { title: "Flags and commands of operations", names: OPERATION_FLAGS },
    Group { title: "Setup flags", names: SETUP_FLAGS },
    Group { title: "Feature bits", names: FEATURES },
    Group { title: "Enter flags", names: ENTER_FLAGS },
    Group { title: "CQE flags", names: CQE_FLAGS },
    Group { title: "SQ flags", names: SQ_FLAGS },
    Group { title: "CQ flags", names: CQ_FLAGS },
    Group { title: "Areas of a ring's descriptor", names: AREAS },
    Group { title: "Register calls", names: REGISTER_CALLS },
    Group { title: "Flags of every register call", names: REGISTER_FLAGS },
    Group { title: "Arguments of register calls", names: REGISTER_ARGUMENTS },
];

/// Iterates over every name, once for each place where it has a meaning, in the order of [`GROUPS`].
pub fn names() -> impl Iterator<Item = &'static Name> {
    GROUPS.iter().flat_map(|group| group.names)
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::collections::HashSet;
    use std::string::ToString;

    #[test]
    fn each_name_is_there_once_in_each_place() {
        let labels: HashSet<_> = names().map(|name| name.to_string()).collect();
        assert_eq!(labels.len(), names().count());
    }

    #[test]
    fn register_calls_are_in_numeric_order() {
        assert!(REGISTER_CALLS.iter().enumerate().all(|(number, call)| call.value == number as u64));
    }

    #[test]
    fn a_name_is_found_in_its_field() {
        let sqe = Sqe { ioprio: IORING_RECVSEND_POLL_FIRST as u16, ..Sqe::default() };
        assert!(Field::Ioprio.holds(&sqe, u64::from(IORING_RECVSEND_POLL_FIRST)));
        assert!(!Field::OpFlags.holds(&sqe, u64::from(IORING_RECVSEND_POLL_FIRST)));
        let alloc = Sqe { file_index: u32::MAX, ..Sqe::default() };
        assert!(Field::FileIndex.holds(&alloc, u64::from(IORING_FILE_INDEX_ALLOC as u32)));
    }
}
