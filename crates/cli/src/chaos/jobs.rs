//! The runs that are asked for: one after the other, or several at once (`--jobs`). Either way their results come in
//! the order in which they were asked for.
//!
//! Each of several runs has a worker. That is a forked child of this process, which starts the program, waits for it
//! and kills what it leaves running. A thread could not do that. Orphans become children of a process, so a thread
//! would also kill those of other runs. The worker replies how the program ended. This process reads everything
//! else from the files of the run's [`Runner`].

use super::one::{self, Ending, Run, Runner};
use crate::child::Worker;
use crate::cli::ChaosOptions;
use crate::errno;
use crate::failure::Failure;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;
use std::ops::ControlFlow;
use std::os::unix::fs::OpenOptionsExt;
use std::process::Command;

/// A run that is asked for: the seed, and the only injections that are permitted.
pub type Task = (u64, Option<Vec<String>>);

/// A run that has ended, with its lines for `--log`.
type Done = (Vec<u8>, Result<Run, Failure>);

/// Makes runs of the program.
pub struct Jobs<'a> {
    /// A runner for each run that is made at the same time.
    runners: Vec<Runner<'a>>,
    log: Option<File>,
}

impl<'a> Jobs<'a> {
    pub fn new(options: &'a ChaosOptions, rules: &str, many: bool) -> Result<Jobs<'a>, Failure> {
        let log = options.log.as_ref().map(|path| {
            let opened = File::options().write(true).create(true).truncate(true).mode(0o644).open(path);
            opened.map_err(|error| {
                Failure::own(format!("--log: cannot use {}: {}", path.display(), errno::of(&error)))
            })
        });
        let log = log.transpose()?;
        let most = if options.shrink { u32::MAX } else { options.runs.unwrap_or(1) };
        let runners = (0..options.jobs.min(most)).map(|_| Runner::new(options, rules, many));
        Ok(Jobs { runners: runners.collect::<Result<_, _>>()?, log })
    }

    /// Makes one run.
    pub fn one(&self, task: Task) -> Result<Run, Failure> {
        let runner = &self.runners[0];
        let ending = runner.follow(&mut runner.command(&task)?);
        let (log, run) = runner.collect(ending);
        self.write_log(&log)?;
        run?.unless_refused()
    }

    /// Makes the runs. Gives each of them to `consume`, in order, until that breaks off. With `until_failure` no run is
    /// wanted after the first that fails.
    ///
    /// # Errors
    /// A run could not be made, or a signal arrived that ends this process. `consume` got the runs that had ended.
    pub fn each(
        &self,
        tasks: impl Iterator<Item = Task>,
        until_failure: bool,
        mut consume: impl FnMut(u64, Run) -> ControlFlow<()>,
    ) -> Result<(), Failure> {
        if self.runners.len() > 1 {
            return Pool::new(self, until_failure).each(tasks, &mut consume);
        }
        for task in tasks {
            let seed = task.0;
            if consume(seed, self.one(task)?).is_break() {
                break;
            }
        }
        Ok(())
    }

    fn write_log(&self, text: &[u8]) -> Result<(), Failure> {
        let Some(mut log) = self.log.as_ref() else { return Ok(()) };
        log.write_all(text).map_err(|error| Failure::own(format!("--log: {}", errno::of(&error))))
    }
}

/// A run in a worker.
struct Job {
    place: usize,
    worker: Worker,
}

/// Several runs at once. A run's place is its number among the tasks.
struct Pool<'j, 'a> {
    jobs: &'j Jobs<'a>,
    /// The job of each runner; `None` while the runner is idle.
    busy: Vec<Option<Job>>,
    /// The seeds of the runs that were begun, but not given to `consume` yet.
    seeds: BTreeMap<usize, u64>,
    done: BTreeMap<usize, Done>,
    /// The place of the next run that `consume` gets.
    next: usize,
    until_failure: bool,
    /// The first place of a run that has failed.
    failed: usize,
}

impl Drop for Pool<'_, '_> {
    fn drop(&mut self) {
        self.stop_after(None);
        while self.is_busy() {
            // A signal is for the caller, which ends anyway.
            let _ = self.reap().is_empty() && self.jobs.runners[0].sleep().is_err();
        }
        one::kill_orphans(None); // of a worker that was killed
    }
}

impl<'j, 'a> Pool<'j, 'a> {
    fn new(jobs: &'j Jobs<'a>, until_failure: bool) -> Pool<'j, 'a> {
        let busy = jobs.runners.iter().map(|_| None).collect();
        Pool {
            jobs,
            busy,
            seeds: BTreeMap::new(),
            done: BTreeMap::new(),
            next: 0,
            until_failure,
            failed: usize::MAX,
        }
    }

