//! Records the changes that requests make to files, for a loss of power (`chaos::crash`). The old content is read
//! before a request is made, and the new content before its CQE is posted. The file system is called under the ring's
//! lock, which a program under test can bear.

use crate::chaos::crash::{self, Begun, Change, File};
use crate::op::fs::Fs;
use crate::op::sync::Sync;
use crate::op::Op;
use crate::os::{check, file_status, syscall};
use crate::request::Id;
use crate::ring::RingGuard;

/// Notes the change that a request is about to make.
#[cold]
pub(super) fn begin(guard: &mut RingGuard, id: Id) {
    let Some(request) = guard.slab.get(id).filter(|_| crash::is_on()) else { return };
    let fd = guard.number_of(&request.target).unwrap_or(-1);
    let change = match &request.op {
        Op::Rw(rw) => rw.writes_at().and_then(|how| write(fd, how, rw.total())),
        Op::Sync(sync) => of_sync(fd, sync),
        Op::Fs(fs) => of_names(fs),
        _ => None,
    };
    let (Some(change), Some(chaos)) = (change, &mut guard.chaos) else { return };
    chaos.begun.retain(|begun| begun.id != id);
    chaos.begun.push(Begun { id, change, fd });
}

/// Records the change of a request that ends with this result.
#[cold]
pub(super) fn end(guard: &mut RingGuard, id: Id, result: i32) {
    let Some(chaos) = &mut guard.chaos else { return };
    let Some(place) = chaos.begun.iter().position(|begun| begun.id == id) else { return };
    let Begun { change, fd, .. } = chaos.begun.swap_remove(place);
    if let Some(change) = of_result(change, fd, result).filter(|_| result >= 0) {
        crash::keep(&change);
    }
}

/// Returns the open file, if it is in a recorded folder, and its size in bytes.
fn open_file(fd: i32) -> Option<(File, u64)> {
    crash::path_of(fd)?;
    file_status(fd).ok().map(|status| ([status.device, status.inode], status.size))
}

fn write(fd: i32, (offset, lasts, appends): (u64, bool, bool), bytes: u64) -> Option<Change> {
    let (file, size) = open_file(fd)?;
    let flags = check(syscall(libc::SYS_fcntl, [fd as usize, libc::F_GETFL as usize, 0, 0, 0, 0])).ok()? as i32;
    let position = || check(syscall(libc::SYS_lseek, [fd as usize, 0, libc::SEEK_CUR as usize, 0, 0, 0]));
    let offset = match offset {
        _ if appends || flags & libc::O_APPEND != 0 => size,
        u64::MAX => position().ok()? as u64,
        offset => offset,
    };
    let lasts = lasts || flags & libc::O_DSYNC != 0; // which O_SYNC contains
    Some(Change::Write { file, offset, size, old: crash::bytes_of(fd, offset, bytes)?, new: vec![], lasts })
}

fn of_sync(fd: i32, sync: &Sync) -> Option<Change> {
    let (file, size) = open_file(fd)?;
    let end_of = |offset: u64, bytes: u64| if bytes == 0 { u64::MAX } else { offset.saturating_add(bytes) };
    let log_bytes = crash::log_bytes();
    match *sync {
        Sync::Fsync { .. } => Some(Change::Sync { file, log_bytes, range: [0, u64::MAX], is_partial: false }),
        Sync::Range { offset, bytes, flags } => {
            let waits = libc::SYNC_FILE_RANGE_WRITE | libc::SYNC_FILE_RANGE_WAIT_AFTER;
            let range = [offset, end_of(offset, bytes.into())];
            (flags & waits == waits).then_some(Change::Sync { file, log_bytes, range, is_partial: true })
        }
        Sync::Truncate { bytes } => resize(fd, file, size, bytes),
        Sync::Fallocate { offset, bytes, mode: 0 } => {
            resize(fd, file, size, size.max(offset.saturating_add(bytes)))
        }
        Sync::Fallocate { offset, bytes, mode } => {
            let zeroes = (libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_ZERO_RANGE) as u32;
            let old = crash::bytes_of(fd, offset, bytes).filter(|_| mode & zeroes != 0)?;
            Some(Change::Write { file, offset, size, old, new: vec![], lasts: false })
        }
        Sync::Fadvise { .. } | Sync::Madvise { .. } => None,
    }
}

fn resize(fd: i32, file: File, from: u64, to: u64) -> Option<Change> {
    let cut = crash::bytes_of(fd, to, from.saturating_sub(to))?;
    (from != to).then_some(Change::Resize { file, from, to, cut })
}

fn of_names(fs: &Fs) -> Option<Change> {
    let new_name = |dirfd, path| {
        let path = crash::path_at(dirfd, path).filter(|path| !crash::exists(path))?;
        Some(Change::Create { file: [0; 2], path })
    };
    match fs {
        Fs::Open(open) => {
            let (dirfd, name, creates, empties) = open.names();
            let path = crash::path_at(dirfd, name).filter(|_| creates || empties)?;
            match crash::content_of(&path) {
                Some(content) if empties && !content.bytes.is_empty() => {
                    let from = content.bytes.len() as u64;
                    Some(Change::Resize { file: content.file, from, to: 0, cut: content.bytes })
                }
                _ if creates => new_name(dirfd, name),
                _ => None,
            }
        }
        Fs::Mkdir { dirfd, path, .. } => new_name(*dirfd, path.as_c_str()),
        Fs::Symlink { newdirfd, linkpath, .. } => new_name(*newdirfd, linkpath.as_c_str()),
        Fs::Link { newdirfd, newpath, .. } => new_name(*newdirfd, newpath.as_c_str()),
        Fs::Unlink { dirfd, path, flags } => {
            let path = crash::path_at(*dirfd, path.as_c_str())?;
            let content = crash::content_of(&path);
            let is_folder = flags & libc::AT_REMOVEDIR as u32 != 0;
            (is_folder || content.is_some()).then_some(Change::Unlink { path, content })
        }
        Fs::Rename { olddirfd, oldpath, newdirfd, newpath, flags } => {
            let from = crash::path_at(*olddirfd, oldpath.as_c_str())?;
            let to = crash::path_at(*newdirfd, newpath.as_c_str())?;
            let exchanged = flags & libc::RENAME_EXCHANGE != 0;
            let replaced = if exchanged { None } else { crash::content_of(&to) };
            Some(Change::Rename { from, to, replaced, exchanged })
        }
        Fs::Close { .. } | Fs::Statx { .. } => None,
    }
}

/// Completes a change that was begun on `fd`, from the request's result.
fn of_result(change: Change, fd: i32, result: i32) -> Option<Change> {
    match change {
        Change::Write { file, offset, size, mut old, lasts, .. } => {
            // A fallocate(2) returns 0, and its whole range has changed.
            let count = if result == 0 { old.len() as u64 } else { result as u64 };
            old.truncate(count as usize);
            let new = crash::bytes_of(fd, offset, count)?;
            Some(Change::Write { file, offset, size, old, new, lasts })
        }
        Change::Create { path, .. } => Some(Change::Create { file: crash::file_at(&path)?, path }),
        change => Some(change),
    }
}
