//! Islands in memory, and the jumps to them, which replace `svc` instructions of aarch64.
//!
//! A jump is one `b`, which replaces one `svc` by one aligned store of four bytes. Other threads may be at any
//! instruction meanwhile:
//!
//! - A thread that executes the instruction at that moment makes the call by the old `svc` or goes to the island by the
//!   new `b`. The architecture permits this without any synchronisation for B, BL, BRK, HVC, ISB, NOP, SMC and SVC. Its
//!   manual says so under "Concurrent modification and execution of instructions" (Arm DDI 0487, B2.2). For any other
//!   instruction it promises nothing. So only the `svc` itself is ever replaced.
//! - A thread whose call is in progress, or which has trapped, returns to the instruction after it, which stays. If the
//!   kernel repeats the call, the thread returns to the `b`. The island then makes the same call, since x8 and all
//!   arguments are the same. (For a restart by restart_syscall(2), x8 has that call's number, and the island makes it.)
//! - A thread that uses the old `svc` for a while traps as before.
//! - A thread that takes the `b` must find the island's code. The code was complete in memory, and the data and
//!   instruction caches of all processors agreed on it (`dc cvau`, `ic ivau`), before the store. Then membarrier(2) made
//!   each running thread of the process refetch its instructions (PRIVATE_EXPEDITED_SYNC_CORE). A thread that did not
//!   run at that moment gets to the program by an exception return, which does the same.
//!
//! A branch from a guarded page (BTI) needs no landing pad at its target if it is direct, and an island's page is not
//! guarded. The way back is a `b` of the island's own, as each island serves one `svc`. Return addresses, signed or not,
//! stay as they are.

use super::code::{branch, code_at, is_guarded, Code, Plan, LOWERED, NUMBERS, WORDS};
use super::COUNTED;
use crate::sys;
use anyring_engine::log;
use anyring_engine::os::arch::page_bytes;
use anyring_engine::os::calls;
use core::arch::asm;
use core::mem::{offset_of, size_of};
use core::ops::Range;
use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use libc::ucontext_t;

/// The data about a call that the code which serves it needs. x17 points to it.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Call {
    /// The number.
    pub number: usize,
    /// The island's code that makes the call by a trap instead. It restores the registers that the island has saved.
    pub give_up: usize,
    /// The island's code that goes on after the call, with the registers that the island has saved.
    pub back: usize,
}

/// An island, at the beginning of a page of its own.
#[repr(C)]
struct Island {
    code: [u32; WORDS],
    calls: [Call; NUMBERS],
    /// The address of the code that serves calls.
    entry: usize,
    plan: Plan,
    /// The address of the `svc`.
    site: usize,
}

const _: () = assert!(offset_of!(Island, calls) == 4 * WORDS && size_of::<Call>() == 24);
const _: () = assert!(offset_of!(Island, entry) == 4 * WORDS + NUMBERS * 24);

/// The addresses of the islands; 0 for none. Written under the caller's lock. A Release store publishes an island, and
/// an Acquire load precedes its use.
static ISLANDS: [AtomicUsize; COUNTED] = [const { AtomicUsize::new(0) }; COUNTED];

fn all() -> impl Iterator<Item = &'static Island> {
    let addresses = ISLANDS.iter().map(|island| island.load(Ordering::Acquire)).filter(|address| *address != 0);
    // SAFETY: `build` has written an island there, and it is forgotten before it is unmapped.
    addresses.map(|address| unsafe { &*(address as *const Island) })
}

impl Island {
    fn address(&self) -> usize {
        core::ptr::from_ref(self) as usize
    }
}

/// True if islands are possible. They are not if the processor has streaming mode (SME). A call in that mode must get to
/// the kernel, which ends the mode, and there is no cheap way to ask for the mode.
pub fn are_possible() -> bool {
    const HWCAP2_SME: u64 = 1 << 23;
    // SAFETY: reads the auxiliary vector.
    unsafe { libc::getauxval(libc::AT_HWCAP2) & HWCAP2_SME == 0 }
}

/// Returns the address of the island that was built earlier for this plan and the `svc` at `site`. It is still there if
/// the object was unmapped and mapped at the same place again.
pub fn built_before(site: usize, plan: &Plan) -> Option<usize> {
    all().find(|island| island.site == site && island.plan == *plan).map(Island::address)
}

/// Returns the addresses of the `svc` instructions in this code that are jumps now.
pub fn sites_in(code: Range<usize>) -> impl Iterator<Item = usize> {
    let jumps =
        all().filter(move |island| code.contains(&island.site)).map(|island| (island.address(), island.site));
    // SAFETY: in code that the caller has mapped, and aligned as the `svc` was.
    jumps
        .filter(|(island, site)| branch(*site, *island) == Some(unsafe { *(*site as *const u32) }))
        .map(|jump| jump.1)
}

