//! READ, WRITE, READV, WRITEV, READ_FIXED, WRITE_FIXED, READV_FIXED, WRITEV_FIXED: preadv2(2) and pwritev2(2) with
//! RWF_NOWAIT first, or a substitute for it (`rw/substitute.rs`).
//!
//! A pipe, socket or tty has no file position. For such files the kernel ignores the SQE's offset. So does the engine:
//! if the positioned call fails with ESPIPE, it makes the positionless call. On files with a position, a transfer that
//! came out short in the middle continues where it stopped, as in io_uring/rw.c. On streams a short transfer is the
//! result.

mod direct;
mod operation;
mod substitute;

use super::splice::has_position;
use super::{call, Context, Direction, Punt, Verdict};
use crate::mutation::{mutated, Mutation};
use crate::op::iovecs;
use crate::op::selection::Selection;
use crate::os::{calls_with_flags_are_refused, file_status, flags_are_ignored, user_read};
use crate::resource::buffers::Buffer;
use crate::{descriptors, Errno};
use anyring_abi::{Opcode, Sqe, IORING_RW_ATTR_FLAG_PI, IOSQE_ASYNC, IOSQE_BUFFER_SELECT, MAX_RW_COUNT};
use std::sync::Arc;
use substitute::Substitute;

/// Makes the transfer by polling the device (preadv2(2)).
pub const RWF_HIPRI: u32 = libc::RWF_HIPRI as u32;
const RWF_NOWAIT: u32 = libc::RWF_NOWAIT as u32;
/// Flags for files and block devices only (`kiocb_set_rw_flags` in include/linux/fs.h).
const RWF_OF_FILES: u32 = (libc::RWF_ATOMIC | libc::RWF_DONTCACHE) as u32;
/// Flags about the data written to files.
const RWF_OF_WRITES: u32 = (libc::RWF_DSYNC | libc::RWF_SYNC | libc::RWF_APPEND | libc::RWF_NOAPPEND) as u32;
/// `RWF_SUPPORTED` of Linux 6.18: all flags of preadv2(2) and pwritev2(2).
pub const RWF_SUPPORTED: u32 = 0x1ff;
/// The most iovecs that a call takes.
const MAX_IOVECS: u32 = libc::UIO_MAXIOV as u32;
/// The offset that means "the file's own position" (pread2(2), io_uring_enter(2)).
pub(super) const CURRENT_POSITION: u64 = u64::MAX;

/// The fewest bytes of a read that a worker may make although the data is cached (`wq/parallel.rs`).
pub const LARGE_BYTES: u64 = 64 << 10;

/// A read or a write.
#[derive(Debug)]
pub struct Rw {
    write: bool,
    /// RWF_* from the program.
    flags: u32,
    /// Position of the next byte to transfer, or [`CURRENT_POSITION`].
    offset: u64,
    buffers: Buffers,
    /// Index of the registered buffer that must contain the data (READ_FIXED, WRITE_FIXED).
    registered: Option<u16>,
    /// The operation is READV_FIXED or WRITEV_FIXED.
    vectored: bool,
    /// The registered buffer, once the engine has found it. It stays registered for as long as the request needs it.
    buffer: Option<Arc<Buffer>>,
    /// The chosen buffer, with IOSQE_BUFFER_SELECT.
    selection: Option<Box<Selection>>,
    /// The operation is READ_MULTISHOT. `polled` is true once it was armed.
    multishot: bool,
    polled: bool,
    /// READ_MULTISHOT without IOSQE_ASYNC, not attempted yet: the kernel makes its first attempt without polling.
    submitted: bool,
    /// The file is known to have no position.
    stream: bool,
    /// The request has protection information, which no file that the engine can reach accepts.
    protected: bool,
    /// A worker makes the transfer (IOSQE_ASYNC). The program's RWF_NOWAIT then only asks whether the file supports
    /// that flag: `io_read` and `io_write` in io_uring/rw.c clear IOCB_NOWAIT.
    by_worker: bool,
    /// The operation reads a file that refused RWF_NOWAIT, although its data is in memory.
    reads_memory: bool,
    /// The file refused RWF_NOWAIT, since its writes through the page cache do not support that flag.
    unknown_nowait: bool,
    /// Address, length and offset are multiples of a sector, so the request can be a direct transfer to or from a
    /// device.
    aligned: bool,
    /// The I/O priority; 0 for the thread's own.
    priority: u16,
    /// The request asks for less than the program did: see [`cut`](Self::cut).
    is_cut: bool,
    /// Number of bytes that earlier attempts transferred.
    done: u64,
}

