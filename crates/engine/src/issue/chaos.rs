//! Disturbs a ring: does what `chaos` draws. Called at few places of a request's way, and only on a ring that has a
//! [`Chaos`](crate::chaos::Chaos), always with the ring's lock.
//!
//! Every request of such a ring gets a place, also one that would be answered on the spot, so that it can be held back, and so
//! that each way to a result comes through `finish`.

use crate::chaos::rules::Rule;
use crate::chaos::watch::{Memory, Watch};
use crate::chaos::{Draw, HeldBack, Subject};
use crate::descriptors::note_use;
use crate::issue::lint;
use crate::memory::layout::word;
use crate::op::cut::is_direct;
use crate::op::{row, Direction, FileUse, Op};
use crate::os::{file_status, user_read, user_write, Clock};
use crate::request::{self, Id, Target};
use crate::ring::{RingGuard, State};
use crate::Errno;
use anyring_abi::{Opcode, Sqe, IOSQE_BUFFER_SELECT, IOSQE_IO_HARDLINK, IOSQE_IO_LINK};
use core::mem::ManuallyDrop;
use core::sync::atomic::Ordering;

/// After this time a request is held back no more, where the program does not wait for it.
const HELD_BACK_NS: u64 = 20_000_000;
/// A request that is held back is overtaken by so many others, at most.
const OVERTAKEN_BY: u64 = 8;
/// In a request's `number`: it was held back already.
const WAS_HELD: u64 = 1 << 63;
/// In a request's `number`: its file keeps no order (a position is named for each transfer).
const UNORDERED: u64 = 1 << 62;
/// The rest of it: which SQE it was.
pub(super) const NUMBER: u64 = UNORDERED - 1;

/// What a request that chooses its buffer may get, if the buffer's size alone limits it.
const SOME_BYTES: usize = 64;

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
        let subject = Some(Subject { opcode: opcode.name(), user_data: sqe.user_data });
        let transfers = matches!(op, Op::Rw(_)) && file_status(fd).is_ok_and(|status| status.has_blocks());
        if transfers && sqe.off != u64::MAX {
            chaos.sqes |= UNORDERED;
        }
        if let Some(bytes) = op.divisible_bytes(fd) {
            let selects = sqe.flags & IOSQE_BUFFER_SELECT != 0;
            if selects && is_socket_or_pipe(fd) && chaos.draw(Rule::Nobufs, number).is_some() {
                op.cut(1);
                chaos.note(Rule::Nobufs, number, subject, "a byte for each buffer");
            } else if let Some(draw) = chaos.draw(Rule::Short, number) {
                let most = if selects && bytes == 1 { SOME_BYTES } else { bytes.saturating_sub(1) };
                if most != 0 {
                    let kept = draw.part_of(most);
                    op.cut(kept);
                    chaos.note(Rule::Short, number, subject, &format!("at most {kept} bytes"));
                }
            }
        }
        let reads = matches!(opcode, Opcode::Read | Opcode::Recv) && sqe.flags & IOSQE_BUFFER_SELECT == 0;
        if reads && chaos.draw(Rule::Corrupt, number).is_some() {
            chaos.spoiled.push((number, sqe.addr));
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
    if guard.slab.get(id).is_some_and(|request| request.number & WAS_HELD == 0) {
        lint::begins(guard, id);
        begin_fill(guard, id);
    }
    begin_watch(guard, id);
    let Some(error) = failure(guard, id) else { return holds_back(guard, id) };
    guard.finish(id, -error.raw_os_error(), true);
    true
}

/// What the request will have filled is told with its result.
fn begin_fill(guard: &mut RingGuard, id: Id) {
    let state = &mut **guard;
    let (Some(chaos), Some(request)) = (&mut state.chaos, state.slab.get(id)) else { return };
    let read = || request.op.data().filter(|(direction, _)| *direction == Direction::Read);
    chaos.begin_fill(id, || read().map(|(_, ranges)| ranges), |other| state.slab.get(other).is_none());
}

