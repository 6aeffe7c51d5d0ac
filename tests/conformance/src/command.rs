//! The command, which runs cases and prints their results.

use crate::case::{self, Case, Context, FLAG_SETS};
use crate::differences::{self, Difference};
use crate::door::Door;
use crate::keeps;
use crate::oracle::{running_kernel, Oracle};
use crate::report::{Format, Printer, Report};
use crate::runner::{self, Job, Runner};
use crate::spread;
use clap::Parser;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Checks io_uring's behaviour, case by case.
#[derive(Parser)]
#[command(version)]
struct Options {
    /// Print the cases' names and end
    #[arg(long)]
    list: bool,
    /// Print each case's claim, its first kernel and its source, and end
    #[arg(long)]
    claims: bool,
    /// Run only the cases whose name contains this (may be repeated: any of them)
    #[arg(long, value_name = "SUBSTRING")]
    filter: Vec<String>,
    /// Take the filters as whole names
    #[arg(long)]
    exact: bool,
    /// The door to io_uring (may be repeated)
    #[arg(long, value_enum, default_value = "libc")]
    door: Vec<Door>,
    /// Run the cases that hold for any setup flags with each set of flags, not only the plain one
    #[arg(long)]
    matrix: bool,
    /// The flag set, by its name in the matrix, for cases that hold for any flags, instead of the plain one
    #[arg(long, value_name = "NAME", conflicts_with = "matrix")]
    flag_set: Option<String>,
    /// Run each case once, through the door and with the flags that its name gives
    #[arg(long, conflicts_with_all = ["matrix", "flag_set"])]
    spread: bool,
    /// Leave out the cases that do not hold under chaos, print their number, and run the others
    #[arg(long)]
    disturbed: bool,
    /// First have a thread of each case's process set its own identity, to the same value
    #[arg(long)]
    identities_differ: bool,
    /// Run each case this many times; all must pass
    #[arg(long, default_value_t = 1)]
    repeat: u32,
    /// Run this many cases at a time
    #[arg(long, value_name = "COUNT", default_value_t = 1)]
    jobs: usize,
    /// Run a failed case this many times more, alone: if it passes once, it is reported as flaky and counts as
    /// skipped
    #[arg(long, value_name = "TIMES", default_value_t = 0)]
    confirm: u32,
    /// Run only the cases that hold for this release of Linux (with --record, by default the running one). Without
    /// either option, cases about later names run, too; of an answer that changed, the running kernel's case runs
    #[arg(long, value_name = "RELEASE")]
    kernel: Option<String>,
    /// Compare each case's answers with this record of the kernel's (may be repeated, for records of later kernels:
    /// cases that they answer otherwise or add)
    #[arg(long, value_name = "FILE")]
    oracle: Vec<PathBuf>,
    /// Write the record of the answers to this file
    #[arg(long, value_name = "FILE", conflicts_with = "oracle")]
    record: Option<PathBuf>,
    /// Add to the existing record, if it is of this kernel
    #[arg(long, requires = "record")]
    add: bool,
    /// Record only the cases that this record of another kernel lacks or answers otherwise; those that do not pass
    /// are printed and left out
    #[arg(long, value_name = "FILE", requires = "record")]
    beside: Option<PathBuf>,
    /// Write the results to this file, one JSON array
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// The form in which to print the results
    #[arg(long, value_enum, default_value = "plain")]
    format: Format,
    /// Short for --format tap
    #[arg(long, conflicts_with = "format")]
    tap: bool,
    /// Print the claims that this kernel keeps, by topic, and those that it breaks
    #[arg(long, conflicts_with_all = ["format", "tap", "expect"])]
    keeps: bool,
    /// Compare with this release for --keeps, instead of the release that the kernel says it is
    #[arg(long, value_name = "RELEASE", requires = "keeps")]
    release: Option<String>,
    /// The known differences: listed cases must fail, all others pass (may be repeated, later files change earlier ones)
    #[arg(long, value_name = "FILE")]
    expect: Vec<PathBuf>,
    /// Print only unexpected skips and failures, and the totals
    #[arg(long)]
    quiet: bool,
}

