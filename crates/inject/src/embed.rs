//! The functions of include/anyring.h, for programs that are linked with this library instead of having it preloaded.
//! Such programs are served without calling these.

use crate::{backend, copy, dispatch, entry, liburing, syscall};
use anyring_abi::{Params, NR_IO_URING_SETUP};
use anyring_serve::host::Server;
use core::ffi::{c_char, c_int, c_void};

/// Returns the release.
#[cfg_attr(not(test), no_mangle)]
pub extern "C" fn anyring_version() -> *const c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}

/// Makes a ring to find out who serves the process's rings. Returns 0 if the kernel does, and anyring only serves
/// those that the kernel refuses. Returns 1 if anyring serves all rings. Returns `-errno` if no ring can be made,
/// and -EEXIST if another library's functions come before these.
#[cfg_attr(not(test), no_mangle)]
pub extern "C" fn anyring_install() -> c_int {
    let ways = [liburing::queue::io_uring_submit as *const c_void, syscall::syscall as *const c_void];
    if !ways.into_iter().all(copy::is_ours) {
        return -libc::EEXIST;
    }
    let mut params = Params::default();
    let call = |number, args| entry::answer_any(|| dispatch::call(number, args));
    let ring = call(NR_IO_URING_SETUP, [1, &raw mut params as usize, 0, 0, 0, 0]);
    if ring < 0 {
        return ring as c_int;
    }
    call(libc::SYS_close, [ring as usize, 0, 0, 0, 0, 0]);
    c_int::from(matches!(backend::rings(), Server::Engine | Server::Mixed))
}

/// Returns the number of rings that anyring has made in this process and its parents.
pub fn rings() -> u64 {
    anyring_engine::stats::stats().rings.load(core::sync::atomic::Ordering::Relaxed)
}
