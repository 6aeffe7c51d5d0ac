//! io-wq: threads (workers) that make the calls which may sleep.
//!
//! There is one pool of workers per process. A worker runs a [`Job`] (`wq/job.rs`).

mod cold;
pub mod creds;
mod fd;
pub mod futex;
pub mod hashed;
mod job;
mod parallel;
pub mod personality;
mod quick;
pub mod waitid;

use crate::descriptors;
use crate::forced::{point, Point};
use crate::lock::Lock;
use crate::mutation::{mutated, Mutation};
use crate::op::Verdict;
use crate::os::handlers;
use crate::os::Clock;
use crate::os::{file_status, Os, Sys};
use crate::resource::files;
use crate::thread::{caught, is_needed};
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use hashed::{Hashed, Inode};
use job::Left;
use parallel::Parallel;
use quick::Quick;
use std::collections::VecDeque;
use std::sync::Arc;

pub use cold::approach_to_missed;
pub use job::{Approach, Job, Origin};

/// The queue and its threads.
struct Pool {
    /// Jobs that may run now.
    jobs: VecDeque<Arc<Job>>,
    /// Descriptors of the engine that a worker must close.
    closes: VecDeque<i32>,
    /// Jobs that wait for others on the same inode.
    hashed: Hashed,
    /// Statistics of reads that mostly do not sleep.
    quick: Quick,
    /// The reads that workers make while their submitting thread makes others.
    parallel: Parallel,
    threads: u32,
    /// Number of threads that sleep because there are no jobs.
    idle: u32,
    /// True if a thread without jobs spins for the next one before it sleeps, and no job has been left to it yet.
    spinning: bool,
    /// The time, by CLOCK_MONOTONIC, when a thread last went to sleep without jobs, after a job of Linux AIO or a
    /// quick read. 0 if a job has been queued since.
    dry_ns: u64,
    /// True if, the last time a thread ran out of jobs, the next job came soon after.
    next_comes_soon: bool,
    /// Number of threads inside a call that may sleep.
    asleep: u32,
    /// Number of threads that have jobs whose transfer was begun by an attempt.
    waiting: u32,
    /// Number of threads that have jobs, by the jobs' class.
    running: [u32; 2],
    /// The most threads that may have jobs: of regular files and block devices, and of everything else.
    limits: [u32; 2],
    /// The CPUs on which workers run, as sched_setaffinity(2) takes them, and the number of times that they were set.
    cpus: Vec<u8>,
    cpus_version: u32,
}

impl Pool {
    const EMPTY: Pool = Pool {
        jobs: VecDeque::new(),
        closes: VecDeque::new(),
        hashed: Hashed::NONE,
        quick: Quick::NONE,
        parallel: Parallel::NONE,
        threads: 0,
        idle: 0,
        spinning: false,
        dry_ns: 0,
        next_comes_soon: false,
        asleep: 0,
        waiting: 0,
        running: [0; 2],
        limits: [MAX_THREADS; 2],
        cpus: Vec::new(),
        cpus_version: 0,
    };

    /// Returns the place of the first job that the limits permit to run.
    fn next(&self) -> Option<usize> {
        self.jobs.iter().position(|job| {
            self.running[job.class] < self.limits[job.class]
                && (job.approach != Approach::Started || self.waiting < cold::most_workers())
        })
    }

    /// Records, when a job has been queued, whether spinning for it would have paid off.
    fn learn(&mut self) {
        if self.dry_ns != 0 {
            self.next_comes_soon = Clock::Monotonic.now_ns() - self.dry_ns < CHECK_NS;
            self.dry_ns = 0;
        }
    }

    fn most_threads(&self) -> u32 {
        MAX_THREADS.min(self.limits[0] + self.limits[1])
    }

