//! What a trace's events add up to, for people (`Display`), for programs (`Serialize`: docs/trace.md has the fields) and
//! for the page.

use crate::file_systems::{FileSystems, FilesOn};
use crate::findings::{self, Finding};
use crate::gain::{Gain, Saved, Spent};
use crate::names;
use crate::processes::Processes;
use crate::summary::Habits;
use crate::table;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};

/// What all events add up to.
#[derive(Debug, Serialize)]
pub struct Report {
    /// What the program took in all, by [`Report::tell_spent`].
    #[serde(flatten)]
    pub spent: Spent,
    /// Events that were told.
    #[serde(skip)]
    pub(crate) events: u64,
    /// Each ring, in the order in which they were made.
    pub rings: Vec<RingReport>,
    /// Each process that used one of them, by [`Report::name_processes`].
    pub processes: Vec<ProcessReport>,
    /// Programs that one of them executed and that could not be served, with the reason.
    pub unserved: Vec<String>,
    /// What could be better.
    pub findings: Vec<Finding>,
    /// io_uring_enter(2) calls of which the ring could not be told.
    pub unattributed_enters: u64,
    /// Events that were lost because the program was faster than the reader: with any, all numbers are too low.
    pub events_lost: u64,
    /// What each thread did.
    #[serde(skip)]
    pub(crate) by_thread: BTreeMap<u32, ThreadReport>,
}

/// What one thread did.
#[derive(Debug, Clone, Default)]
pub(crate) struct ThreadReport {
    pub enters: u64,
    pub submitted: u64,
    pub rings: BTreeSet<u32>,
}

/// What one process did.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ProcessReport {
    /// Its number; none for threads that had ended before they were asked about.
    pub pid: Option<u32>,
    /// The name of its program.
    pub program: Option<String>,
    /// Rings that it made or used.
    pub rings: u64,
    /// SQEs that its threads submitted.
    pub submitted: u64,
    /// Calls of its threads: io_uring_enter(2), io_submit(2), io_getevents(2).
    pub enters: u64,
}

/// What a ring is to the program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Interface {
    /// A ring of io_uring.
    #[default]
    IoUring,
    /// A context of Linux AIO.
    Aio,
}

/// One ring, or AIO context: there iocbs stand for SQEs and events for CQEs.
#[derive(Debug, Serialize)]
pub struct RingReport {
    /// Its number in this trace.
    pub ring: u32,
    /// Whether it is the kernel's.
    #[serde(skip)]
    pub by_kernel: bool,
    /// Whether most calls that submit also wait.
    #[serde(skip)]
    pub submits_and_waits: bool,
    /// Which of them it is.
    pub interface: Interface,
    /// The descriptor that setup answered, if its making was seen.
    pub fd: Option<i32>,
    /// The thread that made it, if that was seen.
    pub thread: Option<u32>,
    /// Entries of the SQ, or the requests that io_setup(2) was asked for, if its making was seen.
    pub sq_entries: Option<u64>,
    /// Entries of the CQ, or places in the completion ring, if its making was seen.
    pub cq_entries: Option<u64>,
    /// `IORING_SETUP_*`, if its making was seen.
    pub setup_flags: Option<u32>,
    /// io_uring_enter(2) calls, or those of io_submit(2) and io_getevents(2), if they can be told to be this ring's.
    pub enters: Option<u64>,
    /// SQEs that were submitted.
    pub submitted: u64,
    /// SQEs a submitting enter call, on average.
    pub sqes_per_enter: Option<f64>,
    /// Enter calls a request, on average.
    pub enters_per_request: Option<f64>,
    /// Waits for CQEs that did not find enough of them there.
    pub waits: u64,
    /// CQEs that were posted.
    pub cqes: u64,
    /// CQEs a wait, on average.
    pub cqes_per_wait: Option<f64>,
    /// CQEs that found the CQ full.
    pub overflows: u64,
    /// SQEs that were refused. Of AIO: iocbs, which get no event then.
    pub refused: u64,
    /// Whether one thread alone submitted.
    pub one_submitter: bool,
    /// The most requests that workers had at a time.
    pub most_with_workers: u64,
    /// The descriptors that were looked up most often, since they are not registered: at most three.
    pub lookups: Vec<Lookups>,
    /// What it does that may be done better.
    #[serde(skip)]
    pub habits: Habits,
    /// Where its files are, by [`Report::name_file_systems`].
    pub files_on: Vec<FilesOn>,
    /// Each kind of request.
    pub kinds: Vec<Kinds>,
}

