//! Steps on descriptor numbers that do not belong to the program.

use crate::child::report;
use crate::program::*;
use anyring_test_kit::set_soft_limit;
use libc::{c_int, c_void};
use std::io::Write;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

/// The first of the numbers that the program never uses: it has fewer descriptors, and asks for no such number. If
/// such a number is open, it is the engine's.
pub const NOBODYS: c_int = 3072;
/// Number of these numbers: see `child::NUMBERS`.
const COUNT: c_int = 1024;

/// The numbers that were open at each check so far: one bit a number, from [`NOBODYS`] on. Numbers that come and go are
/// left alone: the engine does not yet own a descriptor at the instant of its creation. Relaxed: a hint.
static STAY: [AtomicU64; COUNT as usize / 64] = [const { AtomicU64::new(u64::MAX) }; COUNT as usize / 64];
/// Number of checks so far.
static LOOKS: AtomicU32 = AtomicU32::new(0);

/// True if the program is a guest. Relaxed: stored before any thread is made.
static IS_GUEST: AtomicBool = AtomicBool::new(false);

/// Says whether the program is a guest.
pub fn as_guest(is_guest: bool) {
    IS_GUEST.store(is_guest, Ordering::Relaxed);
}

/// Makes a call on every such number. It has to fail, as on a number that is not open. In a guest, calls that move data
/// are not made: they succeed (docs/limits.md).
pub fn name(call: u8) {
    if IS_GUEST.load(Ordering::Relaxed) && MOVE_DATA.contains(&call) {
        return;
    }
    // A call that closes waits for the fifth check: a number that lasted so long is hardly one that the engine is
    // about to close.
    let looks = LOOKS.fetch_add(1, Ordering::Relaxed);
    let too_early = looks < if ENDS.contains(&call) { 4 } else { 1 };
    for (word, stay) in (0..).zip(&STAY) {
        let first = NOBODYS + 64 * word;
        let open = (0..64).filter(|bit| is_open(first + bit)).fold(0, |bits, bit| bits | 1u64 << bit);
        let stay = open & stay.fetch_and(open, Ordering::Relaxed);
        // One finding is enough.
        if !too_early && (0..64).filter(|bit| stay & 1 << bit != 0).any(|bit| !is_refused(first + bit, call)) {
            return;
        }
    }
}

fn is_open(fd: c_int) -> bool {
    // SAFETY: only asks.
    unsafe { libc::fcntl(fd, libc::F_GETFD) >= 0 }
}

fn is_refused(fd: c_int, call: u8) -> bool {
    let mut found = None;
    // The engine owns a new descriptor a moment after its creation, so a call that succeeds is repeated. One that
    // closes is made once.
    for (call, times) in [(DUP, 2), (call, if ENDS.contains(&call) { 1 } else { 2 })] {
        for _ in 0..times {
            found = outcome_of(fd, call);
            if found.is_some() {
                std::thread::sleep(Duration::from_millis(2));
            } else {
                break;
            }
        }
    }
    let Some((what, answer, error)) = found else { return true };
    let mut place = [0; 64];
    let file = link_of(fd, &mut place);
    report(format_args!("number: {what} of {fd} ({file}), which is not the program's, answers {answer}, {error}"));
    false
}

const DUP: u8 = 11;
/// Calls after which the number names another file, or none.
const ENDS: [u8; 3] = [10, 16, 17];
/// Calls that read, write or send.
const MOVE_DATA: [u8; 4] = [3, 4, 8, 13];

/// Returns the call, its result and its error; `None` if the result is that of a number that is not open.
fn outcome_of(fd: c_int, call: u8) -> Option<(&'static str, c_int, c_int)> {
    let (mut data, one) = ([0u8; 8], 1 as c_int);
    let at = data.as_mut_ptr().cast::<c_void>();
    // SAFETY: locals. A success changes only the engine's descriptor, and is a finding.
    let (what, answer) = unsafe {
        match call {
            0 => ("F_SETFD", libc::fcntl(fd, libc::F_SETFD, 0)),
            1 => ("F_DUPFD", libc::fcntl(fd, libc::F_DUPFD, 10)),
            2 => ("FIONCLEX", libc::ioctl(fd, libc::FIONCLEX)),
            3 => ("write", libc::write(fd, at, 8) as c_int),
            4 => ("read", libc::read(fd, at, 8) as c_int),
            5 => ("ftruncate", libc::ftruncate(fd, 0)),
            6 => ("FIONREAD", libc::ioctl(fd, libc::FIONREAD, at)),
            7 => ("shutdown", libc::shutdown(fd, libc::SHUT_RDWR)),
            8 => ("send", libc::send(fd, at, 8, libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT) as c_int),
            9 => {
                let size = size_of::<c_int>() as u32;
                ("setsockopt", libc::setsockopt(fd, 1, libc::SO_RCVBUF, (&raw const one).cast(), size))
            }
            10 => ("close", libc::close(fd)),
            DUP => ("dup", libc::dup(fd)),
            12 => ("dup2", libc::dup2(fd, FIRST_VICTIM)),
            13 => ("pwrite", libc::pwrite(fd, at, 8, 0) as c_int),
            14 => {
                let flags = libc::MAP_SHARED;
                let mapped = libc::mmap(std::ptr::null_mut(), 4096, libc::PROT_READ, flags, fd, 0);
                ("mmap", if mapped == libc::MAP_FAILED { -1 } else { 0 })
            }
            15 => {
                let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: 0 };
                // The result is the same if the victim is no epoll set: EBADF comes first.
                ("epoll_ctl", libc::epoll_ctl(FIRST_VICTIM + 23, libc::EPOLL_CTL_ADD, fd, &mut event))
            }
            // A program may look for free numbers by dup2(2). The error must show it that this one is taken.
            16 => ("dup2 onto", if libc::dup2(FIRST_VICTIM, fd) < 0 { return None } else { 0 }),
            _ => {
                libc::close_range(fd as u32, fd as u32, 0);
                ("close_range", if is_open(fd) { return None } else { 0 })
            }
        }
    };
    // SAFETY: errno is the thread's own.
    let error = unsafe { *libc::__errno_location() };
    (answer >= 0 || error != libc::EBADF).then_some((what, answer, error))
}

