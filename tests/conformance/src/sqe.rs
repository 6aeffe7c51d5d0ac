//! SQEs in the words of the man page: one function for each shape, and builders for the fields they share.
//!
//! Addresses are taken as numbers (`address`, `address_mut`). A case keeps the memory alive until the CQE has come.

use anyring_abi::{Opcode, Sqe, Timespec};

use std::os::fd::AsRawFd;

/// The number of an open descriptor.
pub fn fd(file: &impl AsRawFd) -> i32 {
    file.as_raw_fd()
}

/// Returns the address of a value.
pub fn address<T: ?Sized>(value: &T) -> u64 {
    std::ptr::from_ref(value).cast::<u8>() as u64
}

/// Returns the address of a value that the kernel will write.
pub fn address_mut<T: ?Sized>(value: &mut T) -> u64 {
    std::ptr::from_mut(value).cast::<u8>() as u64
}

/// One iovec over bytes that the kernel writes.
pub fn iovec_mut(bytes: &mut [u8]) -> libc::iovec {
    libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() }
}

/// One iovec over bytes that the kernel only reads.
pub fn iovec(bytes: &[u8]) -> libc::iovec {
    libc::iovec { iov_base: bytes.as_ptr() as *mut libc::c_void, iov_len: bytes.len() }
}

/// Setters that pass an SQE on.
pub trait SqeFields: Sized {
    /// Sets `user_data`.
    fn data(self, user_data: u64) -> Self;
    /// Adds `IOSQE_*` flags.
    fn with(self, flags: u8) -> Self;
    /// Sets the operation's own flags word.
    fn op_flags(self, flags: u32) -> Self;
    /// Sets `ioprio`, the flags of some operations.
    fn ioprio(self, ioprio: u16) -> Self;
    /// Sets the index of a registered buffer.
    fn buffer(self, index: u16) -> Self;
    /// Sets `file_index` (a fixed slot is passed as slot + 1).
    fn file_index(self, index: u32) -> Self;
}

impl SqeFields for Sqe {
    fn data(self, user_data: u64) -> Self {
        Sqe { user_data, ..self }
    }
    fn with(self, flags: u8) -> Self {
        Sqe { flags: self.flags | flags, ..self }
    }
    fn op_flags(self, op_flags: u32) -> Self {
        Sqe { op_flags, ..self }
    }
    fn ioprio(self, ioprio: u16) -> Self {
        Sqe { ioprio, ..self }
    }
    fn buffer(self, buf_index: u16) -> Self {
        Sqe { buf_index, ..self }
    }
    fn file_index(self, file_index: u32) -> Self {
        Sqe { file_index, ..self }
    }
}

/// An SQE that has only its opcode; its descriptor is -1.
pub fn op(opcode: Opcode) -> Sqe {
    Sqe { opcode: opcode as u8, fd: -1, ..Sqe::default() }
}

/// The shape of most operations.
pub fn prep(opcode: Opcode, fd: i32, addr: u64, len: u32, off: u64) -> Sqe {
    Sqe { opcode: opcode as u8, fd, addr, len, off, ..Sqe::default() }
}

/// NOP.
pub fn nop() -> Sqe {
    op(Opcode::Nop)
}

/// READ into the whole of `buffer`; `off` -1 is the current position.
pub fn read(fd: i32, buffer: &mut [u8], off: i64) -> Sqe {
    prep(Opcode::Read, fd, address_mut(buffer), buffer.len() as u32, off as u64)
}

/// WRITE of all `bytes`; `off` -1 is the current position.
pub fn write(fd: i32, bytes: &[u8], off: i64) -> Sqe {
    prep(Opcode::Write, fd, address(bytes), bytes.len() as u32, off as u64)
}

/// READV.
pub fn readv(fd: i32, vectors: &[libc::iovec], off: i64) -> Sqe {
    prep(Opcode::Readv, fd, address(vectors), vectors.len() as u32, off as u64)
}

/// WRITEV.
pub fn writev(fd: i32, vectors: &[libc::iovec], off: i64) -> Sqe {
    prep(Opcode::Writev, fd, address(vectors), vectors.len() as u32, off as u64)
}

/// POLL_ADD for `events` (poll(2)'s bits); flags go into `len`.
pub fn poll_add(fd: i32, events: i16, flags: u32) -> Sqe {
    prep(Opcode::PollAdd, fd, 0, flags, 0).op_flags(u32::from(events as u16))
}

/// POLL_REMOVE of the poll with this `user_data`.
pub fn poll_remove(target: u64) -> Sqe {
    Sqe { addr: target, ..op(Opcode::PollRemove) }
}

/// TIMEOUT that also ends after `count` completions (0: never).
pub fn timeout(ts: &Timespec, count: u64, flags: u32) -> Sqe {
    prep(Opcode::Timeout, -1, address(ts), 1, count).op_flags(flags)
}