    fn each(
        &mut self,
        tasks: impl Iterator<Item = Task>,
        consume: &mut impl FnMut(u64, Run) -> ControlFlow<()>,
    ) -> Result<(), Failure> {
        let mut tasks = tasks.enumerate();
        loop {
            self.start(&mut tasks)?;
            while let Some((log, run)) = self.done.remove(&self.next) {
                self.jobs.write_log(&log)?;
                let run = match run {
                    Ok(run) => run.unless_refused()?,
                    Err(failure) => return self.abandon(failure, consume),
                };
                if consume(self.seeds.remove(&self.next).unwrap_or_default(), run).is_break() {
                    return Ok(());
                }
                self.next += 1;
            }
            if !self.is_busy() {
                return Ok(());
            }
            if self.reap().is_empty() {
                if let Err(interrupt) = self.jobs.runners[0].sleep() {
                    return self.abandon(interrupt, consume);
                }
            }
        }
    }

    fn is_busy(&self) -> bool {
        self.busy.iter().any(Option::is_some)
    }

    /// Begins runs while there are runners without one.
    fn start(&mut self, tasks: &mut impl Iterator<Item = (usize, Task)>) -> Result<(), Failure> {
        for (runner, busy) in self.jobs.runners.iter().zip(&mut self.busy).filter(|(_, busy)| busy.is_none()) {
            if self.until_failure && self.failed != usize::MAX {
                break;
            }
            let Some((place, task)) = tasks.next() else { break };
            let mut command = runner.command(&task)?;
            *busy = Some(Job { place, worker: begin(runner, &mut command)? });
            self.seeds.insert(place, task.0);
        }
        Ok(())
    }

    /// Collects the runs whose workers have ended. Returns their places.
    fn reap(&mut self) -> Vec<usize> {
        let mut places = Vec::new();
        for (runner, busy) in self.jobs.runners.iter().zip(&mut self.busy) {
            let Some(Job { place, worker }) = busy.take_if(|job| job.worker.has_ended()) else { continue };
            let lost = || Failure::own("the worker of a run was killed");
            let ending = worker.reply().unwrap_or_else(|| Err(lost()));
            let (log, run) = runner.collect(ending);
            if let Ok(run) = &run {
                if run.failure.is_some() {
                    self.failed = self.failed.min(place);
                }
            }
            self.done.insert(place, (log, run));
            places.push(place);
        }
        if self.until_failure && places.contains(&self.failed) {
            self.stop_after(Some(self.failed));
        }
        places
    }

    /// Asks the workers of the runs after a place, or all workers, to end.
    fn stop_after(&self, place: Option<usize>) {
        let jobs = self.busy.iter().flatten().filter(|job| place.is_none_or(|place| job.place > place));
        jobs.for_each(|job| job.worker.terminate());
    }

    /// Ends all runs because of a failure. `consume` still gets the runs that had ended.
    fn abandon(
        &mut self,
        failure: Failure,
        consume: &mut impl FnMut(u64, Run) -> ControlFlow<()>,
    ) -> Result<(), Failure> {
        self.stop_after(None);
        while self.is_busy() {
            if self.reap().is_empty() {
                let _ = self.jobs.runners[0].sleep(); // a second interrupt changes nothing
            }
        }
        for (place, (log, run)) in std::mem::take(&mut self.done) {
            self.jobs.write_log(&log)?;
            let ended = run.ok().filter(|run| run.refusal().is_none());
            let Some((seed, run)) = self.seeds.remove(&place).zip(ended) else { continue };
            if consume(seed, run).is_break() {
                break;
            }
        }
        Err(failure)
    }
}

/// Starts a worker that makes one run.
fn begin(runner: &Runner, command: &mut Command) -> Result<Worker, Failure> {
    let work = || -> Result<Ending, Failure> {
        one::adopt_orphans()?;
        runner.follow(command)
    };
    Worker::start(work).map_err(Failure::own)
}
