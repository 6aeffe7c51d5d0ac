//! Code for x86-64: instructions, registers, and the instructions at which faults and signals are recognised.

use core::ffi::c_void;
use core::sync::atomic::{compiler_fence, Ordering};
use libc::ucontext_t;

/// Bytes of the largest page that a kernel for this processor may have.
pub const LARGEST_PAGE_BYTES: usize = 4096;

/// Returns the bytes of a page.
#[inline(always)]
pub const fn page_bytes() -> usize {
    4096
}

/// O_LARGEFILE of open(2), which libc hides.
pub const O_LARGEFILE: u64 = 0o100_000;

/// One past the highest address of a program (`TASK_SIZE_MAX`).
pub const ADDRESSES_END: u64 = 0x7fff_ffff_f000;

/// The number of epoll_wait(2), where the kernel has that call.
pub const EPOLL_WAIT: Option<libc::c_long> = Some(libc::SYS_epoll_wait);

/// The number of poll(2), where the kernel has that call.
pub const POLL: Option<libc::c_long> = Some(libc::SYS_poll);

/// The kernel's clocks that are this processor's time stamp counter, which is then the same on all CPUs.
pub const COUNTER_CLOCKS: &[&str] = &["tsc", "kvm-clock"];

/// Returns the time stamp counter if `by_counter` is set, and else what `clock` returns.
#[inline(always)]
pub fn ticks(by_counter: bool, clock: impl FnOnce() -> u64) -> u64 {
    if by_counter {
        // SAFETY: every x86-64 processor has the instruction, and libc's own clock uses it.
        return unsafe { core::arch::x86_64::_rdtsc() };
    }
    clock()
}

/// The instruction of [`syscall`](crate::os::syscall).
#[inline(always)]
pub fn kernel(number: libc::c_long, args: [usize; 6]) -> isize {
    let answer: isize;
    // SAFETY: the asm declares the registers that the `syscall` instruction changes. Memory of this program's Rust
    // objects is passed only by callers that hold it exclusively for the call.
    unsafe {
        core::arch::asm!("syscall", inlateout("rax") number as isize => answer,
            in("rdi") args[0], in("rsi") args[1], in("rdx") args[2], in("r10") args[3], in("r8") args[4],
            in("r9") args[5], lateout("rcx") _, lateout("r11") _, options(nostack));
    }
    answer
}

/// Calls clone(2) with these flags. The child runs `run` with `argument` on the stack that ends at `top`, a multiple
/// of 16, and does not return. Returns the child's number, or `-errno`. Does not call libc's function, since a
/// sanitizer may have replaced that.
///
/// # Safety
/// The stack is used by nothing else until the child has ended, and the child's use of shared memory is sound beside
/// this thread.
pub unsafe fn make_child(
    flags: usize,
    top: usize,
    run: extern "C" fn(*mut c_void) -> !,
    argument: *mut c_void,
) -> isize {
    let answer: isize;
    // SAFETY: the kernel changes rax, rcx and r11. The child has its own registers, and nothing follows the call in
    // it.
    unsafe {
        core::arch::asm!("syscall", "test rax, rax", "jnz 2f", "xor ebp, ebp", "mov rdi, r12", "call r13", "ud2", "2:",
            inlateout("rax") libc::SYS_clone as isize => answer, in("rdi") flags, in("rsi") top, in("rdx") 0, in("r10") 0,
            in("r8") 0, in("r12") argument, in("r13") run, lateout("rcx") _, lateout("r11") _);
    }
    answer
}

/// Returns a word unique to the calling thread while it lives, and even: the thread pointer. Makes no system call,
/// and uses no thread-local.
#[inline(always)]
pub fn thread_pointer() -> usize {
    let pointer: usize;
    // SAFETY: the x86-64 ABI keeps the thread control block's own address at fs:0. The load touches nothing else.
    unsafe { core::arch::asm!("mov {}, fs:0", out(reg) pointer, options(nostack, readonly, preserves_flags)) };
    pointer
}

/// Makes a sequentially consistent fence directly after a locked read-modify-write instruction. On this processor
/// that instruction already is such a fence.
#[inline(always)]
pub fn fence_after_swap() {
    compiler_fence(Ordering::SeqCst);
}

/// Hints that the cache line at `address` is about to be written.
#[inline(always)]
pub fn expect_write(address: usize) {
    // SAFETY: a hint, which changes no memory that the program can read, and never faults.
    unsafe { core::arch::asm!("prefetchw [{}]", in(reg) address, options(nostack, preserves_flags, readonly)) };
}