/// TIMEOUT_REMOVE of the timeout with this `user_data`.
pub fn timeout_remove(target: u64) -> Sqe {
    Sqe { addr: target, ..op(Opcode::TimeoutRemove) }
}

/// TIMEOUT_REMOVE as an update to `ts`.
pub fn timeout_update(target: u64, ts: &Timespec, flags: u32) -> Sqe {
    Sqe { addr: target, off: address(ts), ..op(Opcode::TimeoutRemove) }
        .op_flags(flags | anyring_abi::IORING_TIMEOUT_UPDATE)
}

/// LINK_TIMEOUT for the request before it.
pub fn link_timeout(ts: &Timespec) -> Sqe {
    prep(Opcode::LinkTimeout, -1, address(ts), 1, 0)
}

/// ASYNC_CANCEL by `user_data`, with `IORING_ASYNC_CANCEL_*` flags.
pub fn cancel(target: u64, flags: u32) -> Sqe {
    Sqe { addr: target, ..op(Opcode::AsyncCancel) }.op_flags(flags)
}

/// ASYNC_CANCEL by descriptor.
pub fn cancel_fd(fd: i32, flags: u32) -> Sqe {
    Sqe { fd, ..op(Opcode::AsyncCancel) }.op_flags(flags | anyring_abi::IORING_ASYNC_CANCEL_FD)
}

/// SEND with `MSG_*` flags.
pub fn send(fd: i32, bytes: &[u8], flags: i32) -> Sqe {
    prep(Opcode::Send, fd, address(bytes), bytes.len() as u32, 0).op_flags(flags as u32)
}

/// RECV with `MSG_*` flags.
pub fn recv(fd: i32, buffer: &mut [u8], flags: i32) -> Sqe {
    prep(Opcode::Recv, fd, address_mut(buffer), buffer.len() as u32, 0).op_flags(flags as u32)
}

/// SENDMSG with `MSG_*` flags.
pub fn sendmsg(fd: i32, message: &libc::msghdr, flags: i32) -> Sqe {
    prep(Opcode::Sendmsg, fd, address(message), 1, 0).op_flags(flags as u32)
}

/// RECVMSG with `MSG_*` flags.
pub fn recvmsg(fd: i32, message: &mut libc::msghdr, flags: i32) -> Sqe {
    prep(Opcode::Recvmsg, fd, address_mut(message), 1, 0).op_flags(flags as u32)
}

/// ACCEPT that does not ask for the peer's name, with accept4(2)'s flags.
pub fn accept(fd: i32, flags: i32) -> Sqe {
    prep(Opcode::Accept, fd, 0, 0, 0).op_flags(flags as u32)
}

/// CONNECT to the address of `length` bytes at `name`.
pub fn connect<T>(fd: i32, name: &T, length: usize) -> Sqe {
    prep(Opcode::Connect, fd, address(name), 0, length as u64)
}

/// SHUTDOWN.
pub fn shutdown(fd: i32, how: i32) -> Sqe {
    prep(Opcode::Shutdown, fd, 0, how as u32, 0)
}

/// SOCKET.
pub fn socket(domain: i32, kind: i32, protocol: i32) -> Sqe {
    prep(Opcode::Socket, domain, 0, protocol as u32, kind as u64)
}

/// OPENAT of a NUL-terminated path.
pub fn openat(dir: i32, path: &std::ffi::CStr, flags: i32, mode: u32) -> Sqe {
    prep(Opcode::Openat, dir, path.as_ptr() as u64, mode, 0).op_flags(flags as u32)
}

/// CLOSE of a descriptor.
pub fn close(fd: i32) -> Sqe {
    prep(Opcode::Close, fd, 0, 0, 0)
}

/// FSYNC with `IORING_FSYNC_*` flags.
pub fn fsync(fd: i32, flags: u32) -> Sqe {
    prep(Opcode::Fsync, fd, 0, 0, 0).op_flags(flags)
}

/// SPLICE of `len` bytes; offsets of -1 are "none".
pub fn splice(from: i32, from_off: i64, to: i32, to_off: i64, len: u32) -> Sqe {
    prep(Opcode::Splice, to, from_off as u64, len, to_off as u64).file_index(from as u32)
}

/// TEE of `len` bytes between two pipes.
pub fn tee(from: i32, to: i32, len: u32) -> Sqe {
    prep(Opcode::Tee, to, 0, len, 0).file_index(from as u32)
}

/// A time of this many milliseconds.
pub fn ms(milliseconds: i64) -> Timespec {
    Timespec { tv_sec: milliseconds / 1000, tv_nsec: milliseconds % 1000 * 1_000_000 }
}
