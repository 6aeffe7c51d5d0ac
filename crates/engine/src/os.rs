//! The interface of the system calls that the engine makes.
//!
//! The engine names its system only as [`Sys`], so a simulated system can replace it at compile time. There is no
//! dynamic dispatch. Nothing in this module touches libc's errno, or calls a symbol that a preloaded library (such as
//! anyring's own) may have wrapped. Calls are `syscall` instructions of this crate or of rustix's raw back end.

pub mod arch;
pub mod backing;
pub mod borrowed;
pub mod calls;
pub mod changes;
mod clock;
mod fork;
mod guard;
pub mod handlers;
mod interrupt;
mod linux;
pub mod mapping;
pub mod owner;
mod question;
#[cfg(feature = "simulated")]
pub mod simulated;
pub mod standard;
mod status;
pub mod unlocked;
pub mod version;

pub use clock::Clock;
pub use fork::{Access, ForkPage};
pub use guard::{
    check_writable, copy_by_kernel, handler_installed, has_memory, kernel_copies, shares_memory_with,
    user_copy_fault, user_move, user_read, user_read_slice, user_write, user_write_slice, GuardedWords, Plain,
};
pub use interrupt::{after_unmarked, arm_interruption, can_interrupt, end_waits, handled, interrupt, interrupted};
pub use interrupt::{
    has_handled, interruptible, is_nudge, may_lack_mark, nudge, wait, wait_again, wait_interruptibly,
};
pub use linux::{
    calls_with_flags_are_refused, can_wait_for_several, flags_are_checked, flags_are_ignored, for_now, nap, pause,
    probe_flags, set_clock, syscall, usable_cpus, ForNow, Linux, ACCEPTS_FLAGS, POLLS_FOR_NANOSECONDS,
    WAITS_FOR_NANOSECONDS, WAITS_WITHOUT_MASK,
};
pub use question::{
    answers, ask_in_child, ask_together, asks_itself, be_expendable, is_filtered, is_permitted, is_refused_by,
    Question,
};
pub use status::{file_status, is_at_hand, is_eventfd, FileStatus};

use crate::Errno;

/// The system that the engine runs on.
pub type Sys = Linux;

/// Converts a result in the kernel's register into a [`Result`].
#[inline]
pub fn check(register: isize) -> Result<usize, Errno> {
    if (-4095..0).contains(&register) {
        Err(Errno::from_raw_os_error(-register as i32))
    } else {
        Ok(register as usize)
    }
}

/// One event of an epoll wait: `struct epoll_event` of epoll_ctl(2).
#[derive(Clone, Copy, Default)]
#[cfg_attr(target_arch = "x86_64", repr(C, packed))]
#[cfg_attr(not(target_arch = "x86_64"), repr(C))]
pub struct EpollEvent {
    /// `EPOLL*` bits.
    pub events: u32,
    /// The value given at registration.
    pub data: u64,
}

/// The engine's own requests to the operating system. A call on behalf of an operation goes through [`syscall`]
/// instead. It has the program's own arguments, which the kernel checks.
pub trait Os {
    /// Returns the time of the given clock (`CLOCK_*`) in nanoseconds.
    fn clock_ns(clock: i32) -> u64;
    /// Returns the calling thread's id, as gettid(2).
    fn thread_id() -> u32;
    /// Returns the process's id, as getpid(2) does. Asks the kernel each time, so the id is also right in a child of
    /// vfork(2).
    fn process_id() -> u32;
    /// Sleeps while `word` holds `expected`: FUTEX_WAIT on a word that other processes may share. `timeout_ns` is
    /// relative. Fails with `INTR` if a signal handler ran, with `TIMEDOUT`, or with `AGAIN` if the word differed.
    fn futex_wait(
        word: &core::sync::atomic::AtomicU32,
        expected: u32,
        timeout_ns: Option<u64>,
    ) -> Result<(), Errno>;
    /// Sleeps as [`Os::futex_wait`] does. Also fails with `INTR` if one of the program's handlers has run since
    /// [`arm_interruption`]. So do [`Os::epoll_wait`] and [`Os::poll`].
    fn futex_sleep(
        word: &core::sync::atomic::AtomicU32,
        expected: u32,
        timeout_ns: Option<u64>,
    ) -> Result<(), Errno>;
    /// Returns the time to sleep so that at most `left_ns` pass, apart from the wake-up itself. The kernel may end a
    /// sleep late by the calling thread's timer slack (prctl(2), PR_SET_TIMERSLACK). If the thread `polls`
    /// (epoll_wait, poll), the slack is at least a thousandth of the time, up to 0.1 s (`select_estimate_accuracy` in
    /// fs/select.c). So the time is shortened, and the sleep may end early. In the kernel, a TIMEOUT has no slack.
    fn sleep_ns(left_ns: u64, polls: bool) -> u64;
    /// Wakes up to `count` sleepers on `word`.
    fn futex_wake(word: &core::sync::atomic::AtomicU32, count: u32);
    /// Waits by epoll_wait(2), or with a signal mask by epoll_pwait(2). With a timeout it uses epoll_pwait2(2). Where
    /// that is missing, it uses ppoll(2) on the epoll descriptor. May return 0 before the timeout, if another thread
    /// took the event.
    fn epoll_wait(
        epoll: i32,
        events: &mut [EpollEvent],
        timeout_ns: Option<u64>,
        sigmask: Option<&u64>,
    ) -> Result<usize, Errno>;
    /// Calls epoll_ctl(2) with `EPOLL_CTL_*` as `operation`.
    fn epoll_ctl(epoll: i32, operation: i32, fd: i32, events: u32, data: u64) -> Result<(), Errno>;
    /// Waits by ppoll(2) until a descriptor of `set` is ready. Returns the number of ready descriptors.
    fn poll(set: &mut [libc::pollfd], timeout_ns: Option<u64>, sigmask: Option<&u64>) -> Result<usize, Errno>;
    /// Polls `fd` without waiting. Returns `POLL*` bits, or 0 if none of `events` is ready.
    fn poll_now(fd: i32, events: u16) -> Result<u16, Errno>;
    /// Calls close(2) and ignores the result: the descriptor is the engine's own.
    fn close(fd: i32);
}

#[cfg(test)]
mod faulting;
#[cfg(test)]
pub mod in_child;
#[cfg(test)]
pub mod refusing;
#[cfg(test)]
mod tests;
