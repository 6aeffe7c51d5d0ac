//! The beginning and end of a ring's life, and the part of it that a forked child takes over.

use super::holder_work::AfterRelease;
use crate::issue::device;
use crate::mutation::{mutated, Mutation};
use crate::request::{self, Slab};
use crate::ring::arrivals::Left;
use crate::ring::batch::Poster;
use crate::ring::resize;
use crate::ring::{Ring, RingGuard, State};
use crate::shared::control;
use crate::shared::control::{MEMBERS, NO_MEMBER, RECORD_FREE};
use crate::shared::member::{record_lock, MAKER};
use crate::thread::tables;
use crate::Errno;
use anyring_abi::Cqe;
use core::sync::atomic::{fence, Ordering};

impl Ring {
    /// Gives a pooled ring its state. No other thread can find the ring yet.
    pub fn activate(&'static self, fd: i32, flags: u32, state: Box<State>) {
        if let Some(mut held) = self.state.lock() {
            self.flags.store(flags, Ordering::Relaxed);
            self.health.renew();
            if let Some(mut uncompleted) = self.uncompleted.lock() {
                uncompleted.clear();
            }
            self.sleepers.store(0, Ordering::Relaxed);
            self.callers.store(0, Ordering::Relaxed);
            self.engine_end.store(state.ends.sender, Ordering::Relaxed);
            self.mapped.store(state.memory.address(), Ordering::Relaxed);
            self.numbers.store(0, Ordering::Relaxed);
            self.dropped.store(false, Ordering::Relaxed);
            self.owed.store(0, Ordering::Relaxed);
            // These may be left from an earlier use of this ring.
            let Ring { left, arrived, messages, retired, holder_work, .. } = self;
            drop((arrived.take(left), messages.take(left), retired.take(left), holder_work.take(left)));
            left.forget(Left::UNANNOUNCED | Left::OWED);
            self.inherited.store(false, Ordering::Relaxed);
            self.table.store(tables::of_new_ring(), Ordering::Relaxed);
            self.kept_from_children.store(false, Ordering::Relaxed);
            self.polled_by_ring.store(-1, Ordering::Relaxed);
            self.cookie.store(state.cookie, Ordering::Relaxed);
            *held = Some(state);
            self.fd.store(fd, Ordering::Relaxed);
        }
    }

    /// Makes the locks usable in a forked child and forgets the parent's requests in flight. The parent's threads
    /// complete those.
    ///
    /// # Safety
    /// Only the forking thread may exist in the process.
    pub unsafe fn reset_after_fork(&'static self) {
        // SAFETY: no other thread exists. The state may be in the middle of a change by a thread that the child does
        // not have. Only plain numbers and mappings of it are kept. The rest is forgotten, not dropped.
        unsafe {
            if !mutated(Mutation::LocksStayHeldAfterFork) {
                self.state.reset();
            }
            self.arrived.reset(&self.left);
            self.uncompleted.reset();
            self.retired.reset(&self.left);
            self.messages.reset(&self.left);
            self.holder_work.reset(&self.left);
            self.holder_work_runs.store(false, Ordering::Relaxed);
            self.close_gave_up.store(false, Ordering::Relaxed);
            self.holder.store(0, Ordering::Relaxed);
            self.poller.reset();
            self.health.reset_after_fork();
        }
        self.inherited.store(true, Ordering::Relaxed);
        self.table.store(tables::FIRST, Ordering::Relaxed);
        self.sleepers.store(0, Ordering::Relaxed);
        self.callers.store(0, Ordering::Relaxed);
        self.driver.reset();
        if let Some(mut held) = self.state.lock() {
            if let Some(state) = held.as_mut() {
                state.forget_flight();
                if self.kept_from_children.load(Ordering::Relaxed) {
                    state.memory.mark_kept();
                    state.control.mark_kept();
                }
            }
        }
    }
}

impl Ring {
    /// True if the process is a forked child that inherited the ring and has not used it. Taking the ring's lock would
    /// make the process a member.
    pub fn is_unused_inheritance(&'static self) -> bool {
        let unused = |state: &State| state.control.member == control::NO_MEMBER;
        // Relaxed: set before the child can have a second thread.
        self.inherited.load(Ordering::Relaxed)
            // A held ring is in use.
            && self.state.lock_soon().is_some_and(|held| held.as_deref().is_some_and(unused))
    }

    /// Takes the state of a ring that this process, a forked child, has not used. The ring ends for this process only.
    pub fn leave_unused(&'static self) -> Option<Box<State>> {
        if !self.is_unused_inheritance() {
            return None;
        }
        let state = self.state.lock()?.take();
        self.fd.store(-1, Ordering::Relaxed);
        self.cookie.store(0, Ordering::Relaxed);
        self.clear_poller();
        state
    }
}

