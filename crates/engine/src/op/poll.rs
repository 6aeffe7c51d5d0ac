//! POLL_ADD and POLL_REMOVE: arguments and checks. `poll` arms the requests, `issue::cancel` finds them.

use super::{reject_unused, Context, Direction, Field, HandledBefore, OnRing, Operation, Turn, Verdict};
use crate::mutation::{mutated, Mutation};
use crate::os::{Os, Sys};
use crate::{descriptors, Errno};
use anyring_abi::{
    Sqe, IORING_POLL_ADD_MULTI, IORING_POLL_UPDATE_EVENTS, IORING_POLL_UPDATE_USER_DATA, IOSQE_CQE_SKIP_SUCCESS,
};

/// Waits for readiness. Source: io_uring_enter(2), IORING_OP_POLL_ADD.
#[derive(Debug)]
pub struct PollAdd {
    /// `POLL*` bits that the program asked for. Errors and hang-ups, including a hang-up of only the peer, are always
    /// reported (`IO_POLL_UNMASK` in io_uring/poll.c).
    pub events: u16,
    /// The request stays armed and posts CQE after CQE.
    pub multishot: bool,
    /// Events that are reported even if the program did not ask for them.
    always: u16,
    /// A multishot request found its file ready when it was armed. It reports the present readiness, not the wake-up.
    found: bool,
    /// The file is a ring, whatever its number is by now.
    pub watches_ring: bool,
}

/// Events that poll(2) reports even if the program did not ask for them.
const ALWAYS: u16 = (libc::POLLERR | libc::POLLHUP) as u16;
/// Events that an io_uring request reports even if the program did not ask for them.
const ALWAYS_IN_RINGS: u16 = ALWAYS | libc::POLLRDHUP as u16;
/// The key with which a socket wakes its waiters when data has arrived (`sock_def_readable` in net/core/sock.c).
const DATA: u16 = (libc::POLLIN | libc::POLLPRI | libc::POLLRDNORM | libc::POLLRDBAND) as u16;

impl PollAdd {
    /// Reads the SQE and checks its fields.
    pub fn prep(sqe: &Sqe) -> Result<PollAdd, Errno> {
        reject_unused(sqe, &[Field::BufIndex, Field::Off, Field::Addr])?;
        if sqe.len & !IORING_POLL_ADD_MULTI != 0 {
            return Err(Errno::INVAL);
        }
        let multishot = sqe.len & IORING_POLL_ADD_MULTI != 0;
        if multishot && sqe.flags & IOSQE_CQE_SKIP_SUCCESS != 0 {
            return Err(Errno::INVAL);
        }
        Ok(PollAdd {
            events: sqe.op_flags as u16,
            multishot: multishot && sqe.op_flags & libc::EPOLLONESHOT as u32 == 0,
            always: ALWAYS_IN_RINGS,
            found: false,
            watches_ring: false,
        })
    }

    /// Returns the events for which an attempt of the SQE with these `poll32_events` polls.
    pub fn asked_for(poll32_events: u32) -> u16 {
        poll32_events as u16 | ALWAYS_IN_RINGS
    }

    /// Makes the request of an IOCB_CMD_POLL. Source: `aio_poll` in fs/aio.c.
    pub fn of_aio(events: u16) -> PollAdd {
        PollAdd { events, multishot: false, always: ALWAYS, found: false, watches_ring: false }
    }

    /// True if the request waits only for readability, and only once.
    pub fn waits_to_read(&self) -> bool {
        const READ: i16 = libc::POLLIN | libc::POLLPRI | libc::POLLRDNORM | libc::POLLRDBAND | libc::POLLRDHUP;
        let rest = self.events & !(READ as u16 | self.always);
        !self.multishot && self.events & libc::POLLIN as u16 != 0 && rest == 0
    }

    /// Returns those events of `seen` that this request reports, 0 if there are none.
    pub fn matching(&self, seen: u16) -> u16 {
        seen & (self.events | self.always)
    }

    /// Returns the events that this request reports when its file raised `seen`. An armed request reports the key with
    /// which the socket woke it (`io_poll_wake` in io_uring/poll.c stashes it). That key has bits that poll(2) would
    /// not return.
    pub fn woken(&mut self, seen: u16, is_socket: impl FnOnce() -> bool) -> u16 {
        const ENDS: u16 = (libc::POLLERR | libc::POLLHUP | libc::POLLRDHUP) as u16;
        const BESIDES: u16 = (libc::POLLPRI | libc::POLLRDBAND) as u16;
        let found = core::mem::take(&mut self.found);
        let by_data = seen & libc::POLLIN as u16 != 0 && seen & ENDS == 0;
        // Without POLLIN in the request, the event may stem from data that was there before.
        let tells = self.events & libc::POLLIN as u16 != 0 && self.events & BESIDES != 0;
        if !found && by_data && tells && is_socket() {
            return seen | DATA;
        }
        seen
    }

