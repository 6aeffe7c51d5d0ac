//! The system calls that change files. The content that a call replaces is read before the call is made. The change is
//! recorded before the call returns.

use super::change::{Change, Content, File};
use super::tracer::Recording;
use super::tree::Node;
use crate::arch;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// A call that was begun.
pub enum Begun {
    /// The change that the call will make, and its descriptor. The call's result still decides some parts of the
    /// change.
    Change(Change, i32),
    /// A name that did not exist.
    Name {
        path: Vec<u8>,
        /// True if it leads to a file that exists (link(2)).
        is_link: bool,
    },
    /// A file without a name (O_TMPFILE).
    Nameless,
    /// A file is mapped for writing: the descriptor, the length in bytes, and the offset.
    Map(i32, usize, u64),
    /// A call that sets up the kernel's AIO. Its requests would complete without a system call and so remain
    /// unnoticed.
    Refused,
}

impl Begun {
    /// True if the kernel must not make the call.
    pub fn is_refused(&self) -> bool {
        matches!(self, Begun::Refused)
    }
}

/// Returns the file that a call writes, if the call waits for nothing but that file.
pub fn written(number: i64, begun: &Begun) -> Option<File> {
    let is_plain = matches!(
        number,
        libc::SYS_write | libc::SYS_writev | libc::SYS_pwrite64 | libc::SYS_pwritev | libc::SYS_pwritev2
    );
    match begun {
        Begun::Change(Change::Write { file, .. }, _) if is_plain => Some(*file),
        _ => None,
    }
}

/// One of the program's threads.
#[derive(Clone, Copy)]
struct Thread(i32);

impl Thread {
    /// The thread's process.
    fn process(self) -> i32 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.0)).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("Tgid:"));
        line.and_then(|number| number.trim().parse().ok()).unwrap_or(self.0)
    }

    fn link(self, fd: i32) -> PathBuf {
        format!("/proc/{}/fd/{fd}", self.0).into()
    }

    /// Returns the path of an open file, if the file is in the folders. A file that has lost its name counts under its
    /// last path.
    fn path_of(self, fd: i32, recording: &Recording) -> Option<Vec<u8>> {
        let path = fs::read_link(self.link(fd)).ok()?.into_os_string().into_vec();
        Some(path).filter(|path| recording.is_inside(path))
    }

    /// Returns the position of a descriptor, and the flags with which it was opened.
    fn position_and_flags(self, fd: i32) -> Option<(u64, i32)> {
        let about = fs::read_to_string(format!("/proc/{}/fdinfo/{fd}", self.0)).ok()?;
        let field = |name: &str, radix| {
            let line = about.lines().find_map(|line| line.strip_prefix(name))?;
            u64::from_str_radix(line.trim(), radix).ok()
        };
        Some((field("pos:", 10)?, field("flags:", 8)? as i32))
    }

    /// Returns the bytes of the thread's memory at `address`, as many as can be read.
    fn memory(self, address: usize, bytes: usize) -> Vec<u8> {
        let mut read = vec![0_u8; bytes];
        let ours = libc::iovec { iov_base: read.as_mut_ptr().cast(), iov_len: bytes };
        let theirs = libc::iovec { iov_base: address as *mut _, iov_len: bytes };
        // SAFETY: our part is a vector of so many bytes; the kernel checks theirs.
        let count = unsafe { libc::process_vm_readv(self.0, &ours, 1, &theirs, 1, 0) };
        read.truncate(count.max(0) as usize);
        read
    }

    fn word(self, address: usize) -> Option<u64> {
        self.memory(address, 8).first_chunk().map(|word| u64::from_le_bytes(*word))
    }

    /// Returns the string at `address`. Memory after the string's page need not be readable.
    fn string(self, address: usize) -> Option<Vec<u8>> {
        const PAGE: usize = 4096;
        let mut string = Vec::new();
        while string.len() < libc::PATH_MAX as usize {
            let at = address + string.len();
            let part = self.memory(at, PAGE - at % PAGE);
            if let Some(end) = part.iter().position(|byte| *byte == 0) {
                string.extend_from_slice(&part[..end]);
                return Some(string);
            }
            if part.is_empty() {
                return None;
            }
            string.extend(part);
        }
        None
    }

    /// Returns the sum of the lengths of `count` buffers (iovec) at `address`.
    fn bytes_of_vector(self, address: usize, count: usize) -> u64 {
        let vector = self.memory(address, count.min(libc::UIO_MAXIOV as usize) * 16);
        vector.chunks_exact(16).filter_map(|it| it[8..].first_chunk()).map(|bytes| u64::from_le_bytes(*bytes)).sum()
    }

    /// Returns the whole path that a call with `dirfd` and the string at `address` means, if it is in the folders. The
    /// path's last component need not exist. With `follows`, a link there is followed.
    fn path_at(self, dirfd: i32, address: usize, follows: bool, recording: &Recording) -> Option<Vec<u8>> {
        let path = self.string(address)?;
        let begin = match dirfd {
            libc::AT_FDCWD => format!("/proc/{}/cwd", self.0).into(),
            fd => self.link(fd),
        };
        let path = match path.first()? {
            b'/' => PathBuf::from(OsStr::from_bytes(&path)),
            _ => begin.join(OsStr::from_bytes(&path)),
        };
        let (folder, name) = (path.parent()?, path.file_name()?);
        let whole = folder.canonicalize().ok()?.join(name);
        let whole = whole.canonicalize().ok().filter(|_| follows).unwrap_or(whole);
        Some(whole.into_os_string().into_vec()).filter(|path| recording.is_inside(path))
    }
}

