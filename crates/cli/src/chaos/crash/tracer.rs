//! Runs a program under ptrace(2), and records how it changes files in folders.
//!
//! Every system call stops its thread twice, in each process that the program starts. So it does not matter whether
//! libc, a raw instruction, a static program, or an engine worker makes a change. The change is recorded before the
//! call returns to the program.

use super::calls::{self, Begun};
use super::change::{Born, Change, File};
use super::mapped::Mapped;
use crate::arch;
use crate::chaos::one::{Ending, Runner};
use crate::errno;
use crate::failure::{Failure, OWN_FAILURE};
use std::collections::BTreeMap;
use std::io;
use std::mem::{size_of, zeroed};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;
use std::time::Instant;

/// The record of one run.
pub struct Recording {
    /// The folders, without symbolic links in their names.
    folders: Vec<Vec<u8>>,
    /// Number of changes after which the program is killed.
    killed_at: usize,
    pub changes: Vec<Change>,
    pub born: Born,
    /// Files that the program has mapped for writing.
    pub mapped: Mapped,
}

impl Recording {
    pub fn new(folders: &[PathBuf], killed_at: Option<usize>) -> Recording {
        use std::os::unix::ffi::OsStrExt;
        Recording {
            folders: folders.iter().map(|folder| folder.as_os_str().as_bytes().to_vec()).collect(),
            killed_at: killed_at.unwrap_or(usize::MAX),
            changes: Vec::new(),
            born: Born::default(),
            mapped: Mapped::default(),
        }
    }

    /// True if a path without symbolic links is in one of the folders.
    pub fn is_inside(&self, path: &[u8]) -> bool {
        let is_in =
            |folder: &Vec<u8>| path.strip_prefix(&folder[..]).is_some_and(|rest| matches!(rest, [] | [b'/', ..]));
        self.folders.iter().any(is_in)
    }

    /// Adds a change.
    pub fn add(&mut self, change: Change) {
        self.mapped.apply(&change);
        self.changes.push(change);
    }

    /// True once the program must be killed.
    fn is_over(&self) -> bool {
        self.changes.len() >= self.killed_at
    }
}

/// A system call: its number and arguments.
type Call = (i64, [usize; 6]);

/// A traced thread.
#[derive(Default)]
struct Traced {
    /// The call that it has begun, if that changes something.
    call: Option<Begun>,
    /// The file that this call writes.
    writes: Option<File>,
    /// The call that it may not begin yet, since another thread's call writes the same file. Two such calls at once
    /// would hide where in the file each of them has written (O_APPEND, a shared position).
    waits: Option<Call>,
}

struct Tracer<'a> {
    runner: &'a Runner<'a>,
    recording: &'a mut Recording,
    /// The program's first process.
    first: i32,
    threads: BTreeMap<i32, Traced>,
}

/// Options of ptrace(2): children are traced as well, and all of them end with this process.
const OPTIONS: i32 = libc::PTRACE_O_TRACESYSGOOD
    | libc::PTRACE_O_TRACEFORK
    | libc::PTRACE_O_TRACEVFORK
    | libc::PTRACE_O_TRACECLONE
    | libc::PTRACE_O_TRACEEXEC
    | libc::PTRACE_O_EXITKILL;

/// Runs the program to its end, or until it is killed. It is killed when its time is over, or after the last change
/// that the caller wants.
pub fn run(runner: &Runner, command: &mut Command, recording: &mut Recording) -> Result<Ending, Failure> {
    // SAFETY: the child makes one system call between fork and exec, which takes no pointer.
    unsafe {
        command.pre_exec(|| match libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0) {
            -1 => Err(io::Error::last_os_error()),
            _ => Ok(()),
        });
    }
    let begin = Instant::now();
    let child = command.spawn().map_err(|error| {
        Failure::own(format!("--crash: cannot start the program under ptrace(2): {}", errno::of(&error)))
    })?;
    let first = child.id() as i32; // waited for by `waitpid` here
    let mut tracer = Tracer { runner, recording, first, threads: BTreeMap::new() };
    let ending = tracer.follow(begin);
    tracer.kill_all();
    ending
}

/// Lets a stopped thread continue, to its next system call at most.
fn go_on(thread: i32, signal: i32) {
    // SAFETY: no pointers. If the thread has ended since its stop, it is waited for later.
    unsafe { libc::ptrace(libc::PTRACE_SYSCALL, thread, 0, signal) };
}

