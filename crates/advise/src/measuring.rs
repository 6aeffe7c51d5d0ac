//! Measuring by worker processes, and their results.

use crate::answer::Answer;
use crate::Question;
use anyring_lab::message::{Door, Measured, On, Paired, Program, Reply, Situation, Task, Way, Work};
use anyring_lab::statistics::{median, Estimate, Summary};
use anyring_lab::trace::PuntCounter;
use anyring_lab::worker::Launcher;
use serde::Serialize;
use std::collections::BTreeMap;

/// The parameters of the measurement.
#[derive(Debug, Clone, Copy)]
pub struct Measuring<'a> {
    /// Starts the workers.
    pub launcher: &'a Launcher,
    /// The file or descriptor.
    pub on: &'a On,
    /// The rest of the question.
    pub question: &'a Question,
}

/// A size in a situation, and its measurements so far.
#[derive(Debug, Clone)]
pub struct Condition {
    situation: Situation,
    bytes: u32,
    /// The pairs of each turn: the time until the CQE and in the call without IOSQE_ASYNC, then both with it.
    turns: Vec<Vec<[f64; 4]>>,
    counts: BTreeMap<String, u64>,
    missing: Option<String>,
}

/// The measurements of a size in a situation.
#[derive(Debug, Clone, Serialize)]
pub struct Row {
    /// The situation of the requests.
    pub situation: Situation,
    /// Bytes a request.
    pub bytes: u32,
    /// Pairs of requests.
    pub pairs: usize,
    /// The requests without IOSQE_ASYNC.
    pub plain: Side,
    /// The requests with IOSQE_ASYNC.
    pub forced: Side,
    /// The time until the CQE with IOSQE_ASYNC, divided by that without it. The intervals of all rows together hold
    /// with 95 % confidence.
    pub ratio: Estimate,
    /// The ratio of each turn, from its pairs alone.
    pub turns: Vec<f64>,
    /// The answer that follows from `ratio` and `turns`.
    pub answer: Answer,
    /// The time in the submitting call with IOSQE_ASYNC, divided by that without it.
    pub submit_ratio: Estimate,
}

/// One kind of requests of a [`Row`].
#[derive(Debug, Clone, Serialize)]
pub struct Side {
    /// Number of requests that went each way, by [`Way::name`].
    pub ways: BTreeMap<&'static str, u64>,
    /// The time from the submission to the CQE. For a request that waits: the time in the submitting call, plus the time from
    /// the awaited event to the CQE.
    pub latency_us: Summary,
    /// The time in the submitting call.
    pub submit_us: Summary,
}

impl Side {
    /// The part of the requests that went this way, 0 to 1.
    pub fn share(&self, way: Way) -> f64 {
        let all: u64 = self.ways.values().sum();
        self.ways.get(way.name()).copied().unwrap_or(0) as f64 / all.max(1) as f64
    }
}

/// The approximate limit of the time for a condition in each turn.
const TURN_MS: u32 = 400;
/// Number of rounds of [`Measuring::probe`].
const PROBE_ROUNDS: u32 = 7;

/// Requests without IOSQE_ASYNC that were compared with the kernel's tracepoint.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Punts {
    /// Number of requests.
    pub requests: u64,
    /// Number of requests that `io_uring_queue_async_work` reported. It equals the number that the worker process saw
    /// go to a worker thread.
    pub traced: u64,
}

impl Measuring<'_> {
    /// Makes some more requests of a measured condition, and compares the paths observed for them with the kernel's
    /// tracepoint. A difference is an error.
    pub fn compare(&self, condition: &Condition, counter: &PuntCounter, punts: &mut Punts) -> Result<(), String> {
        if !condition.is_measured() {
            return Ok(());
        }
        let before = counter.count()?;
        let (situation, bytes) = (condition.situation, condition.bytes);
        let measured = self.requests(situation, bytes, PROBE_ROUNDS, false, Some(counter))??;
        let traced = counter.count()? - before;
        let [all, seen] = plain_counts(&measured);
        if traced != seen {
            return Err(format!(
                "the tracepoint io_uring_queue_async_work reported {traced} of {all} requests ({}, {}), io-wq's threads of \
                 {seen}",
                super::report::size(bytes),
                super::report::situation(situation)
            ));
        }
        punts.requests += all;
        punts.traced += traced;
        Ok(())
    }

    /// Measures a condition once more, unless it was found that it cannot be measured here.
    pub fn add(&self, condition: &mut Condition, rounds: u32) -> Result<(), String> {
        if condition.missing.is_some() {
            return Ok(());
        }
        match self.requests(condition.situation, condition.bytes, rounds, true, None)? {
            Ok(measured) => condition.record(measured),
            Err(missing) => {
                condition.missing = Some(missing);
                Ok(())
            }
        }
    }

    /// True if most requests of this size need a worker.
    pub fn probe(&self, situation: Situation, bytes: u32) -> Result<bool, String> {
        let [all, worker] = plain_counts(&self.requests(situation, bytes, PROBE_ROUNDS, false, None)??);
        Ok(worker * 2 > all)
    }

    /// Runs a worker process and returns its measurements. The inner error says what is missing on this machine, the
    /// outer one what went wrong.
    fn requests(
        &self,
        situation: Situation,
        bytes: u32,
        rounds: u32,
        forced: bool,
        counter: Option<&PuntCounter>,
    ) -> Result<Result<Measured, String>, String> {
        let opcode = self.question.operation;
        let work = Paired { on: self.on.clone(), opcode, bytes, situation, rounds, for_ms: TURN_MS, forced };
        // libc's syscall() is there without liburing.
        let task = Task { program: Program::Uring, door: Door::Libc, work: Work::Paired(work) };
        Ok(match self.launcher.run(self.question.backend, &task, counter)? {
            Reply::Measured(measured) => Ok(measured),
            Reply::Missing(what) => Err(what),
            Reply::Refused(refusal) => return Err(refusal.to_string()),
            Reply::Failed(why) => return Err(why),
        })
    }
}

