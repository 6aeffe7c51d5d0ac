//! What the environment asks of this library: variables whose names begin with ANYRING_.
//!
//! A program that runs with more rights than whoever started it (AT_SECURE of getauxval(3): set-user-ID, file capabilities) hears
//! none of them, however the library came into it (as a liburing.so.2 in its search path, by /etc/ld.so.preload): they name files
//! to be written and say who serves.

use core::ffi::{c_char, CStr};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::sync::OnceLock;

/// What `anyring run` sets ANYRING_BACKEND and ANYRING_AIO to once it has seen the kernel's work: `auto` without the question.
pub const WORKS: &str = "kernel-first";

/// Names the process, by its id, in which a program is about to begin that is to be refused in one line, with status 125, if a
/// filter kills for a call of its own that is not served. `anyring run` sets it.
pub const REFUSES: &str = "ANYRING_REFUSES";

/// Our variables as they were when [`keep`] read them: name and value.
static KEPT: OnceLock<Vec<(OsString, OsString)>> = OnceLock::new();

/// Reads our variables, once and for all: a program may clear its environment, or write its title over it, before its first
/// call.
///
/// # Safety
/// `list` is an environment as a program is started with: pointers to C strings, up to a null one.
pub unsafe fn keep(list: *const *const c_char) {
    // SAFETY: by the contract; each is looked at up to the null pointer.
    let words = (0..).map(|at| unsafe { *list.add(at) }).take_while(|word| !word.is_null());
    // SAFETY: by the contract.
    let words = words.map(|word| unsafe { CStr::from_ptr(word) }.to_bytes());
    let ours = words.filter(|word| word.starts_with(b"ANYRING_")).filter_map(|word| {
        let (name, value) = word.split_at(word.iter().position(|byte| *byte == b'=')?);
        Some((OsStr::from_bytes(name).to_owned(), OsStr::from_bytes(&value[1..]).to_owned()))
    });
    KEPT.get_or_init(|| ours.collect());
}

/// The variable's value, if it has one that is to be heeded.
pub fn variable_os(name: &str) -> Option<OsString> {
    // SAFETY: reads the auxiliary vector.
    let is_secure = unsafe { libc::getauxval(libc::AT_SECURE) } != 0;
    if is_secure {
        return None;
    }
    let value = match KEPT.get() {
        Some(kept) => kept.iter().find(|(known, _)| known == name).map(|(_, value)| value.clone()),
        None => std::env::var_os(name),
    };
    value.filter(|value| !value.is_empty())
}

/// The same of text.
pub fn variable(name: &str) -> Option<String> {
    variable_os(name)?.into_string().ok()
}
