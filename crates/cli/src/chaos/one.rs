//! One run of the program: starts it like `anyring run --backend user`, watches it and returns how it ended.

use super::jobs::Task;
use crate::cli::ChaosOptions;
use crate::errno;
use crate::failure::{Failure, CANNOT_EXECUTE, NOT_FOUND, OWN_FAILURE};
use crate::places::Places;
use rustix::fs::{memfd_create, MemfdFlags};
use rustix::process::{kill_process, waitid, waitpid, Pid, Signal, WaitId, WaitIdOptions, WaitOptions};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{IsTerminal, Read, Seek, Write};
use std::os::fd::AsRawFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Time limit of each of several runs, unless `--timeout` sets another.
const PATIENCE: Duration = Duration::from_secs(10);
/// The time limit as `--timeout` names it.
pub const PATIENCE_TEXT: &str = "10s";
/// Most lines and bytes of a failing run's output that are kept: the last ones.
const LINES: usize = 40;
const BYTES: usize = 64 << 10;
/// Longest sleep between two checks of the program.
const PERIOD: libc::timespec = libc::timespec { tv_sec: 0, tv_nsec: 20_000_000 };

/// An injection, as in the engine's log.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Injection {
    /// `RING.POSITION.RULE`.
    #[serde(rename = "injection")]
    pub name: String,
    rule: String,
    opcode: Option<String>,
    user_data: Option<u64>,
    /// The time since the process made its first ring.
    after_us: u64,
    what: String,
    /// The program's stack when it called io_uring_enter(2), innermost frame first.
    #[serde(default)]
    at: Vec<String>,
}

impl Injection {
    /// True if `--only` means this injection by `name`.
    pub fn is(&self, name: &str) -> bool {
        self.name == name
    }

    /// Describes the injection for people: one line, and one for each frame of the program.
    pub fn lines(&self, places: &Places) -> Vec<String> {
        with_frames(self.describe(), &self.at, places)
    }

    /// Describes the injection in one line, with the innermost function of the program.
    pub fn line(&self, places: &Places) -> String {
        let place = places.callers(&self.at).into_iter().next();
        place.map_or_else(|| self.describe(), |place| format!("{}, at {place}", self.describe()))
    }

    fn describe(&self) -> String {
        let Injection { name, rule, what, .. } = self;
        let request = match (&self.opcode, self.user_data) {
            (Some(opcode), Some(user_data)) => format!("{opcode}, user_data {user_data:#x}: "),
            _ => String::new(),
        };
        format!("{name}: {rule}: {request}{what}, {:.3} ms after the first ring", self.after_us as f64 / 1_000.0)
    }
}

/// A finding as in the engine's log: memory that changed while a request used it, or misuse.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Finding {
    /// `RING.POSITION.RULE`.
    #[serde(rename = "finding")]
    name: String,
    rule: String,
    opcode: Option<String>,
    user_data: Option<u64>,
    fd: Option<i32>,
    what: String,
    #[serde(default)]
    at: Vec<String>,
    #[serde(flatten)]
    memory: Option<Memory>,
}

/// The address that changed, and when the request began and ended: CLOCK_MONOTONIC in nanoseconds.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
struct Memory {
    address: u64,
    submitted_ns: u64,
    ended_ns: u64,
}

impl Finding {
    /// Describes the finding for people: one line, and one for each frame of the program.
    pub fn lines(&self, places: &Places) -> Vec<String> {
        with_frames(self.describe(), &self.at, places)
    }

    fn describe(&self) -> String {
        let Finding { name, rule, what, .. } = self;
        let fd = self.fd.map_or(String::new(), |fd| format!(", fd {fd}"));
        let request = match (&self.opcode, self.user_data) {
            (Some(opcode), Some(user_data)) => format!("{opcode}, user_data {user_data:#x}{fd}: "),
            _ => String::new(),
        };
        let place = self.memory.as_ref().map_or(String::new(), |it| {
            let age_us = it.ended_ns.saturating_sub(it.submitted_ns) / 1_000;
            format!(", at {:#x}; submitted {age_us} us before its CQE", it.address)
        });
        format!("{name}: {rule}: {request}{what}{place}")
    }
}

fn with_frames(line: String, frames: &[String], places: &Places) -> Vec<String> {
    let frames = places.callers(frames);
    std::iter::once(line).chain(frames.iter().map(|place| format!("    at {place}"))).collect()
}

