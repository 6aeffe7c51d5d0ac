//! The kernel release that brought each name of the interface. Sources: io_uring_enter(2), io_uring_setup(2),
//! io_uring_register(2), and the history of `include/uapi/linux/io_uring.h`.

use crate::interface::{Name, Scope};

/// A kernel release. For Linux 6.18 it is 6 and 18.
pub type Release = (u16, u16);

/// The first release that has io_uring.
pub const FIRST: Release = (5, 1);

/// Names newer than [`FIRST`]. Each is written without the register call or operation that it belongs to.
const LATER: &[(Release, &[&str])] = &[
    ((5, 2), &["SYNC_FILE_RANGE", "IOSQE_IO_DRAIN", "IORING_REGISTER_EVENTFD", "IORING_UNREGISTER_EVENTFD"]),
    ((5, 3), &["SENDMSG", "RECVMSG", "IOSQE_IO_LINK"]),
    ((5, 4), &["TIMEOUT", "IORING_FEAT_SINGLE_MMAP"]),
    (
        (5, 5),
        &[
            "TIMEOUT_REMOVE",
            "ACCEPT",
            "ASYNC_CANCEL",
            "LINK_TIMEOUT",
            "CONNECT",
            "IOSQE_IO_HARDLINK",
            "IORING_TIMEOUT_ABS",
            "IORING_SETUP_CQSIZE",
            "IORING_FEAT_NODROP",
            "IORING_FEAT_SUBMIT_STABLE",
            "IORING_REGISTER_FILES_UPDATE",
        ],
    ),
    (
        (5, 6),
        &[
            "FALLOCATE",
            "OPENAT",
            "CLOSE",
            "FILES_UPDATE",
            "STATX",
            "READ",
            "WRITE",
            "FADVISE",
            "MADVISE",
            "SEND",
            "RECV",
            "OPENAT2",
            "EPOLL_CTL",
            "IOSQE_ASYNC",
            "IORING_SETUP_CLAMP",
            "IORING_SETUP_ATTACH_WQ",
            "IORING_FEAT_RW_CUR_POS",
            "IORING_FEAT_CUR_PERSONALITY",
            "IORING_REGISTER_EVENTFD_ASYNC",
            "IORING_REGISTER_PROBE",
            "IORING_REGISTER_PERSONALITY",
            "IORING_UNREGISTER_PERSONALITY",
            "IO_URING_OP_SUPPORTED",
        ],
    ),
    (
        (5, 7),
        &[
            "SPLICE",
            "PROVIDE_BUFFERS",
            "REMOVE_BUFFERS",
            "IOSQE_BUFFER_SELECT",
            "SPLICE_F_FD_IN_FIXED",
            "IORING_CQE_F_BUFFER",
            "IORING_FEAT_FAST_POLL",
        ],
    ),
    ((5, 8), &["TEE", "IORING_SQ_CQ_OVERFLOW", "IORING_CQ_EVENTFD_DISABLED"]),
    ((5, 9), &["IORING_FEAT_POLL_32BITS"]),
    (
        (5, 10),
        &[
            "IORING_SETUP_R_DISABLED",
            "IORING_ENTER_SQ_WAIT",
            "IORING_REGISTER_RESTRICTIONS",
            "IORING_REGISTER_ENABLE_RINGS",
            "IORING_RESTRICTION_REGISTER_OP",
            "IORING_RESTRICTION_SQE_OP",
            "IORING_RESTRICTION_SQE_FLAGS_ALLOWED",
            "IORING_RESTRICTION_SQE_FLAGS_REQUIRED",
        ],
    ),
    (
        (5, 11),
        &[
            "SHUTDOWN",
            "RENAMEAT",
            "UNLINKAT",
            "IORING_TIMEOUT_UPDATE",
            "IORING_ENTER_EXT_ARG",
            "IORING_FEAT_SQPOLL_NONFIXED",
            "IORING_FEAT_EXT_ARG",
        ],
    ),
    ((5, 12), &["IORING_FEAT_NATIVE_WORKERS", "IORING_REGISTER_FILES_SKIP"]),
    (
        (5, 13),
        &[
            "IORING_POLL_ADD_MULTI",
            "IORING_POLL_UPDATE_EVENTS",
            "IORING_POLL_UPDATE_USER_DATA",
            "IORING_CQE_F_MORE",
            "IORING_FEAT_RSRC_TAGS",
            "IORING_REGISTER_FILES2",
            "IORING_REGISTER_FILES_UPDATE2",
            "IORING_REGISTER_BUFFERS2",
            "IORING_REGISTER_BUFFERS_UPDATE",
        ],
    ),
    ((5, 14), &["IORING_REGISTER_IOWQ_AFF", "IORING_UNREGISTER_IOWQ_AFF"]),
    (
        (5, 15),
        &[
            "MKDIRAT",
            "SYMLINKAT",
            "LINKAT",
            "IORING_TIMEOUT_BOOTTIME",
            "IORING_TIMEOUT_REALTIME",
            "IORING_LINK_TIMEOUT_UPDATE",
            "IORING_REGISTER_IOWQ_MAX_WORKERS",
            "IO_WQ_BOUND",
            "IO_WQ_UNBOUND",
        ],
    ),
    ((5, 16), &["IORING_TIMEOUT_ETIME_SUCCESS"]),
    ((5, 17), &["IOSQE_CQE_SKIP_SUCCESS", "IORING_FEAT_CQE_SKIP", "IORING_FEAT_LINKED_FILE"]),
    (
        (5, 18),
        &[
            "MSG_RING",
            "IORING_MSG_DATA",
            "IORING_SETUP_SUBMIT_ALL",
            "IORING_ENTER_REGISTERED_RING",
            "IORING_REGISTER_RING_FDS",
            "IORING_UNREGISTER_RING_FDS",
        ],
    ),
    (
        (5, 19),
        &[
            "FSETXATTR",
            "SETXATTR",
            "FGETXATTR",
            "GETXATTR",
            "SOCKET",
            "URING_CMD",
            "IORING_ASYNC_CANCEL_ALL",
            "IORING_ASYNC_CANCEL_FD",
            "IORING_ASYNC_CANCEL_ANY",
            "IORING_RECVSEND_POLL_FIRST",
            "IORING_ACCEPT_MULTISHOT",
            "IORING_FILE_INDEX_ALLOC",
            "IORING_SETUP_COOP_TASKRUN",
            "IORING_SETUP_TASKRUN_FLAG",
            "IORING_SETUP_SQE128",
            "IORING_SETUP_CQE32",
            "IORING_SQ_TASKRUN",
            "IORING_CQE_F_SOCK_NONEMPTY",
            "IORING_REGISTER_PBUF_RING",
            "IORING_UNREGISTER_PBUF_RING",
            "IORING_RSRC_REGISTER_SPARSE",
        ],
    ),
    (
        (6, 0),
        &[
            "SEND_ZC",
            "IORING_POLL_ADD_LEVEL",
            "IORING_ASYNC_CANCEL_FD_FIXED",
            "IORING_RECV_MULTISHOT",
            "IORING_RECVSEND_FIXED_BUF",
            "IORING_MSG_SEND_FD",
            "IORING_MSG_RING_CQE_SKIP",
            "IORING_SETUP_SINGLE_ISSUER",
            "IORING_CQE_F_NOTIF",
            "IORING_REGISTER_SYNC_CANCEL",
            "IORING_REGISTER_FILE_ALLOC_RANGE",
        ],
    ),
    ((6, 1), &["SENDMSG_ZC", "IORING_SETUP_DEFER_TASKRUN", "IORING_URING_CMD_FIXED"]),
    ((6, 2), &["IORING_SEND_ZC_REPORT_USAGE", "IORING_NOTIF_USAGE_ZC_COPIED"]),
    ((6, 3), &["IORING_MSG_RING_FLAGS_PASS", "IORING_FEAT_REG_REG_RING", "IORING_REGISTER_USE_REGISTERED_RING"]),
    ((6, 4), &["IORING_TIMEOUT_MULTISHOT", "IOU_PBUF_RING_MMAP", "IORING_OFF_PBUF_RING"]),
    ((6, 5), &["IORING_SETUP_NO_MMAP", "IORING_SETUP_REGISTERED_FD_ONLY"]),
    (
        (6, 6),
        &[
            "IORING_ASYNC_CANCEL_USERDATA",
            "IORING_ASYNC_CANCEL_OP",
            "SOCKET_URING_OP_SIOCINQ",
            "SOCKET_URING_OP_SIOCOUTQ",
            "IORING_SETUP_NO_SQARRAY",
        ],
    ),
    (
        (6, 7),
        &[
            "READ_MULTISHOT",
            "WAITID",
            "FUTEX_WAIT",
            "FUTEX_WAKE",
            "FUTEX_WAITV",
            "SOCKET_URING_OP_GETSOCKOPT",
            "SOCKET_URING_OP_SETSOCKOPT",
            "IORING_URING_CMD_MULTISHOT",
        ],
    ),
    ((6, 8), &["FIXED_FD_INSTALL", "IORING_FIXED_FD_NO_CLOEXEC", "IORING_REGISTER_PBUF_STATUS"]),
    ((6, 9), &["FTRUNCATE", "IORING_REGISTER_NAPI", "IORING_UNREGISTER_NAPI", "IO_URING_NAPI_TRACKING_DYNAMIC"]),
    (
        (6, 10),
        &[
            "IORING_NOP_INJECT_RESULT",
            "IORING_RECVSEND_BUNDLE",
            "IORING_ACCEPT_DONTWAIT",
            "IORING_ACCEPT_POLL_FIRST",
            "IORING_FEAT_RECVSEND_BUNDLE",
        ],
    ),
    ((6, 11), &["BIND", "LISTEN"]),
    (
        (6, 12),
        &[
            "IORING_ENTER_ABS_TIMER",
            "IORING_FEAT_MIN_TIMEOUT",
            "IORING_CQE_F_BUF_MORE",
            "IOU_PBUF_RING_INC",
            "IORING_REGISTER_CLOCK",
            "IORING_REGISTER_CLONE_BUFFERS",
            "IORING_REGISTER_SRC_REGISTERED",
        ],
    ),
    (
        (6, 13),
        &[
            "IORING_NOP_FILE",
            "IORING_NOP_FIXED_FILE",
            "IORING_NOP_FIXED_BUFFER",
            "IORING_SETUP_HYBRID_IOPOLL",
            "IORING_ENTER_EXT_ARG_REG",
            "IORING_REGISTER_DST_REPLACE",
            "IORING_REGISTER_SEND_MSG_RING",
            "IORING_REGISTER_RESIZE_RINGS",
            "IORING_REGISTER_MEM_REGION",
            "IORING_MEM_REGION_TYPE_USER",
            "IORING_MEM_REGION_REG_WAIT_ARG",
            "IORING_REG_WAIT_TS",
            "IO_URING_NAPI_REGISTER_OP",
            "IO_URING_NAPI_STATIC_ADD_ID",
            "IO_URING_NAPI_STATIC_DEL_ID",
            "IO_URING_NAPI_TRACKING_STATIC",
            "IO_URING_NAPI_TRACKING_INACTIVE",
        ],
    ),
    ((6, 14), &["IORING_RW_ATTR_FLAG_PI", "IORING_FEAT_RW_ATTR"]),
    (
        (6, 15),
        &[
            "RECV_ZC",
            "EPOLL_WAIT",
            "READV_FIXED",
            "WRITEV_FIXED",
            "IORING_NOP_TW",
            "IORING_ENTER_NO_IOWAIT",
            "IORING_FEAT_NO_IOWAIT",
            "IORING_REGISTER_ZCRX_IFQ",
        ],
    ),
    ((6, 16), &["PIPE", "IORING_ZCRX_AREA_DMABUF"]),
    ((6, 17), &["IORING_SEND_VECTORIZED", "SOCKET_URING_OP_TX_TIMESTAMP", "IORING_CQE_F_TSTAMP_HW"]),
    (
        (6, 18),
        &[
            "IORING_NOP_CQE32",
            "IORING_SETUP_CQE_MIXED",
            "IORING_CQE_F_SKIP",
            "IORING_CQE_F_32",
            "IORING_REGISTER_QUERY",
            "IO_URING_QUERY_OPCODES",
        ],
    ),
    (
        (6, 19),
        &[
            "NOP128",
            "URING_CMD128",
            "IORING_SETUP_SQE_MIXED",
            "SOCKET_URING_OP_GETSOCKNAME",
            "IORING_REGISTER_ZCRX_CTRL",
            "IO_URING_QUERY_ZCRX",
            "IO_URING_QUERY_SCQ",
        ],
    ),
    ((7, 0), &["IORING_SETUP_SQ_REWIND", "IORING_REGISTER_BPF_FILTER"]),
    ((7, 1), &["IORING_TIMEOUT_IMMEDIATE_ARG"]),
    ((7, 2), &["IO_URING_QUERY_ZCRX_EVENT"]),
];

