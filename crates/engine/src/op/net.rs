//! ACCEPT, CONNECT, SOCKET, SHUTDOWN, BIND, LISTEN. Sends and receives are in `net/transfer.rs`.
//!
//! Transfers take MSG_DONTWAIT, so any thread may attempt them. They wait for readiness, and no thread ever sleeps in
//! them. accept4(2) and connect(2) have no such flag. Whether they sleep depends only on the O_NONBLOCK of the
//! program's own file description. Only the program may set that flag, and likewise SO_RCVTIMEO. So on a blocking
//! description:
//!
//! - ACCEPT waits for readiness and then lets a worker make the call. If another thread accepts the connection first,
//!   the worker sleeps until the next connection. The program's thread does not sleep in io_uring_enter(2).
//! - CONNECT of a stream socket is made by a worker from the start. (MSG_FASTOPEN would start it without waiting, but
//!   sends a different SYN.) Datagram sockets connect without waiting.
//!
//! The kernel's io_uring passes O_NONBLOCK with the call instead. The results are the same.

mod finish;
mod fixed;
mod message;
mod poll_first;
pub mod rights;
pub(super) mod transfer;
mod unread;
mod zero_copy;

use finish::finish;
pub use transfer::Transfer;
pub use unread::flags_of_filled;
pub use zero_copy::refused_flags;

use super::{
    call, reject_unused, Context, Direction, Field, HandledBefore, Identity, OnRing, Op, Operation, Punt, Skip,
    Turn, Verdict,
};
use crate::op::operation::SHOTS_TOGETHER;
use crate::op::selection::{Attempted, Selection};
use crate::os::{user_read, user_read_slice, Os, Sys};
use crate::resource::buf_ring::Held;
use crate::{descriptors, Errno};
use anyring_abi::{
    Opcode, Sqe, IORING_ACCEPT_DONTWAIT, IORING_ACCEPT_MULTISHOT, IORING_ACCEPT_POLL_FIRST,
    IORING_CQE_F_SOCK_NONEMPTY, IORING_FILE_INDEX_ALLOC,
};
use core::ops::ControlFlow;

/// `SOCK_TYPE_MASK` of the kernel: the bits of the `type` argument of socket(2) that are not flags.
const SOCKET_TYPE_MASK: u32 = 0xf;
/// `sizeof(struct sockaddr_storage)`: the longest address.
const ADDRESS_BYTES_MAX: usize = 128;

/// An operation of this family, with its arguments.
#[derive(Debug)]
pub enum Net {
    /// accept4(2).
    Accept(Accept),
    /// connect(2).
    Connect(Connect),
    /// socket(2).
    Socket(Socket),
    /// shutdown(2).
    Shutdown {
        /// `SHUT_*`.
        how: u32,
    },
    /// bind(2), which gets a copy of the program's address.
    Bind(Address),
    /// listen(2).
    Listen {
        /// Number of connections that may wait to be accepted.
        backlog: u32,
    },
    /// send(2), recv(2), sendmsg(2), recvmsg(2), and their zero-copy forms.
    Transfer(Transfer),
}

/// The operation of a SEND_ZC or SENDMSG_ZC whose prep failed, for its notification.
pub fn refused_send(sqe: &Sqe) -> Op {
    Op::Net(Net::Transfer(Transfer::refused(sqe)))
}

impl Net {
    fn transfer(&self) -> Option<&Transfer> {
        if let Net::Transfer(transfer) = self {
            Some(transfer)
        } else {
            None
        }
    }

    fn transfer_mut(&mut self) -> Option<&mut Transfer> {
        if let Net::Transfer(transfer) = self {
            Some(transfer)
        } else {
            None
        }
    }

