//! The first call of a READ, WRITE, RECV or SEND without options, made directly from its SQE.

use super::net::transfer::{self, Transfer};
use super::net::Net;
use super::rw::{self, Rw, CURRENT_POSITION};
use super::{Context, Direction, Op};
use crate::memory::view::SqeRef;
use crate::Errno;
use anyring_abi::MAX_RW_COUNT;

/// A transfer of at least one byte, without flags, attributes or address, on a file that the SQE names by its number.
#[derive(Clone, Copy)]
pub struct FirstCall {
    /// The file's number.
    pub fd: i32,
    /// The direction of the data.
    pub direction: Direction,
    buffer: [usize; 2],
    /// The file offset of a READ or WRITE; `None` for RECV and SEND.
    offset: Option<u64>,
}

impl FirstCall {
    /// Reads a READ or WRITE from an SQE whose flags, `ioprio` and `op_flags` are zero. `None` if the SQE has fields
    /// that only `Rw` reads.
    #[inline(always)] // in the loop over SQEs
    pub fn of_file(sqe: &SqeRef, direction: Direction) -> Option<FirstCall> {
        let (fd, bytes) = (sqe.fd(), sqe.len() as usize);
        let is_simple = sqe.pad2() == 0 && bytes != 0 && bytes <= MAX_RW_COUNT && fd >= 0;
        let (buffer, offset) = ([sqe.addr() as usize, bytes], Some(rw::offset_of(sqe.off(), 0)));
        is_simple.then_some(FirstCall { fd, direction, buffer, offset })
    }

    /// Reads a RECV or SEND from an SQE whose flags, `ioprio` and `op_flags` are zero. `None` if the SQE has fields
    /// that only `Transfer` reads.
    #[inline(always)] // in the loop over SQEs
    pub fn of_socket(sqe: &SqeRef, direction: Direction) -> Option<FirstCall> {
        let (fd, bytes) = (sqe.fd(), sqe.len() as usize);
        let is_simple =
            (sqe.off() == 0) & (sqe.file_index() == 0) && bytes != 0 && bytes <= i32::MAX as usize && fd >= 0;
        is_simple.then_some(FirstCall { fd, direction, buffer: [sqe.addr() as usize, bytes], offset: None })
    }

    /// Makes the operation that goes on from the call's answer. The SQE was checked before the call.
    pub fn operation(&self) -> Op {
        match self.offset {
            None => Op::Net(Net::Transfer(Transfer::plain(self.direction, self.buffer))),
            Some(offset) => Op::Rw(Rw::plain(self.direction, self.buffer, offset)),
        }
    }

    /// True if a call with this answer has filled the whole buffer of a RECV.
    #[inline]
    pub fn has_received_all(&self, answer: Result<usize, Errno>) -> bool {
        self.offset.is_none() && self.direction == Direction::Read && answer == Ok(self.buffer[1])
    }

    /// True if the transfer may be one of whole sectors: see `Rw::may_be_direct`.
    #[inline]
    pub fn may_be_direct(&self) -> bool {
        let [address, bytes] = self.buffer;
        self.offset.is_some_and(|offset| (address | bytes | offset as usize).is_multiple_of(512))
    }

    /// True if a worker may make the read, while the submitting thread makes others: see `leaves_copy` in issue/plan.rs.
    #[inline]
    pub fn may_be_left(&self) -> bool {
        let [_, bytes] = self.buffer;
        bytes as u64 >= rw::LARGE_BYTES && self.offset.is_some() && self.direction == Direction::Read
    }

    /// Makes the call without waiting. On a file without a position it makes the same call as `Rw::assume_stream`.
    #[inline]
    pub fn make(&self, is_stream: bool) -> Result<usize, Errno> {
        let write = self.direction == Direction::Write;
        match self.offset {
            None => transfer::call_once(self.fd, self.buffer, write, 0, [0; 2]),
            Some(offset) => {
                let offset = if is_stream && offset == 0 { CURRENT_POSITION } else { offset };
                let context = Context { fd: self.fd, nonblock: true };
                rw::transfer(write, context, (&raw const self.buffer, 1), offset, 0)
            }
        }
    }

    /// True if `count` is the request's result. A regular file may still give the rest after a short count. If a
    /// socket has filled the buffer, it may have more data to report. If the count is 0, it may have the end of its
    /// stream to report.
    #[inline]
    pub fn is_result(&self, count: usize, is_stream: bool) -> bool {
        match (self.offset, self.direction) {
            (Some(_), _) => count == self.buffer[1] || count == 0 || is_stream,
            (None, Direction::Read) => count.wrapping_sub(1) < self.buffer[1] - 1, // more than nothing, less than all
            (None, Direction::Write) => true,
        }
    }
}
