//! Requests of Linux AIO that wait for their descriptor without a slot in the slab.
//!
//! Such a request is the only one that waits for its descriptor. It has no chain and no shared record, since a context
//! belongs to one process. So it needs only the operation of a [`Request`], and stays in its place in the context. The
//! descriptor's entry names that place, and readiness ends the request there.
//!
//! For any other purpose the request first gets a slot and joins the entry's list ([`join_list`]). Examples are a
//! cancellation, a close, a second request on the descriptor, and a verdict that leads elsewhere.
//!
//! These requests are part of a ring's state, like everything in `poll`. While a request is neither in its place
//! nor on a list, an [`Uncompleted`] represents it in case of a panic.

use crate::aio_ring::Single;
use crate::forced::{point, Point};
use crate::issue::arm::events_for;
use crate::op::{Direction, Op, Skip, Verdict};
use crate::os::{Os, Sys};
use crate::poll::{EDGE, ENDED, READ, WRITE};
use crate::request::{ListKind, Polling, Request, Target, Then, Tried};
use crate::ring::batch::Poster;
use crate::ring::broken::Uncompleted;
use crate::ring::RingGuard;
use crate::stats::Path;
use crate::{descriptors, stats};
use anyring_abi::{Cqe, Opcode};

impl Single {
    fn list(&self) -> ListKind {
        ListKind::of(&self.op, Direction::Read)
    }

    fn into_request(self, place: u32) -> Request {
        let mut request = Request::new(self.op, self.opcode, 0, place.into(), Target::Number(self.fd));
        request.path = Path::Poll;
        request
    }
}

/// Leaves a request in its place after its first attempt to read, or its poll, found nothing or was postponed. `Err` if
/// the request has to join a list; then `op` is unchanged.
pub fn wait_singly(
    guard: &mut RingGuard,
    place: u32,
    op: &mut Op,
    opcode: Opcode,
    fd: i32,
    skip: Option<Skip>,
    on_its_way: Uncompleted,
) -> Result<(), Uncompleted> {
    let events = events_for(op, ListKind::Read);
    let postponed = skip.is_some_and(Skip::is_postponed);
    let state = &mut **guard;
    if !state.poll_set.has_room_single(fd, events | EDGE) {
        return Err(on_its_way);
    }
    if state.single(place).is_none() {
        return Err(on_its_way);
    }
    // The kernel does not record the arming of a poll, nor does this.
    let armed = (opcode != Opcode::PollAdd).then_some(events);
    let name = state.recorder.as_mut().map(|recorder| recorder.waits_singly(armed, skip)).unwrap_or_default();
    if let Some(single) = state.single(place) {
        *single = Some(Single { op: core::mem::take(op), opcode, fd, name });
    }
    state.poll_set.begin_single(fd, place);
    on_its_way.completed();
    if postponed {
        state.poll_set.postpone(fd);
    } else if opcode != Opcode::PollAdd {
        state.poll_set.entry(fd).facts.mark_empty(ListKind::Read);
    }
    point(Point::Arm);
    descriptors::record_use(fd);
    guard.work_appeared(false);
    Ok(())
}

/// Returns the request that waits for `fd` without a slot, and its place in the context.
fn single(guard: &mut RingGuard, fd: i32) -> Option<(u32, &mut Option<Single>)> {
    let state = &mut **guard;
    let place = state.poll_set.existing(fd)?.single?;
    Some((place, state.single(place)?))
}

/// Takes the request that waits for `fd` without a slot out of its place.
fn take_single(guard: &mut RingGuard, fd: i32) -> Option<(u32, Single, Uncompleted)> {
    let ring = guard.ring();
    let (place, single) = single(guard, fd)?;
    let on_its_way = Uncompleted::new(ring, place.into(), None);
    let single = single.take();
    if let Some(entry) = guard.poll_set.existing(fd) {
        entry.single = None;
        guard.poll_set.armed -= 1;
    }
    match single {
        Some(single) => Some((place, single, on_its_way)),
        None => {
            on_its_way.completed();
            None
        }
    }
}

