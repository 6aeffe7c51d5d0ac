//! Carries out the disturbances that the module `chaos` decides on. The functions here are called at a few points
//! of a request's life, always with the ring's lock held. Only a ring that has a [`Chaos`](crate::chaos::Chaos)
//! calls them.
//!
//! Every request of such a ring gets a slot, even a request that would complete inline. So each request can be held
//! back, and every way to a result passes through `finish`. `hold` holds requests back, `edge` races with timeouts,
//! `lifetime` watches memory.

mod edge;
mod hold;
mod lifetimes;

pub use edge::{fires, outlasts_count, outruns_timeout};
pub use hold::{is_out_of_reach, let_next_go, release, stop_timer, was_released};

use crate::chaos::caller::Caller;
use crate::chaos::rules::Rule;
use crate::chaos::{Draw, HeldBack, Subject};
use crate::event::Kind;
use crate::issue::lint;
use crate::memory::layout::word;
use crate::op::fs::Fs;
use crate::op::Op;
use crate::os::{file_status, user_read, user_write, Clock};
use crate::request::{Id, Request, Target};
use crate::ring::batch::Poster;
use crate::ring::{RingGuard, State};
use crate::Errno;
use anyring_abi::{Cqe, Opcode, Sqe, IOSQE_BUFFER_SELECT, IOSQE_IO_HARDLINK, IOSQE_IO_LINK};
use core::sync::atomic::Ordering;

/// The longest time for which a request is held back while the program does not wait for it.
const HELD_BACK_NS: u64 = 20_000_000;
/// The time for which a request is held back so that an engine thread makes it while the program does something else.
const ASIDE_NS: u64 = 1_000;
/// The most requests that may overtake a request that is held back.
const OVERTAKEN_BY: u64 = 8;
/// Bit of a request's `number`: the request was held back already.
const WAS_HELD: u64 = 1 << 63;
/// Bit of a request's `number`: its file keeps no order, since each transfer names its position.
const UNORDERED: u64 = 1 << 62;
/// Bit of a request's `number`: the request stands for the notification of a zero-copy send.
const NOTIFICATION: u64 = 1 << 61;
/// The remaining bits of a request's `number`: the number of its SQE.
pub(super) const NUMBER: u64 = edge::FIRES - 1;

/// The most bytes for a request that chooses its buffer, if the buffer's size is the only limit.
const SOME_BYTES: usize = 64;

/// The subject of an injection.
#[derive(Clone, Copy)]
enum About {
    /// A call of io_uring_enter(2).
    Enter,
    /// A request in the slab.
    Request(Id),
    /// A request that has no slot yet, or has just given it back.
    AtHand(Subject),
}

impl State {
    /// Disturbs an SQE that is taken in: the operation may ask for fewer bytes from now on. Sets `sqes`, which becomes
    /// the request's `number`.
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
                self.log(Rule::Nobufs, number, about, "a byte for each buffer");
            } else if let Some(draw) = chaos.draw(Rule::Short, number) {
                let most = if selects && bytes == 1 { SOME_BYTES } else { bytes.saturating_sub(1) };
                if most != 0 {
                    let kept = draw.part_of(most);
                    op.cut(kept);
                    self.log(Rule::Short, number, about, &format!("at most {kept} bytes"));
                }
            }
        }
        let reads = matches!(opcode, Opcode::Read | Opcode::Recv) && sqe.flags & IOSQE_BUFFER_SELECT == 0;
        let Some(chaos) = self.chaos.as_mut().filter(|_| reads) else { return };
        if chaos.draw(Rule::Corrupt, number).is_some() {
            chaos.spoiled.push((number, sqe.addr));
        }
    }

    /// Records an injection in the log and in the trace.
    fn log(&mut self, rule: Rule, position: u64, about: About, what: &str) {
        let subject = match about {
            About::Enter => None,
            About::Request(id) => self.subject(id),
            About::AtHand(subject) => Some(subject),
        };
        let Some(chaos) = &self.chaos else { return };
        chaos.log(rule, position, subject, what);
        let name = chaos.name(rule, position);
        match about {
            About::Enter => self.record(|it| it.chaos(Kind::Injection, false, name)),
            About::Request(id) => self.record_of(id, |it| it.chaos(Kind::Injection, true, name)),
            About::AtHand(_) => self.record(|it| it.chaos(Kind::Injection, true, name)),
        }
    }

    /// Returns the opcode and `user_data` of a request, for the log.
    fn subject(&self, id: Id) -> Option<Subject> {
        let request = self.slab.get(id)?;
        Some(Subject { opcode: request.opcode.name(), user_data: request.user_data })
    }
}

fn is_socket_or_pipe(fd: i32) -> bool {
    file_status(fd).is_ok_and(|status| matches!(status.kind, libc::S_IFSOCK | libc::S_IFIFO))
}