    /// Takes jobs for one worker: a single job, or several attempts for one ring, which end soon and are delivered
    /// together. The jobs count as running until [`done`](Self::done).
    fn take(&mut self) -> Vec<Arc<Job>> {
        let mut jobs = Vec::new();
        let Some(place) = self.next() else { return jobs };
        while let Some(job) = self.jobs.get(place) {
            let attempt = job.approach == Approach::AttemptFirst;
            let fits = |first: &Arc<Job>| core::ptr::eq(first.ring, job.ring) && first.class == job.class;
            let first = jobs.first().is_none_or(|first| attempt && fits(first));
            if !first || jobs.len() == TOGETHER {
                break;
            }
            jobs.extend(self.jobs.remove(place));
            if !attempt {
                break;
            }
        }
        self.running[jobs[0].class] += 1;
        self.waiting += u32::from(jobs[0].approach == Approach::Started);
        match jobs[0].approach {
            Approach::Quick => self.quick.begin(),
            Approach::Parallel => self.parallel.record_begun(Clock::Monotonic.now_ns()),
            _ => {}
        }
        self.quick.record_started();
        jobs
    }

    /// Takes the next job for the worker that has made the job `done`. `None` unless it has the same ring, class and
    /// approach.
    fn take_another(&mut self, done: &Job) -> Option<Arc<Job>> {
        let job = self.jobs.front()?;
        let fits = job.approach == done.approach && job.class == done.class && core::ptr::eq(job.ring, done.ring);
        let job = fits.then(|| self.jobs.pop_front())??;
        self.quick.record_started();
        Some(job)
    }

    /// Queues a job, to run now or after other jobs on its inode. False if there is no memory for it.
    fn add(&mut self, job: Arc<Job>) -> bool {
        // Jobs that wait for others are added to this queue later.
        if self.jobs.try_reserve(self.hashed.waiting() + 1).is_err() {
            return false;
        }
        let approach = job.approach;
        let Ok(job) = self.hashed.admit(job) else { return false };
        self.jobs.extend(job);
        if approach == Approach::Parallel {
            self.parallel.record_queued(Clock::Monotonic.now_ns());
        }
        self.learn();
        true
    }

    /// Records that a thread has done the jobs it took.
    fn done(&mut self, ran: Ran) {
        self.running[ran.class] -= 1;
        self.waiting -= u32::from(ran.approach == Approach::Started);
        match ran.approach {
            Approach::Quick => self.quick.end(),
            Approach::Parallel => self.parallel.end(Clock::Monotonic.now_ns()),
            _ => {}
        }
        self.jobs.extend(ran.inode.and_then(|inode| self.hashed.done(inode)));
    }

    /// True if the queued work needs another thread. False while some awake thread makes only attempts, since it will
    /// come for more jobs.
    fn wants_thread(&self) -> bool {
        let awake = self.threads.saturating_sub(self.idle + self.asleep);
        let next = self.next().map(|place| &self.jobs[place]);
        !self.closes.is_empty()
            || next.is_some_and(|job| match job.approach {
                Approach::Plain | Approach::Trial => true,
                Approach::Parallel => awake == 0 || self.parallel.wants_thread(),
                Approach::Quick => awake == 0 || self.quick.wants_thread(self.jobs.len()),
                _ => awake == 0,
            })
    }
}

/// The counts that a thread has changed by taking jobs.
struct Ran {
    class: usize,
    approach: Approach,
    /// The inode on which the job keeps other jobs waiting. A worker takes such a job without any other job.
    inode: Option<Inode>,
}

impl Ran {
    /// Returns the counts of these jobs. `None` if there is no job.
    fn of(jobs: &[Arc<Job>]) -> Option<Ran> {
        let first = jobs.first()?;
        Some(Ran { class: first.class, approach: first.approach, inode: first.inode })
    }
}

/// Number of attempts that one worker takes at a time.
const TOGETHER: usize = 16;

/// Lives while the calling worker is inside a call that may sleep.
struct Asleep;

