//! The report, whose structures are the JSON of docs/advise.md. Fields may be added. [`SCHEMA`] changes when a field is
//! removed or changes its meaning.

use crate::advice::Advice;
use crate::measuring::{Punts, Row, Side};
use crate::subject::{Kind, Subject};
use crate::threshold::Threshold;
use anyring_lab::backend::Backend;
use anyring_lab::message::{Situation, Transferring, Way};
use anyring_lab::statistics::Estimate;
use anyring_lab::text::{estimate, figure, fold};
use serde::Serialize;
use std::collections::BTreeMap;

/// The version of the JSON.
pub const SCHEMA: u32 = 2;

/// The whole report.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// The layout's version, [`SCHEMA`].
    pub schema: u32,
    /// anyring's version.
    pub version: String,
    /// The subject.
    pub subject: Subject,
    /// The kind of requests.
    pub operation: Transferring,
    /// True if the requests used O_DIRECT.
    pub direct: bool,
    /// The server of the requests.
    pub backend: Backend,
    /// The measurements, by situation, ascending by size. All intervals together hold with 95 % confidence.
    pub rows: Vec<Row>,
    /// The threshold of each situation of a file or device.
    pub limits: Vec<Limit>,
    /// The counts of the kernel's tracepoint; `None` without root, and with anyring's engine.
    pub tracepoint: Option<Punts>,
    /// The advice.
    pub advice: Advice,
    /// Caveats for the reader.
    pub notes: Vec<String>,
}

/// The threshold in one situation.
#[derive(Debug, Clone, Serialize)]
pub struct Limit {
    /// The situation.
    pub situation: Situation,
    /// The threshold, as far as it was found.
    pub threshold: Threshold,
    /// The reasons for it; sentences for people.
    pub because: Vec<String>,
}

/// Bytes for people: exact, in the largest unit that they are a multiple of.
pub fn size(bytes: u32) -> String {
    match bytes {
        bytes if bytes >= 1 << 20 && bytes.is_multiple_of(1 << 20) => format!("{} MiB", bytes >> 20),
        bytes if bytes >= 1 << 10 && bytes.is_multiple_of(1 << 10) => format!("{} KiB", bytes >> 10),
        bytes => format!("{bytes} B"),
    }
}

/// Number of decimals with which a ratio is shown.
pub fn digits(ratio: f64) -> usize {
    match ratio {
        ratio if ratio >= 100.0 => 0,
        ratio if ratio >= 10.0 => 1,
        _ => 2,
    }
}

/// Number of decimals with which a ratio and its interval are shown.
pub fn digits_of(ratio: &Estimate) -> usize {
    digits(ratio.interval.map_or(ratio.value, |[_, high]| high))
}

/// The name of a situation in tables.
pub fn situation(situation: Situation) -> &'static str {
    match situation {
        Situation::Cached => "cached",
        Situation::Uncached => "not cached",
        Situation::Direct => "O_DIRECT",
        Situation::Ready => "ready",
        Situation::Waiting => "waiting",
    }
}

/// The name of a situation in sentences.
pub fn situation_in_words(situation: Situation) -> &'static str {
    match situation {
        Situation::Cached => "for what is in the page cache",
        Situation::Uncached => "for what is not in the page cache",
        Situation::Direct => "with O_DIRECT",
        Situation::Ready => "where the data or the room for it is there",
        Situation::Waiting => "where the data or the room for it comes later",
    }
}

/// Returns a line for people for each note, with all sizes that have it in a situation.
pub fn notes(notes: impl Iterator<Item = (Situation, u32, String)>) -> Vec<String> {
    let mut sizes: BTreeMap<(Situation, String), Vec<String>> = BTreeMap::new();
    for (situation, bytes, note) in notes {
        sizes.entry((situation, note)).or_default().push(size(bytes));
    }
    let line = |((of, note), sizes): ((Situation, String), Vec<String>)| {
        format!("{}, {}: {note}", situation(of), sizes.join(", "))
    };
    sizes.into_iter().map(line).collect()
}

