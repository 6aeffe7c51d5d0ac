//! Calls that end, replace or reconfigure descriptor numbers: what the engine hears of each before it happens.
//!
//! The engine's own descriptors stay, whatever the program closes wholesale: for the program their numbers are not
//! open.

use crate::host::Host;
use crate::{door, entry, sys};
use anyring_engine::forced::{point, Point};
use anyring_engine::mutation::{mutated, Mutation};
use anyring_engine::os::standard::is_held;
use anyring_engine::resource::files;
use anyring_engine::{process, Errno};
use core::sync::atomic::{AtomicBool, Ordering};

/// Set for good once the process has made a ring: before that, no wait has to look for ring descriptors.
static RING_MADE: AtomicBool = AtomicBool::new(false);

/// The door says so here when it has made a ring.
pub fn ring_made<H: Host>() {
    if !RING_MADE.swap(true, Ordering::Relaxed) {
        H::first_ring_made();
    }
}

/// Whether [`ring_made`] was ever called. The descriptor reaches another thread later than this flag by whatever
/// means the program hands it over, so Relaxed is enough.
pub fn rings_exist() -> bool {
    RING_MADE.load(Ordering::Relaxed)
}

/// The program is about to close number `fd` by something else than close(2). EBADF for one of the engine's own, which is not to
/// be closed.
pub fn before_close(fd: i32) -> Result<(), Errno> {
    number_goes(fd, true)?;
    door::closing(fd);
    Ok(())
}

/// close(2) of the program's. True where that is done, a ring's number; else the call is to be made.
pub fn close(fd: i32) -> Result<bool, Errno> {
    number_goes(fd, true)?;
    Ok(door::close(fd))
}

/// The program is about to close number `fd`, or else to have another file under it.
fn number_goes(fd: i32, closes: bool) -> Result<(), Errno> {
    if door::is_own(fd) && !mutated(Mutation::OwnNumbersAreClosed) {
        return Err(Errno::BADF);
    }
    process::taking(fd, closes)?;
    point(Point::Close);
    Ok(())
}

/// The program is about to make `new` a duplicate of `old` (dup2(2); dup3(2) with `flags`). EBUSY for one of the
/// engine's own, which is not to be replaced: dup2(2) has it for a number that somebody else is just opening.
pub fn before_dup(old: i32, new: i32, flags: i32) -> Result<(), Errno> {
    let refused = old == new || flags & !libc::O_CLOEXEC != 0;
    // Nothing may end for a call that the kernel is going to refuse.
    let is_ours = door::is_ring(new) || door::is_own(new) || is_held(new);
    if refused || (is_ours && !is_open(old)) {
        return Ok(());
    }
    number_goes(new, false).map_err(|_| Errno::BUSY)?;
    door::closing(new);
    Ok(())
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
    if flags == 0 && first <= last && !process::concerns_range(first, last) {
        return call(first, last, flags);
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
    (first..=last.min(2)).for_each(|fd| _ = process::taking(fd as i32, false));
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
    note_fcntl(command);
    point(Point::Fcntl);
    if watches && door::is_ring(fd) {
        door::watch(fd, true);
    }
}

/// The program is about to call fcntl(2), of any descriptor.
#[inline]
pub fn note_fcntl(command: i32) {
    if matches!(command, libc::F_SETLK | libc::F_SETLKW) {
        files::note_lock();
    }
}

/// fcntl(2)'s F_SETOWN_EX, which the libc crate lacks.
const F_SETOWN_EX: i32 = 15;

fn is_open(fd: i32) -> bool {
    // SAFETY: F_GETFD only reads the descriptor's flags.
    unsafe { sys::call(libc::SYS_fcntl, [fd as usize, libc::F_GETFD as usize, 0, 0, 0, 0]) >= 0 }
}

/// A call answered `new` as a duplicate of `old`: a ring is known by that number too from now on.
pub fn note_duplicate(old: i32, new: i32) {
    if new >= 0 && new != old && door::is_ring(old) {
        entry::aside(|| door::duplicated(new));
    }
}

/// The program is about to close everything from `first` on: the pieces in which it may, without the engine's own numbers.
pub fn before_closing_from(first: u32) -> impl Iterator<Item = (u32, u32)> {
    entry::aside(|| before_close_range(first, u32::MAX));
    pieces(first, u32::MAX)
}
