//! The system calls that the engine makes through rustix. They are made in this file, and nowhere else in the engine.
//!
//! Each function first passes one point, which all calls pass (`os/simulated.rs`), then calls rustix's function of
//! the same name. The point does nothing, except in the build that simulates the system. All other system calls go
//! through [`super::syscall`] and [`super::interruptible`].

#![expect(clippy::disallowed_methods, reason = "who calls these says why")]

use super::changes::{self, Change};
use super::linux::Made;
use super::{standard, ForNow};
use crate::Errno;
use core::ffi::c_void;
use core::mem::MaybeUninit;
use rustix::event::{epoll, EventfdFlags};
use rustix::fd::{AsFd, OwnedFd, RawFd};
use rustix::fs::{FallocateFlags, MemfdFlags, Mode, OFlags, RawDir, SealFlags, Stat, StatFs};
use rustix::mm::{MapFlags, MremapFlags, ProtFlags};
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use rustix::path::Arg;
use rustix::pipe::{PipeFlags, SpliceFlags};
use rustix::process::{Pid, Resource, Rlimit};

/// The point before a call that rustix makes. Returns the error with which a simulated system wants the call to fail.
#[cfg(not(feature = "simulated"))]
#[inline(always)]
const fn at(_: libc::c_long) -> Result<(), Errno> {
    Ok(())
}

#[cfg(feature = "simulated")]
use super::simulated::before as at;

