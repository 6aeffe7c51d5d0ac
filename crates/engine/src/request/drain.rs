//! IOSQE_IO_DRAIN: a request that starts when all before it have completed, and holds back all after it until it has.
//! Source: `io_drain_req` and `io_queue_deferred` in io_uring/io_uring.c.

use super::{Id, State};
use crate::ring::RingGuard;
use crate::Errno;
use anyring_abi::{IOSQE_CQE_SKIP_SUCCESS, IOSQE_IO_DRAIN};
use std::collections::VecDeque;

/// Heads of chains (or single requests) that wait for earlier ones.
#[derive(Default)]
pub struct Drain {
    queue: VecDeque<Id>,
    /// A request that drains was submitted, and since then none to hold back. Set whenever `queue` is not empty.
    active: bool,
    /// Requests inside `queue`, with the rest of their chains.
    held: usize,
    /// A chain that is being put together drains: the request behind it drains, too. Source: `drain_next` in
    /// io_uring/io_uring.c.
    next: bool,
    /// IOSQE_CQE_SKIP_SUCCESS was used: completions can no longer be counted by CQEs, and the kernel refuses to drain.
    refused: bool,
}

impl Drain {
    /// Nothing is held back, and nothing has to be.
    #[inline]
    pub fn is_idle(&self) -> bool {
        !self.active && !self.next
    }

    /// Adds IOSQE_IO_DRAIN to the `flags` of a request that follows a chain which drains, and notes it where the request
    /// makes its chain one (`in_chain`: others of it came before).
    pub fn spread(&mut self, flags: &mut u8, in_chain: bool) {
        if in_chain {
            self.next |= *flags & IOSQE_IO_DRAIN != 0;
        } else if core::mem::take(&mut self.next) {
            *flags |= IOSQE_IO_DRAIN;
        }
    }

    /// The two flags exclude each other on a ring. Source: `io_init_req` in io_uring/io_uring.c.
    pub fn check(&mut self, flags: u8) -> Result<(), Errno> {
        if flags & IOSQE_CQE_SKIP_SUCCESS != 0 {
            self.refused = true;
        }
        if flags & IOSQE_IO_DRAIN != 0 && self.refused {
            return Err(Errno::OPNOTSUPP);
        }
        Ok(())
    }
}

impl RingGuard {
    /// Keeps the chain that starts with `id` back if it drains, or comes after one that does, and earlier requests are in
    /// flight or kept back.
    pub fn hold_back(&mut self, id: Id) -> bool {
        let chain = self.chain_of(id);
        let drains = chain.iter().any(|member| self.slab[*member].flags & IOSQE_IO_DRAIN != 0);
        if drains {
            // The head stands for the chain, as in the kernel.
            self.slab[id].flags |= IOSQE_IO_DRAIN;
            self.drain.active = true;
        }
        if !self.drain.active {
            return false;
        }
        let earlier = self.slab.len() - self.drain.held - chain.len();
        if self.drain.queue.is_empty() && earlier == 0 {
            self.drain.active = drains;
            return false;
        }
        self.slab[id].state = State::Deferred;
        self.drain.held += chain.len();
        self.drain.queue.push_back(id);
        true
    }

    /// After a completion: lets go what no longer has to wait.
    pub fn release_held(&mut self) {
        // The first waits for what drained before it; those behind it go along, up to the next that drains.
        let mut waits = true;
        while let Some(id) = self.drain.queue.front().copied() {
            waits |= self.slab[id].flags & IOSQE_IO_DRAIN != 0;
            let in_flight = self.slab.len() - self.drain.held;
            if waits && in_flight != 0 {
                return;
            }
            self.drain.queue.pop_front();
            self.drain.held -= self.chain_of(id).len();
            self.slab[id].state = State::Issuing;
            self.ready.push_back(id);
            waits = self.slab[id].flags & IOSQE_IO_DRAIN != 0;
        }
    }

    /// Takes a held-back request out of the queue, for a cancellation.
    pub fn forget_held(&mut self, id: Id) {
        let before = self.drain.queue.len();
        self.drain.queue.retain(|held| *held != id);
        if self.drain.queue.len() != before {
            self.drain.held -= self.chain_of(id).len();
        }
    }

    fn chain_of(&self, id: Id) -> Vec<Id> {
        core::iter::successors(Some(id), |member| self.slab[*member].next).collect()
    }
}
