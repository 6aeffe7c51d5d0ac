//! The duties of every entry point: no panic leaves it, and errno has the value that libc's own function would leave.
//!
//! The engine only observes some calls on their way to the kernel (close, epoll_wait ...). These calls reach the
//! kernel even if the engine panics. After a panic, the engine tries its own work for such a call a second time. By
//! then the ring in which it panicked has been repaired. Without the second try, a ring whose number is closed
//! would not end, for example.
//!
//! Never call libc's own function inside these functions: it may be a cancellation point, whose unwinding must not be
//! caught.

use crate::sys;
use anyring_engine::ring::{broken, Ring};
use core::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

/// Runs the work of an entry point, as [`broken::contain`] does. If the thread's end was deferred during the work, the
/// thread ends afterwards.
#[inline]
pub fn contain<T>(named: impl FnOnce() -> Option<&'static Ring>, work: impl FnOnce() -> T) -> Option<T> {
    let answer = broken::contain(named, || inside(work));
    go_on();
    answer
}

#[inline]
fn contain_any<T>(work: impl FnOnce() -> T) -> Option<T> {
    contain(|| None, work)
}

/// Runs an entry point's body; a panic in it becomes -EIO.
#[inline]
pub fn catch_panic(body: impl FnOnce() -> isize) -> isize {
    contain_any(body).unwrap_or(-(libc::EIO as isize))
}

/// Runs the body of an entry point for any system call. Each call catches its own panics, so a panic that is caught
/// here came before or after the call itself. The body may therefore run a second time. Returns -EIO if the second run
/// panics, too.
#[inline]
pub fn answer_any(mut body: impl FnMut() -> isize) -> isize {
    contain_any(&mut body).or_else(|| contain_any(&mut body)).unwrap_or(-(libc::EIO as isize))
}

/// Runs the work that an entry point does before or after the real call. After a panic it runs the work once more
/// (see the head of this module). Keeps errno.
#[inline]
pub fn aside(mut body: impl FnMut()) {
    let errno = sys::errno();
    if contain_any(&mut body).is_none() {
        let _ = contain_any(&mut body);
    }
    sys::set_errno(errno);
}

/// Turns the kernel's register into libc's answer: -1 and errno for an error, else the value with errno untouched.
#[inline]
pub fn libc_answer(register: isize) -> isize {
    if (-4095..0).contains(&register) {
        sys::set_errno(-register as i32);
        return -1;
    }
    register
}

/// Number of threads of the process that must end when their calls return.
pub static DUE: AtomicU32 = AtomicU32::new(0);

/// The function given to [`at_end`].
static END: AtomicPtr<()> = AtomicPtr::new(core::ptr::null_mut());

/// Sets the function that is called after each call while [`DUE`] is not 0. It ends the calling thread if that thread
/// must end.
pub fn at_end(end: fn()) {
    END.store(end as *mut (), Ordering::Release); // partner: the Acquire load in `end_if_due`
}

/// Runs work that must complete before an interrupted thread ends. Unwinders recognize this function by its section.
#[inline(never)]
#[link_section = "anyring_inside"]
pub fn inside<T>(work: impl FnOnce() -> T) -> T {
    let answer = work();
    // SAFETY: does nothing. It keeps `work` from being the last thing here, so that this frame stays on the stack.
    unsafe { core::arch::asm!("", options(nomem, nostack, preserves_flags)) };
    answer
}

/// Ends the thread after a call, if its end was deferred.
#[inline]
pub fn go_on() {
    if DUE.load(Ordering::Relaxed) != 0 {
        end_if_due();
    }
}

#[cold]
fn end_if_due() {
    let end = END.load(Ordering::Acquire); // partner: the Release store in `at_end`
    if !end.is_null() {
        // SAFETY: only functions of this type are stored there.
        unsafe { core::mem::transmute::<*mut (), fn()>(end)() }
    }
}
