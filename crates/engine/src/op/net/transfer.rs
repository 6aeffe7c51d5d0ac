//! SEND, RECV, SENDMSG, RECVMSG: never without MSG_DONTWAIT, and sends never without MSG_NOSIGNAL.
//!
//! With MSG_WAITALL a stream goes on after a short count, as io_uring/net.c does; what was transferred is kept here while
//! the request waits for readiness. Headers, names and iovecs are copied at prep; what recvmsg(2) answers in the header
//! is written back to the program's when it succeeded.

use super::{socket_option, Address, ADDRESS_BYTES_MAX};
use crate::op::{call, Context, Direction, Verdict};
use crate::os::{user_read, user_read_slice, user_write, user_write_slice};
use crate::resource::buf_ring::Selection;
use crate::Errno;
use anyring_abi::{Opcode, Sqe, IORING_RECVSEND_POLL_FIRST, IORING_RECV_MULTISHOT, IOSQE_BUFFER_SELECT};
use core::num::NonZeroU32;

const MSG_DONTWAIT: u32 = libc::MSG_DONTWAIT as u32;
const MSG_NOSIGNAL: u32 = libc::MSG_NOSIGNAL as u32;
const MSG_WAITALL: u32 = libc::MSG_WAITALL as u32;
/// The received message or its control data did not fit.
const MSG_CUT: u32 = (libc::MSG_TRUNC | libc::MSG_CTRUNC) as u32;
/// The most iovecs a message has (`UIO_MAXIOV`).
const IOVECS_MAX: usize = 1024;
/// The most bytes a call transfers (`MAX_RW_COUNT` with pages of 4 KiB).
const BYTES_MAX: usize = 0x7fff_f000;

/// A send or receive. Source: io_uring_enter(2), IORING_OP_SEND, _RECV, _SENDMSG, _RECVMSG.
#[derive(Debug)]
pub struct Transfer {
    direction: Direction,
    /// `MSG_*` as the program gave them.
    flags: u32,
    /// `IORING_RECVSEND_POLL_FIRST`, until the request has waited once.
    poll_first: bool,
    /// `IORING_RECV_MULTISHOT`.
    multishot: bool,
    /// The message just received is the last of a multishot request.
    ended: bool,
    /// Bytes after which a multishot request ends, if there is a limit.
    limit: Option<NonZeroU32>,
    /// Bytes transferred by earlier attempts.
    done: usize,
    /// With IOSQE_BUFFER_SELECT: what is chosen.
    selection: Option<Box<Selection>>,
    data: Data,
}

#[derive(Debug)]
enum Data {
    /// One range of program memory, and where it is sent to if not to the peer.
    Buffer { address: usize, bytes: usize, destination: Option<Address> },
    /// A message with a header.
    Message(Box<Message>),
}

impl Transfer {
    /// Of the ioprio flags IORING_RECVSEND_POLL_FIRST and IORING_RECV_MULTISHOT; the others are refused as by a kernel
    /// before them.
    pub(super) fn prep(opcode: Opcode, sqe: &Sqe) -> Result<Transfer, Errno> {
        let sends = matches!(opcode, Opcode::Send | Opcode::Sendmsg);
        let options = u32::from(sqe.ioprio);
        let known =
            if sends { IORING_RECVSEND_POLL_FIRST } else { IORING_RECVSEND_POLL_FIRST | IORING_RECV_MULTISHOT };
        let selects = sqe.flags & IOSQE_BUFFER_SELECT != 0;
        let multishot = options & IORING_RECV_MULTISHOT != 0;
        if options & !known != 0 || (!selects && sqe.len > i32::MAX as u32) {
            return Err(Errno::INVAL);
        }
        // The field of `file_index` is `optlen` here: the bytes after which a multishot receive ends.
        let limited = multishot && opcode == Opcode::Recv;
        if opcode != Opcode::Send && (sqe.off != 0 || (sqe.file_index != 0 && !limited)) {
            return Err(Errno::INVAL);
        }
        if multishot && (!selects || sqe.op_flags & MSG_WAITALL != 0) {
            return Err(Errno::INVAL);
        }
        let data = match opcode {
            Opcode::Send | Opcode::Recv => {
                let destination = if sends { destination(sqe)? } else { None };
                Data::Buffer { address: sqe.addr as usize, bytes: sqe.len as usize, destination }
            }
            _ => Data::Message(Box::new(Message::import(sqe.addr, sends, selects, multishot)?)),
        };
        let wanted = match &data {
            Data::Buffer { bytes, .. } => *bytes,
            Data::Message(message) => message.iovecs.first().map_or(0, |iovec| iovec[1]),
        };
        Ok(Transfer {
            direction: if sends { Direction::Write } else { Direction::Read },
            flags: sqe.op_flags,
            poll_first: options & IORING_RECVSEND_POLL_FIRST != 0,
            multishot,
            ended: false,
            limit: if limited { NonZeroU32::new(sqe.file_index) } else { None },
            done: 0,
            selection: selects.then(|| Selection::new(sqe.buf_index, wanted)),
            data,
        })
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
            Data::Message(message) => message.iovecs = Box::new([[to, room]]),
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
        self.done
    }