impl Asleep {
    fn new() -> Asleep {
        let mut needed = Need::Nothing;
        if let Some(mut pool) = POOL.lock() {
            pool.asleep += 1;
            if crate::thread::tables::is_first() {
                needed = Need::of(&mut pool);
            }
        }
        needed.satisfy();
        Asleep
    }
}

impl Drop for Asleep {
    fn drop(&mut self) {
        if let Some(mut pool) = POOL.lock() {
            pool.asleep -= 1;
        }
    }
}

/// True if a worker should make a read of `bytes` bytes from the page cache, while the submitting thread makes about
/// `others` like it.
pub fn copies_in_parallel(bytes: u64, others: u32) -> bool {
    POOL.lock().is_some_and(|mut pool| {
        let awake = pool.spinning;
        pool.parallel.is_worth_it(bytes, others, awake, Clock::Monotonic.now_ns())
    })
}

/// True if a job that changes this file is queued, or runs.
pub fn is_busy(inode: Inode) -> bool {
    POOL.lock().is_some_and(|pool| pool.hashed.has(inode)) || creds::is_busy(inode)
}

static POOL: Lock<Pool> = Lock::new(Pool::EMPTY);
/// Futex word, which changes with every job queued, and when the last ring has ended.
static QUEUED_JOBS: AtomicU32 = AtomicU32::new(0);

/// The most threads of the pool. Further jobs wait. The kernel limits its bounded workers to 4 per CPU.
pub const MAX_THREADS: u32 = 32;
/// The time after which a worker without work ends, in nanoseconds (the kernel's io-wq waits 5 s).
const IDLE_NS: u64 = 5_000_000_000;
/// The time after which a worker without work ends once the process has no ring, in nanoseconds. It is long enough
/// for a program that makes one ring after another.
const LINGER_NS: u64 = 100_000_000;

/// The action needed to get the queued jobs done.
enum Need {
    Nothing,
    Wake,
    Thread,
}

impl Need {
    fn of(pool: &mut Pool) -> Need {
        let for_job = pool.wants_thread();
        if !for_job && (pool.next().is_none() || !pool.quick.request_monitor()) {
            return Need::Nothing;
        }
        if for_job && core::mem::take(&mut pool.spinning) {
            QUEUED_JOBS.fetch_add(1, Ordering::Relaxed); // the spinning thread watches this word
            return Need::Nothing;
        }
        if pool.idle > 0 {
            return Need::Wake;
        }
        if pool.threads < pool.most_threads() {
            pool.threads += 1;
            return Need::Thread;
        }
        Need::Nothing
    }

    fn satisfy(self) {
        match self {
            Need::Nothing => {}
            Need::Wake => Sys::futex_wake(&QUEUED_JOBS, 1),
            Need::Thread => {
                if !crate::thread::spawn(work, core::ptr::null_mut()) {
                    do_without_thread();
                }
            }
        }
    }
}

/// Queues a job, and wakes or makes a thread for it if needed. False if there is no memory for the job.
#[must_use]
pub fn queue(job: Arc<Job>) -> bool {
    let Some(mut pool) = POOL.lock() else {
        // A signal handler interrupted this very function: run the job in the handler.
        run_together(vec![job]);
        return true;
    };
    if !pool.add(job) {
        return false;
    }
    QUEUED_JOBS.fetch_add(1, Ordering::Relaxed);
    let need = Need::of(&mut pool);
    drop(pool);
    need.satisfy();
    true
}

/// Makes a worker close a descriptor of the engine, since close(2) may take long. False if there is no memory for the
/// task.
pub fn queue_close(fd: i32) -> bool {
    let Some(mut pool) = POOL.lock() else { return false };
    if pool.closes.try_reserve(1).is_err() {
        return false;
    }
    descriptors::mark_in_flight(fd); // a child that is forked before the close closes its copy
    pool.closes.push_back(fd);
    QUEUED_JOBS.fetch_add(1, Ordering::Relaxed);
    let need = Need::of(&mut pool);
    drop(pool);
    need.satisfy();
    true
}

