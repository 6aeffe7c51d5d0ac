//! The numbers of the engine's descriptors in the program's table.
//!
//! The engine's private descriptors have the highest numbers of the table, so that the program's next open gets the
//! number it expects. Ring descriptors, which the program uses, get numbers from [`RING_NUMBERS`]. Its first 512
//! numbers work with select(2). If all of [`RING_NUMBERS`] are taken, a ring gets a number from the rest of
//! [`KNOWN_NUMBERS`].

mod description;
pub mod ends;
pub mod level;
pub mod limit;
pub mod numbers;

pub(crate) use description::ASKS_SOCKETS;
pub use description::{cookie_of, same_description};
pub use ends::pipe_identity;
pub use numbers::{closes_are_seen, is_ring, record_use, set_closes_are_seen};

use crate::mutation::{mutated, Mutation};
use crate::os::calls;
use crate::os::{changes, for_now, handlers, standard};
use crate::os::{ForNow, Os, Sys};
use crate::sync::Hook;
use crate::thread::tables;
use crate::Errno;
use core::ops::Range;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering::Relaxed};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use rustix::process::Resource;

/// Called when an operation is about to close one of the program's numbers, to notify rings with requests on it.
pub static CLOSING: Hook<i32, ()> = Hook::new();

/// Numbers that ring descriptors may have.
pub const RING_NUMBERS: Range<i32> = 512..4096;
/// Numbers among which the seccomp filter looks for rings. They include those that rings get in a process with
/// thousands of open descriptors.
pub const KNOWN_NUMBERS: Range<i32> = RING_NUMBERS.start..65_536;

/// The offset of the first byte that the engine's own POSIX locks are on (`shared::member`). No program has a file of
/// that size.
pub const LOCKS_FROM: u64 = 1 << 62;

/// One past the highest number that the engine uses for itself. A table with higher numbers would cost kernel memory
/// and slow every fork.
const TOP: i32 = 4096;
/// Number of descriptors, directly below the limit, within which the engine tries to stay.
const TOP_ROOM: i32 = 512;

/// Bit n: number n belongs to the engine. Higher numbers are not recorded. Relaxed: a bit is set before the
/// descriptor is used, and is only compared with numbers that the program itself passes in.
static OWN: [AtomicU64; 1024] = [const { AtomicU64::new(0) }; 1024];
/// One past the highest number that ever belonged to the engine. Range searches of [`OWN`] stop there.
static OWN_END: AtomicU32 = AtomicU32::new(0);

/// Bit n: number n is a private duplicate that a request in flight works on. A forked child has no such requests.
static IN_FLIGHT: [AtomicU64; 1024] = [const { AtomicU64::new(0) }; 1024];
/// One past the highest number that was ever in flight.
static IN_FLIGHT_END: AtomicU32 = AtomicU32::new(0);

/// A descriptor that belongs to the engine, closed when this is dropped.
pub struct Own(RawFd);

impl AsRawFd for Own {
    fn as_raw_fd(&self) -> RawFd {
        self.0
    }
}

impl AsFd for Own {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the number is open until this is dropped.
        unsafe { BorrowedFd::borrow_raw(self.0) }
    }
}

impl IntoRawFd for Own {
    /// Returns the number. From now on the caller must [`close`] it.
    fn into_raw_fd(self) -> RawFd {
        core::mem::ManuallyDrop::new(self).0
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        close(self.0);
    }
}

fn own_bit(fd: i32) -> Option<(&'static AtomicU64, u64)> {
    let word = OWN.get(usize::try_from(fd).ok()? / 64)?;
    Some((word, 1 << (fd % 64)))
}

/// Records that the number belongs to the engine. False if that was recorded already.
fn remember(fd: i32) -> bool {
    let Some((word, bit)) = own_bit(fd) else { return true };
    OWN_END.fetch_max(fd as u32 + 1, Relaxed);
    FLOOR.fetch_min(fd, Relaxed);
    word.fetch_or(bit, Relaxed) & bit == 0
}

