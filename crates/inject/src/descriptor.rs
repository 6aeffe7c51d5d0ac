//! Calls that end, replace or reconfigure descriptor numbers. The door hears of each before it happens; the call
//! itself stays libc's.
//!
//! The engine's own descriptors stay, whatever the program closes wholesale: for the program their numbers are not
//! open. Not protected are numbers from 65,536 on; a descriptor that another thread's engine call is just making; and
//! from raw instructions outside the range that the filter knows ([`door::KNOWN_NUMBERS`]), which own numbers leave when the
//! limit on descriptors is under 1,024.

use crate::door;
use crate::next::{missing, next};
use crate::{entry, identity, sys};
use anyring_engine::forced::{point, Point};
use anyring_engine::mutation::{mutated, Mutation};
use anyring_engine::Errno;
use core::ffi::c_int;
use core::sync::atomic::{AtomicBool, Ordering};
use libc::FILE;

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
}

/// Set for good once the process has made a ring: before that, no wait has to look for ring descriptors.
static RING_MADE: AtomicBool = AtomicBool::new(false);

/// The door says so here when it has made a ring.
pub fn ring_made() {
    if !RING_MADE.swap(true, Ordering::Relaxed) {
        crate::raw::ring_made();
    }
}

/// Whether [`ring_made`] was ever called. The descriptor reaches another thread later than this flag by whatever
/// means the program hands it over, so Relaxed is enough.
pub fn rings_exist() -> bool {
    RING_MADE.load(Ordering::Relaxed)
}

/// The program is about to close number `fd`. EBADF for one of the engine's own, which is not to be closed.
pub fn before_close(fd: i32) -> Result<(), Errno> {
    if door::is_own(fd) && !mutated(Mutation::OwnNumbersAreClosed) {
        return Err(Errno::BADF);
    }
    point(Point::Close);
    crate::wait::forget(fd);
    door::closing(fd);
    Ok(())
}

/// The program is about to make `new` a duplicate of `old` (dup2(2); dup3(2) with `flags`). EBUSY for one of the
/// engine's own, which is not to be replaced: dup2(2) has it for a number that somebody else is just opening.
pub fn before_dup(old: i32, new: i32, flags: i32) -> Result<(), Errno> {
    let refused = old == new || flags & !libc::O_CLOEXEC != 0;
    // Nothing may end for a call that the kernel is going to refuse.
    if refused || ((door::is_ring(new) || door::is_own(new)) && !is_open(old)) {
        return Ok(());
    }
    before_close(new).map_err(|_| Errno::BUSY)
}

/// unshare(2) through `call`, which makes the call itself and answers as the kernel's register. The calling thread has a table
/// of descriptors of its own already where only threads of ours share it: one that is alone in its program keeps it, with them.
pub fn unshare_by(flags: u32, call: impl FnOnce(u32) -> isize) -> isize {
    let tables = flags & libc::CLONE_FILES as u32;
    if tables == 0 {
        return call(flags);
    }
    if door::shares_table_with_engine_only() {
        return call(flags & !tables);
    }
    let answer = call(flags);
    if answer >= 0 {
        entry::aside(door::table_unshared);
    }
    answer
}

/// close_range(2) through `call`, which makes the call itself and answers as the kernel's register: closes what is in
/// the range but the engine's own.
pub fn close_range_by(first: u32, last: u32, flags: u32, mut call: impl FnMut(u32, u32, u32) -> isize) -> isize {
    let mut flags = flags;
    if flags & libc::CLOSE_RANGE_UNSHARE != 0 && door::shares_table_with_engine_only() {
        flags &= !libc::CLOSE_RANGE_UNSHARE; // as in `unshare_by`
    }
    let unshares = flags & libc::CLOSE_RANGE_UNSHARE != 0;
    let closes = flags & !libc::CLOSE_RANGE_UNSHARE == 0;
    // On no descriptor at all: tells whether there is such a call, and unshares the table before anything in it ends. The
    // engine's own are close-on-exec already.
    let answer = if closes && first <= last { call(u32::MAX, u32::MAX, flags) } else { call(first, last, flags) };
    if unshares && answer >= 0 {
        entry::aside(door::table_unshared);
    }
    if answer < 0 || !closes {
        return answer;
    }
    entry::aside(|| before_close_range(first, last));
    pieces(first, last).map(|(first, last)| call(first, last, 0)).find(|answer| *answer < 0).unwrap_or(0)
}

/// The program is about to close `first..=last`.
fn before_close_range(first: u32, last: u32) {
    point(Point::CloseRange);
    crate::wait::forget_range(first, last);
    door::closing_range(first, last);
}

/// The parts of `first..=last` without the engine's own numbers.
fn pieces(first: u32, last: u32) -> impl Iterator<Item = (u32, u32)> {
    let mut rest = Some(first);
    core::iter::from_fn(move || loop {
        let from = rest.filter(|from| *from <= last)?;
        match door::next_own(from, last) {
            None => rest = None,
            Some(own) => rest = Some(own + 1),
        }
        match rest {
            None => return Some((from, last)),
            Some(next) if next - 1 > from => return Some((from, next - 2)),
            Some(_) => {}
        }
    })
}

