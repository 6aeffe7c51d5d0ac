//! Guarded signals: signals that anyring handles first, and that the program still sees as its own.
//!
//! SIGSYS is needed once raw instructions are trapped, SIGSEGV and SIGBUS once the engine copies by a pointer of the
//! program, which may be bad. The kernel kills a process if it must send a thread such a signal while the thread blocks
//! it. A thread may block a signal long before the first trap or copy. So all three signals are taken over together, at
//! the first of these events:
//!
//! - The first guard is installed. That is before the first filter that traps raw instructions, or before the engine
//!   makes its first ring or context of Linux AIO. For a guest it is before the program begins.
//! - A thread is about to block one of the signals by a libc function.
//! - The library is loaded, and the thread that loads it blocks one of them.
//!
//! The library does none of this as long as it leaves everything to the kernel (decision 31). Once the signals are
//! taken over:
//!
//! - The real action is `on_signal`, with the flags and the mask that the program asked for. When `on_signal` calls the
//!   program's handler, that handler therefore runs in the frame that the kernel would have built for it. The program's
//!   own action is kept in [`action`].
//! - Once there is a guard, `on_signal` also precedes every handler that the program has for other signals. Such a
//!   handler must not run in the middle of an engine call: see `os::handlers` in the engine.
//! - The program cannot really block a guarded signal. [`mask`] keeps the mask that each thread has asked
//!   for. The thread reads that mask back, and the mask decides what a signal does.
//!
//! A program can see three differences from the kernel:
//!
//! - If the kernel gives a guarded signal of kill(2) to a thread that believes to block it, the signal is held for
//!   that thread. It is not offered to another thread or to sigwait(3).
//! - exec resets a guarded signal to its default action, even if the program ignores it.
//! - A handler does not see guarded signals in `uc_sigmask`.

pub mod action;
mod deferred;
pub mod mask;
pub mod trap;

use crate::sys;
use action::{Action, SIG_DFL, SIG_IGN};
use anyring_engine::mutation::{mutated, Mutation};
use anyring_engine::os::arch;
use anyring_engine::os::handlers;
use anyring_engine::os::{self, Access, ForkPage};
use anyring_engine::ring::sleeps;
use anyring_engine::thread;
use core::ffi::c_int;
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};
use libc::{siginfo_t, ucontext_t};

/// A function that gets a guarded signal before the program does. Returns true if the signal was meant for anyring and
/// is handled.
///
/// # Safety
/// `on_signal` calls it in a signal handler, with the arguments that the kernel passed. Only async-signal-safe actions
/// are allowed.
pub type Guard = unsafe fn(&mut ucontext_t, &siginfo_t) -> bool;

/// The signal handling of one kind of process: with the preloaded library, or a guest.
pub struct Way {
    /// The installed handler: [`on_signal`], or code that calls it.
    pub entry: unsafe extern "C-unwind" fn(c_int, *mut siginfo_t, *mut ucontext_t),
    /// Signals, as a mask, whose actions are left to the kernel.
    pub reserved: u64,
    /// Installs [`Way::entry`] for a signal, and returns the restorer that goes with it.
    pub install_first: fn(c_int) -> Result<u64, c_int>,
    /// True if anyring notices every action that the program sets. Otherwise only the guarded signals are taken over.
    pub sees_all: fn() -> bool,
    /// Changes an action before it is installed.
    pub adjust: fn(c_int, &mut Action),
    /// Calls one of the program's handlers.
    ///
    /// # Safety
    /// The first argument is such a handler's address. The others are those that the kernel passed.
    pub call: unsafe fn(u64, c_int, *mut siginfo_t, *mut ucontext_t),
}

static WAY: AtomicPtr<Way> = AtomicPtr::new(core::ptr::null_mut());

/// Sets how signals are handled in this process. Call it before the first guard is installed.
pub fn set_way(way: &'static Way) {
    WAY.store(core::ptr::from_ref(way).cast_mut(), Ordering::Release); // partner: the Acquire in `way`
}

/// Returns what [`set_way`] was given. Call it only after that.
fn way() -> &'static Way {
    let way = WAY.load(Ordering::Acquire); // partner: the Release in `set_way`
    assert!(!way.is_null());
    // SAFETY: a static's address, as stored by `set_way`.
    unsafe { &*way }
}

/// Calls one of the program's handlers like any function.
///
/// # Safety
/// Those of [`Way::call`].
pub unsafe fn call_plainly(handler: u64, signal: c_int, info: *mut siginfo_t, context: *mut ucontext_t) {
    // SAFETY: the program installed this address as its handler; the kernel passes all three arguments whether
    // SA_SIGINFO is set or not. The frame has the mask and the stack that the program asked for.
    unsafe {
        let handler: extern "C-unwind" fn(c_int, *mut siginfo_t, *mut ucontext_t) = core::mem::transmute(handler);
        handler(signal, info, context);
    }
}