/// True if number `fd` belongs to the engine, so the program must not close or replace it.
#[inline]
pub fn is_own(fd: i32) -> bool {
    own_bit(fd).is_some_and(|(word, bit)| word.load(Relaxed) & bit != 0)
}

/// Returns a number that the program has named. An error if it is the engine's own: to the program it is not open.
pub fn of_program(fd: i32) -> Result<i32, Errno> {
    if is_own(fd) {
        return Err(Errno::BADF);
    }
    Ok(fd)
}

/// The lowest number that may be the engine's own, now or soon. Relaxed, as [`OWN`].
static FLOOR: AtomicI32 = AtomicI32::new(i32::MAX);

/// True if number `fd` may be the engine's own, or may become so in another thread's call. A thread may also be about to
/// move a descriptor away from that number.
#[inline]
pub fn may_be_own(fd: i32) -> bool {
    fd >= FLOOR.load(Relaxed) || changes::are_under_way()
}

/// True if the engine has, or had, a number of its own.
#[inline]
pub fn have_been() -> bool {
    FLOOR.load(Relaxed) != i32::MAX
}

/// Returns the lowest number in `first..=last` that belongs to the engine. Costs one load in a process where no
/// number ever did.
#[inline]
pub fn next_own(first: u32, last: u32) -> Option<u32> {
    numbers::next_bit(&OWN, first..OWN_END.load(Relaxed).min(last.saturating_add(1)))
}

/// Moves a descriptor to the top of the table (close-on-exec), and records that it belongs to the engine.
pub fn to_top(fd: ForNow) -> Result<Own, Errno> {
    let moved = duplicate_to_top(fd.as_fd(), Use::Kept);
    #[cfg(debug_assertions)]
    if moved.is_err() {
        standard::lowest::record_failure();
    }
    moved
}

/// The lowest of the engine's own numbers; 0 before it is known. Relaxed: any value it ever had will do. It is
/// derived from the limit on descriptors, which is not read for each number. If the limit was lowered, the kernel
/// refuses the number, and the limit is read again.
static LOWEST: AtomicI32 = AtomicI32::new(0);

/// Computes the lowest of the engine's own numbers from the present limit.
#[cold]
fn find_lowest() -> i32 {
    let limit = calls::getrlimit(Resource::Nofile).current.map_or(TOP, |n| n.min(TOP as u64) as i32);
    // Never a standard number, however low the limit once was, since recorded numbers outlive the limit.
    let mut lowest = (limit - TOP_ROOM).max(limit / 2).max(standard::END);
    if mutated(Mutation::OwnNumbersAreLow) {
        lowest = lowest.min(3);
    }
    LOWEST.store(lowest, Relaxed);
    FLOOR.fetch_min(lowest, Relaxed);
    lowest
}

/// The purpose of one of the engine's own numbers.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Use {
    /// Forked children may keep it.
    Kept,
    /// Requests in flight use it, so a forked child closes its copy ([`mark_in_flight`]).
    InFlight,
}

fn duplicate_to_top(fd: BorrowedFd<'_>, of_use: Use) -> Result<Own, Errno> {
    changes::change(|| {
        let own = find_number(fd)?;
        if of_use == Use::InFlight {
            mark_in_flight(own.0);
        }
        Ok(own)
    })
}

fn find_number(fd: BorrowedFd<'_>) -> Result<Own, Errno> {
    let (mut lowest, mut is_known) = match LOWEST.load(Relaxed) {
        0 => (find_lowest(), true),
        lowest => (lowest, false),
    };
    loop {
        match calls::fcntl_dupfd_cloexec(fd, lowest) {
            // The number was free in this thread's table but is recorded already, so it is open in another thread's
            // table.
            Ok(moved) if !remember(moved.as_raw_fd()) && tables::differ() => {
                lowest = moved.as_raw_fd() + 1;
                close_quietly(moved);
            }
            Ok(moved) => return Ok(Own(moved.into_raw_fd())),
            Err(Errno::MFILE | Errno::INVAL) if !is_known => (lowest, is_known) = (find_lowest(), true),
            Err(Errno::MFILE | Errno::INVAL) if lowest > standard::END => lowest = (lowest / 2).max(standard::END),
            Err(Errno::MFILE | Errno::INVAL) => return Err(Errno::MFILE),
            Err(error) => return Err(error),
        }
    }
}

