//! Tells a tracer what happens on the ring, if there is one; `event` says how.
//!
//! Part of a ring's state: under its lock.

use super::{Ring, RingGuard, State};
use crate::event::{follow, Recorder, Room};
use crate::request::Id;
use crate::{process, stats};
use core::sync::atomic::Ordering;
use std::sync::Arc;

impl State {
    /// Lets `say` say something, if anybody listens.
    #[inline]
    pub fn record(&mut self, say: impl FnOnce(&mut Recorder)) {
        if let Some(recorder) = &mut self.recorder {
            say(recorder);
        }
    }

    /// The same of a request that has a place.
    #[inline]
    pub fn record_of(&mut self, id: Id, say: impl FnOnce(&mut Recorder)) {
        let Some(recorder) = &mut self.recorder else { return };
        if let Some(request) = self.slab.get(id) {
            recorder.of_placed(id, request.user_data, request.opcode, say);
        }
    }
}

impl RingGuard {
    /// Looks whether somebody joined, or left.
    #[inline]
    pub fn listen(&mut self) {
        if stats::stats().tracer.wanted.load(Ordering::Relaxed) != self.heard {
            self.hear();
        }
    }

    /// Also for the process's other rings: they may be used by workers and the helper only, for long.
    #[cold]
    #[inline(never)]
    fn hear(&mut self) {
        let wanted = stats::stats().tracer.wanted.load(Ordering::Relaxed);
        let Ok(room) = follow(wanted) else { return };
        self.record_into(wanted, room.as_ref());
        let me = self.ring();
        for ring in process::rings().into_iter().filter(|ring| !core::ptr::eq(*ring, me)) {
            // One that is held follows at its own next call: two rings are never waited for in turn.
            if let Some(mut other) = ring.try_lock() {
                other.record_into(wanted, room.as_ref());
            }
        }
    }

    fn record_into(&mut self, wanted: u64, room: Option<&Arc<Room>>) {
        self.heard = wanted;
        let is_there = match (&self.recorder, room) {
            (Some(recorder), Some(room)) => recorder.is_in(room),
            (recorder, room) => recorder.is_none() && room.is_none(),
        };
        if is_there || self.closed && room.is_some() {
            return;
        }
        self.recorder = room.map(|room| self.new_recorder(room.clone()));
    }

    /// A recorder of this ring, which was made before: it begins by saying so.
    fn new_recorder(&self, room: Arc<Room>) -> Box<Recorder> {
        let ring: &Ring = self.ring();
        if let Some(context) = &self.aio {
            let [requests, places] = context.size();
            return Recorder::of_context(room, context.address(), requests, places);
        }
        let layout = self.memory.view.layout();
        let flags = ring.flags.load(Ordering::Relaxed);
        Recorder::of_ring(room, ring.fd.load(Ordering::Relaxed), [layout.sq_entries, layout.cq_entries], flags)
    }
}
