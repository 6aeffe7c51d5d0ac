//! The descriptor that a job works on. While a worker is about to make its call, or sleeps in it, the program may
//! close the number and open another file under it. The call must not get that other file.
//!
//! A call that can be interrupted in its sleep gets a private duplicate when it is queued ([`Number::own_file`]). For
//! any other call, the thread that closes the number first gives the job a duplicate ([`Number::replace`]). A worker
//! may have read the number before that. The closing thread then waits until the worker is inside the system call,
//! which holds the file, or has left the call:
//!
//! | worker | closing thread |
//! |---|---|
//! | stores that it is inside | replaces the number |
//! | reads the number | checks whether a worker is inside |
//!
//! Each thread takes its two steps in this order, and all four steps are sequentially consistent. So either the
//! worker reads the duplicate, or the closing thread finds the worker inside.

use crate::mutation::{mutated, Mutation};
use crate::os::file_status;
use crate::resource::files::FixedFile;
use crate::thread;
use core::sync::atomic::{AtomicI32, AtomicU32, Ordering::SeqCst};
use std::sync::{Arc, OnceLock};

/// The number of a job's file.
pub struct Number {
    fd: AtomicI32,
    /// The thread that is making a call with the number; 0 for none.
    caller: AtomicU32,
    /// Keeps a registered file, or a private duplicate, open.
    kept: OnceLock<Arc<FixedFile>>,
}

impl Number {
    /// Makes a value for the number `fd`. `kept` keeps `fd` open, unless it is one of the program's numbers.
    pub fn new(fd: i32, kept: Option<Arc<FixedFile>>) -> Number {
        let number = Number { fd: AtomicI32::new(fd), caller: AtomicU32::new(0), kept: OnceLock::new() };
        if let Some(kept) = kept {
            let _ = number.kept.set(kept);
        }
        number
    }

    /// Returns the number, for messages only.
    pub fn get(&self) -> i32 {
        self.fd.load(SeqCst)
    }

    /// Prepares a call that may sleep where SIGSTOP interrupts it. After SIGCONT the kernel restarts such a call with
    /// the file that then has the number. So the call gets a private duplicate, unless a file is held already.
    ///
    /// Regular files, directories and block devices keep the program's number. Only a signal that kills interrupts
    /// their calls. Also, closing a duplicate of a file would give up the process's POSIX locks on it. If the
    /// descriptor table is full, the call keeps the program's number as well.
    pub fn own_file(&self) {
        if self.kept.get().is_some() || self.get() < 0 || mutated(Mutation::SleepsOnTheNumber) {
            return;
        }
        let private = self.call_with(|fd| {
            let status = file_status(fd).ok()?;
            let stays = status.has_blocks() || status.kind == libc::S_IFDIR;
            (!stays).then(|| FixedFile::private(fd).ok())?
        });
        // If the number was replaced since the check, `private` may be a duplicate of another file.
        if let Some(private) = private {
            if self.kept.set(private.clone()).is_ok() {
                self.fd.store(private.fd, SeqCst);
            }
        }
    }

    /// Calls `call` with the number, which names this file until the call has been made.
    pub fn call_with<T>(&self, call: impl FnOnce(i32) -> T) -> T {
        self.caller.store(thread::id(), SeqCst);
        let _left = Left(&self.caller);
        call(self.fd.load(SeqCst))
    }

    /// Makes the job work on the duplicate `private` from now on, since the program is about to close the number.
    /// Returns when no worker is about to use the number any more.
    pub fn replace(&self, private: &Arc<FixedFile>) {
        if self.kept.set(private.clone()).is_err() {
            return; // the number does not belong to the program
        }
        if mutated(Mutation::JobKeepsTheNumber) {
            return;
        }
        self.fd.store(private.fd, SeqCst);
        let caller = self.caller.load(SeqCst);
        if caller != 0 && caller != thread::id() {
            self.wait_for(caller);
        }
    }

