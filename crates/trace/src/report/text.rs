//! The report as text for people.

use super::{Interface, ProcessReport, Report, RequestKind, RingReport};
use crate::findings::{self, Finding};
use crate::gain::Spent;
use crate::{names, places, table};

impl std::fmt::Display for RequestKind {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match (self.file, self.size) {
            ("-", "-") => formatter.write_str(&self.opcode),
            (file, "-") => write!(formatter, "{} ({file})", self.opcode),
            (file, size) => write!(formatter, "{} ({file}, {size})", self.opcode),
        }
    }
}

/// A time for people; "-" for `None`.
pub fn time(ns: Option<u64>) -> String {
    match ns {
        None => "-".to_owned(),
        Some(ns @ 0..=9_999) => format!("{ns} ns"),
        Some(ns @ 10_000..=9_999_999) => format!("{:.1} us", ns as f64 / 1e3),
        Some(ns) => format!("{:.1} ms", ns as f64 / 1e6),
    }
}

/// A time in microseconds, so that a column has one unit, or in seconds from 100 s on; "-" for `None`.
pub(crate) fn us(ns: Option<u64>) -> String {
    match ns {
        None => "-".to_owned(),
        Some(ns @ 0..=999_999) => format!("{:.1}", ns as f64 / 1e3),
        Some(ns @ 0..=99_999_999_999) => (ns / 1_000).to_string(),
        Some(ns) => format!("{} s", ns / 1_000_000_000),
    }
}

/// A number of bytes for people, in at most six characters.
pub(crate) fn bytes(bytes: u64) -> String {
    let unit = (1..=6).rev().find(|unit| bytes >> (10 * unit) != 0);
    match unit {
        None => bytes.to_string(),
        Some(unit) => format!(
            "{:.1}{}",
            bytes as f64 / (1u64 << (10 * unit)) as f64,
            ["K", "M", "G", "T", "P", "E"][unit - 1]
        ),
    }
}

/// A value as text. `None` is "unknown", so that it is not taken for 0.
pub(crate) fn or_unknown(value: Option<impl std::fmt::Display>) -> String {
    value.map_or("unknown".to_owned(), |value| value.to_string())
}

/// An average; "-" for `None`.
pub(crate) fn average(value: Option<f64>) -> String {
    value.map_or("-".to_owned(), |value| format!("{value:.2}"))
}

impl std::fmt::Display for Report {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.rings.is_empty() {
            let known = if self.unheard.is_empty() { "made" } else { "traced" };
            writeln!(formatter, "No ring was {known}.")?;
        }
        for ring in self.rings.iter().filter(|ring| ring.is_used()) {
            ring.fmt(formatter)?;
        }
        if self.rings.iter().any(|ring| !ring.kinds.is_empty()) {
            formatter.write_str(table::LEGEND)?;
        }
        formatter.write_str(&self.spent_line().unwrap_or_default())?;
        self.write_totals(formatter)?;
        for child in &self.unserved {
            writeln!(formatter, "not served: {child}")?;
        }
        for why in &self.unheard {
            writeln!(formatter, "not traced: a process that could not open {why}")?;
        }
        self.write_findings(formatter)?;
        if self.unattributed_enters != 0 {
            writeln!(formatter, "{} enter calls on an unknown ring", self.unattributed_enters)?;
        }
        match self.events_lost {
            0 => Ok(()),
            lost => {
                writeln!(formatter, "{lost} events were lost (the program was faster): all numbers are too low")
            }
        }
    }
}

impl Report {
    fn write_processes(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.processes.iter().try_for_each(|process| writeln!(formatter, "{process}"))
    }

    /// Writes one line for unused rings, then the totals of all rings.
    fn write_totals(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (used, idle): (Vec<_>, Vec<_>) = self.rings.iter().partition(|ring| ring.is_used());
        if !idle.is_empty() {
            writeln!(formatter, "{}: no request", numbers("ring", idle.iter().map(|ring| ring.ring)))?;
        }
        if used.len() < 2 {
            return self.write_processes(formatter);
        }
        let sum = |of: fn(&RingReport) -> u64| used.iter().map(|ring| of(ring)).sum::<u64>();
        let enters: Option<u64> = used.iter().map(|ring| ring.enters).sum();
        writeln!(
            formatter,
            "in all, {} rings: {} requests, {} enter calls, {} CQEs, {} overflows, {} refused",
            used.len(),
            sum(|ring| ring.submitted),
            or_unknown(enters),
            sum(|ring| ring.cqes),
            sum(|ring| ring.overflows),
            sum(|ring| ring.refused),
        )?;
        self.write_processes(formatter)
    }

