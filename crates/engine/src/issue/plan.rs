//! What comes next for a request, by what is asked and what is known, before anything is tried. The decision to leave an
//! attempt out is made here, and says why ([`Skip`]); only that of Linux AIO's polls is in `aio/submit.rs`.
//!
//! Called with the ring's lock, as all that issues requests.

use crate::op::{row, Direction, FileUse, Op, Operation, Punt, Skip, Verdict};
use crate::poll::Medium;
use crate::request::Id;
use crate::ring::State;
use crate::stats::Path;
use crate::wq::Approach;
use crate::Errno;
use anyring_abi::IOSQE_ASYNC;

/// What is done next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// An attempt that does not wait.
    Attempt,
    /// Nothing is tried: it waits for readiness.
    Wait(Direction, Skip),
    /// A worker takes it, and why.
    Worker(Approach, Punt),
    /// The kernel's AIO makes it.
    Device,
    /// It is refused.
    Refuse(Errno),
}

impl State {
    /// Who takes up a request whose turn has come: the holder of the ring by an attempt, or a worker.
    pub(super) fn plan_turn(&mut self, id: Id) -> Step {
        let request = &self.slab[id];
        let polls_first = request.op.will_poll_first();
        if self.is_others(id) && !polls_first {
            return Step::Worker(Approach::AttemptFirst, Punt::Identity);
        }
        let Some(row) = row(request.opcode).filter(|row| row.on_worker) else { return Step::Attempt };
        let is_async = request.flags & IOSQE_ASYNC != 0;
        if (is_async || request.in_worker) && request.op.sends_bundle() {
            // A worker of io-wq makes no request that answers several times (`io_wq_submit_work`).
            return Step::Refuse(Errno::CANCELED);
        }
        // The worker only arms multishot and POLL_FIRST requests.
        let makes = !request.op.is_multishot() && !polls_first;
        match is_async && request.path == Path::Inline && makes {
            false => Step::Attempt,
            true if self.needs_no_worker(id) => Step::Attempt,
            // Without a file there is nothing to poll: opening a FIFO, say, waits on the worker.
            true if row.file == FileUse::None => Step::Worker(Approach::Plain, Punt::AskedFor),
            true => Step::Worker(Approach::AttemptFirst, Punt::AskedFor),
        }
    }

    /// Whether a request with IOSQE_ASYNC is made without a worker all the same: nobody waits for it, and it takes less than
    /// waking a worker. Writes through the page cache have their order among those that workers make.
    fn needs_no_worker(&mut self, id: Id) -> bool {
        /// What is copied in a tenth of the time that a worker takes to wake.
        const SMALL_BYTES: u64 = 16 << 10;
        let request = &self.slab[id];
        let rw = match &request.op {
            Op::Nop(_) => return true,
            Op::Rw(rw) if !rw.may_not_wait() && !rw.selects() => rw,
            _ => return false,
        };
        let Ok(fd) = self.number_of(&request.target) else { return false };
        let is_aligned = rw.may_be_direct();
        let is_small_read = rw.reads_at().is_some() && rw.total() <= SMALL_BYTES;
        match self.poll_set.medium(fd) {
            Medium::Device => is_aligned,
            Medium::Cache => is_small_read && self.poll_set.has_blocks(fd),
            Medium::Direct => false,
        }
    }

    /// How a worker makes what cannot be attempted without waiting.
    pub(crate) fn plain_approach(&mut self, id: Id) -> Approach {
        /// What is copied in the time that a worker takes to wake, about.
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

    /// What comes of an attempt that the calling thread may not make: the event that says when there is something, of what
    /// is there already, too, has a member of the credentials pool make it.
    #[cold]
    pub(super) fn leave_to_creds_pool(&mut self, id: Id) -> Verdict {
        match self.slab[id].op.waits_for() {
            Some(direction) => Verdict::Skipped(direction, Skip::OthersIdentity),
            None => Verdict::NeedsWorker(Punt::Identity),
        }
    }

    /// Whether an attempt at an operation on `fd` is made. The `first` of a request is left out where it is known, or very
    /// likely, to find nothing.
    #[inline(always)] // as `attempt_inline`
    pub(super) fn plan(&mut self, op: &mut Op, fd: i32, first: bool) -> Step {
        if self.iopoll.is_some() {
            if let Some(error) = op.rw().and_then(|rw| self.refused_transfer(rw, fd)) {
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
            if (rw.may_be_direct() || rw.selects()) && self.poll_set.is_direct(fd) {
                if self.takes_directly(rw, fd) {
                    return Step::Device;
                }
                if !rw.may_not_wait() {
                    return Step::Worker(Approach::Plain, Punt::Direct);
                }
            }
        }
        Step::Attempt
    }

    /// Whether a first attempt to read is put off. While nothing else waits on a ring none is: a look at the poll set would tell of
    /// it alone, and the sleep's own tells that, too. Of a context it is io_getevents(2) that looks.
    #[inline]
    fn is_put_off(&mut self, fd: i32) -> bool {
        (self.poll_set.armed() != 0 || self.is_context()) && self.poll_set.postpones(fd)
    }

    /// Why a first attempt is better left out, if so.
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
        self.poll_set.note_unattempted(direction);
        Some(why)
    }
}
