//! Decides which instructions become jumps (`patch.rs`), and when.
//!
//! [`is_due`] counts the traps of each instruction, without a lock, in the handler. After enough of them the trapped
//! thread, already outside the handler, calls [`apply`] before it makes its call.
//!
//! Handlers of any thread write [`counters`]. [`apply`] runs under the lock of [`super::KNOWN`] with all signals
//! blocked, since a handler that jumps away would keep the lock.

use super::island::{self, Island};
use super::object::Object;
use super::{patch, scan, KNOWN};
use crate::environment::variable_os;
use crate::signals;
use crate::signals::action::set_mask;
use anyring_engine::{log, stats};
use anyring_serve::patch::counters;
use core::sync::atomic::{AtomicBool, Ordering};

static ENABLED: AtomicBool = AtomicBool::new(false);

/// Reads `ANYRING_PATCH`. Called before the first trap.
pub fn prepare() {
    let declined = variable_os("ANYRING_PATCH").is_some_and(|value| value == "0") || !patch::is_supported();
    ENABLED.store(!declined, Ordering::Relaxed);
}

/// Counts a trap of call `number` by the instruction that ends at `return_address`. True if it is time to call [`apply`].
/// Async-signal-safe.
pub fn is_due(number: i32, return_address: usize) -> bool {
    scan::is_ours(number as u64) && is_possible() && counters::count(return_address)
}

/// True if the program's environment permits patching.
pub fn is_enabled() -> bool {
    ENABLED.load(Ordering::Relaxed)
}

/// True if anything may be patched here.
pub fn is_possible() -> bool {
    is_enabled() && !signals::PROCESS.load(Ordering::Relaxed).is_null()
}

/// Frees the counters and islands of objects that are not mapped any more. Under the lock of [`super::KNOWN`], after a
/// scan.
pub fn forget_unmapped(objects: &[Object]) {
    Island::remove_unmapped(objects);
    counters::forget(
        |return_address| objects.iter().any(|object| object.code.contains(&(return_address - scan::SYSCALL.len()))),
        // The object may have been mapped anew at the same place. If its jump is still there, hardly anything traps.
        Island::has_site_before,
    );
}

/// Makes calls by the `syscall` that ends at the address `return_address` take a jump instead of a trap. This thread has
/// trapped there, with a call of `number`. If the instruction cannot be patched, it keeps trapping, and the log says
/// why. If another thread holds the lock, the instruction's traps are counted from zero again.
pub fn apply(return_address: usize, number: u32) {
    let reports_faults = island::guard_faults(); // first: it looks at the mask, which changes below
    let mask = set_mask(u64::MAX);
    match KNOWN.try_lock() {
        Some(known) => {
            let site = return_address - scan::SYSCALL.len();
            let objects = known.as_ref().map_or(&[][..], |known| &known.objects);
            if let Some(object) = objects.iter().find(|object| object.sites.contains(&site)) {
                match patch::patch(object, site, &[number], When::Trapped, reports_faults) {
                    Ok(()) => {
                        stats::stats().patches.fetch_add(1, Ordering::Relaxed);
                    }
                    Err(reason) => log::line(&format!("the system call at {site:#x} keeps trapping: {reason}")),
                }
            }
        }
        // A thread is in dlopen: start counting again.
        None => counters::restart(return_address),
    }
    set_mask(mask);
}

/// The time at which an instruction is patched.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum When {
    /// After it has trapped.
    Trapped,
    /// Before it first runs: a filter kills for its call.
    Ahead,
}
