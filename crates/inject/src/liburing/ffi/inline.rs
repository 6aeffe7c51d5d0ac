//! The inline functions other than those that prepare SQEs. They read and advance the queues, buffer rings and received
//! messages.

use crate::liburing::layout::{cqe_shift, cqe_slots, Ring};
use crate::liburing::{guard, queue, register, ring as borrow};
use anyring_abi::*;
use core::ffi::{c_int, c_uint, c_ushort, c_void};
use core::ptr::null_mut;
use core::sync::atomic::{AtomicU16, Ordering};
use libc::{cmsghdr, msghdr};
use linux_raw_sys::io_uring::{
    io_uring_buf as Buf, io_uring_probe as Probe, io_uring_probe_op, io_uring_recvmsg_out as RecvmsgOut,
};

/// `IO_URING_OP_SUPPORTED`.
const OP_SUPPORTED: u16 = 1;
/// `IORING_SETUP_SQE_MIXED` (Linux 6.19).
const IORING_SETUP_SQE_MIXED: u32 = 1 << 19;

/// `struct io_uring_cqe_iter` (liburing 2.13).
#[derive(Debug)]
#[repr(C)]
pub struct CqeIter {
    cqes: *mut Cqe,
    mask: u32,
    shift: u32,
    head: u32,
    tail: u32,
}

/// io_uring_opcode_supported(3).
#[no_mangle]
pub unsafe extern "C" fn io_uring_opcode_supported(probe: *const Probe, op: c_int) -> c_int {
    guard(|| {
        // SAFETY: the caller's promise: a probe with entries up to its `last_op`.
        let last = unsafe { (*probe).last_op };
        if op < 0 || op > c_int::from(last) {
            return 0;
        }
        let ops = probe.wrapping_add(1).cast::<io_uring_probe_op>();
        // SAFETY: as above; the entries follow the probe's head, and `op` is not beyond the last.
        let flags = unsafe { (*ops.add(op as usize)).flags };
        c_int::from(flags & OP_SUPPORTED != 0)
    })
}

/// io_uring_cq_advance(3).
#[no_mangle]
pub unsafe extern "C" fn io_uring_cq_advance(ring: *mut Ring, count: c_uint) {
    guard(|| {
        if count != 0 {
            // SAFETY: the caller's promise.
            unsafe { borrow(ring) }.cq_advance(count);
        }
    });
}

/// io_uring_cqe_seen(3).
#[no_mangle]
pub unsafe extern "C" fn io_uring_cqe_seen(ring: *mut Ring, cqe: *mut Cqe) {
    guard(|| {
        if !cqe.is_null() {
            // SAFETY: the caller's promise.
            unsafe { borrow(ring).cq_advance(cqe_slots((*cqe).flags)) };
        }
    });
}

/// io_uring_cqe_nr: returns the number of CQ slots that the CQE takes.
#[no_mangle]
pub unsafe extern "C" fn io_uring_cqe_nr(cqe: *const Cqe) -> c_uint {
    // SAFETY: the caller's promise.
    guard(|| cqe_slots(unsafe { (*cqe).flags }))
}

/// io_uring_cqe_iter_init: returns an iterator over the CQEs that are there now.
#[no_mangle]
pub unsafe extern "C" fn io_uring_cqe_iter_init(ring: *const Ring) -> CqeIter {
    // SAFETY: the caller's promise. Nothing below can panic.
    let ring = unsafe { borrow(ring) };
    let (head, tail) = ring.cq_range();
    CqeIter { cqes: ring.cq.cqes, mask: ring.cq.ring_mask, shift: cqe_shift(ring.flags), head, tail }
}

/// io_uring_cqe_iter_next: stores the next CQE that is not padding; false at the end.
#[no_mangle]
pub unsafe extern "C" fn io_uring_cqe_iter_next(iter: *mut CqeIter, cqe_out: *mut *mut Cqe) -> bool {
    guard(|| {
        // SAFETY: the caller's promise: an iterator from `io_uring_cqe_iter_init`.
        let iter = unsafe { &mut *iter };
        if iter.head == iter.tail {
            return false;
        }
        let cqe = iter.cqes.wrapping_add(((iter.head & iter.mask) << iter.shift) as usize);
        // SAFETY: a slot that was posted when the iterator was made and is not yet given back; `cqe_out` is the
        // caller's promise.
        let flags = unsafe {
            cqe_out.write(cqe);
            (*cqe).flags
        };
        iter.head = iter.head.wrapping_add(cqe_slots(flags));
        true
    })
}