    /// Lines on the time that the program and its tracing took, if that is known.
    pub(crate) fn spent_line(&self) -> Option<String> {
        let Spent { elapsed_ns, cpu_ns, .. } = self.spent;
        let moved: u64 = self.rings.iter().flat_map(|ring| &ring.kinds).filter_map(|kinds| kinds.bytes).sum();
        let cpu = cpu_ns.map_or("unknown".to_owned(), |cpu_ns| time(Some(cpu_ns)));
        let spent = format!("{} elapsed, CPU time {cpu}, {} bytes moved\n", time(Some(elapsed_ns)), bytes(moved));
        let line = || spent + &self.tracing_line();
        (elapsed_ns != 0 && self.rings.iter().any(RingReport::is_used)).then(line)
    }

    /// The cost of tracing: CPU time of the program for its events, and of the tracer.
    fn tracing_line(&self) -> String {
        let Spent { tracer_cpu_ns, costs, .. } = self.spent;
        let events = self.events + self.events_lost;
        let of_program = costs.map(|costs| time(Some(self.traced_ns(&costs) as u64)));
        let of_program =
            of_program.map_or("took ".to_owned(), |took| format!("took at least {took} of that CPU time and "));
        format!("tracing {events} events {of_program}{} of the tracer's\n", time(Some(tracer_cpu_ns)))
    }

    /// Writes the findings. Findings with the same advice share one gain, and are written together. Those of the first
    /// ring have their evidence, those of other rings only the rings' numbers.
    fn write_findings(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (index, finding) in self.findings.iter().enumerate() {
            let is_same = |other: &&Finding| other.is_like(finding);
            if self.findings[..index].iter().any(|before| is_same(&before)) {
                continue;
            }
            let same = self.findings[index..].iter().filter(is_same);
            let (here, others): (Vec<_>, Vec<_>) = same.partition(|it| it.ring == finding.ring);
            for it in here {
                writeln!(formatter, "ring {}: {}", it.ring, it.evidence)?;
                let lines = places::lines(&it.places, true);
                lines.iter().try_for_each(|line| writeln!(formatter, "    {line}"))?;
            }
            if !others.is_empty() {
                writeln!(formatter, "  the same of {}", numbers("ring", others.iter().map(|it| it.ring)))?;
            }
            writeln!(formatter, "  -> {}", finding.advice)?;
            if let Some(gain) = finding.gain {
                writeln!(formatter, "     saves {gain}")?;
            }
        }
        if !self.findings.is_empty() && self.rings.iter().any(|ring| ring.by_kernel) {
            writeln!(formatter, "Source lines are known on anyring's own engine only: --backend user")?;
        }
        formatter.write_str(&self.few_line().unwrap_or_default())
    }

    /// A line that says why there are no findings, if too few requests were made.
    pub(crate) fn few_line(&self) -> Option<String> {
        let few = findings::FEW;
        let mut used = self.rings.iter().filter(|ring| ring.is_used()).peekable();
        let are_few = self.findings.is_empty() && used.peek().is_some() && used.all(|ring| ring.submitted < few);
        are_few.then(|| {
            format!(
                "Fewer than {few} requests on a ring: nothing can be said yet of what could be better.\n  -> let the \
                 program run longer\n"
            )
        })
    }
}

/// Returns "ring 1", or "rings 1, 3-5": the numbers in ascending order.
fn numbers(what: &str, numbers: impl Iterator<Item = u32>) -> String {
    let mut ranges: Vec<(u32, u32)> = Vec::new();
    for number in numbers {
        match ranges.last_mut() {
            Some((_, last)) if number == *last => {}
            Some((_, last)) if number == *last + 1 => *last = number,
            _ => ranges.push((number, number)),
        }
    }
    let several = ranges.len() > 1 || ranges.first().is_some_and(|(first, last)| first != last);
    let ranges = ranges.iter().map(|(first, last)| match first == last {
        true => first.to_string(),
        false => format!("{first}-{last}"),
    });
    format!("{what}{} {}", if several { "s" } else { "" }, ranges.collect::<Vec<_>>().join(", "))
}

impl std::fmt::Display for ProcessReport {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let ProcessReport { pid, program, rings, submitted, enters } = self;
        match pid {
            Some(pid) => write!(formatter, "process {pid} ({})", program.as_deref().unwrap_or("unknown"))?,
            None => formatter.write_str("threads of unknown processes")?,
        }
        let ring = if *rings == 1 { "ring" } else { "rings" };
        write!(formatter, ": {rings} {ring}, {submitted} requests, {enters} calls")
    }
}