/// The place of the data in program memory. Only the kernel ever follows these addresses.
#[derive(Debug)]
enum Buffers {
    /// One address and length.
    One([usize; 2]),
    /// A copy of the program's iovecs.
    Many(Box<[[usize; 2]]>),
}

impl Rw {
    /// Reads the SQE. Copies iovecs now, since the program may reuse their memory once it has submitted the SQE.
    #[inline]
    pub fn prep(opcode: Opcode, sqe: &Sqe) -> Result<Rw, Errno> {
        let write = matches!(opcode, Opcode::Write | Opcode::Writev | Opcode::WriteFixed | Opcode::WritevFixed);
        let selects = sqe.flags & IOSQE_BUFFER_SELECT != 0;
        let multishot = opcode == Opcode::ReadMultishot;
        if multishot && (!selects || sqe.addr != 0 || sqe.len != 0) {
            return Err(Errno::INVAL);
        }
        let buffers = match opcode {
            Opcode::Readv if selects => Buffers::One(import_length(sqe.addr, sqe.len)?),
            Opcode::Readv | Opcode::Writev | Opcode::ReadvFixed | Opcode::WritevFixed => import(sqe.addr, sqe.len)?,
            _ => Buffers::One([sqe.addr as usize, (sqe.len as usize).min(MAX_RW_COUNT)]),
        };
        check_priority(sqe.ioprio)?;
        let protected = sqe.pad2 != 0;
        if protected {
            check_attributes(sqe.pad2, sqe.addr3)?;
        }
        let aligned = match buffers {
            Buffers::One([address, bytes]) => (address | bytes | sqe.off as usize).is_multiple_of(512),
            Buffers::Many(_) => sqe.off.is_multiple_of(512),
        };
        let fixed =
            matches!(opcode, Opcode::ReadFixed | Opcode::WriteFixed | Opcode::ReadvFixed | Opcode::WritevFixed);
        let selection = match buffers {
            Buffers::One([_, wanted]) if selects => Some(Selection::new(sqe.buf_index, wanted)),
            _ => None,
        };
        let registered = fixed.then_some(sqe.buf_index);
        Ok(Rw {
            write,
            flags: sqe.op_flags,
            offset: offset_of(sqe.off, sqe.flags),
            buffers,
            registered,
            vectored: matches!(opcode, Opcode::ReadvFixed | Opcode::WritevFixed),
            buffer: None,
            selection,
            multishot,
            polled: false,
            submitted: multishot && sqe.flags & IOSQE_ASYNC == 0,
            by_worker: sqe.flags & IOSQE_ASYNC != 0,
            reads_memory: false,
            unknown_nowait: false,
            stream: false,
            protected,
            aligned,
            priority: sqe.ioprio,
            is_cut: false,
            done: 0,
        })
    }

    /// Makes the READ or WRITE of one buffer at an offset, without any options.
    pub(super) fn plain(direction: Direction, buffer: [usize; 2], offset: u64) -> Rw {
        let [address, bytes] = buffer;
        Rw {
            write: direction == Direction::Write,
            flags: 0,
            offset,
            buffers: Buffers::One(buffer),
            registered: None,
            vectored: false,
            buffer: None,
            selection: None,
            multishot: false,
            polled: false,
            submitted: false,
            by_worker: false,
            reads_memory: false,
            unknown_nowait: false,
            stream: false,
            protected: false,
            aligned: (address | bytes | offset as usize).is_multiple_of(512),
            priority: 0,
            is_cut: false,
            done: 0,
        }
    }

    /// Takes the registered buffer's index out of a *_FIXED request, so that it is looked up once.
    #[inline]
    pub fn take_registered(&mut self) -> Option<u16> {
        self.registered.take()
    }

    /// True for READV_FIXED or WRITEV_FIXED, whose data is in a registered buffer.
    pub fn is_vectored(&self) -> bool {
        self.vectored
    }

    /// The addresses and lengths that must be within the registered buffer.
    pub fn ranges(&self) -> &[[usize; 2]] {
        match &self.buffers {
            Buffers::One(iovec) => core::slice::from_ref(iovec),
            Buffers::Many(iovecs) => iovecs,
        }
    }

    /// The addresses and lengths, for changes.
    #[inline]
    pub(super) fn ranges_mut(&mut self) -> &mut [[usize; 2]] {
        match &mut self.buffers {
            Buffers::One(iovec) => core::slice::from_mut(iovec),
            Buffers::Many(iovecs) => iovecs,
        }
    }

