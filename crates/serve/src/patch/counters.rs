//! Counts the traps of each instruction. Signal handlers count, so there is no lock.

use super::COUNTED;
use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

/// Number of traps after which an instruction is patched.
const TRAPS: u32 = 64;

/// Counts the traps of the instruction with the return address `return_address`.
struct Counter {
    return_address: AtomicUsize,
    traps: AtomicU32,
}

static COUNTERS: [Counter; COUNTED] =
    [const { Counter { return_address: AtomicUsize::new(0), traps: AtomicU32::new(0) } }; COUNTED];

/// Counts a trap of the instruction that ends at `return_address`. True when it is time to patch it. Async-signal-safe.
pub fn count(return_address: usize) -> bool {
    counter(return_address).is_some_and(|counter| counter.traps.fetch_add(1, Ordering::Relaxed) + 1 == TRAPS)
}

/// Restarts the count of the instruction before `return_address`.
pub fn restart(return_address: usize) {
    if let Some(counter) = counter(return_address) {
        counter.traps.store(0, Ordering::Relaxed);
    }
}

fn counter(return_address: usize) -> Option<&'static Counter> {
    let own = COUNTERS.iter().find(|counter| counter.return_address.load(Ordering::Relaxed) == return_address);
    own.or_else(|| {
        COUNTERS.iter().find(|counter| {
            let mine = |seen| seen == 0 || seen == return_address;
            counter
                .return_address
                .compare_exchange(0, return_address, Ordering::Relaxed, Ordering::Relaxed)
                .map_or_else(mine, mine)
        })
    })
}

/// Frees the counters of instructions that are no longer mapped. Restarts those for which `starts_anew` is true.
pub fn forget(is_mapped: impl Fn(usize) -> bool, starts_anew: impl Fn(usize) -> bool) {
    for counter in &COUNTERS {
        let return_address = counter.return_address.load(Ordering::Relaxed);
        if return_address != 0 && !is_mapped(return_address) {
            counter.traps.store(0, Ordering::Relaxed);
            counter.return_address.store(0, Ordering::Relaxed);
        } else if starts_anew(return_address) {
            counter.traps.store(0, Ordering::Relaxed);
        }
    }
}
