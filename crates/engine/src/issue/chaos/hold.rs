//! Requests that the rules `late`, `lifetimes` and `edge` hold back, and their release.
//!
//! A request that is held back waits for a timer, like a TIMEOUT. It keeps the resources that it names: its file and
//! its registered buffer.

use super::{edge, is_notification, About, ASIDE_NS, HELD_BACK_NS, NUMBER, OVERTAKEN_BY, UNORDERED, WAS_HELD};
use crate::chaos::rules::Rule;
use crate::chaos::HeldBack;
use crate::descriptors::record_use;
use crate::op::fs::Fs;
use crate::op::{row, FileUse, Op};
use crate::os::{file_status, Clock};
use crate::request::{self, Id, Request, Target};
use crate::ring::{RingGuard, State};
use crate::Errno;
use anyring_abi::Opcode;

/// True if a request may be held back. If a ring defers completions, only its owner releases requests, and the owner
/// may wait elsewhere for the effect of a send or a write. On such a ring only requests that take data in are held
/// back, and only if nothing else depends on their order.
pub(super) fn may_be_held(guard: &RingGuard, request: &Request) -> bool {
    use Opcode::*;
    let takes = matches!(
        request.opcode,
        Read | Readv | ReadFixed | ReadvFixed | ReadMultishot | Recv | Recvmsg | Accept | Statx | EpollWait
    );
    let keeps_order = || {
        let fd = guard.number_of(&request.target).unwrap_or(-1);
        request.number & UNORDERED == 0 && file_status(fd).is_ok_and(|status| status.has_blocks())
    };
    let empties_slot = matches!(request.op, Op::Fs(Fs::Close { slot: 1.., .. })); // never waits in the kernel
    may_wait_long(request.opcode) && !empties_slot && (!guard.ring().defers() || (takes && !keeps_order()))
}

/// True if a request of this opcode may wait in the kernel, at least for a device, a server or memory.
fn may_wait_long(opcode: Opcode) -> bool {
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
            | Close
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
            | EpollWait
            | Getxattr
            | Fgetxattr
    );
    transfers || calls
}

/// The way in which a request is held back.
#[derive(Clone, Copy)]
pub(super) struct Hold {
    pub(super) rule: Rule,
    pub(super) turn: u64,
    pub(super) ns: u64,
    pub(super) flag: u64,
    pub(super) what: &'static str,
}

/// Returns how a rule holds a request back; `None` if no rule does.
pub(super) fn drawn_hold(state: &RingGuard, id: Id) -> Option<Hold> {
    let (chaos, request) = (state.chaos.as_ref()?, state.slab.get(id)?);
    let number = request.number & NUMBER;
    if let Some(hold) = edge::hold(state, id) {
        return Some(hold);
    }
    if !may_be_held(state, request) {
        return None;
    }
    let is_watched = chaos.lifetimes.iter().any(|lifetime| lifetime.id == id);
    let rules = if is_watched { &[Rule::Late, Rule::Lifetimes][..] } else { &[Rule::Late] };
    let (rule, draw) = rules.iter().find_map(|rule| Some((*rule, chaos.draw(*rule, number)?)))?;
    let ns = if draw.below(4) == 0 { ASIDE_NS } else { HELD_BACK_NS };
    Some(Hold { rule, turn: number + draw.below(OVERTAKEN_BY), ns, flag: 0, what: "held back" })
}

