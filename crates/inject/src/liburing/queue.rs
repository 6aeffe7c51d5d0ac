//! Submitting and reaping: io_uring_submit(3), io_uring_wait_cqes(3) and their relatives, on the program's threads.
//! These are the hot functions. Each does a few loads, and at most one [`door::enter`].

use super::layout::{Ring, INT_CQ_NEEDS_ENTER};
use super::{guard, hand_on, ring as borrow};
use crate::{door, sanitizer};
use anyring_abi::{Cqe, GeteventsArg, Opcode, Sqe, Timespec};
use anyring_abi::{IORING_CQE_F_SKIP, IORING_ENTER_EXT_ARG, IORING_ENTER_EXT_ARG_REG, IORING_ENTER_GETEVENTS};
use anyring_abi::{IORING_ENTER_SQ_WAIT, IORING_ENTER_SQ_WAKEUP, IORING_FEAT_EXT_ARG, IORING_FEAT_MIN_TIMEOUT};
use anyring_abi::{
    IORING_SETUP_SQPOLL, IORING_SETUP_SQ_REWIND, IORING_SQ_CQ_OVERFLOW, IORING_SQ_NEED_WAKEUP, IORING_SQ_TASKRUN,
};
use anyring_engine::mutation::{mutated, Mutation};
use core::ffi::{c_int, c_uint, c_void};
use core::ptr::{null, null_mut};
use core::sync::atomic::{fence, Ordering};
use libc::sigset_t;

/// The `user_data` of the timeout that a wait submits if io_uring_enter(2) itself cannot take a timeout.
pub const LIBURING_UDATA_TIMEOUT: u64 = u64::MAX;
/// Size in bytes of the kernel's signal mask. io_uring_enter(2) takes it together with the mask.
pub(super) const SIGNAL_MASK_SIZE: usize = 8;
/// Size in bytes of `struct io_uring_reg_wait`.
const REG_WAIT_SIZE: usize = 64;

/// The arguments of the io_uring_enter(2) calls of one wait.
struct Wait {
    /// SQEs still to submit.
    submit: u32,
    /// CQEs to wait for.
    wait_nr: u32,
    /// `IORING_ENTER_*` of the argument.
    flags: u32,
    arg: *const c_void,
    arg_size: usize,
    /// True if io_uring_enter(2) itself ends the wait after a time.
    timed: bool,
}

impl Wait {
    fn with_mask(submit: u32, wait_nr: u32, mask: *const sigset_t) -> Wait {
        Wait { submit, wait_nr, flags: 0, arg: mask.cast(), arg_size: SIGNAL_MASK_SIZE, timed: false }
    }
}

/// Returns the argument of a wait with a timeout, for rings with `IORING_FEAT_EXT_ARG`.
fn extended_arg(ts: *const Timespec, min_wait_usec: u32, mask: *const sigset_t) -> GeteventsArg {
    GeteventsArg { sigmask: mask as u64, sigmask_sz: SIGNAL_MASK_SIZE as u32, min_wait_usec, ts: ts as u64 }
}

fn wait_extended(ring: &Ring, cqe: *mut *mut Cqe, submit: u32, wait_nr: u32, arg: &GeteventsArg) -> c_int {
    let wait = Wait {
        submit,
        wait_nr,
        flags: IORING_ENTER_EXT_ARG,
        arg: (&raw const *arg).cast(),
        arg_size: size_of::<GeteventsArg>(),
        timed: arg.ts != 0,
    };
    get_cqe(ring, cqe, wait)
}

/// Publishes the SQEs filled so far to the ring's server. Returns the number of SQEs that the server has not consumed
/// yet.
#[inline]
fn flush_sq(ring: &Ring) -> u32 {
    let sq = &ring.sq;
    sanitizer::submits(ring.cq.ktail.as_ptr());
    let tail = sq.sqe_tail.get();
    if ring.flags & IORING_SETUP_SQ_REWIND != 0 {
        sq.sqe_tail.set(0);
        return tail;
    }
    if sq.sqe_head.get() != tail {
        sq.sqe_head.set(tail);
        // Release pairs with the server's acquire of the tail: it sees the SQEs before the tail that covers them.
        sq.ktail.store(tail, Ordering::Release);
    }
    // The head only bounds a count here; nothing is read or written because of it.
    tail.wrapping_sub(sq.khead.load(Ordering::Relaxed))
}

