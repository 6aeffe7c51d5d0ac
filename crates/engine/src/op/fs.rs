//! OPENAT, OPENAT2, CLOSE, STATX, RENAMEAT, UNLINKAT, MKDIRAT, SYMLINKAT, LINKAT.
//!
//! The submitting thread makes the calls (`issue::calls`), with its credentials and working directory. The kernel sends
//! most of them to a worker with the same identity. The engine does so only while these calls take long
//! (`issue::stalls`). Paths are copied when the SQE is read, as in the kernel, so the program may reuse that memory.
//!
//! Of these calls only an open may wait for something else: the other end of a FIFO, a lease, a modem line. The kernel
//! attempts the open with O_NONBLOCK in the submitting thread and clears that flag on the new file. So a FIFO opens at
//! once for reading. For writing without a reader the open fails with ENXIO. With O_CREAT or O_TRUNC, or with
//! IOSQE_ASYNC, the kernel makes the plain call on a worker, which then waits. [`Open`] leads to the same results.

use super::{call, reject_fixed_file, reject_unused, Context, Field, Identity, OnRing, Operation, Punt, Verdict};
use crate::mutation::{mutated, Mutation};
use crate::os::arch::O_LARGEFILE;
use crate::os::{is_at_hand, user_read, user_read_slice};
use crate::resource::files::FixedFile;
use crate::Errno;
use anyring_abi::{Opcode, Sqe};
use core::ffi::CStr;
use std::sync::Arc;

/// `PATH_MAX` of limits.h: the longest path that the kernel takes, with its terminating zero.
const PATH_BYTES_MAX: usize = libc::PATH_MAX as usize;
/// The smallest page size. A read within one page cannot touch memory that the path does not reach.
const PAGE_BYTES: usize = 4096;
/// `struct open_how` as Linux 5.6 introduced it (`OPEN_HOW_SIZE_VER0`).
const OPEN_HOW_BYTES: u32 = 24;
/// `RESOLVE_CACHED` of openat2(2).
const RESOLVE_CACHED: u64 = 0x20;
/// The open flags of 64-bit Linux: openat2(2) refuses all others.
const OPEN_FLAGS: u64 = 0x7f_ffc3;
/// `__O_TMPFILE`: the part of O_TMPFILE that is not O_DIRECTORY.
const TMPFILE: u64 = (libc::O_TMPFILE & !libc::O_DIRECTORY) as u64;

/// An operation of this family, with its arguments.
#[derive(Debug)]
pub enum Fs {
    /// An open: openat(2) and openat2(2).
    Open(Open),
    /// A close(2), or the emptying of a slot of the registered files. `issue` carries it out: see [`Fs::close_now`].
    Close {
        /// The descriptor; 0 if `slot` is not 0.
        fd: i32,
        /// Slot of the registered files plus one; 0 for an ordinary descriptor.
        slot: u32,
    },
    /// statx(2).
    #[allow(missing_docs)] // the manual's argument names
    Statx { dirfd: i32, path: Path, flags: u32, mask: u32, statxbuf: u64 },
    /// renameat2(2).
    #[allow(missing_docs)] // the manual's argument names
    Rename { olddirfd: i32, oldpath: Path, newdirfd: i32, newpath: Path, flags: u32 },
    /// unlinkat(2).
    #[allow(missing_docs)] // the manual's argument names
    Unlink { dirfd: i32, path: Path, flags: u32 },
    /// mkdirat(2).
    #[allow(missing_docs)] // the manual's argument names
    Mkdir { dirfd: i32, path: Path, mode: u32 },
    /// symlinkat(2).
    #[allow(missing_docs)] // the manual's argument names
    Symlink { target: Path, newdirfd: i32, linkpath: Path },
    /// linkat(2).
    #[allow(missing_docs)] // the manual's argument names
    Link { olddirfd: i32, oldpath: Path, newdirfd: i32, newpath: Path, flags: u32 },
}