/// From a request's turn on its memory is watched. Before, another of its chain may write to it.
fn begin_watch(state: &mut State, id: Id) {
    let fd = state.slab.get(id).and_then(|request| state.number_of(&request.target).ok());
    let copies = state.iopoll.is_none() && fd.is_some_and(|fd| !is_direct(fd));
    let (Some(chaos), Some(request)) = (&mut state.chaos, state.slab.get_mut(id)) else { return };
    let number = request.number & NUMBER;
    let known = chaos.watched.iter().position(|watch| watch.id == id);
    if known.is_some_and(|place| chaos.watched[place].number == number) || !chaos.watches() {
        return;
    }
    if let Some(place) = known {
        chaos.watched.swap_remove(place); // a forked child's request has got an id of its parent's
    }
    let Some((direction, ranges)) = request.op.data().filter(|_| chaos.watched.try_reserve(1).is_ok()) else {
        return;
    };
    use Opcode::*;
    let registered = matches!(request.opcode, ReadFixed | ReadvFixed | WriteFixed | WritevFixed);
    let Some(memory) = Memory::keep(ranges, registered) else { return };
    let mut inlet = None;
    if direction == Direction::Read {
        // Neither what is to lie in a registered buffer nor what a device gets can be elsewhere.
        let Some(memory) = memory.inlet().filter(|_| copies && !registered) else { return };
        request.op.redirect(memory.as_ptr() as usize);
        inlet = Some(ManuallyDrop::new(memory));
    }
    let fd = if let Target::Number(fd) = request.target { Some(fd) } else { None };
    chaos.watched.push(Watch { id, number, fd, since_ns: Clock::Monotonic.now_ns(), memory, inlet });
}

/// The error with which a request fails without being made.
fn failure(guard: &RingGuard, id: Id) -> Option<Errno> {
    let (chaos, request) = (guard.chaos.as_ref()?, guard.slab.get(id)?);
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
        (Rule::Enomem, Errno::NOMEM, !request.op.needs_request() && !is(&[Opcode::AsyncCancel])),
    ];
    let (rule, error, _) = fails.into_iter().find(|(rule, _, of)| *of && chaos.draw(*rule, number).is_some())?;
    chaos.note(rule, number, guard.subject(id), "fails");
    Some(error)
}

/// Whether natively such a request may have to wait, for a device, a server or memory if for nothing else.
fn may_take_long(opcode: Opcode) -> bool {
    use Opcode::*;
    let transfers = matches!(
        opcode,
        Read | Write
            | Readv
            | Writev
            | ReadFixed
            | WriteFixed
            | ReadvFixed
            | WritevFixed
            | Send
            | Recv
            | Sendmsg
            | Recvmsg
    );
    let calls = matches!(
        opcode,
        Accept
            | Connect
            | Openat
            | Openat2
            | Statx
            | Fsync
            | SyncFileRange
            | Fallocate
            | Ftruncate
            | Splice
            | Tee
            | Unlinkat
            | Renameat
            | Mkdirat
            | Symlinkat
            | Linkat
            | Fadvise
            | Madvise
            | SendZc
            | SendmsgZc
            | ReadMultishot
    );
    transfers || calls
}

