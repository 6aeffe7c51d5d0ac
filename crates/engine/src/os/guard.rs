//! Access to memory that the program named. A bad pointer gives `EFAULT`, and never crashes the process.
//!
//! The copy routine (`os/arch/`) is a known range of instructions. The preloaded library installs a chained
//! SIGSEGV/SIGBUS handler that calls [`user_copy_fault`]. It recognises a fault inside the range and moves the thread
//! to the routine's error exit.
//!
//! Until such a handler is installed ([`handler_installed`]), copies go through process_vm_readv(2) and
//! process_vm_writev(2). They check the address in the kernel and cost a microsecond.

use super::question::Question;
use super::{check, syscall, Os, Sys};
use crate::mutation::{mutated, Mutation};
use crate::os::handlers;
use crate::Errno;
use core::sync::atomic::{compiler_fence, fence, AtomicBool, Ordering};

unsafe extern "C" {
    fn anyring_user_copy(to: usize, from: usize, bytes: usize) -> usize;
    fn anyring_user_load(word: usize) -> u64;
    fn anyring_user_store(word: usize, value: u32) -> usize;
    fn anyring_user_touch(word: usize) -> usize;
    fn anyring_user_copy_fault();
}

/// True if a handler that calls [`user_copy_fault`] is in place. Release/Acquire: set after the handler was
/// installed, read before a copy relies on it.
static HANDLER: AtomicBool = AtomicBool::new(false);

/// Returns the address at which the thread must continue, if the fault at instruction `address` is in the copy
/// routine. The chained SIGSEGV/SIGBUS handler calls this.
pub fn user_copy_fault(address: usize) -> Option<usize> {
    let first = anyring_user_copy as *const () as usize;
    let last = anyring_user_copy_fault as *const () as usize;
    let ours = (first..last).contains(&address) && !mutated(Mutation::FaultsAreNotRecovered);
    ours.then_some(last)
}

/// Records that a handler which calls [`user_copy_fault`] is installed for SIGSEGV and SIGBUS.
pub fn handler_installed() {
    super::interrupt::mark_handler_installed();
    HANDLER.store(true, Ordering::Release); // partner: the Acquire load in `copy`
}

/// True if the kernel copies for the engine: it has process_vm_readv(2), and no filter refuses the call or kills for
/// it. The filter of a systemd service without `@ipc` kills.
pub fn kernel_copies() -> bool {
    static COPIES: Question = Question::new(ask_for_copy);
    COPIES.is_yes()
}

fn ask_for_copy() -> isize {
    let (from, mut to) = (1u8, 0u8);
    let (from, to) = (&raw const from as usize, &raw mut to as usize);
    [false, true]
        .into_iter()
        .find_map(|write| copy_unasked(to, from, 1, write).err())
        .map_or(0, |error| -(error.raw_os_error() as isize))
}

/// Copies by process_vm_readv(2) or process_vm_writev(2) on this process. A bad address raises no fault in user
/// space. So this also works where a fault would not reach the handler, because SIGSEGV is blocked.
///
/// # Errors
/// FAULT for a bad address. If the kernel refuses to copy, the error by which it refuses, or PERM if it is known to.
pub fn copy_by_kernel(to: usize, from: usize, bytes: usize, write: bool) -> Result<(), Errno> {
    if !kernel_copies() {
        return Err(Errno::PERM);
    }
    copy_unasked(to, from, bytes, write)
}

fn copy_unasked(to: usize, from: usize, bytes: usize, write: bool) -> Result<(), Errno> {
    // By the thread's own number. The process's number names its first thread, which has no memory once it has left.
    copy_of(Sys::thread_id(), to, from, bytes, write)
}

/// True if the given thread of the process still has the process's memory. A thread that left before others has no
/// memory. `None` if the kernel does not say.
pub fn has_memory(thread: u32) -> Option<bool> {
    let (from, mut to) = (1u8, 0u8);
    match copy_of(thread, &raw mut to as usize, &raw const from as usize, 1, false) {
        Ok(()) => Some(true),
        Err(Errno::SRCH) => Some(false),
        Err(_) => None,
    }
}

