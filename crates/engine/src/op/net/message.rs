//! The structures of SENDMSG and RECVMSG, copied when the SQE is read: the header, the name and the iovecs.
//!
//! After a successful receive, the results that recvmsg(2) stored in the copied header are written to the program's
//! header.

use super::{rights, Address, ADDRESS_BYTES_MAX};
use crate::op::iovecs;
use crate::op::{call, Direction};
use crate::os::{user_read, user_write, user_write_slice};
use crate::Errno;

const MSG_DONTWAIT: u32 = libc::MSG_DONTWAIT as u32;
const MSG_NOSIGNAL: u32 = libc::MSG_NOSIGNAL as u32;
const MSG_WAITALL: u32 = libc::MSG_WAITALL as u32;
/// The most iovecs that a message may have.
const IOVECS_MAX: usize = libc::UIO_MAXIOV as usize;

/// `struct msghdr` of sendmsg(2). Addresses are numbers, since only the kernel follows them.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub(super) struct Header {
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
    /// Copies the header. A name's length without a name is dropped, unless `keeps_length` is set: a multishot request
    /// leaves room for that length.
    fn import(address: u64, keeps_length: bool) -> Result<Header, Errno> {
        let [name, name_length, iovecs, iovec_count, control, control_length, _] = user_read::<[u64; 7]>(address)?;
        Ok(Header {
            name: name as usize,
            // The length is the low half of its word: both supported machines are little endian.
            name_length: if name == 0 && !keeps_length { 0 } else { name_length as i32 },
            iovecs: iovecs as usize,
            iovec_count: iovec_count as usize,
            control: control as usize,
            control_length: control_length as usize,
            ..Header::default()
        })
    }

    /// Calls recvmsg(2) with ranges of program memory. Returns the count and the `MSG_*` flags.
    pub(super) fn receive_into(fd: i32, iovecs: &[[usize; 2]], flags: u32) -> Result<(usize, u32), Errno> {
        let (address, iovec_count) = (iovecs.as_ptr() as usize, iovecs.len());
        let mut header = Header { iovecs: address, iovec_count, ..Header::default() };
        let count = header.receive(fd, flags)?;
        Ok((count, header.flags))
    }

    fn receive(&mut self, fd: i32, flags: u32) -> Result<usize, Errno> {
        let header = self as *mut Header as usize;
        let flags = (known_flags(flags, self) | MSG_DONTWAIT) as usize;
        call(libc::SYS_recvmsg, [fd as usize, header, flags, 0, 0, 0])
    }
}

/// Drops `MSG_CMSG_COMPAT` if there is no control data to which it could apply: sendmsg(2) and recvmsg(2) refuse the
/// flag, io_uring does not.
fn known_flags(flags: u32, header: &Header) -> u32 {
    const MSG_CMSG_COMPAT: u32 = 0x8000_0000;
    if header.control_length == 0 {
        flags & !MSG_CMSG_COMPAT
    } else {
        flags
    }
}

/// True if the multishot form's part before the data has a valid size. Source: `io_recvmsg_mshot_prep` in
/// io_uring/net.c.
fn fits_before_data(header: &Header) -> bool {
    /// The size of `struct io_uring_recvmsg_out`.
    const OUT_BYTES: u64 = 16;
    let name = u64::try_from(header.name_length).ok();
    let bytes = name.and_then(|name| (header.control_length as u64).checked_add(OUT_BYTES + name));
    bytes.is_some_and(|bytes| bytes <= i32::MAX as u64)
}

/// The addresses in the program's `struct msghdr` to which a receive writes its results.
#[derive(Debug)]
struct Addresses {
    name_length: u64,
    control_length: u64,
    flags: u64,
}

impl Addresses {
    fn of(header: u64) -> Addresses {
        let field = |offset: usize| header.wrapping_add(offset as u64);
        Addresses {
            name_length: field(core::mem::offset_of!(Header, name_length)),
            control_length: field(core::mem::offset_of!(Header, control_length)),
            flags: field(core::mem::offset_of!(Header, flags)),
        }
    }
}

/// The copied structures of a SENDMSG or RECVMSG, or several ranges of a SEND or RECV.
#[derive(Debug, Default)]
pub(super) struct Message {
    /// The addresses for a receive's results, if the program gave a `struct msghdr`.
    addresses: Option<Addresses>,
    /// The program's header. `name` and `iovecs` are replaced for each call.
    header: Header,
    /// The ranges that are left to transfer.
    pub(super) iovecs: Vec<[usize; 2]>,
    /// The destination of a send.
    pub(super) destination: Option<Address>,
}

/// The way to read a message's iovecs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Iovecs {
    /// Ranges of program memory.
    Plain,
    /// One iovec or none. Only its length counts, since the request chooses its buffer.
    Selecting,
    /// Parts of a registered buffer, which the engine checks when it issues the request.
    Registered,
}

