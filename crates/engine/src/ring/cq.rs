//! Posting: the only way in which a CQE of any kind reaches the program.
//!
//! Completions gather in a batch in the ring's state and are copied to the CQ together, under the post lock. A CQE goes
//! to the shared backlog (`IORING_FEAT_NODROP`) if the CQ is full or other CQEs wait in the backlog. From there CQEs
//! move to the CQ in order when the program asks for events. Waiters and watchers are notified after the lock is
//! released.

use super::batch::{Poster, Signals};
use super::state::Life;
use super::{Ring, RingGuard, State};
use crate::forced::{point, Point};
use crate::issue::unwatched;
use crate::memory::layout::word;
use crate::memory::view::View;
use crate::os::{syscall, Os, Sys};
use crate::resource::files::FixedFile;
use crate::ring::arrivals::Left;
use crate::ring::holder_work::AfterRelease;
use crate::shared::control::{PostLock, WATCHED_EDGE, WATCHED_LEVEL};
use crate::Errno;
use crate::{descriptors, stats};
use anyring_abi::{
    Cqe, IoEvent, IORING_CQE_F_32, IORING_CQE_F_NOTIF, IORING_CQ_EVENTFD_DISABLED, IORING_NOTIF_USAGE_ZC_COPIED,
    IORING_SQ_CQ_OVERFLOW, IORING_SQ_TASKRUN,
};
use core::sync::atomic::Ordering;
use std::sync::Arc;

/// Moves CQEs from the backlog to the CQ while there is room. False if it moved none.
fn move_backlog(post: &mut PostLock, view: &View) -> bool {
    let entries = view.layout().cq_entries;
    let before = post.cq_tail();
    let used = view.load(word::CQ_HEAD).map_or(entries, |head| before.wrapping_sub(head));
    let (mut tail, mut room) = (before, entries.saturating_sub(used));
    let mut moved = 0;
    while moved < post.backlog() {
        let (cqe, extra) = post.backlog_entry(moved);
        let double = view.is_double(&cqe);
        let (place, fits) = if double { view.place_double(tail, room) } else { (tail, room) };
        room -= place.wrapping_sub(tail);
        tail = place;
        if fits == 0 {
            break;
        }
        let _ = view.write(tail, cqe, extra, double);
        let taken = 1 + u32::from(double);
        (tail, room, moved) = (tail.wrapping_add(taken), room - taken, moved + 1);
    }
    post.advance(tail, moved);
    let _ = view.store(word::CQ_TAIL, tail);
    tail != before
}

/// Adds `count` to one of the program's eventfds, unless the write would block. A blocking eventfd near its maximum
/// would block the write, whereas the kernel's own signal saturates.
pub fn signal(eventfd: i32, count: u64) {
    if Sys::poll_now(eventfd, libc::POLLOUT as u16) != Ok(0) {
        syscall(libc::SYS_write, [eventfd as usize, &raw const count as usize, 8, 0, 0, 0]);
    }
}

/// The number of CQ entries that messages kept for the ring's owner may need.
#[inline]
fn entries_left(ring: &Ring, view: &View) -> u32 {
    if !ring.left.any(Left::MESSAGES) {
        return 0;
    }
    // A CQE of 32 bytes takes two entries, and may leave one free.
    let most = if view.layout().mixed { 3 } else { 1 };
    most * ring.messages.number() as u32
}

impl Ring {
    /// Makes CQEs set this ring's descriptor readable from now on, for a request of the ring `by` that watches it. `by`
    /// is this ring's own number if the program watches. If another thread holds this ring, its next post finds the
    /// number: two rings are never locked in turn.
    pub fn add_watcher_from_elsewhere(&'static self, edge_triggered: bool, by: i32) {
        self.polled_by_ring.store(by, Ordering::Relaxed);
        if let Some(mut guard) = self.try_lock() {
            guard.add_watcher(edge_triggered);
        }
    }
}

