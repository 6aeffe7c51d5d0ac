//! The library's constructor. It runs before everything else (`-z initfirst`), and does as little as possible.

use crate::{
    backend, copy, descriptor, entry, exec, fork, identity, joined, jump, liburing, memory, musl, named, passing,
    raw, sanitizer, shell, signals, unwind, wait,
};
use anyring_engine::forced::{point, Point};
use anyring_engine::{alloc, os, process, thread};
use anyring_serve::engine;
use anyring_serve::environment::{self, EXPENDABLE};
use core::ffi::{c_char, c_int};

/// Runs when the loader has mapped everything that the program starts with, before any of that code. This is also
/// before libc's constructor, which stores the address of the environment.
extern "C" fn constructor(_count: c_int, _arguments: *const *const c_char, list: *const *const c_char) {
    joined::complete();
    exec::begin(list);
    // Built as a library of its own, this code has a std of its own.
    #[cfg(feature = "allocator")]
    backend::quieten_panics();
    #[cfg(not(feature = "allocator"))]
    backend::quieten_own_panics();
    entry::aside(|| {
        point(Point::Constructor);
        #[cfg(feature = "mutations")]
        raw::stay();
        for resolve in [
            descriptor::resolve,
            exec::resolve,
            fork::resolve,
            identity::resolve,
            jump::resolve,
            liburing::older::resolve,
            liburing::setup::resolve,
            memory::resolve,
            musl::resolve,
            named::resolve,
            passing::resolve,
            raw::resolve,
            sanitizer::resolve,
            shell::resolve,
            signals::contexts::resolve,
            signals::threads::resolve,
            signals::wrappers::resolve,
            unwind::resolve,
            wait::resolve,
        ] {
            resolve();
        }
        // If there is no memory at the start, there will be none for a ring. If another copy of the library comes
        // first, that one serves the process.
        // SAFETY: this is the constructor.
        if !musl::is_glibc() || unsafe { !copy::serves() } || alloc::reserve().is_err() {
            backend::leave_to_kernel();
        } else {
            if !list.is_null() {
                // SAFETY: the loader's argument, as a program's main gets it.
                unsafe { environment::keep(list) };
            }
            if environment::variable_os(EXPENDABLE).is_some() {
                os::be_expendable();
            }
            fork::register();
            thread::prepare();
            process::at_fork(renew_after_fork);
            unwind::prepare();
            engine::open_counters();
            if !backend::kernel_is_first() {
                signals::begin();
                raw::start();
            }
        }
    });
}

/// Renews the library's state in a forked child, before any other code of the library runs there.
fn renew_after_fork() {
    backend::renew_after_fork();
    backend::renew_sharing_after_fork();
    raw::renew_after_fork();
    // clone3(2) with CLONE_CLEAR_SIGHAND has reset the signal actions of this library.
    signals::action::reinstall();
}

#[used]
#[link_section = ".init_array"]
static CONSTRUCTOR: extern "C" fn(c_int, *const *const c_char, *const *const c_char) = constructor;