    /// Keeps the registered buffer that contains the data.
    pub fn keep(&mut self, buffer: Option<Arc<Buffer>>) {
        self.buffer = buffer;
    }

    /// Returns the number of bytes, and true for a write. `None` if the transfer must not be cut
    /// ([`crate::op::Op::divisible_bytes`]).
    pub(super) fn divisible_bytes(&self) -> Option<(usize, bool)> {
        let bytes = match &self.selection {
            Some(selection) => selection.wanted.max(1),
            None => self.total() as usize,
        };
        (self.flags & libc::RWF_ATOMIC as u32 == 0).then_some((bytes, self.write))
    }

    /// Limits the transfer to its first `bytes` bytes. The shortened request ends short, which breaks its chain.
    pub(super) fn cut(&mut self, bytes: usize) {
        self.is_cut = true;
        if let Some(selection) = &mut self.selection {
            selection.wanted = bytes;
        }
        match &mut self.buffers {
            Buffers::One([_, length]) => *length = bytes,
            Buffers::Many(iovecs) => super::cut::cut_ranges(iovecs, bytes),
        }
    }

    /// Treats the file as one without a position. Does so only for an offset of 0, which makes no difference to any
    /// stream.
    #[inline]
    pub fn assume_stream(&mut self) {
        if self.offset == 0 {
            (self.offset, self.stream) = (CURRENT_POSITION, true);
        }
    }

    /// True if the file is known to have no position.
    #[inline]
    pub fn is_of_stream(&self) -> bool {
        self.stream
    }

    /// The offset at which a read begins; `u64::MAX` for the file's own position; `None` for a write.
    pub fn reads_at(&self) -> Option<u64> {
        (!self.write).then_some(self.offset)
    }

    /// True if the transfer is made by polling the device's queue (RWF_HIPRI).
    #[inline]
    pub fn is_polled(&self) -> bool {
        self.flags & RWF_HIPRI != 0
    }

    /// True if a worker shall make the transfer. A worker does not answer EAGAIN.
    pub fn is_by_worker(&self) -> bool {
        self.by_worker
    }

    /// True for a transfer of no bytes, which does not wait.
    #[inline]
    fn is_of_nothing(&self) -> bool {
        matches!(self.buffers, Buffers::One([_, 0])) && self.selection.is_none()
    }

    /// Continues after a call that returned `first`.
    #[inline]
    fn follow_call(&mut self, first: Result<usize, Errno>, context: Context) -> Verdict {
        let total = self.total();
        let mut called = first;
        loop {
            let answer = match self.without_position(called, context) {
                Ok(0) if total == 0 => self.transfer_nothing(context.fd),
                Err(Errno::OPNOTSUPP) if context.nonblock => match self.without_nowait(context.fd, total) {
                    Ok(answer) => answer,
                    Err(verdict) => return verdict,
                },
                answer => answer,
            };
            match answer {
                Ok(0) => return self.finish(total),
                Ok(count) => {
                    self.advance(count);
                    let is_final = self.done == total || !context.nonblock || self.stream || !is_file(context.fd);
                    if is_final || mutated(Mutation::ShortCountsAreFinal) {
                        return self.finish(total);
                    }
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) if self.flags & RWF_NOWAIT != 0 => return self.finish_error(Errno::AGAIN, total),
                Err(Errno::AGAIN) if context.nonblock => return Verdict::WouldBlock(self.direction()),
                // A worker's call found a file with O_NONBLOCK not ready: the file can be polled.
                Err(Errno::AGAIN) => return Verdict::WouldBlock(self.direction()),
                Err(error) => return self.finish_error(error, total),
            }
            called = self.transfer(context, self.offset);
        }
    }

    /// Returns the error if no transfer on this file may have these flags. The system call reports such an error only
    /// if there is data to transfer.
    #[cold]
    fn refused_flags(&self, fd: i32) -> Option<Errno> {
        if self.flags > RWF_SUPPORTED {
            return Some(Errno::OPNOTSUPP);
        }
        let refused = crate::descriptors::check_open(fd).err();
        refused.or_else(|| (!is_file(fd)).then_some(Errno::OPNOTSUPP))
    }

