//! Answers the question "Should I set IOSQE_ASYNC?" by measuring, for one file, device or kind of descriptor on
//! this machine.
//!
//! - [`subject`] examines the file or descriptor, and refuses one that must not be touched.
//! - [`measuring`] has workers make the requests.
//! - [`answer`] judges the requests of one size.
//! - [`threshold`] finds the size from which on a worker is needed.
//! - [`explanation`] says why.
//! - [`advice`] draws the conclusion from all sizes.
//! - [`report`] shows it.

pub mod advice;
pub mod answer;
pub mod explanation;
pub mod measuring;
pub mod report;
pub mod subject;
pub mod threshold;

use anyring_lab::backend::Backend;
use anyring_lab::message::{On, Situation, Transferring};
use anyring_lab::statistics::LEAST_RUNS;
use anyring_lab::trace::PuntCounter;
use anyring_lab::worker::Launcher;
use measuring::{Condition, Measuring, Punts, Row};
use report::{Limit, Report, SCHEMA};
use subject::{Kind, Subject};
use threshold::Threshold;

/// The question: the requests to compare, and how.
#[derive(Debug, Clone)]
pub struct Question {
    /// The server of the requests: [`Backend::Kernel`] or [`Backend::Anyring`].
    pub backend: Backend,
    /// The kind of requests.
    pub operation: Transferring,
    /// Bytes a request, ascending; empty for [`sizes`].
    pub sizes: Vec<u32>,
    /// True if the requests bypass the page cache (O_DIRECT).
    pub direct: bool,
    /// Pairs of requests for each size and situation.
    pub rounds: u32,
}

/// The sizes in bytes that are measured unless the question names others.
const FILE_SIZES: [u32; 7] = [512, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 2 << 20];
const STREAM_SIZES: [u32; 3] = [64, 4 << 10, 64 << 10];
/// The largest of these sizes for a stream, since the buffers of a TCP connection hold this much at once.
const MOST_STREAM_BYTES: u32 = 64 << 10;
/// The size of the largest request that may be measured.
pub const MOST_BYTES: u32 = 64 << 20;

/// Returns the sizes to measure. The error says why the requested sizes do not suit.
pub fn sizes(subject: &Subject, question: &Question) -> Result<Vec<u32>, String> {
    let end = subject.bytes.unwrap_or(u64::from(MOST_STREAM_BYTES)).min(u64::from(MOST_BYTES));
    let unit = if question.direct { subject.step } else { 1 };
    let suits = |bytes: &u32| u64::from(*bytes) <= end && bytes.is_multiple_of(unit);
    if let Some(wrong) = question.sizes.iter().find(|bytes| !suits(bytes)) {
        let multiple =
            if unit > 1 { format!(", in multiples of {unit}, as O_DIRECT needs it") } else { String::new() };
        return Err(format!("--size {wrong}: {} takes up to {end} bytes{multiple}", subject.name));
    }
    let defaults = if subject.kind.is_stream() { &STREAM_SIZES[..] } else { &FILE_SIZES[..] };
    let chosen = if question.sizes.is_empty() { defaults } else { &question.sizes };
    let mut sizes: Vec<u32> = chosen.iter().copied().filter(suits).collect();
    sizes.sort_unstable();
    sizes.dedup();
    match sizes.is_empty() {
        true => Err(format!("{} has {end} bytes: too few for a request", subject.name)),
        false => Ok(sizes),
    }
}

/// The situations in which requests are measured.
fn situations(subject: &Subject, question: &Question) -> &'static [Situation] {
    match subject.kind {
        Kind::Pipe | Kind::Tcp => &[Situation::Ready, Situation::Waiting],
        _ if question.direct => &[Situation::Direct],
        // A write of whole pages reads nothing first.
        _ if question.operation.is_write() => &[Situation::Cached],
        _ => &[Situation::Cached, Situation::Uncached],
    }
}

/// The number of turns. Each goes through all sizes and situations, in processes of its own.
pub const TURNS: u32 = 3;

/// Number of steps that [`run`] reports to `progress`; the search for thresholds adds to them.
pub fn steps(subject: &Subject, question: &Question, sizes: &[u32]) -> u64 {
    (sizes.len() * situations(subject, question).len()) as u64 * u64::from(TURNS)
}