/// The numbers 0 to 2 that the program has closed, one bit each. The Release store comes after the close, and
/// readers load with Acquire.
static CLOSED: AtomicU32 = AtomicU32::new(0);

/// Closes standard descriptors. Any file that the program opens from then on may get their numbers.
pub fn close_standard(numbers: u8) {
    for fd in (0..3).filter(|fd| numbers & 1 << fd != 0) {
        // SAFETY: nothing of this process's depends on it.
        unsafe { libc::close(fd) };
    }
    // Not before: text written to an open number would be printed.
    CLOSED.fetch_or(u32::from(numbers), Ordering::Release);
}

/// True if the program has closed this number.
pub fn was_closed(fd: c_int) -> bool {
    (0..3).contains(&fd) && CLOSED.load(Ordering::Acquire) & 1 << fd != 0
}

/// Writes to a standard number that the program has closed, as a program that logs does, and checks whose file it
/// reaches.
pub fn log() {
    for fd in (0..3).filter(|fd| was_closed(*fd)) {
        let mut place = [0; 64];
        if link_of(fd, &mut place).starts_with("/memfd:anyring") {
            report(format_args!("standard: memory of a ring has the number {fd}"));
        }
        let (line, flags) = ([0xffu8; 8], libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL);
        // SAFETY: a local. Neither call waits, whichever file has the number.
        unsafe {
            libc::pwrite(fd, line.as_ptr().cast(), line.len(), 0);
            libc::send(fd, line.as_ptr().cast(), line.len(), flags);
        }
    }
}

/// The descriptors that fill the table; -1 for none. Relaxed: only the thread that makes steps uses it.
static FILLED: [AtomicI32; 1024] = [const { AtomicI32::new(-1) }; 1024];

/// Takes every number below `limit` except the last `left`.
pub fn fill(limit: u32, left: u8) {
    set_soft_limit(libc::RLIMIT_NOFILE, u64::from(limit));
    // SAFETY: a constant path, and duplicates of what was opened, which nothing depends on.
    unsafe {
        let mut fd = libc::open(c"/dev/null".as_ptr(), libc::O_RDWR | libc::O_CLOEXEC);
        let free = FILLED.iter().filter(|filled| filled.load(Ordering::Relaxed) < 0);
        for filled in free {
            if fd < 0 {
                break;
            }
            filled.store(fd, Ordering::Relaxed);
            fd = libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, 10);
        }
        for filled in FILLED.iter().rev().filter(|filled| filled.load(Ordering::Relaxed) >= 0).take(left.into()) {
            libc::close(filled.swap(-1, Ordering::Relaxed));
        }
    }
}

/// Closes them again.
pub fn empty() {
    for fd in FILLED.iter().map(|filled| filled.swap(-1, Ordering::Relaxed)).filter(|fd| *fd >= 0) {
        // SAFETY: a descriptor that filled the table, or by now another one that nothing depends on.
        unsafe { libc::close(fd) };
    }
}

/// Returns the target of its link in /proc/self/fd.
fn link_of(fd: c_int, place: &mut [u8; 64]) -> &str {
    let mut path = [0u8; 32];
    let _ = write!(&mut path[..31], "/proc/self/fd/{fd}"); // it has room
                                                           // SAFETY: a path that ends in a zero, and a local to write to.
    let length = unsafe { libc::readlink(path.as_ptr().cast(), place.as_mut_ptr().cast(), place.len()) };
    core::str::from_utf8(place.get(..usize::try_from(length).unwrap_or(0)).unwrap_or_default()).unwrap_or_default()
}

/// Reports, in an executed program, descriptors that it inherited but that the program before did not open.
pub fn survivors() {
    for fd in (NOBODYS..NOBODYS + COUNT).filter(|fd| is_open(*fd)) {
        let mut place = [0; 64];
        let file = link_of(fd, &mut place);
        report(format_args!("number: {fd} ({file}), which the program did not open, is open in what it executed"));
    }
}
