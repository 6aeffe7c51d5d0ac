//! Runs seeds on the kernel and on the engine, and compares.

use crate::child::read_records;
use crate::confirm::{Confirmed, Pair, Repeats};
use crate::coverage::Coverage;
use crate::generate;
use crate::known::Known;
use crate::program::Program;
use crate::record::{Difference, Record};
use anyhow::{bail, Context, Result};
use anyring_conformance::door::Door;
use anyring_test_kit::{list, Folder, Seeds};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// Seeds that one process runs.
const BATCH: u64 = 50;
/// The number of times that a diverging seed runs again, alone.
const TIMES_AGAIN: u32 = 3;

/// The options of all runs: seeds and processes.
#[derive(clap::Args, Debug, Clone)]
pub struct RunnerOptions {
    /// The seeds
    #[command(flatten)]
    pub seeds: Seeds,
    /// The door for all programs, instead of the one that the seed chooses
    #[arg(long, value_enum)]
    pub door: Option<Door>,
    /// The folder with `anyring`; this program's own if not given
    #[arg(long, value_name = "FOLDER")]
    pub bin: Option<PathBuf>,
    /// The library to preload, instead of the one that `anyring run` finds
    #[arg(long, value_name = "FILE")]
    pub library: Option<PathBuf>,
}

/// The options of a comparison.
#[derive(clap::Args, Debug, Clone)]
pub struct CompareOptions {
    /// The seeds and how they run
    #[command(flatten)]
    pub runner: RunnerOptions,
    /// The list of known differences
    #[arg(long, value_name = "FILE")]
    pub expect: Option<PathBuf>,
    /// Do not fail if the seeds cover less than 2,000 seeds must cover
    #[arg(long)]
    pub any_coverage: bool,
}

/// The io_uring that a process gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// The kernel's io_uring.
    Kernel,
    /// The engine, where the kernel's io_uring is denied.
    Anyring,
    /// The engine under chaos with this seed.
    Disturbed(u64),
}

/// A seed whose results differ in every attempt.
pub struct Divergence {
    /// The seed.
    pub seed: u64,
    /// The differences of the seed's last attempt.
    pub differences: Vec<Difference>,
}

/// Starts processes that run seeds.
pub struct Runner {
    options: RunnerOptions,
    folder: Folder,
}

impl Runner {
    /// A runner with a folder for records.
    pub fn new(options: RunnerOptions) -> Result<Runner> {
        Ok(Runner { options, folder: Folder::new("anyring-differential-records")? })
    }

    /// The program of a seed, as both sides get it.
    pub fn program(&self, seed: u64) -> Program {
        generate::program(seed, self.options.door)
    }

    fn command(&self, side: Side) -> Result<Command> {
        let own = std::env::current_exe().context("this program's own path")?;
        if side == Side::Kernel {
            return Ok(Command::new(own));
        }
        let bin = self.options.bin.clone().or(own.parent().map(Path::to_path_buf)).context("a folder")?;
        let anyring = bin.join("anyring");
        let mut command = Command::new(&anyring);
        command.args(["deny", "--"]);
        match &self.options.library {
            Some(library) => {
                command.arg("env").arg(format!("LD_PRELOAD={}", library.display())).arg("ANYRING_BACKEND=user");
            }
            None => drop(command.arg(&anyring).args(["run", "--backend", "user", "--"])),
        }
        if is_older_than_7_3() {
            command.env("ANYRING_KERNEL", "6.18"); // what came later the kernel beside it lacks
        }
        if let Side::Disturbed(seed) = side {
            command.env("ANYRING_CHAOS", seed.to_string());
        }
        command.arg(own);
        Ok(command)
    }

    /// The records of these seeds, and where they are.
    pub fn run(
        &self,
        side: Side,
        seeds: &[u64],
        counts: Option<&Path>,
        quiet_us: u64,
        without: &[u64],
    ) -> Result<(BTreeMap<u64, Record>, PathBuf)> {
        let path = self.folder.fresh();
        let mut command = self.command(side)?;
        command.arg("run").arg("--seeds").arg(list(seeds)).arg("--record").arg(&path);
        command.arg("--quiet-us").arg(quiet_us.to_string()).stdin(Stdio::null());
        if !without.is_empty() {
            command.arg("--without").arg(list(without));
        }
        if matches!(side, Side::Disturbed(_)) {
            command.arg("--disturbed");
        }
        if let Some(counts) = counts {
            command.arg("--counts").arg(counts);
        }
        if let Some(door) = self.options.door {
            command.arg("--door").arg(format!("{door:?}").to_lowercase());
        }
        let status = command.status().with_context(|| format!("start {command:?}"))?;
        if !status.success() {
            bail!("{command:?} ended with {status}");
        }
        Ok((read_records(&path)?, path))
    }
}

#[derive(Default)]
struct Totals {
    coverage: Coverage,
    agreed: u64,
    compared: u64,
    known: BTreeMap<String, u64>,
    /// Seeds that differed at first, and how much of it the kernel then did itself.
    second_look: Vec<u64>,
    explained: usize,
    divergences: Vec<Divergence>,
    /// Seeds that diverged, and then agreed when they ran again alone.
    flaky: Vec<Divergence>,
}

