//! Threads of the engine's own: made only when needed, detached, with every signal masked that could otherwise be
//! delivered to them instead of to the program's threads.

mod count;
pub mod follow;
mod masks;
pub mod tables;

pub use count::{are_there, exiting, is_alone, is_only_one_of_program, leader_has_left, one_of_program};
pub use masks::another_blocks;

use crate::mutation::{mutated, Mutation};
use crate::os::calls;
use crate::os::{handlers, syscall, Os, Sys};
use core::cell::Cell;
use core::sync::atomic::{AtomicBool, Ordering};

const STACK_BYTES: usize = 256 * 1024;

thread_local! {
    static THREAD_ID: Cell<u32> = const { Cell::new(0) };
    static IS_OURS: Cell<bool> = const { Cell::new(false) };
}

/// The calling thread's id, without a system call after the first time.
#[inline]
pub fn id() -> u32 {
    // A thread that is being torn down has lost its thread-locals: ask the kernel then.
    let cached = THREAD_ID.try_with(|id| id.get()).unwrap_or(0);
    if cached != 0 {
        return cached;
    }
    let id = Sys::thread_id();
    let _ = THREAD_ID.try_with(|cell| cell.set(id));
    id
}

/// Whether the calling thread is one of the engine's own.
pub fn is_ours() -> bool {
    IS_OURS.try_with(Cell::get).unwrap_or(false)
}

/// A forked child has one thread, with another id.
///
/// # Safety
/// Only the forking thread may exist in the process.
pub unsafe fn reset_after_fork() {
    let _ = THREAD_ID.try_with(|id| id.set(0));
    count::reset_after_fork();
    // SAFETY: the contract.
    unsafe { follow::reset_after_fork() };
}

/// Synchronous faults that the guarded copies need, and SIGSYS. No other fault is one that a thread of ours goes on from.
const FAULTS: u64 = bit(libc::SIGSEGV) | bit(libc::SIGBUS) | bit(libc::SIGSYS);
/// Signals that stay open in threads of ours: those, of which what was sent is passed on ([`one_of_program`]), and glibc's own
/// 32 and 33 (setuid and friends on all threads hang if a thread blocks them).
const OPEN: u64 = FAULTS | bit(32) | bit(33);

/// What a program's signal mask for a wait really blocks: a handler that interrupts the wait runs with it, and copies memory of
/// the program's (guarded, so that a bad pointer is a SIGSEGV or SIGBUS), or makes a call that is trapped (SIGSYS).
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

/// What a new thread of ours leaves open.
fn open_signals() -> u64 {
    match OPEN {
        _ if mutated(Mutation::ThreadsTakeSignals) => !0,
        open if mutated(Mutation::ThreadsBlockSetxid) => open & !bit(33),
        open => open,
    }
}

/// What a new thread of ours runs.
type Entry = extern "C" fn(*mut libc::c_void) -> *mut libc::c_void;

/// Starts a detached thread; false when the system refuses one.
pub fn spawn(entry: Entry, argument: *mut libc::c_void) -> bool {
    start(entry, argument, false)
}

/// Starts a detached thread that is there to keep the identity of the calling one ([`follow`]); false when the system refuses
/// one.
pub fn spawn_member(entry: Entry, argument: *mut libc::c_void) -> bool {
    start(entry, argument, true)
}

fn start(entry: Entry, argument: *mut libc::c_void, is_member: bool) -> bool {
    let old = change_mask(!open_signals());
    // SAFETY: the attribute object is initialised before use and destroyed after, and `entry` has the type that
    // pthread_create calls.
    let started = unsafe {
        let start = Box::into_raw(Box::new(Start {
            entry,
            argument,
            table: tables::mine(),
            birth: follow::prepare(is_member),
        }));
        count::prepare();
        let mut attributes = core::mem::zeroed();
        libc::pthread_attr_init(&mut attributes);
        libc::pthread_attr_setstacksize(&mut attributes, STACK_BYTES);
        libc::pthread_attr_setdetachstate(&mut attributes, libc::PTHREAD_CREATE_DETACHED);
        let mut thread = core::mem::zeroed();
        count::starts();
        let answer = match may_start() {
            true => libc::pthread_create(&mut thread, &attributes, begin, start.cast()),
            false => libc::EAGAIN,
        };
        follow::prepared();
        libc::pthread_attr_destroy(&mut attributes);
        if answer != 0 {
            count::failed();
            drop(Box::from_raw(start));
        }
        answer == 0
    };
    if started {
        count::started();
    }
    change_mask(old);
    started
}

/// False where a simulated system refuses the next thread.
#[inline(always)]
fn may_start() -> bool {
    #[cfg(feature = "simulated")]
    return crate::os::simulated::starts();
    #[cfg(not(feature = "simulated"))]
    true
}

/// What a new thread is told.
struct Start {
    entry: Entry,
    argument: *mut libc::c_void,
    /// The maker's.
    table: u32,
    birth: Option<follow::Birth>,
}

extern "C" fn begin(start: *mut libc::c_void) -> *mut libc::c_void {
    // SAFETY: `spawn` gave this thread, and nobody else, the box.
    let Start { entry, argument, table, birth } = *unsafe { Box::from_raw(start.cast::<Start>()) };
    #[cfg(feature = "simulated")]
    let _running = crate::os::simulated::Running::begin();
    IS_OURS.set(true);
    tables::set_mine(table);
    name(NAMES[0]); // from now on it is told from the program's by its name
    count::began();
    follow::join(birth);
    let answer = entry(argument);
    follow::leave();
    count::ends();
    answer
}

/// Whether a thread of this process sleeps: inside a system call, or in a page fault. None where there is no /proc, or no
/// such thread.
pub fn sleeps(thread: u32) -> Option<bool> {
    #[cfg(feature = "simulated")]
    if let Some(system) = crate::os::simulated::system() {
        return system.sleeps(thread);
    }
    use rustix::fs::{Mode, OFlags};
    let path = format!("/proc/self/task/{thread}/stat");
    let file = calls::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()?;
    let file = crate::os::for_now(file);
    let mut text = [0u8; 64];
    let bytes = calls::read(&file, &mut text).ok()?;
    // "1234 (name) S ...", where the name may hold anything. Source: proc_pid_stat(5).
    let after_name = text[..bytes].iter().rposition(|byte| *byte == b')')?;
    Some(matches!(text.get(after_name + 2), Some(b'S' | b'D')))
}

/// What threads of ours are called.
const NAMES: [&core::ffi::CStr; 5] =
    [c"anyring-worker", c"anyring-helper", c"anyring-futex", c"anyring-waitid", c"anyring-sqpoll"];

/// Gives the calling thread a name of at most 15 bytes, one of `NAMES`.
pub fn name(name: &core::ffi::CStr) {
    syscall(libc::SYS_prctl, [libc::PR_SET_NAME as usize, name.as_ptr() as usize, 0, 0, 0, 0]);
}
/// The process has a ring.
static NEEDED: AtomicBool = AtomicBool::new(false);

/// Whether the process has a ring: without one, threads of the engine have nothing to stay for.
pub fn is_needed() -> bool {
    NEEDED.load(Ordering::Relaxed) || mutated(Mutation::ThreadsOutstayTheLastRing)
}

/// Notes whether it has. Called by whoever keeps the list of rings, under its lock.
pub fn set_needed(needed: bool) {
    NEEDED.store(needed, Ordering::Relaxed);
}

/// Does something that has no ring in its hand: a panic goes no further. None after one.
pub fn caught<T>(work: impl FnOnce() -> T) -> Option<T> {
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(work)).ok()
}
