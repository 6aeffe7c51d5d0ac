//! SEND, RECV, SENDMSG, RECVMSG, SEND_ZC, SENDMSG_ZC: never without MSG_DONTWAIT, and sends never without MSG_NOSIGNAL.
//!
//! With MSG_WAITALL a stream goes on after a short count, as io_uring/net.c does; what was transferred is kept here while
//! the request waits for readiness.

use super::message::{Header, Iovecs, Message, BYTES_MAX};
use super::zero_copy::{self, ZeroCopy};
use super::{socket_option, Address};
use crate::op::{call, Context, Direction, Verdict};
use crate::resource::buf_ring::Selection;
use crate::resource::buffers::Buffers;
use crate::Errno;
use anyring_abi::{
    Opcode, Sqe, IORING_RECVSEND_FIXED_BUF, IORING_RECVSEND_POLL_FIRST, IORING_RECV_MULTISHOT,
    IORING_SEND_VECTORIZED, IOSQE_BUFFER_SELECT, IOSQE_CQE_SKIP_SUCCESS,
};
use core::num::NonZeroU32;

const MSG_DONTWAIT: u32 = libc::MSG_DONTWAIT as u32;
const MSG_NOSIGNAL: u32 = libc::MSG_NOSIGNAL as u32;
const MSG_WAITALL: u32 = libc::MSG_WAITALL as u32;
const MSG_ZEROCOPY: u32 = libc::MSG_ZEROCOPY as u32;
/// The received message or its control data did not fit.
const MSG_CUT: u32 = (libc::MSG_TRUNC | libc::MSG_CTRUNC) as u32;

/// A send or receive. Source: io_uring_enter(2), IORING_OP_SEND, _RECV, _SENDMSG, _RECVMSG, _SEND_ZC, _SENDMSG_ZC.
#[derive(Debug)]
pub struct Transfer {
    direction: Direction,
    /// `IORING_RECVSEND_POLL_FIRST`, until the request has waited once.
    poll_first: bool,
    /// `IORING_RECV_MULTISHOT`.
    multishot: bool,
    /// The message just received is the last of a multishot request.
    ended: bool,
    /// `MSG_*` as the program gave them.
    flags: u32,
    /// Bytes after which a multishot request ends, if there is a limit.
    limit: Option<NonZeroU32>,
    /// Bytes transferred by earlier attempts; less than [`BYTES_MAX`].
    done: u32,
    /// With IOSQE_BUFFER_SELECT: what is chosen.
    selection: Option<Box<Selection>>,
    /// Of SEND_ZC and SENDMSG_ZC.
    zero_copy: Option<Box<ZeroCopy>>,
    data: Data,
}

#[derive(Debug)]
enum Data {
    /// One range of program memory, and where it is sent to if not to the peer.
    Buffer { address: usize, bytes: usize, destination: Option<Address> },
    /// A message with a header, or several ranges.
    Message(Box<Message>),
}

impl Transfer {
    pub(super) fn prep(opcode: Opcode, sqe: &Sqe) -> Result<Transfer, Errno> {
        match opcode {
            Opcode::Recv | Opcode::Recvmsg => Transfer::prep_receive(opcode, sqe),
            _ => Transfer::prep_send(opcode, sqe),
        }
    }

