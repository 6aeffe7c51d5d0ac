//! What a panic leaves of a ring: its requests end with -EIO, a CQE each, and later calls on it answer EIO. Whoever sleeps
//! on it is woken for that, and closing it gives back everything (decision 14 in docs/decisions).
//!
//! | `health` | meaning | who moves it on |
//! |---|---|---|
//! | whole | no panic has struck this ring in this process | a panic: the guard that it unwinds, or [`contain`] |
//! | unjoined | a forked child has not used the ring yet | its first holder of the lock, which becomes a member |
//! | struck | the state under the lock may be half changed | the next holder of the lock, before anything else |
//! | ended | its requests have been ended, nothing starts on it any more | another panic, back to struck; the next life |
//!
//! The guard that a panic unwinds through only leaves the note: nothing in a Drop here may panic, since a second panic
//! while one unwinds aborts the host. Whoever takes the lock next ends the requests ([`RingGuard::put_in_order`]); the
//! catching side ([`contain`]) sees to it that somebody does. The `broken` word in the control area tells the other
//! processes that have the ring.
//!
//! **What the ending relies on.** Half changed means: between two steps of safe code. So every field of `State` is a
//! sound value, but lists, heaps, counts and the poll set may contradict each other and the slab. None of them is
//! followed: they are emptied, and the slab is walked by index. A request has its CQE from the moment in which `post`
//! counts it in the batch; between the slab (or the SQE) and that moment an [`Unanswered`] stands for it. What of the batch
//! has been posted is counted too (`ring::cq`). So each request gets exactly one last CQE, wherever the panic struck.
//!
//! A request whose call a worker has begun, or that the kernel's AIO has, keeps its place: its memory is in use. It ends with
//! its real result, or with -EIO if that is not final, when that is there. A connect touches no memory of the program's and
//! ends at once.
//!
//! **The small locks** (`lock.rs`) are released by unwinding. Under none of them can a panic come from anywhere, so none of their values is ever half changed: LIVE, both POOLs and RINGS are lists pushed to and
//! taken from, with counts beside them that are changed by guards; `arrived`, `messages` and `retired` are pushed to
//! or taken whole. Only a job's operation is worked on under its lock; a job that panicked answers -EIO and its operation is
//! dropped without being looked at. The post lock is released by its guard, and every store under it leaves a whole state
//! (`shared::control`).

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
const STRUCK: u32 = 2;
const ENDED: u32 = 3;

/// What a panic has done to a ring. Relaxed throughout: it changes under the ring's lock, or by [`Ring::strike`], which
/// says how the holder learns of it.
pub struct Health(AtomicU32);

impl Health {
    /// Of a ring that no panic has struck.
    pub const fn new() -> Health {
        Health(AtomicU32::new(WHOLE))
    }

    /// A panic came through a guard of the ring.
    #[cold]
    pub fn strike(&self) {
        self.0.store(STRUCK, Ordering::Relaxed);
    }

    /// The ring begins another life.
    pub fn renew(&self) {
        self.0.store(WHOLE, Ordering::Relaxed);
    }

    /// In a forked child: what the parent's other threads left half changed is forgotten with all that is in flight.
    pub fn reset_after_fork(&self) {
        let broken = matches!(self.0.load(Ordering::Relaxed), STRUCK | ENDED);
        self.0.store(if broken { ENDED } else { UNJOINED }, Ordering::Relaxed);
    }

