//! The calls that all entry points share: liburing's symbols, libc's `syscall()`, and trapped raw instructions.
//!
//! Each function behaves like the system call of its name. The arguments are those of io_uring_setup(2),
//! io_uring_enter(2) and io_uring_register(2). The answer is the kernel's register (a value, or `-errno`), and errno is
//! untouched. Call none of these functions while holding an anyring lock.

use crate::host::{Host, Server};
use crate::{descriptor, engine, entry, mixed, sys};
use anyring_abi::{
    Params, IORING_ENTER_REGISTERED_RING, NR_IO_CANCEL, NR_IO_DESTROY, NR_IO_GETEVENTS, NR_IO_PGETEVENTS,
    NR_IO_SETUP, NR_IO_SUBMIT, NR_IO_URING_ENTER, NR_IO_URING_REGISTER, NR_IO_URING_SETUP,
};
use anyring_engine::aio as engine_aio;
use anyring_engine::forced::{point, Point};
use anyring_engine::memory::Area;
use anyring_engine::os::{calls, version};
use anyring_engine::register::registering;
use anyring_engine::wait::enter::panicked_ring;
use anyring_engine::{descriptors, process, thread, Enter, Errno};
use core::ffi::c_void;

/// The descriptor numbers that rings get (decision 2 in docs/decisions). They begin below 1,024, so that select(2)
/// can name some.
pub use anyring_engine::descriptors::RING_NUMBERS;

/// The range of known numbers. A number outside this range is neither a ring nor one of the engine's own. The
/// filter finds that out by one compare.
pub use anyring_engine::descriptors::KNOWN_NUMBERS;

/// The answer of a call after a panic inside the engine.
const BROKEN: isize = -(libc::EIO as isize);

/// Returns a result of the engine as the kernel's register would hold it.
fn register_of<T: TryInto<isize>>(result: Result<T, Errno>) -> isize {
    match result {
        Ok(value) => value.try_into().unwrap_or(BROKEN),
        Err(error) => -(error.raw_os_error() as isize),
    }
}

/// Serves io_uring_setup(2): a new ring's descriptor, or `-errno`. `may_do_less`: the caller asks for less after
/// EINVAL, so it gets the kernel's EINVAL for an unknown flag.
pub fn setup<H: Host>(entries: u32, params: *mut Params, may_do_less: bool) -> isize {
    match H::rings() {
        Server::Engine => make::<H>(entries, params as u64),
        Server::Kernel => raw(NR_IO_URING_SETUP, [entries as usize, params as usize, 0, 0, 0, 0]),
        Server::KernelFirst | Server::Mixed => mixed::setup::<H>(entries, params, may_do_less),
    }
}

/// Makes a ring with the engine.
pub(crate) fn make<H: Host>(entries: u32, params: u64) -> isize {
    entry::catch_panic(|| {
        point(Point::SetupDoor);
        engine::prepare::<H>();
        let fd = anyring_engine::setup(entries, params);
        if fd.is_ok() {
            thread::keep_maker();
            descriptor::ring_made::<H>();
        }
        register_of(fd.map(|fd| fd as isize))
    })
}

/// Serves io_uring_enter(2) with its six arguments: the number of SQEs consumed, or `-errno`.
#[inline(always)] // runs in each call
pub fn enter<H: Host>(
    fd: u32,
    to_submit: u32,
    min_complete: u32,
    flags: u32,
    arg: *const c_void,
    arg_size: usize,
) -> isize {
    let call = Enter { fd, to_submit, min_complete, flags, arg: arg as u64, arg_size };
    let server = H::rings();
    if server != Server::Engine {
        if let Some(answer) = enter_kernels(server, &call) {
            return answer;
        }
    }
    let serve = || {
        point(Point::EnterDoor);
        register_of(anyring_engine::enter(&call))
    };
    match entry::contain(|| panicked_ring(&call), serve).unwrap_or(BROKEN) {
        NO_RING => enter_no_ring(&call),
        answer => answer,
    }
}

/// Answers a call on a descriptor that is none of the engine's rings.
#[cold]
fn enter_no_ring(call: &Enter) -> isize {
    match is_kernels_ring(call.fd) {
        true => raw(NR_IO_URING_ENTER, arguments(call)),
        false => NO_RING,
    }
}

/// Returns the arguments in the kernel's order.
fn arguments(call: &Enter) -> [usize; 6] {
    let counts = [call.fd, call.to_submit, call.min_complete, call.flags].map(|argument| argument as usize);
    let [fd, to_submit, min_complete, flags] = counts;
    [fd, to_submit, min_complete, flags, call.arg as usize, call.arg_size]
}