/// io_uring_cqe_get_data(3).
#[no_mangle]
pub unsafe extern "C" fn io_uring_cqe_get_data(cqe: *const Cqe) -> *mut c_void {
    // SAFETY: the caller's promise.
    guard(|| unsafe { (*cqe).user_data } as *mut c_void)
}

/// io_uring_cqe_get_data64(3).
#[no_mangle]
pub unsafe extern "C" fn io_uring_cqe_get_data64(cqe: *const Cqe) -> u64 {
    // SAFETY: the caller's promise.
    guard(|| unsafe { (*cqe).user_data })
}

/// io_uring_sqe_set_data(3).
#[no_mangle]
pub unsafe extern "C" fn io_uring_sqe_set_data(sqe: *mut Sqe, data: *mut c_void) {
    // SAFETY: the caller's promise.
    guard(|| unsafe { (*sqe).user_data = data as u64 });
}

/// io_uring_sqe_set_data64(3).
#[no_mangle]
pub unsafe extern "C" fn io_uring_sqe_set_data64(sqe: *mut Sqe, data: u64) {
    // SAFETY: the caller's promise.
    guard(|| unsafe { (*sqe).user_data = data });
}

/// io_uring_sqe_set_flags(3).
#[no_mangle]
pub unsafe extern "C" fn io_uring_sqe_set_flags(sqe: *mut Sqe, flags: c_uint) {
    // SAFETY: the caller's promise.
    guard(|| unsafe { (*sqe).flags = flags as u8 });
}

/// io_uring_sqe_set_buf_group(3).
#[no_mangle]
pub unsafe extern "C" fn io_uring_sqe_set_buf_group(sqe: *mut Sqe, group: c_int) {
    // SAFETY: the caller's promise.
    guard(|| unsafe { (*sqe).buf_index = group as u16 });
}

/// io_uring_sq_ready(3).
#[no_mangle]
pub unsafe extern "C" fn io_uring_sq_ready(ring: *const Ring) -> c_uint {
    // SAFETY: the caller's promise.
    guard(|| unsafe { borrow(ring) }.sq_ready())
}

fn sq_space_left(ring: &Ring) -> u32 {
    ring.sq.ring_entries.wrapping_sub(ring.sq_ready())
}

/// io_uring_sq_space_left(3).
#[no_mangle]
pub unsafe extern "C" fn io_uring_sq_space_left(ring: *const Ring) -> c_uint {
    // SAFETY: the caller's promise.
    guard(|| sq_space_left(unsafe { borrow(ring) }))
}

/// io_uring_sqring_wait(3).
#[no_mangle]
pub unsafe extern "C" fn io_uring_sqring_wait(ring: *mut Ring) -> c_int {
    guard(|| {
        // SAFETY: the caller's promise.
        let borrowed = unsafe { borrow(ring) };
        if borrowed.flags & IORING_SETUP_SQPOLL == 0 || sq_space_left(borrowed) != 0 {
            return 0;
        }
        // SAFETY: the caller's promise.
        unsafe { queue::__io_uring_sqring_wait(ring) }
    })
}

/// io_uring_get_sqe128: returns an SQE of 128 bytes, or null if the ring has none (left).
#[no_mangle]
pub unsafe extern "C" fn io_uring_get_sqe128(ring: *mut Ring) -> *mut Sqe {
    guard(|| {
        // SAFETY: the caller's promise.
        let ring = unsafe { borrow(ring) };
        if ring.flags & IORING_SETUP_SQE128 != 0 {
            return queue::get_sqe(ring);
        }
        if ring.flags & IORING_SETUP_SQE_MIXED == 0 {
            return null_mut();
        }
        let head = ring.sq_head();
        let mut tail = ring.sq.sqe_tail.get();
        let at_end = tail & ring.sq.ring_mask == ring.sq.ring_mask;
        // A big SQE does not wrap: a NOP that posts nothing fills the last slot.
        let wanted = if at_end { 3 } else { 2 };
        if tail.wrapping_add(wanted).wrapping_sub(head) > ring.sq.ring_entries {
            return null_mut();
        }
        if at_end {
            let filler = queue::get_sqe(ring);
            // SAFETY: the SQE was just handed out to us: there is room for three.
            unsafe {
                super::prep::io_uring_prep_nop(filler);
                (*filler).flags |= IOSQE_CQE_SKIP_SUCCESS;
            }
            tail = tail.wrapping_add(1);
        }
        ring.sq.sqe_tail.set(tail.wrapping_add(2));
        let sqe = ring.sqe(tail);
        queue::clear_optional(sqe);
        sqe
    })
}