/// True if there is an island for the `svc` at `site`.
pub fn has_site(site: usize) -> bool {
    all().any(|island| island.site == site)
}

/// True if there is an island at this address.
pub fn is_at(address: usize) -> bool {
    ISLANDS.iter().any(|island| island.load(Ordering::Relaxed) == address)
}

/// Builds an island at `address`, for the `svc` at `site`. `entry` is the address of the code that serves its calls, with
/// x17 pointing to the [`Call`].
///
/// # Errors
/// The reason why there is none.
///
/// # Safety
/// The page at `address` is the caller's, and nothing else uses it.
pub unsafe fn build(address: usize, site: usize, plan: &Plan, entry: usize) -> Result<(), &'static str> {
    let is_in_reach = branch(site, address).and(branch(address + 4 * WORDS, site)).is_some();
    let free = ISLANDS.iter().find(|island| island.load(Ordering::Relaxed) == 0);
    let (true, Some(free)) = (is_in_reach, free) else {
        return Err(if is_in_reach { "too many others are patched" } else { "its island is not in reach of it" });
    };
    if !protect(address, libc::PROT_READ | libc::PROT_WRITE) {
        return Err("there is no memory for its island");
    }
    let Code { words, calls, .. } = code_at(address, site, plan);
    let calls = calls.map(|[number, give_up, back]| Call { number, give_up, back });
    // SAFETY: the page was just made writable, is larger, and is the caller's.
    unsafe { (address as *mut Island).write(Island { code: words, calls, entry, plan: *plan, site }) };
    if !protect(address, libc::PROT_READ | libc::PROT_EXEC) {
        return Err("new code cannot be made executable");
    }
    // SAFETY: in the page.
    unsafe { make_caches_agree(address..address + size_of::<Island>()) };
    if !threads_refetch() {
        return Err("membarrier(2) cannot make the other threads see new code");
    }
    free.store(address, Ordering::Release);
    Ok(())
}

/// Forgets the islands in this memory. No jump leads to them any more.
pub fn forget(memory: &Range<usize>) {
    for island in ISLANDS.iter().filter(|island| memory.contains(&island.load(Ordering::Relaxed))) {
        island.store(0, Ordering::Relaxed);
    }
}

/// Maps inaccessible memory for islands at this address. False if that is not possible.
pub fn map_at(address: usize, bytes: usize) -> bool {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED_NOREPLACE;
    let args = [address, bytes, libc::PROT_NONE as usize, flags as usize, usize::MAX, 0];
    // SAFETY: a new private mapping, which replaces none. A kernel without MAP_FIXED_NOREPLACE takes the address as a
    // hint. A mapping elsewhere is unmapped again.
    unsafe {
        let mapped = sys::call(libc::SYS_mmap, args);
        if mapped > 0 && mapped as usize != address {
            sys::call(libc::SYS_munmap, [mapped as usize, bytes, 0, 0, 0, 0]);
        }
        mapped == address as isize
    }
}

/// Forgets the islands in memory that [`map_at`] has mapped, and unmaps it. No jump leads there any more.
pub fn unmap(memory: Range<usize>) {
    forget(&memory);
    // SAFETY: only jumps lead there, and the caller vouches that there is none.
    unsafe { sys::call(libc::SYS_munmap, [memory.start, memory.len(), 0, 0, 0, 0]) };
}

/// Replaces `instruction` at `site` by a jump to the island at `address`.
///
/// # Errors
/// The reason why the code was not changed.
pub fn store(site: usize, instruction: u32, address: usize) -> Result<(), &'static str> {
    let jump = branch(site, address).ok_or("its island is not in reach of it")?;
    let guarded = protection_of_guarded(site)?;
    let executable = libc::PROT_READ | libc::PROT_EXEC | guarded;
    if !protect(site, executable | libc::PROT_WRITE) {
        return Err("its page cannot be made writable");
    }
    // SAFETY: an aligned instruction of the page that was just made writable. Other threads only fetch it.
    let code = unsafe { AtomicU32::from_ptr(site as *mut u32) };
    // Release: the island was written before.
    let stored = code.compare_exchange(instruction, jump, Ordering::Release, Ordering::Relaxed);
    // SAFETY: the instruction itself.
    unsafe { make_caches_agree(site..site + 4) };
    if !protect(site, executable) {
        log::line("a page of code stays writable: its protection could not be restored");
    }
    stored.map(drop).map_err(|_| "its bytes have changed")
}

