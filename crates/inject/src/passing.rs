//! sendmsg(2) and sendmmsg(2): rings are not passed over sockets.

use crate::descriptor::rings_exist;
use crate::entry;
use crate::next::{missing, next};
use anyring_serve::named::{check, concerns};
use anyring_serve::passing::{before_sendmsg, sendable};
use core::ffi::{c_int, c_uint};
use libc::{mmsghdr, msghdr, ssize_t};

next! {
    SENDMSG = c"sendmsg": fn(c_int, *const msghdr, c_int) -> ssize_t;
    SENDMMSG = c"sendmmsg": fn(c_int, *mut mmsghdr, c_uint, c_int) -> c_int;
}

/// sendmsg(2).
///
/// # Safety
/// As libc's `sendmsg`.
#[cfg_attr(not(test), no_mangle)]
pub unsafe extern "C-unwind" fn sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t {
    let mut verdict = Ok(());
    if rings_exist() || concerns(fd) {
        let args = [fd as usize, message as usize, flags as usize, 0, 0, 0];
        let may_send = || check(libc::SYS_sendmsg, &args).and_then(|()| before_sendmsg(message));
        entry::aside(|| verdict = may_send());
    }
    match verdict {
        // SAFETY: the caller's own arguments.
        Ok(()) => SENDMSG.get().map_or_else(|| missing() as ssize_t, |next| unsafe { next(fd, message, flags) }),
        Err(error) => entry::libc_answer(-(error.raw_os_error() as isize)),
    }
}

/// sendmmsg(2).
///
/// # Safety
/// As libc's `sendmmsg`.
#[cfg_attr(not(test), no_mangle)]
pub unsafe extern "C-unwind" fn sendmmsg(fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int) -> c_int {
    let mut verdict = Ok(count);
    if rings_exist() || concerns(fd) {
        let args = [fd as usize, messages as usize, count as usize, flags as usize, 0, 0];
        let sendable = || check(libc::SYS_sendmmsg, &args).and_then(|()| sendable(messages, count));
        entry::aside(|| verdict = sendable());
    }
    match verdict {
        // SAFETY: the caller's own arguments, or fewer of its messages.
        Ok(count) => SENDMMSG.get().map_or_else(missing, |next| unsafe { next(fd, messages, count, flags) }),
        Err(error) => entry::libc_answer(-(error.raw_os_error() as isize)) as c_int,
    }
}
