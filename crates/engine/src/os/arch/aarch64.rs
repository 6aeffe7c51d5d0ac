//! What is of aarch64: the same names as in `x86_64.rs`.

use core::sync::atomic::{fence, Ordering};

/// The instruction of [`syscall`](crate::os::syscall).
#[inline(always)]
pub fn kernel(number: libc::c_long, args: [usize; 6]) -> isize {
    let answer: isize;
    // SAFETY: `svc 0` changes only x0, and no memory of this program's Rust objects is passed except by callers that hold it
    // exclusively for the call.
    unsafe {
        core::arch::asm!("svc 0", in("x8") number, inlateout("x0") args[0] as isize => answer, in("x1") args[1],
            in("x2") args[2], in("x3") args[3], in("x4") args[4], in("x5") args[5], options(nostack));
    }
    answer
}

/// A word unique to the calling thread while it lives, and even: the thread pointer. No system call, no thread-local.
#[inline(always)]
pub fn thread_pointer() -> usize {
    let pointer: usize;
    // SAFETY: reads the thread pointer register.
    unsafe { core::arch::asm!("mrs {}, tpidr_el0", out(reg) pointer, options(nostack, nomem, preserves_flags)) };
    pointer
}

/// A sequentially consistent fence directly after an atomic read-modify-write operation, whatever its ordering.
#[inline(always)]
pub fn fence_after_swap() {
    fence(Ordering::SeqCst);
}

/// A hint that the line at `address` is about to be written.
#[inline(always)]
pub fn expect_write(address: usize) {
    // SAFETY: a hint, which touches no memory as far as the program can see, and never faults.
    unsafe {
        core::arch::asm!("prfm pstl1keep, [{}]", in(reg) address, options(nostack, preserves_flags, readonly))
    };
}

/// Replaces `old` by `new` in two words that change together, or answers what is there: two words that need not belong
/// together. Acquire and Release, as its partners are other calls of it.
///
/// # Safety
/// `pair` is valid, aligned to 16, and accessed by atomic instructions only.
#[inline(always)]
pub unsafe fn replace_pair(pair: *mut [u64; 2], old: [u64; 2], new: [u64; 2]) -> Result<(), [u64; 2]> {
    let (low, high): (u64, u64);
    // SAFETY: the caller vouches for the pair. The pair of loads acquires, that of stores releases.
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