    /// Reads the SQE and checks its fields.
    pub fn prep(opcode: Opcode, sqe: &Sqe) -> Result<Net, Errno> {
        Ok(match opcode {
            Opcode::Accept => Net::Accept(Accept::prep(sqe)?),
            Opcode::Connect => Net::Connect(Connect::prep(sqe)?),
            Opcode::Socket => Net::Socket(Socket::prep(sqe)?),
            Opcode::Shutdown => {
                let unused = [Field::Off, Field::Addr, Field::OpFlags, Field::BufIndex, Field::FileIndex];
                reject_unused(sqe, &unused)?;
                Net::Shutdown { how: sqe.len }
            }
            Opcode::Bind => {
                reject_unused(sqe, &[Field::Len, Field::OpFlags, Field::BufIndex, Field::FileIndex])?;
                Net::Bind(Address::import(sqe.addr, sqe.off as i32)?)
            }
            Opcode::Listen => {
                let unused = [Field::Off, Field::Addr, Field::OpFlags, Field::BufIndex, Field::FileIndex];
                reject_unused(sqe, &unused)?;
                Net::Listen { backlog: sqe.len }
            }
            _ => Net::Transfer(Transfer::prep(opcode, sqe)?),
        })
    }
}

impl Operation for Net {
    #[inline]
    fn wait_first(&mut self, fd: i32) -> Option<Result<(Direction, Skip), Errno>> {
        match self {
            Net::Transfer(transfer) => transfer.wait_first(fd),
            Net::Accept(accept) if accept.poll_first => Some(accept.polls_first()),
            _ => None,
        }
    }

    #[inline]
    fn waits_for(&self) -> Option<Direction> {
        match self {
            Net::Transfer(transfer) => transfer.waits_for(),
            _ => None,
        }
    }

    #[inline]
    fn will_poll_first(&self) -> bool {
        match self {
            Net::Transfer(transfer) => transfer.will_poll_first(),
            Net::Accept(accept) => accept.poll_first,
            _ => false,
        }
    }

    fn selects(&self) -> bool {
        matches!(self, Net::Transfer(transfer) if transfer.selects())
    }

    #[inline]
    fn was_short_receive(&self) -> bool {
        matches!(self, Net::Transfer(transfer) if transfer.was_short())
    }

    fn is_multishot(&self) -> bool {
        match self {
            Net::Accept(accept) => accept.multishot,
            Net::Transfer(transfer) => transfer.is_multishot(),
            _ => false,
        }
    }

    fn seen_by_filters(&self) -> [u32; 6] {
        match self {
            // Linux 7.3.4 shows the type without its flags.
            Net::Socket(Socket { domain, kind, protocol, .. }) => {
                [*domain as u32, kind & SOCKET_TYPE_MASK, *protocol, 0, 0, 0]
            }
            Net::Connect(connect) => connect.address.seen_by_filters(),
            _ => [0; 6],
        }
    }

    fn slot(&self) -> u32 {
        match self {
            Net::Accept(accept) => accept.slot,
            Net::Socket(socket) => socket.slot,
            _ => 0,
        }
    }

    #[inline]
    fn issue(&mut self, context: Context) -> Verdict {
        match self {
            Net::Transfer(transfer) => transfer.issue(context),
            Net::Accept(accept) => accept.issue(context),
            Net::Connect(connect) => connect.issue(context),
            Net::Socket(socket) => socket.issue(),
            Net::Bind(address) => Verdict::of(call(
                libc::SYS_bind,
                [context.fd as usize, address.pointer(), address.bytes(), 0, 0, 0],
            )),
            Net::Listen { backlog } => {
                Verdict::of(call(libc::SYS_listen, [context.fd as usize, *backlog as usize, 0, 0, 0, 0]))
            }
            Net::Shutdown { how } => {
                match call(libc::SYS_shutdown, [context.fd as usize, *how as usize, 0, 0, 0, 0]) {
                    // The kernel makes this check before the call.
                    Err(Errno::NOTSOCK) => Verdict::error(Errno::NOTSOCK),
                    answer => Verdict::uncounted_on(context.fd, answer),
                }
            }
        }
    }

    #[inline]
    fn issue_after(&mut self, _ring: &mut impl OnRing, first: Result<usize, Errno>, fd: i32) -> Verdict {
        match self {
            Net::Transfer(transfer) => transfer.issue_after(first, Context { fd, nonblock: true }),
            _ => Verdict::error(Errno::INVAL),
        }
    }

