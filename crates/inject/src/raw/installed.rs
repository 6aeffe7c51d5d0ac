//! The filters that this library has added to the process. A filter cannot be removed, and each one makes calls slower.
//! So their number is limited, and no filter is added for instructions that earlier ones trap.
//!
//! The first [`BY_ADDRESS`] filters trap at exact addresses. Only programs that load and unload libraries get the later
//! ones. A later filter also traps a library that is loaded again elsewhere in the same 4 GiB. So a few of these
//! filters cover everything that such a program loads.
//!
//! The table is written under the lock of [`super::KNOWN`]. A child that is forked during a write has the filters that
//! were published before it.

use super::filter::{Calls, Filter, Precision};
use super::object::Known;
use anyring_engine::mutation::{mutated, Mutation};
use core::sync::atomic::{AtomicPtr, Ordering};

/// Number of filters that compare whole addresses.
const BY_ADDRESS: usize = 4;
/// The most filters. Each costs about 50 ns of every call that it has to check, such as close(2).
const MOST: usize = 32;

/// The installed filters, from the beginning; none is ever freed.
static FILTERS: [AtomicPtr<Filter>; MOST] = [const { AtomicPtr::new(core::ptr::null_mut()) }; MOST];

fn all() -> impl Iterator<Item = &'static Filter> {
    // Acquire pairs with the Release in `record`.
    let filters = FILTERS.iter().map_while(|filter| core::ptr::NonNull::new(filter.load(Ordering::Acquire)));
    // SAFETY: `record` leaks the filter that it publishes, and nobody changes it.
    filters.map(|filter| unsafe { filter.as_ref() })
}

/// True if a filter traps these calls by the `syscall` instruction that ends at the address `return_address`.
pub fn trap_at(calls: Calls, return_address: usize) -> bool {
    if mutated(Mutation::FiltersPileUp) {
        return false;
    }
    let trapped = |calls: Calls| all().any(|filter| filter.calls.include(calls) && filter.traps_at(return_address));
    match calls {
        Calls::All => trapped(Calls::OnRings) && trapped(Calls::Waits),
        calls => trapped(calls),
    }
}

/// Returns the precision of the next filter; `None` if there may be no other.
pub fn next_precision(known: &Known) -> Option<Precision<'_>> {
    match all().count() {
        _ if mutated(Mutation::FiltersPileUp) => Some(Precision::Address),
        0..BY_ADDRESS => Some(Precision::Address),
        BY_ADDRESS..MOST => Some(Precision::PlaceInPage { exempt: &known.exempt }),
        _ => None,
    }
}

/// Records a filter that was installed.
pub fn record(mut filter: Filter) {
    filter.program = Vec::new();
    let filter = Box::into_raw(Box::new(filter));
    if let Some(free) = FILTERS.iter().find(|free| free.load(Ordering::Relaxed).is_null()) {
        // Release pairs with the Acquire in `all`.
        free.store(filter, Ordering::Release);
    }
}