/// Interval at which a sleeping waiter checks whether a thread can be made by now, in nanoseconds.
const LOOK_AGAIN_NS: u64 = 100_000_000;

/// True if a needed thread could not be made. Relaxed: it guards nothing, and a thread that reads it late only checks
/// later.
static IS_SHORT: AtomicBool = AtomicBool::new(false);

/// Handles that no thread can be made (RLIMIT_NPROC, a control group's pids.max). If the pool has no thread at all,
/// the caller does the work. If it has workers, they may sleep forever. So a waiter tries again ([`recheck`]), and
/// the work gets done late.
#[cold]
fn do_without_thread() {
    if let Some(mut pool) = POOL.lock() {
        pool.threads -= 1;
    }
    IS_SHORT.store(!mutated(Mutation::NobodyLooksForAWorker), Ordering::Relaxed);
    handlers::without_locks(make_queued);
}

/// Returns the time after which a thread that is about to sleep must call [`recheck`]. `None` if it need not.
pub fn recheck_ns() -> Option<u64> {
    IS_SHORT.load(Ordering::Relaxed).then_some(LOOK_AGAIN_NS)
}

/// Makes the thread that could not be made, if it is still needed.
#[inline]
pub fn recheck() {
    if IS_SHORT.load(Ordering::Relaxed) && IS_SHORT.swap(false, Ordering::Relaxed) {
        let need = POOL.lock().map_or(Need::Nothing, |mut pool| Need::of(&mut pool));
        need.satisfy();
    }
}

/// Does the queued work while the pool has no threads.
fn make_queued() {
    loop {
        let Some(mut pool) = POOL.lock().filter(|pool| pool.threads == 0) else { return };
        if let Some(fd) = pool.closes.pop_front() {
            drop(pool);
            files::close(fd);
            continue;
        }
        let jobs = pool.take();
        drop(pool);
        let Some(ran) = Ran::of(&jobs) else { return };
        run_together(jobs);
        if let Some(mut pool) = POOL.lock() {
            pool.done(ran);
        }
    }
}

/// True once a limit was set. From then on the kind of a job's file matters.
static LIMITED: AtomicBool = AtomicBool::new(false);

/// Returns the class of jobs on this descriptor. 0 for regular files, block devices and no descriptor, and 1 for all
/// else.
fn class_of(fd: i32) -> usize {
    if fd < 0 || !LIMITED.load(Ordering::Relaxed) {
        return 0;
    }
    usize::from(!file_status(fd).is_ok_and(|status| status.has_blocks()))
}

/// Serves IORING_REGISTER_IOWQ_MAX_WORKERS: sets the limits of workers for regular files and block devices, and for
/// the rest. 0 leaves a limit as it is. No limit exceeds [`MAX_THREADS`]. Returns the previous limits.
pub fn limit(limits: [u32; 2]) -> [u32; 2] {
    let Some(mut pool) = POOL.lock() else { return [0; 2] };
    let former = pool.limits;
    for (held, limit) in pool.limits.iter_mut().zip(limits) {
        if limit != 0 {
            *held = limit.min(MAX_THREADS);
            LIMITED.store(true, Ordering::Relaxed);
        }
    }
    let need = Need::of(&mut pool);
    drop(pool);
    need.satisfy();
    former
}

/// Serves IORING_REGISTER_IOWQ_AFF: sets the CPUs on which workers run from their next job on.
pub fn pin(cpus: &[u8]) {
    if let Some(mut pool) = POOL.lock() {
        pool.cpus = cpus.to_vec();
        pool.cpus_version += u32::from(!mutated(Mutation::WorkersAreNotPinned));
    }
}

/// The time for which a worker without jobs spins for the next job, in nanoseconds. Waking a thread costs the
/// submitter ten microseconds, and more if a core has to leave its idle state first. That is several times the rest
/// of io_submit(2).
const CHECK_NS: u64 = 100_000;

