//! What happens when the library is loaded: as little as possible, and before everything else (`-z initfirst`).

use crate::{
    backend, copy, descriptor, entry, exec, identity, joined, jump, liburing, memory, musl, named, passing, raw,
    sanitizer, shell, signals, unwind, wait,
};
use anyring_engine::forced::{point, Point};
use anyring_engine::os::handlers;
use anyring_engine::{alloc, process, thread};
use anyring_serve::environment;
use core::ffi::{c_char, c_int};

/// Runs when the loader has mapped everything the program starts with, before any code of that: also before libc's constructor,
/// which says where the environment is.
extern "C" fn constructor(_count: c_int, _arguments: *const *const c_char, list: *const *const c_char) {
    joined::complete();
    exec::begin(list);
    // As a library of its own it has a std of its own.
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
        // Where there is no memory at the start, there is none for a ring. Another copy serves the process already.
        if !musl::is_glibc() || !copy::is_first() || alloc::reserve().is_err() {
            backend::leave_to_kernel();
        } else {
            if !list.is_null() {
                // SAFETY: the loader's argument, as a program's main is given it.
                unsafe { environment::keep(list) };
            }
            register_forked();
            thread::prepare();
            process::at_fork(renew_after_fork);
            unwind::prepare();
            if !backend::stands_by() {
                signals::begin();
                raw::start();
            }
        }
    });
}

/// Has libc's fork(3) call [`forks`] before, [`has_forked`] and [`forked`] after it, in the child. Where it cannot be had, a fork is
/// noticed without it.
fn register_forked() {
    type Handler = Option<unsafe extern "C" fn()>;
    // By name: glibc's pthread_atfork is a static function around this one, which the loader of another libc would miss.
    // SAFETY: a C string; the first definition in the process is asked for.
    let register = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"__register_atfork".as_ptr()) };
    if !register.is_null() {
        // SAFETY: glibc's own function of that name has this type. The handler is there for as long as the process: the
        // library is never unloaded, and belongs to no object by the last argument.
        unsafe {
            let register: unsafe extern "C" fn(Handler, Handler, Handler, *const ()) -> i32 =
                core::mem::transmute(register);
            register(Some(forks), Some(has_forked), Some(forked), core::ptr::null());
        }
    }
}

/// fork(3) is about to take malloc's locks. A handler that interrupted it, and called on a ring for which a thread has to be
/// made, would wait for them for good: the program's handlers wait until they are free.
unsafe extern "C" fn forks() {
    handlers::hold();
}

unsafe extern "C" fn has_forked() {
    handlers::let_go();
}

unsafe extern "C" fn forked() {
    process::forked();
    handlers::let_go();
}

/// In a forked child, before anything else of ours.
fn renew_after_fork() {
    backend::renew_after_fork();
    backend::renew_sharing_after_fork();
    raw::renew_after_fork();
    // clone3(2) with CLONE_CLEAR_SIGHAND has reset them.
    signals::action::take_back();
}

#[used]
#[link_section = ".init_array"]
static CONSTRUCTOR: extern "C" fn(c_int, *const *const c_char, *const *const c_char) = constructor;
