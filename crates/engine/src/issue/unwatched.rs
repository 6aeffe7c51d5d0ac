//! Requests that wait for files that epoll(7) does not watch. The thread that drives the ring polls these files from
//! time to time.

use crate::issue::arm::events_for;
use crate::os::{EpollEvent, Os, Sys};
use crate::poll::turns::When;
use crate::poll::{READ, WRITE};
use crate::request::slab::List;
use crate::request::ListKind;
use crate::ring::RingGuard;

/// Polls the files that epoll(7) does not watch, and serves what is ready. True if anything was ready.
#[cold]
pub fn check(guard: &mut RingGuard) -> bool {
    let mut served = false;
    for _ in 0..guard.poll_set.unwatched() {
        let Some((fd, generation)) = guard.poll_set.next_unwatched() else { break };
        let seen = Sys::poll_now(fd, awaited_events(guard, fd)).unwrap_or(libc::POLLNVAL as u16);
        if seen & libc::POLLNVAL as u16 != 0 {
            guard.reissue_all(fd); // the number names no file any more: the requests will find out
        } else if seen != 0 {
            let event = EpollEvent { events: seen.into(), data: u64::from(generation) << 32 | fd as u64 };
            served |= guard.handle_events(&[event], When::Later);
        }
        if let Some(entry) = guard.poll_set.existing(fd) {
            entry.found = seen;
        }
    }
    served
}

/// True if a file that epoll(7) does not watch is ready for a request.
pub fn is_ready(guard: &mut RingGuard) -> bool {
    (0..guard.poll_set.unwatched()).any(|_| {
        let next = guard.poll_set.next_unwatched();
        next.is_some_and(|(fd, _)| Sys::poll_now(fd, awaited_events(guard, fd)) != Ok(0))
    })
}

/// Returns the events that the requests on a number wait for.
fn awaited_events(guard: &mut RingGuard, fd: i32) -> u16 {
    let state = &mut **guard;
    let Some(entry) = state.poll_set.existing(fd) else { return 0 };
    let mut events = if entry.readers.is_empty() { 0 } else { READ & !(libc::EPOLLPRI as u32) };
    events |= if entry.writers.is_empty() { 0 } else { WRITE };
    let polls = core::iter::successors(entry.polls.first(), |id| List::after(&state.slab, *id));
    for id in polls {
        events |= events_for(&state.slab[id].op, ListKind::Poll);
    }
    events as u16
}
