//! The x86-64 part.

use linux_raw_sys::general::*;

/// The machine of an ELF file, and its name.
pub const MACHINE: (object::elf::Machine, &str) = (object::elf::EM_X86_64, "x86-64");

/// glibc's loader, by the path in dynamic programs.
pub const LOADER: &str = "/lib64/ld-linux-x86-64.so.2";

/// The library's folder below Debian's folder for libraries of one processor.
pub const MULTIARCH: &str = "lib/x86_64-linux-gnu/anyring";

/// The number after the last system call of Linux 4.18.
pub const AFTER_4_18: u32 = __NR_rseq + 1;

/// System calls of this processor only that Docker's profile refuses.
pub const DOCKER: &[u32] = &[
    __NR__sysctl,
    __NR_create_module,
    __NR_get_kernel_syms,
    __NR_ioperm,
    __NR_iopl,
    __NR_query_module,
    __NR_sysfs,
    __NR_uselib,
    __NR_ustat,
];

/// Returns the call, or the newer one that replaced it, on names relative to the working directory.
pub fn replaced(number: i64, args: [usize; 6]) -> (i64, [usize; 6]) {
    let [a, b, c, ..] = args;
    let cwd = libc::AT_FDCWD as usize;
    let creat = (libc::O_CREAT | libc::O_WRONLY | libc::O_TRUNC) as usize;
    match number {
        libc::SYS_open => (libc::SYS_openat, [cwd, a, b, c, 0, 0]),
        libc::SYS_creat => (libc::SYS_openat, [cwd, a, creat, b, 0, 0]),
        libc::SYS_mkdir => (libc::SYS_mkdirat, [cwd, a, b, 0, 0, 0]),
        libc::SYS_mknod => (libc::SYS_mknodat, [cwd, a, b, c, 0, 0]),
        libc::SYS_symlink => (libc::SYS_symlinkat, [a, cwd, b, 0, 0, 0]),
        libc::SYS_link => (libc::SYS_linkat, [cwd, a, cwd, b, 0, 0]),
        libc::SYS_unlink => (libc::SYS_unlinkat, [cwd, a, 0, 0, 0, 0]),
        libc::SYS_rmdir => (libc::SYS_unlinkat, [cwd, a, libc::AT_REMOVEDIR as usize, 0, 0, 0]),
        libc::SYS_rename => (libc::SYS_renameat, [cwd, a, cwd, b, 0, 0]),
        _ => (number, args),
    }
}

/// Makes the system call that a traced thread has begun fail with ENOSYS.
pub fn refuse(thread: i32) {
    let number = std::mem::offset_of!(libc::user_regs_struct, orig_rax);
    // SAFETY: no pointers: a word of the stopped thread's registers, by its offset.
    unsafe { libc::ptrace(libc::PTRACE_POKEUSER, thread, number, -1_i64) };
}
