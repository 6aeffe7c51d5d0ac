//! What every entry point does alike: no panic leaves it, and errno is what libc would have left.
//!
//! The calls of the program's that are only looked at on their way (close, epoll_wait, sigaction ...) go on whatever
//! happens here. What we do beside them is tried a second time after a panic: the ring that it struck has been put in
//! order by then, and what was not done yet (letting a ring end with its number, say) would otherwise be missing for good.
//!
//! libc's own function is never called inside: it may be a cancellation point, whose unwinding must not be caught.

use crate::sys;
use anyring_engine::ring::{broken, Ring};
use core::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

/// Runs what an entry point has to do, as [`broken::contain`] does. If the thread was to end meanwhile, it does so then.
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
pub fn answer(body: impl FnOnce() -> isize) -> isize {
    contain_any(body).unwrap_or(-(libc::EIO as isize))
}

/// Runs the body of an entry point for all system calls, which catches what the single calls do; so a panic that is
/// caught here struck before or after the call itself, and the body may run a second time. -EIO if that panics too.
#[inline]
pub fn answer_any(mut body: impl FnMut() -> isize) -> isize {
    contain_any(&mut body).or_else(|| contain_any(&mut body)).unwrap_or(-(libc::EIO as isize))
}

/// Runs what an entry point has to do before or after the real call, with errno as it was; see the head of this module.
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

/// How many threads of the process are to end when their calls are through.
pub static DUE: AtomicU32 = AtomicU32::new(0);

/// What [`at_end`] was given.
static END: AtomicPtr<()> = AtomicPtr::new(core::ptr::null_mut());

/// Has `end` called behind each call while [`DUE`] is not 0: it ends the calling thread if that is one of them.
pub fn at_end(end: fn()) {
    END.store(end as *mut (), Ordering::Release); // partner: the Acquire load in `end_if_due`
}

/// Runs what is to be completed before a thread ends that is interrupted in it. Unwinders know it by its section.
#[inline(never)]
#[link_section = "anyring_inside"]
pub fn inside<T>(work: impl FnOnce() -> T) -> T {
    let answer = work();
    // SAFETY: does nothing. `work` is not the last thing here, so that this frame stays on the stack.
    unsafe { core::arch::asm!("", options(nomem, nostack, preserves_flags)) };
    answer
}

/// After a call: ends the thread if that was put off.
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
