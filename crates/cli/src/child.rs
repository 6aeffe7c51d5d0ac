//! Asking a question in a forked child, because the answer may be a signal: a seccomp filter may kill whoever makes
//! the call, and a supervisor may never answer it.
//!
//! The child's exit signal is 0, so that a program exec'ed afterwards inherits no pending SIGCHLD and an inherited
//! "ignore SIGCHLD" does not take the child's status from us.

use crate::errno;
use rustix::event::{poll, PollFd, PollFlags, Timespec};
use rustix::fs::{memfd_create, MemfdFlags};
use serde::de::DeserializeOwned;
use serde::Serialize;
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How long a child may take, in seconds.
pub const PATIENCE_S: u32 = 5;

/// What is said where none can be made.
pub const NO_CHILD: &str = "no child process can be made";

/// Whether a child was refused as only an emulator of another processor's programs does it. Relaxed: there is one thread.
static IS_EMULATED: AtomicBool = AtomicBool::new(false);

/// Whether an emulator (qemu-user) answers this program's calls, as the last child that was made has shown.
pub fn is_emulated() -> bool {
    IS_EMULATED.load(Ordering::Relaxed)
}

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
    let Some(answers) = Answer::new() else { return Outcome::Failed(refused("mmap")) };
    let child = Child::make(|| answers.give(&question()));
    answers.end(child.map(Child::wait))
}

/// The same, and where no child can be made here, if no filter may kill for it.
pub fn ask_if_safe<T: Serialize + DeserializeOwned>(question: impl FnOnce() -> T) -> Outcome<T> {
    ask_or_here(question, || !may_be_filtered())
}

/// The same, and here also below a filter: about what will be done in this process anyway.
pub fn ask_anyhow<T: Serialize + DeserializeOwned>(question: impl FnOnce() -> T) -> Outcome<T> {
    ask_or_here(question, || true)
}

fn ask_or_here<T: Serialize + DeserializeOwned>(
    question: impl FnOnce() -> T,
    is_safe: impl FnOnce() -> bool,
) -> Outcome<T> {
    let Some(answers) = Answer::new() else { return Outcome::Failed(refused("mmap")) };
    let mut question = Some(question);
    let child = Child::make(|| question.take().is_some_and(|question| answers.give(&question())));
    match question {
        Some(question) if child.is_err() && is_safe() => Outcome::Answered(question()),
        _ => answers.end(child.map(Child::wait)),
    }
}

/// Runs `rehearsal` where a seccomp filter may be in force, which may kill for any call that it makes, in a forked child, and brings back its
/// answer; where no child can be made, here. `None` where the child was killed. Until its end is seen this process makes the calls only without which no program is
/// started, or says anything: not even one that waits, or that gives the memory back.
pub fn rehearse<T: Serialize + DeserializeOwned>(rehearsal: impl FnOnce() -> T) -> Option<T> {
    if is_surely_unfiltered() {
        return Some(rehearsal());
    }
    let Some(answers) = Answer::new().map(ManuallyDrop::new) else { return Some(rehearsal()) };
    // SAFETY: as in `Child::make`; CLONE_VFORK has this process wait until the child has ended.
    let pid = unsafe { libc::syscall(libc::SYS_clone, libc::CLONE_VFORK, 0, 0, 0, 0) };
    match pid {
        // Where qemu-user emulates the processor, too.
        -1 => Some(rehearsal()),
        0 => be_child(|| answers.give(&rehearsal())),
        _ => {
            let answer = answers.read()?;
            // It has answered, so that it could wait for children of its own.
            // SAFETY: the status is not asked for.
            unsafe { libc::waitpid(pid as libc::pid_t, std::ptr::null_mut(), libc::__WALL) };
            Some(answer)
        }
    }
}

