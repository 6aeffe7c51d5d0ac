//! Islands, the pieces of code to which patched instructions jump ([`anyring_serve::patch::island`]).
//!
//! An island makes each call that it does not serve by a `svc` of its own, since its jump takes the place of the
//! program's. The filter traps that `svc` like the program's: it covers memory that is reserved for an object's islands
//! before there is any.

use super::hot;
use super::object::Object;
use anyring_engine::os::arch::page_bytes;
use anyring_serve::patch::code::places;
use anyring_serve::patch::{island, COUNTED};
use core::ops::Range;

/// Memory for the islands of one object, in reach of its code. One page for each.
#[derive(Default)]
pub struct Region {
    start: usize,
    bytes: usize,
}

impl Region {
    /// Reserves memory for the islands of this code. It stays inaccessible until they are built. Empty if there is no
    /// free memory in reach.
    pub fn reserve(code: &Range<usize>) -> Self {
        let bytes = COUNTED * page_bytes();
        let mut places = hot::is_enabled().then(|| places(code.clone(), bytes, page_bytes())).into_iter().flatten();
        places.find(|at| island::map_at(*at, bytes)).map_or_else(Self::default, |start| Self { start, bytes })
    }

    /// Returns the addresses.
    pub fn range(&self) -> Range<usize> {
        self.start..self.start + self.bytes
    }

    /// Returns the address of a page that has no island.
    pub fn free_page(&self) -> Option<usize> {
        self.range().step_by(page_bytes()).find(|at| !island::is_at(*at))
    }
}

impl Drop for Region {
    /// Unmaps the islands with their object, whose code was unmapped.
    fn drop(&mut self) {
        if self.bytes != 0 {
            island::unmap(self.range());
        }
    }
}

/// Returns the addresses of the instructions in this code that a jump has replaced.
pub fn sites_in(code: &Range<usize>) -> impl Iterator<Item = usize> {
    island::sites_in(code.clone())
}

/// All islands, by the names that `hot.rs` uses.
pub struct Island;

impl Island {
    /// Does nothing: an object's islands are removed with its [`Region`].
    pub fn remove_unmapped(_: &[Object]) {}

    /// True if there is an island for the `svc` that ends at the address `return_address`.
    pub fn has_site_before(return_address: usize) -> bool {
        island::has_site(return_address.wrapping_sub(4))
    }
}

/// False: no instruction is moved, so no fault would be reported elsewhere.
pub fn guard_faults() -> bool {
    false
}