/// How often a descriptor was looked up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Lookups {
    /// Its number.
    pub fd: i32,
    /// What it named the last time.
    pub file: &'static str,
    /// Requests that named it.
    pub count: u64,
}

/// What is told apart.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct RequestKind {
    /// The opcode's name without `IORING_OP_`, or its number where there is none.
    pub opcode: String,
    /// What its descriptor named (pipe, socket, file ...), or "-" where it has none, a registered one, or nobody knows.
    pub file: &'static str,
    /// The most bytes that it asked for, as a class: "<=4K"; "-" where it is not told.
    pub size: &'static str,
}

/// The requests of one kind.
#[derive(Debug, Serialize)]
pub struct Kinds {
    /// Which they are.
    #[serde(flatten)]
    pub kind: RequestKind,
    /// How many completed.
    pub count: u64,
    /// Of these, in the submitting call.
    pub inline: u64,
    /// Of these, after waiting for readiness, a time or another event.
    pub poll: u64,
    /// Of these, by the kernel later, without anybody waiting in between: by its AIO for our engine, and of its own rings
    /// what a device completed.
    pub kernel_aio: u64,
    /// Of these, by a worker.
    pub worker: u64,
    /// Of these, submitted with IOSQE_ASYNC.
    pub forced: u64,
    /// Why workers got requests, and how many for each reason. The kernel does not tell.
    pub worker_because: BTreeMap<&'static str, u64>,
    /// Of what workers had, the requests that were linked behind one that a worker had: it went on with them.
    pub behind_worker: u64,
    /// Of these, those that begin where the one before on their descriptor ends; nobody knows of the kernel's.
    #[serde(skip)]
    pub sequential: u64,
    /// Of these, with an error.
    pub errors: u64,
    /// Of these, with fewer bytes than asked for; none where it is not told how many that were.
    pub short: Option<u64>,
    /// Bytes that they moved, of those that move some.
    pub bytes: Option<u64>,
    /// Whether they wait by their nature: timeouts, polls, futexes, children.
    pub waits: bool,
    /// Those without a CQE by the end.
    pub unfinished: u64,
    /// Median latency from submission to completion, in nanoseconds; none for requests that complete several times.
    pub p50_ns: Option<u64>,
    /// 90th percentile.
    pub p90_ns: Option<u64>,
    /// 99th percentile.
    pub p99_ns: Option<u64>,
    /// Median of those that completed in the submitting call.
    pub inline_p50_ns: Option<u64>,
    /// Median of those that waited for readiness, a time or another event.
    pub poll_p50_ns: Option<u64>,
    /// Median of those that the kernel's AIO completed.
    pub kernel_aio_p50_ns: Option<u64>,
    /// Median of those that a worker completed.
    pub worker_p50_ns: Option<u64>,
    /// Median of the time that requests were queued before a worker began. The kernel does not tell.
    pub queued_p50_ns: Option<u64>,
    /// 99th percentile of that.
    pub queued_p99_ns: Option<u64>,
    /// How the latencies are spread.
    #[serde(skip)]
    pub latencies: Vec<Latencies>,
    /// The latencies of those that completed in the submitting call, added up.
    #[serde(skip)]
    pub inline_total_ns: f64,
    /// The times in the queue of the workers, added up.
    #[serde(skip)]
    pub queued_total_ns: f64,
    /// All latencies, added up.
    #[serde(skip)]
    pub latency_total_ns: f64,
}

/// How many requests of one kind had a latency between the bound before and this one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Latencies {
    /// The upper bound, in nanoseconds: a power of two.
    pub below_ns: u64,
    /// Requests that completed inline, after waiting for something, by the kernel's AIO, and by a worker.
    pub paths: [u64; 4],
}

impl std::fmt::Display for RequestKind {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match (self.file, self.size) {
            ("-", "-") => formatter.write_str(&self.opcode),
            (file, "-") => write!(formatter, "{} ({file})", self.opcode),
            (file, size) => write!(formatter, "{} ({file}, {size})", self.opcode),
        }
    }
}

