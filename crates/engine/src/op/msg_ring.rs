//! MSG_RING: posts a CQE, and perhaps installs a registered file, in another ring. `issue/msg_ring.rs` sends the
//! message.

use super::{OnRing, Operation, Verdict};
use crate::resource::files::FixedFile;
use crate::Errno;
use anyring_abi::*;
use std::sync::Arc;

/// A message. Source: io_uring_enter(2), IORING_OP_MSG_RING; io_uring/msg_ring.c.
#[derive(Debug)]
pub struct MsgRing {
    /// `IORING_MSG_*`.
    pub command: u64,
    /// The CQE's `user_data`.
    pub user_data: u64,
    /// The CQE's result.
    pub len: u32,
    /// Slot of the file to send in the sender's registered files.
    pub source: u32,
    /// If a file is sent: the receiving ring's slot plus one, or `IORING_FILE_INDEX_ALLOC`. If data is sent: the CQE's
    /// flags.
    pub target: u32,
    /// `IORING_MSG_RING_*`.
    pub flags: u32,
    /// The file to send, once the engine has looked it up.
    pub file: Option<Arc<FixedFile>>,
}

impl MsgRing {
    /// Reads the SQE and checks its fields.
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

    /// True if the message carries a registered file, which must be looked up first.
    pub fn sends_file(&self) -> bool {
        self.command == IORING_MSG_SEND_FD
    }

    /// Checks a message of `IORING_REGISTER_SEND_MSG_RING`. It can carry data only, since there is no ring to take a
    /// file from.
    pub fn check_is_data(&self) -> Result<(), Errno> {
        if self.command != IORING_MSG_DATA {
            return Err(Errno::INVAL);
        }
        Ok(())
    }
}

impl Operation for MsgRing {
    fn issue_on(&mut self, ring: &mut impl OnRing, fd: i32) -> Verdict {
        ring.send_message(self, fd)
    }

    fn look_up(&mut self, ring: &mut impl OnRing, fd: i32) -> Result<(), Errno> {
        if self.sends_file() {
            ring.look_up_sent(self, fd)
        } else {
            Ok(())
        }
    }
}
