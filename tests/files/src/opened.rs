//! The file as one process has it open: three descriptors and a mapping.

use crate::abilities::{map, Abilities, Mapping};
use crate::program::{Opened, FILE_BYTES};
use anyhow::{Context, Result};
use std::ffi::CStr;
use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd};

/// The file's name in the working directory.
pub const NAME: &CStr = c"file";
/// The ways to open it, in the order of the registered files.
pub const WAYS: [Opened; 3] = [Opened::Plain, Opened::Direct, Opened::Append];

/// The open file.
pub struct OpenFile {
    files: [File; 3],
    /// None if the file system has no shared mappings.
    pub mapping: Option<Mapping>,
}

/// Returns open(2)'s flags for each way.
pub fn flags(abilities: &Abilities) -> [i32; 3] {
    let direct = if abilities.direct { libc::O_DIRECT } else { 0 };
    [0, direct, libc::O_APPEND].map(|flags| flags | libc::O_RDWR | libc::O_CREAT | libc::O_CLOEXEC)
}

impl OpenFile {
    /// Opens it by system calls.
    pub fn new(abilities: &Abilities) -> Result<OpenFile> {
        // SAFETY: a constant path.
        let numbers = flags(abilities).map(|flags| unsafe { libc::open(NAME.as_ptr(), flags, 0o600) });
        anyhow::ensure!(numbers.iter().all(|number| *number >= 0), "open: {}", std::io::Error::last_os_error());
        OpenFile::from_numbers(numbers, abilities)
    }

    /// Takes descriptors that were opened in each way, and maps the file.
    pub fn from_numbers(numbers: [i32; 3], abilities: &Abilities) -> Result<OpenFile> {
        // SAFETY: the caller has just opened them, and nothing else owns them.
        let files = numbers.map(|number| unsafe { File::from_raw_fd(number) });
        let mapping = match abilities.mapping {
            true => Some(map(&files[0], FILE_BYTES as usize).context("map the file")?),
            false => None,
        };
        Ok(OpenFile { files, mapping })
    }

    /// Gives up the descriptors, which the caller closes, and the mapping.
    pub fn into_numbers(self) -> [i32; 3] {
        self.files.map(std::os::fd::IntoRawFd::into_raw_fd)
    }

    /// Returns the file as it was opened in this way.
    pub fn get(&self, opened: Opened) -> &File {
        &self.files[place(opened)]
    }

    /// Returns the descriptors.
    pub fn numbers(&self) -> [i32; 3] {
        [0, 1, 2].map(|index: usize| self.files[index].as_raw_fd())
    }
}

/// Returns the place among the registered files.
pub fn place(opened: Opened) -> usize {
    WAYS.iter().position(|way| *way == opened).expect("each way is listed")
}
