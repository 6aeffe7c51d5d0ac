//! The program's signal handlers wait while their thread holds a lock of the engine's.
//!
//! In the kernel a signal is handled when the system call that it meets is over, or sleeps. Here a handler could run in the
//! middle of a call: what it closes would be gone before the call is done with it, it would find a ring in the middle of a
//! change, and leave it locked for good by siglongjmp(3). So each thread counts the locks that it holds. The preloaded
//! library, whose handler stands in front of the program's, asks [`defer`]; then it blocks the signal, sends it to the thread
//! once more, and whoever lets go of the last lock unblocks it. A handler that nobody stands in front of is not deferred; what
//! it calls on then is `ring::LockFailure::Reentry`.
//!
//! What may sleep and is not to keep others from a lock waits as well ([`without_locks`]).
//!
//! The count is thread-local memory of the initial-exec kind, which needs neither an allocation nor a lock. Only the owning
//! thread and its handlers touch it, so plain instructions do.

use crate::forced::{point, Point};
use crate::mutation::{mutated, Mutation};
use crate::os::arch;
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};

/// What a thread keeps of this.
#[repr(C)]
struct Thread {
    /// How many locks it holds, and [`SEEN`].
    holds: AtomicU32,
    _padding: u32,
    /// Signals that wait for the last one, and [`LEFT`].
    deferred: AtomicU64,
    /// What else does, the latest first.
    left: AtomicPtr<Left>,
    /// Where the mark of the program's handler is that runs, or has been left by a jump.
    handler: AtomicUsize,
}

/// Something that waits until its thread holds no lock.
struct Left {
    act: Box<dyn FnOnce()>,
    next: *mut Left,
}

/// In [`Thread::deferred`]: there is something in `left`. The place of a signal that has no handlers.
const LEFT: u64 = 1 << (libc::SIGKILL - 1);

/// In [`Thread::holds`]: the hook of [`at_first_hold`] has been called in this thread.
const SEEN: u32 = 1 << 31;

crate::thread_local_memory!("anyring_thread_handlers", size_of::<Thread>());

/// The calling thread's record.
#[inline(always)]
fn thread() -> &'static Thread {
    let record: *const Thread = crate::own_memory!("anyring_thread_handlers");
    // SAFETY: thread-local memory lives as long as the thread, which hands this reference to no other.
    unsafe { &*record }
}

/// What [`at_first_hold`] was given.
static FIRST: AtomicPtr<()> = AtomicPtr::new(core::ptr::null_mut());

/// Has `look` run in each thread before it takes its next lock of the engine's, or copies memory of the program's: once, if
/// that answers true.
pub fn at_first_hold(look: fn() -> bool) {
    FIRST.store(look as *mut (), Ordering::Release); // partner: the Acquire load in `look_at_thread`
}

/// The calling thread is seen by the hook of [`at_first_hold`], if it was not yet.
#[inline(always)]
pub fn see() {
    if thread().holds.load(Ordering::Relaxed) & SEEN == 0 {
        look_at_thread();
    }
}

/// Whether the hook has seen the calling thread.
pub fn is_seen() -> bool {
    thread().holds.load(Ordering::Relaxed) & SEEN != 0
}

/// Whether it counts as seen from now on: a thread whose signal mask changes unseen does not.
pub fn set_seen(seen: bool) {
    let holds = &thread().holds;
    match seen {
        true => holds.fetch_or(SEEN, Ordering::Relaxed),
        false => holds.fetch_and(!SEEN, Ordering::Relaxed),
    };
}

#[cold]
fn look_at_thread() {
    let look = FIRST.load(Ordering::Acquire); // partner: the Release store in `at_first_hold`
    if look.is_null() {
        return;
    }
    // SAFETY: only functions of this type are stored there.
    if unsafe { core::mem::transmute::<*mut (), fn() -> bool>(look)() } {
        set_seen(true);
    }
}

/// From now on handlers wait, until [`let_go`] was called as often.
#[inline(always)]
pub fn hold() {
    arch::count_hold(look_at_thread);
}

/// The counterpart of [`hold`]: behind the last one, handlers run that came meanwhile.
#[inline(always)]
pub fn let_go() {
    arch::count_let_go::<{ core::mem::offset_of!(Thread, deferred) }>(admit);
}

