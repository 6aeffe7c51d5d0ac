//! The code that changes a thread from one world to the other (see the head of the crate). Only the thread pointer
//! decides which world a thread is in. While it is the guest's, the thread counts as being in the guest's world,
//! whatever instruction it executes. It cannot reach the host's thread-local memory then. So a signal handler can
//! determine the world at every instruction.
//!
//! All of this code is in one section ([`is_host_code`]). The host's other code only runs in the host's world.
//!
//! A system call changes x0 only, so no register is free for the way back to the guest. A trapped call therefore ends
//! by rt_sigreturn(2) from the trap's own frame, and a new thread begins by rt_sigreturn(2) from a frame of the host's.
//! A call that came by a jump goes back by its island ([`patched`]).

use super::trap::{emulate, emulate_jumped, guest_registers, Trapped};
use crate::trap::{whose, Turn};
use crate::world::{self, Block};
use anyring_serve::crossing::Jumped;
use anyring_serve::jump_crossing;
use core::arch::naked_asm;
use core::mem::offset_of;

unsafe extern "C" {
    /// The linker's names for the ends of the section, and of all code.
    fn __start_anyring_crossing();
    fn __stop_anyring_crossing();
    fn __executable_start();
    fn etext();
}

/// True if this is an address of the host's code outside this file's section. Such code only runs in the host's world.
pub fn is_host_code(address: usize) -> bool {
    let here = __start_anyring_crossing as *const () as usize..__stop_anyring_crossing as *const () as usize;
    is_of_host(address) && !here.contains(&address)
}

/// True if this is an address of the host's code.
pub fn is_of_host(address: usize) -> bool {
    (__executable_start as *const () as usize..etext as *const () as usize).contains(&address)
}

/// Nothing is to be prepared: any program may write the thread pointer.
pub fn prepare() -> Result<(), &'static str> {
    Ok(())
}

/// Returns 0: the kernel's own code ends handlers.
pub fn restorer() -> u64 {
    0
}

/// The code at which a trapped thread continues, in the guest's world, with the address of a [`Trapped`] in x0. The
/// stack pointer is at a copy of the trap's frame. Unwinders take the two instructions after the call for the end of a
/// signal handler.
#[unsafe(naked)]
#[link_section = "anyring_crossing"]
pub unsafe extern "C" fn trampoline() {
    naked_asm!("bl {make}", "mov x8, 139", "svc 0", "brk 0", make = sym make)
}
const _: () = assert!(libc::SYS_rt_sigreturn == 139);

/// Makes the trapped call in the host's world, leaves the stack, and returns to rt_sigreturn(2) with the stack pointer
/// at the trap's frame.
#[unsafe(naked)]
#[link_section = "anyring_crossing"]
unsafe extern "C" fn make() {
    naked_asm!(
        "stp x29, x30, [sp, -32]!",
        "stp x19, x20, [sp, 16]",
        "mov x29, sp",
        "mov x19, x0",
        "ldr x20, [x19, {block}]",
        "mrs x9, tpidr_el0",
        "str x9, [x19, {pointer}]",
        "str x9, [x20, {guest_tp}]",
        "ldr x9, [x20, {host_tp}]",
        "msr tpidr_el0, x9", // from here on: the host's world
        "bl {emulate}",
        "ldr x9, [x19, {pointer}]",
        "msr tpidr_el0, x9", // the guest's again; all signals are blocked
        "ldp x19, x20, [sp, 16]",
        "ldr x30, [sp, 8]",
        "mov sp, x0",
        // The thread has left the stack, so another call may take it: one of this thread or its handlers.
        "strb wzr, [x1]",
        "ret",
        block = const offset_of!(Trapped, block),
        pointer = const offset_of!(Trapped, pointer),
        guest_tp = const world::GUEST_TP,
        host_tp = const world::HOST_TP,
        emulate = sym emulate,
    )
}

