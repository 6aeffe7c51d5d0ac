//! The abilities of the file system, asked by system calls before a program begins.

use crate::program::{Allocation, ALLOCATIONS, BLOCK};
use anyhow::{Context, Result};
use std::fs::File;
use std::io::Error;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// The parts of the interface in which file systems differ.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Abilities {
    /// O_DIRECT can be opened.
    pub direct: bool,
    /// A shared, writable mapping can be made.
    pub mapping: bool,
    /// Allocations that are refused, with the answer to each.
    pub refused: Vec<(Allocation, i32)>,
}

impl Abilities {
    /// Asks with a file of its own in the folder.
    pub fn of(folder: &Path) -> Result<Abilities> {
        let path = folder.join("abilities");
        let mut options = File::options();
        options.read(true).write(true).create(true);
        let file = options.open(&path).with_context(|| format!("make {}", path.display()))?;
        file.set_len(u64::from(4 * BLOCK))?;
        let direct = options.custom_flags(libc::O_DIRECT).open(&path).is_ok();
        let refuses = |allocation: &Allocation| {
            let (at, len) = (i64::from(BLOCK), i64::from(BLOCK));
            // SAFETY: numbers only.
            let answer = unsafe { libc::fallocate(file.as_raw_fd(), allocation.mode(), at, len) };
            (answer != 0).then(|| (*allocation, -Error::last_os_error().raw_os_error().unwrap_or(0)))
        };
        let abilities = Abilities {
            direct,
            mapping: map(&file, BLOCK as usize).is_ok(),
            refused: ALLOCATIONS.iter().filter_map(refuses).collect(),
        };
        std::fs::remove_file(&path)?;
        Ok(abilities)
    }
}

/// A mapping of the beginning of a file, shared and writable.
pub struct Mapping {
    /// Its address.
    pub address: *mut u8,
    length: usize,
}

/// Maps the beginning of a file.
pub fn map(file: &File, length: usize) -> std::io::Result<Mapping> {
    let (protection, fd) = (libc::PROT_READ | libc::PROT_WRITE, file.as_raw_fd());
    // SAFETY: at an address of the kernel's choice, so it replaces nothing.
    let address = unsafe { libc::mmap(std::ptr::null_mut(), length, protection, libc::MAP_SHARED, fd, 0) };
    match address {
        libc::MAP_FAILED => Err(Error::last_os_error()),
        address => Ok(Mapping { address: address.cast(), length }),
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: its own mapping, to which nothing refers any more.
        unsafe { libc::munmap(self.address.cast(), self.length) };
    }
}