    /// Once with IORING_RECVSEND_POLL_FIRST: it waits before the first attempt.
    pub(crate) fn polls_first(&mut self) -> bool {
        core::mem::take(&mut self.poll_first)
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
            return self.nothing();
        }
        loop {
            let wanted = if self.flags & MSG_WAITALL != 0 { self.data.wanted(self.direction) } else { 0 };
            match self.attempt(context.fd) {
                Ok((count, cut)) if count >= wanted => {
                    self.done += count;
                    return if cut {
                        Verdict::DoneShort(self.done as i32)
                    } else {
                        Verdict::Done(self.done as i32)
                    };
                }
                Ok((count, _)) => {
                    self.done += count;
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
        match (&mut self.data, self.direction) {
            (Data::Message(message), Direction::Write) => Ok((message.send(fd, self.flags)?, false)),
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
                let flags = self.flags | MSG_DONTWAIT | MSG_NOSIGNAL;
                let args = [fd as usize, *address, *bytes, flags as usize, to[0], to[1]];
                Ok((call(libc::SYS_sendto, args)?, false))
            }
            (Data::Buffer { address, bytes, .. }, Direction::Read) if waits_for_all => {
                let iovec = [*address, *bytes];
                let mut header = Header { iovecs: iovec.as_ptr() as usize, iovec_count: 1, ..Header::default() };
                let count = header.receive(fd, self.flags)?;
                Ok((count, header.flags & MSG_CUT != 0))
            }
            (Data::Buffer { address, bytes, .. }, Direction::Read) => {
                let flags = self.flags | MSG_DONTWAIT;
                Ok((call(libc::SYS_recvfrom, [fd as usize, *address, *bytes, flags as usize, 0, 0])?, false))
            }
        }
    }
}

/// The destination address of a SEND: `addr2`, with its length in the low half of the word that holds `file_index`.
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

/// `struct msghdr` of sendmsg(2), with addresses as numbers: only the kernel follows them.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
struct Header {
    name: usize,
    name_length: i32,
    _gap: u32,
    iovecs: usize,
    iovec_count: usize,
    control: usize,
    control_length: usize,
    flags: u32,
    _end: u32,
}

const _: () = {
    assert!(size_of::<Header>() == size_of::<libc::msghdr>());
    assert!(core::mem::offset_of!(Header, control_length) == core::mem::offset_of!(libc::msghdr, msg_controllen));
    assert!(core::mem::offset_of!(Header, flags) == core::mem::offset_of!(libc::msghdr, msg_flags));
};

impl Header {
    /// A length without a name means nothing, except that a multishot request leaves room for it (`keeps_length`).
    fn import(address: u64, keeps_length: bool) -> Result<Header, Errno> {
        let [name, name_length, iovecs, iovec_count, control, control_length, _] = user_read::<[u64; 7]>(address)?;
        Ok(Header {
            name: name as usize,
            // The low half of its word: both machines are little endian.
            name_length: if name == 0 && !keeps_length { 0 } else { name_length as i32 },
            iovecs: iovecs as usize,
            iovec_count: iovec_count as usize,
            control: control as usize,
            control_length: control_length as usize,
            ..Header::default()
        })
    }

    fn receive(&mut self, fd: i32, flags: u32) -> Result<usize, Errno> {
        let header = self as *mut Header as usize;
        call(libc::SYS_recvmsg, [fd as usize, header, (flags | MSG_DONTWAIT) as usize, 0, 0, 0])
    }
}

/// What a SENDMSG or RECVMSG names, copied.
#[derive(Debug)]
struct Message {
    /// The program's `struct msghdr`.
    user: u64,
    /// As the program gave it; `name` and `iovecs` are replaced for each call.
    header: Header,
    /// What is left to transfer.
    iovecs: Box<[[usize; 2]]>,
    /// Of a send.
    destination: Option<Address>,
}

impl Message {
    /// Copies the program's structures with the kernel's checks. Source: `__copy_msghdr` in net/socket.c.
    ///
    /// One that chooses its buffer has at most one iovec, of which only the length counts; the multishot form puts what
    /// recvmsg(2) answers before the data.
    fn import(user: u64, sends: bool, selects: bool, multishot: bool) -> Result<Message, Errno> {
        let header = Header::import(user, multishot)?;
        if selects && header.iovec_count > 1 {
            return Err(Errno::INVAL);
        }
        if multishot && header.name_length < 0 {
            return Err(Errno::OVERFLOW);
        }
        if header.name_length < 0 {
            return Err(Errno::INVAL);
        }
        let destination = if sends && header.name_length > 0 {
            let length = header.name_length.min(ADDRESS_BYTES_MAX as i32);
            Some(Address::import(header.name as u64, length)?)
        } else {
            None
        };
        if header.iovec_count > IOVECS_MAX {
            return Err(Errno::MSGSIZE);
        }
        let mut iovecs = vec![[0usize; 2]; header.iovec_count].into_boxed_slice();
        user_read_slice(header.iovecs as u64, &mut iovecs)?;
        let mut room = BYTES_MAX;
        for [_, bytes] in &mut iovecs {
            if *bytes > isize::MAX as usize {
                return Err(Errno::INVAL);
            }
            *bytes = room.min(*bytes);
            room -= *bytes;
        }
        Ok(Message { user, header, iovecs, destination })
    }

