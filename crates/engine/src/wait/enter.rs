//! io_uring_enter(2).

use crate::chaos::caller::Caller;
use crate::issue::chaos::{self, Change};
use crate::memory::layout::word;
use crate::mutation::{mutated, Mutation};
use crate::os::{user_read, Clock};
use crate::resource::wait_region;
use crate::ring::arrivals::Left;
use crate::ring::table;
use crate::ring::{LockFailure, Ring, RingGuard};
use crate::wait::enter_wait::{wait, WaitOptions};
use crate::wait::{iopoll, sqpoll};
use crate::{descriptors, process, stats, thread, Errno};
use anyring_abi::*;
use core::sync::atomic::Ordering;

/// Flags that this engine serves. Other flags fail with EINVAL, as on a kernel that does not have them.
pub const FLAGS: u32 = IORING_ENTER_GETEVENTS
    | IORING_ENTER_SQ_WAKEUP
    | IORING_ENTER_SQ_WAIT
    | IORING_ENTER_EXT_ARG
    | IORING_ENTER_REGISTERED_RING
    | IORING_ENTER_ABS_TIMER
    | IORING_ENTER_EXT_ARG_REG
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

/// Submits and waits. Returns the number of SQEs consumed.
pub fn enter(call: &Enter) -> Result<u32, Errno> {
    serve::<true>(call)
}

/// Serves a call. If `AS_ASKED`, a tracer may first take the thread's stack, and chaos may change what the call asks
/// for.
#[inline(always)]
fn serve<const AS_ASKED: bool>(call: &Enter) -> Result<u32, Errno> {
    process::notice_fork();
    if call.flags & !FLAGS != 0 {
        return Err(Errno::INVAL);
    }
    let ring = named_ring(call)?;
    if ring.has(IORING_SETUP_SQPOLL) {
        return sqpoll::enter(ring, call);
    }
    let mut guard = match ring.lock() {
        Ok(guard) => guard,
        // A signal handler interrupted the engine on this very ring. The interrupted call consumes these SQEs before
        // it releases the ring, so they count as submitted. The handler cannot wait.
        Err(LockFailure::Reentry) if call.to_submit != 0 => {
            if !mutated(Mutation::HandlersSqesForgotten) {
                ring.owed.fetch_add(call.to_submit, Ordering::Relaxed);
                ring.left.set(Left::OWED);
            }
            return Ok(call.to_submit);
        }
        Err(failure) => return Err(failure.into()),
    };
    if guard.is_closed() {
        return Err(Errno::BADF);
    }
    if guard.is_broken() {
        return Err(guard.refuse_call());
    }
    if guard.disabled {
        return Err(Errno::BADFD);
    }
    if AS_ASKED && guard.is_watched && guard.wants_caller(call.to_submit != 0) {
        drop(guard);
        return watched(ring, call);
    }
    stats::shard().enters.fetch_add(1, Ordering::Relaxed);
    guard.check_tracer();
    guard.record(|it| it.enter(call.fd as i32, call.to_submit, call.min_complete, call.flags));
    let mut submitted = 0;
    if call.to_submit != 0 {
        check_issuer(&guard)?;
        if !guard.holder_has_context {
            process::give_context();
            guard.holder_has_context = true;
        }
        submitted = submit_and_call(&mut guard, call.to_submit)?;
        if call.flags & IORING_ENTER_GETEVENTS != 0 || !ring.defers() {
            guard.go_on();
        }
        if submitted != call.to_submit {
            guard.call_helper();
            return Ok(submitted);
        }
    }
    if call.flags & IORING_ENTER_GETEVENTS == 0 {
        if !guard.is_polled() && guard.poll_for_unattempted() {
            guard.finish_batch();
        }
        guard.call_helper();
        guard.leave(); // it is settled, also by `submit_and_call` and `go_on`
        return Ok(submitted);
    }
    if has_enough_for(&guard, call) {
        ring.driver.handover.visit();
        guard.leave(); // `submit_and_call` has settled it
        return Ok(submitted);
    }
    match wait_for_events(guard, call) {
        Err(error) if submitted == 0 => Err(error),
        _ => Ok(submitted),
    }
}

/// Serves a call after taking the thread's stack, without the ring's lock. If the ring has chaos, the call may fail,
/// take fewer SQEs, or not wait.
#[cold]
fn watched(ring: &'static Ring, call: &Enter) -> Result<u32, Errno> {
    let asks = call.flags & IORING_ENTER_GETEVENTS != 0;
    let caller = Caller::here();
    let change = {
        let mut guard = ring.lock()?;
        caller.iter().for_each(|caller| guard.record(|it| it.caller(caller)));
        chaos::record_caller(&mut guard, caller);
        chaos::at_enter(&mut guard, call.to_submit, asks, asks && call.min_complete != 0)?
    };
    let changed = match change {
        Change::None => *call,
        Change::Fewer(to_submit) => Enter { to_submit, flags: call.flags & !IORING_ENTER_GETEVENTS, ..*call },
        Change::Interrupted => Enter { min_complete: 0, ..*call },
    };
    let submitted = serve::<false>(&changed);
    if let Ok(mut guard) = ring.lock() {
        chaos::record_caller(&mut guard, None);
    }
    let submitted = submitted?;
    if change == Change::Interrupted && submitted == 0 && ring.lock()?.cq_is_empty() {
        return Err(Errno::INTR); // `io_cqring_wait` in io_uring/io_uring.c: no EINTR while the CQ holds a CQE
    }
    Ok(submitted)
}

