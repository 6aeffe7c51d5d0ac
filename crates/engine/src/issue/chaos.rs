//! Disturbs a ring: does what `chaos` draws. Called at few places of a request's way, and only on a ring that has a
//! [`Chaos`](crate::chaos::Chaos), always with the ring's lock.
//!
//! Every request of such a ring gets a place, also one that would be answered on the spot, so that it can be held back, and so
//! that each way to a result comes through `finish`. `hold` holds requests back, `edge`
//! meets timeouts, `watch` watches memory, `crash` has changes of files kept.

mod crash;
mod edge;
mod hold;
mod watch;

pub use edge::{fires, outlasts_count, outruns_timeout};
pub use hold::{is_out_of_reach, let_go, let_next_go, stop_timer, was_let_go};

use crate::chaos::caller::Caller;
use crate::chaos::rules::Rule;
use crate::chaos::{Draw, HeldBack, Subject};
use crate::event::Kind;
use crate::issue::lint;
use crate::memory::layout::word;
use crate::op::Op;
use crate::os::{file_status, user_read, user_write, Clock};
use crate::request::{Id, Request, Target};
use crate::ring::batch::Poster;
use crate::ring::{RingGuard, State};
use crate::Errno;
use anyring_abi::{Cqe, Opcode, Sqe, IOSQE_BUFFER_SELECT, IOSQE_IO_HARDLINK, IOSQE_IO_LINK};
use core::sync::atomic::Ordering;

/// After this time a request is held back no more, where the program does not wait for it.
const HELD_BACK_NS: u64 = 20_000_000;
/// The same where a thread of ours is to make it, while the program does something else.
const ASIDE_NS: u64 = 1_000;
/// A request that is held back is overtaken by so many others, at most.
const OVERTAKEN_BY: u64 = 8;
/// In a request's `number`: it was held back already.
const WAS_HELD: u64 = 1 << 63;
/// In a request's `number`: its file keeps no order (a position is named for each transfer).
const UNORDERED: u64 = 1 << 62;
/// In a request's `number`: it stands for the notification of a zero-copy send.
const NOTIFICATION: u64 = 1 << 61;
/// The rest of it: which SQE it was.
pub(super) const NUMBER: u64 = edge::FIRES - 1;

/// What a request that chooses its buffer may get, if the buffer's size alone limits it.
const SOME_BYTES: usize = 64;

/// What an injection is about.
#[derive(Clone, Copy)]
enum About {
    /// An io_uring_enter(2).
    Enter,
    /// A request that has a place.
    Request(Id),
    /// One that is taken in, or has ended just now.
    AtHand(Subject),
}

impl State {
    /// An SQE is taken in: perhaps it asks for less from now on. Its request gets `sqes` for its number.
    pub(crate) fn disturb(&mut self, op: &mut Op, opcode: Opcode, sqe: &Sqe, target: &Target) {
        let Some(number) = self.chaos.as_mut().map(|chaos| {
            chaos.sqes = (chaos.sqes & NUMBER) + 1;
            chaos.sqes
        }) else {
            return;
        };
        let Ok(fd) = self.number_of(target) else { return };
        let Some(chaos) = &mut self.chaos else { return };
        let about = About::AtHand(Subject { opcode: opcode.name(), user_data: sqe.user_data });
        let transfers = op.rw().is_some() && file_status(fd).is_ok_and(|status| status.has_blocks());
        if transfers && sqe.off != u64::MAX {
            chaos.sqes |= UNORDERED;
        }
        if let Some(bytes) = op.divisible_bytes(fd) {
            let selects = sqe.flags & IOSQE_BUFFER_SELECT != 0;
            if selects && is_socket_or_pipe(fd) && chaos.draw(Rule::Nobufs, number).is_some() {
                op.cut(1);
                self.note(Rule::Nobufs, number, about, "a byte for each buffer");
            } else if let Some(draw) = chaos.draw(Rule::Short, number) {
                let most = if selects && bytes == 1 { SOME_BYTES } else { bytes.saturating_sub(1) };
                if most != 0 {
                    let kept = draw.part_of(most);
                    op.cut(kept);
                    self.note(Rule::Short, number, about, &format!("at most {kept} bytes"));
                }
            }
        }
        let reads = matches!(opcode, Opcode::Read | Opcode::Recv) && sqe.flags & IOSQE_BUFFER_SELECT == 0;
        let Some(chaos) = self.chaos.as_mut().filter(|_| reads) else { return };
        if chaos.draw(Rule::Corrupt, number).is_some() {
            chaos.spoiled.push((number, sqe.addr));
        }
    }

