//! Starts runs, each in a process of its own, and judges their ends.

use anyhow::{Context, Result};
use anyring_test_kit::{memory_file, start, text_of, End, Seeds};
use std::collections::BTreeMap;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The options of the runs.
#[derive(clap::Args, Debug, Clone)]
pub struct RunOptions {
    /// The seeds
    #[command(flatten)]
    pub seeds: Seeds,
    /// Steps of the program's threads in a run
    #[arg(long, default_value_t = 300)]
    pub steps: u64,
    /// Limit of a run, in seconds
    #[arg(long, default_value_t = 60)]
    pub limit: u64,
    /// Run each seed a second time: it must go the same way
    #[arg(long)]
    pub twice: bool,
    /// No call fails: only the order of threads is the seed's
    #[arg(long)]
    pub no_faults: bool,
}

#[derive(Default)]
struct Sums {
    runs: u64,
    steps: u64,
    requests: u64,
    findings: u64,
    faults: BTreeMap<String, u64>,
}

/// The bugs that are planted, as crates/engine/src/mutation.rs names them, and the kinds of findings that show each.
const PLANTED: [(&str, &[&str]); 10] = [
    ("overflow-posts-twice", &["twice"]),
    ("shot-without-more", &["twice", "more"]),
    ("sleeper-is-not-kicked", &["wake-up", "deadlock", "no-progress"]),
    ("driver-sleeps-beyond-timers", &["timer", "deadlock", "no-progress"]),
    ("async-forgets-the-offset", &["result"]),
    ("short-counts-are-final", &["result"]),
    ("rings-leave-a-descriptor", &["leak"]),
    ("threads-outstay-the-last-ring", &["leak"]),
    ("locks-stay-held-after-fork", &["deadlock", "no-progress", "fork", "the run ended"]),
    ("fork-leaves-the-word", &["deadlock", "no-progress", "fork", "result", "twice"]),
];

/// Plants each bug. Returns true if all of them are found, by seeds that find nothing without the bug.
///
/// # Errors
/// The reason why runs could not be started.
pub fn planted(options: &RunOptions) -> Result<bool> {
    let mut found = 0;
    for (bug, kinds) in PLANTED {
        let mut shown = None;
        for seed in options.seeds.range() {
            let Err(text) = run_once(options, seed, Some(bug))? else { continue };
            let is_of_kind = kinds.iter().any(|kind| text.contains(&format!("finding: {kind}")));
            if is_of_kind && run_once(options, seed, None)?.is_ok() {
                shown = Some((seed, text.lines().next().unwrap_or_default().to_owned()));
                break;
            }
        }
        match &shown {
            Some((seed, text)) => println!("{bug}: seed {seed}, {text}"),
            None => println!("{bug}: NOT FOUND in seeds {:?}", options.seeds.range()),
        }
        found += usize::from(shown.is_some());
    }
    println!("{found} of {} planted bugs are found", PLANTED.len());
    Ok(found == PLANTED.len())
}

/// Makes one run, with a bug or without. Returns what it printed, or the finding.
fn run_once(options: &RunOptions, seed: u64, bug: Option<&str>) -> Result<Result<String, String>> {
    let program = std::env::current_exe().context("the program has no path")?;
    let mut command = Command::new(program);
    command.args(["child", "--seed", &seed.to_string(), "--steps", &options.steps.to_string()]);
    if options.no_faults {
        command.arg("--no-faults");
    }
    if let Some(bug) = bug {
        command.env("ANYRING_MUTATION", bug);
    }
    // SAFETY: only a call that is allowed after a fork: the same addresses each time.
    unsafe {
        command.pre_exec(|| {
            libc::personality(libc::ADDR_NO_RANDOMIZE as libc::c_ulong);
            Ok(())
        });
    }
    let output = memory_file()?;
    let child = start(&mut command, &output, Duration::from_secs(options.limit))?;
    child.wait();
    let (end, printed) = (child.end(), text_of(&output)?);
    Ok(match end {
        End::Exited(0) => Ok(printed),
        _ if printed.contains("finding: ") => Err(printed),
        end => Err(format!("finding: the run ended: {end}\n{printed}")),
    })
}

/// Runs the seeds. Returns true if nothing was found.
///
/// # Errors
/// The reason why runs could not be started.
pub fn run(options: &RunOptions) -> Result<bool> {
    let (start, sums) = (Instant::now(), Mutex::new(Sums::default()));
    options.seeds.each(|seed| {
        let mut outcome = run_once(options, seed, None)?;
        if let (Ok(first), true) = (&outcome, options.twice) {
            let second = run_once(options, seed, None)?.unwrap_or_else(|found| found);
            if second != *first {
                outcome = Err(format!("finding: two runs differ\n{first}{second}"));
            }
        }
        let mut sums = sums.lock().unwrap_or_else(PoisonError::into_inner);
        match &outcome {
            Ok(printed) => sums.add(printed),
            Err(found) => sums.find(options, seed, found),
        }
        Ok(outcome.is_err())
    })?;
    let sums = sums.into_inner().unwrap_or_else(PoisonError::into_inner);
    let (runs, steps, requests, found) = (sums.runs, sums.steps, sums.requests, sums.findings);
    let seconds = start.elapsed().as_secs_f64();
    println!("{runs} runs, {steps} steps, {requests} requests, {found} findings, {seconds:.1} s");
    let faults: Vec<_> = sums.faults.iter().map(|(kind, count)| format!("{kind}: {count}")).collect();
    println!("faults: {}", faults.join(", "));
    println!("{runs} passed, {found} failed, 0 skipped");
    Ok(found == 0)
}

impl Sums {
    fn add(&mut self, printed: &str) {
        self.runs += 1;
        for line in printed.lines() {
            let words: Vec<_> = line.splitn(3, ' ').collect();
            let number = |at: usize| line.split(' ').nth(at).and_then(|word| word.parse::<u64>().ok()).unwrap_or(0);
            match words[..] {
                ["steps", ..] => (self.steps, self.requests) = (self.steps + number(1), self.requests + number(3)),
                ["fault", _, kind] => *self.faults.entry(kind.to_owned()).or_default() += number(1),
                _ => {}
            }
        }
    }

    fn find(&mut self, options: &RunOptions, seed: u64, found: &str) {
        self.findings += 1;
        println!("seed {seed}: {}", found.trim_end());
        let no_faults = if options.no_faults { " --no-faults" } else { "" };
        println!("  again: anyring-simulation run --seed {seed} --steps {}{no_faults}\n", options.steps);
    }
}