/// Disturbs a request whose turn has come. True if the request must not be issued now: it has failed, or is held back.
#[cold]
pub fn intervenes(guard: &mut RingGuard, id: Id) -> bool {
    if guard.slab.get(id).is_some_and(is_notification) {
        notify(guard, id);
        return true;
    }
    if guard.slab.get(id).is_some_and(|request| request.number & WAS_HELD == 0) {
        lint::begins(guard, id);
        lifetimes::begin_fill(guard, id);
    }
    lifetimes::begin_lifetime(guard, id);
    if let Some(error) = failure(guard, id) {
        guard.finish(id, -error.raw_os_error(), true);
        return true;
    }
    if edge::is_too_late(guard, id) {
        guard.finish(id, -Errno::ALREADY.raw_os_error(), true);
        return true;
    }
    let drawn = hold::drawn_hold(guard, id);
    hold::holds_back(guard, id, drawn)
}

/// Returns the error with which a request fails without being attempted.
fn failure(state: &mut State, id: Id) -> Option<Errno> {
    let (chaos, request) = (state.chaos.as_ref()?, state.slab.get(id)?);
    let number = request.number & NUMBER;
    if request.number & WAS_HELD != 0 {
        return None; // this was drawn before
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
    state.log(rule, number, About::Request(id), "fails");
    Some(error)
}

/// True if the request stands for the notification of a zero-copy send.
fn is_notification(request: &Request) -> bool {
    request.number & NOTIFICATION != 0
}

/// True if the notification of a zero-copy send that has ended comes later. Another request then stands for the
/// notification.
#[cold]
pub fn delays_notification(guard: &mut RingGuard, opcode: Opcode, number: u64, sent: &Cqe) -> bool {
    let state = &mut **guard;
    let number = number & NUMBER;
    let Some(chaos) = &mut state.chaos else { return false };
    let Some(draw) = chaos.draw(Rule::Notify, number) else { return false };
    let room = state.slab.has_room() && chaos.held.try_reserve(1).is_ok();
    if !room || state.timers.make_room(Clock::Monotonic, state.slab.len() + 1).is_err() {
        return false;
    }
    let subject = Subject { opcode: opcode.name(), user_data: sent.user_data };
    state.log(Rule::Notify, number, About::AtHand(subject), "its notification is late");
    let mut request = Request::new(Op::default(), opcode, 0, sent.user_data, Target::None);
    request.number = number | NOTIFICATION;
    request.cqe_flags = sent.flags;
    let id = state.slab.insert(request);
    let until_ns = Clock::Monotonic.now_ns().saturating_add(HELD_BACK_NS);
    if let Some(chaos) = &mut state.chaos {
        let turn = (number + draw.below(OVERTAKEN_BY), number);
        chaos.held.push(HeldBack { turn, id, stream: None, until_ns });
    }
    hold::wait_for_timer(guard, id, until_ns);
    true
}

/// Posts the notification that the request stands for.
fn notify(guard: &mut RingGuard, id: Id) {
    if let Some(request) = guard.slab.get(id) {
        let (user_data, cqe_flags) = (request.user_data, request.cqe_flags);
        guard.slab.remove(id);
        guard.post_notification(user_data, cqe_flags);
    }
    guard.release_held();
}

/// Returns a request's result and whether it failed: unchanged, or replaced by another legal outcome.
#[cold]
pub fn result(guard: &mut RingGuard, id: Id, result: i32, failed: bool) -> (i32, bool) {
    let subject = guard.subject(id);
    let state = &mut **guard;
    let (Some(chaos), Some(request)) = (&mut state.chaos, state.slab.get(id)) else { return (result, failed) };
    let number = request.number & NUMBER;
    let (changed, filled) = subject.map_or((false, Ok(())), |subject| chaos.end_lifetime(id, subject, result));
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
        state.log(Rule::Cancel, number, About::Request(id), "EALREADY");
        return (-Errno::ALREADY.raw_os_error(), true);
    }
    if let Some(error) = close_error(state, id, result) {
        return (-error.raw_os_error(), true);
    }
    let Some(chaos) = &state.chaos else { return (result, failed) };
    if chaos.spoiled.iter().any(|(of, _)| *of == number) {
        spoil(guard, id, number, result);
    }
    (result, failed)
}

/// Returns the error that a CLOSE reports although it has closed its descriptor, as close(2) may.
fn close_error(state: &mut State, id: Id, result: i32) -> Option<Errno> {
    let (chaos, request) = (state.chaos.as_ref()?, state.slab.get(id)?);
    let number = request.number & NUMBER;
    if result != 0 || !matches!(request.op, Op::Fs(Fs::Close { slot: 0, .. })) {
        return None;
    }
    let errors = [(Rule::Eio, Errno::IO), (Rule::Eintr, Errno::INTR)];
    let (rule, error) = errors.into_iter().find(|(rule, _)| chaos.draw(*rule, number).is_some())?;
    state.log(rule, number, About::Request(id), "fails; its descriptor is closed");
    Some(error)
}

