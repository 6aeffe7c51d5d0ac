//! SEND, RECV, SENDMSG, RECVMSG, SEND_ZC, SENDMSG_ZC: always with MSG_DONTWAIT, and sends always with MSG_NOSIGNAL.
//!
//! With MSG_WAITALL a stream continues after a short count, as in io_uring/net.c. While the request waits for
//! readiness, it keeps the count of bytes transferred so far.

use super::fixed::Special;
use super::message::{Header, Iovecs, Message};
use super::poll_first::First;
use super::unread::{has_data_or_mark, has_ended, unread_bytes};
use super::zero_copy::{self, ZeroCopy};
use super::{is_blocking, socket_option, Address};
use crate::mutation::{mutated, Mutation};
use crate::op::selection::Selection;
use crate::op::{call, Context, Direction, Verdict};
use crate::os::{version, Os, Sys};
use crate::Errno;
use anyring_abi::{
    Opcode, Sqe, IORING_CQE_F_SOCK_NONEMPTY, IORING_RECVSEND_BUNDLE, IORING_RECVSEND_FIXED_BUF,
    IORING_RECVSEND_POLL_FIRST, IORING_RECV_MULTISHOT, IORING_SEND_VECTORIZED, IOSQE_ASYNC, IOSQE_BUFFER_SELECT,
    MAX_RW_COUNT,
};
use core::num::NonZeroU32;

const MSG_DONTWAIT: u32 = libc::MSG_DONTWAIT as u32;
const MSG_NOSIGNAL: u32 = libc::MSG_NOSIGNAL as u32;
const MSG_WAITALL: u32 = libc::MSG_WAITALL as u32;
const MSG_OOB: u32 = libc::MSG_OOB as u32;
const MSG_ERRQUEUE: u32 = libc::MSG_ERRQUEUE as u32;
const MSG_ZEROCOPY: u32 = libc::MSG_ZEROCOPY as u32;
/// The flags of a receive that takes no data out of the socket's queue.
const BESIDE_THE_DATA: u32 = MSG_OOB | MSG_ERRQUEUE;
/// The received message or its control data was longer than the room for it.
const MSG_CUT: u32 = (libc::MSG_TRUNC | libc::MSG_CTRUNC) as u32;

/// A send or receive. Source: io_uring_enter(2), IORING_OP_SEND, _RECV, _SENDMSG, _RECVMSG, _SEND_ZC, _SENDMSG_ZC.
#[derive(Debug)]
pub struct Transfer {
    pub(super) direction: Direction,
    /// How the next attempt is made, until the request has waited once.
    pub(super) first: First,
    /// `IORING_RECV_MULTISHOT`.
    multishot: bool,
    /// `IORING_RECVSEND_BUNDLE`.
    bundle: bool,
    /// The request has waited for readiness at least once.
    polled: bool,
    /// The last result of a multishot RECV left room in its buffer.
    was_short: bool,
    /// `MSG_*` flags from the program. A bundle that is sent also has MSG_WAITALL.
    flags: u32,
    /// Bytes that earlier attempts transferred; less than [`MAX_RW_COUNT`].
    done: u32,
    /// The chosen buffers, with IOSQE_BUFFER_SELECT.
    pub(super) selection: Option<Box<Selection>>,
    /// The additional state with a registered buffer, and of SEND_ZC and SENDMSG_ZC.
    pub(super) special: Option<Box<Special>>,
    pub(super) data: Data,
}

#[derive(Debug)]
pub(super) enum Data {
    /// One range of program memory, and the destination unless the data goes to the connected peer.
    Buffer { address: usize, bytes: usize, destination: Option<Address> },
    /// A message with a header, or several ranges without one.
    Message(Box<Message>),
}

impl Transfer {
    pub(super) fn prep(opcode: Opcode, sqe: &Sqe) -> Result<Transfer, Errno> {
        match opcode {
            Opcode::Recv | Opcode::Recvmsg => Transfer::prep_receive(opcode, sqe),
            _ => Transfer::prep_send(opcode, sqe),
        }
    }

