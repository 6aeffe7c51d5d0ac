//! Raw `syscall` instructions: found in mapped code, trapped by address, emulated by [`crate::dispatch`].
//!
//! Nothing at all happens in a process without such an instruction. Where there is one, [`start`] and [`look_again`]
//! guard SIGSYS, set no_new_privs, which an unprivileged filter needs, and add a filter for all threads. They run
//! under one lock, at start-up and after dlopen(3).
//!
//! Not trapped, and thus different from a kernel's io_uring: poll, select and epoll_wait by raw instruction, which a
//! filter cannot judge since the descriptors lie in memory. A level-triggered raw epoll_wait on a ring whose CQ was
//! emptied without an enter reports it once more than it should, until the next enter; a raw poll or select is only
//! woken if the ring was made known by another watcher. Neither are instructions in code that the loader did not map
//! (just-in-time compilers) or in another namespace of dlmopen(3).

mod filter;
mod object;
pub(crate) mod probe;
mod scan;
mod stack;
mod trap;

use crate::{backend, signals, sys};
use core::sync::atomic::{AtomicBool, Ordering};
use libc::{sock_filter, sock_fprog};
use object::Known;
use std::sync::{Mutex, PoisonError};

/// What was scanned so far. Taken in the constructor and after dlopen, by threads that hold no lock of ours.
static KNOWN: Mutex<Option<Known>> = Mutex::new(None);
static INSTALLED: AtomicBool = AtomicBool::new(false);

/// Whether this process has a filter of ours, and with it no_new_privs.
pub fn installed() -> bool {
    INSTALLED.load(Ordering::Relaxed)
}

/// Looks through everything mapped at start-up. From now on [`look_again`] does the same for what is added.
pub fn start() {
    if !owns_the_symbols() {
        return;
    }
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    cover(known.get_or_insert_default());
}

/// Looks through what dlopen(3) has just mapped.
pub fn look_again() {
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(known) = known.as_mut() {
        cover(known);
    }
}

/// Whether the process's signal functions are the ones of this library: without them (as a drop-in liburing.so.2,
/// which exports liburing's functions alone) a program could take SIGSYS from us and be killed by the next trap.
fn owns_the_symbols() -> bool {
    // SAFETY: a C string; the first definition in the process is asked for.
    let first = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"sigaction".as_ptr()) };
    first as usize == signals::wrapper_of_sigaction()
}

fn cover(known: &mut Known) {
    let objects = object::new_objects(known);
    if objects.is_empty() || !(installed() || backend::is_user()) {
        return;
    }
    if !trap::prepare() || signals::install_guard(libc::SIGSYS, trap::guard).is_err() {
        return;
    }
    for program in filter::programs(&objects) {
        if install(&program) {
            INSTALLED.store(true, Ordering::Relaxed);
        }
    }
}

/// Adds a filter to all threads.
fn install(program: &[sock_filter]) -> bool {
    let program = sock_fprog { len: program.len() as u16, filter: program.as_ptr().cast_mut() };
    let flags = libc::SECCOMP_FILTER_FLAG_TSYNC as usize;
    let filter = [libc::SECCOMP_SET_MODE_FILTER as usize, flags, &raw const program as usize, 0, 0, 0];
    // SAFETY: the program and what it points to outlive the call, which copies them; the kernel verifies it.
    unsafe {
        sys::call(libc::SYS_prctl, [libc::PR_SET_NO_NEW_PRIVS as usize, 1, 0, 0, 0, 0]) == 0
            && sys::call(libc::SYS_seccomp, filter) == 0
    }
}

/// Whether raw instructions are left alone by the program's environment.
pub fn declined() -> bool {
    std::env::var_os("ANYRING_RAW").is_some_and(|value| value == "0")
        || std::env::var_os("ANYRING_BACKEND").is_some_and(|value| value == "kernel")
}
