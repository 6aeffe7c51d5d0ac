//! Status of open files, for decisions that are made under locks.

use super::{ask_in_child, check, is_filtered, standard, syscall, Os, Sys};
use crate::mutation::{mutated, Mutation};
use crate::os::calls;
use crate::Errno;
use core::ffi::CStr;
use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicBool, AtomicU64, AtomicU8, Ordering::Relaxed};

/// Facts about an open file that the kernel knows without asking a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileStatus {
    /// `S_IF*` bits. 0 for an anonymous inode.
    pub kind: u32,
    /// `st_dev`.
    pub device: u64,
    /// `st_ino`.
    pub inode: u64,
    /// `st_rdev`.
    pub special: u64,
    /// `st_size`. For a file on a server, the last known size.
    pub size: u64,
    /// True if everyone may read the file (`S_IROTH`).
    is_for_all: bool,
    /// True if the file's file system needs no server: it is on a block device, or supports flags that servers do not
    /// have.
    is_local: bool,
}

impl FileStatus {
    /// True for a regular file or a block device.
    pub fn has_blocks(&self) -> bool {
        matches!(self.kind, libc::S_IFREG | libc::S_IFBLK)
    }

    /// True for a regular file that may be on a server.
    pub fn is_remote(&self) -> bool {
        self.kind == libc::S_IFREG && !self.is_local
    }

    /// True if the data of the regular file `fd` is in memory, so that a read waits for no device and no server. That
    /// is so on tmpfs, on ramfs and in /proc. A file of /proc that not everyone may read can report events, and its
    /// reads then wait for one.
    pub fn is_in_memory(&self, fd: i32) -> bool {
        /// The device of another file system, which was asked last. Relaxed: with any value the answer is right.
        static OTHER: AtomicU64 = AtomicU64::new(0);
        const TMPFS: i64 = 0x0102_1994;
        const RAMFS: i64 = 0x8584_58f6;
        let has_device = rustix::fs::major(self.device) != 0;
        if self.kind != libc::S_IFREG || has_device || self.device == OTHER.load(Relaxed) {
            return false;
        }
        if self.device == device_of_proc() {
            return self.is_for_all;
        }
        let is_memory = matches!(self.file_system(fd), Some(TMPFS | RAMFS));
        if !is_memory {
            OTHER.store(self.device, Relaxed);
        }
        is_memory
    }

    /// Returns the file system of `fd`, whose status `self` is, as the magic number of statfs(2). `None` if that
    /// would have to ask a server.
    #[expect(clippy::disallowed_methods, reason = "it is local")]
    pub fn file_system(&self, fd: i32) -> Option<i64> {
        if !self.is_local {
            return None;
        }
        // SAFETY: the number is only borrowed for the call, which fails with EBADF if the number is not open. It was
        // open just now.
        calls::fstatfs(unsafe { rustix::fd::BorrowedFd::borrow_raw(fd) }).ok().map(|about| about.f_type)
    }
}

/// Set once statx(2) was refused. Linux before 4.11 lacks it, and some filters refuse it.
static NO_STATX: AtomicBool = AtomicBool::new(false);

/// Returns what fstat(2) does, without waiting for a server. On network file systems and FUSE, fstat(2) asks a
/// server. The server may be gone, while the caller holds the lock of a ring or the pool.
pub fn file_status(fd: i32) -> Result<FileStatus, Errno> {
    if fd < 0 {
        return Err(Errno::BADF); // for statx(2), AT_FDCWD names a directory
    }
    if !NO_STATX.load(Relaxed) && !mutated(Mutation::ServersAreAsked) {
        match by_statx(fd) {
            Err(Errno::NOSYS | Errno::PERM) => NO_STATX.store(true, Relaxed),
            answer => return answer,
        }
    }
    by_fstat(fd)
}

/// Returns the device of the file system at /proc. Asked once. `u64::MAX` if that is another than procfs.
fn device_of_proc() -> u64 {
    /// 0 until it was asked. Relaxed: every thread stores the same answer.
    static DEVICE: AtomicU64 = AtomicU64::new(0);
    if DEVICE.load(Relaxed) == 0 {
        DEVICE.store(ask_device_of_proc().unwrap_or(u64::MAX), Relaxed);
    }
    DEVICE.load(Relaxed)
}

