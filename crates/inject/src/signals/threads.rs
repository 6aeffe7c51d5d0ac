//! pthread_create(3) and the signal masks of thread attributes. libc sets a new thread's mask itself. The wrappers here
//! pass the thread the guarded signals that it should believe to block.

use super::{guarded, mask};
use crate::entry;
use crate::next::next;
use anyring_engine::forced::{point, Point};
use core::ffi::{c_int, c_void};
use libc::{pthread_attr_t, pthread_t, sigset_t};

type Routine = unsafe extern "C-unwind" fn(*mut c_void) -> *mut c_void;

next! {
    CREATE = c"pthread_create": fn(*mut pthread_t, *const pthread_attr_t, Routine, *mut c_void) -> c_int;
    SET = c"pthread_attr_setsigmask_np": fn(*mut pthread_attr_t, *const sigset_t) -> c_int;
    GET = c"pthread_attr_getsigmask_np": fn(*const pthread_attr_t, *mut sigset_t) -> c_int;
}

/// pthread_attr_setsigmask_np(3): stores a mask that may really be set in the attributes, with a stamp of the guarded
/// signals.
///
/// # Safety
/// As libc's `pthread_attr_setsigmask_np`.
#[cfg_attr(not(test), no_mangle)]
pub unsafe extern "C-unwind" fn pthread_attr_setsigmask_np(
    attributes: *mut pthread_attr_t,
    set: *const sigset_t,
) -> c_int {
    let Some(next) = SET.get() else { return libc::ENOSYS };
    // SAFETY: the caller vouches for `set`, null or valid.
    let wanted = unsafe { set.as_ref() };
    let mut stamped = wanted.and_then(mask::stripped);
    entry::aside(|| {
        point(Point::Sigmask);
        stamped = wanted.and_then(mask::with_stamp);
    });
    // SAFETY: the caller's own arguments, or a set made here.
    unsafe { next(attributes, stamped.as_ref().map_or(set, core::ptr::from_ref)) }
}

/// pthread_attr_getsigmask_np(3).
///
/// # Safety
/// As libc's `pthread_attr_getsigmask_np`.
#[cfg_attr(not(test), no_mangle)]
pub unsafe extern "C-unwind" fn pthread_attr_getsigmask_np(
    attributes: *const pthread_attr_t,
    set: *mut sigset_t,
) -> c_int {
    // SAFETY: the caller's own arguments.
    let answer = GET.get().map_or(libc::ENOSYS, |next| unsafe { next(attributes, set) });
    if answer == 0 {
        // SAFETY: libc has just filled it.
        let set = unsafe { &mut *set };
        if let Some(believed) = mask::without_stamp(set) {
            *set = believed;
        }
    }
    answer
}

/// The argument of a new thread's [`begin`].
struct Start {
    routine: Routine,
    argument: *mut c_void,
    blocked_by_program: u64,
}

/// pthread_create(3).
///
/// # Safety
/// As libc's `pthread_create`.
#[cfg_attr(not(test), no_mangle)]
pub unsafe extern "C-unwind" fn pthread_create(
    thread: *mut pthread_t,
    attributes: *const pthread_attr_t,
    routine: Routine,
    argument: *mut c_void,
) -> c_int {
    let Some(next) = CREATE.get() else { return libc::EAGAIN };
    // SAFETY: the caller vouches for `attributes`.
    let blocked_by_program = if guarded() == 0 { 0 } else { unsafe { mask_of(attributes) } };
    if blocked_by_program == 0 {
        // SAFETY: the caller's own arguments.
        return unsafe { next(thread, attributes, routine, argument) };
    }
    // SAFETY: room for a `Start`, which the thread frees, or this function if there is no thread.
    unsafe {
        let start = libc::malloc(size_of::<Start>()).cast::<Start>();
        if start.is_null() {
            return libc::EAGAIN;
        }
        start.write(Start { routine, argument, blocked_by_program });
        let answer = next(thread, attributes, begin, start.cast());
        if answer != 0 {
            libc::free(start.cast());
        }
        answer
    }
}

/// Returns the guarded signals that a thread made with `attributes` believes to block.
///
/// # Safety
/// Null, or attributes.
unsafe fn mask_of(attributes: *const pthread_attr_t) -> u64 {
    let mut set = mask::as_set(0);
    match GET.get() {
        // SAFETY: the caller vouches for the attributes; the set is a local.
        Some(get) if !attributes.is_null() && unsafe { get(attributes, &mut set) } == 0 => {
            mask::without_stamp(&set).map_or(0, |believed| mask::word(&believed) & guarded())
        }
        _ => mask::blocked_by_program(),
    }
}

/// The first function of a thread: takes over the mask that the thread believes to have, and calls the program's
/// routine.
///
/// # Safety
/// Called by libc in a new thread with the argument that [`pthread_create`] has passed.
unsafe extern "C-unwind" fn begin(start: *mut c_void) -> *mut c_void {
    // SAFETY: the `Start`, which is this thread's; the program's own routine and argument.
    unsafe {
        let Start { routine, argument, blocked_by_program } = start.cast::<Start>().read();
        libc::free(start);
        mask::add_blocked(blocked_by_program);
        routine(argument)
    }
}