/// True if `submit` SQEs need an io_uring_enter(2) call. With SQPOLL, the call is only needed if the poller sleeps.
/// Then a flag is added to `flags` that wakes the poller.
#[inline]
fn sq_needs_enter(ring: &Ring, submit: u32, flags: &mut u32) -> bool {
    if submit == 0 {
        return false;
    }
    if ring.flags & IORING_SETUP_SQPOLL == 0 {
        return true;
    }
    // Pairs with the poller's barrier between setting NEED_WAKEUP and its last load of the tail. Either the poller
    // reads the new tail, or this thread reads its flag.
    fence(Ordering::SeqCst);
    if ring.sq.kflags.load(Ordering::Relaxed) & IORING_SQ_NEED_WAKEUP == 0 {
        return false;
    }
    *flags |= IORING_ENTER_SQ_WAKEUP;
    true
}

/// True if completions exist that only an io_uring_enter(2) call brings into the CQ.
#[inline]
fn cq_needs_flush(ring: &Ring) -> bool {
    ring.sq.kflags.load(Ordering::Relaxed) & (IORING_SQ_CQ_OVERFLOW | IORING_SQ_TASKRUN) != 0
}

#[inline]
fn cq_needs_enter(ring: &Ring) -> bool {
    ring.has(INT_CQ_NEEDS_ENTER) || cq_needs_flush(ring)
}

#[inline]
fn enter(ring: &Ring, submit: u32, wait_nr: u32, flags: u32, arg: *const c_void, arg_size: usize) -> i32 {
    door::enter(ring.enter_ring_fd.get() as u32, submit, wait_nr, flags | ring.enter_flags(), arg, arg_size) as i32
}

#[inline]
fn submit(ring: &Ring, wait_nr: u32, get_events: bool) -> c_int {
    let submitted = flush_sq(ring);
    let get_events = get_events || wait_nr != 0 || cq_needs_enter(ring);
    let mut flags = if get_events { IORING_ENTER_GETEVENTS } else { 0 };
    if sq_needs_enter(ring, submitted, &mut flags) || get_events {
        return enter(ring, submitted, wait_nr, flags, null(), SIGNAL_MASK_SIZE);
    }
    submitted as c_int
}

/// Returns the next CQE that concerns the program, and the number of filled slots. Consumes CQEs of timeouts that waits
/// have submitted, and the padding of `IORING_SETUP_CQE_MIXED` rings. `Err` is the error of such a timeout.
#[inline]
pub(super) fn peek(ring: &Ring) -> Result<(*mut Cqe, u32), c_int> {
    loop {
        let (head, tail) = ring.cq_range();
        let available = tail.wrapping_sub(head);
        if available == 0 {
            return Ok((null_mut(), 0));
        }
        let cqe = ring.cqe(head);
        // SAFETY: a slot between head and tail of this ring's CQ, which the server does not write until the head
        // advances.
        let Cqe { user_data, res, flags } = unsafe { *cqe };
        let internal = user_data == LIBURING_UDATA_TIMEOUT && ring.features & IORING_FEAT_EXT_ARG == 0;
        let may_skip = flags & IORING_CQE_F_SKIP != 0;
        if !may_skip && !internal {
            return Ok((cqe, available));
        }
        let skip = ring.is_padding(flags);
        if !skip && !internal {
            return Ok((cqe, available));
        }
        ring.cq_advance(ring.slots_of(flags));
        if !skip && res < 0 {
            return Err(res);
        }
    }
}