unsafe extern "C" {
    /// Places in [`patched`]. From the first, x0 and x8 are in x12 and x13, and from the second they are back. From the
    /// third, the call owns the stack, and from the fourth it is on that stack.
    fn anyring_jump_asks();
    fn anyring_jump_asked();
    fn anyring_jump_owns();
    fn anyring_jump_on_stack();
}

/// How far a call in [`patched`] has got at a given instruction.
pub enum Entering {
    /// The registers are as the island has left them.
    Nothing,
    /// x0 and x8 are in x12 and x13.
    Asks,
    /// The call owns the stack, but still uses the guest's.
    Owns,
}

/// Returns the progress at an instruction of [`patched`] at which the call is still on the guest's stack. `None` for any
/// other address.
pub fn entering(address: usize) -> Option<Entering> {
    let after = |step: unsafe extern "C" fn()| address >= step as *const () as usize;
    if !after(patched) || after(anyring_jump_on_stack) {
        return None;
    }
    Some(match (after(anyring_jump_owns), after(anyring_jump_asks) && !after(anyring_jump_asked)) {
        (true, _) => Entering::Owns,
        (_, true) => Entering::Asks,
        _ => Entering::Nothing,
    })
}

/// An island jumps here, with x17 pointing to its [`Call`](anyring_serve::patch::island::Call). The thread is found by
/// its id, which a call of the host's own returns. A call on the alternate signal stack, or in the middle of another,
/// uses a trap.
#[unsafe(naked)]
#[link_section = "anyring_crossing"]
pub unsafe extern "C" fn patched() {
    jump_crossing!(
        take: "mov x12, x0
            mov x13, x8
            .globl anyring_jump_asks
            .hidden anyring_jump_asks
            anyring_jump_asks:
            mov x8, {gettid}
            svc 0
            mov x14, x0
            mov x0, x12
            mov x8, x13
            .globl anyring_jump_asked
            .hidden anyring_jump_asked
            anyring_jump_asked:
            adrp x15, {by_tid}
            add x15, x15, :lo12:{by_tid}
            ldrh w15, [x15, x14, lsl 1]
            cbz w15, 9f
            sub w15, w15, 1
            adrp x16, {all}
            add x16, x16, :lo12:{all}
            ldr x16, [x16, x15, lsl 3]
            ldr w15, [x16, {tid}]
            sub w15, w15, w14
            cbnz w15, 9f
            mov x14, sp
            ldr x15, [x16, {avoided}]
            sub x14, x14, x15
            tbnz x14, 63, 2f
            ldr x15, [x16, {avoided} + 8]
            sub x14, x14, x15
            tbnz x14, 63, 9f
            2:
            ldr x14, [x16, {frame}]
            cbz x14, 9f
            ldrb w15, [x16, {busy}]
            cbnz w15, 9f
            mov w15, 1
            strb w15, [x16, {busy}]
            .globl anyring_jump_owns
            .hidden anyring_jump_owns
            anyring_jump_owns:
            mov x15, sp
            str x15, [x16, {trapped_at}]
            str xzr, [x16, {alternate_size}]
            str x16, [x14, {block}]
            mov x15, {jumped}
            str x15, [x14, {mark}]
            add x16, x16, {busy}",
        enter: ".globl anyring_jump_on_stack
            .hidden anyring_jump_on_stack
            anyring_jump_on_stack:
            mrs x9, tpidr_el0
            str x9, [sp, {pointer}]
            ldr x10, [sp, {block}]
            str x9, [x10, {guest_tp}]
            ldr x9, [x10, {host_tp}]
            msr tpidr_el0, x9", // from here on: the host's world
        leave: "ldr x9, [sp, {pointer}]
            msr tpidr_el0, x9", // the guest's again
        give_back: "strb wzr, [x17]";
        gettid = const libc::SYS_gettid,
        by_tid = sym world::BY_TID,
        all = sym world::ALL,
        tid = const world::TID,
        avoided = const offset_of!(Block, avoided),
        frame = const offset_of!(Block, frame),
        busy = const offset_of!(Block, levels),
        trapped_at = const offset_of!(Block, trapped_at),
        alternate_size = const offset_of!(Block, alternate) + size_of::<usize>(),
        block = const offset_of!(Jumped, block),
        pointer = const offset_of!(Jumped, pointer),
        mark = const offset_of!(Jumped, mark),
        jumped = const Jumped::MARK,
        guest_tp = const world::GUEST_TP,
        host_tp = const world::HOST_TP,
        emulate = sym emulate_jumped,
    )
}