    /// Tells the log what was done, and who traces.
    fn note(&mut self, rule: Rule, position: u64, about: About, what: &str) {
        let subject = match about {
            About::Enter => None,
            About::Request(id) => self.subject(id),
            About::AtHand(subject) => Some(subject),
        };
        let Some(chaos) = &self.chaos else { return };
        chaos.note(rule, position, subject, what);
        let name = chaos.name(rule, position);
        match about {
            About::Enter => self.record(|it| it.chaos(Kind::Injection, false, name)),
            About::Request(id) => self.record_of(id, |it| it.chaos(Kind::Injection, true, name)),
            About::AtHand(_) => self.record(|it| it.chaos(Kind::Injection, true, name)),
        }
    }

    /// The name of a request, for the log.
    fn subject(&self, id: Id) -> Option<Subject> {
        let request = self.slab.get(id)?;
        Some(Subject { opcode: request.opcode.name(), user_data: request.user_data })
    }
}

fn is_socket_or_pipe(fd: i32) -> bool {
    file_status(fd).is_ok_and(|status| matches!(status.kind, libc::S_IFSOCK | libc::S_IFIFO))
}

/// A request's turn has come. True where it does not begin now, or never: it fails, or is held back.
#[cold]
pub fn intervenes(guard: &mut RingGuard, id: Id) -> bool {
    if guard.slab.get(id).is_some_and(is_notification) {
        notify(guard, id);
        return true;
    }
    if guard.slab.get(id).is_some_and(|request| request.number & WAS_HELD == 0) {
        lint::begins(guard, id);
        watch::begin_fill(guard, id);
    }
    watch::begin_watch(guard, id);
    if let Some(error) = failure(guard, id) {
        guard.finish(id, -error.raw_os_error(), true);
        return true;
    }
    if edge::is_too_late(guard, id) {
        guard.finish(id, -Errno::ALREADY.raw_os_error(), true);
        return true;
    }
    let drawn = hold::drawn_hold(guard, id);
    let is_held = hold::holds_back(guard, id, drawn);
    if !is_held {
        crash::begin(guard, id);
    }
    is_held
}

/// The error with which a request fails without being made.
fn failure(state: &mut State, id: Id) -> Option<Errno> {
    let (chaos, request) = (state.chaos.as_ref()?, state.slab.get(id)?);
    let number = request.number & NUMBER;
    if request.number & WAS_HELD != 0 {
        return None; // it was asked before
    }
    let is = |opcodes: &[Opcode]| opcodes.contains(&request.opcode);
    let writes = is(&[Opcode::Write, Opcode::Writev, Opcode::WriteFixed, Opcode::WritevFixed]);
    let reads = is(&[Opcode::Read, Opcode::Readv, Opcode::ReadFixed, Opcode::ReadvFixed]);
    let in_file = request.target.number().is_some_and(|fd| file_status(fd).is_ok_and(|it| it.has_blocks()));
    let fails = [
        (Rule::Eio, Errno::IO, reads || writes || is(&[Opcode::Fsync, Opcode::SyncFileRange])),
        (Rule::Enospc, Errno::NOSPC, (writes && in_file) || is(&[Opcode::Fallocate])),
        (Rule::Enomem, Errno::NOMEM, request.op.timeout().is_none() && !is(&[Opcode::AsyncCancel])),
    ];
    let (rule, error, _) = fails.into_iter().find(|(rule, _, of)| *of && chaos.draw(*rule, number).is_some())?;
    state.note(rule, number, About::Request(id), "fails");
    Some(error)
}

/// Whether the request stands for the notification of a zero-copy send.
fn is_notification(request: &Request) -> bool {
    request.number & NOTIFICATION != 0
}

