//! `anyring chaos`: runs a program on an engine that disturbs it, with one seed or many, and reports the runs that
//! fail.

mod crash;
mod jobs;
mod one;
mod report;
mod shrink;

use crate::cli::{ChaosOptions, Program};
use crate::failure::{Failure, OWN_FAILURE, USAGE};
use crate::places::Places;
use crate::{exec, trace};
use anyring_engine::chaos::rules::{Rule, Rules};
use jobs::Jobs;
use one::Ending;
use report::Report;
use std::path::Path;

/// The exit status if a run failed.
const FAILED: i32 = 1;

/// Runs the program with each seed.
pub fn run(options: &ChaosOptions) -> Result<i32, Failure> {
    exec::check_found(&options.program)?;
    if !options.crash.is_empty() {
        return crash::run(options);
    }
    let rules = rules(options.rules.as_deref())?;
    let many = options.runs.is_some() || options.shrink;
    let first = match options.seed {
        Some(seed) => seed,
        None if many => 1,
        None => random_seed(),
    };
    // Created first: if this fails, the program need not run.
    let junit = options.junit.as_deref().map(trace::create).transpose()?;
    let jobs = Jobs::new(options, &rules, many)?;
    let mut report = Report::new(options, many, first);
    let only = || (!options.only.is_empty()).then(|| options.only.clone());
    let tasks = report.seeds().map(|seed| (seed, only()));
    let until_failure = options.fail_fast || options.shrink;
    let made = jobs.each(tasks, until_failure, |seed, run| report.take(seed, run));
    if let Some(file) = junit {
        report.write_junit(file)?; // also after an interrupt: the runs before it count
    }
    if made.as_ref().is_err_and(|failure| failure.status > 128) {
        report.print_interrupted();
    }
    made?;
    if let Some((seed, run)) = report.take_failing() {
        let fewest = shrink::shrink(&jobs, seed, &run)?;
        report.print_fewest((seed, &run), &fewest);
        return Ok(FAILED);
    }
    report.end(Rules::parse(&rules).unwrap_or(Rules::none()))
}

/// The result of a run that looks for misuse only (`anyring check --lint`).
pub struct Linted {
    /// The program's exit status.
    pub status: i32,
    /// Rings that it made.
    pub rings: usize,
    /// The lines of each finding.
    pub findings: Vec<Vec<String>>,
}

/// Runs the program once, with this process's standard streams, and looks for misuse of the interface.
pub fn lint(program: &Program) -> Result<Linted, Failure> {
    exec::check_found(program)?;
    let options = ChaosOptions {
        seed: None,
        rules: None,
        runs: None,
        fail_fast: false,
        shrink: false,
        only: Vec::new(),
        timeout: None,
        fail_output: None,
        jobs: 1,
        log: None,
        junit: None,
        crash: Vec::new(),
        recover: None,
        program: Program { words: program.words.clone() },
    };
    let run = Jobs::new(&options, Rule::Misuse.name(), false)?.one((1, None))?;
    let places = Places::new();
    let status = match run.ending {
        Ending::Status(status) => status,
        Ending::Signal(signal) => 128 + signal,
        Ending::Late => OWN_FAILURE, // it has no limit
    };
    let findings = run.findings.iter().map(|it| it.lines(&places)).collect();
    Ok(Linted { status, rings: run.rings, findings })
}

/// The names in `--rules`, or in the file that it names, separated by commas and checked.
fn rules(given: Option<&str>) -> Result<String, Failure> {
    let given = given.unwrap_or("all");
    let list = match Path::new(given).is_file() {
        true => names_in(Path::new(given))?,
        false => given.to_owned(),
    };
    match Rules::parse(&list) {
        Ok(rules) if !rules.is_empty() => Ok(list),
        Ok(_) => Err(Failure { status: USAGE, message: format!("--rules {given}: no rule is named") }),
        Err(name) => {
            let message =
                format!("--rules: `{name}` is no rule and no file (`anyring chaos --help` lists the rules)");
            Err(Failure { status: USAGE, message })
        }
    }
}

/// The names in a file: several on a line, with comments after `#`.
fn names_in(file: &Path) -> Result<String, Failure> {
    let text = std::fs::read_to_string(file)
        .map_err(|error| Failure::own(format!("--rules {}: {}", file.display(), crate::errno::of(&error))))?;
    let lines = text.lines().map(|line| line.split('#').next().unwrap_or_default());
    let words = lines.flat_map(|line| line.split([',', ' ', '\t']).filter(|word| !word.is_empty()));
    Ok(words.collect::<Vec<_>>().join(","))
}

/// A seed that is short enough to type.
fn random_seed() -> u64 {
    let mut bytes = [0u8; 4];
    let flags = rustix::rand::GetRandomFlags::empty();
    match rustix::rand::getrandom(&mut bytes, flags) {
        Ok(_) => u32::from_ne_bytes(bytes).into(),
        Err(_) => std::process::id().into(),
    }
}

impl Ending {
    /// Describes an ending that makes a run fail; `None` for exit status 0.
    fn describe(&self) -> Option<String> {
        match self {
            Ending::Status(0) => None,
            Ending::Status(status) => Some(format!("exit status {status}")),
            Ending::Signal(signal) => Some(format!("killed by {}", crate::errno::signal_name(*signal))),
            Ending::Late => Some("it took too long".to_owned()),
        }
    }
}