/// Measures and concludes. It calls `progress` after each process, and ends if that returns an error. The error is one
/// line for people.
pub fn run(
    launcher: &Launcher,
    subject: &Subject,
    question: &Question,
    sizes: &[u32],
    mut progress: impl FnMut() -> Result<(), String>,
) -> Result<Report, String> {
    let measuring = Measuring { launcher, on: &subject.on, question };
    let mut conditions: Vec<_> = situations(subject, question)
        .iter()
        .flat_map(|situation| sizes.iter().map(|bytes| Condition::new(*situation, *bytes)))
        .collect();
    measure_turns(&measuring, &mut conditions, &mut progress)?;
    if !conditions.iter().any(Condition::is_measured) {
        let why = report::notes(conditions.iter().filter_map(Condition::caveat)).join("; ");
        return Err(format!("{}: nothing could be measured: {why}", subject.name));
    }
    let limits = limits(&measuring, subject, &conditions, &mut progress)?;
    // The sizes on both sides of each threshold are measured, too, since the answer names them.
    let sides = limits.iter().flat_map(|limit| limit.threshold.sides().map(|bytes| (limit.situation, bytes)));
    let mut beside: Vec<_> = sides
        .filter(|side| !conditions.iter().any(|condition| condition.is_measured() && condition.place() == *side))
        .map(|(situation, bytes)| Condition::new(situation, bytes))
        .collect();
    measure_turns(&measuring, &mut beside, &mut progress)?;
    conditions.extend(beside);
    conditions.sort_by_key(Condition::place);
    let family = conditions.iter().filter(|condition| condition.is_measured()).count();
    let rows: Vec<Row> = conditions.iter().filter_map(|condition| condition.row(family)).collect();
    let mut notes = report::notes(conditions.iter().filter_map(Condition::caveat));
    let tracepoint = compare(&measuring, &conditions)?;
    let thresholds: Vec<(Situation, Threshold)> =
        limits.iter().map(|limit| (limit.situation, limit.threshold)).collect();
    let advice = advice::derive(&rows, &thresholds);
    notes.extend(advice::relief(&rows));
    Ok(Report {
        schema: SCHEMA,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        subject: subject.clone(),
        operation: question.operation,
        direct: question.direct,
        backend: question.backend,
        rows,
        limits,
        tracepoint,
        advice,
        notes,
    })
}

/// Measures all conditions in each turn.
fn measure_turns(
    measuring: &Measuring<'_>,
    conditions: &mut [Condition],
    progress: &mut impl FnMut() -> Result<(), String>,
) -> Result<(), String> {
    let rounds = measuring.question.rounds.div_ceil(TURNS).max(LEAST_RUNS as u32);
    for _ in 0..TURNS {
        for condition in &mut *conditions {
            measuring.add(condition, rounds)?;
            progress()?;
        }
    }
    Ok(())
}

/// The threshold in each situation that was measured.
fn limits(
    measuring: &Measuring<'_>,
    subject: &Subject,
    conditions: &[Condition],
    progress: &mut impl FnMut() -> Result<(), String>,
) -> Result<Vec<Limit>, String> {
    let mut limits = Vec::new();
    for situation in situations(subject, measuring.question).iter().copied().filter(|_| !subject.kind.is_stream()) {
        let of_it = conditions.iter().map(|condition| (condition.place(), condition.needs_worker()));
        let measured: Vec<(u32, bool)> = of_it
            .filter(|((of, _), _)| *of == situation)
            .filter_map(|((_, bytes), needs)| Some((bytes, needs?)))
            .collect();
        if measured.is_empty() {
            continue;
        }
        let threshold = threshold::find(&measured, subject.step, |bytes| {
            progress()?;
            measuring.probe(situation, bytes)
        })?;
        let because = explanation::explain(subject, measuring.question, situation, &threshold);
        limits.push(Limit { situation, threshold, because });
    }
    Ok(limits)
}

/// Compares the observed paths with the kernel's tracepoint, if that is available. Returns the tracepoint's counts.
fn compare(measuring: &Measuring<'_>, conditions: &[Condition]) -> Result<Option<Punts>, String> {
    if measuring.question.backend.is_ours() {
        return Ok(None);
    }
    let Ok(counter) = PuntCounter::new() else { return Ok(None) };
    let mut punts = Punts::default();
    for condition in conditions {
        measuring.compare(condition, &counter, &mut punts)?;
    }
    Ok(Some(punts))
}

/// The subject that a word on the command line names.
pub fn on(name: &std::ffi::OsStr) -> On {
    match name.to_str() {
        Some("pipe") => On::Pipe,
        Some("tcp") => On::Tcp,
        _ => On::Path(name.into()),
    }
}