    #[inline]
    fn look_up(&mut self, ring: &mut impl OnRing, fd: i32) -> Result<(), Errno> {
        match self {
            Net::Transfer(transfer) => transfer.find_buffer(fd, ring.buffers()),
            _ => Ok(()),
        }
    }

    fn refused_by_ring(&self) -> Option<Errno> {
        Some(Errno::NOTSOCK)
    }

    #[inline]
    fn cqe_flags(&self) -> u32 {
        self.transfer().map_or(0, Transfer::cqe_flags)
    }

    fn notified(&self) -> Option<u64> {
        self.transfer()?.notified()
    }

    fn identity(&self, row: Identity) -> Identity {
        if self.is_bundle() {
            Identity::Never
        } else {
            row
        }
    }

    fn may_sleep_on_file(&self) -> bool {
        true
    }

    fn selection(&mut self) -> Option<&mut Selection> {
        self.transfer_mut()?.selection()
    }

    fn use_buffers(&mut self) {
        if let Net::Transfer(transfer) = self {
            transfer.use_buffers();
        }
    }

    fn is_bundle(&self) -> bool {
        self.transfer().is_some_and(Transfer::is_bundle)
    }

    fn sends(&self) -> bool {
        self.transfer().is_some_and(|transfer| transfer.direction() == Direction::Write)
    }

    fn finish_attempt(&mut self, attempted: Attempted, held: Held, appends: bool) -> ControlFlow<Verdict> {
        match self {
            Net::Transfer(transfer) => finish(transfer, attempted, held, appends),
            _ => ControlFlow::Break(attempted.verdict()),
        }
    }

    /// A bundle is sent until nothing is left to send (`io_poll_multishot_retry`). A bundle that receives at most `len`
    /// bytes at a time lets others go first after each result (IORING_RECV_MSHOT_CAP in io_uring/net.c).
    fn shots_together(&self) -> u32 {
        match (self.is_bundle(), self.sends()) {
            (true, true) => u32::MAX,
            (true, false) if self.transfer().is_some_and(Transfer::is_capped) => 0,
            _ => SHOTS_TOGETHER,
        }
    }

    fn transferred(&self) -> usize {
        self.transfer().map_or(0, Transfer::transferred)
    }

    fn forget_transferred(&mut self) {
        if let Net::Transfer(transfer) = self {
            transfer.forget_transferred();
        }
    }

    fn hears_urgent_data(&self) -> bool {
        true
    }

    /// A request waits on a file that is no socket only with POLL_FIRST.
    fn verdict_unpolled(&mut self, _fd: i32) -> Option<Verdict> {
        Some(Verdict::error(if self.is_multishot() { Errno::BADFD } else { Errno::AGAIN }))
    }

    fn end_of_datagrams(&self, fd: i32) -> Option<Verdict> {
        self.transfer()?.end_of_datagrams(fd)
    }

    fn turn(&self) -> Turn {
        match self {
            Net::Accept(_) => Turn::Behind(Direction::Read),
            _ => self.waits_for().map_or(Turn::Unknown, Turn::Behind),
        }
    }

    fn handled_before(&self) -> HandledBefore {
        HandledBefore::ItsFile
    }

    fn worker_fails_with_eagain(&self, number: Option<i32>) -> bool {
        matches!(self, Net::Accept(_)) && number.is_some_and(|fd| !is_blocking(fd))
    }

    fn verdict_installed(&self, installed: Result<i32, Errno>) -> Verdict {
        let flags = match self {
            Net::Accept(accept) if accept.more_wait => IORING_CQE_F_SOCK_NONEMPTY,
            _ => 0,
        };
        match installed {
            Ok(result) if self.is_multishot() => Verdict::Shot { result, flags },
            Ok(result) => Verdict::DoneWith { result, flags, failed: false },
            // SOCKET reports its errors without `req_set_fail`.
            Err(error) if matches!(self, Net::Socket(_)) => Verdict::uncounted(Err(error)),
            Err(error) => Verdict::error(error),
        }
    }
}

