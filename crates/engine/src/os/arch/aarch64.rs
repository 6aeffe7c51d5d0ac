//! Code for aarch64: the same names as in `x86_64.rs`.

use core::ffi::c_void;
use core::sync::atomic::{compiler_fence, fence, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use libc::ucontext_t;

/// Bytes of the largest page that a kernel for this processor may have.
pub const LARGEST_PAGE_BYTES: usize = 64 << 10;

/// Returns the bytes of a page, which the kernel was built with: 4, 16 or 64 KiB.
#[inline]
pub fn page_bytes() -> usize {
    /// 0 before the first call. Relaxed: each thread finds the same.
    static BYTES: AtomicUsize = AtomicUsize::new(0);
    match BYTES.load(Ordering::Relaxed) {
        0 => {
            // SAFETY: reads the auxiliary vector.
            let bytes = unsafe { libc::getauxval(libc::AT_PAGESZ) } as usize;
            BYTES.store(bytes, Ordering::Relaxed);
            bytes
        }
        bytes => bytes,
    }
}

/// O_LARGEFILE of open(2), which libc hides.
pub const O_LARGEFILE: u64 = 0o400_000;

/// One past the highest address of a program (`TASK_SIZE_MAX`).
pub const ADDRESSES_END: u64 = 1 << 52;

/// The number of epoll_wait(2), which this processor's kernels lack.
pub const EPOLL_WAIT: Option<libc::c_long> = None;

/// The number of poll(2), which this processor's kernels lack.
pub const POLL: Option<libc::c_long> = None;

/// See `x86_64.rs`. Empty: times come from the kernel's clock.
pub const COUNTER_CLOCKS: &[&str] = &[];

/// Returns what `clock` returns.
#[inline(always)]
pub fn ticks(_by_counter: bool, clock: impl FnOnce() -> u64) -> u64 {
    clock()
}

/// The instruction of [`syscall`](crate::os::syscall).
#[inline(always)]
pub fn kernel(number: libc::c_long, args: [usize; 6]) -> isize {
    let answer: isize;
    // SAFETY: `svc 0` changes only x0. Memory of this program's Rust objects is passed only by callers that hold it
    // exclusively for the call.
    unsafe {
        core::arch::asm!("svc 0", in("x8") number, inlateout("x0") args[0] as isize => answer, in("x1") args[1],
            in("x2") args[2], in("x3") args[3], in("x4") args[4], in("x5") args[5], options(nostack));
    }
    answer
}

/// Calls clone(2) with these flags: see `make_child` in `x86_64.rs`.
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
    // SAFETY: the kernel changes x0 only. The child has its own registers, and nothing follows the call in it.
    unsafe {
        core::arch::asm!("svc 0", "cbnz x0, 2f", "mov x29, xzr", "mov x0, x21", "blr x22", "brk 0", "2:",
            in("x8") libc::SYS_clone, inlateout("x0") flags as isize => answer, in("x1") top, in("x2") 0, in("x3") 0,
            in("x4") 0, in("x21") argument, in("x22") run);
    }
    answer
}

/// Returns a word unique to the calling thread while it lives, and even: the thread pointer. Makes no system call,
/// and uses no thread-local.
#[inline(always)]
pub fn thread_pointer() -> usize {
    let pointer: usize;
    // SAFETY: reads the thread pointer register.
    unsafe { core::arch::asm!("mrs {}, tpidr_el0", out(reg) pointer, options(nostack, nomem, preserves_flags)) };
    pointer
}

/// Makes a sequentially consistent fence directly after an atomic read-modify-write operation, whatever its ordering.
#[inline(always)]
pub fn fence_after_swap() {
    fence(Ordering::SeqCst);
}

/// Hints that the cache line at `address` is about to be written.
#[inline(always)]
pub fn expect_write(address: usize) {
    // SAFETY: a hint, which changes no memory that the program can read, and never faults.
    unsafe {
        core::arch::asm!("prfm pstl1keep, [{}]", in(reg) address, options(nostack, preserves_flags, readonly))
    };
}

