//! Limits of the process that stand in the way for a moment, and the number that is kept for when there is no other.

use super::{forks, note_in_flight, remember, Own, Use};
use crate::lock::Lock;
use crate::os::{calls, check, syscall};
use crate::thread::tables;
use crate::Errno;
use core::sync::atomic::{AtomicI32, Ordering::Relaxed};
use rustix::fd::{AsRawFd, BorrowedFd, IntoRawFd};
use rustix::process::{Resource, Rlimit};

/// Held while a limit may be raised: another would take the raised one for the program's.
static RAISED: Lock<()> = Lock::new(());

/// The number that is kept, which means nothing; -1 where there is none, or a request works on it.
static KEPT: AtomicI32 = AtomicI32::new(-1);

/// In a forked child: whoever held the lock is the parent's.
///
/// # Safety
/// Only the forking thread may exist in the process.
pub unsafe fn reset_after_fork() {
    // SAFETY: the contract; there is no value.
    unsafe { RAISED.reset() };
}

/// Runs `work` under a limit of at least `least`. None where the hard limit is lower.
pub fn with_raised<T>(
    resource: Resource,
    least: u64,
    work: impl FnOnce() -> Result<T, Errno>,
) -> Option<Result<T, Errno>> {
    let _one = RAISED.lock();
    let limit = calls::getrlimit(resource);
    if limit.current.is_none_or(|current| current >= least) {
        return Some(work());
    }
    calls::setrlimit(resource, Rlimit { current: Some(least), ..limit }).ok()?;
    let answer = work();
    Some(calls::setrlimit(resource, limit).and(answer))
}

/// Whether [`keep_number`] has something to do.
#[inline]
pub fn keeps_none() -> bool {
    KEPT.load(Relaxed) < 0
}

/// Keeps a number, for a request whose file the program closes when the table is full: a duplicate of `source`, which is ours.
/// What cannot be had is done without, and so where threads have tables of their own, in which the number is another file's.
#[cold]
pub fn keep_number(source: i32) {
    if source < 0 || tables::differ() {
        return;
    }
    // SAFETY: open while the caller, who has its ring, is here.
    let source = unsafe { BorrowedFd::borrow_raw(source) };
    let Ok(kept) = super::duplicate_to_top(source, Use::Kept) else { return };
    // Another thread may be faster.
    if KEPT.compare_exchange(-1, kept.as_raw_fd(), Relaxed, Relaxed).is_ok() {
        let _ = kept.into_raw_fd();
    }
}

/// The process has no ring any more.
pub fn give_back() {
    let kept = KEPT.swap(-1, Relaxed);
    if kept >= 0 {
        super::close(kept);
    }
}

/// A duplicate where the table is full: above the limit, which is raised as far as it may be, or under the number that is kept.
#[cold]
pub(super) fn duplicate_beyond(fd: BorrowedFd<'_>, of_use: Use) -> Result<Own, Errno> {
    forks::change(|| {
        let own = find_number_beyond(fd)?;
        if of_use == Use::InFlight {
            note_in_flight(own.as_raw_fd());
        }
        Ok(own)
    })
}

fn find_number_beyond(fd: BorrowedFd<'_>) -> Result<Own, Errno> {
    let limit = calls::getrlimit(Resource::Nofile);
    if let (Some(current), hard) = (limit.current, limit.maximum.unwrap_or(u64::MAX)) {
        let least = (current + 1).min(hard);
        let above = || calls::fcntl_dupfd_cloexec(fd, current as i32);
        if let Some(Ok(duplicate)) =
            (least > current).then(|| with_raised(Resource::Nofile, least, above)).flatten()
        {
            remember(duplicate.as_raw_fd());
            return Ok(Own(duplicate.into_raw_fd()));
        }
    }
    let kept = if tables::differ() { -1 } else { KEPT.swap(-1, Relaxed) };
    if kept < 0 {
        return Err(Errno::MFILE);
    }
    let args = [fd.as_raw_fd() as usize, kept as usize, libc::O_CLOEXEC as usize, 0, 0, 0];
    check(syscall(libc::SYS_dup3, args)).map(|_| Own(kept)).inspect_err(|_| KEPT.store(kept, Relaxed))
}
