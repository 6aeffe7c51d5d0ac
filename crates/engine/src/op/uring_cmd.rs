//! URING_CMD: commands to the file that the SQE names. Sockets have several commands, block devices one. A command that
//! only a driver has fails as on a kernel without that driver.

use super::operation::OnRing;
use super::{call, stamps, Context, Direction, Operation, Punt, Verdict};
use crate::os::{file_status, version};
use crate::Errno;
use anyring_abi::{
    Sqe, IORING_CQE_F_32, IORING_URING_CMD_FIXED, IORING_URING_CMD_MULTISHOT, IOSQE_BUFFER_SELECT,
    SOCKET_URING_OP_GETSOCKNAME, SOCKET_URING_OP_GETSOCKOPT, SOCKET_URING_OP_SETSOCKOPT, SOCKET_URING_OP_SIOCINQ,
    SOCKET_URING_OP_SIOCOUTQ, SOCKET_URING_OP_TX_TIMESTAMP,
};

/// `BLOCK_URING_CMD_DISCARD` of linux/blkdev.h.
const DISCARD: u32 = 0x1200;
/// `BLKDISCARD` of linux/fs.h.
const BLKDISCARD: usize = 0x1277;

/// A command with the fields that it may need. Source: io_uring_enter(2), IORING_OP_URING_CMD; io_uring/uring_cmd.c.
#[derive(Debug, Clone, Copy)]
pub struct UringCmd {
    /// `cmd_op`, whose meaning depends on the file.
    command: u32,
    /// `level` and `optname` of a socket option, the address of a buffer for a name, or the first byte to discard. The
    /// seconds of a timestamp.
    addr: u64,
    /// `optval`, the address of a name's length, or the number of bytes to discard. A timestamp's nanoseconds.
    addr3: u64,
    /// `optlen`, or 1 to ask for the peer's name.
    file_index: u32,
    /// `len` and the flags are zero, as they must be for a discard and for a name.
    rest_is_zero: bool,
}

impl UringCmd {
    /// Reads the SQE. Refuses multishot commands: only drivers have them, and a socket's would never complete.
    pub fn prep(sqe: &Sqe) -> Result<UringCmd, Errno> {
        let selects = sqe.flags & IOSQE_BUFFER_SELECT != 0;
        let known = sqe.op_flags & !(IORING_URING_CMD_FIXED | IORING_URING_CMD_MULTISHOT) == 0;
        if sqe.off >> 32 != 0 || !known || selects || sqe.op_flags & IORING_URING_CMD_MULTISHOT != 0 {
            return Err(Errno::INVAL);
        }
        Ok(UringCmd {
            command: sqe.off as u32,
            addr: sqe.addr,
            addr3: sqe.addr3,
            file_index: sqe.file_index,
            rest_is_zero: sqe.len == 0 && sqe.op_flags == 0,
        })
    }

    /// Carries out a command to a socket. Source: `io_uring_cmd_sock` in io_uring/cmd_net.c.
    fn of_socket(&self, fd: i32) -> Result<usize, Errno> {
        let (level, name) = (self.addr as u32 as i32, (self.addr >> 32) as usize);
        let (socket, value, bytes) = (fd as usize, self.addr3 as usize, self.file_index);
        match self.command {
            SOCKET_URING_OP_SETSOCKOPT => {
                call(libc::SYS_setsockopt, [socket, level as usize, name, value, bytes as usize, 0])
            }
            SOCKET_URING_OP_GETSOCKOPT if level == libc::SOL_SOCKET => {
                let mut room = bytes;
                let args = [socket, level as usize, name, value, &raw mut room as usize, 0];
                call(libc::SYS_getsockopt, args).map(|_| room as usize)
            }
            SOCKET_URING_OP_SIOCINQ | SOCKET_URING_OP_SIOCOUTQ if is_internet(domain(fd)?) => {
                let request = if self.command == SOCKET_URING_OP_SIOCINQ { libc::FIONREAD } else { libc::TIOCOUTQ };
                let mut count = 0i32;
                call(libc::SYS_ioctl, [socket, request as usize, &raw mut count as usize, 0, 0, 0])?;
                Ok(count as usize)
            }
            SOCKET_URING_OP_GETSOCKNAME if version::has_later_names() => {
                domain(fd)?;
                let number = match bytes {
                    0 if self.rest_is_zero => libc::SYS_getsockname,
                    1 if self.rest_is_zero => libc::SYS_getpeername,
                    _ => return Err(Errno::INVAL),
                };
                call(number, [socket, self.addr as usize, value, 0, 0, 0])
            }
            // Timestamps come only in CQEs of 32 bytes (`issue_on`).
            SOCKET_URING_OP_TX_TIMESTAMP if is_internet(domain(fd)?) => Err(Errno::INVAL),
            _ => domain(fd).and(Err(Errno::OPNOTSUPP)),
        }
    }

