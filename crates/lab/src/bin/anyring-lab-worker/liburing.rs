//! liburing as a program uses it: its functions by symbol, and what its header has inline written as a compiler would
//! inline it from liburing.h (2.0 to 2.15 lay `struct io_uring` out alike).
//!
//! The functions are looked up in the global scope after the installed liburing.so.2 was opened into it. So they are
//! those of the installed library, unless one that is preloaded has them.
//!
//! One thread owns a [`Ring`]; the other side of its memory is the ring's server.

use crate::provider;
use anyring_abi::{Cqe, Sqe};
use std::ffi::{c_void, CStr};
use std::sync::atomic::{AtomicU32, Ordering};

/// `struct io_uring_sq`.
#[repr(C)]
struct Sq {
    khead: *mut u32,
    ktail: *mut u32,
    kring_mask: *mut u32,
    kring_entries: *mut u32,
    kflags: *mut u32,
    kdropped: *mut u32,
    array: *mut u32,
    sqes: *mut Sqe,
    sqe_head: u32,
    sqe_tail: u32,
    ring_size: usize,
    ring_ptr: *mut c_void,
    /// Since 2.4; reserved before.
    ring_mask: u32,
    ring_entries: u32,
    pad: [u32; 2],
}

/// `struct io_uring_cq`.
#[repr(C)]
struct Cq {
    khead: *mut u32,
    ktail: *mut u32,
    kring_mask: *mut u32,
    kring_entries: *mut u32,
    kflags: *mut u32,
    koverflow: *mut u32,
    cqes: *mut Cqe,
    ring_size: usize,
    ring_ptr: *mut c_void,
    ring_mask: u32,
    ring_entries: u32,
    pad: [u32; 2],
}

/// `struct io_uring`.
#[repr(C)]
struct IoUring {
    sq: Sq,
    cq: Cq,
    flags: u32,
    ring_fd: i32,
    features: u32,
    enter_ring_fd: i32,
    int_flags: u8,
    pad: [u8; 3],
    pad2: u32,
}

const _: () = assert!(size_of::<IoUring>() == 216);

type QueueInit = unsafe extern "C" fn(u32, *mut IoUring, u32) -> i32;
type Submit = unsafe extern "C" fn(*mut IoUring) -> i32;
type GetCqe = unsafe extern "C" fn(*mut IoUring, *mut *mut Cqe, u32, u32, *mut c_void) -> i32;
type QueueExit = unsafe extern "C" fn(*mut IoUring);

/// liburing's functions.
#[derive(Clone, Copy)]
pub struct Liburing {
    queue_init: QueueInit,
    submit: Submit,
    get_cqe: GetCqe,
    queue_exit: QueueExit,
}

impl Liburing {
    /// Opens the installed library. The error is one line for people.
    pub fn open() -> Result<Self, String> {
        // SAFETY: liburing has no constructor that could disturb this process.
        let handle = unsafe { libc::dlopen(c"liburing.so.2".as_ptr(), libc::RTLD_NOW | libc::RTLD_GLOBAL) };
        if handle.is_null() {
            return Err("liburing.so.2 is not installed; on Debian: apt-get install liburing2".to_owned());
        }
        // SAFETY: each type is that of the function of this name in liburing.h.
        unsafe {
            Ok(Liburing {
                queue_init: std::mem::transmute::<*mut c_void, QueueInit>(symbol(c"io_uring_queue_init")?),
                submit: std::mem::transmute::<*mut c_void, Submit>(symbol(c"io_uring_submit")?),
                get_cqe: std::mem::transmute::<*mut c_void, GetCqe>(symbol(c"__io_uring_get_cqe")?),
                queue_exit: std::mem::transmute::<*mut c_void, QueueExit>(symbol(c"io_uring_queue_exit")?),
            })
        }
    }

    /// The file that io_uring_submit() is in.
    pub fn provider(&self) -> String {
        provider::of(self.submit as *const c_void)
    }

