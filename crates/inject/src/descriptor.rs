//! Calls that close, replace or reconfigure descriptor numbers. The engine is notified before each call, and libc makes
//! the call itself.
//!
//! The engine's own descriptors stay open even if the program closes all numbers. To the program these numbers look
//! as if they were not open. The following numbers are not protected:
//!
//! - Numbers from 65,536 on.
//! - Against dup2(2), the number of a descriptor that the engine is just opening in another thread's call.
//! - Against raw instructions, numbers outside the range that the filter knows
//!   ([`KNOWN_NUMBERS`](anyring_serve::door::KNOWN_NUMBERS)). The engine's numbers are outside that range if the limit
//!   on descriptors is under 1,024.

use crate::next::{missing, next};
use crate::{entry, identity, sys};
use anyring_engine::mutation::{mutated, Mutation};
use anyring_engine::process::concerns_number;
use anyring_engine::Errno;
use anyring_serve::descriptor::{
    self, before_close, before_dup, before_fcntl, close_from, close_range_by, record_duplicate, record_fcntl,
    unshare_by,
};
use anyring_serve::named;
use core::ffi::c_int;
use libc::FILE;

pub use anyring_serve::descriptor::rings_exist;

next! {
    CLOSE = c"close": fn(c_int) -> c_int;
    DUP = c"dup": fn(c_int) -> c_int;
    DUP2 = c"dup2": fn(c_int, c_int) -> c_int;
    DUP3 = c"dup3": fn(c_int, c_int, c_int) -> c_int;
    CLOSE_RANGE = c"close_range": fn(u32, u32, c_int) -> c_int;
    UNSHARE = c"unshare": fn(c_int) -> c_int;
    CLOSEFROM = c"closefrom": fn(c_int);
    FCLOSE = c"fclose": fn(*mut FILE) -> c_int;
    PCLOSE = c"pclose": fn(*mut FILE) -> c_int;
    FREOPEN = c"freopen": fn(*const libc::c_char, *const libc::c_char, *mut FILE) -> *mut FILE;
    FREOPEN64 = c"freopen64": fn(*const libc::c_char, *const libc::c_char, *mut FILE) -> *mut FILE;
    FCNTL = c"fcntl": fn(c_int, c_int, usize) -> c_int;
    FCNTL64 = c"fcntl64": fn(c_int, c_int, usize) -> c_int;
    LOCKF = c"lockf": fn(c_int, c_int, libc::off_t) -> c_int;
    LOCKF64 = c"lockf64": fn(c_int, c_int, libc::off_t) -> c_int;
}

/// Looks at the answer of an fcntl(2). If the call duplicated a ring's descriptor, the new number is recorded as a
/// ring's. Returns the answer.
fn after_fcntl(fd: i32, command: i32, answer: c_int) -> c_int {
    match command {
        libc::F_DUPFD | libc::F_DUPFD_CLOEXEC => duplicated(fd, answer),
        _ => answer,
    }
}

/// Runs `before`, which may forbid the call. If it does, sets errno and returns -1, as libc would.
pub(crate) fn refusal(mut before: impl FnMut() -> Result<(), Errno>) -> Option<c_int> {
    let mut verdict = Ok(());
    entry::aside(|| verdict = before());
    let error = verdict.err()?;
    Some(entry::libc_answer(-(error.raw_os_error() as isize)) as c_int)
}

/// close(2).
///
/// # Safety
/// As libc's `close`.
#[cfg_attr(not(test), no_mangle)]
pub unsafe extern "C-unwind" fn close(fd: c_int) -> c_int {
    if let Some(answer) = concerns_number(fd).then(|| close_known(fd)).flatten() {
        return answer;
    }
    // SAFETY: the caller's own argument.
    CLOSE.get().map_or_else(missing, |next| unsafe { next(fd) })
}

/// Serves close(2) of a number that may concern the engine. `None` if libc has to make the call.
fn close_known(fd: c_int) -> Option<c_int> {
    let mut closed = false;
    let refused = refusal(|| {
        closed = descriptor::close(fd)?;
        Ok(())
    });
    refused.or(closed.then_some(0))
}

/// Prepares a dup2(2) or dup3(2). Returns the answer if the call is refused.
fn refused_dup(old: c_int, new: c_int, flags: c_int) -> Option<c_int> {
    let before = || may_duplicate(libc::SYS_dup3, old).and_then(|()| before_dup(old, new, flags));
    (named::concerns(old) || concerns_number(new)).then(|| refusal(before)).flatten()
}

/// dup2(2).
///
/// # Safety
/// As libc's `dup2`.
#[cfg_attr(not(test), no_mangle)]
pub unsafe extern "C-unwind" fn dup2(old: c_int, new: c_int) -> c_int {
    if let Some(answer) = refused_dup(old, new, 0) {
        return answer;
    }
    // SAFETY: the caller's own arguments.
    let answer = DUP2.get().map_or_else(missing, |next| unsafe { next(old, new) });
    duplicated(old, answer)
}