impl RingGuard {
    /// Keeps the ring's memory, and so the ring, from children that are forked from now on.
    ///
    /// # Errors
    /// Returns the error of madvise(2).
    pub fn keep_from_children(&self) -> Result<(), crate::Errno> {
        self.memory.keep_from_children()?;
        self.control.keep_from_children()?;
        // Relaxed: a child that this process forks later reads it.
        self.ring.kept_from_children.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// True if this process, a forked child, no longer needs the ring. It then has no request in flight, and none of
    /// its CQEs waits for room in the CQ.
    pub fn is_left_by_child(&self) -> bool {
        // Relaxed: as in `is_unused_inheritance`.
        self.ring.inherited.load(Ordering::Relaxed) && self.slab.is_empty() && self.spill.is_empty()
    }

    /// Records that the ring's last number is closed. From then on a ring that is still in use does not touch the
    /// program's memory.
    pub fn mark_closed(&mut self) {
        self.close();
        // Relaxed: a thread that goes to sleep is counted under the lock.
        if self.ring.sleepers.load(Ordering::Relaxed) != 0 || !self.slab.is_empty() {
            self.memory.leave_program();
        }
    }

    /// True if SQEs may be taken. They must not come from memory that the program may have given back.
    pub fn has_sqes(&self) -> bool {
        !(self.is_closed() && self.memory.view.is_of_program())
    }

    /// Ends every request of a closed ring that neither a worker nor the kernel has, without a visible CQE. No new
    /// request is issued.
    pub fn abandon_requests(&mut self) {
        if !self.is_closed() {
            return;
        }
        self.mark_abandoned();
        self.queue.clear();
        self.chain = None;
        self.submission = None;
        self.calls.clear();
        drop(core::mem::take(&mut self.drain));
        let kept = self.iopoll.as_mut().map(|iopoll| iopoll.take_found()).unwrap_or_default();
        let ring = self.ring;
        drop(ring.messages.take(&ring.left));
        for job in ring.arrived.take(&ring.left).into_iter().chain(kept) {
            if job.cookie == self.cookie {
                self.slab.remove(request::Id::from_word(job.request));
            }
        }
        let state = &mut **self;
        state.device.unstage(); // their requests end below
        device::reap(self);
        let mut place = 0;
        while let Some(id) = self.slab.next_from(place) {
            place = id.place() + 1;
            match self.slab[id].state() {
                request::State::Queued(job) if !job.cancel() => {
                    self.forget_chain(id);
                    continue;
                }
                request::State::Submitted => {
                    self.forget_chain(id);
                    continue;
                }
                request::State::Polling(_) => {
                    let _removed_below = self.disarm(id);
                }
                request::State::Timed => {
                    let _removed_below = self.stop_timer(id);
                }
                _ => {}
            }
            self.slab.remove(id);
        }
    }

    /// Makes a request forget its successors, which end now: it must not look for them later.
    fn forget_chain(&mut self, id: request::Id) {
        (self.slab[id].next, self.slab[id].guard) = (None, None);
    }

    /// Takes the state of a closed ring that is no longer in use. From now on the ring has ended.
    pub fn end_ring(mut self) -> Option<Box<State>> {
        self.ring.fd.store(-1, Ordering::Relaxed);
        self.ring.cookie.store(0, Ordering::Relaxed);
        let due = self.take_pending_wake();
        let state = self.held.as_mut()?.take();
        self.held = None; // no work is left to settle
        if let Some(due) = due {
            due.wake();
        }
        state
    }
}

impl State {
    fn forget_flight(&mut self) {
        core::mem::forget(core::mem::take(&mut self.slab));
        self.queue.abandon();
        core::mem::forget(core::mem::take(&mut self.timers));
        core::mem::take(&mut self.poll_set).abandon();
        core::mem::take(&mut self.device).abandon();
        core::mem::forget(core::mem::take(&mut self.drain));
        core::mem::forget(core::mem::take(&mut self.spill));
        core::mem::forget(self.submission.take());
        self.calls.abandon();
        self.after_release = AfterRelease::NOTHING;
        core::mem::forget(core::mem::take(&mut self.personalities));
        core::mem::forget(core::mem::take(&mut self.records));
        self.recorder = self.recorder.take().and_then(crate::ring::recorder::Recorder::in_child);
        self.chain = None;
        if let Some(iopoll) = &mut self.iopoll {
            iopoll.forget_flight();
        }
        self.batch.forget();
        if let Some(poller_eventfd) = self.poller_eventfd.take() {
            crate::descriptors::close(poller_eventfd); // a thread of the parent may sleep on it
        }
        self.control.member = control::NO_MEMBER;
    }

