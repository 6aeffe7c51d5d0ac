//! The seeds of a run: the options that name them, and the threads that take one after the other.

use anyhow::Result;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The seeds, and how many run at a time.
#[derive(clap::Args, Debug, Clone)]
pub struct Seeds {
    /// The first seed
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
    /// Number of seeds: one, or with --seconds as many as there is time for
    #[arg(long)]
    runs: Option<u64>,
    /// End after this many seconds, with the seeds run so far
    #[arg(long)]
    seconds: Option<u64>,
    /// Processes at a time
    #[arg(long, default_value_t = 2)]
    jobs: usize,
    /// End at the first finding
    #[arg(long)]
    first: bool,
}

impl Seeds {
    /// Returns the seeds, in case there is time for all of them.
    pub fn range(&self) -> Range<u64> {
        let runs = self.runs.unwrap_or(if self.seconds.is_some() { u64::MAX } else { 1 });
        self.seed..self.seed.saturating_add(runs)
    }

    /// Starts the clock. Returns a function that says whether the time is over.
    pub fn clock(&self) -> impl Fn() -> bool {
        let (start, limit) = (Instant::now(), self.seconds.map(Duration::from_secs));
        move || limit.is_some_and(|limit| start.elapsed() > limit)
    }

    /// Passes the seeds to `work` on several threads, `size` at a time. `work` says whether it found something. An
    /// error of one thread ends all.
    pub fn in_batches(&self, size: u64, work: impl Fn(Range<u64>) -> Result<bool> + Sync) -> Result<()> {
        let (end, late) = (self.range().end, self.clock());
        // Relaxed: a number that each thread gets once, and a hint; they publish nothing.
        let (next, stop) = (AtomicU64::new(self.seed), AtomicBool::new(false));
        let take = || -> Result<()> {
            while !late() && !stop.load(Ordering::Relaxed) {
                let from = next.fetch_add(size, Ordering::Relaxed);
                if from >= end {
                    break;
                }
                let found = work(from..end.min(from.saturating_add(size)));
                if found.as_ref().map_or(true, |found| *found && self.first) {
                    stop.store(true, Ordering::Relaxed);
                }
                found?;
            }
            Ok(())
        };
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..self.jobs.max(1)).map(|_| scope.spawn(take)).collect();
            threads.into_iter().try_for_each(|thread| thread.join().expect("a thread of ours does not panic"))
        })
    }

    /// Passes each seed to `work`, as [`in_batches`](Self::in_batches) does.
    pub fn each(&self, work: impl Fn(u64) -> Result<bool> + Sync) -> Result<()> {
        self.in_batches(1, |seeds| work(seeds.start))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    fn seeds(seed: u64, runs: u64, first: bool) -> Seeds {
        Seeds { seed, runs: Some(runs), seconds: None, jobs: 3, first }
    }

    #[test]
    fn each_seed_is_taken_once() {
        let taken = Mutex::new(Vec::new());
        let take = |batch: Range<u64>| {
            taken.lock().expect("no thread panics").extend(batch);
            Ok(true)
        };
        seeds(5, 12, false).in_batches(5, take).expect("no error");
        let mut taken = taken.into_inner().expect("no thread panics");
        taken.sort_unstable();
        assert_eq!(taken, Vec::from_iter(5..17));
    }

    #[test]
    fn a_finding_or_an_error_ends_the_run() {
        for result in [|| Ok(true), || Err(anyhow::anyhow!("no library"))] {
            let count = AtomicU64::new(0);
            let work = |_| {
                count.fetch_add(1, Ordering::Relaxed);
                result()
            };
            let done = seeds(0, u64::MAX, true).each(work);
            assert_eq!(done.is_err(), result().is_err());
            assert!(count.into_inner() <= 3, "each thread sees it at its next seed");
        }
    }

    #[test]
    fn the_number_of_seeds_is_one_or_as_many_as_there_is_time_for() {
        let of = |runs, seconds| Seeds { runs, seconds, ..seeds(7, 0, false) }.range();
        assert_eq!(of(None, None), 7..8);
        assert_eq!(of(Some(2), Some(1)), 7..9);
        assert_eq!(of(None, Some(1)), 7..u64::MAX);
    }
}
