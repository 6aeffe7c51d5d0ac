//! IOSQE_IO_DRAIN: a request that starts when all before it have completed, and holds back all after it until it has.
//! Source: `io_init_req_drain`, `io_drain_req` and `io_queue_deferred` in io_uring/io_uring.c.
//!
//! From the first request that drains until one that does not finds nothing to wait for, every request goes through the
//! queue, and on to io-wq as if it had IOSQE_ASYNC. What leaves the queue is issued after the submission.

use super::{Id, Request};
use crate::Errno;
use anyring_abi::{IOSQE_CQE_SKIP_SUCCESS, IOSQE_IO_DRAIN};
use std::collections::VecDeque;

/// Heads of chains (or single requests) that wait for earlier ones.
#[derive(Default)]
pub struct Drain {
    /// The first is let go first.
    pub queue: VecDeque<Id>,
    /// Requests go through `queue`. Source: `drain_active` in io_uring/io_uring.c.
    pub(crate) active: bool,
    /// Requests inside `queue`, with the rest of their chains.
    pub(crate) held: usize,
    /// A request inside a chain drains: so does the one behind the chain. Source: `drain_next`.
    pub(crate) next: bool,
    /// The request at hand is that one.
    drains_behind_chain: bool,
    /// One passed by in the submission at hand: natively it counts as in flight until all of that is submitted.
    pub(crate) passed_by: bool,
    /// IOSQE_CQE_SKIP_SUCCESS was used: completions can no longer be counted by CQEs, and the kernel refuses to drain.
    refused: bool,
}

impl Drain {
    /// Nothing is held back, and nothing has to be.
    #[inline]
    pub fn is_idle(&self) -> bool {
        !self.active
    }

    /// The two flags exclude each other on a ring.
    pub fn check(&mut self, flags: u8) -> Result<(), Errno> {
        if flags & IOSQE_CQE_SKIP_SUCCESS != 0 {
            self.refused = true;
        }
        if flags & IOSQE_IO_DRAIN != 0 && self.refused {
            return Err(Errno::OPNOTSUPP);
        }
        Ok(())
    }

    /// A request was looked at while not idle, which may be refused yet; others of its chain came before (`in_chain`).
    pub fn meet(&mut self, in_chain: bool) {
        self.drains_behind_chain = !in_chain && core::mem::take(&mut self.next);
    }

    /// The request that was met becomes one that goes through the queue.
    pub fn mark(&self, request: &mut Request) {
        if self.active {
            request.send_to_worker();
        }
        if self.drains_behind_chain {
            request.flags |= IOSQE_IO_DRAIN;
        }
    }

    /// A request, or a chain, was refused and ends at once instead of going through the queue.
    pub fn pass_by(&mut self) {
        self.passed_by = self.active;
    }
}
