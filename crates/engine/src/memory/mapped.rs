//! Records the pages in which the program may have a ring's memory mapped. Calls on all other pages need no search in
//! /proc.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Bit n: a page with this hash was mapped. No bit is ever cleared, so a page unmapped since costs one needless
/// search. Relaxed: the program knows the address only from the call that sets the bit.
static PAGES: [AtomicU64; 1024] = [const { AtomicU64::new(0) }; 1024];
const PAGE: usize = 4096;

fn place(page: usize) -> (&'static AtomicU64, u64) {
    let hash = (page as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 48;
    (&PAGES[hash as usize / 64], 1 << (hash % 64))
}

/// Records that the program has `bytes` bytes of a ring's memory mapped at `address`.
pub fn record(address: usize, bytes: usize) {
    for page in address / PAGE..address.saturating_add(bytes).div_ceil(PAGE) {
        let (word, bit) = place(page);
        word.fetch_or(bit, Relaxed);
    }
}

/// True if a ring's memory may be mapped at this address.
#[inline]
pub fn may_be(address: usize) -> bool {
    let (word, bit) = place(address / PAGE);
    word.load(Relaxed) & bit != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_page_of_a_mapping_is_known_and_few_others() {
        const BASE: usize = 0x7f12_3456_7000;
        record(BASE, 2 * PAGE + 1);
        assert!((0..3).all(|page| may_be(BASE + page * PAGE) && may_be(BASE + page * PAGE + PAGE - 1)));
        let others = (3..1003).filter(|page| may_be(BASE + page * PAGE)).count();
        assert!(others < 10, "{others}");
    }
}
