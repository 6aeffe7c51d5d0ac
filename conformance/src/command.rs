//! The command: runs cases and says what came of them.

use crate::case::{Case, Context, FLAG_SETS};
use crate::door::Door;
use crate::evidence::Evidence;
use crate::runner::{Difference, Outcome, Report};
use crate::{cases, evidence, record, runner};
use clap::Parser;
use std::path::PathBuf;
use std::process::ExitCode;

/// Checks io_uring's behaviour, case by case.
#[derive(Parser)]
#[command(version)]
struct Options {
    /// Print the cases' names and end
    #[arg(long)]
    list: bool,
    /// Run only the cases whose name contains this (may be repeated: any of them)
    #[arg(long, value_name = "SUBSTRING")]
    filter: Vec<String>,
    /// Take the filters as whole names
    #[arg(long)]
    exact: bool,
    /// How to reach io_uring (may be repeated)
    #[arg(long, value_enum, default_value = "libc")]
    door: Vec<Door>,
    /// Run the cases that hold for any setup flags with each set of flags, not only the plain one
    #[arg(long)]
    matrix: bool,
    /// Run each case so many times; all must pass
    #[arg(long, default_value_t = 1)]
    repeat: u32,
    /// Run a case that failed unexpectedly so many times more: if all pass, it is said to be flaky and counts as skipped
    #[arg(long, value_name = "TIMES", default_value_t = 0)]
    confirm: u32,
    /// Write the results to this file, one JSON array
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write to this file what each case used of the interface, and what of that succeeded: what CONFORMANCE.md is made of
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
    /// The known differences: listed cases must fail, all others pass (may be repeated, later files change earlier ones)
    #[arg(long, value_name = "FILE")]
    expect: Vec<PathBuf>,
    /// Print only what was skipped or failed unexpectedly, and the totals
    #[arg(long)]
    quiet: bool,
}

/// So many flaky cases in one run are a failure: one in many thousands is a busy machine's, several are ours.
const TOO_MANY_FLAKY: usize = 4;

