//! The traced program, which this process has started, or which was already running.

use crate::cli::Program;
use crate::errno;
use crate::exec::exec;
use crate::failure::Failure;
use rustix::event::{poll, PollFd, PollFlags};
use rustix::fd::OwnedFd;
use rustix::pipe::{pipe_with, PipeFlags};
use rustix::process::{pidfd_open, Pid, PidfdFlags};

/// Interval at which events are collected while the program runs, in nanoseconds.
const PERIOD_NS: libc::c_long = 2_000_000;

/// Signals that are passed on to the program, and do not act on this process.
const PASSED_ON: [i32; 9] = [
    libc::SIGHUP,
    libc::SIGINT,
    libc::SIGQUIT,
    libc::SIGTERM,
    libc::SIGUSR1,
    libc::SIGUSR2,
    libc::SIGALRM,
    libc::SIGWINCH,
    libc::SIGCONT,
];

/// The traced program.
pub enum Subject {
    /// A program that this process started.
    Child(Child),
    /// A program that was already running.
    Running(Running),
}

impl Subject {
    /// Returns the status once the program has ended, as waitpid(2) gives it. It is 0 for a program that this process
    /// did not start.
    pub fn try_wait(&mut self) -> Result<Option<i32>, Failure> {
        match self {
            Subject::Child(child) => child.try_wait(),
            Subject::Running(running) => running.try_wait(),
        }
    }

    /// Reaps a started program that has ended. Until then its name can be read in /proc. Returns the CPU time of the
    /// program and of the children for which it waited, and how often their threads slept.
    pub fn reap(&self) -> Option<(u64, u64)> {
        let Subject::Child(child) = self else { return None };
        // SAFETY: `used` is writable, and all zeros are one; no status is stored.
        let (pid, used) = unsafe {
            let mut used: libc::rusage = std::mem::zeroed();
            (libc::wait4(child.pid, std::ptr::null_mut(), libc::WNOHANG, &mut used), used)
        };
        let ns = |time: libc::timeval| time.tv_sec as u64 * 1_000_000_000 + time.tv_usec as u64 * 1_000;
        (pid == child.pid).then(|| (ns(used.ru_utime) + ns(used.ru_stime), used.ru_nvcsw as u64))
    }

    /// Sleeps for a period, or until a signal arrives.
    pub fn sleep(&mut self) {
        match self {
            Subject::Child(child) => child.pass_on_signals(),
            Subject::Running(running) => running.mind_signals(),
        }
    }

    /// Stops tracing a running process. If this process started the program, waits for the program's end, even if
    /// the trace has failed.
    pub fn leave(&mut self) {
        if let Subject::Running(running) = self {
            running.over = true;
        }
    }

    /// Lets signals act on this process again, as before the trace. The program has ended.
    pub fn unblock_signals(&self) {
        let signals = match self {
            Subject::Child(child) => &child.signals,
            Subject::Running(running) => &running.signals,
        };
        // SAFETY: a set of this process, and no place for the mask before.
        unsafe { libc::sigprocmask(libc::SIG_UNBLOCK, signals, std::ptr::null_mut()) };
    }

    /// Returns the exit status for a program that ended with `status`. If a signal killed the program, this process
    /// dies by the same signal.
    pub fn end_as_it_did(&self, status: i32) -> Result<i32, Failure> {
        match self {
            Subject::Child(child) => child.end_as_it_did(status),
            Subject::Running(_) => Ok(0),
        }
    }
}

/// Sleeps for a period, or until one of these signals arrives. Returns the signal's number, or 0 or less if no signal
/// arrived.
fn sleep_for_signals(signals: &libc::sigset_t) -> (i32, libc::siginfo_t) {
    let period = libc::timespec { tv_sec: 0, tv_nsec: PERIOD_NS };
    // SAFETY: all three are values that outlive the call; an all-zero siginfo is one.
    unsafe {
        let mut info: libc::siginfo_t = std::mem::zeroed();
        (libc::sigtimedwait(signals, &mut info, &period), info)
    }
}

/// Makes writes to a closed pipe fail instead of killing this process, which has to remove the files of the trace
/// first. SIGPIPE is blocked and not ignored, since only the mask is restored for the program.
fn block_sigpipe() {
    // SAFETY: the set is written before it is read, and the number is a signal.
    unsafe {
        let mut set = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        libc::sigaddset(&mut set, libc::SIGPIPE);
        libc::sigprocmask(libc::SIG_BLOCK, &set, std::ptr::null_mut());
    }
}

/// A program that this process did not start. It is traced until it ends, or until this process gets a signal to end.
pub struct Running {
    process: OwnedFd,
    signals: libc::sigset_t,
    over: bool,
}

impl Running {
    /// Joins the process with this number.
    pub fn join(pid: i32) -> Result<Running, Failure> {
        let none = || Failure::own(format!("--pid {pid}: no such process"));
        let number = Pid::from_raw(pid).filter(|_| pid > 0).ok_or_else(none)?;
        let process = pidfd_open(number, PidfdFlags::empty()).map_err(|_| none())?;
        // SAFETY: the set is written before it is read, and the numbers are signals.
        let signals = unsafe {
            let mut signals = std::mem::zeroed();
            libc::sigemptyset(&mut signals);
            for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
                libc::sigaddset(&mut signals, signal);
            }
            libc::sigprocmask(libc::SIG_BLOCK, &signals, std::ptr::null_mut());
            signals
        };
        block_sigpipe();
        Ok(Running { process, signals, over: false })
    }

    fn try_wait(&self) -> Result<Option<i32>, Failure> {
        let mut fds = [PollFd::new(&self.process, PollFlags::IN)];
        let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
        let ended = poll(&mut fds, Some(&now)).is_ok_and(|count| count != 0);
        Ok((ended || self.over).then_some(0))
    }

    fn mind_signals(&mut self) {
        self.over |= sleep_for_signals(&self.signals).0 > 0;
    }
}

