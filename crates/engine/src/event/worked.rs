//! When a worker began and ended a request, for events. It is noted in the job by whoever runs it, without a lock, and
//! told with TASK_ADD by the ring that gets the job back.

use super::{session, Event};
use crate::thread;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// What a worker notes in a job. All zero where nobody listens. Relaxed everywhere: the job's stage and the way back to
/// the ring hand it over.
#[derive(Default)]
pub struct WorkTimes {
    thread: AtomicU32,
    began_ticks: AtomicU64,
    ended_ticks: AtomicU64,
}

impl WorkTimes {
    /// A worker begins with the job.
    #[inline]
    pub fn begin(&self) {
        if session::wanted() {
            self.thread.store(thread::id(), Ordering::Relaxed);
            self.began_ticks.store(session::now_ticks(), Ordering::Relaxed);
        }
    }

    /// It leaves it.
    #[inline]
    pub fn end(&self) {
        if session::wanted() {
            self.ended_ticks.store(session::now_ticks(), Ordering::Relaxed);
        }
    }

    /// In `event`, a TASK_ADD, as it stands in the file.
    pub(crate) fn put_into(&self, event: &mut Event) {
        let began = self.began_ticks.load(Ordering::Relaxed);
        event.fd = self.thread.load(Ordering::Relaxed) as i32;
        event.offset = began;
        set_took(event, self.ended_ticks.load(Ordering::Relaxed).saturating_sub(began));
    }
}

/// Who had a request, and when: what TASK_ADD tells of a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Worked {
    /// The worker's thread.
    pub thread: u32,
    /// CLOCK_MONOTONIC when it began, in nanoseconds.
    pub began_ns: u64,
    /// For how long it had it.
    pub took_ns: u64,
}

impl Event {
    /// Of a TASK_ADD with which a worker brought the request back: when it had it. The kernel's does not tell.
    pub fn worked(&self) -> Option<Worked> {
        let took_ns = u64::from(self.result as u32) | u64::from(self.flags) << 32;
        let is_told = self.kind == super::Kind::TaskAdd && self.offset != 0;
        is_told.then_some(Worked { thread: self.fd as u32, began_ns: self.offset, took_ns })
    }

    /// Turns what [`worked`](Self::worked) tells from ticks into nanoseconds: a moment, and how long something took.
    pub(crate) fn convert_worked(&mut self, moment: impl Fn(u64) -> u64, rate: f64) {
        if let Some(worked) = self.worked() {
            self.offset = moment(worked.began_ns);
            set_took(self, (worked.took_ns as f64 * rate) as u64);
        }
    }
}

fn set_took(event: &mut Event, took: u64) {
    (event.result, event.flags) = (took as u32 as i32, (took >> 32) as u32);
}
