//! POLL_ADDs that follow each other in the SQ: one poll(2) for all of them, before the first is taken.
//!
//! What is read here of the SQEs is a hint. Each SQE is copied in its turn, and its copy decides what the request does.
//! A request that differs from what was read here makes a call of its own ([`crate::poll::ahead`]).

use crate::descriptors;
use crate::memory::view::SqeRef;
use crate::op::poll::PollAdd;
use crate::ring::State;
use anyring_abi::Opcode;

/// The fewest POLL_ADDs for which one call is made.
pub(super) const LEAST: u32 = 4;

impl State {
    /// Polls for the POLL_ADD at position `first` of the SQ and for those that follow it. `count` SQEs are left to be
    /// taken, that POLL_ADD included. Does nothing if answers are left, or requests need individual checks.
    #[inline(never)] // most submissions have no such SQEs
    pub(super) fn poll_ahead(&mut self, first: u32, count: u32) {
        let view = self.memory.view;
        if !self.poll_set.ahead.is_empty() || !self.is_ordinary() || !view.goes_by_tail() {
            return;
        }
        let sqes = (0..count).map_while(|place| view.sqe_at(first.wrapping_add(place)));
        self.poll_set.ahead.ask(sqes.map_while(|sqe| asked(&sqe)), LEAST as usize);
    }
}

/// Returns the descriptor and the events of a POLL_ADD that posts one CQE and has no flags. `None` for all other SQEs,
/// and for descriptors of rings or of the engine.
fn asked(sqe: &SqeRef) -> Option<(i32, u16)> {
    let is_plain = sqe.opcode() == Opcode::PollAdd as u8 && sqe.flags() == 0 && sqe.len() == 0;
    let fd = Some(sqe.fd()).filter(|fd| is_plain && *fd >= 0);
    let fd = fd.filter(|fd| !descriptors::is_own(*fd) && !descriptors::is_ring(*fd))?;
    Some((fd, PollAdd::asked_for(sqe.op_flags())))
}