impl RingGuard {
    /// Adds a CQE to the batch.
    #[inline(always)] // a call costs as much as this does
    pub fn post(&mut self, cqe: Cqe, poster: Poster) {
        if self.batch.is_full() {
            self.flush();
        }
        let place = self.batch.add(cqe);
        self.batch.signals.add(poster);
        self.queue.count();
        self.record(|it| it.posted(place));
    }

    /// Posts a CQE of 32 bytes, on a ring that has such CQEs, as a batch of its own. `IORING_CQE_F_32` marks the CQE
    /// only on rings that mix sizes (`IORING_SETUP_CQE_MIXED`). Source: `io_req_set_res32` in io_uring/io_uring.h.
    #[cold]
    pub fn post_large(&mut self, mut cqe: Cqe, extra: [u64; 2], poster: Poster) {
        self.flush();
        if !self.memory.view.layout().mixed {
            cqe.flags &= !IORING_CQE_F_32;
        }
        self.post(cqe, poster);
        (self.batch.limit, self.batch.extra) = (1, extra);
        if self.memory.view.is_double(&cqe) {
            self.queue.count(); // TIMEOUTs count entries
        }
    }

    /// Prepares for a CQE that a core other than the program's writes: see [`View::expect_write`].
    #[inline]
    pub fn expect_post(&self) {
        self.memory.view.expect_write(self.control.posted());
    }

    /// Posts a CQE that another ring sent. `IORING_CQE_F_32` asks for a CQE of 32 bytes on a ring that mixes sizes.
    #[inline]
    pub fn post_message(&mut self, cqe: Cqe) {
        self.spin.count_message();
        match self.memory.view.is_double(&cqe) {
            true => self.post_large(cqe, [0; 2], Poster::Each),
            false => self.post(cqe, Poster::Each),
        }
    }

    /// Posts the notification of a request. `flags` are those of [`crate::op::Op::cqe_flags`].
    #[cold]
    pub fn post_notification(&mut self, user_data: u64, flags: u32) {
        let res = (flags & IORING_NOTIF_USAGE_ZC_COPIED) as i32;
        self.post(Cqe { user_data, res, flags: IORING_CQE_F_NOTIF }, Poster::Task);
    }

    /// Records that the CQE just posted belongs to a TIMEOUT.
    pub fn count_timeout(&mut self) {
        self.batch.timeouts += 1;
        self.queue.uncount();
    }

    /// Ends every wait, because a TIMEOUT has fired that posts no CQE (IOSQE_CQE_SKIP_SUCCESS).
    #[cold]
    pub fn end_waits(&mut self) {
        let post = self.control.lock_post();
        post.waiters().timeouts.fetch_add(1, Ordering::Relaxed);
        let wake = post.waiters().should_wake(|| post.cq_total(), 1);
        drop(post);
        if wake {
            self.wake();
        }
    }

    /// Copies the batch to the CQ and wakes the waiters that it satisfies.
    #[inline]
    pub fn flush(&mut self) {
        while self.batch.count != 0 {
            if !self.flush_plain() {
                self.flush_batch::<false>();
            }
            if self.queue.is_counted() {
                self.fire_counting();
            }
        }
    }

    /// Flushes the batch to the backlog, as if the CQ were `FULL`. Wakes all waiters, so that one of them moves it to
    /// the CQ.
    #[cold]
    pub fn flush_to_backlog(&mut self) {
        self.flush_batch::<true>();
        self.control.lock_post().waiters().bump();
        self.wake();
    }