/// accept4(2). Source: io_uring_enter(2), IORING_OP_ACCEPT; io_uring/net.c.
#[derive(Debug)]
pub struct Accept {
    address: u64,
    address_length: u64,
    /// `SOCK_CLOEXEC`, `SOCK_NONBLOCK`.
    flags: u32,
    /// `IORING_ACCEPT_DONTWAIT`: if no connection waits, the result is EAGAIN.
    dont_wait: bool,
    /// `IORING_ACCEPT_MULTISHOT`.
    multishot: bool,
    /// `IORING_ACCEPT_POLL_FIRST`, until the request has waited once.
    poll_first: bool,
    /// More connections wait to be accepted after this one.
    more_wait: bool,
    slot: u32,
}

impl Accept {
    fn prep(sqe: &Sqe) -> Result<Accept, Errno> {
        reject_unused(sqe, &[Field::Len, Field::BufIndex])?;
        let options = u32::from(sqe.ioprio);
        if options & !(IORING_ACCEPT_MULTISHOT | IORING_ACCEPT_DONTWAIT | IORING_ACCEPT_POLL_FIRST) != 0 {
            return Err(Errno::INVAL);
        }
        let multishot = options & IORING_ACCEPT_MULTISHOT != 0;
        check_new_file(sqe.op_flags, sqe.file_index)?;
        if multishot && sqe.file_index != 0 && sqe.file_index != IORING_FILE_INDEX_ALLOC as u32 {
            return Err(Errno::INVAL);
        }
        Ok(Accept {
            multishot,
            address: sqe.addr,
            address_length: sqe.off,
            flags: sqe.op_flags,
            dont_wait: options & IORING_ACCEPT_DONTWAIT != 0,
            poll_first: options & IORING_ACCEPT_POLL_FIRST != 0,
            more_wait: false,
            slot: sqe.file_index,
        })
    }

    /// Calls `place` for the peer's address and its length, as [`super::Op::each_part`] says.
    pub(super) fn each_part(&mut self, place: &mut dyn FnMut(&'static str, usize, usize) -> usize) {
        if self.multishot || self.address == 0 {
            return;
        }
        // The call reads the length at `address_length` only if there is an address.
        let room = user_read::<i32>(self.address_length).unwrap_or(0).clamp(0, ADDRESS_BYTES_MAX as i32);
        self.address = place("addr", self.address as usize, room as usize) as u64;
        self.address_length = place("addrlen", self.address_length as usize, size_of::<u32>()) as u64;
    }

    fn issue(&mut self, context: Context) -> Verdict {
        loop {
            if waits_for_connections(context.fd) {
                if Sys::poll_now(context.fd, libc::POLLIN as u16) == Ok(0) {
                    return self.nothing();
                }
                if context.nonblock {
                    return Verdict::NeedsWorker(Punt::NoForm);
                }
            }
            let flags = new_file_flags(self.flags, self.slot);
            let args = [context.fd as usize, self.address as usize, self.address_length as usize, flags, 0, 0];
            match call(libc::SYS_accept4, args) {
                Ok(fd) => {
                    self.more_wait = has_more_connections(context.fd);
                    return Verdict::Descriptor(fd as i32);
                }
                Err(Errno::AGAIN) => return self.nothing(),
                // A signal interrupted a worker's sleep: check again whether a connection waits.
                Err(Errno::INTR) => {}
                Err(error) => return Verdict::error(error),
            }
        }
    }

    #[cold]
    fn polls_first(&mut self) -> Result<(Direction, Skip), Errno> {
        self.poll_first = false;
        if self.dont_wait {
            return Err(Errno::AGAIN);
        }
        Ok((Direction::Read, Skip::PollFirst))
    }

    fn nothing(&self) -> Verdict {
        if self.dont_wait {
            Verdict::error(Errno::AGAIN)
        } else {
            Verdict::WouldBlock(Direction::Read)
        }
    }
}

/// True if connections wait on `fd`. Only listening TCP sockets report this to the kernel's io_uring.
fn has_more_connections(fd: i32) -> bool {
    matches!(Sys::poll_now(fd, libc::POLLIN as u16), Ok(1..)) && is_internet(fd)
}

fn is_internet(fd: i32) -> bool {
    matches!(socket_option(fd, libc::SO_DOMAIN), Ok(libc::AF_INET | libc::AF_INET6))
}

/// True if accept4(2) may sleep on `fd`. On a file that is no listening socket it fails at once.
fn waits_for_connections(fd: i32) -> bool {
    is_blocking(fd) && socket_option(fd, libc::SO_ACCEPTCONN) == Ok(1)
}

/// connect(2). Source: io_uring_enter(2), IORING_OP_CONNECT; io_uring/net.c, `io_connect`.
#[derive(Debug)]
pub struct Connect {
    address: Address,
    /// This request began the connection: the next call reports its outcome.
    in_progress: bool,
    /// The call failed once with ECONNABORTED and was tried again, as the kernel does.
    aborted: bool,
}

impl Connect {
    fn prep(sqe: &Sqe) -> Result<Connect, Errno> {
        reject_unused(sqe, &[Field::Len, Field::BufIndex, Field::OpFlags, Field::FileIndex])?;
        let address = Address::import(sqe.addr, sqe.off as i32)?;
        Ok(Connect { address, in_progress: false, aborted: false })
    }