/// The report for people, below 100 columns wide.
pub fn text(report: &Report) -> String {
    let mut text = format!("{}\n\n{}\n\n", fold(&title(report)), fold(&report.advice.sentence));
    let mut line = |cells: [&str; 7]| {
        let [size, situation, way, without, with, ratio, submit] = cells;
        let line = format!("{size:>9}  {situation:10}  {way:24}{without:>8}{with:>8}  {ratio:20}  {submit}");
        text.push_str(line.trim_end());
        text.push('\n');
    };
    line(["bytes", "", "way without it", "without", "with", "with / without", "in the call"]);
    for row in &report.rows {
        line([
            &size(row.bytes),
            situation(row.situation),
            &ways(&row.plain),
            &figure(row.plain.latency_us.median),
            &figure(row.forced.latency_us.median),
            &(estimate(&row.ratio, digits_of(&row.ratio)) + if row.answer.is_open() { " ?" } else { "" }),
            &format!("{} / {}", figure(row.plain.submit_us.median), figure(row.forced.submit_us.median)),
        ]);
    }
    let legend = format!(
        "Medians in us until the CQE; in brackets the ratio's interval, of which all {} hold together by 95 %; ? where \
         nothing follows; in the call: the time that the submitting thread spends in io_uring_enter, without / with \
         IOSQE_ASYNC.",
        report.rows.len()
    );
    text.push_str(&format!("\n{}\n\n", fold(&legend)));
    for limit in &report.limits {
        text.push_str(&format!("{}\n\n", fold(&threshold(limit, report.subject.step))));
    }
    if let Some(Punts { requests, traced }) = report.tracepoint {
        let line = format!(
            "The kernel's tracepoint io_uring_queue_async_work agrees: of {requests} more requests without IOSQE_ASYNC it \
             saw {traced} handed to a worker, those of which a worker was seen."
        );
        text.push_str(&format!("{}\n\n", fold(&line)));
    }
    for note in &report.notes {
        text.push_str(&format!("{}.\n\n", fold(note)));
    }
    text.truncate(text.trim_end().len());
    text.push('\n');
    text
}

fn title(report: &Report) -> String {
    let subject = &report.subject;
    let opcode = anyring_abi::Opcode::from(report.operation).name();
    let direct = if report.direct { " with O_DIRECT" } else { "" };
    let on = match subject.kind {
        Kind::Pipe => "a pipe".to_owned(),
        Kind::Tcp => "a TCP connection on loopback".to_owned(),
        Kind::File => {
            let file_system = subject.file_system.as_deref().unwrap_or("unknown");
            let device = subject.device.as_ref().map_or(String::new(), |device| format!(" on {device}"));
            format!("{} ({file_system}{device})", subject.name)
        }
        Kind::BlockDevice => format!("{} (block device)", subject.name),
    };
    let server = if report.backend.is_ours() { "anyring's engine" } else { "the kernel's io_uring" };
    format!("{opcode}{direct}: {on}, served by {server}")
}

/// The ways that requests went, the most frequent first.
fn ways(side: &Side) -> String {
    let mut shares: Vec<_> =
        Way::ALL.into_iter().map(|way| (way, side.share(way))).filter(|(_, share)| *share > 0.0).collect();
    shares.sort_by(|(_, one), (_, other)| other.total_cmp(one));
    let shares: Vec<_> =
        shares.iter().map(|(way, share)| format!("{} {:.0} %", way.name(), share * 100.0)).collect();
    shares.join(", ")
}

fn threshold(limit: &Limit, step: u32) -> String {
    let what = situation_in_words(limit.situation);
    let found = match limit.threshold {
        Threshold::Never { up_to_bytes } => format!("No worker is needed {what}, up to {}", size(up_to_bytes)),
        Threshold::Always { from_bytes } => format!("A worker is needed {what}, from {} on", size(from_bytes)),
        Threshold::At { last_bytes, first_bytes, sharp } => {
            let sharp = if sharp { "" } else { "; the cut moved when it was tried again" };
            let blocks = |bytes: u32| match bytes.is_multiple_of(step) {
                true => format!("{} blocks of {step} bytes", bytes / step),
                false => format!("{bytes} bytes"),
            };
            let (last, first) = (blocks(last_bytes), blocks(first_bytes));
            format!(
                "{} ({last}) is the largest request that needs no worker {what}, {first} need one{sharp}",
                size(last_bytes)
            )
        }
        Threshold::None => format!("Which requests need a worker {what} does not depend on their size alone"),
    };
    match limit.because.is_empty() {
        true => format!("{found}."),
        false => format!("{found}: {}.", limit.because.join("; ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_threshold_is_reported_in_blocks() {
        let threshold = Threshold::At { last_bytes: 262_144, first_bytes: 262_656, sharp: false };
        let limit =
            Limit { situation: Situation::Direct, threshold, because: vec!["one".to_owned(), "two".to_owned()] };
        let expected =
            "256 KiB (512 blocks of 512 bytes) is the largest request that needs no worker with O_DIRECT, 513 \
            blocks of 512 bytes need one; the cut moved when it was tried again: one; two.";
        assert_eq!(super::threshold(&limit, 512), expected);
    }

    #[test]
    fn notes_of_several_sizes_are_one_line() {
        let note = |bytes, text: &str| (Situation::Uncached, bytes, text.to_owned());
        let lines = notes([note(512, "a"), note(4096, "b"), note(1 << 20, "a")].into_iter());
        assert_eq!(lines, ["not cached, 512 B, 1 MiB: a", "not cached, 4 KiB: b"]);
    }

    #[test]
    fn sizes_are_exact() {
        let sizes = [1, 512, 1024, 262_144, 262_656, 1 << 20, (1 << 20) + 1024].map(size);
        assert_eq!(sizes, ["1 B", "512 B", "1 KiB", "256 KiB", "262656 B", "1 MiB", "1025 KiB"]);
    }
}
