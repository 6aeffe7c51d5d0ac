//! Starts runs, each in a process of its own, and judges their ends.

use anyhow::{Context, Result};
use std::collections::BTreeMap;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// The options of the runs.
#[derive(clap::Args, Debug, Clone)]
pub struct WatchOptions {
    /// The first seed
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
    /// Number of seeds
    #[arg(long, default_value_t = 1)]
    pub runs: u64,
    /// Steps of the program's threads in a run
    #[arg(long, default_value_t = 300)]
    pub steps: u64,
    /// End after this many seconds, with the seeds run so far
    #[arg(long)]
    pub seconds: Option<u64>,
    /// Processes at a time
    #[arg(long, default_value_t = 2)]
    pub jobs: usize,
    /// Limit of a run, in seconds
    #[arg(long, default_value_t = 60)]
    pub limit: u64,
    /// Run each seed a second time: it must go the same way
    #[arg(long)]
    pub twice: bool,
    /// No call fails: only the order of threads is the seed's
    #[arg(long)]
    pub no_faults: bool,
    /// End at the first finding
    #[arg(long)]
    pub first: bool,
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
pub fn planted(options: &WatchOptions) -> Result<bool> {
    let mut found = 0;
    for (bug, kinds) in PLANTED {
        let mut shown = None;
        for seed in options.seed..options.seed.saturating_add(options.runs) {
            let Err(text) = watch(options, seed, Some(bug))? else { continue };
            let is_of_kind = kinds.iter().any(|kind| text.contains(&format!("finding: {kind}")));
            if is_of_kind && watch(options, seed, None)?.is_ok() {
                shown = Some((seed, text.lines().next().unwrap_or_default().to_owned()));
                break;
            }
        }
        match &shown {
            Some((seed, text)) => println!("{bug}: seed {seed}, {text}"),
            None => println!("{bug}: NOT FOUND in {} seeds", options.runs),
        }
        found += usize::from(shown.is_some());
    }
    println!("{found} of {} planted bugs are found", PLANTED.len());
    Ok(found == PLANTED.len())
}

/// Makes one run, with a bug or without. Returns what it printed, or the finding.
fn watch(options: &WatchOptions, seed: u64, bug: Option<&str>) -> Result<Result<String, String>> {
    let program = std::env::current_exe().context("the program has no path")?;
    let mut command = Command::new(program);
    command.args(["child", "--seed", &seed.to_string(), "--steps", &options.steps.to_string()]);
    if options.no_faults {
        command.arg("--no-faults");
    }
    if let Some(bug) = bug {
        command.env("ANYRING_MUTATION", bug);
    }
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let limit = options.limit as libc::c_uint;
    // SAFETY: only calls that are allowed after a fork: the same addresses each time, and an end to each run.
    unsafe {
        command.pre_exec(move || {
            libc::personality(libc::ADDR_NO_RANDOMIZE as libc::c_ulong);
            libc::alarm(limit);
            Ok(())
        });
    }
    let output = command.output().context("start a run")?;
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    Ok(match output.status.success() {
        true => Ok(printed),
        false if printed.contains("finding: ") => Err(format!("{printed}{errors}")),
        false => Err(format!("finding: the run ended with {}\n{printed}{errors}", output.status)),
    })
}

/// Runs the seeds. Returns true if nothing was found.
///
/// # Errors
/// The reason why runs could not be started.
pub fn run(options: &WatchOptions) -> Result<bool> {
    let (next, stop) = (AtomicU64::new(options.seed), AtomicBool::new(false));
    let (sums, failed) = (Mutex::new(Sums::default()), Mutex::new(None));
    let start = Instant::now();
    let late = || options.seconds.is_some_and(|seconds| start.elapsed() > Duration::from_secs(seconds));
    let work = || {
        while !late() && !stop.load(Ordering::Relaxed) {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= options.seed.saturating_add(options.runs) {
                return;
            }
            let outcome = watch(options, seed, None).and_then(|first| match options.twice {
                true => Ok((first, Some(watch(options, seed, None)?))),
                false => Ok((first, None)),
            });
            let Ok(mut sums) = sums.lock() else { return };
            match outcome {
                Ok((Ok(first), Some(second))) if second.as_ref() != Ok(&first) => {
                    let second = second.unwrap_or_else(|found| found);
                    sums.find(options, seed, &format!("finding: two runs differ\n{first}{second}"));
                }
                Ok((Ok(printed), _)) => sums.add(&printed),
                Ok((Err(found), _)) => {
                    sums.find(options, seed, &found);
                    stop.fetch_or(options.first, Ordering::Relaxed);
                }
                Err(error) => {
                    stop.store(true, Ordering::Relaxed);
                    if let Ok(mut failed) = failed.lock() {
                        *failed = Some(error);
                    }
                }
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..options.jobs.max(1) {
            scope.spawn(work);
        }
    });
    if let Some(error) = failed.into_inner().ok().flatten() {
        return Err(error);
    }
    let sums = sums.into_inner().unwrap_or_default();
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

    fn find(&mut self, options: &WatchOptions, seed: u64, found: &str) {
        self.findings += 1;
        println!("seed {seed}: {}", found.trim_end());
        println!("  again: anyring-simulation run --seed {seed} --steps {}\n", options.steps);
    }
}
