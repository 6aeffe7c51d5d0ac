//! getcontext(3), setcontext(3), swapcontext(3) and sigsetjmp(3): libc reads and sets the signal mask inside these
//! functions, where no wrapper sees it. The context therefore also holds a stamp (`mask.rs` of anyring-serve) with the
//! mask that the thread believes to have. A context that one of these functions has filled in never really blocks a
//! guarded signal.
//!
//! At the end of a context's function, libc itself continues at uc_link (makecontext(3)), with the mask in that
//! context.

#[cfg(target_arch = "x86_64")]
pub mod x86_64;

use super::mask;
use crate::next::{missing, next};
use crate::{door, entry};
use anyring_engine::forced::{point, Point};
use core::ffi::{c_int, c_void};
use libc::ucontext_t;

next! {
    GETCONTEXT = c"getcontext": fn(*mut ucontext_t) -> c_int;
    SIGSETJMP = c"__sigsetjmp": fn(*mut c_void, c_int) -> c_int;
    SETCONTEXT = c"setcontext": fn(*const ucontext_t) -> c_int;
    SWAPCONTEXT = c"swapcontext": fn(*mut ucontext_t, *const ucontext_t) -> c_int;
}

/// Makes the mask of the context's stamp the one that the thread believes to have. Then calls `go` with the context. If
/// another mask must really be set, `go` gets a copy of the context with that mask.
///
/// # Safety
/// `context` has been filled in by getcontext(3) or a relative.
unsafe fn with(context: *const ucontext_t, go: impl FnOnce(*const ucontext_t) -> c_int) -> c_int {
    // SAFETY: the caller vouches for it.
    let mut real = mask::stripped(unsafe { &(*context).uc_sigmask });
    entry::aside(|| {
        door::leaving_by_jump(); // perhaps out of a wait, never to return
        point(Point::Context);
        // SAFETY: as above.
        real = unsafe { mask::goes_on_with(&raw const (*context).uc_sigmask) };
    });
    match real {
        None => go(context),
        Some(mask) => {
            // SAFETY: as above. The copy is on the stack that the thread leaves. It stays there until that stack
            // continues after this call.
            let mut copy = unsafe { context.read() };
            copy.uc_sigmask = mask;
            go(&raw const copy)
        }
    }
}

/// setcontext(3).
///
/// # Safety
/// As libc's `setcontext`.
#[cfg_attr(not(test), no_mangle)]
pub unsafe extern "C-unwind" fn setcontext(context: *const ucontext_t) -> c_int {
    let Some(next) = SETCONTEXT.get() else { return missing() };
    // SAFETY: the caller's own argument.
    unsafe { with(context, |context| next(context)) }
}

/// swapcontext(3).
///
/// # Safety
/// As libc's `swapcontext`.
#[cfg_attr(not(test), no_mangle)]
pub unsafe extern "C-unwind" fn swapcontext(left: *mut ucontext_t, context: *const ucontext_t) -> c_int {
    let Some(next) = SWAPCONTEXT.get() else { return missing() };
    // SAFETY: the caller's own arguments; libc is about to fill the first.
    unsafe {
        mask::stamp(&raw mut (*left).uc_sigmask);
        with(context, |context| next(left, context))
    }
}