    fn issue(&mut self, context: Context) -> Verdict {
        if context.nonblock && waits_for_peer(context.fd) {
            return Verdict::NeedsWorker(Punt::NoForm);
        }
        // Poll instead of calling again: that call would make the socket look as if it had never begun to connect.
        if self.in_progress && Sys::poll_now(context.fd, 0).is_ok_and(|seen| seen & libc::POLLERR as u16 != 0) {
            return Self::ended(context.fd);
        }
        let args = [context.fd as usize, self.address.pointer(), self.address.bytes(), 0, 0, 0];
        match call(libc::SYS_connect, args) {
            // If a signal interrupts the call, the kernel continues to connect.
            Err(Errno::INPROGRESS | Errno::INTR) => self.in_progress = true,
            Err(Errno::ALREADY) if self.in_progress => {}
            Err(Errno::CONNABORTED) if !self.aborted => self.aborted = true,
            Err(Errno::ISCONN | Errno::BADFD) if self.in_progress => {
                return Self::ended(context.fd);
            }
            answer => return Verdict::of(answer),
        }
        Verdict::WouldBlock(Direction::Write)
    }

    /// Asks the socket how the attempt to connect ended.
    fn ended(fd: i32) -> Verdict {
        match socket_option(fd, libc::SO_ERROR) {
            Ok(error) => Verdict::Done(-error),
            Err(error) => Verdict::error(error),
        }
    }
}

/// True if connect(2) may sleep on `fd`.
fn waits_for_peer(fd: i32) -> bool {
    let connects_at_once = |kind| kind == libc::SOCK_DGRAM || kind == libc::SOCK_RAW;
    is_blocking(fd) && socket_option(fd, libc::SO_TYPE).is_ok_and(|kind| !connects_at_once(kind))
}

/// socket(2). Source: io_uring_enter(2), IORING_OP_SOCKET.
#[derive(Debug)]
pub struct Socket {
    domain: i32,
    kind: u32,
    protocol: u32,
    slot: u32,
}

impl Socket {
    fn prep(sqe: &Sqe) -> Result<Socket, Errno> {
        reject_unused(sqe, &[Field::Addr, Field::OpFlags, Field::BufIndex])?;
        let kind = sqe.off as u32;
        check_new_file(kind & !SOCKET_TYPE_MASK, sqe.file_index)?;
        Ok(Socket { domain: sqe.fd, kind, protocol: sqe.len, slot: sqe.file_index })
    }