    /// Copies the batch to the CQ in the common case: the whole batch fits, and no thread has to be notified. Returns
    /// false in all other cases, without having done anything.
    #[inline(never)] // each place that posts would pay for its registers
    fn flush_plain(&mut self) -> bool {
        let is_polled_by_ring = self.ring.polled_by_ring.load(Ordering::Relaxed) >= 0;
        let State { batch, control, memory, spill, records, recorder, eventfd, aio, life, .. } = &mut **self;
        let view = &memory.view;
        let is_watched = recorder.is_some() | eventfd.is_some() | is_polled_by_ring;
        let goes_elsewhere = aio.is_some() | (*life == Life::Abandoned) | !spill.is_empty();
        if is_watched | goes_elsewhere | !batch.is_plain() | !view.accepts_runs() {
            return false;
        }
        let header = control.header();
        let mut post = control.lock_post();
        point(Point::Post);
        let watched = header.waiters.waiting.load(Ordering::Relaxed) | header.watched.load(Ordering::Relaxed);
        let tail = post.cq_tail();
        if (watched | header.shared.load(Ordering::Relaxed) | post.backlog()) != 0
            || batch.room(view, tail, false) < batch.count as u32
        {
            return false;
        }
        let tail = batch.write_run(control, view, tail);
        post.advance(tail, 0);
        view.store_mapped(word::CQ_TAIL, tail);
        point(Point::Posted);
        if batch.ended_count != 0 {
            batch.free_ended(control, records);
        }
        drop(post);
        batch.begin_anew();
        true
    }

    fn flush_batch<const FULL: bool>(&mut self) {
        if self.is_abandoned() | self.is_context() {
            return self.flush_elsewhere();
        }
        let ring = self.ring();
        let State { batch, control, memory, spill, queue, records, recorder, .. } = &mut **self;
        let view = &memory.view;
        let mut post = control.lock_post();
        point(Point::Post);
        let tail = post.cq_tail();
        let room = batch.room(view, tail, control.header().shared.load(Ordering::Relaxed) != 0);
        let is_after = FULL | (post.backlog() != 0) | !spill.is_empty();
        let (room, before) = (if is_after { 0 } else { room }, tail);
        let (tail, overflowed) = batch.place(&mut post, view, (tail, room), queue);
        post.advance(tail, 0);
        let _ = view.store(word::CQ_TAIL, tail);
        point(Point::Posted);
        if overflowed != 0 {
            batch.push_to_backlog(&mut post, spill.is_empty());
        }
        let timeouts = core::mem::take(&mut batch.timeouts);
        if timeouts != 0 {
            control.header().waiters.timeouts.fetch_add(timeouts, Ordering::Relaxed);
        }
        let left = || u64::from(entries_left(ring, view));
        let wake = post.waiters().should_wake(|| post.cq_total() + left(), timeouts);
        if batch.ended_count != 0 {
            batch.free_ended(control, records);
        }
        if overflowed != 0 {
            // Under the post lock, as in `flush_overflow`: another process must not clear the bit that this process has
            // just set.
            let _ = view.change_bits(word::SQ_FLAGS, IORING_SQ_CQ_OVERFLOW, 0);
        }
        drop(post);
        if overflowed != 0 {
            for cqe in batch.waiting() {
                spill.push((*cqe, batch.extra));
            }
            stats::stats().overflows.fetch_add(overflowed as u64, Ordering::Relaxed);
        }
        if let Some(recorder) = recorder {
            recorder.complete(&batch.cqes[..batch.count], batch.count - overflowed);
        }
        let signals = batch.begin_anew();
        if wake {
            self.wake();
        }
        self.wake_watchers(signals, tail != before);
    }

    /// Handles the batch of an abandoned ring or of a Linux AIO context.
    #[cold]
    fn flush_elsewhere(&mut self) {
        match self.is_abandoned() {
            true => self.discard_batch(),
            false => self.flush_events(),
        }
    }

    /// Drops the CQEs: no thread can read them, and the program may by now use the ring's memory for something else.
    #[cold]
    fn discard_batch(&mut self) {
        let state = &mut **self;
        state.batch.clear(&state.control, &mut state.records);
    }

    /// Moves CQEs from the spill and the backlog to the CQ while there is room. The kernel does so when the program
    /// asks for events.
    #[inline]
    pub fn flush_overflow(&mut self) {
        // If no other process shares the ring, no other process can add to the backlog after this check.
        if self.is_shared() || self.has_own_backlog() {
            self.move_overflow();
        }
    }

