//! liburing's own functions on its own `struct io_uring`, as a program linked with liburing.so.2 calls them.
//!
//! No other door leads to them, so the cases run with `--door liburing` only.

use super::prelude::*;
use crate::buffers::{buffer_of, BufferRing, Registration};
use crate::door::liburing_symbol;
use std::ffi::CStr;
use std::sync::atomic::{AtomicU32, Ordering};

topic!(since: "5.1", source: "the man pages of liburing");

/// `struct io_uring` of liburing 2.3: 216 bytes, seen as words of 8.
#[repr(C, align(8))]
struct IoUring([u64; 27]);

/// The offset of `sq.array`, in words.
const SQ_ARRAY: usize = 6;
/// The offset of `cq.khead`, in words.
const CQ_KHEAD: usize = 13;
/// The offset of `flags` and `ring_fd`, in words.
const FLAGS_AND_FD: usize = 24;

impl IoUring {
    fn ring_fd(&self) -> i32 {
        (self.0[FLAGS_AND_FD] >> 32) as i32
    }

    /// Advances the CQ's head as the header's io_uring_cq_advance does.
    fn advance(&self, count: u32) {
        // SAFETY: `khead` points to the CQ's head word from queue_init to queue_exit.
        unsafe { AtomicU32::from_ptr(self.0[CQ_KHEAD] as *mut u32) }.fetch_add(count, Ordering::Release);
    }
}

/// A function of liburing by its name and type; a library that lacks it is reported as a failure.
fn function<F: Copy>(name: &CStr) -> F {
    let address = liburing_symbol(name).unwrap_or_else(|| panic!("liburing.so.2 has no {name:?}"));
    assert_eq!(size_of::<F>(), size_of::<*mut libc::c_void>());
    // SAFETY: a function pointer of the size of an address; each caller names the C signature of that function.
    unsafe { std::mem::transmute_copy(&address) }
}

type OnRing = unsafe extern "C" fn(*mut IoUring) -> i32;
type OnRingAndCount = unsafe extern "C" fn(*mut IoUring, u32) -> i32;
type Init = unsafe extern "C" fn(u32, *mut IoUring, u32) -> i32;
type GetSqe = unsafe extern "C" fn(*mut IoUring) -> *mut Sqe;
type WaitCqes = unsafe extern "C" fn(*mut IoUring, *mut *mut Cqe, u32, *const Timespec, *const u64) -> i32;
type WaitTimeout = unsafe extern "C" fn(*mut IoUring, *mut *mut Cqe, *const Timespec) -> i32;
type PeekBatch = unsafe extern "C" fn(*mut IoUring, *mut *mut Cqe, u32) -> u32;
type RegisterArray = unsafe extern "C" fn(*mut IoUring, *const libc::c_void, u32) -> i32;

/// A ring made by io_uring_queue_init and ended by io_uring_queue_exit.
struct Library(Box<IoUring>);

impl Library {
    fn new(entries: u32) -> Library {
        Library::with_flags(entries, 0)
    }

    fn with_flags(entries: u32, flags: u32) -> Library {
        let mut ring = Box::new(IoUring([0; 27]));
        // SAFETY: the structure has the size of liburing's and stays where it is until queue_exit.
        assert_eq!(unsafe { function::<Init>(c"io_uring_queue_init")(entries, &mut *ring, flags) }, 0);
        Library(ring)
    }

    fn at(&mut self) -> *mut IoUring {
        &mut *self.0
    }

    fn get_sqe(&mut self) -> Option<&mut Sqe> {
        // SAFETY: the ring is initialised; the SQE it gives belongs to the case until the next submit.
        unsafe { function::<GetSqe>(c"io_uring_get_sqe")(self.at()).as_mut() }
    }

    fn push(&mut self, sqe: Sqe) {
        *self.get_sqe().expect("the SQ has room") = sqe;
    }