/// A line of the engine's log.
#[derive(Deserialize)]
#[serde(untagged)]
enum Line {
    Injection(Injection),
    Finding(Finding),
    Ring { made_ring: u32 },
}

/// The way in which a program ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Ending {
    Status(i32),
    Signal(i32),
    /// Killed because its time was over.
    Late,
}

/// One run.
pub struct Run {
    pub ending: Ending,
    pub injections: Vec<Injection>,
    pub findings: Vec<Finding>,
    /// Number of rings that the program made.
    pub rings: usize,
    /// The reason why the run failed, if it did.
    pub failure: Option<String>,
    /// The last output of a run that failed or was refused, if it was kept.
    pub output: Vec<u8>,
}

impl Run {
    /// The exit status with which the program, or `anyring run`, says that nothing was served. Its output has the
    /// reason.
    pub fn refusal(&self) -> Option<i32> {
        match (self.ending, self.rings) {
            (Ending::Status(status @ (OWN_FAILURE | CANNOT_EXECUTE | NOT_FOUND)), 0) => Some(status),
            _ => None,
        }
    }

    /// The run, unless it was refused.
    ///
    /// # Errors
    /// It was refused. The reason was printed.
    pub fn unless_refused(self) -> Result<Run, Failure> {
        let Some(status) = self.refusal() else { return Ok(self) };
        self.show_output();
        Err(Failure { status, message: String::new() })
    }

    /// Prints the output, if it was kept.
    pub fn show_output(&self) {
        let _ = std::io::stderr().write_all(&self.output);
    }
}

/// Makes a file without a name.
pub fn memory_file(name: &str) -> Result<File, Failure> {
    let made = memfd_create(name, MemfdFlags::CLOEXEC);
    made.map(File::from).map_err(|error| Failure::own(format!("memfd_create: {error}")))
}

/// Returns the path by which other processes open a file of this process.
pub fn path_of(file: &File) -> String {
    format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd())
}

/// Runs the program repeatedly.
pub struct Runner<'a> {
    options: &'a ChaosOptions,
    rules: String,
    /// True if the program's output is kept in a file, and it has no standard input.
    apart: bool,
    timeout: Option<Duration>,
    /// The output of the last run.
    printed: File,
    /// The injections of the last run, and the names of the only injections permitted. Both files are unnamed. The
    /// program opens them through this process's /proc entry.
    injected: File,
    only: File,
    signals: libc::sigset_t,
}

