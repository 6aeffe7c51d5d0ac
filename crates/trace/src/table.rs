//! The table of a ring's kinds of request, in lines of at most 80 characters.

use crate::report::{bytes, us, Kinds};
use std::fmt::{Formatter, Result};

const WIDTH: usize = 80;

/// What the columns are; once below all tables.
pub(crate) const LEGEND: &str = "\
inl: in the submitting call. poll: after waiting for an event. kaio: later, by
the kernel. wrk: by a worker. p50, p90, p99: from submission to completion.
queue: the median until a worker began.
";

const HEAD: [&str; 11] =
    ["request", "count", "bytes", "inl%", "poll%", "kaio%", "wrk%", "p50us", "p90us", "p99us", "queue"];

/// A line for each kind, and below it what went wrong.
pub(crate) fn write(kinds: &[Kinds], formatter: &mut Formatter<'_>) -> Result {
    let rows: Vec<_> = kinds.iter().map(|kinds| (cells(kinds), wrongs(kinds))).collect();
    let head = (HEAD.map(str::to_owned), String::new());
    let table = || std::iter::once(&head).chain(&rows);
    let width = |column: usize| table().map(|(cells, _)| cells[column].len()).max().unwrap_or(0);
    let widths: Vec<_> = (1..HEAD.len()).map(width).collect();
    let room = (WIDTH - 2).saturating_sub(widths.iter().map(|width| width + 1).sum());
    let name = width(0).min(room.max(HEAD[0].len()));
    for (cells, wrongs) in table() {
        // A name that is too long has a line of its own.
        let first = match cells[0].len() > name {
            true => format!("  {}\n  {:name$}", cells[0], ""),
            false => format!("  {:<name$}", cells[0]),
        };
        formatter.write_str(&first)?;
        cells[1..].iter().zip(&widths).try_for_each(|(cell, width)| write!(formatter, " {cell:>width$}"))?;
        writeln!(formatter, "{wrongs}")?;
    }
    Ok(())
}

fn cells(kinds: &Kinds) -> [String; 11] {
    let share = |part: u64| match (kinds.count, part) {
        (0, _) => "-".to_owned(),
        (count, part) if part != 0 && part * 100 < count => "<1".to_owned(),
        (count, part) => (part * 100 / count).to_string(),
    };
    let named = [kinds.kind.opcode.as_str(), kinds.kind.file, kinds.kind.size];
    let [p50, p90, p99, queue] = [kinds.p50_ns, kinds.p90_ns, kinds.p99_ns, kinds.queued_p50_ns].map(us);
    [
        named.into_iter().filter(|name| *name != "-").collect::<Vec<_>>().join(" "),
        kinds.count.to_string(),
        kinds.bytes.map_or("-".to_owned(), bytes),
        share(kinds.inline),
        share(kinds.poll),
        share(kinds.kernel_aio),
        share(kinds.worker),
        p50,
        p90,
        p99,
        queue,
    ]
}

/// What most kinds have none of.
fn wrongs(kinds: &Kinds) -> String {
    let counts = [(kinds.errors, "with an error"), (kinds.short.unwrap_or(0), "short"), (kinds.unfinished, "unfinished")];
    let told = counts.iter().filter(|(count, _)| *count != 0).map(|(count, what)| format!("{count} {what}"));
    let told = told.collect::<Vec<_>>().join(", ");
    if told.is_empty() { told } else { format!("\n    {told}") }
}