    fn call(&mut self, name: &CStr) -> i32 {
        // SAFETY: only functions of this type are called by name here, on an initialised ring.
        unsafe { function::<OnRing>(name)(self.at()) }
    }

    fn peek(&mut self, count: u32) -> Vec<Cqe> {
        let mut found = [std::ptr::null_mut(); 16];
        // SAFETY: room for 16 is passed; the CQEs stay valid until `advance`.
        unsafe {
            let seen = function::<PeekBatch>(c"io_uring_peek_batch_cqe")(self.at(), found.as_mut_ptr(), count);
            let cqes: Vec<Cqe> = found[..seen as usize].iter().map(|cqe| **cqe).collect();
            self.0.advance(seen);
            cqes
        }
    }

    fn array(&mut self, name: &CStr, array: *const libc::c_void, count: u32) -> i32 {
        // SAFETY: only functions of this type are called by name here; the array has `count` entries.
        unsafe { function::<RegisterArray>(name)(self.at(), array, count) }
    }
}

impl Drop for Library {
    fn drop(&mut self) {
        // SAFETY: the ring is initialised and not used after.
        unsafe { function::<unsafe extern "C" fn(*mut IoUring)>(c"io_uring_queue_exit")(self.at()) };
    }
}

#[case(liburing)]
fn queue_init_fills_the_structure(_: &Context) {
    let library = Library::new(5);
    assert!(is_open(library.0.ring_fd()));
    // sq.ring_mask and ring_entries, cq.ring_mask and ring_entries.
    assert_eq!((library.0 .0[11], library.0 .0[22]), (7 | 8 << 32, 15 | 16 << 32));
}

#[case(liburing)]
fn queue_init_refuses_as_the_kernel_does(_: &Context) {
    let mut ring = IoUring([0; 27]);
    // SAFETY: the structure has the size of liburing's.
    let refused = |entries, flags, ring: &mut IoUring| unsafe {
        function::<Init>(c"io_uring_queue_init")(entries, ring, flags)
    };
    assert_eq!(refused(0, 0, &mut ring), -EINVAL);
    assert_eq!(refused(4, IORING_SETUP_DEFER_TASKRUN, &mut ring), -EINVAL);
}

/// liburing leaves the array out from 2.6 on, the first release with io_uring_register_napi. A library in front of the
/// installed one must do the same, since programs write to the array.
#[case(liburing)]
fn index_array_is_there_before_liburing_2_6(_: &Context) {
    // SAFETY: liburing is loaded already; its handle and a constant name go in.
    let installed = unsafe {
        let handle = libc::dlopen(c"liburing.so.2".as_ptr(), libc::RTLD_NOW);
        libc::dlsym(handle, c"io_uring_register_napi".as_ptr())
    };
    let mut library = Library::new(2);
    let array = library.0 .0[SQ_ARRAY] as *mut u32;
    assert_eq!(array.is_null(), !installed.is_null());
    if !array.is_null() {
        library.push(sqe::nop().data(1));
        library.push(sqe::nop().data(2));
        // SAFETY: the array has an index for each of the two SQEs, and no other thread submits.
        unsafe { array.cast::<[u32; 2]>().write([1, 0]) };
        assert_eq!(library.call(c"io_uring_submit"), 2);
        assert_eq!(library.peek(2).iter().map(|cqe| cqe.user_data).collect::<Vec<_>>(), [2, 1]);
    }
}

#[case(liburing)]
fn nop_round_trip(_: &Context) {
    let mut library = Library::new(4);
    for n in 0..20 {
        library.push(sqe::nop().data(n));
        assert_eq!(library.call(c"io_uring_submit"), 1);
        assert_eq!(library.peek(16).iter().map(|cqe| (cqe.user_data, cqe.res)).collect::<Vec<_>>(), [(n, 0)]);
    }
}

#[case(liburing)]
fn get_sqe_ends_when_the_sq_is_full(_: &Context) {
    let mut library = Library::new(2);
    library.push(sqe::nop());
    library.push(sqe::nop());
    assert!(library.get_sqe().is_none());
    assert_eq!(library.call(c"io_uring_submit"), 2);
    assert!(library.get_sqe().is_some());
}

