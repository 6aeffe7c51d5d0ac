//! Requests that choose a buffer (IOSQE_BUFFER_SELECT), and multishot requests. Source: io_uring/kbuf.c, net.c and
//! rw.c.
//!
//! A buffer is chosen for each attempt, and given back if the attempt found nothing: a waiting request ties up no
//! buffer. The buffer is consumed (committed) when it was used, when a transfer that continues has begun to fill it, or
//! when a worker gets it. A bundle (IORING_RECVSEND_BUNDLE) chooses as many buffers as it has data for.

use crate::issue::chaos;
use crate::mutation::{mutated, Mutation};
use crate::op::net::socket_option;
use crate::op::rw::Rw;
use crate::op::selection::{used_buffers, without_buffer, Attempted};
use crate::op::{Direction, Op, Skip, Verdict};
use crate::os::version;
use crate::request::{Id, Polling, State};
use crate::resource::buf_ring::Choice;
use crate::ring::batch::Poster;
use crate::ring::RingGuard;
use crate::{descriptors, stats, Errno};
use anyring_abi::{Cqe, IORING_CQE_F_32, IORING_CQE_F_MORE, IOSQE_ASYNC, IOSQE_BUFFER_SELECT};
use core::ops::ControlFlow;

impl RingGuard {
    /// Makes one nonblocking attempt of a request that chooses a buffer. A bundle makes a second attempt for the data
    /// that the first has left.
    pub fn issue_selecting(&mut self, op: &mut Op, fd: i32) -> Verdict {
        let submitted = op.take_submitted();
        if fd < 0 {
            return Verdict::error(Errno::BADF);
        }
        loop {
            if let Err(error) = self.choose_buffers(op, true) {
                return without_buffer(op, fd, submitted, error);
            }
            let verdict = op.issue_on(self, fd);
            if op.was_short_receive() {
                self.poll_set.record_short_receive(fd);
            }
            if let ControlFlow::Break(verdict) = self.finish_buffers(op, fd, verdict, true) {
                if submitted && matches!(verdict, Verdict::Shot { .. }) {
                    op.shoots_once(); // data that comes later does not belong to the submission
                }
                return verdict;
            }
        }
    }

    /// Chooses a buffer, unless the request holds one. With `several` a bundle may take more than one.
    fn choose_buffers(&mut self, op: &mut Op, several: bool) -> Result<(), Errno> {
        let (sends, bundle) = (op.sends(), op.is_bundle());
        let Some(selection) = op.selection().filter(|selection| selection.held.is_none()) else { return Ok(()) };
        let bundle = bundle && several;
        let mut wanted = selection.wanted;
        if bundle && !sends {
            if selection.gathered.is_some() || (wanted == 0 && selection.unread > 1) {
                wanted = selection.unread;
            }
            if let Some(limit) = selection.limit.map(|limit| limit.get() as usize) {
                wanted = if wanted == 0 { limit } else { wanted.min(limit) };
            }
        } else if sends && wanted == 0 {
            wanted = i32::MAX as usize;
        }
        let choice = Choice { wanted, sends, bundle, before: selection.most_ranges };
        let mut held = self.groups.choose(selection.group, choice, &mut selection.ranges)?;
        selection.follows_shot = false;
        selection.most_ranges = selection.most_ranges.max(selection.ranges.len() as u16);
        if sends {
            // The buffer is not given back: data that waits to be sent is tied up anyway.
            let (bytes, count) = (held.bytes, selection.ranges.len() as u16);
            self.groups.commit(selection.group, &mut held, bytes, count);
        }
        selection.held = Some(held);
        op.use_buffers();
        Ok(())
    }

    /// Gives back the buffer that the request holds, if any: the kernel would have chosen none.
    fn give_back_held(&mut self, op: &mut Op) {
        let Some(selection) = op.selection() else { return };
        if let Some(mut held) = selection.held.take() {
            self.groups.uncommit(selection.group, &mut held);
            self.groups.give_back(selection.group, held);
        }
    }

    /// Makes a request that goes to a worker keep its buffer, unless its file is refused. An attempt may have chosen
    /// the buffer before, without learning that the file is refused.
    pub fn check_and_keep_buffer(&mut self, id: Id, op: &mut Op, fd: i32) -> Result<(), Errno> {
        if let Err(error) = check_before_choosing(op, fd) {
            self.give_back_held(op);
            return Err(error);
        }
        self.keep_buffer(id, op)
    }

    /// Makes a request that goes to a worker keep its buffer. Its CQE names the buffer even if the request fails.
    pub fn keep_buffer(&mut self, id: Id, op: &mut Op) -> Result<(), Errno> {
        self.choose_buffers(op, false)?;
        if let Some(selection) = op.selection() {
            let group = selection.group;
            if let Some(held) = &mut selection.held {
                let bytes = held.bytes;
                self.groups.commit(group, held, bytes, 1);
                self.slab[id].cqe_flags = held.cqe_flags();
            }
        }
        Ok(())
    }

