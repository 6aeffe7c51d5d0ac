//! Determines which kind of program executing a file would start. It reads the file as execve(2) does. It allocates
//! nothing, since the caller may be a child of vfork(2), whose memory is its parent's.

use crate::arch;
use crate::sys;
use core::ffi::c_int;
use core::mem::MaybeUninit;

/// The way in which an executed program can be served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// The preloaded library serves it.
    Preloaded {
        /// Linked for fixed addresses (ET_EXEC).
        is_fixed: bool,
    },
    /// The guest host serves it.
    Guest,
    /// The program cannot be served, for this reason.
    Unserved(&'static str),
    /// The kernel refuses it, or its kind is unclear: execve(2) decides.
    Unknown,
}

/// Number of `#!` files that may name each other, as in the kernel (fs/exec.c, exec_binprm).
const DEPTH: usize = 5;
/// Number of bytes that the kernel reads for `#!` (BINPRM_BUF_SIZE).
const LINE_BYTES: usize = 256;
/// The flag with which execveat(2) only checks whether the file may be executed (linux/fcntl.h, from Linux 6.14
/// on).
const AT_EXECVE_CHECK: usize = 0x10000;

/// A descriptor that is open only for a moment.
struct File(c_int);

impl Drop for File {
    fn drop(&mut self) {
        // SAFETY: the descriptor was opened here, and nothing else uses it.
        unsafe { sys::call(libc::SYS_close, [self.0 as usize, 0, 0, 0, 0, 0]) };
    }
}

/// Returns the kind of program that execveat(2) with these arguments would start. `path` is an address in the calling
/// program's memory.
pub fn of(directory: c_int, path: usize, flags: usize) -> Kind {
    judged(directory, path, flags, |file, head| file.elf(head)).unwrap_or(Kind::Unknown)
}

/// True if execveat(2) with these arguments would start a 32-bit program, or one for another machine.
pub fn is_foreign(directory: c_int, path: usize, flags: usize) -> bool {
    judged(directory, path, flags, |_, head| foreign(head)).is_some()
}

/// Returns the verdict of `judge` on the beginning of the file that would be executed. For a script, that file is its
/// interpreter.
fn judged<T>(
    directory: c_int,
    path: usize,
    flags: usize,
    judge: impl FnOnce(&File, &[u8]) -> Option<T>,
) -> Option<T> {
    let mut file = File::open(directory, path, flags)?;
    let is_by_descriptor = flags & libc::AT_EMPTY_PATH as usize != 0;
    for _ in 0..DEPTH {
        if !file.may_be_executed() {
            return None;
        }
        let mut head = [0; LINE_BYTES];
        let bytes = file.read(&mut head, 0)?;
        let Some(line) = head[..bytes].strip_prefix(b"#!") else { return judge(&file, &head[..bytes]) };
        if is_by_descriptor {
            return None; // its interpreter opens it by a descriptor's number, which may be closed by then
        }
        let mut name = [0; LINE_BYTES];
        interpreter(line, &mut name)?;
        file = File::open(libc::AT_FDCWD, name.as_ptr() as usize, 0)?;
    }
    None
}

/// Returns the type of an ELF file with this beginning, if it can be executed.
fn executable(head: &[u8]) -> Option<usize> {
    let kind = number(head, 16, 2);
    (head.len() >= 20 && head.starts_with(b"\x7fELF") && (kind == ET_EXEC || kind == ET_DYN)).then_some(kind)
}

/// Returns the reason why the file is for another kind of processor, if it is.
fn foreign(head: &[u8]) -> Option<&'static str> {
    executable(head)?;
    match (head[4], head[5], number(head, 18, 2)) {
        (2, 1, EM_OWN) if head.len() >= HEADER => None,
        (1, 1, EM_386 | EM_X86_64) => Some("it is a 32-bit program"),
        _ => Some("it is a program for another machine"),
    }
}

/// True if a path names a regular file that may be executed, as in a search along PATH.
pub fn is_found(path: usize) -> bool {
    File::open(libc::AT_FDCWD, path, 0).is_some_and(|file| file.may_be_executed())
}

/// Copies the interpreter's name from the rest of a first line (fs/binfmt_script.c).
fn interpreter(line: &[u8], name: &mut [u8; LINE_BYTES]) -> Option<()> {
    let end = line.iter().position(|byte| *byte == b'\n' || *byte == 0);
    let mut words = line[..end.unwrap_or(line.len())].split(|byte| *byte == b' ' || *byte == b'\t');
    let word = words.find(|word| !word.is_empty())?;
    if end.is_none() && words.next().is_none() {
        return None; // cut off
    }
    name[..word.len()].copy_from_slice(word);
    Some(())
}

