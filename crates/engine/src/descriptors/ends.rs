//! The two ends of a ring's descriptor: the number that the program has, and the engine's own end.
//!
//! They are a socket pair. Where a sandbox refuses socketpair(2), they are a pipe. The program's end of the pipe is
//! opened for reading and writing through /proc, so that it is writable like a kernel ring (decision 2).

use crate::os::calls;
use crate::os::{check, file_status, syscall, ForNow, Os, Sys};
use crate::thread::uninterrupted;
use crate::{descriptors, Errno};
use core::sync::atomic::{AtomicBool, Ordering};
use rustix::fd::{AsRawFd, IntoRawFd};
use rustix::fs::{Mode, OFlags};
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use rustix::pipe::PipeFlags;

/// Set once a ring's descriptor is a pipe. Relaxed: a thread that looks for such a ring learnt the ring's number later.
static PIPES: AtomicBool = AtomicBool::new(false);

/// True if a ring's descriptor may be a pipe.
pub(super) fn may_be_pipes() -> bool {
    PIPES.load(Ordering::Relaxed)
}

/// The engine's descriptors for one ring's descriptor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EngineEnds {
    /// The descriptor that sends bytes to the program's end, and reports when the last copy of that end closes.
    pub sender: i32,
    /// The descriptor that becomes readable when another process wakes this ring's epoll waits. The POSIX locks of
    /// the ring's members are on it. With a socket pair it is `sender`. A pipe has one direction, and the program's
    /// closes would release the locks on it, so with a pipe it is a second pipe.
    pub kicked: i32,
}

impl EngineEnds {
    /// The ends of a ring that has no descriptor.
    pub const NONE: EngineEnds = EngineEnds { sender: -1, kicked: -1 };

    fn is_pipe(self) -> bool {
        self.sender != self.kicked
    }

    /// Puts a byte into the descriptor, so that it is readable for its watchers. A full descriptor is readable anyway.
    pub fn send_byte(self) {
        if !self.is_pipe() {
            let _ = send_byte(self.sender);
        } else if !last_copy_gone(self.sender) {
            write_byte_quietly(self.sender);
        }
    }

    /// Takes all bytes out of `program_end`, which the caller knows to be this ring's.
    pub fn take_bytes(self, program_end: i32) {
        match self.is_pipe() {
            true => read_bytes(program_end),
            false => take_bytes(program_end),
        }
    }

    /// Wakes all poll sets that watch for kicks. `program_end` is a number of the ring's descriptor.
    ///
    /// A sleeper never takes bytes out, since it might take the edge that another sleeper has not got yet. The sender
    /// takes them out if there are many (`is_full`), and sends afterwards. That makes a fresh edge for all sleepers.
    pub fn kick(self, program_end: i32, is_full: bool) {
        let take = || match self.is_pipe() {
            true => read_bytes(self.kicked),
            false => take_bytes(self.kicked),
        };
        let send = || match self.is_pipe() {
            true => write_byte(self.kicked),
            false => send_byte(program_end),
        };
        if is_full {
            take();
        }
        if send() == Err(Errno::AGAIN) {
            take();
            let _ = send();
        }
    }

    /// The descriptors that a poll set watches.
    pub fn watched(self) -> impl Iterator<Item = i32> {
        let second = self.is_pipe().then_some(self.sender);
        [self.kicked].into_iter().chain(second).filter(|fd| *fd >= 0)
    }

    /// Closes them.
    pub fn close(self) {
        self.watched().for_each(descriptors::close);
    }
}

/// Writes a byte into a pipe whose last reader may go at any moment. The thread gets no SIGPIPE then: the signal is
/// blocked during the call, and taken from the thread's pending signals unless one was pending before.
fn write_byte_quietly(pipe: i32) {
    let signal = 1u64 << (libc::SIGPIPE - 1);
    let mut before = 0u64;
    uninterrupted(|| {
        syscall(libc::SYS_rt_sigpending, [&raw mut before as usize, size_of::<u64>(), 0, 0, 0, 0]);
        if write_byte(pipe) == Err(Errno::PIPE) && before & signal == 0 {
            let at_once = [0i64; 2];
            let args = [&raw const signal as usize, 0, &raw const at_once as usize, size_of::<u64>(), 0, 0];
            syscall(libc::SYS_rt_sigtimedwait, args);
        }
    });
}

fn write_byte(pipe: i32) -> Result<(), Errno> {
    let byte = 1u8;
    check(syscall(libc::SYS_write, [pipe as usize, &raw const byte as usize, 1, 0, 0, 0])).map(|_| ())
}

/// Takes all bytes out of a pipe or socket. Polls before each read, since the program may have made the description
/// blocking.
fn read_bytes(end: i32) {
    const READABLE: u16 = libc::POLLIN as u16;
    let mut bytes = [0u8; 64];
    let read = [end as usize, bytes.as_mut_ptr() as usize, bytes.len(), 0, 0, 0];
    while Sys::poll_now(end, READABLE).is_ok_and(|seen| seen & READABLE != 0) && syscall(libc::SYS_read, read) > 0 {
    }
}

