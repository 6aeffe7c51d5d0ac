//! The report of several runs: what is printed as they end, the test report, and the summary.

use super::one::{Ending, Injection, Run, PATIENCE_TEXT};
use super::FAILED;
use crate::cli::ChaosOptions;
use crate::failure::{Failure, OWN_FAILURE};
use crate::junit::{Outcome, Suite};
use crate::places::Places;
use crate::{lab, output};
use anyring_engine::chaos::rules::{Row, Rule, Rules, RULES};
use indicatif::ProgressBar;
use std::fs::File;
use std::io::Write;
use std::ops::{ControlFlow, Range};

/// The reason why nothing is proven.
const NO_RING: &str = "the program made no ring that anyring served";

/// Number of injections of a failed run that are listed.
const INJECTIONS: usize = 20;

/// The results of the runs so far.
pub struct Report<'a> {
    options: &'a ChaosOptions,
    /// Several runs, not one.
    many: bool,
    seeds: Range<u64>,
    bar: Option<ProgressBar>,
    places: Places,
    failures: Failures,
    cases: Vec<Case>,
    injections: usize,
    rings: usize,
    /// The last seed.
    last: u64,
    /// Number of runs so far.
    ended: u64,
    /// The injections of `--only` that no run has reached.
    unmet: Vec<String>,
    /// The failing run, whose injections are to be shrunk.
    failing: Option<(u64, Run)>,
}

