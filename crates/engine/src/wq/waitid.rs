//! Threads that wait for children where no descriptor can: for WAITIDs of any child or of a group, and for stops.
//!
//! Each request has one thread. It waits only until a child has changed its state (WNOWAIT). The request, if it still
//! exists, then makes the call itself, under the ring's lock. So a cancelled request never reaps a child.

use crate::op::{Op, Punt, Verdict};
use crate::os::{check, interrupt, interruptible, Os, Sys};
use crate::thread::caught;
use crate::wq::{self, Job};
use crate::Errno;
use core::sync::atomic::{AtomicU32, Ordering};
use std::sync::Arc;

/// The most such threads. Beyond this number a wait fails with ENOMEM.
const THREADS_MAX: u32 = 256;
static THREADS: AtomicU32 = AtomicU32::new(0);

/// A thread in waitid(2).
pub struct Sleeper {
    /// Not 0 if the thread must leave.
    stop: AtomicU32,
    /// The thread's id, once it runs.
    thread: AtomicU32,
}

impl Sleeper {
    /// Makes the thread leave its call.
    pub fn release(&self) {
        self.stop.store(1, Ordering::SeqCst); // partner: the check in the interruptible call
                                              // SeqCst: partner is the store in `sleep`. At least one of the two
                                              // threads reads what the other has stored.
        match self.thread.load(Ordering::SeqCst) {
            0 => {} // the thread has not slept yet
            thread => interrupt(thread),
        }
    }
}

/// Arguments of a new thread.
struct Task {
    job: Arc<Job>,
    sleeper: Arc<Sleeper>,
    args: [usize; 6],
}

/// Starts a thread that sleeps for a job.
///
/// # Errors
/// ENOMEM if there are too many such threads, or none can be made.
pub fn wait(job: &Arc<Job>) -> Result<(), Errno> {
    let args = match &*job.op.lock().ok_or(Errno::INVAL)? {
        Op::Waitid(waitid) => waitid.sleeping(),
        _ => return Err(Errno::INVAL),
    };
    if THREADS.fetch_add(1, Ordering::Relaxed) >= THREADS_MAX {
        THREADS.fetch_sub(1, Ordering::Relaxed);
        return Err(Errno::NOMEM);
    }
    let sleeper = Arc::new(Sleeper { stop: AtomicU32::new(0), thread: AtomicU32::new(0) });
    job.slept_for(&sleeper);
    let task = Box::into_raw(Box::new(Task { job: job.clone(), sleeper, args }));
    if crate::thread::spawn_needed(live, task.cast()) {
        return Ok(());
    }
    // SAFETY: no thread has taken it over.
    drop(unsafe { Box::from_raw(task) });
    THREADS.fetch_sub(1, Ordering::Relaxed);
    Err(Errno::NOMEM)
}

extern "C" fn live(argument: *mut libc::c_void) -> *mut libc::c_void {
    // SAFETY: `wait` has given the box to the thread.
    let task = unsafe { Box::from_raw(argument.cast::<Task>()) };
    crate::thread::name(c"anyring-waitid");
    caught(|| task.sleep());
    THREADS.fetch_sub(1, Ordering::Relaxed);
    core::ptr::null_mut()
}

impl Task {
    fn sleep(&self) {
        let Sleeper { stop, thread } = &*self.sleeper;
        thread.store(Sys::thread_id(), Ordering::SeqCst); // partner: the load in `release`
                                                          // A signal of libc's own may end the call, too.
        while check(interruptible(stop, libc::SYS_waitid, self.args)) == Err(Errno::INTR) {
            if stop.load(Ordering::Relaxed) != 0 {
                return;
            }
        }
        if self.job.begin() {
            // With or without a result, the request checks for itself.
            wq::conclude(self.job.clone(), Verdict::NeedsWorker(Punt::WouldWait));
        }
    }
}

/// Forgets, in a forked child, the parent's threads.
pub fn reset_after_fork() {
    THREADS.store(0, Ordering::Relaxed);
}
