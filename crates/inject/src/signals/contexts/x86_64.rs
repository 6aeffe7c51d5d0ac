//! getcontext(3) and sigsetjmp(3), which return twice: libc must find the caller's own frame. On other processors there
//! are no wrappers of these two.

use super::{GETCONTEXT, SIGSETJMP};
use crate::arch::{popped, pushed};
use crate::next::missing;
use crate::signals::mask;
use core::ffi::{c_int, c_void};
use libc::ucontext_t;

/// Calls `before` with the arguments, then jumps with them to the libc function whose address it returns. A call would
/// not do: libc has to find the caller's own return address on the stack.
macro_rules! once_noted {
    ($before:path) => {
        core::arch::naked_asm!(
            ".cfi_startproc",
            "endbr64",
            pushed!("rdi", "rsi"),
            "sub rsp, 8",
            ".cfi_adjust_cfa_offset 8",
            "call {before}",
            "add rsp, 8",
            ".cfi_adjust_cfa_offset -8",
            popped!("rsi", "rdi"),
            "jmp rax",
            ".cfi_endproc",
            before = sym $before,
        )
    };
}

/// Takes the place of the function if libc lacks it.
extern "C" fn nothing() -> c_int {
    missing()
}

/// getcontext(3).
///
/// # Safety
/// As libc's `getcontext`.
#[cfg_attr(not(test), no_mangle)]
#[unsafe(naked)]
pub unsafe extern "C" fn getcontext(context: *mut ucontext_t) -> c_int {
    once_noted!(before_getcontext)
}

extern "C" fn before_getcontext(context: *mut ucontext_t) -> usize {
    // SAFETY: libc is about to fill it.
    unsafe { mask::stamp(&raw mut (*context).uc_sigmask) };
    GETCONTEXT.get().map_or(nothing as *const () as usize, |next| next as usize)
}

/// The function of the macro sigsetjmp(3).
///
/// # Safety
/// As libc's `__sigsetjmp`.
#[cfg_attr(not(test), no_mangle)]
#[unsafe(naked)]
pub unsafe extern "C" fn __sigsetjmp(environment: *mut c_void, saves: c_int) -> c_int {
    once_noted!(before_sigsetjmp)
}

extern "C" fn before_sigsetjmp(environment: *mut c_void, saves: c_int) -> usize {
    if saves != 0 {
        // SAFETY: libc is about to fill it.
        unsafe { mask::save_in_environment(environment) };
    }
    SIGSETJMP.get().map_or(nothing as *const () as usize, |next| next as usize)
}
