//! System calls made from this library's own code, for everything that must reach the kernel past every wrapper. The
//! filter never lists an instruction of this library, so it traps none of these calls.

pub use anyring_engine::os::handlers::set_mask;
use anyring_engine::{os, Errno};
use libc::{c_int, pid_t};

/// Makes system call `number`. Returns the register (a value, or `-errno`); errno is untouched.
///
/// # Safety
/// The contract of the system call: it must be sound to let the kernel act on `args`.
#[inline]
pub unsafe fn call(number: i64, args: [usize; 6]) -> isize {
    os::arch::kernel(number, args)
}

/// gettid(2).
pub fn thread_id() -> pid_t {
    // SAFETY: takes no arguments and cannot fail.
    unsafe { call(libc::SYS_gettid, [0; 6]) as pid_t }
}

/// getpid(2), which asks the kernel each time. The answer is therefore also correct in a child made by a raw fork or
/// vfork.
pub fn process_id() -> pid_t {
    // SAFETY: takes no arguments and cannot fail.
    unsafe { call(libc::SYS_getpid, [0; 6]) as pid_t }
}

/// Copies one `T` from memory that the program named. `None` if the memory may not be read (the kernel would then
/// answer EFAULT).
///
/// The kernel makes the copy, by process_vm_readv(2). If the kernel refuses that, the engine's guarded routine makes
/// it. A check followed by a read would race with a munmap in another thread.
pub fn read_program<T: Plain>(from: *const T) -> Option<T> {
    let mut value = core::mem::MaybeUninit::<T>::uninit();
    let copied = read_program_into(from, core::slice::from_mut(&mut value));
    // SAFETY: all bytes of the one element were just written, and any bytes are a valid `Plain`.
    copied.then(|| unsafe { value.assume_init() })
}

/// Fills `into` from the program's array at `from`; true if all of it could be read.
pub fn read_program_into<T: Plain>(from: *const T, into: &mut [core::mem::MaybeUninit<T>]) -> bool {
    let bytes = core::mem::size_of_val(into);
    match os::copy_by_kernel(into.as_mut_ptr() as usize, from as usize, bytes, false) {
        Err(Errno::PERM | Errno::NOSYS) => {
            // SAFETY: the bytes of `into`, exclusively borrowed, which are about to be written.
            let into = unsafe {
                core::ptr::write_bytes(into.as_mut_ptr(), 0, into.len());
                core::slice::from_raw_parts_mut(into.as_mut_ptr().cast::<u8>(), bytes)
            };
            os::user_read_slice(from as u64, into).is_ok()
        }
        answer => answer.is_ok(),
    }
}

/// Copies `value` to memory that the program named; false if it may not be written.
pub fn write_program<T: Plain>(to: *mut T, value: T) -> bool {
    let bytes = size_of::<T>();
    match os::copy_by_kernel(to as usize, &raw const value as usize, bytes, true) {
        Err(Errno::PERM | Errno::NOSYS) => {
            // SAFETY: the bytes of a local; `Plain` has no padding that is read.
            let value = unsafe { core::slice::from_raw_parts((&raw const value).cast::<u8>(), bytes) };
            os::user_write_slice(to as u64, value).is_ok()
        }
        answer => answer.is_ok(),
    }
}

/// A type for which every bit pattern is a value, so that it may be read from the program's memory.
///
/// # Safety
/// No padding that is read, no invalid bit pattern, no pointer that is followed unchecked.
pub unsafe trait Plain: Copy {}
// SAFETY: integers.
unsafe impl Plain for u8 {}
// SAFETY: integers.
unsafe impl Plain for usize {}
// SAFETY: integers.
unsafe impl Plain for u32 {}
// SAFETY: integers.
unsafe impl Plain for u64 {}
// SAFETY: integers, without padding.
unsafe impl Plain for [usize; 2] {}
// SAFETY: as above.
unsafe impl Plain for anyring_abi::Params {}
// SAFETY: integers, without padding.
unsafe impl Plain for anyring_abi::AioRing {}

/// Returns errno of the calling thread.
pub fn errno() -> c_int {
    // SAFETY: __errno_location returns the calling thread's own errno word, valid as long as the thread lives.
    unsafe { *libc::__errno_location() }
}

/// Sets errno of the calling thread.
pub fn set_errno(value: c_int) {
    // SAFETY: as in `errno`.
    unsafe { *libc::__errno_location() = value }
}

/// True if thread `id` exists in this process.
pub fn thread_lives(id: usize) -> bool {
    // SAFETY: signal 0 is never delivered.
    unsafe { call(libc::SYS_tgkill, [process_id() as usize, id, 0, 0, 0, 0]) != -(libc::ESRCH as isize) }
}