/// The signals that can be guarded.
const GUARDABLE: [c_int; 3] = [libc::SIGBUS, libc::SIGSEGV, libc::SIGSYS];
/// The mask of these signals.
const ALL: u64 = bit(libc::SIGBUS) | bit(libc::SIGSEGV) | bit(libc::SIGSYS);
const GUARDS_A_SIGNAL: usize = 2;
/// Signals that are not guarded and that an instruction causes. The instruction cannot continue before the signal is
/// handled.
const FAULTS: [c_int; 3] = [libc::SIGILL, libc::SIGFPE, libc::SIGTRAP];

/// The guarded signals, as a mask: either no signal or all three. Written under [`action::Lock`].
static GUARDED: AtomicU64 = AtomicU64::new(0);

static GUARDS: [[AtomicPtr<()>; GUARDS_A_SIGNAL]; GUARDABLE.len()] =
    [const { [const { AtomicPtr::new(core::ptr::null_mut()) }; GUARDS_A_SIGNAL] }; GUARDABLE.len()];

/// Distinguishes a forked child from a vforked one. A forked child's signal actions and masks are those kept here. A
/// vforked child borrows its parent's memory, but has its own actions.
static FORK_PAGE: ForkPage = ForkPage::new();
/// The id of the process to which the actions and masks kept here belong, as last recorded.
static OWNER: AtomicU32 = AtomicU32::new(0);
/// The word in `FORK_PAGE`, for code in assembly. Null if a child may lack the page. Then nothing is patched.
pub static PROCESS: AtomicPtr<AtomicU32> = AtomicPtr::new(core::ptr::null_mut());

/// Returns the bit of `signal` in a mask.
pub const fn bit(signal: c_int) -> u64 {
    1 << (signal - 1)
}

/// Returns the guarded signals, as a mask. 0 as long as the kernel serves all rings and contexts.
#[inline]
pub fn guarded() -> u64 {
    GUARDED.load(Ordering::Relaxed)
}

/// Returns the index of `signal` in the tables here.
fn index(signal: c_int) -> Option<usize> {
    GUARDABLE.iter().position(|guardable| *guardable == signal)
}

/// Makes `guard` get every `signal` (SIGBUS, SIGSEGV or SIGSYS) before the program's own action, which stays as it is.
/// Installing the same guard again changes nothing.
///
/// # Errors
/// EINVAL for another signal, EAGAIN if a signal has too many guards, or the error of sigaction(2) or mmap(2).
pub fn install_guard(signal: c_int, guard: Guard) -> Result<(), c_int> {
    let index = index(signal).ok_or(libc::EINVAL)?;
    let mut lock = action::Lock::acquire();
    let guard = guard as *mut ();
    let known = |slot: &&AtomicPtr<()>| slot.load(Ordering::Relaxed) == guard;
    if GUARDS[index].iter().any(|slot| known(&slot)) {
        return Ok(());
    }
    let free = GUARDS[index].iter().find(|slot| slot.load(Ordering::Relaxed).is_null()).ok_or(libc::EAGAIN)?;
    map_fork_page()?;
    // Release pairs with the Acquire in `on_signal`: whatever the guard's owner prepared is visible to the guard.
    free.store(guard, Ordering::Release);
    let taken = install(&mut lock).and_then(|()| action::install_others(&lock));
    taken.inspect_err(|_| free.store(core::ptr::null_mut(), Ordering::Relaxed))
}

/// Takes the guardable signals over, if this thread blocks one of them when the library is loaded. The signal is then
/// unblocked, but the thread still believes that it is blocked. If the thread blocks none of them, nothing is taken
/// over yet.
pub fn begin() {
    // Without the page nothing could be guarded either.
    if map_fork_page().is_ok() && mask::real_now() & ALL != 0 {
        believe();
    }
}

/// Takes over the guarded signals, because a thread is about to block one of them. From now on a thread that blocks
/// one only believes that it does: the signal is held for that thread. False if that is impossible, or if the process
/// was not recorded before. Then the signals are really blocked.
#[cold]
pub fn believe() -> bool {
    if OWNER.load(Ordering::Relaxed) == 0 || in_borrowed_memory() || mutated(Mutation::MasksAreKeptLate) {
        return false;
    }
    install(&mut action::Lock::acquire()).is_ok()
}

/// Takes the three signals over: from now on they are guarded.
fn install(lock: &mut action::Lock) -> Result<(), c_int> {
    if guarded() == 0 {
        action::install_guarded(lock, || GUARDED.store(ALL, Ordering::Relaxed))?;
        mask::add_blocked(lock.leave_open(ALL));
        handlers::before_first_critical(mask::open_here);
    }
    Ok(())
}

