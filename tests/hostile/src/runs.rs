//! Starts hostile programs, each in a process of its own, and judges their ends.

use crate::child::{PROGRESS_FD, REPORT_FD};
use crate::generate;
use crate::program::{Program, Step};
use anyhow::{Context, Result};
use anyring_test_kit::{list, memory_file, start, text_of, Child, End, Folder, Seeds};
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// The io_uring that serves the programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Backend {
    /// The kernel, to check the programs themselves: it must find nothing
    Kernel,
    /// anyring's library, preloaded
    User,
    /// anyring's engine, with each program as a guest
    Guest,
}

/// The options of a run.
#[derive(clap::Args, Debug, Clone)]
pub struct RunOptions {
    /// The seeds
    #[command(flatten)]
    pub seeds: Seeds,
    /// The io_uring that serves the programs
    #[arg(long, value_enum, default_value = "user")]
    pub backend: Backend,
    /// The library to preload; the one beside this program if not given
    #[arg(long, value_name = "FILE")]
    pub library: Option<PathBuf>,
    /// The command that runs guests; the one beside this program if not given
    #[arg(long, value_name = "FILE")]
    pub anyring: Option<PathBuf>,
    /// Limit of a program in seconds; it ends by itself after two
    #[arg(long, default_value_t = 120)]
    pub limit: u64,
    /// Number of runs of each seed: threads have no order
    #[arg(long, default_value_t = 1)]
    pub times: u32,
    /// Steps that are left out
    #[arg(long, value_delimiter = ',')]
    pub without: Vec<usize>,
    /// Folder for gdb's output about programs that hang, and about cores
    #[arg(long, value_name = "FOLDER")]
    pub traces: Option<PathBuf>,
}

/// The outcome of one run.
pub struct Outcome {
    /// Findings, one a line. The first word is the kind.
    pub findings: Vec<String>,
    /// Findings that are excused, because they are listed.
    pub known: Vec<String>,
    /// The last step that was begun.
    pub step: u64,
}

/// Runs the seeds. True if there is no finding.
pub fn run(options: &RunOptions) -> Result<bool> {
    let runner = Runner::new(options.clone())?;
    let (start, sums) = (Instant::now(), Mutex::new((0, 0, 0)));
    options.seeds.each(|seed| {
        let mut any = false;
        for _ in 0..options.times {
            let outcome = runner.run_once(seed, &options.without)?;
            let (length, found) = (generate::program(seed).steps.len() as u64, !outcome.findings.is_empty());
            let mut sums = sums.lock().expect("no thread panics");
            *sums = (sums.0 + 1, sums.1 + outcome.step.min(length), sums.2 + u64::from(found));
            print(options, seed, &outcome);
            any |= found;
        }
        Ok(any)
    })?;
    let (ran, steps, found) = sums.into_inner().expect("no thread panics");
    println!("{ran} runs, {steps} steps, {found} with findings, {} s", start.elapsed().as_secs());
    // As scripts/summary.sh counts.
    println!("{} passed, {found} failed, 0 skipped", ran - found);
    Ok(found == 0)
}

/// One line a finding, with the command that runs it again.
pub fn print(options: &RunOptions, seed: u64, outcome: &Outcome) {
    let backend = match options.backend {
        Backend::Kernel => " --backend kernel",
        Backend::User => "",
        Backend::Guest => " --backend guest",
    };
    for known in &outcome.known {
        println!("seed {seed}, step {}, listed: {known}", outcome.step);
    }
    for finding in &outcome.findings {
        println!(
            "seed {seed}, step {}: {finding} (anyring-hostile run --seed {seed} --times 20{backend})",
            outcome.step
        );
    }
}

/// Starts programs, in folders of their own.
pub struct Runner {
    options: RunOptions,
    program: PathBuf,
    anyring: PathBuf,
    library: PathBuf,
    /// A copy of the library.
    copy: PathBuf,
    folder: Folder,
}

impl Runner {
    /// Makes a watcher with a folder for the programs' folders.
    pub fn new(options: RunOptions) -> Result<Runner> {
        let program = std::env::current_exe().context("this program's path")?;
        let named_or_beside = |named: &Option<PathBuf>, name| {
            std::path::absolute(named.clone().unwrap_or_else(|| program.with_file_name(name)))
        };
        let library = named_or_beside(&options.library, "libanyring.so")?;
        let anyring = named_or_beside(&options.anyring, "anyring")?;
        if options.backend == Backend::User {
            std::fs::metadata(&library).with_context(|| format!("the library {}", library.display()))?;
        }
        let folder = Folder::new("anyring-hostile")?;
        let copy = folder.path.join("libcopy.so");
        if options.backend == Backend::User {
            std::fs::copy(&library, &copy).with_context(|| format!("copy {}", library.display()))?;
        }
        Ok(Runner { options, program, anyring, library, copy, folder })
    }

