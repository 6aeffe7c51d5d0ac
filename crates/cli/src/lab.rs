//! `anyring lab`: measures, or reads an earlier report, prints tables and writes the report.

use crate::cli::{LabDoor, LabOptions};
use crate::failure::{Failure, USAGE};
use crate::{library, output};
use anyring_lab::backend::Backend;
use anyring_lab::machine::Machine;
use anyring_lab::measure::{self, Measured, Options};
use anyring_lab::message::Door;
use anyring_lab::report::{Report, SCHEMA};
use anyring_lab::scratch::Scratch;
use anyring_lab::worker::Launcher;
use anyring_lab::workloads::{self, Setting, Workload};
use anyring_lab::{chart, html, text};
use indicatif::{ProgressBar, ProgressStyle};
use std::path::Path;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Measures and prints the report.
pub fn run(options: &LabOptions) -> Result<i32, Failure> {
    if let Some(file) = &options.from {
        return show_again(file, options.out.as_deref());
    }
    let workloads = selected(options)?;
    let backends = options.backends.as_ref().map(|names| names.iter().map(|name| backend(name)).collect());
    let backends: Option<Vec<Backend>> = backends.transpose()?;
    let library = library::find_loadable().map_err(Failure::own)?;
    let launcher = Launcher::new(&library).map_err(Failure::own)?;
    if let Some(folder) = &options.out {
        std::fs::create_dir_all(folder).map_err(|error| of_file(folder, error))?;
    }
    catch_interruptions();
    let runs = options.runs.map(usize::from).or(options.quick.then_some(1));
    let mut measuring = Options { backends, runs, door: door(options.door), deadline: None };
    let end = options.minutes.map(|minutes| Instant::now() + Duration::from_secs(60 * u64::from(minutes)));
    let mut report = Report {
        schema: SCHEMA,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        unix_time: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs()),
        quick: options.quick,
        door: measuring.door,
        machine: Machine::here(),
        workloads: Vec::new(),
        skipped: Vec::new(),
    };
    for (index, workload) in workloads.iter().enumerate() {
        let mut setting = Setting { quick: options.quick, scratch: Scratch::new().map_err(Failure::own)? };
        let plan = (workload.plan)(&mut setting).map_err(Failure::own)?;
        // The part of its share that a workload does not need goes to those that follow.
        let left: u32 = workloads[index..].iter().map(|workload| workload.share).sum();
        let share = |end: Instant| end.saturating_duration_since(Instant::now()) * workload.share / left;
        measuring.deadline = end.map(|end| Instant::now() + share(end));
        let bar = progress(workload.name, measuring.steps(&plan));
        let measured = measure::run(&launcher, workload, &plan, &measuring, || {
            bar.inc(1);
            check_interrupted()
        });
        bar.finish_and_clear();
        match measured.map_err(failed)? {
            Measured::Report(measured) => report.workloads.push(measured),
            Measured::Nothing(why) => report.skipped.push(why),
        }
    }
    if report.workloads.is_empty() {
        return Err(Failure::own(report.skipped.join("; ")));
    }
    // First, so that an hour of measuring is not lost when the reader of the tables has gone.
    if let Some(folder) = &options.out {
        write(folder, "report.json", json(&report)?.as_bytes())?;
        draw(&report, folder)?;
    }
    let text = match options.json {
        true => json(&report)?,
        false => text::report(&report),
    };
    output::print(&text)?;
    Ok(0)
}

/// Shows the report of an earlier run.
fn show_again(file: &Path, out: Option<&Path>) -> Result<i32, Failure> {
    let json = std::fs::read(file).map_err(|error| of_file(file, error))?;
    let report = Report::from_json(&json).map_err(|why| of_file(file, why))?;
    if let Some(folder) = out {
        std::fs::create_dir_all(folder).map_err(|error| of_file(folder, error))?;
        draw(&report, folder)?;
    }
    output::print(&text::report(&report))?;
    Ok(0)
}

/// The signal that arrived; 0 for none.
static INTERRUPTED: AtomicI32 = AtomicI32::new(0);

extern "C" fn record_signal(signal: libc::c_int) {
    INTERRUPTED.store(signal, Ordering::Relaxed);
}

/// Makes SIGINT and SIGTERM only set a flag, so that files and devices are removed before the end. Measured processes
/// start with the default action.
pub fn catch_interruptions() {
    let handler = record_signal as extern "C" fn(libc::c_int) as libc::sighandler_t;
    for signal in [libc::SIGINT, libc::SIGTERM] {
        // SAFETY: the handler stores one word.
        unsafe { libc::signal(signal, handler) };
    }
}

fn interrupted() -> Option<i32> {
    Some(INTERRUPTED.load(Ordering::Relaxed)).filter(|signal| *signal != 0)
}

/// Fails once a signal has arrived.
pub fn check_interrupted() -> Result<(), String> {
    interrupted().map_or(Ok(()), |signal| Err(format!("interrupted by {signal}")))
}

/// The reason why measuring ended.
pub fn failed(message: String) -> Failure {
    match interrupted() {
        // A process that was being measured has failed by the same signal.
        Some(signal) => Failure { status: 128 + signal, message: "interrupted".to_owned() },
        None => Failure::own(message),
    }
}

fn usage(what: &str, name: &str, why: &str) -> Failure {
    Failure { status: USAGE, message: format!("invalid {what} '{name}': {why}") }
}

fn selected(options: &LabOptions) -> Result<Vec<Workload>, Failure> {
    if options.workloads.is_empty() {
        return Ok(workloads::ALL.to_vec());
    }
    let one = |name: &String| workloads::find(name).map_err(|why| usage("workload", name, &why));
    options.workloads.iter().map(one).collect()
}

fn backend(name: &str) -> Result<Backend, Failure> {
    name.parse().map_err(|why: String| usage("backend", name, &why))
}

fn door(door: LabDoor) -> Door {
    match door {
        LabDoor::Liburing => Door::Liburing,
        LabDoor::Libc => Door::Libc,
        LabDoor::Raw => Door::Raw,
    }
}

/// A progress bar on standard error, if that is a terminal.
pub fn progress(name: &str, steps: u64) -> ProgressBar {
    let bar = ProgressBar::new(steps);
    // The template is a valid constant.
    if let Ok(style) = ProgressStyle::with_template("{msg:8} {wide_bar} {pos}/{len}  {eta} left") {
        bar.set_style(style);
    }
    bar.with_message(name.to_owned())
}

/// The report as JSON, with a newline at the end.
pub fn json(report: &impl serde::Serialize) -> Result<String, Failure> {
    let text = serde_json::to_string_pretty(report).map_err(|error| Failure::own(error.to_string()))?;
    Ok(text + "\n")
}

fn of_file(path: &Path, error: impl std::fmt::Display) -> Failure {
    Failure::own(format!("{}: {error}", path.display()))
}

fn write(folder: &Path, name: &str, bytes: &[u8]) -> Result<(), Failure> {
    let path = folder.join(name);
    std::fs::write(&path, bytes).map_err(|error| of_file(&path, error))
}

/// Writes the page and the charts.
fn draw(report: &Report, folder: &Path) -> Result<(), Failure> {
    write(folder, "report.html", html::page(report).map_err(Failure::own)?.as_bytes())?;
    for chart in report.workloads.iter().flat_map(chart::of) {
        let name = chart.file_name();
        write(folder, &format!("{name}.svg"), chart.svg_file().map_err(Failure::own)?.as_bytes())?;
        write(folder, &format!("{name}.png"), &chart.png_file().map_err(Failure::own)?)?;
    }
    Ok(())
}
