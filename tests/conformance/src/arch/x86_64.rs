//! The x86-64 part.

use crate::door::Instruction;

/// One past the highest address of a program (`TASK_SIZE_MAX`).
pub const ADDRESSES_END: u64 = 0x7fff_ffff_f000;

/// The number of the call that waits on an epoll descriptor.
pub const EPOLL_WAIT: i64 = libc::SYS_epoll_wait;

/// Waits on one descriptor, by poll(2).
pub fn poll(call: Instruction, entry: usize, timeout_ms: i32) -> isize {
    call(libc::SYS_poll, [entry, 1, timeout_ms as usize, 0, 0, 0])
}

/// Makes one system call by an instruction here. Linked only into programs that call `door::have_instructions`: anyring
/// looks for such instructions before it trusts that it sees every close.
pub fn instruction(number: i64, args: [usize; 6]) -> isize {
    let answer: isize;
    // SAFETY: the asm declares all that the instruction changes; what the call itself does to memory is what
    // the case asked for through the same interface that the other doors offer.
    unsafe {
        core::arch::asm!("syscall", inlateout("rax") number as isize => answer,
            in("rdi") args[0], in("rsi") args[1], in("rdx") args[2], in("r10") args[3], in("r8") args[4],
            in("r9") args[5], lateout("rcx") _, lateout("r11") _);
    }
    answer
}
