//! The log of changes that a loss of power may undo (`anyring chaos --crash`).
//!
//! Rings append each change that they make to files in the watched folders, with the content that it replaced. They
//! also append each sync, with the log's length at its start. A reader of the log can tell which changes were durable
//! when the program was killed, and what a disk might hold then.
//!
//! A record consists of 64-bit words and byte strings; each string has its length in front. The first word is the
//! record's length in bytes. All processes of the program append to one file, with one call a record.

use crate::descriptors;
use crate::os::{check, file_status, syscall};
use crate::request::Id;
use crate::Errno;
use std::ffi::CString;
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd};
use std::sync::OnceLock;

/// The most bytes kept of one file. Nothing is kept of a longer content, and its change counts as durable.
const MOST: u64 = 64 << 20;

/// A file: device and inode.
pub type File = [u64; 2];

/// The file that a name led to before the name was removed, with its content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Content {
    /// The file.
    pub file: File,
    /// Its permissions. [`content_of`] does not ask for them, and sets 0o644.
    pub mode: u32,
    /// Its bytes.
    pub bytes: Vec<u8>,
}

/// One change, or a sync.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// Bytes were written, or zeroed.
    Write {
        /// The file.
        file: File,
        /// First byte.
        offset: u64,
        /// The file's size before, in bytes.
        size: u64,
        /// The old content, up to the end of the file.
        old: Vec<u8>,
        /// The new content.
        new: Vec<u8>,
        /// The write was durable when it completed (O_DSYNC, RWF_DSYNC and the like).
        lasts: bool,
    },
    /// The file's size was changed.
    Resize {
        /// The file.
        file: File,
        /// Its size before, in bytes.
        from: u64,
        /// Its size after, in bytes.
        to: u64,
        /// The bytes that were cut off.
        cut: Vec<u8>,
    },
    /// A name was created: of a file, a folder or a link.
    Create {
        /// The file that the name leads to.
        file: File,
        /// The path.
        path: Vec<u8>,
    },
    /// A name was removed.
    Unlink {
        /// The path.
        path: Vec<u8>,
        /// The file that it led to, unless that was a folder.
        content: Option<Content>,
    },
    /// A name was renamed.
    Rename {
        /// The old path.
        from: Vec<u8>,
        /// The new path.
        to: Vec<u8>,
        /// The file that the new path led to before.
        replaced: Option<Content>,
        /// Both paths were exchanged (RENAME_EXCHANGE).
        exchanged: bool,
    },
    /// fsync(2), fdatasync(2), or sync_file_range(2) that waits. Everything that was in the log when it began is
    /// durable.
    Sync {
        /// The file, or folder.
        file: File,
        /// The log's length when the sync began, in bytes.
        log_bytes: u64,
        /// The range: first byte, and the byte after the last.
        range: [u64; 2],
        /// Only the data of this range is durable: names are not written.
        is_partial: bool,
    },
}

/// Encodes a record.
#[derive(Default)]
struct Writer(Vec<u8>);

impl Writer {
    fn word(&mut self, word: u64) {
        self.0.extend_from_slice(&word.to_le_bytes());
    }

    fn words(&mut self, words: &[u64]) {
        words.iter().for_each(|word| self.word(*word));
    }

    fn bytes(&mut self, bytes: &[u8]) {
        self.word(bytes.len() as u64);
        self.0.extend_from_slice(bytes);
    }

    fn content(&mut self, content: Option<&Content>) {
        self.word(content.is_some().into());
        if let Some(Content { file, mode, bytes }) = content {
            self.words(&[file[0], file[1], u64::from(*mode)]);
            self.bytes(bytes);
        }
    }
}

/// Decodes a record.
struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn word(&mut self) -> Option<u64> {
        let (word, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u64::from_le_bytes(*word))
    }

    fn file(&mut self) -> Option<File> {
        Some([self.word()?, self.word()?])
    }

    fn bytes(&mut self) -> Option<Vec<u8>> {
        let count = usize::try_from(self.word()?).ok()?;
        let (bytes, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(bytes.to_vec())
    }

    fn content(&mut self) -> Option<Option<Content>> {
        if self.word()? == 0 {
            return Some(None);
        }
        let (file, mode) = (self.file()?, self.word()? as u32);
        Some(Some(Content { file, mode, bytes: self.bytes()? }))
    }
}

