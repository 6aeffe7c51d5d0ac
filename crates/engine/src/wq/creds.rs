//! Credentials pools: workers with the identity of one thread.
//!
//! The result of an open or a connect depends on the calling thread: its credentials and its directory, root and
//! umask. Threads may have their own (setfsuid(2), unshare(2) with CLONE_FS). The kernel's workers inherit these from
//! the task that submitted.
//!
//! In user space, a thread can only get them from its creator, and there is no cheap way to compare them. So the
//! submitting thread makes such operations itself. Operations that may have to sleep go to a credentials pool, which
//! the submitting thread starts for one call of io_uring_enter(2). The pool ends with its work.
//!
//! A request that must wait its turn (in a chain, after a drain) may be issued by another thread later. So it holds a
//! credentials pool that was started while its submitter still existed.
//!
//! Where threads may differ in identity (`identity`), this holds for every operation that acts for its submitter. A
//! request that waits for readiness holds a credentials pool if it sends, writes or makes a file.
//!
//! | field | who uses it |
//! |---|---|
//! | `queue` | the submitter, members, and a thread that issues a request that holds the pool (a leaf lock) |
//! | `changed` | futex word of members without work, which changes under `queue`'s lock |
//! | `TURNS` | a thread that queues a job that changes a file, or has made such a job (locked before `queue`) |

use crate::forced::{point, Point};
use crate::lock::Lock;
use crate::os::handlers;
use crate::os::{Os, Sys};
use crate::thread::caught;
use crate::wq::hashed::{Hashed, Inode};
use crate::wq::personality::Credentials;
use crate::wq::{self, Job, MAX_THREADS};
use crate::{identity, thread, Errno};
use core::sync::atomic::{AtomicU32, Ordering};
use std::collections::VecDeque;
use std::sync::Arc;

/// The most threads in all credentials pools together. Beyond this number the submitter does the work itself.
const MAX_MEMBERS: u32 = 256;
/// Number of members of all pools.
static MEMBERS: AtomicU32 = AtomicU32::new(0);

/// The threads that one thread started for one call of io_uring_enter(2), or for a registered personality.
pub struct CredsPool {
    /// The thread whose identity the pool has. 0 for a personality, whose identity only its members can pass on.
    submitter: u32,
    /// Number of identity changes in the process when the pool was made.
    changes: u32,
    /// The credentials that a personality's members restore before each job.
    credentials: Option<Credentials>,
    queue: Lock<Queue>,
    changed: AtomicU32,
}

#[derive(Default)]
struct Queue {
    jobs: VecDeque<Arc<Job>>,
    threads: u32,
    /// Number of members that sleep because there are no jobs.
    idle: u32,
    /// Number of requests that may still come. One member stays for them.
    holds: u32,
}

impl core::fmt::Debug for CredsPool {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "CredsPool of {}", self.submitter)
    }
}

impl Queue {
    /// Counts one more member, if the limits permit it.
    fn admit(&mut self) -> bool {
        let admitted = self.threads < MAX_THREADS && MEMBERS.fetch_add(1, Ordering::Relaxed) < MAX_MEMBERS;
        if admitted {
            self.threads += 1;
        } else if self.threads < MAX_THREADS {
            MEMBERS.fetch_sub(1, Ordering::Relaxed);
        }
        admitted
    }

    fn dismiss(&mut self) {
        self.threads -= 1;
        MEMBERS.fetch_sub(1, Ordering::Relaxed);
    }
}

impl CredsPool {
    /// Makes a credentials pool of the calling thread, without members yet.
    pub(crate) fn new() -> Arc<CredsPool> {
        CredsPool::with(thread::id(), None)
    }

    fn with(submitter: u32, credentials: Option<Credentials>) -> Arc<CredsPool> {
        let (queue, changed) = (Lock::new(Queue::default()), AtomicU32::new(0));
        Arc::new(CredsPool { submitter, changes: identity::changes(), credentials, queue, changed })
    }

    /// True if the calling thread still has the pool's identity, as far as is known.
    fn is_mine(&self) -> bool {
        self.submitter == thread::id() && self.changes == identity::changes()
    }

    /// Queues a job, in its turn. `fresh`: the calling thread has made the credentials pool in this call. False if no
    /// thread has this identity any more, and the calling thread cannot make one.
    #[must_use]
    pub(crate) fn queue(self: &Arc<CredsPool>, job: Arc<Job>, fresh: bool) -> bool {
        job.set_workers(self);
        let inode = job.inode;
        let Ok(job) = self.wait_for_turn(job) else { return false };
        let begins = job.is_none_or(|job| self.begin_with(job, fresh));
        if !begins {
            end_turn(inode);
        }
        begins
    }

