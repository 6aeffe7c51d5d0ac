//! Asks the ring's filters about an SQE, after all other checks of it. Source: `io_submit_sqe` in io_uring/io_uring.c,
//! `io_uring_populate_bpf_ctx` in io_uring/bpf_filter.c.
//!
//! The filters see what was copied from the program, so that the program cannot change it afterwards.

use crate::mutation::{mutated, Mutation};
use crate::op::{Definition, Op};
use crate::resource::filters::Seen;
use crate::ring::State;
use crate::Errno;
use anyring_abi::{Opcode, Sqe, IOSQE_ASYNC};

impl State {
    /// Fails with `EACCES` if a filter denies the operation.
    #[cold]
    pub(super) fn ask_filters(&self, op: &Op, opcode: Opcode, sqe: &Sqe) -> Result<(), Errno> {
        let Some(restrictions) = self.restrictions.as_deref() else { return Ok(()) };
        if restrictions.filters.count() == 0 || mutated(Mutation::FiltersAreNotAsked) {
            return Ok(());
        }
        let forced = if op.is_forced(opcode) { IOSQE_ASYNC } else { 0 };
        let flags = sqe.flags | forced | self.drain.flags();
        let payload = op.seen_by_filters();
        restrictions.filters.check(&Seen { user_data: sqe.user_data, opcode, flags, payload })
    }

    /// Does the same for a NOP before it is prepared: a NOP that is prepared is not checked any more. Errors of other
    /// checks, which come first, are left to those checks.
    #[cold]
    pub(super) fn ask_about_nop(&self, opcode: Opcode, row: &Definition, sqe: &Sqe) -> Result<(), Errno> {
        let has_owner = sqe.personality == 0 || self.personalities.find(sqe.personality).is_ok();
        let is_refused = sqe.ioprio != 0 || !has_owner;
        match (row.prep)(opcode, sqe) {
            Ok(op @ Op::Nop(_)) if !is_refused => self.ask_filters(&op, opcode, sqe),
            _ => Ok(()),
        }
    }
}
