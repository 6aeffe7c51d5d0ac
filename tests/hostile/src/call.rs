//! System calls of the hostile program. The calls of io_uring and Linux AIO go through the door that its seed chose.
//! Memory that may be unmapped is read and written by the kernel.

use libc::c_void;
use std::cell::Cell;
use std::sync::atomic::{AtomicBool, Ordering};

static RAW: AtomicBool = AtomicBool::new(false);

/// The way in which a signal handler leaves a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Leap {
    /// siglongjmp(3)
    Jump,
    /// setcontext(3)
    Context,
}

thread_local! {
    /// The way in which handlers leave calls of this thread.
    static LEAP: Cell<Option<Leap>> = const { Cell::new(None) };
    static IN_CALL: Cell<bool> = const { Cell::new(false) };
}

/// Makes handlers leave the calls of this thread, or no longer.
pub fn leap_from_calls(how: Option<Leap>) {
    LEAP.set(how);
    IN_CALL.set(false);
}

/// Returns how the handler must leave the call that it interrupted; `None` outside of calls.
pub fn leap() -> Option<Leap> {
    LEAP.get().filter(|_| IN_CALL.replace(false))
}

/// Makes calls by instructions from now on, if `raw`. Relaxed: before any thread is made.
pub fn by_instructions(raw: bool) {
    RAW.store(raw, Ordering::Relaxed);
}

/// True if calls are made by instructions.
pub fn is_by_instructions() -> bool {
    RAW.load(Ordering::Relaxed)
}

/// Makes the call. Returns the value of the kernel's result register: a value, or `-errno`.
pub fn call(number: i64, args: [u64; 6]) -> i64 {
    if LEAP.get().is_none() {
        return make(number, args);
    }
    IN_CALL.set(true);
    let answer = make(number, args);
    IN_CALL.set(false);
    answer
}

fn make(number: i64, args: [u64; 6]) -> i64 {
    if RAW.load(Ordering::Relaxed) {
        return instruction(number, args);
    }
    // SAFETY: the calls are those of io_uring and Linux AIO. The memory that they name is in the arena, which holds
    // no Rust value, or is not mapped.
    let answer = unsafe { libc::syscall(number, args[0], args[1], args[2], args[3], args[4], args[5]) };
    if answer != -1 {
        return answer;
    }
    // SAFETY: errno is the thread's own.
    -i64::from(unsafe { *libc::__errno_location() })
}

fn instruction(number: i64, args: [u64; 6]) -> i64 {
    let answer: i64;
    // SAFETY: as in `call`; the asm declares all that the instruction changes.
    unsafe {
        core::arch::asm!("syscall", inlateout("rax") number => answer,
            in("rdi") args[0], in("rsi") args[1], in("rdx") args[2], in("r10") args[3], in("r8") args[4],
            in("r9") args[5], lateout("rcx") _, lateout("r11") _);
    }
    answer
}

/// Writes to an address that may be unmapped. True if all of it was written.
pub fn poke(to: usize, bytes: &[u8]) -> bool {
    let local = libc::iovec { iov_base: bytes.as_ptr() as *mut c_void, iov_len: bytes.len() };
    let remote = libc::iovec { iov_base: to as *mut c_void, iov_len: bytes.len() };
    // SAFETY: reads a slice; the target is in the arena.
    unsafe { libc::process_vm_writev(libc::getpid(), &local, 1, &remote, 1, 0) == bytes.len() as isize }
}

/// Reads from an address that may be unmapped. True if all of it was read.
pub fn peek(from: usize, bytes: &mut [u8]) -> bool {
    let local = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    let remote = libc::iovec { iov_base: from as *mut c_void, iov_len: bytes.len() };
    // SAFETY: writes to a slice.
    unsafe { libc::process_vm_readv(libc::getpid(), &local, 1, &remote, 1, 0) == bytes.len() as isize }
}

/// Reads a word that may be unmapped.
pub fn peek_u32(from: usize) -> Option<u32> {
    let mut bytes = [0; 4];
    peek(from, &mut bytes).then_some(u32::from_ne_bytes(bytes))
}

/// Writes a `u32` by [`poke`].
pub fn poke_u32(to: usize, value: u32) {
    poke(to, &value.to_ne_bytes());
}