/// Returns the number of `bytes` bytes at `at`; 0 past the end.
fn number(data: &[u8], at: usize, bytes: usize) -> usize {
    let field = data.get(at..at + bytes).unwrap_or(&[]);
    field.iter().rev().fold(0, |sum, byte| sum << 8 | usize::from(*byte))
}

const PAGE: usize = 4096;
/// One past the highest address of programs.
const TASK_SIZE: usize = 0x7fff_ffff_f000;
/// The addresses at which a guest may lie that is linked for fixed addresses. The filter traps calls from here.
const LOW: core::ops::Range<usize> = 0x1_0000..1 << 32;
const HEADER: usize = 64;
const PROGRAM_HEADER: usize = 56;
const ET_EXEC: usize = 2;
const ET_DYN: usize = 3;
const EM_386: usize = 3;
const EM_X86_64: usize = 62;
const EM_OWN: usize = arch::ELF_MACHINE as usize;
const PT_LOAD: usize = 1;
const PT_INTERP: usize = 3;

impl File {
    /// Opens a regular file.
    fn open(directory: c_int, path: usize, flags: usize) -> Option<File> {
        let at = directory as usize;
        let is_empty = libc::AT_EMPTY_PATH as usize;
        let status = status(at, path, flags & (is_empty | libc::AT_SYMLINK_NOFOLLOW as usize))?;
        // Check first, so that no FIFO or device is opened.
        if status.st_mode & libc::S_IFMT != libc::S_IFREG {
            return None;
        }
        let mut open_flags = libc::O_RDONLY | libc::O_CLOEXEC | libc::O_NONBLOCK | libc::O_NOCTTY;
        if flags & libc::AT_SYMLINK_NOFOLLOW as usize != 0 {
            open_flags |= libc::O_NOFOLLOW;
        }
        let mut of_number = [0; 32];
        let is_itself = flags & is_empty != 0 && sys::read_program(path as *const u8) == Some(0);
        let path = if is_itself { super::text(&mut of_number, &[b"/proc/self/fd/"], directory)? } else { path };
        // SAFETY: the kernel reads the path, and says whether it can.
        match unsafe { sys::call(libc::SYS_openat, [at, path, open_flags as usize, 0, 0, 0]) } {
            ..0 => None,
            number => Some(File(number as c_int)),
        }
    }

    /// True if the file may be executed: its mode and its file system permit that, and no process has the file open for
    /// writing (ETXTBSY). Whether a process has the file open for writing is known only from kernels with
    /// AT_EXECVE_CHECK.
    fn may_be_executed(&self) -> bool {
        let (empty, words) = (c"".as_ptr() as usize, [c"".as_ptr() as usize, 0]);
        let flags = libc::AT_EMPTY_PATH as usize;
        let check = [self.0 as usize, empty, words.as_ptr() as usize, 0, flags | AT_EXECVE_CHECK, 0];
        // SAFETY: strings and an array of this function. Nothing is executed.
        let answer = unsafe { sys::call(libc::SYS_execveat, check) };
        if answer == 0 {
            return true;
        }
        if answer != -(libc::EINVAL as isize) {
            return false;
        }
        let ask = [self.0 as usize, empty, libc::X_OK as usize, flags | libc::AT_EACCESS as usize, 0, 0];
        let mut of_number = [0; 32];
        // SAFETY: as above.
        match unsafe { sys::call(libc::SYS_faccessat2, ask) } {
            // Linux before 5.8: check with the real identity, which is mostly the same.
            error if error == -(libc::ENOSYS as isize) => {
                let Some(path) = super::text(&mut of_number, &[b"/proc/self/fd/"], self.0) else { return false };
                // SAFETY: as above.
                unsafe { sys::call(libc::SYS_faccessat, [usize::MAX, path, libc::X_OK as usize, 0, 0, 0]) == 0 }
            }
            answer => answer == 0,
        }
    }

    fn read(&self, into: &mut [u8], at: usize) -> Option<usize> {
        let args = [self.0 as usize, into.as_mut_ptr() as usize, into.len(), at, 0, 0];
        // SAFETY: the kernel writes no more than the slice has.
        usize::try_from(unsafe { sys::call(libc::SYS_pread64, args) }).ok()
    }

    fn elf(&self, head: &[u8]) -> Option<Kind> {
        let kind = executable(head)?;
        if let Some(what) = foreign(head) {
            return Some(Kind::Unserved(what));
        }
        let linked = self.linked(head, kind == ET_EXEC)?;
        Some(self.privileges().map_or(linked, Kind::Unserved))
    }