    /// The child has become a member.
    pub fn join(&self) {
        let _ = self.0.compare_exchange(UNJOINED, WHOLE, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// True if a new lock holder has no repair to do.
    #[inline]
    pub fn is_whole(&self) -> bool {
        self.0.load(Ordering::Relaxed) == WHOLE
    }

    #[inline]
    fn is_struck(&self) -> bool {
        self.0.load(Ordering::Relaxed) == STRUCK
    }
}

impl Default for Health {
    fn default() -> Health {
        Health::new()
    }
}

/// Stands for the guard's own drop while that is at work: strikes the ring if a panic ends it.
pub struct Strike(pub &'static Ring);

impl Strike {
    /// There was no panic.
    #[inline]
    pub fn averted(self) {
        core::mem::forget(self);
    }
}

impl Drop for Strike {
    fn drop(&mut self) {
        self.0.health.strike();
    }
}

/// A request that is in no slab and has no CQE yet: if a panic comes through here, the ending answers it.
#[must_use]
pub struct Unanswered {
    ring: &'static Ring,
    left: LeftOver,
}

/// What has to be known of a request to answer it: `user_data`, and its shared record.
pub type LeftOver = (u64, Option<(u8, u8)>);

impl Unanswered {
    /// The request with this `user_data` and shared record is on its way.
    #[inline]
    pub fn new(ring: &'static Ring, user_data: u64, record: Option<(u8, u8)>) -> Unanswered {
        Unanswered { ring, left: (user_data, record) }
    }

    /// It got its CQE, or a place in the slab.
    #[inline]
    pub fn answered(self) {
        core::mem::forget(self);
    }
}

impl Drop for Unanswered {
    fn drop(&mut self) {
        if let Some(mut unanswered) = self.ring.unanswered.lock() {
            unanswered.push(self.left);
        }
    }
}

/// Runs what an entry point or a thread of ours has to do. A panic in it stops here: `None`. It breaks the rings whose
/// locks it held, and the one that `named` answers.
#[inline]
pub fn contain<T>(named: impl FnOnce() -> Option<&'static Ring>, work: impl FnOnce() -> T) -> Option<T> {
    catch_unwind(AssertUnwindSafe(work)).map_err(|_| after_panic(named)).ok()
}

/// [`contain`] where no ring is named.
#[inline]
pub fn contain_any<T>(work: impl FnOnce() -> T) -> Option<T> {
    contain(|| None, work)
}

#[cold]
pub(crate) fn after_panic(named: impl FnOnce() -> Option<&'static Ring>) {
    let ended = catch_unwind(AssertUnwindSafe(|| {
        if let Some(ring) = named() {
            ring.strike();
        }
        for ring in table::rings() {
            // Locking puts a struck ring in order; if this very thread holds it further out, that guard's drop does.
            if ring.health.is_struck() && ring.lock_soon().is_ok_and(|guard| guard.is_closed()) {
                table::end_if_unused(ring);
            }
        }
    }));
    if ended.is_err() {
        log::line("a panic while the consequences of another were dealt with");
    }
}

impl Ring {
    /// Whether a panic struck the ring in this process. For who does not hold it; else [`RingGuard::is_broken`].
    pub fn is_struck_here(&self) -> bool {
        matches!(self.health.0.load(Ordering::Relaxed), STRUCK | ENDED)
    }

    /// A panic in a thread that may not hold the ring breaks it. Who holds it ends the requests before letting go.
    pub fn strike(&'static self) {
        self.health.strike();
        self.left.set(Left::UNTOLD); // the holder looks again
        drop(self.try_lock());
    }
}

impl RingGuard {
    /// Whether the ring was struck by a panic, in this process or another.
    #[inline]
    pub fn is_broken(&self) -> bool {
        if mutated(Mutation::OthersAreNotToldOfPanics) {
            return self.ring.health.0.load(Ordering::Relaxed) == ENDED;
        }
        self.control.header().broken.load(Ordering::Relaxed) != 0
    }

    /// Ends the requests of a ring that a panic has struck: the first thing that a new holder does.
    #[inline]
    pub fn put_in_order(&mut self) {
        if self.ring.health.is_struck() {
            self.end_requests();
        }
    }

    /// EIO for a ring that is broken. What waits for room in the CQ gets there first: this is all that the program has
    /// left to ask for.
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
        // The submission that was interrupted, if one was, is not waited for. Release: as after every one.
        let mine = control.member + 1;
        let _ = control.header().submitter.compare_exchange(mine, 0, Ordering::Release, Ordering::Relaxed);
        // A second time if the first panics: it goes on where that stopped.
        let ended = (0..2).any(|_| catch_unwind(AssertUnwindSafe(|| self.sweep())).is_ok());
        self.ring.health.0.store(ENDED, Ordering::Relaxed);
        if !ended {
            log::line("a panic while the requests of a broken ring were ended: some have no CQE");
        }
        self.control.lock_post().waiters().bump();
        self.wake();
        if self.is_polled() {
            self.ring.nudge_poller(); // it lets go of the ring
        }
        self.call_helper(); // what the kernel's AIO has still ends
    }

    /// Takes everything apart and answers whatever was in flight.
    fn sweep(&mut self) {
        let ring = self.ring;
        let state = &mut **self;
        state.queue.clear();
        state.chain = None;
        state.drain = Default::default();
        state.timers = Default::default();
        state.submission = None;
        state.calls.clear();
        state.device.unstage(); // they end below
        state.poll_set.forget_requests();
        while let Some((place, opcode)) = self.aio.as_mut().and_then(|context| context.take_single()) {
            stats::completed(opcode, Path::Poll, -Errno::IO.raw_os_error());
            self.answer_left((place.into(), None));
        }
        let mut finished = LinkedList::new();
        let all_stay = mutated(Mutation::BrokenRingKeepsRequests);
        let mut place = 0;
        while let Some((next, request)) =
            self.slab.sweep(place, |request| stays(request, &mut finished) || all_stay)
        {
            place = next;
            let left = (request.user_data, request.record);
            let unanswered = Unanswered::new(ring, left.0, left.1); // in case its drop panics
            stats::completed(request.opcode, request.path, -Errno::IO.raw_os_error());
            drop(request);
            unanswered.answered();
            self.answer_left(left);
        }
        let owed = ring.owed.swap(0, Ordering::Relaxed);
        self.answer_owed(owed);
        while let Some(left) = ring.unanswered.lock().and_then(|mut unanswered| unanswered.pop()) {
            self.answer_left(left);
        }
        // Nobody comes to collect any more: completions do not wait for the owner from now on.
        ring.flags.fetch_and(!IORING_SETUP_DEFER_TASKRUN, Ordering::Relaxed);
        self.clear_announcement();
        self.post_messages();
        let arrived = ring.arrived.take(&ring.left);
        arrived.into_iter().chain(finished).for_each(|job| self.receive(job));
        let control = self.control;
        // Under the post lock, as after a submission.
        let post = control.lock_post();
        let _ = self.memory.view.store(word::SQ_HEAD, control.header().sq_head.load(Ordering::Relaxed));
        drop(post);
        self.flush();
    }

    fn answer_left(&mut self, (user_data, record): LeftOver) {
        let unanswered = Unanswered::new(self.ring, user_data, record);
        self.post(Cqe { user_data, res: -Errno::IO.raw_os_error(), flags: 0 }, Poster::Task);
        unanswered.answered();
        if let Some(record) = record {
            self.batch.ends(record);
        }
    }

    /// Consumes SQEs that a signal handler was told were submitted.
    #[cold]
    pub fn submit_owed(&mut self, owed: u32) {
        match self.is_broken() {
            // The caller already knows that these SQEs were consumed, so ENOMEM is no longer possible.
            false if self.submit(owed) == Err(Errno::AGAIN) => self.answer_owed(owed),
            false => {}
            true => self.answer_owed(owed),
        }
    }

    fn answer_owed(&mut self, owed: u32) {
        let entries = self.memory.view.layout().sq_entries;
        for _ in 0..owed.min(entries) {
            let Ok(Some((index, sqe))) = self.take_sqe() else { return };
            if index < entries {
                self.answer_left((sqe.user_data, None));
            }
        }
    }
}

/// Whether a request of a broken ring stays for now: the kernel's AIO has it, or a worker is in its call, or has left it and
/// the job is added to `finished`.
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
