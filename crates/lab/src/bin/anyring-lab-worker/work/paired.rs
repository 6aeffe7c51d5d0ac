//! Requests without and with IOSQE_ASYNC, in turns: the path that each takes, and its cost.

mod file;
mod stream;
mod way;

use crate::outcome::{Outcome, Stop};
use crate::peer::{not_for, Aligned};
use crate::ring::{transfer, Ring};
use anyring_abi::{Sqe, IORING_SETUP_DEFER_TASKRUN, IORING_SETUP_SINGLE_ISSUER, IOSQE_ASYNC};
use anyring_lab::message::{Door, Measured, On, Paired, Program, Way};
use anyring_lab::statistics::LEAST_RUNS;
use file::File;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use stream::Stream;
use way::Observer;

/// The subject of the requests.
enum Subject {
    File(File),
    Stream(Stream),
}

/// The measurements of one request.
struct Sample {
    latency_us: f64,
    submit_us: f64,
    way: Way,
}

/// Everything that a request needs. The ring is dropped first, then the memory and files of its requests.
struct Run<'a> {
    work: &'a Paired,
    ring: Ring,
    observer: Observer,
    subject: Subject,
    memory: Aligned,
    counts: BTreeMap<String, u64>,
}

/// Runs the rounds: [`Paired`] lists the figures.
pub fn run(program: Program, door: Door, work: &Paired) -> Outcome<Measured> {
    if program != Program::Uring {
        return not_for(program);
    }
    let subject = match &work.on {
        On::Path(path) => Subject::File(File::open(path, work)?),
        On::Pipe => Subject::Stream(Stream::pipe(work)?),
        On::Tcp => Subject::Stream(Stream::tcp(work)?),
    };
    let ring = new_ring(door)?;
    let observer = Observer::new(&ring.proof(), work.opcode.into())?;
    let memory = Aligned::new(work.bytes as usize)?;
    let mut requests = Run { work, ring, observer, subject, memory, counts: Default::default() };
    let mut measured = Measured::default();
    let end = Instant::now() + Duration::from_millis(u64::from(work.for_ms));
    let first = if work.forced { 0 } else { 1 };
    for round in first..=work.rounds {
        if round as usize > LEAST_RUNS && Instant::now() > end {
            break;
        }
        let samples = requests.round(round)?;
        if round == 0 {
            // The first round makes threads and fills caches.
            requests.counts.clear();
            continue;
        }
        for (forced, sample) in samples.into_iter().enumerate() {
            let Some(sample) = sample else { continue };
            measured.figures.extend([sample.latency_us, sample.submit_us]);
            *requests.counts.entry(sample.way.count(forced == 1)).or_default() += 1;
        }
    }
    measured.proof = Some(requests.ring.proof());
    measured.counts = requests.counts;
    Ok(measured)
}

/// Makes a ring with IORING_SETUP_DEFER_TASKRUN, on which later completions are posted only while a thread waits.
/// So a CQE that is there when the submitting call returns was completed in that call. Linux before 6.1 has no such
/// rings.
fn new_ring(door: Door) -> Outcome<Ring> {
    match Ring::new(door, 8, IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN) {
        Err(Stop::Refused(refusal)) if refusal.errno == libc::EINVAL => Ring::new(door, 8, 0),
        made => made,
    }
}

impl Run<'_> {
    /// Makes the request without IOSQE_ASYNC, and the one with it. Their order alternates between rounds.
    fn round(&mut self, round: u32) -> Outcome<[Option<Sample>; 2]> {
        let mut samples = [None, None];
        let order = if round.is_multiple_of(2) { [false, true] } else { [true, false] };
        for forced in order {
            if !forced || self.work.forced {
                samples[usize::from(forced)] = Some(self.request(round, forced)?);
            }
        }
        Ok(samples)
    }

    fn request(&mut self, round: u32, forced: bool) -> Outcome<Sample> {
        let sqe = self.prepare(round, forced)?;
        self.observer.begin()?;
        self.ring.push(sqe)?;
        let start = Instant::now();
        self.ring.submit()?;
        let submitted = start.elapsed();
        let early = self.ring.peek_cqe();
        let (cqe, waited) = match (early, &mut self.subject) {
            (Some(cqe), _) => (cqe, Duration::ZERO),
            (None, Subject::Stream(stream)) if stream.waits() => {
                // Until the request waits: a worker has armed it by then.
                self.observer.wait_until_idle();
                let start = Instant::now();
                stream.release()?;
                (self.ring.wait_cqe()?, start.elapsed())
            }
            (None, _) => (self.ring.wait_cqe()?, start.elapsed() - submitted),
        };
        self.check(cqe.res)?;
        let way = match (self.observer.end(early.is_some())?, &self.subject) {
            (Way::Device, Subject::Stream(_)) => Way::Poll,
            (way, _) => way,
        };
        let us = |time: Duration| time.as_nanos() as f64 / 1000.0;
        Ok(Sample { latency_us: us(submitted + waited), submit_us: us(submitted), way })
    }

    /// Prepares one request.
    fn prepare(&mut self, round: u32, forced: bool) -> Outcome<Sqe> {
        let bytes = self.work.bytes as usize;
        let (fd, offset) = match &mut self.subject {
            Subject::File(file) => {
                let offset = file.prepare(round, self.memory.bytes_mut(0, bytes))?;
                if file.is_still_cached(offset) {
                    *self.counts.entry("cached".to_owned()).or_default() += 1;
                }
                (file.fd(), offset)
            }
            Subject::Stream(stream) => {
                stream.prepare()?;
                (stream.fd(), 0)
            }
        };
        let opcode = self.work.opcode.into();
        let mut sqe = transfer(opcode, fd, self.memory.at(0), self.work.bytes, offset, u64::from(round));
        sqe.flags = if forced { IOSQE_ASYNC } else { 0 };
        Ok(sqe)
    }

    fn check(&mut self, result: i32) -> Outcome<()> {
        match result {
            full if full == self.work.bytes as i32 => Ok(()),
            short if short > 0 => {
                *self.counts.entry("short".to_owned()).or_default() += 1;
                Ok(())
            }
            // The device or the file system does not support such a request, or not with this memory or size.
            result if result == -libc::EINVAL || result == -libc::EOPNOTSUPP => Err(Stop::Missing(format!(
                "requests of {} bytes are answered with errno {}",
                self.work.bytes, -result
            ))),
            result => Err(Stop::Failed(format!("a request of {} bytes ended with {result}", self.work.bytes))),
        }
    }
}