macro_rules! calls {
    (by $way:path: $($(#[$about:meta])* $number:ident fn $name:ident $(<$($kind:ident: $bound:ident),+>)? ($($argument:ident: $type:ty),*)
        -> $answer:ty = $($path:ident)::+;)*) => {
        $($(#[$about])*
        ///
        /// # Errors
        /// Those of the call.
        #[inline(always)]
        #[cfg_attr(debug_assertions, track_caller)]
        pub fn $name $(<$($kind: $bound),+>)? ($($argument: $type),*) -> Result<$answer, Errno> {
            at(libc::$number)?;
            $way(|| $($path)::+($($argument),*))
        })*
    };
}

/// openat(2). On x86-64 rustix's `open` calls open(2), which filters for other processors do not know.
#[inline(always)]
fn open_by_path(path: impl Arg, flags: OFlags, mode: Mode) -> Result<OwnedFd, Errno> {
    rustix::fs::openat(rustix::fs::CWD, path, flags, mode)
}

/// Makes descriptors as [`standard::above`] does. They are the engine's for a moment.
#[inline(always)]
#[cfg_attr(debug_assertions, track_caller)]
fn above<T: Made>(make: impl FnOnce() -> Result<T, Errno>) -> Result<T::ForNow, Errno> {
    let _change = Change::begin();
    standard::above(make).map(Made::for_now)
}

#[inline(always)]
fn directly<T>(make: impl FnOnce() -> Result<T, Errno>) -> Result<T, Errno> {
    make()
}

macro_rules! calls_on_memory {
    ($($(#[$about:meta])* $number:ident fn $name:ident $(<$($kind:ident: $bound:ident),+>)? ($($argument:ident: $type:ty),*)
        -> $answer:ty = $($path:ident)::+;)*) => {
        $($(#[$about])*
        ///
        /// # Errors
        /// Those of the call.
        ///
        /// # Safety
        /// That of rustix's function: the call unmaps or changes memory at the addresses.
        #[inline(always)]
        pub unsafe fn $name $(<$($kind: $bound),+>)? ($($argument: $type),*) -> Result<$answer, Errno> {
            at(libc::$number)?;
            // SAFETY: the caller's promise is the same.
            unsafe { $($path)::+($($argument),*) }
        })*
    };
}

// Calls that make descriptors.
calls! {
    by above:
    /// epoll_create1(2).
    SYS_epoll_create1 fn epoll_create(flags: epoll::CreateFlags) -> ForNow = rustix::event::epoll::create;
    /// eventfd2(2).
    SYS_eventfd2 fn eventfd(count: u32, flags: EventfdFlags) -> ForNow = rustix::event::eventfd;
    /// memfd_create(2).
    SYS_memfd_create fn memfd_create<P: Arg>(name: P, flags: MemfdFlags) -> ForNow = rustix::fs::memfd_create;
    /// openat(2).
    SYS_openat fn open<P: Arg>(path: P, flags: OFlags, mode: Mode) -> ForNow = open_by_path;
    /// pipe2(2).
    SYS_pipe2 fn pipe_with(flags: PipeFlags) -> (ForNow, ForNow) = rustix::pipe::pipe_with;
    /// socketpair(2).
    SYS_socketpair fn socketpair(domain: AddressFamily, kind: SocketType, flags: SocketFlags,
        protocol: Option<rustix::net::Protocol>) -> (ForNow, ForNow) = rustix::net::socketpair;
}

calls! {
    by directly:
    /// fallocate(2).
    SYS_fallocate fn fallocate<F: AsFd>(file: F, mode: FallocateFlags, offset: u64, bytes: u64) -> ()
        = rustix::fs::fallocate;
    /// fcntl(2), F_ADD_SEALS.
    SYS_fcntl fn fcntl_add_seals<F: AsFd>(file: F, seals: SealFlags) -> () = rustix::fs::fcntl_add_seals;
    /// fcntl(2), F_GET_SEALS.
    SYS_fcntl fn fcntl_get_seals<F: AsFd>(file: F) -> SealFlags = rustix::fs::fcntl_get_seals;
    /// fcntl(2), F_DUPFD_CLOEXEC.
    SYS_fcntl fn fcntl_dupfd_cloexec<F: AsFd>(file: F, lowest: RawFd) -> OwnedFd = rustix::io::fcntl_dupfd_cloexec;
    /// fstatfs(2).
    SYS_fstatfs fn fstatfs<F: AsFd>(file: F) -> StatFs = rustix::fs::fstatfs;
    /// ftruncate(2).
    SYS_ftruncate fn ftruncate<F: AsFd>(file: F, bytes: u64) -> () = rustix::fs::ftruncate;
    /// pread64(2).
    SYS_pread64 fn pread<F: AsFd>(file: F, into: &mut [u8], offset: u64) -> usize = rustix::io::pread;
    /// read(2).
    SYS_read fn read<F: AsFd>(file: F, into: &mut [u8]) -> usize = rustix::io::read;
    /// setrlimit(2).
    SYS_prlimit64 fn setrlimit(of: Resource, limit: Rlimit) -> () = rustix::process::setrlimit;
    /// splice(2).
    SYS_splice fn splice<I: AsFd, O: AsFd>(from: I, from_offset: Option<&mut u64>, to: O, to_offset: Option<&mut u64>,
        bytes: usize, flags: SpliceFlags) -> usize = rustix::pipe::splice;
    /// stat(2).
    SYS_newfstatat fn stat<P: Arg>(path: P) -> Stat = rustix::fs::stat;
    /// tee(2).
    SYS_tee fn tee<I: AsFd, O: AsFd>(from: I, to: O, bytes: usize, flags: SpliceFlags) -> usize = rustix::pipe::tee;
    /// kill(2) with no signal: checks that there is such a process.
    SYS_kill fn test_kill_process(process: Pid) -> () = rustix::process::test_kill_process;
    /// pwrite(2).
    SYS_pwrite64 fn pwrite<F: AsFd>(file: F, from: &[u8], offset: u64) -> usize = rustix::io::pwrite;
    /// write(2).
    SYS_write fn write<F: AsFd>(file: F, from: &[u8]) -> usize = rustix::io::write;
}

calls_on_memory! {
    /// madvise(2).
    SYS_madvise fn madvise(address: *mut c_void, bytes: usize, advice: rustix::mm::Advice) -> () = rustix::mm::madvise;
    /// mmap(2) of a file.
    SYS_mmap fn mmap<F: AsFd>(address: *mut c_void, bytes: usize, protection: ProtFlags, flags: MapFlags, file: F,
        offset: u64) -> *mut c_void = rustix::mm::mmap;
    /// mmap(2) of memory.
    SYS_mmap fn mmap_anonymous(address: *mut c_void, bytes: usize, protection: ProtFlags, flags: MapFlags)
        -> *mut c_void = rustix::mm::mmap_anonymous;
    /// mremap(2).
    SYS_mremap fn mremap(old: *mut c_void, old_bytes: usize, bytes: usize, flags: MremapFlags) -> *mut c_void
        = rustix::mm::mremap;
    /// mremap(2) to a given address.
    SYS_mremap fn mremap_fixed(old: *mut c_void, old_bytes: usize, bytes: usize, flags: MremapFlags,
        address: *mut c_void) -> *mut c_void = rustix::mm::mremap_fixed;
    /// munmap(2).
    SYS_munmap fn munmap(address: *mut c_void, bytes: usize) -> () = rustix::mm::munmap;
}

/// fstat(2). It may wait for a file server on a network; [`super::file_status`] does not.
///
/// # Errors
/// Those of the call.
#[inline(always)]
pub fn fstat(file: impl AsFd) -> Result<Stat, Errno> {
    at(libc::SYS_fstat)?;
    rustix::fs::fstat(file)
}

/// readlink(2) into `room`. Returns the bytes of the name.
///
/// # Errors
/// Those of the call.
#[inline(always)]
pub fn readlink(path: impl Arg, room: &mut [u8]) -> Result<usize, Errno> {
    at(libc::SYS_readlinkat)?;
    rustix::fs::readlinkat_raw(rustix::fs::CWD, path, room)
}

/// Returns the entries of an open directory: getdents64(2).
#[inline(always)]
pub fn directory<F: AsFd>(open: F, room: &mut [MaybeUninit<u8>]) -> RawDir<'_, F> {
    let _ = at(libc::SYS_getdents64);
    RawDir::new(open, room)
}

/// Reads a whole file into a new string.
///
/// # Errors
/// Those of open(2) and read(2).
#[cfg_attr(debug_assertions, track_caller)]
pub fn read_text(path: &str) -> std::io::Result<String> {
    at(libc::SYS_openat)?;
    changes::change(|| standard::above(|| std::fs::read_to_string(path)))
}

/// Returns the target of a symbolic link.
///
/// # Errors
/// Those of readlink(2).
pub fn read_link(path: &str) -> std::io::Result<std::path::PathBuf> {
    at(libc::SYS_readlinkat)?;
    std::fs::read_link(path)
}

/// unlink(2).
///
/// # Errors
/// Those of the call.
pub fn remove_file(path: &std::path::Path) -> std::io::Result<()> {
    at(libc::SYS_unlinkat)?;
    std::fs::remove_file(path)
}

/// getrlimit(2). A seccomp filter may refuse the call, which rustix assumes cannot happen. The limit of descriptors
/// is then 1,024, with which Linux begins (`INR_OPEN_CUR`), so that some numbers are above it. All other limits are
/// then infinite.
pub fn getrlimit(of: Resource) -> Rlimit {
    let unknown = if of == Resource::Nofile { 1_024 } else { u64::MAX };
    let mut limits = [unknown, u64::MAX];
    super::syscall(libc::SYS_prlimit64, [0, of as usize, 0, limits.as_mut_ptr() as usize, 0, 0]);
    let [current, maximum] = limits.map(|limit| (limit != u64::MAX).then_some(limit)); // RLIM_INFINITY
    Rlimit { current, maximum }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    /// Functions of libc that do not bypass the point. They make no system call that fails or waits, or they end the
    /// process.
    const NOT_CALLS: [&str; 17] = [
        "clock_gettime",
        "getenv",
        "getauxval",
        "abort",
        "exit",
        "dl_iterate_phdr",
        "sysconf",
        "raise",
        "signal",
        "sigaction",
        "pthread_attr_init",
        "pthread_attr_setstacksize",
        "pthread_attr_setdetachstate",
        "pthread_attr_destroy",
        "pthread_key_create",
        "pthread_key_delete",
        "pthread_setspecific",
    ];
    /// Files in which system calls may be made.
    const WAYS_OUT: [&str; 5] =
        ["os/arch/aarch64.rs", "os/arch/x86_64.rs", "os/calls.rs", "os/linux.rs", "mutation.rs"];

    /// Returns the rest of each name that begins with `prefix` and that `text` calls.
    fn called<'a>(text: &'a str, prefix: &'a str) -> impl Iterator<Item = &'a str> {
        text.match_indices(prefix).filter_map(move |(at, _)| {
            let rest = &text[at + prefix.len()..];
            let end =
                rest.find(|it: char| !it.is_ascii_lowercase() && !it.is_ascii_digit() && !"_:".contains(it))?;
            rest[end..].starts_with('(').then_some(&rest[..end])
        })
    }

    fn visit(folder: &Path, root: &Path, found: &mut Vec<String>) {
        for entry in std::fs::read_dir(folder).expect("the sources").map(|entry| entry.expect("an entry").path()) {
            let name = entry.strip_prefix(root).expect("a file below").to_string_lossy().into_owned();
            if entry.is_dir() {
                visit(&entry, root, found);
                continue;
            }
            let tests = ["tests.rs", "faulting.rs", "in_child.rs", "refusing.rs", "failing.rs"];
            if WAYS_OUT.contains(&&*name) || tests.iter().any(|test| name.ends_with(test)) {
                continue;
            }
            let text = std::fs::read_to_string(&entry).expect("a source");
            let text = text.find("#[cfg(test)]\nmod ").map_or(&*text, |end| &text[..end]);
            let text = text.find("#[cfg(all(test").map_or(text, |end| &text[..end]);
            let kinds = ["event", "fs", "io", "mm", "net", "pipe", "process", "thread", "time"];
            let prefixes = kinds.map(|kind| format!("rustix::{kind}::"));
            let of_rustix = prefixes.iter().flat_map(|prefix| called(text, prefix));
            let of_rustix = of_rustix.filter(|it| !["makedev", "major", "minor"].contains(it));
            let of_libc = called(text, "libc::").filter(|it| !NOT_CALLS.contains(it));
            let of_std = called(text, "std::fs::");
            let calls = of_rustix.chain(of_libc).chain(of_std);
            found.extend(calls.map(|call| format!("{name}: {call}")));
            if text.contains("arch::asm!(") {
                found.push(format!("{name}: an instruction"));
            }
        }
    }

    #[test]
    fn limits_are_what_the_kernel_says_or_begins_with() {
        use rustix::process::Resource::Nofile;
        let refused = || super::getrlimit(Nofile);
        let begins = rustix::process::Rlimit { current: Some(1_024), maximum: None };
        assert_eq!(super::getrlimit(Nofile), rustix::process::getrlimit(Nofile));
        assert_eq!(crate::os::refusing::refusing(&[(libc::SYS_prlimit64, None, libc::EPERM)], refused), begins);
    }

    #[test]
    fn every_call_leaves_through_one_point() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
        let mut found = Vec::new();
        visit(&root, &root, &mut found);
        assert!(found.is_empty(), "past os::calls and os::syscall: {found:#?}");
    }
}