    /// Runs the seed's program once.
    pub fn run_once(&self, seed: u64, without: &[usize]) -> Result<Outcome> {
        let folder = self.folder.fresh();
        std::fs::create_dir(&folder).with_context(|| format!("make {}", folder.display()))?;
        // The program may run as a user without privileges.
        std::fs::set_permissions(&folder, PermissionsExt::from_mode(0o777))?;
        let (output, report, progress) = (memory_file()?, memory_file()?, memory_file()?);
        progress.set_len(4096)?; // a page that the program counts its steps in
        let child = self.start(seed, without, &folder, [&output, &report, &progress])?;
        let (end, in_kernel) = self.wait_for(child, seed);
        let mut step = [0; 8];
        progress.read_exact_at(&mut step, 0)?;
        let mut outcome = Outcome { findings: Vec::new(), known: Vec::new(), step: u64::from_ne_bytes(step) };
        judge(&mut outcome, end, &text_of(&report)?, &text_of(&output)?);
        let host = (self.options.backend == Backend::Guest).then_some(self.anyring.as_path());
        excuse(&mut outcome, &generate::program(seed).without(without), in_kernel, host);
        if self.options.traces.is_some() {
            self.trace_core(seed, &folder)?;
        }
        std::fs::remove_dir_all(&folder).with_context(|| format!("remove {}", folder.display()))?;
        Ok(outcome)
    }

    fn start(&self, seed: u64, without: &[usize], folder: &Path, files: [&File; 3]) -> Result<Child> {
        let [output, report, progress] = files;
        let mut command = match self.options.backend {
            Backend::Guest => self.guest(),
            _ => Command::new(&self.program),
        };
        command.arg("child").arg("--seed").arg(seed.to_string()).current_dir(folder);
        match self.options.backend {
            Backend::Kernel => drop(command.arg("--gentle")),
            Backend::Guest => drop(command.arg("--guest")),
            Backend::User => {}
        }
        if !without.is_empty() {
            command.arg("--without").arg(list(without));
        }
        for variable in ["LD_PRELOAD", "ANYRING_BACKEND", "ANYRING_AIO", "ANYRING_RAW"] {
            command.env_remove(variable);
        }
        if self.options.backend == Backend::User {
            let mut libraries = self.library.clone().into_os_string();
            if generate::program(seed).twice {
                libraries.push(":");
                libraries.push(&self.copy);
            }
            command.env("LD_PRELOAD", libraries).env("ANYRING_BACKEND", "user").env("ANYRING_AIO", "user");
        }
        let fds = [report.as_raw_fd(), progress.as_raw_fd()];
        let pass = move || {
            // SAFETY: numbers. Above all that is open first, so that neither is on the other's place.
            unsafe {
                let high = fds.map(|fd| libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, 600));
                libc::dup2(high[0], REPORT_FD);
                libc::dup2(high[1], PROGRESS_FD);
            }
            Ok(())
        };
        // SAFETY: between fork and exec it makes system calls only.
        unsafe { command.pre_exec(pass) };
        start(&mut command, output, self.limit())
    }

    /// Makes the command that runs this program as a guest.
    fn guest(&self) -> Command {
        let mut command = Command::new(&self.anyring);
        command.args(["run", "--guest", "--backend", "user", "--aio", "user", "--"]).arg(&self.program);
        command
    }

    fn limit(&self) -> Duration {
        Duration::from_secs(self.options.limit)
    }

    /// Waits for the end. Returns it, and whether the [kernel hangs](hangs_in_kernel). Ends the rest of the group.
    fn wait_for(&self, child: Child, seed: u64) -> (End, bool) {
        let hangs = !child.wait();
        let in_kernel = hangs && hangs_in_kernel(child.id());
        if hangs && !in_kernel {
            for process in processes_of(child.id()) {
                self.trace(seed, &["-p".to_owned(), process]);
            }
        }
        // It may end while it is looked at.
        let end = child.end();
        (if hangs { End::Late(self.limit()) } else { end }, in_kernel)
    }

    /// Writes the trace of a core in the program's working directory (`ulimit -c unlimited`, kernel.core_pattern
    /// without a folder).
    fn trace_core(&self, seed: u64, folder: &Path) -> Result<()> {
        for entry in std::fs::read_dir(folder)? {
            let path = entry?.path();
            if path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("core")) {
                self.trace(seed, &[self.program.display().to_string(), path.display().to_string()]);
            }
        }
        Ok(())
    }

    /// Writes gdb's output about a process or a core.
    fn trace(&self, seed: u64, subject: &[String]) {
        let Some(folder) = &self.options.traces else { return };
        let commands =
            ["thread apply all bt 60", "print $_siginfo._sifields._sigfault", "x/3i $pc", "info registers"];
        let commands = commands.iter().flat_map(|command| ["-ex", command]);
        // gdb waits forever for a thread that no signal stops.
        let gdb = Command::new("timeout")
            .args(["--signal=KILL", "60", "gdb", "-batch", "-nx"])
            .args(commands)
            .args(subject)
            .stdin(Stdio::null())
            .output();
        let written = gdb.and_then(|gdb| {
            std::fs::create_dir_all(folder)?;
            let name = format!("{seed}-{}.txt", self.folder.number());
            std::fs::write(folder.join(name), &gdb.stdout)
        });
        if let Err(error) = written {
            eprintln!("anyring-hostile: gdb: {error:#}");
        }
    }
}

