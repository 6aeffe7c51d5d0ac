//! `cargo xtask mutations`: proves that each bug of `anyring_engine::mutation` makes the check fail that its row names.
//!
//! One build of the library has all of these bugs (mutations), and an environment variable chooses one. Each check runs
//! without a mutation first, where it must pass. It then runs with each of its mutations, where it must fail. A crash
//! or a hang is a failure, too. A check that is skipped here proves nothing: its mutations are skipped with its reason.

use anyhow::{ensure, Context, Result};
use anyring_engine::mutation::{Check, Row, MUTATIONS};
use anyring_xtask::artifacts::{self, ForTests};
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// The mutations to prove, and how.
#[derive(clap::Args, Debug)]
pub struct Options {
    /// Mutations, as crates/engine/src/mutation.rs names them; all if none is given
    #[arg(value_name = "NAME")]
    names: Vec<String>,
    /// Prove only the mutations of this part of the sources
    #[arg(long, value_name = "ROOM")]
    room: Option<String>,
    /// The folder with anyring and anyring-conformance; they are built if it is not given
    #[arg(long, value_name = "FOLDER")]
    bin: Option<PathBuf>,
    /// Checks at a time: they mostly wait
    #[arg(long, default_value_t = 4)]
    jobs: usize,
    /// Print what each check says when it fails
    #[arg(long)]
    verbose: bool,
}

/// The longest time that a check may take without a mutation.
const LIMIT: Duration = Duration::from_secs(120);
/// The least time after which a check with a mutation hangs.
const PATIENCE: Duration = Duration::from_secs(10);
/// The time that a test gets beyond its patience to report what hangs.
const LAST_WORDS: Duration = Duration::from_secs(30);
/// Number of times that a check that fails without a mutation runs again, alone, before the failure counts.
const AGAIN: u32 = 3;

/// The outcome of a check.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Outcome {
    Passed,
    Failed(String),
    /// The check was not run, for this reason.
    Skipped(String),
}

/// The programs that run the checks.
struct Programs {
    built: ForTests,
    /// The folder with `anyring` and `anyring-conformance`.
    bin: PathBuf,
    engine: PathBuf,
    raw: PathBuf,
    panics: PathBuf,
    /// The folder in which each check gets its own.
    scratch: PathBuf,
}

/// Proves the mutations that were asked for; fails if one is not found.
pub fn prove(options: &Options) -> Result<()> {
    let rows = chosen(options)?;
    let programs = Programs::build(options.bin.as_deref())?;
    let checks: Vec<Check> = rows.iter().map(|row| row.check).collect::<BTreeSet<_>>().into_iter().collect();
    let without = at_a_time(options.jobs, &checks, |check| programs.run_without(*check));
    let outcomes = at_a_time(options.jobs, &rows, |row| {
        let place = checks.binary_search(&row.check).expect("each row's check has been run");
        let (outcome, printed) = programs.judge(row, &without[place]);
        report(row, &outcome, if options.verbose { &printed } else { "" });
        outcome
    });
    if let Err(error) = fs::remove_dir_all(&programs.scratch) {
        eprintln!("{}: {error}", programs.scratch.display());
    }
    let count = |wanted: fn(&Outcome) -> bool| outcomes.iter().filter(|outcome| wanted(outcome)).count();
    let failed = count(|outcome| matches!(outcome, Outcome::Failed(_)));
    let skipped = count(|outcome| matches!(outcome, Outcome::Skipped(_)));
    println!("{} passed, {failed} failed, {skipped} skipped", rows.len() - failed - skipped);
    ensure!(failed == 0, "not every mutation is found");
    Ok(())
}

fn chosen(options: &Options) -> Result<Vec<&'static Row>> {
    let in_room = |row: &&Row| options.room.as_ref().is_none_or(|room| row.room == room);
    let named = |row: &&Row| options.names.is_empty() || options.names.iter().any(|name| row.name == name);
    let unknown = options.names.iter().find(|name| MUTATIONS.iter().all(|row| row.name != **name));
    ensure!(unknown.is_none(), "no mutation is called {}", unknown.map_or("", String::as_str));
    let rows: Vec<_> = MUTATIONS.iter().filter(in_room).filter(named).collect();
    let rooms = || MUTATIONS.iter().map(|row| row.room).collect::<BTreeSet<_>>();
    ensure!(!rows.is_empty(), "none of these mutations is in that room; there are {:?}", rooms());
    Ok(rows)
}

