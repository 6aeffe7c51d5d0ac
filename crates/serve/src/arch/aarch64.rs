//! The aarch64 part: the same names as in `x86_64.rs`.

use core::ffi::c_void;

/// The machine of ELF files (linux/elf-em.h).
pub const ELF_MACHINE: u32 = 183;
/// The flag of mmap(2) for the lowest 2 GiB, which only x86-64 has.
pub const MAP_32BIT: i32 = 0;

/// A number that no call has, since this processor's kernels lack dup2(2).
pub const DUP2: i64 = -1;
/// A number that no call has, since this processor's kernels lack epoll_wait(2).
pub const EPOLL_WAIT: i64 = -2;
/// A number that no call has, since this processor's kernels lack poll(2).
pub const POLL: i64 = -3;
/// A number that no call has, since this processor's kernels lack select(2).
pub const SELECT: i64 = -4;

/// True: a thread can go from the guest's world to the host's and back, since any program may write the thread pointer.
pub fn has_two_worlds() -> bool {
    true
}

/// Calls `then` with the address of `words` words of this thread's stack, and the context.
///
/// # Safety
/// The contract of `then` applies.
#[unsafe(naked)]
pub unsafe extern "C" fn on_stack(
    words: usize,
    context: *mut c_void,
    then: unsafe extern "C" fn(*mut usize, *mut c_void),
) {
    core::arch::naked_asm!(
        ".cfi_startproc",
        "stp x29, x30, [sp, -16]!",
        ".cfi_def_cfa_offset 16",
        ".cfi_offset x29, -16",
        ".cfi_offset x30, -8",
        "mov x29, sp",
        ".cfi_def_cfa_register x29",
        "sub x9, sp, x0, lsl 3",
        "and sp, x9, -16",
        "mov x0, sp",
        "blr x2",
        "mov sp, x29",
        ".cfi_def_cfa_register sp",
        "ldp x29, x30, [sp], 16",
        ".cfi_def_cfa_offset 0",
        ".cfi_restore x29",
        ".cfi_restore x30",
        "ret",
        ".cfi_endproc",
    )
}
