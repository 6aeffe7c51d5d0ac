//! Transfers that are made shorter than asked, or to other memory: for chaos.
//!
//! The bytes that are left are transferred as if the program had asked for no more, so the data stays right.

use super::fs::Fs;
use super::net::{socket_option, Net};
use super::{Direction, Op, Operation};
use crate::descriptors::status_flags;
use crate::os::file_status;

/// `sizeof(struct statx)` (linux/stat.h).
const STATX_BYTES: usize = 256;
/// What pipe(7) has a write transfer as one: PIPE_BUF.
const AT_ONCE_BYTES: usize = 4096;

impl Op {
    /// How many bytes it asks for, if fewer may be transferred without an error: not what is one message, not what has one size,
    /// not what asks for all of it. 1 where that is left to the buffer that it chooses.
    pub fn divisible_bytes(&self, fd: i32) -> Option<usize> {
        let (bytes, writes) = match self {
            Op::Rw(rw) => rw.divisible_bytes()?,
            Op::Net(Net::Transfer(transfer)) => transfer.divisible_bytes()?,
            _ => return None,
        };
        is_divisible(fd, writes, bytes).then_some(bytes)
    }

    /// Which way its data goes, and where that is: addresses and lengths in program memory. None where it chooses its buffers, and
    /// for zero-copy sends, which have the memory beyond their CQE.
    pub fn data(&self) -> Option<(Direction, Vec<[usize; 2]>)> {
        match self {
            Op::Rw(op) if !op.selects() => Some((op.direction(), op.ranges().to_vec())),
            Op::Net(Net::Transfer(op)) => Some((op.direction(), op.plain_data()?)),
            _ => None,
        }
    }

    /// Has its data go to or come from `to` on, one range behind the other.
    pub fn redirect(&mut self, to: usize) {
        match self {
            Op::Rw(op) => redirect_ranges(op.ranges_mut(), to),
            Op::Net(Net::Transfer(op)) => op.redirect(to),
            _ => {}
        }
    }

    /// Calls `place` for each part of program memory that it fills, or a send reads, besides its data: with the manual's name, the
    /// address and the bytes of that part; the answer is where it is from now on. Always for the same parts, in the same order. Not
    /// of multishot requests, nor of what is made within io_uring_enter(2): GETSOCKOPT, PIPE.
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

    /// Some of that is filled with some errors, too.
    pub fn answers_errors(&self) -> bool {
        matches!(self, Op::Waitid(_))
    }

    /// Has it ask for so many bytes only.
    pub fn cut(&mut self, bytes: usize) {
        match self {
            Op::Rw(rw) => rw.cut(bytes),
            Op::Net(Net::Transfer(transfer)) => transfer.cut(bytes),
            _ => {}
        }
    }
}

/// Whether a transfer of so many bytes can come out short on this file.
fn is_divisible(fd: i32, writes: bool, bytes: usize) -> bool {
    let Ok(status) = file_status(fd) else { return false };
    match status.kind {
        // Of O_DIRECT, whole sectors; a pipe of packets has O_DIRECT, too (pipe(2)).
        libc::S_IFREG | libc::S_IFBLK => !is_direct(fd),
        libc::S_IFIFO => !is_direct(fd) && (!writes || bytes > AT_ONCE_BYTES),
        libc::S_IFSOCK => socket_option(fd, libc::SO_TYPE) == Ok(libc::SOCK_STREAM),
        _ => false,
    }
}

/// Whether transfers on this file go by O_DIRECT.
pub fn is_direct(fd: i32) -> bool {
    status_flags(fd).is_ok_and(|flags| flags & libc::O_DIRECT != 0)
}

/// The first `bytes` of ranges of memory.
pub(super) fn cut_ranges(ranges: &mut [[usize; 2]], bytes: usize) {
    let mut left = bytes;
    for [_, length] in ranges {
        *length = left.min(*length);
        left -= *length;
    }
}

/// Puts ranges one behind the other, from `to` on.
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