/// Holds a request back, until the program waits for it or some time has passed. What comes behind it on the same stream is held
/// back behind it.
fn holds_back(guard: &mut RingGuard, id: Id) -> bool {
    let state = &mut **guard;
    let (Some(chaos), Some(request)) = (&mut state.chaos, state.slab.get(id)) else { return false };
    if request.number & WAS_HELD != 0 {
        return false;
    }
    let number = request.number & NUMBER;
    let has_file = row(request.opcode).is_some_and(|row| row.file == FileUse::File);
    let stream = request.target.number().filter(|_| has_file && request.number & UNORDERED == 0);
    let same = |held: &&HeldBack| stream.is_some() && held.stream == stream;
    let before = chaos.held.iter().filter(same).map(|held| held.turn.0).max();
    let is_watched = chaos.watched.iter().any(|watch| watch.id == id);
    let rules = if is_watched { &[Rule::Late, Rule::Lifetimes][..] } else { &[Rule::Late] };
    let drawn = rules.iter().find_map(|rule| Some((*rule, chaos.draw(*rule, number)?)));
    let drawn = drawn.filter(|_| may_take_long(request.opcode));
    let turn = match (drawn, before) {
        (None, None) => return false,
        (drawn, before) => {
            let own = drawn.map_or(0, |(_, draw): (Rule, Draw)| number + draw.below(OVERTAKEN_BY));
            own.max(before.unwrap_or(0))
        }
    };
    // Where there is no memory for the timer it is not held back.
    if chaos.held.try_reserve(1).is_err() || state.timers.make_room(Clock::Monotonic, state.slab.len()).is_err() {
        return false;
    }
    chaos.held.push(HeldBack { turn: (turn, number), id, stream });
    let said = state.subject(id);
    if let (Some(chaos), Some((rule, _))) = (&state.chaos, drawn) {
        chaos.note(rule, number, said, "held back");
    }
    if guard.keep_file(id).is_err() {
        // The attempt says what is wrong with the file.
        if let Some(chaos) = &mut guard.chaos {
            chaos.forget_held(id);
        }
        return false;
    }
    let state = &mut **guard;
    let request = &mut state.slab[id];
    if let Target::Number(fd) = request.target {
        note_use(fd); // a close of it is looked at
    }
    request.number |= WAS_HELD;
    request.deadline_ns = Clock::Monotonic.now_ns().saturating_add(HELD_BACK_NS);
    request.time();
    state.slab.note_scattered(true);
    state.timers.insert(&mut state.slab, Clock::Monotonic, id);
    guard.work_appeared(true);
    guard.arm_link_timeout(id);
    true
}

/// Takes a request that is held back off the timers: it goes on, or ends.
#[cold]
pub fn stop_timer(state: &mut State, id: Id) {
    if let Some(chaos) = &mut state.chaos {
        chaos.forget_held(id);
        state.timers.remove(&mut state.slab, Clock::Monotonic, id);
    }
}

/// A request that was held back has its turn, among those that are ready.
#[cold]
pub fn let_go(guard: &mut RingGuard, id: Id) {
    guard.slab[id].make_ready();
    guard.ready.push_back(id);
}

/// The program waits: lets one request go that was held back, or the backlog. False where there is none.
#[cold]
pub fn let_next_go(guard: &mut RingGuard) -> bool {
    if guard.chaos.as_mut().is_some_and(|chaos| core::mem::take(&mut chaos.keeps_backlog)) {
        return true;
    }
    while let Some(next) = guard.chaos.as_mut().and_then(|chaos| chaos.take_next_held()) {
        // A forked child has none of its parent's requests.
        if guard.slab.get(next.id).is_some_and(|request| matches!(request.state(), request::State::Timed)) {
            let id = guard.stop_timer(next.id).id();
            let_go(guard, id);
            return true;
        }
    }
    false
}

/// What a request ends with: what it would, or something else that it might as well.
#[cold]
pub fn result(guard: &mut RingGuard, id: Id, result: i32, failed: bool) -> (i32, bool) {
    let subject = guard.subject(id);
    let state = &mut **guard;
    let (Some(chaos), Some(request)) = (&mut state.chaos, state.slab.get(id)) else { return (result, failed) };
    let number = request.number & NUMBER;
    if let Some(Err(error)) = subject.map(|subject| chaos.end_watch(id, subject, result)) {
        return (-error.raw_os_error(), true);
    }
    chaos.end_fill(id, result);
    let cancels_one = matches!(&request.op, Op::Cancel(cancel) if !cancel.all) && result == 0;
    if cancels_one && chaos.draw(Rule::Cancel, number).is_some() {
        chaos.note(Rule::Cancel, number, subject, "EALREADY");
        return (-Errno::ALREADY.raw_os_error(), true);
    }
    if chaos.spoiled.iter().any(|(of, _)| *of == number) {
        spoil(guard, id, number, result);
    }
    (result, failed)
}

