//! libaio's functions, implemented on [`crate::door`]. In the preloaded library they pre-empt those of the installed
//! libaio. Linked with a version map (`cargo xtask dropin`), they are a `libaio.so.1`.
//!
//! As libaio's man pages say, a result is a value or `-errno`, and errno is never touched. Symbols of `LIBAIO_0.1` that
//! a later version replaced (io_cancel, io_getevents and io_queue_wait of 2002) are not here.
//!
//! As in C, each function's pointer arguments must be what its man page says. libaio passes some pointers to the kernel
//! without reading from them. These may be invalid: the function then returns -EFAULT. That is the safety contract of
//! every function here.
#![allow(clippy::missing_safety_doc)] // the contract is the paragraph above, the same for all

use crate::door;
use anyring_abi::{
    IoEvent, NR_IO_CANCEL, NR_IO_DESTROY, NR_IO_GETEVENTS, NR_IO_PGETEVENTS, NR_IO_SETUP, NR_IO_SUBMIT,
};
use core::ffi::{c_int, c_long, c_void};
use core::mem::transmute;
use core::ptr::null_mut;

/// A context: the address of its completion ring.
type Context = *mut c_void;
type Callback = unsafe extern "C" fn(Context, *mut c_void, c_long, c_long);

fn call(number: i64, [a, b, c, d, e]: [usize; 5]) -> c_int {
    door::aio(number, [a, b, c, d, e, 0]) as c_int
}

/// io_setup(2).
#[no_mangle]
pub unsafe extern "C" fn io_setup(requests: c_int, context: *mut Context) -> c_int {
    call(NR_IO_SETUP, [requests as usize, context as usize, 0, 0, 0])
}

/// io_destroy(2).
#[no_mangle]
pub unsafe extern "C" fn io_destroy(context: Context) -> c_int {
    call(NR_IO_DESTROY, [context as usize, 0, 0, 0, 0])
}

/// io_submit(2).
#[no_mangle]
pub unsafe extern "C" fn io_submit(context: Context, count: c_long, iocbs: *mut *mut c_void) -> c_int {
    call(NR_IO_SUBMIT, [context as usize, count as usize, iocbs as usize, 0, 0])
}

/// io_cancel(2).
#[no_mangle]
pub unsafe extern "C" fn io_cancel(context: Context, iocb: *mut c_void, event: *mut IoEvent) -> c_int {
    call(NR_IO_CANCEL, [context as usize, iocb as usize, event as usize, 0, 0])
}

/// io_getevents(2).
#[no_mangle]
pub unsafe extern "C" fn io_getevents(
    context: Context,
    at_least: c_long,
    at_most: c_long,
    events: *mut IoEvent,
    timeout: *mut libc::timespec,
) -> c_int {
    let args = [context as usize, at_least as usize, at_most as usize, events as usize, timeout as usize];
    call(NR_IO_GETEVENTS, args)
}

/// io_pgetevents(2), with libc's signal mask.
#[no_mangle]
pub unsafe extern "C" fn io_pgetevents(
    context: Context,
    at_least: c_long,
    at_most: c_long,
    events: *mut IoEvent,
    timeout: *mut libc::timespec,
    mask: *const libc::sigset_t,
) -> c_int {
    const MASK_BYTES: usize = 8;
    let mask = [mask as usize, MASK_BYTES];
    let [a, b, c] = [context as usize, at_least as usize, at_most as usize];
    door::aio(NR_IO_PGETEVENTS, [a, b, c, events as usize, timeout as usize, &raw const mask as usize]) as c_int
}

/// io_queue_init(3): makes a new context, whatever `context` held.
#[no_mangle]
pub unsafe extern "C" fn io_queue_init(requests: c_int, context: *mut Context) -> c_int {
    if requests <= 0 {
        return -libc::EINVAL;
    }
    // SAFETY: the caller's promise: it points to a context's variable.
    unsafe {
        context.write(null_mut());
        io_setup(requests, context)
    }
}

/// io_queue_release(3).
#[no_mangle]
pub unsafe extern "C" fn io_queue_release(context: Context) -> c_int {
    // SAFETY: the same contract as this function's.
    unsafe { io_destroy(context) }
}

/// io_queue_wait(3): waits for events without reading one.
#[no_mangle]
pub unsafe extern "C" fn io_queue_wait(context: Context, timeout: *mut libc::timespec) -> c_int {
    // SAFETY: the same contract as this function's.
    unsafe { io_getevents(context, 0, 0, null_mut(), timeout) }
}

/// io_queue_run(3): calls the function in each event's `data`.
#[no_mangle]
pub unsafe extern "C" fn io_queue_run(context: Context) -> c_int {
    let mut event = IoEvent::default();
    let mut at_once = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    loop {
        // SAFETY: room for one event is passed, which lives as long as the call.
        let got = unsafe { io_getevents(context, 0, 1, &mut event, &mut at_once) };
        if got != 1 {
            return got;
        }
        // SAFETY: io_set_callback(3) stored the address of such a function there; null is none, and is not called.
        if let Some(callback) = unsafe { transmute::<usize, Option<Callback>>(event.data as usize) } {
            // SAFETY: the program's own callback, called as libaio does.
            unsafe { callback(context, event.obj as *mut c_void, event.res as c_long, event.res2 as c_long) };
        }
    }
}
