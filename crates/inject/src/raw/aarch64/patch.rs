//! Replaces `svc` instructions by jumps. A trap costs some microseconds, a jump next to nothing.
//!
//! The jump leads to an island ([`anyring_serve::patch::island`]), which also says why the replacement is sound while
//! other threads are at any instruction. If the island serves the call's number, it jumps to [`patched`]. That takes a
//! stack, saves the registers there, makes the call, and returns to the island with all registers but x0 as they were.
//!
//! A system call keeps the first 128 bits of each vector register, and leaves nothing to rely on in the rest of SVE's
//! registers. So does [`patched`].
//!
//! `patched` leaves difficult cases to the island's `svc`, which traps. These are calls without a valid
//! [`stack::Hint`]: a thread's first call, the first after a fork, a handler's call in the middle of another. A forked
//! child has the jumps and the islands as its parent has them.
//!
//! During the store the page is writable as well as executable. If the system refuses that (SELinux's execmod, or a
//! filter), nothing changes. Since a filter may kill the process for it, a child process tries it first.

use super::filter::Calls;
use super::hot::When;
use super::installed;
use super::object::Object;
use super::scan::SYSCALL;
use super::stack::{self, Hint};
use super::trap::emulate_jumped;
use crate::{probe, signals};
use anyring_serve::crossing::Jumped;
use anyring_serve::jump_crossing;
use anyring_serve::patch::code::Plan;
use anyring_serve::patch::island;
use anyring_serve::patch::scan::is_call;
use core::mem::{offset_of, size_of};

/// True if the processor permits jumps.
pub fn is_supported() -> bool {
    island::are_possible()
}

/// Patches the `svc` at `site`, which may make a call of one of `numbers`. The caller has blocked all signals.
pub fn patch(
    object: &Object,
    site: usize,
    numbers: &[u32],
    when: When,
    _reports_faults: bool,
) -> Result<(), &'static str> {
    if !object.is_plain {
        return Err("its code is writable");
    }
    // SAFETY: an instruction of the object, which is mapped readable, at least until this thread makes its call.
    let instruction = unsafe { *(site as *const u32) };
    if !is_call(instruction) {
        return Err("it has changed");
    }
    if let Some(why) = probe::patching_refusal() {
        return Err(why);
    }
    let disguise = (when == When::Ahead).then_some(libc::SYS_rt_sigprocmask as u32);
    let plan = Plan::new(numbers, disguise, instruction);
    if let Some(island) = island::built_before(site, &plan) {
        return island::store(site, instruction, island);
    }
    let island = object.islands.free_page().ok_or("there is no free memory in reach of it")?;
    let is_trapped = |calls, at| installed::trap_at(calls, at + SYSCALL.len());
    if [Calls::OnRings, Calls::Waits].into_iter().any(|calls| is_trapped(calls, site) && !is_trapped(calls, island))
    {
        return Err("no filter traps the calls of its island");
    }
    // SAFETY: a free page of the memory that is reserved for islands.
    unsafe { island::build(island, site, &plan, patched as *const () as usize) }
        .and_then(|()| island::store(site, instruction, island))
        .inspect_err(|_| island::forget(&(island..island + 1)))
}

/// An island jumps here, with x17 pointing to its [`Call`](island::Call). The island has saved x12 to x17 at the stack pointer, which
/// it has lowered. All other registers and the flags are the program's. Nothing before the registers are saved
/// changes a flag.
#[unsafe(naked)]
pub unsafe extern "C" fn patched() {
    jump_crossing!(
        // If the thread is on its alternate signal stack, as far as that is known, the call traps.
        take: "adrp x16, :gottprel:anyring_thread_stack
            ldr x16, [x16, :gottprel_lo12:anyring_thread_stack]
            mrs x15, tpidr_el0
            add x16, x16, x15
            mov x14, sp
            ldp x15, x13, [x16, {hint_alternate}]
            sub x13, x14, x13
            tbz x13, 63, 2f
            sub x15, x14, x15
            tbz x15, 63, 9f
            2:
            ldp w15, w13, [x16, {hint_thread}]
            adrp x12, {process}
            ldr x12, [x12, :lo12:{process}]
            ldr w12, [x12]
            add w13, w13, w12
            add w13, w13, 1
            cbnz w13, 9f
            ldr x16, [x16, {hint_slot}]
            add x13, x16, {busy}
            mov w12, 1
            3:
            ldaxr w14, [x13]
            cbnz w14, 9f
            stxr w14, w12, [x13]
            cbnz w14, 3b
            mov x14, sp
            str x14, [x16, {trapped_at}]
            str w15, [x16, {owner}]
            ldr x14, [x16, {base}]
            add x14, x14, {stack_bytes}
            sub x14, x14, {frame_bytes}",
        enter: "",
        leave: "",
        give_back: "add x17, x17, {owner}
            stlr xzr, [x17]"; // Release: pairs with the Acquire in `stack::claim`
        hint_alternate = const offset_of!(Hint, alternate),
        hint_thread = const offset_of!(Hint, thread),
        hint_slot = const offset_of!(Hint, slot),
        process = sym signals::PROCESS,
        busy = const stack::BUSY,
        owner = const stack::OWNER,
        trapped_at = const stack::TRAPPED_AT,
        base = const stack::BASE,
        stack_bytes = const stack::SIZE,
        frame_bytes = const size_of::<Jumped>(),
        emulate = sym emulate_jumped,
    )
}
const _: () = assert!(offset_of!(Hint, alternate_top) == offset_of!(Hint, alternate) + 8);
const _: () = assert!(offset_of!(Hint, not_process) == offset_of!(Hint, thread) + 4);