impl Options {
    fn selects(&self, name: &str) -> bool {
        self.filter.iter().any(|text| if self.exact { name == text } else { name.contains(text) })
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

/// Runs what was asked for: whether everything was as expected.
fn run(options: &Options) -> Result<bool, String> {
    let selected: Vec<&Case> = cases::ALL
        .iter()
        .flat_map(|topic| topic.iter())
        .filter(|case| options.filter.is_empty() || options.selects(case.short_name()))
        .collect();
    if options.list {
        selected.iter().for_each(|case| println!("{}", case.short_name()));
        return Ok(true);
    }
    if selected.is_empty() {
        return Err("no case has such a name".to_owned());
    }
    if options.exact {
        let is_there = |text: &&String| selected.iter().any(|case| case.short_name() == **text);
        if let Some(unknown) = options.filter.iter().find(|text| !is_there(text)) {
            return Err(format!("no case is named {unknown}"));
        }
    }
    let mut differences = Vec::new();
    for path in &options.expect {
        read_differences(path, &mut differences)?;
    }
    for door in &options.door {
        if let Some(reason) = door.missing() {
            return Err(format!("the door {door:?} cannot be used: {reason}"));
        }
    }
    if options.record.is_some() {
        evidence::begin();
    }
    let reports = run_all(options, &selected, &differences);
    if let Some(path) = &options.record {
        record::write(path, &reports)?;
    }
    if let Some(path) = &options.json {
        let text = serde_json::to_string_pretty(&reports).map_err(|error| error.to_string())?;
        std::fs::write(path, text).map_err(|error| format!("{}: {error}", path.display()))?;
    }
    Ok(summarise(&reports, &differences))
}

fn read_differences(path: &std::path::Path, known: &mut Vec<Difference>) -> Result<(), String> {
    let in_file = |error: String| format!("{}: {error}", path.display());
    let text = std::fs::read_to_string(path).map_err(|error| in_file(error.to_string()))?;
    runner::parse_differences(&text, known).map_err(in_file)
}

fn run_all(options: &Options, selected: &[&Case], differences: &[Difference]) -> Vec<Report> {
    let directory = std::env::temp_dir().join(format!("anyring-conformance-{}", std::process::id()));
    let mut reports = Vec::new();
    for &door in &options.door {
        for case in selected.iter().filter(|case| case.door.is_none_or(|only| only == door)) {
            let sets = if options.matrix && case.any_flags { FLAG_SETS } else { &FLAG_SETS[..1] };
            for &flag_set in sets {
                let context = Context { door, flag_set };
                let mut report = run_case(case, context, options.repeat, &directory);
                if options.confirm > 0 && !differences.iter().any(|difference| difference.covers(&report)) {
                    confirm(&mut report, || run_case(case, context, options.confirm, &directory));
                }
                print_report(&report, differences, options.quiet);
                reports.push(report);
            }
        }
    }
    if let Err(error) = std::fs::remove_dir(&directory) {
        eprintln!("anyring-conformance: {}: {error}", directory.display());
    }
    reports
}

/// Runs a case as often as asked, until it does not pass.
fn run_case(case: &Case, context: Context, repeat: u32, directory: &std::path::Path) -> Report {
    let mut report = Report {
        case: case.short_name(),
        flag_set: case.any_flags.then_some(context.flag_set.name),
        door: format!("{:?}", context.door).to_lowercase(),
        outcome: Outcome::Passed,
        elapsed_ms: 0,
        evidence: Evidence::default(),
    };
    for _ in 0..repeat {
        let (outcome, elapsed) = runner::run(case, context, &directory.join("case"));
        report.elapsed_ms += elapsed.as_millis() as u64;
        report.outcome = outcome;
        report.evidence = evidence::take();
        if report.outcome != Outcome::Passed {
            break;
        }
    }
    report
}

/// Whether what failed fails again. A case that sets threads against a clock can fail once in many thousand runs because
/// the machine was elsewhere, on the kernel, too.
fn confirm(report: &mut Report, again: impl FnOnce() -> Report) {
    let Outcome::Failed(message) = &report.outcome else { return };
    let second = again();
    if second.outcome == Outcome::Passed {
        *report = Report { outcome: Outcome::Flaky(message.clone()), ..second };
    }
}

fn print_report(report: &Report, differences: &[Difference], quiet: bool) {
    let known = differences.iter().find(|difference| difference.covers(report));
    match (&report.outcome, known) {
        (Outcome::Passed, _) if quiet => {}
        (Outcome::Failed(_), Some(_)) if quiet => {}
        (Outcome::Passed, _) => println!("pass   {} ({} ms)", report.name(), report.elapsed_ms),
        (Outcome::Skipped(reason), _) => println!("skip   {}: {reason}", report.name()),
        (Outcome::Flaky(message), _) => {
            println!("FLAKY  {}: failed once, then never again\n         {}", report.name(), indented(message));
        }
        (Outcome::Failed(_), Some(known)) => println!("known  {}: {}", report.name(), known.reason),
        (Outcome::Failed(message), None) => {
            println!("FAIL   {}\n         {}", report.name(), indented(message));
        }
    }
}

fn indented(message: &str) -> String {
    message.replace('\n', "\n         ")
}

/// Prints what was not expected and the totals: whether everything was as expected.
fn summarise(reports: &[Report], differences: &[Difference]) -> bool {
    let failed = |report: &Report| matches!(report.outcome, Outcome::Failed(_));
    let known = |report: &Report| differences.iter().any(|difference| difference.covers(report));
    let mut errors = reports.iter().filter(|report| failed(report) && !known(report)).count();
    let known_count = reports.iter().filter(|report| failed(report) && known(report)).count();
    for difference in differences {
        let covered: Vec<_> = reports.iter().filter(|report| difference.covers(report)).collect();
        let stale = !difference.may_pass
            && covered.iter().any(|report| report.outcome == Outcome::Passed)
            && !covered.iter().any(|report| failed(report));
        if stale {
            errors += 1;
            println!("STALE  {} is listed as different, but it passes", difference.pattern());
        }
    }
    if known_count > 0 {
        println!("{known_count} known differences");
    }
    let passed = reports.iter().filter(|report| report.outcome == Outcome::Passed).count();
    let skipped = reports.iter().filter(|report| matches!(report.outcome, Outcome::Skipped(_))).count();
    let flaky = reports.iter().filter(|report| matches!(report.outcome, Outcome::Flaky(_))).count();
    if flaky > 0 {
        println!("{flaky} flaky, counted as skipped");
    }
    if flaky >= TOO_MANY_FLAKY {
        errors += 1;
        println!("FAIL   {flaky} flaky cases are too many for chance");
    }
    let skipped = skipped + flaky;
    println!("{passed} passed, {errors} failed, {skipped} skipped");
    errors == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_whole() {
        let mut names: Vec<_> = cases::ALL.iter().flat_map(|topic| topic.iter()).map(Case::short_name).collect();
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count);
        assert!(names.iter().all(|name| name.matches("::").count() == 1));
    }

    #[test]
    fn only_what_passes_again_each_time_is_flaky() {
        let report = |outcome| Report {
            case: "topic::claim",
            flag_set: None,
            door: "libc".to_owned(),
            outcome,
            elapsed_ms: 1,
            evidence: Evidence::default(),
        };
        let failed = || Outcome::Failed("first".to_owned());
        let confirmed = |first, second| {
            let mut it = report(first);
            confirm(&mut it, || report(second));
            it.outcome
        };
        assert_eq!(confirmed(failed(), Outcome::Passed), Outcome::Flaky("first".to_owned()));
        assert_eq!(confirmed(failed(), Outcome::Failed("again".to_owned())), failed());
        assert_eq!(confirmed(failed(), Outcome::Skipped("no tmpfs".to_owned())), failed());
        assert_eq!(confirmed(Outcome::Passed, failed()), Outcome::Passed);
    }

    #[test]
    fn the_first_flag_set_is_plain() {
        assert_eq!((FLAG_SETS[0].name, FLAG_SETS[0].flags), ("plain", 0));
    }
}