/// Submits and waits as `wait` says. Stores the next CQE, or null. Returns the number of SQEs that the first
/// io_uring_enter(2) call consumed, or 0 if a CQE was there already. Returns `-errno` if the call failed and no SQE
/// was consumed: `-EAGAIN` if there is nothing to wait for, `-ETIME` after the timeout.
#[inline]
fn get_cqe(ring: &Ring, cqe_out: *mut *mut Cqe, mut wait: Wait) -> c_int {
    let mut answer = 0;
    let mut entered = false;
    let cqe = loop {
        let (cqe, available) = match peek(ring) {
            Ok(found) => found,
            Err(error) => {
                answer = if answer != 0 { answer } else { error };
                break null_mut();
            }
        };
        let only_looking = cqe.is_null() && wait.wait_nr == 0 && wait.submit == 0;
        if only_looking && (entered || !cq_needs_enter(ring)) {
            answer = if answer != 0 { answer } else { -libc::EAGAIN };
            break cqe;
        }
        let waits = only_looking || wait.wait_nr > available;
        let mut flags = if waits { IORING_ENTER_GETEVENTS | wait.flags } else { 0 };
        if !sq_needs_enter(ring, wait.submit, &mut flags) && !waits {
            break cqe;
        }
        if entered && wait.timed {
            if cqe.is_null() && answer == 0 {
                answer = -libc::ETIME;
            }
            break cqe;
        }
        let consumed = enter(ring, wait.submit, wait.wait_nr, flags, wait.arg, wait.arg_size);
        if consumed < 0 {
            answer = if answer != 0 { answer } else { consumed };
            break cqe;
        }
        wait.submit = wait.submit.wrapping_sub(consumed as u32);
        if !cqe.is_null() {
            break cqe;
        }
        if !entered {
            answer = consumed;
        }
        entered = true;
    };
    // SAFETY: the caller's promise: valid for a pointer.
    unsafe { cqe_out.write(cqe) };
    sanitizer::wrote(cqe_out, size_of::<*mut Cqe>());
    answer
}

/// Queues a timeout request that ends a wait for `wait_nr` CQEs, for rings without `IORING_FEAT_EXT_ARG`. Returns the
/// number of SQEs to submit, or `-errno`.
fn queue_timeout(ring: &Ring, wait_nr: u32, ts: *const Timespec) -> Result<u32, c_int> {
    let mut sqe = get_sqe(ring);
    if sqe.is_null() {
        let submitted = submit(ring, 0, false);
        if submitted < 0 {
            return Err(submitted);
        }
        sqe = get_sqe(ring);
    }
    if sqe.is_null() {
        return Err(-libc::EAGAIN);
    }
    let timeout = Sqe {
        opcode: Opcode::Timeout as u8,
        fd: -1,
        off: u64::from(wait_nr),
        addr: ts as u64,
        len: 1,
        user_data: LIBURING_UDATA_TIMEOUT,
        ..Sqe::default()
    };
    // SAFETY: the SQE was just handed out to this function.
    unsafe { sqe.write(timeout) };
    Ok(flush_sq(ring))
}

/// Returns the next free SQE with its optional fields cleared, or null if the SQ is full.
#[inline]
pub(super) fn get_sqe(ring: &Ring) -> *mut Sqe {
    let tail = ring.sq.sqe_tail.get();
    let most = ring.sq.ring_entries + u32::from(mutated(Mutation::OneSqeTooMany));
    if tail.wrapping_sub(ring.sq_head()) >= most {
        return null_mut();
    }
    ring.sq.sqe_tail.set(tail.wrapping_add(1));
    let sqe = ring.sqe(tail);
    clear_optional(sqe);
    sqe
}

/// Clears the fields that preparation functions do not set: flags, ioprio, op_flags, buf_index, personality,
/// file_index, addr3 and the padding.
#[inline]
pub(super) fn clear_optional(sqe: *mut Sqe) {
    // SAFETY: a free slot of the SQ, which belongs to the program's submitting thread until it is submitted.
    unsafe {
        (*sqe).flags = 0;
        (*sqe).ioprio = 0;
        (*sqe).op_flags = 0;
        (*sqe).buf_index = 0;
        (*sqe).personality = 0;
        (*sqe).file_index = 0;
        (*sqe).addr3 = 0;
        (*sqe).pad2 = 0;
    }
}

