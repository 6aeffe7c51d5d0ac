//! Rings whose descriptors are in epoll sets level-triggered. Their readability is brought up to date before each
//! wait.

use super::RING_NUMBERS;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// One bit for each ring number that was added level-triggered to an epoll set and not closed since. Bits are only
/// hints, since `door::update_readability` verifies the number itself. So Relaxed is enough.
static LEVEL: [AtomicU64; WORDS] = [const { AtomicU64::new(0) }; WORDS];
/// True if a bit of [`LEVEL`] was ever set. If it is false, the walk is skipped.
static ANY: AtomicBool = AtomicBool::new(false);
const WORDS: usize = (RING_NUMBERS.end - RING_NUMBERS.start) as usize / 64;
const _: () = assert!((RING_NUMBERS.end - RING_NUMBERS.start) % 64 == 0);

/// Returns the word and bit of number `fd` in [`LEVEL`].
fn place(fd: i32) -> Option<(&'static AtomicU64, u64)> {
    let index = RING_NUMBERS.contains(&fd).then(|| (fd - RING_NUMBERS.start) as usize)?;
    Some((&LEVEL[index / 64], 1 << (index % 64)))
}

/// Records that number `fd` is added level-triggered.
pub fn record(fd: i32) {
    if let Some((word, bit)) = place(fd) {
        word.fetch_or(bit, Ordering::Relaxed);
        ANY.store(true, Ordering::Relaxed);
    }
}

/// True if a number was ever added level-triggered.
#[inline]
pub fn any() -> bool {
    ANY.load(Ordering::Relaxed)
}

/// Forgets number `fd`, which is being closed.
pub fn forget(fd: i32) {
    if let (true, Some((word, bit))) = (any(), place(fd)) {
        word.fetch_and(!bit, Ordering::Relaxed);
    }
}

/// Calls `settle` for each recorded number.
pub fn for_each(mut settle: impl FnMut(i32)) {
    for (index, word) in LEVEL.iter().enumerate() {
        let mut bits = word.load(Ordering::Relaxed);
        while bits != 0 {
            settle(RING_NUMBERS.start + (index * 64) as i32 + bits.trailing_zeros() as i32);
            bits &= bits - 1;
        }
    }
}
