//! Waiting on descriptors: epoll, poll and select. [`anyring_serve::wait`] does what is necessary before each call.

use crate::descriptor::refusal;
use crate::next::{missing, next};
use crate::{entry, signals};
use anyring_engine::descriptors::level;
use anyring_serve::named::{check, concerns};
use anyring_serve::wait::{before_epoll_ctl, before_epoll_wait, before_poll, before_select};
use core::ffi::c_int;
use libc::{epoll_event, fd_set, pollfd, sigset_t, timespec, timeval};

next! {
    EPOLL_CTL = c"epoll_ctl": fn(c_int, c_int, c_int, *mut epoll_event) -> c_int;
    EPOLL_WAIT = c"epoll_wait": fn(c_int, *mut epoll_event, c_int, c_int) -> c_int;
    EPOLL_PWAIT = c"epoll_pwait": fn(c_int, *mut epoll_event, c_int, c_int, *const sigset_t) -> c_int;
    EPOLL_PWAIT2 = c"epoll_pwait2":
        fn(c_int, *mut epoll_event, c_int, *const timespec, *const sigset_t) -> c_int;
    POLL = c"poll": fn(*mut pollfd, u64, c_int) -> c_int;
    POLL_CHK = c"__poll_chk": fn(*mut pollfd, u64, c_int, usize) -> c_int;
    PPOLL = c"ppoll": fn(*mut pollfd, u64, *const timespec, *const sigset_t) -> c_int;
    PPOLL_CHK = c"__ppoll_chk": fn(*mut pollfd, u64, *const timespec, *const sigset_t, usize) -> c_int;
    SELECT = c"select": fn(c_int, *mut fd_set, *mut fd_set, *mut fd_set, *mut timeval) -> c_int;
    PSELECT = c"pselect":
        fn(c_int, *mut fd_set, *mut fd_set, *mut fd_set, *const timespec, *const sigset_t) -> c_int;
}

/// epoll_ctl(2).
///
/// # Safety
/// As libc's `epoll_ctl`.
#[cfg_attr(not(test), no_mangle)]
pub unsafe extern "C" fn epoll_ctl(epoll: c_int, operation: c_int, fd: c_int, event: *mut epoll_event) -> c_int {
    if concerns(fd) || concerns(epoll) {
        let before = || {
            check(libc::SYS_epoll_ctl, &[epoll as usize, operation as usize, fd as usize, event as usize, 0, 0])?;
            before_epoll_ctl(operation, fd, event);
            Ok(())
        };
        if let Some(answer) = refusal(before) {
            return answer;
        }
    }
    // SAFETY: the caller's own arguments.
    EPOLL_CTL.get().map_or_else(missing, |next| unsafe { next(epoll, operation, fd, event) })
}

/// Prepares a wait on `epoll`. If that number belongs to the engine, returns the call's answer.
#[inline]
fn before_wait_on(epoll: c_int) -> Option<c_int> {
    (level::any() || concerns(epoll)).then(|| before_wait_with(epoll)).flatten()
}

#[cold]
fn before_wait_with(epoll: c_int) -> Option<c_int> {
    refusal(|| {
        check(libc::SYS_epoll_pwait, &[epoll as usize, 0, 0, 0, 0, 0])?;
        before_epoll_wait();
        Ok(())
    })
}

/// epoll_wait(2).
///
/// # Safety
/// As libc's `epoll_wait`.
#[cfg_attr(not(test), no_mangle)]
pub unsafe extern "C-unwind" fn epoll_wait(
    epoll: c_int,
    events: *mut epoll_event,
    limit: c_int,
    timeout_ms: c_int,
) -> c_int {
    if let Some(answer) = before_wait_on(epoll) {
        return answer;
    }
    // SAFETY: the caller's own arguments.
    EPOLL_WAIT.get().map_or_else(missing, |next| unsafe { next(epoll, events, limit, timeout_ms) })
}

/// epoll_pwait(2).
///
/// # Safety
/// As libc's `epoll_pwait`.
#[cfg_attr(not(test), no_mangle)]
pub unsafe extern "C-unwind" fn epoll_pwait(
    epoll: c_int,
    events: *mut epoll_event,
    limit: c_int,
    timeout_ms: c_int,
    mask: *const sigset_t,
) -> c_int {
    if let Some(answer) = before_wait_on(epoll) {
        return answer;
    }
    signals::mask::with_temporary_set(mask, |mask| {
        // SAFETY: the caller's own arguments. The mask is the caller's or a copy of it without the guarded signals.
        EPOLL_PWAIT.get().map_or_else(missing, |next| unsafe { next(epoll, events, limit, timeout_ms, mask) })
    })
}

