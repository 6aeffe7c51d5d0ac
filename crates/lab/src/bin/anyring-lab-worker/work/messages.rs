//! Messages from one thread to another at a steady rate: by MSG_RING, by a queue and an eventfd in an epoll set, by a
//! queue and a futex.
//!
//! A message is the time when it was sent and a number; the receiver checks that the numbers come in order.

pub mod fan_in;
pub mod fan_out;
mod queue;
mod uring;

use super::{cpu_us, now_ns};
use crate::outcome::{expect, Outcome, Stop};
use crate::peer::not_for;
use anyring_lab::message::{Door, Measured, Messages, Program, Proof, Receiver};
use anyring_lab::statistics::percentiles;

/// What the two threads have in common.
trait Channel: Sync {
    /// Hands a message over; returns when the sender is done with it.
    type Sender: Send;
    /// Takes messages.
    type Receiver: Send;

    /// The receiving end, in its own thread, then told to the sender.
    fn receiver(&self) -> Outcome<Self::Receiver>;

    /// A sending end, when the receiving one exists; each is its thread's own.
    fn sender(&self) -> Outcome<Self::Sender>;

    fn send(&self, sender: &mut Self::Sender, sent_ns: u64, number: u32) -> Outcome<()>;

    /// Waits for messages, or looks for them all the time, and tells each.
    fn receive(
        &self,
        receiver: &mut Self::Receiver,
        polling: bool,
        each: &mut dyn FnMut(u64, u32) -> Outcome<()>,
    ) -> Outcome<()>;

    /// Who served it.
    fn proof(&self, sender: &Self::Sender, receiver: Self::Receiver) -> Option<Proof>;
}

/// Runs it on this program; the figures are told at [`anyring_lab::message::Work::Messages`].
pub fn run(program: Program, door: Door, work: &Messages) -> Outcome<Measured> {
    match program {
        Program::Uring => both(uring::Rings::new(door), *work),
        Program::Epoll => both(queue::WithEventfd::new(1)?, *work),
        Program::Futex => both(queue::WithFutex::new(1), *work),
        other => not_for(other),
    }
}

/// The number of the message that ends it.
const LAST: u32 = 0x7fff_ffff;

fn both<C: Channel + 'static>(channel: C, work: Messages) -> Outcome<Measured> {
    // Not freed, and its receiver not waited for, where something fails: the process ends then.
    let channel: &'static C = Box::leak(Box::new(channel));
    let begin_us = cpu_us();
    let (ready, wait) = std::sync::mpsc::channel();
    // Whoever waits for it is below, and gone only with the process.
    let tell = move || ready.send(()).unwrap_or_default();
    let receiving = std::thread::Builder::new().spawn(move || receive(channel, &work, tell))?;
    let join = move || receiving.join().unwrap_or_else(|_| Err("the receiver panicked".into()));
    if wait.recv().is_err() {
        let failed = join().err();
        return Err(failed.unwrap_or_else(|| Stop::Failed("the receiver did not start".to_owned())));
    }
    let (sent, received) = (send(channel, &work)?, join()?);
    let ((sender_ns, sender), (receiver_ns, receiver)) = (sent, received);
    let cpu = cpu_us() - begin_us;
    let count = sender_ns.len();
    expect(count > 0 && count == receiver_ns.len(), || {
        format!("{count} messages were sent and {} received", receiver_ns.len())
    })?;
    let expected = f64::from(work.for_ms) * 1000.0 / f64::from(work.delay_us);
    let mut figures = percentiles(&sender_ns);
    figures.extend(percentiles(&receiver_ns));
    figures.push((100.0 * (1.0 - count as f64 / expected)).max(0.0));
    figures.push(cpu / count as f64);
    Ok(Measured { figures, proof: channel.proof(&sender, receiver), ..Measured::default() })
}

fn send<C: Channel>(channel: &C, work: &Messages) -> Outcome<(Vec<f64>, C::Sender)> {
    let mut sender = channel.sender()?;
    let mut took = Vec::new();
    let (delay, end) = (u64::from(work.delay_us) * 1000, now_ns() + u64::from(work.for_ms) * 1_000_000);
    let mut now = now_ns();
    let mut due = now + delay;
    while now < end {
        while now < due {
            std::hint::spin_loop();
            now = now_ns();
        }
        channel.send(&mut sender, now, took.len() as u32)?;
        let done = now_ns();
        took.push((done - now) as f64);
        // That the loop sees the time a little late is the loop's doing. What kept it for longer is lost: a sender that comes
        // back does not make up for it by sending without delay.
        let late = Some(now - due).filter(|late| *late < delay).unwrap_or(0);
        due = done + delay - late;
        now = done;
    }
    channel.send(&mut sender, now, LAST)?;
    Ok((took, sender))
}

fn receive<C: Channel>(channel: &C, work: &Messages, ready: impl FnOnce()) -> Outcome<(Vec<f64>, C::Receiver)> {
    let mut receiver = channel.receiver()?;
    ready();
    let mut took = Vec::new();
    let mut ended = false;
    let polling = work.receiver == Receiver::Looks;
    while !ended {
        channel.receive(&mut receiver, polling, &mut |sent, number| {
            let now = now_ns();
            if number == LAST {
                ended = true;
                return Ok(());
            }
            expect(number as usize == took.len(), || format!("message {number} came after {}", took.len()))?;
            took.push(now.saturating_sub(sent) as f64);
            Ok(())
        })?;
    }
    Ok((took, receiver))
}
