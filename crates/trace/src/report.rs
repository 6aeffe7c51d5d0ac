//! The report on a trace: for people (`Display`), for programs (`Serialize`; docs/trace.md lists the fields) and for
//! the HTML page.

use crate::file_systems::{FileSystems, FilesOn};
use crate::findings::{self, Finding};
use crate::gain::{Costs, Gain, Saved, Spent};
use crate::places::Place;
use crate::processes::Processes;
use crate::summary::Habits;
use anyring_engine::op::Punt;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet, HashMap};

mod text;

pub use text::time;
pub(crate) use text::{average, bytes, or_unknown, us};

/// The sums of all events.
#[derive(Debug, Serialize)]
pub struct Report {
    /// The time that the program took, set by [`Report::set_spent`].
    #[serde(flatten)]
    pub spent: Spent,
    /// Number of events that were reported.
    pub(crate) events: u64,
    /// Each ring, in order of creation.
    pub rings: Vec<RingReport>,
    /// Each process that used a ring, set by [`Report::name_processes`].
    pub processes: Vec<ProcessReport>,
    /// Programs that a traced process executed and that could not be served, each with the reason.
    pub unserved: Vec<String>,
    /// Reasons why a process that anyring serves wrote no events.
    pub unheard: Vec<String>,
    /// Suggested improvements.
    pub findings: Vec<Finding>,
    /// io_uring_enter(2) calls on an unknown ring.
    pub unattributed_enters: u64,
    /// Events that were lost because the program was faster than the reader. If there are any, all numbers are too
    /// low.
    pub events_lost: u64,
    /// Counts of each thread.
    #[serde(skip)]
    pub(crate) by_thread: BTreeMap<u32, ThreadReport>,
    /// The frames of each stack from which requests were submitted.
    #[serde(skip)]
    pub(crate) stacks: HashMap<u64, Vec<String>>,
    /// Time that the program took to look up these stacks.
    #[serde(skip)]
    pub(crate) places_ns: u64,
}

/// Counts of one thread.
#[derive(Debug, Clone, Default)]
pub(crate) struct ThreadReport {
    pub enters: u64,
    pub submitted: u64,
    pub rings: BTreeSet<u32>,
}

/// Counts of one process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ProcessReport {
    /// Its number; `None` for threads that ended before they were looked up.
    pub pid: Option<u32>,
    /// The name of its program.
    pub program: Option<String>,
    /// Number of rings that it created or used.
    pub rings: u64,
    /// SQEs that its threads submitted.
    pub submitted: u64,
    /// Calls of its threads: io_uring_enter(2), io_submit(2), io_getevents(2).
    pub enters: u64,
}

/// The program's interface to a ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Interface {
    /// An io_uring.
    #[default]
    IoUring,
    /// A context of Linux AIO.
    Aio,
}

/// One ring or AIO context. In an AIO context, iocbs count as SQEs and events as CQEs.
#[derive(Debug, Serialize)]
pub struct RingReport {
    /// Its number in this trace.
    pub ring: u32,
    /// True if the kernel serves this ring.
    #[serde(skip)]
    pub by_kernel: bool,
    /// True if most calls that submit also wait.
    #[serde(skip)]
    pub submits_and_waits: bool,
    /// The interface: an io_uring or an AIO context.
    pub interface: Interface,
    /// The descriptor that io_uring_setup(2) returned; `None` if its creation was not traced.
    pub fd: Option<i32>,
    /// The thread that created it; `None` if its creation was not traced.
    pub thread: Option<u32>,
    /// Entries of the SQ, or requests that io_setup(2) was asked for; `None` if its creation was not traced.
    pub sq_entries: Option<u64>,
    /// Entries of the CQ or of the AIO completion ring; `None` if its creation was not traced.
    pub cq_entries: Option<u64>,
    /// `IORING_SETUP_*`; `None` if its creation was not traced.
    pub setup_flags: Option<u32>,
    /// Calls of io_uring_enter(2), or of io_submit(2) and io_getevents(2); `None` if it is unknown which were on this
    /// ring.
    pub enters: Option<u64>,
    /// SQEs that were submitted.
    pub submitted: u64,
    /// Average number of SQEs per io_uring_enter(2) call that submits.
    pub sqes_per_enter: Option<f64>,
    /// Average number of io_uring_enter(2) calls per request.
    pub enters_per_request: Option<f64>,
    /// Waits that did not find enough CQEs.
    pub waits: u64,
    /// CQEs that were posted.
    pub cqes: u64,
    /// Average number of CQEs per wait.
    pub cqes_per_wait: Option<f64>,
    /// CQEs that found the CQ full.
    pub overflows: u64,
    /// SQEs that were refused. For AIO: iocbs, which then get no event.
    pub refused: u64,
    /// True if a single thread submitted all requests.
    pub one_submitter: bool,
    /// The largest number of requests that workers had at the same time.
    pub most_with_workers: u64,
    /// The unregistered descriptors that were looked up most often: at most three.
    pub lookups: Vec<Lookups>,
    /// Habits of the program that could be improved.
    #[serde(skip)]
    pub habits: Habits,
    /// The file systems of its files, set by [`Report::name_file_systems`].
    pub files_on: Vec<FilesOn>,
    /// Each kind of request.
    pub kinds: Vec<Kinds>,
}