/// Makes a clone(2) for a child in this memory. The child records its thread id and continues in the guest at once,
/// from the frame at `block.begin`. Returns in the parent only.
///
/// # Safety
/// All signals are blocked; only the child uses `block`; the arguments are those of
/// [`clone_arguments`](super::calls::clone_arguments).
#[unsafe(naked)]
#[link_section = "anyring_crossing"]
pub unsafe extern "C" fn clone_away(
    flags: usize,
    stack: usize,
    parent_tid: usize,
    child_tid: usize,
    tls: usize,
    block: *const world::Block,
) -> isize {
    naked_asm!(
        "mov x6, x3",
        "mov x3, x4",
        "mov x4, x6",
        "mov x8, {clone}",
        "svc 0",
        "cbnz x0, 9f",
        // The child: it has nothing but its registers.
        "mov x8, {gettid}",
        "svc 0",
        "str w0, [x5, {tid}]",
        "ldrh w6, [x5, {index}]",
        "adrp x7, {by_tid}",
        "add x7, x7, :lo12:{by_tid}",
        "strh w6, [x7, x0, lsl 1]",
        "ldr x6, [x5, {guest_tp}]",
        "msr tpidr_el0, x6",
        "mov x6, {begin}",
        "ldr x6, [x5, x6]",
        "mov sp, x6",
        "mov x8, 139",
        "svc 0",
        "brk 0",
        "9:",
        "ret",
        clone = const libc::SYS_clone,
        gettid = const libc::SYS_gettid,
        tid = const world::TID,
        index = const world::INDEX,
        by_tid = sym world::BY_TID,
        guest_tp = const world::GUEST_TP,
        begin = const world::BEGIN,
    )
}

/// Copies the guest's first words to its stack, and starts its first instruction, as the kernel does. The function
/// itself uses no stack.
///
/// # Safety
/// `entry` is that of a loaded program. The `count` words at `words` go to `stack`, where the caller's own frames
/// may be.
#[unsafe(naked)]
#[link_section = "anyring_crossing"]
pub unsafe extern "C" fn begin(entry: usize, stack: usize, words: *const usize, count: usize) -> ! {
    naked_asm!(
        "mov x16, x0",
        "mov sp, x1",
        "cbz x3, 3f",
        "2:",
        "ldr x9, [x2], 8",
        "str x9, [x1], 8",
        "subs x3, x3, 1",
        "b.ne 2b",
        "3:",
        "msr tpidr_el0, xzr",
        "mov x0, xzr", // no function for atexit(3)
        "mov x1, xzr",
        "mov x2, xzr",
        "mov x9, xzr",
        "mov x29, xzr",
        "mov x30, xzr",
        "br x16",
    )
}

