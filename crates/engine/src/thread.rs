//! Threads of the engine's own: made only when needed, detached, with every signal masked that could otherwise be
//! delivered to them instead of to the program's threads.

use crate::os::syscall;

const STACK_BYTES: usize = 256 * 1024;

/// Signals that stay open: synchronous faults (the guarded copies need them), SIGSYS, and glibc's own 32 and 33 (setuid
/// and friends on all threads hang if a thread blocks them).
const OPEN: u64 = bit(libc::SIGSEGV)
    | bit(libc::SIGBUS)
    | bit(libc::SIGSYS)
    | bit(libc::SIGFPE)
    | bit(libc::SIGILL)
    | bit(32)
    | bit(33);

const fn bit(signal: i32) -> u64 {
    1 << (signal - 1)
}

fn change_mask(mask: u64) -> u64 {
    let mut old = 0u64;
    let args = [libc::SIG_SETMASK as usize, &mask as *const u64 as usize, &mut old as *mut u64 as usize, 8, 0, 0];
    syscall(libc::SYS_rt_sigprocmask, args);
    old
}

/// Starts a detached thread; false when the system refuses one.
pub fn spawn(entry: extern "C" fn(*mut libc::c_void) -> *mut libc::c_void, argument: *mut libc::c_void) -> bool {
    let old = change_mask(!OPEN);
    // SAFETY: the attribute object is initialised before use and destroyed after, and `entry` has the type that
    // pthread_create calls.
    let started = unsafe {
        let mut attributes = core::mem::zeroed();
        libc::pthread_attr_init(&mut attributes);
        libc::pthread_attr_setstacksize(&mut attributes, STACK_BYTES);
        libc::pthread_attr_setdetachstate(&mut attributes, libc::PTHREAD_CREATE_DETACHED);
        let mut thread = core::mem::zeroed();
        let answer = libc::pthread_create(&mut thread, &attributes, entry, argument);
        libc::pthread_attr_destroy(&mut attributes);
        answer == 0
    };
    change_mask(old);
    started
}

/// Gives the calling thread a name of at most 15 bytes.
pub fn name(name: &core::ffi::CStr) {
    syscall(libc::SYS_prctl, [libc::PR_SET_NAME as usize, name.as_ptr() as usize, 0, 0, 0, 0]);
}
