//! Rings of polled devices (IORING_SETUP_IOPOLL, and HYBRID_IOPOLL). They take O_DIRECT transfers and little else,
//! and the program must ask for their completions.
//!
//! Outside the kernel a device's queue cannot be polled, so a worker waits for the transfer. The engine keeps the
//! result, as the kernel does, until a thread asks for it by io_uring_enter(2). While a thread asks, results go to
//! the CQ at once. With IORING_SETUP_SQPOLL the polling thread always asks. Errors from before the transfer, and
//! other operations, complete without being asked for.
//!
//! The same files can be polled as in the kernel: those opened with O_DIRECT on file systems that support polling. A
//! read also needs a device with queues for polling (`queue/io_poll` in sysfs). On another device it fails with
//! EOPNOTSUPP. A write does more than its transfer, so it is not polled, and succeeds (`iomap_dio_bio_iter` in
//! fs/iomap/direct-io.c).
//!
//! All of this state is part of a ring's, under the ring's lock.

use crate::issue::iopoll;
use crate::os::user_read;
use crate::ring::RingGuard;
use crate::wait::enter::Enter;
use crate::wait::enter_wait::{wait_until, WaitOptions};
use crate::Errno;
use anyring_abi::{GeteventsArg, IORING_ENTER_EXT_ARG, IORING_ENTER_EXT_ARG_REG};

/// Checks what `io_validate_ext_arg` in io_uring/io_uring.c checks of the extended argument. A polling wait uses
/// nothing else of that argument.
fn check_argument(call: &Enter) -> Result<(), Errno> {
    if call.flags & IORING_ENTER_EXT_ARG == 0 {
        return Ok(());
    }
    if call.flags & IORING_ENTER_EXT_ARG_REG != 0 || call.arg_size != size_of::<GeteventsArg>() {
        return Err(Errno::INVAL);
    }
    user_read::<GeteventsArg>(call.arg).map(|_| ())
}

/// Posts the results that are there. Returns the CQ total to sleep for, or `None` if there is nothing to wait for.
fn find(guard: &mut RingGuard, call: &Enter) -> Result<Option<u64>, Errno> {
    check_argument(call)?;
    guard.flush_overflow();
    if !guard.cq_is_empty() {
        return Ok(None);
    }
    let before = guard.cq_tail();
    guard.collect();
    iopoll::post_found(guard);
    let found = guard.cq_tail().wrapping_sub(before);
    let wanted = call.min_complete.min(guard.memory.view.layout().cq_entries);
    let missing = wanted.saturating_sub(found).min(iopoll::transfers(guard));
    Ok((missing != 0).then(|| guard.cq_total() + u64::from(missing)))
}

/// Serves IORING_ENTER_GETEVENTS on a ring of polled devices, without a time limit. Returns when the CQ is not empty,
/// when nothing is in flight, or when `min_complete` results were found. Source: `io_iopoll_check` in
/// io_uring/io_uring.c.
pub fn ask(mut guard: RingGuard, call: &Enter) -> Result<(), Errno> {
    let (ring, clock, cookie, min_complete) = (guard.ring(), guard.clock, guard.cookie, call.min_complete);
    // This thread counts as asking before `find` counts the transfers. So a result that arrives between the two is
    // posted, not kept for a thread that asks.
    guard.count_asking(1);
    let target = match find(&mut guard, call) {
        Ok(Some(target)) => target,
        answer => {
            guard.count_asking(-1);
            guard.update_readability();
            guard.call_helper();
            return answer.map(|_| ());
        }
    };
    let options = WaitOptions { min_complete, deadline_ns: None, minimum_ns: None, clock, sigmask: None };
    let waited = wait_until(guard, &options, Some(target));
    if let Ok(mut guard) = ring.lock() {
        // If the ring ended during the wait, this may be another ring in its place, with threads of its own that ask.
        if guard.cookie == cookie {
            guard.count_asking(-1);
        }
    }
    waited
}
