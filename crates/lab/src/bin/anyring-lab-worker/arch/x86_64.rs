//! The x86-64 part.

/// Makes a system call by an instruction in the worker's own text, as liburing's compiled code and Go programs do. The
/// number is loaded right before the instruction. So a scan can establish that none of these instructions closes a
/// descriptor, and libanyring.so can put a jump there.
#[inline(always)]
pub fn raw_call<const NUMBER: i64>(args: [usize; 6]) -> isize {
    let answer: isize;
    // SAFETY: the asm declares all that the instructions change; calls of io_uring and Linux AIO, and mmap, on
    // structures that the caller keeps alive.
    unsafe {
        std::arch::asm!("mov eax, {number}", "syscall", number = const NUMBER, out("rax") answer,
            in("rdi") args[0], in("rsi") args[1], in("rdx") args[2], in("r10") args[3], in("r8") args[4],
            in("r9") args[5], lateout("rcx") _, lateout("r11") _, options(nostack));
    }
    answer
}
