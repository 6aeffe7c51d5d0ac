//! The first call of a READ, WRITE, RECV or SEND that asks for nothing else, made from its SQE.

use super::net::transfer;
use super::rw::{self, CURRENT_POSITION};
use super::{Context, Direction};
use crate::memory::view::SqeRef;
use crate::Errno;
use anyring_abi::{Sqe, MAX_RW_COUNT};

/// A transfer without flags, attributes or address, of some bytes, on a file that is named by its number.
#[derive(Clone, Copy)]
pub struct FirstCall {
    /// The file's number.
    pub fd: i32,
    /// Which way the data goes.
    pub direction: Direction,
    buffer: [usize; 2],
    /// Where a READ or WRITE begins; `None` for RECV and SEND.
    offset: Option<u64>,
}

impl FirstCall {
    /// READ and WRITE, of an SQE whose flags, `ioprio` and `op_flags` are zero. `None` if `Rw` has to look at more.
    #[inline(always)] // in the loop over SQEs
    pub fn of_file(sqe: &SqeRef, direction: Direction) -> Option<FirstCall> {
        let (fd, bytes) = (sqe.fd(), sqe.len() as usize);
        let is_simple = sqe.pad2() == 0 && bytes != 0 && bytes <= MAX_RW_COUNT && fd >= 0;
        let (buffer, offset) = ([sqe.addr() as usize, bytes], Some(rw::offset_of(sqe.off(), 0)));
        is_simple.then_some(FirstCall { fd, direction, buffer, offset })
    }

    /// The same for RECV and SEND, and `Transfer`.
    #[inline(always)] // in the loop over SQEs
    pub fn of_socket(sqe: &SqeRef, direction: Direction) -> Option<FirstCall> {
        let (fd, bytes) = (sqe.fd(), sqe.len() as usize);
        let is_simple =
            (sqe.off() == 0) & (sqe.file_index() == 0) && bytes != 0 && bytes <= i32::MAX as usize && fd >= 0;
        is_simple.then_some(FirstCall { fd, direction, buffer: [sqe.addr() as usize, bytes], offset: None })
    }

    /// An SQE that asks for the same.
    pub fn sqe(&self, opcode: u8, user_data: u64) -> Sqe {
        let [addr, len] = self.buffer.map(|word| word as u64);
        let (fd, off) = (self.fd, self.offset.unwrap_or(0));
        Sqe { opcode, fd, off, addr, len: len as u32, user_data, ..Sqe::default() }
    }

    /// It may be a transfer of whole sectors: see `Rw::may_be_direct`.
    #[inline]
    pub fn may_be_direct(&self) -> bool {
        let [address, bytes] = self.buffer;
        self.offset.is_some_and(|offset| (address | bytes | offset as usize).is_multiple_of(512))
    }

    /// Makes the call without waiting. A file without a position is asked as `Rw::assume_stream` has it asked.
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

    /// Whether so many bytes are the result. A regular file may give the rest of a short count, a socket that filled the buffer
    /// may have more to tell of.
    #[inline]
    pub fn is_result(&self, count: usize, is_stream: bool) -> bool {
        match (self.offset, self.direction) {
            (Some(_), _) => count == self.buffer[1] || count == 0 || is_stream,
            (None, Direction::Read) => count < self.buffer[1],
            (None, Direction::Write) => true,
        }
    }
}