    #[cold]
    fn move_overflow(&mut self) {
        let control = self.control;
        let view = self.memory.view;
        let state = &mut **self;
        let mut post = control.lock_post();
        let stays = || state.chaos.as_ref().is_some_and(|chaos| chaos.keeps_backlog);
        if (post.backlog() == 0 && state.spill.is_empty()) || stays() {
            return;
        }
        let mut has_posted = false;
        loop {
            while let Some((cqe, extra)) = state.spill.front() {
                if !post.push_backlog(cqe, extra) {
                    break;
                }
                state.spill.pop();
            }
            if !move_backlog(&mut post, &view) {
                break;
            }
            has_posted = true;
        }
        let empty = post.backlog() == 0 && state.spill.is_empty();
        let wake = post.waiters().should_wake(|| post.cq_total(), 0);
        if empty {
            let _ = view.change_bits(word::SQ_FLAGS, 0, IORING_SQ_CQ_OVERFLOW);
        }
        drop(post);
        if wake {
            self.wake();
        }
        if has_posted && self.eventfd.is_some() {
            self.signal_eventfd(1, 0);
        }
    }

    /// Signals the registered eventfd if CQEs were added to the CQ (`io_eventfd_signal` in io_uring/eventfd.c). Also
    /// wakes threads that poll the ring's descriptor.
    #[inline]
    fn wake_watchers(&mut self, signals: Signals, has_posted: bool) {
        if has_posted && self.eventfd.is_some() {
            // With IORING_SETUP_DEFER_TASKRUN the owner posts all completions together.
            let Signals { together, alone, by_worker } = signals;
            match self.ring().defers() {
                true => self.signal_eventfd(1, 0),
                false => self.signal_eventfd(u32::from(together != 0) + alone + by_worker, by_worker),
            }
        }
        self.make_readable_if_watched();
    }

    /// Notifies the registered eventfd and the descriptor's watchers of work that is not posted yet. In the kernel a
    /// worker or the source of readiness signals when it brings such work.
    fn wake_watchers_for_work(&mut self) {
        if self.eventfd.is_some() {
            self.signal_eventfd(1, self.ring().left.any(Left::RESULTS).into());
        }
        self.make_readable_if_watched();
    }

    #[inline]
    fn make_readable_if_watched(&mut self) {
        if self.ring().polled_by_ring.load(Ordering::Relaxed) >= 0 {
            self.control.header().watched.fetch_or(WATCHED_EDGE, Ordering::Relaxed);
            self.after_release.add(AfterRelease::RING_THAT_POLLS);
        }
        if self.control.header().watched.load(Ordering::Relaxed) != 0 {
            self.make_readable();
        }
    }

    /// Signals the registered eventfd `count` times. If only workers' completions count
    /// (`IORING_REGISTER_EVENTFD_ASYNC`), signals it `by_worker` times.
    #[cold]
    fn signal_eventfd(&mut self, count: u32, by_worker: u32) {
        let Some((eventfd, only_by_workers)) = self.eventfd else { return };
        let count = if only_by_workers { by_worker } else { count };
        let disabled = self.memory.view.load(word::CQ_FLAGS).unwrap_or(0) & IORING_CQ_EVENTFD_DISABLED != 0;
        if !disabled && count != 0 {
            signal(eventfd, count.into());
            self.signalled = true;
        }
    }

    /// Makes the ring's descriptor readable. Edge-triggered watchers get a fresh edge, level-triggered watchers a byte
    /// that stays.
    #[cold]
    pub fn make_readable(&mut self) {
        let header = self.control.header();
        let pending = header.byte_pending.swap(1, Ordering::Relaxed) != 0;
        if pending && header.watched.load(Ordering::Relaxed) & WATCHED_EDGE == 0 {
            return;
        }
        if pending {
            self.drain_descriptor();
            self.control.header().byte_pending.store(1, Ordering::Relaxed);
        }
        self.ends.send_byte();
    }

