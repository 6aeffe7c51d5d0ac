//! The interface between the calls served here and the process that is served.

use core::ffi::c_int;

/// The server of a process's rings, or of its contexts of Linux AIO.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Server {
    /// The kernel alone.
    Kernel,
    /// The kernel. It has refused nothing yet; the engine would serve what it refuses.
    KernelFirst,
    /// The kernel and the engine: the kernel has refused some, and the engine serves those.
    Mixed,
    /// The engine alone.
    Engine,
}

/// A kind of process that is served: one with the preloaded library, or a guest. It has no value; its functions are
/// inlined.
pub trait Host {
    /// Returns the server of io_uring here.
    fn rings() -> Server;

    /// Returns the server of Linux AIO here.
    fn aio() -> Server;

    /// Prepares the process for a ring of the engine's after the kernel has refused one. From then on [`Host::rings`]
    /// is [`Server::Mixed`]. False if that is impossible.
    fn share_rings() -> bool {
        false
    }

    /// Prepares the process for an AIO context of the engine's, as [`Host::share_rings`] does for a ring.
    fn share_aio() -> bool {
        false
    }

    /// Returns the errno by which io_uring_setup(2) is refused, 0 if it is served.
    fn setup_refusal() -> c_int {
        0
    }

    /// Makes bad addresses in the engine's copies of program memory harmless, by a handler that calls
    /// [`crate::engine::recover_copy`].
    fn guard_copies();

    /// Called when the process has made its first ring; `descriptor::rings_exist` is true by then.
    fn first_ring_made();

    /// Checks if the action of a signal that is needed here was replaced unseen, and takes it back.
    fn take_back_signals();

    /// Records that the calling thread has set its alternate signal stack.
    fn record_alternate(alternate: &libc::stack_t);

    /// Serves rt_sigaction(2), with the kernel's arguments and answer.
    fn sigaction(args: [usize; 6]) -> isize;

    /// Serves rt_sigprocmask(2), with the kernel's arguments and answer.
    fn sigprocmask(args: [usize; 6]) -> isize;

    /// Runs a waiting call that has a signal mask of its own, `size` bytes at `mask`. It gets a mask that blocks no
    /// signal that is needed here.
    fn with_mask(mask: *const u64, size: usize, wait: impl FnOnce(*const u64) -> isize) -> isize;
}
