//! The sending of a MSG_RING: a CQE, and perhaps a registered file, for another ring.
//!
//! The sender never waits for the target's lock while it holds its own. If no thread holds the target's lock, the
//! sender posts the CQE itself. If a thread holds it, the sender leaves the message for that thread, which posts it
//! before it releases the lock (`ring::arrivals`). On a ring with `IORING_SETUP_DEFER_TASKRUN`, whose completions
//! wait for its owner, messages are always left.
//!
//! Files are sent in the same way: the request is left as a job, which the holder of the target makes
//! (`ring::holder_work`). A thread that reads the CQE also finds what the sender stored before it sent. The locks
//! that are taken in between, and the release store of the CQ tail, order these accesses.
//!
//! Called with the sender's ring locked, or, for `IORING_REGISTER_SEND_MSG_RING`, with no ring locked.

use crate::op::msg_ring::MsgRing;
use crate::op::{Punt, Verdict};
use crate::os::version;
use crate::resource::files::FixedFile;
use crate::ring::table;
use crate::ring::{Ring, RingGuard};
use crate::{descriptors, Errno};
use anyring_abi::*;
use std::sync::Arc;

/// Sends a MSG_RING. A message to the sending ring itself is posted at once, as in the kernel, unless that ring defers
/// completions to its owner.
pub(super) fn send_message(guard: &mut RingGuard, message: &MsgRing, fd: i32) -> Verdict {
    let to_itself = table::ring(fd).is_some_and(|target| core::ptr::eq(target, guard.ring()));
    let verdict = send(message, fd);
    if to_itself && !guard.ring().keeps_messages() {
        guard.post_messages();
    }
    verdict
}

/// Looks up the file that a MSG_RING on `fd` sends, if it sends one, and returns the target ring.
pub(crate) fn look_up_sent(guard: &RingGuard, message: &mut MsgRing, fd: i32) -> Result<&'static Ring, Errno> {
    let target = target(fd)?;
    if core::ptr::eq(target, guard.ring()) {
        return Err(Errno::INVAL);
    }
    message.file = guard.fixed_file(message.source).ok();
    Ok(target)
}

/// Sends a message to the ring that `fd` names.
pub fn send(message: &MsgRing, fd: i32) -> Verdict {
    let target = match target(fd) {
        Ok(target) => target,
        Err(error) => return Verdict::error(error),
    };
    match message.command {
        IORING_MSG_DATA => Verdict::of(send_data(message, target).map(|()| 0)),
        IORING_MSG_SEND_FD => send_file(message, target),
        _ => Verdict::error(Errno::INVAL),
    }
}

fn send_data(message: &MsgRing, target: &'static Ring) -> Result<(), Errno> {
    let passes_flags = message.flags & IORING_MSG_RING_FLAGS_PASS != 0;
    let skips = message.flags & IORING_MSG_RING_CQE_SKIP != 0;
    if message.source != 0 || skips || (!passes_flags && message.target != 0) {
        return Err(Errno::INVAL);
    }
    check_enabled(target)?;
    let flags = if passes_flags { message.target } else { 0 };
    let has_large_cqes = target.has(IORING_SETUP_CQE32 | IORING_SETUP_CQE_MIXED);
    if flags & IORING_CQE_F_32 != 0 && !has_large_cqes && version::answers_as_7_3() {
        return Err(Errno::INVAL);
    }
    leave(target, Cqe { user_data: message.user_data, res: message.len as i32, flags })
}

/// Installs the file in the target's table, if no thread holds the target's lock.
fn send_file(message: &MsgRing, target: &'static Ring) -> Verdict {
    if let Err(error) = check_file(message, target) {
        return Verdict::error(error);
    }
    match target.try_lock() {
        Some(mut guard) => Verdict::of(hand_over(message, &mut guard)),
        None => Verdict::NeedsWorker(Punt::WouldWait), // the target's holder is the worker
    }
}

/// Returns the file to send, after checking that it may be sent.
fn check_file<'a>(message: &'a MsgRing, target: &Ring) -> Result<&'a Arc<FixedFile>, Errno> {
    if message.len != 0 {
        return Err(Errno::INVAL);
    }
    check_enabled(target)?;
    message.file.as_ref().ok_or(Errno::BADF)
}

/// Installs the file in the table of the ring that `to` holds, and leaves the CQE there. Returns the sender's result.
pub fn hand_over(message: &MsgRing, to: &mut RingGuard) -> Result<usize, Errno> {
    if to.is_broken() {
        return Err(Errno::IO);
    }
    let file = check_file(message, to.ring())?;
    let files = to.files.as_mut().ok_or(match message.target == IORING_FILE_INDEX_ALLOC as u32 {
        true => Errno::NFILE,
        false => Errno::NXIO,
    })?;
    let slot = files.install(descriptors::duplicate(file.fd)?, message.target)?;
    let cqe = Cqe { user_data: message.user_data, res: slot, flags: 0 };
    if message.flags & IORING_MSG_RING_CQE_SKIP == 0 && !to.ring().leave_message(cqe) {
        return Err(Errno::AGAIN); // as in `leave`
    }
    Ok(slot as usize)
}

/// Returns the ring that the program's descriptor `fd` names. Fails with EBADFD for another file.
pub fn target(fd: i32) -> Result<&'static Ring, Errno> {
    if let Some(ring) = table::ring(fd).or_else(|| table::adopt(fd)) {
        return Ok(ring);
    }
    descriptors::check_open(fd)?;
    Err(Errno::BADFD)
}

fn check_enabled(target: &Ring) -> Result<(), Errno> {
    if target.has(IORING_SETUP_R_DISABLED) {
        return Err(Errno::BADFD);
    }
    Ok(())
}

/// Posts a CQE to a ring at once, or leaves it for the thread that holds the ring.
fn leave(target: &'static Ring, cqe: Cqe) -> Result<(), Errno> {
    if target.has_panicked_here() {
        return Err(Errno::IO);
    }
    if !target.keeps_messages() {
        if let Some(mut guard) = target.try_lock() {
            if guard.is_broken() {
                return Err(Errno::IO);
            }
            guard.expect_post();
            guard.post_messages(); // these were left earlier
            guard.post_message(cqe);
            return Ok(());
        }
    }
    match target.leave_message(cqe) {
        true => Ok(()),
        false => Err(Errno::AGAIN), // a signal handler interrupted a sender in this very thread
    }
}
