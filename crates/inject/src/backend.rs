//! Who serves this process: the kernel where its io_uring works, else our engine. Decided once, at the latest when the
//! program makes its first ring (decision 8 in docs/decisions).

use crate::environment::variable;
use crate::{probe, signals};
use anyring_engine::os;
use core::sync::atomic::{AtomicU32, Ordering};
use libc::c_int;

#[cfg(not(test))]
pub use anyring_serve::engine::quieten_panics;
use anyring_serve::engine::recover_copy;
pub use anyring_serve::engine::{open_log, renew_after_fork};

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
static BACKEND: Choice = Choice::new("ANYRING_BACKEND", probe::kernel_refusal);
/// Who serves Linux AIO.
static AIO: Choice = Choice::new("ANYRING_AIO", probe::aio_refusal);

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

/// Makes bad addresses in the engine's copies harmless. May be called again.
pub fn guard_copies() {
    let guarded = [libc::SIGSEGV, libc::SIGBUS].map(|signal| signals::install_guard(signal, recover_copy));
    if guarded.iter().all(Result::is_ok) {
        os::handler_installed();
    }
}
