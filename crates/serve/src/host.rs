//! The interface between the calls served in this crate and the process that is served.

use core::ffi::c_int;

/// The server of a process's rings, or of its contexts of Linux AIO.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Server {
    /// Only the kernel.
    Kernel,
    /// The kernel, as long as it has refused nothing. The engine will serve what the kernel refuses.
    KernelFirst,
    /// The kernel and the engine. The kernel has refused some rings or contexts, and the engine serves those.
    Mixed,
    /// Only the engine.
    Engine,
}

/// A kind of process that is served: one with the preloaded library, or a guest. The type has no values; the trait's
/// functions are inlined.
pub trait Host {
    /// Returns the server of this process's io_uring.
    fn rings() -> Server;

    /// Returns the server of this process's Linux AIO.
    fn aio() -> Server;

    /// Prepares the process for one of the engine's rings after the kernel has refused a ring. From then on
    /// [`Host::rings`] is [`Server::Mixed`]. False if that is impossible.
    fn share_rings() -> bool {
        false
    }

    /// Prepares the process for one of the engine's AIO contexts, as [`Host::share_rings`] does for a ring.
    fn share_aio() -> bool {
        false
    }

    /// Returns the errno with which io_uring_setup(2) must fail, or 0 if it is served.
    fn setup_refusal() -> c_int {
        0
    }

    /// Makes bad addresses in the engine's copies of program memory harmless, by a signal handler that calls
    /// [`crate::engine::recover_copy`].
    fn guard_copies();

    /// True if anyring's code runs before every signal handler that the program sets by a function of libc.
    fn sees_handlers() -> bool {
        false
    }

    /// Called when the process has made its first ring; `descriptor::rings_exist` is true by then.
    fn first_ring_made();

    /// Checks whether the program has replaced the action of a signal that the engine needs, without the engine's
    /// knowledge. If it has, installs the engine's action again.
    fn reinstall_handlers();

    /// Records that the calling thread has set its alternate signal stack.
    fn record_alternate(alternate: &libc::stack_t);

    /// Serves rt_sigaction(2), with the kernel's arguments and answer.
    fn sigaction(args: [usize; 6]) -> isize;

    /// Serves rt_sigprocmask(2), with the kernel's arguments and answer.
    fn sigprocmask(args: [usize; 6]) -> isize;

    /// Runs a waiting call that has its own signal mask of `size` bytes at `mask`. The call gets a mask that blocks no
    /// signal that the engine needs.
    fn with_mask(mask: *const u64, size: usize, wait: impl FnOnce(*const u64) -> isize) -> isize;
}
