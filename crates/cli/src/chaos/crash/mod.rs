//! `anyring chaos --crash`: imitates a loss of power while the program changes files. The program is killed at a moment
//! that a seed chooses (`tracer`). Its folders then get contents that a disk might have after the loss (`disk`). A
//! command that repairs them decides whether the seed fails.

mod calls;
mod change;
mod disk;
mod mapped;
mod tracer;
mod tree;

use super::one::{memory_file, path_of, Run, Runner};
use super::report::{again, say};
use super::{random_seed, rules, FAILED};
use crate::cli::ChaosOptions;
use crate::errno;
use crate::failure::{Failure, OWN_FAILURE, USAGE};
use anyring_engine::chaos::mix;
use change::{Born, Change};
use disk::Fate;
use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Instant;
use tracer::Recording;
use tree::Tree;

/// Default number of seeds.
const RUNS: u32 = 20;
/// The most bytes of a file that are kept. A larger change counts as durable.
const MOST: u64 = 64 << 20;

/// One loss of power.
struct Loss {
    log: Vec<Change>,
    killed: Tree,
    fates: Vec<Fate>,
}

struct Crash<'a> {
    options: &'a ChaosOptions,
    runner: Runner<'a>,
    folders: Vec<PathBuf>,
    /// The contents of the folders before the program runs.
    before: Tree,
    /// The output of the last recovery.
    printed: File,
}

/// Runs the program repeatedly, and loses power each time.
pub fn run(options: &ChaosOptions) -> Result<i32, Failure> {
    if options.jobs > 1 {
        let message = "--jobs: with --crash the runs follow each other, since all of them change the same folder";
        return Err(Failure { status: USAGE, message: message.to_owned() });
    }
    let crash = Crash::new(options)?;
    let made = crash.each();
    // Also after an interrupt: a folder with the contents of a lost disk is no place to leave behind.
    let left = made.as_ref().ok().and_then(Option::as_ref);
    left.unwrap_or(&crash.before).write(&crash.folders).map_err(unusable)?;
    Ok(if made?.is_some() { FAILED } else { 0 })
}

fn unusable(error: io::Error) -> Failure {
    Failure::own(format!("--crash: {}", errno::of(&error)))
}