/// Replaces `old` by `new` in two words that change together. If they differ from `old`, returns the present words,
/// which may have been read at different times. Acquire and Release: its partners are other calls of this function.
///
/// # Safety
/// `pair` is valid, aligned to 16, and accessed by atomic instructions only.
#[inline(always)]
pub unsafe fn replace_pair(pair: *mut [u64; 2], old: [u64; 2], new: [u64; 2]) -> Result<(), [u64; 2]> {
    let (low, high): (u64, u64);
    // SAFETY: the caller vouches for the pair. The pair of loads acquires, and the pair of stores releases.
    unsafe {
        core::arch::asm!(
            "2:",
            "ldaxp {low}, {high}, [{pair}]",
            "cmp {low}, {old_low}",
            "ccmp {high}, {old_high}, #0, eq",
            "b.ne 3f",
            "stlxp {failed:w}, {new_low}, {new_high}, [{pair}]",
            "cbnz {failed:w}, 2b",
            "3:",
            low = out(reg) low, high = out(reg) high, failed = out(reg) _, pair = in(reg) pair,
            old_low = in(reg) old[0], old_high = in(reg) old[1], new_low = in(reg) new[0], new_high = in(reg) new[1],
            options(nostack),
        );
    }
    if [low, high] == old {
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
                concat!("adrp {offset}, :gottprel:", $name),
                concat!("ldr {offset}, [{offset}, :gottprel_lo12:", $name, "]"),
                "mrs {own}, tpidr_el0",
                "add {own}, {own}, {offset}",
                own = out(reg) own, offset = out(reg) _, options(pure, readonly, nostack, preserves_flags),
            );
        }
        own
    }};
}

/// Increments the count of locks in the record of `os/handlers.rs`, and calls `unseen` unless the count's sign is
/// set. A handler between the load and the store leaves the count as it was, and finds the lock not taken yet.
#[inline(always)]
pub fn count_enter_critical(unseen: impl FnOnce()) {
    let count: *const AtomicU32 = crate::own_memory!("anyring_thread_handlers");
    // SAFETY: the first word of the thread's own record, which lives as long as the thread.
    let count = unsafe { &*count };
    let held = count.load(Ordering::Relaxed).wrapping_add(1);
    count.store(held, Ordering::Relaxed);
    compiler_fence(Ordering::SeqCst); // a handler finds the count changed before any work under the lock
    if held as i32 >= 0 {
        unseen();
    }
}

/// Decrements the count of locks. Then calls `due`, unless the record's other word, at `DEFERRED`, is zero. A handler
/// between the load and the store finds the lock still held. A signal that it defers is noticed after the store.
#[inline(always)]
pub fn count_leave_critical<const DEFERRED: usize>(due: impl FnOnce()) {
    let record: *const u8 = crate::own_memory!("anyring_thread_handlers");
    // SAFETY: two words of the thread's own record, which lives as long as the thread.
    let (count, deferred) = unsafe { (&*record.cast::<AtomicU32>(), &*record.add(DEFERRED).cast::<AtomicU64>()) };
    compiler_fence(Ordering::SeqCst); // the work under the lock is done
    count.store(count.load(Ordering::Relaxed).wrapping_sub(1), Ordering::Relaxed);
    compiler_fence(Ordering::SeqCst);
    if deferred.load(Ordering::Relaxed) != 0 {
        due();
    }
}

/// Returns the address of the instruction at which a handler's thread continues.
pub fn instruction(context: &ucontext_t) -> usize {
    context.uc_mcontext.pc as usize
}

/// Makes the thread continue at another instruction.
pub fn set_instruction(context: &mut ucontext_t, address: usize) {
    context.uc_mcontext.pc = address as u64;
}

/// Returns the register that holds the address of the word of `anyring_interruptible` below.
pub fn interruptible_word(context: &ucontext_t) -> usize {
    context.uc_mcontext.regs[9] as usize
}

/// Offset of the `ucontext_t` from the stack pointer with which a handler returns. A `siginfo_t` comes before the
/// `ucontext_t` (`struct rt_sigframe` in arch/arm64/kernel/signal.c).
pub const CONTEXT_IN_FRAME: usize = size_of::<libc::siginfo_t>();

/// Returns from a signal handler.
///
/// # Safety
/// `context` is the address of the `ucontext_t` in one of this thread's signal frames. Nothing on the stack between
/// this function's frame and that address may be needed any more.
pub unsafe fn return_from_handler(context: usize) -> ! {
    // SAFETY: the caller vouches for `context`.
    unsafe {
        core::arch::asm!(
            "mov sp, {frame}",
            "mov x8, {rt_sigreturn}",
            "svc 0",
            frame = in(reg) context - CONTEXT_IN_FRAME,
            rt_sigreturn = const libc::SYS_rt_sigreturn,
            options(noreturn),
        );
    }
}

