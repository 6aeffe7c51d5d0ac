//! Programs that tests run: none outlives its test, and none that hangs is waited for for ever.

use super::text;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// After how many seconds a program hangs.
const PATIENCE: &str = "ANYRING_TEST_PATIENCE";
/// After what time, if nothing else is said: the longest takes a second or two, its own waits give up after 30.
pub const USUAL: Duration = Duration::from_secs(60);
/// How often to look whether a program has ended.
const LOOK: Duration = Duration::from_millis(2);

/// A program that runs longer than this hangs.
pub fn patience(usual: Duration) -> Duration {
    let named = std::env::var(PATIENCE).ok().and_then(|seconds| seconds.parse().ok());
    named.map_or(usual, Duration::from_secs)
}

/// A program in a process group of its own, with what it prints in pipes, into which that has to fit. With this value whatever
/// is left of the group ends; with the thread that started it, the program does.
pub struct Running(Option<Child>);

impl Running {
    /// Starts it, with the standard input that the command has.
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

    /// The number of its first process.
    pub fn id(&mut self) -> u32 {
        self.child().id()
    }

    /// The other end of its standard input, if that is a pipe.
    pub fn stdin(&mut self) -> Option<ChildStdin> {
        self.child().stdin.take()
    }

    /// Whether it has ended. It stays a zombie, so its number, which is its group's, stays its own.
    pub fn has_ended(&mut self) -> bool {
        // SAFETY: all zeroes is a siginfo_t.
        let mut info: libc::siginfo_t = unsafe { core::mem::zeroed() };
        // SAFETY: `info` is a local.
        let answer = unsafe {
            libc::waitid(libc::P_PID, self.id(), &mut info, libc::WEXITED | libc::WNOWAIT | libc::WNOHANG)
        };
        assert_eq!(answer, 0, "look after the program: {}", io::Error::last_os_error());
        // SAFETY: of a child that has ended the kernel has filled it in; else it is zero.
        unsafe { info.si_pid() != 0 }
    }

    /// Waits for its end: its output, or, if that takes longer than `usual`, what its threads are doing and what it has printed.
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

    /// Ends what there is of the group, and waits for the program.
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

/// Runs a command that gets no input to its end, which comes in time.
pub fn output(command: &mut Command) -> Output {
    let output = Running::start(command.stdin(Stdio::null())).output(USUAL);
    output.unwrap_or_else(|why| panic!("{command:?} {why}"))
}

/// What the threads of a process that hangs are doing, as gdb sees them.
fn backtraces(process: u32) -> String {
    let mut gdb = Command::new("gdb");
    gdb.args(["-nx", "-batch", "-p", &process.to_string(), "-ex", "thread apply all backtrace"]);
    match gdb.stdin(Stdio::null()).output() {
        Ok(output) => text(&output),
        Err(error) => format!("no backtraces, since gdb cannot be run: {error}"),
    }
}