/// Replaces `old` by `new` in two words that change together. If they differ from `old`, returns the present words,
/// which may have been read at different times. Acquire and Release: its partners are other calls of this function.
///
/// # Safety
/// `pair` is valid, aligned to 16, and accessed by atomic instructions only.
#[inline(always)]
pub unsafe fn replace_pair(pair: *mut [u64; 2], old: [u64; 2], new: [u64; 2]) -> Result<(), [u64; 2]> {
    let (low, high): (u64, u64);
    let replaced: u8;
    // SAFETY: the caller vouches for the pair. rbx, which the compiler reserves, gets its value back. The instruction
    // is a full barrier, so each use of it orders as acquire and release.
    unsafe {
        core::arch::asm!(
            "xchg rbx, rsi",
            "lock cmpxchg16b [rdi]",
            "sete r8b",
            "mov rbx, rsi",
            in("rdi") pair, inout("rsi") new[0] => _, in("rcx") new[1], inout("rax") old[0] => low,
            inout("rdx") old[1] => high, out("r8b") replaced, options(nostack),
        );
    }
    if replaced != 0 {
        Ok(())
    } else {
        Err([low, high])
    }
}

/// Returns the address of the calling thread's copy of the memory that
/// [`thread_local_memory`](crate::thread_local_memory) made by that name.
#[macro_export]
macro_rules! own_memory {
    ($name:literal) => {{
        let own;
        // SAFETY: reads the thread pointer and the offset that the loader filled in.
        unsafe {
            core::arch::asm!(
                concat!("mov {own}, [rip + ", $name, "@GOTTPOFF]"),
                "add {own}, fs:[0]",
                own = out(reg) own, options(pure, readonly, nostack),
            );
        }
        own
    }};
}

/// Returns the offset of the record of `os/handlers.rs` from the thread pointer.
#[inline(always)]
fn handlers_offset() -> usize {
    let offset: usize;
    // SAFETY: reads what the loader filled in.
    unsafe {
        core::arch::asm!(
            "mov {offset}, [rip + anyring_thread_handlers@GOTTPOFF]",
            offset = out(reg) offset, options(pure, nomem, nostack, preserves_flags),
        );
    }
    offset
}

/// Increments the count of locks in the record of `os/handlers.rs`, and calls `unseen` unless the count's sign is
/// set.
#[inline(always)]
pub fn count_enter_critical(unseen: impl FnOnce()) {
    // SAFETY: counts in the thread's own memory, by one instruction. All such asm is a fence to the compiler, so a
    // handler finds the count changed before any work under the lock.
    unsafe {
        core::arch::asm!(
            "inc dword ptr fs:[{offset}]",
            "jns {unseen}",
            offset = in(reg) handlers_offset(),
            unseen = label { unseen() },
            options(nostack),
        );
    }
}

/// Decrements the count of locks, and calls `due` unless the record's other word, at `DEFERRED`, is 0.
#[inline(always)]
pub fn count_leave_critical<const DEFERRED: usize>(due: impl FnOnce()) {
    // SAFETY: as in `count_enter_critical`, and reads the record's other word.
    unsafe {
        core::arch::asm!(
            "dec dword ptr fs:[{offset}]",
            "cmp qword ptr fs:[{offset} + {deferred}], 0",
            "jne {due}",
            offset = in(reg) handlers_offset(),
            deferred = const DEFERRED,
            due = label { due() },
            options(nostack),
        );
    }
}

/// Returns the address of the instruction at which a handler's thread continues.
pub fn instruction(context: &ucontext_t) -> usize {
    context.uc_mcontext.gregs[libc::REG_RIP as usize] as usize
}

/// Makes the thread continue at another instruction.
pub fn set_instruction(context: &mut ucontext_t, address: usize) {
    context.uc_mcontext.gregs[libc::REG_RIP as usize] = address as i64;
}

/// Returns the register that holds the address of the word of `anyring_interruptible` below.
pub fn interruptible_word(context: &ucontext_t) -> usize {
    context.uc_mcontext.gregs[libc::REG_RBX as usize] as usize
}

/// Offset of the `ucontext_t` from the stack pointer with which a handler returns.
pub const CONTEXT_IN_FRAME: usize = 0;

/// Returns from a signal handler.
///
/// # Safety
/// `context` is the address of the `ucontext_t` in one of this thread's signal frames. Nothing on the stack between
/// this function's frame and that address may be needed any more.
pub unsafe fn return_from_handler(context: usize) -> ! {
    // SAFETY: the caller vouches for `context`.
    unsafe {
        core::arch::asm!(
            "mov rsp, {context}",
            "mov eax, {rt_sigreturn}",
            "syscall",
            context = in(reg) context,
            rt_sigreturn = const libc::SYS_rt_sigreturn,
            options(noreturn),
        );
    }
}