    /// Attempts the transfer on a file that does not know RWF_NOWAIT. If no substitute exists, returns the verdict that
    /// says which thread can make the transfer.
    #[cold]
    fn without_nowait(&mut self, fd: i32, total: u64) -> Result<Result<usize, Errno>, Verdict> {
        if self.flags & RWF_OF_WRITES != 0 && self.flags & !(RWF_OF_WRITES | RWF_NOWAIT) == 0 && !is_file(fd) {
            // On a file without read_iter, preadv2(2) accepts no flags. `loop_rw_iter` in io_uring/rw.c ignores these
            // flags there.
            self.flags &= !RWF_OF_WRITES;
            return self.without_nowait(fd, total);
        }
        if self.flags & !RWF_NOWAIT != 0 {
            // The unsupported flag may be another flag: the worker's call will show.
            return Err(self.to_worker(Verdict::NeedsWorkerWhenReady(self.direction())));
        }
        if total == 0 {
            // The call does not reach the file, so it does not wait either.
            let plain = Context { fd, nonblock: false };
            let answer = self.transfer(plain, self.offset);
            return Ok(self.without_position(answer, plain).and_then(|_| self.transfer_nothing(fd)));
        }
        let (iovecs, count) = self.iovecs();
        match substitute::transfer(fd, self.write, self.offset, iovecs, count, total - self.done) {
            Substitute::Answer(answer) => Ok(answer),
            Substitute::NoneYetReady => Err(self.to_worker(Verdict::NeedsWorkerWhenReady(self.direction()))),
            Substitute::None(_) if self.flags & RWF_NOWAIT != 0 && self.write && accepts_nowait(fd) => {
                Err(self.without_asked_nowait())
            }
            Substitute::None(status) => {
                self.reads_memory = !self.write && status.is_in_memory(fd);
                Err(self.to_worker(Verdict::NeedsWorker(Punt::NoForm)))
            }
        }
    }

    /// Answers a write with RWF_NOWAIT through the page cache, on a file where such writes may always wait. Source:
    /// `io_write` in io_uring/rw.c, FOP_BUFFER_WASYNC.
    #[cold]
    fn without_asked_nowait(&mut self) -> Verdict {
        if self.by_worker {
            self.flags &= !RWF_NOWAIT;
            return Verdict::NeedsWorker(Punt::NoForm);
        }
        self.unknown_nowait = true;
        self.finish_error(Errno::AGAIN, self.total())
    }

    /// True if an attempt has shown that the operation reads from memory, but has no nonblocking form.
    pub fn reads_memory(&self) -> bool {
        self.reads_memory
    }

    /// True if the transfer ended with `EAGAIN` because every write to this file may wait.
    pub fn knows_no_nowait(&self) -> bool {
        self.unknown_nowait
    }

    /// Returns `verdict`, or ends the transfer with EOPNOTSUPP if the program asked not to wait.
    fn to_worker(&self, verdict: Verdict) -> Verdict {
        if self.flags & RWF_NOWAIT != 0 {
            return self.finish_error(Errno::OPNOTSUPP, self.total());
        }
        verdict
    }

    /// Handles the answer of a positioned call: makes the positionless call if the file has no position.
    #[inline(always)] // in the attempt of each read and write
    fn without_position(&mut self, answer: Result<usize, Errno>, context: Context) -> Result<usize, Errno> {
        match answer.map_err(|error| self.as_without_position(error, context.fd)) {
            // `rw_verify_area` in fs/read_write.c checks the offset, even if the file then ignores it.
            Err(Errno::SPIPE) if self.offset != CURRENT_POSITION && self.ends_beyond_all() => Err(Errno::INVAL),
            // A socket takes no offset except 0 (`sock_read_iter` in net/socket.c). A pipe ignores the offset.
            Err(Errno::SPIPE)
                if self.offset != CURRENT_POSITION && (self.offset == 0 || !is_socket(context.fd)) =>
            {
                let answer = self.transfer(context, CURRENT_POSITION);
                if answer != Err(Errno::SPIPE) {
                    self.offset = CURRENT_POSITION;
                    self.stream = true;
                }
                answer
            }
            answer => answer,
        }
    }

    /// Turns EINVAL, which gVisor's terminals answer to every position, into ESPIPE.
    #[inline]
    fn as_without_position(&self, error: Errno, fd: i32) -> Errno {
        if error == Errno::INVAL && self.offset != CURRENT_POSITION && !has_position(fd) {
            return Errno::SPIPE;
        }
        error
    }

    /// True if offset plus length exceed the largest file offset.
    #[cold]
    fn ends_beyond_all(&self) -> bool {
        self.offset.checked_add(self.total() - self.done).is_none_or(|end| i64::try_from(end).is_err())
    }