/// Number of requests without IOSQE_ASYNC, and number of them that went to a worker.
fn plain_counts(measured: &Measured) -> [u64; 2] {
    let count = |way: Way| measured.counts.get(&way.count(false)).copied().unwrap_or(0);
    [Way::ALL.into_iter().map(count).sum(), count(Way::Worker)]
}

impl Condition {
    /// A condition without measurements.
    pub fn new(situation: Situation, bytes: u32) -> Self {
        Condition { situation, bytes, turns: Vec::new(), counts: BTreeMap::new(), missing: None }
    }

    /// The situation and size, by which conditions are ordered.
    pub fn place(&self) -> (Situation, u32) {
        (self.situation, self.bytes)
    }

    fn record(&mut self, measured: Measured) -> Result<(), String> {
        let (rounds, rest) = measured.figures.as_chunks::<4>();
        if !rest.is_empty() {
            return Err(format!("the worker gave {} figures", measured.figures.len()));
        }
        self.turns.push(rounds.to_vec());
        for (name, count) in measured.counts {
            *self.counts.entry(name).or_default() += count;
        }
        Ok(())
    }

    /// A caveat for the reader, if there is one: situation, size and text.
    pub fn caveat(&self) -> Option<(Situation, u32, String)> {
        let counted = |name: &str| self.counts.get(name).copied().filter(|count| *count > 0);
        let cached = counted("cached").map(|_| "some requests found pages that were to be evicted".to_owned());
        let short = counted("short").map(|_| "some requests transferred less than they asked for".to_owned());
        let missing = self.missing.as_ref().map(|missing| format!("not measured: {missing}"));
        let notes: Vec<_> = missing.into_iter().chain(cached).chain(short).collect();
        (!notes.is_empty()).then(|| (self.situation, self.bytes, notes.join("; ")))
    }

    /// True if anything was measured.
    pub fn is_measured(&self) -> bool {
        self.turns.iter().any(|turn| !turn.is_empty())
    }

    /// True if more than half of the requests needed a worker without IOSQE_ASYNC; `None` if none was measured.
    pub fn needs_worker(&self) -> Option<bool> {
        self.is_measured().then(|| self.side(false).share(Way::Worker) > 0.5)
    }

    fn side(&self, forced: bool) -> Side {
        let column = |index: usize| self.turns.iter().flatten().map(|pair| pair[index]).collect::<Vec<f64>>();
        let ways = Way::ALL.into_iter();
        Side {
            ways: ways.map(|way| (way.name(), self.counts.get(&way.count(forced)).copied().unwrap_or(0))).collect(),
            latency_us: Summary::of(&column(if forced { 2 } else { 0 })),
            submit_us: Summary::of(&column(if forced { 3 } else { 1 })),
        }
    }

    /// Returns the measurements, if any, as one of `family` rows.
    pub fn row(&self, family: usize) -> Option<Row> {
        if !self.is_measured() {
            return None;
        }
        let ratio = |plain: usize, forced: usize| {
            let pairs: Vec<_> = self.turns.iter().flatten().map(|pair| (pair[forced], pair[plain])).collect();
            Estimate::ratio_among(&pairs, family)
        };
        let of_turn = |turn: &Vec<[f64; 4]>| {
            let column = |index: usize| median(&turn.iter().map(|pair| pair[index]).collect::<Vec<f64>>());
            column(2) / column(0)
        };
        let turns: Vec<f64> = self.turns.iter().filter(|turn| !turn.is_empty()).map(of_turn).collect();
        let latency = ratio(0, 2);
        Some(Row {
            situation: self.situation,
            bytes: self.bytes,
            pairs: self.turns.iter().map(Vec::len).sum(),
            plain: self.side(false),
            forced: self.side(true),
            ratio: latency,
            answer: Answer::of(&latency, &turns),
            turns,
            submit_ratio: ratio(1, 3),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_what_the_workers_reported() {
        let mut condition = Condition::new(Situation::Direct, 4096);
        assert!(condition.row(1).is_none() && condition.needs_worker().is_none());
        let counts = |plain, forced| {
            BTreeMap::from([
                ("inline".to_owned(), plain),
                ("forced worker".to_owned(), forced),
                ("short".to_owned(), 1),
            ])
        };
        for (latency, count) in [(10.0, 2), (11.0, 0), (12.0, 1)] {
            let figures = [latency, 1.0, 3.0 * latency, 2.0].repeat(3);
            condition.record(Measured { figures, counts: counts(count, 3), proof: None }).expect("rounds");
        }
        assert!(condition.record(Measured { figures: vec![1.0; 3], ..Measured::default() }).is_err());
        let row = condition.row(14).expect("a row");
        assert_eq!((row.pairs, row.plain.latency_us.median, row.forced.submit_us.median), (9, 11.0, 2.0));
        assert_eq!((row.ratio.value, &row.turns[..], row.answer), (3.0, &[3.0; 3][..], Answer::Slower));
        assert_eq!(row.submit_ratio, Estimate { value: 2.0, interval: Some([2.0, 2.0]) });
        assert_eq!((row.plain.ways["inline"], row.forced.share(Way::Worker)), (3, 1.0));
        assert_eq!(condition.needs_worker(), Some(false));
        assert!(condition.caveat().is_some_and(|(_, _, note)| note.contains("transferred less")));
    }
}