/// Whether /proc says that no seccomp filter is in force: asked by calls without which nothing is started.
fn is_surely_unfiltered() -> bool {
    let (mut status, mut length) = ([0_u8; 4096], 0);
    // SAFETY: a string and an array of ours. The file is closed by what this process executes.
    unsafe {
        let file = libc::open(c"/proc/self/status".as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC);
        if file >= 0 {
            length = libc::read(file, status.as_mut_ptr().cast(), status.len()).max(0) as usize;
        }
    }
    let is_none = |line: &[u8]| line == b"Seccomp:\t0";
    status[..length].split(|byte| *byte == b'\n').any(is_none)
}

/// Whether a seccomp filter is in force, as far as anybody tells.
pub fn may_be_filtered() -> bool {
    // SAFETY: takes no pointers.
    unsafe { libc::prctl(libc::PR_GET_SECCOMP) != 0 }
}

/// What a program printed, on both of its standard streams, and its exit status.
pub struct Said {
    pub status: i32,
    pub text: String,
}

/// Has a forked child become a program, by `execute`, which comes back to say why not. No file is opened, and no pipe needed.
pub fn hear(execute: impl FnOnce() -> String) -> Outcome<Said> {
    let streams = match memfd_create("anyring-said", MemfdFlags::CLOEXEC) {
        Ok(file) => std::fs::File::from(file),
        Err(error) => return Outcome::Failed(format!("memfd_create: {}", errno::name(error.raw_os_error()))),
    };
    let child = Child::make(|| {
        // SAFETY: numbers of this process, which nobody else has.
        unsafe {
            libc::dup2(streams.as_raw_fd(), 1);
            libc::dup2(streams.as_raw_fd(), 2);
        }
        let why = execute();
        // SAFETY: a string of ours.
        unsafe { libc::write(2, why.as_ptr().cast(), why.len()) };
        false
    });
    let mut text = vec![0; 1 << 16];
    match child.map(Child::wait) {
        Err(why) => Outcome::Failed(why),
        Ok(None) => Outcome::TimedOut,
        Ok(Some(status)) if libc::WIFSIGNALED(status) => Outcome::Killed(libc::WTERMSIG(status)),
        Ok(Some(status)) => {
            let length = streams.read_at(&mut text, 0).unwrap_or(0);
            let text = String::from_utf8_lossy(&text[..length]).into_owned();
            Outcome::Answered(Said { status: libc::WEXITSTATUS(status), text })
        }
    }
}

fn refused(call: &str) -> String {
    format!("{call}: {}", errno::name(errno::last()))
}

/// Memory that a child shares with this process: how long its answer is, and the answer.
struct Answer(*mut u64);

impl Answer {
    const BYTES: usize = 1 << 16;