/// Moves a descriptor into [`RING_NUMBERS`]. If the limit rules that range out, moves it to any free number.
pub fn to_ring_number(fd: ForNow) -> Result<ForNow, Errno> {
    let mut lowests = [RING_NUMBERS.start, 64, 0].into_iter();
    let mut next = lowests.next();
    while let Some(lowest) = next.take() {
        match calls::fcntl_dupfd_cloexec(&fd, lowest) {
            // In another thread's table, this is a ring's number.
            Ok(moved) if tables::differ() && is_ring(moved.as_raw_fd()) => {
                next = Some(moved.as_raw_fd() + 1);
                close_quietly(moved);
                continue;
            }
            Ok(moved) => return Ok(for_now(moved)),
            Err(Errno::MFILE | Errno::INVAL) => next = lowests.next(),
            Err(error) => return Err(error),
        }
    }
    Err(Errno::MFILE)
}

/// Fails with `EBADF` if the number is not open.
pub fn check_open(fd: i32) -> Result<(), Errno> {
    let args = [fd as usize, libc::F_GETFD as usize, 0, 0, 0, 0];
    crate::os::check(crate::os::syscall(libc::SYS_fcntl, args)).map(|_| ())
}

/// Returns the `O_*` flags of the description that `fd` names (F_GETFL of fcntl(2)).
pub fn status_flags(fd: i32) -> Result<i32, Errno> {
    let args = [fd as usize, libc::F_GETFL as usize, 0, 0, 0, 0];
    crate::os::check(crate::os::syscall(libc::SYS_fcntl, args)).map(|flags| flags as i32)
}

/// True if `fd` names a description with O_NONBLOCK.
pub fn is_nonblocking(fd: i32) -> bool {
    status_flags(fd).is_ok_and(|flags| flags & libc::O_NONBLOCK != 0)
}

/// Makes a private duplicate of one of the program's descriptors, at the top of the table.
pub fn duplicate(fd: i32) -> Result<i32, Errno> {
    duplicate_for(fd, Use::Kept)
}

/// Makes a private duplicate for a request in flight: see [`mark_in_flight`].
pub fn duplicate_in_flight(fd: i32) -> Result<i32, Errno> {
    duplicate_for(fd, Use::InFlight)
}

fn duplicate_for(fd: i32, of_use: Use) -> Result<i32, Errno> {
    if fd < 0 {
        return Err(Errno::BADF);
    }
    // SAFETY: only borrowed for the call. A number that is not open makes the call fail with EBADF.
    let borrowed = unsafe { BorrowedFd::borrow_raw(fd) };
    // In one step, since closing an intermediate duplicate would give up the program's POSIX locks on the file.
    let mut duplicate = duplicate_to_top(borrowed, of_use);
    if matches!(duplicate, Err(Errno::MFILE)) && handlers::has_left() {
        handlers::do_what_is_left(); // closes files, perhaps those that requests were done with
        duplicate = duplicate_to_top(borrowed, of_use);
    }
    if matches!(duplicate, Err(Errno::MFILE)) {
        duplicate = limit::duplicate_beyond(borrowed, of_use);
    }
    Ok(duplicate?.into_raw_fd())
}

/// Records that a request in flight works on `fd`, one of the engine's own numbers, until that is closed.
pub fn mark_in_flight(fd: i32) {
    if let Some(word) = IN_FLIGHT.get(fd as usize / 64) {
        word.fetch_or(1 << (fd % 64), Relaxed);
        IN_FLIGHT_END.fetch_max(fd as u32 + 1, Relaxed);
    }
}

