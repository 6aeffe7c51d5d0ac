//! Calls that close, replace or reconfigure descriptor numbers. The engine is notified before each call.
//!
//! The engine's own descriptors stay open, whatever range the program closes. To the program these numbers look as
//! if they were not open.

use crate::host::Host;
use crate::{door, entry, sys};
use anyring_engine::forced::{point, Point};
use anyring_engine::mutation::{mutated, Mutation};
use anyring_engine::os::standard::is_held;
use anyring_engine::os::{changes, check};
use anyring_engine::resource::files;
use anyring_engine::{descriptors, process, Errno};
use core::sync::atomic::{AtomicBool, Ordering};

/// Set when the process makes its first ring, and never cleared. As long as it is not set, no wait has to check for
/// ring descriptors.
static RING_MADE: AtomicBool = AtomicBool::new(false);

/// Records that a ring was made. Called by the door.
pub fn ring_made<H: Host>() {
    if !RING_MADE.swap(true, Ordering::Relaxed) {
        H::first_ring_made();
    }
}

/// True once [`ring_made`] was called. If the program passes the descriptor to another thread, the flag is visible
/// there before the descriptor, so Relaxed is enough.
pub fn rings_exist() -> bool {
    RING_MADE.load(Ordering::Relaxed)
}

/// Ends the ring with number `fd`, if there is one, before the program closes that number by another call than
/// close(2). Fails with EBADF if `fd` is one of the engine's own descriptors, which must stay open.
pub fn before_close(fd: i32) -> Result<(), Errno> {
    number_goes(fd, true)?;
    door::closing(fd);
    Ok(())
}

/// Serves close(2). True if the number is closed now, as a ring's number is. If false, the caller makes the call.
pub fn close(fd: i32) -> Result<bool, Errno> {
    number_goes(fd, true)?;
    if door::close(fd) {
        return Ok(true);
    }
    if !descriptors::may_be_own(fd) {
        return Ok(false);
    }
    changes::apart(|| match door::is_own(fd) {
        true => Err(Errno::BADF),
        // SAFETY: the number that the program closes.
        false => check(unsafe { sys::call(libc::SYS_close, [fd as usize, 0, 0, 0, 0, 0]) }).map(|_| true),
    })
}

/// Checks a number that the program is about to close, or to replace with another file.
fn number_goes(fd: i32, closes: bool) -> Result<(), Errno> {
    if door::is_own(fd) && !mutated(Mutation::OwnNumbersAreClosed) {
        return Err(Errno::BADF);
    }
    process::taking(fd, closes)?;
    point(Point::Close);
    Ok(())
}

/// Ends the ring with number `new`, if there is one, before the program makes that number a duplicate of `old`
/// (dup2(2), or dup3(2) with `flags`). Fails with EBUSY if `new` is one of the engine's own. dup2(2) documents that
/// error for a number that is just being opened.
pub fn before_dup(old: i32, new: i32, flags: i32) -> Result<(), Errno> {
    let refused = old == new || flags & !libc::O_CLOEXEC != 0;
    // End nothing for a call that the kernel is going to refuse.
    let is_ours = door::is_ring(new) || door::is_own(new) || is_held(new);
    if refused || (is_ours && !is_open(old)) {
        return Ok(());
    }
    if descriptors::may_be_own(new) {
        changes::apart(|| ());
    }
    number_goes(new, false).map_err(|_| Errno::BUSY)?;
    door::closing(new);
    Ok(())
}

/// Serves unshare(2). `call` makes the system call and returns the kernel's register. If only threads of the engine
/// share the calling thread's descriptor table, the table is private already. The calling thread and the engine's
/// threads then keep it.
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

