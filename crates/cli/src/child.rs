//! Asks a question in a forked child, because the answer may be a signal. A seccomp filter may kill the process that
//! makes the call, and a supervisor may never answer it.
//!
//! The child's exit signal is 0, unless it is a [`Worker`]. So a program that this process executes later inherits
//! no pending SIGCHLD. And if this process has inherited that SIGCHLD is ignored, the child's status is not
//! discarded.

use crate::errno;
use rustix::event::{poll, PollFd, PollFlags, Timespec};
use rustix::fs::{memfd_create, MemfdFlags};
use rustix::pipe::{pipe_with, PipeFlags};
use serde::de::DeserializeOwned;
use serde::Serialize;
use std::fs::File;
use std::io::{Read, Seek};
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// Time limit of a child, in seconds.
pub const PATIENCE_S: u32 = 5;

/// Time limit of an expendable process, in seconds, for its questions and for its children. The process that asks
/// again is more patient.
const EXPENDABLE_PATIENCE_S: u32 = 1;

/// The reason that is reported if no child can be made.
pub const NO_CHILD: &str = "no child process can be made";

/// True if clone(2) refused a child in the way of an emulator for another processor's programs. Relaxed: there is
/// one thread.
static IS_EMULATED: AtomicBool = AtomicBool::new(false);

/// True while a child that shares this process's memory may be killed without harm. No core file is made of it then. A
/// core file before Linux 5.16 ends all processes with that memory. Relaxed: there is one thread.
static SHARES_MEMORY: AtomicBool = AtomicBool::new(false);

/// True in a process whose end does nobody harm: it asks its questions itself, and another process asks them again if
/// one ends it. Relaxed: there is one thread.
static IS_EXPENDABLE: AtomicBool = AtomicBool::new(false);

/// True if this process asks its questions itself, and may be killed for them.
pub fn is_expendable() -> bool {
    IS_EXPENDABLE.load(Ordering::Relaxed)
}

/// True if an emulator (qemu-user) answers this program's calls, as the last child has shown.
pub fn is_emulated() -> bool {
    IS_EMULATED.load(Ordering::Relaxed)
}

/// The outcome of a question.
#[derive(Debug, Clone)]
pub enum Outcome<T> {
    /// The child answered.
    Replied(T),
    /// This signal ended the child before it answered.
    Killed(i32),
    /// The child took longer than [`PATIENCE_S`].
    TimedOut,
    /// The question could not be asked, or the child ended without an answer. The text is the reason.
    Failed(String),
}

impl<T> Outcome<T> {
    /// Describes the outcome for people; `answered` describes an answer.
    pub fn describe(&self, answered: impl FnOnce(&T) -> String) -> String {
        match self {
            Outcome::Replied(answer) => answered(answer),
            Outcome::Killed(signal) => format!("killed by {}", errno::signal_name(*signal)),
            Outcome::TimedOut => format!("no answer within {PATIENCE_S} s"),
            Outcome::Failed(reason) => reason.clone(),
        }
    }
}

/// Runs `question` in a forked child and returns its answer. The caller must have only one thread.
pub fn ask<T: Serialize + DeserializeOwned>(question: impl FnOnce() -> T) -> Outcome<T> {
    let Some(answers) = Reply::new() else { return Outcome::Failed(refused("mmap")) };
    let child = Child::make(|| answers.give(&question()));
    answers.end(child.map(Child::wait))
}

/// Does the same as [`ask`], but asks in this process if no child can be made and no filter might kill this process.
pub fn ask_if_safe<T: Serialize + DeserializeOwned>(question: impl FnOnce() -> T) -> Outcome<T> {
    ask_or_here(question, || !may_be_filtered())
}

/// Does the same as [`ask`], but asks in this process if no child can be made. A filter does not matter, since this
/// process will make these calls anyway.
pub fn ask_anyhow<T: Serialize + DeserializeOwned>(question: impl FnOnce() -> T) -> Outcome<T> {
    ask_or_here(question, || true)
}

/// Asks several questions in one forked child, since each child costs a copy of this process's memory. An expendable
/// process asks them itself. The child gives its answers so far after each question. Returns the last of them, or
/// `None` if the child was killed before it gave any, or there is no child.
pub fn ask_in_turn<T: Serialize + DeserializeOwned>(
    questions: impl FnOnce(&dyn Fn(&T) -> bool) -> bool,
) -> Option<T> {
    let answers = Reply::new()?;
    if is_expendable() {
        return in_time(|| questions(&|answer| answers.give(answer))).then(|| answers.read())?;
    }
    let child = Child::make(|| questions(&|answer| answers.give(answer))).ok()?;
    child.wait();
    answers.read()
}