#[case(liburing)]
fn submit_and_wait_waits(_: &Context) {
    let (mut library, ts) = (Library::new(4), ms(10));
    library.push(sqe::timeout(&ts, 0, 0));
    // SAFETY: the ring is initialised.
    let answer = unsafe { function::<OnRingAndCount>(c"io_uring_submit_and_wait")(library.at(), 1) };
    assert_eq!(answer, 1);
    assert_eq!(library.peek(1)[0].res, -ETIME);
}

#[case(liburing)]
fn wait_cqes_with_a_timeout(_: &Context) {
    let (mut library, soon, long) = (Library::new(4), ms(5), ms(3000));
    library.push(sqe::timeout(&soon, 0, 0).data(3));
    assert_eq!(library.call(c"io_uring_submit"), 1);
    let mut cqe = std::ptr::null_mut();
    let wait: WaitCqes = function(c"io_uring_wait_cqes");
    // SAFETY: all addresses live until the call returns; the CQE is valid until `advance`.
    unsafe {
        assert_eq!(wait(library.at(), &mut cqe, 1, &long, std::ptr::null()), 0);
        assert_eq!((*cqe).user_data, 3);
    }
}

#[case(liburing)]
fn wait_cqe_timeout_is_etime(_: &Context) {
    let (mut library, ts, mut cqe) = (Library::new(4), ms(10), std::ptr::null_mut());
    let wait: WaitTimeout = function(c"io_uring_wait_cqe_timeout");
    // SAFETY: all addresses live until the call returns.
    assert_eq!(unsafe { wait(library.at(), &mut cqe, &ts) }, -ETIME);
    assert!(cqe.is_null());
}

#[case(liburing)]
fn submit_and_wait_timeout(_: &Context) {
    let (mut library, ts, mut cqe) = (Library::new(4), ms(1000), std::ptr::null_mut());
    library.push(sqe::nop().data(8));
    let wait: WaitCqes = function(c"io_uring_submit_and_wait_timeout");
    // SAFETY: all addresses live until the call returns; the CQE is valid until `advance`.
    unsafe {
        assert_eq!(wait(library.at(), &mut cqe, 1, &ts, std::ptr::null()), 1);
        assert_eq!((*cqe).user_data, 8);
    }
}

#[case(liburing)]
fn peek_batch(_: &Context) {
    let mut library = Library::new(8);
    (0..8).for_each(|n| library.push(sqe::nop().data(n)));
    assert_eq!(library.call(c"io_uring_submit"), 8);
    assert_eq!(library.peek(3).iter().map(|cqe| cqe.user_data).collect::<Vec<_>>(), [0, 1, 2]);
    assert_eq!(library.peek(16).len(), 5);
    assert_eq!(library.peek(16).len(), 0);
}

#[case(liburing)]
fn probe_functions(_: &Context) {
    type GetProbe = unsafe extern "C" fn() -> *mut u8;
    type FreeProbe = unsafe extern "C" fn(*mut u8);
    // SAFETY: the probe is read only when it was made, inside its 16 bytes of header and first entry, then freed once.
    unsafe {
        let probe = function::<GetProbe>(c"io_uring_get_probe")();
        assert!(!probe.is_null());
        assert!(*probe >= Opcode::Linkat as u8);
        assert_eq!(*probe.add(16 + 2) & 1, 1, "NOP is supported");
        function::<FreeProbe>(c"io_uring_free_probe")(probe);
    }
}