/// Number of lookups of a descriptor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Lookups {
    /// The descriptor.
    pub fd: i32,
    /// The kind of file that it named the last time.
    pub file: &'static str,
    /// Requests that named it.
    pub count: u64,
}

/// The properties that distinguish kinds of requests.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct RequestKind {
    /// The opcode's name without `IORING_OP_`, or its number if it has none.
    pub opcode: String,
    /// The kind of its file (pipe, socket, file ...), or "-" if it has none, a registered one, or an unknown one.
    pub file: &'static str,
    /// The most bytes that it asked for, as a class such as "<=4K"; "-" if unknown.
    pub size: &'static str,
}

/// The requests of one kind.
#[derive(Debug, Serialize)]
pub struct Kinds {
    /// The kind.
    #[serde(flatten)]
    pub kind: RequestKind,
    /// Requests that completed.
    pub count: u64,
    /// Requests that completed in the submitting call.
    pub inline: u64,
    /// Requests that completed after waiting for readiness, a time or another event.
    pub poll: u64,
    /// Requests that completed after the submitting call, without a wait for readiness and without a worker. In
    /// anyring's engine the kernel's AIO completed them. On the kernel's own rings a device did.
    pub kernel_aio: u64,
    /// Requests that a worker completed.
    pub worker: u64,
    /// Requests that were submitted with IOSQE_ASYNC.
    pub forced: u64,
    /// Requests that go to a worker without an attempt, because of their flags, their opcode or a drain.
    #[serde(skip)]
    pub sent: u64,
    /// Requests that went to a worker because they or requests before them have IOSQE_IO_DRAIN.
    pub worker_by_drain: u64,
    /// Number of requests that workers got, by reason. The kernel does not report reasons.
    pub worker_because: BTreeMap<&'static str, u64>,
    /// Requests that went to a worker only because the previous request of their chain did.
    pub worker_by_chain: u64,
    /// Requests whose transfer begins at the offset where the previous transfer on their descriptor ended. Unknown on
    /// the kernel's rings.
    #[serde(skip)]
    pub sequential: u64,
    /// Requests that completed with an error.
    pub errors: u64,
    /// Requests that moved fewer bytes than they asked for; `None` if the number asked for is unknown.
    pub short: Option<u64>,
    /// Bytes that were moved; `None` if requests of this kind move none.
    pub bytes: Option<u64>,
    /// True if the operation itself waits: a timeout, poll, futex or child.
    pub waits: bool,
    /// Requests without a CQE at the end of the trace.
    pub unfinished: u64,
    /// Median latency from submission to completion, in nanoseconds; `None` for requests that complete several times.
    pub p50_ns: Option<u64>,
    /// 90th percentile of the latency.
    pub p90_ns: Option<u64>,
    /// 99th percentile of the latency.
    pub p99_ns: Option<u64>,
    /// Median latency of requests that completed in the submitting call.
    pub inline_p50_ns: Option<u64>,
    /// Median latency of requests that waited for readiness, a time or another event.
    pub poll_p50_ns: Option<u64>,
    /// Median latency of requests in `kernel_aio`.
    pub kernel_aio_p50_ns: Option<u64>,
    /// Median latency of requests that a worker completed.
    pub worker_p50_ns: Option<u64>,
    /// Median time in the queue until a worker began. For the kernel's rings: until it looked up a descriptor.
    pub queued_p50_ns: Option<u64>,
    /// 99th percentile of the time in the queue.
    pub queued_p99_ns: Option<u64>,
    /// The places from which most of them were submitted, set by [`Report::name_places`]. Not known on the kernel's
    /// rings.
    pub places: Vec<Place>,
    /// Requests by the stack from which they were submitted, as far as it is known.
    #[serde(skip)]
    pub stacks: BTreeMap<u64, u64>,
    /// Distribution of the latencies.
    #[serde(skip)]
    pub latencies: Vec<Latencies>,
    /// Sum of the latencies of requests that completed in the submitting call.
    #[serde(skip)]
    pub inline_total_ns: f64,
    /// Sum of the times in the workers' queue.
    #[serde(skip)]
    pub queued_total_ns: f64,
    /// Sum of all latencies.
    #[serde(skip)]
    pub latency_total_ns: f64,
}

