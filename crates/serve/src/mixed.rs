//! The kernel's and the engine's rings, and contexts of Linux AIO, in one process (decision 31 in docs/decisions).
//!
//! The kernel is asked first for each ring or context. The engine makes those that the kernel refuses. Every later call
//! goes to the maker of the ring or context that it names.
//!
//! For the kernel, an engine ring is a file that is no ring. For the engine, so is a kernel ring. A registered index
//! belongs to the side whose rings the thread has registered, since a thread's table holds rings of one side only.

use crate::door::{self, raw};
use crate::environment::variable;
use crate::host::{Host, Server};
use crate::{engine, entry, sys, wait};
use anyring_abi::{
    AioRing, Params, IORING_REGISTER_RING_FDS, IORING_REGISTER_USE_REGISTERED_RING, IORING_SETUP_ATTACH_WQ,
    IORING_SETUP_REGISTERED_FD_ONLY, IORING_UNREGISTER_RING_FDS, NR_IO_DESTROY, NR_IO_SETUP, NR_IO_URING_ENTER,
    NR_IO_URING_REGISTER, NR_IO_URING_SETUP,
};
use anyring_engine::descriptors::level;
use anyring_engine::setup::is_valid;
use anyring_engine::{aio as engine_aio, log, process, stats, Errno};
use core::cell::Cell;
use core::ffi::{c_char, c_int, CStr};
use core::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use std::ffi::CString;

/// True once the kernel has made a ring in this process. Relaxed: it only matters for rings that are made later.
static KERNEL_HAS_RINGS: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// Number of the kernel's rings that the thread has registered.
    static REGISTERED: Cell<u32> = const { Cell::new(0) };
}

fn registered() -> u32 {
    REGISTERED.try_with(Cell::get).unwrap_or(0)
}

fn change_registered(by: i32) {
    let _ = REGISTERED.try_with(|count| count.set(count.get().saturating_add_signed(by)));
}

/// Serves io_uring_setup(2) with the kernel, or else with the engine. `may_do_less`: the caller asks for less after
/// EINVAL, so it gets the kernel's EINVAL for an unknown flag.
pub fn setup<H: Host>(entries: u32, params: *mut Params, may_do_less: bool) -> isize {
    let flags = sys::read_program(params.cast_const()).map_or(0, |given| given.flags);
    let by_index = flags & IORING_SETUP_REGISTERED_FD_ONLY != 0;
    if by_index && process::has_registered_rings() {
        return door::make::<H>(entries, params as u64);
    }
    let answer = raw(NR_IO_URING_SETUP, [entries as usize, params as usize, 0, 0, 0, 0]);
    if answer >= 0 {
        entry::aside(|| mark_kernels(answer as c_int));
        change_registered(by_index.into());
        return answer;
    }
    let refusal = -answer as c_int;
    let is_lack = match refusal {
        libc::ENOMEM | libc::EPERM | libc::EACCES | libc::ENOSYS => true,
        // This kernel lacks a flag, or the ring to attach to is the engine's. If the parameters are invalid, the engine
        // would also refuse them with EINVAL.
        libc::EINVAL => !may_do_less && is_valid(entries, params as u64),
        // Also EMFILE: the engine could not get a descriptor, either.
        _ => false,
    };
    if !is_lack || (by_index && registered() != 0) || !H::share_rings() {
        return answer;
    }
    let mut made = door::make::<H>(entries, params as u64);
    if made == -(libc::EINVAL as isize) {
        made = make_detached::<H>(entries, params).unwrap_or(made);
    }
    if made < 0 {
        return answer;
    }
    entry::aside(|| mark_ours(made as c_int, refusal, by_index));
    made
}

/// Makes an engine ring with the parameters of a refused ring, but attaches it to no kernel ring. The engine ring
/// gets its own workers, or its own polling thread. The two sides cannot share these, and the interface does not
/// promise that rings share them.
fn make_detached<H: Host>(entries: u32, params: *mut Params) -> Option<isize> {
    let given = sys::read_program(params.cast_const()).filter(|given| given.flags & IORING_SETUP_ATTACH_WQ != 0)?;
    // This io_uring_enter(2) changes nothing in a ring, and shows whether the file is a ring.
    let answer = raw(NR_IO_URING_ENTER, [given.wq_fd as usize, 0, 0, 0, 0, 0]);
    if matches!(-answer as c_int, libc::EBADF | libc::EOPNOTSUPP) {
        return None;
    }
    let mut detached = Params { flags: given.flags & !IORING_SETUP_ATTACH_WQ, ..given };
    let made = door::make::<H>(entries, &raw mut detached as u64);
    if made >= 0 {
        detached.flags = given.flags;
        sys::write_program(params, detached);
    }
    Some(made)
}

/// The path of the file of counters, set when the kernel has made a ring. Null if there is no such file. Never freed.
static COUNTERS: AtomicPtr<c_char> = AtomicPtr::new(core::ptr::null_mut());