/// A zero-copy send has ended: whether its notification comes later. Another request then stands for it.
#[cold]
pub fn delays_notification(guard: &mut RingGuard, sent: &Request) -> bool {
    let state = &mut **guard;
    let number = sent.number & NUMBER;
    let Some(chaos) = &mut state.chaos else { return false };
    let Some(draw) = chaos.draw(Rule::Notify, number) else { return false };
    let room = state.slab.has_room() && chaos.held.try_reserve(1).is_ok();
    if !room || state.timers.make_room(Clock::Monotonic, state.slab.len() + 1).is_err() {
        return false;
    }
    let subject = Subject { opcode: sent.opcode.name(), user_data: sent.user_data };
    state.note(Rule::Notify, number, About::AtHand(subject), "its notification is late");
    let mut request = Request::new(Op::default(), sent.opcode, 0, sent.user_data, Target::None);
    request.number = number | NOTIFICATION;
    request.cqe_flags = sent.cqe_flags;
    let id = state.slab.insert(request);
    let until_ns = Clock::Monotonic.now_ns().saturating_add(HELD_BACK_NS);
    if let Some(chaos) = &mut state.chaos {
        let turn = (number + draw.below(OVERTAKEN_BY), number);
        chaos.held.push(HeldBack { turn, id, stream: None, until_ns });
    }
    hold::wait_for_timer(guard, id, until_ns);
    true
}

/// Posts the notification.
fn notify(guard: &mut RingGuard, id: Id) {
    if let Some(request) = guard.slab.remove(id) {
        guard.post_notification(request.user_data, request.cqe_flags);
    }
    guard.release_held();
}

/// What a request ends with: what it would, or something else that it might as well.
#[cold]
pub fn result(guard: &mut RingGuard, id: Id, result: i32, failed: bool) -> (i32, bool) {
    crash::end(guard, id, result);
    let subject = guard.subject(id);
    let state = &mut **guard;
    let (Some(chaos), Some(request)) = (&mut state.chaos, state.slab.get(id)) else { return (result, failed) };
    let number = request.number & NUMBER;
    let (changed, filled) = subject.map_or((false, Ok(())), |subject| chaos.end_watch(id, subject, result));
    let name = chaos.name(Rule::Lifetimes, number);
    if changed {
        state.record_of(id, |it| it.chaos(Kind::Finding, true, name));
    }
    if let Err(error) = filled {
        return (-error.raw_os_error(), true);
    }
    let (Some(chaos), Some(request)) = (&mut state.chaos, state.slab.get(id)) else { return (result, failed) };
    chaos.end_fill(id, result);
    let cancels_one = matches!(&request.op, Op::Cancel(cancel) if !cancel.all) && result == 0;
    if cancels_one && chaos.draw(Rule::Cancel, number).is_some() {
        state.note(Rule::Cancel, number, About::Request(id), "EALREADY");
        return (-Errno::ALREADY.raw_os_error(), true);
    }
    if chaos.spoiled.iter().any(|(of, _)| *of == number) {
        spoil(guard, id, number, result);
    }
    (result, failed)
}

/// Changes a byte of what was read.
fn spoil(guard: &mut RingGuard, id: Id, number: u64, result: i32) {
    let Some(chaos) = &mut guard.chaos else { return };
    let Some(place) = chaos.spoiled.iter().position(|(of, _)| *of == number) else { return };
    let (_, address) = chaos.spoiled.swap_remove(place);
    let Some(draw) = chaos.draw(Rule::Corrupt, number).filter(|_| result > 0) else { return };
    let at = address.wrapping_add(draw.below(result as u64));
    if user_read::<u8>(at).and_then(|byte| user_write(at, &(byte ^ 0x20))).is_ok() {
        let what = format!("byte {} is wrong", at.wrapping_sub(address));
        guard.note(Rule::Corrupt, number, About::Request(id), &what);
    }
}

/// A multishot request has a result: whether it ends with it.
#[cold]
pub fn ends_multishot(guard: &mut RingGuard, id: Id) -> bool {
    let Some(chaos) = &mut guard.chaos else { return false };
    chaos.shots += 1;
    let (ends, shots) = (chaos.draw(Rule::Multishot, chaos.shots).is_some(), chaos.shots);
    if ends {
        guard.note(Rule::Multishot, shots, About::Request(id), "ends");
    }
    ends
}