#[case(undisturbed, liburing)]
fn register_files_functions(_: &Context) {
    let (mut library, (reader, _writer)) = (Library::new(4), pipe());
    let numbers = [fd(&reader), -1];
    assert_eq!(library.array(c"io_uring_register_files", numbers.as_ptr().cast(), 2), 0);
    library.push(sqe::read(0, &mut [0; 1], 0).with(IOSQE_FIXED_FILE).op_flags(libc::RWF_NOWAIT as u32));
    assert_eq!(library.call(c"io_uring_submit"), 1);
    assert_eq!(library.peek(1)[0].res, -EAGAIN);
    assert_eq!(library.call(c"io_uring_unregister_files"), 0);
    // SAFETY: the ring is initialised.
    let sparse = unsafe { function::<OnRingAndCount>(c"io_uring_register_files_sparse")(library.at(), 8) };
    assert_eq!(sparse, 0);
}

#[case(liburing)]
fn register_buffers_functions(_: &Context) {
    let mut library = Library::new(4);
    let vectors = [iovec_mut(pages(1))];
    assert_eq!(library.array(c"io_uring_register_buffers", vectors.as_ptr().cast(), 1), 0);
    assert_eq!(library.call(c"io_uring_unregister_buffers"), 0);
    assert_eq!(library.call(c"io_uring_unregister_buffers"), -ENXIO);
}

type RegisterBufRing = unsafe extern "C" fn(*mut IoUring, *mut Registration, u32) -> i32;
type UnregisterBufRing = unsafe extern "C" fn(*mut IoUring, i32) -> i32;
type SetupBufRing = unsafe extern "C" fn(*mut IoUring, u32, i32, u32, *mut i32) -> *mut libc::c_void;
type FreeBufRing = unsafe extern "C" fn(*mut IoUring, *mut libc::c_void, u32, i32) -> i32;

/// One RECV into the first buffer of group 4, whose entries are at `entries`.
fn recv_with(ring: &mut Library, entries: usize) {
    let (a, b) = unix_pair(libc::SOCK_STREAM);
    let mut buffers = BufferRing::at(entries, 4, 8, 32);
    buffers.give(3);
    std::fs::File::from(a).write_all(b"chosen").expect("write");
    let recv = prep(Opcode::Recv, fd(&b), 0, 0, 0).with(IOSQE_BUFFER_SELECT).buffer(4);
    ring.push(recv);
    assert_eq!(ring.call(c"io_uring_submit"), 1);
    let cqe = ring.peek(1)[0];
    assert_eq!((cqe.res, buffer_of(&cqe)), (6, Some(3)));
    assert_eq!(buffers.content(3, 6), b"chosen");
}

#[case(undisturbed, liburing)]
fn register_buf_ring_functions(_: &Context) {
    let (mut ring, entries) = (Library::new(4), pages(1).as_ptr() as usize);
    let mut registration =
        Registration { ring_addr: entries as u64, ring_entries: 8, group: 4, ..Registration::default() };
    let (register, unregister) = (
        function::<RegisterBufRing>(c"io_uring_register_buf_ring"),
        function::<UnregisterBufRing>(c"io_uring_unregister_buf_ring"),
    );
    // SAFETY: the ring and the registration live until the calls return, the entries as long as the process.
    assert_eq!(unsafe { register(ring.at(), &mut registration, 0) }, 0);
    // SAFETY: as above.
    assert_eq!(unsafe { register(ring.at(), &mut registration, 0) }, -EEXIST);
    recv_with(&mut ring, entries);
    // SAFETY: as above.
    assert_eq!(unsafe { unregister(ring.at(), 4) }, 0);
}

#[case(undisturbed, liburing)]
fn setup_buf_ring_functions(cx: &Context) {
    if liburing_symbol(c"io_uring_setup_buf_ring").is_none() {
        cx.skip("liburing.so.2 has no io_uring_setup_buf_ring: it came with liburing 2.4");
    }
    let (mut ring, mut error) = (Library::new(4), 1);
    let setup = function::<SetupBufRing>(c"io_uring_setup_buf_ring");
    let free = function::<FreeBufRing>(c"io_uring_free_buf_ring");
    // SAFETY: the ring and `error` live until the call returns.
    let entries = unsafe { setup(ring.at(), 8, 4, 0, &mut error) };
    assert!(!entries.is_null() && error == 0, "error {error}");
    recv_with(&mut ring, entries as usize);
    // SAFETY: the ring that setup returned, for as many entries; it is no longer in use.
    assert_eq!(unsafe { free(ring.at(), entries, 8, 4) }, 0);
}