/// A time for people; "-" for none.
pub fn time(ns: Option<u64>) -> String {
    match ns {
        None => "-".to_owned(),
        Some(ns @ 0..=9_999) => format!("{ns} ns"),
        Some(ns @ 10_000..=9_999_999) => format!("{:.1} us", ns as f64 / 1e3),
        Some(ns) => format!("{:.1} ms", ns as f64 / 1e6),
    }
}

/// A time in microseconds, so that a column has one unit, but for minutes; "-" for none.
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

/// What is not known is not 0.
pub(crate) fn told(value: Option<impl std::fmt::Display>) -> String {
    value.map_or("unknown".to_owned(), |value| value.to_string())
}

/// An average; "-" for that of nothing.
pub(crate) fn average(value: Option<f64>) -> String {
    value.map_or("-".to_owned(), |value| format!("{value:.2}"))
}

impl std::fmt::Display for Report {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.rings.is_empty() {
            writeln!(formatter, "No ring was made.")?;
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
    /// Adds up what the threads of each process did.
    pub fn name_processes(&mut self, processes: &Processes) {
        let mut by_process: BTreeMap<Option<u32>, ThreadReport> = BTreeMap::new();
        for (thread, did) in &self.by_thread {
            let sum = by_process.entry(processes.of_thread(*thread)).or_default();
            sum.enters += did.enters;
            sum.submitted += did.submitted;
            sum.rings.extend(&did.rings);
        }
        let report =
            |(pid, ThreadReport { enters, submitted, rings }): (Option<u32>, ThreadReport)| ProcessReport {
                pid,
                program: pid.and_then(|pid| processes.program(pid)).map(str::to_owned),
                rings: rings.len() as u64,
                submitted,
                enters,
            };
        self.processes = by_process.into_iter().map(report).collect();
    }

    /// Says where the files of each ring are, on which some findings depend.
    pub fn name_file_systems(&mut self, file_systems: &FileSystems) {
        for ring in &mut self.rings {
            ring.files_on = file_systems.of_ring(ring.ring);
        }
        self.find();
    }

    /// Says what the program took, by which findings are weighed.
    pub fn tell_spent(&mut self, spent: Spent) {
        self.spent = spent;
        self.find();
    }

    /// What could be better, the greatest gain first. What several rings have in common counts as one.
    pub(crate) fn find(&mut self) {
        let alone = self.rings.iter().filter(|ring| ring.habits.alone >= findings::FEW).count();
        let around = findings::Around { costs: self.spent.costs.unwrap_or_default(), alone, spent: self.spent };
        let mut found: Vec<Finding> = self.rings.iter().flat_map(|ring| findings::of_ring(ring, &around)).collect();
        let sums: Vec<Saved> = found
            .iter()
            .map(|it| {
                let same = found.iter().filter(|other| it.is_like(other));
                same.fold(Saved::default(), |sum, other| sum.and(other.saved))
            })
            .collect();
        for (finding, saved) in found.iter_mut().zip(sums) {
            finding.gain = Gain::of(saved, &self.spent, self.events + self.events_lost);
        }
        found.retain(|finding| finding.gain.is_none_or(Gain::is_worth_it));
        let percent = |finding: &Finding| finding.gain.map_or(0.0, |gain| gain.percent);
        found.sort_by(|one, other| percent(other).total_cmp(&percent(one)));
        self.findings = found;
    }

    fn write_processes(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.processes.iter().try_for_each(|process| writeln!(formatter, "{process}"))
    }

