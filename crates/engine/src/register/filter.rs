//! IORING_REGISTER_BPF_FILTER for a ring: see [`crate::resource::filters`].

use crate::resource::filters::Registration;
use crate::ring::RingGuard;
use crate::Errno;
use core::sync::atomic::{fence, Ordering};

/// Registers a filter.
///
/// Each process on a ring has the filters in its own memory. So a ring that several processes use gets no more
/// filters. A process that joins with fewer filters than the ring has is refused (`RingGuard::join`).
pub fn register(guard: &mut RingGuard, arg: u64, count: u32) -> Result<u32, Errno> {
    if count != 1 {
        return Err(Errno::INVAL);
    }
    let registration = Registration::read(arg)?;
    let restrictions = guard.restrictions.get_or_insert_default();
    restrictions.filters.reserve()?;
    let filters = restrictions.filters.count() as u32;
    let header = guard.control.header();
    header.filters.store(filters + 1, Ordering::Relaxed);
    // Partner: the fence in `RingGuard::join`. Either this process sees the other, or the other sees the new number.
    fence(Ordering::SeqCst);
    if guard.is_shared() {
        header.filters.store(filters, Ordering::Relaxed);
        return Err(Errno::BUSY);
    }
    guard.screens = true;
    if let Some(restrictions) = &mut guard.restrictions {
        restrictions.filters.add(registration);
    }
    Ok(0)
}