    fn prep_receive(opcode: Opcode, sqe: &Sqe) -> Result<Transfer, Errno> {
        let options = u32::from(sqe.ioprio);
        let known = IORING_RECVSEND_POLL_FIRST
            | IORING_RECV_MULTISHOT
            | IORING_RECVSEND_BUNDLE
            | plain_fixed(opcode == Opcode::Recv);
        let selects = sqe.flags & IOSQE_BUFFER_SELECT != 0;
        let multishot = options & IORING_RECV_MULTISHOT != 0;
        if options & !known != 0 || (!selects && sqe.len > i32::MAX as u32) {
            return Err(Errno::INVAL);
        }
        // For a RECV the field `file_index` is `optlen`: the number of bytes after which a multishot receive ends.
        let limited = multishot && opcode == Opcode::Recv;
        if sqe.off != 0 || (sqe.file_index != 0 && !limited) {
            return Err(Errno::INVAL);
        }
        if multishot && (!selects || sqe.op_flags & MSG_WAITALL != 0) {
            return Err(Errno::INVAL);
        }
        let bundle = options & IORING_RECVSEND_BUNDLE != 0;
        if bundle && opcode == Opcode::Recvmsg {
            return Err(Errno::INVAL);
        }
        if options & IORING_RECVSEND_FIXED_BUF != 0 && (selects || bundle) {
            return Err(Errno::INVAL);
        }
        let data = match opcode {
            Opcode::Recv => Data::of(sqe, sqe.len as usize, None),
            _ => {
                let iovecs = if selects { Iovecs::Selecting } else { Iovecs::Plain };
                Data::Message(Box::new(Message::import(sqe.addr, false, iovecs, multishot)?))
            }
        };
        let mut selection = selects.then(|| Selection::new(sqe.buf_index, data.first_bytes()));
        if let (Some(selection), true) = (&mut selection, limited) {
            selection.limit = NonZeroU32::new(sqe.file_index);
        }
        let mut receive = Transfer { multishot, bundle, selection, ..Transfer::new(Direction::Read, sqe, data) };
        if multishot && sqe.flags & IOSQE_ASYNC != 0 {
            receive.first = First::PollNoSocket;
        }
        Ok(receive)
    }

    fn prep_send(opcode: Opcode, sqe: &Sqe) -> Result<Transfer, Errno> {
        let options = u32::from(sqe.ioprio);
        let with_header = matches!(opcode, Opcode::Sendmsg | Opcode::SendmsgZc);
        let zero_copy = matches!(opcode, Opcode::SendZc | Opcode::SendmsgZc);
        let selects = sqe.flags & IOSQE_BUFFER_SELECT != 0;
        if zero_copy && !zero_copy::may_notify(sqe) {
            return Err(Errno::INVAL);
        }
        let known = match zero_copy {
            true => zero_copy::OPTIONS,
            false => {
                let plain = plain_fixed(opcode == Opcode::Send);
                IORING_RECVSEND_POLL_FIRST | IORING_SEND_VECTORIZED | IORING_RECVSEND_BUNDLE | plain
            }
        };
        let bundle = options & IORING_RECVSEND_BUNDLE != 0;
        if options & !known != 0 || (with_header && (bundle || sqe.off != 0 || sqe.file_index != 0)) {
            return Err(Errno::INVAL);
        }
        let too_long = sqe.len > i32::MAX as u32;
        if too_long && !selects && !zero_copy {
            return Err(Errno::INVAL);
        }
        let fixed = options & IORING_RECVSEND_FIXED_BUF != 0;
        let vector = options & IORING_SEND_VECTORIZED != 0;
        if fixed && !zero_copy && (selects || bundle || vector) {
            return Err(Errno::INVAL);
        }
        let data = if with_header {
            let iovecs = if fixed { Iovecs::Registered } else { Iovecs::Plain };
            Data::Message(Box::new(Message::import(sqe.addr, true, iovecs, false)?))
        } else {
            let destination = destination(sqe)?;
            match vector && !selects {
                true if fixed && !version::answers_as_7_3() => return Err(Errno::INVAL),
                true => Data::Message(Box::new(Message::vector(sqe.addr, sqe.len, destination)?)),
                false => Data::of(sqe, if too_long { MAX_RW_COUNT } else { sqe.len as usize }, destination),
            }
        };
        let all_of_a_bundle = if bundle { MSG_WAITALL } else { 0 };
        Ok(Transfer {
            bundle,
            flags: sqe.op_flags | all_of_a_bundle,
            selection: selects.then(|| Selection::new(sqe.buf_index, data.first_bytes())),
            special: Special::of(sqe, zero_copy),
            ..Transfer::new(Direction::Write, sqe, data)
        })
    }