fn ask_or_here<T: Serialize + DeserializeOwned>(
    question: impl FnOnce() -> T,
    is_safe: impl FnOnce() -> bool,
) -> Outcome<T> {
    if is_expendable() {
        return Outcome::Replied(in_time(question));
    }
    let Some(answers) = Reply::new() else { return Outcome::Failed(refused("mmap")) };
    let mut question = Some(question);
    let child = Child::make(|| question.take().is_some_and(|question| answers.give(&question())));
    match question {
        Some(question) if child.is_err() && is_safe() => Outcome::Replied(question()),
        _ => answers.end(child.map(Child::wait)),
    }
}

/// Runs `question` in this process, which ends by SIGALRM if there is no answer soon.
fn in_time<T>(question: impl FnOnce() -> T) -> T {
    // SAFETY: the action, the mask and the clock belong to this process, whose only thread this is.
    unsafe {
        let mut only_alarm: libc::sigset_t = std::mem::zeroed();
        libc::sigaddset(&mut only_alarm, libc::SIGALRM);
        let mut mask: libc::sigset_t = std::mem::zeroed();
        libc::signal(libc::SIGALRM, libc::SIG_DFL);
        libc::sigprocmask(libc::SIG_UNBLOCK, &only_alarm, &mut mask);
        libc::alarm(EXPENDABLE_PATIENCE_S);
        let answer = question();
        libc::alarm(0);
        libc::sigprocmask(libc::SIG_SETMASK, &mask, std::ptr::null_mut());
        answer
    }
}

/// Runs `rehearsal` in a forked child if a seccomp filter may be in force, since the filter may kill for any of its
/// calls. The first child is expendable: it makes no children to ask questions. If it ends without an answer, a second
/// child finds out what is fatal. Without a filter, or if no child can be made, runs `rehearsal` in this process.
/// Returns its answer, or `None` if the second child was killed, too.
///
/// Until the end of a child is known, this process makes only calls that starting a program or reporting an error
/// needs anyway. It does not even wait for the child or unmap memory.
pub fn rehearse<T: Serialize + DeserializeOwned>(rehearsal: impl Fn() -> T) -> Option<T> {
    if is_surely_unfiltered() {
        SHARES_MEMORY.store(true, Ordering::Relaxed);
        return Some(rehearsal());
    }
    let Some(answers) = Reply::new().map(ManuallyDrop::new) else { return Some(rehearsal()) };
    let mut killed = None;
    for is_expendable in [true, false] {
        // SAFETY: as in `Child::make`; CLONE_VFORK suspends this process until the child has ended.
        let pid = unsafe { libc::syscall(libc::SYS_clone, libc::CLONE_VFORK, 0, 0, 0, 0) };
        match pid {
            // Also under qemu-user.
            -1 => return Some(rehearsal()),
            0 => be_child(|| {
                SHARES_MEMORY.store(true, Ordering::Relaxed);
                IS_EXPENDABLE.store(is_expendable, Ordering::Relaxed);
                answers.give(&rehearsal())
            }),
            _ => {}
        }
        let Some(answer) = answers.read() else {
            killed = Some(pid);
            continue;
        };
        // The child has answered, so it could wait for its own children: waiting is not fatal here.
        for pid in [Some(pid), killed].into_iter().flatten() {
            // SAFETY: no status is stored.
            unsafe { libc::waitpid(pid as libc::pid_t, std::ptr::null_mut(), libc::__WALL) };
        }
        return Some(answer);
    }
    None
}

/// True if /proc reports that no seccomp filter is in force. Uses only calls that starting any program needs.
fn is_surely_unfiltered() -> bool {
    let (mut status, mut length) = ([0_u8; 4096], 0);
    // SAFETY: a constant string and a local array. The file is closed when this process executes a program
    // (O_CLOEXEC).
    unsafe {
        let file = libc::open(c"/proc/self/status".as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC);
        if file >= 0 {
            length = libc::read(file, status.as_mut_ptr().cast(), status.len()).max(0) as usize;
        }
    }
    let is_none = |line: &[u8]| line == b"Seccomp:\t0";
    status[..length].split(|byte| *byte == b'\n').any(is_none)
}

