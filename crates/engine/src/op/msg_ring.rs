//! MSG_RING: a CQE, and perhaps a registered file, for another ring.
//!
//! The sender never waits for the target's lock while it holds its own: it posts if nobody holds the target, else leaves the
//! message for whoever does, who posts it before letting go (`ring::arrivals`). A ring whose completions wait for its
//! owner (`IORING_SETUP_DEFER_TASKRUN`) always gets its messages left. A file likewise: the request is left as a job that
//! whoever holds the target makes (`ring::notes`). What the sender stored before it sent is visible
//! to whoever sees the CQE: the locks on the way, and the release store of the CQ tail, order them.

use super::{Context, Verdict};
use crate::resource::files::FixedFile;
use crate::ring::{Ring, RingGuard};
use crate::{descriptors, process, Errno};
use anyring_abi::*;
use std::sync::Arc;

/// A message. Source: io_uring_enter(2), IORING_OP_MSG_RING; io_uring/msg_ring.c.
#[derive(Debug)]
pub struct MsgRing {
    /// `IORING_MSG_*`.
    command: u64,
    user_data: u64,
    len: u32,
    /// Slot of the file to send.
    pub source: u32,
    /// For a file: the target's slot plus one, or `IORING_FILE_INDEX_ALLOC`. For data: the CQE's flags.
    target: u32,
    flags: u32,
    /// The file to send, once looked up.
    pub file: Option<Arc<FixedFile>>,
}

impl MsgRing {
    /// Reads the SQE.
    pub fn prep(sqe: &Sqe) -> Result<MsgRing, Errno> {
        let known = IORING_MSG_RING_CQE_SKIP | IORING_MSG_RING_FLAGS_PASS;
        if sqe.buf_index != 0 || sqe.personality != 0 || sqe.op_flags & !known != 0 {
            return Err(Errno::INVAL);
        }
        Ok(MsgRing {
            command: u64::from(sqe.addr as u32),
            user_data: sqe.off,
            len: sqe.len,
            source: sqe.addr3 as u32,
            target: sqe.file_index,
            flags: sqe.op_flags,
            file: None,
        })
    }

    /// Whether it sends a registered file, which is to be looked up first.
    pub fn sends_file(&self) -> bool {
        self.command == IORING_MSG_SEND_FD
    }

    /// For `IORING_REGISTER_SEND_MSG_RING`, which has no ring to take a file from.
    pub fn check_is_data(&self) -> Result<(), Errno> {
        if self.command != IORING_MSG_DATA {
            return Err(Errno::INVAL);
        }
        Ok(())
    }

    /// Sends it to the ring that `context.fd` names.
    pub fn issue(&mut self, context: Context) -> Verdict {
        let target = match target(context.fd) {
            Ok(target) => target,
            Err(error) => return Verdict::error(error),
        };
        match self.command {
            IORING_MSG_DATA => Verdict::of(self.send_data(target).map(|()| 0)),
            IORING_MSG_SEND_FD => self.send_file(target),
            _ => Verdict::error(Errno::INVAL),
        }
    }

    fn send_data(&self, target: &'static Ring) -> Result<(), Errno> {
        let passes_flags = self.flags & IORING_MSG_RING_FLAGS_PASS != 0;
        let skips = self.flags & IORING_MSG_RING_CQE_SKIP != 0;
        if self.source != 0 || skips || (!passes_flags && self.target != 0) {
            return Err(Errno::INVAL);
        }
        check_enabled(target)?;
        let flags = if passes_flags { self.target } else { 0 };
        leave(target, Cqe { user_data: self.user_data, res: self.len as i32, flags })
    }

    /// Installs the file in the target's table, if nobody holds that.
    fn send_file(&self, target: &'static Ring) -> Verdict {
        if let Err(error) = self.check_file(target) {
            return Verdict::error(error);
        }
        match target.try_lock() {
            Some(mut guard) => Verdict::of(self.hand_over(&mut guard)),
            None => Verdict::NeedsWorker, // that is, its holder
        }
    }

    /// The file to send, if it may be.
    fn check_file(&self, target: &Ring) -> Result<&Arc<FixedFile>, Errno> {
        if self.len != 0 {
            return Err(Errno::INVAL);
        }
        check_enabled(target)?;
        self.file.as_ref().ok_or(Errno::BADF)
    }

    /// Installs the file in the table of the ring that `to` holds, and tells it. Answers what the sender is told.
    pub fn hand_over(&self, to: &mut RingGuard) -> Result<usize, Errno> {
        if to.is_broken() {
            return Err(Errno::IO);
        }
        let file = self.check_file(to.ring())?;
        let files = to.files.as_mut().ok_or(match self.target == IORING_FILE_INDEX_ALLOC as u32 {
            true => Errno::NFILE,
            false => Errno::NXIO,
        })?;
        let slot = files.install(descriptors::duplicate(file.fd)?, self.target)?;
        let cqe = Cqe { user_data: self.user_data, res: slot, flags: 0 };
        if self.flags & IORING_MSG_RING_CQE_SKIP == 0 && !to.ring().leave_message(cqe) {
            return Err(Errno::AGAIN); // as in `leave`
        }
        Ok(slot as usize)
    }
}

/// The ring that the program's number `fd` names: EBADFD for another file.
pub fn target(fd: i32) -> Result<&'static Ring, Errno> {
    if let Some(ring) = process::ring(fd).or_else(|| process::adopt(fd)) {
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

/// Posts a CQE to a ring, now or by whoever holds it.
fn leave(target: &'static Ring, cqe: Cqe) -> Result<(), Errno> {
    if target.is_struck_here() {
        return Err(Errno::IO);
    }
    if !target.keeps_messages() {
        if let Some(mut guard) = target.try_lock() {
            if guard.is_broken() {
                return Err(Errno::IO);
            }
            guard.expect_post();
            guard.post_messages(); // what came before
            guard.post_message(cqe);
            return Ok(());
        }
    }
    match target.leave_message(cqe) {
        true => Ok(()),
        false => Err(Errno::AGAIN), // from a signal handler that interrupted another sender in this very thread
    }
}
