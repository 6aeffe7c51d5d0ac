//! The aarch64 part.

/// Makes a system call by an instruction in the worker's own text, as liburing's compiled code and Go programs do. The
/// number is loaded right before the instruction. So a scan can establish that none of these instructions closes a
/// descriptor, and libanyring.so can put a jump there.
#[inline(always)]
pub fn raw_call<const NUMBER: i64>(args: [usize; 6]) -> isize {
    let answer: isize;
    // SAFETY: the asm declares all that the instructions change; calls of io_uring and Linux AIO, and mmap, on
    // structures that the caller keeps alive.
    unsafe {
        std::arch::asm!("mov x8, {number}", "svc 0", number = const NUMBER, inlateout("x0") args[0] as isize => answer,
            in("x1") args[1], in("x2") args[2], in("x3") args[3], in("x4") args[4], in("x5") args[5], out("x8") _,
            options(nostack));
    }
    answer
}