    /// Posts the next timestamp. The kernel's request ends only when it is cancelled.
    fn next_stamp(&mut self, fd: i32) -> Verdict {
        match domain(fd).map(is_internet) {
            Ok(true) => {}
            Ok(false) => return Verdict::error(Errno::OPNOTSUPP),
            Err(error) => return Verdict::error(error),
        }
        match stamps::take(fd) {
            Ok(Some(stamp)) => {
                [self.addr, self.addr3] = stamp.time;
                Verdict::Shot { result: stamp.key, flags: stamp.flags | IORING_CQE_F_32 }
            }
            Ok(None) => Verdict::WouldBlock(Direction::Read), // an event reports errors in any direction
            Err(error) => Verdict::error(error),
        }
    }

    fn of_other(&self, context: Context) -> Verdict {
        let status = match file_status(context.fd) {
            Ok(status) => status,
            Err(error) => return Verdict::error(error),
        };
        match status.kind {
            libc::S_IFBLK if self.command != DISCARD || !self.rest_is_zero || self.file_index != 0 => {
                Verdict::error(Errno::INVAL)
            }
            libc::S_IFBLK if context.nonblock => Verdict::NeedsWorker(Punt::NoForm),
            libc::S_IFBLK => {
                let range = [self.addr, self.addr3];
                Verdict::of(call(
                    libc::SYS_ioctl,
                    [context.fd as usize, BLKDISCARD, range.as_ptr() as usize, 0, 0, 0],
                ))
            }
            // `uring_cmd_null` in drivers/char/mem.c
            libc::S_IFCHR if status.special == rustix::fs::makedev(1, 3) => Verdict::Done(0),
            _ => Verdict::error(Errno::OPNOTSUPP),
        }
    }
}

impl Operation for UringCmd {
    fn issue(&mut self, context: Context) -> Verdict {
        match self.of_socket(context.fd) {
            Err(Errno::NOTSOCK) => self.of_other(context),
            answer => Verdict::of(answer),
        }
    }

    fn issue_on(&mut self, ring: &mut impl OnRing, fd: i32) -> Verdict {
        if self.is_multishot() && ring.has_large_cqes() && domain(fd) != Err(Errno::NOTSOCK) {
            return self.next_stamp(fd);
        }
        self.issue(Context { fd, nonblock: true })
    }

    fn is_multishot(&self) -> bool {
        self.command == SOCKET_URING_OP_TX_TIMESTAMP
    }

    fn extra(&self) -> Option<[u64; 2]> {
        self.is_multishot().then_some([self.addr, self.addr3])
    }

    fn refused_by_ring(&self) -> Option<Errno> {
        Some(Errno::OPNOTSUPP)
    }
}

/// True if sockets of this domain forward ioctls to their protocol.
fn is_internet(domain: i32) -> bool {
    matches!(domain, libc::AF_INET | libc::AF_INET6)
}

/// Returns a socket's address family.
fn domain(fd: i32) -> Result<i32, Errno> {
    let (mut domain, mut bytes) = (0i32, 4u32);
    let (level, name) = (libc::SOL_SOCKET as usize, libc::SO_DOMAIN as usize);
    let args = [fd as usize, level, name, &raw mut domain as usize, &raw mut bytes as usize, 0];
    call(libc::SYS_getsockopt, args).map(|_| domain)
}