/// Closes, in a forked child, the duplicates that the parent's requests in flight work on. Nothing else in the child
/// knows their numbers.
pub fn close_in_flight() {
    if mutated(Mutation::ChildrenKeepFilesInFlight) {
        return;
    }
    for fd in 0..IN_FLIGHT_END.load(Relaxed) {
        if IN_FLIGHT[fd as usize / 64].load(Relaxed) & (1 << (fd % 64)) != 0 {
            close(fd as i32);
        }
    }
}

/// Sets whether [`close`] does nothing. A forked child that shares its parent's descriptors sets it while it forgets
/// the parent's state.
pub fn set_forgetting(forgetting: bool) {
    IS_FORGETTING.store(forgetting, Relaxed);
}

static IS_FORGETTING: AtomicBool = AtomicBool::new(false);

/// Closes one of the engine's own descriptors.
pub fn close(fd: i32) {
    if IS_FORGETTING.load(Relaxed) {
        return;
    }
    changes::change(|| {
        if let Some((word, bit)) = own_bit(fd) {
            word.fetch_and(!bit, Relaxed);
            let in_flight = &IN_FLIGHT[fd as usize / 64];
            if in_flight.load(Relaxed) & bit != 0 {
                in_flight.fetch_and(!bit, Relaxed);
            }
        }
        Sys::close(fd);
    });
}

/// Replaces number `fd`, which the program is about to close or reuse, by a new eventfd that nobody uses. If none can
/// be made (the table may be full), replaces it by `other`, which is no longer used.
pub fn put_nothing(fd: i32, other: i32) {
    let nothing = calls::eventfd(0, rustix::event::EventfdFlags::CLOEXEC);
    let from = nothing.as_ref().map_or(other, |nothing| nothing.as_raw_fd());
    crate::os::syscall(libc::SYS_dup3, [from as usize, fd as usize, libc::O_CLOEXEC as usize, 0, 0, 0]);
}

/// Closes a number without calling a symbol that anyring interposes.
pub fn close_quietly(fd: OwnedFd) {
    Sys::close(fd.into_raw_fd());
}

/// Takes ownership of a number that a system call has just returned.
pub fn owned(fd: usize) -> OwnedFd {
    // SAFETY: the caller passes a descriptor that the kernel has just made for it.
    unsafe { OwnedFd::from_raw_fd(fd as i32) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_numbers_are_found_until_they_are_closed() {
        let file = rustix::fs::open("/dev/null", rustix::fs::OFlags::RDONLY, rustix::fs::Mode::empty());
        let own = to_top(for_now(file.expect("open /dev/null"))).expect("room at the top");
        let number = own.as_raw_fd() as u32;
        assert!(is_own(number as i32));
        assert_eq!(next_own(number, number), Some(number));
        assert_eq!(next_own(number, u32::MAX), Some(number));
        assert!(next_own(0, u32::MAX).is_some_and(|first| first <= number));
        assert_eq!(next_own(number + 1, number), None);
        drop(own);
        assert!(!is_own(number as i32) && !is_own(-1) && !is_own(i32::MAX));
        assert_eq!(next_own(number, number), None);
    }

    #[test]
    fn own_numbers_stay_below_a_limit_that_became_lower() {
        let child = || {
            let open = || rustix::fs::open("/dev/null", rustix::fs::OFlags::RDONLY, rustix::fs::Mode::empty());
            let own_number = || open().map(for_now).and_then(to_top).map_or(-1, |own| own.as_raw_fd());
            let high = own_number();
            let limit = calls::getrlimit(Resource::Nofile);
            let lower = rustix::process::Rlimit { current: Some(high as u64 / 2), ..limit };
            if calls::setrlimit(Resource::Nofile, lower).is_err() {
                return 1;
            }
            let low = own_number();
            u8::from(!(high / 4..high / 2).contains(&low))
        };
        assert_eq!(crate::os::in_child::in_child(child), 0);
    }
}
