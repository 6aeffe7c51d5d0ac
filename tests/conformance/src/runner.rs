//! Runs each case in a forked child of its own, so that a crash or a hang is one failing case. Several cases run at a
//! time, since most of them wait.
//!
//! The runner has one thread, so that a child may use everything after the fork.

use crate::case::{Case, Context, SKIP_STATUS};
use crate::evidence::Places;
use crate::report::{Outcome, Report};
use anyring_test_kit::{wait_for_any, Child, End};
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The time after which the runner kills a case. Most cases take less than a second. A case that waits in vain for an
/// event fails by itself before that, after [`PATIENCE`](crate::ring::PATIENCE).
const LIMIT: Duration = Duration::from_secs(60);

/// A case that is to run.
pub type Job<'c> = (&'c Case, Context);

/// Runs cases.
pub struct Runner {
    /// The folder in which each case has a directory of its own.
    directory: PathBuf,
    /// The number of cases that run at a time.
    together: usize,
    /// The places for their evidence, if requested.
    places: Option<Places>,
    identities_differ: bool,
}

/// A case that is running.
struct Running<'c> {
    job: Job<'c>,
    report: Report,
    left: u32,
    child: Child,
    output: File,
}

impl Runner {
    /// A runner of this many cases at a time, which gathers evidence or does not. `identities_differ`: in each case's
    /// process a thread has changed its own identity.
    pub fn new(together: usize, evidence: bool, identities_differ: bool) -> Runner {
        let directory = std::env::temp_dir().join(format!("anyring-conformance-{}", std::process::id()));
        Runner { directory, together, places: evidence.then(|| Places::new(together)), identities_differ }
    }

    /// Runs each of these cases `repeat` times, or until it does not pass, and passes on its report.
    pub fn run(&self, jobs: &[Job], repeat: u32, mut done: impl FnMut(Report)) {
        let mut jobs = jobs.iter();
        let mut running: Vec<Option<Running>> = (0..self.together).map(|_| None).collect();
        loop {
            for place in 0..self.together {
                if running[place].is_none() {
                    let job = jobs.next();
                    let started =
                        job.map(|&job| self.start(place, job, Report::new(job.0, job.1), repeat, &running));
                    running[place] = started;
                }
            }
            if running.iter().all(Option::is_none) {
                break;
            }
            wait_for_any(running.iter().flatten().map(|running| &running.child));
            for place in 0..self.together {
                if let Some(ended) = running[place].take_if(|running| running.child.is_over()) {
                    let (job, left, report) = (ended.job, ended.left, self.finish(place, ended));
                    if report.outcome == Outcome::Passed && left > 1 {
                        running[place] = Some(self.start(place, job, report, left - 1, &running));
                    } else {
                        done(report);
                    }
                }
            }
        }
        if let Err(error) = std::fs::remove_dir(&self.directory) {
            eprintln!("anyring-conformance: {}: {error}", self.directory.display());
        }
    }

    fn directory_of(&self, place: usize) -> PathBuf {
        self.directory.join(format!("case-{place}"))
    }

    /// Starts a case beside those that are running.
    fn start<'c>(
        &self,
        place: usize,
        job: Job<'c>,
        report: Report,
        left: u32,
        others: &[Option<Running>],
    ) -> Running<'c> {
        let directory = self.directory_of(place);
        std::fs::create_dir_all(&directory).expect("make the case's directory");
        if let Some(places) = &self.places {
            places.choose(place);
        }
        let (output, input) = crate::sys::pipe_with(libc::O_NONBLOCK);
        std::io::stdout().flush().expect("write the report");
        // SAFETY: the runner has one thread, so the child's memory is consistent and it may run anything.
        let child = unsafe { libc::fork() };
        assert!(child >= 0, "fork: {}", std::io::Error::last_os_error());
        if child == 0 {
            // Descriptors have the numbers that they would have if the case ran alone.
            others.iter().flatten().for_each(Running::forget);
            drop(output);
            in_child(job, &directory, input, self.identities_differ);
        }
        Running { job, report, left, child: Child::watch(child, LIMIT), output }
    }

    /// Takes what an ended case left, or ends one that is late.
    fn finish(&self, place: usize, mut ended: Running) -> Report {
        ended.report.elapsed_ms += ended.child.elapsed().as_millis() as u64;
        let end = ended.child.end();
        let mut text = Vec::new();
        // Nonblocking: a process that the case left may still hold the other end.
        let _ = ended.output.read_to_end(&mut text);
        ended.report.outcome = judge(end, String::from_utf8_lossy(&text).trim().to_owned());
        ended.report.runs.extend(self.places.as_ref().map(|places| places.take(place)));
        if let Err(error) = std::fs::remove_dir_all(self.directory_of(place)) {
            eprintln!("anyring-conformance: {}: {error}", self.directory_of(place).display());
        }
        ended.report
    }
}