impl<'a> Runner<'a> {
    pub fn new(options: &'a ChaosOptions, rules: &str, many: bool) -> Result<Runner<'a>, Failure> {
        let timeout = options.timeout.as_ref().map(|limit| Duration::from_nanos(limit.ns));
        let runner = Runner {
            options,
            rules: rules.to_owned(),
            apart: many || options.fail_output.is_some(),
            timeout: timeout.or(many.then_some(PATIENCE)),
            printed: memory_file("anyring-chaos-output")?,
            injected: memory_file("anyring-chaos-log")?,
            only: memory_file("anyring-chaos-only")?,
            signals: block_signals(),
        };
        if runner.has_group() {
            adopt_orphans()?;
        }
        Ok(runner)
    }

    /// Starts the program by a [`command`](Self::command), and waits until it has ended.
    pub fn follow(&self, command: &mut Command) -> Result<Ending, Failure> {
        let begin = Instant::now();
        let mut child = command.spawn().map_err(|error| Failure::own(format!("cannot start itself: {error}")))?;
        self.wait(&mut child, begin)
    }

    /// Returns what the last run left: the engine's log, also after an interrupt, and the run.
    pub fn collect(&self, ending: Result<Ending, Failure>) -> (Vec<u8>, Result<Run, Failure>) {
        match read_all(&self.injected) {
            Ok(log) => {
                let run = ending.and_then(|ending| self.run(ending, &log));
                (log, run)
            }
            Err(failure) => (Vec::new(), Err(failure)),
        }
    }

    fn run(&self, ending: Ending, log: &[u8]) -> Result<Run, Failure> {
        let mut run = Run {
            ending,
            injections: Vec::new(),
            findings: Vec::new(),
            rings: 0,
            failure: None,
            output: Vec::new(),
        };
        // The last line of a process that was killed while writing it is incomplete, and is skipped.
        for line in log.split(|byte| *byte == b'\n').filter_map(|line| serde_json::from_slice(line).ok()) {
            match line {
                Line::Injection(injection) => run.injections.push(injection),
                Line::Finding(finding) => run.findings.push(finding),
                Line::Ring { made_ring } => run.rings += usize::from(made_ring != 0),
            }
        }
        let has_text = match &self.options.fail_output {
            Some(text) => contains(&read_all(&self.printed)?, text.as_bytes()),
            None => false,
        };
        let text = || has_text.then(|| "it printed the text of --fail-output".to_owned());
        let memory = run.findings.iter().any(|finding| finding.memory.is_some());
        let found = if memory { "memory in flight was changed" } else { "misuse was found" };
        let findings = || (!run.findings.is_empty()).then(|| found.to_owned());
        run.failure = ending.describe().or_else(text).or_else(findings);
        if self.apart && run.failure.is_some() {
            run.output = last_lines(&read_all(&self.printed)?);
        }
        Ok(run)
    }

    /// The output of the last run, if it was kept.
    pub fn printed(&self) -> &File {
        &self.printed
    }

    /// Runs another command until it ends. When its time is over, kills the command and all processes that it started.
    pub fn run_to_end(&self, command: &mut Command, begin: Instant) -> Result<Ending, Failure> {
        let started = command.process_group(0).spawn();
        let mut child =
            started.map_err(|error| Failure::own(format!("cannot start /bin/sh: {}", errno::of(&error))))?;
        self.wait(&mut child, begin)
    }

    /// Empties the files of the last run. Returns the command that makes a run.
    pub fn command(&self, (seed, only): &Task) -> Result<Command, Failure> {
        let myself = std::env::current_exe().map_err(|error| Failure::own(format!("/proc/self/exe: {error}")))?;
        let mut command = Command::new(myself);
        command.args(["run", "--backend", "user", "--"]).args(&self.options.program.words);
        for file in [&self.injected, &self.printed, &self.only] {
            empty(file)?;
        }
        command.env("ANYRING_CHAOS", seed.to_string());
        command.env("ANYRING_CHAOS_RULES", &self.rules).env("ANYRING_CHAOS_LOG", path_of(&self.injected));
        command.env_remove("ANYRING_CHAOS_ONLY");
        if let Some(names) = only {
            (&self.only).write_all(names.join("\n").as_bytes()).map_err(|error| Failure::own(error.to_string()))?;
            command.env("ANYRING_CHAOS_ONLY", path_of(&self.only));
        }
        if self.apart {
            let copy = || self.printed.try_clone().map_err(|error| Failure::own(error.to_string()));
            command.stdin(Stdio::null()).stdout(copy()?).stderr(copy()?);
        }
        if self.has_group() {
            // All that the program starts is killed with it. A background process group may not read from a terminal.
            command.process_group(0);
            if std::io::stdin().is_terminal() {
                command.stdin(Stdio::null());
            }
        }
        Ok(command)
    }

    /// Waits until the program has ended. Kills it when its time is over, or when a signal asks this process to end.
    fn wait(&self, child: &mut Child, begin: Instant) -> Result<Ending, Failure> {
        loop {
            if has_ended(child)? {
                // Before waiting for it: until then no other group can have its number.
                self.kill(child);
                let status = child.wait().map_err(|error| Failure::own(format!("waitpid: {error}")))?;
                return Ok(match status.signal() {
                    Some(signal) => Ending::Signal(signal),
                    None => Ending::Status(status.code().unwrap_or(OWN_FAILURE)),
                });
            }
            let is_over = if self.is_late(begin) { Some(Ok(Ending::Late)) } else { self.sleep().err().map(Err) };
            if let Some(ending) = is_over {
                self.kill(child);
                let _ = child.kill().and_then(|()| child.wait());
                return ending;
            }
        }
    }

    /// True once a run that began at that time has exceeded its time limit.
    pub fn is_late(&self, begin: Instant) -> bool {
        self.timeout.is_some_and(|timeout| begin.elapsed() >= timeout)
    }

    /// Sleeps until a child stops or ends, or for a period.
    ///
    /// # Errors
    /// A signal arrived that ends this process.
    pub fn sleep(&self) -> Result<(), Failure> {
        // SAFETY: both are values that outlive the call; no information on the signal is asked for.
        let signal = unsafe { libc::sigtimedwait(&self.signals, std::ptr::null_mut(), &PERIOD) };
        match signal > 0 && signal != libc::SIGCHLD {
            true => Err(Failure { status: 128 + signal, message: String::new() }),
            false => Ok(()),
        }
    }

    /// True if the program gets its own process group, since it may have to be killed with all processes that it
    /// starts.
    fn has_group(&self) -> bool {
        self.apart || self.timeout.is_some()
    }

    /// Kills the processes that the program has left running, if it had its own process group. These are the group, and
    /// processes that have left it.
    fn kill(&self, child: &Child) {
        if self.has_group() {
            // SAFETY: takes no pointers. The child has not been waited for, so the group's number is still its own.
            unsafe { libc::kill(-(child.id() as libc::pid_t), libc::SIGKILL) };
            kill_orphans(Some(child.id()));
        }
    }
}

/// Makes orphaned descendants children of this process, whatever session they are in.
pub fn adopt_orphans() -> Result<(), Failure> {
    let adopted = rustix::process::set_child_subreaper(Some(rustix::process::getpid()));
    adopted.map_err(|error| Failure::own(format!("PR_SET_CHILD_SUBREAPER: {error}")))
}

/// Kills all children of this process, and their descendants, which become children of this process when they are
/// orphaned. Waits for all of them except the program itself, which the caller waits for.
pub fn kill_orphans(program: Option<u32>) {
    let program = program.and_then(|pid| Pid::from_raw(pid as i32));
    let children = || {
        let list = std::fs::read_to_string(format!("/proc/self/task/{}/children", std::process::id()));
        list.unwrap_or_default().split_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<i32>>()
    };
    if let Some(pid) = program {
        // It ends soon after the kill; until then its children belong to it.
        let ended = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        let _ = kill_process(pid, Signal::KILL).and_then(|()| waitid(WaitId::Pid(pid), ended).map(|_| ()));
    }
    loop {
        let orphans = children().into_iter().filter_map(Pid::from_raw).filter(|pid| Some(*pid) != program);
        let killed = orphans.filter(|pid| {
            kill_process(*pid, Signal::KILL).is_ok() && waitpid(Some(*pid), WaitOptions::empty()).is_ok()
        });
        if killed.count() == 0 {
            return;
        }
    }
}

/// True if the child has ended. Another call must still wait for it.
fn has_ended(child: &Child) -> Result<bool, Failure> {
    let Some(pid) = Pid::from_raw(child.id() as i32) else { return Ok(true) };
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    let ended = waitid(WaitId::Pid(pid), options).map_err(|error| Failure::own(format!("waitid: {error}")))?;
    Ok(ended.is_some())
}

/// Blocks the signals that end this process, and SIGCHLD, until sigtimedwait(2) takes them. std gives children an
/// empty mask.
fn block_signals() -> libc::sigset_t {
    // SAFETY: the set is written before it is read, and the numbers are signals.
    unsafe {
        let mut signals = std::mem::zeroed();
        libc::sigemptyset(&mut signals);
        for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGCHLD] {
            libc::sigaddset(&mut signals, signal);
        }
        libc::sigprocmask(libc::SIG_BLOCK, &signals, std::ptr::null_mut());
        signals
    }
}

