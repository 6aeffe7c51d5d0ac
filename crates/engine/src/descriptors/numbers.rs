//! Records of the program's numbers: which numbers belong to rings, and which numbers requests used. A lookup is one
//! load.

use super::KNOWN_NUMBERS;
use crate::mutation::{mutated, Mutation};
use core::ops::Range;
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};

/// One past the highest number that a ring can have.
pub const RINGS_END: usize = KNOWN_NUMBERS.end as usize;
/// The ring that has each number. The pointer is untyped in this module, and `process` knows the type.
pub static RINGS: [AtomicPtr<()>; RINGS_END] = [const { AtomicPtr::new(core::ptr::null_mut()) }; RINGS_END];

/// The lowest number that ever belonged to a ring, and one past the highest, for searches. Relaxed, as is the table.
static RINGS_SPAN: [AtomicU32; 2] = [AtomicU32::new(u32::MAX), AtomicU32::new(0)];

/// Records that number `fd` is about to belong to a ring.
pub fn mark_ring(fd: i32) {
    RINGS_SPAN[0].fetch_min(fd as u32, Ordering::Relaxed);
    RINGS_SPAN[1].fetch_max(fd as u32 + 1, Ordering::Relaxed);
}

/// Bit n: some ring used descriptor number n, so the engine must handle a close of that number.
static USED: [AtomicU64; 1024] = [const { AtomicU64::new(0) }; 1024];

/// One past the highest number whose bit was ever set, for searches.
static USED_END: AtomicU32 = AtomicU32::new(0);

/// 1 while the entry points intercept every close of a descriptor. The program then has no `syscall` instruction that
/// could close one without their notice.
static CLOSES_SEEN: AtomicU32 = AtomicU32::new(0);

/// Sets whether the entry points intercept every close of a descriptor number, including those inside libc's stream
/// functions.
pub fn set_closes_are_seen(seen: bool) {
    CLOSES_SEEN.store(seen.into(), Ordering::Relaxed);
}

/// True if facts about a number hold until an intercepted call of the program closes it.
#[inline]
pub fn closes_are_seen() -> bool {
    CLOSES_SEEN.load(Ordering::Relaxed) != 0 || mutated(Mutation::NothingIsVerified)
}

/// Records that a request used descriptor number `fd`.
#[inline]
pub fn record_use(fd: i32) {
    if let Some(word) = USED.get(fd as usize / 64) {
        let bit = 1 << (fd % 64);
        if word.load(Ordering::Relaxed) & bit == 0 {
            USED_END.fetch_max(fd as u32 + 1, Ordering::Relaxed);
            word.fetch_or(bit, Ordering::Relaxed);
        }
    }
}

/// True if a request may have used the number.
pub fn was_used(fd: i32) -> bool {
    // Numbers beyond the table always count as used.
    USED.get(fd as usize / 64).is_none_or(|word| word.load(Ordering::Relaxed) & (1 << (fd % 64)) != 0)
}

/// Returns the lowest number in `first..=last` that belongs to a ring, or that a request may have used. Numbers
/// beyond the tables are never returned.
pub fn next_known(first: u32, last: u32) -> Option<u32> {
    let end = last.saturating_add(1);
    let [lowest, highest] = [0, 1].map(|at: usize| RINGS_SPAN[at].load(Ordering::Relaxed));
    let ring = (first.max(lowest)..end.min(highest)).find(|fd| is_ring(*fd as i32));
    let used = next_bit(&USED, first..ring.unwrap_or(end).min(USED_END.load(Ordering::Relaxed)));
    used.or(ring)
}

/// Returns the lowest number in the range whose bit is set.
pub fn next_bit(words: &[AtomicU64], range: Range<u32>) -> Option<u32> {
    let end = range.end.min(64 * words.len() as u32);
    let mut first = range.start;
    while first < end {
        let bits = words[first as usize / 64].load(Ordering::Relaxed) >> (first % 64);
        if bits != 0 {
            return Some(first + bits.trailing_zeros()).filter(|found| *found < end);
        }
        first = (first / 64 + 1) * 64;
    }
    None
}

/// True if `fd` is the number of an anyring ring.
#[inline]
pub fn is_ring(fd: i32) -> bool {
    let slot = usize::try_from(fd).ok().and_then(|fd| RINGS.get(fd));
    // Relaxed: the pointer is not followed.
    slot.is_some_and(|slot| !slot.load(Ordering::Relaxed).is_null())
}

/// One past the highest number for which use by requests is recorded.
pub const NUMBERS_END: usize = 64 * USED.len();

/// Records that no request uses the number any more.
pub fn forget_use(fd: i32) {
    if let Some(word) = USED.get(fd as usize / 64) {
        word.fetch_and(!(1 << (fd % 64)), Ordering::Relaxed);
    }
}
