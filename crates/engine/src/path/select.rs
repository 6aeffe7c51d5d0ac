//! Requests that choose a buffer (IOSQE_BUFFER_SELECT), and multishot ones. Source: io_uring/kbuf.c, net.c and rw.c.
//!
//! A buffer is chosen for each attempt and given back when that found nothing, so that none is tied up by a request that
//! waits; it is taken off its ring for good (committed) when it was used, when a transfer that goes on has begun to fill
//! it, or when a worker gets it.

use crate::op::net::Net;
use crate::op::{call, Context, Direction, Op, Verdict};
use crate::request::{Id, Path, State};
use crate::ring::RingGuard;
use crate::{stats, Errno};
use anyring_abi::{Cqe, IORING_CQE_F_MORE, IOSQE_BUFFER_SELECT};

/// Results that a multishot request posts in a row before others have their turn (`MULTISHOT_MAX_RETRY`).
const SHOTS_TOGETHER: u32 = 32;

impl RingGuard {
    /// One nonblocking attempt of a request that chooses a buffer.
    pub fn issue_selecting(&mut self, op: &mut Op, fd: i32) -> Verdict {
        let polls_first = match op {
            Op::Net(Net::Transfer(transfer)) => transfer.polls_first().then(|| transfer.direction()),
            Op::Rw(rw) => rw.polls_first().then_some(Direction::Read),
            _ => None,
        };
        if let Some(direction) = polls_first {
            // It is armed without an attempt; for READ_MULTISHOT that tells whether the file can be polled.
            self.attempt_put_off = direction == Direction::Read;
            return Verdict::WouldBlock(direction);
        }
        if let Err(error) = self.choose_buffer(op) {
            return Verdict::error(without_buffer(op, fd).unwrap_or(error));
        }
        let verdict = match op {
            Op::Rw(rw) => self.issue_transfer(rw, fd),
            _ => op.issue(Context { fd, nonblock: true }),
        };
        self.settle_buffer(op, fd, verdict)
    }

    /// Chooses a buffer, unless the request has one from before.
    fn choose_buffer(&mut self, op: &mut Op) -> Result<(), Errno> {
        let sends = matches!(op, Op::Net(Net::Transfer(transfer)) if transfer.direction() == Direction::Write);
        let Some(selection) = op.selection().filter(|selection| selection.held.is_none()) else { return Ok(()) };
        let mut held = self.groups.choose(selection.group, selection.wanted, sends)?;
        if sends {
            // Not given back: data that waits to be sent is tied up anyway.
            let bytes = held.bytes;
            self.groups.commit(selection.group, &mut held, bytes);
        }
        selection.held = Some(held);
        op.set_buffer(held.address as usize, held.bytes);
        Ok(())
    }

    /// A worker gets the request: it keeps its buffer, which its CQE names whatever becomes of it.
    pub fn hold_buffer(&mut self, id: Id, op: &mut Op) -> Result<(), Errno> {
        self.choose_buffer(op)?;
        if let Some(selection) = op.selection() {
            let group = selection.group;
            if let Some(held) = &mut selection.held {
                let bytes = held.bytes;
                self.groups.commit(group, held, bytes);
                self.slab[id].cqe_flags = held.cqe_flags();
            }
        }
        Ok(())
    }

