//! Preparation of the engine before its first ring, and recovery from faults.

use crate::environment::variable;
use crate::{probe, Host};
use anyring_engine::driver::spin;
use anyring_engine::lock::Lock;
use anyring_engine::os::{arch, version};
use anyring_engine::thread::place;
use anyring_engine::{chaos, event, log, os, stats, thread};
use core::sync::atomic::{AtomicBool, Ordering};
use libc::{siginfo_t, ucontext_t};

/// Sends the messages of anyring's panics to the log, if there is one, and nowhere else.
pub fn quieten_panics() {
    std::panic::set_hook(Box::new(|panic| {
        open_log();
        log::line(&panic.to_string());
    }));
}

/// Does the same as [`quieten_panics`] in a program that shares this copy of std. Messages of other panics still go
/// to the program's own hook.
pub fn quieten_own_panics() {
    // The folder of anyring's crates. In a registry, the common prefix of their names.
    let own = file!().rfind("serve").map_or(file!(), |end| &file!()[..end]);
    let others = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        if panic.location().is_some_and(|place| place.file().starts_with(own)) {
            open_log();
            log::line(&panic.to_string());
        } else {
            others(panic);
        }
    }));
}

/// Opens the log if `ANYRING_LOG` names one. Called before the first ring, or before an earlier message.
pub fn open_log() {
    static OPENED: AtomicBool = AtomicBool::new(false);
    if let Some(path) = variable("ANYRING_LOG").filter(|_| !OPENED.swap(true, Ordering::Relaxed)) {
        let _ = log::open(&path);
    }
}

/// True once [`prepare`] is done. Locked while it runs.
static PREPARED: Lock<bool> = Lock::new(false);

/// Releases the lock in a forked child, if a thread of the parent was preparing the engine at the fork.
pub fn renew_after_fork() {
    if PREPARED.is_held() {
        // SAFETY: the child has no other thread that calls this library, and both values are sound.
        unsafe { PREPARED.reset() };
    }
}

/// Opens the file of counters at the program's start. Before its first ring a program may become a user who cannot.
/// [`prepare`] tries again what fails here, and logs the reason.
pub fn open_counters() {
    if let Some(file) = variable("ANYRING_STATS") {
        let _ = stats::open(Some(&file));
    }
}

/// Opens the log, the counters and the file of events, and makes bad addresses in the engine's copies of program
/// memory harmless. Does so once, before the first ring. A signal handler that interrupts this in the same thread
/// continues without the preparation.
pub fn prepare<H: Host>() {
    // If a panic interrupts this, the next ring does the rest.
    anyring_engine::process::notice_fork();
    H::reinstall_handlers();
    let Some(mut prepared) = PREPARED.lock().filter(|prepared| !**prepared) else { return };
    open_log();
    version::choose(variable("ANYRING_KERNEL").as_deref());
    H::guard_copies();
    if variable("ANYRING_SPIN").as_deref() != Some("0") && H::sees_handlers() {
        spin::allow(place::may_spin);
    }
    let file = variable("ANYRING_STATS");
    if file.is_none() || !stats::are_open() {
        if let Err(error) = stats::open(file.as_deref()) {
            log::line(&format!("the counters are kept in private memory: {error}"));
        }
    }
    if file.is_some() {
        let refusal = probe::kernel_refusal();
        stats::stats().kernel_refused_errno.store(refusal as u64, Ordering::Relaxed);
    }
    if let Some(file) = variable("ANYRING_TRACE") {
        if let Err(error) = event::open(&file) {
            log::line(&format!("there are no events: {file}: {error}"));
        }
    }
    if let Some(seed) = variable("ANYRING_CHAOS") {
        let [rules, only, file] = ["RULES", "ONLY", "LOG"].map(|name| variable(&format!("ANYRING_CHAOS_{name}")));
        if let Err(why) = chaos::begin(&seed, rules.as_deref(), only.as_deref(), file.as_deref()) {
            log::line(&format!("there is no chaos: {why}"));
        }
    }
    *prepared = true;
}

/// Recovers from three kinds of signal. At a fault inside the engine's copy routine, the thread continues at the
/// routine's error exit. A signal that the engine sent ends a call in which one of the engine's threads sleeps. If a
/// mapped file was made smaller, a page past its end is replaced.
///
/// # Safety
/// Called in a signal handler with the context of the interrupted instruction.
pub unsafe fn recover_copy(context: &mut ucontext_t, info: &siginfo_t) -> bool {
    let instruction = arch::instruction(context);
    // SAFETY: every siginfo has these bytes, initialised. `is_nudge` decides by `si_code` whether they are a value.
    let value = unsafe { info.si_value() }.sival_ptr as usize;
    if os::is_nudge(info.si_code, value) {
        thread::follow::catch_up();
        return true;
    }
    // SAFETY: every siginfo has the bytes of a sender; the code, checked first, says that they mean one.
    let is_unmarked = info.si_signo == libc::SIGBUS && os::may_lack_mark(info.si_code, unsafe { info.si_pid() });
    if is_unmarked && thread::is_ours() {
        thread::follow::catch_up();
        arch::set_instruction(context, os::after_unmarked(instruction, arch::interruptible_word(context)));
        return true;
    }
    let interrupted = os::interrupted(info.si_code, value, instruction);
    if let Some(goes_on) = interrupted.or_else(|| os::user_copy_fault(instruction)) {
        arch::set_instruction(context, goes_on);
        return true;
    }
    // SAFETY: every siginfo has the bytes of an address; the code, checked first, says that they mean one.
    info.si_signo == libc::SIGBUS
        && info.si_code == os::backing::BUS_ADRERR
        && os::backing::replace_page(unsafe { info.si_addr() } as usize)
}