/// Stores up to `count` CQEs that are in the CQ now. Returns their number.
#[inline]
fn peek_batch(ring: &Ring, cqes: *mut *mut Cqe, count: u32) -> u32 {
    let (mut head, tail) = ring.cq_range();
    let mut stored = 0;
    while stored < count && head != tail {
        let cqe = ring.cqe(head);
        // SAFETY: a slot between head and tail of this ring's CQ, which the server does not write until the program
        // advances.
        let flags = unsafe { (*cqe).flags };
        head = head.wrapping_add(ring.slots_of(flags));
        if ring.is_padding(flags) {
            // Padding of a mixed ring can only be consumed at the head: after a CQE it ends the batch.
            if stored != 0 {
                break;
            }
            ring.cq_advance(ring.slots_of(flags));
            continue;
        }
        // SAFETY: the caller's promise: room for `count` pointers.
        unsafe { cqes.add(stored as usize).write(cqe) };
        sanitizer::wrote(cqes.wrapping_add(stored as usize), size_of::<*mut Cqe>());
        stored += 1;
    }
    stored
}

/// io_uring_get_sqe(3), for programs compiled before it became inline.
#[no_mangle]
pub unsafe extern "C" fn io_uring_get_sqe(ring: *mut Ring) -> *mut Sqe {
    hand_on!(io_uring_get_sqe(ring: *mut Ring) -> *mut Sqe);
    // SAFETY: the caller's promise.
    guard(|| get_sqe(unsafe { borrow(ring) }))
}

/// io_uring_submit(3).
#[no_mangle]
pub unsafe extern "C" fn io_uring_submit(ring: *mut Ring) -> c_int {
    hand_on!(io_uring_submit(ring: *mut Ring) -> c_int);
    // SAFETY: the caller's promise.
    guard(|| submit(unsafe { borrow(ring) }, 0, false))
}

/// io_uring_submit_and_wait(3).
#[no_mangle]
pub unsafe extern "C" fn io_uring_submit_and_wait(ring: *mut Ring, wait_nr: c_uint) -> c_int {
    hand_on!(io_uring_submit_and_wait(ring: *mut Ring, wait_nr: c_uint) -> c_int);
    // SAFETY: the caller's promise.
    guard(|| submit(unsafe { borrow(ring) }, wait_nr, false))
}

/// io_uring_submit_and_get_events(3).
#[no_mangle]
pub unsafe extern "C" fn io_uring_submit_and_get_events(ring: *mut Ring) -> c_int {
    // SAFETY: the caller's promise.
    guard(|| submit(unsafe { borrow(ring) }, 0, true))
}

/// io_uring_get_events(3).
#[no_mangle]
pub unsafe extern "C" fn io_uring_get_events(ring: *mut Ring) -> c_int {
    // SAFETY: the caller's promise.
    guard(|| enter(unsafe { borrow(ring) }, 0, 0, IORING_ENTER_GETEVENTS, null(), SIGNAL_MASK_SIZE))
}

/// The function that io_uring_sqring_wait(3) calls if an SQPOLL ring is full.
#[no_mangle]
pub unsafe extern "C" fn __io_uring_sqring_wait(ring: *mut Ring) -> c_int {
    hand_on!(__io_uring_sqring_wait(ring: *mut Ring) -> c_int);
    // SAFETY: the caller's promise.
    guard(|| enter(unsafe { borrow(ring) }, 0, 0, IORING_ENTER_SQ_WAIT, null(), SIGNAL_MASK_SIZE))
}

