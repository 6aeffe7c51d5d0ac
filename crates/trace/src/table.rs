//! The table of a ring's kinds of request, in lines of at most 80 characters.

use crate::places;
use crate::report::{bytes, us, Kinds};
use std::fmt::{Formatter, Result};

const WIDTH: usize = 80;

/// The explanation of the columns, printed once below all tables.
pub(crate) const LEGEND: &str = "\
inl: in the submitting call. poll: after waiting for an event. kaio: later, by
the kernel. wrk: by a worker. p50, p90, p99: from submission to completion.
queue: the median until a worker began.
";

const HEAD: [&str; 11] =
    ["request", "count", "bytes", "inl%", "poll%", "kaio%", "wrk%", "p50us", "p90us", "p99us", "queue"];

/// Writes a line for each kind. Below it are its errors, short transfers and unfinished requests, and the places from
/// which it was submitted.
pub(crate) fn write(kinds: &[Kinds], formatter: &mut Formatter<'_>) -> Result {
    let rows: Vec<_> = kinds.iter().map(|kinds| (cells(kinds), wrongs(kinds) + &placed(kinds))).collect();
    let head = (HEAD.map(str::to_owned), String::new());
    let table = || std::iter::once(&head).chain(&rows);
    let width = |column: usize| table().map(|(cells, _)| cells[column].len()).max().unwrap_or(0);
    let widths: Vec<_> = (1..HEAD.len()).map(width).collect();
    let room = (WIDTH - 2).saturating_sub(widths.iter().map(|width| width + 1).sum());
    let name = width(0).min(room.max(HEAD[0].len()));
    for (cells, more) in table() {
        // A name that is too long gets a line of its own.
        let first = match cells[0].len() > name {
            true => format!("  {}\n  {:name$}", cells[0], ""),
            false => format!("  {:<name$}", cells[0]),
        };
        formatter.write_str(&first)?;
        cells[1..].iter().zip(&widths).try_for_each(|(cell, width)| write!(formatter, " {cell:>width$}"))?;
        writeln!(formatter, "{more}")?;
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

/// A line for errors, short transfers and unfinished requests, which most kinds do not have.
fn wrongs(kinds: &Kinds) -> String {
    let counts =
        [(kinds.errors, "with an error"), (kinds.short.unwrap_or(0), "short"), (kinds.unfinished, "unfinished")];
    let parts = counts.iter().filter(|(count, _)| *count != 0).map(|(count, what)| format!("{count} {what}"));
    let parts = parts.collect::<Vec<_>>().join(", ");
    if parts.is_empty() {
        parts
    } else {
        format!("\n    {parts}")
    }
}

/// A line for each place from which the kind was submitted.
fn placed(kinds: &Kinds) -> String {
    places::lines(&kinds.places, false).iter().map(|line| format!("\n    {}", shortened(line, WIDTH - 4))).collect()
}

/// Leaves out the beginning of the source's path, and then the end of the line, if it has more than `most` characters.
fn shortened(line: &str, most: usize) -> String {
    let length = line.chars().count();
    let Some(start) = line.rfind(" (").map(|start| start + 2).filter(|_| length > most) else {
        return line.chars().take(most).collect();
    };
    let (function, source) = line.split_at(start);
    let fits = source.match_indices('/').map(|(at, _)| &source[at..]);
    let mut fits = fits.map(|rest| format!("{function}...{rest}")).filter(|line| line.chars().count() <= most);
    fits.next().unwrap_or_else(|| line.chars().take(most - 3).chain("...".chars()).collect())
}

#[cfg(test)]
mod tests {
    use crate::{Event, Summary};
    use anyring_abi::Opcode;
    use anyring_engine::event::{FileKind, Kind};

    #[test]
    fn no_line_is_longer_than_a_terminal_whatever_the_numbers() {
        let mut summary = Summary::new(true);
        for (request, opcode) in [(1, Opcode::Nop), (2, Opcode::FixedFdInstall), (3, Opcode::Read)] {
            let of = |kind, time_ns| {
                let event = Event { ring: 1, request, time_ns, len: 1 << 30, ..Event::new(kind) };
                Event { opcode: opcode as u16, file: FileKind::Directory, ..event }
            };
            summary.add(&of(Kind::SubmitReq, 0));
            summary.add(&of(Kind::FileGet, 1));
            summary.add(&of(Kind::QueueAsyncWork, 2));
            summary.add(&Event { offset: 50_000_000_000, fd: 9, ..of(Kind::TaskAdd, 90_000_000_000) });
            summary.add(&Event { result: 1 << 29, ..of(Kind::Complete, 3_600_000_000_000) });
        }
        let mut report = summary.report(0);
        report.rings[0].kinds.iter_mut().for_each(|kinds| kinds.count *= 1_000_000_000);
        let text = report.rings[0].to_string();
        let table: Vec<_> = text.lines().skip(1).collect();
        assert!(table.iter().all(|line| line.len() <= super::WIDTH), "{text}");
        assert!(table.contains(&"  READ directory >1M") || text.contains("  READ directory >1M "), "{text}");
        assert!(text.contains(" 512.0M ") && text.contains("\n    1 short\n"), "{text}");
        assert!(super::LEGEND.lines().all(|line| line.len() <= super::WIDTH));
    }
}