/// Serves IORING_ENTER_GETEVENTS: waits as the call asks.
pub fn wait_for_events(mut guard: RingGuard, call: &Enter) -> Result<(), Errno> {
    let dropped = &guard.ring().dropped;
    if dropped.load(Ordering::Relaxed) {
        // Dropped CQEs are reported once, as in the kernel (`io_cqring_wait` in io_uring/io_uring.c).
        dropped.store(false, Ordering::Relaxed);
        return Err(Errno::BADR);
    }
    if guard.is_asked() {
        check_waiter(&guard).inspect_err(|_| guard.call_helper())?;
        return iopoll::ask(guard, call);
    }
    if let Err(error) = check_waiter(&guard) {
        guard.call_helper();
        return Err(error);
    }
    if call.arg == 0 && call.flags & IORING_ENTER_EXT_ARG == 0 {
        return wait(guard, &WaitOptions::of(call.min_complete, Clock::Monotonic));
        // no time, so any clock
    }
    wait_as_asked(guard, call)
}

/// Waits by a call with an argument: a signal mask, or times.
#[inline(never)] // otherwise the other waits would pay for its registers
fn wait_as_asked(mut guard: RingGuard, call: &Enter) -> Result<(), Errno> {
    match wait_options(&guard, call) {
        Ok((options, Ok(sigmask))) => wait(guard, &WaitOptions { sigmask, ..options }),
        Ok((options, Err(error))) => refuse_to_sleep(guard, &options, error),
        Err(error) => {
            guard.call_helper();
            Err(error)
        }
    }
}

/// Handles an invalid signal mask. Only a call that has to sleep fails for it, as in `io_cqring_wait` in
/// io_uring/io_uring.c.
#[cold]
fn refuse_to_sleep(guard: RingGuard, options: &WaitOptions, error: Errno) -> Result<(), Errno> {
    let ring = guard.ring();
    let wanted = options.min_complete.min(guard.memory.view.layout().cq_entries);
    wait(guard, &WaitOptions { min_complete: 0, ..*options })?;
    let guard = ring.lock()?;
    match guard.cq_ready(guard.cq_tail())? {
        ready if ready >= wanted => Ok(()),
        _ => Err(error),
    }
}

/// Returns the ring that a call which panicked has named, if that ring can be found.
pub fn panicked_ring(call: &Enter) -> Option<&'static Ring> {
    named_ring(call).ok()
}

/// Returns the ring that the call names, by number or by the calling thread's registration.
#[inline]
fn named_ring(call: &Enter) -> Result<&'static Ring, Errno> {
    let fd = if call.flags & IORING_ENTER_REGISTERED_RING != 0 {
        process::registered_ring_number(call.fd)?
    } else {
        call.fd as i32
    };
    table::ring(fd).or_else(|| table::adopt(fd)).ok_or_else(|| not_a_ring(fd))
}

/// Returns the error for a number that names no ring: EOPNOTSUPP if the number is open, EBADF if it is closed.
pub fn not_a_ring(fd: i32) -> Errno {
    descriptors::check_open(fd).err().unwrap_or(Errno::OPNOTSUPP)
}

/// Submits, then makes the calls that are left to the submitting thread. Returns the number of SQEs consumed.
#[inline(always)]
fn submit_and_call(guard: &mut RingGuard, to_submit: u32) -> Result<u32, Errno> {
    guard.calls.begin();
    let submitted = guard.submit(to_submit);
    guard.finish_batch();
    while !guard.calls.is_empty() {
        guard.make_calls();
        guard.finish_batch(); // which may leave more calls
    }
    guard.calls.end();
    submitted
}

/// Fails with `EEXIST` if another thread is this ring's only submitter.
#[inline(always)] // in each call
fn check_issuer(guard: &RingGuard) -> Result<(), Errno> {
    if guard.issuer == 0 || guard.issuer == thread::id() {
        return Ok(());
    }
    Err(Errno::EXIST)
}

/// True if the CQ holds what the call waits for, and [`wait`] would find nothing else to do. False in unusual cases,
/// which are left to `wait`.
#[inline(always)] // in each call that waits
fn has_enough_for(guard: &RingGuard, call: &Enter) -> bool {
    let ring = guard.ring();
    let plain = call.flags & IORING_ENTER_EXT_ARG == 0 && call.arg == 0 && call.min_complete as i32 > 0;
    let pending = guard.has_pending() || ring.has_arrived() || ring.driver.is_announced();
    // No other process moves the backlog after this check, since the ring is not shared.
    let special = guard.iopoll.is_some() || guard.is_shared() || guard.has_own_backlog() || guard.is_closed();
    if !plain || pending || special || check_waiter(guard).is_err() {
        return false;
    }
    let wanted = call.min_complete.min(guard.memory.view.layout().cq_entries);
    let ready = guard.memory.view.load(word::CQ_TAIL).and_then(|tail| guard.cq_ready(tail));
    ready.is_ok_and(|ready| ready >= wanted)
}

