//! A server that runs in a stage's folder while its clients come and go.
//!
//! The server runs under `anyring deny -- anyring run` (plainly with `E2E_ON=kernel`). Its output goes to the file
//! `log` of the folder, its counters to the file `statistics`. The clients run plainly.

use crate::stage::{self, Program, Stage};
use crate::Statistics;
use rustix::process::{Pid, Signal};
use std::path::Path;
use std::process::{Child, ExitStatus};
use std::time::{Duration, Instant};

/// The limit for the server to start, to recover or to stop; each takes a second or two.
const PATIENCE: Duration = Duration::from_secs(60);
/// The interval between two checks.
const LOOK: Duration = Duration::from_millis(20);

/// A server, while it runs, and its folder.
pub struct Daemon {
    stage: Stage,
    process: Option<Child>,
}

impl Daemon {
    /// No server yet.
    pub fn new(stage: Stage) -> Self {
        Daemon { stage, process: None }
    }

    /// The stage.
    pub fn stage(&self) -> &Stage {
        &self.stage
    }

    /// Starts the server.
    ///
    /// # Panics
    ///
    /// When it cannot be started.
    pub fn start(&mut self, program: &Program) {
        let mut command = if stage::on_kernel() {
            self.stage.unserved(program)
        } else {
            self.stage.served(program, &self.stage.file("statistics"))
        };
        let log = std::fs::File::options().create(true).append(true).open(self.stage.file("log")).expect("the log");
        command.stdout(log.try_clone().expect("dup")).stderr(log);
        self.process = Some(command.spawn().expect("start the server"));
    }

    /// Waits until the server answers.
    ///
    /// # Panics
    ///
    /// When it ends instead, or takes too long.
    pub fn wait_until(&mut self, answers: impl Fn(&Stage) -> bool) {
        let deadline = Instant::now() + PATIENCE;
        while !answers(&self.stage) {
            let ended = self.process.as_mut().expect("the server").try_wait().expect("wait");
            assert!(ended.is_none(), "the server ended with {ended:?}: {}", self.log());
            assert!(Instant::now() < deadline, "the server does not answer: {}", self.log());
            std::thread::sleep(LOOK);
        }
    }

    /// Stops the server by a signal, and asserts that it ends well and leaves no process.
    ///
    /// # Panics
    ///
    /// When it does not.
    pub fn stop(&mut self, signal: Signal) {
        let status = self.end(signal).expect("a server that runs");
        assert!(status.is_some_and(|status| status.success()), "the server ended with {status:?}: {}", self.log());
        assert_eq!(processes_in(self.stage.directory()), Vec::<u32>::new(), "processes that are left");
    }

    /// Ends the server by a signal. `None` if there is none, else its status unless that took too long.
    fn end(&mut self, signal: Signal) -> Option<Option<ExitStatus>> {
        let mut process = self.process.take()?;
        // The call fails if the server has ended and was reaped, since it then has no process number.
        let _ = rustix::process::kill_process(Pid::from_child(&process), signal);
        let deadline = Instant::now() + PATIENCE;
        loop {
            let status = process.try_wait().expect("wait");
            if status.is_some() || Instant::now() >= deadline {
                return Some(status);
            }
            std::thread::sleep(LOOK);
        }
    }

    /// The library's counters; `None` on the kernel.
    ///
    /// # Panics
    ///
    /// If there are no counters.
    pub fn statistics(&self) -> Option<Statistics> {
        (!stage::on_kernel()).then(|| Statistics::read(&self.stage.file("statistics")))
    }

    /// The server's log so far.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.stage.file("log")).unwrap_or_default()
    }
}

impl Drop for Daemon {
    /// Ends the server's processes after a failed test: an immediate shutdown by SIGQUIT, then SIGKILL.
    fn drop(&mut self) {
        let _ = self.end(Signal::QUIT);
        for process in processes_in(self.stage.directory()) {
            let pid = Pid::from_raw(process as i32).expect("a process id");
            let _ = rustix::process::kill_process(pid, Signal::KILL);
        }
    }
}

/// Returns the processes whose working directory is in this folder: all of the server's are.
fn processes_in(directory: &Path) -> Vec<u32> {
    let entries = std::fs::read_dir("/proc").expect("/proc").flatten();
    let numbers = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let inside =
        |pid: &u32| std::fs::read_link(format!("/proc/{pid}/cwd")).is_ok_and(|path| path.starts_with(directory));
    numbers.filter(inside).collect()
}