    /// Records the buffer that a waiting request has begun to use, if any, for its CQE.
    pub fn record_held_buffer(&mut self, id: Id) {
        let request = &mut self.slab[id];
        if request.flags & IOSQE_BUFFER_SELECT != 0 {
            let held = request.op.selection().and_then(|selection| selection.held);
            request.cqe_flags = held.map_or(0, |held| held.cqe_flags());
        }
    }

    /// Consumes the buffers or gives them back after an attempt, and puts their flags into the verdict. With `appends`,
    /// a bundle continues to receive what its socket has left.
    fn finish_buffers(&mut self, op: &mut Op, fd: i32, verdict: Verdict, appends: bool) -> ControlFlow<Verdict> {
        let (transferred, multishot, reads) = (op.transferred(), op.is_multishot(), op.rw().is_some());
        let sends = op.sends();
        if is_refused_before_choosing(op, fd, verdict) {
            self.give_back_held(op);
            return ControlFlow::Break(verdict);
        }
        let Some(selection) = op.selection() else { return ControlFlow::Break(verdict) };
        let group = selection.group;
        let Some(mut held) = selection.held.take() else { return ControlFlow::Break(verdict) };
        if multishot && reads {
            // In the kernel a READ_MULTISHOT has no worker, and takes its buffer after the read (`io_read_mshot`).
            self.groups.uncommit(group, &mut held);
        }
        let nothing = transferred == 0 && !held.committed && (multishot || !reads || !held.listed);
        let attempted = match Attempted::of(verdict) {
            Some(attempted) => attempted,
            // Another reader took the data that was left for the second attempt.
            None if nothing && selection.gathered.is_some() => Attempted { result: 0, failed: false, flags: 0 },
            None if nothing && !matches!(verdict, Verdict::NeedsWorker(_)) => {
                self.groups.give_back(group, held);
                return ControlFlow::Break(verdict);
            }
            None => {
                // A READ keeps a buffer from PROVIDE_BUFFERS while it waits. io_uring/rw.c gives back only the buffers
                // of buffer rings.
                if transferred != 0 || held.listed {
                    let bytes = if reads { held.bytes } else { transferred };
                    self.groups.commit(group, &mut held, bytes, used_buffers(&selection.ranges, bytes));
                }
                selection.held = Some(held);
                return ControlFlow::Break(verdict);
            }
        };
        let result = attempted.result;
        // A read from a file that cannot be polled takes its buffer before it reads.
        let matters = reads && !multishot && (result < 0 || self.groups.is_incremental(group));
        let at_once = matters && crate::op::rw::is_file(fd);
        let used = match reads && !multishot {
            true => result >= 0 || held.listed || at_once,
            false => result > 0 || sends,
        };
        if !used && (!held.committed || held.listed) {
            self.groups.give_back(group, held);
            let gathered = selection.gathered.take();
            let answer = |(result, flags)| Attempted { result: result as i32, flags, ..attempted }.verdict();
            return ControlFlow::Break(gathered.map_or(attempted.verdict(), answer));
        }
        if self.chaos.is_some() {
            crate::chaos::filled(&selection.ranges, result.max(0) as usize);
        }
        let mut bytes = if at_once { held.bytes } else { result.max(0) as usize };
        if bytes > held.bytes && version::answers_as_7_3() {
            bytes = held.bytes; // MSG_TRUNC counts what was cut off
        }
        self.groups.commit(group, &mut held, bytes, used_buffers(&selection.ranges, bytes));
        let attempted = Attempted { flags: held.cqe_flags() | attempted.flags, ..attempted };
        op.finish_attempt(attempted, held, appends)
    }

    /// Consumes the buffers of a request that a worker brought back, or gives them back.
    pub(crate) fn finish_arrived(&mut self, id: Id, verdict: Verdict) -> Verdict {
        if self.slab[id].flags & IOSQE_BUFFER_SELECT == 0 {
            return verdict;
        }
        // The worker's buffer is committed, so the file makes no difference.
        self.with_op(id, |guard, op| match guard.finish_buffers(op, -1, verdict, false) {
            ControlFlow::Break(verdict) => verdict,
            ControlFlow::Continue(()) => verdict, // happens with `appends` only
        })
    }

    /// Posts a result of a multishot request that continues. False if the CQ is full or the ring broken: then the
    /// request ends with this result.
    #[must_use]
    pub fn shot(&mut self, id: Id, result: i32, flags: u32) -> bool {
        if !self.has_room() || self.is_broken() || (self.chaos.is_some() && chaos::ends_multishot(self, id)) {
            return false;
        }
        let request = &self.slab[id];
        let (user_data, opcode, path) = (request.user_data, request.opcode, request.path);
        stats::completed(opcode, path, result);
        self.record_of(id, |it| it.shoots());
        let more = if mutated(Mutation::ShotWithoutMore) { 0 } else { IORING_CQE_F_MORE };
        let cqe = Cqe { user_data, res: result, flags: flags | more };
        match flags & IORING_CQE_F_32 != 0 {
            true => self.post_large(cqe, self.slab[id].op.extra().unwrap_or_default(), Poster::Task),
            false => self.post(cqe, Poster::Task),
        }
        if self.chaos.is_some() {
            chaos::after_shot(self, id, cqe);
        }
        true
    }

