//! The next step of a request, planned from its arguments and from known facts before any attempt. This module decides
//! whether to skip an attempt, and gives the reason ([`Skip`]). For polls of Linux AIO, `aio/submit.rs` decides
//! that.
//!
//! Called with the ring's lock held, like everything that issues requests.

use crate::descriptors;
use crate::memory::layout::word;
use crate::op::rw::Rw;
use crate::op::{row, Direction, FileUse, Op, Operation, Punt, Skip, Verdict};
use crate::poll::{Medium, PollSet};
use crate::request::{Id, Request, Target};
use crate::ring::State;
use crate::stats::Path;
use crate::thread::tables;
use crate::wq::{self, Approach};
use crate::Errno;
use crate::{identity, os::owner};
use anyring_abi::{Opcode, IOSQE_ASYNC};
use core::sync::atomic::Ordering;

/// The next step of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// An attempt that does not wait.
    Attempt,
    /// The request waits for readiness without an attempt, for this reason.
    Wait(Direction, Skip),
    /// A worker makes the request, for this reason.
    Worker(Approach, Punt),
    /// The kernel's AIO makes the request.
    Device,
    /// The request is refused.
    Refuse(Errno),
}

impl State {
    /// Decides whether a request whose turn has come is attempted by the holder of the ring, or given to a worker.
    pub(super) fn plan_turn(&mut self, id: Id) -> Step {
        let request = &self.slab[id];
        let polls_first = request.op.will_poll_first();
        if request.is_others() && !polls_first {
            return Step::Worker(Approach::AttemptFirst, Punt::Identity);
        }
        let Some(row) = row(request.opcode).filter(|row| row.on_worker) else { return Step::Attempt };
        let is_async = request.flags & IOSQE_ASYNC != 0;
        if (is_async || request.in_worker) && request.op.sends_bundle() {
            // The kernel's workers make no request that posts several CQEs (`io_wq_submit_work`).
            return Step::Refuse(Errno::CANCELED);
        }
        // The kernel's worker only arms multishot and POLL_FIRST requests.
        let makes = !request.op.is_multishot() && !polls_first;
        match is_async && request.path == Path::Inline && makes {
            false => Step::Attempt,
            true if self.is_made_at_once(id) => Step::Attempt,
            // Without a file there is nothing to poll. For example, the open of a FIFO waits on the worker.
            true if row.file == FileUse::None => Step::Worker(Approach::Plain, Punt::AskedFor),
            true => Step::Worker(Approach::AttemptFirst, Punt::AskedFor),
        }
    }

    /// True if a request with IOSQE_ASYNC is made without a worker.
    fn is_made_at_once(&mut self, id: Id) -> bool {
        let Request { op, target, .. } = &self.slab[id];
        match self.number_of(target) {
            Ok(fd) => needs_no_worker(&mut self.poll_set, op, fd),
            Err(_) => matches!(op, Op::Nop(_)),
        }
    }

    /// True if the engine makes a transfer with IOSQE_ASYNC, just submitted, like one without that flag. Always false
    /// while a tracer records, since a traced request with this flag gets a slot.
    #[cold]
    pub(crate) fn ignores_async(&mut self, op: &Op, target: &Target) -> bool {
        let number = self.number_of(target).ok().filter(|_| op.rw().is_some() && self.recorder.is_none());
        number.is_some_and(|fd| needs_no_worker(&mut self.poll_set, op, fd))
    }

    /// Returns how a worker makes a request that cannot be attempted without waiting.
    pub(crate) fn plain_approach(&mut self, id: Id) -> Approach {
        /// About the most bytes that can be copied in the time that a worker takes to wake.
        const SMALL_BYTES: u64 = 64 << 10;
        let request = &self.slab[id];
        let Some(rw) = request.op.rw() else { return Approach::Plain };
        let is_small_read = rw.reads_at().is_some() && !rw.selects() && rw.total() <= SMALL_BYTES;
        let number = self.number_of(&request.target).ok().filter(|_| is_small_read);
        match number {
            Some(fd) if self.poll_set.medium(fd) == Medium::Cache => Approach::Quick,
            _ => Approach::Plain,
        }
    }

    /// Leaves an attempt to a thread with another identity, since the calling thread may not make it. The request is
    /// armed. Its event makes a member of the credentials pool attempt it. A file that is ready already raises the
    /// event, too.
    #[cold]
    pub(super) fn leave_to_creds_pool(&mut self, id: Id) -> Verdict {
        match self.slab[id].op.waits_for() {
            Some(direction) => Verdict::Skipped(direction, Skip::OthersIdentity),
            None => Verdict::NeedsWorker(Punt::Identity),
        }
    }