fn mark_kernels(fd: c_int) {
    // The environment is read once: the program may change it at the same time.
    if !KERNEL_HAS_RINGS.load(Ordering::Relaxed) {
        let file = variable("ANYRING_STATS").and_then(|file| CString::new(file).ok());
        if let Some(file) = file {
            COUNTERS.store(file.into_raw(), Ordering::Release); // partner: the Acquire below
        }
        engine::open_log();
        KERNEL_HAS_RINGS.store(true, Ordering::Relaxed);
    }
    let counters = COUNTERS.load(Ordering::Acquire); // partner: the Release above
    if !counters.is_null() {
        // SAFETY: the string was made above, and is not freed.
        stats::count_kernel_ring(unsafe { CStr::from_ptr(counters) });
    }
    log::line(&format!("ring {fd} is the kernel's"));
}

fn mark_ours(fd: c_int, refusal: c_int, by_index: bool) {
    stats::stats().kernel_refused_errno.store(refusal as u64, Ordering::Relaxed);
    log::line(&format!(
        "ring {fd} is anyring's: the kernel's io_uring_setup answered {}",
        Errno::from_raw_os_error(refusal)
    ));
    let number = if by_index { process::registered_ring_number(fd as u32).unwrap_or(-1) } else { fd };
    door::label_refusal(number, refusal);
    // One of the kernel's rings may poll this ring, and the engine would not learn of that.
    if !by_index && KERNEL_HAS_RINGS.load(Ordering::Relaxed) {
        door::add_watcher(fd, false);
        level::record(fd);
    }
}

fn is_kernels(fd: u32, by_index: bool) -> bool {
    match by_index {
        true => process::registered_ring_number(fd).is_err(),
        false => !door::is_ring(fd as i32),
    }
}

/// Makes an io_uring_enter(2) on one of the kernel's rings. `None` if the engine must answer.
pub fn enter(args: [usize; 6], by_index: bool) -> Option<isize> {
    if !is_kernels(args[0] as u32, by_index) {
        return None;
    }
    wait::before_epoll_wait();
    let answer = raw(NR_IO_URING_ENTER, args);
    // The number may be an unknown duplicate of one of the engine's rings.
    (answer != -(libc::EOPNOTSUPP as isize)).then_some(answer)
}

/// Makes an io_uring_register(2) on one of the kernel's rings. `None` if the engine must answer. `ours`: some of the
/// engine's rings may exist.
pub fn register(fd: u32, opcode: u32, args: [usize; 6], ours: bool) -> Option<isize> {
    const FULL: isize = -(libc::EBUSY as isize);
    let by_index = opcode & IORING_REGISTER_USE_REGISTERED_RING != 0;
    let operation = opcode & !IORING_REGISTER_USE_REGISTERED_RING;
    let registers = operation == IORING_REGISTER_RING_FDS;
    let names_none = fd == u32::MAX && !by_index;
    if ours && !names_none && !is_kernels(fd, by_index) {
        return (registers && registered() != 0).then_some(FULL);
    }
    if registers && ours && process::has_registered_rings() {
        return Some(FULL);
    }
    let answer = raw(NR_IO_URING_REGISTER, args);
    if answer > 0 && registers {
        change_registered(answer as i32);
    } else if answer > 0 && operation == IORING_UNREGISTER_RING_FDS {
        change_registered(-answer as i32);
    }
    // The kernel's errors for a file that is none of its rings: the one that `fd` names, or a message's target.
    let unknown = [libc::EOPNOTSUPP, if names_none { libc::EBADFD } else { libc::EOPNOTSUPP }];
    (!ours || !unknown.contains(&(-answer as c_int))).then_some(answer)
}

/// Serves a call of Linux AIO.
pub fn aio<H: Host>(number: i64, args: [usize; 6]) -> isize {
    let serve = || entry::catch_panic(|| door::serve_aio::<H>(number, args));
    if number != NR_IO_SETUP {
        let is_ours = H::aio() == Server::Mixed && engine_aio::is_context(args[0] as u64);
        return if is_ours { serve() } else { raw(number, args) };
    }
    let answer = match raw(number, args) {
        0 if !is_readable(args[1]) => -(libc::ENOSYS as isize),
        answer => answer,
    };
    // EAGAIN: beyond fs.aio-max-nr, a limit that all processes share.
    let is_lack = matches!(-answer as c_int, libc::EAGAIN | libc::ENOMEM | libc::EPERM | libc::ENOSYS);
    if !is_lack || !H::share_aio() {
        return answer;
    }
    match serve() {
        0 => {
            let refusal = Errno::from_raw_os_error(-answer as c_int);
            entry::aside(|| {
                log::line(&format!("a context of Linux AIO is anyring's: the kernel's io_setup answered {refusal}"))
            });
            0
        }
        _ => answer,
    }
}

/// True if programs can read the completion ring of the context that io_setup(2) has just stored at `place`. qemu reads
/// the ring without checking its magic number. If programs cannot read it, this function destroys the context and
/// resets the word at `place`.
fn is_readable(place: usize) -> bool {
    let Some(context) = sys::read_program(place as *const usize) else { return true };
    if sys::read_program(context as *const AioRing).is_none_or(|ring| ring.is_laid_out()) {
        return true;
    }
    raw(NR_IO_DESTROY, [context, 0, 0, 0, 0, 0]);
    sys::write_program(place as *mut usize, 0_usize);
    false
}
