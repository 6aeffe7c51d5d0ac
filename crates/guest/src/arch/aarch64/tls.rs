//! The thread pointer, which is tpidr_el0, and the fields of glibc's TCB that only this processor has.

use core::arch::asm;
use core::ops::Range;

/// The distances from the thread pointer at which the list of robust mutexes in `struct pthread` may be. The structure
/// ends at the thread pointer.
pub const ROBUST_AT: Range<isize> = -0x2000..0;

/// The offset of that list in `struct pthread`. The word for `multiple_threads` comes first (nptl/descr.h).
const ROBUST_IN_PTHREAD: usize = 0xe0;

/// Returns the thread pointer.
pub fn current() -> usize {
    let pointer: usize;
    // SAFETY: reads a register.
    unsafe { asm!("mrs {}, tpidr_el0", out(reg) pointer, options(nomem, nostack, preserves_flags)) };
    pointer
}

/// # Safety
/// `pointer` is a TCB of the host's glibc, or the code that follows uses no thread-local memory.
pub unsafe fn set(pointer: usize) {
    // SAFETY: the caller vouches for it. No options: the compiler must move nothing across.
    unsafe { asm!("msr tpidr_el0, {}", in(reg) pointer) };
}

/// Fills in the TCB's field that is special to this processor. `robust` is the distance of the list of robust mutexes.
///
/// # Safety
/// `tcb` is a TCB of the host's glibc, and nothing else uses it.
pub unsafe fn fill(tcb: usize, _mine: usize, robust: usize) {
    let pthread = tcb.wrapping_add(robust) - ROBUST_IN_PTHREAD;
    // SAFETY: the caller vouches for it; this is the first field of the structure.
    unsafe { (pthread as *mut i32).write(1) };
}