/// Changes a byte of what was read.
fn spoil(guard: &mut RingGuard, id: Id, number: u64, result: i32) {
    let subject = guard.subject(id);
    let Some(chaos) = &mut guard.chaos else { return };
    let Some(place) = chaos.spoiled.iter().position(|(of, _)| *of == number) else { return };
    let (_, address) = chaos.spoiled.swap_remove(place);
    let Some(draw) = chaos.draw(Rule::Corrupt, number).filter(|_| result > 0) else { return };
    let at = address.wrapping_add(draw.below(result as u64));
    if user_read::<u8>(at).and_then(|byte| user_write(at, &(byte ^ 0x20))).is_ok() {
        chaos.note(Rule::Corrupt, number, subject, &format!("byte {} is wrong", at.wrapping_sub(address)));
    }
}

/// A multishot request has a result: whether it ends with it.
#[cold]
pub fn ends_multishot(guard: &mut RingGuard, id: Id) -> bool {
    let subject = guard.subject(id);
    let Some(chaos) = &mut guard.chaos else { return false };
    chaos.shots += 1;
    let ends = chaos.draw(Rule::Multishot, chaos.shots).is_some();
    if ends {
        chaos.note(Rule::Multishot, chaos.shots, subject, "ends");
    }
    ends
}

/// The CQE of a multishot request has been posted: perhaps it, and what is with it, finds the CQ full.
#[cold]
pub fn overflow(guard: &mut RingGuard, id: Id) {
    let Some(chaos) = &guard.chaos else { return };
    // A thread of ours asks all the time on a polled ring.
    if !guard.is_polled() && chaos.draw(Rule::Overflow, chaos.shots).is_some() {
        chaos.note(Rule::Overflow, chaos.shots, guard.subject(id), "to the backlog");
        guard.flush_to_backlog();
        // Where the program waits it has asked, and gets it.
        let ring = guard.ring();
        let waits = ring.driver.handover.has_thread() || ring.sleepers.load(Ordering::Relaxed) != 0;
        if let Some(chaos) = &mut guard.chaos {
            chaos.keeps_backlog = !waits;
        }
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
/// EAGAIN, with which nothing was submitted: there is no memory for a request.
#[cold]
pub fn at_enter(guard: &mut RingGuard, to_submit: u32, asks: bool, waits: bool) -> Result<Change, Errno> {
    let Some(chaos) = &mut guard.chaos else { return Ok(Change::None) };
    chaos.keeps_backlog &= !asks;
    chaos.enters += 1;
    let number = chaos.enters;
    lint::enters(guard);
    let Some(chaos) = &guard.chaos else { return Ok(Change::None) };
    let Some(draw) = chaos.draw(Rule::Enter, number) else { return Ok(Change::None) };
    let there = waiting_sqes(guard, to_submit);
    let fewer = fewer_sqes(guard, there, draw);
    let Some(chaos) = &guard.chaos else { return Ok(Change::None) };
    match (draw.below(3), fewer) {
        (0, _) if there != 0 => {
            chaos.note(Rule::Enter, number, None, "EAGAIN");
            Err(Errno::AGAIN)
        }
        (1, Some(fewer)) => {
            chaos.note(Rule::Enter, number, None, &format!("{fewer} of {there} SQEs"));
            Ok(Change::Fewer(fewer))
        }
        _ if waits && !guard.is_asked() => {
            chaos.note(Rule::Enter, number, None, "the wait is interrupted");
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