/// epoll_pwait2(2).
///
/// # Safety
/// As libc's `epoll_pwait2`.
#[cfg_attr(not(test), no_mangle)]
pub unsafe extern "C-unwind" fn epoll_pwait2(
    epoll: c_int,
    events: *mut epoll_event,
    limit: c_int,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    if let Some(answer) = before_wait_on(epoll) {
        return answer;
    }
    signals::mask::with_temporary_set(mask, |mask| {
        // SAFETY: as in `epoll_pwait`.
        EPOLL_PWAIT2.get().map_or_else(missing, |next| unsafe { next(epoll, events, limit, timeout, mask) })
    })
}

/// poll(2).
///
/// # Safety
/// As libc's `poll`.
#[cfg_attr(not(test), no_mangle)]
pub unsafe extern "C-unwind" fn poll(fds: *mut pollfd, count: u64, timeout_ms: c_int) -> c_int {
    entry::aside(|| before_poll(fds, count as usize));
    // SAFETY: the caller's own arguments.
    POLL.get().map_or_else(missing, |next| unsafe { next(fds, count, timeout_ms) })
}

/// The poll(2) of programs built with _FORTIFY_SOURCE.
///
/// # Safety
/// As libc's `__poll_chk`.
#[cfg_attr(not(test), no_mangle)]
pub unsafe extern "C-unwind" fn __poll_chk(fds: *mut pollfd, count: u64, timeout_ms: c_int, size: usize) -> c_int {
    entry::aside(|| before_poll(fds, count as usize));
    // SAFETY: the caller's own arguments.
    POLL_CHK.get().map_or_else(missing, |next| unsafe { next(fds, count, timeout_ms, size) })
}

/// ppoll(2).
///
/// # Safety
/// As libc's `ppoll`.
#[cfg_attr(not(test), no_mangle)]
pub unsafe extern "C-unwind" fn ppoll(
    fds: *mut pollfd,
    count: u64,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    entry::aside(|| before_poll(fds, count as usize));
    signals::mask::with_temporary_set(mask, |mask| {
        // SAFETY: as in `epoll_pwait`.
        PPOLL.get().map_or_else(missing, |next| unsafe { next(fds, count, timeout, mask) })
    })
}

/// The ppoll(2) of programs built with _FORTIFY_SOURCE.
///
/// # Safety
/// As libc's `__ppoll_chk`.
#[cfg_attr(not(test), no_mangle)]
pub unsafe extern "C-unwind" fn __ppoll_chk(
    fds: *mut pollfd,
    count: u64,
    timeout: *const timespec,
    mask: *const sigset_t,
    size: usize,
) -> c_int {
    entry::aside(|| before_poll(fds, count as usize));
    signals::mask::with_temporary_set(mask, |mask| {
        // SAFETY: as in `epoll_pwait`.
        PPOLL_CHK.get().map_or_else(missing, |next| unsafe { next(fds, count, timeout, mask, size) })
    })
}

/// select(2).
///
/// # Safety
/// As libc's `select`.
#[cfg_attr(not(test), no_mangle)]
pub unsafe extern "C-unwind" fn select(
    count: c_int,
    readable: *mut fd_set,
    writable: *mut fd_set,
    exceptional: *mut fd_set,
    timeout: *mut timeval,
) -> c_int {
    entry::aside(|| before_select(count, readable));
    // SAFETY: the caller's own arguments.
    SELECT.get().map_or_else(missing, |next| unsafe { next(count, readable, writable, exceptional, timeout) })
}

/// pselect(2).
///
/// # Safety
/// As libc's `pselect`.
#[cfg_attr(not(test), no_mangle)]
pub unsafe extern "C-unwind" fn pselect(
    count: c_int,
    readable: *mut fd_set,
    writable: *mut fd_set,
    exceptional: *mut fd_set,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    entry::aside(|| before_select(count, readable));
    signals::mask::with_temporary_set(mask, |mask| {
        // SAFETY: as in `epoll_pwait`.
        PSELECT
            .get()
            .map_or_else(missing, |next| unsafe { next(count, readable, writable, exceptional, timeout, mask) })
    })
}