    /// Of the flags in ioprio IORING_RECVSEND_POLL_FIRST and IORING_RECV_MULTISHOT; the others are refused as by a kernel
    /// before them.
    fn prep_receive(opcode: Opcode, sqe: &Sqe) -> Result<Transfer, Errno> {
        let options = u32::from(sqe.ioprio);
        let known = IORING_RECVSEND_POLL_FIRST | IORING_RECV_MULTISHOT;
        let selects = sqe.flags & IOSQE_BUFFER_SELECT != 0;
        let multishot = options & IORING_RECV_MULTISHOT != 0;
        if options & !known != 0 || (!selects && sqe.len > i32::MAX as u32) {
            return Err(Errno::INVAL);
        }
        // The field of `file_index` is `optlen` here: the bytes after which a multishot receive ends.
        let limited = multishot && opcode == Opcode::Recv;
        if sqe.off != 0 || (sqe.file_index != 0 && !limited) {
            return Err(Errno::INVAL);
        }
        if multishot && (!selects || sqe.op_flags & MSG_WAITALL != 0) {
            return Err(Errno::INVAL);
        }
        let data = match opcode {
            Opcode::Recv => Data::of(sqe, sqe.len as usize, None),
            _ => {
                let iovecs = if selects { Iovecs::Selecting } else { Iovecs::Plain };
                Data::Message(Box::new(Message::import(sqe.addr, false, iovecs, multishot)?))
            }
        };
        Ok(Transfer {
            multishot,
            limit: if limited { NonZeroU32::new(sqe.file_index) } else { None },
            selection: selects.then(|| Selection::new(sqe.buf_index, data.first_bytes())),
            ..Transfer::new(Direction::Read, sqe, data)
        })
    }

    fn prep_send(opcode: Opcode, sqe: &Sqe) -> Result<Transfer, Errno> {
        let options = u32::from(sqe.ioprio);
        let with_header = matches!(opcode, Opcode::Sendmsg | Opcode::SendmsgZc);
        let zero_copy = matches!(opcode, Opcode::SendZc | Opcode::SendmsgZc);
        let selects = sqe.flags & IOSQE_BUFFER_SELECT != 0;
        if zero_copy && (sqe.addr3 != 0 || sqe.pad2 != 0 || sqe.flags & IOSQE_CQE_SKIP_SUCCESS != 0) {
            return Err(Errno::INVAL);
        }
        let known = match zero_copy {
            true => zero_copy::OPTIONS,
            false => IORING_RECVSEND_POLL_FIRST | IORING_SEND_VECTORIZED,
        };
        if options & !known != 0 || (with_header && (sqe.off != 0 || sqe.file_index != 0)) {
            return Err(Errno::INVAL);
        }
        let too_long = sqe.len > i32::MAX as u32;
        if too_long && !selects && !zero_copy {
            return Err(Errno::INVAL);
        }
        let fixed = options & IORING_RECVSEND_FIXED_BUF != 0;
        let vector = options & IORING_SEND_VECTORIZED != 0;
        let data = if with_header {
            let iovecs = if fixed { Iovecs::Registered } else { Iovecs::Plain };
            Data::Message(Box::new(Message::import(sqe.addr, true, iovecs, false)?))
        } else {
            let destination = destination(sqe)?;
            match vector && !selects {
                true if fixed => return Err(Errno::INVAL),
                true => Data::Message(Box::new(Message::vector(sqe.addr, sqe.len, destination)?)),
                false => Data::of(sqe, if too_long { BYTES_MAX } else { sqe.len as usize }, destination),
            }
        };
        Ok(Transfer {
            selection: selects.then(|| Selection::new(sqe.buf_index, data.first_bytes())),
            zero_copy: zero_copy.then(|| ZeroCopy::new(sqe)),
            ..Transfer::new(Direction::Write, sqe, data)
        })
    }

    fn new(direction: Direction, sqe: &Sqe, data: Data) -> Transfer {
        Transfer {
            direction,
            poll_first: u32::from(sqe.ioprio) & IORING_RECVSEND_POLL_FIRST != 0,
            multishot: false,
            ended: false,
            flags: sqe.op_flags,
            limit: None,
            done: 0,
            selection: None,
            zero_copy: None,
            data,
        }
    }

    /// SEND_ZC or SENDMSG_ZC.
    #[inline]
    pub(crate) fn is_zero_copy(&self) -> bool {
        self.zero_copy.is_some()
    }

    /// See [`crate::op::Op::cqe_flags`].
    pub(crate) fn cqe_flags(&self) -> u32 {
        self.zero_copy.as_ref().map_or(0, |zero_copy| zero_copy.cqe_flags())
    }

