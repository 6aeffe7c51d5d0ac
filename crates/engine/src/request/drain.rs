//! IOSQE_IO_DRAIN: a request that starts when all before it have completed, and holds back all after it until it has
//! completed. Source: `io_init_req_drain`, `io_drain_req` and `io_queue_deferred` in io_uring/io_uring.c.
//!
//! A request with the flag starts draining. It ends with the first request without the flag that finds nothing to
//! wait for. In between every request goes through the queue, and then to io-wq as if it had IOSQE_ASYNC. Requests
//! that leave the queue are issued after the submission.

use super::{Id, Request};
use crate::Errno;
use anyring_abi::{IOSQE_CQE_SKIP_SUCCESS, IOSQE_IO_DRAIN};
use std::collections::VecDeque;

/// Heads of chains (or single requests) that wait for earlier ones.
#[derive(Default)]
pub struct Drain {
    /// Released from the front.
    pub queue: VecDeque<Id>,
    /// Draining is on: requests go through `queue`. Source: `drain_active` in io_uring/io_uring.c.
    pub(crate) active: bool,
    /// Number of requests inside `queue`, with the rest of their chains.
    pub(crate) held: usize,
    /// A request inside a chain drains, so the request after the chain drains, too. Source: `drain_next`.
    pub(crate) next: bool,
    /// The request at hand is the one after such a chain.
    drains_behind_chain: bool,
    /// A request passed by in the submission at hand: natively it counts as in flight until all of that is submitted.
    pub(crate) passed_by: bool,
    /// IOSQE_CQE_SKIP_SUCCESS was used: completions can no longer be counted by CQEs, and the kernel refuses to drain.
    refused: bool,
}

impl Drain {
    /// True if draining is off.
    #[inline]
    pub fn is_idle(&self) -> bool {
        !self.active
    }

    /// Checks the two flags, which exclude each other on a ring.
    pub fn check(&mut self, flags: u8) -> Result<(), Errno> {
        if flags & IOSQE_CQE_SKIP_SUCCESS != 0 {
            self.refused = true;
        }
        if flags & IOSQE_IO_DRAIN != 0 && self.refused {
            return Err(Errno::OPNOTSUPP);
        }
        Ok(())
    }

    /// Records the next request while draining is on; it may still be refused. `in_chain`: others of its chain came
    /// before.
    pub fn begin_queued(&mut self, in_chain: bool) {
        self.drains_behind_chain = !in_chain && core::mem::take(&mut self.next);
    }

    /// Sends the request last passed to [`begin_queued`](Self::begin_queued) through the queue.
    pub fn mark(&self, request: &mut Request) {
        if self.active {
            request.send_to_worker();
        }
        if self.drains_behind_chain {
            request.flags |= IOSQE_IO_DRAIN;
        }
    }

    /// Records that a request, or a chain, was refused: it ends at once and does not go through the queue.
    pub fn pass_by(&mut self) {
        self.passed_by = self.active;
    }
}
