//! IOSQE_IO_DRAIN: a request that starts when all before it have completed, and holds back all after it until it has.
//! Source: `io_init_req_drain`, `io_drain_req` and `io_queue_deferred` in io_uring/io_uring.c.
//!
//! From the first request that drains until one that does not finds nothing to wait for, every request goes through the
//! queue, and on to io-wq as if it had IOSQE_ASYNC. What leaves the queue is issued after the submission.

use super::{Id, Request};
use crate::mutation::{mutated, Mutation};
use crate::ring::RingGuard;
use crate::Errno;
use anyring_abi::{IOSQE_CQE_SKIP_SUCCESS, IOSQE_IO_DRAIN};
use std::collections::VecDeque;

/// Heads of chains (or single requests) that wait for earlier ones.
#[derive(Default)]
pub struct Drain {
    /// The first is let go first.
    pub queue: VecDeque<Id>,
    /// Requests go through `queue`. Source: `drain_active` in io_uring/io_uring.c.
    active: bool,
    /// Requests inside `queue`, with the rest of their chains.
    held: usize,
    /// A request inside a chain drains: so does the one behind the chain. Source: `drain_next`.
    next: bool,
    /// The request at hand is that one.
    drains_behind_chain: bool,
    /// One passed by in the submission at hand: natively it counts as in flight until all of that is submitted.
    passed_by: bool,
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

impl RingGuard {
    /// A request with IOSQE_IO_DRAIN was looked at, which may be refused yet. It stands for its chain.
    pub fn begin_drain(&mut self) {
        self.drain.active = true;
        if let Some(head) = self.chain_head() {
            self.slab[head].send_to_worker();
            self.slab[head].flags |= IOSQE_IO_DRAIN;
            self.drain.next = true;
        }
    }

    /// Puts the chain that starts with `id` into the queue, which it may leave at once.
    pub fn hold_back(&mut self, id: Id) {
        self.record_of(id, |it| it.defer());
        self.slab[id].defer();
        self.drain.held += self.chain_length(id);
        self.drain.queue.push_back(id);
        self.release_held();
        if self.drain.queue.is_empty() && self.slab[id].flags & IOSQE_IO_DRAIN == 0 {
            self.drain.active = false;
        }
    }

    /// A submission has ended.
    pub fn release_submitted(&mut self) {
        self.drain.passed_by = false;
        self.release_held();
    }

    /// After a completion: lets go what no longer has to wait.
    pub fn release_held(&mut self) {
        // The first waits for all that were let go before it; those behind it go along, up to one that drains.
        let mut waits = true;
        while let Some(id) = self.drain.queue.front().copied() {
            waits |= self.slab[id].flags & IOSQE_IO_DRAIN != 0;
            let in_flight = self.slab.len() - self.drain.held;
            let passes = mutated(Mutation::DrainPasses) && in_flight < 1_000;
            if waits && ((in_flight != 0 && !passes) || self.drain.passed_by) {
                return;
            }
            self.drain.queue.pop_front();
            self.drain.held -= self.chain_length(id);
            let detached = self.slab.detach(id);
            self.make_ready(detached);
            waits = self.slab[id].flags & IOSQE_IO_DRAIN != 0;
        }
    }

    fn chain_length(&self, id: Id) -> usize {
        core::iter::successors(Some(id), |member| self.slab[*member].next).count()
    }
}
