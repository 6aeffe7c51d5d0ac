//! Tokens that go round pipes beside idle ones, as published in 2002: pipetest.

use super::{Measurement, Plan, Setting, Workload};
use crate::backend::Backend::{self, *};
use crate::message::{TokenPasses, Work};
use crate::report::{Comparison, Figure, Row, WorkloadReport};
use crate::statistics::Estimate;

/// The workload `pipetest`.
pub const PIPETEST: Workload = Workload {
    name: "pipetest",
    title: "Tokens that go round pipes",
    axis: "",
    about: "A token is found to be in one of 128 pipes, read, checked, and written to the next; token passes a second: \
            higher is better. Beside them lie pipes that are waited on and stay empty (their write ends are held by other \
            processes). Figure 1: each event by a system call. Figure 2: events of Linux AIO read from the completion \
            ring in memory, as from now on. Figure 3: with asynchronous reads, too. Figure 4: longer tokens. Figure 5: \
            more tokens. AIO: an IOCB_CMD_PREAD on each pipe; AIO poll: an IOCB_CMD_POLL, and read(2); io_uring: a READ \
            on each pipe, and WRITE.",
    share: 2,
    plan,
};

/// Pipes that tokens go round, as in the published figures 4 and 5.
const ACTIVE: u32 = 128;
/// Bytes of a token, as in the published figure 5.
const BYTES: u32 = 12;
/// Passes in a run: about 30 ms.
const PASSES: u64 = 25_000;
/// The number of tokens in the additional curves of figure 3; the published figure has one token.
const MORE_TOKENS: u32 = 16;

const BASELINE: &[Backend] = &[Epoll, Poll, AnyringAioPoll, KernelAioPoll];
const MEMORY: &[Backend] = &[Epoll, AnyringAioPoll, KernelAioPoll];
const READS: &[Backend] = &[Anyring, Kernel, Epoll, AnyringAio, AnyringAioPoll, KernelAio, KernelAioPoll];
/// The backends with more tokens in figure 3.
const MORE: &[Backend] = &[Epoll, AnyringAio, AnyringAioPoll, KernelAioPoll];
const ALL: &[Backend] = &[Anyring, Kernel, Epoll, Poll, AnyringAio, AnyringAioPoll, KernelAio, KernelAioPoll];

/// The meaning of a chart's places.
#[derive(Clone, Copy, PartialEq)]
enum Axis {
    Idle,
    Bytes,
    Tokens,
}

impl Axis {
    fn name(self) -> &'static str {
        match self {
            Axis::Idle => "idle descriptors",
            Axis::Bytes => "bytes a token",
            Axis::Tokens => "tokens in flight",
        }
    }
}

struct Chart {
    group: &'static str,
    axis: Axis,
    from_memory: bool,
    backends: &'static [Backend],
}

const CHARTS: [Chart; 5] = [
    Chart { group: "figure 1, idle descriptors: poll", axis: Axis::Idle, from_memory: false, backends: BASELINE },
    Chart {
        group: "figure 2, idle descriptors: events in memory",
        axis: Axis::Idle,
        from_memory: true,
        backends: MEMORY,
    },
    Chart { group: "figure 3, idle descriptors: async read", axis: Axis::Idle, from_memory: true, backends: READS },
    Chart { group: "figure 4, message size", axis: Axis::Bytes, from_memory: true, backends: ALL },
    Chart { group: "figure 5, tokens in flight", axis: Axis::Tokens, from_memory: true, backends: ALL },
];

