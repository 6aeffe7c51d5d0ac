//! The x86-64 part: memory of the stack.

use core::ffi::c_void;

/// The machine of ELF files (linux/elf-em.h).
pub const ELF_MACHINE: u32 = 62;
/// The flag of mmap(2) for the lowest 2 GiB.
pub const MAP_32BIT: i32 = libc::MAP_32BIT;

/// The number of dup2(2).
pub const DUP2: i64 = libc::SYS_dup2;
/// The number of epoll_wait(2).
pub const EPOLL_WAIT: i64 = libc::SYS_epoll_wait;
/// The number of poll(2).
pub const POLL: i64 = libc::SYS_poll;
/// The number of select(2).
pub const SELECT: i64 = libc::SYS_select;

/// True if a thread can go from the guest's world to the host's and back. It needs the instructions for the FS base,
/// which Linux 5.9 permits.
pub fn has_two_worlds() -> bool {
    /// The bit of AT_HWCAP2 that permits the instructions for the FS base.
    const HWCAP2_FSGSBASE: u64 = 1 << 1;
    // SAFETY: reads the auxiliary vector.
    unsafe { libc::getauxval(libc::AT_HWCAP2) & HWCAP2_FSGSBASE != 0 }
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
        "push rbp",
        ".cfi_def_cfa_offset 16",
        ".cfi_offset rbp, -16",
        "mov rbp, rsp",
        ".cfi_def_cfa_register rbp",
        "shl rdi, 3",
        "sub rsp, rdi",
        "and rsp, -16",
        "mov rdi, rsp",
        "call rdx",
        "leave",
        ".cfi_def_cfa rsp, 8",
        "ret",
        ".cfi_endproc",
    )
}