/// io_uring_cq_ready(3).
#[no_mangle]
pub unsafe extern "C" fn io_uring_cq_ready(ring: *const Ring) -> c_uint {
    guard(|| {
        // SAFETY: the caller's promise.
        let (head, tail) = unsafe { borrow(ring) }.cq_range();
        tail.wrapping_sub(head)
    })
}

/// io_uring_cq_has_overflow(3).
#[no_mangle]
pub unsafe extern "C" fn io_uring_cq_has_overflow(ring: *const Ring) -> bool {
    // SAFETY: the caller's promise.
    guard(|| unsafe { borrow(ring) }.sq.kflags.load(Ordering::Relaxed) & IORING_SQ_CQ_OVERFLOW != 0)
}

fn eventfd_enabled(ring: &Ring) -> bool {
    ring.cq.kflags.is_null() || ring.cq.kflags.load(Ordering::Relaxed) & IORING_CQ_EVENTFD_DISABLED == 0
}

/// io_uring_cq_eventfd_enabled(3).
#[no_mangle]
pub unsafe extern "C" fn io_uring_cq_eventfd_enabled(ring: *const Ring) -> bool {
    // SAFETY: the caller's promise.
    guard(|| eventfd_enabled(unsafe { borrow(ring) }))
}

/// io_uring_cq_eventfd_toggle(3).
#[no_mangle]
pub unsafe extern "C" fn io_uring_cq_eventfd_toggle(ring: *mut Ring, enable: bool) -> c_int {
    guard(|| {
        // SAFETY: the caller's promise.
        let ring = unsafe { borrow(ring) };
        if enable == eventfd_enabled(ring) {
            return 0;
        }
        let word = ring.cq.kflags;
        if word.is_null() {
            return -libc::EOPNOTSUPP;
        }
        // A hint to the server, which orders nothing by it.
        let flags = word.load(Ordering::Relaxed);
        let bit = IORING_CQ_EVENTFD_DISABLED;
        word.store(if enable { flags & !bit } else { flags | bit }, Ordering::Relaxed);
        0
    })
}

/// io_uring_wait_cqe_nr(3).
#[no_mangle]
pub unsafe extern "C" fn io_uring_wait_cqe_nr(ring: *mut Ring, cqe: *mut *mut Cqe, wait_nr: c_uint) -> c_int {
    // SAFETY: the caller's promise, passed on.
    unsafe { queue::__io_uring_get_cqe(ring, cqe, 0, wait_nr, null_mut()) }
}

/// `__io_uring_peek_cqe`: returns the next CQE or null, and stores the number of filled slots.
#[no_mangle]
pub unsafe extern "C" fn __io_uring_peek_cqe(ring: *mut Ring, cqe: *mut *mut Cqe, available: *mut c_uint) -> c_int {
    guard(|| {
        // SAFETY: the caller's promise.
        let (found, error) = match queue::peek(unsafe { borrow(ring) }) {
            Ok(found) => (found, 0),
            Err(error) => ((null_mut(), 0), error),
        };
        // SAFETY: the caller's promise: valid for writes, the count optional.
        unsafe {
            cqe.write(found.0);
            if !available.is_null() {
                available.write(found.1);
            }
        }
        error
    })
}

/// io_uring_peek_cqe(3).
#[no_mangle]
pub unsafe extern "C" fn io_uring_peek_cqe(ring: *mut Ring, cqe: *mut *mut Cqe) -> c_int {
    // SAFETY: the caller's promise, passed on.
    unsafe { io_uring_wait_cqe_nr(ring, cqe, 0) }
}

