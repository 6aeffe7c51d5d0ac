//! One test's temporary folder, and how its programs are started, limited in time and ended.

use crate::{programs, Environment, Refusal, Statistics};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions};
use std::ffi::OsStr;
use std::fs::File;
use std::io::{Read, Seek};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// The limit of one program; the longest takes a few seconds.
const LIMIT: Duration = Duration::from_secs(120);

/// The status and output of a program that ended.
#[derive(Debug)]
pub struct Outcome {
    /// The program as it was run, for messages.
    pub command: String,
    /// Its exit status.
    pub status: ExitStatus,
    /// All of its standard output.
    pub stdout: String,
    /// All of its standard error.
    pub stderr: String,
}

impl Outcome {
    /// Asserts that the program ended with status 0.
    ///
    /// # Panics
    ///
    /// When it did not; the message has its output.
    pub fn succeeded(self) -> Self {
        assert!(self.status.success(), "{self}");
        self
    }
}

impl std::fmt::Display for Outcome {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}\n--- stdout\n{}\n--- stderr\n{}", self.command, self.status, self.stdout, self.stderr)
    }
}

/// A temporary folder for one test, removed at the end, and the environment of the programs that run there.
pub struct Stage {
    directory: TempDir,
    environment: Environment,
}

impl Stage {
    /// An empty folder that belongs to the environment's user. It is in TMPDIR, if that is set and the user can reach
    /// it. Otherwise it is in /var/tmp, which is on disk, so that direct I/O works.
    ///
    /// # Panics
    ///
    /// When no folder can be made.
    pub fn new(environment: Environment) -> Self {
        let fallback = Path::new("/var/tmp");
        let base = std::env::var_os("TMPDIR").map(PathBuf::from);
        let base = base.filter(|base| environment.user.switch().is_none() || programs::open_to_all(base));
        let directory =
            tempfile::Builder::new().prefix("anyring-e2e-").tempdir_in(base.as_deref().unwrap_or(fallback));
        let stage = Stage { directory: directory.expect("a temporary folder"), environment };
        stage.give(stage.directory());
        stage
    }

    /// The folder.
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// The environment.
    pub fn environment(&self) -> Environment {
        self.environment
    }

    /// A file's path in the folder.
    pub fn file(&self, name: &str) -> PathBuf {
        self.directory().join(name)
    }

    /// Makes a file of `len` bytes, all `byte`.
    ///
    /// # Panics
    ///
    /// When it cannot be written.
    pub fn make_file(&self, name: &str, byte: u8, len: usize) -> PathBuf {
        let file = self.file(name);
        std::fs::write(&file, vec![byte; len]).expect("write a file");
        self.give(&file);
        file
    }

    /// The file itself if the user can read it, otherwise a copy in the folder.
    ///
    /// # Panics
    ///
    /// When it cannot be copied.
    pub fn readable(&self, file: &Path) -> PathBuf {
        if self.environment.user.switch().is_none() || programs::open_to_all(file) {
            return file.to_owned();
        }
        let directory = self.file("programs");
        std::fs::create_dir_all(&directory).expect("a folder");
        self.give(&directory);
        let copy = directory.join(file.file_name().expect("a file's name"));
        if !copy.exists() {
            std::fs::copy(file, &copy).expect("copy a program");
            self.give(&copy);
        }
        copy
    }

    /// A copy of a program in the folder itself.
    ///
    /// # Panics
    ///
    /// When it cannot be copied.
    pub fn copy(&self, program: &Path) -> PathBuf {
        let copy = self.file(program.file_name().and_then(OsStr::to_str).expect("a program's name"));
        std::fs::copy(program, &copy).expect("copy a program");
        self.give(&copy);
        copy
    }

    /// Makes the environment's user the owner.
    fn give(&self, path: &Path) {
        let owner = self.environment.user.switch();
        if owner.is_some() {
            std::os::unix::fs::chown(path, owner, owner).expect("chown");
        }
    }

