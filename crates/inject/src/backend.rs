//! Who serves this process: the kernel where its io_uring works, and our engine what it refuses. Whether it works is decided
//! once, at the latest when the program makes its first ring (decision 8 in docs/decisions); what it refuses it is asked for each
//! ring (decision 31).

use crate::environment::variable;
use crate::{probe, raw, signals};
use anyring_engine::lock::Lock;
use anyring_engine::{alloc, os};
use anyring_serve::environment::WORKS;
use anyring_serve::host::Server;
use core::sync::atomic::{AtomicU32, Ordering};
use libc::c_int;

#[cfg(all(not(test), not(feature = "allocator")))]
pub use anyring_serve::engine::quieten_own_panics;
#[cfg(all(not(test), feature = "allocator"))]
pub use anyring_serve::engine::quieten_panics;
use anyring_serve::engine::recover_copy;
pub use anyring_serve::engine::{open_log, renew_after_fork};

const UNDECIDED: u32 = 0;
const KERNEL: u32 = 1;
const USER: u32 = 2;
const KERNEL_FIRST: u32 = 3;
const MIXED: u32 = 4;

/// A decision for the process between the kernel and our engine.
struct Choice {
    /// Relaxed: the decision is the same whoever makes it, and what comes after it is put in place under [`SHARING`].
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
/// Held while what the first ring or context of ours needs is put in place beside the kernel's.
static SHARING: Lock<()> = Lock::new(());

impl Choice {
    const fn new(variable: &'static str, refusal: fn() -> c_int) -> Choice {
        Choice { decided: AtomicU32::new(UNDECIDED), variable, refusal }
    }

    #[inline]
    fn decided(&self) -> u32 {
        match self.decided.load(Ordering::Relaxed) {
            UNDECIDED => self.decide(),
            decided => decided,
        }
    }

    #[inline]
    fn server(&self) -> Server {
        match self.decided() {
            USER => Server::Engine,
            KERNEL_FIRST => Server::KernelFirst,
            MIXED => Server::Mixed,
            _ => Server::Kernel,
        }
    }

    #[cold]
    fn decide(&self) -> u32 {
        let decided = match variable(self.variable).as_deref() {
            Some("user") => USER,
            Some("kernel") => KERNEL,
            Some(WORKS) => KERNEL_FIRST,
            _ if (self.refusal)() != 0 => USER,
            _ => KERNEL_FIRST,
        };
        self.decided.store(decided, Ordering::Relaxed);
        decided
    }

    /// The kernel has refused one: from now on some are ours. False where what that needs cannot be had.
    fn share(&self) -> bool {
        // None: a signal handler interrupted this in its own thread.
        let Some(_held) = SHARING.lock() else { return false };
        if self.decided() == KERNEL_FIRST {
            if alloc::reserve().is_err() {
                return false;
            }
            self.decided.store(MIXED, Ordering::Relaxed);
            signals::begin();
            raw::start_late();
        }
        true
    }
}

/// Who serves this process's io_uring.
#[inline]
pub fn rings() -> Server {
    BACKEND.server()
}

/// Who serves this process's Linux AIO: decided at the first call.
#[inline]
pub fn aio() -> Server {
    AIO.server()
}

/// The kernel has refused a ring. False where one of ours would be entered past us.
pub fn share_rings() -> bool {
    BACKEND.share() && !raw::enters_unseen()
}

/// The kernel has refused a context of Linux AIO.
pub fn share_aio() -> bool {
    AIO.share()
}

/// Whether nothing is served here that the kernel does not refuse first, as it is known without a question: then nothing is
/// prepared.
#[cfg(not(test))]
pub fn stands_by() -> bool {
    [&BACKEND, &AIO].iter().all(|choice| matches!(variable(choice.variable).as_deref(), Some("kernel" | WORKS)))
}

/// Decides for the kernel, whatever ANYRING_BACKEND and ANYRING_AIO say.
#[cfg(not(test))]
pub fn leave_to_kernel() {
    for choice in [&BACKEND, &AIO] {
        choice.decided.store(KERNEL, Ordering::Relaxed);
    }
}

/// In a forked child: whoever was putting things in place when it was forked is the parent's.
pub fn renew_sharing_after_fork() {
    if SHARING.is_held() {
        // SAFETY: the child has no other thread that calls on us, and the value is none.
        unsafe { SHARING.reset() };
    }
}

/// Whether it is known, without a question to the kernel, that our engine alone serves Linux AIO: `anyring run` has decided, and
/// nobody is to be asked in every process.
pub fn aio_is_chosen() -> bool {
    static CHOSEN: AtomicU32 = AtomicU32::new(UNDECIDED);
    match (AIO.decided.load(Ordering::Relaxed), CHOSEN.load(Ordering::Relaxed)) {
        (UNDECIDED, UNDECIDED) => {
            let user = variable(AIO.variable).as_deref() == Some("user");
            CHOSEN.store(if user { USER } else { KERNEL }, Ordering::Relaxed);
            user
        }
        (KERNEL | KERNEL_FIRST | MIXED, _) => false,
        (_, chosen) => chosen == USER,
    }
}

/// Whether raw instructions that make calls of Linux AIO have to be found.
pub fn finds_aio() -> bool {
    AIO.decided.load(Ordering::Relaxed) == MIXED || aio_is_chosen()
}

/// Whether our engine may serve anything that raw instructions ask for.
pub fn serves_instructions() -> bool {
    matches!(rings(), Server::Engine | Server::Mixed) || finds_aio()
}

/// Makes bad addresses in the engine's copies harmless. May be called again.
pub fn guard_copies() {
    let guarded = [libc::SIGSEGV, libc::SIGBUS].map(|signal| signals::install_guard(signal, recover_copy));
    if guarded.iter().all(Result::is_ok) {
        os::handler_installed();
    }
}
