//! Changes transfers for chaos: makes them shorter than the program asked, or makes them to other memory.
//!
//! The program's data stays right: a shortened transfer behaves as if the program had asked for the first bytes only.

use super::fs::Fs;
use super::net::{socket_option, Net};
use super::{Direction, Op, Operation};
use crate::descriptors::status_flags;
use crate::os::file_status;

/// `sizeof(struct statx)` (linux/stat.h).
const STATX_BYTES: usize = 256;
/// The most bytes that one write to a pipe transfers as a whole: PIPE_BUF of pipe(7).
const AT_ONCE_BYTES: usize = 4096;

impl Op {
    /// Number of bytes that the operation asks for, if fewer may be transferred without an error. `None` for a message,
    /// for data of a fixed size, and if the program asked for all bytes. 1 if the chosen buffer sets the size.
    pub fn divisible_bytes(&self, fd: i32) -> Option<usize> {
        let (bytes, writes) = match self {
            Op::Rw(rw) => rw.divisible_bytes()?,
            Op::Net(Net::Transfer(transfer)) => transfer.divisible_bytes()?,
            _ => return None,
        };
        is_divisible(fd, writes, bytes).then_some(bytes)
    }

    /// The direction of the operation's data, and the addresses and lengths in program memory. `None` if the operation
    /// chooses its buffers. `None` also for zero-copy sends, which use the memory even after their CQE.
    pub fn data(&self) -> Option<(Direction, Vec<[usize; 2]>)> {
        match self {
            Op::Rw(op) if !op.selects() => Some((op.direction(), op.ranges().to_vec())),
            Op::Net(Net::Transfer(op)) => Some((op.direction(), op.plain_data()?)),
            _ => None,
        }
    }

    /// Moves the operation's data to memory from `to` on, one range after the other.
    pub fn redirect(&mut self, to: usize) {
        match self {
            Op::Rw(op) => redirect_ranges(op.ranges_mut(), to),
            Op::Net(Net::Transfer(op)) => op.redirect(to),
            _ => {}
        }
    }

    /// Calls `place` for each part of program memory that the operation fills or that a send reads, except the data.
    /// `place` gets the part's name in the manual, its address and its bytes. It returns the address to use from now
    /// on. The parts and their order never change. Multishot requests have no such parts. Requests that are made within
    /// io_uring_enter(2) have none either: GETSOCKOPT, PIPE.
    pub fn each_part(&mut self, place: &mut dyn FnMut(&'static str, usize, usize) -> usize) {
        match self {
            Op::Net(Net::Accept(op)) => op.each_part(place),
            Op::Net(Net::Transfer(op)) => op.each_part(place),
            Op::Fs(Fs::Statx { statxbuf, .. }) => {
                *statxbuf = place("statxbuf", *statxbuf as usize, STATX_BYTES) as u64
            }
            Op::EpollWait(op) => op.each_part(place),
            Op::Waitid(op) => op.each_part(place),
            Op::Xattr(op) => op.each_part(place),
            _ => {}
        }
    }

    /// True if the operation fills some of these parts even when it fails.
    pub fn fills_on_error(&self) -> bool {
        matches!(self, Op::Waitid(_))
    }

    /// Limits the operation to its first `bytes` bytes.
    pub fn cut(&mut self, bytes: usize) {
        match self {
            Op::Rw(rw) => rw.cut(bytes),
            Op::Net(Net::Transfer(transfer)) => transfer.cut(bytes),
            _ => {}
        }
    }
}

/// True if a transfer of `bytes` can come out short on this file.
fn is_divisible(fd: i32, writes: bool, bytes: usize) -> bool {
    let Ok(status) = file_status(fd) else { return false };
    match status.kind {
        // O_DIRECT transfers whole sectors; a pipe of packets has O_DIRECT, too (pipe(2)).
        libc::S_IFREG | libc::S_IFBLK => !is_direct(fd),
        libc::S_IFIFO => !is_direct(fd) && (!writes || bytes > AT_ONCE_BYTES),
        libc::S_IFSOCK => socket_option(fd, libc::SO_TYPE) == Ok(libc::SOCK_STREAM),
        _ => false,
    }
}

/// True if transfers on this file use O_DIRECT.
pub fn is_direct(fd: i32) -> bool {
    status_flags(fd).is_ok_and(|flags| flags & libc::O_DIRECT != 0)
}

/// Cuts ranges of memory so that the first `bytes` bytes remain.
pub(super) fn cut_ranges(ranges: &mut [[usize; 2]], bytes: usize) {
    let mut left = bytes;
    for [_, length] in ranges {
        *length = left.min(*length);
        left -= *length;
    }
}

/// Moves the ranges to memory from `to` on, one after the other.
pub(super) fn redirect_ranges(ranges: &mut [[usize; 2]], to: usize) {
    let mut next = to;
    for [address, length] in ranges {
        *address = next;
        next += *length;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;

    #[test]
    fn messages_and_records_are_not_divided() {
        let (stream, _peer) = std::os::unix::net::UnixStream::pair().expect("sockets");
        let (datagrams, _other) = std::os::unix::net::UnixDatagram::pair().expect("sockets");
        let (pipe, writer) = std::io::pipe().expect("a pipe");
        let file = std::fs::File::open("/proc/self/exe").expect("a file");
        let null = std::fs::File::open("/dev/null").expect("a device");
        for (fd, writes, bytes, divisible) in [
            (stream.as_raw_fd(), true, 2, true),
            (datagrams.as_raw_fd(), false, 9_000, false),
            (pipe.as_raw_fd(), false, 2, true),
            (writer.as_raw_fd(), true, AT_ONCE_BYTES, false),
            (writer.as_raw_fd(), true, AT_ONCE_BYTES + 1, true),
            (file.as_raw_fd(), false, 2, true),
            (null.as_raw_fd(), false, 2, false),
            (-1, false, 2, false),
        ] {
            assert_eq!(is_divisible(fd, writes, bytes), divisible, "{fd} {writes} {bytes}");
        }
    }

    #[test]
    fn ranges_keep_their_beginning() {
        let mut ranges = [[1000, 10], [2000, 10], [3000, 10]];
        cut_ranges(&mut ranges, 13);
        assert_eq!(ranges, [[1000, 10], [2000, 3], [3000, 0]]);
        redirect_ranges(&mut ranges, 500);
        assert_eq!(ranges, [[500, 10], [510, 3], [513, 0]]);
    }
}
