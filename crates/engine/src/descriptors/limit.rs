//! Raises resource limits of the process for a moment, and keeps a number in reserve for a full descriptor table.

use super::{mark_in_flight, remember, Own, Use};
use crate::lock::Lock;
use crate::os::{calls, changes, check, syscall};
use crate::thread::tables;
use crate::Errno;
use core::sync::atomic::{AtomicI32, Ordering::Relaxed};
use rustix::fd::{AsRawFd, BorrowedFd, IntoRawFd};
use rustix::process::{Resource, Rlimit};

/// Held while a limit may be raised, since another thread would otherwise take the raised limit for the program's.
static RAISED: Lock<()> = Lock::new(());

/// The number kept in reserve, whose file nobody uses. -1 if there is none, or a request works on it.
static KEPT: AtomicI32 = AtomicI32::new(-1);

/// Resets the lock, in a forked child, since a thread of the parent may have held it.
///
/// # Safety
/// Only the forking thread may exist in the process.
pub unsafe fn reset_after_fork() {
    // SAFETY: the contract; there is no value.
    unsafe { RAISED.reset() };
}

/// Runs `work` under a limit of at least `least`. `None` if the hard limit is lower.
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

/// True if [`keep_number`] has something to do: no number is in reserve.
#[inline]
pub fn keeps_none() -> bool {
    KEPT.load(Relaxed) < 0
}

/// Keeps a number in reserve, as a duplicate of `source`, which belongs to the engine. If the program closes a
/// request's file while the table is full, the request takes that number. On failure no number is kept. None is kept
/// either if threads have tables of their own, where the number names another file.
#[cold]
pub fn keep_number(source: i32) {
    if source < 0 || tables::differ() {
        return;
    }
    // SAFETY: open as long as the caller, which holds its ring, is in this call.
    let source = unsafe { BorrowedFd::borrow_raw(source) };
    let Ok(kept) = super::duplicate_to_top(source, Use::Kept) else { return };
    // Another thread may have been faster.
    if KEPT.compare_exchange(-1, kept.as_raw_fd(), Relaxed, Relaxed).is_ok() {
        let _ = kept.into_raw_fd();
    }
}

/// Closes the number in reserve, since the process has no ring any more.
pub fn give_back() {
    let kept = KEPT.swap(-1, Relaxed);
    if kept >= 0 {
        super::close(kept);
    }
}

/// Makes a duplicate when the table is full. It gets a number above the limit, which is raised as far as possible, or
/// the number in reserve.
#[cold]
pub(super) fn duplicate_beyond(fd: BorrowedFd<'_>, of_use: Use) -> Result<Own, Errno> {
    changes::change(|| {
        let own = find_number_beyond(fd)?;
        if of_use == Use::InFlight {
            mark_in_flight(own.as_raw_fd());
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