    fn send(&mut self, fd: i32, flags: u32) -> Result<usize, Errno> {
        let to = self.destination.as_ref().map_or((0, 0), |to| (to.pointer(), to.bytes() as i32));
        let header = Header {
            name: to.0,
            name_length: to.1,
            iovecs: self.iovecs.as_ptr() as usize,
            iovec_count: self.iovecs.len(),
            ..self.header
        };
        let flags = (flags | MSG_DONTWAIT | MSG_NOSIGNAL) as usize;
        call(libc::SYS_sendmsg, [fd as usize, &header as *const Header as usize, flags, 0, 0, 0])
    }

    /// Receives, and writes the answered lengths and flags to the program's header. Also answers the flags.
    fn receive(&mut self, fd: i32, flags: u32) -> Result<(usize, u32), Errno> {
        let (iovecs, iovec_count) = (self.iovecs.as_ptr() as usize, self.iovecs.len());
        let mut header = Header { iovecs, iovec_count, ..self.header };
        let count = header.receive(fd, flags)?;
        let field = |offset: usize| self.user.wrapping_add(offset as u64);
        if header.name != 0 {
            user_write(field(core::mem::offset_of!(Header, name_length)), &header.name_length)?;
        }
        user_write(field(core::mem::offset_of!(Header, flags)), &header.flags)?;
        user_write(field(core::mem::offset_of!(Header, control_length)), &(header.control_length as u64))?;
        Ok((count, header.flags))
    }

    /// A message of a multishot request: `struct io_uring_recvmsg_out`, name, control data and payload, one after the
    /// other in the buffer. Answers the bytes up to the payload's end, and whether it was the last: an empty one is.
    fn receive_into_buffer(&mut self, fd: i32, flags: u32) -> Result<(usize, bool), Errno> {
        const OUT_BYTES: usize = size_of::<[u32; 4]>();
        let [[address, bytes]] = self.iovecs[..] else { return Err(Errno::FAULT) };
        let (name_room, control_room) = (self.header.name_length.max(0) as usize, self.header.control_length);
        let payload = OUT_BYTES.saturating_add(name_room).saturating_add(control_room);
        let Some(room) = bytes.checked_sub(payload) else { return Err(Errno::FAULT) };
        let mut name = [0u8; ADDRESS_BYTES_MAX];
        let iovec = [address.wrapping_add(payload), room];
        let mut header = Header {
            name: if name_room != 0 { name.as_mut_ptr() as usize } else { 0 },
            name_length: if name_room != 0 { ADDRESS_BYTES_MAX as i32 } else { 0 },
            iovecs: iovec.as_ptr() as usize,
            iovec_count: 1,
            control: if control_room != 0 { address.wrapping_add(OUT_BYTES + name_room) } else { 0 },
            control_length: control_room,
            ..Header::default()
        };
        let count = header.receive(fd, flags)?;
        let name_length = header.name_length.max(0) as usize;
        let out = [name_length as u32, header.control_length as u32, count as u32, header.flags];
        user_write_slice(address as u64, &out)?;
        user_write_slice((address + OUT_BYTES) as u64, &name[..name_length.min(name_room).min(ADDRESS_BYTES_MAX)])?;
        Ok((payload + count.min(room), count == 0))
    }

    /// See [`Data::wanted`]; a receive that has room for control data never goes on.
    fn wanted(&self, direction: Direction) -> usize {
        if direction == Direction::Read && self.header.control_length != 0 {
            return 0;
        }
        self.iovecs.iter().map(|iovec| iovec[1]).sum()
    }

    fn advance(&mut self, count: usize) {
        // Control data goes with the first part only.
        (self.header.control, self.header.control_length) = (0, 0);
        let mut left = count;
        for [address, bytes] in &mut self.iovecs {
            let step = left.min(*bytes);
            *address = address.wrapping_add(step);
            *bytes -= step;
            left -= step;
        }
    }
}
