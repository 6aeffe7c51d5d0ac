//! Watches the memory of requests from their turn on, for the rule `lifetimes` and for the reports to sanitizers.

use super::NUMBER;
use crate::chaos::lifetimes::{Lifetime, Memory};
use crate::chaos::Fills;
use crate::op::cut::is_direct;
use crate::op::{Direction, Op};
use crate::os::Clock;
use crate::request::{Id, Target};
use crate::ring::{RingGuard, State};
use anyring_abi::Opcode;
use core::mem::ManuallyDrop;

/// Records the memory that a request fills, to report it with the request's result.
pub(super) fn begin_fill(guard: &mut RingGuard, id: Id) {
    let state = &mut **guard;
    let (Some(chaos), Some(request)) = (&mut state.chaos, state.slab.get_mut(id)) else { return };
    if !chaos.observes_fills(id) {
        return;
    }
    let (direction, data) = request.op.data().unwrap_or((Direction::Read, Vec::new()));
    let Some((_, outputs)) = parts(&mut request.op).filter(|_| direction == Direction::Read) else { return };
    if !data.is_empty() || !outputs.is_empty() {
        chaos.begin_fill(Fills { id, data, outputs }, |other| state.slab.get(other).is_none());
    }
}

/// Returns the parts of memory that a request uses in addition to its data: names, addresses and lengths. `None`
/// without memory for them.
fn parts(op: &mut Op) -> Option<(Vec<&'static str>, Vec<[usize; 2]>)> {
    let (mut names, mut ranges, mut all) = (Vec::new(), Vec::new(), true);
    op.each_part(&mut |name, address, bytes| {
        all &= names.try_reserve(1).is_ok() && ranges.try_reserve(1).is_ok();
        if all {
            names.push(name);
            ranges.push([address, bytes]);
        }
        address
    });
    all.then_some((names, ranges))
}

/// Watches a request's memory from its turn on. Before that, another request of its chain may write to the memory.
pub(super) fn begin_lifetime(state: &mut State, id: Id) {
    let fd = state.slab.get(id).and_then(|request| state.number_of(&request.target).ok());
    let copies = state.iopoll.is_none() && fd.is_some_and(|fd| !is_direct(fd));
    let (Some(chaos), Some(request)) = (&mut state.chaos, state.slab.get_mut(id)) else { return };
    let number = request.number & NUMBER;
    let known = chaos.lifetimes.iter().position(|lifetime| lifetime.id == id);
    if known.is_some_and(|place| chaos.lifetimes[place].number == number) || !chaos.checks_lifetimes() {
        return;
    }
    if let Some(place) = known {
        chaos.lifetimes.swap_remove(place); // the child of a fork has reused an id of the parent's
    }
    if chaos.lifetimes.try_reserve(1).is_err() {
        return;
    }
    let (direction, mut ranges) = request.op.data().unwrap_or((Direction::Read, Vec::new()));
    let Some((names, mut others)) = parts(&mut request.op) else { return };
    if ranges.try_reserve(others.len()).is_err() {
        return;
    }
    ranges.append(&mut others);
    use Opcode::*;
    let registered = matches!(request.opcode, ReadFixed | ReadvFixed | WriteFixed | WritevFixed);
    let Some(memory) = Memory::keep(ranges, names, registered) else { return };
    let mut inlet = None;
    if direction == Direction::Read {
        // Data for a registered buffer cannot be placed elsewhere, nor can data that a device transfers.
        let Some(ours) = memory.inlet().filter(|_| copies && !registered) else { return };
        request.op.redirect(ours.as_ptr() as usize);
        let mut places = memory.parts_at(ours.as_ptr() as usize);
        request.op.each_part(&mut |_, address, _| places.next().unwrap_or(address));
        inlet = Some(ManuallyDrop::new(ours));
    }
    let fd = if let Target::Number(fd) = request.target { Some(fd) } else { None };
    let (at, fills_on_error) = (chaos.at(), request.op.fills_on_error());
    let since_ns = Clock::Monotonic.now_ns();
    chaos.lifetimes.push(Lifetime { id, number, fd, since_ns, at, memory, inlet, fills_on_error });
}
