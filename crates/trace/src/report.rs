//! What a trace's events add up to, for people (`Display`), for programs (`Serialize`: docs/trace.md has the fields) and
//! for the page.

use crate::findings::Finding;
use serde::Serialize;

/// What all events add up to.
#[derive(Debug, Serialize)]
pub struct Report {
    /// Each ring, in the order in which they were made.
    pub rings: Vec<RingReport>,
    /// What could be better.
    pub findings: Vec<Finding>,
    /// io_uring_enter(2) calls of which the ring could not be told.
    pub unattributed_enters: u64,
    /// Events that were lost because the program was faster than the reader: with any, all numbers are too low.
    pub events_lost: u64,
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
    /// Of these, with an error.
    pub errors: u64,
    /// Of these, with fewer bytes than asked for.
    pub short: u64,
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

/// "-" for what is not known.
pub(crate) fn told(value: Option<impl std::fmt::Display>) -> String {
    value.map_or("-".to_owned(), |value| value.to_string())
}

pub(crate) fn average(value: Option<f64>) -> String {
    value.map_or("-".to_owned(), |value| format!("{value:.2}"))
}

impl std::fmt::Display for Report {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.rings.is_empty() {
            writeln!(formatter, "No ring was made.")?;
        }
        for ring in &self.rings {
            ring.fmt(formatter)?;
        }
        for finding in &self.findings {
            writeln!(formatter, "{finding}")?;
        }
        if self.unattributed_enters != 0 {
            writeln!(formatter, "{} enter calls of which the ring is not known", self.unattributed_enters)?;
        }
        match self.events_lost {
            0 => Ok(()),
            lost => {
                writeln!(formatter, "{lost} events were lost (the program was faster): all numbers are too low")
            }
        }
    }
}

impl std::fmt::Display for RingReport {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.write_head(formatter)?;
        if self.kinds.is_empty() {
            return Ok(());
        }
        self.write_table(formatter)
    }
}

impl RingReport {
    pub(crate) fn flags(&self) -> String {
        told(self.setup_flags.map(|flags| format!("{flags:#x}")))
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

    fn write_table(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let head =
            ["request", "file", "size", "count", "inline", "poll", "kernel AIO", "worker", "p50", "p90", "p99"];
        let rows = self.kinds.iter().map(|kinds| {
            let share = |part: u64| match kinds.count {
                0 => "-".to_owned(),
                count => format!("{:.1}%", 100.0 * part as f64 / count as f64),
            };
            [
                kinds.kind.opcode.clone(),
                kinds.kind.file.to_owned(),
                kinds.kind.size.to_owned(),
                kinds.count.to_string(),
                share(kinds.inline),
                share(kinds.poll),
                share(kinds.kernel_aio),
                share(kinds.worker),
                time(kinds.p50_ns),
                time(kinds.p90_ns),
                time(kinds.p99_ns),
                time(kinds.queued_p50_ns),
                kinds.errors.to_string(),
                kinds.short.to_string(),
                kinds.unfinished.to_string(),
            ]
        });
        let mut head: Vec<String> = head.map(str::to_owned).to_vec();
        head.extend(["queued", "errors", "short", "unfinished"].map(str::to_owned));
        let table: Vec<Vec<String>> = std::iter::once(head).chain(rows.map(Vec::from)).collect();
        let width = |column: usize| table.iter().map(|row| row[column].len()).max().unwrap_or(0);
        for row in &table {
            let cells = row.iter().enumerate().map(|(column, cell)| match column {
                0..=2 => format!("{cell:<w$}", w = width(column)),
                _ => format!("{cell:>w$}", w = width(column)),
            });
            writeln!(formatter, "  {}", cells.collect::<Vec<_>>().join("  ").trim_end())?;
        }
        Ok(())
    }
}