    /// Takes the readiness bytes out of the ring's descriptor if the CQ is empty, so that level-triggered watchers do
    /// not spin.
    #[inline]
    pub fn update_readability(&mut self) {
        if self.control.header().byte_pending.load(Ordering::Relaxed) != 0 {
            self.take_bytes_if_empty();
        }
    }

    #[cold]
    fn take_bytes_if_empty(&mut self) {
        let (tail, backlog) = self.posted();
        let waiting = self.ring().driver.is_announced() || self.ring().has_arrived();
        if self.cq_ready(tail) == Ok(0) && backlog == 0 && !waiting {
            self.drain_descriptor();
            // Another process may have posted since the check, and this call may have taken that process's byte.
            if self.is_shared() && self.cq_ready(self.posted().0) != Ok(0) {
                self.make_readable();
            }
        }
    }

    /// True if one more CQE would find room in the CQ.
    pub fn has_room(&self) -> bool {
        let (tail, backlog) = self.posted();
        let entries = self.memory.view.layout().cq_entries;
        let has_place = |ready: u32| ready.saturating_add(self.batch.count as u32) < entries;
        backlog == 0 && self.spill.is_empty() && self.cq_ready(tail).is_ok_and(has_place)
    }

    /// True if CQEs wait for room in the CQ. Only valid on a ring that no other process shares.
    #[inline]
    pub fn has_own_backlog(&self) -> bool {
        !self.spill.is_empty() || self.control.backlog() != 0
    }

    /// The CQ's tail, and the number of CQEs in the backlog.
    #[inline]
    fn posted(&self) -> (u32, u32) {
        let post = self.control.lock_post();
        (post.cq_tail(), post.backlog())
    }

    fn drain_descriptor(&mut self) {
        let fd = self.ring().fd.load(Ordering::Relaxed);
        // The number may have been reused: only take bytes out of the ring's own descriptor.
        if descriptors::cookie_of(fd) != Some(self.cookie) {
            return;
        }
        self.control.header().byte_pending.store(0, Ordering::Relaxed);
        self.ends.take_bytes(fd);
    }

    /// Starts to signal the descriptor's watchers. The descriptor is readable at once if the CQ is not empty. It is
    /// also readable at once if there is unannounced work for the ring's owner (`io_uring_poll` in
    /// io_uring/io_uring.c).
    pub fn add_watcher(&mut self, edge_triggered: bool) {
        let bit = if edge_triggered { WATCHED_EDGE } else { WATCHED_LEVEL };
        self.control.header().watched.fetch_or(bit, Ordering::Relaxed);
        let (tail, backlog) = self.posted();
        // On other rings the holder posts arrivals, and only then is it known whether they have a CQE.
        let announced = self.ring().driver.is_announced() || (self.ring().defers() && self.ring().has_arrived());
        if announced || backlog != 0 || self.cq_ready(tail).is_ok_and(|ready| ready != 0) {
            self.make_readable();
        } else {
            self.update_readability(); // the program may have emptied the CQ without a call
            if self.ring().defers() && self.has_pending() && self.has_work_for_owner() {
                self.announce_work();
            }
        }
        self.call_helper();
    }

    /// True if requests of a deferred ring can continue: their events have arrived or their time has come. False if an
    /// attempt is postponed, since its result is unknown until the owner makes it.
    pub fn has_work_for_owner(&mut self) -> bool {
        if self.poll_set.has_postponed() {
            return false;
        }
        self.verify();
        let ready = self.poll_set.epoll().is_some_and(|epoll| Sys::poll_now(epoll, libc::POLLIN as u16) != Ok(0));
        ready || self.timers.next_ns() == Some(0) || unwatched::is_ready(self)
    }

