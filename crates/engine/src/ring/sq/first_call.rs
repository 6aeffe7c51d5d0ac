//! Requests that ask for nothing but their call, on a ring where nothing is asked about each request: NOP, and READ, WRITE,
//! RECV and SEND on a file that is named by its number. The call is made from the SQE. Mostly its answer is the result, and
//! then neither an operation nor a request is made.
//!
//! [`RingGuard::accept`](super::RingGuard::accept) leads to the same answers by more steps. Whatever this file has no place for
//! goes there.

use crate::descriptors;
use crate::forced::{point, Point};
use crate::op::first_call::FirstCall;
use crate::op::{definition, AtOnce, Definition};
use crate::ring::arrivals::Left;
use crate::ring::broken::Unanswered;
use crate::ring::{Ring, State};
use crate::Errno;
use anyring_abi::{Cqe, Opcode, Sqe};
use core::sync::atomic::Ordering;

use super::Accepted;

/// The SQEs of a submission.
pub(super) struct Run {
    /// Position of the next one.
    pub head: u32,
    /// How many were taken.
    pub taken: u32,
    /// How many are to be taken still.
    pub left: u32,
    /// What became of the last one, unless its call answered it.
    pub accepted: Option<Accepted>,
}

/// Why no more SQEs of a run are taken.
pub(super) enum Stop {
    /// All are taken, or the next one needs more.
    Over,
    /// The batch takes no more.
    Full,
    /// The last one's call did not answer it.
    Unfinished,
}

/// An SQE whose call gave an answer from which its operation has to go on.
pub(super) struct Unfinished {
    pub opcode: Opcode,
    pub row: &'static Definition,
    /// What it asks for; the other fields were found to be zero, or mean nothing to it.
    pub sqe: Sqe,
    /// What the call answered.
    pub answer: Result<usize, Errno>,
    pub on_its_way: Unanswered,
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

    /// The first call of a transfer, and whether its file is known to have no position. `None` if more has to be looked at.
    #[inline(always)] // in the loop over SQEs
    fn first_call(&mut self, call: Option<FirstCall>) -> Option<(FirstCall, bool)> {
        let call = call?;
        if descriptors::is_own(call.fd) || descriptors::is_ring(call.fd) {
            return None;
        }
        let is_stream = self.poll_set.attempts_next(call.fd, call.direction, call.may_be_direct())?;
        if self.poll_set.armed() != 0 && self.poll_set.begin_turn(call.fd, call.direction) {
            return None;
        }
        Some((call, is_stream))
    }

    /// Takes SQEs for as long as a call answers each. Stops before one that needs more than that, and behind one whose call did
    /// not answer it, which is left in `unfinished`: it is large, and a result would be copied. Only where
    /// [`takes_runs`](crate::ring::RingGuard::takes_runs) says so.
    #[inline(always)] // once; what follows seldom is apart, or each SQE pays for its registers
    pub(super) fn answer_run(
        &mut self,
        ring: &'static Ring,
        run: &mut Run,
        unfinished: &mut Option<Unfinished>,
    ) -> Stop {
        let control = self.control;
        let (first, mut head, most) = (run.head, run.head, run.left);
        let mut stop = Stop::Over;
        while head.wrapping_sub(first) != most && !ring.left.any(Left::NOTES) {
            if self.batch.is_full() {
                stop = Stop::Full; // before an SQE is taken: nothing panics between it and its CQE
                break;
            }
            let Some(sqe) = self.memory.view.sqe_at(head) else { break };
            let asked =
                u32::from(sqe.flags()) | u32::from(sqe.ioprio()) | u32::from(sqe.personality()) | sqe.op_flags();
            if asked != 0 {
                break;
            }
            let Some((opcode, row)) = definition(sqe.opcode()) else { break };
            let call = match row.at_once {
                AtOnce::Nothing => break,
                AtOnce::Nop => None,
                AtOnce::File(direction) => match self.first_call(FirstCall::of_file(&sqe, direction)) {
                    None => break,
                    call => call,
                },
                AtOnce::Socket(direction) => match self.first_call(FirstCall::of_socket(&sqe, direction)) {
                    None => break,
                    call => call,
                },
            };
            let user_data = sqe.user_data();
            point(Point::Intake);
            head = head.wrapping_add(1);
            // Before the call: a signal handler's submission follows this one, it does not repeat it.
            control.header().sq_head.store(head, Ordering::Relaxed);
            let on_its_way = Unanswered::new(ring, user_data, None);
            point(Point::Prep);
            point(Point::Attempt);
            let mut result = 0;
            if let Some((call, is_stream)) = call {
                match call.make(is_stream) {
                    Ok(count) if call.is_result(count, is_stream) => result = count as i32,
                    answer => {
                        let sqe = call.sqe(opcode as u8, user_data);
                        *unfinished = Some(Unfinished { opcode, row, sqe, answer, on_its_way });
                        stop = Stop::Unfinished;
                        break;
                    }
                }
            }
            self.tally(opcode, result);
            self.batch.add(Cqe { user_data, res: result, flags: 0 });
            self.queue.count();
            on_its_way.answered();
        }
        let taken = head.wrapping_sub(first);
        (run.head, run.taken, run.left) = (head, run.taken + taken, most - taken);
        stop
    }
}
