//! IORING_OP_NOP.

use super::Verdict;
use crate::Errno;
use anyring_abi::{Sqe, IORING_NOP_INJECT_RESULT};

/// Does nothing, or answers the result that `IORING_NOP_INJECT_RESULT` names in `len`. Source: io_uring_enter(2).
#[derive(Debug, Default)]
pub struct Nop {
    result: i32,
}

impl Nop {
    /// Linux 6.18 knows more flags; those that need what this engine lacks are refused as by an older kernel.
    #[inline]
    pub fn prep(sqe: &Sqe) -> Result<Nop, Errno> {
        let inject = sqe.op_flags == IORING_NOP_INJECT_RESULT;
        if sqe.op_flags != 0 && !inject {
            return Err(Errno::INVAL);
        }
        Ok(Nop { result: if inject { sqe.len as i32 } else { 0 } })
    }

    /// Always done.
    #[inline]
    pub fn issue(&self) -> Verdict {
        Verdict::Done(self.result)
    }
}
