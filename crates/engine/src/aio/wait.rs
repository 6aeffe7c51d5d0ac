//! io_getevents(2) and io_pgetevents(2).

use super::{find, lock};
use crate::os::user_read;
use crate::os::Clock;
use crate::ring::{Ring, RingGuard};
use crate::wait::enter_wait::{wait_until, WaitOptions};
use crate::{thread, Errno};
use anyring_abi::{IoEvent, Timespec};

/// Arguments of io_getevents(2), as the program passed them.
#[derive(Debug, Clone, Copy)]
pub struct Wait {
    /// The context.
    pub context: u64,
    /// The number of events to wait for.
    pub at_least: i64,
    /// The number of events that `events` has room for.
    pub at_most: i64,
    /// Address of an array of `struct io_event`.
    pub events: u64,
    /// Address of a relative `struct timespec`, or 0.
    pub timeout: u64,
}

/// Reads events, and waits for the least number of them. Returns the number of events read.
///
/// # Errors
/// Those of io_getevents(2): FAULT, INVAL, INTR if a signal came before any event.
pub fn io_getevents(wait: &Wait) -> Result<u64, Errno> {
    read_events(wait, span_ns(wait.timeout)?, None)
}

/// Does the same as [`io_getevents`], with another signal mask while it waits. `mask` is the address of a `struct
/// __aio_sigset`, or 0.
///
/// # Errors
/// Also FAULT and INVAL for that structure.
pub fn io_pgetevents(wait: &Wait, mask: u64) -> Result<u64, Errno> {
    let span_ns = span_ns(wait.timeout)?;
    let sigmask = match mask {
        0 => None,
        mask => match user_read::<[u64; 2]>(mask)? {
            [0, _] => None,
            [mask, 8] => Some(thread::mask_of_wait(user_read::<u64>(mask)?)),
            _ => return Err(Errno::INVAL),
        },
    };
    read_events(wait, span_ns, sigmask)
}

/// The seconds from which on the kernel has no timeout (`KTIME_SEC_MAX`).
const ENDLESS_S: i64 = i64::MAX / 1_000_000_000;

/// Returns the timeout. `None` without a timeout. A negative timeout never expires. In the kernel its sum with the
/// present time counts as an overflow (`ktime_add_safe` in kernel/time/hrtimer.c). The product of the seconds may
/// overflow, too, and is then cut off as in the kernel (`ktime_set` in include/linux/ktime.h).
fn span_ns(timeout: u64) -> Result<Option<u64>, Errno> {
    if timeout == 0 {
        return Ok(None);
    }
    let time: Timespec = user_read(timeout)?;
    let span_ns = time.tv_sec.wrapping_mul(1_000_000_000).wrapping_add(time.tv_nsec);
    Ok(u64::try_from(span_ns).ok().filter(|_| time.tv_sec < ENDLESS_S))
}

/// Serves io_getevents(2) and io_pgetevents(2). Source: `do_io_getevents` and `read_events` in fs/aio.c.
fn read_events(wait: &Wait, span_ns: Option<u64>, sigmask: Option<u64>) -> Result<u64, Errno> {
    let ring = find(wait.context)?;
    if wait.at_least < 0 || wait.at_least > wait.at_most {
        return Err(Errno::INVAL);
    }
    let mut at_least = wait.at_least as u64;
    let clock = Clock::Monotonic;
    let deadline_ns = span_ns.map(|span_ns| clock.now_ns().saturating_add(span_ns));
    let mut guard = lock(ring, wait.context, Errno::INTR)?;
    let life = guard.cookie;
    guard.check_tracer();
    guard.record(|it| it.io_getevents(at_least, sigmask.is_some()));
    if at_least == 0 || span_ns == Some(0) {
        // A call that never waits wants the events that are there now.
        let tail = guard.cq_total();
        let look = WaitOptions { min_complete: 0, deadline_ns: None, minimum_ns: None, clock, sigmask: None };
        wait_until(guard, &look, Some(tail))?;
        guard = lock_again(ring, wait.context, life)?;
    }
    if at_least == 0 && wait.at_most != 0 && span_ns != Some(0) {
        // Some programs rely on io_submit(2) to have waited for the page cache. They ask for at least 0 events, but
        // are ready to wait.
        at_least = guard.aio.as_ref().map_or(0, |context| context.overdue.min(1).into());
    }
    let mut got = 0;
    loop {
        match move_events(&mut guard, wait, &mut got) {
            Err(error) if got == 0 => return Err(error),
            Err(_) => return Ok(got),
            Ok(()) if got >= at_least || deadline_ns.is_some_and(|ns| ns <= clock.now_ns()) => {
                guard.call_helper();
                return Ok(got);
            }
            Ok(()) => {}
        }
        if guard.poll_once() {
            continue;
        }
        let missing = u32::try_from((at_least - got).min(1 << 29)).unwrap_or(1);
        let target = guard.cq_total() + u64::from(missing);
        let options = WaitOptions { min_complete: missing, deadline_ns, minimum_ns: None, clock, sigmask };
        let waited = wait_until(guard, &options, Some(target));
        guard = match (lock_again(ring, wait.context, life), waited) {
            (Ok(guard), Ok(()) | Err(Errno::TIME)) => guard,
            (Ok(mut guard), Err(error)) => {
                // Events that came with the signal are returned instead of the error.
                let _ = move_events(&mut guard, wait, &mut got);
                return if got == 0 { Err(error) } else { Ok(got) };
            }
            (Err(error), _) => return if got == 0 { Err(error) } else { Ok(got) },
        };
    }
}

/// Locks the context after a wait. During the wait another thread may have destroyed the context, and made the next
/// context at its address.
fn lock_again(ring: &'static Ring, address: u64, life: u64) -> Result<RingGuard, Errno> {
    lock(ring, address, Errno::INTR)
        .and_then(|guard| if guard.cookie == life { Ok(guard) } else { Err(Errno::INVAL) })
}

/// Moves events to the program's array, after the `got` events that are already in it.
fn move_events(guard: &mut RingGuard, wait: &Wait, got: &mut u64) -> Result<(), Errno> {
    let to = wait.events.wrapping_add(*got * size_of::<IoEvent>() as u64);
    let room = wait.at_most as u64 - *got;
    if let Some(context) = &mut guard.aio {
        *got += context.completions.read_events(to, room)?;
    }
    Ok(())
}