/// Handles an event of a descriptor for which a request waits without a slot.
pub(crate) fn handle_single(guard: &mut RingGuard, fd: i32, seen: u32) {
    let answer = match single(guard, fd) {
        Some((_, Some(single))) => match single.op.poll().map(|poll| poll.matching(seen as u16)) {
            Some(0) => return,
            None if seen & (READ | ENDED) == 0 => return,
            answer => answer,
        },
        Some(_) if seen & (READ | ENDED) != 0 => None,
        _ => return,
    };
    let Some((place, mut single, on_its_way)) = take_single(guard, fd) else { return };
    let verdict = match answer {
        Some(answer) => Verdict::Done(answer.into()),
        None => {
            point(Point::Retry);
            guard.attempt(&mut single.op, fd, true, false)
        }
    };
    match verdict {
        Verdict::Done(result) => {
            point(Point::Finish);
            stats::completed(single.opcode, Path::Poll, result);
            guard.record(|it| it.single_ends(single.name));
            guard.post(Cqe { user_data: place.into(), res: result, flags: 0 }, Poster::Task);
            on_its_way.completed();
        }
        Verdict::WouldBlock(Direction::Read) => put_back(guard, place, single, on_its_way),
        verdict => {
            guard.record(|it| it.joins(single.name));
            let id = guard.admit(single.into_request(place), on_its_way);
            guard.follow(id, verdict);
        }
    }
}

/// Puts a request back that continues to wait, since the attempt found nothing.
fn put_back(guard: &mut RingGuard, place: u32, single: Single, on_its_way: Uncompleted) {
    let state = &mut **guard;
    let fd = single.fd;
    let Some(place_of) = state.single(place) else { return };
    *place_of = Some(single);
    state.poll_set.begin_single(fd, place);
    state.poll_set.entry(fd).facts.mark_empty(ListKind::Read);
    on_its_way.completed();
}

/// Makes the attempt, or the poll, that was postponed.
pub(crate) fn attempt_single(guard: &mut RingGuard, fd: i32) {
    let Some((place, Some(single))) = single(guard, fd) else { return };
    let looks = single.list() == ListKind::Poll;
    let empty = guard.poll_set.existing(fd).is_some_and(|entry| entry.facts.is_empty());
    match looks {
        true => match Sys::poll_now(fd, (READ | WRITE) as u16) {
            Ok(seen @ 1..) => handle_single(guard, fd, seen.into()),
            _ => return,
        },
        false if !empty => handle_single(guard, fd, READ),
        false => {}
    }
    match guard.poll_set.existing(fd) {
        Some(entry) if entry.single != Some(place) => entry.facts.end_streak(), // attempt at once from now on
        _ if looks => {}
        _ => guard.end_nonblocking_reads(fd),
    }
}

/// Gives a slot to the request that waits for `fd` without one, and moves the request to the entry's list.
#[inline]
pub fn join_list(guard: &mut RingGuard, fd: i32) {
    if guard.is_context() {
        join_list_of_context(guard, fd);
    }
}

fn join_list_of_context(guard: &mut RingGuard, fd: i32) {
    let Some((place, single, on_its_way)) = take_single(guard, fd) else { return };
    let list = single.list();
    guard.record(|it| it.joins(single.name));
    let mut request = single.into_request(place);
    request.poll(Polling { fd, list, tried: Tried::Empty, then: Then::Retry });
    let id = guard.admit(request, on_its_way);
    let state = &mut **guard;
    state.poll_set.armed += 1;
    state.poll_set.entry(fd).list(list).push_front(&mut state.slab, id);
}

/// Gives a slot to each of the context's requests that waits without one.
pub fn join_lists(guard: &mut RingGuard) {
    let mut from = 0;
    while let Some((place, fd)) = guard.aio.as_deref().and_then(|context| context.waiting_singly(from)) {
        from = place + 1;
        join_list(guard, fd);
    }
}
