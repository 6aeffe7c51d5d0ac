//! The opcodes of `struct io_uring_sqe`, as Linux 6.18 numbers them (`include/uapi/linux/io_uring.h`).

/// One io_uring operation. Source: io_uring_enter(2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
#[allow(missing_docs)] // each variant is the IORING_OP_ constant of the same name, documented in io_uring_enter(2)
pub enum Opcode {
    Nop = 0,
    Readv = 1,
    Writev = 2,
    Fsync = 3,
    ReadFixed = 4,
    WriteFixed = 5,
    PollAdd = 6,
    PollRemove = 7,
    SyncFileRange = 8,
    Sendmsg = 9,
    Recvmsg = 10,
    Timeout = 11,
    TimeoutRemove = 12,
    Accept = 13,
    AsyncCancel = 14,
    LinkTimeout = 15,
    Connect = 16,
    Fallocate = 17,
    Openat = 18,
    Close = 19,
    FilesUpdate = 20,
    Statx = 21,
    Read = 22,
    Write = 23,
    Fadvise = 24,
    Madvise = 25,
    Send = 26,
    Recv = 27,
    Openat2 = 28,
    EpollCtl = 29,
    Splice = 30,
    ProvideBuffers = 31,
    RemoveBuffers = 32,
    Tee = 33,
    Shutdown = 34,
    Renameat = 35,
    Unlinkat = 36,
    Mkdirat = 37,
    Symlinkat = 38,
    Linkat = 39,
    MsgRing = 40,
    Fsetxattr = 41,
    Setxattr = 42,
    Fgetxattr = 43,
    Getxattr = 44,
    Socket = 45,
    UringCmd = 46,
    SendZc = 47,
    SendmsgZc = 48,
    ReadMultishot = 49,
    Waitid = 50,
    FutexWait = 51,
    FutexWake = 52,
    FutexWaitv = 53,
    FixedFdInstall = 54,
    Ftruncate = 55,
    Bind = 56,
    Listen = 57,
    RecvZc = 58,
    EpollWait = 59,
    ReadvFixed = 60,
    WritevFixed = 61,
    Pipe = 62,
}

impl Opcode {
    /// How many opcodes there are: the value of `IORING_OP_LAST`.
    pub const COUNT: usize = Self::ALL.len();

    /// Every opcode, indexed by its number.
    pub const ALL: [Opcode; 63] = [
        Opcode::Nop,
        Opcode::Readv,
        Opcode::Writev,
        Opcode::Fsync,
        Opcode::ReadFixed,
        Opcode::WriteFixed,
        Opcode::PollAdd,
        Opcode::PollRemove,
        Opcode::SyncFileRange,
        Opcode::Sendmsg,
        Opcode::Recvmsg,
        Opcode::Timeout,
        Opcode::TimeoutRemove,
        Opcode::Accept,
        Opcode::AsyncCancel,
        Opcode::LinkTimeout,
        Opcode::Connect,
        Opcode::Fallocate,
        Opcode::Openat,
        Opcode::Close,
        Opcode::FilesUpdate,
        Opcode::Statx,
        Opcode::Read,
        Opcode::Write,
        Opcode::Fadvise,
        Opcode::Madvise,
        Opcode::Send,
        Opcode::Recv,
        Opcode::Openat2,
        Opcode::EpollCtl,
        Opcode::Splice,
        Opcode::ProvideBuffers,
        Opcode::RemoveBuffers,
        Opcode::Tee,
        Opcode::Shutdown,
        Opcode::Renameat,
        Opcode::Unlinkat,
        Opcode::Mkdirat,
        Opcode::Symlinkat,
        Opcode::Linkat,
        Opcode::MsgRing,
        Opcode::Fsetxattr,
        Opcode::Setxattr,
        Opcode::Fgetxattr,
        Opcode::Getxattr,
        Opcode::Socket,
        Opcode::UringCmd,
        Opcode::SendZc,
        Opcode::SendmsgZc,
        Opcode::ReadMultishot,
        Opcode::Waitid,
        Opcode::FutexWait,
        Opcode::FutexWake,
        Opcode::FutexWaitv,
        Opcode::FixedFdInstall,
        Opcode::Ftruncate,
        Opcode::Bind,
        Opcode::Listen,
        Opcode::RecvZc,
        Opcode::EpollWait,
        Opcode::ReadvFixed,
        Opcode::WritevFixed,
        Opcode::Pipe,
    ];