    /// Runs a program under `anyring deny -- anyring run`, asserts that it ended well and that the engine completed
    /// at least `minimum(outcome)` of each opcode while the kernel refused.
    ///
    /// # Panics
    ///
    /// When any of it does not hold.
    pub fn serve<'m>(&self, program: &Program, minimum: impl FnOnce(&Outcome) -> Vec<(&'m str, u64)>) -> Outcome {
        self.judge(self.attempt(program), minimum)
    }

    /// Does the same as [`Stage::serve`], but makes the program a guest even if it could load the library.
    ///
    /// # Panics
    ///
    /// When any of it does not hold.
    pub fn serve_guest<'m>(
        &self,
        program: &Program,
        minimum: impl FnOnce(&Outcome) -> Vec<(&'m str, u64)>,
    ) -> Outcome {
        self.judge(self.attempt_by(&["--guest"], program), minimum)
    }

    fn judge<'m>(
        &self,
        (outcome, statistics): (Outcome, Option<Statistics>),
        minimum: impl FnOnce(&Outcome) -> Vec<(&'m str, u64)>,
    ) -> Outcome {
        let outcome = outcome.succeeded();
        match statistics {
            Some(statistics) => statistics.assert_served(self.environment.refusal.errno(), &minimum(&outcome)),
            None => println!("E2E_ON=kernel: statistics not asserted for {}", outcome.command),
        }
        outcome
    }

    /// Does the same as [`Stage::serve`], for a program that makes its calls by its own `syscall` instructions. If such
    /// calls cannot be served here, prints the reason and returns `None`. There are two reasons. Where a program may
    /// not install a filter, nothing traps the calls, so the program must fail with the kernel's errno. Where the calls
    /// kill and the instructions cannot be replaced, `run` must have refused to start the program.
    ///
    /// # Panics
    ///
    /// When any of it does not hold.
    pub fn serve_raw<'m>(
        &self,
        program: &Program,
        minimum: impl FnOnce(&Outcome) -> Vec<(&'m str, u64)>,
    ) -> Option<Outcome> {
        if on_kernel() || self.environment.refusal.permits_filters() {
            let seen = self.attempt(program);
            if self.environment.refusal == Refusal::Kill && seen.0.status.code() == Some(125) {
                let line = seen.0.stderr.trim_end();
                assert!(line.contains("cannot be replaced") && line.lines().count() == 1, "{}", seen.0);
                println!("{}: {line}", self.environment);
                return None;
            }
            return Some(self.judge(seen, minimum));
        }
        let outcome = finish(self.served(program, &self.file("statistics")));
        let printed = format!("{}{}", outcome.stdout, outcome.stderr);
        let message = self.environment.refusal.message();
        assert!(
            !outcome.status.success() && printed.contains(message),
            "it should fail with `{message}`: {outcome}"
        );
        println!("{}: instructions are not caught without seccomp(2): {message}", self.environment);
        None
    }

    /// Runs a program under `anyring deny -- anyring run`, however it ends, and reads the statistics. With
    /// `E2E_ON=kernel` the program runs as it is, and there are no statistics.
    ///
    /// # Panics
    ///
    /// When it cannot be started or takes too long, or when there are no statistics.
    pub fn attempt(&self, program: &Program) -> (Outcome, Option<Statistics>) {
        self.attempt_by(&[], program)
    }

    /// Does the same as [`Stage::attempt`], with these options for `anyring run`.
    fn attempt_by(&self, options: &[&str], program: &Program) -> (Outcome, Option<Statistics>) {
        if on_kernel() {
            return (self.plain(program), None);
        }
        let statistics = tempfile::Builder::new().prefix("statistics-").tempfile_in(self.directory());
        let statistics = statistics.expect("a statistics file").into_temp_path();
        self.give(&statistics);
        let outcome = finish(self.served_by(options, program, &statistics));
        (outcome, Some(Statistics::read(&statistics)))
    }

    /// A program under `anyring deny -- anyring run`, not yet started.
    pub fn served(&self, program: &Program, statistics: &Path) -> Command {
        self.served_by(&[], program, statistics)
    }

    fn served_by(&self, options: &[&str], program: &Program, statistics: &Path) -> Command {
        let anyring = self.readable(&programs::anyring());
        self.readable(&programs::library());
        let mut command = self.command(anyring.as_os_str());
        match self.environment.refusal.memlock() {
            // The kernel serves what it does not refuse.
            Some(_) => command.arg("run"),
            None => {
                command.arg("deny").args(self.environment.refusal.options()).arg("--").arg(&anyring);
                command.args(["run", "--backend", "user"])
            }
        };
        command.arg("--stats").arg(statistics).args(options).arg("--").arg(self.executable(program));
        program.complete(command)
    }

    /// Runs a program under `anyring deny` without `anyring run`.
    pub fn deny(&self, program: &Program) -> Outcome {
        let mut command = self.command(self.readable(&programs::anyring()).as_os_str());
        command.arg("deny").args(self.environment.refusal.options()).arg("--").arg(self.executable(program));
        finish(program.complete(command))
    }

    /// Runs a program as it is.
    pub fn plain(&self, program: &Program) -> Outcome {
        finish(self.unserved(program))
    }

    /// A program as it is, not yet started.
    pub fn unserved(&self, program: &Program) -> Command {
        program.complete(self.command(self.executable(program).as_os_str()))
    }

    fn executable(&self, program: &Program) -> PathBuf {
        if program.path.is_absolute() {
            self.readable(&program.path)
        } else {
            program.path.clone()
        }
    }

    /// A command in the folder, of the environment's user. It gets none of anyring's settings that the caller's
    /// environment may hold. It is the leader of a process group and dies with this thread.
    fn command(&self, program: &OsStr) -> Command {
        let mut command = Command::new(program);
        command.current_dir(self.directory()).env("RUST_BACKTRACE", "0").env_remove("LD_PRELOAD");
        for name in
            ["ANYRING_BACKEND", "ANYRING_AIO", "ANYRING_RAW", "ANYRING_LOG", "ANYRING_STATS", "ANYRING_LIBRARY"]
        {
            command.env_remove(name);
        }
        if let Some(id) = self.environment.user.switch() {
            command.uid(id).gid(id).env("HOME", self.directory()); // uid() also drops root's further groups
        }
        command.process_group(0).stdin(Stdio::null());
        let memlock = self.environment.refusal.memlock();
        // SAFETY: between fork and exec the closure makes system calls only, which are async-signal-safe.
        unsafe {
            command.pre_exec(move || {
                if memlock.is_some() {
                    let limit = rustix::process::Rlimit { current: memlock, maximum: memlock };
                    rustix::process::setrlimit(rustix::process::Resource::Memlock, limit)?;
                }
                Ok(rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?)
            });
        }
        command
    }
}