impl Fs {
    /// Reads the SQE. Source: io_uring_enter(2); the checks are those of io_uring/openclose.c, fs.c and statx.c.
    pub fn prep(opcode: Opcode, sqe: &Sqe) -> Result<Fs, Errno> {
        reject_unused(sqe, unused_fields(opcode))?;
        reject_fixed_file(sqe)?;
        let (fd, len, flags) = (sqe.fd, sqe.len, sqe.op_flags);
        let first = |may_be_empty| Path::import(sqe.addr, may_be_empty);
        let second = || Path::import(sqe.off, false);
        let empty_allowed = flags & libc::AT_EMPTY_PATH as u32 != 0;
        Ok(match opcode {
            Opcode::Openat => {
                Fs::Open(Open::prep(sqe, OpenHow { flags: flags.into(), mode: len.into(), resolve: 0 }, false)?)
            }
            Opcode::Openat2 => Fs::Open(Open::prep(sqe, OpenHow::import(sqe.off, len)?, true)?),
            Opcode::Close if sqe.file_index != 0 && fd != 0 => return Err(Errno::INVAL),
            Opcode::Close => Fs::Close { fd, slot: sqe.file_index },
            Opcode::Statx => {
                Fs::Statx { dirfd: fd, path: first(empty_allowed)?, flags, mask: len, statxbuf: sqe.off }
            }
            Opcode::Renameat => {
                Fs::Rename { olddirfd: fd, oldpath: first(false)?, newdirfd: len as i32, newpath: second()?, flags }
            }
            Opcode::Unlinkat if flags & !(libc::AT_REMOVEDIR as u32) != 0 => return Err(Errno::INVAL),
            Opcode::Unlinkat => Fs::Unlink { dirfd: fd, path: first(false)?, flags },
            Opcode::Mkdirat => Fs::Mkdir { dirfd: fd, path: first(false)?, mode: len },
            Opcode::Symlinkat => Fs::Symlink { target: first(false)?, newdirfd: fd, linkpath: second()? },
            _ => Fs::Link {
                olddirfd: fd,
                oldpath: first(empty_allowed)?,
                newdirfd: len as i32,
                newpath: second()?,
                flags,
            },
        })
    }

    /// Closes an ordinary descriptor, once `issue` has detached the engine's requests from it.
    pub fn close_now(fd: i32) -> Verdict {
        Verdict::of(call(libc::SYS_close, [fd as usize, 0, 0, 0, 0, 0]))
    }
}

impl Operation for Fs {
    fn slot(&self) -> u32 {
        match self {
            Fs::Open(open) => open.slot,
            _ => 0,
        }
    }

    fn issue(&mut self, context: Context) -> Verdict {
        let at = |dirfd: i32| dirfd as usize;
        let (number, args) = match self {
            Fs::Open(open) => return open.issue(context),
            // A close concerns the ring's registered files and remembered readiness: `issue` carries it out.
            Fs::Close { fd, .. } => {
                crate::descriptors::CLOSING.call(*fd);
                return Fs::close_now(*fd);
            }
            Fs::Statx { dirfd, path, flags, mask, statxbuf } => {
                let args = [at(*dirfd), path.address(), *flags as usize, *mask as usize, *statxbuf as usize, 0];
                (libc::SYS_statx, args)
            }
            Fs::Rename { olddirfd, oldpath, newdirfd, newpath, flags } => {
                let args = [at(*olddirfd), oldpath.address(), at(*newdirfd), newpath.address(), *flags as usize, 0];
                (libc::SYS_renameat2, args)
            }
            Fs::Unlink { dirfd, path, flags } => {
                let ignored =
                    if mutated(Mutation::UnlinkRemovesNoDirectory) { libc::AT_REMOVEDIR as u32 } else { 0 };
                (libc::SYS_unlinkat, [at(*dirfd), path.address(), (*flags & !ignored) as usize, 0, 0, 0])
            }
            Fs::Mkdir { dirfd, path, mode } => {
                (libc::SYS_mkdirat, [at(*dirfd), path.address(), *mode as usize, 0, 0, 0])
            }
            Fs::Symlink { target, newdirfd, linkpath } => {
                (libc::SYS_symlinkat, [target.address(), at(*newdirfd), linkpath.address(), 0, 0, 0])
            }
            Fs::Link { olddirfd, oldpath, newdirfd, newpath, flags } => {
                let args = [at(*olddirfd), oldpath.address(), at(*newdirfd), newpath.address(), *flags as usize, 0];
                (libc::SYS_linkat, args)
            }
        };
        Verdict::uncounted(call(number, args))
    }

