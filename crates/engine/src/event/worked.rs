//! Times at which a worker began and ended a request, for events. The worker records them in the job, without a lock.
//! The ring that gets the job back reports them with TASK_ADD.

use super::{session, Event};
use crate::thread;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// The times that a worker records in a job. All are zero if no tracer wants events. All accesses are Relaxed: the
/// job's stage and its way back to the ring order them.
#[derive(Default)]
pub struct WorkTimes {
    thread: AtomicU32,
    began_ticks: AtomicU64,
    ended_ticks: AtomicU64,
}

impl WorkTimes {
    /// Records that a worker begins the job.
    #[inline]
    pub fn begin(&self) {
        if session::wanted() {
            self.thread.store(thread::id(), Ordering::Relaxed);
            self.began_ticks.store(session::now_ticks(), Ordering::Relaxed);
        }
    }

    /// Records that a worker has ended the job.
    #[inline]
    pub fn end(&self) {
        if session::wanted() {
            self.ended_ticks.store(session::now_ticks(), Ordering::Relaxed);
        }
    }

    /// Stores the times in `event`, a TASK_ADD, in the file's encoding.
    pub(crate) fn put_into(&self, event: &mut Event) {
        let began = self.began_ticks.load(Ordering::Relaxed);
        event.fd = self.thread.load(Ordering::Relaxed) as i32;
        event.offset = began;
        set_took(event, self.ended_ticks.load(Ordering::Relaxed).saturating_sub(began));
    }
}

/// The worker that ran a request, and the time of its run, as TASK_ADD reports it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Worked {
    /// The worker's thread.
    pub thread: u32,
    /// The value of CLOCK_MONOTONIC when the worker began, in nanoseconds.
    pub began_ns: u64,
    /// The time that the worker took, in nanoseconds.
    pub took_ns: u64,
}

impl Event {
    /// The worker's times, from a TASK_ADD of a request that came back from a worker. The kernel's events have none.
    pub fn worked(&self) -> Option<Worked> {
        let took_ns = u64::from(self.result as u32) | u64::from(self.flags) << 32;
        let is_known = self.kind == super::Kind::TaskAdd && self.offset != 0;
        is_known.then_some(Worked { thread: self.fd as u32, began_ns: self.offset, took_ns })
    }

    /// Converts the times of [`worked`](Self::worked), and the beginning of a walk, from ticks to nanoseconds.
    pub(crate) fn convert_times(&mut self, moment: impl Fn(u64) -> u64, rate: f64) {
        if self.kind == super::Kind::Caller && self.offset != 0 {
            self.offset = moment(self.offset);
        }
        if let Some(worked) = self.worked() {
            self.offset = moment(worked.began_ns);
            set_took(self, (worked.took_ns as f64 * rate) as u64);
        }
    }
}

fn set_took(event: &mut Event, took: u64) {
    (event.result, event.flags) = (took as u32 as i32, (took >> 32) as u32);
}
