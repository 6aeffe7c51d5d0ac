//! Counts the traps of each instruction. Signal handlers count, so there is no lock.

use super::COUNTED;
use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

/// Number of traps after which an instruction is patched.
const TRAPS: u32 = 64;

/// Counts the traps of the instruction with the return address `behind`.
struct Counter {
    behind: AtomicUsize,
    traps: AtomicU32,
}

static COUNTERS: [Counter; COUNTED] =
    [const { Counter { behind: AtomicUsize::new(0), traps: AtomicU32::new(0) } }; COUNTED];

/// Counts a trap of the instruction that ends at `behind`. True when it is time to patch it. Async-signal-safe.
pub fn count(behind: usize) -> bool {
    counter(behind).is_some_and(|counter| counter.traps.fetch_add(1, Ordering::Relaxed) + 1 == TRAPS)
}

/// Restarts the count of the instruction before `behind`.
pub fn restart(behind: usize) {
    if let Some(counter) = counter(behind) {
        counter.traps.store(0, Ordering::Relaxed);
    }
}

fn counter(behind: usize) -> Option<&'static Counter> {
    let own = COUNTERS.iter().find(|counter| counter.behind.load(Ordering::Relaxed) == behind);
    own.or_else(|| {
        COUNTERS.iter().find(|counter| {
            let mine = |seen| seen == 0 || seen == behind;
            counter.behind.compare_exchange(0, behind, Ordering::Relaxed, Ordering::Relaxed).map_or_else(mine, mine)
        })
    })
}

/// Frees the counters of instructions that are no longer mapped. Restarts those for which `starts_anew` is true.
pub fn forget(is_mapped: impl Fn(usize) -> bool, starts_anew: impl Fn(usize) -> bool) {
    for counter in &COUNTERS {
        let behind = counter.behind.load(Ordering::Relaxed);
        if behind != 0 && !is_mapped(behind) {
            counter.traps.store(0, Ordering::Relaxed);
            counter.behind.store(0, Ordering::Relaxed);
        } else if starts_anew(behind) {
            counter.traps.store(0, Ordering::Relaxed);
        }
    }
}
