//! The aarch64 part: the same names as in `x86_64.rs`.

use crate::door::Instruction;

/// One past the highest address of a program (`TASK_SIZE_MAX`).
pub const ADDRESSES_END: u64 = 1 << 52;

/// The number of the call that waits on an epoll descriptor.
pub const EPOLL_WAIT: i64 = libc::SYS_epoll_pwait;

/// Waits on one descriptor, by ppoll(2).
pub fn poll(call: Instruction, entry: usize, timeout_ms: i32) -> isize {
    let time = std::time::Duration::from_millis(timeout_ms.max(0) as u64);
    let time = libc::timespec { tv_sec: time.as_secs() as i64, tv_nsec: i64::from(time.subsec_nanos()) };
    let time = if timeout_ms < 0 { 0 } else { &raw const time as usize };
    call(libc::SYS_ppoll, [entry, 1, time, 0, 0, 0])
}

/// Makes one system call by an instruction here. Linked only into programs that call `door::have_instructions`: anyring
/// looks for such instructions before it trusts that it sees every close.
pub fn instruction(number: i64, args: [usize; 6]) -> isize {
    let answer: isize;
    // SAFETY: the asm declares all that the instruction changes; what the call itself does to memory is what
    // the case asked for through the same interface that the other doors offer.
    unsafe {
        core::arch::asm!("svc 0", in("x8") number, inlateout("x0") args[0] as isize => answer, in("x1") args[1],
            in("x2") args[2], in("x3") args[3], in("x4") args[4], in("x5") args[5]);
    }
    answer
}