impl<'a> Crash<'a> {
    fn new(options: &'a ChaosOptions) -> Result<Crash<'a>, Failure> {
        let folder = |path: &PathBuf| -> Result<PathBuf, Failure> {
            let message = |why: String| format!("--crash {}: {why}", path.display());
            let cannot = |why: String| Failure { status: USAGE, message: message(why) };
            let real = path.canonicalize().map_err(|error| cannot(errno::of(&error)))?;
            match real.is_dir() && real.to_str().is_some_and(|name| !name.contains(':')) {
                true => Ok(real),
                false => Err(cannot("it must be a folder, and its path without a colon".to_owned())),
            }
        };
        let folders = options.crash.iter().map(folder).collect::<Result<Vec<_>, _>>()?;
        let before = Tree::read(&folders, &Born::default()).map_err(unusable)?;
        // No rule disturbs the program, unless one is asked for.
        let rules = options.rules.as_deref().map_or(Ok("none".to_owned()), |list| rules(Some(list)))?;
        let runner = Runner::new(options, &rules, true)?;
        let printed = memory_file("anyring-crash-recovery")?;
        Ok(Crash { options, runner, folders, before, printed })
    }

    /// Loses power with each seed. Returns the contents that the folders have after the first seed that failed, if one
    /// did.
    fn each(&self) -> Result<Option<Tree>, Failure> {
        let options = self.options;
        let recover = options.recover.as_deref().unwrap_or_default();
        let changes = self.whole_run(recover)?;
        let first = options.seed.unwrap_or_else(|| if options.runs.is_some() { 1 } else { random_seed() });
        let runs = options.runs.unwrap_or(if options.seed.is_some() { 1 } else { RUNS });
        let (mut failed, mut shown, mut last) = (0, None, first);
        for seed in first..first.saturating_add(runs.into()) {
            let loss = self.lose(seed, &changes)?;
            last = seed;
            let Some(how) = self.recovers(recover, &loss, &loss.fates)? else { continue };
            let at = loss.log.len();
            say(&format!("seed {seed} fails: power was lost after change {at} of {}: {how}", changes.len()));
            failed += 1;
            if shown.is_none() {
                shown = Some(self.show(recover, seed, &loss)?);
            }
            if options.fail_fast || options.shrink {
                break;
            }
        }
        say(&format!("{failed} of {} seeds fail ({first} to {last})", last - first + 1));
        if failed == 0 {
            say("not covered: changes by other processes, cloned or moved ranges, and files above 64 MiB");
        }
        Ok(shown)
    }

    /// Runs the program to its end, or until it has made `killed_at` changes. Returns the run, and its changes.
    fn run(&self, seed: u64, killed_at: Option<usize>) -> Result<(Run, Recording), Failure> {
        self.before.write(&self.folders).map_err(unusable)?;
        let mut recording = Recording::new(&self.folders, killed_at);
        let ending = tracer::run(&self.runner, &mut self.runner.command(&(seed, None))?, &mut recording);
        let (_, run) = self.runner.collect(ending);
        let run = run?.unless_refused()?;
        // Stores to mapped memory that no sync has written.
        for store in recording.mapped.stores(None) {
            recording.add(store);
        }
        Ok((run, recording))
    }

    /// Runs the program and the recovery without a loss of power. Returns the changes that the program made.
    fn whole_run(&self, recover: &str) -> Result<Vec<Change>, Failure> {
        let (run, Recording { changes, .. }) = self.run(1, None)?;
        let fails = |why: &str| Failure {
            status: OWN_FAILURE,
            message: format!("the program fails though no power is lost: {why}"),
        };
        if let Some(why) = run.ending.describe() {
            run.show_output();
            return Err(fails(&why));
        }
        if changes.is_empty() {
            let message = "the program changed nothing in the folders, so nothing is proven".to_owned();
            return Err(Failure { status: OWN_FAILURE, message });
        }
        match self.recovery(recover)? {
            Some(why) => Err(fails(&format!("{recover}: {why}"))),
            None => Ok(changes),
        }
    }

    /// Kills the program after one of `changes`, which the seed chooses.
    fn lose(&self, seed: u64, changes: &[Change]) -> Result<Loss, Failure> {
        let lot = mix(mix(seed) ^ 2);
        let mut place = (lot >> 8) as usize % changes.len();
        // Right after a sync nothing can be lost. So three of four such places are moved before the sync.
        while !lot.is_multiple_of(4) && place != 0 && matches!(changes[place], Change::Sync { .. }) {
            place -= 1;
        }
        let (_, recording) = self.run(seed, Some(place + 1))?;
        let killed = Tree::read(&self.folders, &recording.born).map_err(unusable)?;
        let log = recording.changes;
        let fates = disk::draw(&log, seed);
        Ok(Loss { log, killed, fates })
    }

    /// Runs the recovery on the contents of the disk. Returns the reason if it fails.
    fn recovers(&self, recover: &str, loss: &Loss, fates: &[Fate]) -> Result<Option<String>, Failure> {
        disk::state(&loss.killed, &loss.log, fates).write(&self.folders).map_err(unusable)?;
        self.recovery(recover)
    }

    fn recovery(&self, recover: &str) -> Result<Option<String>, Failure> {
        self.printed.set_len(0).map_err(unusable)?;
        let output = || self.printed.try_clone().map_err(unusable);
        let mut command = Command::new("/bin/sh");
        command.args(["-c", recover]).stdin(Stdio::null()).stdout(output()?).stderr(output()?);
        command.env("ANYRING_CRASH_OUTPUT", path_of(self.runner.printed()));
        let ending = self.runner.run_to_end(&mut command, Instant::now())?;
        Ok(ending.describe())
    }

    /// Reports the output of the recovery and the losses. Returns the contents of the folders.
    fn show(&self, recover: &str, seed: u64, loss: &Loss) -> Result<Tree, Failure> {
        let text = std::fs::read(path_of(&self.printed)).map_err(unusable)?;
        let _ = io::Write::write_all(&mut io::stderr(), &text);
        let mut fates = loss.fates.clone();
        if self.options.shrink {
            let mut failure = None;
            fates = disk::fewest(&loss.log, &fates, |fates| match self.recovers(recover, loss, fates) {
                Ok(how) => how.is_some(),
                Err(error) => {
                    failure.get_or_insert(error);
                    false
                }
            });
            failure.map_or(Ok(()), Err)?;
        }
        let lines = disk::describe(&loss.log, &fates, &loss.killed);
        lines.iter().for_each(|line| say(line));
        if lines.is_empty() {
            say("none of its changes was lost: being killed before the next change was enough");
        }
        say(&again(self.options, seed, &[], false));
        Ok(disk::state(&loss.killed, &loss.log, &fates))
    }
}
