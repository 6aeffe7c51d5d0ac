//! `anyring chaos`: runs a program on an engine that disturbs it, by one seed or many, and says which runs failed.

mod one;
mod shrink;

use crate::cli::ChaosOptions;
use crate::failure::{Failure, OWN_FAILURE, USAGE};
use crate::{exec, output};
use anyring_engine::chaos::rules::Rules;
use one::{Ending, Run, Runner};
use std::path::Path;

/// Some run failed.
const FAILED: i32 = 1;

/// Runs the program with each seed.
pub fn run(options: &ChaosOptions) -> Result<i32, Failure> {
    exec::check_found(&options.program)?;
    let rules = rules(options.rules.as_deref())?;
    let many = options.runs.is_some() || options.shrink;
    let first = match options.seed {
        Some(seed) => seed,
        None if many => 1,
        None => random_seed(),
    };
    let runner = Runner::new(options, rules, many)?;
    let seeds = first..first.saturating_add(options.runs.unwrap_or(1).into());
    let mut failed = Vec::new();
    let (mut injections, mut rings) = (0, 0);
    for seed in seeds.clone() {
        let run = runner.run(seed, (!options.only.is_empty()).then_some(&options.only[..]))?;
        injections += run.injections.len();
        rings += run.rings;
        let Some(how) = runner.failure(&run) else {
            if !many && run.rings != 0 {
                say(&format!("seed {seed}: the program did not fail; {}", count(&run)));
            }
            continue;
        };
        if failed.is_empty() {
            runner.show_output();
        }
        if options.shrink {
            // The program may fail without any.
            say(&format!("seed {seed} fails: {how}; {}", count(&run)));
            tell_findings(&run);
            let fewest = shrink::shrink(&runner, seed, &run)?;
            tell_fewest(options, seed, &fewest);
            return Ok(FAILED);
        }
        say(&format!("seed {seed} fails: {how}; {}", count(&run)));
        if failed.is_empty() {
            tell_findings(&run);
        }
        failed.push(seed);
    }
    if rings == 0 && failed.is_empty() {
        let message = "the program made no ring that anyring served, so that nothing is proven".to_owned();
        return Err(Failure { status: OWN_FAILURE, message });
    }
    if many {
        let (of, last) = (seeds.end - seeds.start, seeds.end - 1);
        say(&format!("{} of {of} seeds fail ({first} to {last}); {injections} injections", failed.len()));
    }
    Ok(if failed.is_empty() { 0 } else { FAILED })
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

/// The first findings of a run that fails.
fn tell_findings(run: &Run) {
    const MOST: usize = 8;
    run.findings.iter().take(MOST).for_each(|finding| say(&finding.describe()));
    if run.findings.len() > MOST {
        say(&format!("{} findings more", run.findings.len() - MOST));
    }
}

/// What is left of a run that fails, and how to see it again.
fn tell_fewest(options: &ChaosOptions, seed: u64, fewest: &[one::Injection]) {
    if fewest.is_empty() {
        return say("it fails without any injection, too");
    }
    for injection in fewest {
        say(&injection.describe());
    }
    let names: Vec<_> = fewest.iter().map(|injection| injection.name.as_str()).collect();
    let rules = options.rules.as_ref().map_or(String::new(), |rules| format!(" --rules {rules}"));
    say(&format!("again: anyring chaos --seed {seed}{rules} --only {} -- ...", names.join(",")));
}

/// The names that `--rules` gives, or the file that it names has, separated by commas; checked.
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

/// The names in a file: several a line, `#` before what is none.
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
    /// How a run ended that took part in nothing wrong, or what was.
    fn describe(&self) -> Option<String> {
        match self {
            Ending::Status(0) => None,
            Ending::Status(status) => Some(format!("exit status {status}")),
            Ending::Signal(signal) => Some(format!("killed by {}", crate::errno::signal_name(*signal))),
            Ending::Late => Some("it took too long".to_owned()),
        }
    }
}
