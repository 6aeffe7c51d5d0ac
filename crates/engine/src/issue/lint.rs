//! Misuse of the interface that the kernel takes without a word, told by rule `misuse` of chaos. Asked only on a ring that has a
//! [`Chaos`](crate::chaos::Chaos), with the ring's lock, and changes nothing.

use crate::chaos::rules::Rule;
use crate::chaos::{Chaos, Subject};
use crate::issue::chaos::NUMBER;
use crate::op::{row, FileUse};
use crate::request::{Id, Request, Target};
use crate::ring::{RingGuard, State};

/// What requests have whose CQE nobody tells apart: the default, and that of liburing's own timeouts.
const SAYS_NOTHING: [u64; 2] = [0, u64::MAX];

fn asked(state: &State) -> Option<&Chaos> {
    state.chaos.as_deref().filter(|chaos| chaos.follows(Rule::Misuse))
}

fn subject(request: &Request) -> Subject {
    Subject { opcode: request.opcode.name(), user_data: request.user_data }
}

/// A request's turn has come: its `user_data` is nobody else's.
pub fn begins(state: &State, id: Id) {
    let (Some(chaos), Some(request)) = (asked(state), state.slab.get(id)) else { return };
    if SAYS_NOTHING.contains(&request.user_data) {
        return;
    }
    let mut others = state.slab.ids().filter(|other| *other != id).filter_map(|other| state.slab.get(other));
    if let Some(other) = others.find(|other| other.user_data == request.user_data) {
        let what = format!("its user_data is that of a request in flight, {}", other.opcode.name());
        chaos.tell_misuse(request.number & NUMBER, Some(subject(request)), None, &what);
    }
}

/// The program enters the ring: the CQ's head is not past the tail.
pub fn enters(guard: &mut RingGuard) {
    if asked(guard).is_none_or(|chaos| chaos.told_of_head) {
        return;
    }
    let Some(unread) = unread(guard) else { return };
    let Some(chaos) = guard.chaos.as_deref_mut().filter(|_| unread < 0) else { return };
    chaos.told_of_head = true;
    chaos.tell_misuse(chaos.enters, None, None, &format!("the CQ's head is {} past its tail", -unread));
}

/// The ring ends: the program has seen each CQE that there was.
pub fn ends(guard: &mut RingGuard) {
    enters(guard);
    let (Some(chaos), Some(unread)) = (asked(guard), unread(guard).filter(|unread| *unread > 0)) else { return };
    let cqes = if unread == 1 { "1 CQE was" } else { &format!("{unread} CQEs were") };
    chaos.tell_misuse(chaos.enters, None, None, &format!("{cqes} not seen when the ring was closed"));
}

/// How many CQEs are there that the program has not seen; below 0 it has seen more than there were.
fn unread(guard: &RingGuard) -> Option<i32> {
    guard.cq_ready(guard.cq_tail()).ok().map(|unread| unread as i32)
}

/// The program closes a descriptor: no request is at work on it.
pub fn closes(state: &State, fd: i32) {
    let Some(chaos) = asked(state) else { return };
    for request in state.slab.ids().filter_map(|id| state.slab.get(id)) {
        let has_file = row(request.opcode).is_some_and(|row| row.file == FileUse::File);
        if has_file && matches!(request.target, Target::Number(number) if number == fd) {
            let what = "its descriptor was closed while it was in flight";
            chaos.tell_misuse(request.number & NUMBER, Some(subject(request)), Some(fd), what);
        }
    }
}
