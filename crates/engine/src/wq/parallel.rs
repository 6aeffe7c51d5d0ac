//! Copies from the page cache by a worker, at the same time as the submitting thread makes others. One thread copies
//! some 10 GB/s, so a program with several large reads in flight gains by each CPU that is idle. The kernel's io_uring
//! copies in the submitting thread alone.
//!
//! No call says whether a CPU is idle. So the process's CPUs, without the submitting thread's, limit the number of such
//! reads: one at a time for each, and another one that waits. A worker that begins one late had no CPU at once. Then no
//! read is given away for a while, and for longer each time.
//!
//! This state is part of the pool, under the pool's lock.

use crate::mutation::{mutated, Mutation};
use crate::op::rw::LARGE_BYTES;
use crate::os;

/// The fewest bytes, with those that the submitting thread copies meanwhile, that are worth waking a worker. Buffers of
/// less may be in this CPU's cache, and another CPU then takes several times as long to copy into them.
const LEAST_BYTES_ASLEEP: u64 = 1 << 20;
/// A worker that has not begun after this time had no CPU, in nanoseconds.
const LATE_NS: u64 = 400_000;
/// The time for which workers copy nothing after the first late copy, and after many.
const FIRST_PAUSE_NS: u64 = 10_000_000;
const LONGEST_PAUSE_NS: u64 = 1_280_000_000;

/// The pool's facts about reads that workers copy.
pub struct Parallel {
    /// Number of reads that are queued or being made.
    count: u32,
    /// The most that are made at a time; `None` before it was computed.
    most: Option<u32>,
    /// The time since which a read has waited for a worker's CPU.
    waits_since_ns: u64,
    /// The end of the pause, and its length.
    paused_until_ns: u64,
    pause_ns: u64,
}

impl Parallel {
    /// The value when nothing is queued or running.
    pub const NONE: Parallel =
        Parallel { count: 0, most: None, waits_since_ns: 0, paused_until_ns: 0, pause_ns: 0 };

    /// True if a worker should make a read of `bytes`, while the submitting thread makes about `others` like it. `awake`
    /// says that a worker spins for its next job.
    pub fn is_worth_it(&mut self, bytes: u64, others: u32, awake: bool, now_ns: u64) -> bool {
        let least = if awake { LARGE_BYTES } else { LEAST_BYTES_ASLEEP };
        if others == 0 || bytes.saturating_mul(1 + u64::from(others)) < least || now_ns < self.paused_until_ns {
            return false;
        }
        // While the submitting thread has more to do than the workers, a worker finds its next read at once.
        let most = self.most();
        self.count < if others > 2 * most { 2 * most } else { most }
    }

    fn most(&mut self) -> u32 {
        *self.most.get_or_insert_with(|| os::usable_cpus().saturating_sub(1))
    }

    /// True if a read that was just queued needs a thread, instead of waiting for one that makes another read.
    pub fn wants_thread(&self) -> bool {
        self.most.is_none_or(|most| self.count <= most)
    }

    /// Counts a read that is queued.
    pub fn record_queued(&mut self, now_ns: u64) {
        self.count += 1;
        if self.wants_thread() {
            self.waits_since_ns = now_ns;
        }
    }

    /// Records that a worker begins a read.
    pub fn record_begun(&mut self, now_ns: u64) {
        let is_late = now_ns.saturating_sub(self.waits_since_ns) > LATE_NS;
        if is_late && !mutated(Mutation::LateCopiesGoOn) {
            self.pause_ns = (2 * self.pause_ns).clamp(FIRST_PAUSE_NS, LONGEST_PAUSE_NS);
            self.paused_until_ns = now_ns + self.pause_ns;
        } else {
            self.pause_ns -= self.pause_ns / 64;
        }
    }

    /// Counts that a read has ended. The next one may begin.
    pub fn end(&mut self, now_ns: u64) {
        self.count -= 1;
        self.waits_since_ns = now_ns;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn with_cpus(cpus: u32) -> Parallel {
        Parallel { most: Some(cpus - 1), ..Parallel::NONE }
    }

    #[test]
    fn each_further_cpu_makes_one_read_and_has_the_next_one_if_there_are_many() {
        let mut parallel = with_cpus(3);
        for most in [2, 4] {
            let others = if most == 2 { 1 } else { 5 };
            while parallel.count < most {
                assert!(parallel.is_worth_it(MIB, others, false, 0));
                parallel.record_queued(0);
                assert_eq!(parallel.wants_thread(), parallel.count <= 2);
            }
            assert!(!parallel.is_worth_it(MIB, others, false, 0));
        }
        parallel.end(0);
        assert!(parallel.is_worth_it(MIB, 5, false, 0));
        assert!(!with_cpus(1).is_worth_it(MIB, 5, true, 0), "there is one CPU only");
    }

    #[test]
    fn a_worker_is_woken_for_many_bytes_only() {
        let mut parallel = with_cpus(2);
        assert!(parallel.is_worth_it(LARGE_BYTES, 1, true, 0) && !parallel.is_worth_it(LARGE_BYTES, 1, false, 0));
        assert!(parallel.is_worth_it(LARGE_BYTES, 15, false, 0));
        assert!(!parallel.is_worth_it(MIB, 0, true, 0), "the submitting thread would do nothing meanwhile");
    }

    #[test]
    fn late_workers_get_nothing_for_a_while() {
        let mut parallel = with_cpus(2);
        let mut now_ns = 0;
        let mut pauses = Vec::new();
        for _ in 0..9 {
            parallel.record_queued(now_ns);
            now_ns += LATE_NS + 1;
            parallel.record_begun(now_ns);
            parallel.end(now_ns);
            let begun_ns = now_ns;
            while !parallel.is_worth_it(MIB, 1, true, now_ns) {
                now_ns += FIRST_PAUSE_NS / 10;
            }
            pauses.push((now_ns - begun_ns) / 1_000_000);
        }
        assert_eq!(pauses, [10, 20, 40, 80, 160, 320, 640, 1280, 1280]);
        for _ in 0..1000 {
            parallel.record_queued(now_ns);
            parallel.record_begun(now_ns);
            parallel.end(now_ns);
        }
        assert!(parallel.pause_ns < FIRST_PAUSE_NS, "punctual workers are forgiven");
    }

    #[test]
    fn a_read_that_waits_for_another_one_is_not_late() {
        let mut parallel = with_cpus(2);
        parallel.record_queued(0);
        parallel.record_begun(1);
        parallel.record_queued(2);
        parallel.end(10 * LATE_NS);
        parallel.record_begun(10 * LATE_NS + 1);
        assert!(parallel.is_worth_it(MIB, 5, true, 10 * LATE_NS + 2));
    }
}