/// Asks by paths, since an engine thread that opened /proc would take the lowest number for a moment. Only procfs has a
/// link that names the process.
#[cold]
fn ask_device_of_proc() -> Option<u64> {
    let mut name = [0u8; 16];
    let bytes = calls::readlink("/proc/self", &mut name).ok()?;
    let is_proc = name[..bytes] == *Sys::process_id().to_string().as_bytes();
    is_proc.then(|| statx(libc::AT_FDCWD, c"/proc")).and_then(Result::ok).map(|status| status.device)
}

/// True if `fd` is an eventfd, according to /proc. Without /proc, true if the file has no type, and 0 can be added to
/// it. Other files without a type refuse that, and the test never waits.
pub fn is_eventfd(fd: i32) -> bool {
    let mut name = [0u8; 64];
    match calls::readlink(format!("/proc/self/fd/{fd}"), &mut name) {
        Ok(bytes) => name[..bytes] == *b"anon_inode:[eventfd]",
        Err(_) => {
            let (nothing, size) = (0u64, size_of::<u64>());
            let add = || syscall(libc::SYS_write, [fd as usize, &raw const nothing as usize, size, 0, 0, 0]);
            file_status(fd).is_ok_and(|status| status.kind == 0) && add() == size as isize
        }
    }
}

/// True if the kernel can resolve this path, and return the status, without waiting for a disk or a server. Also true
/// if that is unknown: before Linux 5.12, or if a filter refuses the call.
pub fn is_at_hand(dirfd: i32, path: &CStr, follows: bool) -> bool {
    const RESOLVE_CACHED: u64 = 0x20;
    if path.is_empty() {
        return by_statx(dirfd).map_or(true, |status| status.is_local);
    }
    if mutated(Mutation::ServersAreAsked) || !may_open_cached() {
        return true;
    }
    let flags = libc::O_PATH | libc::O_CLOEXEC | if follows { 0 } else { libc::O_NOFOLLOW };
    let how = [flags as u64, 0, RESOLVE_CACHED];
    let args = [dirfd as usize, path.as_ptr() as usize, how.as_ptr() as usize, size_of_val(&how), 0, 0];
    let open = || check(syscall(libc::SYS_openat2, args));
    match standard::on_any_thread(|| standard::above(open)) {
        Ok(fd) => {
            let status = by_statx(fd as i32);
            syscall(libc::SYS_close, [fd, 0, 0, 0, 0, 0]);
            status.map_or(true, |status| status.is_local)
        }
        Err(error) => !matches!(error, Errno::AGAIN | Errno::MFILE | Errno::NFILE | Errno::NOMEM),
    }
}

/// True if openat2(2) may be called. A seccomp filter may kill for that call. If there is a filter, a child process
/// asks once. Relaxed: every thread stores the same answer.
fn may_open_cached() -> bool {
    const NO: u8 = 1;
    const YES: u8 = 2;
    static PERMITTED: AtomicU8 = AtomicU8::new(0);
    if PERMITTED.load(Relaxed) == 0 {
        let answer = if is_filtered() { ask_in_child(ask_for_openat2) } else { Some(0) };
        let Some(errno) = answer else { return false };
        PERMITTED.store(if errno == 0 { YES } else { NO }, Relaxed);
    }
    PERMITTED.load(Relaxed) == YES
}

/// Calls openat2(2) without arguments, which fails with EINVAL on a kernel that has the call.
fn ask_for_openat2() -> isize {
    match check(syscall(libc::SYS_openat2, [0; 6])) {
        Err(Errno::INVAL) => 0,
        _ => -1,
    }
}

fn by_statx(fd: i32) -> Result<FileStatus, Errno> {
    statx(fd, c"")
}

