//! Waiting on descriptors: epoll, poll and select. A ring's descriptor is one end of a socketpair, so a watcher of it
//! has to be made known to the door, and a level-triggered one needs its readability brought up to date before each
//! wait. Descriptors that are no rings cost one compare; waits cost one load until the process has made a ring.

use crate::door::{self, RING_NUMBERS};
use crate::next::{missing, next};
use crate::{descriptor, entry, signals, sys};
use anyring_engine::descriptors::level;
use anyring_engine::forced::{point, Point};
use anyring_engine::mutation::{mutated, Mutation};
use core::ffi::c_int;
use core::mem::MaybeUninit;
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

pub use anyring_engine::descriptors::level::{forget, forget_range};

/// epoll_ctl(2) is about to be called.
pub fn before_epoll_ctl(operation: i32, fd: i32, event: *const epoll_event) {
    if !matches!(operation, libc::EPOLL_CTL_ADD | libc::EPOLL_CTL_MOD) || !door::is_ring(fd) {
        return;
    }
    point(Point::EpollCtl);
    // `events` is the first word of the packed struct; an unreadable one is the kernel's to refuse.
    let Some(events) = sys::read_program(event.cast::<u32>()) else {
        return;
    };
    let edge_triggered = events & libc::EPOLLET as u32 != 0;
    door::watch(fd, edge_triggered);
    if !edge_triggered {
        level::note(fd);
    }
}

/// epoll_wait(2) or a relative is about to be called.
#[inline]
pub fn before_epoll_wait() {
    point(Point::EpollWait);
    if level::any() && !mutated(Mutation::LevelIsNotSettled) {
        settle_all();
    }
}

#[cold]
fn settle_all() {
    level::for_each(|fd| {
        if door::is_ring(fd) {
            door::settle(fd);
        }
    });
}

/// poll(2) or ppoll(2) is about to be called.
#[inline]
pub fn before_poll(fds: *const pollfd, count: usize) {
    point(Point::Poll);
    if descriptor::rings_exist() {
        look_through(fds, count);
    }
}

/// Reads the program's array in portions through the kernel, since it may be a bad pointer.
#[cold]
fn look_through(mut fds: *const pollfd, mut count: usize) {
    const PORTION: usize = 64;
    let mut portion = [MaybeUninit::<pollfd>::uninit(); PORTION];
    while count > 0 {
        let taken = count.min(PORTION);
        if !sys::read_program_into(fds, &mut portion[..taken]) {
            return;
        }
        for entry in &portion[..taken] {
            // SAFETY: the first `taken` elements were just written.
            watched_level(unsafe { entry.assume_init() }.fd);
        }
        fds = fds.wrapping_add(taken);
        count -= taken;
    }
}

fn watched_level(fd: i32) {
    if door::is_ring(fd) {
        door::watch(fd, false);
        door::settle(fd);
    }
}

/// select(2) or pselect(2) is about to be called; only `readable` matters, a ring is always writable.
#[inline]
pub fn before_select(count: i32, readable: *const fd_set) {
    point(Point::Select);
    if count > RING_NUMBERS.start && !readable.is_null() && descriptor::rings_exist() {
        look_through_set(count, readable.cast());
    }
}

#[cold]
fn look_through_set(count: i32, set: *const u64) {
    let last = count.min(RING_NUMBERS.end);
    for first in (RING_NUMBERS.start..last).step_by(64) {
        let Some(mut bits) = sys::read_program(set.wrapping_add(first as usize / 64)) else {
            return;
        };
        while bits != 0 {
            let fd = first + bits.trailing_zeros() as i32;
            bits &= bits - 1;
            if fd < last {
                watched_level(fd);
            }
        }
    }
}

/// epoll_ctl(2).
///
/// # Safety
/// As libc's `epoll_ctl`.
#[cfg_attr(not(test), no_mangle)]
pub unsafe extern "C" fn epoll_ctl(epoll: c_int, operation: c_int, fd: c_int, event: *mut epoll_event) -> c_int {
    if door::is_ring(fd) {
        entry::aside(|| before_epoll_ctl(operation, fd, event));
    }
    // SAFETY: the caller's own arguments.
    EPOLL_CTL.get().map_or_else(missing, |next| unsafe { next(epoll, operation, fd, event) })
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
    entry::aside(before_epoll_wait);
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
    entry::aside(before_epoll_wait);
    signals::mask::with_temporary_set(mask, |mask| {
        // SAFETY: the caller's own arguments; the mask is the caller's or a copy of it without our signals.
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
    entry::aside(before_epoll_wait);
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

/// What poll(2) is called in programs built with _FORTIFY_SOURCE.
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

/// What ppoll(2) is called in programs built with _FORTIFY_SOURCE.
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
