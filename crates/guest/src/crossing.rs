//! The code that goes from one world to the other. Nothing but the FS base tells which one a thread is in: as long as it is the
//! guest's, no thread-local memory of the host's can be reached, and the thread counts as being in the guest's world, whatever
//! instruction it is at. So there is none at which a signal handler would find the answer wrong.
//!
//! All of it is in one section, since for other code of the host's no look is needed ([`is_here`]).

use crate::island::Data;
use crate::patch::PATCHED;
use crate::{trap, world};
use anyring_serve::state::{MOVES, SAVES_BY, STATE_SIZE};
use core::arch::naked_asm;
use core::mem::offset_of;

/// The guest's registers, at the top of a stack of the host's.
#[repr(C, align(64))]
#[derive(Clone, Copy)]
pub struct Registers {
    pub rax: u64,
    pub rdi: u64,
    pub rsi: u64,
    pub rdx: u64,
    pub r10: u64,
    pub r8: u64,
    pub r9: u64,
    pub rbx: u64,
    pub rbp: u64,
    pub r12: u64,
    pub r13: u64,
    pub r14: u64,
    pub r15: u64,
    pub rsp: u64,
    pub rip: u64,
    pub flags: u64,
    /// The FS base to go back to.
    pub fs: u64,
    /// The address of the [`world::Level`] of this stack.
    pub busy: u64,
    /// The thread's [`world::Block`].
    pub block: u64,
    /// 1 if the instruction is to be patched, [`PATCHED`] if no trap led here.
    pub patch: u64,
    /// The context of the trap by whose rt_sigreturn(2) the call ends, if the guest was on its alternate signal stack, where
    /// that frame stays; else 0.
    pub context: u64,
    /// Then: the guest's signal mask.
    pub mask: u64,
}

unsafe extern "C" {
    /// The linker's names for the ends of the section, and of all code.
    fn __start_anyring_crossing();
    fn __stop_anyring_crossing();
    fn __executable_start();
    fn etext();
}

/// Whether code at this address is the host's, but none of that in this file: it only runs in the host's world.
pub fn is_host_code(address: usize) -> bool {
    let host = __executable_start as *const () as usize..etext as *const () as usize;
    host.contains(&address) && !is_here(address)
}

fn is_here(address: usize) -> bool {
    (__start_anyring_crossing as *const () as usize..__stop_anyring_crossing as *const () as usize)
        .contains(&address)
}

/// Learns the size of the extended state; an error where this processor cannot be served.
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

/// Where a trapped thread goes on: rsp points to its [`Registers`], all else is as the guest left it, FS too. The guest's signal
/// mask is in force.
#[unsafe(naked)]
#[link_section = "anyring_crossing"]
pub unsafe extern "C" fn trampoline() {
    naked_asm!(
        "cld",
        "mov rbx, rsp",
        "rdfsbase rax",
        "mov [rbx + {fs}], rax",
        "mov rdx, [rbx + {block}]",
        "mov [rdx + {guest_fs}], rax",
        "mov rcx, [rdx + {host_fs}]",
        "wrfsbase rcx", // from here on: the host's world
        anyring_serve::call_keeping_state!(),
        "mov rsp, rbx",
        "mov rax, [rsp + {fs}]",
        "wrfsbase rax", // the guest's again
        "cmp qword ptr [rsp + {context}], 0",
        "je {leave}",
        // All signals are blocked. With the frame's mask the kernel sets the alternate stack again.
        "mov r11, [rsp + {busy}]",
        "mov rsp, [rsp + {context}]",
        "mov byte ptr [r11], 0",
        "mov eax, {sigreturn}",
        "syscall",
        "ud2",
        fs = const offset_of!(Registers, fs),
        block = const offset_of!(Registers, block),
        context = const offset_of!(Registers, context),
        busy = const offset_of!(Registers, busy),
        guest_fs = const world::GUEST_FS,
        host_fs = const world::HOST_FS,
        size = sym STATE_SIZE,
        saves_by = sym SAVES_BY,
        moves = sym MOVES,
        sigreturn = const libc::SYS_rt_sigreturn,
        emulate = sym trap::emulate,
        leave = sym leave,
    )
}

