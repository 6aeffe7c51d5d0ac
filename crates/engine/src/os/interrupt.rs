//! Interruption of a system call in which another engine thread sleeps.
//!
//! The call is made inside a known range of instructions (`os/arch/`). To end it, a thread sets the word that the
//! routine checks, and sends the sleeping thread a SIGBUS marked as anyring's. The preloaded library installs a
//! chained handler. It moves a thread that is still in the range to the range's end ([`interrupted`]). So no
//! interruption is lost between the check and the call, and no call is restarted. Without such a handler nothing can
//! be interrupted.
//!
//! The program's threads wait by the same routine, with a word of the thread's own: [`end_waits`].

use super::syscall;
use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

thread_local! {
    /// Not 0 if the calling thread must not wait any more. Only the thread and its handlers touch it.
    static WAITS_END: AtomicU32 = const { AtomicU32::new(0) };
    /// Not 0 when `WAITS_END` is not, or if one of the program's handlers has run in the thread since
    /// [`arm_interruption`].
    static INTERRUPTED: AtomicU32 = const { AtomicU32::new(0) };
}

unsafe extern "C" {
    fn anyring_interruptible(stop: *const u32, number: i64, args: *const usize) -> isize;
    fn anyring_interruptible_first();
    fn anyring_interruptible_last();
    fn anyring_interruptible_end();
}

/// Marks the signal as anyring's: its address is the signal's `si_value`.
static MARK: u8 = 0;

/// The handler of SIGBUS that knows the mark.
static KNOWING: AtomicUsize = AtomicUsize::new(0);

/// Returns the handler that is installed for SIGBUS.
fn handler() -> usize {
    let mut action = [0usize; 4]; // struct kernel_sigaction: handler, flags, restorer, mask
    syscall(libc::SYS_rt_sigaction, [libc::SIGBUS as usize, 0, action.as_mut_ptr() as usize, 8, 0, 0]);
    action[0]
}

/// Records that the handler that calls [`interrupted`] is in place.
pub(super) fn mark_handler_installed() {
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

/// Makes a call that ends with `EINTR` once [`end_waits`] has been called in this thread.
pub fn wait(number: libc::c_long, args: [usize; 6]) -> isize {
    match WAITS_END.try_with(|word| interruptible(word, number, args)) {
        Ok(answer) => answer,
        Err(_) => syscall(number, args),
    }
}

/// Starts the time in which a handler ends this thread's next [`wait_interruptibly`], even if the handler runs before
/// the wait begins. In the kernel, too, a handler ends a call at any time after the call has begun.
pub fn arm_interruption() {
    let ends = WAITS_END.try_with(|word| word.load(Ordering::Relaxed)).unwrap_or(0);
    let _ = INTERRUPTED.try_with(|word| word.store(ends, Ordering::Relaxed));
}

/// True if one of the program's handlers has run in the calling thread since [`arm_interruption`], or its waits have
/// ended.
pub fn has_handled() -> bool {
    INTERRUPTED.try_with(|word| word.load(Ordering::Relaxed) != 0).unwrap_or(false)
}

/// Makes a [`wait`] that also ends with `EINTR` if one of the program's handlers has run since [`arm_interruption`].
pub fn wait_interruptibly(number: libc::c_long, args: [usize; 6]) -> isize {
    match INTERRUPTED.try_with(|word| interruptible(word, number, args)) {
        Ok(answer) => answer,
        Err(_) => syscall(number, args),
    }
}

/// Records that one of the program's handlers ran in the calling thread. The handler interrupted the thread at
/// `address`, where the register `arch::interruptible_word` held `register`. Returns the address at which the thread
/// continues. A [`wait_interruptibly`] that had not begun is over.
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

/// Ends the waits of the calling thread until [`wait_again`]. `address` is where the thread was interrupted. Returns
/// the address at which it continues instead. An interrupted [`wait`] is over.
pub fn end_waits(address: usize) -> usize {
    let _ = WAITS_END.try_with(|word| word.store(1, Ordering::Relaxed));
    let _ = INTERRUPTED.try_with(|word| word.store(1, Ordering::Relaxed));
    out_of_the_call(address).unwrap_or(address)
}

/// Undoes [`end_waits`]. True if that was called.
pub fn wait_again() -> bool {
    WAITS_END.try_with(|word| word.swap(0, Ordering::Relaxed) != 0).unwrap_or(false)
}

/// Returns the end of the [`interruptible`] call, at which a thread interrupted at `address` continues. `None` unless
/// `address` is in such a call that is not over.
fn out_of_the_call(address: usize) -> Option<usize> {
    let first = anyring_interruptible_first as *const () as usize;
    let last = anyring_interruptible_last as *const () as usize;
    let end = anyring_interruptible_end as *const () as usize;
    (first..last).contains(&address).then_some(end)
}

/// True if calls can be interrupted. False if the program has installed its own SIGBUS handler by a call that no
/// wrapper intercepted.
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

/// Makes the handler of the engine thread `thread` check that thread's tasks ([`is_nudge`]).
pub fn nudge(thread: u32) {
    send(thread, &raw const NUDGE as u64);
}

/// True if [`nudge`] sent a signal with this `si_code` and `si_value`. The chained handler of SIGBUS calls this.
pub fn is_nudge(code: i32, value: usize) -> bool {
    code == libc::SI_QUEUE && value == &raw const NUDGE as usize
}

fn send(thread: u32, mark: u64) {
    let process = syscall(libc::SYS_getpid, [0; 6]);
    // The fields of struct siginfo as the kernel takes it: signal, errno, code, padding, then sender and value.
    let mut info = [0u64; 16];
    info[0] = libc::SIGBUS as u64;
    info[1] = libc::SI_QUEUE as u32 as u64;
    info[2] = process as u64;
    info[3] = mark;
    let args = [process as usize, thread as usize, libc::SIGBUS as usize, info.as_ptr() as usize, 0, 0];
    syscall(libc::SYS_rt_tgsigqueueinfo, args);
}

/// True if a signal with this `si_code` and sender may be one that `send` sent. With RLIMIT_SIGPENDING exhausted, the
/// kernel delivers such a signal without its siginfo, and so without a mark. Source: `__send_signal_locked` and
/// `collect_signal` in kernel/signal.c.
pub fn may_lack_mark(code: i32, sender: i32) -> bool {
    code == libc::SI_USER && sender == 0
}

/// Returns where an engine thread continues that got a signal without a mark at `address`, where the register
/// `arch::interruptible_word` held `register`. A call whose `stop` is set is over.
pub fn after_unmarked(address: usize, register: usize) -> usize {
    match out_of_the_call(address) {
        // SAFETY: in the routine, that register holds the address of `stop`, which lives through the call.
        Some(end) if unsafe { &*(register as *const AtomicU32) }.load(Ordering::Relaxed) != 0 => end,
        _ => address,
    }
}

/// Returns where a thread that was interrupted at instruction `address` must continue, which may be `address` itself.
/// `None` unless [`interrupt`] sent a signal with this `si_code` and `si_value`. The chained handler of SIGBUS calls
/// this.
pub fn interrupted(code: i32, value: usize, address: usize) -> Option<usize> {
    if code != libc::SI_QUEUE || value != &raw const MARK as usize {
        return None;
    }
    Some(out_of_the_call(address).unwrap_or(address))
}