impl<'a> Report<'a> {
    pub fn new(options: &'a ChaosOptions, many: bool, first: u64) -> Report<'a> {
        let seeds = first..first.saturating_add(options.runs.unwrap_or(1).into());
        Report {
            options,
            many,
            bar: many.then(|| lab::progress("chaos", seeds.end - seeds.start)),
            seeds,
            places: Places::new(),
            failures: Failures::default(),
            cases: Vec::new(),
            injections: 0,
            rings: 0,
            last: first,
            ended: 0,
            unmet: options.only.clone(),
            failing: None,
        }
    }

    /// The seeds of the runs.
    pub fn seeds(&self) -> Range<u64> {
        self.seeds.clone()
    }

    /// Adds a run, in the order of the seeds. Breaks off if no further run is wanted.
    pub fn take(&mut self, seed: u64, run: Run) -> ControlFlow<()> {
        self.last = seed;
        self.ended += 1;
        self.injections += run.injections.len();
        self.rings += run.rings;
        self.unmet.retain(|name| !run.injections.iter().any(|injection| injection.is(name)));
        if self.options.junit.is_some() {
            let again = self.again(seed, &run);
            self.cases.push(Case::of(&self.places, seed, &run, again));
        }
        self.bar.iter().for_each(|bar| bar.inc(1));
        let Some(how) = run.failure.clone() else {
            if !self.many && run.rings != 0 {
                say(&format!("seed {seed}: the program did not fail; {}", count(run.injections.len())));
            }
            return ControlFlow::Continue(());
        };
        self.beside_bar(|report| report.print_failure(seed, &how, &run));
        self.failures.add(how, seed);
        if self.options.shrink {
            self.failing = Some((seed, run));
        }
        match self.options.shrink || self.options.fail_fast {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        }
    }

    /// Hides the progress bar while `print` prints.
    fn beside_bar(&self, print: impl FnOnce(&Self)) {
        match &self.bar {
            Some(bar) => bar.suspend(|| print(self)),
            None => print(self),
        }
    }

    /// Prints a run that failed: its last output, how it failed, its injections, and the command that repeats it.
    /// Prints nothing if an earlier run failed in the same way.
    fn print_failure(&self, seed: u64, how: &str, run: &Run) {
        if !self.failures.is_new(how) {
            return;
        }
        run.show_output();
        say(&format!("seed {seed} fails: {how}; {}", count(run.injections.len())));
        self.print_findings(run);
        if !self.options.shrink {
            injections(run, |it| vec![it.line(&self.places)]).iter().for_each(|line| say(line));
            say(&self.again(seed, run));
        }
    }

    /// The command that repeats a run.
    fn again(&self, seed: u64, run: &Run) -> String {
        again(self.options, seed, &self.options.only, self.many && run.ending == Ending::Late)
    }

    /// Prints how far the runs came before an interrupt.
    pub fn print_interrupted(&self) {
        let (ended, of) = (self.ended, self.seeds.end - self.seeds.start);
        if self.many {
            self.beside_bar(|report| {
                report.failures.lines().iter().for_each(|line| say(line));
                say(&format!("interrupted after {ended} of {of} seeds, of which {} fail", report.failures.len()));
            });
        }
    }

    /// Prints the first findings of a run that fails.
    fn print_findings(&self, run: &Run) {
        const MOST: usize = 8;
        run.findings.iter().take(MOST).flat_map(|it| it.lines(&self.places)).for_each(|line| say(&line));
        if run.findings.len() > MOST {
            say(&format!("{} more findings", run.findings.len() - MOST));
        }
    }

    /// Writes the test report.
    pub fn write_junit(&self, mut file: File) -> Result<(), Failure> {
        let text = junit_of(&self.cases, self.rings != 0, self.options.rules.as_deref());
        let name = self.options.junit.as_deref().unwrap_or("".as_ref()).display().to_string();
        file.write_all(text.as_bytes()).map_err(|error| output::unwritten(&name, &error))
    }

    /// Returns the failing run whose injections are to be shrunk.
    pub fn take_failing(&mut self) -> Option<(u64, Run)> {
        self.bar.iter().for_each(|bar| bar.finish_and_clear());
        self.failing.take()
    }

    /// Prints the injections of a failing run that remain after shrinking, and the command that repeats the run.
    pub fn print_fewest(&self, (seed, run): (u64, &Run), fewest: &[Injection]) {
        if fewest.is_empty() {
            say("it fails without any injection, too");
            return say(&self.again(seed, run));
        }
        fewest.iter().flat_map(|it| it.lines(&self.places)).for_each(|line| say(&line));
        let names: Vec<_> = fewest.iter().map(|injection| injection.name.clone()).collect();
        say(&again(self.options, seed, &names, self.many && run.ending == Ending::Late));
    }

    /// Prints the summary of all runs. Returns the exit status.
    ///
    /// # Errors
    /// The runs prove nothing.
    pub fn end(&self, rules: Rules) -> Result<i32, Failure> {
        let Report { options, failures, seeds, last, injections, .. } = self;
        if self.rings == 0 && failures.is_empty() {
            return Err(Failure { status: OWN_FAILURE, message: format!("{NO_RING}, so nothing is proven") });
        }
        if !self.unmet.is_empty() && failures.is_empty() {
            let message = format!(
                "--only {}: the program never reached it with {}, so nothing is proven",
                self.unmet.join(","),
                if seeds.end - seeds.start == 1 { "this seed and these rules" } else { "these seeds and rules" }
            );
            return Err(Failure { status: OWN_FAILURE, message });
        }
        if self.many {
            let (first, of) = (seeds.start, last - seeds.start + 1);
            failures.lines().iter().for_each(|line| say(line));
            say(&format!("{} of {of} seeds fail ({first} to {last}); {}", failures.len(), count(*injections)));
            let injects = |row: &Row| rules.has(row.rule) && !matches!(row.rule, Rule::Lifetimes | Rule::Misuse);
            if failures.is_empty() && *injections == 0 && RULES.iter().any(injects) {
                say("nothing was injected: the program's requests gave these rules no occasion");
            }
            let is_thorough = rules.has(Rule::Lifetimes) && rules.has(Rule::Misuse);
            if failures.is_empty() && options.only.is_empty() && !is_thorough {
                say("not looked for: memory and descriptors that requests in flight lose (--rules thorough does)");
            }
        }
        Ok(if failures.is_empty() { 0 } else { FAILED })
    }
}

/// A run in the test report.
struct Case {
    seed: u64,
    /// The failure, if it failed.
    failure: Option<String>,
    /// The last output, the findings, the first injections, and the command that repeats the run.
    details: String,
}

impl Case {
    fn of(places: &Places, seed: u64, run: &Run, again: String) -> Case {
        let output = String::from_utf8_lossy(&run.output);
        let findings = run.findings.iter().flat_map(|it| it.lines(places));
        let injections = injections(run, |it| it.lines(places));
        let lines = output.lines().map(str::to_owned).chain(findings).chain(injections);
        // Only a failure's details are written.
        let details = run.failure.as_ref().map(|_| lines.chain([again]).collect::<Vec<_>>().join("\n"));
        let failure = run.failure.as_ref().map(|how| format!("{how}; {}", count(run.injections.len())));
        Case { seed, failure, details: details.unwrap_or_default() }
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

/// The whole shell command that repeats a run. `was_late`: the run exceeded the time limit that several runs have.
pub fn again(options: &ChaosOptions, seed: u64, only: &[String], was_late: bool) -> String {
    let myself =
        std::env::args_os().next().map_or("anyring".to_owned(), |word| word.to_string_lossy().into_owned());
    let mut words = vec![myself, "chaos".to_owned(), "--seed".to_owned(), seed.to_string()];
    let mut flag =
        |name: &str, value: Option<String>| words.extend(value.into_iter().flat_map(|it| [name.to_owned(), it]));
    options.crash.iter().for_each(|folder| flag("--crash", Some(folder.display().to_string())));
    flag("--recover", options.recover.clone());
    flag("--rules", options.rules.clone());
    flag("--only", (!only.is_empty()).then(|| only.join(",")));
    let limit = options.timeout.as_ref().map(|limit| limit.text.clone());
    flag("--timeout", limit.or_else(|| was_late.then(|| PATIENCE_TEXT.to_owned())));
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

    /// Returns a line for each kind of failure that several seeds have, with all these seeds. So far only the first
    /// of them was reported.
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

/// Describes the first injections of a run, and says how many more there are.
fn injections(run: &Run, describe: impl Fn(&Injection) -> Vec<String>) -> Vec<String> {
    let left = run.injections.len().saturating_sub(INJECTIONS);
    let more = (left != 0).then(|| format!("{left} more injections (--log has all of them)"));
    run.injections.iter().take(INJECTIONS).flat_map(describe).chain(more).collect()
}

pub fn say(line: &str) {
    output::complain(&format!("anyring chaos: {line}"));
}

fn count(injections: usize) -> String {
    match injections {
        1 => "1 injection".to_owned(),
        count => format!("{count} injections"),
    }
}