    /// Rings that did nothing, in one line, and what several rings did together.
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
            told(enters),
            sum(|ring| ring.cqes),
            sum(|ring| ring.overflows),
            sum(|ring| ring.refused),
        )?;
        self.write_processes(formatter)
    }

    /// What the program took, where that is known.
    pub(crate) fn spent_line(&self) -> Option<String> {
        let Spent { elapsed_ns, cpu_ns, .. } = self.spent;
        let moved: u64 = self.rings.iter().flat_map(|ring| &ring.kinds).filter_map(|kinds| kinds.bytes).sum();
        let cpu = cpu_ns.map_or("unknown".to_owned(), |cpu_ns| time(Some(cpu_ns)));
        let line = || format!("{} elapsed, CPU time {cpu}, {} bytes moved\n", time(Some(elapsed_ns)), bytes(moved));
        (elapsed_ns != 0 && self.rings.iter().any(RingReport::is_used)).then(line)
    }

    /// What several rings have in common is said once, of the first.
    fn write_findings(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (index, finding) in self.findings.iter().enumerate() {
            let same = |other: &&Finding| other.is_like(finding);
            if self.findings[..index].iter().any(|before| same(&before) && before.ring != finding.ring) {
                continue;
            }
            let others: Vec<_> = self.findings[index..].iter().filter(same).map(|it| it.ring).collect();
            let others: Vec<_> = others.into_iter().filter(|ring| *ring != finding.ring).collect();
            writeln!(formatter, "ring {}: {}", finding.ring, finding.evidence)?;
            if !others.is_empty() {
                writeln!(formatter, "  the same of {}", numbers("ring", others.into_iter()))?;
            }
            writeln!(formatter, "  -> {}", finding.advice)?;
            if let Some(gain) = finding.gain {
                writeln!(formatter, "     saves {gain}")?;
            }
        }
        let mut used = self.rings.iter().filter(|ring| ring.is_used()).peekable();
        if self.findings.is_empty() && used.peek().is_some() && used.all(|ring| ring.submitted < findings::FEW) {
            let few = findings::FEW;
            writeln!(formatter, "Fewer than {few} requests: nothing is said yet of what could be better.")?;
        }
        Ok(())
    }
}

/// "ring 1", or "rings 1, 3-5": the numbers in ascending order.
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
        told(self.setup_flags.map(names::setup_flags))
    }

    fn write_head(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.interface == Interface::Aio {
            return writeln!(
                formatter,
                "AIO context {} (for {}): {} requests, {} calls ({} each request, {} iocbs each submission), {} events, \
                 {} waits ({} events each), {} refused",
                self.ring,
                told(self.sq_entries),
                self.submitted,
                told(self.enters),
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
            told(self.fd),
            told(self.sq_entries),
            told(self.cq_entries),
            self.flags(),
            self.submitted,
            told(self.enters),
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
    use crate::{Event, Summary};
    use anyring_abi::Opcode;
    use anyring_engine::event::Kind;

    #[test]
    fn numbers_are_ranges() {
        assert_eq!(numbers("ring", [3].into_iter()), "ring 3");
        assert_eq!(numbers("ring", [1, 3, 4, 4, 5, 9].into_iter()), "rings 1, 3-5, 9");
    }

    /// Eight rings: the last two without requests, and all others with one submitter and one enter call each request.
    #[test]
    fn many_rings_are_told_in_few_lines() {
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

    /// 400 NOPs in a call each, and as many reads one at a time, which take 300 us of the device's time.
    #[test]
    fn findings_are_ranked_by_what_they_bring_and_left_out_where_it_is_little() {
        let mut summary = Summary::new(true);
        for number in 1..=800u32 {
            let opcode = if number % 2 == 0 { Opcode::Nop } else { Opcode::Read } as u16;
            let at_ns = u64::from(number) * 1_000_000;
            let of = |kind, after_ns| Event {
                ring: 1,
                request: number,
                opcode,
                time_ns: at_ns + after_ns,
                ..Event::new(kind)
            };
            summary.add(&Event { len: 1, ..of(Kind::Enter, 0) });
            summary.add(&of(Kind::SubmitReq, 0));
            if number % 2 != 0 {
                summary.add(&of(Kind::TaskAdd, 300_000));
            }
            summary.add(&Event { result: 4096, ..of(Kind::Complete, 300_000) });
        }
        let mut report = summary.report(0);
        assert!(report.findings.iter().all(|it| it.gain.is_none()), "{:?}", report.findings);
        let costs = crate::Costs { call_ns: 10_000.0, ..crate::Costs::default() };
        let mut told = |elapsed_ns| {
            let cpu_ns = Some(50_000_000);
            report.tell_spent(Spent { elapsed_ns, cpu_ns, costs: Some(costs) });
            let line = |it: &Finding| format!("{} {}", it.name, it.gain.expect("a gain"));
            (report.findings.iter().map(line).collect::<Vec<_>>(), report.to_string())
        };
        let (found, text) = told(100_000_000);
        let [first, second] =
            ["one_in_flight about 90% of the elapsed time", "one_enter_each about 15% of its CPU time"];
        assert_eq!(found, [first, second], "{text}");
        assert!(text.contains("\n     saves about 90% of the elapsed time\n"), "{text}");
        assert_eq!(told(800_000_000).0, [second, "one_in_flight about 11% of the elapsed time"]);
        assert_eq!(told(8_000_000_000).0, [second], "1% is not worth a word");
    }
}