/// The unwinders' number of the register that holds the frame pointer (X29, in the psABI's DWARF numbering).
pub const FRAME_POINTER: core::ffi::c_int = 29;

/// Number of words of registers at the start of libc's `jmp_buf` (glibc's sysdeps/aarch64/bits/setjmp.h).
pub const JUMP_WORDS: usize = 22;

// `os/guard.rs`.
core::arch::global_asm!(
    // usize anyring_user_copy(to: x0, from: x1, bytes: x2): returns 0, or not 0 if not all was copied.
    ".hidden anyring_user_copy",
    ".globl anyring_user_copy",
    ".type anyring_user_copy, @function",
    "anyring_user_copy:",
    ".cfi_startproc",
    "subs x2, x2, 16",
    "b.lo 5f",
    "4: ldp x3, x4, [x1], 16",
    "stp x3, x4, [x0], 16",
    "subs x2, x2, 16",
    "b.hs 4b",
    "5: tbz x2, 3, 6f", // 16 less than what is left: the same lower bits
    "ldr x3, [x1], 8",
    "str x3, [x0], 8",
    "6: tbz x2, 2, 7f",
    "ldr w3, [x1], 4",
    "str w3, [x0], 4",
    "7: ands x2, x2, 3",
    "b.eq 9f",
    "8: ldrb w3, [x1], 1",
    "strb w3, [x0], 1",
    "subs x2, x2, 1",
    "b.ne 8b",
    "9: mov x0, 0",
    "ret",
    ".cfi_endproc",
    // u64 anyring_user_load(word: x0): returns the word, or -1 in the upper half when it cannot be read. An Acquire
    // load.
    ".hidden anyring_user_load",
    ".globl anyring_user_load",
    ".type anyring_user_load, @function",
    "anyring_user_load:",
    ".cfi_startproc",
    "ldar w0, [x0]",
    "ret",
    ".cfi_endproc",
    // usize anyring_user_store(word: x0, value: w1): returns 0, or not 0 when it cannot be written. A Release store.
    ".hidden anyring_user_store",
    ".globl anyring_user_store",
    ".type anyring_user_store, @function",
    "anyring_user_store:",
    ".cfi_startproc",
    "stlr w1, [x0]",
    "mov x0, 0",
    "ret",
    ".cfi_endproc",
    // usize anyring_user_touch(address: x0): returns 0, or not 0 when it cannot be written. Changes nothing, and
    // undoes no other thread's store.
    ".hidden anyring_user_touch",
    ".globl anyring_user_touch",
    ".type anyring_user_touch, @function",
    "anyring_user_touch:",
    ".cfi_startproc",
    "and x0, x0, -4", // exclusive accesses are aligned
    "4: ldxr w1, [x0]",
    "stxr w2, w1, [x0]",
    "cbnz w2, 4b",
    "mov x0, 0",
    "ret",
    ".cfi_endproc",
    ".hidden anyring_user_copy_fault",
    ".globl anyring_user_copy_fault",
    "anyring_user_copy_fault:",
    ".cfi_startproc",
    "mov x0, -1",
    "ret",
    ".cfi_endproc",
);

// `os/interrupt.rs`. A system call keeps all registers but x0.
core::arch::global_asm!(
    // isize anyring_interruptible(stop: x0, number: x1, args: x2): the call's answer, or -EINTR.
    ".hidden anyring_interruptible",
    ".globl anyring_interruptible",
    ".type anyring_interruptible, @function",
    "anyring_interruptible:",
    ".cfi_startproc",
    "mov x9, x0",
    "mov x8, x1",
    "mov x10, x2",
    "ldp x0, x1, [x10]",
    "ldp x2, x3, [x10, 16]",
    "ldp x4, x5, [x10, 32]",
    ".hidden anyring_interruptible_first",
    ".globl anyring_interruptible_first",
    "anyring_interruptible_first:",
    "ldr w11, [x9]",
    "cbnz w11, anyring_interruptible_end",
    "svc 0",
    ".hidden anyring_interruptible_last",
    ".globl anyring_interruptible_last",
    "anyring_interruptible_last:",
    "ret",
    ".hidden anyring_interruptible_end",
    ".globl anyring_interruptible_end",
    "anyring_interruptible_end:",
    "mov x0, -4",
    "ret",
    ".cfi_endproc",
);
