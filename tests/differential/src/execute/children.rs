//! The children of programs with WAITID, and the call that wakes a futex word.

use super::objects::move_up;
use crate::generate::flags_of_word;
use crate::program::{ChildState, INITIAL_CHILDREN};
use anyring_conformance::sys;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{FromRawFd, IntoRawFd};

/// Children, each with the pipe that ends it.
#[derive(Default)]
pub struct Children(Vec<(i32, File)>);

impl Children {
    /// Makes all children, and waits for those that begin as ended. They end with this process.
    pub fn new() -> Children {
        let mut children = Children(Vec::new());
        for (index, state) in INITIAL_CHILDREN.into_iter().enumerate() {
            children.0.push(child(7 + index as i32));
            if state == ChildState::Exited {
                children.end(index as u8);
            }
        }
        children
    }

    /// Their process IDs.
    pub fn ids(&self) -> impl Iterator<Item = (u8, i32)> + '_ {
        self.0.iter().enumerate().map(|(index, (id, _))| (index as u8, *id))
    }

    /// Ends a child, and returns when it has ended, whether a request reaped it or not.
    pub fn end(&mut self, index: u8) -> i64 {
        let Some((id, writer)) = self.0.get_mut(usize::from(index)) else { return -1 };
        // A child that has already ended does not read.
        let _ = writer.write(&[0]);
        // SAFETY: without a siginfo_t nothing is written; the child is left to be reaped.
        unsafe { libc::waitid(libc::P_PID, *id as u32, std::ptr::null_mut(), libc::WEXITED | libc::WNOWAIT) };
        0
    }
}

fn child(status: i32) -> (i32, File) {
    let (reader, writer) = sys::pipe_with(libc::O_CLOEXEC);
    // SAFETY: this process has one thread yet; the child only closes, reads and ends.
    let id = unsafe { libc::fork() };
    assert!(id >= 0, "fork");
    if id == 0 {
        drop(writer);
        let mut byte = [0];
        // The pipe's hang-up ends the child, too.
        let _ = (&reader).read(&mut byte);
        // SAFETY: ends this process, without what the parent does at exit.
        unsafe { libc::_exit(status) };
    }
    // SAFETY: the number has no other owner.
    (id, unsafe { File::from_raw_fd(move_up(writer.into_raw_fd())) })
}

/// Wakes one waiter of the word by futex(2). Returns the number woken.
pub fn wake(address: u64, word: u8) -> i64 {
    let private = if flags_of_word(word) & 128 != 0 { libc::FUTEX_PRIVATE_FLAG } else { 0 };
    // SAFETY: FUTEX_WAKE only looks the address up, which is that of a word of this program.
    unsafe { libc::syscall(libc::SYS_futex, address, libc::FUTEX_WAKE | private, 1) }
}
