//! Requests that ask for nothing but their call, on a ring where nothing is asked about each request: NOP, and READ, WRITE,
//! RECV and SEND on a file that is named by its number. The call is made from the SQE. Mostly its answer is the result, and
//! then neither an operation nor a request is made.
//!
//! [`RingGuard::accept`](super::RingGuard::accept) leads to the same answers by more steps. Whatever this file has no place for
//! goes there.

use crate::descriptors;
use crate::forced::{point, Point};
use crate::op::first_call::FirstCall;
use crate::op::AtOnce;
use crate::ring::State;
use crate::Errno;
use anyring_abi::Sqe;

/// What came of a request whose call was made at once.
pub(super) enum Called {
    /// Its result.
    Result(i32),
    /// An answer from which its operation has to go on, and whether its file is known to have no position.
    Unfinished(Result<usize, Errno>, bool),
}

impl State {
    /// Whether nothing is asked about each request here: no chain is open, nothing is drained, restricted, polled for,
    /// disturbed or traced.
    #[inline]
    pub(super) fn is_ordinary(&self) -> bool {
        self.chain.is_none()
            && self.drain.is_idle()
            && self.restrictions.is_none()
            && self.iopoll.is_none()
            && self.chaos.is_none()
            && self.recorder.is_none()
    }

    /// Makes the call of an SQE whose flags, `ioprio`, `personality` and `op_flags` are zero, on an ordinary ring. `None` if
    /// more has to be looked at: no call was made then.
    #[inline(always)] // in the loop over SQEs
    pub(super) fn call_at_once(&mut self, sqe: &Sqe, at_once: AtOnce) -> Option<Called> {
        let call = match at_once {
            AtOnce::Nothing => return None,
            AtOnce::Nop => {
                point(Point::Attempt);
                return Some(Called::Result(0));
            }
            AtOnce::File(direction) => FirstCall::of_file(sqe, direction)?,
            AtOnce::Socket(direction) => FirstCall::of_socket(sqe, direction)?,
        };
        if descriptors::is_own(call.fd) || descriptors::is_ring(call.fd) {
            return None;
        }
        let is_stream = self.poll_set.attempts_next(call.fd, call.direction, call.may_be_direct())?;
        if self.poll_set.armed() != 0 && self.poll_set.begin_turn(call.fd, call.direction) {
            return None;
        }
        point(Point::Attempt);
        match call.make(is_stream) {
            Ok(count) if call.is_result(count, is_stream) => Some(Called::Result(count as i32)),
            answer => Some(Called::Unfinished(answer, is_stream)),
        }
    }
}
