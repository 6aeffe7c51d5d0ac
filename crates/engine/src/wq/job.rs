//! An operation on its way to a worker and back.
//!
//! A [`Job`] carries the operation away from its request and brings it back with a verdict. Its `stage` word decides
//! between the worker that starts it and a cancellation:
//!
//! | stage | who may move it | to |
//! |---|---|---|
//! | queued | the worker that takes it, or a cancellation, by compare-and-swap | running, or cancelled |
//! | running | its worker | finished, when the verdict is on its way to the ring |

use crate::event::WorkTimes;
use crate::forced::{point, Point};
use crate::lock::Lock;
use crate::op::{Context, Identity, Op, Verdict};
use crate::resource::files::FixedFile;
use crate::wq::creds::{Claim, CredsPool};
use crate::wq::fd::Number;
use crate::wq::futex::FutexWaiter;
use crate::wq::hashed::Inode;
use crate::wq::waitid::Sleeper;
use crate::wq::{class_of, cold, Asleep};
use anyring_abi::Opcode;
use core::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

const QUEUED: u32 = 0;
const RUNNING: u32 = 1;
const FINISHED: u32 = 2;
const CANCELLED: u32 = 3;

/// A thread that waits for one job.
enum Waiter {
    Futex(Arc<FutexWaiter>),
    Child(Arc<Sleeper>),
}

/// The way in which a worker makes a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Approach {
    /// The plain call, which may sleep.
    Plain,
    /// A nonblocking attempt first, for IOSQE_ASYNC. If it would block on a pollable file, the request is armed and
    /// no worker is occupied (`io_wq_submit_work` in io_uring/io_uring.c does the same).
    AttemptFirst,
    /// The plain call, which waits for a transfer. An attempt that missed the page cache has begun that transfer. One
    /// worker waits for several transfers, in their order (`wq/cold.rs`).
    Started,
    /// The submitting thread, and no other, makes the nonblocking attempt (`issue::calls`).
    ByCaller,
    /// The plain call, which mostly does not sleep (`wq/quick.rs`).
    Quick,
    /// An attempt, which mostly copies from the page cache while the submitting thread copies (`wq/parallel.rs`). If it
    /// would wait, the plain call.
    Parallel,
    /// Makes the call of `Started`, to find out whether attempts begin transfers on this kernel.
    Trial,
}

/// The ring that a job comes from, and goes back to.
pub trait Origin: Sync {
    /// Delivers finished jobs. A panic in this function goes no further, and leaves the jobs finished but not
    /// delivered. The code that ends the ring's requests then finds them.
    fn deliver(&'static self, jobs: Vec<Arc<Job>>);

    /// Breaks the ring, since one of its jobs panicked.
    fn mark_panicked(&'static self);

    /// True if the ring's program submits requests singly, often as soon as it has read the last one's completion.
    fn submits_singly(&self) -> bool;
}

/// An operation on its way to a worker and back.
pub struct Job {
    /// The ring to bring the verdict to. Rings are never freed, and a ring with jobs is not reused.
    pub ring: &'static dyn Origin,
    /// The ring's cookie when the job was made. A reused ring has another cookie.
    pub cookie: u64,
    /// The id of the request that the job belongs to, as a word.
    pub request: u64,
    /// The operation. The worker holds it while the job runs, and the ring holds it afterwards.
    pub op: Lock<Op>,
    /// The operation's result, once the job is finished.
    pub verdict: Lock<Option<Verdict>>,
    opcode: Opcode,
    number: Number,
    pub(crate) approach: Approach,
    /// The index of the limit of IORING_REGISTER_IOWQ_MAX_WORKERS that the job counts against.
    pub(crate) class: usize,
    /// The file that the job changes. The jobs of one file must be made in order.
    pub(crate) inode: Option<Inode>,
    stage: AtomicU32,
    /// The times when a worker had the job.
    times: WorkTimes,
    /// The thread that waits for the job, if that is not one of the pool's.
    waiter: OnceLock<Waiter>,
    /// The credentials pool that makes the job, if the process's pool does not.
    workers: OnceLock<Arc<CredsPool>>,
    /// A claim to that pool, if the job must wait for its turn or its request continues.
    hold: Lock<Option<Claim>>,
}

impl core::fmt::Debug for Job {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "Job({:#x} on {})", self.request, self.number.get())
    }
}

