//! IOSQE_IO_DRAIN: a request that starts when all earlier requests have completed, and holds back all later requests
//! until it has completed. Source: `io_init_req_drain`, `io_drain_req` and `io_queue_deferred` in io_uring/io_uring.c.
//!
//! A request with the flag starts draining. Draining ends with the first request without the flag that has nothing to
//! wait for. In between every request goes through the queue, and then to io-wq as if it had IOSQE_ASYNC. Requests that
//! leave the queue are issued after the submission.

use super::{Id, Request};
use crate::Errno;
use anyring_abi::{IOSQE_ASYNC, IOSQE_CQE_SKIP_SUCCESS, IOSQE_IO_DRAIN};
use std::collections::VecDeque;

/// The requests, or heads of chains, that wait for earlier requests.
#[derive(Default)]
pub struct Drain {
    /// The waiting requests. They are released from the front.
    pub queue: VecDeque<Id>,
    /// Draining is on: requests go through `queue`. Source: `drain_active` in io_uring/io_uring.c.
    pub(crate) active: bool,
    /// Number of requests inside `queue`, with the rest of their chains.
    pub(crate) held: usize,
    /// A request inside a chain drains, so the request after that chain drains, too. Source: `drain_next`.
    pub(crate) next: bool,
    /// The present request is the first after a chain with a request inside that drains.
    drains_after_chain: bool,
    /// True if a request of the present submission has bypassed the queue. In the kernel such a request counts as
    /// in flight until the whole submission is done.
    pub(crate) passed_by: bool,
    /// The program has used IOSQE_CQE_SKIP_SUCCESS. Completions can then not be counted by CQEs, and the kernel refuses
    /// to drain.
    refused: bool,
}

impl Drain {
    /// True if draining is off.
    #[inline]
    pub fn is_idle(&self) -> bool {
        !self.active
    }

    /// Checks the flags IOSQE_IO_DRAIN and IOSQE_CQE_SKIP_SUCCESS, which exclude each other on a ring.
    pub fn check(&mut self, flags: u8) -> Result<(), Errno> {
        if flags & IOSQE_CQE_SKIP_SUCCESS != 0 {
            self.refused = true;
        }
        if flags & IOSQE_IO_DRAIN != 0 && self.refused {
            return Err(Errno::OPNOTSUPP);
        }
        Ok(())
    }

    /// Called for the next request while draining is on. The request may still be refused. `in_chain` says that earlier
    /// requests of its chain exist.
    pub fn begin_queued(&mut self, in_chain: bool) {
        self.drains_after_chain = !in_chain && core::mem::take(&mut self.next);
    }

    /// Sends the request last passed to [`begin_queued`](Self::begin_queued) through the queue.
    pub fn mark(&self, request: &mut Request) {
        if self.active {
            request.send_to_worker();
        }
        if self.drains_after_chain {
            request.flags |= IOSQE_IO_DRAIN;
        }
    }

    /// Returns the `IOSQE_*` flags that that request gets.
    pub fn flags(&self) -> u8 {
        let active = if self.active { IOSQE_ASYNC } else { 0 };
        let drains = if self.drains_after_chain { IOSQE_IO_DRAIN } else { 0 };
        active | drains
    }

    /// Records that a request, or a chain, was refused. It ends at once and does not go through the queue.
    pub fn pass_by(&mut self) {
        self.passed_by = self.active;
    }
}
