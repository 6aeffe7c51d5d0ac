//! Changes of files. Each is kept with the content that it replaced, so that it can be undone.

use super::tree::Node;
use std::collections::BTreeMap;

/// The identity of a file: its device, its inode, and the number of earlier files with that inode.
pub type File = [u64; 3];

/// Counts files by device and inode, since a file system may give the inode of a removed file to a new file.
#[derive(Debug, Clone, Default)]
pub struct Born(BTreeMap<[u64; 2], u64>);

impl Born {
    /// The file that has the inode now.
    pub fn file(&self, device: u64, inode: u64) -> File {
        [device, inode, self.0.get(&[device, inode]).copied().unwrap_or(0)]
    }

    /// Counts a new file with this inode, and returns it.
    pub fn create(&mut self, device: u64, inode: u64) -> File {
        *self.0.entry([device, inode]).or_default() += 1;
        self.file(device, inode)
    }
}

/// A file to which a name led, before the name was removed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Content {
    pub file: File,
    pub node: Node,
}

/// One change, or a sync.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// Bytes were written, or zeroed.
    Write {
        file: File,
        /// First byte.
        offset: u64,
        /// The file's size before the write, in bytes.
        size: u64,
        /// The replaced bytes, up to the end of the file.
        old: Vec<u8>,
        new: Vec<u8>,
        /// Set if the write was durable when the call returned (O_DSYNC, RWF_DSYNC and the like): the number of
        /// changes before it began.
        lasts: Option<usize>,
    },
    /// The file has another size.
    Resize {
        file: File,
        /// Size before, in bytes.
        from: u64,
        /// Size now, in bytes.
        to: u64,
        /// The bytes that were cut off.
        cut: Vec<u8>,
    },
    /// A name was made, for a file, a folder or a link.
    Create {
        file: File,
        /// The whole path.
        path: Vec<u8>,
    },
    /// A name was removed.
    Unlink { path: Vec<u8>, content: Content },
    /// A name was changed.
    Rename {
        from: Vec<u8>,
        to: Vec<u8>,
        /// The file to which `to` led before.
        replaced: Option<Content>,
        /// Both names were exchanged (RENAME_EXCHANGE).
        exchanged: bool,
    },
    /// A sync (fsync(2), fdatasync(2), sync(2), msync(2), or sync_file_range(2) that waits).
    Sync {
        /// The file or folder. `None` for all.
        file: Option<File>,
        /// Number of changes before the sync began. These are durable now.
        begun: usize,
        /// Bytes of the file: first, and one past the last.
        range: [u64; 2],
        /// True if the sync makes only this range's data durable, and no names.
        is_partial: bool,
    },
}
