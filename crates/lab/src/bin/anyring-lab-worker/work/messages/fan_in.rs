//! Several threads send to one, as fast as it receives.

use super::queue::{WithEventfd, WithFutex};
use super::uring::Rings;
use super::Channel;
use crate::outcome::{expect, Outcome, Stop};
use crate::peer::not_for;
use crate::work::{cpu_us, now_ns};
use anyring_lab::message::{Door, FanIn, Measured, Program};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc;

/// Runs the workload on this program. The figures are ns and us of CPU for each message.
pub fn run(program: Program, door: Door, work: &FanIn) -> Outcome<Measured> {
    let senders = work.senders as usize;
    match program {
        Program::Uring => many(Rings::new(door), *work),
        Program::Epoll => many(WithEventfd::new(senders)?, *work),
        Program::Futex => many(WithFutex::new(senders), *work),
        other => not_for(other),
    }
}

/// Most messages of one sender in flight: those of all senders fit into a CQ and into a queue.
const WINDOW: u32 = 256;
/// The shift of the sender in a message's number. The message of that sender is below.
const SENDER_SHIFT: u32 = 24;

/// The state that the threads share, in addition to the channel.
struct Progress {
    /// Number of messages received from each sender.
    received: Vec<AtomicU32>,
    begun: AtomicBool,
}

fn many<C: Channel + 'static>(channel: C, work: FanIn) -> Outcome<Measured> {
    // On a failure the channel is not freed, and threads are not waited for: the process then ends.
    let channel: &'static C = Box::leak(Box::new(channel));
    let received = (0..work.senders).map(|_| AtomicU32::new(0)).collect();
    let progress: &'static Progress = Box::leak(Box::new(Progress { received, begun: AtomicBool::new(false) }));
    let start = |name: &str| std::thread::Builder::new().name(name.to_owned());

    let (ready, wait) = mpsc::channel();
    let receiving = start("receiver").spawn(move || receive(channel, progress, work, ready))?;
    if wait.recv().is_err() {
        let failed = receiving.join().map(|outcome| outcome.err());
        return Err(failed.ok().flatten().unwrap_or_else(|| "the receiver did not start".into()));
    }
    let (ready, wait) = mpsc::channel();
    let sending: Vec<_> = (0..work.senders)
        .map(|own| {
            let ready = ready.clone();
            start("sender").spawn(move || send(channel, progress, own, work.each, ready))
        })
        .collect::<std::io::Result<_>>()?;
    drop(ready);
    // Ends when each has reported that it is ready, or has failed.
    if wait.iter().count() < sending.len() {
        let ended = sending.into_iter().filter(|thread| thread.is_finished());
        let failed = ended.filter_map(|thread| thread.join().ok()?.err()).next();
        return Err(failed.unwrap_or_else(|| "a sender did not start".into()));
    }
    let (begin_ns, begin_us) = (now_ns(), cpu_us());
    progress.begun.store(true, Ordering::Release); // partner: the Acquire load in `send`
    let panicked = |_| Stop::Failed("a thread panicked".to_owned());
    let receiver = receiving.join().map_err(panicked)??;
    let (ns, cpu) = ((now_ns() - begin_ns) as f64, cpu_us() - begin_us);
    let senders: Vec<_> =
        sending.into_iter().map(|thread| thread.join().map_err(panicked)?).collect::<Outcome<_>>()?;
    let proof = senders.first().and_then(|sender| channel.proof(sender, receiver));
    let count = f64::from(work.senders) * f64::from(work.each);
    Ok(Measured { figures: vec![ns / count, cpu / count], proof, ..Measured::default() })
}

fn send<C: Channel>(
    channel: &C,
    progress: &Progress,
    own: u32,
    each: u32,
    ready: mpsc::Sender<()>,
) -> Outcome<C::Sender> {
    let mut sender = channel.sender()?;
    // The thread that waits for it exists as long as the process.
    ready.send(()).unwrap_or_default();
    drop(ready);
    while !progress.begun.load(Ordering::Acquire) {
        std::thread::yield_now();
    }
    let received = &progress.received[own as usize];
    for number in 0..each {
        // Relaxed: it bounds the messages in flight, and passes no data.
        while number - received.load(Ordering::Relaxed) >= WINDOW {
            std::thread::yield_now();
        }
        channel.send(&mut sender, 0, own << SENDER_SHIFT | number)?;
    }
    Ok(sender)
}

fn receive<C: Channel>(
    channel: &C,
    progress: &Progress,
    work: FanIn,
    ready: mpsc::Sender<()>,
) -> Outcome<C::Receiver> {
    let mut receiver = channel.receiver()?;
    ready.send(()).unwrap_or_default(); // as above
    let mut left = u64::from(work.senders) * u64::from(work.each);
    while left > 0 {
        channel.receive(&mut receiver, false, &mut |_, message| {
            let (sender, number) = (message >> SENDER_SHIFT, message & ((1 << SENDER_SHIFT) - 1));
            let received = progress.received.get(sender as usize);
            let received = received.ok_or_else(|| Stop::Failed(format!("a message of sender {sender}")))?;
            let expected = received.load(Ordering::Relaxed); // only this thread stores it
            expect(number == expected, || format!("message {number} of sender {sender} came after {expected}"))?;
            received.store(number + 1, Ordering::Relaxed);
            left -= 1;
            Ok(())
        })?;
    }
    Ok(receiver)
}
