//! io_uring_enter(2).

use super::{LockFailure, Ring, RingGuard};
use crate::os::{check, syscall, user_read, Os, Sys};
use crate::path::driver::{wait, Wish};
use crate::path::sqpoll;
use crate::request::timer::Clock;
use crate::{process, stats, Errno};
use anyring_abi::*;
use core::sync::atomic::Ordering;

/// Flags that this engine serves; the others answer EINVAL, as on a kernel that does not have them.
const FLAGS: u32 = IORING_ENTER_GETEVENTS
    | IORING_ENTER_SQ_WAKEUP
    | IORING_ENTER_SQ_WAIT
    | IORING_ENTER_EXT_ARG
    | IORING_ENTER_REGISTERED_RING
    | IORING_ENTER_ABS_TIMER
    | IORING_ENTER_NO_IOWAIT;

/// The call's arguments, as in io_uring_enter(2).
#[derive(Clone, Copy)]
#[allow(missing_docs)] // io_uring_enter(2)
pub struct Enter {
    pub fd: u32,
    pub to_submit: u32,
    pub min_complete: u32,
    pub flags: u32,
    pub arg: u64,
    pub arg_size: usize,
}

/// Submits and waits: how many SQEs were consumed.
pub fn enter(call: &Enter) -> Result<u32, Errno> {
    process::notice_fork();
    if call.flags & !FLAGS != 0 {
        return Err(Errno::INVAL);
    }
    let ring = named_ring(call)?;
    if ring.broken.load(Ordering::Relaxed) {
        return Err(Errno::IO);
    }
    if ring.has(IORING_SETUP_SQPOLL) {
        return sqpoll::enter(ring, call);
    }
    let mut guard = match ring.lock() {
        Ok(guard) => guard,
        // A signal handler interrupted the engine on this very ring: the interrupted call consumes these SQEs before it
        // lets go, so they are as good as submitted; waiting is impossible.
        Err(LockFailure::Reentry) if call.to_submit != 0 => {
            ring.owed.fetch_add(call.to_submit, Ordering::Relaxed);
            return Ok(call.to_submit);
        }
        Err(LockFailure::Reentry) => return Err(Errno::INTR),
        Err(LockFailure::Ended) => return Err(Errno::BADF),
        Err(LockFailure::Crowded) => return Err(Errno::NOMEM),
    };
    if guard.closed {
        return Err(Errno::BADF);
    }
    if guard.disabled {
        return Err(Errno::BADFD);
    }
    stats::stats().enters.fetch_add(1, Ordering::Relaxed);
    let mut submitted = 0;
    if call.to_submit != 0 {
        guard.check_issuer()?;
        submitted = guard.submit(call.to_submit)?;
        guard.settle();
        if submitted != call.to_submit {
            guard.call_helper();
            return Ok(submitted);
        }
    }
    if call.flags & IORING_ENTER_GETEVENTS == 0 {
        guard.call_helper();
        return Ok(submitted);
    }
    match wait_for_events(guard, call) {
        Err(error) if submitted == 0 => Err(error),
        _ => Ok(submitted),
    }
}

/// IORING_ENTER_GETEVENTS: waits as the call asks.
pub fn wait_for_events(mut guard: RingGuard, call: &Enter) -> Result<(), Errno> {
    match guard.check_waiter().and_then(|()| wish(call)) {
        Ok(wish) => wait(guard, &wish),
        Err(error) => {
            guard.call_helper();
            Err(error)
        }
    }
}

/// The ring that the call names, by number or by the calling thread's registration.
#[inline]
fn named_ring(call: &Enter) -> Result<&'static Ring, Errno> {
    let fd = if call.flags & IORING_ENTER_REGISTERED_RING != 0 {
        if call.fd as usize >= process::REGISTERED_RINGS {
            return Err(Errno::INVAL);
        }
        process::registered_ring_number(call.fd).ok_or(Errno::BADF)?
    } else {
        call.fd as i32
    };
    process::ring(fd).or_else(|| process::adopt(fd)).ok_or_else(|| not_a_ring(fd))
}

/// Why a number that names no ring is refused: an open descriptor with EOPNOTSUPP, a closed one with EBADF.
pub fn not_a_ring(fd: i32) -> Errno {
    let args = [fd as usize, libc::F_GETFD as usize, 0, 0, 0, 0];
    check(syscall(libc::SYS_fcntl, args)).err().unwrap_or(Errno::OPNOTSUPP)
}

impl RingGuard {
    /// `EEXIST` when another thread is this ring's only submitter.
    #[inline]
    fn check_issuer(&mut self) -> Result<(), Errno> {
        if self.issuer == 0 || self.issuer == process::thread_id() {
            return Ok(());
        }
        Err(Errno::EXIST)
    }

    /// With `IORING_SETUP_DEFER_TASKRUN` only the submitter may wait.
    fn check_waiter(&mut self) -> Result<(), Errno> {
        if self.ring().has(IORING_SETUP_DEFER_TASKRUN) {
            return self.check_issuer();
        }
        Ok(())
    }
}

/// What there is to wait for; reads the extended argument.
fn wish(call: &Enter) -> Result<Wish, Errno> {
    let min_complete = call.min_complete;
    let mut wish = Wish { min_complete, deadline_ns: None, clock: Clock::Monotonic, sigmask: None };
    let (mask, mask_size, time) = if call.flags & IORING_ENTER_EXT_ARG != 0 {
        if call.arg_size != size_of::<GeteventsArg>() {
            return Err(Errno::INVAL);
        }
        let arg: GeteventsArg = user_read(call.arg)?;
        if arg.min_wait_usec != 0 {
            return Err(Errno::INVAL); // a pad field to kernels without IORING_FEAT_MIN_TIMEOUT
        }
        (arg.sigmask, arg.sigmask_sz as usize, arg.ts)
    } else {
        (call.arg, call.arg_size, 0)
    };
    if mask != 0 {
        if mask_size != 8 {
            return Err(Errno::INVAL);
        }
        // SIGSYS stays deliverable: the raw entry point lives on it.
        wish.sigmask = Some(user_read::<u64>(mask)? & !(1 << (libc::SIGSYS - 1)));
    }
    if time != 0 {
        let time: Timespec = user_read(time)?;
        let span_ns = (time.tv_sec.max(0) as u64).saturating_mul(1_000_000_000);
        let span_ns = span_ns.saturating_add(time.tv_nsec.max(0) as u64);
        let absolute = call.flags & IORING_ENTER_ABS_TIMER != 0;
        let start_ns = if absolute { 0 } else { Sys::clock_ns(libc::CLOCK_MONOTONIC) };
        wish.deadline_ns = Some(start_ns.saturating_add(span_ns));
    }
    Ok(wish)
}