/// Returns the release that brought this name. A flag of an operation or register call is no older than the operation
/// or call.
pub fn since(name: &Name) -> Release {
    let of = |label: &str| {
        let known = LATER.iter().find(|(_, labels)| labels.contains(&label));
        known.map_or(FIRST, |(release, _)| *release)
    };
    let whole = match name.scope {
        Scope::Ring => FIRST,
        Scope::Operation(opcode, _) => of(opcode.name()),
        Scope::Register(call) => {
            let calls = crate::interface::REGISTER_CALLS;
            calls.iter().find(|known| known.value == u64::from(call)).map_or(FIRST, |known| of(known.name))
        }
    };
    whole.max(of(name.name))
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use crate::interface::names;
    use crate::{Opcode, IORING_REGISTER_SYNC_CANCEL};

    #[test]
    fn each_later_name_is_one_of_the_interface_and_stands_there_once() {
        let later = || LATER.iter().flat_map(|(_, labels)| labels.iter());
        for label in later() {
            assert!(names().any(|name| name.name == *label), "{label}");
            assert_eq!(later().filter(|other| *other == label).count(), 1, "{label}");
        }
        assert!(LATER.windows(2).all(|pair| pair[0].0 < pair[1].0));
    }

    #[test]
    fn a_flag_is_no_older_than_what_it_belongs_to() {
        let of =
            |scope: Scope, name: &str| names().find(|known| known.scope == scope && known.name == name).map(since);
        assert_eq!(of(Scope::Ring, Opcode::Nop.name()), Some((5, 1)));
        assert_eq!(of(Scope::Register(IORING_REGISTER_SYNC_CANCEL), "IORING_ASYNC_CANCEL_ALL"), Some((6, 0)));
    }
}
