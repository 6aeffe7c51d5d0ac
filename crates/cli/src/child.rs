//! Asking a question in a forked child, because the answer may be a signal: a seccomp filter may kill whoever makes
//! the call, and a supervisor may never answer it.
//!
//! The child's exit signal is 0, so that a program exec'ed afterwards inherits no pending SIGCHLD and an inherited
//! "ignore SIGCHLD" does not take the child's status from us.

use crate::errno;
use rustix::event::{poll, PollFd, PollFlags, Timespec};
use rustix::pipe::{pipe_with, PipeFlags};
use serde::de::DeserializeOwned;
use serde::Serialize;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::panic::{catch_unwind, AssertUnwindSafe};

/// How long a child may take, in seconds.
pub const PATIENCE_S: u32 = 5;

/// How a question ended.
#[derive(Debug, Clone)]
pub enum Outcome<T> {
    /// The child answered.
    Answered(T),
    /// This signal ended the child first.
    Killed(i32),
    /// The child took longer than [`PATIENCE_S`].
    TimedOut,
    /// The question could not be asked, or the child ended without a word: this is why.
    Failed(String),
}

impl<T> Outcome<T> {
    /// The outcome for people, with `answered` saying an answer.
    pub fn describe(&self, answered: impl FnOnce(&T) -> String) -> String {
        match self {
            Outcome::Answered(answer) => answered(answer),
            Outcome::Killed(signal) => format!("killed by {}", errno::signal_name(*signal)),
            Outcome::TimedOut => format!("no answer within {PATIENCE_S} s"),
            Outcome::Failed(reason) => reason.clone(),
        }
    }
}

/// Runs `question` in a forked child and brings back its answer. The caller must have only one thread.
pub fn ask<T: Serialize + DeserializeOwned>(question: impl FnOnce() -> T) -> Outcome<T> {
    let (answers, answer_to) = match pipe_with(PipeFlags::CLOEXEC) {
        Ok(ends) => ends,
        Err(error) => return Outcome::Failed(format!("pipe: {error}")),
    };
    // SAFETY: a fork without flags (each argument 0): nothing is shared, and with one thread no lock is held by another
    // that the child would lack.
    match unsafe { libc::syscall(libc::SYS_clone, 0, 0, 0, 0, 0) } {
        -1 => Outcome::Failed(format!("fork: {}", std::io::Error::last_os_error())),
        0 => answer(question, answer_to),
        pid => {
            drop(answer_to);
            listen(pid as libc::pid_t, answers)
        }
    }
}

/// The child's part: never returns into the caller's code.
fn answer<T: Serialize>(question: impl FnOnce() -> T, answer_to: OwnedFd) -> ! {
    let no_core = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: a pointer to an initialised rlimit; a failure only leaves a core file behind.
    unsafe { libc::setrlimit(libc::RLIMIT_CORE, &no_core) };
    let told = catch_unwind(AssertUnwindSafe(|| {
        let text = serde_json::to_vec(&question()).unwrap_or_default();
        File::from(answer_to).write_all(&text).is_ok()
    }));
    // SAFETY: ends the child without running what the parent registered for its own exit.
    unsafe { libc::_exit(i32::from(!matches!(told, Ok(true)))) }
}

fn listen<T: DeserializeOwned>(pid: libc::pid_t, answers: OwnedFd) -> Outcome<T> {
    let patience = Timespec { tv_sec: i64::from(PATIENCE_S), tv_nsec: 0 };
    // Readable when the answer or the end of the child is there; the answer is one short write.
    let in_time = poll(&mut [PollFd::new(&answers, PollFlags::IN)], Some(&patience)) != Ok(0);
    if !in_time {
        // SAFETY: our own child, not yet waited for, so the number is still its.
        unsafe { libc::kill(pid, libc::SIGKILL) };
    }
    let mut text = Vec::new();
    let read = File::from(answers).read_to_end(&mut text);
    let mut status = 0;
    // SAFETY: `status` is writable; __WALL since the child has no exit signal.
    while unsafe { libc::waitpid(pid, &mut status, libc::__WALL) } == -1 && errno::last() == libc::EINTR {}
    match serde_json::from_slice(&text) {
        Ok(answer) if read.is_ok() => Outcome::Answered(answer),
        _ if !in_time => Outcome::TimedOut,
        _ if libc::WIFSIGNALED(status) => Outcome::Killed(libc::WTERMSIG(status)),
        _ => Outcome::Failed("the probe ended without an answer".to_owned()),
    }
}