/// Compares the seeds. Returns true if all agreed and the coverage was reached.
pub fn compare(options: &CompareOptions) -> Result<bool> {
    let known = Known::read(options.expect.as_deref())?;
    let runner = Runner::new(options.runner.clone())?;
    let totals = Mutex::new(Totals::default());
    let start = Instant::now();
    options.runner.seeds.in_batches(BATCH, |seeds| batch(&runner, &known, &Vec::from_iter(seeds), &totals))?;
    let mut totals = totals.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    try_again(&runner, &known, &mut totals)?;
    Ok(report(&runner, &totals, &known, options, start.elapsed()))
}

/// Tries the seeds that diverged again, alone: one that then agrees once is flaky.
fn try_again(runner: &Runner, known: &Known, totals: &mut Totals) -> Result<()> {
    for divergence in std::mem::take(&mut totals.divergences) {
        let mut agrees = false;
        for _ in 0..TIMES_AGAIN {
            agrees =
                agrees || Repeats::new(runner, known, divergence.seed, &[]).confirm(None)?.differences.is_empty();
        }
        if agrees { &mut totals.flaky } else { &mut totals.divergences }.push(divergence);
    }
    Ok(())
}

/// Locks a mutex, even if a thread panicked with it.
pub fn lock<T>(totals: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    totals.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Runs and compares some seeds. Returns true if any diverged.
fn batch(runner: &Runner, known: &Known, seeds: &[u64], totals: &Mutex<Totals>) -> Result<bool> {
    let (mut native, path) = runner.run(Side::Kernel, seeds, None, 4000, &[])?;
    let (mut ours, _) = runner.run(Side::Anyring, seeds, Some(&path), 4000, &[])?;
    let mut diverged = false;
    for &seed in seeds {
        let program = runner.program(seed);
        let kernel = native.remove(&seed).context("a record")?;
        let anyring = ours.remove(&seed).context("a record")?;
        let (found, listed) = known.divide(kernel.differences(&anyring, &program), &program);
        lock(totals).coverage.add(&program, &kernel);
        let mut confirmed = match found.is_empty() {
            true => Confirmed::default(),
            false => Repeats::new(runner, known, seed, &[]).confirm(Some(Pair { kernel, anyring }))?,
        };
        confirmed.listed.extend(listed);
        let mut totals = lock(totals);
        totals.compared += 1;
        totals.explained += confirmed.explained;
        if !found.is_empty() {
            totals.second_look.push(seed);
        }
        for line in confirmed.listed {
            *totals.known.entry(line).or_default() += 1;
        }
        if confirmed.differences.is_empty() {
            totals.agreed += 1;
        } else {
            diverged = true;
            if confirmed.hurried {
                println!("seen once, in a hurry:");
            }
            print_divergence(&program, &confirmed.differences);
            totals.divergences.push(Divergence { seed, differences: confirmed.differences });
        }
    }
    Ok(diverged)
}

/// Prints a divergence: the program, and what each side saw.
pub fn print_divergence(program: &Program, differences: &[Difference]) {
    let mut text = format!("DIVERGED {program}");
    for difference in differences {
        let [kernel, anyring] = &difference.seen;
        text += &format!("    {}\n      kernel   {kernel}\n      anyring  {anyring}\n", difference.subject);
    }
    println!("{text}");
}

fn report(runner: &Runner, totals: &Totals, known: &Known, options: &CompareOptions, took: Duration) -> bool {
    let missing = totals.coverage.report();
    for (line, count) in &totals.known {
        println!("known difference, {count} seeds: {line}");
    }
    let stale = known.stale(&totals.known);
    println!(
        "{} seeds were looked at again: {:?}; {} results that differed then were the kernel's, too, in another run",
        totals.second_look.len(),
        totals.second_look,
        totals.explained
    );
    let mut complaints: Vec<String> = Vec::new();
    if !options.any_coverage {
        complaints.extend(missing);
        complaints.extend(stale);
    }
    complaints.iter().for_each(|line| println!("FAIL   {line}"));
    let name = |divergence: &Divergence| {
        let subjects: Vec<&str> = divergence.differences.iter().map(|found| found.subject.as_str()).collect();
        let door = runner.program(divergence.seed).door_name();
        format!("{door} seed {}: {}", divergence.seed, subjects.join("; "))
    };
    totals.flaky.iter().for_each(|flaky| println!("FLAKY  {}", name(flaky)));
    totals.divergences.iter().for_each(|divergence| println!("FAIL   {}", name(divergence)));
    println!("{} seeds in {} s", totals.compared, took.as_secs());
    let failed = totals.divergences.len() + complaints.len();
    println!("{} passed, {failed} failed, {} skipped", totals.agreed, totals.flaky.len());
    failed == 0
}

/// True if the running kernel lacks names of Linux 7.3.
fn is_older_than_7_3() -> bool {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let mut numbers =
        release.split(|letter: char| !letter.is_ascii_digit()).map(|digits| digits.parse::<u32>().unwrap_or(0));
    [numbers.next().unwrap_or(0), numbers.next().unwrap_or(0)] < [7, 3]
}
