//! Messages from one thread to another at a steady rate. They go by MSG_RING, by a queue and an eventfd in an epoll
//! set, or by a queue and a futex.
//!
//! A message is the time of its sending and a number. The receiver checks that the numbers come in order.

pub mod fan_in;
pub mod fan_out;
mod queue;
mod uring;

use super::{cpu_us, now_ns};
use crate::outcome::{expect, Outcome, Stop};
use crate::peer::not_for;
use anyring_lab::message::{Door, Measured, Messages, Program, Proof, Receiver};
use anyring_lab::statistics::percentiles;
use std::sync::atomic::{AtomicBool, Ordering};

/// The channel that the two threads share.
trait Channel: Sync {
    /// The sending end.
    type Sender: Send;
    /// The receiving end.
    type Receiver: Send;

    /// Makes the receiving end, in its own thread. Then the sender is notified.
    fn receiver(&self) -> Outcome<Self::Receiver>;

    /// Makes a sending end, once the receiving one exists. Each thread has its own.
    fn sender(&self) -> Outcome<Self::Sender>;

    fn send(&self, sender: &mut Self::Sender, sent_ns: u64, number: u32) -> Outcome<()>;

    /// Waits for messages, or polls for them, and calls `each` for each.
    fn receive(
        &self,
        receiver: &mut Self::Receiver,
        polling: bool,
        each: &mut dyn FnMut(u64, u32) -> Outcome<()>,
    ) -> Outcome<()>;

    /// Returns the proof of its server.
    fn proof(&self, sender: &Self::Sender, receiver: Self::Receiver) -> Option<Proof>;
}

/// Runs the workload on this program. [`anyring_lab::message::Work::Messages`] lists the figures.
pub fn run(program: Program, door: Door, work: &Messages) -> Outcome<Measured> {
    match program {
        Program::Uring => both(uring::Rings::new(door), *work),
        Program::Epoll => both(queue::WithEventfd::new(1)?, *work),
        Program::Futex => both(queue::WithFutex::new(1), *work),
        Program::Libc => neither(*work),
        other => not_for(other),
    }
}

/// The number of the message that ends the run.
const LAST: u32 = 0x7fff_ffff;

/// The results of two threads on a channel.
struct Traffic {
    /// The time that each send took.
    sender_ns: Vec<f64>,
    /// The time until each message was received.
    receiver_ns: Vec<f64>,
    cpu_us: f64,
    proof: Option<Proof>,
}

fn both<C: Channel + 'static>(channel: C, work: Messages) -> Outcome<Measured> {
    let Traffic { sender_ns, receiver_ns, cpu_us, proof } = traffic(channel, work)?;
    let count = sender_ns.len();
    expect(count > 0 && count == receiver_ns.len(), || {
        format!("{count} messages were sent and {} received", receiver_ns.len())
    })?;
    let mut figures = percentiles(&sender_ns);
    figures.extend(percentiles(&receiver_ns));
    figures.push(undelivered(count, &work));
    figures.push(cpu_us / count as f64);
    Ok(Measured { figures, proof, ..Measured::default() })
}

/// Runs the sender's loop without sending, while the other thread polls. No channel can do better.
fn neither(work: Messages) -> Outcome<Measured> {
    let traffic = traffic(Nothing::default(), work)?;
    Ok(Measured { figures: vec![undelivered(traffic.sender_ns.len(), &work)], ..Measured::default() })
}

/// Returns the messages that were not sent, in % of those that the time had room for.
fn undelivered(count: usize, work: &Messages) -> f64 {
    let expected = f64::from(work.for_ms) * 1000.0 / f64::from(work.delay_us);
    (100.0 * (1.0 - count as f64 / expected)).max(0.0)
}

/// A channel that carries no messages. It only shows when the run ends.
#[derive(Default)]
struct Nothing {
    ended: AtomicBool,
}

impl Channel for Nothing {
    type Sender = ();
    type Receiver = ();

    fn receiver(&self) -> Outcome<()> {
        Ok(())
    }

    fn sender(&self) -> Outcome<()> {
        Ok(())
    }

    fn send(&self, _: &mut (), _sent_ns: u64, number: u32) -> Outcome<()> {
        if number == LAST {
            self.ended.store(true, Ordering::Relaxed); // no other data is handed over
        }
        Ok(())
    }

    fn receive(&self, _: &mut (), _: bool, each: &mut dyn FnMut(u64, u32) -> Outcome<()>) -> Outcome<()> {
        while !self.ended.load(Ordering::Relaxed) {
            std::hint::spin_loop();
        }
        each(0, LAST)
    }

    fn proof(&self, _: &(), _: ()) -> Option<Proof> {
        None
    }
}

fn traffic<C: Channel + 'static>(channel: C, work: Messages) -> Outcome<Traffic> {
    // On a failure the channel is not freed, and its receiver not waited for: the process then ends.
    let channel: &'static C = Box::leak(Box::new(channel));
    let begin_us = cpu_us();
    let (ready, wait) = std::sync::mpsc::channel();
    // The thread that waits for it is below, and exists as long as the process.
    let tell = move || ready.send(()).unwrap_or_default();
    let receiving = std::thread::Builder::new().spawn(move || receive(channel, &work, tell))?;
    let join = move || receiving.join().unwrap_or_else(|_| Err("the receiver panicked".into()));
    if wait.recv().is_err() {
        let failed = join().err();
        return Err(failed.unwrap_or_else(|| Stop::Failed("the receiver did not start".to_owned())));
    }
    let (sent, received) = (send(channel, &work)?, join()?);
    let ((sender_ns, sender), (receiver_ns, receiver)) = (sent, received);
    let cpu_us = cpu_us() - begin_us;
    Ok(Traffic { sender_ns, receiver_ns, cpu_us, proof: channel.proof(&sender, receiver) })
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
        // The loop itself may see the time a little late, and `late` makes up for that. A longer delay is lost: a
        // sender that was held up does not catch up by sending without delay.
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
