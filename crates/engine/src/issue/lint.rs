//! The rule `misuse` of chaos: it reports misuse of the interface that the kernel accepts silently. It is called only
//! on a ring that has a [`Chaos`](crate::chaos::Chaos), with the ring's lock held, and changes nothing.

use crate::chaos::rules::Rule;
use crate::chaos::{Chaos, Subject};
use crate::event::Kind;
use crate::issue::chaos::NUMBER;
use crate::op::{row, FileUse};
use crate::request::{Id, Request, Target};
use crate::ring::{RingGuard, State};

/// `user_data` values of requests whose CQEs the program need not identify: the default, and the value that liburing
/// gives its own timeouts.
const SAYS_NOTHING: [u64; 2] = [0, u64::MAX];

fn asked(state: &State) -> Option<&Chaos> {
    state.chaos.as_deref().filter(|chaos| chaos.follows(Rule::Misuse))
}

fn subject(request: &Request) -> Subject {
    Subject { opcode: request.opcode.name(), user_data: request.user_data }
}

/// Writes a finding to the log and to the trace.
fn log(state: &mut State, id: Option<Id>, position: u64, fd: Option<i32>, what: &str) {
    let Some(chaos) = &state.chaos else { return };
    chaos.log_misuse(position, id.and_then(|id| state.slab.get(id)).map(subject), fd, what);
    let name = chaos.name(Rule::Misuse, position);
    match id {
        Some(id) => state.record_of(id, |it| it.chaos(Kind::Finding, true, name)),
        None => state.record(|it| it.chaos(Kind::Finding, false, name)),
    }
}

/// Checks, when a request's turn comes, that no other request in flight has the same `user_data`.
pub fn begins(state: &mut State, id: Id) {
    let (Some(_), Some(request)) = (asked(state), state.slab.get(id)) else { return };
    if SAYS_NOTHING.contains(&request.user_data) {
        return;
    }
    let position = request.number & NUMBER;
    let mut others = state.slab.ids().filter(|other| *other != id).filter_map(|other| state.slab.get(other));
    let other = others.find(|other| other.user_data == request.user_data).map(|other| other.opcode);
    drop(others);
    if let Some(other) = other {
        let what = format!("its user_data is that of a request in flight, {}", other.name());
        log(state, Some(id), position, None, &what);
    }
}

/// Checks, when the program calls io_uring_enter(2), that the CQ's head is not past the tail.
pub fn enters(guard: &mut RingGuard) {
    if asked(guard).is_none_or(|chaos| chaos.reported_head) {
        return;
    }
    let Some(unread) = unread(guard) else { return };
    let Some(chaos) = guard.chaos.as_deref_mut().filter(|_| unread < 0) else { return };
    chaos.reported_head = true;
    let enters = chaos.enters;
    log(guard, None, enters, None, &format!("the CQ's head is {} past its tail", -unread));
}

/// Checks, when the ring ends, that the program has read every CQE.
pub fn ends(guard: &mut RingGuard) {
    enters(guard);
    let (Some(chaos), Some(unread)) = (asked(guard), unread(guard).filter(|unread| *unread > 0)) else { return };
    let cqes = if unread == 1 { "1 CQE was" } else { &format!("{unread} CQEs were") };
    let enters = chaos.enters;
    log(guard, None, enters, None, &format!("{cqes} not seen when the ring was closed"));
}

/// Number of CQEs that the program has not read. Negative if the program's CQ head is past the tail.
fn unread(guard: &RingGuard) -> Option<i32> {
    guard.cq_ready(guard.cq_tail()).ok().map(|unread| unread as i32)
}

/// Checks, when the program closes a descriptor, that no request uses that descriptor.
pub fn closes(state: &mut State, fd: i32) {
    if asked(state).is_none() {
        return;
    }
    let uses = |request: &Request| {
        let has_file = row(request.opcode).is_some_and(|row| row.file == FileUse::File);
        has_file && matches!(request.target, Target::Number(number) if number == fd)
    };
    let mut place = 0;
    while let Some(id) = state.slab.next_from(place) {
        place = id.place() + 1;
        let request = &state.slab[id];
        let position = request.number & NUMBER;
        if uses(request) {
            log(state, Some(id), position, Some(fd), "its descriptor was closed while it was in flight");
        }
    }
}
