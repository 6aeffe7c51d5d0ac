//! Who serves this process: the kernel where its io_uring works, else our engine. Decided once, at the latest when the
//! program makes its first ring (decision 8 in docs/decisions).

use crate::environment::variable;
use crate::{raw, signals};
use anyring_engine::driver::spin;
use anyring_engine::lock::Lock;
use anyring_engine::{event, log, os, stats};
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use libc::{c_int, siginfo_t, ucontext_t};

const UNDECIDED: u32 = 0;
const KERNEL: u32 = 1;
const USER: u32 = 2;

/// A decision for the process between the kernel and our engine.
struct Choice {
    /// Relaxed: the decision is the same whoever makes it.
    decided: AtomicU32,
    /// The environment variable that may make it.
    variable: &'static str,
    /// Asks the kernel: the errno by which it refuses, 0 where it serves.
    refusal: fn() -> c_int,
}

/// Who serves io_uring.
static BACKEND: Choice = Choice::new("ANYRING_BACKEND", raw::probe::kernel_refusal);
/// Who serves Linux AIO.
static AIO: Choice = Choice::new("ANYRING_AIO", raw::probe::aio_refusal);

impl Choice {
    const fn new(variable: &'static str, refusal: fn() -> c_int) -> Choice {
        Choice { decided: AtomicU32::new(UNDECIDED), variable, refusal }
    }

    #[inline]
    fn is_user(&self) -> bool {
        match self.decided.load(Ordering::Relaxed) {
            UNDECIDED => self.decide(),
            backend => backend == USER,
        }
    }

    #[cold]
    fn decide(&self) -> bool {
        let user = match variable(self.variable).as_deref() {
            Some("user") => true,
            Some("kernel") => false,
            _ => (self.refusal)() != 0,
        };
        self.decided.store(if user { USER } else { KERNEL }, Ordering::Relaxed);
        user
    }
}

/// Whether our engine serves this process's io_uring.
#[inline]
pub fn is_user() -> bool {
    BACKEND.is_user()
}

/// Whether our engine serves this process's Linux AIO: decided at the first call.
#[inline]
pub fn serves_aio() -> bool {
    AIO.is_user()
}

/// Decides for the kernel, whatever ANYRING_BACKEND and ANYRING_AIO say.
#[cfg(not(test))]
pub fn leave_to_kernel() {
    for choice in [&BACKEND, &AIO] {
        choice.decided.store(KERNEL, Ordering::Relaxed);
    }
}

/// Whether it is known from the start that our engine serves Linux AIO, so that raw instructions have to be found:
/// `anyring run` has decided, and nobody is to be asked in every process.
pub fn aio_is_chosen() -> bool {
    static CHOSEN: AtomicU32 = AtomicU32::new(UNDECIDED);
    match (AIO.decided.load(Ordering::Relaxed), CHOSEN.load(Ordering::Relaxed)) {
        (UNDECIDED, UNDECIDED) => {
            let user = variable(AIO.variable).as_deref() == Some("user");
            CHOSEN.store(if user { USER } else { KERNEL }, Ordering::Relaxed);
            user
        }
        (KERNEL, _) => false,
        (_, chosen) => chosen == USER,
    }
}

/// Whether our engine may serve anything that raw instructions ask for.
pub fn serves_instructions() -> bool {
    is_user() || aio_is_chosen()
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
pub fn open_log() {
    static OPENED: AtomicBool = AtomicBool::new(false);
    if let Some(path) = variable("ANYRING_LOG").filter(|_| !OPENED.swap(true, Ordering::Relaxed)) {
        let _ = log::open(&path);
    }
}

/// Whether [`prepare_engine`] has done it. Held while it does.
static PREPARED: Lock<bool> = Lock::new(false);

/// In a forked child: whoever was preparing the engine when it was forked is the parent's.
pub fn renew_after_fork() {
    if PREPARED.is_held() {
        // SAFETY: the child has no other thread that calls on us, and both values are sound.
        unsafe { PREPARED.reset() };
    }
}

/// Opens the log, the counters and the events, and guards the engine's copies of program memory: once, before the first ring.
/// A signal handler that interrupts this in its own thread goes on without.
pub fn prepare_engine() {
    // What a panic interrupted is done by the next ring.
    anyring_engine::process::notice_fork();
    signals::action::take_back();
    let Some(mut prepared) = PREPARED.lock().filter(|prepared| !**prepared) else { return };
    open_log();
    guard_copies();
    let file = variable("ANYRING_STATS");
    if let Err(error) = stats::open(file.as_deref()) {
        log::line(&format!("the counters are kept in private memory: {error}"));
    }
    if file.is_some() {
        let refusal = raw::probe::kernel_refusal();
        stats::stats().kernel_refused_errno.store(refusal as u64, Ordering::Relaxed);
    }
    spin::allow(variable("ANYRING_SPIN").as_deref() != Some("0"));
    if let Some(file) = variable("ANYRING_TRACE") {
        if let Err(error) = event::open(&file) {
            log::line(&format!("there are no events: {file}: {error}"));
        }
    }
    *prepared = true;
}

/// Makes bad addresses in the engine's copies harmless. May be called again.
pub fn guard_copies() {
    let guarded = [libc::SIGSEGV, libc::SIGBUS].map(|signal| signals::install_guard(signal, recover_copy));
    if guarded.iter().all(Result::is_ok) {
        os::handler_installed();
    }
}

/// A fault inside the engine's copy routine: the thread goes on at its error exit. Or a signal by which the engine ends a
/// call that a thread of its own sleeps in. Or a page of a file that somebody else made smaller.
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
    // SAFETY: every siginfo has the bytes of an address; which signals say one by it, the code tells.
    info.si_signo == libc::SIGBUS
        && info.si_code == os::backing::BUS_ADRERR
        && os::backing::replace_page(unsafe { info.si_addr() } as usize)
}
