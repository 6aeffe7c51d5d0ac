//! io-wq: threads that make the calls which may sleep.
//!
//! One pool a process. A [`Job`] carries the operation away from its request and brings it back with a verdict; its
//! `stage` word decides between the worker that starts it and a cancellation:
//!
//! | stage | who may move it | to |
//! |---|---|---|
//! | queued | the worker that takes it / a cancellation, by compare-and-swap | running / cancelled |
//! | running | its worker | finished, when the verdict is on its way to the ring |

use crate::lock::Lock;
use crate::op::{Context, Op, Verdict};
use crate::os::{Os, Sys};
use crate::request::Id;
use crate::resource::files::FixedFile;
use crate::ring::Ring;
use core::sync::atomic::{AtomicU32, Ordering};
use std::collections::VecDeque;
use std::sync::Arc;

const QUEUED: u32 = 0;
const RUNNING: u32 = 1;
const FINISHED: u32 = 2;
const CANCELLED: u32 = 3;

/// How a worker goes about a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Approach {
    /// The plain call, which may sleep.
    Plain,
    /// IOSQE_ASYNC: a nonblocking attempt first, so that a pollable file goes back to be armed instead of occupying a
    /// worker (`io_wq_submit_work` in io_uring/io_uring.c does the same).
    AttemptFirst,
}

/// An operation on its way to a worker and back.
pub struct Job {
    /// The ring to bring the verdict to. Rings are never freed, and a ring with jobs is not reused.
    pub ring: &'static Ring,
    /// The request it belongs to.
    pub request: Id,
    /// The operation; the worker holds it while it runs, the ring afterwards.
    pub op: Lock<Op>,
    /// What it answered, once finished.
    pub verdict: Lock<Option<Verdict>>,
    fd: i32,
    approach: Approach,
    stage: AtomicU32,
    /// Keeps a registered file or private duplicate open.
    _file: Option<Arc<FixedFile>>,
}

impl core::fmt::Debug for Job {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "Job({:?} on {})", self.request, self.fd)
    }
}

impl Job {
    /// A job that has not been queued yet.
    pub fn new(
        ring: &'static Ring,
        request: Id,
        op: Op,
        fd: i32,
        approach: Approach,
        file: Option<Arc<FixedFile>>,
    ) -> Arc<Job> {
        let (op, verdict) = (Lock::new(op), Lock::new(None));
        Arc::new(Job { ring, request, op, verdict, fd, approach, stage: AtomicU32::new(QUEUED), _file: file })
    }

    /// Takes a job that no worker has started away from the workers; false when one has.
    pub fn cancel(&self) -> bool {
        // Relaxed: the word alone decides, the operation behind it is handed over by its own lock.
        self.stage.compare_exchange(QUEUED, CANCELLED, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    fn start(&self) -> bool {
        self.stage.compare_exchange(QUEUED, RUNNING, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    fn run(self: Arc<Job>) {
        if !self.start() {
            return;
        }
        let verdict = {
            let mut op = self.op.lock().expect("only the worker that started a job touches its operation");
            let context = Context { fd: self.fd, nonblock: self.approach == Approach::AttemptFirst };
            match op.issue(context) {
                Verdict::NeedsWorker if context.nonblock => op.issue(Context { nonblock: false, ..context }),
                verdict => verdict,
            }
        };
        *self.verdict.lock().expect("nobody else has seen the job finished") = Some(verdict);
        self.stage.store(FINISHED, Ordering::Relaxed);
        let ring = self.ring;
        ring.deliver(self);
    }
}

/// The queue and its threads.
struct Pool {
    jobs: VecDeque<Arc<Job>>,
    threads: u32,
    idle: u32,
}

static POOL: Lock<Pool> = Lock::new(Pool { jobs: VecDeque::new(), threads: 0, idle: 0 });
/// Futex word: how many jobs were queued so far.
static QUEUED_JOBS: AtomicU32 = AtomicU32::new(0);

/// The most threads; beyond it jobs wait. The kernel bounds its bounded workers by 4 a CPU.
const MAX_THREADS: u32 = 32;
/// A worker without work ends after this long, in nanoseconds (the kernel's io-wq waits 5 s).
const IDLE_NS: u64 = 5_000_000_000;

/// Queues a job, and makes a thread for it if none is idle.
pub fn queue(job: Arc<Job>) {
    let mut wake = false;
    let mut spawn = false;
    if let Some(mut pool) = POOL.lock() {
        pool.jobs.push_back(job);
        let waiting = pool.jobs.len() as u32;
        if waiting <= pool.idle {
            wake = true;
        } else if pool.threads < MAX_THREADS {
            pool.threads += 1;
            spawn = true;
        } else {
            wake = pool.idle > 0;
        }
        QUEUED_JOBS.fetch_add(1, Ordering::Relaxed);
    }
    if wake {
        Sys::futex_wake(&QUEUED_JOBS, 1);
    }
    if spawn && !crate::thread::spawn(work, core::ptr::null_mut()) {
        let mut pool = POOL.lock().expect("the pool's lock is never held over a call out of this file");
        pool.threads -= 1;
        let stranded = if pool.threads == 0 { pool.jobs.pop_back() } else { None };
        drop(pool);
        // No thread can be had at all (RLIMIT_NPROC, say): the caller does the work, late but done.
        if let Some(job) = stranded {
            job.run();
        }
    }
}

extern "C" fn work(_: *mut libc::c_void) -> *mut libc::c_void {
    crate::thread::name(c"anyring-worker");
    loop {
        let mut pool = POOL.lock().expect("a worker does not interrupt itself");
        if let Some(job) = pool.jobs.pop_front() {
            drop(pool);
            crate::thread::contain(|| job.run());
            continue;
        }
        pool.idle += 1;
        let seen = QUEUED_JOBS.load(Ordering::Relaxed);
        drop(pool);
        let slept = Sys::futex_wait(&QUEUED_JOBS, seen, Some(IDLE_NS));
        let mut pool = POOL.lock().expect("a worker does not interrupt itself");
        pool.idle -= 1;
        if slept == Err(crate::Errno::TIMEDOUT) && pool.jobs.is_empty() {
            pool.threads -= 1;
            return core::ptr::null_mut();
        }
    }
}

/// Forgets the threads and jobs of the parent in a forked child.
///
/// # Safety
/// Only the forking thread may exist in the process.
pub unsafe fn reset_after_fork() {
    // SAFETY: no other thread exists, and the value is replaced right away.
    unsafe { POOL.reset() };
    if let Some(mut pool) = POOL.lock() {
        core::mem::forget(core::mem::take(&mut pool.jobs));
        (pool.threads, pool.idle) = (0, 0);
    }
}