impl Tracer<'_> {
    /// Handles stops until the first process has ended.
    fn follow(&mut self, begin: Instant) -> Result<Ending, Failure> {
        while !self.runner.is_late(begin) {
            let mut status = 0;
            // SAFETY: the status is written before it is read.
            match unsafe { libc::waitpid(-1, &mut status, libc::__WALL | libc::WNOHANG) } {
                0 => self.runner.sleep()?,
                -1 if errno::last() == libc::EINTR => {}
                -1 => return Err(Failure::own(format!("waitpid: {}", errno::describe(errno::last())))),
                thread if libc::WIFSTOPPED(status) => {
                    self.stopped(thread, status);
                    if self.recording.is_over() {
                        return Ok(Ending::Signal(libc::SIGKILL));
                    }
                }
                thread => {
                    self.threads.remove(&thread);
                    self.release();
                    if thread == self.first {
                        return Ok(match libc::WIFSIGNALED(status) {
                            true => Ending::Signal(libc::WTERMSIG(status)),
                            false if libc::WIFEXITED(status) => Ending::Status(libc::WEXITSTATUS(status)),
                            false => Ending::Status(OWN_FAILURE),
                        });
                    }
                }
            }
        }
        Ok(Ending::Late)
    }

    /// Handles one stop, and lets the thread continue.
    fn stopped(&mut self, thread: i32, status: i32) {
        let (signal, event) = (libc::WSTOPSIG(status), status >> 16);
        let is_new = !self.threads.contains_key(&thread);
        self.threads.entry(thread).or_default();
        let mut delivered = 0;
        if signal == libc::SIGTRAP | 0x80 {
            self.call(thread);
            if self.recording.is_over() {
                return; // it stays in its stop until it is killed
            }
            if self.threads.get(&thread).is_some_and(|it| it.waits.is_some()) {
                return; // it stays there until it is released
            }
        } else if is_new {
            // The first process stops at its exec. Every other thread is stopped by a SIGSTOP from the kernel.
            // SAFETY: no pointers.
            unsafe { libc::ptrace(libc::PTRACE_SETOPTIONS, thread, 0, OPTIONS) };
        } else if event == 0 {
            delivered = signal;
        } else if event == libc::PTRACE_EVENT_EXEC {
            self.recording.mapped.forget_process(thread);
            self.forget_former(thread);
        }
        go_on(thread, delivered);
    }

    /// Handles an exec by another thread than the first. That thread now has the first thread's number, and its own
    /// number is free.
    fn forget_former(&mut self, thread: i32) {
        let mut former: libc::c_ulong = 0;
        // SAFETY: the kernel writes one word.
        unsafe { libc::ptrace(libc::PTRACE_GETEVENTMSG, thread, 0, &raw mut former) };
        if former as i32 != thread {
            self.threads.remove(&(former as i32));
        }
    }

    /// Handles a stop at which a system call begins or returns.
    fn call(&mut self, thread: i32) {
        // SAFETY: the kernel writes at most so many bytes of a plain value.
        let info = unsafe {
            let mut info: libc::ptrace_syscall_info = zeroed();
            let size = size_of::<libc::ptrace_syscall_info>();
            if libc::ptrace(libc::PTRACE_GET_SYSCALL_INFO, thread, size, &raw mut info) <= 0 {
                return;
            }
            info
        };
        match info.op {
            libc::PTRACE_SYSCALL_INFO_ENTRY => {
                // SAFETY: the part that `op` names.
                let entry = unsafe { info.u.entry };
                self.begin(thread, (entry.nr as i64, entry.args.map(|arg| arg as usize)));
            }
            libc::PTRACE_SYSCALL_INFO_EXIT => {
                // SAFETY: as above.
                let result = unsafe { info.u.exit }.sval;
                let Some(traced) = self.threads.get_mut(&thread) else { return };
                let has_written = traced.writes.take().is_some();
                if let Some(begun) = traced.call.take() {
                    calls::end(self.recording, thread, begun, result);
                }
                if has_written && !self.recording.is_over() {
                    self.release();
                }
            }
            _ => {}
        }
    }

    /// Handles the begin of a call.
    fn begin(&mut self, thread: i32, call: Call) {
        let begun = calls::begin(self.recording, thread, call.0, call.1);
        let writes = begun.as_ref().and_then(|begun| calls::written(call.0, begun));
        let must_wait = writes.is_some() && self.threads.values().any(|other| other.writes == writes);
        let Some(traced) = self.threads.get_mut(&thread) else { return };
        if must_wait {
            traced.waits = Some(call);
            return;
        }
        if begun.as_ref().is_some_and(Begun::is_refused) {
            arch::refuse(thread);
        }
        (traced.call, traced.writes) = (begun, writes);
    }

    /// Lets the threads begin their calls that waited for another thread's.
    fn release(&mut self) {
        let waiting = self.threads.iter_mut().filter_map(|(thread, traced)| Some((*thread, traced.waits.take()?)));
        for (thread, call) in waiting.collect::<Vec<_>>() {
            self.begin(thread, call);
            if self.threads.get(&thread).is_some_and(|it| it.waits.is_none()) {
                go_on(thread, 0);
            }
        }
    }

    /// Kills every process of the program, and waits for them.
    fn kill_all(&mut self) {
        let mut left: Vec<i32> = self.threads.keys().copied().chain([self.first]).collect();
        loop {
            // SAFETY: no pointers. Threads that are traced have not been waited for, so that their numbers are their own.
            left.iter().for_each(|thread| _ = unsafe { libc::kill(*thread, libc::SIGKILL) });
            let mut status = 0;
            // SAFETY: the status is written before it is read.
            match unsafe { libc::waitpid(-1, &mut status, libc::__WALL) } {
                -1 if errno::last() == libc::EINTR => {}
                -1 => return, // ECHILD: nobody is left
                thread if libc::WIFSTOPPED(status) => left = vec![thread],
                thread => left.retain(|it| *it != thread),
            }
        }
    }
}
