//! Fast intake for NOP, and for READ, WRITE, RECV and SEND without flags on a file named by its number. The ring must
//! not need a check of each request. The call is made directly from the SQE. Its answer is mostly the result, and then
//! neither an operation nor a request is made.
//!
//! [`RingGuard::accept`](super::RingGuard::accept) reaches the same answers in more steps. It takes every SQE that this
//! file cannot take.

use crate::descriptors;
use crate::forced::{point, Point};
use crate::op::first_call::FirstCall;
use crate::op::{definition, AtOnce};
use crate::ring::arrivals::Left;
use crate::ring::broken::Uncompleted;
use crate::ring::{Ring, State};
use crate::Errno;
use anyring_abi::{Cqe, Opcode};
use core::sync::atomic::Ordering;

use super::Accepted;

/// The SQEs of a submission.
pub(super) struct Run {
    /// Position of the next SQE in the SQ.
    pub head: u32,
    /// Number of SQEs taken.
    pub submitted: u32,
    /// Number of SQEs still to be taken.
    pub left: u32,
    /// The outcome of the last SQE; `None` if its call answered it.
    pub accepted: Option<Accepted>,
}

/// The reason why no more SQEs of a run are taken.
pub(super) enum Stop {
    /// All SQEs are taken, or a call alone cannot answer the next one.
    Over,
    /// The batch takes no more CQEs.
    Full,
    /// The call for the last SQE did not give its result.
    Unfinished,
}

/// An SQE whose operation has to continue from its call's answer.
pub(super) struct Unfinished {
    pub opcode: Opcode,
    pub user_data: u64,
    pub call: FirstCall,
    /// The call's answer.
    pub answer: Result<usize, Errno>,
    pub on_its_way: Uncompleted,
}

impl State {
    /// True if requests need no individual checks: no chain is open, nothing drains, and the ring has no restrictions,
    /// IOPOLL, chaos or recorder.
    #[inline]
    pub(super) fn is_ordinary(&self) -> bool {
        self.chain.is_none()
            && self.drain.is_idle()
            && self.restrictions.is_none()
            && self.iopoll.is_none()
            && self.chaos.is_none()
            && self.recorder.is_none()
    }

    /// Returns the first call of a transfer; true if its file is known to have no position. `None` if the SQE needs
    /// more checks.
    #[inline(always)] // in the loop over SQEs
    fn first_call(&mut self, call: Option<FirstCall>) -> Option<(FirstCall, bool)> {
        let call = call?;
        if descriptors::is_own(call.fd) || descriptors::is_ring(call.fd) {
            return None;
        }
        if call.may_be_left() {
            return None;
        }
        let is_stream = self.poll_set.attempts_next(call.fd, call.direction, call.may_be_direct())?;
        if self.poll_set.armed() != 0 && self.poll_set.begin_turn(call.fd, call.direction) {
            return None;
        }
        Some((call, is_stream))
    }

    /// Takes SQEs for as long as a call answers each. Stops before an SQE that needs more. Stops also after an SQE
    /// whose call did not answer it. That SQE goes to `unfinished`, which is large: returning it would copy it. The
    /// caller has checked [`accepts_runs`](crate::ring::RingGuard::accepts_runs).
    #[inline(always)] // called once; rare cases are out of line, since each SQE would pay for their registers
    pub(super) fn complete_run(
        &mut self,
        ring: &'static Ring,
        run: &mut Run,
        unfinished: &mut Option<Unfinished>,
    ) -> Stop {
        let control = self.control;
        let (first, mut head, most) = (run.head, run.head, run.left);
        let mut stop = Stop::Over;
        while head.wrapping_sub(first) != most && !ring.left.any(Left::HOLDER_WORK) {
            if self.batch.is_full() {
                stop = Stop::Full; // checked before an SQE is taken: nothing may panic before its CQE
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
            // Stored before the call. A signal handler that submits then continues after this SQE, and does not repeat
            // it.
            control.header().sq_head.store(head, Ordering::Relaxed);
            let on_its_way = Uncompleted::new(ring, user_data, None);
            point(Point::Prep);
            point(Point::Attempt);
            let mut result = 0;
            if let Some((call, is_stream)) = call {
                match call.make(is_stream) {
                    Ok(count) if call.is_result(count, is_stream) => result = count as i32,
                    answer => {
                        *unfinished = Some(Unfinished { opcode, user_data, call, answer, on_its_way });
                        stop = Stop::Unfinished;
                        break;
                    }
                }
            }
            self.tally(opcode, result);
            self.batch.add(Cqe { user_data, res: result, flags: 0 });
            self.queue.count();
            on_its_way.completed();
        }
        let submitted = head.wrapping_sub(first);
        (run.head, run.submitted, run.left) = (head, run.submitted + submitted, most - submitted);
        stop
    }
}