/// A program with its arguments and environment.
pub struct Program {
    path: PathBuf,
    arguments: Vec<String>,
    environment: Vec<(&'static str, String)>,
}

impl Program {
    /// A program by its path, or by its name if it is in PATH.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Program { path: path.into(), arguments: Vec::new(), environment: Vec::new() }
    }

    /// Appends arguments.
    pub fn args<A: AsRef<Path>>(mut self, arguments: impl IntoIterator<Item = A>) -> Self {
        let text = |argument: A| argument.as_ref().to_str().expect("a path in UTF-8").to_owned();
        self.arguments.extend(arguments.into_iter().map(text));
        self
    }

    /// Sets one environment variable.
    pub fn env(mut self, name: &'static str, value: &str) -> Self {
        self.environment.push((name, value.to_owned()));
        self
    }

    /// The command with them.
    fn complete(&self, mut command: Command) -> Command {
        command.args(&self.arguments).envs(self.environment.iter().map(|(name, value)| (name, value)));
        command
    }
}

/// True if the programs run on the kernel's io_uring instead of anyring's.
///
/// # Panics
///
/// When E2E_ON is neither `kernel` nor `engine`.
pub fn on_kernel() -> bool {
    match std::env::var("E2E_ON").as_deref() {
        Ok("kernel") => true,
        Ok("engine") | Err(_) => false,
        Ok(other) => panic!("E2E_ON={other}: it is `engine` (the default) or `kernel`"),
    }
}

/// Runs a command to its end, and ends its whole process group when it is over.
fn finish(mut command: Command) -> Outcome {
    let text = format!("{command:?}");
    // Files, so that a program which says much never waits for us.
    let mut stdout = tempfile::tempfile().expect("a file for stdout");
    let mut stderr = tempfile::tempfile().expect("a file for stderr");
    command.stdout(stdout.try_clone().expect("dup")).stderr(stderr.try_clone().expect("dup"));
    let child = command.spawn().unwrap_or_else(|error| panic!("{text}: {error} (`make setup` installs clients)"));
    let (status, in_time) = end(child);
    let outcome = Outcome { command: text, status, stdout: contents(&mut stdout), stderr: contents(&mut stderr) };
    assert!(in_time, "still running after {LIMIT:?}: {outcome}");
    outcome
}

/// Waits for the child within the limit, then kills the rest of its group. Returns whether it ended in time.
fn end(mut child: Child) -> (ExitStatus, bool) {
    let pid = Pid::from_child(&child);
    let deadline = Instant::now() + LIMIT;
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    let in_time = loop {
        let ended = rustix::process::waitid(WaitId::Pid(pid), options).expect("waitid").is_some();
        if ended || Instant::now() >= deadline {
            break ended;
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    // The child is not reaped yet, so the number still means its group, which may have other members left.
    rustix::process::kill_process_group(pid, Signal::KILL).expect("kill the group");
    (child.wait().expect("wait"), in_time)
}

fn contents(file: &mut File) -> String {
    let mut bytes = Vec::new();
    file.rewind().and_then(|()| file.read_to_end(&mut bytes)).expect("read the output");
    String::from_utf8_lossy(&bytes).into_owned()
}