fn plan(setting: &mut Setting) -> Result<Plan, String> {
    let mut measurements = Vec::new();
    for chart in &CHARTS {
        let places: &[u32] = match (chart.axis, setting.quick) {
            (Axis::Idle, false) => &[16, 256, 2_000, 10_000],
            (Axis::Bytes, false) => &[12, 64, 256, 1_024, 4_096, 8_192],
            (Axis::Tokens, false) => &[1, 4, 16, 32, 64, 128],
            (Axis::Idle, true) => &[16, 100, 300],
            (Axis::Bytes, true) => &[12, 512, 8_192],
            (Axis::Tokens, true) => &[1, 8, 128],
        };
        let ends = [places[0], places[places.len() - 1]];
        for x in places.iter().copied() {
            let name = match (chart.axis, x) {
                (Axis::Tokens, 1) => "1 token".to_owned(),
                _ => format!("{x} {}", chart.axis.name()),
            };
            let mut figure = Figure::new(chart.group, name, "passes/s");
            figure = Figure { axis: Some(chart.axis.name().to_owned()), more_is_better: true, ..figure };
            figure.headline = ends.contains(&x);
            let work = TokenPasses {
                active: ACTIVE,
                idle: if chart.axis == Axis::Idle { x } else { 0 },
                tokens: if chart.axis == Axis::Tokens { x } else { 1 },
                bytes: if chart.axis == Axis::Bytes { x } else { BYTES },
                passes: setting.pick(PASSES, 100),
                from_memory: chart.from_memory,
            };
            let figure = figure.at(f64::from(x));
            measurements.push(Measurement::new(Work::TokenPasses(work), chart.backends, vec![figure.clone()]));
            if chart.backends == READS && ends.contains(&x) {
                let figure = Figure { variant: Some(format!("{MORE_TOKENS} tokens")), headline: false, ..figure };
                let work = Work::TokenPasses(TokenPasses { tokens: MORE_TOKENS, ..work });
                measurements.push(Measurement::new(work, MORE, vec![figure]));
            }
        }
    }
    let notes = vec![
        "Published for Linux 2.4.19pre5 with patches, on a machine of 2002: poll falls rapidly with the number of \
         descriptors, the others stay flat; asynchronous poll reaches half of epoll, three quarters with a fast path and \
         events in memory, asynchronous read comes within 15 % of epoll and passes it from 512 bytes on; with as many \
         tokens as 15 % of the descriptors poll meets asynchronous poll, with almost half it meets asynchronous read."
            .to_owned(),
        "10,000 idle descriptors need RLIMIT_NOFILE of 11,500.".to_owned(),
    ];
    Ok(Plan { measurements, notes, conclude, ..Plan::default() })
}

fn conclude(report: &mut WorkloadReport) {
    let mut comparisons = Vec::new();
    for chart in CHARTS.iter().filter(|chart| chart.axis == Axis::Idle) {
        flatness(report, chart, &mut comparisons);
    }
    for chart in &CHARTS {
        for ours in [AnyringAio, AnyringAioPoll] {
            comparisons.extend(least(report, chart, ours));
        }
    }
    report.comparisons = comparisons;
}

/// The rate beside the most idle descriptors, divided by that beside the fewest: 1 if the curve is flat.
fn flatness(report: &WorkloadReport, chart: &Chart, comparisons: &mut Vec<Comparison>) {
    let rows: Vec<&Row> = report.rows.iter().filter(|row| row.figure.group == chart.group).collect();
    for variant in [None, Some(format!("{MORE_TOKENS} tokens"))] {
        let mut ends = rows.iter().filter(|row| row.figure.variant == variant);
        let (Some(fewest), Some(most)) = (ends.next(), ends.next_back()) else { continue };
        for column in &most.columns {
            let Some(ratio) = fewest.column(column.backend).and_then(|fewest| ratio(&column.runs, &fewest.runs))
            else {
                continue;
            };
            let title = column.backend.title();
            let with = variant.as_ref().map_or(String::new(), |variant| format!(", {variant}"));
            let figure = chart.group.split(',').next().unwrap_or_default();
            let what =
                format!("{} / {}", most.figure.name, fewest.figure.name.split(' ').next().unwrap_or_default());
            comparisons.push(Comparison { what, of: format!("{figure}: {title}{with}"), ratio });
        }
    }
}

/// Finds the least ratio of one of anyring's curves to the curve of the kernel's asynchronous poll. At that point
/// anyring's curve is the least far above the kernel's, or the farthest below it.
fn least(report: &WorkloadReport, chart: &Chart, ours: Backend) -> Option<Comparison> {
    let rows = report.rows.iter().filter(|row| row.figure.group == chart.group);
    let ratios = rows.filter_map(|row| {
        let ratio = ratio(&row.column(ours)?.runs, &row.column(KernelAioPoll)?.runs)?;
        Some((row, ratio))
    });
    let (row, ratio) = ratios.min_by(|(_, one), (_, other)| one.value.total_cmp(&other.value))?;
    let figure = chart.group.split(',').next().unwrap_or_default();
    let of = format!("{figure}, at {}", crate::text::name(row));
    Some(Comparison { what: format!("{} / {}, where it is least", ours.title(), KernelAioPoll.title()), of, ratio })
}

fn ratio(of: &[f64], to: &[f64]) -> Option<Estimate> {
    let pairs: Vec<(f64, f64)> = of.iter().copied().zip(to.iter().copied()).collect();
    (!pairs.is_empty()).then(|| Estimate::ratio(&pairs))
}