/// The installed handler of every signal that the guest handles, and of every guarded signal.
#[unsafe(naked)]
#[link_section = "anyring_crossing"]
pub unsafe extern "C-unwind" fn on_signal(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::ucontext_t) {
    naked_asm!(
        "stp x29, x30, [sp, -64]!",
        "stp x0, x1, [sp, 16]",
        "str x2, [sp, 32]",
        "mov x29, sp",
        "mrs x3, tpidr_el0",
        "bl {whose}",
        "mov x9, x0",
        "mov x16, x1",
        "ldp x0, x1, [sp, 16]",
        "ldr x2, [sp, 32]",
        "cmp x9, {jump}",
        "b.eq 2f",
        "cmp x9, {cross}",
        "b.eq 3f",
        "cmp x9, {done}",
        "b.eq 4f",
        "ldp x29, x30, [sp], 64",
        "b {handle}", // the host's world
        "2:",
        "ldp x29, x30, [sp], 64",
        "br x16", // a handler of the guest's, in its world: as if nothing stood in front of it
        "3:",     // the guest's world, but the host has work to do
        "str x19, [sp, 48]",
        "mov x19, x16",
        "mrs x9, tpidr_el0",
        "str x9, [x19, {guest_tp}]",
        "ldr x9, [x19, {host_tp}]",
        "msr tpidr_el0, x9",
        "bl {handle}",
        "ldr x9, [x19, {guest_tp}]",
        "msr tpidr_el0, x9",
        "ldr x19, [sp, 48]",
        "4:",
        "ldp x29, x30, [sp], 64",
        "ret",
        whose = sym whose,
        handle = sym anyring_serve::signals::on_signal,
        jump = const Turn::JUMP,
        cross = const Turn::CROSS,
        done = const Turn::DONE,
        guest_tp = const world::GUEST_TP,
        host_tp = const world::HOST_TP,
    )
}

/// Calls a signal handler of the guest program from host code, with the guest's thread pointer set during the call.
///
/// # Safety
/// `handler` belongs to the guest, the arguments are those of its signal, and `block` is the calling thread's.
pub unsafe fn call_handler(
    handler: u64,
    signal: i32,
    info: *mut libc::siginfo_t,
    context: *mut libc::ucontext_t,
    block: &world::Block,
) {
    // SAFETY: the caller vouches for the context.
    let registers = guest_registers(unsafe { &*context }, block);
    // SAFETY: the caller vouches for the rest.
    unsafe { call_with(handler, signal, info, context, block, registers.as_ptr()) };
}

/// Calls the handler with the guest's own values in the registers that calls keep, and in x18. A handler may rely on
/// them: Go's finds its goroutine in x28.
#[unsafe(naked)]
#[link_section = "anyring_crossing"]
unsafe extern "C" fn call_with(
    handler: u64,
    signal: i32,
    info: *mut libc::siginfo_t,
    context: *mut libc::ucontext_t,
    block: *const world::Block,
    registers: *const u64,
) {
    naked_asm!(
        "stp x29, x30, [sp, -112]!",
        "stp x19, x20, [sp, 16]",
        "stp x21, x22, [sp, 32]",
        "stp x23, x24, [sp, 48]",
        "stp x25, x26, [sp, 64]",
        "stp x27, x28, [sp, 80]",
        "mrs x9, tpidr_el0",
        "stp x4, x9, [sp, 96]",
        "mov x29, sp",
        "mov x16, x0",
        "mov w0, w1",
        "mov x1, x2",
        "mov x2, x3",
        "ldr x9, [x4, {guest_tp}]",
        "msr tpidr_el0, x9",
        "ldr x18, [x5, 18 * 8]",
        "ldp x19, x20, [x5, 19 * 8]",
        "ldp x21, x22, [x5, 21 * 8]",
        "ldp x23, x24, [x5, 23 * 8]",
        "ldp x25, x26, [x5, 25 * 8]",
        "ldp x27, x28, [x5, 27 * 8]",
        "blr x16",
        "ldp x10, x11, [sp, 96]",
        "mrs x9, tpidr_el0",
        "str x9, [x10, {guest_tp}]",
        "msr tpidr_el0, x11",
        "ldp x27, x28, [sp, 80]",
        "ldp x25, x26, [sp, 64]",
        "ldp x23, x24, [sp, 48]",
        "ldp x21, x22, [sp, 32]",
        "ldp x19, x20, [sp, 16]",
        "ldp x29, x30, [sp], 112",
        "ret",
        guest_tp = const world::GUEST_TP,
    )
}