    fn opens_through_cache(&self) -> bool {
        matches!(self, Fs::Open(open) if !open.how.has(libc::O_DIRECT))
    }

    fn issue_on(&mut self, ring: &mut impl OnRing, _fd: i32) -> Verdict {
        match self {
            Fs::Close { fd, slot } => ring.close_file(*fd, *slot),
            _ => Verdict::NeedsCaller,
        }
    }

    /// Duplicates the directory's descriptor for a worker that may sleep in the call. SIGSTOP interrupts the call and
    /// SIGCONT restarts it, so the request needs a descriptor of its own. If the duplicate cannot be made, the request
    /// uses the program's number.
    fn own_names(&mut self) -> Option<i32> {
        if let Fs::Open(open) = self {
            if open.dirfd >= 0 && !open.path.is_absolute() {
                open.directory = FixedFile::private(open.dirfd).ok();
            }
        }
        None // readiness is remembered for files only
    }

    fn seen_by_filters(&self) -> [u32; 6] {
        let Fs::Open(open) = self else { return [0; 6] };
        let OpenHow { flags, mode, resolve } = open.how_in_kernel();
        let words = [flags, mode, resolve].map(|value| [value as u32, (value >> 32) as u32]);
        let [[a, b], [c, d], [e, f]] = words;
        [a, b, c, d, e, f]
    }

    fn asks_elsewhere(&self) -> bool {
        let Fs::Statx { dirfd, path, flags, .. } = self else { return false };
        !is_at_hand(*dirfd, path.as_c_str(), flags & libc::AT_SYMLINK_NOFOLLOW as u32 == 0)
    }

    fn identity(&self, row: Identity) -> Identity {
        if mutated(Mutation::PathsByAnyWorker) {
            Identity::Never
        } else {
            row
        }
    }

    /// True if the operation opens a file that it may create or truncate.
    fn is_forced(&self) -> bool {
        matches!(self, Fs::Open(open) if open.how.is_forced_to_worker())
    }
}

/// The SQE fields that the kernel requires to be zero, by opcode.
fn unused_fields(opcode: Opcode) -> &'static [Field] {
    match opcode {
        Opcode::Openat | Opcode::Openat2 => &[Field::BufIndex],
        Opcode::Close => &[Field::Off, Field::Addr, Field::Len, Field::OpFlags, Field::BufIndex],
        Opcode::Unlinkat => &[Field::Off, Field::Len, Field::BufIndex, Field::FileIndex],
        Opcode::Mkdirat => &[Field::Off, Field::OpFlags, Field::BufIndex, Field::FileIndex],
        Opcode::Symlinkat => &[Field::Len, Field::OpFlags, Field::BufIndex, Field::FileIndex],
        _ => &[Field::BufIndex, Field::FileIndex],
    }
}

/// A copy of a path, with its terminating zero.
#[derive(Debug)]
pub struct Path(Box<[u8]>);

impl Path {
    /// Copies the program's string at `address`. It fails with `EFAULT` or `ENAMETOOLONG`, and with `ENOENT` for an
    /// empty string unless that is allowed. Source: `getname_flags` in fs/namei.c.
    pub(super) fn import(address: u64, may_be_empty: bool) -> Result<Path, Errno> {
        let path = Path::import_bounded(address, PATH_BYTES_MAX)?;
        if path.0.len() == 1 && !may_be_empty {
            return Err(Errno::NOENT);
        }
        Ok(path)
    }

