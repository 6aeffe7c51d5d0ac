//! liburing by symbol (2.0 to 2.15 lay `struct io_uring` out alike). The installed liburing.so.2 is opened into the
//! global scope, and the functions are looked up there. They are those of the installed library, or of one that is
//! preloaded.

use crate::provider;
use anyring_abi::{Cqe, Params, Sqe};
use std::ffi::{c_void, CStr};
use std::sync::OnceLock;

/// `struct io_uring_sq`.
#[repr(C)]
pub struct Sq {
    pub khead: *mut u32,
    pub ktail: *mut u32,
    pub kring_mask: *mut u32,
    pub kring_entries: *mut u32,
    pub kflags: *mut u32,
    pub kdropped: *mut u32,
    pub array: *mut u32,
    pub sqes: *mut Sqe,
    pub sqe_head: u32,
    pub sqe_tail: u32,
    pub ring_size: usize,
    pub ring_ptr: *mut c_void,
    /// Since 2.4; reserved before.
    pub ring_mask: u32,
    pub ring_entries: u32,
    pub pad: [u32; 2],
}

/// `struct io_uring_cq`.
#[repr(C)]
pub struct Cq {
    pub khead: *mut u32,
    pub ktail: *mut u32,
    pub kring_mask: *mut u32,
    pub kring_entries: *mut u32,
    pub kflags: *mut u32,
    pub koverflow: *mut u32,
    pub cqes: *mut Cqe,
    pub ring_size: usize,
    pub ring_ptr: *mut c_void,
    pub ring_mask: u32,
    pub ring_entries: u32,
    pub pad: [u32; 2],
}

/// `struct io_uring`.
#[repr(C)]
pub struct IoUring {
    pub sq: Sq,
    pub cq: Cq,
    pub flags: u32,
    pub ring_fd: i32,
    pub features: u32,
    pub enter_ring_fd: i32,
    pub int_flags: u8,
    pub pad: [u8; 3],
    pub pad2: u32,
}

const _: () = assert!(size_of::<IoUring>() == 216);

type QueueInit = unsafe extern "C" fn(u32, *mut IoUring, *mut Params) -> i32;
type SubmitAndWait = unsafe extern "C" fn(*mut IoUring, u32) -> i32;
type Submit = unsafe extern "C" fn(*mut IoUring) -> i32;
type GetCqe = unsafe extern "C" fn(*mut IoUring, *mut *mut Cqe, u32, u32, *mut c_void) -> i32;
type QueueExit = unsafe extern "C" fn(*mut IoUring);
type RegisterBufRing = unsafe extern "C" fn(*mut IoUring, *const c_void, u32) -> i32;

/// liburing's functions.
#[derive(Clone, Copy)]
pub struct Functions {
    queue_init: QueueInit,
    submit: Submit,
    submit_and_wait: SubmitAndWait,
    get_cqe: GetCqe,
    queue_exit: QueueExit,
    /// Since 2.3.
    register_buf_ring: Option<RegisterBufRing>,
}

impl Functions {
    /// Opens the installed library. The error is one line for people.
    pub fn open() -> Result<Self, String> {
        static FUNCTIONS: OnceLock<Result<Functions, String>> = OnceLock::new();
        FUNCTIONS.get_or_init(Functions::look_up).clone()
    }

    fn look_up() -> Result<Self, String> {
        // SAFETY: liburing has no constructor that could disturb this process.
        let handle = unsafe { libc::dlopen(c"liburing.so.2".as_ptr(), libc::RTLD_NOW | libc::RTLD_GLOBAL) };
        if handle.is_null() {
            return Err(
                "liburing.so.2 is not installed; on Debian: apt-get install liburing2 (or --door libc)".into()
            );
        }
        // SAFETY: each type is that of the function of this name in liburing.h.
        unsafe {
            Ok(Functions {
                queue_init: std::mem::transmute::<*mut c_void, QueueInit>(symbol(c"io_uring_queue_init_params")?),
                submit: std::mem::transmute::<*mut c_void, Submit>(symbol(c"io_uring_submit")?),
                submit_and_wait: std::mem::transmute::<*mut c_void, SubmitAndWait>(symbol(
                    c"io_uring_submit_and_wait",
                )?),
                get_cqe: std::mem::transmute::<*mut c_void, GetCqe>(symbol(c"__io_uring_get_cqe")?),
                queue_exit: std::mem::transmute::<*mut c_void, QueueExit>(symbol(c"io_uring_queue_exit")?),
                register_buf_ring: symbol(c"io_uring_register_buf_ring")
                    .ok()
                    .map(|address| std::mem::transmute::<*mut c_void, RegisterBufRing>(address)),
            })
        }
    }

    /// Returns the file that has io_uring_submit().
    pub fn provider(self) -> String {
        provider::of(self.submit as *const c_void)
    }

    /// io_uring_queue_init_params(3). Returns 0 or a negative error number.
    pub fn queue_init(self, entries: u32, ring: &mut IoUring, mut params: Params) -> i32 {
        // SAFETY: both structures are writable and of liburing's size.
        let answer = unsafe { (self.queue_init)(entries, ring, &mut params) };
        if answer == 0 {
            // Through the pointers, as in headers before 2.4, since an older library does not set the newer fields.
            // SAFETY: liburing filled the ring; these words are constant as long as it lives.
            unsafe {
                ring.sq.ring_mask = *ring.sq.kring_mask;
                ring.sq.ring_entries = *ring.sq.kring_entries;
                ring.cq.ring_mask = *ring.cq.kring_mask;
            }
        }
        answer
    }

    /// io_uring_submit(3), or io_uring_submit_and_wait(3). Returns the number of SQEs, or a negative error number.
    #[inline]
    pub fn submit_and_wait(self, ring: &mut IoUring, wait: u32) -> i32 {
        // SAFETY: a ring that `queue_init` made.
        unsafe {
            match wait {
                0 => (self.submit)(ring),
                wait => (self.submit_and_wait)(ring, wait),
            }
        }
    }

    /// The call that io_uring_wait_cqe(3) makes if the CQ is empty.
    pub fn wait_cqe(self, ring: &mut IoUring) -> i32 {
        let mut cqe: *mut Cqe = std::ptr::null_mut();
        // SAFETY: a ring that `queue_init` made, and a writable pointer.
        unsafe { (self.get_cqe)(ring, &mut cqe, 0, 1, std::ptr::null_mut()) }
    }

    /// io_uring_register_buf_ring(3), the only registration that a workload makes.
    pub fn register(self, ring: &mut IoUring, _opcode: u32, argument: *const c_void, _count: u32) -> i32 {
        // SAFETY: a ring that `queue_init` made, and a `struct io_uring_buf_reg`.
        self.register_buf_ring.map_or(-libc::ENOSYS, |function| unsafe { function(ring, argument, 0) })
    }

    /// io_uring_queue_exit(3).
    pub fn queue_exit(self, ring: &mut IoUring) {
        // SAFETY: a ring that `queue_init` made, not used after this.
        unsafe { (self.queue_exit)(ring) };
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