/// Does `work` with each of the items, `jobs` at a time. Returns the answers in the order of the items.
fn at_a_time<T: Sync, R: Send>(jobs: usize, items: &[T], work: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let (next, answers) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..jobs.clamp(1, items.len().max(1)) {
            scope.spawn(|| loop {
                let place = next.fetch_add(1, Ordering::Relaxed);
                let Some(item) = items.get(place) else { return };
                let answer = work(item);
                answers.lock().expect("nobody panics with it").push((place, answer));
            });
        }
    });
    let mut answers = answers.into_inner().expect("nobody panicked with it");
    answers.sort_by_key(|(place, _)| *place);
    answers.into_iter().map(|(_, answer)| answer).collect()
}

/// Prints a row's outcome in one write, since other threads print at the same time.
fn report(row: &Row, outcome: &Outcome, printed: &str) {
    let check = named(row.check);
    let line = match outcome {
        Outcome::Passed => format!("passed  {}: {check} fails with it", row.name),
        Outcome::Failed(why) => format!("FAIL    {}: {check} {why}\n        {}", row.name, row.what),
        Outcome::Skipped(why) => format!("skipped {}: {check}: {why}", row.name),
    };
    let printed: String = printed.lines().map(|line| format!("\n        | {line}")).collect();
    println!("{line}{printed}");
}

/// The name of a check, as in the table.
fn named(check: Check) -> String {
    let (kind, name) = match check {
        Check::Case(name) => ("case", name),
        Check::Plain(name) => ("plain case", name),
        Check::Engine(name) => ("engine", name),
        Check::Raw(name) => ("raw", name),
        Check::Panic(name) => ("panic", name),
        Check::Unit(name) => ("unit", name),
        Check::Simulation(finding) => ("simulation", finding),
    };
    format!("{kind} {name}")
}

impl Programs {
    fn build(bin: Option<&Path>) -> Result<Programs> {
        let built = artifacts::build_all_for_tests()?;
        let bin = match bin {
            Some(bin) => bin.canonicalize().with_context(|| bin.display().to_string())?,
            None => artifacts::build_programs(&["anyring-cli", "anyring-conformance"])?,
        };
        let [engine, raw, panics] =
            artifacts::build_tests(&["engine", "raw", "panics"])?.try_into().expect("as many programs as names");
        let scratch = artifacts::folder_for_tests()?.join(format!("scratch-{}", std::process::id()));
        fs::create_dir_all(&scratch).with_context(|| scratch.display().to_string())?;
        Ok(Programs { built, bin, engine, raw, panics, scratch })
    }

    /// Runs a check without a mutation. Returns its outcome and its duration. A check that fails once and then passes
    /// only lacked time.
    fn run_without(&self, check: Check) -> (Outcome, Duration) {
        let begin = Instant::now();
        let mut outcome = self.run(check, None, LIMIT);
        let took = begin.elapsed();
        if matches!(outcome, Outcome::Failed(_)) {
            let again = (0..AGAIN).map(|_| self.run(check, None, LIMIT));
            if again.into_iter().all(|outcome| outcome == Outcome::Passed) {
                println!("FLAKY   {}: failed once without a mutation, then never again", named(check));
                outcome = Outcome::Passed;
            }
        }
        (outcome, took)
    }

    /// Runs the row's check with its mutation. Returns the outcome, and how the check failed.
    fn judge(&self, row: &Row, (without, took): &(Outcome, Duration)) -> (Outcome, String) {
        let failed = |why: String| (Outcome::Failed(why), String::new());
        match without {
            Outcome::Passed => {}
            Outcome::Failed(why) => return failed(format!("fails without it: {why}")),
            Outcome::Skipped(_) => return (without.clone(), String::new()),
        }
        match self.run(row.check, Some(row.name), PATIENCE.max(5 * *took)) {
            Outcome::Passed => failed("passes with it".to_owned()),
            Outcome::Failed(printed) => (Outcome::Passed, printed),
            Outcome::Skipped(why) => failed(format!("is skipped with it: {why}")),
        }
    }

    /// Runs a check, which counts as hanging after `patience`.
    fn run(&self, check: Check, mutation: Option<&str>, patience: Duration) -> Outcome {
        static RUNS: AtomicUsize = AtomicUsize::new(0);
        if let Check::Simulation(_) = check {
            return Outcome::Skipped("anyring-simulation planted finds it".to_owned());
        }
        let folder = self.scratch.join(RUNS.fetch_add(1, Ordering::Relaxed).to_string());
        fs::create_dir(&folder).expect("make a folder of its own");
        let mut command = self.command(check);
        command.env("ANYRING_LIBRARY", &self.built.library).env("ANYRING_TEST_LIBRARY", &self.built.library);
        command.env("TMPDIR", &folder).env("ANYRING_TEST_SCRATCH", &folder).env_remove("ANYRING_MUTATION");
        command.env("ANYRING_TEST_PATIENCE", patience.as_secs().to_string());
        if let Some(name) = mutation {
            command.env("ANYRING_MUTATION", name);
        }
        let log = folder.join("log");
        let status = run_logged(command, &log, patience + LAST_WORDS);
        let printed = String::from_utf8_lossy(&fs::read(&log).expect("read the log")).into_owned();
        let _ = fs::remove_dir_all(&folder); // what a killed program has left goes with all of them
        match status {
            Some(status) => outcome_of(check, status, &printed),
            None => Outcome::Failed(format!("hangs\n{printed}")),
        }
    }