    /// Copies a string of up to `bytes_max` bytes, its terminating zero included. It fails with `EFAULT` or
    /// `ENAMETOOLONG`.
    pub(super) fn import_bounded(address: u64, bytes_max: usize) -> Result<Path, Errno> {
        let mut path = Vec::new();
        let mut chunk = [0u8; 256];
        while path.len() < bytes_max {
            let from = address.wrapping_add(path.len() as u64);
            let left_in_page = PAGE_BYTES - from as usize % PAGE_BYTES;
            let bytes = chunk.len().min(left_in_page).min(bytes_max - path.len());
            let chunk = &mut chunk[..bytes];
            user_read_slice(from, chunk)?;
            if let Some(end) = chunk.iter().position(|byte| *byte == 0) {
                path.extend_from_slice(&chunk[..=end]);
                return Ok(Path(path.into()));
            }
            path.extend_from_slice(chunk);
        }
        Err(Errno::NAMETOOLONG)
    }

    /// True if the path is the empty string.
    pub(super) fn is_empty(&self) -> bool {
        self.0.len() == 1
    }

    pub(crate) fn as_c_str(&self) -> &CStr {
        CStr::from_bytes_until_nul(&self.0).unwrap_or_default()
    }

    fn is_absolute(&self) -> bool {
        self.0.first() == Some(&b'/')
    }

    /// The address of the copy.
    pub(super) fn address(&self) -> usize {
        self.0.as_ptr() as usize
    }
}

/// `struct open_how` of openat2(2).
#[derive(Debug, Clone, Copy)]
#[repr(C)]
struct OpenHow {
    flags: u64,
    mode: u64,
    resolve: u64,
}

impl OpenHow {
    /// Copies the program's structure of `bytes` bytes. It fails with `E2BIG` if a byte beyond the known fields is not
    /// zero, as in `copy_struct_from_user`. It also fails with `E2BIG` for a structure of more than a page; the
    /// kernel's io_uring would read all of it.
    fn import(address: u64, bytes: u32) -> Result<OpenHow, Errno> {
        if bytes < OPEN_HOW_BYTES {
            return Err(Errno::INVAL);
        }
        if bytes as usize > PAGE_BYTES {
            return Err(Errno::TOOBIG);
        }
        let mut beyond = vec![0u8; (bytes - OPEN_HOW_BYTES) as usize];
        user_read_slice(address.wrapping_add(OPEN_HOW_BYTES.into()), &mut beyond)?;
        if beyond.iter().any(|byte| *byte != 0) {
            return Err(Errno::TOOBIG);
        }
        let [flags, mode, resolve] = user_read::<[u64; 3]>(address)?;
        Ok(OpenHow { flags, mode, resolve })
    }

    fn has(&self, flag: i32) -> bool {
        self.flags & flag as u64 == flag as u64
    }

    /// True if the open may wait for another process. False for directories (O_TMPFILE contains O_DIRECTORY), bare
    /// paths, files that are created, and programs that asked not to wait.
    fn may_wait(&self) -> bool {
        let created = self.has(libc::O_CREAT) && self.has(libc::O_EXCL);
        !(created || self.has(libc::O_PATH) || self.has(libc::O_DIRECTORY) || self.has(libc::O_NONBLOCK))
    }

    /// True if the kernel makes the plain call on a worker from the start (`io_openat_force_async`).
    fn is_forced_to_worker(&self) -> bool {
        self.flags & ((libc::O_CREAT | libc::O_TRUNC) as u64 | TMPFILE) != 0
    }

    /// True if openat(2) does the same with these flags; it ignores flags that openat2(2) refuses.
    fn is_plain(&self) -> bool {
        let makes_a_file = self.has(libc::O_CREAT) || self.has(libc::O_TMPFILE);
        let mode_known = if makes_a_file { 0o7777 } else { 0 };
        self.resolve == 0 && self.flags & !OPEN_FLAGS == 0 && self.mode & !mode_known == 0
    }
}

