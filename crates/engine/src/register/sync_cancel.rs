//! IORING_REGISTER_SYNC_CANCEL: a cancellation that returns once the requests that it found have ended.

use crate::op::cancel::Cancel;
use crate::op::Verdict;
use crate::os::user_read;
use crate::os::Clock;
use crate::ring::RingGuard;
use crate::wait::enter::deadline_ns;
use crate::wait::enter_wait::{wait_until, WaitOptions};
use crate::Errno;
use anyring_abi::Timespec;

/// `struct io_uring_sync_cancel_reg` in words of 8 bytes: addr; fd and flags; the timeout; opcode and padding; padding.
type Argument = [u64; 8];

/// The interval of checks. They are needed since a request at a worker may end without a CQE, which wakes no waiter.
const CHECK_NS: u64 = 10_000_000;

/// Ends the requests that the argument describes. If a request cannot be stopped, waits for it until the argument's
/// timeout (`ETIME`). A signal ends the wait (`EINTR`). Source: io_uring_register(2); `io_sync_cancel` in
/// io_uring/cancel.c.
pub fn cancel(mut guard: RingGuard, arg: u64) -> Result<u32, Errno> {
    let [user_data, keys, seconds, nanoseconds, opcode, padding @ ..]: Argument = user_read(arg)?;
    if opcode >> 8 != 0 || padding != [0; 3] {
        return Err(Errno::INVAL);
    }
    let cancel = Cancel::with_flags((keys >> 32) as u32, user_data, keys as i32, opcode as u32)?;
    guard.catch_up();
    let mut answer = ended(guard.cancel_requests(&cancel));
    if answer != Err(Errno::ALREADY) {
        return answer;
    }
    let clock = Clock::Monotonic;
    let limit = Timespec { tv_sec: seconds as i64, tv_nsec: nanoseconds as i64 };
    let is_endless = (limit.tv_sec, limit.tv_nsec) == (-1, -1);
    let end_ns = deadline_ns(limit, true, clock.now_ns()).filter(|_| !is_endless).unwrap_or(u64::MAX);
    let (ring, life) = (guard.ring(), guard.cookie);
    while answer == Err(Errno::ALREADY) {
        let now_ns = clock.now_ns();
        if now_ns >= end_ns {
            return Err(Errno::TIME);
        }
        let until_ns = end_ns.min(now_ns.saturating_add(CHECK_NS));
        let options =
            WaitOptions { min_complete: 1, deadline_ns: Some(until_ns), minimum_ns: None, clock, sigmask: None };
        let next = guard.cq_total() + 1;
        match wait_until(guard, &options, Some(next)) {
            Ok(()) | Err(Errno::TIME) => {}
            Err(error) => return Err(error),
        }
        // During the wait another thread may have closed the ring, and made another ring in its place.
        guard = ring.lock().ok().filter(|guard| guard.cookie == life).ok_or(Errno::BADF)?;
        answer = ended(guard.cancel_requests(&cancel));
    }
    match answer {
        Ok(_) | Err(Errno::NOENT) => Ok(0),
        error => error,
    }
}

/// Returns the number of requests that a cancellation ended, or its error.
fn ended(verdict: Verdict) -> Result<u32, Errno> {
    match verdict {
        Verdict::Done(count @ 0..) => Ok(count as u32),
        Verdict::Done(error) => Err(Errno::from_raw_os_error(-error)),
        _ => Err(Errno::INVAL),
    }
}