    /// Waits until the thread `caller` has left `call_with`, or sleeps, which it does only inside its system call.
    /// The wait takes a few instructions, unless the thread is preempted inside `call_with`.
    fn wait_for(&self, caller: u32) {
        /// Number of checks if the kernel does not say whether the thread sleeps. They take long enough for a thread
        /// that has a CPU.
        const MOST_CHECKS: u32 = 60;
        for look in 0..MOST_CHECKS {
            crate::os::nap(look);
            if self.caller.load(SeqCst) != caller || thread::sleeps(caller) == Some(true) {
                return;
            }
        }
    }
}

struct Left<'a>(&'a AtomicU32);

impl Drop for Left<'_> {
    fn drop(&mut self) {
        self.0.store(0, SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::descriptors;
    use std::io::{Read, Write};
    use std::os::fd::AsRawFd;
    use std::sync::atomic::Ordering::SeqCst;
    use std::time::Duration;

    fn private_of(fd: i32) -> Arc<FixedFile> {
        FixedFile::private(fd).expect("a duplicate")
    }

    #[test]
    fn a_number_that_is_replaced_is_not_used_again() {
        let (reader, _writer) = std::io::pipe().expect("a pipe");
        let number = Number::new(reader.as_raw_fd(), None);
        let private = private_of(reader.as_raw_fd());
        number.replace(&private);
        assert_eq!(number.call_with(|fd| fd), private.fd);
        // A number that belongs to the engine stays the same.
        let own = private_of(reader.as_raw_fd());
        let number = Number::new(own.fd, Some(own.clone()));
        number.replace(&private);
        assert_eq!(number.call_with(|fd| fd), own.fd);
    }

    #[test]
    fn a_file_that_a_call_may_sleep_on_is_held_but_no_regular_file() {
        let (reader, _writer) = std::io::pipe().expect("a pipe");
        let number = Number::new(reader.as_raw_fd(), None);
        number.own_file();
        let held = number.call_with(|fd| fd);
        assert!(held != reader.as_raw_fd() && descriptors::same_description(held, reader.as_raw_fd()));
        number.replace(&private_of(reader.as_raw_fd()));
        assert_eq!(number.call_with(|fd| fd), held);
        let file = std::fs::File::open("/proc/self/exe").expect("a file");
        let number = Number::new(file.as_raw_fd(), None);
        number.own_file();
        assert_eq!(number.call_with(|fd| fd), file.as_raw_fd());
    }

    #[test]
    fn a_replacement_waits_for_a_thread_on_its_way_into_the_call() {
        let (reader, _writer) = std::io::pipe().expect("a pipe");
        let number = Number::new(reader.as_raw_fd(), None);
        let (inside, looked, replaced) = (AtomicU32::new(0), AtomicU32::new(0), AtomicU32::new(0));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                number.call_with(|_| {
                    inside.store(thread::id(), SeqCst);
                    // Runs, and makes no call, until the other thread has checked, and a while longer.
                    let mut until = None;
                    while until.is_none_or(|until| std::time::Instant::now() < until) {
                        assert_eq!(replaced.load(SeqCst), 0, "the number is still in use");
                        if until.is_none() && looked.load(SeqCst) != 0 {
                            until = Some(std::time::Instant::now() + Duration::from_micros(300));
                        }
                    }
                });
            });
            while inside.load(SeqCst) == 0 {
                std::thread::yield_now();
            }
            let sleeps = thread::sleeps(inside.load(SeqCst));
            looked.store(1, SeqCst);
            assert_ne!(sleeps, Some(true));
            number.replace(&private_of(reader.as_raw_fd()));
            replaced.store(1, SeqCst);
        });
    }

    #[test]
    fn a_thread_that_sleeps_in_its_call_is_not_waited_for() {
        let (mut reader, mut writer) = std::io::pipe().expect("a pipe");
        let number = Number::new(reader.as_raw_fd(), None);
        let caller = AtomicU32::new(0);
        let private = private_of(reader.as_raw_fd());
        std::thread::scope(|scope| {
            scope.spawn(|| {
                caller.store(thread::id(), SeqCst);
                let read = number.call_with(|_| reader.read(&mut [0]));
                assert_eq!(read.expect("what was written"), 1);
            });
            while thread::sleeps(caller.load(SeqCst)) != Some(true) {
                std::thread::yield_now();
            }
            number.replace(&private);
            writer.write_all(b"x").expect("the thread still reads");
        });
    }
}
