//! `anyring chaos`: runs a program on an engine that disturbs it, with one seed or many, and reports the runs that
//! fail.

mod crash;
mod one;
mod shrink;

use crate::cli::{ChaosOptions, Program};
use crate::failure::{Failure, OWN_FAILURE, USAGE};
use crate::junit::{Outcome, Suite};
use crate::{exec, lab, output, trace};
use anyring_engine::chaos::rules::{Rule, Rules};
use one::{Ending, Run, Runner};
use std::io::Write;
use std::path::Path;

/// The exit status if a run failed.
const FAILED: i32 = 1;

/// The reason why nothing is proven.
const NO_RING: &str = "the program made no ring that anyring served";

/// A run in the test report.
struct Case {
    seed: u64,
    /// The failure, if it failed.
    failure: Option<String>,
    /// The findings, and the command that repeats the run; a line each.
    details: String,
}

impl Case {
    fn of(runner: &Runner, seed: u64, failure: Option<&str>, run: &Run) -> Case {
        let again = again(runner.options, seed, &runner.options.only);
        let lines: Vec<_> = run.findings.iter().flat_map(|it| it.lines(&runner.places)).chain([again]).collect();
        let failure = failure.map(|how| format!("{how}; {}", count(run)));
        Case { seed, failure, details: lines.join("\n") }
    }
}

/// The runs as a test report. If no run made a ring, runs that did not fail prove nothing.
fn junit_of(cases: &[Case], made_rings: bool, rules: Option<&str>) -> String {
    let mut suite = Suite::new("anyring chaos");
    for Case { seed, failure, details } in cases {
        let name = format!("seed {seed}");
        match failure {
            Some(how) => suite.case(&name, Outcome::Failed(how.clone()), details),
            None if !made_rings => suite.case(&name, Outcome::Error(NO_RING.to_owned()), ""),
            None => suite.case(&name, Outcome::Passed, ""),
        }
    }
    suite.report(&[("rules", rules.unwrap_or("all"))])
}

/// The whole shell command that repeats a run.
fn again(options: &ChaosOptions, seed: u64, only: &[String]) -> String {
    let mut words = vec!["anyring".to_owned(), "chaos".to_owned(), "--seed".to_owned(), seed.to_string()];
    let mut flag =
        |name: &str, value: Option<String>| words.extend(value.into_iter().flat_map(|it| [name.to_owned(), it]));
    options.crash.iter().for_each(|folder| flag("--crash", Some(folder.display().to_string())));
    flag("--recover", options.recover.clone());
    flag("--rules", options.rules.clone());
    flag("--only", (!only.is_empty()).then(|| only.join(",")));
    flag("--timeout", options.timeout.as_ref().map(|limit| limit.text.clone()));
    flag("--fail-output", options.fail_output.clone());
    words.push("--".to_owned());
    words.extend(options.program.words.iter().map(|word| word.to_string_lossy().into_owned()));
    format!("again: {}", words.iter().map(|word| quoted(word)).collect::<Vec<_>>().join(" "))
}

/// Quotes a word for a shell.
fn quoted(word: &str) -> String {
    let is_plain = |it: char| it.is_ascii_alphanumeric() || "-_./,:=+@%".contains(it);
    match !word.is_empty() && word.chars().all(is_plain) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', "'\\''")),
    }
}

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
    let junit = options.junit.as_deref().map(|file| Ok((file, trace::create(file)?))).transpose()?;
    let runner = Runner::new(options, rules, many)?;
    let seeds = first..first.saturating_add(options.runs.unwrap_or(1).into());
    let (mut failures, mut cases) = (Failures::default(), Vec::new());
    let bar = many.then(|| lab::progress("chaos", seeds.end - seeds.start));
    // Printed beside the progress bar.
    let aside = |tell: &dyn Fn()| bar.as_ref().map_or_else(tell, |bar| bar.suspend(tell));
    let say = |line: &str| aside(&|| say(line));
    let (mut injections, mut rings, mut last) = (0, 0, first);
    let mut unmet = options.only.clone();
    for seed in seeds.clone() {
        let run = match runner.run(seed, (!options.only.is_empty()).then_some(&options.only[..])) {
            Ok(run) => run,
            Err(failure) => {
                // What is known so far is written: the runs before an interrupt count.
                if let Some((name, file)) = junit {
                    write_junit(options, name, file, &cases, rings != 0)?;
                }
                return Err(failure);
            }
        };
        (injections, last) = (injections + run.injections.len(), seed);
        unmet.retain(|name| !run.injections.iter().any(|injection| injection.is(name)));
        rings += run.rings;
        let failure = runner.failure(&run);
        bar.iter().for_each(|bar| bar.inc(1));
        if junit.is_some() {
            cases.push(Case::of(&runner, seed, failure.as_deref(), &run));
        }
        let Some(how) = failure else {
            if !many && run.rings != 0 {
                say(&format!("seed {seed}: the program did not fail; {}", count(&run)));
            }
            continue;
        };
        if failures.is_empty() {
            aside(&|| runner.show_output());
        }
        if options.shrink {
            // Before shrinking: the program may fail without any injection.
            say(&format!("seed {seed} fails: {how}; {}", count(&run)));
            aside(&|| print_findings(&runner, &run));
            bar.iter().for_each(|bar| bar.finish_and_clear());
            let fewest = shrink::shrink(&runner, seed, &run)?;
            print_fewest(&runner, seed, &fewest);
            return Ok(FAILED);
        }
        if failures.is_new(&how) {
            say(&format!("seed {seed} fails: {how}; {}", count(&run)));
        }
        if failures.is_empty() {
            aside(&|| print_findings(&runner, &run));
        }
        failures.add(how, seed);
        if options.fail_fast {
            break;
        }
    }
    bar.iter().for_each(|bar| bar.finish_and_clear());
    if let Some((name, file)) = junit {
        write_junit(options, name, file, &cases, rings != 0)?;
    }
    if rings == 0 && failures.is_empty() {
        return Err(Failure { status: OWN_FAILURE, message: format!("{NO_RING}, so that nothing is proven") });
    }
    if !unmet.is_empty() && failures.is_empty() {
        let message = format!(
            "--only {}: the program never reached it with {}, so that nothing is proven",
            unmet.join(","),
            if seeds.end - seeds.start == 1 { "this seed and these rules" } else { "these seeds and rules" }
        );
        return Err(Failure { status: OWN_FAILURE, message });
    }
    if many {
        let of = last - first + 1;
        failures.lines().iter().for_each(|line| say(line));
        say(&format!("{} of {of} seeds fail ({first} to {last}); {injections} injections", failures.len()));
        let is_thorough = |rules: Rules| rules.has(Rule::Lifetimes) && rules.has(Rule::Misuse);
        if failures.is_empty() && options.only.is_empty() && !Rules::parse(&runner.rules).is_ok_and(is_thorough) {
            say("not looked for: memory and descriptors that requests in flight lose (--rules thorough does)");
        }
    }
    Ok(if failures.is_empty() { 0 } else { FAILED })
}

