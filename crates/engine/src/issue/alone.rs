//! Requests of Linux AIO that wait alone on their descriptor.
//!
//! Such a one needs nothing of what a [`Request`] has besides its operation: no neighbours, no chain, no shared record (a
//! context belongs to one process). It stays in its place in the context, the descriptor's entry names that place, and
//! readiness ends it there. Whatever else has to do with it (a cancellation, a close, a second request on the descriptor, a
//! verdict that leads elsewhere) makes it a request on the entry's list first: [`RingGuard::join_list`].
//!
//! Part of a ring's state, as all of `poll`. For a panic: while it is in neither place an [`Unanswered`] stands
//! for it.

use crate::aio_ring::Alone;
use crate::forced::{point, Point};
use crate::issue::arm::events_for;
use crate::op::{Direction, Op, Verdict};
use crate::os::{Os, Sys};
use crate::poll::{EDGE, ENDED, READ, WRITE};
use crate::request::{ListKind, Polling, Request, Target, Then, Tried};
use crate::ring::broken::Unanswered;
use crate::ring::RingGuard;
use crate::stats::Path;
use crate::{descriptors, stats};
use anyring_abi::{Cqe, Opcode};

impl Alone {
    fn list(&self) -> ListKind {
        match self.op {
            Op::Poll(_) => ListKind::Poll,
            _ => ListKind::Read,
        }
    }

    fn into_request(self, place: u32) -> Request {
        let mut request = Request::new(self.op, self.opcode, 0, place.into(), Target::Number(self.fd));
        request.path = Path::Poll;
        request
    }
}

impl RingGuard {
    /// Leaves a request in its place, whose first attempt to read, or look, found nothing or was put off. `Err` where it has
    /// to become one of a list; then `op` is as it was.
    pub fn wait_alone(
        &mut self,
        place: u32,
        op: &mut Op,
        opcode: Opcode,
        fd: i32,
        put_off: bool,
        on_its_way: Unanswered,
    ) -> Result<(), Unanswered> {
        let wanted = events_for(op, ListKind::Read) | EDGE;
        let state = &mut **self;
        if state.recorder.is_some() || !state.poll_set.has_room_alone(fd, wanted) {
            return Err(on_its_way);
        }
        let Some(alone) = state.aio.as_deref_mut().and_then(|context| context.alone(place)) else {
            return Err(on_its_way);
        };
        *alone = Some(Alone { op: core::mem::replace(op, Op::placeholder()), opcode, fd });
        state.poll_set.begin_alone(fd, place);
        on_its_way.answered();
        if put_off {
            state.poll_set.put_off(fd);
        } else if opcode != Opcode::PollAdd {
            state.poll_set.entry(fd).facts.note_empty(ListKind::Read);
        }
        point(Point::Arm);
        descriptors::note_use(fd);
        self.work_appeared(false);
        Ok(())
    }

    /// Whoever waits alone on `fd`.
    fn alone(&mut self, fd: i32) -> Option<(u32, &mut Option<Alone>)> {
        let state = &mut **self;
        let place = state.poll_set.existing(fd)?.alone?;
        Some((place, state.aio.as_deref_mut().and_then(|context| context.alone(place))?))
    }

    /// Takes out whoever waits alone on `fd`.
    fn take_alone(&mut self, fd: i32) -> Option<(u32, Alone, Unanswered)> {
        let ring = self.ring();
        let (place, alone) = self.alone(fd)?;
        let on_its_way = Unanswered::new(ring, place.into(), None);
        let alone = alone.take();
        if let Some(entry) = self.poll_set.existing(fd) {
            entry.alone = None;
            self.poll_set.armed -= 1;
        }
        match alone {
            Some(alone) => Some((place, alone, on_its_way)),
            None => {
                on_its_way.answered();
                None
            }
        }
    }

    /// Serves an event of the descriptor on which a request waits alone.
    pub(crate) fn serve_alone(&mut self, fd: i32, seen: u32) {
        let answer = match self.alone(fd) {
            Some((_, Some(Alone { op: Op::Poll(poll), .. }))) => match poll.matching(seen as u16) {
                0 => return,
                answer => Some(answer),
            },
            Some(_) if seen & (READ | ENDED) != 0 => None,
            _ => return,
        };
        let Some((place, mut alone, on_its_way)) = self.take_alone(fd) else { return };
        let verdict = match answer {
            Some(answer) => Verdict::Done(answer.into()),
            None => {
                point(Point::Retry);
                self.attempt(&mut alone.op, &Target::Number(fd), false)
            }
        };
        match verdict {
            Verdict::Done(result) => {
                point(Point::Finish);
                stats::completed(alone.opcode, Path::Poll, result);
                self.post(Cqe { user_data: place.into(), res: result, flags: 0 }, true);
                on_its_way.answered();
            }
            Verdict::WouldBlock(Direction::Read) => self.put_back(place, alone, on_its_way),
            verdict => {
                let id = self.admit(alone.into_request(place), on_its_way);
                self.follow(id, verdict);
            }
        }
    }

    /// The attempt found nothing: it waits on.
    fn put_back(&mut self, place: u32, alone: Alone, on_its_way: Unanswered) {
        let state = &mut **self;
        let place_of = state.aio.as_deref_mut().and_then(|context| context.alone(place));
        let (Some(place_of), Some(entry)) = (place_of, state.poll_set.existing(alone.fd)) else { return };
        entry.facts.note_empty(ListKind::Read);
        entry.alone = Some(place);
        *place_of = Some(alone);
        state.poll_set.armed += 1;
        on_its_way.answered();
    }

    /// Makes the attempt, or the look, that was put off.
    pub(crate) fn attempt_alone(&mut self, fd: i32) {
        let Some((place, Some(alone))) = self.alone(fd) else { return };
        let looks = alone.list() == ListKind::Poll;
        let empty = self.poll_set.existing(fd).is_some_and(|entry| entry.facts.is_empty());
        match looks {
            true => match Sys::poll_now(fd, (READ | WRITE) as u16) {
                Ok(seen @ 1..) => self.serve_alone(fd, seen.into()),
                _ => return,
            },
            false if !empty => self.serve_alone(fd, READ),
            false => {}
        }
        match self.poll_set.existing(fd) {
            Some(entry) if entry.alone != Some(place) => entry.facts.end_streak(), // attempt at once again
            _ if looks => {}
            _ => self.end_nonblocking_reads(fd),
        }
    }

    /// Makes whoever waits alone on `fd` a request on the entry's list.
    pub fn join_list(&mut self, fd: i32) {
        let Some((place, alone, on_its_way)) = self.take_alone(fd) else { return };
        let list = alone.list();
        let mut request = alone.into_request(place);
        request.poll(Polling { fd, list, tried: Tried::Empty, then: Then::Retry });
        let id = self.admit(request, on_its_way);
        let state = &mut **self;
        state.poll_set.armed += 1;
        state.poll_set.entry(fd).list(list).push_front(&mut state.slab, id);
    }

    /// Makes every request of the context one of the slab's.
    pub fn join_lists(&mut self) {
        let mut from = 0;
        while let Some((place, fd)) = self.aio.as_deref().and_then(|context| context.waiting_alone(from)) {
            from = place + 1;
            self.join_list(fd);
        }
    }
}