    /// Posts a multishot request's result and attempts the next, until the file is not ready or the request ends.
    pub fn shoot(&mut self, id: Id, mut result: i32, mut flags: u32) {
        let request = &mut self.slab[id];
        let submitted = request.op.take_submitted();
        let rounds = if submitted { 0 } else { request.op.shots_together() };
        // From its first result on, no worker arms the request: see `arm_link_timeout`.
        request.flags &= !IOSQE_ASYNC;
        for _ in 0..rounds {
            if !self.shot(id, result, flags) {
                self.slab[id].cqe_flags = flags;
                return self.finish(id, result, false);
            }
            self.slab[id].cqe_flags = 0;
            if self.is_armed_drained(id) {
                return;
            }
            let verdict = match self.attempt_again(id) {
                Verdict::Descriptor(fd) => self.install_descriptor(id, fd),
                verdict => verdict,
            };
            match verdict {
                Verdict::Shot { result: next, flags: with } => (result, flags) = (next, with),
                verdict => return self.follow(id, verdict),
            }
        }
        if !self.shot(id, result, flags) {
            self.slab[id].cqe_flags = flags;
            return self.finish(id, result, false);
        }
        if submitted && self.slab[id].op.rw().is_some_and(Rw::may_not_wait) {
            return self.follow(id, Verdict::error(Errno::AGAIN)); // it is not armed either (`io_queue_async`)
        }
        if !submitted && self.is_armed_drained(id) {
            return;
        }
        // The file may have more data: an event will report it.
        self.slab[id].op.forget_transferred(); // its CQE is posted
        self.follow(id, Verdict::WouldBlock(Direction::Read));
        if let Some(State::Polling(Polling { fd, .. })) = self.slab.get(id).map(|request| request.state()) {
            let fd = *fd;
            self.poll_set.renew(fd);
        }
        self.poll_set.due.rest |= submitted;
    }
}

impl RingGuard {
    /// Arms a multishot request whose last attempt took all the data that there was. False if there may be more.
    fn is_armed_drained(&mut self, id: Id) -> bool {
        let has_drained = self.has_drained(id);
        if has_drained {
            self.slab[id].op.forget_transferred(); // its CQE is posted
            self.follow(id, Verdict::Skipped(Direction::Read, Skip::KnownEmpty));
        }
        has_drained
    }
}

/// Fails for a file that the kernel refuses before it chooses a buffer. Such a file is not open, has O_PATH, or is no
/// socket although the operation needs one.
fn check_before_choosing(op: &Op, fd: i32) -> Result<(), Errno> {
    if descriptors::status_flags(fd)? & libc::O_PATH != 0 {
        return Err(Errno::BADF);
    }
    match op.rw() {
        Some(_) => Ok(()),
        None => socket_option(fd, libc::SO_TYPE).map(drop),
    }
}

/// True if an attempt failed for its file, and the kernel would have refused that file before it chose a buffer.
fn is_refused_before_choosing(op: &Op, fd: i32, verdict: Verdict) -> bool {
    let may_be = verdict == Verdict::error(Errno::BADF) || verdict == Verdict::error(Errno::NOTSOCK);
    may_be && fd >= 0 && check_before_choosing(op, fd).is_err()
}

impl crate::ring::State {
    /// True if the last attempt took all the data that there was, and the request waits for more.
    fn has_drained(&self, id: Id) -> bool {
        let request = &self.slab[id];
        let fd = request.target.number().filter(|_| request.op.waits_for() == Some(Direction::Read));
        fd.is_some_and(|fd| self.poll_set.drained(fd))
    }

    /// True if an attempt would find a buffer, or needs none.
    pub fn finds_buffer(&self, op: &mut Op) -> bool {
        op.selection().is_none_or(|selection| selection.held.is_some() || self.groups.has_buffers(selection.group))
    }

    /// True if a request may be armed without an attempt, as if an attempt had found nothing. The attempt must not end
    /// for want of a buffer. Nor must it keep a buffer, as the attempt of a READ keeps a provided buffer (see
    /// `finish_buffers`).
    pub fn may_wait_unattempted(&self, op: &mut Op) -> bool {
        let reads = op.rw().is_some() && !op.is_multishot();
        let keeps = op.selection().is_some_and(|it| reads && it.held.is_none() && self.groups.is_listed(it.group));
        !keeps && self.finds_buffer(op)
    }
}