/// True unless prctl(2) reports that no seccomp filter is in force.
pub fn may_be_filtered() -> bool {
    // SAFETY: takes no pointers.
    unsafe { libc::prctl(libc::PR_GET_SECCOMP) != 0 }
}

/// The output of a program, on both of its standard streams, and its exit status.
pub struct Output {
    pub status: i32,
    pub text: String,
}

/// Whether memfds can be made, once that is known.
static MAKES_MEMFDS: OnceLock<bool> = OnceLock::new();

/// True if memfds can be made. If a filter might kill for the call, a child makes it.
pub fn makes_memfds() -> bool {
    *MAKES_MEMFDS.get_or_init(|| !may_be_filtered() || matches!(ask_anyhow(make_memfd), Outcome::Replied(true)))
}

/// Makes a memfd, in a child. Returns whether it could be made.
pub fn make_memfd() -> bool {
    memfd_create("anyring-asked", MemfdFlags::CLOEXEC).is_ok()
}

/// Remembers what a child answered that called [`make_memfd`].
pub fn learn_memfds(answer: bool) {
    let _ = MAKES_MEMFDS.set(answer);
}

/// Makes the stream to which a child writes: the end to read, and the end to write. The stream is a memfd, or a
/// nonblocking pipe if memfds are refused. A full pipe takes no more bytes.
fn streams() -> rustix::io::Result<(File, File)> {
    if !makes_memfds() {
        let (ours, theirs) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        return Ok((ours.into(), theirs.into()));
    }
    let file = memfd_create("anyring-said", MemfdFlags::CLOEXEC)?;
    Ok((File::from(rustix::io::fcntl_dupfd_cloexec(&file, 3)?), file.into()))
}

/// Returns all that was written.
fn read_all(mut ours: File) -> String {
    let mut text = Vec::new();
    // A pipe cannot seek, and begins at its beginning anyway.
    let _ = ours.rewind();
    // An empty pipe gives an error while another process has its other end. All bytes before that are in `text`.
    let _ = ours.read_to_end(&mut text);
    String::from_utf8_lossy(&text).into_owned()
}

/// Makes a child execute a program by `execute`, which returns only if that fails, with the reason. Opens no file by
/// name. The child may share this process's memory until then, so `execute` changes nothing in it.
pub fn capture_output(execute: impl FnOnce() -> String) -> Outcome<Output> {
    let (ours, streams) = match streams() {
        Ok(streams) => streams,
        Err(error) => return Outcome::Failed(format!("no pipe: {}", errno::name(error.raw_os_error()))),
    };
    let mut body = Some(|| {
        // SAFETY: replaces descriptors of the child only, whose single thread this is.
        unsafe {
            libc::dup2(streams.as_raw_fd(), 1);
            libc::dup2(streams.as_raw_fd(), 2);
        }
        let why = execute();
        // SAFETY: a string of this process, with its length.
        unsafe { libc::write(2, why.as_ptr().cast(), why.len()) };
        false
    });
    let shares = SHARES_MEMORY.load(Ordering::Relaxed);
    let child = match if shares { Child::make_sharing(&mut body) } else { None } {
        Some(child) => Ok(child),
        None => Child::make(|| body.take().is_some_and(|body| body())),
    };
    match child.map(Child::wait) {
        Err(why) => Outcome::Failed(why),
        Ok(None) => Outcome::TimedOut,
        Ok(Some(status)) if libc::WIFSIGNALED(status) => Outcome::Killed(libc::WTERMSIG(status)),
        Ok(Some(status)) => Outcome::Replied(Output { status: libc::WEXITSTATUS(status), text: read_all(ours) }),
    }
}

fn refused(call: &str) -> String {
    format!("{call}: {}", errno::name(errno::last()))
}

/// Memory shared with a child: the length of its answer, then the answer.
struct Reply(*mut u64);

impl Reply {
    const BYTES: usize = 1 << 16;

