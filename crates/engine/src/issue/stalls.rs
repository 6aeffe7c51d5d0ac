//! Calls on names (STATX, UNLINKAT, OPENAT with O_CREAT ...) that go to a worker while the disk is busy.
//!
//! In the kernel a worker makes these calls. In the engine the submitting thread makes them (`issue::calls`), since
//! each call takes a tenth of the time that it takes to wake a worker. But while the disk is busy, a call that waits
//! for the file system's journal delays everything else that the thread has to submit. So the calls are timed, and
//! after long calls the next ones go to a worker.
//!
//! Belongs to a ring's state.

/// The duration from which a call counts as long: ten times the time that a worker takes to wake.
const LONG_NS: u64 = 500_000;
/// The number of long calls among the last eight that is more than chance. A single one may be chance: threads are
/// preempted.
const SEVERAL: u32 = 2;
/// The number of calls that workers then make before the submitting thread tries again.
const BY_WORKER: u8 = 64;

/// The durations of the last calls.
#[derive(Debug, Default)]
pub struct Stalls {
    /// One bit for each of the last eight calls, set if the call was long.
    long: u8,
    /// Number of calls that have yet to go to a worker.
    by_worker: u8,
}

impl Stalls {
    pub(crate) fn goes_to_worker(&mut self) -> bool {
        let goes = self.by_worker != 0;
        self.by_worker = self.by_worker.saturating_sub(1);
        goes
    }

    pub(crate) fn record(&mut self, took_ns: u64) {
        self.long = self.long << 1 | u8::from(took_ns >= LONG_NS);
        if self.long.count_ones() >= SEVERAL {
            *self = Stalls { long: 0, by_worker: BY_WORKER };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn calls_by_worker(stalls: &mut Stalls) -> usize {
        (0..1000).take_while(|_| stalls.goes_to_worker()).count()
    }

    #[test]
    fn one_long_call_is_chance() {
        let mut stalls = Stalls::default();
        for took_ns in [LONG_NS, 0, 0, 0, 0, 0, 0, 0, 0, LONG_NS, 0] {
            stalls.record(took_ns);
            assert_eq!(calls_by_worker(&mut stalls), 0);
        }
    }

    #[test]
    fn workers_make_what_follows_several_stalls_and_then_it_is_tried_again() {
        let mut stalls = Stalls::default();
        for _ in 0..3 {
            stalls.record(LONG_NS);
            stalls.record(LONG_NS - 1);
            assert_eq!(calls_by_worker(&mut stalls), 0);
            stalls.record(2 * LONG_NS);
            assert_eq!(calls_by_worker(&mut stalls), usize::from(BY_WORKER));
        }
    }
}