    /// Returns the kind of this ELF file by how it is linked. `None` if execve(2) would refuse the file, or would end
    /// the process while loading it.
    fn linked(&self, head: &[u8], is_fixed: bool) -> Option<Kind> {
        let (at, size, count) = (number(head, 32, 8), number(head, 54, 2), number(head, 56, 2));
        if size != PROGRAM_HEADER || count == 0 || count * size > 65536 {
            return None;
        }
        let length = status(self.0 as usize, c"".as_ptr() as usize, libc::AT_EMPTY_PATH as usize)?.st_size as usize;
        let (mut end, mut first, mut loader) = (0_usize, usize::MAX, None);
        for index in 0..count {
            let mut header = [0; PROGRAM_HEADER];
            if self.read(&mut header, at.checked_add(index * size)?)? != PROGRAM_HEADER {
                return None;
            }
            let field = |place: usize| number(&header, 8 + place * 8, 8);
            let (offset, address, in_file, in_memory) = (field(0), field(1), field(3), field(4));
            match number(&header, 0, 4) {
                PT_LOAD if in_memory != 0 => {
                    let last = address.checked_add(in_memory).filter(|last| *last <= TASK_SIZE)?;
                    let is_whole = offset.checked_add(in_file)? <= length && in_file <= in_memory;
                    if !is_whole || address < end || offset % PAGE != address % PAGE {
                        return None;
                    }
                    (first, end) = (first.min(address), last);
                }
                PT_INTERP => loader = Some((offset, in_file)),
                _ => {}
            }
        }
        let is_loadable = end != 0 && (!is_fixed || (LOW.contains(&first) && end <= LOW.end));
        let guest = is_loadable.then_some(Kind::Guest);
        let Some((offset, bytes)) = loader else { return guest };
        let mut name = [0; LINE_BYTES];
        if bytes >= LINE_BYTES || self.read(&mut name[..bytes], offset)? != bytes {
            return Some(Kind::Preloaded { is_fixed });
        }
        let path = name[..bytes].split(|byte| *byte == 0).next()?;
        match path.rsplit(|byte| *byte == b'/').next()?.starts_with(b"ld-musl") {
            // Without a loader, the kernel refuses it.
            true => File::open(libc::AT_FDCWD, name.as_ptr() as usize, 0).and(guest),
            false => Some(Kind::Preloaded { is_fixed }),
        }
    }

    /// Returns the reason why the program would run in secure-execution mode, if it would. In that mode ld.so(8)
    /// ignores a path in LD_PRELOAD. The kernel requests it when executing the file changes an ID or, for a user other
    /// than root, gives capabilities (security/commoncap.c).
    fn privileges(&self) -> Option<&'static str> {
        const ST_NOSUID: u64 = 2;
        const FLAGS: usize = 10;
        let ask = |number, args| {
            // SAFETY: asks about the process; takes no pointers.
            unsafe { sys::call(number, args) }
        };
        // struct statfs has 15 words; the libc crate does not name this one.
        let mut system = [0_u64; 15];
        // SAFETY: the kernel fills the structure.
        unsafe { sys::call(libc::SYS_fstatfs, [self.0 as usize, system.as_mut_ptr() as usize, 0, 0, 0, 0]) };
        let has_none = ask(libc::SYS_prctl, [libc::PR_GET_NO_NEW_PRIVS as usize, 0, 0, 0, 0, 0]) == 1;
        if has_none || system[FLAGS] & ST_NOSUID != 0 {
            return None;
        }
        let found = status(self.0 as usize, c"".as_ptr() as usize, libc::AT_EMPTY_PATH as usize)?;
        let (user, group) = (ask(libc::SYS_getuid, [0; 6]) as u32, ask(libc::SYS_getgid, [0; 6]) as u32);
        let by_group = libc::S_ISGID | libc::S_IXGRP;
        if found.st_mode & libc::S_ISUID != 0 && found.st_uid != user {
            return Some("it is set-user-ID");
        }
        if found.st_mode & by_group == by_group && found.st_gid != group {
            return Some("it is set-group-ID");
        }
        let mut value = [0_u8; 64];
        let name = c"security.capability".as_ptr() as usize;
        let attribute = [self.0 as usize, name, value.as_mut_ptr() as usize, value.len(), 0, 0];
        // SAFETY: the kernel writes no more than the array has.
        let has_capabilities = unsafe { sys::call(libc::SYS_fgetxattr, attribute) } > 0;
        (has_capabilities && user != 0).then_some("it has file capabilities")
    }
}

fn status(directory: usize, path: usize, flags: usize) -> Option<libc::stat> {
    let mut status = MaybeUninit::<libc::stat>::zeroed();
    let args = [directory, path, status.as_mut_ptr() as usize, flags, 0, 0];
    // SAFETY: the kernel reads the path, if it can, and fills the structure.
    unsafe { (sys::call(libc::SYS_newfstatat, args) == 0).then(|| status.assume_init()) }
}
