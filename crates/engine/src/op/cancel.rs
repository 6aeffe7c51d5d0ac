//! ASYNC_CANCEL: its arguments and checks, and the test whether a request matches. `issue::cancel` finds the requests.

use super::{reject_unused, Field, HandledBefore, OnRing, Operation, Verdict};
use crate::Errno;
use anyring_abi::{
    Opcode, Sqe, IORING_ASYNC_CANCEL_ALL, IORING_ASYNC_CANCEL_ANY, IORING_ASYNC_CANCEL_FD,
    IORING_ASYNC_CANCEL_FD_FIXED, IORING_ASYNC_CANCEL_OP, IORING_ASYNC_CANCEL_USERDATA, IOSQE_BUFFER_SELECT,
    IOSQE_FIXED_FILE,
};

/// The description of the requests to end. Source: io_uring_enter(2), IORING_OP_ASYNC_CANCEL; `io_cancel_req_match` in
/// io_uring/cancel.c.
#[derive(Debug, Clone, Copy)]
pub struct Cancel {
    /// `user_data` that must match; `None` if the program asked for other keys only.
    pub user_data: Option<u64>,
    /// Descriptor that must match; true if it is an index into the registered files.
    pub fd: Option<(i32, bool)>,
    /// Opcode that must match.
    pub opcode: Option<u32>,
    /// Every request matches.
    pub any: bool,
    /// All matching requests end, and their number is the result.
    pub all: bool,
    /// IORING_ASYNC_CANCEL_ALL was given; ANY implies `all` without it.
    pub by_list: bool,
}

impl Cancel {
    /// Reads the SQE and checks its fields.
    pub fn prep(sqe: &Sqe) -> Result<Cancel, Errno> {
        if sqe.flags & IOSQE_BUFFER_SELECT != 0 {
            return Err(Errno::INVAL);
        }
        reject_unused(sqe, &[Field::Off, Field::FileIndex])?;
        let mut flags = sqe.op_flags;
        if flags & IORING_ASYNC_CANCEL_FD != 0 && sqe.flags & IOSQE_FIXED_FILE != 0 {
            flags |= IORING_ASYNC_CANCEL_FD_FIXED;
        }
        let keys = IORING_ASYNC_CANCEL_FD | IORING_ASYNC_CANCEL_OP;
        if flags & IORING_ASYNC_CANCEL_ANY != 0 && flags & keys != 0 {
            return Err(Errno::INVAL);
        }
        Cancel::with_flags(flags, sqe.addr, sqe.fd, sqe.len)
    }

    /// Reads the `IORING_ASYNC_CANCEL_*` flags and the keys that they select. With IORING_ASYNC_CANCEL_ANY no key is
    /// used. Only IORING_REGISTER_SYNC_CANCEL lets a program combine it with others.
    pub fn with_flags(flags: u32, user_data: u64, fd: i32, opcode: u32) -> Result<Cancel, Errno> {
        let known = IORING_ASYNC_CANCEL_ALL
            | IORING_ASYNC_CANCEL_FD
            | IORING_ASYNC_CANCEL_ANY
            | IORING_ASYNC_CANCEL_FD_FIXED
            | IORING_ASYNC_CANCEL_USERDATA
            | IORING_ASYNC_CANCEL_OP;
        if flags & !known != 0 {
            return Err(Errno::INVAL);
        }
        let any = flags & IORING_ASYNC_CANCEL_ANY != 0;
        let by_fd = flags & IORING_ASYNC_CANCEL_FD != 0;
        let by_opcode = flags & IORING_ASYNC_CANCEL_OP != 0 && !any;
        let by_user_data = !any && (flags & IORING_ASYNC_CANCEL_USERDATA != 0 || !(by_fd || by_opcode));
        Ok(Cancel {
            user_data: by_user_data.then_some(user_data),
            fd: by_fd.then_some((fd, flags & IORING_ASYNC_CANCEL_FD_FIXED != 0)),
            opcode: by_opcode.then_some(opcode),
            any,
            all: any || flags & IORING_ASYNC_CANCEL_ALL != 0,
            by_list: flags & IORING_ASYNC_CANCEL_ALL != 0,
        })
    }

    /// True if a request with these keys matches. `same_file` says whether the request works on the file of the
    /// descriptor.
    pub fn matches(&self, user_data: u64, opcode: Opcode, same_file: bool) -> bool {
        self.user_data.is_none_or(|wanted| wanted == user_data)
            && self.opcode.is_none_or(|wanted| wanted == opcode as u32)
            && (self.any || self.fd.is_none() || same_file)
    }
}

impl Operation for Cancel {
    fn issue_on(&mut self, ring: &mut impl OnRing, _fd: i32) -> Verdict {
        ring.cancel(self)
    }

    fn handled_before(&self) -> HandledBefore {
        HandledBefore::Everything
    }

    /// Answers EALREADY to a cancel request that matches itself, since a worker runs the cancel. Source:
    /// `__io_async_cancel` in io_uring/cancel.c.
    fn verdict_in_worker(&self, verdict: Verdict, user_data: u64, opcode: Opcode) -> Verdict {
        let means_itself = !self.all && self.matches(user_data, opcode, false);
        if verdict == Verdict::error(Errno::NOENT) && means_itself {
            return Verdict::error(Errno::ALREADY);
        }
        verdict
    }
}
