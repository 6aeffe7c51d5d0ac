//! The aarch64 part.

use linux_raw_sys::general::__NR_kexec_file_load;

/// The machine of an ELF file, and its name.
pub const MACHINE: (object::elf::Machine, &str) = (object::elf::EM_AARCH64, "aarch64");

/// glibc's loader, by the path in dynamic programs.
pub const LOADER: &str = "/lib/ld-linux-aarch64.so.1";

/// The library's folder below Debian's folder for libraries of one processor.
pub const MULTIARCH: &str = "lib/aarch64-linux-gnu/anyring";

/// The number after the last system call of Linux 4.18.
pub const AFTER_4_18: u32 = __NR_kexec_file_load;

/// System calls of this processor only that Docker's profile refuses: none.
pub const DOCKER: &[u32] = &[];

/// The set of registers that is the number of a system call (linux/elf.h).
const NT_ARM_SYSTEM_CALL: usize = 0x404;

/// Returns the call as it is: this processor has no system calls that newer ones replaced.
pub fn replaced(number: i64, args: [usize; 6]) -> (i64, [usize; 6]) {
    (number, args)
}

/// Makes the system call that a traced thread has begun fail with ENOSYS.
pub fn refuse(thread: i32) {
    // With -1 the kernel would leave the first argument as the result (arch/arm64/kernel/syscall.c).
    let mut number = i32::MAX;
    let value = libc::iovec { iov_base: (&raw mut number).cast(), iov_len: size_of::<i32>() };
    // SAFETY: the kernel reads the vector and the four bytes that it names, which live until the call returns.
    unsafe { libc::ptrace(libc::PTRACE_SETREGSET, thread, NT_ARM_SYSTEM_CALL, &raw const value) };
}
