//! What the environment asks of this library: variables whose names begin with ANYRING_.
//!
//! A program that runs with more rights than whoever started it (AT_SECURE of getauxval(3): set-user-ID, file capabilities) hears
//! none of them, however the library came into it (as a liburing.so.2 in its search path, by /etc/ld.so.preload): they name files
//! to be written and say who serves.

use std::ffi::OsString;

/// What `anyring run` sets ANYRING_BACKEND and ANYRING_AIO to once it has seen the kernel's work: `auto` without the question.
pub const WORKS: &str = "kernel-first";

/// Names the process, by its id, in which a program is about to begin that is to be refused in one line, with status 125, if a
/// filter kills for a call of its own that is not served. `anyring run` sets it.
pub const REFUSES: &str = "ANYRING_REFUSES";

/// The variable's value, if it has one that is to be heeded.
pub fn variable_os(name: &str) -> Option<OsString> {
    // SAFETY: reads the auxiliary vector.
    let is_secure = unsafe { libc::getauxval(libc::AT_SECURE) } != 0;
    if is_secure {
        return None;
    }
    std::env::var_os(name).filter(|value| !value.is_empty())
}

/// The same of text.
pub fn variable(name: &str) -> Option<String> {
    variable_os(name)?.into_string().ok()
}