    /// Returns the verdict on what a poll that did not wait has found.
    #[inline(always)] // one of its two callers is rare
    fn verdict_on(&mut self, found: Result<u16, Errno>) -> Verdict {
        match found {
            Ok(seen) if seen & libc::POLLNVAL as u16 != 0 => Verdict::error(Errno::BADF),
            // Arming a multishot request reports a file that is ready already.
            Ok(seen) if self.multishot => {
                self.found = seen != 0;
                Verdict::WouldBlock(Direction::Read)
            }
            Ok(0) => Verdict::WouldBlock(Direction::Read),
            Ok(seen) if mutated(Mutation::PollWithoutHangUp) => Verdict::Done((seen & self.events).into()),
            Ok(seen) => Verdict::Done(seen.into()),
            Err(error) => Verdict::error(error),
        }
    }

    /// True if the file was ready when the request was armed, and the request has not reported that yet.
    pub fn found_at_once(&self) -> bool {
        self.found
    }
}

impl Operation for PollAdd {
    #[inline]
    fn issue(&mut self, context: Context) -> Verdict {
        if context.fd < 0 {
            return Verdict::error(Errno::BADF);
        }
        self.verdict_on(Sys::poll_now(context.fd, self.events | self.always))
    }

    fn issue_on(&mut self, ring: &mut impl OnRing, fd: i32) -> Verdict {
        self.watches_ring = descriptors::is_ring(fd);
        ring.watch_ring(fd, true);
        if let Some(seen) = ring.polled_ahead(fd, self.events | self.always) {
            return self.verdict_on(Ok(seen));
        }
        self.issue(Context { fd, nonblock: true })
    }

    /// Handles a file that epoll(7) refuses. In the kernel such a file has no wait queue either. Source:
    /// `__io_arm_poll_handler` in io_uring/poll.c, without entries.
    fn verdict_unpolled(&mut self, fd: i32) -> Option<Verdict> {
        self.multishot = false;
        Some(match self.issue(Context { fd, nonblock: true }) {
            Verdict::WouldBlock(_) => Verdict::error(Errno::INVAL),
            verdict => verdict,
        })
    }

    fn turn(&self) -> Turn {
        Turn::Nobody
    }
}

/// Ends a poll request, or changes what it waits for. Source: io_uring_enter(2), IORING_OP_POLL_REMOVE.
#[derive(Debug)]
pub struct PollRemove {
    /// The request's `user_data`.
    pub target: u64,
    /// New events; `None` to keep the old ones.
    pub events: Option<u16>,
    /// New `user_data`; `None` to keep the old one.
    pub user_data: Option<u64>,
}

impl PollRemove {
    /// Reads the SQE and checks its fields.
    pub fn prep(sqe: &Sqe) -> Result<PollRemove, Errno> {
        reject_unused(sqe, &[Field::BufIndex, Field::FileIndex])?;
        let flags = sqe.len;
        let known = IORING_POLL_UPDATE_EVENTS | IORING_POLL_UPDATE_USER_DATA | IORING_POLL_ADD_MULTI;
        if flags & !known != 0 || flags == IORING_POLL_ADD_MULTI {
            return Err(Errno::INVAL);
        }
        let new_events = flags & IORING_POLL_UPDATE_EVENTS != 0;
        let new_user_data = flags & IORING_POLL_UPDATE_USER_DATA != 0;
        if (!new_events && sqe.op_flags != 0) || (!new_user_data && sqe.off != 0) {
            return Err(Errno::INVAL);
        }
        Ok(PollRemove {
            target: sqe.addr,
            events: new_events.then_some(sqe.op_flags as u16),
            user_data: new_user_data.then_some(sqe.off),
        })
    }
}

impl Operation for PollRemove {
    fn issue_on(&mut self, ring: &mut impl OnRing, _fd: i32) -> Verdict {
        ring.remove_poll(self)
    }

    fn handled_before(&self) -> HandledBefore {
        HandledBefore::Everything
    }
}