    fn new() -> Option<Reply> {
        let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping, at an address that the kernel chooses.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), Reply::BYTES, protection, flags, -1, 0) };
        (at != libc::MAP_FAILED).then_some(Reply(at.cast()))
    }

    fn give<T: Serialize>(&self, answer: &T) -> bool {
        let text = serde_json::to_vec(answer).unwrap_or_default();
        let has_room = text.len() <= Reply::BYTES - 8;
        if has_room {
            // SAFETY: inside the mapping. Only the child writes there, and the parent reads after the child has ended.
            unsafe {
                std::ptr::copy_nonoverlapping(text.as_ptr(), self.0.add(1).cast(), text.len());
                self.0.write(text.len() as u64);
            }
        }
        has_room
    }

    /// The answer of a child that has ended.
    fn read<T: DeserializeOwned>(&self) -> Option<T> {
        // SAFETY: inside the mapping, whose length bounds the text; the child has ended and writes no more.
        let text = unsafe {
            let length = (self.0.read() as usize).min(Reply::BYTES - 8);
            std::slice::from_raw_parts(self.0.add(1).cast::<u8>(), length)
        };
        serde_json::from_slice(text).ok()
    }

    /// The outcome, from the answer and the child's wait status.
    fn end<T: DeserializeOwned>(&self, ended: Result<Option<i32>, String>) -> Outcome<T> {
        match (self.read(), ended) {
            (_, Err(why)) => Outcome::Failed(why),
            (Some(answer), _) => Outcome::Replied(answer),
            (_, Ok(None)) => Outcome::TimedOut,
            (_, Ok(Some(status))) if libc::WIFSIGNALED(status) => Outcome::Killed(libc::WTERMSIG(status)),
            _ => Outcome::Failed("the probe ended without an answer".to_owned()),
        }
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`; no reference into it is left.
        unsafe { libc::munmap(self.0.cast(), Reply::BYTES) };
    }
}

/// Runs the child's part: ends it with status 0 if `body` returns true.
fn be_child(body: impl FnOnce() -> bool) -> ! {
    // A killed child leaves no core file.
    // SAFETY: takes no pointers.
    unsafe { libc::prctl(libc::PR_SET_DUMPABLE, 0) };
    end_after(body)
}

/// Runs `body` and ends this process, with status 0 if `body` returns true.
fn end_after(body: impl FnOnce() -> bool) -> ! {
    end(catch_unwind(AssertUnwindSafe(body)).unwrap_or(false))
}

/// Ends a child without an answer.
pub fn leave() -> ! {
    end(false)
}

fn end(is_well: bool) -> ! {
    loop {
        for end in [libc::SYS_exit_group, libc::SYS_exit] {
            // SAFETY: ends the child, its only thread, without running the parent's exit handlers. A filter may
            // refuse one of the two.
            unsafe { libc::syscall(end, i32::from(!is_well)) };
        }
    }
}

/// A child that works while this process goes on. When the child ends, this process gets SIGCHLD. If this process
/// ends first, the child gets SIGTERM.
pub struct Worker {
    child: Child,
    reply: Reply,
}

impl Worker {
    /// Starts a worker. The caller must have only one thread.
    pub fn start<T: Serialize>(work: impl FnOnce() -> T) -> Result<Worker, String> {
        let reply = Reply::new().ok_or_else(|| refused("mmap"))?;
        let parent = std::process::id();
        let child = Child::make_with(libc::SIGCHLD, || {
            // SAFETY: takes no pointers.
            unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGTERM) };
            let is_orphan = std::os::unix::process::parent_id() != parent; // it ended before the call
            !is_orphan && reply.give(&work())
        })?;
        Ok(Worker { child, reply })
    }

    /// True once the worker has ended. It has then been waited for.
    pub fn has_ended(&self) -> bool {
        // ECHILD if this process inherited "ignore SIGCHLD": then the kernel has waited.
        // SAFETY: no status is stored.
        unsafe { libc::waitpid(self.child.pid, std::ptr::null_mut(), libc::WNOHANG) != 0 }
    }

    /// Asks a worker that has not ended yet to end.
    pub fn terminate(&self) {
        // SAFETY: takes no pointers. The worker was not waited for, so that the number is still its own.
        unsafe { libc::kill(self.child.pid, libc::SIGTERM) };
    }

    /// The reply of a worker that has ended. `None` if it was killed.
    pub fn reply<T: DeserializeOwned>(self) -> Option<T> {
        self.reply.read()
    }
}

/// A child that has not been waited for.
struct Child {
    pid: libc::pid_t,
    /// The child's pidfd; `None` before Linux 5.2.
    end: Option<OwnedFd>,
    /// The stack of a child that shares this process's memory.
    _stack: Vec<u128>,
}

impl Child {
    /// Forks a child that ends with status 0 if `body` returns true.
    fn make(body: impl FnOnce() -> bool) -> Result<Child, String> {
        Child::make_with(0, body)
    }

    /// Like [`make`](Child::make); this process gets the signal when the child has ended.
    fn make_with(signal: libc::c_int, body: impl FnOnce() -> bool) -> Result<Child, String> {
        let mut end = -1;
        let mut fork = |flags: libc::c_int| {
            // SAFETY: a fork: nothing is shared, and with one thread no lock is held by another that the child would
            // lack. The kernel stores the descriptor, if it knows the flag.
            unsafe { libc::syscall(libc::SYS_clone, flags, 0, &raw mut end, 0, 0) as libc::pid_t }
        };
        let mut pid = fork(libc::CLONE_PIDFD | signal);
        if pid == -1 && errno::last() == libc::EINVAL {
            pid = fork(signal);
        }
        // Every kernel can make a child without an exit signal; qemu-user accepts only the flags of libc's fork(3).
        if pid == -1 && errno::last() == libc::EINVAL {
            IS_EMULATED.store(true, Ordering::Relaxed);
            pid = fork(libc::SIGCHLD);
        }
        match pid {
            -1 => return Err(format!("{NO_CHILD}: {}", refused("clone"))),
            0 => be_child(body),
            _ => {}
        }
        // SAFETY: the kernel has just created this descriptor, and nothing else owns it.
        let end = (end >= 0).then(|| unsafe { OwnedFd::from_raw_fd(end) });
        Ok(Child { pid, end, _stack: Vec::new() })
    }

    /// Makes a child that shares this process's memory until it executes a program, so that no memory is copied. This
    /// process must only wait for the child. `None` if such a child cannot be made.
    fn make_sharing<F: FnOnce() -> bool>(body: &mut Option<F>) -> Option<Child> {
        extern "C" fn begin<F: FnOnce() -> bool>(body: *mut libc::c_void) -> libc::c_int {
            // SAFETY: `make_sharing` passes this body, which its caller keeps until the child has been waited for.
            let body = unsafe { (*body.cast::<Option<F>>()).take() };
            end_after(|| body.is_some_and(|body| body()))
        }
        const STACK: usize = 4096;
        let (mut stack, mut end) = (Vec::<u128>::with_capacity(STACK), -1);
        // SAFETY: the child runs on a stack of its own, which lives as long as the `Child`. Nothing else of this memory
        // is used meanwhile: there is one thread, and it waits. The kernel stores the descriptor, if it knows the flag.
        let pid = unsafe {
            let top = stack.as_mut_ptr().add(STACK).cast();
            libc::clone(
                begin::<F>,
                top,
                libc::CLONE_VM | libc::CLONE_PIDFD,
                std::ptr::from_mut(body).cast(),
                &raw mut end,
            )
        };
        if pid == -1 {
            return None;
        }
        // SAFETY: the kernel has just created this descriptor, and nothing else owns it.
        let end = (end >= 0).then(|| unsafe { OwnedFd::from_raw_fd(end) });
        Some(Child { pid, end, _stack: stack })
    }

    /// The wait status; `None` if the child took too long and was killed.
    fn wait(self) -> Option<i32> {
        let patience_s = if is_expendable() { EXPENDABLE_PATIENCE_S } else { PATIENCE_S };
        let deadline = Instant::now() + Duration::from_secs(patience_s.into());
        let patience = Timespec { tv_sec: i64::from(patience_s), tv_nsec: 0 };
        let mut status = 0;
        let mut reap = |options| {
            // SAFETY: `status` is writable; __WALL since the child has no exit signal.
            unsafe { libc::waitpid(self.pid, &mut status, libc::__WALL | options) }
        };
        let polled = self.end.as_ref().map(|end| poll(&mut [PollFd::new(end, PollFlags::IN)], Some(&patience)));
        let in_time = match polled {
            Some(Ok(ready)) => ready != 0,
            // Without a pidfd, or where poll(2) fails.
            _ => loop {
                match reap(libc::WNOHANG) {
                    0 if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(1)),
                    0 => break false,
                    _ => return Some(status),
                }
            },
        };
        if !in_time {
            // SAFETY: our own child, not yet waited for, so the number is still its own.
            unsafe { libc::kill(self.pid, libc::SIGKILL) };
        }
        while reap(0) == -1 && errno::last() == libc::EINTR {}
        in_time.then_some(status)
    }
}
