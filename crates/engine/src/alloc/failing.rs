//! Makes allocations fail on demand, in builds with `forced-panics`. Each attempt to get memory from the kernel, or
//! to check the reserve, is counted. From a chosen attempt on, a number of them fail.

use core::sync::atomic::{AtomicI64, Ordering};

static BEFORE: AtomicI64 = AtomicI64::new(i64::MAX);
static ENDS: AtomicI64 = AtomicI64::new(0);

/// Lets `before` more attempts succeed. Then `count` attempts in a row fail.
pub fn fail(before: i64, count: i64) {
    ENDS.store(-count, Ordering::Relaxed);
    BEFORE.store(before, Ordering::Relaxed);
}

/// True if an attempt has failed since [`fail`] was called.
pub fn has_failed() -> bool {
    BEFORE.load(Ordering::Relaxed) < 0
}

pub(super) fn fails() -> bool {
    if BEFORE.load(Ordering::Relaxed) == i64::MAX {
        return false;
    }
    let left = BEFORE.fetch_sub(1, Ordering::Relaxed) - 1;
    left < 0 && left >= ENDS.load(Ordering::Relaxed)
}