impl Kinds {
    /// Returns the number of requests that went to a worker because they could not be completed at once.
    pub fn punted(&self) -> u64 {
        let parallel = self.worker_because.get(Punt::Parallel.name()).copied().unwrap_or(0);
        self.worker.saturating_sub(parallel)
    }
}

/// Number of requests of one kind with a latency between the previous bound and this one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Latencies {
    /// The upper bound, in nanoseconds: a power of two.
    pub below_ns: u64,
    /// Requests by path: inline, after a wait, later by the kernel, by a worker.
    pub paths: [u64; 4],
}

impl Report {
    /// Adds up the counts of the threads of each process.
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

    /// Adds the file systems of each ring's files, which some findings depend on.
    pub fn name_file_systems(&mut self, file_systems: &FileSystems) {
        for ring in &mut self.rings {
            ring.files_on = file_systems.of_ring(ring.ring);
        }
        self.find();
    }

    /// Adds the time that the program took, by which findings are ranked.
    pub fn set_spent(&mut self, spent: Spent) {
        self.spent = spent;
        self.find();
    }

    /// Finds improvements and ranks them by gain. Several rings with the same advice count as one.
    pub(crate) fn find(&mut self) {
        let alone = self.rings.iter().filter(|ring| ring.habits.is_one_in_flight()).count();
        let by_workers = self.rings.iter().flat_map(|ring| &ring.kinds).map(|kinds| kinds.worker).sum();
        let costs = self.spent.costs.unwrap_or_default();
        let around = findings::Around { costs, alone, by_workers, spent: self.spent };
        let mut found: Vec<Finding> = self.rings.iter().flat_map(|ring| findings::of_ring(ring, &around)).collect();
        let sums: Vec<Saved> = found
            .iter()
            .map(|it| {
                let same = found.iter().filter(|other| it.is_like(other));
                same.fold(Saved::default(), |sum, other| sum.and(other.saved))
            })
            .collect();
        for (finding, saved) in found.iter_mut().zip(sums) {
            finding.gain = Gain::of(saved, &self.spent, self.traced_ns(&costs));
        }
        found.retain(|finding| finding.gain.is_none_or(Gain::is_worth_it));
        let percent = |finding: &Finding| finding.gain.map_or(0.0, |gain| gain.percent);
        found.sort_by(|one, other| percent(other).total_cmp(&percent(one)));
        self.findings = found;
    }

    /// CPU time of the program for its events, and for looking up the places from which it submits.
    fn traced_ns(&self, costs: &Costs) -> f64 {
        (self.events + self.events_lost) as f64 * costs.event_ns + self.places_ns as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Event, Summary};
    use anyring_abi::Opcode;
    use anyring_engine::event::Kind;

    /// 400 NOPs in a call each, and as many reads one at a time, which take 300 us of the device's time each.
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
        let mut ranked = |elapsed_ns| {
            let cpu_ns = Some(50_000_000);
            report.set_spent(Spent { elapsed_ns, cpu_ns, costs: Some(costs), ..Spent::default() });
            let line = |it: &Finding| format!("{} {}", it.name, it.gain.expect("a gain"));
            (report.findings.iter().map(line).collect::<Vec<_>>(), report.to_string())
        };
        let (found, text) = ranked(100_000_000);
        let [first, second] =
            ["one_in_flight about 90% of the elapsed time", "one_enter_each about 15% of its CPU time"];
        assert_eq!(found, [first, second], "{text}");
        assert!(text.contains("\n     saves about 90% of the elapsed time\n"), "{text}");
        assert_eq!(ranked(800_000_000).0, [second, "one_in_flight about 11% of the elapsed time"]);
        assert_eq!(ranked(8_000_000_000).0, [second], "1% is not worth a word");
    }
}