impl Job {
    /// Makes a job that has not been queued yet. `file` keeps the number open, unless the number is the program's.
    pub fn new(
        (ring, cookie, request): (&'static dyn Origin, u64, u64),
        (opcode, op): (Opcode, Op),
        (fd, file): (i32, Option<Arc<FixedFile>>),
        approach: Approach,
        inode: Option<Inode>,
    ) -> Arc<Job> {
        let number = Number::new(fd, file);
        if approach == Approach::Plain && op.may_sleep_on_file() {
            number.own_file();
        }
        let (op, verdict) = (Lock::new(op), Lock::new(None));
        Arc::new(Job {
            ring,
            cookie,
            request,
            op,
            verdict,
            opcode,
            number,
            approach,
            class: class_of(fd),
            inode,
            stage: AtomicU32::new(QUEUED),
            times: WorkTimes::default(),
            waiter: OnceLock::new(),
            workers: OnceLock::new(),
            hold: Lock::new(None),
        })
    }

    /// Cancels a job that no worker has started. False if a worker has.
    pub fn cancel(&self) -> bool {
        // Relaxed: only this word decides, and the operation's own lock hands the operation over.
        let cancelled =
            self.stage.compare_exchange(QUEUED, CANCELLED, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        match self.waiter.get().filter(|_| cancelled) {
            Some(Waiter::Futex(waiter)) => drop(waiter.release(self)),
            Some(Waiter::Child(sleeper)) => sleeper.release(),
            None => {}
        }
        cancelled
    }

    /// Makes a job that a worker has begun continue with the duplicate `private`, since the program closes the job's
    /// number.
    pub fn move_to(&self, private: &Arc<FixedFile>) {
        self.number.replace(private);
    }

    /// Records that the thread `waiter` waits on the job's futexes.
    pub fn waited_on_by(&self, waiter: &Arc<FutexWaiter>) {
        let _ = self.waiter.set(Waiter::Futex(waiter.clone()));
    }

    /// Records that the thread `sleeper` waits for the job's child.
    pub fn slept_for(&self, sleeper: &Arc<Sleeper>) {
        let _ = self.waiter.set(Waiter::Child(sleeper.clone()));
    }

    /// Records that a member of the credentials pool `workers` makes the job.
    pub(crate) fn set_workers(&self, workers: &Arc<CredsPool>) {
        let _ = self.workers.set(workers.clone());
    }

    pub(crate) fn workers(&self) -> Option<&Arc<CredsPool>> {
        self.workers.get()
    }

    /// Keeps a claim to the job's credentials pool.
    pub(crate) fn set_claim(&self, hold: Claim) {
        if let Some(mut kept) = self.hold.lock() {
            *kept = Some(hold);
        }
    }

    /// Takes the claim that the job keeps.
    pub(crate) fn take_claim(&self) -> Option<Claim> {
        self.hold.lock()?.take()
    }

    /// Makes a wait on futexes leave their queues, for a cancellation. If the wait has been woken already, the job
    /// cannot be cancelled afterwards.
    pub fn withdraw(&self) {
        if let Some(Waiter::Futex(waiter)) = self.waiter.get() {
            waiter.withdraw(self);
        }
    }

    /// True if a worker has begun the job. The worker may be in its call.
    pub fn has_begun(&self) -> bool {
        self.stage.load(Ordering::Relaxed) != CANCELLED
    }

    /// True if the job's worker has left it, with a verdict or by a panic.
    pub fn has_finished(&self) -> bool {
        self.stage.load(Ordering::Acquire) == FINISHED // partner: the Release store in `Left`
    }

    /// Begins the job, which cannot be cancelled any more. False if the job was cancelled.
    pub fn begin(&self) -> bool {
        let begins = self.stage.compare_exchange(QUEUED, RUNNING, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        if begins {
            self.times.begin();
        }
        begins
    }

    /// True if the job's call may sleep.
    pub fn is_plain(&self) -> bool {
        !matches!(self.approach, Approach::AttemptFirst | Approach::ByCaller)
    }

    /// Returns the times when a worker had the job. `None` if the submitter made it, or a thread only waited for it.
    pub fn work_times(&self) -> Option<&WorkTimes> {
        let by_worker = self.waiter.get().is_none() && self.approach != Approach::ByCaller;
        by_worker.then_some(&self.times)
    }

    /// Makes the call, unless the job was cancelled. False if there is nothing to deliver. Calls `before_waiting`, if
    /// given, before it waits for a transfer that was begun.
    pub(crate) fn run(&self, before_waiting: Option<&mut dyn FnMut()>) -> bool {
        if !self.begin() {
            return false;
        }
        let _left = Left(self);
        point(Point::WorkerInside);
        let (verdict, goes_on) = {
            let mut op = self.op.lock().expect("only the worker that started a job touches its operation");
            let verdict = self.call(&mut op, before_waiting);
            // A connection that has begun already has its maker's identity.
            let made_at_once = op.identity(self.opcode) == Identity::Names;
            (verdict, (op.is_multishot() || !verdict.is_final()) && !made_at_once)
        };
        if let Some(workers) = self.workers().filter(|_| goes_on) {
            self.set_claim(Claim::new(workers)); // while this member exists
        }
        *self.verdict.lock().expect("nobody else has seen the job finished") = Some(verdict);
        true
    }
}

impl Job {
    /// Makes one call after the other until there is a verdict.
    fn call(&self, op: &mut Op, before_waiting: Option<&mut dyn FnMut()>) -> Verdict {
        let attempt = |op: &mut Op| self.number.call_with(|fd| op.issue(Context { fd, nonblock: true }));
        let plain = |op: &mut Op| {
            if op.may_sleep_on_file() {
                self.number.own_file(); // a job with a first attempt has none yet
            }
            self.number.call_with(|fd| op.issue(Context { fd, nonblock: false }))
        };
        let plain_asleep = |op: &mut Op| {
            let _asleep = self.workers().is_none().then(Asleep::new);
            plain(op)
        };
        match (self.approach, before_waiting) {
            (Approach::Plain, _) => plain(op),
            (Approach::Quick, _) => self.number.call_with(|fd| op.issue(Context { fd, nonblock: false })),
            (Approach::ByCaller, _) => attempt(op),
            (Approach::Trial, _) => cold::attempt_for_a_while(|| attempt(op)).unwrap_or_else(|| plain(op)),
            (Approach::AttemptFirst, _) => match attempt(op) {
                Verdict::NeedsWorker(_) => plain_asleep(op),
                verdict => verdict,
            },
            (Approach::Started, None) => plain_asleep(op),
            (Approach::Started | Approach::Parallel, before_waiting) => match attempt(op) {
                Verdict::WouldBlock(_)
                | Verdict::Skipped(..)
                | Verdict::NeedsWorker(_)
                | Verdict::NeedsWorkerWhenReady(_) => {
                    before_waiting.into_iter().for_each(|before_waiting| before_waiting());
                    plain_asleep(op)
                }
                verdict => verdict,
            },
        }
    }
}

/// Ends a begun job when the worker leaves it, also by a panic.
pub(crate) struct Left<'a>(pub(crate) &'a Job);

impl Drop for Left<'_> {
    fn drop(&mut self) {
        self.0.times.end();
        // Release: a thread that reads this stage finds the verdict. Partner: the load in `has_finished`.
        self.0.stage.store(FINISHED, Ordering::Release);
    }
}

/// A ring that receives nothing, for tests.
#[cfg(test)]
pub(crate) struct Nowhere;

#[cfg(test)]
impl Origin for Nowhere {
    fn deliver(&'static self, _: Vec<Arc<Job>>) {}
    fn mark_panicked(&'static self) {}
    fn submits_singly(&self) -> bool {
        false
    }
}

#[cfg(test)]
impl Job {
    /// Makes a job that does nothing, perhaps to a file, for tests.
    pub(crate) fn idle(inode: Option<Inode>) -> Arc<Job> {
        Job::new((&Nowhere, 0, 0), (Opcode::Nop, Op::default()), (-1, None), Approach::Plain, inode)
    }
}
