//! Replaces trapped instructions by jumps (decision 27), when `hot.rs` says so.
//!
//! The first choice is to replace the `syscall` itself. Its two bytes become the first two of a jump, and the bytes
//! after it become the upper part of the jump's distance. Those bytes stay unchanged, so that a thread that waits in
//! the kernel finds them when it returns. Every path to the `syscall` leads to the jump. No instruction has to be
//! moved, even if the number is loaded far away, as in generic wrappers (Go's, musl's, Zig's). If that distance leads
//! to no free page, one of the instructions before the `syscall` becomes the jump, as in the preloaded library.

use super::crossing::{self, Entering};
use super::fast;
use super::island::{self, Calls, Data, Met};
use crate::filter;
use crate::hot::{code_of_guest, with_site, Mapping, When};
use crate::world::Block;
use anyring_engine::log;
use anyring_serve::patch::decode::SYSCALL;
use anyring_serve::patch::jump::Jump;
use anyring_serve::patch::{origin, run};
use anyring_serve::probe;
use core::ops::Range;
use core::sync::atomic::{AtomicBool, Ordering};
use libc::ucontext_t;

/// The distances at which the program itself is, so that no island is placed there. They need not include a heap,
/// since the program break is elsewhere.
const AVOIDED: Range<isize> = -(1 << 20)..1 << 20;

/// True if there may be an island. Relaxed: a thread on an island came by a jump, which was stored later than this
/// flag.
static ANY: AtomicBool = AtomicBool::new(false);

/// True if the processor has the instructions of islands.
pub fn is_supported() -> bool {
    const BMI2: u32 = 1 << 8;
    core::arch::x86_64::__cpuid_count(7, 0).ebx & BMI2 != 0
}

/// Patches the `syscall` at `site`. The caller holds the lock of `hot.rs`.
///
/// # Errors
/// The reason why it keeps trapping.
pub fn patch(site: usize, when: When) -> Result<(), &'static str> {
    let calls = match when {
        When::Trapped(number) => Calls::trapped(number),
        When::Ahead => Calls::ahead(),
    };
    let mappings = code_of_guest()?;
    let object = with_site(&mappings, site)?;
    if !ANY.load(Ordering::Relaxed) {
        // SAFETY: the kernel has just said that this is mapped and readable; the guest unmaps no code that it runs.
        let sets_fs = |mapping: &Mapping| sets_fs(unsafe { mapping.bytes(mapping.range.clone()) });
        match (mappings.iter().any(sets_fs), when) {
            (true, When::Trapped(_)) => return Err("the program has an instruction that sets the FS base"),
            // All calls from islands trap then.
            (true, When::Ahead) => fast::give_up(),
            (false, _) => {}
        }
    }
    let first = site.saturating_sub(run::AROUND + run::MOVED_AT_MOST).max(object.range.start);
    // SAFETY: as above: part of the mapping from which this thread has made its call.
    let mut code = unsafe { object.bytes(first..object.range.end.min(site + run::AROUND)) }.to_vec();
    origin::restore(&mut code, first);
    if code.get(site - first..site - first + SYSCALL.len()) != Some(&SYSCALL) {
        return Err("it is no instruction of this kind");
    }
    let in_place = Jump::in_place(&code, first, site - first, &AVOIDED);
    let mut starts = run::starts(&code, site - first, true);
    starts.retain(|start| when != When::Ahead || !start.is_passed);
    let before = Jump::before(&code, first, &starts, site - first, &AVOIDED);
    let mut refusal = "nothing at or before it can be replaced at once";
    if let Some(why) = probe::patching_refusal() {
        return Err(why);
    }
    for jump in in_place.into_iter().chain(before).filter(|jump| !origin::overlaps(jump.from)) {
        let moved = &code[jump.from - first..site - first];
        let is_fit = |at: usize| filter::is_covered(&(at..at + 1));
        ANY.store(true, Ordering::Relaxed);
        match island::build(&jump, &calls, site, moved, is_fit) {
            Ok(island) => return jump.store(island).inspect_err(|_| island::remove(island)),
            Err(why) => refusal = why,
        }
    }
    Err(refusal)
}

/// True if the bytes may contain an instruction that sets the FS base: wrfsbase.
fn sets_fs(code: &[u8]) -> bool {
    code.windows(3).enumerate().any(|(at, bytes)| {
        let prefix = |back: usize| at.checked_sub(back).map_or(0, |at| code[at]);
        let is_in_its_form = bytes[0] == 0x0f && bytes[1] == 0xae && (0xd0..=0xd7).contains(&bytes[2]);
        is_in_its_form && (prefix(1) == 0xf3 || (prefix(2) == 0xf3 && prefix(1) & 0xf0 == 0x40))
    })
}

/// Checks readable code that the guest has mapped. If the code may set the FS base, threads can no longer be found by
/// their FS base.
pub fn code_was_mapped(code: Range<usize>) {
    if !ANY.load(Ordering::Relaxed) {
        return;
    }
    let mapping = Mapping { range: code.clone(), is_writable: false };
    // SAFETY: just mapped; if another thread unmaps it during the scan, that is a race in the program itself.
    if sets_fs(unsafe { mapping.bytes(code) }) {
        log::line("new code sets the FS base: calls trap again");
        fast::give_up();
    }
}

/// Hides islands from the guest's signal handlers. If the signal has interrupted the thread on an island or at its end,
/// the context is changed. It becomes that of the patched instruction, or of the one after it, and the thread continues
/// from there. Called by handlers in the guest's world.
pub fn set_back(context: &mut ucontext_t, _mine: &Block) {
    if !ANY.load(Ordering::Relaxed) {
        return;
    }
    let gregs = &mut context.uc_mcontext.gregs;
    let address = gregs[libc::REG_RIP as usize] as usize;
    if let Some(entering) = crossing::entering(address) {
        let is_taken = match entering {
            Entering::Nothing => false,
            Entering::Asked => gregs[libc::REG_RCX as usize] as u8 == 0,
            Entering::Owns => true,
        };
        // SAFETY: there, rax is the thread's block, and r11 points to the data of an island.
        let (block, data) = unsafe {
            let data = gregs[libc::REG_R11 as usize] as *const Data;
            (&*(gregs[libc::REG_RAX as usize] as *const Block), &*data)
        };
        if is_taken {
            block.levels[0].busy.store(0, Ordering::Relaxed);
        }
        gregs[libc::REG_RIP as usize] = data.site as i64;
        gregs[libc::REG_RAX as usize] = data.at_site(data.number) as i64;
        return;
    }
    match island::met(address) {
        None => {}
        Some(Met::Moved(there)) => gregs[libc::REG_RIP as usize] = there as i64,
        Some(Met::Before { data, number }) => {
            let rax = &mut gregs[libc::REG_RAX as usize];
            *rax = data.at_site(number.unwrap_or(*rax as u64)) as i64;
            gregs[libc::REG_RIP as usize] = data.site as i64;
        }
        Some(Met::Behind(there)) => {
            gregs[libc::REG_RIP as usize] = there as i64;
            gregs[libc::REG_RCX as usize] = there as i64;
        }
    }
}
