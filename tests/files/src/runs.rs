//! Starts a process for each seed and folder, and judges its end.

use crate::generate;
use anyhow::{Context, Result};
use anyring_test_kit::{fewest, list, memory_file, start, text_of, End, Seeds};
use libc::EIO;
use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// The time limit of a program, which takes less than a second on an idle machine.
const LIMIT: Duration = Duration::from_secs(300);

/// The number of native runs in which an EIO of the file system must be seen.
const TIMES_AGAIN: u32 = 5;

/// The io_uring that serves the programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Backend {
    /// The kernel (Linux 6.9 or newer), to check the programs themselves: it must find nothing
    Kernel,
    /// anyring's library, preloaded
    User,
}

/// The options of a run.
#[derive(clap::Args, Debug, Clone)]
pub struct RunOptions {
    /// The seeds
    #[command(flatten)]
    pub seeds: Seeds,
    /// The folder for the file, on the file system that is meant. Each seed runs in each folder
    #[arg(long = "folder", value_name = "FOLDER", required = true)]
    pub folders: Vec<PathBuf>,
    /// The io_uring that serves the programs
    #[arg(long, value_enum, default_value = "user")]
    pub backend: Backend,
    /// The library to preload; the one beside this program if not given
    #[arg(long, value_name = "FILE")]
    pub library: Option<PathBuf>,
    /// Steps that are left out
    #[arg(long, value_delimiter = ',')]
    pub without: Vec<usize>,
}

/// The results in one folder.
#[derive(Debug, Default, Clone, Copy)]
struct Sums {
    passed: u64,
    failed: u64,
    skipped: u64,
    requests: u64,
}

/// Runs each seed in each folder. True if there is no finding.
pub fn run(options: &RunOptions) -> Result<bool> {
    let runner = Runner::new(options)?;
    let (begun, sums) = (Instant::now(), Mutex::new(BTreeMap::<&Path, Sums>::new()));
    let late = options.seeds.clock();
    options.seeds.each(|seed| {
        let mut any = false;
        for folder in options.folders.iter().take_while(|_| !late()) {
            let finding = runner.run_once(seed, folder, &options.without)?;
            let is_kernels = finding.as_ref().is_err_and(|text| runner.is_kernels(seed, folder, text));
            let mut sums = sums.lock().expect("no thread panics");
            let sums = sums.entry(folder).or_default();
            match finding {
                Ok(requests) => (sums.passed, sums.requests) = (sums.passed + 1, sums.requests + requests),
                Err(finding) if is_kernels => {
                    sums.skipped += 1;
                    println!("skip: seed {seed} in {}: natively, too: {finding}", folder.display());
                }
                Err(finding) => {
                    sums.failed += 1;
                    any = true;
                    println!("FAIL seed {seed} in {}: {finding}", folder.display());
                }
            }
        }
        Ok(any)
    })?;
    let sums = sums.into_inner().expect("no thread panics");
    for (folder, Sums { passed, failed, requests, .. }) in &sums {
        println!(
            "{}: {passed} programs with {requests} requests agree with the model, {failed} do not",
            folder.display()
        );
    }
    let sum = |part: fn(&Sums) -> u64| sums.values().map(part).sum::<u64>();
    let (passed, failed, skipped) = (sum(|sums| sums.passed), sum(|sums| sums.failed), sum(|sums| sums.skipped));
    println!("{} s", begun.elapsed().as_secs());
    // As scripts/summary.sh counts.
    println!("{passed} passed, {failed} failed, {skipped} skipped");
    Ok(failed == 0 && passed > 0)
}

/// Prints the fewest steps of the first seed that still differ in the first folder. True if there are any.
pub fn shrink(options: &RunOptions) -> Result<bool> {
    let runner = Runner::new(options)?;
    let (seed, folder) = (options.seeds.seed, &options.folders[0]);
    let late = options.seeds.clock();
    let fails = |without: &[usize]| -> Result<Option<String>> {
        Ok(if late() { None } else { runner.run_once(seed, folder, without)?.err() })
    };
    let Some(found) = fails(&options.without)? else {
        println!("seed {seed} agrees with the model");
        return Ok(false);
    };
    let steps: Vec<usize> = (0..generate::program(seed).steps.len()).collect();
    let (without, found) = fewest(&steps, options.without.clone(), found, fails)?;
    print!("{}{found}\n--without {}\n", generate::program(seed).without(&without), list(&without));
    Ok(true)
}