/// The regular file that a path leads to, opened here.
fn open(path: &Path, follows: bool) -> Option<fs::File> {
    let flags = libc::O_NONBLOCK | if follows { 0 } else { libc::O_NOFOLLOW };
    let file = fs::File::options().read(true).custom_flags(flags).open(path).ok()?;
    file.metadata().ok().filter(fs::Metadata::is_file).map(|_| file)
}

/// Returns `count` bytes from `offset` on, or up to the end of the file. `None` if they are too many to be kept.
fn read(file: &fs::File, offset: u64, count: u64) -> Option<Vec<u8>> {
    let size = file.metadata().ok()?.size();
    let count = count.min(size.saturating_sub(offset));
    let mut bytes = vec![0; usize::try_from(count).ok().filter(|_| count <= super::MOST)?];
    file.read_exact_at(&mut bytes, offset).ok()?;
    Some(bytes)
}

/// Returns the file to which a path leads, with its contents.
fn content_of(path: &[u8], recording: &Recording) -> Option<Content> {
    let path = Path::new(OsStr::from_bytes(path));
    let about = fs::symlink_metadata(path).ok()?;
    let node = Node::read(path, &about, super::MOST).ok()??;
    Some(Content { file: recording.born.file(about.dev(), about.ino()), node })
}

fn exists(path: &[u8]) -> bool {
    fs::symlink_metadata(OsStr::from_bytes(path)).is_ok()
}

/// Called when a thread begins a call. Returns `None` if the call changes nothing in the folders.
pub fn begin(recording: &mut Recording, thread: i32, number: i64, args: [usize; 6]) -> Option<Begun> {
    let thread = Thread(thread);
    let (number, args) = arch::replaced(number, args);
    let [a, b, c, d, e, f] = args;
    let fd = a as i32;
    let cwd = libc::AT_FDCWD;
    let offset = |word: usize| word as u64;
    match number {
        libc::SYS_write => write(recording, thread, fd, None, c as u64, 0),
        libc::SYS_writev => write(recording, thread, fd, None, thread.bytes_of_vector(b, c), 0),
        libc::SYS_pwrite64 => write(recording, thread, fd, Some(offset(d)), c as u64, 0),
        libc::SYS_pwritev => write(recording, thread, fd, Some(offset(d)), thread.bytes_of_vector(b, c), 0),
        libc::SYS_pwritev2 => {
            let at = Some(offset(d)).filter(|at| *at != u64::MAX);
            write(recording, thread, fd, at, thread.bytes_of_vector(b, c), f as i32)
        }
        libc::SYS_sendfile => write(recording, thread, fd, None, d as u64, 0),
        libc::SYS_copy_file_range | libc::SYS_splice => {
            let at = if d == 0 { None } else { thread.word(d) };
            write(recording, thread, c as i32, at, e as u64, 0)
        }
        libc::SYS_ftruncate => resize(recording, thread, fd, &thread.link(fd), b as u64),
        libc::SYS_truncate => {
            let path = thread.path_at(cwd, a, true, recording)?;
            resize(recording, thread, -1, Path::new(OsStr::from_bytes(&path)), b as u64)
        }
        libc::SYS_fallocate => fallocate(recording, thread, fd, b as i32, [c as u64, d as u64]),
        libc::SYS_fsync | libc::SYS_fdatasync => {
            let file = open_file(recording, thread, fd)?.0;
            sync(recording, Some(file), [0, u64::MAX], false)
        }
        libc::SYS_sync | libc::SYS_syncfs => sync(recording, None, [0, u64::MAX], false),
        libc::SYS_sync_file_range => {
            let waits = (libc::SYNC_FILE_RANGE_WRITE | libc::SYNC_FILE_RANGE_WAIT_AFTER) as usize;
            let file = open_file(recording, thread, fd).filter(|_| d & waits == waits)?.0;
            let end = if c == 0 { u64::MAX } else { (b as u64).saturating_add(c as u64) };
            sync(recording, Some(file), [b as u64, end], true)
        }
        libc::SYS_msync if c as i32 & libc::MS_SYNC != 0 => {
            let (file, range) = recording.mapped.find(thread.process(), a, b)?;
            sync(recording, Some(file), range, false) // as fdatasync(2) (`vfs_fsync_range` in mm/msync.c)
        }
        libc::SYS_mmap => {
            let is_shared = d as i32 & libc::MAP_SHARED != 0 && d as i32 & libc::MAP_ANONYMOUS == 0;
            thread.path_of(e as i32, recording).filter(|_| is_shared)?;
            // Only what may be written is stored to, perhaps once mprotect(2) has changed the mapping.
            let (_, flags) = thread.position_and_flags(e as i32)?;
            if flags & libc::O_ACCMODE == libc::O_RDONLY {
                return None;
            }
            Some(Begun::Map(e as i32, b, f as u64))
        }
        libc::SYS_io_setup => Some(Begun::Refused),
        _ => of_names(recording, thread, number, args),
    }
}