impl std::fmt::Display for RingReport {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.write_head(formatter)?;
        if self.kinds.is_empty() {
            return Ok(());
        }
        table::write(&self.kinds, formatter)
    }
}

impl RingReport {
    fn is_used(&self) -> bool {
        self.submitted != 0 || self.cqes != 0 || !self.kinds.is_empty()
    }

    /// The names of the setup flags without `IORING_SETUP_`, and the rest as a number.
    pub(crate) fn flags(&self) -> String {
        or_unknown(self.setup_flags.map(names::setup_flags))
    }

    fn write_head(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.interface == Interface::Aio {
            return writeln!(
                formatter,
                "AIO context {} (for {}): {} requests, {} calls ({} each request, {} iocbs each submission), {} events, \
                 {} waits ({} events each), {} refused",
                self.ring,
                or_unknown(self.sq_entries),
                self.submitted,
                or_unknown(self.enters),
                average(self.enters_per_request),
                average(self.sqes_per_enter),
                self.cqes,
                self.waits,
                average(self.cqes_per_wait),
                self.refused,
            );
        }
        writeln!(
            formatter,
            "ring {} (fd {}, SQ {}, CQ {}, flags {}): {} requests, {} enter calls ({} each request, {} SQEs each \
             submission), {} CQEs, {} waits ({} CQEs each), {} overflows, {} refused",
            self.ring,
            or_unknown(self.fd),
            or_unknown(self.sq_entries),
            or_unknown(self.cq_entries),
            self.flags(),
            self.submitted,
            or_unknown(self.enters),
            average(self.enters_per_request),
            average(self.sqes_per_enter),
            self.cqes,
            self.waits,
            average(self.cqes_per_wait),
            self.overflows,
            self.refused,
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gain::{Gain, Saved};
    use crate::processes::Processes;
    use crate::{Event, Summary};
    use anyring_abi::Opcode;
    use anyring_engine::event::Kind;

    #[test]
    fn numbers_are_ranges() {
        assert_eq!(numbers("ring", [3].into_iter()), "ring 3");
        assert_eq!(numbers("ring", [1, 3, 4, 4, 5, 9].into_iter()), "rings 1, 3-5, 9");
    }

    /// Eight rings: the last two without requests, all others with one submitter and one enter call per request.
    #[test]
    fn many_rings_are_reported_in_few_lines() {
        let mut summary = Summary::new(true);
        for ring in 1..=8 {
            let base = Event { ring, opcode: Opcode::Nop as u16, ..Event::new(Kind::Enter) };
            summary.add(&Event { len: 8, offset: 16, ..Event { kind: Kind::Create, ..base } });
            for request in (1..=200).take_while(|_| ring < 7) {
                let of = |kind, time_ns| Event { kind, request, time_ns, ..base };
                summary.add(&Event { len: 1, ..base });
                summary.add(&of(Kind::SubmitReq, 0));
                summary.add(&of(Kind::Complete, 2_500));
            }
        }
        let mut report = summary.report(0);
        let mut processes = Processes::default();
        processes.insert(0, 4321, "server");
        report.name_processes(&processes);
        let text = report.to_string();
        assert!(text.contains("process 4321 (server): 8 rings, 1200 requests, 1200 calls\n"), "{text}");
        assert!(text.contains("rings 7-8: no request\n"), "{text}");
        assert!(text.contains("in all, 6 rings: 1200 requests, 1200 enter calls, 1200 CQEs, "), "{text}");
        assert_eq!(text.matches("  the same of rings 2-6\n").count(), 1, "each finding once: {text}");
        assert!(text.contains("p50us") && text.contains(" 2.5 "), "one unit: {text}");
    }

    #[test]
    fn findings_with_the_same_advice_share_one_gain() {
        let mut report = Summary::new(true).report(0);
        let of = |ring, evidence: &str| {
            let (evidence, gain) = (evidence.to_owned(), Some(Gain { percent: 50.0, of: "cpu" }));
            let saved = Saved::default();
            Finding {
                ring,
                name: "drained",
                evidence,
                advice: "link them",
                gain,
                places: Vec::new(),
                saved,
                kinds: None,
            }
        };
        report.findings = vec![of(1, "reads"), of(2, "others"), of(1, "writes")];
        let text = report.to_string();
        let together = "ring 1: reads\nring 1: writes\n  the same of ring 2\n  -> link them\n     saves about 50% of its CPU time\n";
        assert!(text.contains(together) && text.matches("saves").count() == 1, "{text}");
    }
}