/// The function that the inline io_uring_peek_cqe(3), io_uring_wait_cqe(3) and io_uring_wait_cqe_nr(3) call.
#[no_mangle]
pub unsafe extern "C" fn __io_uring_get_cqe(
    ring: *mut Ring,
    cqe: *mut *mut Cqe,
    submit: c_uint,
    wait_nr: c_uint,
    mask: *mut sigset_t,
) -> c_int {
    hand_on!(__io_uring_get_cqe(ring: *mut Ring, cqe: *mut *mut Cqe, submit: c_uint, wait_nr: c_uint, mask: *mut sigset_t) -> c_int);
    // SAFETY: the caller's promise.
    guard(|| get_cqe(unsafe { borrow(ring) }, cqe, Wait::with_mask(submit, wait_nr, mask)))
}

/// io_uring_peek_batch_cqe(3).
#[no_mangle]
pub unsafe extern "C" fn io_uring_peek_batch_cqe(ring: *mut Ring, cqes: *mut *mut Cqe, count: c_uint) -> c_uint {
    hand_on!(io_uring_peek_batch_cqe(ring: *mut Ring, cqes: *mut *mut Cqe, count: c_uint) -> c_uint);
    guard(|| {
        // SAFETY: the caller's promise.
        let ring = unsafe { borrow(ring) };
        let stored = peek_batch(ring, cqes, count);
        if stored != 0 || count == 0 || !cq_needs_flush(ring) {
            return stored;
        }
        enter(ring, 0, 0, IORING_ENTER_GETEVENTS, null(), SIGNAL_MASK_SIZE);
        peek_batch(ring, cqes, count)
    })
}

/// io_uring_wait_cqes(3).
#[no_mangle]
pub unsafe extern "C" fn io_uring_wait_cqes(
    ring: *mut Ring,
    cqe: *mut *mut Cqe,
    wait_nr: c_uint,
    ts: *mut Timespec,
    mask: *mut sigset_t,
) -> c_int {
    hand_on!(io_uring_wait_cqes(ring: *mut Ring, cqe: *mut *mut Cqe, wait_nr: c_uint, ts: *mut Timespec, mask: *mut sigset_t) -> c_int);
    guard(|| {
        // SAFETY: the caller's promise.
        let ring = unsafe { borrow(ring) };
        if ts.is_null() {
            return get_cqe(ring, cqe, Wait::with_mask(0, wait_nr, mask));
        }
        if ring.features & IORING_FEAT_EXT_ARG != 0 {
            return wait_extended(ring, cqe, 0, wait_nr, &extended_arg(ts, 0, mask));
        }
        match queue_timeout(ring, wait_nr, ts) {
            Ok(submit) => get_cqe(ring, cqe, Wait::with_mask(submit, wait_nr, mask)),
            Err(error) => error,
        }
    })
}

/// io_uring_wait_cqe_timeout(3).
#[no_mangle]
pub unsafe extern "C" fn io_uring_wait_cqe_timeout(
    ring: *mut Ring,
    cqe: *mut *mut Cqe,
    ts: *mut Timespec,
) -> c_int {
    hand_on!(io_uring_wait_cqe_timeout(ring: *mut Ring, cqe: *mut *mut Cqe, ts: *mut Timespec) -> c_int);
    // SAFETY: the caller's promise, passed on.
    unsafe { io_uring_wait_cqes(ring, cqe, 1, ts, null_mut()) }
}

/// io_uring_wait_cqes_min_timeout(3): `min_wait_usec` is in microseconds.
#[no_mangle]
pub unsafe extern "C" fn io_uring_wait_cqes_min_timeout(
    ring: *mut Ring,
    cqe: *mut *mut Cqe,
    wait_nr: c_uint,
    ts: *mut Timespec,
    min_wait_usec: c_uint,
    mask: *mut sigset_t,
) -> c_int {
    guard(|| {
        // SAFETY: the caller's promise.
        let ring = unsafe { borrow(ring) };
        if ring.features & IORING_FEAT_MIN_TIMEOUT == 0 {
            return -libc::EINVAL;
        }
        wait_extended(ring, cqe, 0, wait_nr, &extended_arg(ts, min_wait_usec, mask))
    })
}