fn write_junit(
    options: &ChaosOptions,
    name: &Path,
    mut file: std::fs::File,
    cases: &[Case],
    made_rings: bool,
) -> Result<(), Failure> {
    let text = junit_of(cases, made_rings, options.rules.as_deref());
    let written = file.write_all(text.as_bytes());
    written.map_err(|error| output::unwritten(&name.display().to_string(), &error))
}

/// The kinds of failure, each with its seeds.
#[derive(Default)]
struct Failures(Vec<(String, Vec<u64>)>);

impl Failures {
    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn len(&self) -> usize {
        self.0.iter().map(|(_, seeds)| seeds.len()).sum()
    }

    fn is_new(&self, how: &str) -> bool {
        self.0.iter().all(|(known, _)| known != how)
    }

    fn add(&mut self, how: String, seed: u64) {
        match self.0.iter_mut().find(|(known, _)| *known == how) {
            Some((_, seeds)) => seeds.push(seed),
            None => self.0.push((how, vec![seed])),
        }
    }

    /// A line for each kind of failure that several seeds have: only its first seed has been reported.
    fn lines(&self) -> Vec<String> {
        let several = self.0.iter().filter(|(_, seeds)| seeds.len() > 1);
        several.map(|(how, seeds)| format!("{how}: {} seeds: {}", seeds.len(), ranges(seeds))).collect()
    }
}

/// Ascending numbers, with consecutive ones as a range: `1, 3-5`.
fn ranges(numbers: &[u64]) -> String {
    let groups = numbers.chunk_by(|one, next| one + 1 == *next);
    let range = |group: &[u64]| match group {
        [first, .., last] => format!("{first}-{last}"),
        [only] => only.to_string(),
        [] => String::new(),
    };
    groups.map(range).collect::<Vec<_>>().join(", ")
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
        log: None,
        junit: None,
        crash: Vec::new(),
        recover: None,
        program: Program { words: program.words.clone() },
    };
    let runner = Runner::new(&options, Rule::Misuse.name().to_owned(), false)?;
    let run = runner.run(1, None)?;
    let status = match run.ending {
        Ending::Status(status) => status,
        Ending::Signal(signal) => 128 + signal,
        Ending::Late => OWN_FAILURE, // it has no limit
    };
    let findings = run.findings.iter().map(|it| it.lines(&runner.places)).collect();
    Ok(Linted { status, rings: run.rings, findings })
}

fn say(line: &str) {
    output::complain(&format!("anyring chaos: {line}"));
}

fn count(run: &Run) -> String {
    match run.injections.len() {
        1 => "1 injection".to_owned(),
        count => format!("{count} injections"),
    }
}

/// Reports the first findings of a run that fails.
fn print_findings(runner: &Runner, run: &Run) {
    const MOST: usize = 8;
    run.findings.iter().take(MOST).flat_map(|it| it.lines(&runner.places)).for_each(|line| say(&line));
    if run.findings.len() > MOST {
        say(&format!("{} findings more", run.findings.len() - MOST));
    }
}

/// Reports the injections of a failing run that remain after shrinking, and the command that repeats the run.
fn print_fewest(runner: &Runner, seed: u64, fewest: &[one::Injection]) {
    if fewest.is_empty() {
        return say("it fails without any injection, too");
    }
    fewest.iter().flat_map(|it| it.lines(&runner.places)).for_each(|line| say(&line));
    let names: Vec<_> = fewest.iter().map(|injection| injection.name.as_str()).collect();
    let names: Vec<_> = names.into_iter().map(str::to_owned).collect();
    say(&again(runner.options, seed, &names));
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
