//! The signal handler of faults, for tests. It serves systems where the kernel copies nothing for the engine (qemu's
//! user emulation, filters).
//!
//! On other systems the tests run without it, as a process does before its first ring. The preloaded library's tests
//! have the handler.

use super::{arch, handler_installed, interrupted, kernel_copies, user_copy_fault};
use libc::{c_int, siginfo_t, ucontext_t};

#[used]
#[link_section = ".init_array"]
static INSTALL: extern "C" fn() = install;

extern "C" fn install() {
    if kernel_copies() {
        return;
    }
    for signal in [libc::SIGSEGV, libc::SIGBUS] {
        // SAFETY: all zeros are an action, and the handler has the type that the flag says.
        unsafe {
            let mut action: libc::sigaction = core::mem::zeroed();
            action.sa_sigaction = recover as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART;
            libc::sigaction(signal, &action, core::ptr::null_mut());
        }
    }
    handler_installed();
}

unsafe extern "C" fn recover(signal: c_int, info: *mut siginfo_t, context: *mut ucontext_t) {
    // SAFETY: the kernel passes valid pointers.
    let (info, context) = unsafe { (&*info, &mut *context) };
    let instruction = arch::instruction(context);
    // SAFETY: every siginfo has the bytes of a value.
    let value = unsafe { info.si_value() }.sival_ptr as usize;
    match interrupted(info.si_code, value, instruction).or_else(|| user_copy_fault(instruction)) {
        Some(goes_on) => arch::set_instruction(context, goes_on),
        // SAFETY: restores the default action, which the repeated fault then takes.
        None => unsafe {
            libc::signal(signal, libc::SIG_DFL);
        },
    }
}
