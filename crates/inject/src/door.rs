//! The one door behind every entry point: liburing's symbols, libc's `syscall()`, and trapped raw instructions.
//!
//! Calls here behave like the system calls they stand for: arguments as in io_uring_setup(2), io_uring_enter(2) and
//! io_uring_register(2), the answer as the kernel's register would hold it (a value, or `-errno`), errno untouched.
//! Nothing here may be called while a lock of ours is held.

use anyring_abi::{Params, NR_IO_URING_ENTER, NR_IO_URING_REGISTER, NR_IO_URING_SETUP};
use core::ffi::c_void;

/// The descriptor numbers that rings get (decision 2 in ARCHITECTURE.md): a wrapper or the filter knows by one compare
/// that a number outside is no ring. They begin below 1,024 so that select(2) can name some.
pub const RING_NUMBERS: core::ops::Range<i32> = 512..4096;

/// io_uring_setup(2): a new ring's descriptor, or `-errno`.
pub fn setup(entries: u32, params: *mut Params) -> isize {
    raw(NR_IO_URING_SETUP, [entries as usize, params as usize, 0, 0, 0, 0])
}

/// io_uring_enter(2) with its six arguments: how many SQEs were consumed, or `-errno`.
pub fn enter(fd: u32, to_submit: u32, min_complete: u32, flags: u32, arg: *const c_void, arg_size: usize) -> isize {
    let args = [fd as usize, to_submit as usize, min_complete as usize, flags as usize, arg as usize, arg_size];
    raw(NR_IO_URING_ENTER, args)
}

/// io_uring_register(2): the operation's answer, or `-errno`.
pub fn register(fd: u32, opcode: u32, arg: *mut c_void, nr_args: u32) -> isize {
    raw(NR_IO_URING_REGISTER, [fd as usize, opcode as usize, arg as usize, nr_args as usize, 0, 0])
}

/// Whether `fd` is the number of a ring that our engine serves. One compare and one load: cheap enough for `close`.
pub fn is_ring(_fd: i32) -> bool {
    false
}

/// Where the memory of ring `fd` really is: the descriptor and offset to map in place of `(fd, offset)`, or `None`
/// when `fd` is no ring of ours (verified, since a number may have been reused) or `offset` is none of its areas.
pub fn ring_mapping(_fd: i32, _offset: u64) -> Option<(i32, u64)> {
    None
}

/// Must be called before the program closes (or replaces by dup2) descriptor number `fd`: ends a ring of that number,
/// and lets requests in flight on the file keep a private duplicate.
pub fn closing(_fd: i32) {}

/// The same for every number in `first..=last` (close_range(2)).
pub fn closing_range(_first: u32, _last: u32) {}

/// The program watches ring `fd` for readability (epoll_ctl, poll, select, F_SETFL with O_ASYNC): from now on a CQE
/// makes the descriptor readable. `edge_triggered` when the watcher wants an edge for each batch (EPOLLET).
pub fn watch(_fd: i32, _edge_triggered: bool) {}

/// Makes the descriptor's readability agree with the CQ: call before the program waits on ring `fd` with a
/// level-triggered primitive.
pub fn settle(_fd: i32) {}

/// One system call made from our own code: never seen by our wrappers or our filter. The answer is the register.
fn raw(number: i64, args: [usize; 6]) -> isize {
    let answer: isize;
    // SAFETY: the kernel checks every argument of the system calls made here, and the asm declares all that the
    // `syscall` instruction changes.
    unsafe {
        core::arch::asm!("syscall", inlateout("rax") number as isize => answer,
            in("rdi") args[0], in("rsi") args[1], in("rdx") args[2], in("r10") args[3], in("r8") args[4],
            in("r9") args[5], lateout("rcx") _, lateout("r11") _);
    }
    answer
}
