//! Replaces `svc` instructions by jumps (decision 27), when `hot.rs` says so. [`anyring_serve::patch::island`] says why
//! that is sound while other threads are at any instruction.
//!
//! An island makes each call that it does not serve by a `svc` of its own. The filter traps that like the guest's, since
//! islands are mapped where all code is trapped.

use super::crossing::{self, patched, Entering};
use crate::filter;
use crate::hot::{code_of_guest, with_site, When};
use crate::world::Block;
use anyring_engine::os::arch::page_bytes;
use anyring_serve::patch::ahead;
use anyring_serve::patch::code::{places, Plan};
use anyring_serve::patch::island;
use anyring_serve::patch::scan::is_call;
use anyring_serve::probe;
use core::ops::Range;
use core::sync::atomic::Ordering;
use libc::ucontext_t;

/// True if the processor permits jumps.
pub fn is_supported() -> bool {
    island::are_possible()
}

/// Patches the `svc` at `site`. The caller holds the lock of `hot.rs`.
///
/// # Errors
/// The reason why it keeps trapping.
pub fn patch(site: usize, when: When) -> Result<(), &'static str> {
    let mappings = code_of_guest()?;
    with_site(&mappings, site)?;
    // SAFETY: the kernel has just said that this is mapped and readable; the guest unmaps no code that it runs.
    let instruction = unsafe { *(site as *const u32) };
    if !is_call(instruction) {
        return Err("it is no instruction of this kind");
    }
    if let Some(why) = probe::patching_refusal() {
        return Err(why);
    }
    let plan = match when {
        When::Trapped(number) => Plan::new(&[number], None, instruction),
        When::Ahead => Plan::new(&ahead::NUMBERS, Some(libc::SYS_rt_sigprocmask as u32), instruction),
    };
    if let Some(island) = island::built_before(site, &plan) {
        return island::store(site, instruction, island);
    }
    let is_fit = |at: &usize| filter::is_covered(&(*at..at + page_bytes())) && island::map_at(*at, page_bytes());
    let mut places = places(site..site + 4, page_bytes(), page_bytes());
    let island = places.find(is_fit).ok_or("there is no free page in reach of it")?;
    // SAFETY: a new page, which nothing else uses.
    unsafe { island::build(island, site, &plan, patched as *const () as usize) }
        .and_then(|()| island::store(site, instruction, island))
        .inspect_err(|_| island::unmap(island..island + page_bytes()))
}

/// New code changes nothing: threads are found by their ids.
pub fn code_was_mapped(_code: Range<usize>) {}

/// Hides islands from the guest's signal handlers. The signal may have interrupted the thread on an island, or before the
/// call has its stack. Then the thread is set back to the patched instruction, or to the one after it. `mine` is the
/// thread's record. Called by handlers in the guest's world.
pub fn set_back(context: &mut ucontext_t, mine: &Block) {
    let registers = &mut context.uc_mcontext;
    let Some(entering) = crossing::entering(registers.pc as usize) else {
        island::set_back(context);
        return;
    };
    match entering {
        Entering::Nothing => {}
        Entering::Asks => (registers.regs[0], registers.regs[8]) = (registers.regs[12], registers.regs[13]),
        Entering::Owns => mine.levels[0].busy.store(0, Ordering::Relaxed),
    }
    island::set_back_taken(context);
}
