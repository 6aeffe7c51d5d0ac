//! A ring after a panic: each of its requests ends with a CQE of -EIO, and later calls on the ring answer EIO. Its
//! sleepers are woken to learn this, and closing the ring gives back everything (decision 14 in docs/decisions).
//!
//! | `health` | meaning | ended by |
//! |---|---|---|
//! | `WHOLE` | no panic has hit this ring in this process | a panic: the guard that it unwinds, or [`contain`] |
//! | `UNJOINED` | a forked child has not used the ring yet | the first holder of the lock, which becomes a member |
//! | `PANICKED` | a panic may have left the state half changed | the next holder of the lock, before anything else |
//! | `ENDED` | its requests have been ended; nothing starts any more | another panic (to `PANICKED`); the next life |
//!
//! The guard through which a panic unwinds only sets `PANICKED`. No Drop in this file may panic: a second panic while
//! one unwinds aborts the host. The next holder of the lock ends the requests ([`RingGuard::put_in_order`]). The
//! function that catches the panic ([`contain`]) takes the lock itself, so this happens soon. The `broken` word in the
//! control area informs the other processes on the ring.
//!
//! **Why ending is safe.** A panic leaves the state between two steps of safe code. So every field of `State` is a
//! sound value, but lists, heaps, counts and the poll set may contradict each other and the slab. The ending follows
//! none of them: it empties them, and walks the slab by index. A request has its CQE from the moment in which `post`
//! counts that CQE in the batch. Between the slab (or the SQE) and that moment an [`Uncompleted`] stands for the
//! request. The number of CQEs already posted from the batch is counted too (`ring::cq`). So each request gets exactly
//! one last CQE, wherever the panic came.
//!
//! A request keeps its slot if a worker has begun its call, or if the kernel's AIO has it: its memory is in use. It
//! ends when the result arrives: with that result, or with -EIO if the result is not final. A connect does not touch
//! the program's memory and ends at once.
//!
//! **The small locks** (`lock.rs`) are released by unwinding. Code that runs under one of them cannot panic, so their
//! values are never half changed:
//!
//! - LIVE, both POOLs and RINGS are lists that change by whole elements. Guards change the counts beside them.
//! - `arrived`, `messages` and `retired` only receive whole elements, and are emptied as a whole.
//! - Only a job's operation is worked on under its lock. A job that panicked answers -EIO, and its operation is dropped
//!   unread.
//! - The post lock is released by its guard, and every store under it leaves a whole state (`shared::control`).

use super::{Ring, RingGuard};
use crate::issue::device;
use crate::memory::layout::word;
use crate::mutation::{mutated, Mutation};
use crate::request::{Request, State};
use crate::ring::arrivals::Left;
use crate::ring::batch::Poster;
use crate::ring::table;
use crate::stats::Path;
use crate::wq::Job;
use crate::{log, stats, Errno};
use anyring_abi::{Cqe, Opcode, IORING_SETUP_DEFER_TASKRUN};
use core::sync::atomic::{AtomicU32, Ordering};
use std::collections::LinkedList;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::Arc;

const WHOLE: u32 = 0;
const UNJOINED: u32 = 1;
const PANICKED: u32 = 2;
const ENDED: u32 = 3;

/// The damage that a panic has done to a ring. All accesses are Relaxed. It changes under the ring's lock, or by
/// [`Ring::mark_panicked`], which says how the holder learns of the panic.
pub struct Health(AtomicU32);

impl Health {
    /// The health of a ring that no panic has hit.
    pub const fn new() -> Health {
        Health(AtomicU32::new(WHOLE))
    }

    /// Records that a panic unwound through a guard of the ring.
    #[cold]
    pub fn mark_panicked(&self) {
        self.0.store(PANICKED, Ordering::Relaxed);
    }

    /// Resets the health for the ring's next life.
    pub fn renew(&self) {
        self.0.store(WHOLE, Ordering::Relaxed);
    }

    /// Adjusts the health in a forked child. There a broken ring counts as ended: all that the parent had in flight is
    /// forgotten.
    pub fn reset_after_fork(&self) {
        let broken = matches!(self.0.load(Ordering::Relaxed), PANICKED | ENDED);
        self.0.store(if broken { ENDED } else { UNJOINED }, Ordering::Relaxed);
    }

