//! CQEs that found the shared backlog full, in order.
//!
//! Memory for these CQEs never runs out, even if the kernel gives no more. A block is as large as a request's slot, and
//! holds the CQEs of several requests that have ended.

use crate::request::Request;
use anyring_abi::Cqe;
use std::collections::LinkedList;

/// A CQE, with the second half if it has 32 bytes.
type Spilled = (Cqe, [u64; 2]);

/// The size of a list node without its block, and of a block without its CQEs.
const OVERHEAD: usize = 2 * size_of::<usize>() + 2 * size_of::<usize>();
const BLOCK: usize = (size_of::<Request>().next_power_of_two() - OVERHEAD) / size_of::<Spilled>();
const _: () = assert!(BLOCK > 1);

struct Block {
    cqes: [Spilled; BLOCK],
    /// The CQEs that are left in the block are `first..end`.
    first: usize,
    end: usize,
}

/// The queue of spilled CQEs.
#[derive(Default)]
pub struct Spill(LinkedList<Block>);

impl Spill {
    /// True if no CQE is spilled.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds a CQE at the end.
    pub fn push(&mut self, cqe: Spilled) {
        if self.0.back().is_none_or(|block| block.end == BLOCK) {
            self.0.push_back(Block { cqes: [Default::default(); BLOCK], first: 0, end: 0 });
        }
        if let Some(block) = self.0.back_mut() {
            block.cqes[block.end] = cqe;
            block.end += 1;
        }
    }

    /// The first CQE.
    pub fn front(&self) -> Option<Spilled> {
        self.0.front().map(|block| block.cqes[block.first])
    }

    /// Removes the first CQE.
    pub fn pop(&mut self) {
        let Some(block) = self.0.front_mut() else { return };
        block.first += 1;
        if block.first == block.end {
            self.0.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn they_come_out_in_order() {
        let mut spill = Spill::default();
        let (mut pushed, mut popped) = (0, 0);
        for round in 1..4 * BLOCK as u64 {
            for _ in 0..round {
                spill.push((Cqe { user_data: pushed, ..Cqe::default() }, [pushed; 2]));
                pushed += 1;
            }
            for _ in 0..round - 1 {
                assert_eq!(spill.front().map(|(cqe, extra)| (cqe.user_data, extra)), Some((popped, [popped; 2])));
                spill.pop();
                popped += 1;
            }
        }
        while spill.front().is_some_and(|(cqe, _)| cqe.user_data == popped) {
            spill.pop();
            popped += 1;
        }
        assert!(spill.is_empty() && popped == pushed);
    }
}