/// Makes the call to the kernel, if the kernel may have made the ring. Returns the kernel's answer, or `None` if
/// the engine must answer.
#[cold]
fn enter_kernels(server: Server, call: &Enter) -> Option<isize> {
    let args = arguments(call);
    match server {
        Server::Mixed => mixed::enter(args, call.flags & IORING_ENTER_REGISTERED_RING != 0),
        _ => Some(raw(NR_IO_URING_ENTER, args)),
    }
}

/// True if the number names a ring that the kernel made. An instruction may have made that ring before it was
/// trapped (in a plugin's constructor), or another process may have passed the ring on.
#[cold]
fn is_kernels_ring(fd: u32) -> bool {
    entry::contain(|| None, || calls::read_link(&format!("/proc/self/fd/{fd}")))
        .is_some_and(|link| link.is_ok_and(|link| link.as_os_str() == KERNELS_RING))
}

/// The name that the kernel gives its rings.
const KERNELS_RING: &str = "anon_inode:[io_uring]";
/// The answer of a call on a descriptor that is no ring.
const NO_RING: isize = -(libc::EOPNOTSUPP as isize);

/// Serves io_uring_register(2): the operation's answer, or `-errno`.
pub fn register<H: Host>(fd: u32, opcode: u32, arg: *mut c_void, nr_args: u32) -> isize {
    let server = H::rings();
    if server != Server::Engine {
        let args = [fd as usize, opcode as usize, arg as usize, nr_args as usize, 0, 0];
        let answer = match server {
            Server::Kernel => Some(raw(NR_IO_URING_REGISTER, args)),
            _ => mixed::register(fd, opcode, args, server == Server::Mixed),
        };
        if let Some(answer) = answer {
            return answer;
        }
    }
    let serve = || {
        point(Point::RegisterDoor);
        H::reinstall_handlers(); // registering copies memory, and need not be fast
        if fd == u32::MAX {
            // A call without a ring may come before the first one.
            engine::prepare::<H>();
        }
        register_of(anyring_engine::register(fd, opcode, arg as u64, nr_args))
    };
    match entry::contain(|| registering(fd, opcode).ok(), serve).unwrap_or(BROKEN) {
        NO_RING if is_kernels_ring(fd) => {
            raw(NR_IO_URING_REGISTER, [fd as usize, opcode as usize, arg as usize, nr_args as usize, 0, 0])
        }
        answer => answer,
    }
}

/// Serves a call of Linux AIO by its number, with the arguments of its man page: its answer, or `-errno`.
pub fn aio<H: Host>(number: i64, args: [usize; 6]) -> isize {
    match H::aio() {
        Server::Engine => entry::catch_panic(|| serve_aio::<H>(number, args)),
        Server::Kernel => raw(number, args),
        Server::KernelFirst | Server::Mixed => mixed::aio::<H>(number, args),
    }
}

pub(crate) fn serve_aio<H: Host>(number: i64, [a, b, c, d, e, f]: [usize; 6]) -> isize {
    let context = a as u64;
    let wait =
        engine_aio::Wait { context, at_least: b as i64, at_most: c as i64, events: d as u64, timeout: e as u64 };
    register_of(match number {
        NR_IO_SETUP => {
            engine::prepare::<H>();
            engine_aio::io_setup(a as u32, b as u64).map(|()| {
                thread::keep_maker();
                0
            })
        }
        NR_IO_DESTROY => engine_aio::io_destroy(context).map(|()| 0),
        NR_IO_SUBMIT => engine_aio::io_submit(context, b as i64, c as u64),
        NR_IO_CANCEL => engine_aio::io_cancel(context, b as u64).map(|()| 0),
        NR_IO_GETEVENTS => engine_aio::io_getevents(&wait),
        NR_IO_PGETEVENTS => engine_aio::io_pgetevents(&wait, f as u64),
        _ => Err(Errno::NOSYS),
    })
}

/// True if `fd` is the number of a ring that the engine serves. It takes one compare and one load, which is cheap
/// enough for `close`.
#[inline]
pub fn is_ring(fd: i32) -> bool {
    descriptors::is_ring(fd)
}

/// The way in which mmap(2) of a descriptor must be served.
pub enum Mapping {
    /// The descriptor is none of the engine's rings.
    Another,
    /// Map this descriptor, from this offset on.
    File(i32, u64),
    /// The memory has been mapped at this address.
    Made(usize),
}