/// The program is about to change how descriptor `fd` behaves: a ring that sends SIGIO has a watcher, and one that
/// wants a signal for each batch.
pub fn before_fcntl(fd: i32, command: i32, argument: usize) {
    let watches = match command {
        libc::F_SETFL => argument as i32 & libc::O_ASYNC != 0,
        libc::F_SETOWN | F_SETOWN_EX => true,
        _ => false,
    };
    point(Point::Fcntl);
    if watches && door::is_ring(fd) {
        door::watch(fd, true);
    }
}

/// fcntl(2) answered: a duplicate of a ring's descriptor is known from now on.
fn after_fcntl(fd: i32, command: i32, answer: c_int) -> c_int {
    match command {
        libc::F_DUPFD | libc::F_DUPFD_CLOEXEC => duplicated(fd, answer),
        _ => answer,
    }
}

/// fcntl(2)'s F_SETOWN_EX, which the libc crate lacks.
const F_SETOWN_EX: i32 = 15;

fn is_open(fd: i32) -> bool {
    // SAFETY: F_GETFD only reads the descriptor's flags.
    unsafe { sys::call(libc::SYS_fcntl, [fd as usize, libc::F_GETFD as usize, 0, 0, 0, 0]) >= 0 }
}

/// Runs what comes before a call; libc's answer if that forbids it.
fn refusal(mut before: impl FnMut() -> Result<(), Errno>) -> Option<c_int> {
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
    if let Some(answer) = refusal(|| before_close(fd)) {
        return answer;
    }
    // SAFETY: the caller's own argument.
    CLOSE.get().map_or_else(missing, |next| unsafe { next(fd) })
}

/// dup2(2).
///
/// # Safety
/// As libc's `dup2`.
#[cfg_attr(not(test), no_mangle)]
pub unsafe extern "C-unwind" fn dup2(old: c_int, new: c_int) -> c_int {
    if let Some(answer) = refusal(|| before_dup(old, new, 0)) {
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
    if let Some(answer) = refusal(|| before_dup(old, new, flags)) {
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
    // SAFETY: the caller's own argument.
    duplicated(old, DUP.get().map_or_else(missing, |next| unsafe { next(old) }))
}

/// A call answered `new` as a duplicate of `old`: a ring is known by that number too from now on.
fn duplicated(old: c_int, new: c_int) -> c_int {
    if new >= 0 && new != old && door::is_ring(old) {
        entry::aside(|| door::duplicated(new));
    }
    new
}

/// libc's answer to a call, as the kernel's register holds it.
fn register_of(answer: c_int) -> isize {
    match answer {
        ..0 => -(sys::errno() as isize),
        _ => answer as isize,
    }
}

/// What `calls` answers, which makes its calls by libc, as libc answers it: errno is that of the answer alone.
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
    let lowest = first.max(0) as u32;
    entry::aside(|| before_close_range(lowest, u32::MAX));
    for (first, last) in pieces(lowest, u32::MAX) {
        if last == u32::MAX {
            // SAFETY: the caller's own argument, or a higher one.
            unsafe { next(first as c_int) };
        } else {
            close_piece(first, last);
        }
    }
}

/// Closes `first..=last`, singly where the kernel has or allows no close_range(2).
fn close_piece(first: u32, last: u32) {
    // SAFETY: part of what the program asked to have closed.
    let close = |number: i64, a: u32, b: u32| unsafe { sys::call(number, [a as usize, b as usize, 0, 0, 0, 0]) };
    if close(libc::SYS_close_range, first, last) < 0 {
        (first..=last).for_each(|fd| _ = close(libc::SYS_close, fd, 0));
    }
}

/// The number inside `stream`, about to be closed by libc itself.
fn before_stream_close(stream: *mut FILE) {
    if stream.is_null() || mutated(Mutation::StreamsCloseUnseen) {
        return;
    }
    entry::aside(|| {
        // SAFETY: the caller of fclose, pclose or freopen vouches that `stream` is an open stream.
        let fd = unsafe { libc::fileno(stream) };
        if fd >= 0 {
            let _ = before_close(fd); // a stream of the program's has no number of the engine's
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

/// fcntl(2). Variadic in C; on x86-64 the optional third argument travels in the same register as a named one, so it
/// is passed on whether the program gave it or not.
///
/// # Safety
/// As libc's `fcntl`.
#[cfg_attr(not(test), no_mangle)]
pub unsafe extern "C-unwind" fn fcntl(fd: c_int, command: c_int, argument: usize) -> c_int {
    if door::is_ring(fd) {
        entry::aside(|| before_fcntl(fd, command, argument));
    }
    // SAFETY: the caller's own arguments.
    let answer = FCNTL.get().map_or_else(missing, |next| unsafe { next(fd, command, argument) });
    after_fcntl(fd, command, answer)
}

/// fcntl64(2): what programs built with large file support call.
///
/// # Safety
/// As libc's `fcntl64`.
#[cfg_attr(not(test), no_mangle)]
pub unsafe extern "C-unwind" fn fcntl64(fd: c_int, command: c_int, argument: usize) -> c_int {
    if door::is_ring(fd) {
        entry::aside(|| before_fcntl(fd, command, argument));
    }
    // SAFETY: the caller's own arguments.
    let answer = FCNTL64.get().map_or_else(missing, |next| unsafe { next(fd, command, argument) });
    after_fcntl(fd, command, answer)
}
