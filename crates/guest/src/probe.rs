//! Detects filters that this host has inherited from another host without being informed. This happens if a guest
//! executes a program with the preloaded library, and that program in turn executes a guest. Meaningless calls, made at
//! addresses where guests have their code, show what is trapped.

use crate::arch::calls::PROBE;
use crate::filter::{MARK, WINDOW};
use crate::start;
use anyring_abi::NR_IO_DESTROY;
use anyring_engine::os::arch::page_bytes;
use anyring_serve::signals::action;
use anyring_serve::sys;
use core::mem::transmute;
use core::sync::atomic::{AtomicBool, Ordering};
use libc::{siginfo_t, ucontext_t};

/// True if a host's filter trapped the last call.
static TRAPPED: AtomicBool = AtomicBool::new(false);

unsafe extern "C" fn record_trap(_: i32, info: *mut siginfo_t, _: *mut ucontext_t) {
    // SAFETY: the kernel passes a whole siginfo.
    TRAPPED.store(unsafe { (*info).si_errno } == i32::from(MARK), Ordering::Relaxed);
}

/// Returns true for each group of calls that is trapped: general calls, calls that matter with rings, and waits on
/// epoll sets with rings. Call it while there is only the first thread, before there is a guest. All three are false if
/// no executable memory can be mapped.
pub fn inherited() -> [bool; 3] {
    let page = page_bytes();
    // SAFETY: takes no pointers.
    let mode = unsafe { sys::call(libc::SYS_prctl, [libc::PR_GET_SECCOMP as usize, 0, 0, 0, 0, 0]) };
    if mode == 0 {
        return [false; 3];
    }
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
    let map = [WINDOW.start, page, (libc::PROT_READ | libc::PROT_WRITE) as usize, flags as usize, usize::MAX, 0];
    // SAFETY: a page where nothing is yet, which is unmapped below.
    if unsafe { sys::call(libc::SYS_mmap, map) } != WINDOW.start as isize {
        return [false; 3];
    }
    // SAFETY: the page just mapped; made executable only with the code in it.
    let is_code = unsafe {
        core::ptr::copy_nonoverlapping(&raw const PROBE, WINDOW.start as *mut _, 1);
        let protection = (libc::PROT_READ | libc::PROT_EXEC) as usize;
        sys::call(libc::SYS_mprotect, [WINDOW.start, page, protection, 0, 0, 0]) == 0
    };
    let answer = if is_code { ask() } else { [false; 3] };
    // SAFETY: the page of this function.
    unsafe { sys::call(libc::SYS_munmap, [WINDOW.start, page, 0, 0, 0, 0]) };
    answer
}

fn ask() -> [bool; 3] {
    // SAFETY: the code that `inherited` has written, which takes a number and two arguments.
    let call: extern "C" fn(i64, usize, usize) -> isize = unsafe { transmute(WINDOW.start) };
    let Ok(before) = action::installed(libc::SIGSYS) else { return [false; 3] };
    let handler = action::Action { handler: record_trap as *const () as u64, ..before };
    action::set_real(libc::SIGSYS, &handler);
    let sys_only = 1_u64 << (libc::SIGSYS - 1);
    let mask = sys::set_mask(!sys_only);
    let is_trapped = |number, first, second| {
        TRAPPED.store(false, Ordering::Relaxed);
        call(number, first, second);
        TRAPPED.load(Ordering::Relaxed)
    };
    // Calls without effect: a mask that is neither read nor written; no such descriptors; no such context.
    let general = is_trapped(libc::SYS_rt_sigprocmask, 0, 0);
    // A host that did not serve Linux AIO has not trapped it.
    let is_complete = general && (!start::serves_aio() || is_trapped(NR_IO_DESTROY, 0, 0));
    let answer = [
        is_complete,
        general && is_trapped(libc::SYS_dup3, usize::MAX, usize::MAX),
        general && is_trapped(libc::SYS_epoll_pwait, usize::MAX, 0),
    ];
    sys::set_mask(mask);
    action::set_real(libc::SIGSYS, &before);
    answer
}