/// Checks that the calling thread may wait: with `IORING_SETUP_DEFER_TASKRUN` only the submitter may.
#[inline(always)] // in each call that waits
fn check_waiter(guard: &RingGuard) -> Result<(), Errno> {
    if guard.ring().has(IORING_SETUP_DEFER_TASKRUN) {
        return check_issuer(guard);
    }
    Ok(())
}

/// The extended argument, in either form: the signal mask's address and size, the minimum wait, and the timeout.
struct Extended {
    mask: u64,
    mask_size: usize,
    minimum_us: u32,
    time: Option<Timespec>,
}

/// Reads the extended argument. Returns what to wait for, and the signal mask or the error that reading the mask
/// gave. Source: `io_get_ext_arg` in io_uring/io_uring.c.
fn wait_options(guard: &RingGuard, call: &Enter) -> Result<(WaitOptions, Result<Option<u64>, Errno>), Errno> {
    let clock = guard.clock;
    let min_complete = call.min_complete;
    let mut options = WaitOptions::of(min_complete, clock);
    let extended = extended_argument(guard, call)?;
    let sigmask = match (extended.mask, extended.mask_size) {
        (0, _) => Ok(None),
        (mask, 8) => user_read::<u64>(mask).map(|mask| Some(thread::mask_of_wait(mask))),
        _ => Err(Errno::INVAL),
    };
    if extended.time.is_none() && extended.minimum_us == 0 {
        return Ok((options, sigmask));
    }
    let now_ns = clock.now_ns();
    if let Some(time) = extended.time {
        options.deadline_ns = deadline_ns(time, call.flags & IORING_ENTER_ABS_TIMER == 0, now_ns);
    }
    if extended.minimum_us != 0 {
        options.minimum_ns = Some(now_ns + u64::from(extended.minimum_us) * 1_000);
    }
    Ok((options, sigmask))
}

/// Returns the time at which a wait gives up; `None` if it does not. The kernel counts in signed nanoseconds, and its
/// sums wrap. At a negative time its timer never fires. Sources: `ktime_set` in linux/ktime.h, `ktime_add_safe` in
/// kernel/time/hrtimer.c.
pub(crate) fn deadline_ns(time: Timespec, is_span: bool, now_ns: u64) -> Option<u64> {
    const SECOND_NS: i64 = 1_000_000_000;
    let time_ns = match time.tv_sec < i64::MAX / SECOND_NS {
        true => time.tv_sec.wrapping_mul(SECOND_NS).wrapping_add(time.tv_nsec),
        false => i64::MAX,
    };
    let time_ns = if is_span { time_ns.wrapping_add(now_ns as i64) } else { time_ns };
    u64::try_from(time_ns).ok().filter(|_| time_ns != i64::MAX)
}

fn extended_argument(guard: &RingGuard, call: &Enter) -> Result<Extended, Errno> {
    if call.flags & IORING_ENTER_EXT_ARG == 0 {
        return Ok(Extended { mask: call.arg, mask_size: call.arg_size, minimum_us: 0, time: None });
    }
    if call.flags & IORING_ENTER_EXT_ARG_REG != 0 {
        return registered_argument(guard, call);
    }
    if call.arg_size != size_of::<GeteventsArg>() {
        return Err(Errno::INVAL);
    }
    let arg: GeteventsArg = user_read(call.arg)?;
    let time = if arg.ts == 0 { None } else { Some(user_read(arg.ts)?) };
    let mask_size = arg.sigmask_sz as usize;
    Ok(Extended { mask: arg.sigmask, mask_size, minimum_us: arg.min_wait_usec, time })
}

/// Reads the argument of IORING_ENTER_EXT_ARG_REG: `struct io_uring_reg_wait` at an offset in the registered region.
fn registered_argument(guard: &RingGuard, call: &Enter) -> Result<Extended, Errno> {
    if call.arg_size != wait_region::ENTRY_BYTES as usize {
        return Err(Errno::INVAL);
    }
    let region = guard.wait_region.as_ref().filter(|region| region.holds_waits()).ok_or(Errno::FAULT)?;
    let [seconds, nanoseconds, head, mask, tail, ..] = region.entry(call.arg)?;
    let (minimum_us, flags) = (head as u32, (head >> 32) as u32);
    if flags & !IORING_REG_WAIT_TS != 0 {
        return Err(Errno::INVAL);
    }
    let time = Timespec { tv_sec: seconds as i64, tv_nsec: nanoseconds as i64 };
    let time = (flags & IORING_REG_WAIT_TS != 0).then_some(time);
    Ok(Extended { mask, mask_size: tail as u32 as usize, minimum_us, time })
}