    /// Makes a transfer of no bytes. For those, preadv2(2) and pwritev2(2) do not reach the file, but `io_read` and
    /// `io_write` do.
    #[cold]
    fn transfer_nothing(&self, fd: i32) -> Result<usize, Errno> {
        match self.write {
            true if is_socket(fd) => substitute::by_message(fd, true, CURRENT_POSITION, core::ptr::null(), 0, 0),
            false if reads_whole_records(fd) => Err(Errno::INVAL),
            _ => Ok(0),
        }
    }

    #[inline]
    fn transfer(&self, context: Context, offset: u64) -> Result<usize, Errno> {
        // A synchronous call does not poll the device.
        transfer(self.write, context, self.iovecs(), offset, self.flags & !RWF_HIPRI)
    }

    #[inline]
    fn iovecs(&self) -> (*const [usize; 2], usize) {
        match &self.buffers {
            Buffers::One(iovec) => (iovec, 1),
            Buffers::Many(iovecs) => (iovecs.as_ptr(), iovecs.len()),
        }
    }

    pub(super) fn direction(&self) -> Direction {
        if self.write {
            Direction::Write
        } else {
            Direction::Read
        }
    }

    /// Number of bytes that the program asked for, including those already transferred.
    #[inline]
    pub fn total(&self) -> u64 {
        let left: usize = match &self.buffers {
            Buffers::One(iovec) => iovec[1],
            Buffers::Many(iovecs) => iovecs.iter().map(|iovec| iovec[1]).sum(),
        };
        self.done + left as u64
    }

    #[inline]
    fn advance(&mut self, count: usize) {
        self.done += count as u64;
        if self.offset != CURRENT_POSITION {
            self.offset += count as u64;
        }
        let mut left = count;
        for iovec in self.ranges_mut() {
            let step = left.min(iovec[1]);
            iovec[0] = iovec[0].wrapping_add(step);
            iovec[1] -= step;
            left -= step;
        }
    }

    /// Ends the transfer with the number of bytes transferred. If these are fewer than asked for, links break.
    #[inline]
    fn finish(&self, total: u64) -> Verdict {
        let keeps_chain = mutated(Mutation::ShortReadKeepsChain) && !self.write;
        if (self.done == total) & !self.is_cut || self.multishot || keeps_chain {
            Verdict::Done(self.done as i32)
        } else {
            Verdict::DoneShort(self.done as i32)
        }
    }

    /// Ends the transfer with an error. If part of the data was transferred before, that part is the result.
    fn finish_error(&self, error: Errno, total: u64) -> Verdict {
        if self.done > 0 {
            return self.finish(total);
        }
        Verdict::error(error)
    }
}

/// Makes one call of preadv2(2) or pwritev2(2), with these RWF_* flags. Adds RWF_NOWAIT if the call must not wait.
#[inline]
pub(super) fn transfer(
    write: bool,
    context: Context,
    (iovecs, count): (*const [usize; 2], usize),
    offset: u64,
    flags: u32,
) -> Result<usize, Errno> {
    let number = if write { libc::SYS_pwritev2 } else { libc::SYS_preadv2 };
    let nonblock = context.nonblock && !mutated(Mutation::PlainAttempts);
    let flags = if nonblock { flags | RWF_NOWAIT } else { flags };
    if flags & RWF_NOWAIT != 0 && flags_are_ignored() {
        return Err(Errno::OPNOTSUPP); // the call would wait
    }
    // The high half of the position is zero: on 64-bit machines one argument holds the whole position.
    let args = [context.fd as usize, iovecs as usize, count, offset as usize, 0, flags as usize];
    if flags & RWF_NOWAIT == 0 && calls_with_flags_are_refused() {
        return without_flags(write, args);
    }
    call(number, args)
}

/// Makes the transfer by older calls, if a filter refuses preadv2(2) and pwritev2(2), or kills the process for them.
#[cold]
fn without_flags(write: bool, args: [usize; 6]) -> Result<usize, Errno> {
    let [fd, iovecs, count, offset, _, flags] = args;
    if flags != 0 {
        return Err(Errno::OPNOTSUPP);
    }
    let number = match (write, offset as u64 == CURRENT_POSITION) {
        (false, false) => libc::SYS_preadv,
        (true, false) => libc::SYS_pwritev,
        (false, true) => libc::SYS_readv,
        (true, true) => libc::SYS_writev,
    };
    call(number, [fd, iovecs, count, offset, 0, 0])
}

