//! Decides who serves this process: the kernel if its io_uring works, and the engine for rings that the kernel
//! refuses. The library decides once whether the kernel's io_uring works, at the latest for the program's first
//! ring (decision 8 in docs/decisions). If it works, the kernel is asked for each ring (decision 31).

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

/// The process's decision between the kernel and the engine.
struct Choice {
    /// Relaxed: every thread makes the same decision, and everything that follows from it is set up under [`SHARING`].
    decided: AtomicU32,
    /// The environment variable that may make the decision.
    variable: &'static str,
    /// Asks the kernel. Returns the errno with which the kernel refuses the interface, or 0 if it serves it.
    refusal: fn() -> c_int,
}

/// The choice for io_uring.
static BACKEND: Choice = Choice::new("ANYRING_BACKEND", probe::kernel_refusal);
/// The choice for Linux AIO.
static AIO: Choice = Choice::new("ANYRING_AIO", probe::aio_refusal);
/// Held while a thread prepares the process for the engine's first ring or context beside the kernel's.
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

    /// Prepares the process, after the kernel has refused a ring or context. From now on the engine serves those that
    /// the kernel refuses. False if the engine's memory cannot be reserved, or if this runs in a signal handler
    /// that interrupted the lock's holder.
    fn share(&self) -> bool {
        // None: this is a signal handler that interrupted the holder in its own thread.
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

/// Returns the server of this process's io_uring.
#[inline]
pub fn rings() -> Server {
    BACKEND.server()
}

/// Returns the server of this process's Linux AIO, decided at the first call.
#[inline]
pub fn aio() -> Server {
    AIO.server()
}

/// Lets the engine serve a ring that the kernel refused. False if the program would call io_uring_enter(2) on it by
/// instructions that nothing traps.
pub fn share_rings() -> bool {
    BACKEND.share() && !raw::enters_unseen()
}

/// Lets the engine serve a context of Linux AIO that the kernel refused.
pub fn share_aio() -> bool {
    AIO.share()
}

/// True if the environment says that the kernel serves both interfaces, or is asked first for both. Then nothing is
/// prepared at the start.
#[cfg(not(test))]
pub fn kernel_is_first() -> bool {
    [&BACKEND, &AIO].iter().all(|choice| matches!(variable(choice.variable).as_deref(), Some("kernel" | WORKS)))
}

/// Decides for the kernel, whatever ANYRING_BACKEND and ANYRING_AIO say.
#[cfg(not(test))]
pub fn leave_to_kernel() {
    for choice in [&BACKEND, &AIO] {
        choice.decided.store(KERNEL, Ordering::Relaxed);
    }
}

/// Resets the lock in a forked child. A thread that held it at the fork exists only in the parent.
pub fn renew_sharing_after_fork() {
    if SHARING.is_held() {
        // SAFETY: the child has no other thread that calls this library, and the value is ().
        unsafe { SHARING.reset() };
    }
}

/// True if the environment says that only the engine serves Linux AIO, so that the kernel need not be asked.
/// `anyring run` decides that once for all processes.
pub fn aio_is_chosen() -> bool {
    static CHOSEN: AtomicU32 = AtomicU32::new(UNDECIDED);
    match (AIO.decided.load(Ordering::Relaxed), CHOSEN.load(Ordering::Relaxed)) {
        // `USER` does not say whether the environment made that decision.
        (UNDECIDED | USER, UNDECIDED) => {
            let user = variable(AIO.variable).as_deref() == Some("user");
            CHOSEN.store(if user { USER } else { KERNEL }, Ordering::Relaxed);
            user
        }
        (KERNEL | KERNEL_FIRST | MIXED, _) => false,
        (_, chosen) => chosen == USER,
    }
}

/// True if raw instructions that call Linux AIO have to be found.
pub fn finds_aio() -> bool {
    AIO.decided.load(Ordering::Relaxed) == MIXED || aio_is_chosen()
}

/// True if the engine may serve any call that raw instructions make.
pub fn serves_instructions() -> bool {
    matches!(rings(), Server::Engine | Server::Mixed) || finds_aio()
}

/// Makes bad addresses harmless when the engine copies from or to them. May be called again.
pub fn guard_copies() {
    let guarded = [libc::SIGSEGV, libc::SIGBUS].map(|signal| signals::install_guard(signal, recover_copy));
    if guarded.iter().all(Result::is_ok) {
        os::handler_installed();
    }
}

#[cfg(test)]
mod tests {
    use super::{aio, aio_is_chosen, Server, AIO};

    #[test]
    fn the_environments_choice_is_known_after_the_decision() {
        std::env::set_var(AIO.variable, "user");
        assert!(matches!(aio(), Server::Engine));
        assert!(aio_is_chosen());
    }
}