impl Options {
    fn selects(&self, case: &Case, release: &str) -> bool {
        let name = case.name();
        let is = |text: &String| if self.exact { name == text } else { name.contains(text) };
        let known = (self.kernel.is_none() && self.record.is_none()) || case.is_known_to(release);
        (self.filter.is_empty() || self.filter.iter().any(is)) && known && case.is_answer_of(release)
    }

    /// Returns the context that each selected case is to run with.
    fn jobs_of<'c>(&self, selected: &[&'c Case]) -> Result<Vec<Job<'c>>, String> {
        if self.spread {
            let has_instructions = Door::Raw.missing().is_none();
            let job = |&case: &&'c Case| Some((case, spread::place(case, has_instructions)?));
            return Ok(selected.iter().filter_map(job).collect());
        }
        let plain = match &self.flag_set {
            None => FLAG_SETS[0],
            Some(name) => *FLAG_SETS.iter().find(|set| set.name == *name).ok_or_else(|| {
                let names: Vec<_> = FLAG_SETS.iter().map(|set| set.name).collect();
                format!("there is no flag set {name}, only {}", names.join(", "))
            })?,
        };
        let mut jobs = Vec::new();
        for &door in &self.door {
            for &case in selected.iter().filter(|case| case.door.is_none_or(|only| only == door)) {
                match (case.any_flags, self.matrix) {
                    (true, true) => {
                        jobs.extend(FLAG_SETS.iter().map(|&flag_set| (case, Context { door, flag_set })));
                    }
                    (true, false) => jobs.push((case, Context { door, flag_set: plain })),
                    (false, _) => jobs.push((case, Context { door, flag_set: FLAG_SETS[0] })),
                }
            }
        }
        Ok(jobs)
    }
}

/// Runs the command with the process's arguments.
pub fn main() -> ExitCode {
    match run(&Options::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(message) => {
            eprintln!("anyring-conformance: {message}");
            ExitCode::from(2)
        }
    }
}

/// Prints lines until the reader closes the pipe, as head(1) does.
fn print_until_closed(lines: impl Iterator<Item = String>) -> Result<bool, String> {
    let mut output = io::stdout().lock();
    for line in lines {
        match writeln!(output, "{line}") {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => break,
            written => written.map_err(|error| error.to_string())?,
        }
    }
    Ok(true)
}

/// Runs the requested cases. True if everything was as expected.
fn run(options: &Options) -> Result<bool, String> {
    let cases = case::all();
    let release = options.kernel.clone().unwrap_or_else(running_kernel);
    let _ = case::RELEASE.set(release.clone());
    let selected = cases.iter().copied().filter(|case| options.selects(case, &release));
    let (left_out, selected): (Vec<&Case>, Vec<&Case>) =
        selected.partition(|case| options.disturbed && case.undisturbed);
    if options.list {
        return print_until_closed(selected.iter().map(|case| case.name().to_owned()));
    }
    if options.claims {
        let lines = |case: &&Case| {
            format!("{}: {}\n    since {}, {}", case.name(), case.claim(), case.since(), case.source())
        };
        return print_until_closed(selected.iter().map(lines));
    }
    if !left_out.is_empty() {
        println!("{} cases do not hold under chaos, and are left out", left_out.len());
    }
    if selected.is_empty() {
        return Err("no case has such a name; names are TOPIC::CASE, see --list".to_owned());
    }
    if options.exact {
        let is_there = |text: &&String| selected.iter().any(|case| case.name() == **text);
        if let Some(unknown) = options.filter.iter().find(|text| !is_there(text)) {
            return Err(format!("no case is named {unknown}"));
        }
    }
    let jobs = options.jobs_of(&selected)?;
    for (_, Context { door, .. }) in &jobs {
        if let Some(reason) = door.missing() {
            return Err(format!("the door {door:?} cannot be used: {reason}"));
        }
    }
    let mut differences = Vec::new();
    for path in &options.expect {
        read_differences(path, &mut differences)?;
    }
    let oracle = Oracle::of_release(&options.oracle, &release)?;
    if oracle.is_none() {
        differences::forget_answers(&mut differences);
    }
    let format = match () {
        () if options.tap => Format::Tap,
        () if options.keeps => Format::None,
        () => options.format,
    };
    let mut printer = Printer::new(format, &differences, options.quiet);
    let reports = run_all(options, &jobs, &differences, oracle.as_ref(), &mut printer);
    if let Some(path) = &options.record {
        record(path, &reports, options)?;
    }
    if let Some(path) = &options.json {
        let text = serde_json::to_string_pretty(&reports).map_err(|error| error.to_string())?;
        std::fs::write(path, text).map_err(|error| format!("{}: {error}", path.display()))?;
    }
    if options.keeps {
        let (system, release) = keeps::running_system();
        let (text, all_kept) = keeps::summary(&reports, &system, options.release.as_ref().unwrap_or(&release));
        print!("{text}");
        return Ok(all_kept);
    }
    Ok(printer.summarise(&reports))
}

