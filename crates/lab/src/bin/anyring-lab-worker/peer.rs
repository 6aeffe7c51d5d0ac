//! The interfaces of programs without io_uring, and the parts that all programs share.

pub mod epoll;
pub mod kernel_aio;
pub mod libuv;
pub mod posix_aio;
pub mod threads;

use crate::outcome::{Outcome, Stop};
use crate::ring::{transfer, Ring};
use anyring_abi::{Opcode, IOSQE_ASYNC};
use anyring_lab::message::Program;
use std::alloc::Layout;

/// A read or a write that a program begins.
#[derive(Debug, Clone, Copy)]
pub struct Transfer {
    /// True for a write.
    pub write: bool,
    /// The descriptor.
    pub fd: i32,
    /// The caller's memory. Until the transfer ends, it stays alive and is used for this transfer only.
    pub address: *mut u8,
    /// Number of bytes.
    pub bytes: u32,
    /// The file offset; `None` for descriptors without one.
    pub offset: Option<u64>,
}

/// An interface that carries out transfers while the program continues. Each transfer has a slot number, which is
/// returned at its end.
pub trait Transfers {
    /// Accepts a transfer. It may begin only with the next [`Transfers::flush`] or [`Transfers::wait`].
    fn begin(&mut self, slot: u64, transfer: Transfer) -> Outcome<()>;

    /// Begins all accepted transfers.
    fn flush(&mut self) -> Outcome<()>;

    /// Waits until at least one has ended, and adds all that have: slot and result, negative as an error number.
    fn wait(&mut self, ended: &mut Vec<(u64, i64)>) -> Outcome<()>;
}

/// A ring on which all requests have IOSQE_ASYNC, or none has.
pub struct Uring {
    /// The ring, used for nothing else.
    pub ring: Ring,
    /// True: with IOSQE_ASYNC.
    pub forced: bool,
}

impl Transfers for Uring {
    #[inline]
    fn begin(&mut self, slot: u64, what: Transfer) -> Outcome<()> {
        let opcode = if what.write { Opcode::Write } else { Opcode::Read };
        let offset = what.offset.unwrap_or(u64::MAX);
        let mut sqe = transfer(opcode, what.fd, what.address, what.bytes, offset, slot);
        sqe.flags = if self.forced { IOSQE_ASYNC } else { 0 };
        self.ring.push(sqe)
    }

    #[inline]
    fn flush(&mut self) -> Outcome<()> {
        self.ring.submit()
    }

    #[inline]
    fn wait(&mut self, ended: &mut Vec<(u64, i64)>) -> Outcome<()> {
        self.ring.submit_and_wait(1)?;
        while let Some(cqe) = self.ring.peek_cqe() {
            ended.push((cqe.user_data, i64::from(cqe.res)));
        }
        Ok(())
    }
}

/// Memory for O_DIRECT, zeroed.
#[derive(Debug)]
pub struct Aligned {
    address: *mut u8,
    layout: Layout,
}

impl Aligned {
    /// Allocates `bytes` bytes at a page boundary.
    pub fn new(bytes: usize) -> Outcome<Self> {
        let layout =
            Layout::from_size_align(bytes.max(1), 4096).map_err(|error| Stop::Failed(error.to_string()))?;
        // SAFETY: the size is not zero.
        let address = unsafe { std::alloc::alloc_zeroed(layout) };
        match address.is_null() {
            true => Err(format!("no memory for {bytes} bytes").into()),
            false => Ok(Aligned { address, layout }),
        }
    }

    /// Returns the address of this byte.
    pub fn at(&self, offset: usize) -> *mut u8 {
        assert!(offset < self.layout.size());
        // SAFETY: inside the allocation, as just asserted.
        unsafe { self.address.add(offset) }
    }

    /// Returns a part of the buffer. No transfer may be using that part.
    pub fn bytes(&self, offset: usize, bytes: usize) -> &[u8] {
        assert!(offset + bytes <= self.layout.size());
        // SAFETY: inside the allocation, initialised (zeroed), and the caller promises that nobody writes there
        // now.
        unsafe { std::slice::from_raw_parts(self.address.add(offset), bytes) }
    }

    /// Returns a part of the buffer to fill. No transfer may be using that part.
    pub fn bytes_mut(&mut self, offset: usize, bytes: usize) -> &mut [u8] {
        assert!(offset + bytes <= self.layout.size());
        // SAFETY: as in `bytes`, and `self` is borrowed for as long.
        unsafe { std::slice::from_raw_parts_mut(self.address.add(offset), bytes) }
    }
}

impl Drop for Aligned {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout.
        unsafe { std::alloc::dealloc(self.address, self.layout) };
    }
}

/// Returns the error for a task that is not for this program.
pub fn not_for<T>(program: Program) -> Outcome<T> {
    Err(format!("{program:?} has no program for this").into())
}