/// openat(2) or openat2(2). Source: io_uring_enter(2), IORING_OP_OPENAT and IORING_OP_OPENAT2.
#[derive(Debug)]
pub struct Open {
    dirfd: i32,
    /// The descriptor that replaces `dirfd` in the call of a worker.
    directory: Option<Arc<FixedFile>>,
    path: Path,
    how: OpenHow,
    /// The program asked for openat2(2), which refuses flags that openat(2) ignores.
    strict: bool,
    slot: u32,
}

impl Open {
    fn prep(sqe: &Sqe, how: OpenHow, strict: bool) -> Result<Open, Errno> {
        let path = Path::import(sqe.addr, false)?;
        if sqe.file_index != 0 && how.has(libc::O_CLOEXEC) {
            return Err(Errno::INVAL);
        }
        Ok(Open { dirfd: sqe.fd, directory: None, path, how, strict, slot: sqe.file_index })
    }

    fn issue(&self, context: Context) -> Verdict {
        let attempt = context.nonblock && self.how.may_wait();
        let waits_on_worker = attempt && self.how.is_forced_to_worker();
        if waits_on_worker && self.how.flags & libc::O_ACCMODE as u64 == 0 && self.names_a_fifo() {
            return Verdict::NeedsWorker(Punt::WouldWait);
        }
        match self.open(if attempt { libc::O_NONBLOCK } else { 0 }) {
            Ok(fd) => {
                if attempt {
                    let off = 0i32;
                    let args = [fd, libc::FIONBIO as usize, &off as *const i32 as usize, 0, 0, 0];
                    // The descriptor is new, and no other thread knows it. FIONBIO does not fail on a file that was
                    // just opened.
                    let _ = call(libc::SYS_ioctl, args);
                }
                Verdict::Descriptor(fd as i32)
            }
            // EAGAIN can mean that a lease is being broken. With RESOLVE_CACHED it is the answer that the program asked
            // for.
            Err(Errno::AGAIN) if attempt && self.how.resolve & RESOLVE_CACHED == 0 => {
                Verdict::NeedsWorker(Punt::WouldWait)
            }
            // The path is a FIFO without a reader.
            Err(Errno::NXIO) if waits_on_worker => Verdict::NeedsWorker(Punt::WouldWait),
            Err(error) => Verdict::error(error),
        }
    }

    /// Returns the arguments as the kernel keeps them. They have O_LARGEFILE, as every open on a 64-bit kernel. Those of
    /// OPENAT lack the bits that openat(2) ignores. Source: `build_open_how` in fs/open.c.
    fn how_in_kernel(&self) -> OpenHow {
        let OpenHow { mut flags, mut mode, resolve } = self.how;
        let path = libc::O_PATH as u64;
        if !self.strict {
            flags &= OPEN_FLAGS;
            if flags & path != 0 {
                flags &= path | (libc::O_DIRECTORY | libc::O_NOFOLLOW | libc::O_CLOEXEC) as u64;
            }
            let makes_a_file = flags & (libc::O_CREAT as u64 | TMPFILE) != 0;
            mode &= if makes_a_file { 0o7777 } else { 0 };
        }
        if flags & path == 0 {
            flags |= O_LARGEFILE;
        }
        OpenHow { flags, mode, resolve }
    }

    fn dirfd(&self) -> usize {
        self.directory.as_ref().map_or(self.dirfd, |directory| directory.fd) as usize
    }

    /// True if the path names a FIFO. An attempt to open one for reading would wake a writer that waits for a reader to
    /// stay.
    fn names_a_fifo(&self) -> bool {
        // SAFETY: an all-zero `stat` is a value: it has only integers.
        let mut stat: libc::stat = unsafe { core::mem::zeroed() };
        let args = [self.dirfd(), self.path.address(), &mut stat as *mut libc::stat as usize, 0, 0, 0];
        call(libc::SYS_newfstatat, args).is_ok() && stat.st_mode & libc::S_IFMT == libc::S_IFIFO
    }

