//! The library's settings in the environment: variables whose names begin with ANYRING_.
//!
//! A program with more rights than the user who started it ignores them all (AT_SECURE of getauxval(3): set-user-ID,
//! file capabilities). It does not matter how the library came into the program (as a liburing.so.2 in its search path,
//! or by /etc/ld.so.preload). The reason is that the variables name files to be written and decide who serves.

use core::ffi::{c_char, CStr};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::sync::OnceLock;

/// The value that `anyring run` gives ANYRING_BACKEND and ANYRING_AIO after it has checked that the kernel's interface
/// works. It means the same as `auto`, but without the probe.
pub const WORKS: &str = "kernel-first";

/// The variable by which `anyring run` asks that a program be refused if it cannot be served. Its value is the id
/// of the process that is about to begin the program. A program cannot be served if a filter kills for a call of
/// one of its own instructions, and that instruction cannot be replaced. The process then ends with one line and
/// status 125.
pub const REFUSES: &str = "ANYRING_REFUSES";

/// The variable by which `anyring run` marks a process that only tries the library. The library in such a process asks
/// what a filter might kill for without making children.
pub const EXPENDABLE: &str = "ANYRING_EXPENDABLE";

/// The names and values of anyring's variables when [`keep`] read them.
static KEPT: OnceLock<Vec<(OsString, OsString)>> = OnceLock::new();

/// Reads anyring's variables, only once: a program may clear its environment, or write its title over it, before its
/// first call.
///
/// # Safety
/// `list` is an environment as a program is started with: pointers to C strings, up to a null one.
pub unsafe fn keep(list: *const *const c_char) {
    // SAFETY: by the contract; no word after the null pointer is read.
    let words = (0..).map(|at| unsafe { *list.add(at) }).take_while(|word| !word.is_null());
    // SAFETY: by the contract.
    let words = words.map(|word| unsafe { CStr::from_ptr(word) }.to_bytes());
    let ours = words.filter(|word| word.starts_with(b"ANYRING_")).filter_map(|word| {
        let (name, value) = word.split_at(word.iter().position(|byte| *byte == b'=')?);
        Some((OsStr::from_bytes(name).to_owned(), OsStr::from_bytes(&value[1..]).to_owned()))
    });
    KEPT.get_or_init(|| ours.collect());
}

/// Returns the variable's value. `None` if it is unset or empty, or if the program ignores the variables.
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

/// Returns the variable's value as text; `None` if it is not UTF-8.
pub fn variable(name: &str) -> Option<String> {
    variable_os(name)?.into_string().ok()
}