/// Maps the area at `offset` of ring `fd`, or returns the descriptor to map instead. Checks that the number still names
/// the ring, since it may have been reused. `again` maps the memory at an address a second time.
///
/// Fails with `ENOMEM`, or with `EINVAL` from Linux 7.2 on, if `offset` is none of the ring's areas. The same applies
/// if the areas are the program's own memory (`IORING_SETUP_NO_MMAP`), as in io_uring/memmap.c.
pub fn map_area(fd: i32, offset: u64, again: impl FnOnce(usize) -> Result<usize, Errno>) -> Result<Mapping, Errno> {
    let mapping = process::with_area(fd, offset, |area| match area {
        Area::File(file, at) => Ok(Mapping::File(file, at)),
        Area::Memory(from) => again(from).map(Mapping::Made),
    });
    match mapping {
        Some(mapping) => mapping,
        None if process::verified_ring(fd).is_some() && version::answers_as_7_3() => Err(Errno::INVAL),
        None if process::verified_ring(fd).is_some() => Err(Errno::NOMEM),
        None => Ok(Mapping::Another),
    }
}

/// Maps the rings and the SQEs of ring `fd`, and returns the address and size of each. `None` if `fd` is none of the
/// engine's rings, or if the ring is in the program's memory.
pub fn map_both(fd: i32) -> Option<Result<[(usize, usize); 2], Errno>> {
    process::map_both(fd)
}

/// True if number `fd` is one of the engine's own descriptors, which are not open for the program.
#[inline]
pub fn is_own(fd: i32) -> bool {
    descriptors::is_own(fd)
}

/// Returns the lowest number in `first..=last` that is the engine's own.
#[inline]
pub fn next_own(first: u32, last: u32) -> Option<u32> {
    descriptors::next_own(first, last)
}

/// Ends the ring with number `fd`, if there is one, before the program closes that number or replaces it by dup2.
/// Requests in flight on any file with that number keep a private duplicate.
#[inline]
pub fn closing(fd: i32) {
    process::closing(fd);
}

/// Does the work of [`closing`] in place of the program's close(2). True if the number is closed now. If false, the
/// caller makes the call.
#[inline]
pub fn close(fd: i32) -> bool {
    process::close(fd)
}

/// Does the work of [`closing`] for every number in `first..=last` (close_range(2)).
pub fn closing_range(first: u32, last: u32) {
    process::closing_range(first, last);
}

/// True if only threads of the engine share the calling thread's descriptor table.
pub fn shares_table_with_engine_only() -> bool {
    process::shares_table_with_engine_only()
}

/// Records that the calling thread has got a descriptor table of its own (unshare(2)).
pub fn table_unshared() {
    process::unshared();
}

/// Watches ring `fd` for readability (epoll_ctl, poll, select, F_SETFL with O_ASYNC): from now on a CQE makes the
/// descriptor readable. `edge_triggered` if the watcher wants an edge for each batch (EPOLLET).
pub fn add_watcher(fd: i32, edge_triggered: bool) {
    let Some(ring) = process::verified_ring(fd) else { return };
    match ring.lock_soon() {
        Ok(mut guard) => guard.add_watcher(edge_triggered),
        Err(_) => ring.add_watcher_from_elsewhere(edge_triggered, fd),
    }
}

/// Records that the kernel refused the new ring with number `fd`, for `anyring doctor --pid`.
pub fn label_refusal(fd: i32, errno: i32) {
    if let Some(Ok(guard)) = process::verified_ring(fd).map(|ring| ring.lock_soon()) {
        guard.control.label_refusal(errno);
    }
}

/// Prepares the thread to leave its current call by longjmp(3) or the like.
pub fn leaving_by_jump() {
    point(Point::Jump);
    anyring_engine::ring::sleeps::leaving_by_jump();
}

/// Prepares the thread for its end by exit(2) with `status`. Ends the process instead of returning if only threads of
/// the engine would be left.
pub fn exiting(status: i32) {
    anyring_engine::ring::sleeps::leaving_by_jump();
    anyring_engine::thread::exiting(status);
}

/// Records that `fd` is a new duplicate of a ring's descriptor.
pub fn duplicated(fd: i32) {
    point(Point::Dup);
    process::duplicated(fd);
}

/// Makes the descriptor's readability agree with the CQ. Call it before the program waits on ring `fd` with a
/// level-triggered primitive.
pub fn update_readability(fd: i32) {
    // Skip a ring whose lock is held by a sleeping thread. In the kernel, too, the caller would not wait here.
    if let Some(mut guard) = process::verified_ring(fd).and_then(|ring| ring.lock_unless_asleep().ok()) {
        guard.update_readability();
    }
}

/// Keeps the mapping at `address` from forked children, as the program asked.
pub fn keep_from_children(address: usize) {
    process::keep_from_children(address);
}

/// Makes one system call from this library's own code, which neither its wrappers nor its filter catch. Returns the
/// kernel's register.
pub(crate) fn raw(number: i64, args: [usize; 6]) -> isize {
    // SAFETY: the kernel checks every argument of the calls made here, which are the program's own.
    unsafe { sys::call(number, args) }
}
