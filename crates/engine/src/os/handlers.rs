//! Deferral of the program's signal handlers while their thread holds one of the engine's locks.
//!
//! In the kernel, a signal that arrives during a system call is handled when the call is over, or sleeps. In user
//! space a handler could run in the middle of a call. It could close a file that the call still uses. The handler
//! could find a ring in the middle of a change. By siglongjmp(3) it could even leave the ring locked forever.
//!
//! So each thread counts the locks that it holds. The preloaded library's handler runs before the program's and asks
//! [`defer`]. If the program's handler must wait, the library's blocks the signal and sends it to the thread again.
//! The release of the last lock unblocks the signal. A handler that the library does not wrap is not deferred. Its
//! calls on a ring in use fail with `ring::LockFailure::Reentry`.
//!
//! An action that may sleep, and must not keep others from a lock, is deferred as well ([`without_locks`]).
//!
//! The count is thread-local memory of the initial-exec kind, which needs neither an allocation nor a lock. Only the
//! owning thread and its handlers touch it, so plain instructions suffice.

use crate::forced::{point, Point};
use crate::mutation::{mutated, Mutation};
use crate::os::arch;
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};

/// A thread's record.
#[repr(C)]
struct Thread {
    /// Number of locks that the thread holds, and [`SEEN`].
    holds: AtomicU32,
    /// The thread's id, once `thread::id` has asked for it; 0 before.
    id: AtomicU32,
    /// Signals deferred until the last lock is released, and [`LEFT`].
    deferred: AtomicU64,
    /// Deferred actions, the latest first.
    left: AtomicPtr<Left>,
    /// Address of the mark of the program's handler that runs, or that a jump has left.
    handler: AtomicUsize,
    /// Number of changes of the engine's own numbers that the thread is in, one inside the other.
    changes: AtomicU32,
}

/// An action deferred until its thread holds no lock.
struct Left {
    act: Box<dyn FnOnce()>,
    next: *mut Left,
}

/// The bit of [`Thread::deferred`] that means that `left` is not empty. As a signal's bit it is SIGKILL's, which cannot
/// have a handler.
const LEFT: u64 = 1 << (libc::SIGKILL - 1);

/// The bit of [`Thread::holds`] that means that the hook of [`before_first_critical`] has returned true in this thread.
const SEEN: u32 = 1 << 31;

crate::thread_local_memory!("anyring_thread_handlers", size_of::<Thread>());

/// The calling thread's record.
#[inline(always)]
fn thread() -> &'static Thread {
    let record: *const Thread = crate::own_memory!("anyring_thread_handlers");
    // SAFETY: thread-local memory lives as long as the thread, which hands this reference to no other.
    unsafe { &*record }
}

/// Returns the word in which the calling thread keeps its id.
#[inline]
pub fn id_word() -> &'static AtomicU32 {
    &thread().id
}

/// Returns the word in which `os::changes` keeps the number of the calling thread's changes.
#[inline]
pub fn changes() -> &'static AtomicU32 {
    &thread().changes
}

/// The function given to [`before_first_critical`].
static FIRST: AtomicPtr<()> = AtomicPtr::new(core::ptr::null_mut());

/// Sets a function that each thread runs before it next takes one of the engine's locks, or copies program memory. A
/// thread for which the function has returned true does not run it again.
pub fn before_first_critical(look: fn() -> bool) {
    FIRST.store(look as *mut (), Ordering::Release); // partner: the Acquire load in `check_thread`
}

/// Runs the hook of [`before_first_critical`] in the calling thread, unless it has returned true there before.
#[inline(always)]
pub fn see() {
    if thread().holds.load(Ordering::Relaxed) & SEEN == 0 {
        check_thread();
    }
}

/// True if the hook has returned true in the calling thread.
pub fn is_seen() -> bool {
    thread().holds.load(Ordering::Relaxed) & SEEN != 0
}

/// Sets whether the hook counts as done in the calling thread. If the thread's signal mask may change without the
/// engine's notice, it must not count as done.
pub fn set_seen(seen: bool) {
    let holds = &thread().holds;
    match seen {
        true => holds.fetch_or(SEEN, Ordering::Relaxed),
        false => holds.fetch_and(!SEEN, Ordering::Relaxed),
    };
}

#[cold]
fn check_thread() {
    let look = FIRST.load(Ordering::Acquire); // partner: the Release store in `before_first_critical`
    if look.is_null() {
        return;
    }
    // SAFETY: only functions of this type are stored there.
    if unsafe { core::mem::transmute::<*mut (), fn() -> bool>(look)() } {
        set_seen(true);
    }
}

/// Defers handlers until [`leave_critical`] was called as often as this function.
#[inline(always)]
pub fn enter_critical() {
    arch::count_enter_critical(check_thread);
}

/// Counterpart of [`enter_critical`]. After the last such call, deferred handlers run.
#[inline(always)]
pub fn leave_critical() {
    arch::count_leave_critical::<{ core::mem::offset_of!(Thread, deferred) }>(admit);
}

/// Runs an action that may sleep, in this thread. The action runs at once, or as soon as the thread holds no lock.
pub fn without_locks(act: impl FnOnce() + 'static) {
    let thread = thread();
    if thread.holds.load(Ordering::Relaxed) & !SEEN == 0 || mutated(Mutation::SleepsUnderTheLock) {
        return act();
    }
    let left = Box::new(Left { act: Box::new(act), next: thread.left.load(Ordering::Relaxed) });
    thread.left.store(Box::into_raw(left), Ordering::Relaxed);
    thread.deferred.fetch_or(LEFT, Ordering::Relaxed);
}