/// The CQE of a multishot request has been posted: perhaps a poll tells it once more; perhaps it, and what is with it, finds the CQ
/// full.
#[cold]
pub fn after_shot(guard: &mut RingGuard, id: Id, cqe: Cqe) {
    let polls = guard.slab.get(id).is_some_and(|request| request.op.poll().is_some());
    let Some(chaos) = &guard.chaos else { return };
    let shots = chaos.shots;
    if polls && guard.has_room() && chaos.draw(Rule::Spurious, shots).is_some() {
        guard.note(Rule::Spurious, shots, About::Request(id), "told twice");
        guard.post(cqe, Poster::Task);
    }
    let Some(chaos) = &guard.chaos else { return };
    // A thread of ours asks all the time on a polled ring.
    if !guard.is_polled() && chaos.draw(Rule::Overflow, shots).is_some() {
        guard.note(Rule::Overflow, shots, About::Request(id), "to the backlog");
        guard.flush_to_backlog();
        // Where the program waits it has asked, and gets it.
        let ring = guard.ring();
        let waits = ring.driver.handover.has_thread() || ring.sleepers.load(Ordering::Relaxed) != 0;
        if let Some(chaos) = &mut guard.chaos {
            chaos.keeps_backlog = !waits;
        }
    }
}

/// The calling thread enters the ring, or leaves it.
#[cold]
pub fn note_caller(guard: &mut RingGuard, caller: Option<Caller>) {
    if let Some(chaos) = guard.chaos.as_mut() {
        chaos.caller = caller;
    }
}

/// What is done to an io_uring_enter(2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// Nothing.
    None,
    /// It takes so many SQEs only, and does not wait then (`io_uring_enter` in io_uring/io_uring.c).
    Fewer(u32),
    /// Its wait is interrupted, as by a signal.
    Interrupted,
}

/// What becomes of an io_uring_enter(2) that submits so many, and perhaps asks for events, and waits.
///
/// # Errors
/// EAGAIN, with which nothing was submitted: there is no memory for a request. EBUSY, likewise: the CQ has no room for the backlog.
#[cold]
pub fn at_enter(guard: &mut RingGuard, to_submit: u32, asks: bool, waits: bool) -> Result<Change, Errno> {
    let has_cqes = !guard.cq_is_empty();
    let Some(chaos) = &mut guard.chaos else { return Ok(Change::None) };
    chaos.enters += 1;
    let number = chaos.enters;
    if asks && has_cqes && chaos.keeps_backlog && chaos.draw(Rule::Busy, number).is_some() {
        guard.note(Rule::Busy, number, About::Enter, "EBUSY");
        return Err(Errno::BUSY);
    }
    chaos.keeps_backlog &= !asks;
    lint::enters(guard);
    let Some(chaos) = &guard.chaos else { return Ok(Change::None) };
    let Some(draw) = chaos.draw(Rule::Enter, number) else { return Ok(Change::None) };
    let there = waiting_sqes(guard, to_submit);
    let fewer = fewer_sqes(guard, there, draw);
    match (draw.below(3), fewer) {
        (0, _) if there != 0 => {
            guard.note(Rule::Enter, number, About::Enter, "EAGAIN");
            Err(Errno::AGAIN)
        }
        (1, Some(fewer)) => {
            guard.note(Rule::Enter, number, About::Enter, &format!("{fewer} of {there} SQEs"));
            Ok(Change::Fewer(fewer))
        }
        _ if waits && !guard.is_asked() => {
            guard.note(Rule::Enter, number, About::Enter, "the wait is interrupted");
            Ok(Change::Interrupted)
        }
        _ => Ok(Change::None),
    }
}

/// How many SQEs an enter finds that submits so many.
fn waiting_sqes(guard: &RingGuard, to_submit: u32) -> u32 {
    let view = guard.memory.view;
    let head = guard.control.header().sq_head.load(Ordering::Relaxed);
    let there = view.load(word::SQ_TAIL).map_or(0, |tail| tail.wrapping_sub(head));
    there.min(view.layout().sq_entries).min(to_submit)
}

/// How many SQEs, fewer than are there, an enter may take without breaking a chain; none where there are not two to take.
fn fewer_sqes(guard: &RingGuard, there: u32, draw: Draw) -> Option<u32> {
    let view = guard.memory.view;
    let head = guard.control.header().sq_head.load(Ordering::Relaxed);
    let most = there.checked_sub(1).filter(|most| *most != 0)?;
    let ends_chain = |count: &u32| {
        let index = view.sq_index(head.wrapping_add(*count - 1)).ok().filter(|at| *at < view.layout().sq_entries);
        let flags = index.and_then(|index| view.sqe(index).ok()).map_or(0, |sqe| sqe.flags);
        flags & (IOSQE_IO_LINK | IOSQE_IO_HARDLINK) == 0
    };
    (draw.part_of(most as usize) as u32..=most).find(ends_chain)
}
