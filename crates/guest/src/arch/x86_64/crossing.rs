//! The code that changes a thread from one world to the other (see the head of the crate). Only the FS base decides
//! which world a thread is in. While the FS base is the guest's, the thread counts as being in the guest's world,
//! whatever instruction it executes. It cannot reach the host's thread-local memory then. So a signal handler can
//! determine the world at every instruction.
//!
//! All of this code is in one section ([`is_here`]). The host's other code only runs in the host's world.

use super::island::Data;
use super::trap;
use crate::trap::{whose, Turn};
use crate::world::{self, Block, Level};
use anyring_serve::crossing::{Registers, PATCHED};
use anyring_serve::{asm_on_registers, save_registers};
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
    let host = __executable_start as *const () as usize..etext as *const () as usize;
    host.contains(&address) && !is_here(address)
}

fn is_here(address: usize) -> bool {
    (__start_anyring_crossing as *const () as usize..__stop_anyring_crossing as *const () as usize)
        .contains(&address)
}

/// Determines the size of the extended state. Fails if this processor cannot be served.
pub fn prepare() -> Result<(), &'static str> {
    /// AT_HWCAP2: the instructions for the FS base may be used (Linux 5.9).
    const HWCAP2_FSGSBASE: u64 = 1 << 1;
    // SAFETY: reads the auxiliary vector.
    if unsafe { libc::getauxval(libc::AT_HWCAP2) } & HWCAP2_FSGSBASE == 0 {
        return Err(
            "the kernel does not let programs set the FS base (Linux 5.9 and a processor with FSGSBASE do)",
        );
    }
    anyring_serve::state::prepare();
    Ok(())
}

/// The code at which a trapped thread continues. The FS base is still the guest's when it begins. At `anyring_resume`
/// rsp points to the thread's [`Registers`], and the FS base is the guest's again.
#[unsafe(naked)]
#[link_section = "anyring_crossing"]
pub unsafe extern "C" fn trampoline() {
    anyring_serve::crossing!(
        enter: "rdfsbase rax
            mov [rbx + {fs}], rax
            mov rdx, [rbx + {block}]
            mov [rdx + {guest_tp}], rax
            mov rcx, [rdx + {host_tp}]
            wrfsbase rcx", // from here on: the host's world
        leave: "mov rax, [rsp + {fs}]
            wrfsbase rax", // the guest's again
        resume: ".globl anyring_resume
            .hidden anyring_resume
            anyring_resume:",
        give_back: "mov byte ptr [r11], 0",
        enabled: "";
        fs = const offset_of!(Registers, fs),
        block = const offset_of!(Registers, block),
        guest_tp = const world::GUEST_TP,
        host_tp = const world::HOST_TP,
        emulate = sym trap::emulate,
        stack_flags = const offset_of!(Level, flags),
    )
}

unsafe extern "C" {
    /// Places in [`patched`]: after the exchange; where the call owns the stack; where it is on that stack.
    fn anyring_patched_asked();
    fn anyring_patched_owns();
    fn anyring_patched_on_stack();
}

/// How far a call in [`patched`] has got at a given instruction.
pub enum Entering {
    /// The call has not asked for the stack.
    Nothing,
    /// The call has asked for the stack; the lowest byte of rcx is 0 if the stack was free.
    Asked,
    /// The call owns the stack, but still uses the guest's.
    Owns,
}

/// Returns the progress at an instruction of [`patched`] before which the guest's stack and flags are unchanged, but a
/// stack may have been taken. `None` for any other address.
pub fn entering(address: usize) -> Option<Entering> {
    let after = |step: unsafe extern "C" fn()| address >= step as *const () as usize;
    if !after(patched) || after(anyring_patched_on_stack) {
        return None;
    }
    Some(match (after(anyring_patched_owns), after(anyring_patched_asked)) {
        (true, _) => Entering::Owns,
        (_, true) => Entering::Asked,
        _ => Entering::Nothing,
    })
}

