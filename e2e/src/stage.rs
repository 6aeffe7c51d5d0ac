//! One test's temporary folder, and how its programs are started, limited in time and ended.

use crate::{programs, Statistics};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions};
use std::ffi::OsStr;
use std::fs::File;
use std::io::{Read, Seek};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// How long one program may take; the longest takes a few seconds.
const LIMIT: Duration = Duration::from_secs(120);

/// What the kernel answers to the three io_uring calls.
#[derive(Debug, Clone, Copy)]
pub enum Refusal {
    /// As Docker's default profile does.
    Eperm,
    /// As a kernel without io_uring does.
    Enosys,
}

impl Refusal {
    /// Its name, as `anyring deny --errno` takes it.
    pub fn name(self) -> &'static str {
        match self {
            Refusal::Eperm => "EPERM",
            Refusal::Enosys => "ENOSYS",
        }
    }

    /// Its number.
    pub fn errno(self) -> i32 {
        match self {
            Refusal::Eperm => libc::EPERM,
            Refusal::Enosys => libc::ENOSYS,
        }
    }
}

/// How a program ended and what it said.
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

/// A temporary folder for one test, in TMPDIR or else /var/tmp (on disk, where direct I/O works), removed at the end.
pub struct Stage {
    directory: TempDir,
    refusal: Refusal,
}

impl Stage {
    /// An empty folder, and the kernel's answer to the programs that will run there.
    ///
    /// # Panics
    ///
    /// When no folder can be made.
    pub fn new(refusal: Refusal) -> Self {
        let base = std::env::var_os("TMPDIR").map_or_else(|| PathBuf::from("/var/tmp"), PathBuf::from);
        let directory =
            tempfile::Builder::new().prefix("anyring-e2e-").tempdir_in(base).expect("a temporary folder");
        Stage { directory, refusal }
    }

    /// The folder.
    pub fn directory(&self) -> &Path {
        self.directory.path()
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
        file
    }

    /// Runs a program under `anyring deny -- anyring run`, asserts that it ended well and that the engine completed
    /// at least `minimum(outcome)` of each opcode while the kernel refused.
    ///
    /// # Panics
    ///
    /// When any of it does not hold.
    pub fn serve<'m>(&self, program: &Program, minimum: impl FnOnce(&Outcome) -> Vec<(&'m str, u64)>) -> Outcome {
        let (outcome, statistics) = self.attempt(program);
        let outcome = outcome.succeeded();
        match statistics {
            Some(statistics) => statistics.assert_served(self.refusal.errno(), &minimum(&outcome)),
            None => println!("E2E_ON=kernel: statistics not asserted for {}", outcome.command),
        }
        outcome
    }

    /// Runs a program under `anyring deny -- anyring run`, however it ends, and reads the statistics; plainly and
    /// without any for `E2E_ON=kernel`.
    ///
    /// # Panics
    ///
    /// When it cannot be started or takes too long, or when there are no statistics.
    pub fn attempt(&self, program: &Program) -> (Outcome, Option<Statistics>) {
        if on_kernel() {
            return (self.plain(program), None);
        }
        let statistics = tempfile::Builder::new().prefix("statistics-").tempfile_in(self.directory());
        let statistics = statistics.expect("a statistics file").into_temp_path();
        let anyring = programs::anyring();
        let mut command = self.command(anyring.as_os_str());
        command.args(["deny", "--errno", self.refusal.name(), "--"]).arg(&anyring);
        command.args(["run", "--backend", "user", "--stats"]).arg(&statistics).arg("--").arg(&program.path);
        let outcome = finish(command, program);
        (outcome, Some(Statistics::read(&statistics)))
    }

    /// Runs a program under `anyring deny` alone.
    pub fn deny(&self, program: &Program) -> Outcome {
        let mut command = self.command(programs::anyring().as_os_str());
        command.args(["deny", "--errno", self.refusal.name(), "--"]).arg(&program.path);
        finish(command, program)
    }

    /// Runs a program as it is.
    pub fn plain(&self, program: &Program) -> Outcome {
        finish(self.command(program.path.as_os_str()), program)
    }

    /// A command in the folder, without any setting of ours that the caller's environment may hold.
    fn command(&self, program: &OsStr) -> Command {
        let mut command = Command::new(program);
        command.current_dir(self.directory()).env("RUST_BACKTRACE", "0").env_remove("LD_PRELOAD");
        for name in ["ANYRING_BACKEND", "ANYRING_RAW", "ANYRING_LOG", "ANYRING_STATS", "ANYRING_LIBRARY"] {
            command.env_remove(name);
        }
        command
    }
}

/// A program with its arguments and environment.
pub struct Program {
    path: PathBuf,
    arguments: Vec<String>,
    environment: Vec<(&'static str, &'static str)>,
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
    pub fn env(mut self, name: &'static str, value: &'static str) -> Self {
        self.environment.push((name, value));
        self
    }
}

fn on_kernel() -> bool {
    match std::env::var("E2E_ON").as_deref() {
        Ok("kernel") => true,
        Ok("engine") | Err(_) => false,
        Ok(other) => panic!("E2E_ON={other}: it is `engine` (the default) or `kernel`"),
    }
}

/// Runs a command to its end in a process group of its own, and ends the whole group when it is over.
fn finish(mut command: Command, program: &Program) -> Outcome {
    command.args(&program.arguments).envs(program.environment.iter().copied());
    let text = format!("{command:?}");
    // Files, so that a program which says much never waits for us.
    let mut stdout = tempfile::tempfile().expect("a file for stdout");
    let mut stderr = tempfile::tempfile().expect("a file for stderr");
    command.stdin(std::process::Stdio::null());
    command.stdout(stdout.try_clone().expect("dup")).stderr(stderr.try_clone().expect("dup"));
    command.process_group(0);
    // SAFETY: between fork and exec the closure makes one system call, prctl, which is async-signal-safe.
    unsafe {
        command.pre_exec(|| Ok(rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?));
    }
    let child = command.spawn().unwrap_or_else(|error| panic!("{text}: {error} (`make setup` installs clients)"));
    let (status, in_time) = end(child);
    let outcome = Outcome { command: text, status, stdout: contents(&mut stdout), stderr: contents(&mut stderr) };
    assert!(in_time, "still running after {LIMIT:?}: {outcome}");
    outcome
}

/// Waits for the child within the limit, then kills what is left of its group. Whether it ended in time.
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