    fn issue(&self) -> Verdict {
        let kind = new_file_flags(self.kind, self.slot);
        match call(libc::SYS_socket, [self.domain as usize, kind, self.protocol as usize, 0, 0, 0]) {
            Ok(fd) => Verdict::Descriptor(fd as i32),
            Err(error) => Verdict::error(error),
        }
    }
}

/// Checks a new socket's flags: only the two known flags, and no close-on-exec for a slot.
fn check_new_file(flags: u32, slot: u32) -> Result<(), Errno> {
    let (cloexec, nonblock) = (libc::SOCK_CLOEXEC as u32, libc::SOCK_NONBLOCK as u32);
    if flags & !(cloexec | nonblock) != 0 || (slot != 0 && flags & cloexec != 0) {
        return Err(Errno::INVAL);
    }
    Ok(())
}

/// Returns `flags` for the call: a descriptor for a slot is close-on-exec until it is installed.
fn new_file_flags(flags: u32, slot: u32) -> usize {
    let slot_flags = if slot != 0 { libc::SOCK_CLOEXEC as u32 } else { 0 };
    (flags | slot_flags) as usize
}

/// A copy of a socket address.
#[derive(Debug)]
pub struct Address(Box<[u8]>);

impl Address {
    /// Copies `length` bytes at `address`. Source: `move_addr_to_kernel` in net/socket.c.
    fn import(address: u64, length: i32) -> Result<Address, Errno> {
        let length = usize::try_from(length).map_err(|_| Errno::INVAL)?;
        if length > ADDRESS_BYTES_MAX {
            return Err(Errno::INVAL);
        }
        let mut bytes = vec![0u8; length].into_boxed_slice();
        user_read_slice(address, &mut bytes)?;
        Ok(Address(bytes))
    }

    /// Returns the family, the port, and an address of four or 16 bytes, in the words in which filters see them. Without
    /// all bytes of the family's structure there is only the family. Source: `io_connect_bpf_populate` in io_uring/net.c.
    fn seen_by_filters(&self) -> [u32; 6] {
        let mut seen = [0; 6];
        let Some(family) = self.0.first_chunk() else { return seen };
        seen[0] = u16::from_ne_bytes(*family).into();
        // `struct sockaddr_in` has the address after the port, `struct sockaddr_in6` also the flow information.
        let (bytes, at, words) = match i32::from(u16::from_ne_bytes(*family)) {
            libc::AF_INET => (size_of::<libc::sockaddr_in>(), 4, 1),
            libc::AF_INET6 => (size_of::<libc::sockaddr_in6>(), 8, 4),
            _ => return seen,
        };
        if self.0.len() >= bytes {
            seen[1] = u32::from_ne_bytes([self.0[2], self.0[3], 0, 0]);
            for (word, from) in seen[2..2 + words].iter_mut().zip(self.0[at..].chunks_exact(4)) {
                *word = u32::from_ne_bytes([from[0], from[1], from[2], from[3]]);
            }
        }
        seen
    }

    fn pointer(&self) -> usize {
        self.0.as_ptr() as usize
    }

    fn bytes(&self) -> usize {
        self.0.len()
    }
}

/// True if the file has no O_NONBLOCK, so that calls on `fd` may sleep.
pub(crate) fn is_blocking(fd: i32) -> bool {
    descriptors::status_flags(fd).is_ok_and(|flags| flags & libc::O_NONBLOCK == 0)
}

/// Returns an integer option of level SOL_SOCKET; `ENOTSOCK` if `fd` is no socket. Source: socket(7).
pub fn socket_option(fd: i32, option: i32) -> Result<i32, Errno> {
    let mut value = 0i32;
    let mut length = size_of::<i32>() as u32;
    let (to, room) = (&mut value as *mut i32 as usize, &mut length as *mut u32 as usize);
    call(libc::SYS_getsockopt, [fd as usize, libc::SOL_SOCKET as usize, option as usize, to, room, 0])?;
    Ok(value)
}

/// True if the TCP socket has an upper layer protocol (TCP_ULP).
pub fn has_upper_protocol(fd: i32) -> bool {
    let (mut name, mut bytes) = ([0u8; 16], 16u32);
    let (to, room) = (name.as_mut_ptr() as usize, &raw mut bytes as usize);
    let args = [fd as usize, libc::IPPROTO_TCP as usize, libc::TCP_ULP as usize, to, room, 0];
    call(libc::SYS_getsockopt, args).is_err() || bytes != 0
}

#[cfg(test)]
mod tests;
