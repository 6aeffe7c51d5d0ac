//! What is known of the program's numbers: which are rings', and which requests used. A lookup is one load.

use super::KNOWN_NUMBERS;
use crate::mutation::{mutated, Mutation};
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};

/// One past the highest number that a ring can have.
pub const RINGS_END: usize = KNOWN_NUMBERS.end as usize;
/// By number the ring that has it: which type that is, `process` knows.
pub static RINGS: [AtomicPtr<()>; RINGS_END] = [const { AtomicPtr::new(core::ptr::null_mut()) }; RINGS_END];

/// Bit n: some ring used descriptor number n, so a close of it must be looked at.
static USED: [AtomicU64; 1024] = [const { AtomicU64::new(0) }; 1024];

/// 1 while every close of a descriptor is seen: no `syscall` instruction of the program's could make one.
static CLOSES_SEEN: AtomicU32 = AtomicU32::new(0);

/// Says whether the entry points see every close of a descriptor number (those inside libc's stream functions too).
pub fn set_closes_are_seen(seen: bool) {
    CLOSES_SEEN.store(seen.into(), Ordering::Relaxed);
}

/// Whether what was learned of a number holds until the program is seen to close it.
#[inline]
pub fn closes_are_seen() -> bool {
    CLOSES_SEEN.load(Ordering::Relaxed) != 0 || mutated(Mutation::NothingIsVerified)
}

/// Remembers that a request used descriptor number `fd`.
#[inline]
pub fn note_use(fd: i32) {
    if let Some(word) = USED.get(fd as usize / 64) {
        let bit = 1 << (fd % 64);
        if word.load(Ordering::Relaxed) & bit == 0 {
            word.fetch_or(bit, Ordering::Relaxed);
        }
    }
}

/// Whether a request may have used it.
pub fn was_used(fd: i32) -> bool {
    // Numbers beyond the table are always looked at.
    USED.get(fd as usize / 64).is_none_or(|word| word.load(Ordering::Relaxed) & (1 << (fd % 64)) != 0)
}

/// Whether `fd` is the number of a ring of ours.
#[inline]
pub fn is_ring(fd: i32) -> bool {
    let slot = usize::try_from(fd).ok().and_then(|fd| RINGS.get(fd));
    // Relaxed: the pointer is not followed.
    slot.is_some_and(|slot| !slot.load(Ordering::Relaxed).is_null())
}

/// No request uses it any more.
pub fn forget_use(fd: i32) {
    if let Some(word) = USED.get(fd as usize / 64) {
        word.fetch_and(!(1 << (fd % 64)), Ordering::Relaxed);
    }
}

/// One past the highest number of which something can be known.
pub const NUMBERS_END: usize = if RINGS_END > 64 * USED.len() { RINGS_END } else { 64 * USED.len() };