    /// Drops all that may still refer to the control area: requests that a worker left, registered resources.
    pub fn release_resources(&mut self) {
        self.slab = Slab::default();
        self.files = None;
        self.buffers = None;
    }
}

impl RingGuard {
    /// True if another process uses this ring, or has used it.
    #[inline]
    pub fn is_shared(&self) -> bool {
        self.control.header().shared.load(Ordering::Relaxed) != 0
    }

    /// True if the process that made the ring lives.
    pub fn maker_lives(&self) -> bool {
        let control = self.control;
        let died = control.header().maker_died.load(Ordering::Relaxed) != 0;
        !died && (control.member == MAKER || control.lives(MAKER))
    }

    /// Makes the process, a forked child, a member of the ring. Fails if the ring has got filters that this process does
    /// not have.
    pub(crate) fn join(&mut self) -> Result<(), Errno> {
        if crate::thread::tables::shares_descriptors() {
            // Relaxed: a process that does not read the 1 yet has checked the lock before this process is a member.
            self.control.header().locks_are_blind.store(1, Ordering::Relaxed);
        }
        let number = self.control.claim_number()?;
        self.control.member = number;
        if self.control.begin_sharing() {
            // Threads that already sleep on the ring do not look for dead members.
            self.control.lock_post().waiters().bump();
            self.wake();
        }
        // Partner: the fence in `register::filter`.
        fence(Ordering::SeqCst);
        let filters = self.restrictions.as_ref().map_or(0, |restrictions| restrictions.filters.count());
        if self.control.header().filters.load(Ordering::Relaxed) as usize != filters {
            self.control.member = NO_MEMBER;
            return Err(Errno::ACCESS);
        }
        if let Err(error) = resize::follow_areas(self) {
            self.control.member = NO_MEMBER;
            return Err(error);
        }
        self.bury(number);
        self.control.member(number).joined.store(1, Ordering::Relaxed);
        // The records that dead members left would count against the ring's limit.
        self.reap_dead_members();
        Ok(())
    }

    /// Looks for members that died and takes over what they left.
    #[cold]
    pub fn reap_dead_members(&mut self) {
        if mutated(Mutation::TheDeadAreNotBuried) {
            return;
        }
        let control = self.control;
        for number in 0..control.header().members_end.load(Ordering::Relaxed).min(MEMBERS) {
            let joined = control.member(number).joined.load(Ordering::Relaxed) != 0;
            if number == control.member || !joined || control.lives(number) {
                continue;
            }
            // The member's lock makes sure that only this process takes over from it.
            if record_lock(control.lock_file, libc::F_SETLK, libc::F_WRLCK, number).is_err() {
                continue;
            }
            self.bury(number);
            control.member(number).joined.store(0, Ordering::Relaxed);
            let _ = record_lock(control.lock_file, libc::F_SETLK, libc::F_UNLCK, number);
        }
    }

    /// Takes over from the dead member `dead`, whose lock this process holds: its waiters are gone, its requests end.
    fn bury(&mut self, dead: u32) {
        let control = self.control;
        let (header, member) = (control.header(), control.member(dead));
        if dead == MAKER && member.joined.load(Ordering::Relaxed) != 0 {
            header.maker_died.store(1, Ordering::Relaxed); // from now on the number may be another process's
        }
        header.waiters.leave(member.waiting.swap(0, Ordering::Relaxed), member.in_futex.swap(0, Ordering::Relaxed));
        for chunk in control.chunks_of(dead).collect::<Vec<_>>() {
            // From now on the records belong to this process. If it dies now, the process that takes over from it
            // continues.
            header.chunk_owner[chunk].store(control.member + 1, Ordering::Relaxed);
            for record in crate::ring::records_of(chunk) {
                let shared = control.record(record.0.into(), record.1.into());
                // Acquire pairs with the Release stores of the owner and of `repair`.
                if shared.state.load(Ordering::Acquire) == RECORD_FREE {
                    continue;
                }
                let user_data = shared.user_data.load(Ordering::Relaxed);
                let cqe = Cqe { user_data, res: -Errno::CANCELED.raw_os_error(), flags: 0 };
                self.post(cqe, Poster::Task);
                self.batch.ends(record);
            }
            self.flush();
            self.records.forget_chunk(chunk);
            header.chunk_owner[chunk].store(0, Ordering::Relaxed);
        }
    }
}
