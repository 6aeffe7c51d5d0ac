//! Implements [`Host`], the interface that the shared code in `crates/serve` needs, for the preloaded library.

use crate::{backend, probe, raw, signals};
use anyring_serve::host::{Host, Server};
use core::ffi::c_int;

/// A process with this library preloaded.
pub struct Preloaded;

impl Host for Preloaded {
    #[inline]
    fn rings() -> Server {
        backend::rings()
    }

    #[inline]
    fn aio() -> Server {
        backend::aio()
    }

    fn share_rings() -> bool {
        backend::share_rings()
    }

    fn share_aio() -> bool {
        backend::share_aio()
    }

    /// Returns the errno for a new ring if the program would call io_uring_enter(2) on it by instructions that nothing
    /// here traps. It is the kernel's errno, or EPERM if the kernel would serve the ring. Returns 0 if the kernel
    /// is asked first, since its answer then counts.
    fn setup_refusal() -> c_int {
        match raw::enters_unseen() && backend::rings() == Server::Engine {
            false => 0,
            true => Some(probe::kernel_refusal()).filter(|errno| *errno != 0).unwrap_or(libc::EPERM),
        }
    }

    fn guard_copies() {
        backend::guard_copies();
    }

    fn sees_handlers() -> bool {
        signals::owns_the_symbols()
    }

    fn first_ring_made() {
        raw::ring_made();
    }

    fn reinstall_handlers() {
        signals::action::reinstall();
    }

    fn record_alternate(alternate: &libc::stack_t) {
        raw::record_alternate(alternate);
    }

    fn sigaction(args: [usize; 6]) -> isize {
        signals::action::system_call(args)
    }

    fn sigprocmask(args: [usize; 6]) -> isize {
        signals::mask::system_call(args)
    }

    fn with_mask(mask: *const u64, size: usize, wait: impl FnOnce(*const u64) -> isize) -> isize {
        signals::mask::with_temporary(mask, size, wait)
    }
}
