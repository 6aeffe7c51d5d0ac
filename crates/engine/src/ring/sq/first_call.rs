//! Requests that ask for nothing but their call, on a ring where nothing is asked about each request: NOP, and READ, WRITE,
//! RECV and SEND on a file that is named by its number. The call is made from the SQE. Mostly its answer is the result, and
//! then neither an operation nor a request is made.
//!
//! [`RingGuard::accept`] leads to the same answers by more steps. Whatever this file has no place for goes there.

use super::{Accepted, Unanswered};
use crate::descriptors;
use crate::forced::{point, Point};
use crate::op::first_call::FirstCall;
use crate::op::net::Net;
use crate::op::{definition, AtOnce, Context, Definition, Direction, Op, Verdict};
use crate::ring::RingGuard;
use crate::Errno;
use anyring_abi::{Opcode, Sqe};

impl RingGuard {
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

    /// Takes in one SQE on an ordinary ring. `None` if [`accept`](Self::accept) has to: nothing was done then.
    #[inline]
    pub(super) fn accept_at_once(&mut self, sqe: &Sqe) -> Option<Accepted> {
        let asked = u32::from(sqe.flags) | u32::from(sqe.ioprio) | u32::from(sqe.personality) | sqe.op_flags;
        if asked != 0 {
            return None;
        }
        let (opcode, row) = definition(sqe.opcode)?;
        match row.at_once {
            AtOnce::Nothing => None,
            AtOnce::Nop => {
                let on_its_way = Unanswered::new(self.ring(), sqe.user_data, None);
                point(Point::Prep);
                point(Point::Attempt);
                self.post_result(opcode, sqe, 0, on_its_way);
                Some(Accepted::Answered)
            }
            AtOnce::File(direction) => self.transfer_at_once(opcode, row, sqe, FirstCall::of_file(sqe, direction)?),
            AtOnce::Socket(direction) => {
                self.transfer_at_once(opcode, row, sqe, FirstCall::of_socket(sqe, direction)?)
            }
        }
    }

    #[inline]
    fn transfer_at_once(
        &mut self,
        opcode: Opcode,
        row: &'static Definition,
        sqe: &Sqe,
        call: FirstCall,
    ) -> Option<Accepted> {
        if self.has_notes() || descriptors::is_own(call.fd) || descriptors::is_ring(call.fd) {
            return None;
        }
        let is_stream = self.poll_set.attempts_next(call.fd, call.direction, call.may_be_direct())?;
        if self.poll_set.armed() != 0 && self.poll_set.begin_turn(call.fd, call.direction) {
            return None;
        }
        let on_its_way = Unanswered::new(self.ring(), sqe.user_data, None);
        point(Point::Prep);
        point(Point::Attempt);
        let answer = call.make(is_stream);
        match answer {
            Ok(count) if call.is_result(count, is_stream) => {
                self.post_result(opcode, sqe, count as i32, on_its_way);
                Some(Accepted::Answered)
            }
            _ => Some(self.go_on_after(opcode, row, sqe, (answer, is_stream), on_its_way)),
        }
    }

    /// Makes an operation of an SQE whose first call gave an answer that is not the result.
    #[cold]
    fn go_on_after(
        &mut self,
        opcode: Opcode,
        row: &'static Definition,
        sqe: &Sqe,
        (answer, is_stream): (Result<usize, Errno>, bool),
        on_its_way: Unanswered,
    ) -> Accepted {
        let mut op = match (row.prep)(opcode, sqe) {
            Ok(op) => op,
            Err(error) => return self.refuse(sqe, error, 0, on_its_way),
        };
        let context = Context { fd: sqe.fd, nonblock: true };
        let verdict = match &mut op {
            Op::Rw(rw) => {
                if is_stream {
                    rw.assume_stream();
                }
                let verdict = rw.issue_after(answer, context);
                self.learn_from(rw, sqe.fd);
                verdict
            }
            Op::Net(Net::Transfer(transfer)) => transfer.issue_after(answer, context),
            _ => Verdict::error(Errno::INVAL), // the table says these only
        };
        if op.waits_for() == Some(Direction::Read) {
            self.poll_set.note_first_read(sqe.fd, verdict == Verdict::WouldBlock(Direction::Read));
        }
        self.conclude(&mut op, opcode, row, sqe, verdict, on_its_way)
    }
}
