//! System calls that probe the kernel, made in a child process, since a filter may kill for them.

use crate::sys;
use anyring_abi::{
    Opcode, Params, IORING_REGISTER_PROBE, IO_URING_OP_SUPPORTED, NR_IO_SETUP, NR_IO_URING_REGISTER,
    NR_IO_URING_SETUP,
};
use anyring_engine::os::{ask_in_child, asks_itself, is_filtered};
use core::ffi::c_int;

/// Returns the errno with which the kernel (or a filter) refuses io_uring_setup(2), or the query for the ring's
/// operations. Returns ENOSYS if operations that programs need are missing, and 0 if everything is present and
/// permitted.
///
/// If a filter kills the child, the answer is EPERM. It is also EPERM if no child can be made, since a process that has
/// engine rings cannot ask again.
pub fn kernel_refusal() -> c_int {
    errno_of(ask_in_child(ask_for_ring))
}

/// Returns the errno with which the kernel (or a filter) refuses io_setup(2), or 0 if the call exists and is permitted.
/// If a filter kills the child, the answer is EPERM. Whether programs can read the completion rings is checked for each
/// context (`mixed.rs`).
pub fn aio_refusal() -> c_int {
    errno_of(ask_in_child(ask_for_context))
}

/// Returns the errno in a child's answer, EPERM if no child could be made.
fn errno_of(answer: Option<c_int>) -> c_int {
    answer.filter(|errno| *errno != libc::ECHILD).unwrap_or(libc::EPERM)
}

/// Returns the reason why a page may not be first writable and then executable. `None` if the system allows that.
pub fn patching_refusal() -> Option<&'static str> {
    let answer = match is_filtered() {
        true => ask_in_child(ask_for_writable_code),
        false => Some(-ask_for_writable_code() as c_int),
    };
    match answer {
        Some(0) => None,
        None | Some(libc::ECHILD) => Some("no child process can be made to ask whether code may be written"),
        Some(_) => Some("code must not be writable here"),
    }
}

/// True if a filter ends a process or thread for one of io_uring's calls. Then a trap by another filter is impossible,
/// since the kernel takes the strictest answer.
pub fn ring_calls_kill() -> bool {
    // An expendable process keeps its signals' actions. It ends by another filter's trap.
    let question = if asks_itself() { make_ring_calls } else { make_ring_calls_in_child };
    is_filtered() && ask_in_child(question) != Some(0)
}

/// Makes io_uring's three calls, with meaningless arguments.
pub fn make_ring_calls() -> isize {
    for number in NR_IO_URING_SETUP..=NR_IO_URING_REGISTER {
        // SAFETY: the calls get neither memory nor a descriptor.
        unsafe { sys::call(number, [usize::MAX, 0, 0, 0, 0, 0]) };
    }
    0
}

/// Does the same as [`make_ring_calls`], in a child. A trap does not count as a kill, since its handler ends the child
/// with the same answer.
fn make_ring_calls_in_child() -> isize {
    extern "C" fn leave(_: c_int) {
        loop {
            // SAFETY: ends the child.
            unsafe { sys::call(libc::SYS_exit_group, [0; 6]) };
        }
    }
    const SA_RESTORER: usize = 0x0400_0000;
    const MASK_BYTES: usize = 8;
    // The kernel's struct sigaction. The handler does not return, so any address serves as the restorer.
    let handler = leave as *const () as usize;
    let action = [handler, SA_RESTORER, handler, 0];
    let install = [libc::SIGSYS as usize, action.as_ptr() as usize, 0, MASK_BYTES, 0, 0];
    sys::set_mask(!(1 << (libc::SIGSYS - 1)));
    // SAFETY: the signals' actions are the child's own (no CLONE_SIGHAND).
    unsafe { sys::call(libc::SYS_rt_sigaction, install) };
    make_ring_calls()
}

/// Makes a ring and asks for its operations. The ring ends with the child, which has its own descriptors.
fn ask_for_ring() -> isize {
    const OPERATIONS: usize = 64;
    const NEEDED: [Opcode; 3] = [Opcode::Nop, Opcode::Read, Opcode::PollAdd];
    let mut params = Params::default();
    // SAFETY: the kernel writes the parameters, a local.
    let ring = unsafe { sys::call(NR_IO_URING_SETUP, [1, &raw mut params as usize, 0, 0, 0, 0]) };
    match -ring as c_int {
        // Limits on open files do not concern io_uring; the program will meet them itself.
        libc::EMFILE | libc::ENFILE => return 0,
        1.. => return ring,
        _ => {}
    }
    // `struct io_uring_probe`: two words, and one for each operation, with its flags in the upper half.
    let mut probe = [0_u64; 2 + OPERATIONS];
    let ask = [ring as usize, IORING_REGISTER_PROBE as usize, probe.as_mut_ptr() as usize, OPERATIONS, 0, 0];
    // SAFETY: the kernel fills in the array, a local.
    let answer = unsafe { sys::call(NR_IO_URING_REGISTER, ask) };
    if answer < 0 {
        return answer;
    }
    let is_there = |opcode: Opcode| probe[2 + opcode as usize] >> 16 & u64::from(IO_URING_OP_SUPPORTED) != 0;
    if NEEDED.into_iter().all(is_there) {
        0
    } else {
        -(libc::ENOSYS as isize)
    }
}

/// Asks for an AIO context, with a null address, so that none is made. The end of a process that has a context takes
/// some 20 ms longer, since the kernel waits for RCU readers.
fn ask_for_context() -> isize {
    // SAFETY: no context is made: the kernel reads the word at its address first, and that address is null.
    match unsafe { sys::call(NR_IO_SETUP, [1, 0, 0, 0, 0, 0]) } {
        answer if answer == -(libc::EFAULT as isize) => 0,
        answer => answer,
    }
}

/// Maps a page and gives it, one after the other, the protections that a page of code gets.
fn ask_for_writable_code() -> isize {
    const PAGE: usize = 4096;
    let writable = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: a new mapping, which nothing else uses, and which is unmapped again.
    unsafe {
        let page = sys::call(libc::SYS_mmap, [0, PAGE, writable as usize, flags as usize, usize::MAX, 0]);
        if (-4095..0).contains(&page) {
            return page;
        }
        let protections = [writable | libc::PROT_EXEC, libc::PROT_READ | libc::PROT_EXEC];
        let answers = protections
            .map(|protection| sys::call(libc::SYS_mprotect, [page as usize, PAGE, protection as usize, 0, 0, 0]));
        sys::call(libc::SYS_munmap, [page as usize, PAGE, 0, 0, 0, 0]);
        answers[0].min(answers[1])
    }
}