/// Calls on names.
fn of_names(recording: &Recording, thread: Thread, number: i64, [a, b, c, d, e, _]: [usize; 6]) -> Option<Begun> {
    let new = |dirfd: i32, address, is_link| {
        let path = thread.path_at(dirfd, address, false, recording).filter(|path| !exists(path))?;
        Some(Begun::Name { path, is_link })
    };
    let removed = |dirfd: i32, address| {
        let path = thread.path_at(dirfd, address, false, recording)?;
        let content = content_of(&path, recording)?;
        Some(Begun::Change(Change::Unlink { path, content }, -1))
    };
    let renamed = |[olddirfd, old, newdirfd, new]: [usize; 4], flags: u32| {
        let path = |dirfd: usize, address| thread.path_at(dirfd as i32, address, false, recording);
        let (from, to) = (path(olddirfd, old), path(newdirfd, new));
        let exchanged = flags & libc::RENAME_EXCHANGE != 0;
        let (from, to) = (from?, to?);
        let replaced = if exchanged { None } else { content_of(&to, recording) };
        Some(Begun::Change(Change::Rename { from, to, replaced, exchanged }, -1))
    };
    match number {
        libc::SYS_openat => opened(recording, thread, a as i32, b, c as i32),
        libc::SYS_openat2 => opened(recording, thread, a as i32, b, thread.word(c)? as i32),
        libc::SYS_mkdirat | libc::SYS_mknodat => new(a as i32, b, false),
        libc::SYS_symlinkat => new(b as i32, c, false),
        libc::SYS_linkat => new(c as i32, d, true),
        libc::SYS_unlinkat => removed(a as i32, b),
        libc::SYS_renameat => renamed([a, b, c, d], 0),
        libc::SYS_renameat2 => renamed([a, b, c, d], e as u32),
        _ => None,
    }
}

/// Handles the opening of a file, which may create or empty the file.
fn opened(recording: &Recording, thread: Thread, dirfd: i32, address: usize, flags: i32) -> Option<Begun> {
    let is = |flag: i32| flags & flag == flag;
    if is(libc::O_TMPFILE) {
        return Some(Begun::Nameless);
    }
    if !is(libc::O_CREAT) && !is(libc::O_TRUNC) {
        return None;
    }
    let path = thread.path_at(dirfd, address, !is(libc::O_NOFOLLOW) && !is(libc::O_EXCL), recording)?;
    if !exists(&path) {
        return is(libc::O_CREAT).then_some(Begun::Name { path, is_link: false });
    }
    let Content { file, node: Node::Regular { bytes, .. } } = content_of(&path, recording)? else { return None };
    let is_emptied = is(libc::O_TRUNC) && !bytes.is_empty();
    let from = bytes.len() as u64;
    is_emptied.then_some(Begun::Change(Change::Resize { file, from, to: 0, cut: bytes }, -1))
}

/// Opens the file of a descriptor in this process, if it is in the folders. Also returns its size in bytes.
fn open_file(recording: &Recording, thread: Thread, fd: i32) -> Option<(File, u64)> {
    thread.path_of(fd, recording)?;
    let about = fs::metadata(thread.link(fd)).ok()?;
    Some((recording.born.file(about.dev(), about.ino()), about.size()))
}

