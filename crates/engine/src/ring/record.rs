//! Records the events of the ring for a tracer, if a tracer wants them. `event` has the format.
//!
//! This belongs to a ring's state, and is guarded by the ring's lock.

use super::{Ring, RingGuard, State};
use crate::chaos::caller::Caller;
use crate::event::{follow, Room};
use crate::request::Id;
use crate::ring::recorder::Recorder;
use crate::ring::table;
use crate::stats;
use core::sync::atomic::Ordering;
use std::sync::Arc;

/// Returns the place from which the program calls. The caller holds no ring: a walk over the stack takes the dynamic
/// linker's lock.
pub fn here() -> Option<Caller> {
    Caller::here()
}

impl State {
    /// Calls `say` to record an event, if the ring has a recorder.
    #[inline]
    pub fn record(&mut self, say: impl FnOnce(&mut Recorder)) {
        if let Some(recorder) = &mut self.recorder {
            say(recorder);
        }
    }

    /// Calls `say` to record an event of a request in the slab, if the ring has a recorder.
    #[inline]
    pub fn record_of(&mut self, id: Id, say: impl FnOnce(&mut Recorder)) {
        let Some(recorder) = &mut self.recorder else { return };
        if let Some(request) = self.slab.get(id) {
            recorder.of_placed(id, request.user_data, request.opcode, say);
        }
    }

    /// Notices whether chaos or a tracer watches the program's calls.
    pub fn notice_watchers(&mut self) {
        self.is_watched = self.chaos.is_some() || self.recorder.is_some();
    }

    /// True if the stack of the thread that makes this call is to be taken. `submits`: the call submits requests.
    #[cold]
    pub fn wants_caller(&mut self, submits: bool) -> bool {
        self.chaos.is_some() || submits && self.recorder.as_mut().is_some_and(|it| it.wants_caller())
    }
}

/// Starts or stops recording on this ring and on the process's other rings. For a long time only workers and the helper
/// may use those rings, and they do not check for a tracer.
#[cold]
#[inline(never)]
pub(crate) fn follow_tracer(guard: &mut RingGuard) {
    let wanted = stats::stats().tracer.wanted.load(Ordering::Relaxed);
    let Ok(room) = follow(wanted) else { return };
    record_into(guard, wanted, room.as_ref());
    let me = guard.ring();
    for ring in table::rings().into_iter().filter(|ring| !core::ptr::eq(*ring, me)) {
        // A ring that is held starts or stops at its own next call: two rings are never waited for in turn.
        if let Some(mut other) = ring.try_lock() {
            record_into(&mut other, wanted, room.as_ref());
        }
    }
}

fn record_into(guard: &mut RingGuard, wanted: u64, room: Option<&Arc<Room>>) {
    guard.tracer_seen = wanted;
    let is_there = match (&guard.recorder, room) {
        (Some(recorder), Some(room)) => recorder.is_in(room),
        (recorder, room) => recorder.is_none() && room.is_none(),
    };
    if is_there || guard.is_closed() && room.is_some() {
        return;
    }
    guard.recorder = room.map(|room| new_recorder(guard, room.clone()));
    guard.notice_watchers();
}

/// Makes the recorder of a ring that existed before the tracer came. First records the ring itself.
fn new_recorder(guard: &RingGuard, room: Arc<Room>) -> Box<Recorder> {
    let ring: &Ring = guard.ring();
    if let Some(context) = &guard.aio {
        let [requests, places] = context.size();
        return Recorder::of_context(room, context.address(), requests, places);
    }
    let layout = guard.memory.view.layout();
    let flags = ring.flags.load(Ordering::Relaxed);
    Recorder::of_ring(room, ring.fd.load(Ordering::Relaxed), [layout.sq_entries, layout.cq_entries], flags)
}