    /// Makes one call, with `extra` flags. A descriptor for a slot is close-on-exec until it is installed.
    fn open(&self, extra: i32) -> Result<usize, Errno> {
        let slot_flags = if self.slot != 0 { libc::O_CLOEXEC } else { 0 };
        let how = OpenHow { flags: self.how.flags | (extra | slot_flags) as u64, ..self.how };
        let (dirfd, path) = (self.dirfd(), self.path.address());
        loop {
            let strict = [dirfd, path, &how as *const OpenHow as usize, size_of::<OpenHow>(), 0, 0];
            let plain = [dirfd, path, how.flags as usize, how.mode as usize, 0, 0];
            let answer = match self.strict {
                true => match call(libc::SYS_openat2, strict) {
                    // The call is missing before Linux 5.6, or a filter does not know it.
                    Err(Errno::NOSYS) if self.how.is_plain() => call(libc::SYS_openat, plain),
                    Err(Errno::NOSYS) => Err(Errno::INVAL),
                    answer => answer,
                },
                false => call(libc::SYS_openat, plain),
            };
            // The program's signals do not interrupt the kernel's workers.
            if answer != Err(Errno::INTR) {
                return answer;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::{CStr, CString};
    use std::os::unix::ffi::OsStrExt;
    use std::path::PathBuf;

    const INLINE: Context = Context { fd: -1, nonblock: true };

    /// A temporary directory of the test, removed with its contents.
    struct Directory(PathBuf);

    impl Directory {
        fn new(test: &str) -> Directory {
            let path = std::env::temp_dir().join(format!("anyring-fs-{}-{test}", std::process::id()));
            std::fs::create_dir(&path).unwrap();
            Directory(path)
        }

        fn path(&self, name: &str) -> CString {
            CString::new(self.0.join(name).as_os_str().as_bytes()).unwrap()
        }

        fn fifo(&self, name: &str) -> CString {
            let path = self.path(name);
            rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
            path
        }
    }

    impl Drop for Directory {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    fn sqe(path: &CStr) -> Sqe {
        Sqe { fd: libc::AT_FDCWD, addr: path.as_ptr() as u64, ..Sqe::default() }
    }

    fn open(path: &CStr, flags: i32, context: Context) -> Verdict {
        let sqe = Sqe { op_flags: flags as u32, len: 0o600, ..sqe(path) };
        Fs::prep(Opcode::Openat, &sqe).unwrap().issue(context)
    }

    /// Returns the flags of the opened file from fcntl(2), and closes it.
    fn flags_of(verdict: Verdict) -> i32 {
        let Verdict::Descriptor(fd) = verdict else { panic!("{verdict:?}") };
        let flags = crate::descriptors::status_flags(fd).unwrap();
        assert_eq!(Fs::close_now(fd), Verdict::Done(0));
        flags
    }

    #[test]
    fn a_fifo_opens_as_the_kernel_opens_it() {
        let directory = Directory::new("fifo");
        let fifo = directory.fifo("fifo");
        assert_eq!(flags_of(open(&fifo, libc::O_RDONLY, INLINE)) & (libc::O_NONBLOCK | libc::O_ACCMODE), 0);
        // A child that another test has just forked may briefly hold a copy of a descriptor that this test closed
        // above.
        let mut to_write = open(&fifo, libc::O_WRONLY, INLINE);
        for _ in 0..200 {
            let Verdict::Descriptor(fd) = to_write else { break };
            assert_eq!(Fs::close_now(fd), Verdict::Done(0));
            std::thread::sleep(std::time::Duration::from_millis(5));
            to_write = open(&fifo, libc::O_WRONLY, INLINE);
        }
        assert_eq!(to_write, Verdict::error(Errno::NXIO));
        assert_eq!(open(&fifo, libc::O_WRONLY | libc::O_TRUNC, INLINE), Verdict::NeedsWorker(Punt::WouldWait));
        assert_eq!(open(&fifo, libc::O_RDONLY | libc::O_CREAT, INLINE), Verdict::NeedsWorker(Punt::WouldWait));
        let own = flags_of(open(&fifo, libc::O_RDONLY | libc::O_NONBLOCK, INLINE));
        assert_ne!(own & libc::O_NONBLOCK, 0);
    }

    #[test]
    fn a_worker_waits_for_the_other_end_of_a_fifo() {
        let directory = Directory::new("wait");
        let fifo = directory.fifo("fifo");
        let reader = {
            let fifo = fifo.clone();
            std::thread::spawn(move || flags_of(open(&fifo, libc::O_RDONLY, Context { fd: -1, nonblock: false })))
        };
        // The writer's open returns only once the reader's has begun.
        drop(std::fs::OpenOptions::new().write(true).open(fifo.to_str().unwrap()).unwrap());
        assert_eq!(reader.join().unwrap() & libc::O_NONBLOCK, 0);
    }

    #[test]
    fn openat2_accepts_longer_structures_only_with_zeros_and_keeps_to_resolve_cached() {
        let directory = Directory::new("openat2");
        let path = directory.path("file");
        std::fs::write(path.to_str().unwrap(), b"x").unwrap();
        let mut how = [0u64; 8];
        let sqe = |how: &[u64; 8], bytes| Sqe { off: how.as_ptr() as u64, len: bytes, ..sqe(&path) };
        let prep = |how: &[u64; 8], bytes| Fs::prep(Opcode::Openat2, &sqe(how, bytes));
        assert_eq!(prep(&how, 23).err(), Some(Errno::INVAL));
        flags_of(prep(&how, 24).unwrap().issue(INLINE));
        flags_of(prep(&how, 64).unwrap().issue(INLINE));
        how[5] = 1;
        assert_eq!(prep(&how, 64).err(), Some(Errno::TOOBIG));
        how[5] = 0;
        how[1] = 0o600;
        assert_eq!(prep(&how, 24).unwrap().issue(INLINE), Verdict::error(Errno::INVAL));
        how[1] = 0;
        how[2] = RESOLVE_CACHED;
        // procfs makes this name afresh, so it is not cached. The kernel's io_uring answers EAGAIN too.
        let uncached = c"/proc/self/task/../attr/../limits";
        let sqe = Sqe { addr: uncached.as_ptr() as u64, ..sqe(&how, 24) };
        match Fs::prep(Opcode::Openat2, &sqe).unwrap().issue(INLINE) {
            Verdict::Descriptor(fd) => assert_eq!(Fs::close_now(fd), Verdict::Done(0)),
            verdict => assert_eq!(verdict, Verdict::error(Errno::AGAIN)),
        }
    }

    #[test]
    fn openat_stands_in_for_openat2_only_where_it_means_the_same() {
        let plain = OpenHow { flags: (libc::O_RDWR | libc::O_CREAT) as u64, mode: 0o640, resolve: 0 };
        assert!(plain.is_plain());
        assert!(!OpenHow { resolve: RESOLVE_CACHED, ..plain }.is_plain());
        assert!(!OpenHow { flags: libc::O_RDWR as u64, ..plain }.is_plain());
        assert!(!OpenHow { flags: plain.flags | 1 << 40, ..plain }.is_plain());
        assert!(!OpenHow { mode: 0o10_000, ..plain }.is_plain());
    }

    #[test]
    fn files_are_made_renamed_linked_and_removed() {
        let directory = Directory::new("paths");
        let [a, b, c, d] = ["a", "b", "c", "d"].map(|name| directory.path(name));
        let run = |opcode, sqe: Sqe| Fs::prep(opcode, &sqe).unwrap().issue(INLINE);
        let two = |from: &CStr, to: &CStr| Sqe { off: to.as_ptr() as u64, len: libc::AT_FDCWD as u32, ..sqe(from) };
        let exists = |path: &CStr| std::path::Path::new(path.to_str().unwrap()).symlink_metadata().is_ok();
        flags_of(open(&a, libc::O_CREAT | libc::O_EXCL | libc::O_RDWR, INLINE));
        assert_eq!(run(Opcode::Linkat, two(&a, &b)), Verdict::Done(0));
        assert_eq!(run(Opcode::Renameat, two(&b, &c)), Verdict::Done(0));
        assert_eq!(run(Opcode::Symlinkat, Sqe { len: 0, ..two(&c, &b) }), Verdict::Done(0));
        assert_eq!(run(Opcode::Mkdirat, Sqe { len: 0o700, ..sqe(&d) }), Verdict::Done(0));
        assert_eq!(std::fs::read_link(b.to_str().unwrap()).unwrap().as_os_str().as_bytes(), c.as_bytes());
        assert!(exists(&a) && exists(&c) && exists(&d));

        let mut statx = [0u64; 32];
        let sqe_statx = Sqe { off: statx.as_mut_ptr() as u64, len: libc::STATX_BASIC_STATS, ..sqe(&c) };
        assert_eq!(run(Opcode::Statx, sqe_statx), Verdict::Done(0));
        assert_eq!(statx[2] as u32, 2, "stx_nlink");

        assert_eq!(run(Opcode::Unlinkat, sqe(&d)), Verdict::uncounted(Err(Errno::ISDIR)));
        let directory_too = Sqe { op_flags: libc::AT_REMOVEDIR as u32, ..sqe(&d) };
        assert_eq!(run(Opcode::Unlinkat, directory_too), Verdict::Done(0));
        assert_eq!(run(Opcode::Unlinkat, sqe(&a)), Verdict::Done(0));
        assert!(!exists(&a) && !exists(&d));
    }

    #[test]
    fn operations_are_refused_at_prep_as_by_the_kernel() {
        let refused = |opcode, sqe: Sqe| Fs::prep(opcode, &sqe).err();
        let good = sqe(c"/tmp");
        let fixed = anyring_abi::IOSQE_FIXED_FILE;
        for opcode in [Opcode::Openat, Opcode::Statx, Opcode::Unlinkat, Opcode::Mkdirat, Opcode::Close] {
            let addr = if opcode == Opcode::Close { 0 } else { good.addr };
            assert_eq!(refused(opcode, Sqe { addr, flags: fixed, ..good }), Some(Errno::BADF), "{opcode:?}");
            assert_eq!(refused(opcode, Sqe { addr, buf_index: 1, ..good }), Some(Errno::INVAL), "{opcode:?}");
        }
        assert_eq!(refused(Opcode::Openat, Sqe { addr: 8, ..good }), Some(Errno::FAULT));
        assert_eq!(refused(Opcode::Openat, sqe(c"")), Some(Errno::NOENT));
        let cloexec = Sqe { op_flags: libc::O_CLOEXEC as u32, file_index: 1, ..good };
        assert_eq!(refused(Opcode::Openat, cloexec), Some(Errno::INVAL));
        assert_eq!(refused(Opcode::Close, Sqe { fd: 3, file_index: 1, ..Sqe::default() }), Some(Errno::INVAL));
        assert_eq!(refused(Opcode::Unlinkat, Sqe { op_flags: 1, ..good }), Some(Errno::INVAL));
        assert_eq!(refused(Opcode::Mkdirat, Sqe { off: 1, ..good }), Some(Errno::INVAL));
        assert_eq!(refused(Opcode::Renameat, Sqe { off: 8, ..good }), Some(Errno::FAULT));
        assert_eq!(refused(Opcode::Statx, Sqe { op_flags: 0x1000, addr: 0, ..good }), Some(Errno::FAULT));
        assert_eq!(refused(Opcode::Statx, Sqe { op_flags: 0x1000, ..sqe(c"") }), None);
    }

    #[test]
    fn a_path_is_copied_across_pages_and_refused_when_too_long() {
        let mut memory = vec![b'a'; 3 * PAGE_BYTES];
        let address = memory.as_ptr() as u64;
        assert_eq!(Path::import(address, false).err(), Some(Errno::NAMETOOLONG));
        memory[PATH_BYTES_MAX - 1] = 0;
        assert_eq!(Path::import(address, false).unwrap().0.len(), PATH_BYTES_MAX);
        memory[700] = 0;
        assert_eq!(&*Path::import(address, false).unwrap().0, &memory[..=700]);
    }
}
