//! The processes of a program: each runs the same steps, and they meet after each step.

use anyhow::{bail, Result};
use std::os::raw::c_int;
use std::sync::atomic::{AtomicU32, Ordering};

/// The period in which a waiting process looks after its children, in nanoseconds.
const LOOK_NS: i64 = 100_000_000;

/// The memory that the processes share.
struct Shared {
    arrived: AtomicU32,
    meetings: AtomicU32,
    failed: AtomicU32,
}

/// The processes as one of them sees them.
pub struct Together {
    shared: &'static Shared,
    /// The number of this process.
    pub process: u8,
    processes: u8,
    /// Children that have not been reaped.
    children: Vec<libc::pid_t>,
}

impl Together {
    /// Forks until there are this many processes. Each returns.
    pub fn fork(processes: u8) -> Result<Together> {
        let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS);
        // SAFETY: at an address of the kernel's choice, so it replaces nothing.
        let page = unsafe { libc::mmap(std::ptr::null_mut(), size_of::<Shared>(), protection, flags, -1, 0) };
        if page == libc::MAP_FAILED {
            bail!("mmap: {}", std::io::Error::last_os_error());
        }
        // SAFETY: zeroed memory, never unmapped, in which zeroes are valid; all access is atomic.
        let shared = unsafe { &*page.cast::<Shared>() };
        let mut together = Together { shared, process: 0, processes, children: Vec::new() };
        for process in 1..processes {
            // SAFETY: this process has one thread so far, so the child's memory is consistent and it may run anything.
            match unsafe { libc::fork() } {
                0 => {
                    // SAFETY: numbers only.
                    unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
                    return Ok(Together { process, children: Vec::new(), ..together });
                }
                -1 => bail!("fork: {}", std::io::Error::last_os_error()),
                child => together.children.push(child),
            }
        }
        Ok(together)
    }

    /// Waits until all have come to this place. Fails if one of them has failed or ended.
    pub fn meet(&mut self) -> Result<()> {
        let Shared { arrived, meetings, .. } = self.shared;
        // Nobody counts on before this process has arrived.
        let meeting = meetings.load(Ordering::Acquire);
        if arrived.fetch_add(1, Ordering::AcqRel) + 1 == u32::from(self.processes) {
            arrived.store(0, Ordering::Relaxed);
            // Release: the others see the count set back, and all that this process has done.
            meetings.fetch_add(1, Ordering::Release);
            futex(meetings, libc::FUTEX_WAKE, u32::MAX >> 1, 0);
        }
        while meetings.load(Ordering::Acquire) == meeting {
            futex(meetings, libc::FUTEX_WAIT, meeting, LOOK_NS);
            if self.shared.failed.load(Ordering::Relaxed) != 0 {
                bail!("another process has failed");
            }
            self.reap(libc::WNOHANG)?;
        }
        Ok(())
    }

    /// Makes the others fail, too.
    pub fn fail(&self) {
        self.shared.failed.store(1, Ordering::Relaxed);
    }

    /// Waits for the ends of the children.
    pub fn wait(&mut self) -> Result<()> {
        while !self.children.is_empty() {
            self.reap(0)?;
        }
        Ok(())
    }

    fn reap(&mut self, options: c_int) -> Result<()> {
        for &child in &self.children {
            let mut status = 0;
            // SAFETY: `status` is one int.
            if unsafe { libc::waitpid(child, &mut status, options) } == child {
                self.children.retain(|other| *other != child);
                if status != 0 {
                    self.fail();
                    bail!("a process ended with status {status:#x}");
                }
                break;
            }
        }
        Ok(())
    }
}

fn futex(word: &AtomicU32, operation: c_int, value: u32, nanoseconds: i64) {
    let limit = libc::timespec { tv_sec: 0, tv_nsec: nanoseconds };
    // SAFETY: the word is never unmapped, and the time outlives the call.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), operation, value, &raw const limit) };
}