fn empty(file: &File) -> Result<(), Failure> {
    let emptied = file.set_len(0).and_then(|()| (&mut &*file).rewind());
    emptied.map_err(|error| Failure::own(error.to_string()))
}

fn read_all(mut file: &File) -> Result<Vec<u8>, Failure> {
    let mut text = Vec::new();
    let read = file.rewind().and_then(|()| file.read_to_end(&mut text));
    read.map(|_| text).map_err(|error| Failure::own(error.to_string()))
}

/// The last lines of a text, after a line that says so if there are more. An incomplete last line is ended.
fn last_lines(text: &[u8]) -> Vec<u8> {
    let lines: Vec<_> = text.split_inclusive(|byte| *byte == b'\n').collect();
    let mut last = lines[lines.len().saturating_sub(LINES)..].concat();
    last.drain(..last.len().saturating_sub(BYTES));
    if !last.is_empty() && !last.ends_with(b"\n") {
        last.push(b'\n');
    }
    match lines.len() > LINES {
        true => [format!("[the last {LINES} of {} lines]\n", lines.len()).as_bytes(), &last].concat(),
        false => last,
    }
}

fn contains(text: &[u8], part: &[u8]) -> bool {
    part.is_empty() || text.windows(part.len()).any(|window| window == part)
}
