//! `anyring lab`: runs a workload of the lab and shows the figures.

use crate::cli::{LabOptions, Workload};
use crate::failure::Failure;
use crate::{errno, library};
use anyring_lab::load::{self, LoadReport};
use anyring_lab::machine::Machine;
use anyring_lab::nop::{self, KernelColumn, NopReport};
use anyring_lab::statistics::{Estimate, Summary};
use anyring_lab::worker::Launcher;
use serde::Serialize;
use std::io::{IsTerminal, Write};

/// The JSON of `anyring lab WORKLOAD --json`.
#[derive(Serialize)]
struct Report<'a, T> {
    workload: &'a str,
    machine: Machine,
    #[serde(flatten)]
    figures: T,
}

/// Measures and prints.
pub fn run(options: &LabOptions) -> Result<i32, Failure> {
    let library = library::find().map_err(Failure::own)?;
    let launcher = Launcher::new(&library).map_err(Failure::own)?;
    match &options.workload {
        Workload::Nop { batch, runs, json } => {
            let runs = usize::from(*runs);
            let mut progress = Progress::new(2 * runs * batch.len());
            let figures = nop::measure(&launcher, runs, batch, || progress.step());
            progress.clear();
            show("nop", figures.map_err(Failure::own)?, *json, nop_text)
        }
        Workload::Load { runs, json } => {
            let runs = usize::from(*runs);
            let mut progress = Progress::new(runs);
            let figures = load::measure(&launcher, runs, || progress.step());
            progress.clear();
            show("load", figures.map_err(Failure::own)?, *json, load_text)
        }
    }
}

fn show<T: Serialize>(workload: &str, figures: T, json: bool, text: fn(&T) -> String) -> Result<i32, Failure> {
    let machine = Machine::here();
    if json {
        let report = Report { workload, machine, figures };
        let text = serde_json::to_string_pretty(&report).map_err(|error| Failure::own(error.to_string()))?;
        println!("{text}");
    } else {
        print!("{}\n{machine}\n", text(&figures));
    }
    Ok(0)
}

fn nop_text(report: &NopReport) -> String {
    let mut text =
        "One NOP through liburing, submitted and reaped, in ns: median (fastest..slowest run)\n\n".to_owned();
    let mut row = |batch: &str, anyring: &str, kernel: &str, ratio: &str| {
        text.push_str(&format!("{batch:>5}  {anyring:24}{kernel:28}{ratio}\n"));
    };
    row("batch", "anyring", "kernel io_uring", "anyring / kernel");
    for entry in &report.batches {
        let kernel = match &entry.kernel {
            KernelColumn::Measured(summary) => ns(summary),
            KernelColumn::Refused(refusal) => format!("none here: {}", errno::name(refusal.errno)),
        };
        let ratio = entry.ratio.as_ref().map_or("-".to_owned(), |ratio| interval(ratio, 3));
        row(&entry.batch.to_string(), &ns(&entry.anyring), &kernel, ratio.as_str());
    }
    let refused = report.batches.iter().find_map(|entry| match &entry.kernel {
        KernelColumn::Refused(refusal) => Some(refusal),
        KernelColumn::Measured(_) => None,
    });
    if let Some(refusal) = refused {
        let why = errno::describe(refusal.errno);
        text.push_str(&format!("\nThe kernel refuses io_uring here: {} answered \"{why}\".\n", refusal.call));
    }
    let operations = report.batches.first().map_or(0, |entry| entry.operations);
    text.push_str(&format!(
        "\n{} runs a side, in turns, each a process with {operations} NOPs, every completion checked. In brackets\n\
         behind a ratio of medians: its 95 % bootstrap interval.\n",
        report.runs
    ));
    text
}

fn load_text(report: &LoadReport) -> String {
    let (cost, syscall) = (&report.cost_ns, &report.syscall);
    let us = |summary: &Summary| {
        let [median, min, max] = [summary.median_ns, summary.min_ns, summary.max_ns].map(|ns| ns / 1000.0);
        format!("{median:.0} ({min:.0}..{max:.0})")
    };
    let cost_us = Estimate { value: cost.value / 1000.0, low: cost.low / 1000.0, high: cost.high / 1000.0 };
    format!(
        "loading costs {} us (limit {:.0})\n\n\
         {}, from its start to its end, in us: median (fastest..slowest)\n  \
         alone                    {}\n  with libanyring.so       {}\n  difference of medians    {}\n  {} starts each, in turns\n\n\
         syscall(SYS_getpid), in ns: median (fastest..slowest run)\n  \
         libc                     {}\n  libanyring.so            {}\n  difference of medians    {}\n  \
         {} runs each of {} calls, in turns\n\n\
         In brackets behind a difference: its 95 % bootstrap interval.\n",
        format_args!("{:.0}", cost_us.value),
        report.limit_ns / 1000.0,
        report.program,
        us(&report.plain),
        us(&report.preloaded),
        interval(&cost_us, 0),
        report.runs,
        ns(&syscall.libc),
        ns(&syscall.anyring),
        interval(&syscall.cost_ns, 1),
        syscall.runs,
        syscall.calls,
    )
}

fn ns(summary: &Summary) -> String {
    format!("{:.1} ({:.1}..{:.1})", summary.median_ns, summary.min_ns, summary.max_ns)
}

fn interval(estimate: &Estimate, digits: usize) -> String {
    format!("{:.digits$} ({:.digits$}..{:.digits$})", estimate.value, estimate.low, estimate.high)
}

/// A counter on standard error, if that is a terminal.
struct Progress {
    done: usize,
    all: usize,
    shown: bool,
}

impl Progress {
    fn new(all: usize) -> Self {
        Progress { done: 0, all, shown: std::io::stderr().is_terminal() }
    }

    fn step(&mut self) {
        self.done += 1;
        self.write(&format!("\r{} of {}", self.done, self.all));
    }

    fn clear(&self) {
        self.write("\r\x1b[K");
    }

    fn write(&self, text: &str) {
        if self.shown {
            // A terminal that went away is no reason to stop measuring.
            let _ = write!(std::io::stderr(), "{text}");
        }
    }
}