/// Changes one byte of the data that a request read.
fn spoil(guard: &mut RingGuard, id: Id, number: u64, result: i32) {
    let Some(chaos) = &mut guard.chaos else { return };
    let Some(place) = chaos.spoiled.iter().position(|(of, _)| *of == number) else { return };
    let (_, address) = chaos.spoiled.swap_remove(place);
    let Some(draw) = chaos.draw(Rule::Corrupt, number).filter(|_| result > 0) else { return };
    let at = address.wrapping_add(draw.below(result as u64));
    if user_read::<u8>(at).and_then(|byte| user_write(at, &(byte ^ 0x20))).is_ok() {
        let what = format!("byte {} is wrong", at.wrapping_sub(address));
        guard.log(Rule::Corrupt, number, About::Request(id), &what);
    }
}

/// True if a multishot request ends with its present result.
#[cold]
pub fn ends_multishot(guard: &mut RingGuard, id: Id) -> bool {
    let Some(chaos) = &mut guard.chaos else { return false };
    chaos.shots += 1;
    let (ends, shots) = (chaos.draw(Rule::Multishot, chaos.shots).is_some(), chaos.shots);
    if ends {
        guard.log(Rule::Multishot, shots, About::Request(id), "ends");
    }
    ends
}

/// Disturbs a ring after the CQE of a multishot request was posted. A poll may report its events once more. Or the CQ
/// may count as full: then this CQE and those posted with it go to the backlog.
#[cold]
pub fn after_shot(guard: &mut RingGuard, id: Id, cqe: Cqe) {
    let polls = guard.slab.get(id).is_some_and(|request| request.op.poll().is_some());
    let Some(chaos) = &guard.chaos else { return };
    let shots = chaos.shots;
    if polls && guard.has_room() && chaos.draw(Rule::Spurious, shots).is_some() {
        guard.log(Rule::Spurious, shots, About::Request(id), "reported twice");
        guard.post(cqe, Poster::Task);
    }
    let Some(chaos) = &guard.chaos else { return };
    // On a polled ring an engine thread asks for completions all the time.
    if !guard.is_polled() && chaos.draw(Rule::Overflow, shots).is_some() {
        guard.log(Rule::Overflow, shots, About::Request(id), "to the backlog");
        guard.flush_to_backlog();
        // A program that waits has asked for completions, and gets them.
        let ring = guard.ring();
        let waits = ring.driver.handover.has_thread() || ring.sleepers.load(Ordering::Relaxed) != 0;
        if let Some(chaos) = &mut guard.chaos {
            chaos.keeps_backlog = !waits;
        }
    }
}

/// Records the place from which the calling thread called io_uring_enter(2), or `None` when the thread leaves that
/// call.
#[cold]
pub fn record_caller(guard: &mut RingGuard, caller: Option<Caller>) {
    if let Some(chaos) = guard.chaos.as_mut() {
        chaos.caller = caller;
    }
}

/// The change that is made to an io_uring_enter(2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// Nothing is changed.
    None,
    /// The call takes only this many SQEs, and then does not wait (`io_uring_enter` in io_uring/io_uring.c).
    Fewer(u32),
    /// The call's wait is interrupted, as if by a signal.
    Interrupted,
}

/// Draws the change for an io_uring_enter(2) that submits `to_submit` SQEs. The call may ask for events (`asks`), and
/// may wait (`waits`).
///
/// # Errors
/// EAGAIN, as if there were no memory for a request. EBUSY, as if the CQ had no room for the backlog. In both cases
/// nothing was submitted.
#[cold]
pub fn at_enter(guard: &mut RingGuard, to_submit: u32, asks: bool, waits: bool) -> Result<Change, Errno> {
    let has_cqes = !guard.cq_is_empty();
    let Some(chaos) = &mut guard.chaos else { return Ok(Change::None) };
    chaos.enters += 1;
    let number = chaos.enters;
    if asks && has_cqes && chaos.keeps_backlog && chaos.draw(Rule::Busy, number).is_some() {
        guard.log(Rule::Busy, number, About::Enter, "EBUSY");
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
            guard.log(Rule::Enter, number, About::Enter, "EAGAIN");
            Err(Errno::AGAIN)
        }
        (1, Some(fewer)) => {
            guard.log(Rule::Enter, number, About::Enter, &format!("{fewer} of {there} SQEs"));
            Ok(Change::Fewer(fewer))
        }
        _ if waits && !guard.is_asked() => {
            guard.log(Rule::Enter, number, About::Enter, "the wait is interrupted");
            Ok(Change::Interrupted)
        }
        _ => Ok(Change::None),
    }
}

/// Number of SQEs that an io_uring_enter(2) finds, at most `to_submit`.
fn waiting_sqes(guard: &RingGuard, to_submit: u32) -> u32 {
    let view = guard.memory.view;
    let head = guard.control.header().sq_head.load(Ordering::Relaxed);
    let there = view.load(word::SQ_TAIL).map_or(0, |tail| tail.wrapping_sub(head));
    there.min(view.layout().sq_entries).min(to_submit)
}

/// Number of SQEs, fewer than `there`, that an io_uring_enter(2) may take without breaking a chain. `None` if there is
/// no such number.
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
