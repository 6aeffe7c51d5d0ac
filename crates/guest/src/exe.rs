//! /proc/self/exe. The kernel's link leads to the host. readlink(2) is answered with the guest's file, but open(2) is
//! not trapped.

use anyring_engine::os;
use anyring_serve::sys;
use std::sync::OnceLock;

/// The guest's file.
static PATH: OnceLock<Vec<u8>> = OnceLock::new();

/// Sets the guest's file.
pub fn set(path: Vec<u8>) {
    let _ = PATH.set(path);
}

/// Returns the guest's file.
pub fn path() -> &'static [u8] {
    PATH.get().map_or(&[], Vec::as_slice)
}

/// True if a path names the executable by the calling process's own entry in /proc.
pub fn is_meant(path: &[u8]) -> bool {
    let own = path.strip_prefix(b"/proc/").and_then(|path| path.strip_suffix(b"/exe"));
    own.is_some_and(|own| {
        own == b"self" || own == b"thread-self" || own == sys::process_id().to_string().as_bytes()
    })
}

/// Serves readlink(2), or readlinkat(2) with a directory.
pub fn read_link(directory: usize, path: usize, buffer: usize, size: usize) -> isize {
    if crate::exec::read_string(path).is_ok_and(|name| is_meant(&name)) && (size as i32) > 0 {
        let bytes = &self::path()[..self::path().len().min(size)];
        return match os::user_write_slice(buffer as u64, bytes) {
            Ok(()) => bytes.len() as isize,
            Err(error) => -(error.raw_os_error() as isize),
        };
    }
    // SAFETY: the guest's own call.
    unsafe { sys::call(libc::SYS_readlinkat, [directory, path, buffer, size, 0, 0]) }
}
