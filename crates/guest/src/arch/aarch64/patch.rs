//! No instruction becomes a jump.

use crate::start;
use anyring_serve::patch::ahead::{self, Refusal};
use anyring_serve::patch::scan;
use core::ops::Range;
use libc::ucontext_t;

/// Nothing is to be prepared.
pub fn prepare() {}

/// New code changes nothing.
pub fn code_was_mapped(_code: Range<usize>) {}

/// No thread is ever on an island.
pub fn set_back(_context: &mut ucontext_t) {}

/// If a filter kills for io_uring's calls, looks for instructions in this code that make such calls. An error is the
/// reason why `anyring run` must refuse the program.
pub fn ahead(code: Range<usize>) -> Result<(), String> {
    if !start::serves_rings() || !ahead::is_needed() {
        return Ok(());
    }
    // SAFETY: just mapped and readable; if another thread unmaps it during the scan, that is a race in the program
    // itself.
    let bytes = unsafe { core::slice::from_raw_parts(code.start as *const u8, code.len()) };
    for site in scan::of_rings(bytes).unwrap_or_default() {
        let (at, why) = (code.start + site.offset, "on aarch64 nothing is replaced");
        if ahead::is_refused(at, why) && site.is_likely {
            return Err(Refusal { site: at, why }.to_string());
        }
    }
    Ok(())
}