    fn command(&self, check: Check) -> Command {
        let (program, test) = match check {
            Check::Case(case) => return self.command_of_case("anyring-conformance", case),
            Check::Plain(case) => return self.command_of_case("anyring-conformance-plain", case),
            Check::Engine(test) => (&self.engine, test),
            Check::Raw(test) => (&self.raw, test),
            Check::Panic(_) => (&self.panics, "a_panic_anywhere_breaks_one_ring_at_most"),
            Check::Unit(test) => (&self.built.units, test),
            Check::Simulation(_) => unreachable!("it is not made here"),
        };
        let mut command = Command::new(program);
        command.args(["--exact", test, "--nocapture"]);
        if let Check::Panic(point) = check {
            command.env("ANYRING_TEST_POINT", point);
        }
        command
    }

    fn command_of_case(&self, program: &str, case: &str) -> Command {
        let anyring = self.bin.join("anyring");
        let mut command = Command::new(&anyring);
        command.args(["deny", "--"]).arg(&anyring).args(["run", "--backend", "user", "--aio", "user", "--"]);
        // As `make test` runs it.
        command.arg(self.bin.join(program)).args(["--spread", "--exact", "--filter", case]);
        command
    }
}

/// Runs a command with its output in a file. Returns its status, or `None` if it had to be killed after `limit`.
fn run_logged(mut command: Command, log: &Path, limit: Duration) -> Option<ExitStatus> {
    let output = File::create(log).expect("make a log");
    let errors = output.try_clone().expect("a second descriptor");
    // A file, since what a hanging program leaves behind may keep a pipe open.
    command.stdin(Stdio::null()).stdout(output).stderr(errors).process_group(0);
    let mut child = command.spawn().expect("start the check");
    let begin = Instant::now();
    loop {
        if let Some(status) = child.try_wait().expect("look after the check") {
            return Some(status);
        }
        if begin.elapsed() > limit {
            // SAFETY: the group was made for this child, which has not been waited for, so the number is still its own.
            unsafe { libc::killpg(child.id() as i32, libc::SIGKILL) };
            child.wait().expect("wait for the check");
            return None;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Returns the outcome that a program's status and output mean.
fn outcome_of(check: Check, status: ExitStatus, printed: &str) -> Outcome {
    let (one_passed, skip) = match check {
        Check::Case(_) | Check::Plain(_) => ("1 passed, 0 failed, 0 skipped", "skip   "),
        _ => ("test result: ok. 1 passed", "skipped: "),
    };
    if let Some(reason) = printed.lines().find_map(|line| line.strip_prefix(skip)) {
        return Outcome::Skipped(reason.to_owned());
    }
    match status.success() && printed.contains(one_passed) {
        true => Outcome::Passed,
        false => Outcome::Failed(format!("{status}\n{printed}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt;

    #[test]
    fn only_one_that_ran_has_passed() {
        let (fine, failed) = (ExitStatus::from_raw(0), ExitStatus::from_raw(1 << 8));
        let (case, test) = (Check::Case("nop::a"), Check::Engine("a"));
        let passed = |check, status, printed: &str| outcome_of(check, status, printed) == Outcome::Passed;
        assert!(passed(case, fine, "pass   nop::a@libc (1 ms)\n1 passed, 0 failed, 0 skipped\n"));
        assert!(!passed(case, failed, "anyring-conformance: no case is named nop::a\n"));
        assert!(passed(test, fine, "test a ... ok\ntest result: ok. 1 passed; 0 failed\n"));
        assert!(!passed(test, fine, "test result: ok. 0 passed; 0 failed\n"), "there is no such test");
        assert!(!passed(test, failed, "test result: FAILED. 0 passed; 1 failed\n"));
        let skipped = |check, printed| matches!(outcome_of(check, fine, printed), Outcome::Skipped(_));
        assert!(skipped(case, "skip   nop::a@libc: no disk\n0 passed, 0 failed, 1 skipped\n"));
        assert!(skipped(test, "skipped: a: no compiler\ntest result: ok. 1 passed; 0 failed\n"));
    }

    #[test]
    fn results_come_in_the_order_of_the_items() {
        let items: Vec<u64> = (0..20).collect();
        let answers = at_a_time(4, &items, |item| {
            std::thread::sleep(Duration::from_millis((7 * item) % 5));
            *item
        });
        assert_eq!(answers, items);
    }
}