    /// Returns the job if it may be made now. `None` if it was left in `TURNS`, to be queued when its predecessor is
    /// done. Fails with `ENOMEM` if there is no memory for the job to wait.
    fn wait_for_turn(self: &Arc<CredsPool>, job: Arc<Job>) -> Result<Option<Arc<Job>>, Errno> {
        let Some(inode) = job.inode else { return Ok(Some(job)) };
        // A signal handler that interrupted this very function makes its job out of order.
        let Some(mut turns) = TURNS.lock() else { return Ok(Some(job)) };
        if turns.has(inode) {
            job.set_claim(Claim::new(self));
        }
        turns.admit(job).map_err(|_| Errno::NOMEM)
    }

    fn begin_with(self: &Arc<CredsPool>, job: Arc<Job>, fresh: bool) -> bool {
        let Some(mut queue) = self.queue.lock() else {
            // A signal handler interrupted this very function, in the submitter. The handler makes the job at once,
            // unless the job needs another identity.
            if fresh {
                make(job);
            }
            return fresh;
        };
        let may_start = fresh && queue.idle == 0;
        if queue.threads == 0 && !may_start {
            return false;
        }
        if queue.jobs.try_reserve(1).is_err() {
            return false;
        }
        queue.jobs.push_back(job);
        let start = may_start && queue.admit();
        let alone = queue.threads == 0;
        drop(queue);
        match (start, alone) {
            (true, _) => self.start_member(),
            (false, true) => self.do_without_members(),
            (false, false) => self.wake(),
        }
        true
    }

    fn wake(&self) {
        self.changed.fetch_add(1, Ordering::Relaxed);
        Sys::futex_wake(&self.changed, 1);
    }

    /// Starts a member that was already counted. Only a thread of the right identity may call this.
    fn start_member(self: &Arc<CredsPool>) {
        let argument = Arc::into_raw(self.clone());
        if thread::spawn_member(work, argument.cast_mut().cast()) {
            return;
        }
        // SAFETY: `argument` came from `into_raw` above, and no thread was started that would take it.
        drop(unsafe { Arc::from_raw(argument) });
        let alone = self.queue.lock().is_some_and(|mut queue| {
            queue.dismiss();
            queue.threads == 0
        });
        if alone {
            self.do_without_members();
        }
    }

    /// Runs the jobs in the caller, which has the right identity, since no thread can be made. The work gets done
    /// late.
    #[cold]
    fn do_without_members(self: &Arc<CredsPool>) {
        let workers = self.clone();
        handlers::without_locks(move || {
            while let Some(job) = workers.queue.lock().and_then(|mut queue| queue.jobs.pop_front()) {
                make(job);
            }
        });
    }

    /// Runs a member until there is no job, and no coming job for which this member has to stay.
    fn run_jobs(self: &Arc<CredsPool>) {
        while let Some(mut queue) = self.queue.lock() {
            point(Point::CredsPoolIdle);
            if let Some(job) = queue.jobs.pop_front() {
                // This call may sleep forever, until one of the other jobs is made.
                let start = (!queue.jobs.is_empty() || queue.holds > 0) && queue.idle == 0 && queue.admit();
                drop(queue);
                if start {
                    self.start_member();
                }
                match self.credentials.as_ref().map_or(Ok(()), Credentials::assume) {
                    Ok(()) => make(job),
                    Err(error) => refuse(job, error),
                }
                continue;
            }
            if queue.holds == 0 || queue.idle > 0 {
                return queue.dismiss();
            }
            queue.idle += 1;
            let seen = self.changed.load(Ordering::Relaxed);
            drop(queue);
            let _ = Sys::futex_wait(&self.changed, seen, None);
            if let Some(mut queue) = self.queue.lock() {
                queue.idle -= 1;
            }
        }
    }
}

/// Jobs of all credentials pools that change a file, by file (`wq::hashed`). These jobs do not wait for jobs of the
/// process's pool, and jobs of that pool do not wait for them.
static TURNS: Lock<Hashed> = Lock::new(Hashed::NONE);

/// True if a member of any credentials pool changes this file, or is about to.
pub(super) fn is_busy(inode: Inode) -> bool {
    TURNS.lock().is_some_and(|turns| turns.has(inode))
}

/// Makes a job, on a thread of the right identity.
fn make(job: Arc<Job>) {
    let inode = job.inode;
    wq::run_alone(job);
    end_turn(inode);
}