#[case(liburing)]
fn register_eventfd_functions(_: &Context) {
    let (mut library, mut file) = (Library::new(4), eventfd(0, libc::EFD_NONBLOCK));
    // SAFETY: the ring is initialised; the second argument is an int.
    let answer = unsafe {
        let register: unsafe extern "C" fn(*mut IoUring, i32) -> i32 = function(c"io_uring_register_eventfd");
        register(library.at(), fd(&file))
    };
    assert_eq!(answer, 0);
    library.push(sqe::nop());
    assert_eq!(library.call(c"io_uring_submit"), 1);
    file.read_exact(&mut [0; 8]).expect("it was signalled");
    assert_eq!(library.call(c"io_uring_unregister_eventfd"), 0);
}

#[case(liburing)]
fn register_ring_fd_functions(_: &Context) {
    let mut library = Library::new(4);
    assert_eq!(library.call(c"io_uring_register_ring_fd"), 1);
    library.push(sqe::nop().data(5));
    assert_eq!(library.call(c"io_uring_submit"), 1, "by the registered number");
    assert_eq!(library.peek(1)[0].user_data, 5);
    assert_eq!(library.call(c"io_uring_unregister_ring_fd"), 1);
}

#[case(liburing)]
fn queue_init_params_gives_them_back(_: &Context) {
    type InitParams = unsafe extern "C" fn(u32, *mut IoUring, *mut Params) -> i32;
    let mut library = Library(Box::new(IoUring([0; 27])));
    let mut params = Params { flags: IORING_SETUP_CQSIZE, cq_entries: 64, ..Params::default() };
    // SAFETY: the structures have the sizes of liburing's and stay where they are until queue_exit.
    let answer = unsafe { function::<InitParams>(c"io_uring_queue_init_params")(8, library.at(), &mut params) };
    assert_eq!((answer, params.cq_entries), (0, 64));
}

#[case(liburing)]
fn resize_rings_function(cx: &Context) {
    if liburing_symbol(c"io_uring_resize_rings").is_none() {
        cx.skip("liburing.so.2 has no io_uring_resize_rings: it came with liburing 2.9");
    }
    type Resize = unsafe extern "C" fn(*mut IoUring, *mut Params) -> i32;
    let flags = IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN;
    for kept in [0, IORING_SETUP_SQE128, IORING_SETUP_CQE32] {
        let mut library = Library::with_flags(4, flags | kept);
        for n in 1..4 {
            library.push(sqe::nop().data(n));
        }
        assert_eq!(library.call(c"io_uring_submit"), 3);
        let mut params = Params { sq_entries: 64, ..Params::default() };
        // SAFETY: an initialised ring without another user, and one parameter block.
        let resized = unsafe { function::<Resize>(c"io_uring_resize_rings")(library.at(), &mut params) };
        assert_eq!((resized, params.sq_entries, params.cq_entries), (0, 64, 128));
        let seen: Vec<u64> = library.peek(2).iter().map(|cqe| cqe.user_data).collect();
        assert_eq!(seen, [1, 2], "with {kept:#x}");
        for n in 0..64 {
            library.push(sqe::nop().data(n));
        }
        assert!(library.get_sqe().is_none(), "the SQ is full");
        assert_eq!(library.call(c"io_uring_submit"), 64);
    }
    let mut library = Library::new(4);
    let mut params = Params { sq_entries: 64, ..Params::default() };
    // SAFETY: as above.
    let refused = unsafe { function::<Resize>(c"io_uring_resize_rings")(library.at(), &mut params) };
    assert_eq!(refused, -EINVAL, "only deferred rings");
}
