//! A child that is watched from outside: its end is an event, and at a limit of time it is ended.

use anyhow::{Context, Result};
use rustix::event::{PollFd, PollFlags};
use rustix::fs::{MemfdFlags, OFlags};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, WaitId, WaitIdOptions};
use std::fmt;
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// The longest time for which children are waited for at once.
const LONGEST_WAIT: Duration = Duration::from_secs(3600);
/// The part of a child's output that is read.
const READ_BYTES: usize = 1 << 16;

/// A child of this process that was not reaped, and so has its number to itself.
#[must_use = "only `end` reaps it"]
pub struct Child {
    id: Pid,
    /// None before Linux 5.3.
    process: Option<OwnedFd>,
    begun: Instant,
    limit: Duration,
}

/// How a child came to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// Ended by [`Child::end`], since it ran longer than this.
    Late(Duration),
    /// Exited with this status.
    Exited(i32),
    /// Killed by this signal.
    Killed(i32),
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            End::Late(limit) => write!(f, "still running after {limit:?}"),
            End::Exited(status) => write!(f, "exit status {status}"),
            End::Killed(signal) => write!(f, "killed by signal {signal}"),
        }
    }
}

/// Starts a process in a group of its own, which ends with this thread, for `limit`. Its output goes to a
/// [file in memory](memory_file).
pub fn start(command: &mut Command, output: &File, limit: Duration) -> Result<Child> {
    command.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output.try_clone()?).process_group(0);
    let end_with_us = || {
        // SAFETY: numbers only.
        unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
        Ok(())
    };
    // SAFETY: between fork and exec it makes one system call.
    unsafe { command.pre_exec(end_with_us) };
    let child = command.spawn().with_context(|| format!("start {command:?}"))?;
    Ok(Child::watch(child.id() as i32, limit))
}

impl Child {
    /// Watches a child that has just been started.
    pub fn watch(id: i32, limit: Duration) -> Child {
        let id = Pid::from_raw(id).expect("a process id");
        let process = match rustix::process::pidfd_open(id, PidfdFlags::empty()) {
            Ok(process) => Some(process),
            Err(Errno::NOSYS) => None, // before Linux 5.3
            Err(error) => panic!("pidfd_open: {error}"),
        };
        Child { id, process, begun: Instant::now(), limit }
    }

    /// Returns its process ID, which may also be its group's.
    pub fn id(&self) -> i32 {
        self.id.as_raw_nonzero().get()
    }

    /// Returns the descriptor by which it is watched.
    pub fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.process.as_ref().map(AsFd::as_fd)
    }

    /// Returns the time since it was started.
    pub fn elapsed(&self) -> Duration {
        self.begun.elapsed()
    }

    /// True if the child has ended, or is late.
    pub fn is_over(&self) -> bool {
        self.has_ended() || self.elapsed() > self.limit
    }

    fn has_ended(&self) -> bool {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        rustix::process::waitid(WaitId::Pid(self.id), options).expect("waitid").is_some()
    }

    /// Waits until it has ended, or is late. Returns true if it has ended.
    pub fn wait(&self) -> bool {
        while !self.is_over() {
            wait_for_any([self]);
        }
        self.has_ended()
    }

    /// Ends it and the rest of its group, and reaps it.
    pub fn end(self) -> End {
        let (late, child, mut status) = (!self.has_ended(), self.id(), 0);
        // SAFETY: the child is this process's own and not reaped yet, so its number and its process group are still its
        // own: only it and what it forked are ended. `status` is one int.
        unsafe {
            libc::kill(-child, libc::SIGKILL);
            libc::kill(child, libc::SIGKILL);
            assert_eq!(libc::waitpid(child, &mut status, 0), child, "waitpid");
        }
        match () {
            () if late => End::Late(self.limit),
            () if libc::WIFSIGNALED(status) => End::Killed(libc::WTERMSIG(status)),
            () => End::Exited(libc::WEXITSTATUS(status)),
        }
    }
}

/// Waits until one of these has ended or is late, or for a while: an hour, or a millisecond without pidfds.
pub fn wait_for_any<'c>(children: impl IntoIterator<Item = &'c Child>) {
    let (mut entries, mut left) = (Vec::new(), LONGEST_WAIT);
    for child in children {
        left = left.min(child.limit.saturating_sub(child.elapsed()));
        match &child.process {
            Some(process) => entries.push(PollFd::from_borrowed_fd(process.as_fd(), PollFlags::IN)),
            None => left = left.min(Duration::from_millis(1)),
        }
    }
    let limit = rustix::time::Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
    match rustix::event::poll(&mut entries, Some(&limit)) {
        Ok(_) | Err(Errno::INTR) => {}
        Err(error) => panic!("poll the children: {error}"),
    }
}

/// Makes a file in memory, which is written at its end. Unlike a pipe, no process that a child leaves can keep its
/// reader waiting.
pub fn memory_file() -> Result<File> {
    let file = rustix::fs::memfd_create(c"output", MemfdFlags::CLOEXEC).context("memfd_create")?;
    rustix::fs::fcntl_setfl(&file, OFlags::APPEND)?;
    Ok(File::from(file))
}

/// Returns the text in a file, up to 64 KiB.
pub fn text_of(file: &File) -> Result<String> {
    let mut bytes = vec![0; READ_BYTES];
    let length = file.read_at(&mut bytes, 0)?;
    Ok(String::from_utf8_lossy(&bytes[..length]).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str, limit: Duration) -> (End, String) {
        let output = memory_file().expect("a file");
        let child = start(Command::new("sh").args(["-c", script]), &output, limit).expect("start a shell");
        child.wait();
        (child.end(), text_of(&output).expect("its output"))
    }

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn an_end_is_told_by_status_or_signal() {
        let (end, output) = shell("echo out; echo err >&2; exit 3", LONG);
        assert_eq!((end, output.as_str()), (End::Exited(3), "out\nerr\n"));
        let (end, _) = shell("kill -SEGV $$", LONG);
        assert_eq!(end.to_string(), "killed by signal 11");
    }

    #[test]
    fn a_child_is_ended_at_its_limit_with_what_it_started() {
        let limit = Duration::from_millis(200);
        let (end, output) = shell("sleep 1000 & echo $!; wait", limit);
        assert_eq!(end, End::Late(limit));
        let stat = || std::fs::read_to_string(format!("/proc/{}/stat", output.trim())).unwrap_or_default();
        while !matches!(stat().rsplit_once(") ").map(|(_, rest)| &rest[..1]), None | Some("Z")) {
            std::thread::yield_now();
        }
    }
}