/// dup3(2).
///
/// # Safety
/// As libc's `dup3`.
#[cfg_attr(not(test), no_mangle)]
pub unsafe extern "C-unwind" fn dup3(old: c_int, new: c_int, flags: c_int) -> c_int {
    if let Some(answer) = refused_dup(old, new, flags) {
        return answer;
    }
    // SAFETY: the caller's own arguments.
    let answer = DUP3.get().map_or_else(missing, |next| unsafe { next(old, new, flags) });
    duplicated(old, answer)
}

/// dup(2).
///
/// # Safety
/// As libc's `dup`.
#[cfg_attr(not(test), no_mangle)]
pub unsafe extern "C-unwind" fn dup(old: c_int) -> c_int {
    if let Some(answer) = named::concerns(old).then(|| refusal(|| may_duplicate(libc::SYS_dup, old))).flatten() {
        return answer;
    }
    // SAFETY: the caller's own argument.
    duplicated(old, DUP.get().map_or_else(missing, |next| unsafe { next(old) }))
}

/// Checks that the program may duplicate `old` by system call `number`.
fn may_duplicate(number: i64, old: c_int) -> Result<(), Errno> {
    named::check(number, &[old as usize, usize::MAX, 0, 0, 0, 0])
}

/// Records that `new` duplicates `old`. If `old` is a ring, `new` names that ring, too, from now on.
fn duplicated(old: c_int, new: c_int) -> c_int {
    record_duplicate(old, new);
    new
}

/// Converts libc's answer to a call into the kernel's form: the value or `-errno`.
fn register_of(answer: c_int) -> isize {
    match answer {
        ..0 => -(sys::errno() as isize),
        _ => answer as isize,
    }
}

/// Runs `calls`, which may make several calls by libc, and answers as a single libc call would. Only the final answer
/// changes errno.
fn by_libc(calls: impl FnOnce() -> isize) -> c_int {
    let errno = sys::errno();
    let answer = calls();
    sys::set_errno(errno);
    entry::libc_answer(answer) as c_int
}

/// close_range(2).
///
/// # Safety
/// As libc's `close_range`.
#[cfg_attr(not(test), no_mangle)]
pub unsafe extern "C-unwind" fn close_range(first: u32, last: u32, flags: c_int) -> c_int {
    let Some(next) = CLOSE_RANGE.get() else {
        return missing();
    };
    by_libc(|| {
        close_range_by(first, last, flags as u32, |first, last, flags| {
            // SAFETY: the caller's own range, or a part of it.
            register_of(unsafe { next(first, last, flags as c_int) })
        })
    })
}

/// unshare(2).
///
/// # Safety
/// As libc's `unshare`.
#[cfg_attr(not(test), no_mangle)]
pub unsafe extern "C-unwind" fn unshare(flags: c_int) -> c_int {
    let Some(next) = UNSHARE.get() else {
        return missing();
    };
    identity::before(libc::SYS_unshare, flags as usize);
    by_libc(|| {
        unshare_by(flags as u32, |flags| {
            // SAFETY: the caller's own flags, or some of them.
            register_of(unsafe { next(flags as c_int) })
        })
    })
}

/// closefrom(3).
///
/// # Safety
/// As libc's `closefrom`.
#[cfg_attr(not(test), no_mangle)]
pub unsafe extern "C-unwind" fn closefrom(first: c_int) {
    let Some(next) = CLOSEFROM.get() else {
        missing();
        return;
    };
    close_from(first.max(0) as u32, |(first, last)| {
        if last == u32::MAX {
            // SAFETY: the caller's own argument, or a higher one.
            unsafe { next(first as c_int) };
        } else {
            close_piece(first, last);
        }
    });
}

/// Closes `first..=last`, one by one if the kernel lacks or refuses close_range(2).
fn close_piece(first: u32, last: u32) {
    // SAFETY: part of what the program asked to have closed.
    let close = |number: i64, a: u32, b: u32| unsafe { sys::call(number, [a as usize, b as usize, 0, 0, 0, 0]) };
    if close(libc::SYS_close_range, first, last) < 0 {
        (first..=last).for_each(|fd| _ = close(libc::SYS_close, fd, 0));
    }
}

/// Notifies the engine of the descriptor number of `stream`, which libc is about to close.
fn before_stream_close(stream: *mut FILE) {
    if stream.is_null() || mutated(Mutation::StreamsCloseUnseen) {
        return;
    }
    entry::aside(|| {
        // SAFETY: the caller of fclose, pclose or freopen vouches that `stream` is an open stream.
        let fd = unsafe { libc::fileno(stream) };
        if fd >= 0 {
            let _ = before_close(fd); // a stream of the program's has none of the engine's numbers
        }
    });
}

