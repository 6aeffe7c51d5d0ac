//! IORING_OP_MSG_RING: the time is the CQE's user_data, the number is its result.

use super::Channel;
use crate::outcome::{expect, Outcome};
use crate::ring::{sqe, Ring};
use anyring_abi::{Opcode, Sqe};
use anyring_lab::message::{Door, Proof};
use std::sync::atomic::{AtomicI32, Ordering};

/// The receiver's ring; each sender has its own, too.
pub struct Rings {
    door: Door,
    /// The receiver's descriptor.
    target: AtomicI32,
}

/// A ring that its one thread owns.
pub struct Sending(Ring);

// SAFETY: the ring is returned once its thread has ended, and then only its counters are read.
unsafe impl Send for Sending {}

impl Rings {
    /// Makes the channel without a ring yet.
    pub fn new(door: Door) -> Self {
        Rings { door, target: AtomicI32::new(-1) }
    }
}

/// The size of the receiver's CQ, large enough that a slow machine makes no overflow.
const ENTRIES: u32 = 1024;
/// The user_data of the sender's own completion.
const SENT: u64 = 1;

impl Channel for Rings {
    type Sender = Sending;
    type Receiver = Sending;

    fn receiver(&self) -> Outcome<Sending> {
        let ring = Ring::new(self.door, ENTRIES, 0)?;
        self.target.store(ring.fd(), Ordering::Relaxed); // the channel that says "ready" orders it
        Ok(Sending(ring))
    }

    fn sender(&self) -> Outcome<Sending> {
        Ok(Sending(Ring::new(self.door, 8, 0)?))
    }

    fn send(&self, Sending(ring): &mut Sending, sent_ns: u64, number: u32) -> Outcome<()> {
        let target = self.target.load(Ordering::Relaxed);
        ring.push(Sqe { len: number, off: sent_ns, ..sqe(Opcode::MsgRing, target, SENT) })?;
        ring.submit_and_wait(1)?;
        let cqe = ring.wait_cqe()?;
        expect((cqe.user_data, cqe.res) == (SENT, 0), || format!("MSG_RING completed with {cqe:?}"))
    }

    fn receive(
        &self,
        Sending(ring): &mut Sending,
        polling: bool,
        each: &mut dyn FnMut(u64, u32) -> Outcome<()>,
    ) -> Outcome<()> {
        if !polling {
            ring.submit_and_wait(1)?;
        }
        while let Some(cqe) = ring.peek_cqe() {
            each(cqe.user_data, cqe.res as u32)?;
        }
        std::hint::spin_loop();
        Ok(())
    }

    fn proof(&self, Sending(sender): &Sending, _receiver: Sending) -> Option<Proof> {
        Some(sender.proof())
    }
}
