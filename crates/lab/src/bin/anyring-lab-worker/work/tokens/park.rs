//! Pipes that stay empty and yet have a writer. Child processes hold the write ends, so that each pipe takes one
//! descriptor here.

use super::pipe;
use crate::outcome::{checked, Outcome};

/// Number of pipes whose write ends go to one child.
pub const CHUNK: usize = 1_000;

/// The read ends of pipes into which nobody writes.
#[derive(Default)]
pub struct Parked {
    read_ends: Vec<i32>,
    /// The write ends that are not parked yet.
    write_ends: Vec<i32>,
    children: Vec<i32>,
}

impl Parked {
    /// Makes `count` more pipes.
    pub fn add(&mut self, count: usize) -> Outcome<()> {
        for _ in 0..count {
            let [read_end, write_end] = pipe()?;
            self.read_ends.push(read_end);
            self.write_ends.push(write_end);
            if self.write_ends.len() == CHUNK {
                self.flush()?;
            }
        }
        Ok(())
    }

    /// Parks the write ends that are still here.
    pub fn flush(&mut self) -> Outcome<()> {
        if self.write_ends.is_empty() {
            return Ok(());
        }
        // SAFETY: takes nothing and cannot fail.
        let parent = unsafe { libc::getpid() };
        // SAFETY: this process has one thread, and the child makes system calls only.
        let child = checked("fork", unsafe { libc::fork() })? as i32;
        if child == 0 {
            hold(parent);
        }
        self.children.push(child);
        for write_end in self.write_ends.drain(..) {
            // SAFETY: our descriptor, and not used any more.
            unsafe { libc::close(write_end) };
        }
        Ok(())
    }

    pub fn read_ends(&self) -> &[i32] {
        &self.read_ends
    }
}

impl Drop for Parked {
    fn drop(&mut self) {
        for child in &self.children {
            // SAFETY: our child, which nobody has waited for.
            unsafe {
                libc::kill(*child, libc::SIGKILL);
                libc::waitpid(*child, std::ptr::null_mut(), 0);
            }
        }
    }
}

/// Keeps the inherited descriptors, except the standard streams, until the parent ends.
fn hold(parent: i32) -> ! {
    // SAFETY: calls on numbers; after them nothing of this process is used.
    unsafe {
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
        libc::close_range(0, 2, 0);
        while libc::getppid() == parent {
            libc::pause();
        }
        libc::_exit(0)
    }
}
