//! The code that changes a thread from one world to the other (see the head of the crate). Only the thread pointer
//! decides which world a thread is in. While it is the guest's, the thread counts as being in the guest's world,
//! whatever instruction it executes. It cannot reach the host's thread-local memory then. So a signal handler can
//! determine the world at every instruction.
//!
//! All of this code is in one section ([`is_host_code`]). The host's other code only runs in the host's world.
//!
//! A system call changes x0 only, so no register is free for the way back to the guest. A trapped call therefore ends
//! by rt_sigreturn(2) from the trap's own frame, and a new thread begins by rt_sigreturn(2) from a frame of the host's.

use super::trap::{emulate, guest_registers, Trapped};
use crate::trap::{whose, Turn};
use crate::world;
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
/// `entry` is that of a loaded program. `stack` is the place for the `count` words at `words`; the caller's own
/// frames may be there.
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