/// Maps [`FORK_PAGE`] once.
fn map_fork_page() -> Result<(), c_int> {
    if OWNER.load(Ordering::Relaxed) != 0 {
        return Ok(());
    }
    let process = sys::process_id() as u32;
    FORK_PAGE.map(process).map_err(|error| error.raw_os_error())?;
    OWNER.store(process, Ordering::Relaxed);
    PROCESS.store(FORK_PAGE.wiped_word().unwrap_or(core::ptr::null_mut()), Ordering::Relaxed);
    Ok(())
}

/// True if the calling process may be another than `owner`. Only the kernel then knows.
fn may_be_borrowed(owner: u32) -> bool {
    let word = PROCESS.load(Ordering::Relaxed);
    // SAFETY: null, or the word of a page that is never unmapped and that survives a fork.
    let noted = unsafe { word.as_ref() }.map_or(0, |word| word.load(Ordering::Relaxed));
    noted != owner || os::borrowed::may_be()
}

/// True in a child that runs in its parent's memory (vfork(2)). Its signal actions and mask are its own. Those kept
/// here are the parent's and must not change.
pub fn in_borrowed_memory() -> bool {
    let owner = OWNER.load(Ordering::Relaxed);
    if owner == 0 || !may_be_borrowed(owner) {
        return false;
    }
    let process = sys::process_id() as u32;
    if owner == process {
        return false;
    }
    // Read it by a system call: a fault here might be inside a handler of SIGSEGV.
    let Some(word) = FORK_PAGE.word(Access::ByCall) else { return true };
    // All threads of a forked child store the same value.
    match word.load(Ordering::Relaxed) {
        0 => word.store(process, Ordering::Relaxed),
        noted if noted == process => {}
        _ => return true,
    }
    OWNER.store(process, Ordering::Relaxed);
    false
}

/// The handler of every guarded signal, and of every other signal for which the program has a handler.
///
/// # Safety
/// Called as a signal's handler, with the kernel's arguments.
pub unsafe extern "C-unwind" fn on_signal(signal: c_int, info: *mut siginfo_t, context: *mut ucontext_t) {
    let errno = sys::errno();
    let Some(index) = index(signal) else {
        // SAFETY: both are the kernel's own, in this very frame, and not otherwise referenced here.
        if !unsafe { defer(signal, &*info, context) } && deferred::in_turn(signal, unsafe { &mut *info }) {
            // SAFETY: as above.
            unsafe { deliver(signal, info, context) };
        }
        return;
    };
    // SAFETY: as above.
    let siginfo = unsafe { &mut *info };
    if siginfo.si_code == libc::SI_QUEUE && siginfo.si_errno == PASSED_ON {
        (siginfo.si_code, siginfo.si_errno) = (libc::SI_USER, 0);
    }
    for slot in &GUARDS[index] {
        // Acquire pairs with the Release in `install_guard`.
        let guard = slot.load(Ordering::Acquire);
        if guard.is_null() {
            continue;
        }
        // SAFETY: only values of type `Guard` are stored there. `info` and `context` are the kernel's own, in this very
        // frame, and nothing else refers to them here.
        let handled = unsafe { core::mem::transmute::<*mut (), Guard>(guard)(&mut *context, &*info) };
        if handled {
            sys::set_errno(errno);
            return;
        }
    }
    // SAFETY: as above.
    let passed_on = unsafe { pass_on(signal, info) };
    sys::set_errno(errno);
    if !passed_on {
        // SAFETY: as above.
        unsafe { deliver(signal, info, context) };
    }
}

/// Passes a signal that was sent to the process on to one of the program's threads. It does so if the kernel gave the
/// signal to one of the engine's threads. With the kernel's io_uring there are no such threads. True if the signal was
/// passed on.
///
/// # Safety
/// `info` is that of the signal.
unsafe fn pass_on(signal: c_int, info: *const siginfo_t) -> bool {
    // SAFETY: the caller vouches for `info`.
    let was_sent = unsafe { (*info).si_code } <= 0;
    if !was_sent || !thread::is_ours() || mutated(Mutation::ThreadsTakeSignals) {
        return false;
    }
    // SAFETY: as above.
    let mut info = unsafe { *info };
    // No thread may send another a signal that claims to come from kill(2).
    if info.si_code == libc::SI_USER {
        (info.si_code, info.si_errno) = (libc::SI_QUEUE, PASSED_ON);
    }
    // SAFETY: `info` is a copy of the whole siginfo.
    thread::one_of_program().is_some_and(|target| unsafe { send(target, signal, &info) })
}

/// The `si_errno` of a signal that was sent by kill(2) and that [`pass_on`] has sent again.
const PASSED_ON: c_int = 0x616e_7973;