/// An island jumps here. rax points to the thread's [`world::Block`], and r11 to the island's [`Data`]. rcx is free.
/// All other registers and the flags are the guest's.
#[unsafe(naked)]
#[link_section = "anyring_crossing"]
pub unsafe extern "C" fn patched() {
    asm_on_registers!(
        "endbr64",
        "mov ecx, 1",
        "xchg [rax + {busy}], cl",
        ".globl anyring_patched_asked",
        ".hidden anyring_patched_asked",
        "anyring_patched_asked:",
        "movzx ecx, cl",
        "jrcxz 2f",
        // A handler makes this call in the middle of another: use a trap.
        "notrack jmp qword ptr [r11 + {miss}]",
        ".globl anyring_patched_owns",
        ".hidden anyring_patched_owns",
        "anyring_patched_owns:",
        "2:",
        "mov [rax + {trapped_at}], rsp",
        "mov qword ptr [rax + {alternate_size}], 0",
        "mov rcx, [rax + {frame}]",
        "mov [rcx + {rsp}], rsp",
        "mov rsp, rcx",
        ".globl anyring_patched_on_stack",
        ".hidden anyring_patched_on_stack",
        "anyring_patched_on_stack:",
        "pushfq",
        "pop qword ptr [rsp + {flags}]",
        "mov rcx, [rsp + {rsp}]",
        "sub rcx, [rax + {avoided}]",
        "cmp rcx, [rax + {avoided} + 8]",
        "jb 3f",
        "mov rcx, [rsp + {flags}]",
        "mov [rax + {busy} + {level_flags}], rcx",
        "mov [rsp + {block}], rax",
        "lea rcx, [rax + {busy}]",
        "mov [rsp + {stack}], rcx",
        "mov rcx, [r11 + {number}]",
        "mov [rsp + {rax}], rcx",
        "mov rcx, [r11 + {return_address}]",
        "mov [rsp + {rip}], rcx",
        save_registers!(),
        "jmp {trampoline}",
        // On the alternate signal stack: use a trap, which disables that stack until the call ends.
        "3:",
        "push qword ptr [rsp + {flags}]",
        "popfq",
        "mov rsp, [rsp + {rsp}]",
        "mov byte ptr [rax + {busy}], 0",
        "notrack jmp qword ptr [r11 + {miss}]";
        busy = const offset_of!(Block, levels),
        level_flags = const offset_of!(Level, flags),
        trapped_at = const offset_of!(Block, trapped_at),
        alternate_size = const offset_of!(Block, alternate) + size_of::<usize>(),
        frame = const offset_of!(Block, frame),
        avoided = const offset_of!(Block, avoided),
        miss = const offset_of!(Data, miss),
        number = const offset_of!(Data, number),
        return_address = const offset_of!(Data, return_address),
        patched = const PATCHED,
        block = const offset_of!(Registers, block),
        patch = const offset_of!(Registers, patch),
        trampoline = sym trampoline,
    )
}