/// If the thread is on an island, sets it back to the `svc`, or to the instruction after it if the call was made.
/// Returns the number of the call that the program meant. Async-signal-safe, and uses no thread-local memory.
pub fn set_back(context: &mut ucontext_t) -> Option<u32> {
    let registers = &mut context.uc_mcontext;
    let at = registers.pc as usize;
    let island = all().find(|island| (island.address()..island.address() + 4 * WORDS).contains(&at))?;
    let place = code_at(island.address(), island.site, &island.plan).places[(at - island.address()) / 4];
    registers.regs[8] = registers.regs[8].wrapping_add(place.number_lacks.into());
    if place.is_saved {
        // SAFETY: the island has saved six words there.
        unsafe { restore_saved(registers) };
    }
    if place.is_lowered {
        registers.sp += LOWERED as u64;
    }
    registers.pc = (island.site + if place.is_made { 4 } else { 0 }) as u64;
    Some(registers.regs[8] as u32)
}

/// Sets a thread back to the `svc` that has left its island for the code which serves the call. x17 points to the
/// island's [`Call`], and the stack pointer is as the island has lowered it. Async-signal-safe, and uses no thread-local
/// memory.
pub fn set_back_taken(context: &mut ucontext_t) {
    let registers = &mut context.uc_mcontext;
    let call = registers.regs[17] as usize;
    let Some(island) =
        all().find(|island| (island.address()..island.address() + size_of::<Island>()).contains(&call))
    else {
        return;
    };
    // SAFETY: the island has saved six words there.
    unsafe { restore_saved(registers) };
    registers.sp += LOWERED as u64;
    registers.pc = island.site as u64;
}

/// Restores the registers that an island has saved at the stack pointer.
///
/// # Safety
/// They are there.
unsafe fn restore_saved(registers: &mut libc::mcontext_t) {
    // SAFETY: the caller vouches for it.
    let saved = unsafe { *(registers.sp as *const [u64; 6]) };
    for (pair, registers) in registers.regs[12..18].chunks_exact_mut(2).rev().enumerate() {
        registers.copy_from_slice(&saved[2 * pair..2 * pair + 2]);
    }
}

/// Sets the protection of the page with this address.
fn protect(address: usize, protection: i32) -> bool {
    let (start, bytes) = (address & !(page_bytes() - 1), page_bytes());
    // SAFETY: a page of an island, or of code that stays readable and executable throughout.
    unsafe { sys::call(libc::SYS_mprotect, [start, bytes, protection as usize, 0, 0, 0]) == 0 }
}

/// Returns the protection bit of guarded pages (BTI) if the code at `address` is in such a page. An mprotect(2)
/// without this bit would remove it.
fn protection_of_guarded(address: usize) -> Result<i32, &'static str> {
    const PROT_BTI: i32 = 0x10;
    const HWCAP2_BTI: u64 = 1 << 17;
    // SAFETY: reads the auxiliary vector.
    if unsafe { libc::getauxval(libc::AT_HWCAP2) } & HWCAP2_BTI == 0 {
        return Ok(0);
    }
    let maps = calls::read_text("/proc/self/smaps").map_err(|_| "/proc/self/smaps cannot be read")?;
    is_guarded(&maps, address).map(|is| if is { PROT_BTI } else { 0 }).ok_or("its page is not in /proc/self/smaps")
}

/// Makes the instruction caches of all processors agree with memory.
///
/// # Safety
/// The addresses are mapped readable.
unsafe fn make_caches_agree(code: Range<usize>) {
    let lines: usize;
    // SAFETY: reads the sizes of cache lines, which programs may read.
    unsafe { asm!("mrs {}, ctr_el0", out(reg) lines, options(nomem, nostack, preserves_flags)) };
    let (data, instructions) = (4 << (lines >> 16 & 15), 4 << (lines & 15));
    let of = |size: usize| (code.start & !(size - 1)..code.end).step_by(size);
    // SAFETY: the caller vouches for the addresses; nothing but caches changes.
    unsafe {
        of(data).for_each(|line| asm!("dc cvau, {}", in(reg) line, options(nostack, preserves_flags)));
        asm!("dsb ish", options(nostack, preserves_flags));
        of(instructions).for_each(|line| asm!("ic ivau, {}", in(reg) line, options(nostack, preserves_flags)));
        asm!("dsb ish", "isb", options(nostack, preserves_flags));
    }
}

/// Makes all threads of the process fetch their next instructions anew. False if the kernel refuses that.
fn threads_refetch() -> bool {
    const PRIVATE_EXPEDITED_SYNC_CORE: usize = 1 << 5;
    const REGISTER_PRIVATE_EXPEDITED_SYNC_CORE: usize = 1 << 6;
    let commands = [REGISTER_PRIVATE_EXPEDITED_SYNC_CORE, PRIVATE_EXPEDITED_SYNC_CORE];
    // SAFETY: no memory is passed.
    commands.iter().all(|command| unsafe { sys::call(libc::SYS_membarrier, [*command, 0, 0, 0, 0, 0]) == 0 })
}
