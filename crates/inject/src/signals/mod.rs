//! Guarded signals in the preloaded library. It implements libc's signal functions with [`anyring_serve::signals`].

pub mod contexts;
pub mod threads;
pub mod wrappers;

use crate::copy;
use anyring_serve::signals::{call_plainly, on_signal, set_way, Way};
use core::ffi::c_int;

pub use anyring_serve::signals::{action, bit, guarded, in_borrowed_memory, mask, Guard, PROCESS};

/// glibc handles 32 and 33 itself.
static WAY: Way = Way {
    entry: on_signal,
    reserved: bit(32) | bit(33),
    install_first: install_through_libc,
    sees_all: owns_the_symbols,
    adjust: |_, _| {},
    call: call_plainly,
};

/// Makes `guard` get every `signal` before the program's own action, by this library's way of serving signals.
///
/// # Errors
/// Those of [`anyring_serve::signals::install_guard`].
pub fn install_guard(signal: c_int, guard: Guard) -> Result<(), c_int> {
    set_way(&WAY);
    anyring_serve::signals::install_guard(signal, guard)
}

/// Prepares the guarded signals when the library is loaded, unless another library owns the program's signal functions
/// ([`anyring_serve::signals::begin`]).
pub fn begin() {
    set_way(&WAY);
    if owns_the_symbols() {
        anyring_serve::signals::begin();
    }
}

/// Installs the library's handler once through libc, to learn which restorer libc uses.
fn install_through_libc(signal: c_int) -> Result<u64, c_int> {
    let next = wrappers::SIGACTION.get().ok_or(libc::ENOSYS)?;
    // SAFETY: all zeroes is a valid sigaction, and `on_signal` has the type that SA_SIGINFO promises.
    let answer = unsafe {
        let mut ours: libc::sigaction = core::mem::zeroed();
        ours.sa_sigaction = on_signal as *const () as usize;
        ours.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_RESTART;
        next(signal, &ours, core::ptr::null_mut())
    };
    match answer {
        0 => action::installed(signal).map(|installed| installed.restorer).map_err(|_| libc::EINVAL),
        _ => Err(libc::EINVAL),
    }
}

/// True if the program's signal functions are those of this library. It is false for a drop-in liburing.so.2, which
/// exports only liburing's functions. There the program could replace the library's SIGSYS handler, and the next trap
/// would kill it.
pub fn owns_the_symbols() -> bool {
    // SAFETY: a C string; looks up the first definition in the process.
    let first = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"sigaction".as_ptr()) };
    copy::is_ours(first)
}
