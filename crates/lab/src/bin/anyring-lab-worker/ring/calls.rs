//! The system calls without liburing or libaio, through libc's `syscall()` or by the worker's own instructions.

use super::liburing::IoUring;
use crate::arch::raw_call;
use crate::provider;
use anyring_abi::{
    Cqe, Params, Sqe, IORING_ENTER_GETEVENTS, IORING_FEAT_SINGLE_MMAP, IORING_OFF_SQES, IORING_OFF_SQ_RING,
    NR_IO_URING_ENTER, NR_IO_URING_REGISTER, NR_IO_URING_SETUP,
};
use std::ffi::c_void;
use std::sync::atomic::{AtomicU32, Ordering};

/// The instructions that make the calls.
#[derive(Clone, Copy)]
pub struct Calls {
    /// True: the worker's own. False: libc's.
    pub raw: bool,
}

impl Calls {
    /// Makes a call. Returns a value, or a negative error number.
    #[inline]
    pub fn call<const NUMBER: i64>(self, args: [usize; 6]) -> isize {
        if self.raw {
            return raw_call::<NUMBER>(args);
        }
        let [a, b, c, d, e, f] = args;
        // SAFETY: calls of io_uring and Linux AIO, on structures that the caller keeps alive.
        match unsafe { libc::syscall(NUMBER, a, b, c, d, e, f) } {
            -1 => -(std::io::Error::last_os_error().raw_os_error().unwrap_or(0) as isize),
            value => value as isize,
        }
    }

    fn map(self, fd: i32, bytes: usize, offset: u32) -> Result<*mut u8, i32> {
        let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_POPULATE);
        let address = match self.raw {
            true => raw_call::<{ libc::SYS_mmap }>([
                0,
                bytes,
                protection as usize,
                flags as usize,
                fd as usize,
                offset as usize,
            ]),
            // SAFETY: a new mapping at the kernel's choice.
            false => unsafe {
                let address = libc::mmap(std::ptr::null_mut(), bytes, protection, flags, fd, i64::from(offset));
                match address == libc::MAP_FAILED {
                    true => -(std::io::Error::last_os_error().raw_os_error().unwrap_or(0) as isize),
                    false => address as isize,
                }
            },
        };
        match (-4095..0).contains(&address) {
            true => Err(address as i32),
            false => Ok(address as *mut u8),
        }
    }

    /// Returns the file whose `syscall()` is called; `None` for the worker's own instructions.
    pub fn provider(self) -> Option<String> {
        (!self.raw).then(|| provider::of(libc::syscall as *const () as *const c_void))
    }

    /// Does what liburing's function of this name does. Returns 0 or a negative error number.
    pub fn queue_init(self, entries: u32, ring: &mut IoUring, mut params: Params) -> i32 {
        let address = std::ptr::from_mut(&mut params) as usize;
        let fd = self.call::<NR_IO_URING_SETUP>([entries as usize, address, 0, 0, 0, 0]) as i32;
        if fd < 0 {
            return fd;
        }
        ring.ring_fd = fd;
        match self.lay_out(ring, &params) {
            Ok(()) => 0,
            Err(error) => error,
        }
    }

    fn lay_out(self, ring: &mut IoUring, params: &Params) -> Result<(), i32> {
        if params.features & IORING_FEAT_SINGLE_MMAP == 0 {
            return Err(-libc::EOPNOTSUPP); // before Linux 5.4
        }
        let sq_bytes = params.sq_off.array as usize + params.sq_entries as usize * size_of::<u32>();
        let cq_bytes = params.cq_off.cqes as usize + params.cq_entries as usize * size_of::<Cqe>();
        let (bytes, sqe_bytes) = (sq_bytes.max(cq_bytes), params.sq_entries as usize * size_of::<Sqe>());
        let rings = self.map(ring.ring_fd, bytes, IORING_OFF_SQ_RING)?;
        let sqes = self.map(ring.ring_fd, sqe_bytes, IORING_OFF_SQES)?;
        // SAFETY: the offsets from io_uring_setup(2) are inside the area that was mapped.
        let word = |offset: u32| unsafe { rings.add(offset as usize) }.cast::<u32>();
        let (sq, cq) = (&mut ring.sq, &mut ring.cq);
        (sq.khead, sq.ktail, sq.kflags) =
            (word(params.sq_off.head), word(params.sq_off.tail), word(params.sq_off.flags));
        (sq.array, sq.sqes) = (word(params.sq_off.array), sqes.cast());
        (sq.ring_mask, sq.ring_entries) = (params.sq_entries - 1, params.sq_entries);
        (sq.ring_ptr, sq.ring_size) = (rings.cast(), bytes);
        (cq.khead, cq.ktail, cq.cqes) =
            (word(params.cq_off.head), word(params.cq_off.tail), word(params.cq_off.cqes).cast());
        (cq.ring_mask, cq.ring_entries) = (params.cq_entries - 1, params.cq_entries);
        for index in 0..params.sq_entries {
            // SAFETY: inside the array, which nobody reads before the first submission.
            unsafe { sq.array.add(index as usize).write(index) };
        }
        Ok(())
    }

    /// Does what liburing's function of this name does. Returns the number of SQEs, or a negative error number.
    #[inline]
    pub fn submit_and_wait(self, ring: &mut IoUring, wait: u32) -> i32 {
        let sq = &mut ring.sq;
        let pending = sq.sqe_tail.wrapping_sub(sq.sqe_head);
        sq.sqe_head = sq.sqe_tail;
        // Release: pairs with the server's Acquire load of the tail before it reads the SQEs.
        // SAFETY: a pointer into the mapped ring, aligned, and shared with the server.
        unsafe { AtomicU32::from_ptr(sq.ktail) }.store(sq.sqe_tail, Ordering::Release);
        self.enter(ring.ring_fd, pending, wait)
    }

    /// Waits for so many CQEs. Returns 0 or a negative error number.
    pub fn wait(self, ring: &IoUring, wait: u32) -> i32 {
        self.enter(ring.ring_fd, 0, wait)
    }

    #[inline]
    fn enter(self, fd: i32, pending: u32, wait: u32) -> i32 {
        let flags = if wait > 0 { IORING_ENTER_GETEVENTS as usize } else { 0 };
        self.call::<NR_IO_URING_ENTER>([fd as usize, pending as usize, wait as usize, flags, 0, 0]) as i32
    }

    /// io_uring_register(2). Returns a value or a negative error number.
    pub fn register(self, fd: i32, opcode: u32, argument: *const c_void, count: u32) -> i32 {
        let args = [fd as usize, opcode as usize, argument as usize, count as usize, 0, 0];
        self.call::<NR_IO_URING_REGISTER>(args) as i32
    }

    /// Unmaps and closes.
    pub fn queue_exit(self, ring: &mut IoUring) {
        let sqe_bytes = ring.sq.ring_entries as usize * size_of::<Sqe>();
        // SAFETY: the two mappings and the descriptor of this ring, not used after this.
        unsafe {
            libc::munmap(ring.sq.sqes.cast(), sqe_bytes);
            libc::munmap(ring.sq.ring_ptr, ring.sq.ring_size);
            libc::close(ring.ring_fd);
        }
    }
}