/// Starts programs, in folders of their own.
struct Runner {
    backend: Backend,
    program: PathBuf,
    library: PathBuf,
    next: AtomicUsize,
}

impl Runner {
    fn new(options: &RunOptions) -> Result<Runner> {
        let program = std::env::current_exe().context("this program's path")?;
        let library = options.library.clone().unwrap_or(program.with_file_name("libanyring.so"));
        let library = std::path::absolute(&library)?;
        if options.backend == Backend::User {
            std::fs::metadata(&library).with_context(|| format!("the library {}", library.display()))?;
        }
        Ok(Runner { backend: options.backend, program, library, next: AtomicUsize::new(0) })
    }

    /// Runs the seed's program. Returns the number of its requests, or what was found.
    fn run_once(&self, seed: u64, folder: &Path, without: &[usize]) -> Result<Result<u64, String>> {
        self.run_on(self.backend, seed, folder, without)
    }

    /// True if the file system answers EIO to the kernel's io_uring, too. XFS of Linux 6.18 may, where direct and cached
    /// transfers meet in one large folio.
    fn is_kernels(&self, seed: u64, folder: &Path, finding: &str) -> bool {
        let is_eio =
            |text: &str| text.contains(&format!("(os error {EIO})")) || text.contains(&format!("result -{EIO} "));
        let natively = || self.run_on(Backend::Kernel, seed, folder, &[]).ok().and_then(Result::err);
        is_eio(finding) && (0..TIMES_AGAIN).any(|_| natively().is_some_and(|text| is_eio(&text)))
    }

    fn run_on(&self, backend: Backend, seed: u64, folder: &Path, without: &[usize]) -> Result<Result<u64, String>> {
        // Relaxed: only that no two numbers are the same matters.
        let name = format!("anyring-files-{}-{}", std::process::id(), self.next.fetch_add(1, Ordering::Relaxed));
        let folder = folder.join(name);
        std::fs::create_dir(&folder).with_context(|| format!("make {}", folder.display()))?;
        let output = memory_file()?;
        let child = start(&mut self.command(backend, seed, &folder, without), &output, LIMIT)?;
        child.wait();
        let end = child.end();
        remove(&folder).with_context(|| format!("remove {}", folder.display()))?;
        let text = text_of(&output)?;
        Ok(match text.trim().strip_prefix("requests ").and_then(|count| count.parse().ok()) {
            Some(count) if end == End::Exited(0) => Ok(count),
            _ => Err(format!("{end}: {}", text.trim())),
        })
    }

    fn command(&self, backend: Backend, seed: u64, folder: &Path, without: &[usize]) -> Command {
        let mut command = Command::new(&self.program);
        command.arg("child").arg("--seed").arg(seed.to_string()).current_dir(folder);
        if !without.is_empty() {
            command.arg("--without").arg(list(without));
        }
        for variable in ["LD_PRELOAD", "ANYRING_BACKEND", "ANYRING_AIO", "ANYRING_RAW"] {
            command.env_remove(variable);
        }
        if backend == Backend::User {
            command.env("LD_PRELOAD", &self.library).env("ANYRING_BACKEND", "user");
        }
        command
    }
}

/// Removes a folder. A FUSE server may keep a file under another name for a moment after the last close.
fn remove(folder: &Path) -> std::io::Result<()> {
    let begun = Instant::now();
    loop {
        match std::fs::remove_dir_all(folder) {
            Err(error) if error.kind() == ErrorKind::DirectoryNotEmpty && begun.elapsed() < LIMIT => {
                std::thread::sleep(Duration::from_millis(1));
            }
            done => return done,
        }
    }
}