/// True if process `other` runs in the memory of the calling process. A value unique to this call is read at its
/// address in `other`. The kernel lets every process read its own memory under any of its ids.
pub fn shares_memory_with(other: u32) -> bool {
    const KCMP_VM: usize = 1;
    if !kernel_copies() {
        return syscall(libc::SYS_kcmp, [Sys::process_id() as usize, other as usize, KCMP_VM, 0, 0, 0]) == 0;
    }
    let here = [Sys::clock_ns(libc::CLOCK_MONOTONIC), u64::from(Sys::thread_id()) << 32 | 0x616e_7972];
    let mut there = [0_u64; 2];
    let (from, to) = (here.as_ptr() as usize, there.as_mut_ptr() as usize);
    copy_of(other, to, from, size_of_val(&here), false).is_ok() && there == here
}

fn copy_of(thread: u32, to: usize, from: usize, bytes: usize, write: bool) -> Result<(), Errno> {
    let (local, remote) = if write { ([from, bytes], [to, bytes]) } else { ([to, bytes], [from, bytes]) };
    let number = if write { libc::SYS_process_vm_writev } else { libc::SYS_process_vm_readv };
    let args = [thread as usize, local.as_ptr() as usize, 1, remote.as_ptr() as usize, 1, 0];
    match check(syscall(number, args)) {
        Ok(copied) if copied == bytes => Ok(()),
        Ok(_) => Err(Errno::FAULT),
        Err(error) => Err(error),
    }
}

#[inline]
fn copy(to: usize, from: usize, bytes: usize, write: bool) -> Result<(), Errno> {
    if bytes == 0 {
        return Ok(());
    }
    if HANDLER.load(Ordering::Acquire) {
        handlers::see();
        // SAFETY: the installed handler turns a fault in the routine into its error exit. A side that belongs to the
        // engine is valid for `bytes`, as the callers below make sure.
        let missing = unsafe { anyring_user_copy(to, from, bytes) };
        return if missing == 0 { Ok(()) } else { Err(Errno::FAULT) };
    }
    copy_by_kernel(to, from, bytes, write).map_err(|_| Errno::FAULT)
}

/// Plain data of the interface that may be filled from program memory. Any bit pattern is a value of it.
///
/// # Safety
/// Implement only for types without padding invariants, references or niches.
pub unsafe trait Plain: Copy + Default {}
macro_rules! plain {
    ($($t:ty),*) => { $(
        // SAFETY: made of integers (or arrays of them) only.
        unsafe impl Plain for $t {}
    )* };
}
plain!(
    u8, u16, u32, u64, i32, i64, [usize; 2], [u64; 2], [u32; 2], [u64; 3], [u64; 4], [u64; 7], [u64; 8], [u64; 9]
);
plain!(
    anyring_abi::Sqe,
    anyring_abi::Cqe,
    anyring_abi::Params,
    anyring_abi::GeteventsArg,
    anyring_abi::Timespec,
    anyring_abi::Iocb
);

/// Reads a `T` from the program's address `from`. Fails with `EFAULT` if that is not readable.
#[inline]
pub fn user_read<T: Plain>(from: u64) -> Result<T, Errno> {
    let mut value = T::default();
    copy(&mut value as *mut T as usize, from as usize, size_of::<T>(), false)?;
    Ok(value)
}

/// Fills `to` from the program's address `from`.
pub fn user_read_slice<T: Plain>(from: u64, to: &mut [T]) -> Result<(), Errno> {
    copy(to.as_mut_ptr() as usize, from as usize, size_of_val(to), false)
}

/// Writes `value` at the program's address `to`. Fails with `EFAULT` if that is not writable.
#[inline]
pub fn user_write<T: Plain>(to: u64, value: &T) -> Result<(), Errno> {
    copy(to as usize, value as *const T as usize, size_of::<T>(), true)
}

/// Writes all of `values` at the program's address `to`.
pub fn user_write_slice<T: Plain>(to: u64, values: &[T]) -> Result<(), Errno> {
    copy(to as usize, values.as_ptr() as usize, size_of_val(values), true)
}