/// The unwinders' number of the register that holds the frame pointer (RBP, in the psABI's DWARF numbering).
pub const FRAME_POINTER: core::ffi::c_int = 6;

/// Number of words of registers at the start of libc's `jmp_buf` (glibc's sysdeps/x86_64/bits/setjmp.h).
pub const JUMP_WORDS: usize = 8;

// `os/guard.rs`.
core::arch::global_asm!(
    // usize anyring_user_copy(to: rdi, from: rsi, bytes: rdx): returns the number of bytes not copied, 0 when all
    // were.
    ".hidden anyring_user_copy",
    ".globl anyring_user_copy",
    ".type anyring_user_copy, @function",
    "anyring_user_copy:",
    ".cfi_startproc",
    "mov rcx, rdx",
    "cmp rdx, 64",
    "ja 6f",
    "shr rcx, 4",
    "jz 5f",
    "4: movups xmm0, [rsi]",
    "movups [rdi], xmm0",
    "add rsi, 16",
    "add rdi, 16",
    "dec rcx",
    "jnz 4b",
    "5: test dl, 8",
    "jz 8f",
    "mov rax, [rsi]",
    "mov [rdi], rax",
    "add rsi, 8",
    "add rdi, 8",
    "8: mov rcx, rdx",
    "and rcx, 7",
    "jz 7f", // even with nothing to do it costs as much as a few words
    "6: rep movsb",
    "7: xor eax, eax",
    "ret",
    ".cfi_endproc",
    // u32 anyring_user_load(word: rdi): returns the word, or -1 in the upper half when it cannot be read.
    ".hidden anyring_user_load",
    ".globl anyring_user_load",
    ".type anyring_user_load, @function",
    "anyring_user_load:",
    ".cfi_startproc",
    "mov eax, [rdi]",
    "ret",
    ".cfi_endproc",
    // usize anyring_user_store(word: rdi, value: esi): returns 0, or not 0 when it cannot be written.
    ".hidden anyring_user_store",
    ".globl anyring_user_store",
    ".type anyring_user_store, @function",
    "anyring_user_store:",
    ".cfi_startproc",
    "mov [rdi], esi",
    "xor eax, eax",
    "ret",
    ".cfi_endproc",
    // usize anyring_user_touch(word: rdi): returns 0, or not 0 when it cannot be written. Changes nothing, and undoes
    // no other thread's store.
    ".hidden anyring_user_touch",
    ".globl anyring_user_touch",
    ".type anyring_user_touch, @function",
    "anyring_user_touch:",
    ".cfi_startproc",
    "lock or dword ptr [rdi], 0",
    "xor eax, eax",
    "ret",
    ".cfi_endproc",
    ".hidden anyring_user_copy_fault",
    ".globl anyring_user_copy_fault",
    "anyring_user_copy_fault:",
    ".cfi_startproc",
    "mov rax, -1",
    "ret",
    ".cfi_endproc",
);

// `os/interrupt.rs`.
core::arch::global_asm!(
    // isize anyring_interruptible(stop: rdi, number: rsi, args: rdx): the call's answer, or -EINTR.
    ".hidden anyring_interruptible",
    ".globl anyring_interruptible",
    ".type anyring_interruptible, @function",
    "anyring_interruptible:",
    ".cfi_startproc",
    "push rbx",
    ".cfi_adjust_cfa_offset 8",
    ".cfi_rel_offset rbx, 0",
    "mov rbx, rdi",
    "mov rax, rsi",
    "mov r11, rdx",
    "mov rdi, [r11]",
    "mov rsi, [r11 + 8]",
    "mov rdx, [r11 + 16]",
    "mov r10, [r11 + 24]",
    "mov r8, [r11 + 32]",
    "mov r9, [r11 + 40]",
    ".hidden anyring_interruptible_first",
    ".globl anyring_interruptible_first",
    "anyring_interruptible_first:",
    "cmp dword ptr [rbx], 0",
    "jne anyring_interruptible_end",
    "syscall",
    ".hidden anyring_interruptible_last",
    ".globl anyring_interruptible_last",
    "anyring_interruptible_last:",
    ".cfi_remember_state",
    "pop rbx",
    ".cfi_adjust_cfa_offset -8",
    ".cfi_restore rbx",
    "ret",
    ".cfi_restore_state",
    ".hidden anyring_interruptible_end",
    ".globl anyring_interruptible_end",
    "anyring_interruptible_end:",
    "mov rax, -4",
    "pop rbx",
    ".cfi_def_cfa_offset 8", // absolute: assemblers differ on the base of a relative offset after .cfi_restore_state
    ".cfi_restore rbx",
    "ret",
    ".cfi_endproc",
);