    /// Announces that there is work, on a ring whose completions wait until the program asks for them
    /// (`IORING_SETUP_DEFER_TASKRUN`).
    pub fn announce_work(&mut self) {
        self.ring().driver.set_announced(true);
        if self.ring().has(anyring_abi::IORING_SETUP_TASKRUN_FLAG) {
            let _ = self.memory.view.change_bits(word::SQ_FLAGS, IORING_SQ_TASKRUN, 0);
        }
        // If only messages are left, they wake the owner once there are as many as it waits for (`IOU_F_TWQ_LAZY_WAKE`
        // in the kernel). A worker's results may be any number of CQEs. Another process that posts does not count the
        // messages that are left here.
        let left = entries_left(self.ring(), &self.memory.view);
        let only_messages = left != 0 && !self.ring().left.any(Left::RESULTS) && !self.is_shared();
        let control = self.control;
        let post = control.lock_post();
        let tail = post.cq_total() + u64::from(left);
        let wake = !only_messages || post.waiters().are_satisfied_by(tail);
        if wake {
            post.waiters().bump();
        }
        drop(post);
        if wake {
            self.wake();
        }
        self.wake_watchers_for_work();
    }

    /// Withdraws the announcement of deferred work (IORING_SQ_TASKRUN), once the work is done.
    pub fn clear_announcement(&mut self) {
        self.ring().driver.set_announced(false); // the helper is called again if this call leaves something pending
        if self.ring().has(anyring_abi::IORING_SETUP_TASKRUN_FLAG) {
            let _ = self.memory.view.change_bits(word::SQ_FLAGS, 0, IORING_SQ_TASKRUN);
        }
    }
}

impl RingGuard {
    /// The CQ's tail.
    pub fn cq_tail(&self) -> u32 {
        self.control.lock_post().cq_tail()
    }

    /// The CQ's tail as a count that does not wrap at 32 bits. The targets of waits are such counts.
    pub fn cq_total(&self) -> u64 {
        self.control.lock_post().cq_total()
    }

    pub(crate) fn cq_is_empty(&self) -> bool {
        self.cq_ready(self.cq_tail()) == Ok(0)
    }
}

impl RingGuard {
    /// The number of entries that the program has consumed: the head of the CQ, or of the completion ring.
    pub fn consumed(&self) -> Result<u32, Errno> {
        match &self.aio {
            Some(context) => context.completions.head(),
            None => self.memory.view.load(word::CQ_HEAD),
        }
    }

    /// Copies the batch to the completion ring of a Linux AIO context and wakes its waiters, as `flush` does for a CQ.
    /// There is always room: a request is accepted only if there is a place for its event.
    #[inline(never)] // otherwise it would become part of `flush`, and burden rings
    pub fn flush_events(&mut self) {
        let control = self.control;
        let state = &mut **self;
        let Some(context) = &mut state.aio else { return };
        let mut signals: Vec<(Arc<FixedFile>, u64)> = Vec::new();
        let mut post = control.lock_post();
        let mut tail = post.cq_tail();
        while let Some(cqe) = state.batch.next_to_post() {
            let Some(pending) = context.give_place(cqe.user_data) else { continue };
            let (data, obj) = (pending.data, pending.obj);
            context.completions.push(&IoEvent { data, obj, res: cqe.res.into(), res2: 0 });
            tail = tail.wrapping_add(1);
            match (pending.eventfd, signals.last_mut()) {
                (Some(eventfd), Some((last, count))) if Arc::ptr_eq(&eventfd, last) => *count += 1,
                (Some(eventfd), _) => signals.push((eventfd, 1)),
                (None, _) => {}
            }
        }
        post.advance(tail, 0);
        let wake = post.waiters().should_wake(|| post.cq_total(), 0);
        let count = state.batch.clear(&control, &mut state.records);
        drop(post);
        if let Some(recorder) = &mut state.recorder {
            recorder.complete(state.batch.cleared(count), count);
        }
        if wake {
            self.wake();
        }
        for (eventfd, count) in signals {
            signal(eventfd.fd, count);
        }
    }
}