    /// Of a SEND_ZC or SENDMSG_ZC: checks its socket and finds its registered buffer, in the order of io_uring/net.c.
    pub(crate) fn find_buffer(&mut self, fd: i32, buffers: Option<&Buffers>) -> Result<(), Errno> {
        let Some(zero_copy) = &mut self.zero_copy else { return Ok(()) };
        match &self.data {
            Data::Message(message) => {
                zero_copy.find_buffer(buffers, &message.iovecs, true)?;
                zero_copy.check_socket(fd)
            }
            Data::Buffer { address, bytes, .. } => {
                zero_copy.check_socket(fd)?;
                zero_copy.find_buffer(buffers, &[[*address, *bytes]], false)
            }
        }
    }

    /// Whether it chooses its buffer.
    #[inline]
    pub(crate) fn selects(&self) -> bool {
        self.selection.is_some()
    }

    /// See [`crate::op::Op::selection`].
    pub(crate) fn selection(&mut self) -> Option<&mut Selection> {
        self.selection.as_deref_mut()
    }

    /// See [`crate::op::Op::set_buffer`].
    pub(crate) fn set_buffer(&mut self, to: usize, room: usize) {
        self.done = 0;
        match &mut self.data {
            Data::Buffer { address, bytes, .. } => (*address, *bytes) = (to, room),
            Data::Message(message) => message.iovecs = vec![[to, room]],
        }
    }

    /// `IORING_RECV_MULTISHOT`.
    pub(crate) fn is_multishot(&self) -> bool {
        self.multishot
    }

    /// What was just received, `bytes` of it, is the last of a multishot request.
    pub(crate) fn ends_with(&mut self, bytes: usize) -> bool {
        let Some(limit) = self.limit else { return self.ended };
        self.limit = NonZeroU32::new(limit.get().saturating_sub(bytes as u32));
        self.limit.is_none()
    }

    /// See [`crate::op::Op::transferred`].
    pub(crate) fn transferred(&self) -> usize {
        self.done as usize
    }

    /// Once with IORING_RECVSEND_POLL_FIRST: it waits before the first attempt.
    pub(crate) fn polls_first(&mut self) -> bool {
        core::mem::take(&mut self.poll_first)
    }

    /// Whether [`polls_first`](Self::polls_first) is yet to come.
    pub(crate) fn will_poll_first(&self) -> bool {
        self.poll_first
    }

    /// Which way the data goes.
    pub(crate) fn direction(&self) -> Direction {
        self.direction
    }

    /// Which readiness it waits for; `None` when the program asked not to wait, or asks for what readiness does not tell.
    #[inline]
    pub(super) fn waits_for(&self) -> Option<Direction> {
        const OTHERWISE: u32 = MSG_DONTWAIT | (libc::MSG_OOB | libc::MSG_ERRQUEUE) as u32;
        (self.flags & OTHERWISE == 0).then_some(self.direction)
    }

