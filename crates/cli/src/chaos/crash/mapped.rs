//! Files that a program has mapped for writing (mmap(2) with MAP_SHARED).
//!
//! Stores to memory are not system calls, so the tracer does not see them. It keeps a copy of each mapped file,
//! with the content that results from the recorded changes. At each sync, and at the end, it compares the file with
//! the copy. A page that differs was stored to, and counts as written at that moment.

use super::change::{Change, File};
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt};

/// Number of bytes that the page cache writes back as a unit.
const PAGE: usize = 4096;

/// A mapping, which is recorded to find the file of an msync(2).
struct Mapping {
    process: i32,
    address: usize,
    bytes: usize,
    file: File,
    offset: u64,
}

/// A mapped file, with the content that results from the recorded changes.
struct Shadow {
    open: fs::File,
    bytes: Vec<u8>,
}

/// The files that are mapped, or were mapped.
#[derive(Default)]
pub struct Mapped {
    mappings: Vec<Mapping>,
    shadows: BTreeMap<File, Shadow>,
}

impl Mapped {
    /// Records that a process has mapped `bytes` bytes of the file from `offset` on. `open` is the file, opened by this
    /// process.
    pub fn add(&mut self, process: i32, address: usize, bytes: usize, (file, open): (File, fs::File), offset: u64) {
        self.mappings.push(Mapping { process, address, bytes, file, offset });
        if let Some(bytes) = content(&open).filter(|_| !self.shadows.contains_key(&file)) {
            self.shadows.insert(file, Shadow { open, bytes });
        }
    }

    /// Records that a process has executed another program. Its mappings are gone, but its stores stay.
    pub fn forget_process(&mut self, process: i32) {
        self.mappings.retain(|mapping| mapping.process != process);
    }

    /// Returns the file that `bytes` bytes of memory map, and the range of the file's bytes: the first, and one past
    /// the last.
    pub fn find(&self, process: i32, address: usize, bytes: usize) -> Option<(File, [u64; 2])> {
        let is_in = |it: &&Mapping| it.process == process && (it.address..it.address + it.bytes).contains(&address);
        let mapping = self.mappings.iter().rev().find(is_in)?;
        let first = mapping.offset + (address - mapping.address) as u64;
        Some((mapping.file, [first, first.saturating_add(bytes as u64)]))
    }

    /// Applies a recorded change to the copy of the file.
    pub fn apply(&mut self, change: &Change) {
        match change {
            Change::Write { file, offset, new, .. } => {
                let Some(shadow) = self.shadows.get_mut(file) else { return };
                let (offset, end) = (*offset as usize, *offset as usize + new.len());
                let size = shadow.bytes.len().max(end);
                shadow.bytes.resize(size, 0);
                shadow.bytes[offset..end].copy_from_slice(new);
            }
            Change::Resize { file, to, .. } => {
                if let Some(shadow) = self.shadows.get_mut(file) {
                    shadow.bytes.resize(*to as usize, 0);
                }
            }
            _ => {}
        }
    }

    /// Returns the stores to `file`, or to all files, that were not recorded yet, as a write for each page.
    pub fn stores(&self, file: Option<File>) -> Vec<Change> {
        let mut stores = Vec::new();
        for (of, shadow) in self.shadows.iter().filter(|(of, _)| file.is_none_or(|file| file == **of)) {
            let Some(now) = content(&shadow.open) else { continue };
            let pages = shadow.bytes.chunks(PAGE).zip(now.chunks(PAGE)).enumerate();
            stores.extend(
                pages
                    .filter(|(_, (old, new))| old[..old.len().min(new.len())] != new[..old.len().min(new.len())])
                    .map(|(page, (old, new))| {
                        let bytes = old.len().min(new.len());
                        Change::Write {
                            file: *of,
                            offset: (page * PAGE) as u64,
                            size: shadow.bytes.len() as u64,
                            old: old[..bytes].to_vec(),
                            new: new[..bytes].to_vec(),
                            lasts: None,
                        }
                    }),
            );
        }
        stores
    }
}

/// The content of an open file. `None` if it is too large to be kept.
fn content(file: &fs::File) -> Option<Vec<u8>> {
    let size = file.metadata().ok().filter(|about| about.is_file() && about.size() <= super::MOST)?.size();
    let mut bytes = vec![0; size as usize];
    file.read_exact_at(&mut bytes, 0).ok()?;
    Some(bytes)
}