/// Makes a clone(2) for a child in this memory. The child records its thread id and continues in the guest at once,
/// with the registers in `block.begin`. Returns in the parent only.
///
/// # Safety
/// All signals are blocked; only the child uses `block`; the arguments are those of clone(2).
#[unsafe(naked)]
#[link_section = "anyring_crossing"]
pub unsafe extern "C" fn clone_away(
    flags: usize,
    stack: usize,
    parent_tid: usize,
    child_tid: usize,
    tls: usize,
    block: *const Block,
) -> isize {
    naked_asm!(
        "push r12",
        "mov r12, r9",
        "mov r10, rcx",
        "mov eax, {clone}",
        "syscall",
        "test rax, rax",
        "jnz 9f",
        // The child: it has nothing but its registers.
        "mov eax, {gettid}",
        "syscall",
        "mov [r12 + {tid}], eax",
        "movzx ecx, word ptr [r12 + {index}]",
        "lea rdx, [rip + {by_tid}]",
        "mov [rdx + rax * 2], cx",
        "mov rax, [r12 + {guest_tp}]",
        "wrfsbase rax",
        "mov edi, {setmask}",
        "lea rsi, [r12 + {mask}]",
        "xor edx, edx",
        "mov r10d, 8",
        "mov eax, {sigprocmask}",
        "syscall",
        "lea rsp, [r12 + {begin}]",
        "jmp anyring_resume",
        "9:",
        "pop r12",
        "ret",
        clone = const libc::SYS_clone,
        gettid = const libc::SYS_gettid,
        sigprocmask = const libc::SYS_rt_sigprocmask,
        setmask = const libc::SIG_SETMASK,
        tid = const world::TID,
        index = const world::INDEX,
        by_tid = sym world::BY_TID,
        guest_tp = const world::GUEST_TP,
        mask = const offset_of!(Block, mask),
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
        "mov r8, rdi",
        "mov r9, rsi",
        "mov rdi, rsi",
        "mov rsi, rdx",
        "cld",
        "rep movsq",
        "xor eax, eax",
        "wrfsbase rax",
        "mov rsp, r9",
        "mov rcx, r8",
        "xor edx, edx", // no function for atexit(3)
        "xor ebx, ebx",
        "xor ebp, ebp",
        "xor esi, esi",
        "xor edi, edi",
        "xor r8d, r8d",
        "xor r9d, r9d",
        "jmp rcx",
    )
}

/// The installed handler of every signal that the guest handles, and of every guarded signal.
#[unsafe(naked)]
#[link_section = "anyring_crossing"]
pub unsafe extern "C-unwind" fn on_signal(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::ucontext_t) {
    naked_asm!(
        "push rdi",
        "push rsi",
        "push rdx", // this aligns the stack, too
        "rdfsbase rcx",
        "call {whose}",
        "mov r8, rdx",
        "pop rdx",
        "pop rsi",
        "pop rdi",
        "cmp eax, {jump}",
        "je 2f",
        "cmp eax, {cross}",
        "je 3f",
        "cmp eax, {done}",
        "je 4f",
        "jmp {handle}", // the host's world
        "2:",
        "jmp r8", // a handler of the guest's, in its world: as if nothing stood in front of it
        "3:",     // the guest's world, but the host has work to do
        "push rbx",
        "push r12",
        "sub rsp, 8",
        "mov rbx, r8",
        "rdfsbase r12",
        "mov [rbx + {guest_tp}], r12",
        "mov rcx, [rbx + {host_tp}]",
        "wrfsbase rcx",
        "call {handle}",
        "mov rcx, [rbx + {guest_tp}]",
        "wrfsbase rcx",
        "add rsp, 8",
        "pop r12",
        "pop rbx",
        "4:",
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

/// Calls a signal handler of the guest program from host code, with the guest's FS base set during the call.
///
/// # Safety
/// `handler` belongs to the guest, the arguments are those of its signal, and `block` is the calling thread's.
#[unsafe(naked)]
#[link_section = "anyring_crossing"]
pub unsafe extern "C" fn call_handler(
    handler: u64,
    signal: i32,
    info: *mut libc::siginfo_t,
    context: *mut libc::ucontext_t,
    block: *const Block,
) {
    naked_asm!(
        "push rbx",
        "push r12",
        "sub rsp, 8",
        "mov rbx, r8",
        "rdfsbase r12",
        "mov rax, rdi",
        "mov edi, esi",
        "mov rsi, rdx",
        "mov rdx, rcx",
        "mov rcx, [rbx + {guest_tp}]",
        "wrfsbase rcx",
        "call rax",
        "rdfsbase rax",
        "mov [rbx + {guest_tp}], rax",
        "wrfsbase r12",
        "add rsp, 8",
        "pop r12",
        "pop rbx",
        "ret",
        guest_tp = const world::GUEST_TP,
    )
}

/// Returns the address of the code to which handlers return, like libc's.
pub fn restorer() -> u64 {
    return_from_handler as *const () as u64
}

#[unsafe(naked)]
#[link_section = "anyring_crossing"]
unsafe extern "C" fn return_from_handler() {
    naked_asm!("mov eax, {sigreturn}", "syscall", sigreturn = const libc::SYS_rt_sigreturn)
}