    /// What becomes of the buffer after an attempt, and what the CQE says of it.
    pub fn settle_buffer(&mut self, op: &mut Op, fd: i32, verdict: Verdict) -> Verdict {
        let (transferred, multishot) = (op.transferred(), op.is_multishot());
        let reads = matches!(op, Op::Rw(_));
        let last = match (&mut *op, verdict) {
            (Op::Net(Net::Transfer(transfer)), Verdict::Done(bytes @ 1..)) => transfer.ends_with(bytes as usize),
            _ => false,
        };
        let Some(selection) = op.selection() else { return verdict };
        let group = selection.group;
        let Some(mut held) = selection.held.take() else { return verdict };
        let (result, short) = match verdict {
            Verdict::Done(result) => (result, false),
            Verdict::DoneShort(result) => (result, true),
            Verdict::WouldBlock(_) | Verdict::NeedsWorkerWhenReady(_)
                if transferred == 0 && !held.committed && (multishot || !reads || !held.listed) =>
            {
                self.groups.give_back(group, held);
                return verdict;
            }
            verdict => {
                // A READ keeps a provided buffer, too, while it waits (io_uring/rw.c gives back only those of rings).
                if transferred != 0 || held.listed {
                    let bytes = if reads { held.bytes } else { transferred };
                    self.groups.commit(group, &mut held, bytes);
                }
                selection.held = Some(held);
                return verdict;
            }
        };
        // A file that cannot be polled takes its buffer before it is read.
        let matters = reads && !multishot && (result < 0 || self.groups.is_incremental(group));
        let at_once = matters && crate::op::rw::is_file(fd);
        let used = match reads && !multishot {
            true => result >= 0 || held.listed || at_once,
            false => result > 0,
        };
        if !used && (!held.committed || held.listed) {
            self.groups.give_back(group, held);
            return verdict;
        }
        let bytes = if at_once { held.bytes } else { result.max(0) as usize };
        self.groups.commit(group, &mut held, bytes);
        let flags = held.cqe_flags();
        if multishot && result > 0 && !last {
            return Verdict::Shot { result, flags };
        }
        Verdict::DoneWith { result, flags, failed: short || result < 0 }
    }

    /// The same for what a worker brought back.
    pub(super) fn settle_arrived(&mut self, id: Id, verdict: Verdict) -> Verdict {
        if self.slab[id].flags & IOSQE_BUFFER_SELECT == 0 {
            return verdict;
        }
        let mut op = core::mem::replace(&mut self.slab[id].op, Op::placeholder());
        // The worker's buffer is committed: it makes no difference what file it was.
        let verdict = self.settle_buffer(&mut op, -1, verdict);
        self.slab[id].op = op;
        verdict
    }

    /// Posts a result of a multishot request, which goes on. False when the CQ is full or the ring broken: then it ends
    /// with this result.
    #[must_use]
    pub fn shot(&mut self, id: Id, result: i32, flags: u32) -> bool {
        if !self.has_room() || self.is_broken() {
            return false;
        }
        let request = &self.slab[id];
        let (user_data, opcode, path) = (request.user_data, request.opcode, request.path);
        stats::completed(opcode, path, result);
        self.post(Cqe { user_data, res: result, flags: flags | IORING_CQE_F_MORE }, path != Path::Inline);
        true
    }

    /// A multishot request has a result: posts it and attempts the next one, until there is nothing or it ends.
    pub fn shoot(&mut self, id: Id, mut result: i32, mut flags: u32) {
        for _ in 0..SHOTS_TOGETHER {
            if !self.shot(id, result, flags) {
                self.slab[id].cqe_flags = flags;
                return self.finish(id, result, false);
            }
            self.slab[id].cqe_flags = 0;
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
        // There may be more: an event will say so.
        self.follow(id, Verdict::WouldBlock(Direction::Read));
        if let Some(State::Armed { fd, .. }) = self.slab.get(id).map(|request| &request.state) {
            let fd = *fd;
            self.entries.renew(fd);
        }
    }
}

/// Why a request that found no buffer would have failed before it looked for one, if so.
#[cold]
fn without_buffer(op: &Op, fd: i32) -> Option<Errno> {
    let open = call(libc::SYS_fcntl, [fd as usize, libc::F_GETFD as usize, 0, 0, 0, 0]);
    let socket = match op {
        Op::Net(_) => crate::op::net::socket_option(fd, libc::SO_TYPE).err(),
        _ => None,
    };
    open.err().or(socket)
}
