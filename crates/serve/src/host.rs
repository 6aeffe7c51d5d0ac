//! What a way into the engine has to say and to do for the calls that are served here.

use core::ffi::c_int;

/// Who serves the rings of a process, or its contexts of Linux AIO.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Server {
    /// The kernel alone.
    Kernel,
    /// The kernel, and the engine what the kernel refuses, which it has not done yet.
    KernelFirst,
    /// The same, and it has: some are the kernel's, some ours.
    Mixed,
    /// The engine alone.
    Engine,
}

/// A kind of process that is served: one with the preloaded library, or a guest. No value; its functions are inlined.
pub trait Host {
    /// Who serves io_uring here.
    fn rings() -> Server;

    /// Who serves Linux AIO here.
    fn aio() -> Server;

    /// The kernel has refused a ring: puts in place what one of ours needs, from when on [`Host::rings`] is [`Server::Mixed`].
    /// False where that cannot be had.
    fn share_rings() -> bool {
        false
    }

    /// The same for a context of Linux AIO.
    fn share_aio() -> bool {
        false
    }

    /// The errno by which io_uring_setup(2) is refused, 0 where it is served.
    fn setup_refusal() -> c_int {
        0
    }

    /// Makes bad addresses in the engine's copies of program memory harmless, by a handler that calls
    /// [`crate::engine::recover_copy`].
    fn guard_copies();

    /// The process's first ring is there, and `descriptor::rings_exist` says so.
    fn first_ring_made();

    /// Looks whether an action of a signal that is needed here was set past us.
    fn take_back_signals();

    /// The calling thread has set its alternate signal stack.
    fn note_alternate(alternate: &libc::stack_t);

    /// rt_sigaction(2), with the kernel's arguments and answer.
    fn sigaction(args: [usize; 6]) -> isize;

    /// rt_sigprocmask(2), likewise.
    fn sigprocmask(args: [usize; 6]) -> isize;

    /// Runs a waiting call that has a mask of its own, `size` bytes at `mask`, with one that blocks no signal that is needed
    /// here.
    fn with_mask(mask: *const u64, size: usize, wait: impl FnOnce(*const u64) -> isize) -> isize;
}