impl Change {
    /// Returns the change as a record.
    fn encode(&self) -> Vec<u8> {
        let mut to = Writer::default();
        to.word(0); // the length, filled in at the end
        match self {
            Change::Write { file, offset, size, old, new, lasts } => {
                to.words(&[0, file[0], file[1], *offset, *size, u64::from(*lasts)]);
                to.bytes(old);
                to.bytes(new);
            }
            Change::Resize { file, from, to: size, cut } => {
                to.words(&[1, file[0], file[1], *from, *size]);
                to.bytes(cut);
            }
            Change::Create { file, path } => {
                to.words(&[2, file[0], file[1]]);
                to.bytes(path);
            }
            Change::Unlink { path, content } => {
                to.word(3);
                to.bytes(path);
                to.content(content.as_ref());
            }
            Change::Rename { from, to: path, replaced, exchanged } => {
                to.words(&[4, u64::from(*exchanged)]);
                to.bytes(from);
                to.bytes(path);
                to.content(replaced.as_ref());
            }
            Change::Sync { file, log_bytes, range, is_partial } => {
                to.words(&[5, file[0], file[1], *log_bytes, range[0], range[1], u64::from(*is_partial)]);
            }
        }
        let length = to.0.len() as u64;
        to.0[..8].copy_from_slice(&length.to_le_bytes());
        to.0
    }

    fn decode(record: &[u8]) -> Option<Change> {
        let mut from = Reader(record);
        Some(match from.word()? {
            0 => {
                let (file, offset, size, lasts) = (from.file()?, from.word()?, from.word()?, from.word()? != 0);
                Change::Write { file, offset, size, old: from.bytes()?, new: from.bytes()?, lasts }
            }
            1 => Change::Resize { file: from.file()?, from: from.word()?, to: from.word()?, cut: from.bytes()? },
            2 => Change::Create { file: from.file()?, path: from.bytes()? },
            3 => Change::Unlink { path: from.bytes()?, content: from.content()? },
            4 => {
                let exchanged = from.word()? != 0;
                Change::Rename { from: from.bytes()?, to: from.bytes()?, replaced: from.content()?, exchanged }
            }
            5 => Change::Sync {
                file: from.file()?,
                log_bytes: from.word()?,
                range: [from.word()?, from.word()?],
                is_partial: from.word()? != 0,
            },
            _ => return None,
        })
    }
}

/// Returns the records of the log, each with the offset of its end in bytes. A record that was written in part is
/// left out.
pub fn parse(log: &[u8]) -> Vec<(u64, Change)> {
    let (mut at, mut records) = (0, Vec::new());
    while let Some(length) = log.get(at..).and_then(|rest| Reader(rest).word()) {
        let end = at.saturating_add(usize::try_from(length).unwrap_or(usize::MAX));
        let Some(change) = log.get(at + 8..end).and_then(Change::decode) else { break };
        records.push((end as u64, change));
        at = end;
    }
    records
}

/// The settings that the environment asks for.
struct Kept {
    log: i32,
    /// Absolute paths without symbolic links.
    folders: Vec<Vec<u8>>,
    /// The length of the log, in bytes, at which the program is killed.
    killed_at: u64,
}

static KEPT: OnceLock<Kept> = OnceLock::new();

/// Starts recording changes in `folders` (absolute paths with colons between them) to the file `log`. Once the log
/// has `killed_at` bytes, the process group is killed.
///
/// # Errors
/// The setting that cannot be used, in words.
pub fn begin(log: &str, folders: &str, killed_at: Option<&str>) -> Result<(), String> {
    let killed_at =
        killed_at.map_or(Ok(u64::MAX), |bytes| bytes.parse().map_err(|_| format!("{bytes} is no number")))?;
    let path = CString::new(log).map_err(|_| "a path has a zero".to_owned())?;
    let flags = libc::O_WRONLY | libc::O_CREAT | libc::O_APPEND | libc::O_CLOEXEC;
    let opened = open_at(libc::AT_FDCWD, &path, flags).and_then(descriptors::to_top);
    let log = opened.map_err(|error| format!("{log}: {error}"))?.into_raw_fd();
    let folders = folders.split(':').filter(|it| !it.is_empty()).map(|it| it.as_bytes().to_vec()).collect();
    let _ = KEPT.set(Kept { log, folders, killed_at });
    Ok(())
}