    /// The opcode that an SQE's `opcode` byte names, if Linux 6.18 has it.
    #[inline]
    pub fn from_u8(byte: u8) -> Option<Opcode> {
        Self::ALL.get(usize::from(byte)).copied()
    }

    /// The constant's name in the kernel's header without `IORING_OP_`, for example `READ_FIXED`.
    pub const fn name(self) -> &'static str {
        match self {
            Opcode::Nop => "NOP",
            Opcode::Readv => "READV",
            Opcode::Writev => "WRITEV",
            Opcode::Fsync => "FSYNC",
            Opcode::ReadFixed => "READ_FIXED",
            Opcode::WriteFixed => "WRITE_FIXED",
            Opcode::PollAdd => "POLL_ADD",
            Opcode::PollRemove => "POLL_REMOVE",
            Opcode::SyncFileRange => "SYNC_FILE_RANGE",
            Opcode::Sendmsg => "SENDMSG",
            Opcode::Recvmsg => "RECVMSG",
            Opcode::Timeout => "TIMEOUT",
            Opcode::TimeoutRemove => "TIMEOUT_REMOVE",
            Opcode::Accept => "ACCEPT",
            Opcode::AsyncCancel => "ASYNC_CANCEL",
            Opcode::LinkTimeout => "LINK_TIMEOUT",
            Opcode::Connect => "CONNECT",
            Opcode::Fallocate => "FALLOCATE",
            Opcode::Openat => "OPENAT",
            Opcode::Close => "CLOSE",
            Opcode::FilesUpdate => "FILES_UPDATE",
            Opcode::Statx => "STATX",
            Opcode::Read => "READ",
            Opcode::Write => "WRITE",
            Opcode::Fadvise => "FADVISE",
            Opcode::Madvise => "MADVISE",
            Opcode::Send => "SEND",
            Opcode::Recv => "RECV",
            Opcode::Openat2 => "OPENAT2",
            Opcode::EpollCtl => "EPOLL_CTL",
            Opcode::Splice => "SPLICE",
            Opcode::ProvideBuffers => "PROVIDE_BUFFERS",
            Opcode::RemoveBuffers => "REMOVE_BUFFERS",
            Opcode::Tee => "TEE",
            Opcode::Shutdown => "SHUTDOWN",
            Opcode::Renameat => "RENAMEAT",
            Opcode::Unlinkat => "UNLINKAT",
            Opcode::Mkdirat => "MKDIRAT",
            Opcode::Symlinkat => "SYMLINKAT",
            Opcode::Linkat => "LINKAT",
            Opcode::MsgRing => "MSG_RING",
            Opcode::Fsetxattr => "FSETXATTR",
            Opcode::Setxattr => "SETXATTR",
            Opcode::Fgetxattr => "FGETXATTR",
            Opcode::Getxattr => "GETXATTR",
            Opcode::Socket => "SOCKET",
            Opcode::UringCmd => "URING_CMD",
            Opcode::SendZc => "SEND_ZC",
            Opcode::SendmsgZc => "SENDMSG_ZC",
            Opcode::ReadMultishot => "READ_MULTISHOT",
            Opcode::Waitid => "WAITID",
            Opcode::FutexWait => "FUTEX_WAIT",
            Opcode::FutexWake => "FUTEX_WAKE",
            Opcode::FutexWaitv => "FUTEX_WAITV",
            Opcode::FixedFdInstall => "FIXED_FD_INSTALL",
            Opcode::Ftruncate => "FTRUNCATE",
            Opcode::Bind => "BIND",
            Opcode::Listen => "LISTEN",
            Opcode::RecvZc => "RECV_ZC",
            Opcode::EpollWait => "EPOLL_WAIT",
            Opcode::ReadvFixed => "READV_FIXED",
            Opcode::WritevFixed => "WRITEV_FIXED",
            Opcode::Pipe => "PIPE",
        }
    }
}