/// A program that this process started.
pub struct Child {
    pid: libc::pid_t,
    signals: libc::sigset_t,
    /// The signal mask before.
    mask: libc::sigset_t,
}

impl Child {
    pub fn start(program: &Program) -> Result<Child, Failure> {
        // SAFETY: the sets are written before they are read, the numbers are signals. SIGCHLD's action is restored in
        // the child. In this process an inherited "ignore" would discard the child's status.
        let (signals, mask, inherited) = unsafe {
            let (mut signals, mut mask) = (std::mem::zeroed(), std::mem::zeroed());
            libc::sigemptyset(&mut signals);
            for signal in PASSED_ON.into_iter().chain([libc::SIGCHLD]) {
                libc::sigaddset(&mut signals, signal);
            }
            libc::sigprocmask(libc::SIG_BLOCK, &signals, &mut mask);
            (signals, mask, libc::signal(libc::SIGCHLD, libc::SIG_DFL))
        };
        block_sigpipe();
        let (failed, fails) = pipe_with(PipeFlags::CLOEXEC)
            .map_err(|error| Failure::own(format!("pipe: {}", errno::describe(error.raw_os_error()))))?;
        // SAFETY: this process has one thread, so the child may call whatever this process may.
        match unsafe { libc::fork() } {
            -1 => Err(Failure::own(format!("fork: {}", errno::describe(errno::last())))),
            0 => {
                // SAFETY: as above.
                unsafe {
                    libc::signal(libc::SIGCHLD, inherited);
                    libc::sigprocmask(libc::SIG_SETMASK, &mask, std::ptr::null_mut());
                }
                let status = match exec(program) {
                    Ok(never) => match never {},
                    Err(failure) => {
                        failure.say();
                        let _ = rustix::io::write(&fails, &[1]);
                        failure.status
                    }
                };
                // SAFETY: ends the child without running the parent's exit handlers.
                unsafe { libc::_exit(status) }
            }
            pid => {
                drop(fails);
                let child = Child { pid, signals, mask };
                // Closed without a byte once the program runs.
                match rustix::io::retry_on_intr(|| rustix::io::read(&failed, &mut [0u8])) {
                    Ok(1) => Err(child.failure_to_start()),
                    _ => Ok(child),
                }
            }
        }
    }

    /// The exit status of a child that could not start the program, and has reported why.
    fn failure_to_start(&self) -> Failure {
        let mut status = 0;
        // SAFETY: `status` is writable.
        while unsafe { libc::waitpid(self.pid, &mut status, 0) } == -1 && errno::last() == libc::EINTR {}
        Failure { status: libc::WEXITSTATUS(status), message: String::new() }
    }

    /// Returns the status as waitpid(2) gives it, once the program has ended. The program stays a zombie until
    /// [`Subject::reap`].
    fn try_wait(&self) -> Result<Option<i32>, Failure> {
        let how = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
        // SAFETY: `info` is writable, and an all-zero siginfo is one; for a child the union has the child's fields.
        let (answer, pid, code, status) = unsafe {
            let mut info: libc::siginfo_t = std::mem::zeroed();
            let answer = libc::waitid(libc::P_PID, self.pid as libc::id_t, &mut info, how);
            (answer, info.si_pid(), info.si_code, info.si_status())
        };
        match (answer, pid) {
            (-1, _) if errno::last() == libc::EINTR => Ok(None),
            (-1, _) => Err(Failure::own(format!("waitid: {}", errno::describe(errno::last())))),
            (_, 0) => Ok(None),
            _ if code == libc::CLD_EXITED => Ok(Some((status & 0xff) << 8)),
            _ => Ok(Some(status)), // the signal's number; whether a core was dumped does not matter
        }
    }

    /// Sleeps for a period, or until a signal arrives, which is passed on to the program.
    fn pass_on_signals(&self) {
        let (signal, info) = sleep_for_signals(&self.signals);
        // The terminal's own signals (SI_KERNEL) reach the whole foreground group.
        if PASSED_ON.contains(&signal) && info.si_code != libc::SI_KERNEL {
            // SAFETY: our own child, not yet waited for, so the number is still its own.
            unsafe { libc::kill(self.pid, signal) };
        }
    }

    /// Returns the exit status, or dies by the same signal.
    fn end_as_it_did(&self, status: i32) -> Result<i32, Failure> {
        if !libc::WIFSIGNALED(status) {
            return Ok(libc::WEXITSTATUS(status));
        }
        let signal = libc::WTERMSIG(status);
        let no_core = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: plain calls with values of this frame. The program's core is enough, so this process dumps none.
        unsafe {
            libc::setrlimit(libc::RLIMIT_CORE, &no_core);
            libc::signal(signal, libc::SIG_DFL);
            libc::raise(signal);
            libc::sigprocmask(libc::SIG_SETMASK, &self.mask, std::ptr::null_mut());
        }
        Ok(128 + signal) // if the signal stays blocked
    }
}