/// Does something that may sleep, in this thread: at once, or as soon as it holds no lock.
pub fn without_locks(act: impl FnOnce() + 'static) {
    let thread = thread();
    if thread.holds.load(Ordering::Relaxed) & !SEEN == 0 || mutated(Mutation::SleepsUnderTheLock) {
        return act();
    }
    let left = Box::new(Left { act: Box::new(act), next: thread.left.load(Ordering::Relaxed) });
    thread.left.store(Box::into_raw(left), Ordering::Relaxed);
    thread.deferred.fetch_or(LEFT, Ordering::Relaxed);
}

/// Whether something waits until the thread holds no lock.
#[inline(always)]
pub fn has_left() -> bool {
    thread().deferred.load(Ordering::Relaxed) & LEFT != 0
}

/// Does what waits in its order, whatever locks are held.
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

/// What waited, the earliest first.
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
    /// Behind one that panicked the others wait again.
    fn drop(&mut self) {
        let thread = thread();
        while let Some(mut first) = self.next() {
            first.next = thread.left.load(Ordering::Relaxed);
            thread.left.store(Box::into_raw(first), Ordering::Relaxed);
            thread.deferred.fetch_or(LEFT, Ordering::Relaxed);
        }
    }
}

/// Does what waits, and unblocks what was deferred, unless another lock is held: the kernel delivers it before the call returns.
#[cold]
fn admit() {
    let thread = thread();
    if thread.holds.load(Ordering::Relaxed) & !SEEN != 0 {
        return;
    }
    if has_left() {
        // A handler that jumps out would leave the rest. Whoever lets go comes here again for the signals.
        struct LetGo;
        impl Drop for LetGo {
            fn drop(&mut self) {
                let_go();
            }
        }
        hold();
        let _let_go = LetGo;
        return do_what_is_left();
    }
    let due = thread.deferred.swap(0, Ordering::Relaxed);
    let args = [libc::SIG_UNBLOCK as usize, &raw const due as usize, 0, 8, 0, 0];
    crate::os::syscall(libc::SYS_rt_sigprocmask, args);
}

/// For the handler that stands in front of the program's: whether the thread holds a lock of the engine's. Then that handler
/// has to block `signal`, to send it to the thread once more, and to return.
pub fn defer(signal: i32) -> bool {
    let thread = thread();
    if thread.holds.load(Ordering::Relaxed) & !SEEN == 0 {
        return false;
    }
    thread.deferred.fetch_or(1 << (signal - 1), Ordering::Relaxed);
    true
}

/// The signal could not be sent once more, and is not deferred.
pub fn defer_not(signal: i32) {
    thread().deferred.fetch_and(!(1 << (signal - 1)), Ordering::Relaxed);
}

/// What the mark of a handler is, beside its address.
const RUNS: usize = 0x616e_7972_696e_6773;
/// A handler uses less of its stack than this.
const DEEP: usize = 1 << 20;

/// Calls a handler of the program's, which may have interrupted anything of the program's: malloc(3), say.
pub fn run(handler: impl FnOnce()) {
    let mark = AtomicUsize::new(0);
    let place = mark.as_ptr() as usize;
    mark.store(place ^ RUNS, Ordering::Relaxed);
    let before = thread().handler.swap(place, Ordering::Relaxed);
    handler();
    thread().handler.store(before, Ordering::Relaxed);
    mark.store(0, Ordering::Relaxed);
}

/// Whether the calling thread is in a handler of the program's. One that was left by a jump is told by its mark, which is above
/// the stack or has been overwritten.
pub fn is_running() -> bool {
    let place = thread().handler.load(Ordering::Relaxed);
    let here = 0_u8;
    place != 0
        && place.wrapping_sub(&raw const here as usize) < DEEP
        && super::user_read::<u64>(place as u64) == Ok((place ^ RUNS) as u64)
}

/// Signals that are blocked by [`defer`] only: they do not belong into a mask that is kept and set again.
pub fn deferred() -> u64 {
    thread().deferred.load(Ordering::Relaxed) & !LEFT
}

/// Sets the thread's real mask and answers the old one, without what is blocked by [`defer`] only.
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
        hold();
        hold();
        assert!(defer(libc::SIGUSR1));
        let_go();
        assert_eq!(deferred(), 1 << (libc::SIGUSR1 - 1));
        let_go();
        assert_eq!(deferred(), 0);
        assert!(!defer(libc::SIGUSR1));
    }
}