    /// Decides whether an operation on `fd` is attempted. The `first` attempt of a request is skipped if the file is
    /// known, or very likely, not to be ready.
    #[inline(always)] // for the same reason as `attempt_inline`
    pub(super) fn plan(&mut self, op: &mut Op, fd: i32, first: bool) -> Step {
        if self.iopoll.is_some() {
            if let Some(error) = self.refused_polled(op, fd) {
                return Step::Refuse(error);
            }
        }
        match op.wait_first(fd) {
            None => {}
            Some(Ok((direction, why))) => return Step::Wait(direction, why),
            Some(Err(error)) => return Step::Refuse(error),
        }
        if let Some(direction) = if first { op.waits_for() } else { None } {
            if let Some(why) = self.leaves_out(op, fd, direction) {
                return Step::Wait(direction, why);
            }
        }
        if let Some(rw) = op.rw() {
            if self.poll_set.is_in_memory(fd) && rw.reads_at().is_some() && !rw.may_not_wait() && !rw.selects() {
                return Step::Worker(Approach::Quick, Punt::NoForm);
            }
            if (rw.may_be_direct() || rw.selects()) && self.poll_set.is_direct(fd) {
                if self.goes_to_device(rw, fd) {
                    return Step::Device;
                }
                if !rw.may_not_wait() {
                    return Step::Worker(Approach::Plain, Punt::Direct);
                }
            }
        }
        Step::Attempt
    }

    /// True if a worker makes a read from the page cache, since this thread has others to make or to report. The request
    /// was just submitted, and is no part of a chain.
    #[cold]
    pub(crate) fn leaves_copy(&mut self, rw: &Rw, target: &Target) -> bool {
        // Otherwise a thread of another pool would make the read.
        let by_pool = tables::is_first() && !owner::is_another() && !identity::may_differ();
        // Otherwise the program might close the number unseen, and the worker read another file.
        let stays = matches!(target, Target::Index(_)) || descriptors::closes_are_seen();
        let Some(fd) = self.number_of(target).ok().filter(|_| by_pool && stays) else { return false };
        let is_plain =
            rw.reads_at().is_some_and(|offset| offset != u64::MAX) && !rw.selects() && !rw.may_not_wait();
        let is_copy = is_plain && !rw.is_polled() && self.iopoll.is_none() && self.poll_set.has_blocks(fd);
        if !is_copy || self.poll_set.is_direct(fd) {
            return false;
        }
        let others = self.reads_to_submit() + self.unread_cqes();
        wq::copies_in_parallel(rw.total(), others)
    }

    /// Returns the number of SQEs that follow in the SQ, if the next one is a read. A hint: the program may change them.
    fn reads_to_submit(&self) -> u32 {
        let view = self.memory.view;
        let head = self.control.header().sq_head.load(Ordering::Relaxed);
        let tail = if view.goes_by_tail() { view.load_mapped(word::SQ_TAIL) } else { head };
        let next = if tail == head { None } else { view.sqe_at(head) };
        let opcode = next.and_then(|sqe| Opcode::from_u8(sqe.opcode()));
        match opcode {
            Some(Opcode::Read | Opcode::Readv | Opcode::ReadFixed | Opcode::ReadvFixed) => {
                tail.wrapping_sub(head).min(view.layout().sq_entries)
            }
            _ => 0,
        }
    }

    /// Returns the number of CQEs that the program has not read. A hint, for the same reason.
    fn unread_cqes(&self) -> u32 {
        let view = self.memory.view;
        match (view.load(word::CQ_HEAD), view.load(word::CQ_TAIL)) {
            (Ok(head), Ok(tail)) => tail.wrapping_sub(head).min(view.layout().cq_entries),
            _ => 0,
        }
    }

    /// True if a first attempt to read is postponed. No attempt is postponed while no other request waits on the ring.
    /// A poll would then report only this request, as the sleep's own poll does. On an AIO context io_getevents(2)
    /// polls.
    #[inline]
    fn is_put_off(&mut self, fd: i32) -> bool {
        (self.poll_set.armed() != 0 || self.is_context()) && self.poll_set.postpones(fd)
    }

    /// Returns the reason for skipping a first attempt, if there is one.
    #[inline]
    fn leaves_out(&mut self, op: &mut Op, fd: i32, direction: Direction) -> Option<Skip> {
        let why = if self.poll_set.known_not_ready(fd, direction) {
            Skip::KnownEmpty
        } else if direction == Direction::Read && self.is_put_off(fd) {
            Skip::Postponed
        } else {
            return None;
        };
        if !self.may_wait_unattempted(op) {
            return None;
        }
        self.poll_set.mark_unattempted(direction);
        Some(why)
    }
}

/// True if a request with IOSQE_ASYNC on the file `fd` is made without a worker. It does not wait, and takes less time
/// than waking a worker. Writes through the page cache do need a worker: they keep their order among those that workers
/// make.
fn needs_no_worker(poll_set: &mut PollSet, op: &Op, fd: i32) -> bool {
    /// The most bytes that can be copied in a tenth of the time that a worker takes to wake.
    const SMALL_BYTES: u64 = 16 << 10;
    let rw = match op {
        Op::Nop(_) => return true,
        Op::Rw(rw) if !rw.may_not_wait() && !rw.selects() => rw,
        _ => return false,
    };
    let is_small_read = rw.reads_at().is_some() && rw.total() <= SMALL_BYTES;
    match poll_set.medium(fd) {
        Medium::Device => rw.may_be_direct(),
        Medium::Cache => is_small_read && poll_set.has_blocks(fd),
        Medium::Direct => false,
    }
}