/// io_uring_wait_cqe(3).
#[no_mangle]
pub unsafe extern "C" fn io_uring_wait_cqe(ring: *mut Ring, cqe: *mut *mut Cqe) -> c_int {
    // SAFETY: the caller's promise, passed on.
    unsafe { io_uring_wait_cqe_nr(ring, cqe, 1) }
}

/// io_uring_buf_ring_mask(3).
#[no_mangle]
pub extern "C" fn io_uring_buf_ring_mask(entries: u32) -> c_int {
    entries.wrapping_sub(1) as c_int
}

/// Returns the tail of a buffer ring, which is in the first buffer's reserved field.
///
/// # Safety
/// `ring` points to a buffer ring that stays mapped for the length of the call.
unsafe fn buf_ring_tail<'call>(ring: *mut Buf) -> &'call AtomicU16 {
    // SAFETY: the caller's promise; the field is 2-aligned and only ever used as the tail.
    unsafe { AtomicU16::from_ptr(&raw mut (*ring).resv) }
}

/// io_uring_buf_ring_init(3).
#[no_mangle]
pub unsafe extern "C" fn io_uring_buf_ring_init(ring: *mut Buf) {
    // SAFETY: the caller's promise. Nobody reads the ring before it is registered.
    guard(|| unsafe { buf_ring_tail(ring) }.store(0, Ordering::Relaxed));
}

/// io_uring_buf_ring_add(3).
#[no_mangle]
pub unsafe extern "C" fn io_uring_buf_ring_add(
    ring: *mut Buf,
    address: *mut c_void,
    len: c_uint,
    id: c_ushort,
    mask: c_int,
    offset: c_int,
) {
    guard(|| {
        // SAFETY: the caller's promise. Only the program's side writes the tail.
        let tail = unsafe { buf_ring_tail(ring) }.load(Ordering::Relaxed);
        let slot = c_int::from(tail).wrapping_add(offset) & mask;
        let buf = ring.wrapping_offset(slot as isize);
        // SAFETY: the mask keeps the slot inside the ring; the server reads it only after the tail passes it. The
        // reserved field is left alone: in the first slot it is the tail.
        unsafe {
            (*buf).addr = address as u64;
            (*buf).len = len;
            (*buf).bid = id;
        }
    });
}

/// io_uring_buf_ring_advance(3).
#[no_mangle]
pub unsafe extern "C" fn io_uring_buf_ring_advance(ring: *mut Buf, count: c_int) {
    guard(|| {
        // SAFETY: the caller's promise.
        let tail = unsafe { buf_ring_tail(ring) };
        // Release pairs with the server's acquire of the tail: it sees the buffers before the tail that covers them.
        tail.store(tail.load(Ordering::Relaxed).wrapping_add(count as u16), Ordering::Release);
    });
}

/// `__io_uring_buf_ring_cq_advance`: gives buffers and CQ slots back.
#[no_mangle]
pub unsafe extern "C" fn __io_uring_buf_ring_cq_advance(
    ring: *mut Ring,
    buffers: *mut Buf,
    cq_count: c_int,
    buf_count: c_int,
) {
    // SAFETY: the caller's promise, passed on.
    unsafe {
        io_uring_buf_ring_advance(buffers, buf_count);
        io_uring_cq_advance(ring, cq_count as c_uint);
    }
}

/// io_uring_buf_ring_cq_advance(3).
#[no_mangle]
pub unsafe extern "C" fn io_uring_buf_ring_cq_advance(ring: *mut Ring, buffers: *mut Buf, count: c_int) {
    // SAFETY: the caller's promise, passed on.
    unsafe { __io_uring_buf_ring_cq_advance(ring, buffers, count, count) }
}

/// io_uring_buf_ring_available(3).
#[no_mangle]
pub unsafe extern "C" fn io_uring_buf_ring_available(ring: *mut Ring, buffers: *mut Buf, group: c_ushort) -> c_int {
    guard(|| {
        let mut head = 0;
        // SAFETY: the caller's promise.
        let answer = unsafe { register::io_uring_buf_ring_head(ring, c_int::from(group), &mut head) };
        if answer != 0 {
            return answer;
        }
        // SAFETY: the caller's promise.
        let tail = unsafe { buf_ring_tail(buffers) }.load(Ordering::Relaxed);
        c_int::from(tail.wrapping_sub(head))
    })
}