    /// io_uring_queue_init(3) without flags; the error is the error number.
    pub fn queue_init(&self, entries: u32) -> Result<Ring, i32> {
        // SAFETY: integers and pointers, for which zeroes are values.
        let mut ring: Box<IoUring> = Box::new(unsafe { std::mem::zeroed() });
        // SAFETY: `ring` is writable and of liburing's size.
        match unsafe { (self.queue_init)(entries, &mut *ring, 0) } {
            0 => {
                // SAFETY: liburing filled the ring; these words are constant as long as it lives. By way of the
                // pointers, as headers before 2.4 do, since an older library leaves the newer fields alone.
                let (sq_mask, sq_entries, cq_mask) =
                    unsafe { (*ring.sq.kring_mask, *ring.sq.kring_entries, *ring.cq.kring_mask) };
                (ring.sq.ring_mask, ring.sq.ring_entries, ring.cq.ring_mask) = (sq_mask, sq_entries, cq_mask);
                Ok(Ring { ring, liburing: *self })
            }
            error => Err(-error),
        }
    }
}

fn symbol(name: &CStr) -> Result<*mut c_void, String> {
    // SAFETY: a terminated name, looked up in the global scope.
    let address = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    match address.is_null() {
        true => Err(format!("liburing.so.2 has no {}", name.to_string_lossy())),
        false => Ok(address),
    }
}

/// A ring, torn down with io_uring_queue_exit(3) when dropped.
pub struct Ring {
    ring: Box<IoUring>,
    liburing: Liburing,
}

impl Ring {
    /// The ring's descriptor.
    pub fn fd(&self) -> i32 {
        self.ring.ring_fd
    }

    /// io_uring_get_sqe(3).
    #[inline]
    pub fn get_sqe(&mut self) -> Option<&mut Sqe> {
        let sq = &mut self.ring.sq;
        // Relaxed, as in the header: without SQPOLL the head only moves in this thread's own submit call.
        // SAFETY: liburing's pointer into the mapped ring, aligned, and shared with the server, hence the atomic.
        let head = unsafe { AtomicU32::from_ptr(sq.khead) }.load(Ordering::Relaxed);
        let next = sq.sqe_tail.wrapping_add(1);
        if next.wrapping_sub(head) > sq.ring_entries {
            return None;
        }
        // SAFETY: masked, so inside the mapped SQE array; the server reads it in the submit call only, which needs the
        // ring borrowed again.
        let sqe = unsafe { &mut *sq.sqes.add((sq.sqe_tail & sq.ring_mask) as usize) };
        sq.sqe_tail = next;
        Some(sqe)
    }

    /// io_uring_submit(3): how many, or a negative error number.
    #[inline]
    pub fn submit(&mut self) -> i32 {
        // SAFETY: a ring that queue_init made.
        unsafe { (self.liburing.submit)(&mut *self.ring) }
    }

    /// io_uring_wait_cqe(3), a copy of the CQE, and io_uring_cqe_seen(3).
    #[inline]
    pub fn wait_cqe(&mut self) -> Result<Cqe, String> {
        // SAFETY: as in `get_sqe`.
        let (head, tail) =
            unsafe { (AtomicU32::from_ptr(self.ring.cq.khead), AtomicU32::from_ptr(self.ring.cq.ktail)) };
        let seen = head.load(Ordering::Relaxed); // only this thread stores it
        let mut cqe: *mut Cqe = std::ptr::null_mut();
        // Acquire: pairs with the server's Release store of the tail after it wrote the CQE.
        if tail.load(Ordering::Acquire) != seen {
            // SAFETY: masked, so inside the mapped CQE array.
            cqe = unsafe { self.ring.cq.cqes.add((seen & self.ring.cq.ring_mask) as usize) };
        } else {
            // SAFETY: a ring that queue_init made, and a writable pointer.
            let answer = unsafe { (self.liburing.get_cqe)(&mut *self.ring, &mut cqe, 0, 1, std::ptr::null_mut()) };
            if answer != 0 || cqe.is_null() {
                return Err(format!("waiting for a CQE answered {answer}"));
            }
        }
        // SAFETY: a CQE that the server has written and does not reuse before the head passes it.
        let copy = unsafe { cqe.read() };
        // Release: pairs with the server's Acquire load of the head before it reuses the CQE.
        head.store(seen.wrapping_add(1), Ordering::Release);
        Ok(copy)
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: a ring that queue_init made, not used after this.
        unsafe { (self.liburing.queue_exit)(&mut *self.ring) };
    }
}