    fn new() -> Option<Answer> {
        let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping wherever the kernel likes.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), Answer::BYTES, protection, flags, -1, 0) };
        (at != libc::MAP_FAILED).then_some(Answer(at.cast()))
    }

    fn give<T: Serialize>(&self, answer: &T) -> bool {
        let text = serde_json::to_vec(answer).unwrap_or_default();
        let has_room = text.len() <= Answer::BYTES - 8;
        if has_room {
            // SAFETY: inside the mapping; this process alone writes there, and the other reads once this one has ended.
            unsafe {
                std::ptr::copy_nonoverlapping(text.as_ptr(), self.0.add(1).cast(), text.len());
                self.0.write(text.len() as u64);
            }
        }
        has_room
    }

    /// What a child said that has ended.
    fn read<T: DeserializeOwned>(&self) -> Option<T> {
        // SAFETY: inside the mapping, of which the child has checked the length; it has ended.
        let text = unsafe {
            let length = (self.0.read() as usize).min(Answer::BYTES - 8);
            std::slice::from_raw_parts(self.0.add(1).cast::<u8>(), length)
        };
        serde_json::from_slice(text).ok()
    }

    /// The same, by how it ended.
    fn end<T: DeserializeOwned>(&self, ended: Result<Option<i32>, String>) -> Outcome<T> {
        match (self.read(), ended) {
            (_, Err(why)) => Outcome::Failed(why),
            (Some(answer), _) => Outcome::Answered(answer),
            (_, Ok(None)) => Outcome::TimedOut,
            (_, Ok(Some(status))) if libc::WIFSIGNALED(status) => Outcome::Killed(libc::WTERMSIG(status)),
            _ => Outcome::Failed("the probe ended without an answer".to_owned()),
        }
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`; what was read of it is gone.
        unsafe { libc::munmap(self.0.cast(), Answer::BYTES) };
    }
}

/// The child's part: ends it with status 0 if `body` says so.
fn be_child(body: impl FnOnce() -> bool) -> ! {
    // What is killed leaves no core file.
    // SAFETY: takes no pointers.
    unsafe { libc::prctl(libc::PR_SET_DUMPABLE, 0) };
    let is_well = catch_unwind(AssertUnwindSafe(body)).unwrap_or(false);
    loop {
        for end in [libc::SYS_exit_group, libc::SYS_exit] {
            // SAFETY: ends the child, its only thread, without running what the parent registered for its own exit. One may be refused.
            unsafe { libc::syscall(end, i32::from(!is_well)) };
        }
    }
}

/// A child that has not been waited for.
struct Child {
    pid: libc::pid_t,
    /// Linux 5.2.
    end: Option<OwnedFd>,
}

impl Child {
    /// A forked child that ends with status 0 if `body` says so.
    fn make(body: impl FnOnce() -> bool) -> Result<Child, String> {
        let mut end = -1;
        let mut fork = |flags: libc::c_int| {
            // SAFETY: a fork: nothing is shared, and with one thread no lock is held by another that the child would lack. The
            // kernel stores the descriptor, if it knows the flag.
            unsafe { libc::syscall(libc::SYS_clone, flags, 0, &raw mut end, 0, 0) as libc::pid_t }
        };
        let mut pid = fork(libc::CLONE_PIDFD);
        if pid == -1 && errno::last() == libc::EINVAL {
            pid = fork(0);
        }
        // Each kernel makes a child without a signal; qemu-user makes only those that fork(3) of libc would.
        if pid == -1 && errno::last() == libc::EINVAL {
            IS_EMULATED.store(true, Ordering::Relaxed);
            pid = fork(libc::SIGCHLD);
        }
        match pid {
            -1 => return Err(format!("{NO_CHILD}: {}", refused("clone"))),
            0 => be_child(body),
            _ => {}
        }
        // SAFETY: made for us just now.
        let end = (end >= 0).then(|| unsafe { OwnedFd::from_raw_fd(end) });
        Ok(Child { pid, end })
    }

    /// The wait status; None where it took too long, and was killed.
    fn wait(self) -> Option<i32> {
        let deadline = Instant::now() + Duration::from_secs(PATIENCE_S.into());
        let patience = Timespec { tv_sec: i64::from(PATIENCE_S), tv_nsec: 0 };
        let mut status = 0;
        let mut reap = |options| {
            // SAFETY: `status` is writable; __WALL since the child has no exit signal.
            unsafe { libc::waitpid(self.pid, &mut status, libc::__WALL | options) }
        };
        let told = self.end.as_ref().map(|end| poll(&mut [PollFd::new(end, PollFlags::IN)], Some(&patience)));
        let in_time = match told {
            Some(Ok(ready)) => ready != 0,
            // Without pidfds, or poll(2).
            _ => loop {
                match reap(libc::WNOHANG) {
                    0 if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(1)),
                    0 => break false,
                    _ => return Some(status),
                }
            },
        };
        if !in_time {
            // SAFETY: our own child, not yet waited for, so the number is still its.
            unsafe { libc::kill(self.pid, libc::SIGKILL) };
        }
        while reap(0) == -1 && errno::last() == libc::EINTR {}
        in_time.then_some(status)
    }
}
