//! The engine's own threads. The engine makes them only when it needs them, and detaches them. They mask every signal
//! that could otherwise be delivered to them instead of to the program's threads.

mod count;
pub mod follow;
mod make;
mod maker;
mod masks;
pub mod place;
pub mod symbol;
pub mod tables;

pub use count::{
    are_there, exiting, is_alone, is_only_one_of_program, is_surely_alone, leader_has_left, one_of_program,
};
pub use make::{prepare, spawn, spawn_like_caller, spawn_member, spawn_needed};
pub use maker::{keep_maker, rings_are_gone};
pub use masks::another_blocks;

use crate::mutation::{mutated, Mutation};
use crate::os::calls;
use crate::os::{handlers, standard, syscall, Os, Sys};
use core::cell::Cell;
use core::sync::atomic::{AtomicBool, Ordering};

thread_local! {
    static IS_OURS: Cell<bool> = const { Cell::new(false) };
}

/// Returns the calling thread's id. Makes a system call only the first time.
#[inline]
pub fn id() -> u32 {
    match handlers::id_word().load(Ordering::Relaxed) {
        0 => ask_id(),
        id => id,
    }
}

#[cold]
fn ask_id() -> u32 {
    let id = Sys::thread_id();
    handlers::id_word().store(id, Ordering::Relaxed);
    id
}

/// True if the calling thread is one of the engine's own.
pub fn is_ours() -> bool {
    IS_OURS.try_with(Cell::get).unwrap_or(false)
}

/// Resets what this module knows, in a forked child. The child has one thread, with another id than in the parent.
///
/// # Safety
/// Only the forking thread may exist in the process.
pub unsafe fn reset_after_fork() {
    handlers::id_word().store(0, Ordering::Relaxed);
    count::reset_after_fork();
    // SAFETY: the contract.
    unsafe { maker::reset_after_fork() };
    // SAFETY: the contract.
    unsafe { follow::reset_after_fork() };
}

/// Synchronous faults that the guarded copies need, and SIGSYS. An engine thread does not continue after any other
/// fault.
const FAULTS: u64 = bit(libc::SIGSEGV) | bit(libc::SIGBUS) | bit(libc::SIGSYS);
/// Signals that engine threads leave unblocked. A signal of `FAULTS` may have been sent, not raised by a fault. It is
/// then passed on to the thread that [`one_of_program`] names. 32 and 33 are glibc's own. If a thread blocks them,
/// setuid(3) and its like hang, since they act on all threads.
const OPEN: u64 = FAULTS | bit(32) | bit(33);

/// Returns the signals that a program's mask for a wait really blocks: all but `FAULTS`. A handler that interrupts
/// the wait runs with this mask, and needs these signals. It may copy program memory, where a bad pointer raises
/// SIGSEGV or SIGBUS that the guarded copy catches. It may make a call that is trapped (SIGSYS).
pub fn mask_of_wait(mask: u64) -> u64 {
    mask & !FAULTS
}

const fn bit(signal: i32) -> u64 {
    1 << (signal - 1)
}

/// Runs `work` while no signal handler can interrupt it.
pub fn uninterrupted<T>(work: impl FnOnce() -> T) -> T {
    let old = change_mask(!0);
    let answer = work();
    change_mask(old);
    answer
}

fn change_mask(mask: u64) -> u64 {
    let mut old = 0u64;
    let args = [libc::SIG_SETMASK as usize, &mask as *const u64 as usize, &mut old as *mut u64 as usize, 8, 0, 0];
    syscall(libc::SYS_rt_sigprocmask, args);
    old & !handlers::deferred()
}

/// Returns the signals that a new engine thread leaves unblocked.
fn open_signals() -> u64 {
    match OPEN {
        _ if mutated(Mutation::ThreadsTakeSignals) => !0,
        open if mutated(Mutation::ThreadsBlockSetxid) => open & !bit(33),
        open => open,
    }
}

/// True if the given thread of this process sleeps, inside a system call or in a page fault. `None` without /proc, or
/// if the process has no such thread.
pub fn sleeps(thread: u32) -> Option<bool> {
    #[cfg(feature = "simulated")]
    if let Some(system) = crate::os::simulated::system() {
        return system.sleeps(thread);
    }
    use rustix::fs::{Mode, OFlags};
    let path = format!("/proc/self/task/{thread}/stat");
    let open = || calls::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
    let file = standard::on_any_thread(open).ok()?;
    let mut text = [0u8; 64];
    let bytes = calls::read(&file, &mut text).ok()?;
    // "1234 (name) S ...", where the name may contain anything. Source: proc_pid_stat(5).
    let after_name = text[..bytes].iter().rposition(|byte| *byte == b')')?;
    Some(matches!(text.get(after_name + 2), Some(b'S' | b'D')))
}

/// Names of the engine's threads.
const NAMES: [&core::ffi::CStr; 6] = [
    c"anyring-worker",
    c"anyring-helper",
    c"anyring-futex",
    c"anyring-waitid",
    c"anyring-sqpoll",
    c"anyring-maker",
];

/// Gives the calling thread a name of at most 15 bytes, one of `NAMES`.
pub fn name(name: &core::ffi::CStr) {
    syscall(libc::SYS_prctl, [libc::PR_SET_NAME as usize, name.as_ptr() as usize, 0, 0, 0, 0]);
}
/// Whether the process has a ring.
static NEEDED: AtomicBool = AtomicBool::new(false);

/// True if the process has a ring. Without a ring, threads of the engine have no reason to stay.
pub fn is_needed() -> bool {
    NEEDED.load(Ordering::Relaxed) || mutated(Mutation::ThreadsOutstayTheLastRing)
}

/// Sets whether the process has a ring. The list of rings calls this, under its lock.
pub fn set_needed(needed: bool) {
    NEEDED.store(needed, Ordering::Relaxed);
}

/// Runs work that concerns no particular ring, and stops a panic from going further. `None` after a panic.
pub fn caught<T>(work: impl FnOnce() -> T) -> Option<T> {
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(work)).ok()
}
