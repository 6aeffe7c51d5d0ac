//! The opcodes of `struct io_uring_sqe`, as Linux 7.3 numbers them (`include/uapi/linux/io_uring.h`).

use linux_raw_sys::io_uring::io_uring_op as kernel;

/// Defines the opcodes by the kernel's constants, one line for each.
macro_rules! opcodes {
    ($($variant:ident = $constant:ident $(= $number:literal)?,)*) => {
        /// One io_uring operation. Source: io_uring_enter(2).
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u8)]
        #[allow(missing_docs)] // each variant is the constant of the same name, documented in io_uring_enter(2)
        pub enum Opcode {
            $($variant = number!($constant $($number)?),)*
        }

        impl Opcode {
            /// Every opcode, indexed by its number.
            pub const ALL: [Opcode; [$(Opcode::$variant),*].len()] = [$(Opcode::$variant),*];

            /// Returns the constant's name in the kernel's header without `IORING_OP_`, for example `READ_FIXED`.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Opcode::$variant => stringify!($constant).split_at("IORING_OP_".len()).1,)*
                }
            }
        }
    };
}

/// Returns an opcode's number: the constant of linux-raw-sys, or a literal from a later header.
macro_rules! number {
    ($constant:ident) => {
        kernel::$constant as u8
    };
    ($constant:ident $number:literal) => {
        $number
    };
}

opcodes! {
    Nop = IORING_OP_NOP,
    Readv = IORING_OP_READV,
    Writev = IORING_OP_WRITEV,
    Fsync = IORING_OP_FSYNC,
    ReadFixed = IORING_OP_READ_FIXED,
    WriteFixed = IORING_OP_WRITE_FIXED,
    PollAdd = IORING_OP_POLL_ADD,
    PollRemove = IORING_OP_POLL_REMOVE,
    SyncFileRange = IORING_OP_SYNC_FILE_RANGE,
    Sendmsg = IORING_OP_SENDMSG,
    Recvmsg = IORING_OP_RECVMSG,
    Timeout = IORING_OP_TIMEOUT,
    TimeoutRemove = IORING_OP_TIMEOUT_REMOVE,
    Accept = IORING_OP_ACCEPT,
    AsyncCancel = IORING_OP_ASYNC_CANCEL,
    LinkTimeout = IORING_OP_LINK_TIMEOUT,
    Connect = IORING_OP_CONNECT,
    Fallocate = IORING_OP_FALLOCATE,
    Openat = IORING_OP_OPENAT,
    Close = IORING_OP_CLOSE,
    FilesUpdate = IORING_OP_FILES_UPDATE,
    Statx = IORING_OP_STATX,
    Read = IORING_OP_READ,
    Write = IORING_OP_WRITE,
    Fadvise = IORING_OP_FADVISE,
    Madvise = IORING_OP_MADVISE,
    Send = IORING_OP_SEND,
    Recv = IORING_OP_RECV,
    Openat2 = IORING_OP_OPENAT2,
    EpollCtl = IORING_OP_EPOLL_CTL,
    Splice = IORING_OP_SPLICE,
    ProvideBuffers = IORING_OP_PROVIDE_BUFFERS,
    RemoveBuffers = IORING_OP_REMOVE_BUFFERS,
    Tee = IORING_OP_TEE,
    Shutdown = IORING_OP_SHUTDOWN,
    Renameat = IORING_OP_RENAMEAT,
    Unlinkat = IORING_OP_UNLINKAT,
    Mkdirat = IORING_OP_MKDIRAT,
    Symlinkat = IORING_OP_SYMLINKAT,
    Linkat = IORING_OP_LINKAT,
    MsgRing = IORING_OP_MSG_RING,
    Fsetxattr = IORING_OP_FSETXATTR,
    Setxattr = IORING_OP_SETXATTR,
    Fgetxattr = IORING_OP_FGETXATTR,
    Getxattr = IORING_OP_GETXATTR,
    Socket = IORING_OP_SOCKET,
    UringCmd = IORING_OP_URING_CMD,
    SendZc = IORING_OP_SEND_ZC,
    SendmsgZc = IORING_OP_SENDMSG_ZC,
    ReadMultishot = IORING_OP_READ_MULTISHOT,
    Waitid = IORING_OP_WAITID,
    FutexWait = IORING_OP_FUTEX_WAIT,
    FutexWake = IORING_OP_FUTEX_WAKE,
    FutexWaitv = IORING_OP_FUTEX_WAITV,
    FixedFdInstall = IORING_OP_FIXED_FD_INSTALL,
    Ftruncate = IORING_OP_FTRUNCATE,
    Bind = IORING_OP_BIND,
    Listen = IORING_OP_LISTEN,
    RecvZc = IORING_OP_RECV_ZC,
    EpollWait = IORING_OP_EPOLL_WAIT,
    ReadvFixed = IORING_OP_READV_FIXED,
    WritevFixed = IORING_OP_WRITEV_FIXED,
    Pipe = IORING_OP_PIPE,
    Nop128 = IORING_OP_NOP128 = 63,
    UringCmd128 = IORING_OP_URING_CMD128 = 64,
}

impl Opcode {
    /// Number of opcodes: the value of `IORING_OP_LAST`.
    pub const COUNT: usize = Self::ALL.len();

    /// Returns the opcode that an SQE's `opcode` byte names, if Linux 7.3 has it.
    #[inline]
    pub fn from_u8(byte: u8) -> Option<Opcode> {
        Self::ALL.get(usize::from(byte)).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_is_in_numeric_order_and_has_the_headers_names() {
        for (number, opcode) in Opcode::ALL.iter().enumerate() {
            assert_eq!(*opcode as usize, number);
        }
        assert_eq!(Opcode::from_u8(Opcode::COUNT as u8), None);
        assert_eq!([Opcode::Nop, Opcode::ReadFixed].map(Opcode::name), ["NOP", "READ_FIXED"]);
    }
}
