//! Names of the bits in events, as in the kernel's headers but without their common prefix.

use anyring_abi::{IORING_CQE_F_BUFFER, IORING_CQE_F_MORE, IORING_CQE_F_NOTIF, IORING_CQE_F_SOCK_NONEMPTY};

macro_rules! flags {
    ($prefix:literal: $($name:ident)*) => {
        [$((anyring_abi::$name as u32, stringify!($name).split_at($prefix.len()).1)),*]
    };
}

/// The flags of io_uring_setup(2), without `IORING_SETUP_`.
const SETUP: [(u32, &str); 21] = flags!("IORING_SETUP_": IORING_SETUP_IOPOLL IORING_SETUP_SQPOLL IORING_SETUP_SQ_AFF
    IORING_SETUP_CQSIZE IORING_SETUP_CLAMP IORING_SETUP_ATTACH_WQ IORING_SETUP_R_DISABLED IORING_SETUP_SUBMIT_ALL
    IORING_SETUP_COOP_TASKRUN IORING_SETUP_TASKRUN_FLAG IORING_SETUP_SQE128 IORING_SETUP_CQE32
    IORING_SETUP_SINGLE_ISSUER IORING_SETUP_DEFER_TASKRUN IORING_SETUP_NO_MMAP IORING_SETUP_REGISTERED_FD_ONLY
    IORING_SETUP_NO_SQARRAY IORING_SETUP_HYBRID_IOPOLL IORING_SETUP_CQE_MIXED IORING_SETUP_SQE_MIXED
    IORING_SETUP_SQ_REWIND);

/// The flags of io_uring_enter(2), without `IORING_ENTER_`.
const ENTER: [(u32, &str); 8] = flags!("IORING_ENTER_": IORING_ENTER_GETEVENTS IORING_ENTER_SQ_WAKEUP
    IORING_ENTER_SQ_WAIT IORING_ENTER_EXT_ARG IORING_ENTER_REGISTERED_RING IORING_ENTER_ABS_TIMER
    IORING_ENTER_EXT_ARG_REG IORING_ENTER_NO_IOWAIT);

/// The flags of an SQE, without `IOSQE_`.
const SQE: [(u32, &str); 7] = flags!("IOSQE_": IOSQE_FIXED_FILE IOSQE_IO_DRAIN IOSQE_IO_LINK IOSQE_IO_HARDLINK
    IOSQE_ASYNC IOSQE_BUFFER_SELECT IOSQE_CQE_SKIP_SUCCESS);

/// The flags of a CQE, without `IORING_CQE_F_`.
const CQE: [(u32, &str); 5] = [
    (IORING_CQE_F_BUFFER, "BUFFER"),
    (IORING_CQE_F_MORE, "MORE"),
    (IORING_CQE_F_SOCK_NONEMPTY, "SOCK_NONEMPTY"),
    (IORING_CQE_F_NOTIF, "NOTIF"),
    (anyring_abi::IORING_CQE_F_BUF_MORE, "BUF_MORE"),
];

/// The events of poll(2) and epoll(7), without `POLL` and `EPOLL`.
const POLL: [(u32, &str); 14] = [
    (0x1, "IN"),
    (0x2, "PRI"),
    (0x4, "OUT"),
    (0x8, "ERR"),
    (0x10, "HUP"),
    (0x20, "NVAL"),
    (0x40, "RDNORM"),
    (0x80, "RDBAND"),
    (0x100, "WRNORM"),
    (0x200, "WRBAND"),
    (0x2000, "RDHUP"),
    (1 << 28, "EXCLUSIVE"),
    (1 << 30, "ONESHOT"),
    (1 << 31, "ET"),
];

/// The names of the bits, separated by `|`, and the rest as a number; "none" for 0.
fn names(bits: u32, known: &[(u32, &str)]) -> String {
    let left = known.iter().fold(bits, |left, (bit, _)| left & !bit);
    let mut names: Vec<_> =
        known.iter().filter(|(bit, _)| bits & bit != 0).map(|(_, name)| (*name).to_owned()).collect();
    if left != 0 {
        names.push(format!("{left:#x}"));
    }
    if names.is_empty() {
        "none".to_owned()
    } else {
        names.join("|")
    }
}

/// `IORING_SETUP_*`.
pub fn setup_flags(flags: u32) -> String {
    names(flags, &SETUP)
}

/// `IORING_ENTER_*`.
pub fn enter_flags(flags: u32) -> String {
    names(flags, &ENTER)
}

/// `IOSQE_*`.
pub fn sqe_flags(flags: u32) -> String {
    names(flags, &SQE)
}

/// `IORING_CQE_F_*`, with the buffer's number where there is one: `BUFFER(3)|MORE`.
pub fn cqe_flags(flags: u32) -> String {
    if flags & IORING_CQE_F_BUFFER == 0 {
        return names(flags, &CQE);
    }
    let others = flags & 0xffff & !IORING_CQE_F_BUFFER;
    let buffer = format!("BUFFER({})", flags >> anyring_abi::IORING_CQE_BUFFER_SHIFT);
    match others {
        0 => buffer,
        _ => format!("{buffer}|{}", names(others, &CQE)),
    }
}

/// The events that a request waits for.
pub fn poll_events(events: u32) -> String {
    names(events, &POLL)
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyring_abi::{IORING_SETUP_CLAMP, IORING_SETUP_CQSIZE};

    #[test]
    fn bits_have_their_names() {
        assert_eq!(setup_flags(IORING_SETUP_CQSIZE | IORING_SETUP_CLAMP), "CQSIZE|CLAMP");
        assert_eq!(setup_flags(0), "none");
        assert_eq!(setup_flags(1 << 30), "0x40000000");
        assert_eq!(setup_flags(0x3108), "CQSIZE|COOP_TASKRUN|SINGLE_ISSUER|DEFER_TASKRUN");
        assert_eq!(enter_flags(9), "GETEVENTS|EXT_ARG");
        assert_eq!(sqe_flags(0x14), "IO_LINK|ASYNC");
        assert_eq!(cqe_flags(2), "MORE");
        assert_eq!((cqe_flags(0x3_0003), cqe_flags(0x1)), ("BUFFER(3)|MORE".to_owned(), "BUFFER(0)".to_owned()));
        assert_eq!(poll_events(0x201b), "IN|PRI|ERR|HUP|RDHUP");
    }
}