    /// Transfers what can be transferred now.
    #[inline]
    pub(super) fn issue(&mut self, context: Context) -> Verdict {
        if self.polls_first() {
            let open = call(libc::SYS_fcntl, [context.fd as usize, libc::F_GETFD as usize, 0, 0, 0, 0]);
            return open.map_or_else(Verdict::error, |_| self.nothing());
        }
        loop {
            let wanted = if self.flags & MSG_WAITALL != 0 { self.data.wanted(self.direction) } else { 0 };
            match self.attempt(context.fd) {
                Ok((count, cut)) if count >= wanted => {
                    self.done += count as u32;
                    return if cut {
                        Verdict::DoneShort(self.done as i32)
                    } else {
                        Verdict::Done(self.done as i32)
                    };
                }
                Ok((count, _)) => {
                    self.done += count as u32;
                    if count == 0 || !is_stream(context.fd) {
                        return Verdict::DoneShort(self.done as i32);
                    }
                    self.data.advance(count);
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return self.nothing(),
                Err(error) => return self.failed(error),
            }
        }
    }

    /// The socket is not ready: an error only where the program itself said MSG_DONTWAIT (its O_NONBLOCK does not count).
    fn nothing(&self) -> Verdict {
        if self.flags & MSG_DONTWAIT != 0 {
            self.failed(Errno::AGAIN)
        } else {
            Verdict::WouldBlock(self.direction)
        }
    }

    /// An error after part of the data was transferred is reported as that part.
    fn failed(&self, error: Errno) -> Verdict {
        if self.done > 0 {
            Verdict::DoneShort(self.done as i32)
        } else {
            Verdict::error(error)
        }
    }

    /// One system call: the bytes it transferred, and whether a receive with MSG_WAITALL lost the rest of a message,
    /// which the kernel counts as a failure.
    #[inline]
    fn attempt(&mut self, fd: i32) -> Result<(usize, bool), Errno> {
        let waits_for_all = self.flags & MSG_WAITALL != 0;
        // What the kernel would send from program memory is copied: see `zero_copy`.
        let flags = if self.zero_copy.is_some() { self.flags & !MSG_ZEROCOPY } else { self.flags };
        match (&mut self.data, self.direction) {
            (Data::Message(message), Direction::Write) => Ok((message.send(fd, flags)?, false)),
            (Data::Message(message), Direction::Read) if self.multishot => {
                let (count, last) = message.receive_into_buffer(fd, self.flags)?;
                self.ended = last;
                Ok((count, false))
            }
            (Data::Message(message), Direction::Read) => {
                let (count, answered) = message.receive(fd, self.flags)?;
                Ok((count, waits_for_all && answered & MSG_CUT != 0))
            }
            (Data::Buffer { address, bytes, destination }, Direction::Write) => {
                let to = destination.as_ref().map_or([0; 2], |to| [to.pointer(), to.bytes()]);
                let flags = flags | MSG_DONTWAIT | MSG_NOSIGNAL;
                let args = [fd as usize, *address, *bytes, flags as usize, to[0], to[1]];
                Ok((call(libc::SYS_sendto, args)?, false))
            }
            (Data::Buffer { address, bytes, .. }, Direction::Read) if waits_for_all => {
                let (count, answered) = Header::receive_into(fd, [*address, *bytes], self.flags)?;
                Ok((count, answered & MSG_CUT != 0))
            }
            (Data::Buffer { address, bytes, .. }, Direction::Read) => {
                let flags = self.flags | MSG_DONTWAIT;
                Ok((call(libc::SYS_recvfrom, [fd as usize, *address, *bytes, flags as usize, 0, 0])?, false))
            }
        }
    }
}

/// The destination address of a SEND or SEND_ZC: `addr2`, with its length in the low half of the word that holds `file_index`.
fn destination(sqe: &Sqe) -> Result<Option<Address>, Errno> {
    if sqe.file_index > u16::MAX.into() {
        return Err(Errno::INVAL);
    }
    if sqe.off == 0 {
        return Ok(None);
    }
    Address::import(sqe.off, sqe.file_index as i32).map(Some)
}

/// Whether a short count is not yet the whole answer (`io_net_retry`).
fn is_stream(fd: i32) -> bool {
    socket_option(fd, libc::SO_TYPE).is_ok_and(|kind| kind == libc::SOCK_STREAM || kind == libc::SOCK_SEQPACKET)
}

impl Data {
    /// The SQE's buffer.
    fn of(sqe: &Sqe, bytes: usize, destination: Option<Address>) -> Data {
        Data::Buffer { address: sqe.addr as usize, bytes, destination }
    }

    /// Bytes of the first range.
    fn first_bytes(&self) -> usize {
        match self {
            Data::Buffer { bytes, .. } => *bytes,
            Data::Message(message) => message.iovecs.first().map_or(0, |iovec| iovec[1]),
        }
    }

    /// With MSG_WAITALL: the count below which the kernel goes on, or fails the links.
    fn wanted(&self, direction: Direction) -> usize {
        match self {
            Data::Buffer { bytes, .. } => (*bytes).min(BYTES_MAX),
            Data::Message(message) => message.wanted(direction),
        }
    }

    fn advance(&mut self, count: usize) {
        match self {
            Data::Buffer { address, bytes, .. } => {
                *address = address.wrapping_add(count);
                *bytes -= count;
            }
            Data::Message(message) => message.advance(count),
        }
    }
}