/// fclose(3).
///
/// # Safety
/// As libc's `fclose`.
#[cfg_attr(not(test), no_mangle)]
pub unsafe extern "C-unwind" fn fclose(stream: *mut FILE) -> c_int {
    before_stream_close(stream);
    // SAFETY: the caller's own argument.
    FCLOSE.get().map_or_else(missing, |next| unsafe { next(stream) })
}

/// pclose(3).
///
/// # Safety
/// As libc's `pclose`.
#[cfg_attr(not(test), no_mangle)]
pub unsafe extern "C-unwind" fn pclose(stream: *mut FILE) -> c_int {
    before_stream_close(stream);
    // SAFETY: the caller's own argument.
    PCLOSE.get().map_or_else(missing, |next| unsafe { next(stream) })
}

/// freopen(3).
///
/// # Safety
/// As libc's `freopen`.
#[cfg_attr(not(test), no_mangle)]
pub unsafe extern "C-unwind" fn freopen(
    path: *const libc::c_char,
    mode: *const libc::c_char,
    stream: *mut FILE,
) -> *mut FILE {
    before_stream_close(stream);
    match FREOPEN.get() {
        // SAFETY: the caller's own arguments.
        Some(next) => unsafe { next(path, mode, stream) },
        None => {
            missing();
            core::ptr::null_mut()
        }
    }
}

/// freopen64(3).
///
/// # Safety
/// As libc's `freopen64`.
#[cfg_attr(not(test), no_mangle)]
pub unsafe extern "C-unwind" fn freopen64(
    path: *const libc::c_char,
    mode: *const libc::c_char,
    stream: *mut FILE,
) -> *mut FILE {
    before_stream_close(stream);
    match FREOPEN64.get() {
        // SAFETY: the caller's own arguments.
        Some(next) => unsafe { next(path, mode, stream) },
        None => {
            missing();
            core::ptr::null_mut()
        }
    }
}

/// Checks an fcntl(2) on a ring's number or one of the engine's. Returns the answer if the call is refused.
#[cold]
fn may_control(fd: i32, command: i32, argument: usize) -> Option<c_int> {
    refusal(|| {
        named::check(libc::SYS_fcntl, &[fd as usize, command as usize, argument, 0, 0, 0])?;
        before_fcntl(fd, command, argument);
        Ok(())
    })
}

/// fcntl(2), variadic in C. On x86-64 the optional third argument travels in the same register as a named one. So it is
/// passed on whether the program gave it or not.
///
/// # Safety
/// As libc's `fcntl`.
#[cfg_attr(not(test), no_mangle)]
pub unsafe extern "C-unwind" fn fcntl(fd: c_int, command: c_int, argument: usize) -> c_int {
    record_fcntl(command);
    if let Some(answer) = named::concerns(fd).then(|| may_control(fd, command, argument)).flatten() {
        return answer;
    }
    // SAFETY: the caller's own arguments.
    let answer = FCNTL.get().map_or_else(missing, |next| unsafe { next(fd, command, argument) });
    after_fcntl(fd, command, answer)
}

/// fcntl64(2), which programs built with large file support call.
///
/// # Safety
/// As libc's `fcntl64`.
#[cfg_attr(not(test), no_mangle)]
pub unsafe extern "C-unwind" fn fcntl64(fd: c_int, command: c_int, argument: usize) -> c_int {
    record_fcntl(command);
    if let Some(answer) = named::concerns(fd).then(|| may_control(fd, command, argument)).flatten() {
        return answer;
    }
    // SAFETY: the caller's own arguments.
    let answer = FCNTL64.get().map_or_else(missing, |next| unsafe { next(fd, command, argument) });
    after_fcntl(fd, command, answer)
}

/// lockf(3), inside which libc calls fcntl(2).
///
/// # Safety
/// As libc's `lockf`.
#[cfg_attr(not(test), no_mangle)]
pub unsafe extern "C-unwind" fn lockf(fd: c_int, command: c_int, length: libc::off_t) -> c_int {
    record_fcntl(libc::F_SETLK);
    // SAFETY: the caller's own arguments.
    LOCKF.get().map_or_else(missing, |next| unsafe { next(fd, command, length) })
}

/// lockf64(3).
///
/// # Safety
/// As libc's `lockf64`.
#[cfg_attr(not(test), no_mangle)]
pub unsafe extern "C-unwind" fn lockf64(fd: c_int, command: c_int, length: libc::off_t) -> c_int {
    record_fcntl(libc::F_SETLK);
    // SAFETY: the caller's own arguments.
    LOCKF64.get().map_or_else(missing, |next| unsafe { next(fd, command, length) })
}