/// Back to the guest: rsp points to its [`Registers`], FS is the guest's.
#[unsafe(naked)]
#[link_section = "anyring_crossing"]
unsafe extern "C" fn leave() {
    naked_asm!(
        "push qword ptr [rsp + {flags}]",
        "popfq",
        "mov rax, [rsp + {rax}]",
        "mov rdi, [rsp + {rdi}]",
        "mov rsi, [rsp + {rsi}]",
        "mov rdx, [rsp + {rdx}]",
        "mov r10, [rsp + {r10}]",
        "mov r8, [rsp + {r8}]",
        "mov r9, [rsp + {r9}]",
        "mov rbx, [rsp + {rbx}]",
        "mov rbp, [rsp + {rbp}]",
        "mov r12, [rsp + {r12}]",
        "mov r13, [rsp + {r13}]",
        "mov r14, [rsp + {r14}]",
        "mov r15, [rsp + {r15}]",
        "mov rcx, [rsp + {rip}]",
        "mov r11, [rsp + {busy}]",
        "mov rsp, [rsp + {rsp}]",
        "mov byte ptr [r11], 0", // off the stack: only now it is given back
        // A handler may have made a call since: then these are its flags, on which no program can rely.
        "mov r11, [r11 + {level_flags}]",
        "notrack jmp rcx",
        rax = const offset_of!(Registers, rax),
        rdi = const offset_of!(Registers, rdi),
        rsi = const offset_of!(Registers, rsi),
        rdx = const offset_of!(Registers, rdx),
        r10 = const offset_of!(Registers, r10),
        r8 = const offset_of!(Registers, r8),
        r9 = const offset_of!(Registers, r9),
        rbx = const offset_of!(Registers, rbx),
        rbp = const offset_of!(Registers, rbp),
        r12 = const offset_of!(Registers, r12),
        r13 = const offset_of!(Registers, r13),
        r14 = const offset_of!(Registers, r14),
        r15 = const offset_of!(Registers, r15),
        rsp = const offset_of!(Registers, rsp),
        rip = const offset_of!(Registers, rip),
        flags = const offset_of!(Registers, flags),
        busy = const offset_of!(Registers, busy),
        level_flags = const world::LEVEL_FLAGS,
    )
}

unsafe extern "C" {
    /// In [`patched`]: behind the exchange; where the stack is this call's; where it is on that.
    fn anyring_patched_asked();
    fn anyring_patched_owns();
    fn anyring_patched_on_stack();
}

/// How far [`patched`] is at an instruction.
pub enum Entering {
    /// It has not asked for the stack.
    Nothing,
    /// It has asked; the lowest byte of rcx tells whether somebody was on it.
    Asked,
    /// The stack is this call's, and the guest's is in use still.
    Owns,
}

/// Whether an instruction is one of [`patched`]'s that leave the guest's stack and flags as they are, but may have taken a stack.
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

/// From an island: rax is the thread's [`world::Block`], r11 points to the island's [`Data`]; rcx is free. All else is the guest's,
/// flags included.
#[unsafe(naked)]
#[link_section = "anyring_crossing"]
pub unsafe extern "C" fn patched() {
    naked_asm!(
        "endbr64",
        "mov ecx, 1",
        "xchg [rax + {busy}], cl",
        ".globl anyring_patched_asked",
        ".hidden anyring_patched_asked",
        "anyring_patched_asked:",
        "movzx ecx, cl",
        "jrcxz 2f",
        // A handler's call in the middle of another: by a trap.
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
        "mov [rsp + {level}], rcx",
        "mov rcx, [r11 + {number}]",
        "mov [rsp + {rax}], rcx",
        "mov rcx, [r11 + {behind}]",
        "mov [rsp + {rip}], rcx",
        "mov qword ptr [rsp + {patch}], {is_patched}",
        "mov qword ptr [rsp + {context}], 0",
        "mov [rsp + {rdi}], rdi",
        "mov [rsp + {rsi}], rsi",
        "mov [rsp + {rdx}], rdx",
        "mov [rsp + {r10}], r10",
        "mov [rsp + {r8}], r8",
        "mov [rsp + {r9}], r9",
        "mov [rsp + {rbx}], rbx",
        "mov [rsp + {rbp}], rbp",
        "mov [rsp + {r12}], r12",
        "mov [rsp + {r13}], r13",
        "mov [rsp + {r14}], r14",
        "mov [rsp + {r15}], r15",
        "jmp {trampoline}",
        // On its alternate signal stack: by a trap, which disables that meanwhile.
        "3:",
        "push qword ptr [rsp + {flags}]",
        "popfq",
        "mov rsp, [rsp + {rsp}]",
        "mov byte ptr [rax + {busy}], 0",
        "notrack jmp qword ptr [r11 + {miss}]",
        busy = const world::LEVEL,
        level_flags = const world::LEVEL_FLAGS,
        trapped_at = const world::TRAPPED_AT,
        alternate_size = const world::ALTERNATE_SIZE,
        frame = const world::FRAME,
        avoided = const world::AVOIDED,
        miss = const offset_of!(Data, miss),
        number = const offset_of!(Data, number),
        behind = const offset_of!(Data, behind),
        is_patched = const PATCHED,
        block = const offset_of!(Registers, block),
        level = const offset_of!(Registers, busy),
        patch = const offset_of!(Registers, patch),
        context = const offset_of!(Registers, context),
        rax = const offset_of!(Registers, rax),
        rdi = const offset_of!(Registers, rdi),
        rsi = const offset_of!(Registers, rsi),
        rdx = const offset_of!(Registers, rdx),
        r10 = const offset_of!(Registers, r10),
        r8 = const offset_of!(Registers, r8),
        r9 = const offset_of!(Registers, r9),
        rbx = const offset_of!(Registers, rbx),
        rbp = const offset_of!(Registers, rbp),
        r12 = const offset_of!(Registers, r12),
        r13 = const offset_of!(Registers, r13),
        r14 = const offset_of!(Registers, r14),
        r15 = const offset_of!(Registers, r15),
        rsp = const offset_of!(Registers, rsp),
        rip = const offset_of!(Registers, rip),
        flags = const offset_of!(Registers, flags),
        trampoline = sym trampoline,
    )
}