fn read_differences(path: &Path, known: &mut Vec<Difference>) -> Result<(), String> {
    let in_file = |error: String| format!("{}: {error}", path.display());
    let text = std::fs::read_to_string(path).map_err(|error| in_file(error.to_string()))?;
    differences::parse(&text, known).map_err(in_file)
}

/// Runs the jobs, several at a time, then each unexpected failure again, alone.
fn run_all(
    options: &Options,
    jobs: &[Job],
    differences: &[Difference],
    oracle: Option<&Oracle>,
    printer: &mut Printer,
) -> Vec<Report> {
    let evidence = oracle.is_some() || options.record.is_some();
    // A case that is listed as failing also has other answers.
    let differs =
        |report: &Report| differences.iter().any(|line| line.covers(report) && !line.kind.is_of_answers());
    let judged = |mut report: Report| {
        if let (Some(oracle), false) = (oracle, differs(&report)) {
            oracle.judge(&mut report);
        }
        report
    };
    let (mut reports, mut doubtful) = (Vec::new(), Vec::new());
    let runner = |together| Runner::new(together, evidence, options.identities_differ);
    runner(options.jobs.max(1)).run(jobs, options.repeat, |report| {
        let report = judged(report);
        if options.confirm > 0 && report.failed() && report.explained_by(differences).is_none() {
            doubtful.push(report);
        } else {
            printer.print(&report);
            reports.push(report);
        }
    });
    let alone = runner(1);
    for mut report in doubtful {
        let job = runner::job_of(&report, jobs).expect("it was one of them");
        runner::confirm(&mut report, options.confirm, || {
            let mut again = None;
            alone.run(&[job], 1, |report| again = Some(judged(report)));
            again.expect("each job has a report")
        });
        printer.print(&report);
        reports.push(report);
    }
    reports
}

/// Writes the record of the running kernel's answers, without cases that did not pass.
fn record(path: &Path, reports: &[Report], options: &Options) -> Result<(), String> {
    let mut oracle = Oracle::of(reports);
    if let Some(base) = &options.beside {
        oracle.keep_what_differs(reports, &Oracle::read(base)?);
    } else if let Some(report) = reports.iter().find(|report| report.failed()) {
        return Err(format!("{} did not pass, so there is no record", report.name()));
    }
    if options.add {
        let earlier = Oracle::read(path)?;
        if earlier.kernel != running_kernel() {
            return Err(format!("{} is of Linux {}, this is {}", path.display(), earlier.kernel, running_kernel()));
        }
        let is_case = |name: &str| case::all().iter().any(|case| case.name() == name);
        oracle.extend(earlier, is_case);
    }
    oracle.write(path)
}