    /// Records that the forked child has become a member.
    pub fn join(&self) {
        let _ = self.0.compare_exchange(UNJOINED, WHOLE, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// True if a new lock holder has nothing to repair.
    #[inline]
    pub fn is_whole(&self) -> bool {
        self.0.load(Ordering::Relaxed) == WHOLE
    }

    #[inline]
    fn has_panicked(&self) -> bool {
        self.0.load(Ordering::Relaxed) == PANICKED
    }
}

impl Default for Health {
    fn default() -> Health {
        Health::new()
    }
}

/// Watches the drop of a ring's guard: breaks the ring if a panic ends that drop.
pub struct PanicMark(pub &'static Ring);

impl PanicMark {
    /// Disarms the mark, since the drop did not panic.
    #[inline]
    pub fn disarm(self) {
        core::mem::forget(self);
    }
}

impl Drop for PanicMark {
    fn drop(&mut self) {
        self.0.health.mark_panicked();
    }
}

/// Stands for a request that is in no slab and has no CQE yet. If a panic unwinds through the value, the ending of the
/// ring answers the request.
#[must_use]
pub struct Uncompleted {
    ring: &'static Ring,
    left: LeftOver,
}

/// The facts needed to answer a request: `user_data`, and its shared record.
pub type LeftOver = (u64, Option<(u8, u8)>);

impl Uncompleted {
    /// Makes a value that stands for the request with this `user_data` and shared record.
    #[inline]
    pub fn new(ring: &'static Ring, user_data: u64, record: Option<(u8, u8)>) -> Uncompleted {
        Uncompleted { ring, left: (user_data, record) }
    }

    /// Disarms the value, since the request got its CQE or a place in the slab.
    #[inline]
    pub fn completed(self) {
        core::mem::forget(self);
    }
}

impl Drop for Uncompleted {
    fn drop(&mut self) {
        if let Some(mut uncompleted) = self.ring.uncompleted.lock() {
            uncompleted.push(self.left);
        }
    }
}

/// Runs the work of an entry point or of an engine thread, and stops a panic in it: then returns `None`. The panic
/// breaks the rings whose locks it held, and the ring that `named` returns.
#[inline]
pub fn contain<T>(named: impl FnOnce() -> Option<&'static Ring>, work: impl FnOnce() -> T) -> Option<T> {
    catch_unwind(AssertUnwindSafe(work)).map_err(|_| after_panic(named)).ok()
}

/// Does the same as [`contain`] without naming a ring.
#[inline]
pub fn contain_any<T>(work: impl FnOnce() -> T) -> Option<T> {
    contain(|| None, work)
}

#[cold]
pub(crate) fn after_panic(named: impl FnOnce() -> Option<&'static Ring>) {
    let ended = catch_unwind(AssertUnwindSafe(|| {
        if let Some(ring) = named() {
            ring.mark_panicked();
        }
        for ring in table::rings() {
            // Locking repairs a ring after a panic. If this very thread holds the ring further out, the drop of that
            // guard repairs it.
            if ring.health.has_panicked() && ring.lock_soon().is_ok_and(|guard| guard.is_closed()) {
                table::end_if_unused(ring);
            }
        }
    }));
    if ended.is_err() {
        log::line("a panic while the consequences of another were dealt with");
    }
}

impl Ring {
    /// True if a panic has hit the ring in this process. For callers without the ring's lock; holders use
    /// [`RingGuard::is_broken`].
    pub fn has_panicked_here(&self) -> bool {
        matches!(self.health.0.load(Ordering::Relaxed), PANICKED | ENDED)
    }

    /// Breaks the ring after a panic in a thread that may not hold it. The ring's holder ends the requests before it
    /// releases the lock.
    pub fn mark_panicked(&'static self) {
        self.health.mark_panicked();
        self.left.set(Left::UNANNOUNCED); // the holder checks again
        drop(self.try_lock());
    }
}

impl RingGuard {
    /// True if a panic has hit the ring, in this process or in another.
    #[inline]
    pub fn is_broken(&self) -> bool {
        if mutated(Mutation::PanicsAreNotReported) {
            return self.ring.health.0.load(Ordering::Relaxed) == ENDED;
        }
        self.control.header().broken.load(Ordering::Relaxed) != 0
    }

    /// Ends the requests of a ring that a panic has hit. A new holder calls this first.
    #[inline]
    pub fn put_in_order(&mut self) {
        if self.ring.health.has_panicked() {
            self.end_requests();
        }
    }

    /// Returns EIO for a call on a broken ring. CQEs that wait for room in the CQ move there first, since the program
    /// has no other call left to ask for them.
    #[cold]
    pub fn refuse_call(&mut self) -> Errno {
        if self.ring.health.0.load(Ordering::Relaxed) == WHOLE {
            self.end_requests(); // the panic was in another process
        }
        device::reap(self);
        self.flush_overflow();
        Errno::IO
    }

    #[cold]
    fn end_requests(&mut self) {
        let control = self.control;
        control.header().broken.store(1, Ordering::Relaxed);
        // If this process was interrupted in a submission, other processes stop waiting for it. Release: as after every
        // submission.
        let mine = control.member + 1;
        let _ = control.header().submitter.compare_exchange(mine, 0, Ordering::Release, Ordering::Relaxed);
        // If the first sweep panics, a second sweep continues from there.
        let ended = (0..2).any(|_| catch_unwind(AssertUnwindSafe(|| self.sweep())).is_ok());
        self.ring.health.0.store(ENDED, Ordering::Relaxed);
        if !ended {
            log::line("a panic while the requests of a broken ring were ended: some have no CQE");
        }
        self.control.lock_post().waiters().bump();
        self.wake();
        if self.is_polled() {
            self.ring.nudge_poller(); // it gives the ring up
        }
        self.call_helper(); // transfers at the kernel's AIO have yet to end
    }

    /// Empties every list and answers the requests in flight.
    fn sweep(&mut self) {
        let ring = self.ring;
        let state = &mut **self;
        state.queue.clear();
        state.chain = None;
        state.drain = Default::default();
        state.timers = Default::default();
        state.submission = None;
        state.calls.clear();
        state.device.unstage(); // their requests end below
        state.poll_set.forget_requests();
        while let Some((place, opcode)) = self.aio.as_mut().and_then(|context| context.take_single()) {
            stats::completed(opcode, Path::Poll, -Errno::IO.raw_os_error());
            self.complete_left((place.into(), None));
        }
        let mut finished = LinkedList::new();
        let all_stay = mutated(Mutation::BrokenRingKeepsRequests);
        let mut place = 0;
        while let Some((next, request)) =
            self.slab.sweep(place, |request| stays(request, &mut finished) || all_stay)
        {
            place = next;
            let left = (request.user_data, request.record);
            let uncompleted = Uncompleted::new(ring, left.0, left.1); // dropping the request may panic
            stats::completed(request.opcode, request.path, -Errno::IO.raw_os_error());
            drop(request);
            uncompleted.completed();
            self.complete_left(left);
        }
        let owed = ring.owed.swap(0, Ordering::Relaxed);
        self.complete_owed(owed);
        while let Some(left) = ring.uncompleted.lock().and_then(|mut uncompleted| uncompleted.pop()) {
            self.complete_left(left);
        }
        // No thread collects completions any more, so they no longer wait for the owner.
        ring.flags.fetch_and(!IORING_SETUP_DEFER_TASKRUN, Ordering::Relaxed);
        self.clear_announcement();
        self.post_messages();
        let arrived = ring.arrived.take(&ring.left);
        arrived.into_iter().chain(finished).for_each(|job| self.receive(job));
        let control = self.control;
        // The post lock must be held, as after a submission.
        let post = control.lock_post();
        let _ = self.memory.view.store(word::SQ_HEAD, control.header().sq_head.load(Ordering::Relaxed));
        drop(post);
        self.flush();
    }

    fn complete_left(&mut self, (user_data, record): LeftOver) {
        let uncompleted = Uncompleted::new(self.ring, user_data, record);
        self.post(Cqe { user_data, res: -Errno::IO.raw_os_error(), flags: 0 }, Poster::Task);
        uncompleted.completed();
        if let Some(record) = record {
            self.batch.ends(record);
        }
    }

    /// Consumes SQEs that a signal handler already reported as submitted.
    #[cold]
    pub fn submit_owed(&mut self, owed: u32) {
        match self.is_broken() {
            // The caller already knows that these SQEs were consumed, so ENOMEM is no longer possible.
            false if self.submit(owed) == Err(Errno::AGAIN) => self.complete_owed(owed),
            false => {}
            true => self.complete_owed(owed),
        }
    }

    fn complete_owed(&mut self, owed: u32) {
        let entries = self.memory.view.layout().sq_entries;
        for _ in 0..owed.min(entries) {
            let Ok(Some((index, sqe))) = self.get_sqe() else { return };
            if index < entries {
                self.complete_left((sqe.user_data, None));
            }
        }
    }
}

/// True if a request of a broken ring stays for now, since the kernel's AIO has it, or a worker has begun its call. A
/// job whose call has returned already is added to `finished`.
fn stays(request: &mut Request, finished: &mut LinkedList<Arc<Job>>) -> bool {
    (request.next, request.guard, request.guarded) = (None, None, None);
    let State::Queued(job) = request.state() else { return matches!(request.state(), State::Submitted) };
    if job.cancel() || !job.has_begun() {
        return false;
    }
    if job.has_finished() {
        finished.push_back(job.clone());
        return true;
    }
    request.opcode != Opcode::Connect
}
