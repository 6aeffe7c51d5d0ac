//! What happens when the library is loaded: as little as possible.

use crate::{backend, descriptor, entry, jump, liburing, loader, memory, musl, passing, raw, signals, wait};
use anyring_engine::forced::{point, Point};
use anyring_engine::process;

/// Runs when the loader has mapped everything the program starts with, before its main function.
extern "C" fn constructor() {
    backend::quieten_panics();
    entry::aside(|| {
        point(Point::Constructor);
        #[cfg(feature = "mutations")]
        loader::stay();
        for resolve in [
            descriptor::resolve,
            jump::resolve,
            liburing::setup::resolve,
            loader::resolve,
            memory::resolve,
            musl::resolve,
            passing::resolve,
            signals::action::resolve,
            signals::wrappers::resolve,
            wait::resolve,
        ] {
            resolve();
        }
        if !musl::is_glibc() {
            backend::leave_to_kernel();
        } else {
            // SAFETY: the handler is there for as long as the process: the library is never unloaded. Where it cannot be
            // had, a fork is noticed without it.
            unsafe { libc::pthread_atfork(None, None, Some(forked)) };
            process::at_fork(renew_after_fork);
            raw::start();
        }
    });
}

unsafe extern "C" fn forked() {
    process::forked();
}

/// In a forked child, before anything else of ours.
fn renew_after_fork() {
    backend::renew_after_fork();
    raw::renew_after_fork();
}

#[used]
#[link_section = ".init_array"]
static CONSTRUCTOR: extern "C" fn() = constructor;