/// Spins for a job instead of sleeping. True if a job came in time.
fn poll_for_job(seen: u32) -> bool {
    const ROUNDS: u32 = 50;
    let until_ns = Clock::Monotonic.now_ns() + CHECK_NS;
    while Clock::Monotonic.now_ns() < until_ns {
        for _ in 0..ROUNDS {
            if QUEUED_JOBS.load(Ordering::Relaxed) != seen {
                return true;
            }
            crate::sync::spin_loop();
        }
        crate::os::syscall(libc::SYS_sched_yield, [0; 6]); // the program may want this core
    }
    false
}

/// Runs jobs of one ring on a worker of the pool.
fn run_together(mut jobs: Vec<Arc<Job>>) {
    if let Some(job) = jobs.pop_if(|job| job.approach == Approach::Quick) {
        return quick::run(job); // it is the only job
    }
    let sleeps = |job: &Arc<Job>| matches!(job.approach, Approach::Plain | Approach::Trial);
    let asleep = jobs.first().is_some_and(sleeps).then(Asleep::new);
    run(jobs, asleep);
}

/// Ends a job with an error instead of running it.
pub fn refuse(job: Arc<Job>, error: crate::Errno) {
    if job.begin() {
        conclude(job, Verdict::error(error));
    }
}

/// Delivers a job that has begun, with its verdict, for a caller that is no worker of the pool.
pub fn conclude(job: Arc<Job>, verdict: Verdict) {
    let left = Left(&job);
    *job.verdict.lock().expect("nobody else has seen the job finished") = Some(verdict);
    drop(left);
    job.ring.deliver(vec![job]);
}

/// Runs work for a ring's job. A panic breaks the ring, and goes no further.
fn contain<T>(ring: &'static dyn Origin, work: impl FnOnce() -> T) -> Option<T> {
    let done = caught(work);
    if done.is_none() {
        ring.mark_panicked();
    }
    done
}

/// Makes a job's call. False if the job was cancelled. The call may panic like any other code. There is then no
/// verdict, and the request ends with EIO.
pub fn make(job: &Arc<Job>) -> bool {
    let ran = contain(job.ring, || {
        point(Point::WorkerBefore);
        job.run(None)
    });
    ran.unwrap_or(true)
}

/// Runs a job with the plain call, on a thread that is not a worker of the pool.
pub fn run_alone(job: Arc<Job>) {
    run(vec![job], None);
}

/// Runs jobs of one ring, and delivers them together. A job that panics breaks its ring.
fn run(jobs: Vec<Arc<Job>>, asleep: Option<Asleep>) {
    let Some(ring) = jobs.first().map(|job| job.ring) else { return };
    let mut finished = Vec::with_capacity(jobs.len());
    let mut jobs = jobs.into_iter();
    let mut next = jobs.next();
    while let Some(job) = next {
        // The worker delivers finished jobs before it waits for another transfer.
        let some = !finished.is_empty();
        let mut hand_over = || ring.deliver(core::mem::take(&mut finished));
        let ran = contain(ring, || {
            point(Point::WorkerBefore);
            job.run(some.then_some(&mut hand_over))
        });
        next = jobs.next();
        if job.approach == Approach::Started && finished.len() < TOGETHER {
            next = POOL.lock().and_then(|mut pool| pool.take_another(&job));
        }
        // After a panic there is no verdict, and the request ends with EIO.
        if ran.unwrap_or(true) {
            finished.push(job);
        }
    }
    drop(asleep);
    ring.deliver(finished);
}

extern "C" fn work(_: *mut libc::c_void) -> *mut libc::c_void {
    crate::thread::name(c"anyring-worker");
    // A panic outside of every job has damaged no job and no ring: the thread continues.
    let (mut ran, mut cpus_version) = (None, 0);
    while caught(|| work_until_idle(&mut ran, &mut cpus_version)).is_none() {}
    core::ptr::null_mut()
}