/// Adds the findings from a run's end, report and output.
fn judge(outcome: &mut Outcome, end: End, report: &str, output: &str) {
    let findings = report.lines().filter_map(|line| line.strip_prefix("finding "));
    outcome.findings.extend(findings.map(str::to_owned));
    let done = report.lines().any(|line| line == "done");
    match end {
        End::Late(_) => outcome.findings.push("hang: still running at the limit".to_owned()),
        End::Killed(signal) => outcome.findings.push(format!("signal {signal} killed it")),
        End::Exited(0) if !done && outcome.findings.is_empty() => {
            outcome.findings.push("exit: it ended before its end".to_owned());
        }
        End::Exited(0) => {}
        End::Exited(status) => outcome.findings.push(format!("exit: it ended with {status}")),
    }
    if !output.is_empty() {
        let start: String = output.chars().take(300).collect();
        outcome.findings.push(format!("output: {start:?}"));
    }
}

/// Moves known findings aside. docs/limits.md lists two cases. Where no thread can be made, the submitting thread makes
/// a worker's call and may sleep in it. A guest has its host's own file open, `host`. The kernel, too, can block a
/// program that uses its own io_uring.
fn excuse(outcome: &mut Outcome, program: &Program, in_kernel: bool, host: Option<&Path>) {
    let limits = |step: &Step| {
        matches!(step, Step::Limit { resource: libc::RLIMIT_AS | libc::RLIMIT_NPROC, value: Some(_) })
    };
    // A child that ends waits for a pipe's lock only while a splice(2) or tee(2) sleeps with it, as in `hangs_in_kernel`.
    let waits_for_splice =
        |finding: &str| finding.starts_with("hang: forked child") && finding.ends_with(": pipe_release");
    let every_hang = in_kernel || program.steps.iter().any(limits);
    // The program reports as much of a path as it has room for.
    let host = host.map(|host| host.display().to_string().chars().take(64).collect::<String>());
    let is_of_host = |finding: &str| {
        let is_it = |host: &String| finding.contains(&format!("({host}), which the program did not open"));
        host.as_ref().is_some_and(is_it)
    };
    let is_known = |finding: &String| {
        every_hang && finding.starts_with("hang") || waits_for_splice(finding) || is_of_host(finding)
    };
    (outcome.known, outcome.findings) = std::mem::take(&mut outcome.findings).into_iter().partition(is_known);
}

/// The processes of a group: the program and its forked children.
fn processes_of(group: libc::pid_t) -> Vec<String> {
    let Ok(all) = std::fs::read_dir("/proc") else { return Vec::new() };
    let names = all.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned());
    let is_member = |process: &String| {
        let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
        // After the name, which may contain anything: the state, the parent, the group. Source: proc_pid_stat(5).
        let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields);
        fields.split_whitespace().nth(2) == Some(&group.to_string())
    };
    names.filter(|name| name.bytes().all(|byte| byte.is_ascii_digit())).filter(is_member).collect()
}

/// True if the group hangs in the kernel, as it may without anyring.
fn hangs_in_kernel(group: libc::pid_t) -> bool {
    let tasks = |process: String| {
        let folder = std::fs::read_dir(format!("/proc/{process}/task"));
        folder.into_iter().flatten().flatten().map(|task| task.path())
    };
    let (mut splices, mut waits) = (false, false);
    for task in processes_of(group).into_iter().flat_map(tasks) {
        let read = |name| std::fs::read_to_string(task.join(name)).unwrap_or_default();
        let (call, place, stat) = (read("syscall"), read("wchan"), read("stat"));
        let call = call.split_whitespace().next().and_then(|number| number.parse().ok());
        splices |= matches!(call, Some(libc::SYS_splice | libc::SYS_tee));
        waits |= place.contains("pipe") && stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('D'));
    }
    splices && waits
}