    fn new(direction: Direction, sqe: &Sqe, data: Data) -> Transfer {
        let ignored = if mutated(Mutation::ReceiveWithoutPeek) { libc::MSG_PEEK as u32 } else { 0 };
        Transfer {
            first: match u32::from(sqe.ioprio) & IORING_RECVSEND_POLL_FIRST {
                0 => First::Attempt,
                _ => First::Poll,
            },
            flags: sqe.op_flags & !ignored,
            special: Special::of(sqe, false),
            ..Transfer::of(direction, data)
        }
    }

    /// Makes the SEND or RECV of one buffer, without any options.
    pub(in crate::op) fn plain(direction: Direction, [address, bytes]: [usize; 2]) -> Transfer {
        Transfer::of(direction, Data::Buffer { address, bytes, destination: None })
    }

    #[inline]
    fn of(direction: Direction, data: Data) -> Transfer {
        Transfer {
            direction,
            first: First::Attempt,
            multishot: false,
            bundle: false,
            polled: false,
            was_short: false,
            flags: 0,
            done: 0,
            selection: None,
            special: None,
            data,
        }
    }

    /// `IORING_CQE_F_*` of a zero-copy send, otherwise 0.
    pub(crate) fn cqe_flags(&self) -> u32 {
        self.zero_copy().map_or(0, ZeroCopy::cqe_flags)
    }

    /// See [`Operation::notified`](crate::op::Operation::notified).
    pub(super) fn notified(&self) -> Option<u64> {
        self.zero_copy()?.notified()
    }

    fn zero_copy(&self) -> Option<&ZeroCopy> {
        self.special.as_ref()?.zero_copy.as_ref()
    }

    /// The operation of a SEND_ZC or SENDMSG_ZC that was refused, for its notification.
    pub(super) fn refused(sqe: &Sqe) -> Transfer {
        Transfer { special: Special::of(sqe, true), ..Transfer::new(Direction::Write, sqe, Data::of(sqe, 0, None)) }
    }

    /// Returns the number of bytes, and true for a send. `None` if the transfer must not be cut
    /// ([`crate::op::Op::divisible_bytes`]).
    pub(crate) fn divisible_bytes(&self) -> Option<(usize, bool)> {
        const WHOLE: u32 = MSG_WAITALL | BESIDE_THE_DATA | (libc::MSG_PEEK | libc::MSG_TRUNC) as u32;
        let with_header = self.multishot && matches!(self.data, Data::Message(_));
        if self.flags & WHOLE != 0 || self.bundle || self.special.is_some() || with_header {
            return None;
        }
        let bytes = match &self.selection {
            Some(selection) => selection.wanted.max(1),
            None => self.data.bytes(),
        };
        Some((bytes, self.direction == Direction::Write))
    }

    /// The addresses and lengths of the data. `None` if buffers are selected or registered, or the send is zero-copy.
    pub(crate) fn plain_data(&self) -> Option<Vec<[usize; 2]>> {
        let plain = self.selection.is_none() && self.special.is_none();
        plain.then(|| match &self.data {
            Data::Buffer { address, bytes, .. } => vec![[*address, *bytes]],
            Data::Message(message) => message.iovecs.clone(),
        })
    }