fn refuse(job: Arc<Job>, error: Errno) {
    let inode = job.inode;
    wq::refuse(job, error);
    end_turn(inode);
}

/// Ends the turn of a job that changes a file, and starts the next one.
fn end_turn(inode: Option<Inode>) {
    let next = |inode| TURNS.lock()?.done(inode);
    while let Some(job) = inode.and_then(next) {
        let (workers, hold) = (job.workers(), job.take_claim());
        if workers.is_some_and(|workers| workers.begin_with(job.clone(), false)) {
            return;
        }
        wq::refuse(job, Errno::AGAIN);
        drop(hold);
    }
}

/// Resets everything in a forked child, which has no members.
///
/// # Safety
/// Only the forking thread may exist in the process.
pub unsafe fn reset_after_fork() {
    MEMBERS.store(0, Ordering::Relaxed);
    // SAFETY: no other thread exists, and the value is replaced right away.
    unsafe { TURNS.reset() };
    if let Some(mut turns) = TURNS.lock() {
        core::mem::forget(core::mem::replace(&mut *turns, Hashed::NONE));
    }
}

extern "C" fn work(workers: *mut libc::c_void) -> *mut libc::c_void {
    thread::name(c"anyring-worker");
    // SAFETY: `start_member` made the pointer by `into_raw` from a reference of its own, for this thread alone.
    let workers = unsafe { Arc::from_raw(workers.cast_const().cast::<CredsPool>()) };
    // A panic outside of every job has damaged no job and no ring: the thread continues.
    while caught(|| workers.run_jobs()).is_none() {}
    core::ptr::null_mut()
}

/// A request's claim that a thread of its submitter's identity makes it, whichever thread issues it.
#[derive(Debug)]
pub struct Claim(pub(crate) Arc<CredsPool>);

impl Claim {
    /// Makes a claim. `workers` must have members, or be the calling thread's own.
    pub(crate) fn new(workers: &Arc<CredsPool>) -> Claim {
        let start = workers.queue.lock().is_some_and(|mut queue| {
            queue.holds += 1;
            queue.threads == 0 && queue.admit()
        });
        if start {
            workers.start_member();
        }
        Claim(workers.clone())
    }

    /// Makes a claim to a credentials pool with the calling thread's present identity.
    pub fn on_caller() -> Claim {
        Claim::new(&CredsPool::new())
    }

    /// Makes a claim to a credentials pool that keeps the calling thread's present credentials. Fails with `EAGAIN`
    /// if no thread can be made.
    pub fn on_credentials() -> Result<Claim, Errno> {
        let workers = CredsPool::with(0, Some(Credentials::of_caller()?));
        let hold = Claim::new(&workers);
        let manned = workers.queue.lock().is_some_and(|queue| queue.threads != 0);
        if manned {
            Ok(hold)
        } else {
            Err(Errno::AGAIN)
        }
    }

    /// Makes another claim to the same credentials pool.
    pub fn another(&self) -> Claim {
        Claim::new(&self.0)
    }

    /// True if the calling thread has the identity with which the request was submitted.
    pub fn is_mine(&self) -> bool {
        self.0.is_mine()
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        if let Some(mut queue) = self.0.queue.lock() {
            queue.holds -= 1;
        }
        self.0.wake();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handler_that_interrupts_a_submitter_makes_no_call_with_other_credentials() {
        let workers = CredsPool::with(0, Some(Credentials::of_caller().expect("credentials")));
        let job = Job::idle(None);
        let held = workers.queue.lock().expect("free");
        assert!(!workers.queue(job.clone(), false));
        assert!(!job.has_finished() && job.cancel(), "nobody has begun with it");
        drop(held);
    }

    #[test]
    fn a_job_that_changes_a_file_waits_for_that_of_another_creds_pool() {
        const INODE: Inode = (7, 7);
        let job = || Job::idle(Some(INODE));
        let is_taken = || TURNS.lock().expect("nobody interrupts").has(INODE);
        assert!(matches!(CredsPool::new().wait_for_turn(job()), Ok(Some(_))));
        let (workers, second) = (CredsPool::new(), job());
        assert!(workers.queue(second.clone(), true));
        assert!(workers.queue.lock().expect("nobody interrupts").jobs.is_empty(), "its turn has not come");
        assert!(second.cancel(), "nobody has begun with it");
        end_turn(Some(INODE));
        let begin = std::time::Instant::now();
        while is_taken() {
            assert!(begin.elapsed() < std::time::Duration::from_secs(30), "a member ends its turn");
            std::thread::yield_now();
        }
    }
}
