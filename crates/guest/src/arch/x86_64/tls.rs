//! The thread pointer, which is the FS base, and the fields of glibc's TCB that only this processor has.

use core::arch::asm;
use core::ops::Range;

/// The distances from the thread pointer at which the list of robust mutexes in `struct pthread` may be.
pub const ROBUST_AT: Range<isize> = 0x200..0x1000;

/// Offsets of the two pointers to itself in `tcbhead_t` (sysdeps/x86_64/nptl/tls.h). Compilers rely on them.
const SELF: [usize; 2] = [0, 16];
const MULTIPLE_THREADS: usize = 24;
const STACK_GUARD: usize = 0x28;
const POINTER_GUARD: usize = 0x30;

/// Returns the thread pointer.
pub fn current() -> usize {
    let fs: usize;
    // SAFETY: reads a register; `start` has checked that the instruction exists.
    unsafe { asm!("rdfsbase {}", out(reg) fs, options(nomem, nostack, preserves_flags)) };
    fs
}

/// # Safety
/// `fs` is a TCB of the host's glibc, or the code that follows uses no thread-local memory.
pub unsafe fn set(fs: usize) {
    // SAFETY: the caller vouches for it. No options: the compiler must move nothing across.
    unsafe { asm!("wrfsbase {}", in(reg) fs) };
}

/// Fills in the TCB's fields that are special to this processor. Some come from `mine`, the calling thread's TCB.
///
/// # Safety
/// Both are TCBs of the host's glibc, and nothing else uses `tcb`.
pub unsafe fn fill(tcb: usize, mine: usize, _robust: usize) {
    let at = |offset: usize| (tcb + offset) as *mut usize;
    let of_mine = |offset: usize| (mine + offset) as *const usize;
    // SAFETY: the caller vouches for both; each offset is one of a field.
    unsafe {
        SELF.iter().for_each(|offset| at(*offset).write(tcb));
        at(MULTIPLE_THREADS).cast::<i32>().write(1);
        at(STACK_GUARD).write(of_mine(STACK_GUARD).read());
        at(POINTER_GUARD).write(of_mine(POINTER_GUARD).read());
    }
}