/// True if changes are recorded.
pub fn is_on() -> bool {
    KEPT.get().is_some()
}

/// Returns the log's length, in bytes.
pub fn log_bytes() -> u64 {
    KEPT.get().map_or(0, |kept| size_of_open(kept.log))
}

/// True if a path, without symbolic links, is in one of the folders.
pub fn is_inside(path: &[u8]) -> bool {
    let in_folder =
        |folder: &Vec<u8>| path.strip_prefix(&folder[..]).is_some_and(|rest| rest.is_empty() || rest[0] == b'/');
    KEPT.get().is_some_and(|kept| kept.folders.iter().any(in_folder)) && !path.ends_with(b" (deleted)")
}

/// Appends a record to the log. Kills the process group if the log has reached its length.
pub fn keep(change: &Change) {
    let Some(kept) = KEPT.get() else { return };
    let record = change.encode();
    syscall(libc::SYS_write, [kept.log as usize, record.as_ptr() as usize, record.len(), 0, 0, 0]);
    if size_of_open(kept.log) >= kept.killed_at {
        syscall(libc::SYS_kill, [0, libc::SIGKILL as usize, 0, 0, 0, 0]);
    }
}

fn open_at(dirfd: i32, path: &std::ffi::CStr, flags: i32) -> Result<OwnedFd, Errno> {
    let fd =
        check(syscall(libc::SYS_openat, [dirfd as usize, path.as_ptr() as usize, flags as usize, 0o644, 0, 0]))?;
    // SAFETY: the call has just created it, and nothing else has the number.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

fn size_of_open(fd: i32) -> u64 {
    file_status(fd).map_or(0, |status| status.size)
}

/// Returns the path of an open file, if it is in one of the folders.
pub fn path_of(fd: i32) -> Option<Vec<u8>> {
    let link = CString::new(format!("/proc/self/fd/{fd}")).ok()?;
    let mut room = vec![0u8; libc::PATH_MAX as usize];
    let args = [link.as_ptr() as usize, room.as_mut_ptr() as usize, room.len(), 0, 0, 0];
    let length = check(syscall(libc::SYS_readlink, args)).ok()?;
    room.truncate(length);
    Some(room).filter(|path| is_inside(path))
}

/// Returns the path that `dirfd` and `path` name, if it is in one of the folders. Its last component need not exist.
pub fn path_at(dirfd: i32, path: &std::ffi::CStr) -> Option<Vec<u8>> {
    let bytes = path.to_bytes();
    let (parent, name) = match bytes.iter().rposition(|byte| *byte == b'/') {
        Some(0) => (&b"/"[..], &bytes[1..]),
        Some(end) => (&bytes[..end], &bytes[end + 1..]),
        None => (&b"."[..], bytes),
    };
    let parent = CString::new(parent).ok()?;
    let folder = open_at(dirfd, &parent, libc::O_PATH | libc::O_DIRECTORY | libc::O_CLOEXEC).ok()?;
    let mut path = path_of(folder.as_raw_fd())?;
    descriptors::close_quietly(folder);
    path.push(b'/');
    path.extend_from_slice(name);
    Some(path)
}

/// Opens a regular file for reading, by path, and returns its size in bytes too.
fn readable(path: &[u8], nofollow: bool) -> Option<(OwnedFd, u64)> {
    let path = CString::new(path).ok()?;
    let follow = if nofollow { libc::O_NOFOLLOW } else { 0 };
    let file = open_at(libc::AT_FDCWD, &path, libc::O_RDONLY | libc::O_NONBLOCK | libc::O_CLOEXEC | follow).ok()?;
    let size = file_status(file.as_raw_fd()).ok().filter(|status| status.kind == libc::S_IFREG)?.size;
    Some((file, size))
}

/// Reads `count` bytes of an open file from `offset` on, or up to its end. `None` if they are too many, or it is no
/// regular file.
pub fn bytes_of(fd: i32, offset: u64, count: u64) -> Option<Vec<u8>> {
    let (file, size) = readable(format!("/proc/self/fd/{fd}").as_bytes(), false)?;
    let bytes = read(&file, offset, count.min(size.saturating_sub(offset)));
    descriptors::close_quietly(file);
    bytes
}

fn read(file: &OwnedFd, offset: u64, count: u64) -> Option<Vec<u8>> {
    let mut bytes = vec![0u8; usize::try_from(count).ok().filter(|_| count <= MOST)?];
    let mut done = 0;
    while done < bytes.len() {
        let (at, left) = (bytes[done..].as_mut_ptr() as usize, bytes.len() - done);
        let args = [file.as_raw_fd() as usize, at, left, offset as usize + done, 0, 0];
        match check(syscall(libc::SYS_pread64, args)) {
            Ok(0) => break,
            Ok(count) => done += count,
            Err(Errno::INTR) => {}
            Err(_) => return None,
        }
    }
    bytes.truncate(done);
    Some(bytes)
}

/// Returns the content of the file at a path. `None` if it is no regular file.
pub fn content_of(path: &[u8]) -> Option<Content> {
    let (file, size) = readable(path, true)?;
    let status = file_status(file.as_raw_fd()).ok()?;
    let content =
        read(&file, 0, size).map(|bytes| Content { file: [status.device, status.inode], mode: 0o644, bytes });
    descriptors::close_quietly(file);
    content
}

/// Returns device and inode of the file at a path; a symbolic link is not followed.
pub fn file_at(path: &[u8]) -> Option<File> {
    let path = CString::new(path).ok()?;
    let file = open_at(libc::AT_FDCWD, &path, libc::O_PATH | libc::O_NOFOLLOW | libc::O_CLOEXEC).ok()?;
    let status = file_status(file.as_raw_fd()).ok();
    descriptors::close_quietly(file);
    status.map(|status| [status.device, status.inode])
}

/// True if the name exists.
pub fn exists(path: &[u8]) -> bool {
    file_at(path).is_some()
}

/// The facts about a request's change that are known before it is made.
#[derive(Debug)]
pub struct Begun {
    /// The request.
    pub id: Id,
    /// The change as it will be, except for the result of the call.
    pub change: Change,
    /// The descriptor that it works on; -1 if it works on names.
    pub fd: i32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_is_read_as_it_was() {
        let content = Some(Content { file: [1, 2], mode: 0o600, bytes: b"old".to_vec() });
        let (from, to) = (b"/f/a".to_vec(), b"/f/b".to_vec());
        let changes = [
            Change::Write { file: [1, 2], offset: 3, size: 5, old: vec![4, 5], new: vec![6; 9], lasts: true },
            Change::Resize { file: [1, 2], from: 9, to: 3, cut: vec![1; 6] },
            Change::Create { file: [1, 3], path: from.clone() },
            Change::Unlink { path: from.clone(), content: None },
            Change::Unlink { path: to.clone(), content: content.clone() },
            Change::Rename { from, to, replaced: content, exchanged: false },
            Change::Sync { file: [1, 2], log_bytes: 77, range: [0, u64::MAX], is_partial: false },
        ];
        let mut log = Vec::new();
        let mut ends = Vec::new();
        for change in &changes {
            log.extend(change.encode());
            ends.push(log.len() as u64);
        }
        let read = parse(&log);
        assert_eq!(read.iter().map(|(end, _)| *end).collect::<Vec<_>>(), ends);
        assert!(read.iter().map(|(_, change)| change).eq(changes.iter()));
        assert_eq!(parse(&log[..log.len() - 1]).len(), changes.len() - 1, "a record in part is none");
        assert_eq!(parse(&[9; 40]).len(), 0);
    }
}