/// Copies `bytes` from one of the program's addresses to another. Fails with `EFAULT` if either is not accessible.
/// They must not overlap.
pub fn user_move(to: u64, from: u64, bytes: usize) -> Result<(), Errno> {
    copy(to as usize, from as usize, bytes, false)
}

/// Access to words in memory that the program owns (rings made with `IORING_SETUP_NO_MMAP`), and may unmap at any
/// moment. Only for threads that have taken one of the engine's locks, since such a thread does not block the faults.
pub struct GuardedWords;

impl GuardedWords {
    /// Loads the word at `address`, or fails with `EFAULT`. As strong as an Acquire load.
    #[inline]
    pub fn load(address: usize) -> Result<u32, Errno> {
        if HANDLER.load(Ordering::Acquire) {
            // SAFETY: a fault leads to the error exit, whose value no 32-bit word has.
            let value = unsafe { anyring_user_load(address) };
            compiler_fence(Ordering::Acquire);
            return u32::try_from(value).map_err(|_| Errno::FAULT);
        }
        let value = user_read::<u32>(address as u64);
        fence(Ordering::Acquire); // the kernel's load is a plain one
        value
    }

    /// Stores `value` at `address`, or fails with `EFAULT`. As strong as a Release store.
    #[inline]
    pub fn store(address: usize, value: u32) -> Result<(), Errno> {
        if HANDLER.load(Ordering::Acquire) {
            compiler_fence(Ordering::Release);
            // SAFETY: a fault leads to the error exit.
            let failed = unsafe { anyring_user_store(address, value) };
            return if failed == 0 { Ok(()) } else { Err(Errno::FAULT) };
        }
        fence(Ordering::Release); // as in `load`
        user_write(address as u64, &value)
    }
}

const PAGE: u64 = 4096;

/// Checks that `bytes` bytes of program memory from the page `address` on can be written, as the kernel does for
/// memory that it pins. Fails with `OVERFLOW` past the end of the address space, and with `FAULT` if a page is
/// missing or read-only. Changes nothing.
pub fn check_writable(address: u64, bytes: u64) -> Result<(), Errno> {
    let end = address.checked_add(bytes).ok_or(Errno::OVERFLOW)?;
    (address..end).step_by(PAGE as usize).try_for_each(touch)
}

fn touch(address: u64) -> Result<(), Errno> {
    if HANDLER.load(Ordering::Acquire) {
        handlers::see();
        // SAFETY: a fault leads to the error exit, and the word keeps its value.
        let failed = unsafe { anyring_user_touch(address as usize) };
        return if failed == 0 { Ok(()) } else { Err(Errno::FAULT) };
    }
    // Without the handler every way to touch the word may undo a store that the program makes at this moment.
    let word: u32 = user_read(address)?;
    user_write(address, &word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bad_addresses_are_efault_and_good_ones_copy() {
        let value = 0x1122_3344_5566_7788_u64;
        assert_eq!(user_read::<u64>(&value as *const u64 as u64), Ok(value));
        assert_eq!(user_read::<u64>(16), Err(Errno::FAULT));
        assert_eq!(user_write(16, &1u64), Err(Errno::FAULT));
        let mut target = [0u64; 4];
        user_write(target.as_mut_ptr() as u64, &[1u64, 2, 3, 4]).unwrap();
        assert_eq!(target, [1, 2, 3, 4]);
        assert_eq!(user_move(target.as_mut_ptr() as u64, &raw const value as u64, 8), Ok(()));
        assert_eq!(target, [value, 2, 3, 4]);
        assert_eq!(user_move(target.as_mut_ptr() as u64, 16, 8), Err(Errno::FAULT));
        assert_eq!(user_move(16, target.as_mut_ptr() as u64, 8), Err(Errno::FAULT));
    }

    #[test]
    fn the_fault_range_covers_the_routine_only() {
        assert_eq!(user_copy_fault(0), None);
        assert_eq!(user_copy_fault(super::copy as *const () as usize), None);
    }
}
