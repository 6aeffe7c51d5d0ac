//! MSG_RING: a CQE, and perhaps a registered file, for another ring.
//!
//! The sender never waits for the target's lock while it holds its own: it posts if nobody holds the target, else leaves the
//! message for whoever does, who posts it before letting go (`ring::arrivals`). A ring whose completions wait for its
//! owner (`IORING_SETUP_DEFER_TASKRUN`) always gets its messages left. What the sender stored before it sent is visible
//! to whoever sees the CQE: the locks on the way, and the release store of the CQ tail, order them.

use super::{call, Context, Verdict};
use crate::resource::files::FixedFile;
use crate::ring::Ring;
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
            IORING_MSG_SEND_FD => self.send_file(target, context.nonblock),
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

    /// Installs the file in the target's table, which takes its lock: a worker may wait for that.
    fn send_file(&self, target: &'static Ring, nonblock: bool) -> Verdict {
        if self.len != 0 {
            return Verdict::error(Errno::INVAL);
        }
        if let Err(error) = check_enabled(target) {
            return Verdict::error(error);
        }
        let Some(file) = &self.file else { return Verdict::error(Errno::BADF) };
        let guard = if nonblock { target.try_lock() } else { target.lock().ok() };
        let Some(mut guard) = guard else {
            return if nonblock { Verdict::NeedsWorker } else { Verdict::error(Errno::BADFD) };
        };
        let installed = match guard.files.as_mut() {
            Some(files) => descriptors::duplicate(file.fd).and_then(|fd| files.install(fd, self.target)),
            None if self.target == IORING_FILE_INDEX_ALLOC as u32 => Err(Errno::NFILE),
            None => Err(Errno::NXIO),
        };
        drop(guard);
        let told = installed.and_then(|slot| match self.flags & IORING_MSG_RING_CQE_SKIP {
            0 => leave(target, Cqe { user_data: self.user_data, res: slot, flags: 0 }).map(|()| slot),
            _ => Ok(slot),
        });
        Verdict::of(told.map(|slot| slot as usize))
    }
}

/// The ring that the program's number `fd` names: EBADFD for another file.
fn target(fd: i32) -> Result<&'static Ring, Errno> {
    if let Some(ring) = process::ring(fd).or_else(|| process::adopt(fd)) {
        return Ok(ring);
    }
    call(libc::SYS_fcntl, [fd as usize, libc::F_GETFD as usize, 0, 0, 0, 0])?;
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