/// Runs a worker until there has been no work for a while. `ran` counts the jobs that the worker took last, until it
/// has reported them as done.
fn work_until_idle(ran: &mut Option<Ran>, cpus_version: &mut u32) {
    let mut looks = false; // true if this worker must spin for the next job before it sleeps
    loop {
        point(Point::WorkerIdle);
        let mut pool = POOL.lock().expect("a worker does not interrupt itself");
        if let Some(ran) = ran.take() {
            pool.done(ran);
        }
        if *cpus_version != pool.cpus_version {
            *cpus_version = pool.cpus_version;
            // If none of the CPUs exists, the worker stays where it is, as the kernel's workers do.
            let args = [0, pool.cpus.len(), pool.cpus.as_ptr() as usize, 0, 0, 0];
            crate::os::syscall(libc::SYS_sched_setaffinity, args);
        }
        if let Some(fd) = pool.closes.pop_front() {
            drop(pool);
            let _asleep = Asleep::new();
            files::close(fd);
            continue;
        }
        if pool.quick.claim_monitor() {
            drop(pool);
            let _asleep = Asleep::new();
            quick::monitor();
            continue;
        }
        let jobs = pool.take();
        if let Some(job) = jobs.first() {
            *ran = Ran::of(&jobs);
            let quick = job.approach == Approach::Quick;
            looks = quick || job.approach == Approach::Parallel || job.ring.submits_singly();
            let need = if quick { Need::of(&mut pool) } else { Need::Nothing };
            drop(pool);
            need.satisfy();
            run_together(jobs);
            continue;
        }
        let seen = QUEUED_JOBS.load(Ordering::Relaxed);
        if looks && pool.next_comes_soon && !pool.spinning {
            pool.spinning = true;
            drop(pool);
            let came = poll_for_job(seen);
            let mut pool = POOL.lock().expect("a worker does not interrupt itself");
            (pool.spinning, pool.next_comes_soon) = (false, came);
            continue; // a thread that counts on this spinning worker has queued a job by now
        }
        if looks {
            pool.dry_ns = Clock::Monotonic.now_ns();
        }
        pool.idle += 1;
        drop(pool);
        let idle_ns = if is_needed() { IDLE_NS } else { LINGER_NS };
        let slept = Sys::futex_wait(&QUEUED_JOBS, seen, Some(idle_ns));
        let mut pool = POOL.lock().expect("a worker does not interrupt itself");
        pool.idle -= 1;
        if slept == Err(crate::Errno::TIMEDOUT) && pool.next().is_none() && pool.closes.is_empty() {
            pool.threads -= 1;
            return;
        }
    }
}

/// Wakes the workers that sleep without jobs. They end sooner, since the process's last ring has ended.
pub fn rings_are_gone() {
    QUEUED_JOBS.fetch_add(1, Ordering::Relaxed);
    Sys::futex_wake(&QUEUED_JOBS, i32::MAX as u32);
}

/// Forgets, in a forked child, the parent's threads and jobs.
///
/// # Safety
/// Only the forking thread may exist in the process.
pub unsafe fn reset_after_fork() {
    // SAFETY: no other thread exists, and the value is replaced right away.
    unsafe { POOL.reset() };
    if let Some(mut pool) = POOL.lock() {
        core::mem::forget(core::mem::take(&mut pool.jobs));
        core::mem::forget(core::mem::take(&mut pool.closes));
        core::mem::forget(core::mem::replace(&mut pool.hashed, Hashed::NONE));
        (pool.quick, pool.parallel) = (Quick::NONE, Parallel::NONE);
        (pool.threads, pool.idle, pool.spinning) = (0, 0, false);
        (pool.asleep, pool.waiting, pool.running) = (0, 0, [0; 2]);
    }
    IS_SHORT.store(false, Ordering::Relaxed);
}