/// Defers a signal if the program's handler has to wait, because this thread holds an engine lock. The signal comes
/// again when the thread holds none. True if the signal was deferred. errno stays.
///
/// # Safety
/// `context` is that of the frame in which the handler runs.
unsafe fn defer(signal: c_int, info: &siginfo_t, context: *mut ucontext_t) -> bool {
    let is_fault = FAULTS.contains(&signal) && info.si_code > 0;
    if is_fault || mutated(Mutation::HandlersInterruptTheEngine) || !handlers::defer(signal) {
        return false;
    }
    let block = bit(signal);
    // With SA_NODEFER the kernel has not blocked it here.
    let how = libc::SIG_BLOCK as usize;
    // SAFETY: `block` is read only.
    unsafe { sys::call(libc::SYS_rt_sigprocmask, [how, &raw const block as usize, 0, 8, 0, 0]) };
    if !deferred::defer(signal, info) {
        handlers::defer_not(signal);
        return false;
    }
    // SAFETY: the handler may change the frame's mask.
    unsafe { *(&raw mut (*context).uc_sigmask).cast::<u64>() |= block };
    true
}

/// Sends a signal to a thread of this process. False if the system cannot queue another signal.
///
/// # Safety
/// `info` is that of the signal.
unsafe fn send(thread: u32, signal: c_int, info: *const siginfo_t) -> bool {
    let target = [sys::process_id() as usize, thread as usize, signal as usize, info as usize, 0, 0];
    // SAFETY: the kernel reads `info`.
    unsafe { sys::call(libc::SYS_rt_tgsigqueueinfo, target) >= 0 }
}

/// Handles a signal that is not meant for anyring as the kernel would have, by the program's own action and mask.
///
/// # Safety
/// `info` and `context` are those of the frame in which the handler runs.
unsafe fn deliver(signal: c_int, info: *mut siginfo_t, context: *mut ucontext_t) {
    let program = action::of_program(signal);
    // SAFETY: the caller vouches for `info`.
    let forced = index(signal).is_some() && unsafe { (*info).si_code } > 0;
    let blocked = mask::blocked_by_program() & bit(signal) != 0;
    match (forced, blocked, program.handler) {
        (false, true, _) => {
            // SAFETY: the caller vouches for `info`.
            mask::keep_pending(signal, unsafe { &*info });
        }
        (false, false, SIG_IGN) => {}
        (_, _, SIG_DFL) | (true, true, _) | (true, _, SIG_IGN) => {
            // SAFETY: the caller vouches for both.
            unsafe { end_by(signal, info, context) };
        }
        (_, _, handler) => {
            if program.flags & libc::SA_RESETHAND as u64 != 0 {
                action::reset(signal);
            }
            // SAFETY: the program's own handler, and what the caller vouches for.
            unsafe {
                let interrupted_mask = (&raw const (*context).uc_sigmask).cast::<u64>().read();
                if index(signal).is_none() {
                    sleeps::handler_begins(); // in a fault's handler, another fault would kill
                    mask::open_for_handler(interrupted_mask);
                }
                let blocking = action::blocking(signal, &program);
                let interrupted = mask::Interrupted::by_handler(blocking & guarded());
                if index(signal).is_some() {
                    // All other signals are blocked up to here. Set the mask that the program's own action asks for.
                    action::set_mask(interrupted_mask | blocking);
                }
                handlers::run(|| (way().call)(handler, signal, info, context));
                interrupted.go_on();
                let context = &mut *context;
                let (address, word) = (arch::instruction(context), arch::interruptible_word(context));
                if !mutated(Mutation::HandlersBeforeASleepEndNothing) {
                    arch::set_instruction(context, os::handled(address, word));
                }
            }
        }
    }
}

/// Ends the process by the signal's default action. Makes the default the real action and queues the very same signal,
/// which arrives when this handler has returned. Exit status, siginfo and core are then those of the place where it
/// happened.
///
/// # Safety
/// Those of [`deliver`].
unsafe fn end_by(signal: c_int, info: *mut siginfo_t, context: *mut ucontext_t) {
    action::set_real(signal, &Action::default());
    let block = bit(signal);
    let target = [sys::process_id() as usize, sys::thread_id() as usize, signal as usize, info as usize, 0, 0];
    // SAFETY: `block` is only read, `info` is the kernel's own, and the frame's mask may be changed. The first word of
    // uc_sigmask is all that rt_sigreturn reads.
    unsafe {
        let how = libc::SIG_BLOCK as usize;
        sys::call(libc::SYS_rt_sigprocmask, [how, &raw const block as usize, 0, 8, 0, 0]);
        *(&raw mut (*context).uc_sigmask).cast::<u64>() &= !block;
        if sys::call(libc::SYS_rt_tgsigqueueinfo, target) < 0 {
            sys::call(libc::SYS_tgkill, [target[0], target[1], target[2], 0, 0, 0]);
        }
    }
}
