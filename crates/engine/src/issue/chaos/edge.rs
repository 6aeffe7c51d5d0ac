//! The rule `edge` of chaos: timeouts that fire just as their request ends, their count is reached, or they are
//! removed.

use super::hold::{may_be_held, Hold};
use super::{About, ASIDE_NS, HELD_BACK_NS, NUMBER, WAS_HELD};
use crate::chaos::rules::Rule;
use crate::chaos::{Draw, NOT_BY_WAITING};
use crate::op::Op;
use crate::request::{self, Id, Request};
use crate::ring::{RingGuard, State};

/// The most time that a TIMEOUT or LINK_TIMEOUT may have left for the rule to apply.
const EDGE_NS: u64 = 100_000_000;
/// Bit of a request's `number`: the request waits for its LINK_TIMEOUT.
const AT_EDGE: u64 = 1 << 60;
/// Bit of a TIMEOUT's `number`: the TIMEOUT counts as expired.
pub(super) const FIRES: u64 = 1 << 59;

/// Returns how to hold a request back so that it races with a timeout, if the rule is drawn.
pub(super) fn hold(guard: &RingGuard, id: Id) -> Option<Hold> {
    let (chaos, request) = (guard.chaos.as_ref()?, guard.slab.get(id)?);
    let hold = |ns, flag, what| Some(Hold { rule: Rule::Edge, turn: NOT_BY_WAITING, ns, flag, what });
    if let Some((timeout, _)) = timeout_removed(guard, id).filter(|(_, draw)| draw.below(2) != 0) {
        let ns = left_ns(guard.slab.get(timeout)?)? + ASIDE_NS;
        return hold(ns, 0, "held back until its TIMEOUT has fired");
    }
    let ns = timeout_ns(guard, request).filter(|_| may_be_held(guard, request))?;
    chaos.draw(Rule::Edge, request.number & NUMBER)?;
    hold(ns + HELD_BACK_NS, AT_EDGE, "held back until its LINK_TIMEOUT")
}

/// Time until the LINK_TIMEOUT that follows a request would end it. `None` if that time is long.
fn timeout_ns(state: &State, request: &Request) -> Option<u64> {
    let after = state.slab.get(request.next?).filter(|after| after.failed.is_none())?;
    let timeout = after.op.timeout().filter(|timeout| timeout.linked)?;
    let begins_ns = if timeout.when.absolute { timeout.clock.now_ns() } else { 0 };
    Some(timeout.when.time_ns.saturating_sub(begins_ns)).filter(|left_ns| *left_ns <= EDGE_NS)
}

/// True if a LINK_TIMEOUT fires too late for a request that was held back for it. The request then ends at once, with
/// its own result or as cancelled. In the kernel a worker would be making the request and would be interrupted.
#[cold]
pub fn outruns_timeout(guard: &mut RingGuard, id: Id) -> bool {
    let (Some(chaos), Some(request)) = (&guard.chaos, guard.slab.get(id)) else { return false };
    let number = request.number & NUMBER;
    let waits = request.number & AT_EDGE != 0 && matches!(request.state(), request::State::Timed);
    if !waits || chaos.draw(Rule::Edge, number).is_none_or(|draw| draw.below(2) == 0) {
        return false;
    }
    guard.log(Rule::Edge, number, About::Request(id), "outruns its LINK_TIMEOUT, which says EALREADY");
    let id = guard.stop_timer(id).id();
    guard.slab[id].make_ready();
    guard.issue(id);
    let _is_at_a_worker = guard.cancel_one(id);
    true
}

/// True if a TIMEOUT expires although it has just counted its completions. In the kernel its interrupt may come just
/// before the last completion (`io_timeout_fn` in io_uring/timeout.c).
#[cold]
pub fn outlasts_count(guard: &mut RingGuard, id: Id) -> bool {
    let (Some(chaos), Some(request)) = (&guard.chaos, guard.slab.get(id)) else { return false };
    let number = request.number & NUMBER;
    let outlasts = left_ns(request).is_some() && chaos.draw(Rule::Edge, number).is_some();
    if outlasts {
        guard.log(Rule::Edge, number, About::Request(id), "its time passes before its count is reached");
    }
    outlasts
}

/// True if a TIMEOUT_REMOVE comes too late and answers EALREADY: its TIMEOUT counts as expired.
pub(super) fn is_too_late(guard: &mut RingGuard, id: Id) -> bool {
    let Some((timeout, _)) = timeout_removed(guard, id).filter(|(_, draw)| draw.below(2) == 0) else {
        return false;
    };
    let number = guard.slab[id].number & NUMBER;
    guard.log(Rule::Edge, number, About::Request(id), "its TIMEOUT fires: EALREADY");
    guard.slab[timeout].number |= FIRES;
    true
}

/// Returns the TIMEOUT that a TIMEOUT_REMOVE names, if it is about to fire and the rule is drawn.
fn timeout_removed(guard: &RingGuard, id: Id) -> Option<(Id, Draw)> {
    let (chaos, request) = (guard.chaos.as_ref()?, guard.slab.get(id)?);
    let Op::TimeoutRemove(remove) = &request.op else { return None };
    let draw = chaos.draw(Rule::Edge, request.number & NUMBER).filter(|_| request.number & WAS_HELD == 0)?;
    let timeout = guard.timeout_to_remove(remove).ok()?;
    left_ns(guard.slab.get(timeout)?)?;
    Some((timeout, draw))
}

/// Time that the timer of a TIMEOUT has left. `None` if that time is long.
fn left_ns(request: &Request) -> Option<u64> {
    let timeout = request.op.timeout().filter(|timeout| !timeout.linked && !timeout.multishot)?;
    Some(request.deadline_ns.saturating_sub(timeout.clock.now_ns())).filter(|left_ns| *left_ns <= EDGE_NS)
}

/// True if a TIMEOUT counts as expired.
pub fn fires(request: &Request) -> bool {
    request.number & FIRES != 0
}
