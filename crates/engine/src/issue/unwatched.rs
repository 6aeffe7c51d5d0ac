//! Requests that wait for what epoll(7) does not watch: their files are looked at from time to time, by whoever drives the ring.

use crate::issue::arm::events_for;
use crate::os::{EpollEvent, Os, Sys};
use crate::poll::turns::When;
use crate::poll::{READ, WRITE};
use crate::request::slab::List;
use crate::request::ListKind;
use crate::ring::RingGuard;

impl RingGuard {
    /// Looks at what epoll(7) does not watch, and serves it. True when there was something.
    #[cold]
    pub fn look_at_unwatched(&mut self) -> bool {
        let mut served = false;
        for _ in 0..self.poll_set.unwatched() {
            let Some((fd, generation)) = self.poll_set.next_unwatched() else { break };
            let seen = Sys::poll_now(fd, self.awaited_events(fd)).unwrap_or(libc::POLLNVAL as u16);
            if seen & libc::POLLNVAL as u16 != 0 {
                self.reissue_all(fd); // the number names nothing any more: the requests find out
            } else if seen != 0 {
                let event = EpollEvent { events: seen.into(), data: u64::from(generation) << 32 | fd as u64 };
                served |= self.serve(&[event], When::Later);
            }
            if let Some(entry) = self.poll_set.existing(fd) {
                entry.found = seen;
            }
        }
        served
    }

    /// Whether there is something for a request that epoll(7) does not watch.
    pub fn has_ready_unwatched(&mut self) -> bool {
        (0..self.poll_set.unwatched()).any(|_| {
            let next = self.poll_set.next_unwatched();
            next.is_some_and(|(fd, _)| Sys::poll_now(fd, self.awaited_events(fd)) != Ok(0))
        })
    }

    /// What the requests that wait on a number wait for.
    fn awaited_events(&mut self, fd: i32) -> u16 {
        let state = &mut **self;
        let Some(entry) = state.poll_set.existing(fd) else { return 0 };
        let mut events = if entry.readers.is_empty() { 0 } else { READ & !(libc::EPOLLPRI as u32) };
        events |= if entry.writers.is_empty() { 0 } else { WRITE };
        let polls = core::iter::successors(entry.polls.first(), |id| List::after(&state.slab, *id));
        for id in polls {
            events |= events_for(&state.slab[id].op, ListKind::Poll);
        }
        events as u16
    }
}