/// Holds a request back until the program waits for it or some time has passed. Later requests on the same stream are
/// held back after it. True if the request must not begin now.
pub(super) fn holds_back(guard: &mut RingGuard, id: Id, drawn: Option<Hold>) -> bool {
    let joins = guard.slab.get(id).is_some_and(|request| !guard.ring().defers() || may_be_held(guard, request));
    let state = &mut **guard;
    let (Some(chaos), Some(request)) = (&mut state.chaos, state.slab.get(id)) else { return false };
    if request.number & WAS_HELD != 0 {
        return false;
    }
    let number = request.number & NUMBER;
    let has_file = row(request.opcode).is_some_and(|row| row.file == FileUse::File);
    let stream = request.target.number().filter(|_| has_file && request.number & UNORDERED == 0);
    let same = |held: &&HeldBack| stream.is_some() && held.stream == stream;
    let before = chaos.held.iter().filter(|held| joins && same(held)).map(|held| (held.turn.0, held.until_ns));
    let before = before.reduce(|one, other| (one.0.max(other.0), one.1.max(other.1)));
    if drawn.is_none() && before.is_none() {
        return false;
    }
    let (after, not_before_ns) = before.unwrap_or((0, 0));
    let turn = drawn.map_or(0, |hold| hold.turn).max(after);
    // A request that follows another on a stream also keeps its order in the timers.
    let until_ns = Clock::Monotonic.now_ns().saturating_add(drawn.map_or(0, |hold| hold.ns)).max(not_before_ns);
    // Without memory for the timer, the request is not held back.
    if chaos.held.try_reserve(1).is_err() || state.timers.make_room(Clock::Monotonic, state.slab.len()).is_err() {
        return false;
    }
    chaos.held.push(HeldBack { turn: (turn, number), id, stream, until_ns });
    if let Some(hold) = drawn {
        state.log(hold.rule, number, About::Request(id), hold.what);
    }
    if let Err(error) = keep_resources(guard, id) {
        if let Some(chaos) = &mut guard.chaos {
            chaos.forget_held(id);
        }
        guard.finish(id, -error.raw_os_error(), true);
        return true;
    }
    let state = &mut **guard;
    let request = &mut state.slab[id];
    if let Target::Number(fd) = request.target {
        record_use(fd); // so that its close is noticed
    }
    request.number |= WAS_HELD | drawn.map_or(0, |hold| hold.flag);
    wait_for_timer(guard, id, until_ns);
    guard.arm_link_timeout(id);
    true
}

/// Makes a request keep the registered files and buffers that it names, and its second file (the input of a SPLICE).
fn keep_resources(guard: &mut RingGuard, id: Id) -> Result<(), Errno> {
    guard.keep_file(id)?;
    let fd = guard.number_of(&guard.slab[id].target)?;
    let mut op = core::mem::take(&mut guard.slab[id].op);
    let found = op.look_up(guard, fd);
    if let Some(new) = op.own_names() {
        guard.poll_set.forget(new);
    }
    guard.slab[id].op = op;
    found
}

/// Makes a request wait for a timer. The caller has made room for the timer.
pub(super) fn wait_for_timer(guard: &mut RingGuard, id: Id, until_ns: u64) {
    let state = &mut **guard;
    let request = &mut state.slab[id];
    request.deadline_ns = until_ns;
    request.time();
    state.slab.set_scattered(true);
    state.timers.insert(&mut state.slab, Clock::Monotonic, id);
    guard.work_appeared(true);
}

/// True if a cancel must not find the waiting request. It stands for the notification of a zero-copy send, or would not
/// wait in the kernel.
pub fn is_out_of_reach(request: &Request) -> bool {
    is_notification(request) || request.opcode == Opcode::TimeoutRemove
}

/// Takes the timer off a request that is held back, since the request continues or ends.
#[cold]
pub fn stop_timer(state: &mut State, id: Id) {
    if let Some(chaos) = &mut state.chaos {
        chaos.forget_held(id);
        state.timers.remove(&mut state.slab, Clock::Monotonic, id);
    }
}

/// Queues a request that was held back, after those that are ready.
#[cold]
pub fn release(guard: &mut RingGuard, id: Id) {
    guard.slab[id].make_ready();
    guard.queue.push(id);
}

/// True if a request was released and has not begun. In the kernel it would be in progress.
pub fn was_released(request: &Request) -> bool {
    request.number & WAS_HELD != 0 && matches!(request.state(), request::State::Ready)
}

/// Releases, when the program waits, one request that was held back, or the backlog. False if there is neither.
#[cold]
pub fn let_next_go(guard: &mut RingGuard) -> bool {
    if guard.chaos.as_mut().is_some_and(|chaos| core::mem::take(&mut chaos.keeps_backlog)) {
        return true;
    }
    while let Some(next) = guard.chaos.as_mut().and_then(|chaos| chaos.take_next_held()) {
        // A forked child has none of the parent's requests.
        if guard.slab.get(next.id).is_some_and(|request| matches!(request.state(), request::State::Timed)) {
            let id = guard.stop_timer(next.id).id();
            release(guard, id);
            return true;
        }
    }
    false
}
