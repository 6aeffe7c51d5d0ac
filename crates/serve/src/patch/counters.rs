//! How often each instruction has trapped, counted without a lock in signal handlers.

use super::COUNTED;
use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

/// How often an instruction has to trap before it is patched.
const TRAPS: u32 = 64;

/// How often the instruction with the return address `behind` has trapped.
struct Counter {
    behind: AtomicUsize,
    traps: AtomicU32,
}

static COUNTERS: [Counter; COUNTED] =
    [const { Counter { behind: AtomicUsize::new(0), traps: AtomicU32::new(0) } }; COUNTED];

/// Counts a trap of the instruction before `behind`: whether it is time to patch it. Async-signal-safe.
pub fn count(behind: usize) -> bool {
    counter(behind).is_some_and(|counter| counter.traps.fetch_add(1, Ordering::Relaxed) + 1 == TRAPS)
}

/// Its next traps count from the beginning.
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

/// Gives up the counters of instructions that are not mapped any more; those to which `starts_anew` applies count from the
/// beginning.
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
