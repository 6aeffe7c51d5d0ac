//! Who serves this process: the kernel where its io_uring works, else our engine. Decided once, at the latest when the
//! program makes its first ring (decision 8 in ARCHITECTURE.md).

use crate::{raw, signals};
use anyring_engine::{log, os, stats};
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use libc::{siginfo_t, ucontext_t};
use std::sync::Once;

const UNDECIDED: u32 = 0;
const KERNEL: u32 = 1;
const USER: u32 = 2;

/// Relaxed: the decision is the same whoever makes it.
static BACKEND: AtomicU32 = AtomicU32::new(UNDECIDED);

/// Whether our engine serves this process.
#[inline]
pub fn is_user() -> bool {
    match BACKEND.load(Ordering::Relaxed) {
        UNDECIDED => decide(),
        backend => backend == USER,
    }
}

#[cold]
fn decide() -> bool {
    let user = match variable("ANYRING_BACKEND").as_deref() {
        Some("user") => true,
        Some("kernel") => false,
        _ => raw::probe::kernel_refusal() != 0,
    };
    BACKEND.store(if user { USER } else { KERNEL }, Ordering::Relaxed);
    user
}

/// Decides for the kernel, whatever ANYRING_BACKEND says.
#[cfg(not(test))]
pub fn leave_to_kernel() {
    BACKEND.store(KERNEL, Ordering::Relaxed);
}

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// What a panic of ours says goes to the log, if there is one, and nowhere else.
#[cfg(not(test))]
pub fn quieten_panics() {
    std::panic::set_hook(Box::new(|panic| {
        open_log();
        log::line(&panic.to_string());
    }));
}

/// Opens the log where `ANYRING_LOG` names one: before the first ring, or for what is to be said earlier.
fn open_log() {
    static OPENED: AtomicBool = AtomicBool::new(false);
    if let Some(path) = variable("ANYRING_LOG").filter(|_| !OPENED.swap(true, Ordering::Relaxed)) {
        let _ = log::open(&path);
    }
}

/// Opens the log and the counters and guards the engine's copies of program memory: once, before the first ring.
pub fn prepare_engine() {
    static PREPARED: Once = Once::new();
    // Forced: what a panic interrupted is done by the next ring.
    PREPARED.call_once_force(|_| {
        open_log();
        let file = variable("ANYRING_STATS");
        if let Err(error) = stats::open(file.as_deref()) {
            log::line(&format!("the counters are kept in private memory: {error}"));
        }
        if file.is_some() {
            let refusal = raw::probe::kernel_refusal();
            stats::stats().kernel_refused_errno.store(refusal as u64, Ordering::Relaxed);
        }
        guard_copies();
    });
}

/// Makes bad addresses in the engine's copies harmless. May be called again.
pub fn guard_copies() {
    let guarded = [libc::SIGSEGV, libc::SIGBUS].map(|signal| signals::install_guard(signal, recover_copy));
    if guarded.iter().all(Result::is_ok) {
        os::handler_installed();
    }
}

/// A fault inside the engine's copy routine: the thread goes on at its error exit. Or a signal by which the engine ends a
/// call that a thread of its own sleeps in.
///
/// # Safety
/// Called in a signal handler with the context of the interrupted instruction.
unsafe fn recover_copy(context: &mut ucontext_t, info: &siginfo_t) -> bool {
    #[cfg(target_arch = "x86_64")]
    {
        let instruction = &mut context.uc_mcontext.gregs[libc::REG_RIP as usize];
        // SAFETY: every siginfo has the bytes of a value; whether it means one `interrupted` tells by the code.
        let value = unsafe { info.si_value() }.sival_ptr as usize;
        if let Some(goes_on) = os::interrupted(info.si_code, value, *instruction as usize) {
            *instruction = goes_on as i64;
            return true;
        }
        if let Some(exit) = os::user_copy_fault(*instruction as usize) {
            *instruction = exit as i64;
            return true;
        }
    }
    false
}
