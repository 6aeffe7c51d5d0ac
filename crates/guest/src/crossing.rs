//! The code that goes from one world to the other. Nothing but the FS base tells which one a thread is in: as long as it is the
//! guest's, no thread-local memory of the host's can be reached, and the thread counts as being in the guest's world, whatever
//! instruction it is at. So there is none at which a signal handler would find the answer wrong.
//!
//! All of it is in one section, since for other code of the host's no look is needed ([`is_here`]).

use crate::{trap, world};
use core::arch::naked_asm;
use core::mem::offset_of;
use core::sync::atomic::{AtomicU32, Ordering};

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
    /// The address of the byte that says that this stack is in use.
    pub busy: u64,
    /// The thread's [`world::Block`].
    pub block: u64,
    /// The context of the trap by whose rt_sigreturn(2) the call ends, if the guest was on its alternate signal stack, where
    /// that frame stays; else 0.
    pub context: u64,
    /// Then: the guest's signal mask.
    pub mask: u64,
}

/// Bytes of the extended state that the kernel enabled.
static STATE_SIZE: AtomicU32 = AtomicU32::new(0);
/// Not 0 when the processor has xsavec, which leaves out what is in its initial state.
static COMPACTS: AtomicU32 = AtomicU32::new(0);

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
    const OSXSAVE: u32 = 1 << 27;
    const XSAVEC: u32 = 1 << 1;
    /// AT_HWCAP2: the instructions for the FS base may be used (Linux 5.9).
    const HWCAP2_FSGSBASE: u64 = 1 << 1;
    // SAFETY: reads the auxiliary vector.
    if unsafe { libc::getauxval(libc::AT_HWCAP2) } & HWCAP2_FSGSBASE == 0 {
        return Err(
            "the kernel does not let programs set the FS base (Linux 5.9 and a processor with FSGSBASE do)",
        );
    }
    if core::arch::x86_64::__cpuid(1).ecx & OSXSAVE == 0 {
        return Err("the processor has no XSAVE");
    }
    let (standard, compacted) =
        (core::arch::x86_64::__cpuid_count(0xd, 0), core::arch::x86_64::__cpuid_count(0xd, 1));
    COMPACTS.store(compacted.eax & XSAVEC, Ordering::Relaxed);
    STATE_SIZE.store(standard.ebx.max(compacted.ebx), Ordering::Relaxed);
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
        "mov eax, [rip + {state_size}]",
        "sub rsp, rax",
        "and rsp, -64",
        // The header of the area has to be zero.
        "xor eax, eax",
        ".irp n,0,1,2,3,4,5,6,7\nmov [rsp + 512 + 8*\\n], rax\n.endr",
        "mov eax, -1",
        "mov edx, -1",
        "cmp dword ptr [rip + {compacts}], 0",
        "je 2f",
        "xsavec64 [rsp]",
        "jmp 3f",
        "2:",
        "xsave64 [rsp]",
        "3:",
        "mov rdi, rbx",
        "call {emulate}",
        "mov eax, -1",
        "mov edx, -1",
        "xrstor64 [rsp]",
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
        state_size = sym STATE_SIZE,
        compacts = sym COMPACTS,
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
        "jmp rcx",
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