const _: () = {
    use linux_raw_sys::io_uring::io_uring_op as kernel;
    assert!(Opcode::Nop as u32 == kernel::IORING_OP_NOP as u32);
    assert!(Opcode::Readv as u32 == kernel::IORING_OP_READV as u32);
    assert!(Opcode::Writev as u32 == kernel::IORING_OP_WRITEV as u32);
    assert!(Opcode::Fsync as u32 == kernel::IORING_OP_FSYNC as u32);
    assert!(Opcode::ReadFixed as u32 == kernel::IORING_OP_READ_FIXED as u32);
    assert!(Opcode::WriteFixed as u32 == kernel::IORING_OP_WRITE_FIXED as u32);
    assert!(Opcode::PollAdd as u32 == kernel::IORING_OP_POLL_ADD as u32);
    assert!(Opcode::PollRemove as u32 == kernel::IORING_OP_POLL_REMOVE as u32);
    assert!(Opcode::SyncFileRange as u32 == kernel::IORING_OP_SYNC_FILE_RANGE as u32);
    assert!(Opcode::Sendmsg as u32 == kernel::IORING_OP_SENDMSG as u32);
    assert!(Opcode::Recvmsg as u32 == kernel::IORING_OP_RECVMSG as u32);
    assert!(Opcode::Timeout as u32 == kernel::IORING_OP_TIMEOUT as u32);
    assert!(Opcode::TimeoutRemove as u32 == kernel::IORING_OP_TIMEOUT_REMOVE as u32);
    assert!(Opcode::Accept as u32 == kernel::IORING_OP_ACCEPT as u32);
    assert!(Opcode::AsyncCancel as u32 == kernel::IORING_OP_ASYNC_CANCEL as u32);
    assert!(Opcode::LinkTimeout as u32 == kernel::IORING_OP_LINK_TIMEOUT as u32);
    assert!(Opcode::Connect as u32 == kernel::IORING_OP_CONNECT as u32);
    assert!(Opcode::Fallocate as u32 == kernel::IORING_OP_FALLOCATE as u32);
    assert!(Opcode::Openat as u32 == kernel::IORING_OP_OPENAT as u32);
    assert!(Opcode::Close as u32 == kernel::IORING_OP_CLOSE as u32);
    assert!(Opcode::FilesUpdate as u32 == kernel::IORING_OP_FILES_UPDATE as u32);
    assert!(Opcode::Statx as u32 == kernel::IORING_OP_STATX as u32);
    assert!(Opcode::Read as u32 == kernel::IORING_OP_READ as u32);
    assert!(Opcode::Write as u32 == kernel::IORING_OP_WRITE as u32);
    assert!(Opcode::Fadvise as u32 == kernel::IORING_OP_FADVISE as u32);
    assert!(Opcode::Madvise as u32 == kernel::IORING_OP_MADVISE as u32);
    assert!(Opcode::Send as u32 == kernel::IORING_OP_SEND as u32);
    assert!(Opcode::Recv as u32 == kernel::IORING_OP_RECV as u32);
    assert!(Opcode::Openat2 as u32 == kernel::IORING_OP_OPENAT2 as u32);
    assert!(Opcode::EpollCtl as u32 == kernel::IORING_OP_EPOLL_CTL as u32);
    assert!(Opcode::Splice as u32 == kernel::IORING_OP_SPLICE as u32);
    assert!(Opcode::ProvideBuffers as u32 == kernel::IORING_OP_PROVIDE_BUFFERS as u32);
    assert!(Opcode::RemoveBuffers as u32 == kernel::IORING_OP_REMOVE_BUFFERS as u32);
    assert!(Opcode::Tee as u32 == kernel::IORING_OP_TEE as u32);
    assert!(Opcode::Shutdown as u32 == kernel::IORING_OP_SHUTDOWN as u32);
    assert!(Opcode::Renameat as u32 == kernel::IORING_OP_RENAMEAT as u32);
    assert!(Opcode::Unlinkat as u32 == kernel::IORING_OP_UNLINKAT as u32);
    assert!(Opcode::Mkdirat as u32 == kernel::IORING_OP_MKDIRAT as u32);
    assert!(Opcode::Symlinkat as u32 == kernel::IORING_OP_SYMLINKAT as u32);
    assert!(Opcode::Linkat as u32 == kernel::IORING_OP_LINKAT as u32);
    assert!(Opcode::MsgRing as u32 == kernel::IORING_OP_MSG_RING as u32);
    assert!(Opcode::Fsetxattr as u32 == kernel::IORING_OP_FSETXATTR as u32);
    assert!(Opcode::Setxattr as u32 == kernel::IORING_OP_SETXATTR as u32);
    assert!(Opcode::Fgetxattr as u32 == kernel::IORING_OP_FGETXATTR as u32);
    assert!(Opcode::Getxattr as u32 == kernel::IORING_OP_GETXATTR as u32);
    assert!(Opcode::Socket as u32 == kernel::IORING_OP_SOCKET as u32);
    assert!(Opcode::UringCmd as u32 == kernel::IORING_OP_URING_CMD as u32);
    assert!(Opcode::SendZc as u32 == kernel::IORING_OP_SEND_ZC as u32);
    assert!(Opcode::SendmsgZc as u32 == kernel::IORING_OP_SENDMSG_ZC as u32);
    assert!(Opcode::ReadMultishot as u32 == kernel::IORING_OP_READ_MULTISHOT as u32);
    assert!(Opcode::Waitid as u32 == kernel::IORING_OP_WAITID as u32);
    assert!(Opcode::FutexWait as u32 == kernel::IORING_OP_FUTEX_WAIT as u32);
    assert!(Opcode::FutexWake as u32 == kernel::IORING_OP_FUTEX_WAKE as u32);
    assert!(Opcode::FutexWaitv as u32 == kernel::IORING_OP_FUTEX_WAITV as u32);
    assert!(Opcode::FixedFdInstall as u32 == kernel::IORING_OP_FIXED_FD_INSTALL as u32);
    assert!(Opcode::Ftruncate as u32 == kernel::IORING_OP_FTRUNCATE as u32);
    assert!(Opcode::Bind as u32 == kernel::IORING_OP_BIND as u32);
    assert!(Opcode::Listen as u32 == kernel::IORING_OP_LISTEN as u32);
    assert!(Opcode::RecvZc as u32 == kernel::IORING_OP_RECV_ZC as u32);
    assert!(Opcode::EpollWait as u32 == kernel::IORING_OP_EPOLL_WAIT as u32);
    assert!(Opcode::ReadvFixed as u32 == kernel::IORING_OP_READV_FIXED as u32);
    assert!(Opcode::WritevFixed as u32 == kernel::IORING_OP_WRITEV_FIXED as u32);
    assert!(Opcode::Pipe as u32 == kernel::IORING_OP_PIPE as u32);
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_is_in_numeric_order() {
        for (number, opcode) in Opcode::ALL.iter().enumerate() {
            assert_eq!(*opcode as usize, number);
        }
        assert_eq!(Opcode::from_u8(Opcode::COUNT as u8), None);
    }
}
