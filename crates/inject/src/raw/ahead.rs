//! Replaces instructions before they run ([`anyring_serve::patch::ahead`]). A replaced instruction leads to
//! [`super::patch::patched`], as one that `patch.rs` replaces after traps.

use super::hot::{self, When};
use super::object::Object;
use super::{island, patch};
use crate::signals::action::set_mask;
use crate::sys;
use anyring_engine::stats;
pub use anyring_serve::patch::ahead::is_needed;
use anyring_serve::patch::ahead::{is_refused, Refusal, NUMBERS};
use anyring_serve::patch::scan::{self, OfRings};
use core::sync::atomic::Ordering;

/// Replaces the instructions of these objects that may make io_uring calls. Without `traps` no instruction can be
/// replaced. `may_refuse`: the program has not begun, so it may be refused.
pub fn replace(objects: &[Object], traps: bool, may_refuse: bool) {
    let reports_faults = traps && island::guard_faults(); // first: it looks at the mask, which changes below
    for object in objects {
        let start = object.code.start;
        // SAFETY: the object is mapped readable while it is scanned.
        let code = unsafe { core::slice::from_raw_parts(start as *const u8, object.code.len()) };
        let Ok(of_rings) = scan::of_rings(code) else {
            return give_up(start, "there is no memory", may_refuse);
        };
        for OfRings { offset, is_likely } in of_rings {
            let mask = set_mask(u64::MAX);
            let replaced = match traps && hot::is_possible() {
                true => patch::patch(object, start + offset, &NUMBERS, When::Ahead, reports_faults),
                false => Err("nothing may be replaced here"),
            };
            set_mask(mask);
            match replaced {
                Ok(()) => {
                    stats::stats().patches.fetch_add(1, Ordering::Relaxed);
                }
                Err(why) => give_up(start + offset, why, may_refuse && is_likely),
            }
        }
    }
}

/// Handles an instruction whose call would end the program. Reports it in the log, or refuses to start the program if
/// `anyring run` wants that.
fn give_up(site: usize, why: &str, may_refuse: bool) {
    const CANNOT_SERVE: usize = 125;
    if !is_refused(site, why) || !may_refuse {
        return;
    }
    let line = format!("anyring: cannot serve io_uring: {}\n", Refusal { site, why });
    // SAFETY: the kernel reads the line. None of the program's code has run in this process.
    unsafe {
        sys::call(libc::SYS_write, [2, line.as_ptr() as usize, line.len(), 0, 0, 0]);
        sys::call(libc::SYS_exit_group, [CANNOT_SERVE, 0, 0, 0, 0, 0]);
    }
}