impl Running<'_> {
    /// Closes what a child of the runner has of it.
    fn forget(&self) {
        let numbers = [Some(self.output.as_raw_fd()), self.child.descriptor().map(|process| process.as_raw_fd())];
        for number in numbers.into_iter().flatten() {
            // SAFETY: the child's copy; its owner, in the child's copy of the runner, is never dropped there.
            unsafe { libc::close(number) };
        }
    }
}

fn judge(end: End, text: String) -> Outcome {
    match end {
        End::Late(_) | End::Killed(_) => Outcome::Failed(format!("{end}; {text}")),
        End::Exited(0) => Outcome::Passed,
        End::Exited(SKIP_STATUS) if !text.is_empty() => Outcome::Skipped(text),
        End::Exited(SKIP_STATUS) => Outcome::Failed("skipped without a reason".to_owned()),
        End::Exited(_) if text.is_empty() => Outcome::Failed(end.to_string()),
        End::Exited(_) => Outcome::Failed(text),
    }
}

/// The child: the claim is checked with stdout and stderr in the runner's hands.
fn in_child((case, context): Job, directory: &Path, output: File, identities_differ: bool) -> ! {
    // SAFETY: numbers only; the descriptors are this process's own.
    unsafe {
        libc::setpgid(0, 0);
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
        libc::dup2(output.as_raw_fd(), 1);
        libc::dup2(output.as_raw_fd(), 2);
    }
    drop(output);
    std::env::set_current_dir(directory).expect("enter the case's directory");
    std::panic::set_hook(Box::new(|panic| eprintln!("{panic}")));
    if identities_differ {
        // Sets the value that it had before: only an engine in this process can notice.
        // SAFETY: numbers only.
        let change = || unsafe { libc::syscall(libc::SYS_setfsuid, libc::geteuid()) };
        std::thread::spawn(change).join().expect("the thread ends");
    }
    let passed = std::panic::catch_unwind(|| (case.body)(&context)).is_ok();
    std::process::exit(if passed { 0 } else { 1 });
}

/// Reruns a failed case alone, `times` times, if no known difference lists it. A case that then passes at least once
/// is flaky: time or the machine decided. A flaky case is to be mended, but is no defect of the engine.
pub fn confirm(report: &mut Report, times: u32, mut again: impl FnMut() -> Report) {
    let (Outcome::Failed(message) | Outcome::Otherwise(message)) = report.outcome.clone() else { return };
    for _ in 0..times {
        let second = again();
        if second.outcome == Outcome::Passed {
            *report = Report { outcome: Outcome::Flaky(message), ..second };
            return;
        }
    }
}

/// Returns the job that left this report.
pub fn job_of<'c>(report: &Report, jobs: &[Job<'c>]) -> Option<Job<'c>> {
    jobs.iter().find(|(case, context)| Report::new(case, *context).name() == report.name()).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_skip_needs_a_reason() {
        let end = End::Exited(SKIP_STATUS);
        assert_eq!(judge(end, "no tmpfs".into()), Outcome::Skipped("no tmpfs".into()));
        assert!(matches!(judge(end, String::new()), Outcome::Failed(_)));
    }

    #[test]
    fn a_case_that_passes_once_when_it_runs_again_is_flaky() {
        let failed = || Outcome::Failed("first".to_owned());
        let confirmed = |first, later: &[Outcome]| {
            let (mut it, mut later) = (Report::of("a::b", first), later.iter().cloned());
            confirm(&mut it, later.len() as u32, || Report::of("a::b", later.next().expect("no more runs")));
            it.outcome
        };
        assert_eq!(confirmed(failed(), &[failed(), Outcome::Passed, failed()]), Outcome::Flaky("first".to_owned()));
        assert_eq!(confirmed(failed(), &[failed(), failed(), failed()]), failed());
        assert_eq!(confirmed(failed(), &[Outcome::Skipped("no tmpfs".to_owned())]), failed());
        assert_eq!(confirmed(Outcome::Passed, &[failed()]), Outcome::Passed);
    }
}
