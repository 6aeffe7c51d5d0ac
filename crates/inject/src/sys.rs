//! One system call made from our own code, for everything that must reach the kernel past every wrapper: the filter
//! never lists an instruction of this library, so nothing made here is trapped by it.

use libc::{c_int, pid_t};

/// Makes system call `number`; the answer is the register (a value, or `-errno`), errno is untouched.
///
/// # Safety
/// As the system call itself: it must be sound to let the kernel act on `args`.
#[inline]
pub unsafe fn call(number: i64, args: [usize; 6]) -> isize {
    let answer: isize;
    // SAFETY: the caller vouches for the arguments; the asm declares all that the instruction changes.
    unsafe {
        core::arch::asm!("syscall", inlateout("rax") number as isize => answer,
            in("rdi") args[0], in("rsi") args[1], in("rdx") args[2], in("r10") args[3], in("r8") args[4],
            in("r9") args[5], lateout("rcx") _, lateout("r11") _, options(nostack));
    }
    answer
}

/// gettid(2).
pub fn thread_id() -> pid_t {
    // SAFETY: takes no arguments and cannot fail.
    unsafe { call(libc::SYS_gettid, [0; 6]) as pid_t }
}

/// getpid(2), asked of the kernel each time: also right in a child made by a raw fork or vfork.
pub fn process_id() -> pid_t {
    // SAFETY: takes no arguments and cannot fail.
    unsafe { call(libc::SYS_getpid, [0; 6]) as pid_t }
}

/// Copies one `T` from memory the program named, or `None` where it may not be read (the kernel then says EFAULT).
/// The kernel does the copy: looking first and reading then would race with a munmap in another thread.
pub fn read_program<T: Plain>(from: *const T) -> Option<T> {
    let mut value = core::mem::MaybeUninit::<T>::uninit();
    let copied = read_program_into(from, core::slice::from_mut(&mut value));
    // SAFETY: all bytes of the one element were just written, and any bytes are a valid `Plain`.
    copied.then(|| unsafe { value.assume_init() })
}

/// Fills `into` from the program's array at `from`; whether all of it could be read.
pub fn read_program_into<T: Plain>(from: *const T, into: &mut [core::mem::MaybeUninit<T>]) -> bool {
    let length = core::mem::size_of_val(into);
    let local = libc::iovec { iov_base: into.as_mut_ptr().cast(), iov_len: length };
    let remote = libc::iovec { iov_base: from.cast_mut().cast(), iov_len: length };
    let args = [process_id() as usize, &raw const local as usize, 1, &raw const remote as usize, 1, 0];
    // SAFETY: process_vm_readv writes at most `length` bytes into `into`, which is exclusively borrowed; the other
    // side is only read, by the kernel, which checks it.
    unsafe { call(libc::SYS_process_vm_readv, args) == length as isize }
}

/// Copies `value` to memory the program named; whether it may be written.
pub fn write_program<T: Plain>(to: *mut T, value: T) -> bool {
    let length = size_of::<T>();
    let local = libc::iovec { iov_base: (&raw const value).cast_mut().cast(), iov_len: length };
    let remote = libc::iovec { iov_base: to.cast(), iov_len: length };
    let args = [process_id() as usize, &raw const local as usize, 1, &raw const remote as usize, 1, 0];
    // SAFETY: process_vm_writev only reads `value`; the program asked for its answer to be written at `to`, and the
    // kernel checks that address.
    unsafe { call(libc::SYS_process_vm_writev, args) == length as isize }
}

/// Types of which every bit pattern is a value, so that they may be read from the program's memory.
///
/// # Safety
/// No padding that is read, no invalid bit pattern, no pointer that is followed unchecked.
pub unsafe trait Plain: Copy {}
// SAFETY: integers.
unsafe impl Plain for u32 {}
// SAFETY: integers.
unsafe impl Plain for u64 {}
// SAFETY: an int and two shorts.
unsafe impl Plain for libc::pollfd {}

/// errno of the calling thread.
pub fn errno() -> c_int {
    // SAFETY: __errno_location answers the calling thread's own errno word, valid as long as the thread lives.
    unsafe { *libc::__errno_location() }
}

/// Sets errno of the calling thread.
pub fn set_errno(value: c_int) {
    // SAFETY: as in `errno`.
    unsafe { *libc::__errno_location() = value }
}