/// Sends a byte into a socket. sendmsg(2) does so where a sandbox refuses sendto(2).
fn send_byte(socket: i32) -> Result<(), Errno> {
    const FLAGS: i32 = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    let byte = 1u8;
    let send = [socket as usize, &raw const byte as usize, 1, FLAGS as usize, 0, 0];
    match check(syscall(libc::SYS_sendto, send)) {
        Err(Errno::PERM | Errno::NOSYS) => {
            let mut part = libc::iovec { iov_base: (&raw const byte).cast_mut().cast(), iov_len: 1 };
            // SAFETY: all zeroes are a message without an address or control data.
            let mut message: libc::msghdr = unsafe { core::mem::zeroed() };
            (message.msg_iov, message.msg_iovlen) = (&raw mut part, 1);
            check(syscall(
                libc::SYS_sendmsg,
                [socket as usize, &raw const message as usize, FLAGS as usize, 0, 0, 0],
            ))
        }
        sent => sent,
    }
    .map(|_| ())
}

fn take_bytes(socket: i32) {
    let mut bytes = [0u8; 64];
    let args = [socket as usize, bytes.as_mut_ptr() as usize, bytes.len(), libc::MSG_DONTWAIT as usize, 0, 0];
    loop {
        match check(syscall(libc::SYS_recvfrom, args)) {
            Ok(taken) if taken == bytes.len() => {}
            Err(Errno::PERM | Errno::NOSYS) => return read_bytes(socket),
            _ => return,
        }
    }
}

/// True if the engine's end of a ring's descriptor has been hung up on, so no copy of the descriptor is left.
pub fn last_copy_gone(sender: i32) -> bool {
    let ended = (libc::POLLHUP | libc::POLLERR) as u16;
    Sys::poll_now(sender, 0).is_ok_and(|seen| seen & ended != 0)
}

/// Makes the ends of a ring's descriptor: the engine's, and the program's.
///
/// # Errors
/// Those of socketpair(2).
pub fn make() -> Result<(Pending, ForNow), Errno> {
    // A read(2) of a ring by an instruction must not wait: it fails, as in the kernel.
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let refused = match calls::socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None) {
        Ok((ours, theirs)) => {
            let sender = descriptors::to_top(ours)?;
            return Ok((Pending { sender, kicked: None, is_first_pipe: false }, theirs));
        }
        Err(refused @ (Errno::PERM | Errno::ACCESS | Errno::NOSYS)) => refused,
        Err(error) => return Err(error),
    };
    by_pipe().map_err(|_| refused)
}

fn by_pipe() -> Result<(Pending, ForNow), Errno> {
    let (program, sender) = both_ways()?;
    let kicked = descriptors::to_top(both_ways()?.0)?;
    let sender = descriptors::to_top(sender)?;
    let is_first_pipe = !PIPES.swap(true, Ordering::Relaxed);
    Ok((Pending { sender, kicked: Some(kicked), is_first_pipe }, program))
}

/// Makes a pipe. Returns a descriptor that reads and writes it, and the end that only writes.
fn both_ways() -> Result<(ForNow, ForNow), Errno> {
    let (reader, writer) = calls::pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
    // The calling thread may have a table of its own.
    let path = format!("/proc/thread-self/fd/{}", reader.as_raw_fd());
    let both = calls::open(path, OFlags::RDWR | OFlags::CLOEXEC | OFlags::NONBLOCK, Mode::empty())?;
    let named = identity(reader.as_raw_fd());
    if named.is_none() || identity(both.as_raw_fd()) != named {
        return Err(Errno::NOSYS);
    }
    Ok((both, writer))
}

/// Returns the [`pipe_identity`] of a descriptor, or `None` if `fd` is no pipe.
pub(super) fn identity(fd: i32) -> Option<u64> {
    let status = file_status(fd).ok().filter(|status| status.kind == libc::S_IFIFO)?;
    Some(pipe_identity(status.device, status.inode))
}

/// Returns a number that identifies a pipe among the cookies and inodes of rings. The inode numbers of pipes have 32
/// bits.
pub fn pipe_identity(device: u64, inode: u64) -> u64 {
    const PIPE: u64 = 1 << 62;
    PIPE | (device & 0x3fff_ffff) << 32 | inode & 0xffff_ffff
}

/// The engine's ends of a ring that is not published yet. They are closed when this is dropped.
pub struct Pending {
    sender: descriptors::Own,
    kicked: Option<descriptors::Own>,
    /// True if these are the first pipes of this process.
    pub is_first_pipe: bool,
}

impl Pending {
    /// Returns the numbers.
    pub fn numbers(&self) -> EngineEnds {
        let sender = self.sender.as_raw_fd();
        EngineEnds { sender, kicked: self.kicked.as_ref().map_or(sender, |kicked| kicked.as_raw_fd()) }
    }

    /// Hands the descriptors over to the ring.
    pub fn into_raw(self) -> EngineEnds {
        let sender = self.sender.into_raw_fd();
        EngineEnds { sender, kicked: self.kicked.map_or(sender, |kicked| kicked.into_raw_fd()) }
    }
}

#[cfg(test)]
mod tests;