/// clone(2) for a child in this memory: it notes its thread id and leaves for the guest by `block.begin` at once. Returns in the
/// parent only.
///
/// # Safety
/// All signals are blocked; `block` is the child's alone; the arguments are those of clone(2).
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
        "push r12",
        "mov r12, r9",
        "mov r10, rcx",
        "mov eax, {clone}",
        "syscall",
        "test rax, rax",
        "jnz 9f",
        // The child: its registers are all that it has.
        "mov eax, {gettid}",
        "syscall",
        "mov [r12 + {tid}], eax",
        "movzx ecx, word ptr [r12 + {index}]",
        "lea rdx, [rip + {by_tid}]",
        "mov [rdx + rax * 2], cx",
        "mov rax, [r12 + {guest_fs}]",
        "wrfsbase rax",
        "mov edi, {setmask}",
        "lea rsi, [r12 + {mask}]",
        "xor edx, edx",
        "mov r10d, 8",
        "mov eax, {sigprocmask}",
        "syscall",
        "lea rsp, [r12 + {begin}]",
        "jmp {leave}",
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
        guest_fs = const world::GUEST_FS,
        mask = const world::MASK,
        begin = const world::BEGIN,
        leave = sym leave,
    )
}

/// Copies the guest's first words to its stack, and starts its first instruction, as the kernel does. Uses no stack itself.
///
/// # Safety
/// `entry` is that of a program that was loaded, `stack` is where `count` words at `words` belong, which may be where the
/// caller's own frames are.
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

/// What is installed for every signal that the guest handles, and for those that are guarded.
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
        "jmp r8", // a handler of the guest's, in its world: as if nobody stood in front of it
        "3:",     // the guest's world, but there is more to be done
        "push rbx",
        "push r12",
        "sub rsp, 8",
        "mov rbx, r8",
        "rdfsbase r12",
        "mov [rbx + {guest_fs}], r12",
        "mov rcx, [rbx + {host_fs}]",
        "wrfsbase rcx",
        "call {handle}",
        "mov rcx, [rbx + {guest_fs}]",
        "wrfsbase rcx",
        "add rsp, 8",
        "pop r12",
        "pop rbx",
        "4:",
        "ret",
        whose = sym trap::whose,
        handle = sym anyring_serve::signals::on_signal,
        jump = const trap::Turn::JUMP,
        cross = const trap::Turn::CROSS,
        done = const trap::Turn::DONE,
        guest_fs = const world::GUEST_FS,
        host_fs = const world::HOST_FS,
    )
}

/// Calls a handler of the guest's out of the host's world.
///
/// # Safety
/// `handler` is one, the arguments are those of its signal, and `block` is the calling thread's.
#[unsafe(naked)]
#[link_section = "anyring_crossing"]
pub unsafe extern "C" fn call_handler(
    handler: u64,
    signal: i32,
    info: *mut libc::siginfo_t,
    context: *mut libc::ucontext_t,
    block: *const world::Block,
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
        "mov rcx, [rbx + {guest_fs}]",
        "wrfsbase rcx",
        "call rax",
        "rdfsbase rax",
        "mov [rbx + {guest_fs}], rax",
        "wrfsbase r12",
        "add rsp, 8",
        "pop r12",
        "pop rbx",
        "ret",
        guest_fs = const world::GUEST_FS,
    )
}

/// What handlers return to, as libc's does.
#[unsafe(naked)]
#[link_section = "anyring_crossing"]
pub unsafe extern "C" fn restorer() {
    naked_asm!("mov eax, {sigreturn}", "syscall", sigreturn = const libc::SYS_rt_sigreturn)
}