/// io_uring_submit_and_wait_timeout(3).
#[no_mangle]
pub unsafe extern "C" fn io_uring_submit_and_wait_timeout(
    ring: *mut Ring,
    cqe: *mut *mut Cqe,
    wait_nr: c_uint,
    ts: *mut Timespec,
    mask: *mut sigset_t,
) -> c_int {
    // SAFETY: the caller's promise.
    guard(|| submit_and_wait(unsafe { borrow(ring) }, cqe, wait_nr, ts, 0, mask))
}

/// io_uring_submit_and_wait_min_timeout(3): `min_wait_usec` is in microseconds.
#[no_mangle]
pub unsafe extern "C" fn io_uring_submit_and_wait_min_timeout(
    ring: *mut Ring,
    cqe: *mut *mut Cqe,
    wait_nr: c_uint,
    ts: *mut Timespec,
    min_wait_usec: c_uint,
    mask: *mut sigset_t,
) -> c_int {
    guard(|| {
        // SAFETY: the caller's promise.
        let ring = unsafe { borrow(ring) };
        if ring.features & IORING_FEAT_MIN_TIMEOUT == 0 {
            return -libc::EINVAL;
        }
        submit_and_wait(ring, cqe, wait_nr, ts, min_wait_usec, mask)
    })
}

fn submit_and_wait(
    ring: &Ring,
    cqe: *mut *mut Cqe,
    wait_nr: u32,
    ts: *const Timespec,
    min_wait_usec: u32,
    mask: *const sigset_t,
) -> c_int {
    if ts.is_null() {
        return get_cqe(ring, cqe, Wait::with_mask(flush_sq(ring), wait_nr, mask));
    }
    if ring.features & IORING_FEAT_EXT_ARG != 0 {
        return wait_extended(ring, cqe, flush_sq(ring), wait_nr, &extended_arg(ts, min_wait_usec, mask));
    }
    match queue_timeout(ring, wait_nr, ts) {
        Ok(submit) => get_cqe(ring, cqe, Wait::with_mask(submit, wait_nr, mask)),
        Err(error) => error,
    }
}

/// io_uring_submit_and_wait_reg(3): the argument is entry `reg_index` of the registered wait region.
#[no_mangle]
pub unsafe extern "C" fn io_uring_submit_and_wait_reg(
    ring: *mut Ring,
    cqe: *mut *mut Cqe,
    wait_nr: c_uint,
    reg_index: c_int,
) -> c_int {
    guard(|| {
        // SAFETY: the caller's promise.
        let ring = unsafe { borrow(ring) };
        if ring.features & IORING_FEAT_EXT_ARG == 0 {
            return -libc::EINVAL;
        }
        let wait = Wait {
            submit: flush_sq(ring),
            wait_nr,
            flags: IORING_ENTER_EXT_ARG | IORING_ENTER_EXT_ARG_REG,
            arg: core::ptr::without_provenance((reg_index as isize as usize).wrapping_mul(REG_WAIT_SIZE)),
            arg_size: REG_WAIT_SIZE,
            timed: true,
        };
        get_cqe(ring, cqe, wait)
    })
}

/// io_uring_enter(2) with a signal mask. Returns `-errno` on failure.
#[no_mangle]
pub unsafe extern "C" fn io_uring_enter(
    fd: c_uint,
    to_submit: c_uint,
    min_complete: c_uint,
    flags: c_uint,
    mask: *mut sigset_t,
) -> c_int {
    guard(|| door::enter(fd, to_submit, min_complete, flags, mask.cast(), SIGNAL_MASK_SIZE) as c_int)
}

/// io_uring_enter(2). Returns `-errno` on failure.
#[no_mangle]
pub unsafe extern "C" fn io_uring_enter2(
    fd: c_uint,
    to_submit: c_uint,
    min_complete: c_uint,
    flags: c_uint,
    arg: *mut c_void,
    arg_size: libc::size_t,
) -> c_int {
    guard(|| door::enter(fd, to_submit, min_complete, flags, arg, arg_size) as c_int)
}
