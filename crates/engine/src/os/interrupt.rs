//! Ending a system call in which another thread of the engine's own sleeps.
//!
//! The call is made inside a known range of instructions (`os/arch/`). Whoever wants to end it sets the word that the routine looks at,
//! and sends the thread a SIGBUS that says whose it is. The chained handler that the preloaded library installs moves a
//! thread that has not left the range to its end ([`interrupted`]): so nothing is lost between the look and the call, and
//! no call is restarted. Where there is no such handler nothing can be interrupted.
//!
//! The waits of a thread of the program's are made by the same routine, with a word of the thread's own: [`end_waits`].

use super::syscall;
use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

thread_local! {
    /// Not 0 when the calling thread is to wait for nothing any more. Only the thread and its handlers touch it.
    static WAITS_END: AtomicU32 = const { AtomicU32::new(0) };
    /// The same, and not 0 either when a handler of the program's has run in it since [`heed_handlers`].
    static INTERRUPTED: AtomicU32 = const { AtomicU32::new(0) };
}

unsafe extern "C" {
    fn anyring_interruptible(stop: *const u32, number: i64, args: *const usize) -> isize;
    fn anyring_interruptible_first();
    fn anyring_interruptible_last();
    fn anyring_interruptible_end();
}

/// Marks the signal as ours, in `si_value`.
static MARK: u8 = 0;

/// The handler of SIGBUS that knows the mark.
static KNOWING: AtomicUsize = AtomicUsize::new(0);

/// The handler that is installed for SIGBUS.
fn handler() -> usize {
    let mut action = [0usize; 4]; // struct kernel_sigaction: handler, flags, restorer, mask
    syscall(libc::SYS_rt_sigaction, [libc::SIGBUS as usize, 0, action.as_mut_ptr() as usize, 8, 0, 0]);
    action[0]
}

/// The handler that calls [`interrupted`] is in place.
pub(super) fn note_handler() {
    KNOWING.store(handler(), Ordering::Relaxed);
}

/// Makes a call that ends with `EINTR` once `stop` is not 0 and [`interrupt`] has been called.
pub fn interruptible(stop: &AtomicU32, number: libc::c_long, args: [usize; 6]) -> isize {
    #[cfg(feature = "simulated")]
    if let Some(system) = super::simulated::system() {
        return system.call(number, args, Some(stop));
    }
    // SAFETY: `stop` and `args` live through the call, and the routine does what `syscall` does.
    unsafe { anyring_interruptible(stop.as_ptr(), number, args.as_ptr()) }
}

/// A call that ends with `EINTR` once [`end_waits`] has been called in this thread.
pub fn wait(number: libc::c_long, args: [usize; 6]) -> isize {
    match WAITS_END.try_with(|word| interruptible(word, number, args)) {
        Ok(answer) => answer,
        Err(_) => syscall(number, args),
    }
}

/// From now on a handler that runs in the calling thread ends its next [`wait_interruptibly`], as one does in the kernel that
/// comes at any time after the call has begun.
pub fn heed_handlers() {
    let ends = WAITS_END.try_with(|word| word.load(Ordering::Relaxed)).unwrap_or(0);
    let _ = INTERRUPTED.try_with(|word| word.store(ends, Ordering::Relaxed));
}

/// A [`wait`] that ends with `EINTR` also when a handler of the program's has run since [`heed_handlers`].
pub fn wait_interruptibly(number: libc::c_long, args: [usize; 6]) -> isize {
    match INTERRUPTED.try_with(|word| interruptible(word, number, args)) {
        Ok(answer) => answer,
        Err(_) => syscall(number, args),
    }
}

/// A handler of the program's has run in the calling thread, which it interrupted at `address`, where `arch::interruptible_word` is
/// `register`: where
/// the thread goes on, since a [`wait_interruptibly`] that had not begun is over.
pub fn handled(address: usize, register: usize) -> usize {
    let is_its = INTERRUPTED.try_with(|word| {
        word.store(1, Ordering::Relaxed);
        word.as_ptr() as usize == register
    });
    match is_its {
        Ok(true) => out_of_the_call(address).unwrap_or(address),
        _ => address,
    }
}

/// The calling thread waits no more until [`wait_again`]. It goes on at the instruction that is the answer instead of at
/// `address`, where it was interrupted: an interrupted [`wait`] is over.
pub fn end_waits(address: usize) -> usize {
    let _ = WAITS_END.try_with(|word| word.store(1, Ordering::Relaxed));
    let _ = INTERRUPTED.try_with(|word| word.store(1, Ordering::Relaxed));
    out_of_the_call(address).unwrap_or(address)
}

/// Takes [`end_waits`] back: whether it was called.
pub fn wait_again() -> bool {
    WAITS_END.try_with(|word| word.swap(0, Ordering::Relaxed) != 0).unwrap_or(false)
}

/// Where a thread that was interrupted at `address` goes on if that is in an [`interruptible`] call that is not over.
fn out_of_the_call(address: usize) -> Option<usize> {
    let first = anyring_interruptible_first as *const () as usize;
    let last = anyring_interruptible_last as *const () as usize;
    let end = anyring_interruptible_end as *const () as usize;
    (first..last).contains(&address).then_some(end)
}

/// Whether calls can be interrupted. Not where the program has put a handler of its own past every wrapper.
pub fn can_interrupt() -> bool {
    #[cfg(feature = "simulated")]
    if super::simulated::system().is_some() {
        return true; // `stop` is enough
    }
    let known = KNOWING.load(Ordering::Relaxed);
    known > 1 && handler() == known // neither SIG_DFL nor SIG_IGN
}

/// Ends the [`interruptible`] call of `thread`, whose `stop` has been set.
pub fn interrupt(thread: u32) {
    #[cfg(feature = "simulated")]
    if super::simulated::system().is_some() {
        return;
    }
    if can_interrupt() {
        send(thread, &raw const MARK as u64);
    }
}

/// Marks the signal of [`nudge`].
static NUDGE: u8 = 1;

/// Has the handler of `thread`, one of the engine's own, look at what it is to do ([`is_nudge`]).
pub fn nudge(thread: u32) {
    send(thread, &raw const NUDGE as u64);
}

/// For the chained handler of SIGBUS: whether [`nudge`] has sent a signal with this `si_code` and `si_value`.
pub fn is_nudge(code: i32, value: usize) -> bool {
    code == libc::SI_QUEUE && value == &raw const NUDGE as usize
}

fn send(thread: u32, mark: u64) {
    let process = syscall(libc::SYS_getpid, [0; 6]);
    // struct siginfo as the kernel takes it: signal, errno, code, padding, then sender and value.
    let mut info = [0u64; 16];
    info[0] = libc::SIGBUS as u64;
    info[1] = libc::SI_QUEUE as u32 as u64;
    info[2] = process as u64;
    info[3] = mark;
    let args = [process as usize, thread as usize, libc::SIGBUS as usize, info.as_ptr() as usize, 0, 0];
    syscall(libc::SYS_rt_tgsigqueueinfo, args);
}

/// For the chained handler of SIGBUS: whether [`interrupt`] has sent a signal with this `si_code` and `si_value`; if so,
/// where a thread that was interrupted at instruction `address` must go on, if not where it is.
pub fn interrupted(code: i32, value: usize, address: usize) -> Option<usize> {
    if code != libc::SI_QUEUE || value != &raw const MARK as usize {
        return None;
    }
    Some(out_of_the_call(address).unwrap_or(address))
}