    /// Moves the data to memory from `to` on, one range after the other.
    pub(crate) fn redirect(&mut self, to: usize) {
        match &mut self.data {
            Data::Buffer { address, .. } => *address = to,
            Data::Message(message) => crate::op::cut::redirect_ranges(&mut message.iovecs, to),
        }
    }

    /// Calls `place` for the parts of a message that are not its data, as [`crate::op::Op::each_part`] says.
    pub(crate) fn each_part(&mut self, place: &mut dyn FnMut(&'static str, usize, usize) -> usize) {
        match &mut self.data {
            Data::Message(message) if !self.multishot && self.special.is_none() => {
                message.each_part(self.direction, place)
            }
            _ => {}
        }
    }

    /// Limits the transfer to its first `bytes` bytes.
    pub(crate) fn cut(&mut self, bytes: usize) {
        if let Some(selection) = &mut self.selection {
            selection.wanted = bytes;
        }
        match &mut self.data {
            Data::Buffer { bytes: length, .. } => *length = bytes,
            Data::Message(message) => crate::op::cut::cut_ranges(&mut message.iovecs, bytes),
        }
    }

    /// True if the request has IOSQE_BUFFER_SELECT.
    #[inline]
    pub(crate) fn selects(&self) -> bool {
        self.selection.is_some()
    }

    /// True if the request chooses buffers, and uses a certain number of bytes at most.
    pub(super) fn is_capped(&self) -> bool {
        self.selection.as_ref().is_some_and(|selection| selection.wanted != 0)
    }

    /// Returns the buffer group to choose from and the chosen buffer, with IOSQE_BUFFER_SELECT.
    pub(crate) fn selection(&mut self) -> Option<&mut Selection> {
        self.selection.as_deref_mut()
    }

    /// Makes the ranges of the chosen buffers the memory to transfer, from their start.
    pub(crate) fn use_buffers(&mut self) {
        self.done = 0;
        let Some(selection) = &self.selection else { return };
        match (&mut self.data, &selection.ranges[..]) {
            (Data::Buffer { address, bytes, .. }, [range]) => [*address, *bytes] = *range,
            (Data::Buffer { destination, .. }, ranges) => {
                let destination = destination.take();
                self.data = Data::Message(Box::new(Message::of(ranges.to_vec(), destination)));
            }
            (Data::Message(message), ranges) => {
                message.iovecs.clear();
                message.iovecs.extend_from_slice(ranges);
            }
        }
    }

    /// True if the request posts several CQEs: `IORING_RECV_MULTISHOT`, or a bundle that is sent.
    pub(crate) fn is_multishot(&self) -> bool {
        self.multishot || (self.bundle && self.direction == Direction::Write)
    }

    /// True if the request has `IORING_RECVSEND_BUNDLE`.
    pub(crate) fn is_bundle(&self) -> bool {
        self.bundle
    }

    /// True for a bundle that is sent and has not waited: it continues after a result. Source: `io_send_finish` in
    /// io_uring/net.c.
    pub(crate) fn sends_on(&self) -> bool {
        self.bundle && !self.polled && self.direction == Direction::Write
    }

    /// Number of bytes that earlier attempts transferred without ending the operation.
    pub(crate) fn transferred(&self) -> usize {
        self.done as usize
    }

    /// The verdict if the operation waits to read from a datagram socket that was shut down. `None` if it continues to
    /// wait. RECVMSG respects O_NONBLOCK (`____sys_recvmsg`); RECV ignores it.
    pub(crate) fn end_of_datagrams(&self, fd: i32) -> Option<Verdict> {
        if self.direction == Direction::Write || self.multishot || self.flags & BESIDE_THE_DATA != 0 {
            return None;
        }
        let reported = match &self.data {
            Data::Message(_) if !is_blocking(fd) => Err(Errno::AGAIN),
            Data::Message(message) => message.write_back_nothing(),
            Data::Buffer { .. } => Ok(()),
        };
        Some(match reported {
            Err(error) => Verdict::error(error),
            Ok(()) if self.flags & MSG_WAITALL != 0 => Verdict::DoneShort(0),
            Ok(()) => Verdict::Done(0),
        })
    }

    /// Forgets the bytes transferred, since their CQE is posted.
    pub(crate) fn forget_transferred(&mut self) {
        self.done = 0;
    }

    /// True if the last result of a multishot RECV left room in its buffer.
    #[inline]
    pub(super) fn was_short(&self) -> bool {
        self.was_short
    }

    /// The direction of the data.
    pub(crate) fn direction(&self) -> Direction {
        self.direction
    }

    /// The readiness to wait for. `None` if the program asked not to wait, or asks for data that readiness does not
    /// report. `None` also for sends that choose their buffer before they wait. `None` also for a request that polls
    /// first: otherwise the attempt after an event would count as that poll.
    #[inline]
    pub(super) fn waits_for(&self) -> Option<Direction> {
        const OTHERWISE: u32 = MSG_DONTWAIT | BESIDE_THE_DATA;
        let chooses_first = self.direction == Direction::Write && (self.bundle || self.selection.is_some());
        (self.flags & OTHERWISE == 0 && !chooses_first && !self.will_poll_first()).then_some(self.direction)
    }

    /// Transfers as much as it can without waiting.
    #[inline]
    pub(super) fn issue(&mut self, context: Context) -> Verdict {
        loop {
            let sizes = self.sizes();
            let answer = self.attempt(context.fd);
            if let Some(verdict) = self.follow(answer, sizes, context.fd) {
                return verdict;
            }
        }
    }

    /// Continues like [`issue`](Self::issue) after a [`plain`](Self::plain) transfer's first call, which returned
    /// `first`.
    #[inline]
    pub(crate) fn issue_after(&mut self, first: Result<usize, Errno>, context: Context) -> Verdict {
        if first == Err(Errno::AGAIN) {
            return self.nothing();
        }
        let sizes = self.sizes();
        let verdict = self.follow(first.map(|count| (count, false)), sizes, context.fd);
        verdict.unwrap_or_else(|| self.issue(context))
    }

    /// Returns how many bytes there is room for, and how many the next call has to transfer.
    #[inline]
    fn sizes(&self) -> [usize; 2] {
        let wanted = if self.flags & MSG_WAITALL != 0 { self.data.wanted(self.direction) } else { 0 };
        [self.data.bytes(), wanted]
    }

    /// Returns the verdict that follows from a call's answer; `None` if another call must be made.
    #[inline]
    fn follow(
        &mut self,
        answer: Result<(usize, bool), Errno>,
        [room, wanted]: [usize; 2],
        fd: i32,
    ) -> Option<Verdict> {
        match answer {
            Ok((count, cut)) if count >= wanted => {
                self.done += count as u32;
                if self.direction == Direction::Read {
                    return Some(self.received(fd, count >= room, cut));
                }
                Some(self.sent(count))
            }
            Ok((count, _)) => {
                self.done += count as u32;
                if count == 0 || !is_stream(fd) {
                    return Some(self.cut_short(fd, count));
                }
                self.data.advance(count);
                None
            }
            Err(Errno::INTR) => None,
            Err(Errno::AGAIN) if self.flags & MSG_ERRQUEUE != 0 => Some(self.nothing_queued(fd)),
            Err(Errno::AGAIN) => Some(self.nothing()),
            Err(error) => Some(self.failed(error)),
        }
    }

    /// Handles an empty error queue. The request waits, unless the socket has something else to receive. In the kernel
    /// such data keeps the request from sleeping (`io_arm_poll_handler` leaves EPOLLRDNORM to MSG_ERRQUEUE).
    #[cold]
    fn nothing_queued(&mut self, fd: i32) -> Verdict {
        match Sys::poll_now(fd, libc::POLLIN as u16) {
            Ok(0) => self.nothing(),
            _ => self.failed(Errno::AGAIN),
        }
    }

    /// Ends a receive that has its result. With `cut` the result counts as a failure. If the data `filled` the buffer,
    /// the socket may have more, which the CQE reports (IORING_CQE_F_SOCK_NONEMPTY).
    #[inline]
    fn received(&mut self, fd: i32, filled: bool, cut: bool) -> Verdict {
        const STAYS: u32 = libc::MSG_PEEK as u32;
        let unread = match self.flags & BESIDE_THE_DATA {
            0 if filled || self.flags & STAYS != 0 => unread_bytes(fd),
            MSG_OOB => usize::from(has_data_or_mark(fd)),
            _ => 0,
        };
        let is_plain = self.flags == 0 && matches!(self.data, Data::Buffer { .. });
        self.was_short = self.multishot && is_plain && !filled && self.done != 0;
        if let Some(selection) = &mut self.selection {
            selection.unread = unread;
        }
        let at_end = self.done == 0 && !filled && self.flags & BESIDE_THE_DATA == 0 && has_ended(fd);
        let result = self.done as i32;
        match (unread != 0 || at_end, cut) {
            (false, false) => Verdict::Done(result),
            (false, true) => Verdict::DoneShort(result),
            _ => Verdict::DoneWith { result, flags: IORING_CQE_F_SOCK_NONEMPTY, failed: cut },
        }
    }

    /// Ends a transfer with MSG_WAITALL that cannot go on.
    #[cold]
    fn cut_short(&self, fd: i32, count: usize) -> Verdict {
        let result = self.done as i32;
        match count == 0 && self.direction == Direction::Read && has_ended(fd) {
            true => Verdict::DoneWith { result, flags: IORING_CQE_F_SOCK_NONEMPTY, failed: true },
            false => Verdict::DoneShort(result),
        }
    }

    /// Ends a send that is complete. A bundle without IOSQE_BUFFER_SELECT then sends the rest of its own buffer, as in
    /// io_uring/net.c. That rest is empty.
    #[inline]
    fn sent(&mut self, count: usize) -> Verdict {
        let result = self.done as i32;
        if self.selection.is_none() && self.sends_on() && result > 0 {
            self.data.advance(count);
            self.done = 0;
            return Verdict::Shot { result, flags: 0 };
        }
        Verdict::Done(result)
    }

    /// Handles a socket that is not ready. The request fails only if the program itself gave MSG_DONTWAIT; O_NONBLOCK
    /// does not matter.
    pub(super) fn nothing(&mut self) -> Verdict {
        if self.flags & MSG_DONTWAIT != 0 {
            return self.failed(Errno::AGAIN);
        }
        self.polled = true;
        Verdict::WouldBlock(self.direction)
    }

    /// Reports an error. If part of the data was transferred before, that part is the result.
    fn failed(&self, error: Errno) -> Verdict {
        match self.zero_copy() {
            _ if self.done > 0 => Verdict::DoneShort(self.done as i32),
            Some(zero_copy) if error == Errno::FAULT => {
                let result = -error.raw_os_error();
                Verdict::DoneWith { result, flags: zero_copy.flags_of_bad_data(), failed: true }
            }
            _ => Verdict::error(error),
        }
    }

    /// Makes one system call. Returns the bytes that it transferred. Also returns true if a receive with MSG_WAITALL
    /// lost the rest of a message, which the kernel counts as a failure.
    #[inline]
    fn attempt(&mut self, fd: i32) -> Result<(usize, bool), Errno> {
        let waits_for_all = self.flags & MSG_WAITALL != 0;
        // With MSG_ZEROCOPY the kernel would send from program memory. This data is copied: see `zero_copy`.
        let flags = if self.zero_copy().is_some() { self.flags & !MSG_ZEROCOPY } else { self.flags };
        match (&mut self.data, self.direction) {
            (Data::Message(message), Direction::Write) => Ok((message.send(fd, flags)?, false)),
            (Data::Message(message), Direction::Read) if self.multishot && !self.bundle => {
                let (count, last) = message.receive_into_buffer(fd, self.flags)?;
                if let Some(selection) = &mut self.selection {
                    selection.ended = last;
                }
                Ok((count, false))
            }
            (Data::Message(message), Direction::Read) => {
                let (count, answered) = message.receive(fd, self.flags)?;
                Ok((count, waits_for_all && answered & MSG_CUT != 0))
            }
            (Data::Buffer { address, bytes, destination }, Direction::Write) => {
                let to = destination.as_ref().map_or([0; 2], |to| [to.pointer(), to.bytes()]);
                Ok((call_once(fd, [*address, *bytes], true, flags, to)?, false))
            }
            (Data::Buffer { address, bytes, .. }, Direction::Read) if waits_for_all => {
                let (count, answered) = Header::receive_into(fd, &[[*address, *bytes]], self.flags)?;
                Ok((count, answered & MSG_CUT != 0))
            }
            (Data::Buffer { address, bytes, .. }, Direction::Read) => {
                Ok((call_once(fd, [*address, *bytes], false, self.flags, [0; 2])?, false))
            }
        }
    }
}

/// Makes one call of sendto(2) or recvfrom(2) that does not wait. A send goes to the address and length in `to`, unless
/// they are 0.
#[inline]
pub(crate) fn call_once(
    fd: i32,
    [address, bytes]: [usize; 2],
    send: bool,
    flags: u32,
    to: [usize; 2],
) -> Result<usize, Errno> {
    let (number, always) =
        if send { (libc::SYS_sendto, MSG_DONTWAIT | MSG_NOSIGNAL) } else { (libc::SYS_recvfrom, MSG_DONTWAIT) };
    call(number, [fd as usize, address, bytes, (flags | always) as usize, to[0], to[1]])
}

/// Returns the flag by which a SEND or RECV, if it is one, names a registered buffer: from Linux 7.3 on.
fn plain_fixed(may_have: bool) -> u32 {
    if may_have && version::answers_as_7_3() {
        IORING_RECVSEND_FIXED_BUF
    } else {
        0
    }
}

/// Returns the destination address of a SEND or SEND_ZC. `addr2` has the address, and the low half of the word of
/// `file_index` its length.
fn destination(sqe: &Sqe) -> Result<Option<Address>, Errno> {
    if sqe.file_index > u16::MAX.into() {
        return Err(Errno::INVAL);
    }
    if sqe.off == 0 {
        return Ok(None);
    }
    Address::import(sqe.off, sqe.file_index as i32).map(Some)
}

/// True if the socket is a stream, where a transfer may continue after a short count (`io_net_retry`).
fn is_stream(fd: i32) -> bool {
    socket_option(fd, libc::SO_TYPE).is_ok_and(|kind| kind == libc::SOCK_STREAM || kind == libc::SOCK_SEQPACKET)
}

impl Data {
    /// Takes the SQE's buffer as the data.
    fn of(sqe: &Sqe, bytes: usize, destination: Option<Address>) -> Data {
        Data::Buffer { address: sqe.addr as usize, bytes, destination }
    }

    /// Number of bytes left to transfer.
    fn bytes(&self) -> usize {
        match self {
            Data::Buffer { bytes, .. } => *bytes,
            Data::Message(message) => message.bytes(),
        }
    }

    /// Number of bytes in the first range.
    fn first_bytes(&self) -> usize {
        match self {
            Data::Buffer { bytes, .. } => *bytes,
            Data::Message(message) => message.iovecs.first().map_or(0, |iovec| iovec[1]),
        }
    }

    /// The count below which the kernel continues a transfer with MSG_WAITALL, or fails its links.
    fn wanted(&self, direction: Direction) -> usize {
        match self {
            Data::Buffer { bytes, .. } => (*bytes).min(MAX_RW_COUNT),
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