impl Message {
    /// Copies the program's structures with the kernel's checks. Source: `__copy_msghdr` in net/socket.c.
    ///
    /// The multishot form stores the results of recvmsg(2) before the data.
    pub(super) fn import(user: u64, sends: bool, iovecs: Iovecs, multishot: bool) -> Result<Message, Errno> {
        let header = Header::import(user, multishot)?;
        if iovecs == Iovecs::Selecting && header.iovec_count > 1 {
            return Err(Errno::INVAL);
        }
        if multishot && !fits_before_data(&header) {
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
        let iovecs = iovecs::import(header.iovecs as u64, header.iovec_count, iovecs != Iovecs::Registered)?;
        Ok(Message { addresses: Some(Addresses::of(user)), header, iovecs, destination })
    }

    /// Makes a message of several ranges without a header.
    pub(super) fn of(iovecs: Vec<[usize; 2]>, destination: Option<Address>) -> Message {
        Message { iovecs, destination, ..Message::default() }
    }

    /// Copies the ranges of a SEND with IORING_SEND_VECTORIZED.
    pub(super) fn vector(address: u64, count: u32, destination: Option<Address>) -> Result<Message, Errno> {
        let count = usize::try_from(count).ok().filter(|count| *count <= IOVECS_MAX).ok_or(Errno::INVAL)?;
        Ok(Message::of(iovecs::import(address, count, true)?, destination))
    }

    pub(super) fn send(&mut self, fd: i32, flags: u32) -> Result<usize, Errno> {
        rights::check(self.header.control as u64, self.header.control_length as u64)?;
        let to = self.destination.as_ref().map_or((0, 0), |to| (to.pointer(), to.bytes() as i32));
        let header = Header {
            name: to.0,
            name_length: to.1,
            iovecs: self.iovecs.as_ptr() as usize,
            iovec_count: self.iovecs.len(),
            ..self.header
        };
        let flags = known_flags(flags, &header) | MSG_DONTWAIT | MSG_NOSIGNAL;
        let with = |flags: u32| {
            call(libc::SYS_sendmsg, [fd as usize, &raw const header as usize, flags as usize, 0, 0, 0])
        };
        match with(flags) {
            // The engine does for a send what this flag asks for, so it can drop the flag, which gVisor refuses.
            Err(Errno::INVAL) if flags & MSG_WAITALL != 0 => with(flags & !MSG_WAITALL),
            answer => answer,
        }
    }

    /// Receives, and writes the resulting lengths and flags to the program's header. Returns the count and the flags.
    pub(super) fn receive(&mut self, fd: i32, flags: u32) -> Result<(usize, u32), Errno> {
        let (iovecs, iovec_count) = (self.iovecs.as_ptr() as usize, self.iovecs.len());
        let mut header = Header { iovecs, iovec_count, ..self.header };
        let count = header.receive(fd, flags)?;
        self.write_back(&header)?;
        Ok((count, header.flags))
    }

    /// Calls `place` for the name, the control data and the fields that a receive fills, as
    /// [`crate::op::Op::each_part`] says.
    pub(super) fn each_part(
        &mut self,
        direction: Direction,
        place: &mut dyn FnMut(&'static str, usize, usize) -> usize,
    ) {
        let Some(addresses) = &mut self.addresses else { return };
        let receives = direction == Direction::Read;
        let name_room = self.header.name_length.clamp(0, ADDRESS_BYTES_MAX as i32) as usize;
        if receives && self.header.name != 0 {
            self.header.name = place("msg_name", self.header.name, name_room);
            addresses.name_length = place("msg_namelen", addresses.name_length as usize, size_of::<u32>()) as u64;
        }
        if receives {
            addresses.control_length =
                place("msg_controllen", addresses.control_length as usize, size_of::<u64>()) as u64;
            addresses.flags = place("msg_flags", addresses.flags as usize, size_of::<u32>()) as u64;
        }
        if self.header.control != 0 {
            self.header.control = place("msg_control", self.header.control, self.header.control_length);
        }
    }

    /// Writes the results of a receive without data to the program's header.
    pub(super) fn write_back_nothing(&self) -> Result<(), Errno> {
        self.write_back(&Header { name: self.header.name, ..Header::default() })
    }

    fn write_back(&self, header: &Header) -> Result<(), Errno> {
        let Some(addresses) = &self.addresses else { return Ok(()) };
        if header.name != 0 {
            user_write(addresses.name_length, &header.name_length)?;
        }
        user_write(addresses.flags, &header.flags)?;
        user_write(addresses.control_length, &(header.control_length as u64))
    }

    /// Receives a message of a multishot request. The buffer gets `struct io_uring_recvmsg_out`, the name, the control
    /// data and the payload, one after the other. Returns the bytes up to the payload's end, and true if the message
    /// was the last. An empty message is the last.
    pub(super) fn receive_into_buffer(&mut self, fd: i32, flags: u32) -> Result<(usize, bool), Errno> {
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

    /// The count below which the kernel continues a transfer with MSG_WAITALL. 0 for a receive that has room for
    /// control data: the kernel never continues it.
    pub(super) fn wanted(&self, direction: Direction) -> usize {
        if direction == Direction::Read && self.header.control_length != 0 {
            return 0;
        }
        self.bytes()
    }

    /// Number of bytes left to transfer.
    pub(super) fn bytes(&self) -> usize {
        self.iovecs.iter().map(|iovec| iovec[1]).sum()
    }

    pub(super) fn advance(&mut self, count: usize) {
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