/// Serves close_range(2): closes the range, except the engine's own descriptors. `call` makes the system call and
/// returns the kernel's register.
pub fn close_range_by(first: u32, last: u32, flags: u32, mut call: impl FnMut(u32, u32, u32) -> isize) -> isize {
    let mut flags = flags;
    if flags & libc::CLOSE_RANGE_UNSHARE != 0 && door::shares_table_with_engine_only() {
        flags &= !libc::CLOSE_RANGE_UNSHARE; // as in `unshare_by`
    }
    if flags == 0 && first <= last && !process::knows_range(first, last) {
        return match descriptors::have_been() {
            true => close_pieces(first, last, call),
            false => call(first, last, flags),
        };
    }
    let unshares = flags & libc::CLOSE_RANGE_UNSHARE != 0;
    let closes = flags & !libc::CLOSE_RANGE_UNSHARE == 0;
    // The first call has an empty range. It checks that the system call exists, and unshares the table before anything
    // in it is closed. The engine's own descriptors are close-on-exec already.
    let answer = if closes && first <= last { call(u32::MAX, u32::MAX, flags) } else { call(first, last, flags) };
    if unshares && answer >= 0 {
        entry::aside(door::table_unshared);
    }
    if answer < 0 || !closes {
        return answer;
    }
    entry::aside(|| before_close_range(first, last));
    close_pieces(first, last, call)
}

/// Closes `first..=last`, except the engine's own numbers, while no thread changes those.
fn close_pieces(first: u32, last: u32, mut call: impl FnMut(u32, u32, u32) -> isize) -> isize {
    changes::apart(|| {
        pieces(first, last).map(|(first, last)| call(first, last, 0)).find(|answer| *answer < 0).unwrap_or(0)
    })
}

/// Ends the rings in `first..=last`, before the program closes these numbers.
fn before_close_range(first: u32, last: u32) {
    point(Point::CloseRange);
    (first..=last.min(2)).for_each(|fd| _ = process::taking(fd as i32, false));
    door::closing_range(first, last);
}

/// Returns the parts of `first..=last` without the engine's own numbers.
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

/// Watches a ring before fcntl(2) gives it O_ASYNC or an owner. The watch is edge-triggered, so that each batch of CQEs
/// sends a SIGIO.
pub fn before_fcntl(fd: i32, command: i32, argument: usize) {
    let watches = match command {
        libc::F_SETFL => argument as i32 & libc::O_ASYNC != 0,
        libc::F_SETOWN | F_SETOWN_EX => true,
        _ => false,
    };
    record_fcntl(command);
    point(Point::Fcntl);
    if watches && door::is_ring(fd) {
        door::add_watcher(fd, true);
    }
}

/// Records that the program uses record locks, before fcntl(2) on any descriptor.
#[inline]
pub fn record_fcntl(command: i32) {
    if matches!(command, libc::F_SETLK | libc::F_SETLKW) {
        files::mark_posix_lock();
    }
}

/// fcntl(2)'s F_SETOWN_EX, which the libc crate lacks.
const F_SETOWN_EX: i32 = 15;

fn is_open(fd: i32) -> bool {
    // SAFETY: F_GETFD only reads the descriptor's flags.
    unsafe { sys::call(libc::SYS_fcntl, [fd as usize, libc::F_GETFD as usize, 0, 0, 0, 0]) >= 0 }
}

/// Records that a call returned `new`, a duplicate of `old`. If `old` is a ring, `new` names that ring, too, from now
/// on.
pub fn record_duplicate(old: i32, new: i32) {
    if new >= 0 && new != old && door::is_ring(old) {
        entry::aside(|| door::duplicated(new));
    }
}

/// Ends the rings from number `first` on. Then `close` closes all numbers from there on, in ranges without the engine's
/// own numbers.
pub fn close_from(first: u32, close: impl FnMut((u32, u32))) {
    entry::aside(|| before_close_range(first, u32::MAX));
    if descriptors::have_been() {
        changes::apart(|| pieces(first, u32::MAX).for_each(close));
    } else {
        pieces(first, u32::MAX).for_each(close);
    }
}