/// Handles a write of bytes at `at`, or at the descriptor's position.
fn write(recording: &Recording, thread: Thread, fd: i32, at: Option<u64>, count: u64, flags: i32) -> Option<Begun> {
    let (file, size) = open_file(recording, thread, fd)?;
    let (position, opened_with) = thread.position_and_flags(fd)?;
    let appends = opened_with & libc::O_APPEND != 0 || flags & libc::RWF_APPEND != 0;
    let offset = if appends { size } else { at.unwrap_or(position) };
    // O_SYNC has the bit of O_DSYNC.
    let is_lasting = opened_with & libc::O_DSYNC != 0 || flags & (libc::RWF_DSYNC | libc::RWF_SYNC) != 0;
    let lasts = is_lasting.then_some(recording.changes.len());
    let old = read(&open(&thread.link(fd), true)?, offset, count)?;
    Some(Begun::Change(Change::Write { file, offset, size, old, new: vec![], lasts }, fd))
}

/// Handles a change of a file's size, by a path that leads to the file.
fn resize(recording: &Recording, thread: Thread, fd: i32, path: &Path, to: u64) -> Option<Begun> {
    if fd != -1 {
        thread.path_of(fd, recording)?;
    }
    let open = open(path, true)?;
    let about = open.metadata().ok()?;
    let from = about.size();
    let cut = read(&open, to, from.saturating_sub(to))?;
    let file = recording.born.file(about.dev(), about.ino());
    (from != to).then_some(Begun::Change(Change::Resize { file, from, to, cut }, fd))
}

fn fallocate(
    recording: &Recording,
    thread: Thread,
    fd: i32,
    mode: i32,
    [offset, bytes]: [u64; 2],
) -> Option<Begun> {
    let (file, size) = open_file(recording, thread, fd)?;
    if mode == 0 {
        return resize(recording, thread, fd, &thread.link(fd), size.max(offset.saturating_add(bytes)));
    }
    if mode & (libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_ZERO_RANGE) == 0 {
        return None;
    }
    let old = read(&open(&thread.link(fd), true)?, offset, bytes)?;
    Some(Begun::Change(Change::Write { file, offset, size, old, new: vec![], lasts: None }, fd))
}

/// Handles the begin of a sync. Stores to mapped memory up to this moment are recorded as writes.
fn sync(recording: &mut Recording, file: Option<File>, range: [u64; 2], is_partial: bool) -> Option<Begun> {
    for store in recording.mapped.stores(file) {
        recording.add(store);
    }
    let begun = recording.changes.len();
    Some(Begun::Change(Change::Sync { file, begun, range, is_partial }, -1))
}

/// Called when a call returns.
pub fn end(recording: &mut Recording, thread: i32, begun: Begun, result: i64) {
    if result < 0 {
        return;
    }
    let thread = Thread(thread);
    let change = match begun {
        Begun::Change(change, fd) => of_result(change, thread, fd, result),
        Begun::Name { path, is_link } => fs::symlink_metadata(OsStr::from_bytes(&path)).ok().map(|about| {
            let file = match is_link {
                true => recording.born.file(about.dev(), about.ino()),
                false => recording.born.create(about.dev(), about.ino()),
            };
            Change::Create { file, path }
        }),
        Begun::Nameless => {
            let about = fs::metadata(thread.link(result as i32));
            _ = about.map(|about| recording.born.create(about.dev(), about.ino()));
            None
        }
        Begun::Map(fd, bytes, offset) => {
            let open = fs::File::open(thread.link(fd)).ok();
            let open = open.and_then(|open| Some((open.metadata().ok()?, open)));
            if let Some((about, open)) = open {
                let file = recording.born.file(about.dev(), about.ino());
                recording.mapped.add(thread.process(), result as usize, bytes, (file, open), offset);
            }
            None
        }
        Begun::Refused => None,
    };
    change.into_iter().for_each(|change| recording.add(change));
}

/// Returns the change that a call with this result has made.
fn of_result(change: Change, thread: Thread, fd: i32, result: i64) -> Option<Change> {
    match change {
        Change::Write { file, offset, size, mut old, lasts, .. } => {
            // fallocate(2) answers 0, and has changed all that it named.
            let count = if result == 0 { old.len() as u64 } else { result as u64 };
            old.truncate(count as usize);
            let new = read(&open(&thread.link(fd), true)?, offset, count)?;
            Some(Change::Write { file, offset, size, old, new, lasts })
        }
        change => Some(change),
    }
}
