//! Programs that tests run. No program outlives its test, and no test waits forever for a program that hangs.

use super::text;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// The environment variable with the number of seconds after which a program counts as hanging.
const PATIENCE: &str = "ANYRING_TEST_PATIENCE";
/// The default of that time. The longest program takes a second or two. Its own waits give up after 30 seconds.
pub const USUAL: Duration = Duration::from_secs(60);
/// The interval of checks whether a program has ended.
const LOOK: Duration = Duration::from_millis(2);

/// Returns the time after which a program counts as hanging.
pub fn patience(usual: Duration) -> Duration {
    let named = std::env::var(PATIENCE).ok().and_then(|seconds| seconds.parse().ok());
    named.map_or(usual, Duration::from_secs)
}

/// A program in its own process group. Its output goes to pipes and has to fit into them. When this value is dropped,
/// the rest of the group is killed. When the thread that started it ends, the program is killed.
pub struct Running(Option<Child>);

impl Running {
    /// Starts the command, with the standard input that `command` specifies.
    pub fn start(command: &mut Command) -> Running {
        let end_with_thread = || {
            // SAFETY: takes plain numbers, and concerns the calling process alone.
            match unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) } {
                0 => Ok(()),
                _ => Err(io::Error::last_os_error()),
            }
        };
        // SAFETY: the closure makes one system call.
        unsafe { command.pre_exec(end_with_thread) };
        let child = command.process_group(0).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        Running(Some(child.unwrap_or_else(|error| panic!("{command:?}: {error}"))))
    }

    fn child(&mut self) -> &mut Child {
        self.0.as_mut().expect("there until it is waited for")
    }

    /// Returns the id of the program's first process.
    pub fn id(&mut self) -> u32 {
        self.child().id()
    }

    /// Returns the pipe to the program's standard input, if that is a pipe.
    pub fn stdin(&mut self) -> Option<ChildStdin> {
        self.child().stdin.take()
    }

    /// True if the program has ended. It stays a zombie, so that its process id, which is also its group's, is not
    /// reused.
    pub fn has_ended(&mut self) -> bool {
        // SAFETY: all zeroes is a siginfo_t.
        let mut info: libc::siginfo_t = unsafe { core::mem::zeroed() };
        // SAFETY: `info` is a local.
        let answer = unsafe {
            libc::waitid(libc::P_PID, self.id(), &mut info, libc::WEXITED | libc::WNOWAIT | libc::WNOHANG)
        };
        assert_eq!(answer, 0, "look after the program: {}", io::Error::last_os_error());
        // SAFETY: the kernel fills it in if the child has ended; otherwise it is zero.
        unsafe { info.si_pid() != 0 }
    }

    /// Waits for the program's end and returns its output. If that takes longer than `usual`, the error has its
    /// threads' backtraces and its output so far.
    pub fn output(mut self, usual: Duration) -> Result<Output, String> {
        let (begin, patience) = (Instant::now(), patience(usual));
        let mut hangs = None;
        while hangs.is_none() && !self.has_ended() {
            hangs = (begin.elapsed() > patience).then(|| backtraces(self.id()));
            std::thread::sleep(LOOK);
        }
        let output = self.end().expect("not waited for yet");
        match hangs {
            Some(backtraces) => Err(format!("hangs: {}\n{backtraces}", text(&output))),
            None => Ok(output),
        }
    }

    /// Kills the rest of the group, and waits for the program.
    fn end(&mut self) -> Option<Output> {
        let child = self.0.take()?;
        // SAFETY: the group was made for this child, which has not been waited for, so the number is still its own.
        unsafe { libc::killpg(child.id() as i32, libc::SIGKILL) };
        Some(child.wait_with_output().expect("its output"))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.end();
    }
}

/// Runs a command without input, and panics if it does not end in time.
pub fn output(command: &mut Command) -> Output {
    let output = Running::start(command.stdin(Stdio::null())).output(USUAL);
    output.unwrap_or_else(|why| panic!("{command:?} {why}"))
}

/// Returns the backtraces of the threads of a process that hangs, from gdb.
fn backtraces(process: u32) -> String {
    let mut gdb = Command::new("gdb");
    gdb.args(["-nx", "-batch", "-p", &process.to_string(), "-ex", "thread apply all backtrace"]);
    match gdb.stdin(Stdio::null()).output() {
        Ok(output) => text(&output),
        Err(error) => format!("no backtraces, since gdb cannot be run: {error}"),
    }
}
