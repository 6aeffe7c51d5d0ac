//! The log of injections and findings: one JSON object a line, in the file that `ANYRING_CHAOS_LOG` names.

use crate::descriptors;
use crate::os::{calls, syscall};
use crate::Errno;
use core::sync::atomic::{AtomicI32, Ordering::Relaxed};
use rustix::fs::{Mode, OFlags};
use std::os::fd::IntoRawFd;

static FILE: AtomicI32 = AtomicI32::new(-1);

/// Opens the file for appending, since all processes of the program write to it.
///
/// # Errors
/// Those of open(2).
pub fn open(path: &str) -> Result<(), Errno> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::APPEND | OFlags::CLOEXEC;
    let fd = descriptors::to_top(calls::open(path, flags, Mode::from(0o644))?)?;
    FILE.store(fd.into_raw_fd(), Relaxed);
    Ok(())
}

/// True if the log is open.
pub fn is_open() -> bool {
    FILE.load(Relaxed) >= 0
}

/// Writes one line with one call, so that lines of several processes do not mix.
pub fn line(text: &str) {
    let fd = FILE.load(Relaxed);
    if fd >= 0 {
        syscall(libc::SYS_write, [fd as usize, text.as_ptr() as usize, text.len(), 0, 0, 0]);
    }
}