fn statx(fd: i32, path: &CStr) -> Result<FileStatus, Errno> {
    const WANTED: u32 = libc::STATX_TYPE | libc::STATX_MODE | libc::STATX_INO | libc::STATX_SIZE;
    const FLAGS: i32 = libc::AT_EMPTY_PATH | libc::AT_STATX_DONT_SYNC;
    let mut found = MaybeUninit::<libc::statx>::uninit();
    let args =
        [fd as usize, path.as_ptr() as usize, FLAGS as usize, WANTED as usize, found.as_mut_ptr() as usize, 0];
    check(syscall(libc::SYS_statx, args))?;
    // SAFETY: the call has filled it in.
    let found = unsafe { found.assume_init() };
    Ok(FileStatus {
        kind: u32::from(found.stx_mode) & libc::S_IFMT,
        is_for_all: u32::from(found.stx_mode) & libc::S_IROTH != 0,
        device: rustix::fs::makedev(found.stx_dev_major, found.stx_dev_minor),
        inode: found.stx_ino,
        special: rustix::fs::makedev(found.stx_rdev_major, found.stx_rdev_minor),
        size: found.stx_size,
        is_local: found.stx_dev_major != 0 || found.stx_attributes_mask & libc::STATX_ATTR_NODUMP as u64 != 0,
    })
}

#[expect(clippy::disallowed_methods, reason = "there is nothing else")]
fn by_fstat(fd: i32) -> Result<FileStatus, Errno> {
    // SAFETY: the number is only borrowed for the call, which fails with EBADF if it is not open; it is not -1.
    let found = calls::fstat(unsafe { rustix::fd::BorrowedFd::borrow_raw(fd) })?;
    Ok(FileStatus {
        kind: found.st_mode & libc::S_IFMT,
        is_for_all: found.st_mode & libc::S_IROTH != 0,
        device: found.st_dev,
        inode: found.st_ino,
        special: found.st_rdev,
        size: found.st_size as u64,
        is_local: true, // as far as is known
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::os::refusing::refusing;
    use std::os::fd::AsRawFd;

    #[test]
    fn both_ways_answer_the_same() {
        let (pipe, _writer) = std::io::pipe().expect("a pipe");
        let open = |path: &str| std::fs::File::open(path).expect("a file that is everywhere");
        let (program, null) = (open("/proc/self/exe"), open("/dev/null"));
        for fd in [pipe.as_raw_fd(), program.as_raw_fd(), null.as_raw_fd()] {
            let (one, other) = (by_statx(fd).expect("statx"), by_fstat(fd).expect("fstat"));
            assert_eq!(FileStatus { is_local: true, ..one }, other);
        }
        assert!(by_statx(program.as_raw_fd()).is_ok_and(|status| status.has_blocks()));
        assert_eq!(by_statx(null.as_raw_fd()).map(|status| status.special), Ok(rustix::fs::makedev(1, 3)));
    }

    #[test]
    fn data_in_memory_is_distinguished_from_data_on_a_disk() {
        let is_in_memory = |file: &std::fs::File| {
            file_status(file.as_raw_fd()).expect("an open file").is_in_memory(file.as_raw_fd())
        };
        let open = |path: &str| std::fs::File::open(path).expect("a file that is everywhere");
        assert!(is_in_memory(&open("/proc/self/comm")) && is_in_memory(&open("/proc/self/stat")));
        assert!(!is_in_memory(&open("/proc/self/environ")), "not everyone may read it");
        assert!(!is_in_memory(&open("/dev/null")));
        let memory = calls::memfd_create(c"memory", rustix::fs::MemfdFlags::CLOEXEC).expect("a file in memory");
        let status = by_statx(memory.as_raw_fd()).expect("an open file");
        assert_eq!(
            status.is_in_memory(memory.as_raw_fd()),
            status.is_local,
            "some kernels do not say that it is local"
        );
    }

    #[test]
    fn a_number_that_is_not_open_is_an_error() {
        for fd in [-1, libc::AT_FDCWD, i32::MAX] {
            assert_eq!(file_status(fd), Err(Errno::BADF));
        }
    }

    #[test]
    fn fstat_answers_where_there_is_no_statx() {
        for refused in [&[(libc::SYS_statx, None, libc::ENOSYS)], &[(libc::SYS_statx, None, libc::EPERM)]] {
            refusing(refused, || {
                let null = std::fs::File::open("/dev/null").expect("a file that is everywhere");
                assert!(file_status(null.as_raw_fd()).is_ok_and(|status| status.kind == libc::S_IFCHR));
                assert!(NO_STATX.swap(false, Relaxed), "it is not asked for again");
            });
        }
    }
}