/// Returns the offset at which an SQE with this `off` and these flags begins its transfer.
#[inline]
pub(super) fn offset_of(off: u64, flags: u8) -> u64 {
    match off {
        CURRENT_POSITION if mutated(Mutation::OwnPositionIsTheStart) => 0,
        _ if mutated(Mutation::AsyncForgetsTheOffset) && flags & IOSQE_ASYNC != 0 => CURRENT_POSITION,
        offset => offset,
    }
}

/// True if a short count may end in the middle of the data. Only asked after a short count. Source: `need_complete_io`
/// in io_uring/rw.c.
pub fn is_file(fd: i32) -> bool {
    file_status(fd).is_ok_and(|status| status.has_blocks())
}

/// True for an eventfd, timerfd or signalfd, which refuse a read of no bytes as too short. False without /proc.
fn reads_whole_records(fd: i32) -> bool {
    const KINDS: [&str; 3] = ["anon_inode:[eventfd]", "anon_inode:[timerfd]", "anon_inode:[signalfd]"];
    let link = crate::os::calls::read_link(&format!("/proc/self/fd/{fd}"));
    link.is_ok_and(|link| KINDS.iter().any(|kind| link.as_os_str() == *kind))
}

/// True if the file supports RWF_NOWAIT although it refused the flag for a write (FMODE_NOWAIT): a read with the flag
/// is accepted. If the file cannot be read, it must be on ext4, which supports the flag but refuses it for writes
/// through the page cache.
#[cold]
fn accepts_nowait(fd: i32) -> bool {
    if calls_with_flags_are_refused() {
        return false;
    }
    const BEYOND_ALL: usize = i64::MAX as usize - 1;
    const EXT4: i64 = 0xef53;
    let mut byte = [0u8; 1];
    let iovec = [byte.as_mut_ptr() as usize, 1];
    let args = [fd as usize, iovec.as_ptr() as usize, 1, BEYOND_ALL, 0, RWF_NOWAIT as usize];
    match call(libc::SYS_preadv2, args) {
        Err(Errno::OPNOTSUPP | Errno::PERM | Errno::NOSYS) => false,
        Err(Errno::BADF) => file_status(fd).is_ok_and(|status| status.file_system(fd) == Some(EXT4)),
        _ => true,
    }
}

fn is_socket(fd: i32) -> bool {
    file_status(fd).is_ok_and(|status| status.kind == libc::S_IFSOCK)
}

/// Returns the error for a well-formed transfer with protection information.
#[cold]
fn refusal_of_protection(fd: i32) -> Errno {
    descriptors::check_open(fd).err().unwrap_or(Errno::INVAL)
}

/// Checks the attributes of a transfer: `sqe->attr_type_mask` and the structure at `sqe->attr_ptr` (`struct
/// io_uring_attr_pi`). Makes the same checks as `io_prep_rw_pi` in io_uring/rw.c.
#[cold]
fn check_attributes(kinds: u64, at: u64) -> Result<(), Errno> {
    if kinds != u64::from(IORING_RW_ATTR_FLAG_PI) {
        return Err(Errno::INVAL);
    }
    let [_, _, _, reserved]: [u64; 4] = user_read(at)?;
    if reserved != 0 {
        return Err(Errno::INVAL);
    }
    Ok(())
}

/// Checks an I/O priority: its class must be one of the four that exist. Source: `ioprio_check_cap` in
/// block/ioprio.c.
pub fn check_priority(ioprio: u16) -> Result<(), Errno> {
    let (class, level) = (ioprio >> 13, ioprio & 0x7);
    if class > 3 || (class == 0 && level != 0) {
        return Err(Errno::INVAL);
    }
    Ok(())
}

/// Reads the length in the single iovec of a READV that chooses its buffer. Source: `io_iov_buffer_select_prep` in
/// io_uring/rw.c.
fn import_length(address: u64, count: u32) -> Result<[usize; 2], Errno> {
    if count != 1 {
        return Err(Errno::INVAL);
    }
    let [_, bytes]: [usize; 2] = user_read(address)?;
    Ok([0, bytes.min(MAX_RW_COUNT)])
}

/// Copies `count` iovecs from program memory, with the kernel's checks.
fn import(address: u64, count: u32) -> Result<Buffers, Errno> {
    if count > MAX_IOVECS {
        return Err(Errno::INVAL);
    }
    let iovecs = iovecs::import(address, count as usize, true)?.into_boxed_slice();
    Ok(match *iovecs {
        [one] => Buffers::One(one),
        _ => Buffers::Many(iovecs),
    })
}
