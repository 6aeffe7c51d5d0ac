//! The functions that every entry point calls: liburing's symbols, libc's `syscall()`, and trapped raw instructions.
//! The work is done in [`anyring_serve::door`].

use crate::host::Preloaded;
use crate::sanitizer;
use anyring_abi::Params;
use anyring_serve::door;
use core::ffi::c_void;

pub use anyring_serve::door::{
    add_watcher, close, duplicated, is_ring, leaving_by_jump, map_area, map_both, update_readability, Mapping,
    KNOWN_NUMBERS, RING_NUMBERS,
};

/// io_uring_setup(2). Returns a new ring's descriptor, or `-errno`. `may_do_less`: the caller asks for less after
/// EINVAL, so an unknown flag is refused as an older kernel refuses it.
pub fn setup(entries: u32, params: *mut Params, may_do_less: bool) -> isize {
    door::setup::<Preloaded>(entries, params, may_do_less)
}

/// io_uring_enter(2) with its six arguments. Returns the number of SQEs consumed, or `-errno`.
#[inline]
pub fn enter(fd: u32, to_submit: u32, min_complete: u32, flags: u32, arg: *const c_void, arg_size: usize) -> isize {
    door::enter::<Preloaded>(fd, to_submit, min_complete, flags, arg, arg_size)
}

/// io_uring_register(2). Returns the operation's answer, or `-errno`.
pub fn register(fd: u32, opcode: u32, arg: *mut c_void, nr_args: u32) -> isize {
    door::register::<Preloaded>(fd, opcode, arg, nr_args)
}

/// A call of Linux AIO by its number, with the arguments of its man page. Returns its answer, or `-errno`.
pub fn aio(number: i64, args: [usize; 6]) -> isize {
    sanitizer::around(number, args, || door::aio::<Preloaded>(number, args))
}