/// io_uring_recvmsg_validate(3): the header of a multishot receive, or null when it does not fit.
#[no_mangle]
pub unsafe extern "C" fn io_uring_recvmsg_validate(
    buf: *mut c_void,
    len: c_int,
    msg: *mut msghdr,
) -> *mut RecvmsgOut {
    guard(|| {
        // SAFETY: the caller's promise: the message header of the request.
        let (name, control) = unsafe { ((*msg).msg_namelen as usize, (*msg).msg_controllen) };
        let wanted = size_of::<RecvmsgOut>().checked_add(name).and_then(|sum| sum.checked_add(control));
        match (usize::try_from(len), wanted) {
            (Ok(len), Some(wanted)) if wanted <= len => buf.cast(),
            _ => null_mut(),
        }
    })
}

/// io_uring_recvmsg_name(3).
#[no_mangle]
pub unsafe extern "C" fn io_uring_recvmsg_name(out: *mut RecvmsgOut) -> *mut c_void {
    out.wrapping_add(1).cast()
}

/// io_uring_recvmsg_cmsg_firsthdr(3).
#[no_mangle]
pub unsafe extern "C" fn io_uring_recvmsg_cmsg_firsthdr(out: *mut RecvmsgOut, msg: *mut msghdr) -> *mut cmsghdr {
    guard(|| {
        // SAFETY: the caller's promise: a validated header and the request's message header.
        let (control, name) = unsafe { ((*out).controllen as usize, (*msg).msg_namelen as usize) };
        if control < size_of::<cmsghdr>() {
            return null_mut();
        }
        out.wrapping_add(1).wrapping_byte_add(name).cast()
    })
}

/// io_uring_recvmsg_cmsg_nexthdr(3).
#[no_mangle]
pub unsafe extern "C" fn io_uring_recvmsg_cmsg_nexthdr(
    out: *mut RecvmsgOut,
    msg: *mut msghdr,
    current: *mut cmsghdr,
) -> *mut cmsghdr {
    guard(|| {
        let aligned = |len: usize| len.checked_next_multiple_of(size_of::<usize>());
        // SAFETY: the caller's promise: a control message of the received ones, in a validated buffer.
        let (len, first, control) = unsafe {
            ((*current).cmsg_len, io_uring_recvmsg_cmsg_firsthdr(out, msg) as usize, (*out).controllen as usize)
        };
        let Some(step) = aligned(len).filter(|_| len >= size_of::<cmsghdr>()) else { return null_mut() };
        let end = first.wrapping_add(control);
        let next = current.wrapping_byte_add(step);
        let left = end.saturating_sub(next as usize);
        if left < size_of::<cmsghdr>() {
            return null_mut();
        }
        // SAFETY: the header is before the end of the received control data.
        match aligned(unsafe { (*next).cmsg_len }) {
            Some(size) if size <= left => next,
            _ => null_mut(),
        }
    })
}

/// io_uring_recvmsg_payload(3).
#[no_mangle]
pub unsafe extern "C" fn io_uring_recvmsg_payload(out: *mut RecvmsgOut, msg: *mut msghdr) -> *mut c_void {
    guard(|| {
        // SAFETY: the caller's promise: the request's message header.
        let (name, control) = unsafe { ((*msg).msg_namelen as usize, (*msg).msg_controllen) };
        out.wrapping_add(1).wrapping_byte_add(name).wrapping_byte_add(control).cast()
    })
}

/// io_uring_recvmsg_payload_length(3): in bytes.
#[no_mangle]
pub unsafe extern "C" fn io_uring_recvmsg_payload_length(
    out: *mut RecvmsgOut,
    len: c_int,
    msg: *mut msghdr,
) -> c_uint {
    guard(|| {
        // SAFETY: the caller's promise, passed on.
        let start = unsafe { io_uring_recvmsg_payload(out, msg) } as usize;
        let end = (out as usize).wrapping_add(usize::try_from(len).unwrap_or(0));
        end.saturating_sub(start) as c_uint
    })
}