/// True if an action waits until the thread holds no lock.
#[inline(always)]
pub fn has_left() -> bool {
    thread().deferred.load(Ordering::Relaxed) & LEFT != 0
}

/// Runs the deferred actions in order, even if locks are held.
#[cold]
pub fn do_what_is_left() {
    let thread = thread();
    thread.deferred.fetch_and(!LEFT, Ordering::Relaxed);
    let mut left = thread.left.swap(core::ptr::null_mut(), Ordering::Relaxed);
    let mut acts = Acts(None);
    while !left.is_null() {
        // SAFETY: boxed by `without_locks`, and taken from the list above.
        let mut first = unsafe { Box::from_raw(left) };
        left = core::mem::replace(&mut first.next, core::ptr::null_mut());
        first.next = acts.0.take().map_or(core::ptr::null_mut(), Box::into_raw);
        acts.0 = Some(first);
    }
    while let Some(first) = acts.next() {
        (first.act)();
        point(Point::Left);
    }
}

/// The deferred actions, the earliest first.
struct Acts(Option<Box<Left>>);

impl Acts {
    fn next(&mut self) -> Option<Box<Left>> {
        let first = self.0.take()?;
        // SAFETY: boxed, and in this list only.
        self.0 = (!first.next.is_null()).then(|| unsafe { Box::from_raw(first.next) });
        Some(first)
    }
}

impl Drop for Acts {
    /// Defers the remaining actions again, after an action that panicked.
    fn drop(&mut self) {
        let thread = thread();
        while let Some(mut first) = self.next() {
            first.next = thread.left.load(Ordering::Relaxed);
            thread.left.store(Box::into_raw(first), Ordering::Relaxed);
            thread.deferred.fetch_or(LEFT, Ordering::Relaxed);
        }
    }
}

/// Runs the deferred actions, unless the thread holds another lock. If there are none, unblocks the deferred signals,
/// which the kernel delivers before the call returns.
#[cold]
fn admit() {
    let thread = thread();
    if thread.holds.load(Ordering::Relaxed) & !SEEN != 0 {
        return;
    }
    if has_left() {
        // A handler that jumps out would leave the remaining actions undone. The `leave_critical` below calls this
        // function again for the signals.
        struct LeaveCritical;
        impl Drop for LeaveCritical {
            fn drop(&mut self) {
                leave_critical();
            }
        }
        enter_critical();
        let _leave_critical = LeaveCritical;
        return do_what_is_left();
    }
    let due = thread.deferred.swap(0, Ordering::Relaxed);
    let args = [libc::SIG_UNBLOCK as usize, &raw const due as usize, 0, 8, 0, 0];
    crate::os::syscall(libc::SYS_rt_sigprocmask, args);
}

/// True if the thread holds one of the engine's locks. The handler that runs before the program's calls this. It must
/// then block `signal`, send it to the thread again, and return.
pub fn defer(signal: i32) -> bool {
    let thread = thread();
    if thread.holds.load(Ordering::Relaxed) & !SEEN == 0 {
        return false;
    }
    thread.deferred.fetch_or(1 << (signal - 1), Ordering::Relaxed);
    true
}

/// Withdraws [`defer`], since the signal could not be sent again.
pub fn defer_not(signal: i32) {
    thread().deferred.fetch_and(!(1 << (signal - 1)), Ordering::Relaxed);
}

/// The value that a handler's mark has, combined with the mark's address.
const RUNS: usize = 0x616e_7972_696e_6773;
/// The largest part of the stack that a handler is assumed to use.
const DEEP: usize = 1 << 20;

/// Calls one of the program's handlers, which may have interrupted any of the program's code, such as malloc(3).
pub fn run(handler: impl FnOnce()) {
    let mark = AtomicUsize::new(0);
    let place = mark.as_ptr() as usize;
    mark.store(place ^ RUNS, Ordering::Relaxed);
    let before = thread().handler.swap(place, Ordering::Relaxed);
    handler();
    thread().handler.store(before, Ordering::Relaxed);
    mark.store(0, Ordering::Relaxed);
}

/// True if the calling thread is in one of the program's handlers. After a jump out of a handler, its mark is above
/// the stack or has been overwritten.
pub fn is_running() -> bool {
    let place = thread().handler.load(Ordering::Relaxed);
    let here = 0_u8;
    place != 0
        && place.wrapping_sub(&raw const here as usize) < DEEP
        && super::user_read::<u64>(place as u64) == Ok((place ^ RUNS) as u64)
}

/// Returns the signals that are blocked only by [`defer`]. They do not belong in a mask that is saved and restored.
pub fn deferred() -> u64 {
    thread().deferred.load(Ordering::Relaxed) & !LEFT
}

/// Sets the thread's real mask and returns the old one, without the signals blocked only by [`defer`].
pub fn set_mask(new: u64) -> u64 {
    let mut old = 0_u64;
    let args = [libc::SIG_SETMASK as usize, &raw const new as usize, &raw mut old as usize, size_of::<u64>(), 0, 0];
    crate::os::syscall(libc::SYS_rt_sigprocmask, args);
    old & !deferred()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_is_deferred_until_the_last_lock_is_free() {
        assert!(!defer(libc::SIGUSR1));
        enter_critical();
        enter_critical();
        assert!(defer(libc::SIGUSR1));
        leave_critical();
        assert_eq!(deferred(), 1 << (libc::SIGUSR1 - 1));
        leave_critical();
        assert_eq!(deferred(), 0);
        assert!(!defer(libc::SIGUSR1));
    }
}
