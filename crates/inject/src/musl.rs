//! Functions that musl or an older glibc lacks.
//!
//! A program that inherited LD_PRELOAD and is linked with musl must start and run, although it is not served. musl's
//! loader ends a program if a preloaded library needs a library or function that the loader cannot find. So
//! libanyring.so needs only libraries that musl provides itself (build.rs), and none of the functions that only glibc
//! has.
//!
//! Programs with an older glibc, from 2.17 on, are served like those with a new one. The standard library and the
//! unwinder call some functions that musl or an older glibc may lack. They are defined here, hidden in this library.
//! Where libc has the function, the definition here calls it.

use crate::arch;
use crate::next::next;
use crate::sys::{call, set_errno};
use core::ffi::{c_char, c_int, c_void};
use libc::dl_phdr_info;

next! {
    FIND_OBJECT = c"_dl_find_object": fn(*mut c_void, *mut Found) -> c_int;
    VERSION = c"gnu_get_libc_version": fn() -> *const c_char;
}

/// True if the process's libc is glibc, which the engine requires. Checks for one of glibc's stream objects. Libraries
/// that add glibc's functions to musl do not define it.
#[cfg(not(test))]
pub fn is_glibc() -> bool {
    // SAFETY: a C string.
    !unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"_IO_2_1_stdout_".as_ptr()) }.is_null()
}

/// `struct dl_find_object`.
#[repr(C)]
pub struct Found {
    flags: u64,
    start: *const c_void,
    end: *const c_void,
    link_map: *const c_void,
    /// PT_GNU_EH_FRAME: the only field that unwinders use.
    eh_frame: *const c_void,
    reserved: [u64; 7],
}

/// Works like glibc's `_dl_find_object`, which exists since 2.35. Returns 0, or -1 for an unknown address.
unsafe extern "C" fn find_object(address: *mut c_void, found: *mut Found) -> c_int {
    match FIND_OBJECT.get() {
        // SAFETY: the unwinder's own arguments.
        Some(next) => unsafe { next(address, found) },
        // SAFETY: `found` has room for the answer.
        None => unsafe { search(address, &mut *found) },
    }
}

/// Answers [`find_object`] from the list of objects, as unwinders did before that function existed.
fn search(address: *mut c_void, found: &mut Found) -> c_int {
    unsafe extern "C" fn visit(info: *mut dl_phdr_info, _size: usize, found: *mut c_void) -> c_int {
        // SAFETY: the loader describes an object and keeps its program headers mapped; `found` is our argument.
        let (info, headers, found) = unsafe {
            let headers = core::slice::from_raw_parts((*info).dlpi_phdr, (*info).dlpi_phnum.into());
            (&*info, headers, &mut *found.cast::<Found>())
        };
        let at = |header: &libc::Elf64_Phdr| (info.dlpi_addr as usize).wrapping_add(header.p_vaddr as usize);
        let is_of = |header: &&libc::Elf64_Phdr| {
            let offset = (found.start as usize).wrapping_sub(at(header));
            header.p_type == libc::PT_LOAD && offset < header.p_memsz as usize
        };
        let frames = headers.iter().find(|header| header.p_type == libc::PT_GNU_EH_FRAME);
        match (headers.iter().find(is_of), frames) {
            (Some(segment), Some(frames)) => {
                let (start, size, frames) = (at(segment), segment.p_memsz as usize, at(frames));
                (found.start, found.end) = (start as *const c_void, (start + size) as *const c_void);
                found.eh_frame = frames as *const c_void;
                1
            }
            _ => 0,
        }
    }
    let null = core::ptr::null();
    *found = Found { flags: 0, start: address, end: null, link_map: null, eh_frame: null, reserved: [0; 7] };
    // SAFETY: `visit` is called with `found` before this returns.
    let is_found = unsafe { libc::dl_iterate_phdr(Some(visit), (&raw mut *found).cast()) };
    is_found - 1
}

/// Works like glibc's `gnu_get_libc_version`. The standard library checks the version before it uses functions of newer
/// releases.
extern "C" fn version() -> *const c_char {
    match VERSION.get() {
        // SAFETY: takes no arguments.
        Some(next) => unsafe { next() },
        None => c"0".as_ptr(),
    }
}

/// stat(2), lstat(2) and fstat(2), which are functions of glibc since 2.33; `struct stat` is the kernel's on 64-bit
/// machines.
unsafe extern "C" fn stat(path: *const c_char, stat: *mut c_void) -> c_int {
    // SAFETY: the caller's own arguments.
    unsafe { call_as_libc(libc::SYS_newfstatat, [libc::AT_FDCWD as usize, path as usize, stat as usize, 0, 0, 0]) }
}

unsafe extern "C" fn lstat(path: *const c_char, stat: *mut c_void) -> c_int {
    let flags = libc::AT_SYMLINK_NOFOLLOW as usize;
    // SAFETY: the caller's own arguments.
    unsafe {
        call_as_libc(libc::SYS_newfstatat, [libc::AT_FDCWD as usize, path as usize, stat as usize, flags, 0, 0])
    }
}

unsafe extern "C" fn fstat(fd: c_int, stat: *mut c_void) -> c_int {
    // SAFETY: the caller's own arguments.
    unsafe { call_as_libc(libc::SYS_fstat, [fd as usize, stat as usize, 0, 0, 0, 0]) }
}

/// Makes a call, and answers as libc does.
///
/// # Safety
/// As for [`call`].
unsafe fn call_as_libc(number: i64, args: [usize; 6]) -> c_int {
    // SAFETY: the caller's promise.
    let result = unsafe { call(number, args) };
    if result < 0 {
        set_errno(-result as c_int);
        return -1;
    }
    0
}

// Not #[no_mangle], which would pre-empt the program's own.
macro_rules! hidden {
    ($($name:literal = $function:ident;)*) => {
        core::arch::global_asm!(
            $(concat!(
                ".globl ", $name, "\n.hidden ", $name, "\n.type ", $name, ", @function\n",
                $name, ": ", arch::jump!(), " {", stringify!($function), "}"
            ),)*
            $($function = sym $function,)*
        );
    };
}

hidden! {
    "_dl_find_object" = find_object;
    "gnu_get_libc_version" = version;
    "stat64" = stat;
    "lstat64" = lstat;
    "fstat64" = fstat;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(find: impl FnOnce(&mut Found) -> c_int) -> (c_int, Found) {
        let null = core::ptr::null();
        let mut found =
            Found { flags: 0, start: null, end: null, link_map: null, eh_frame: null, reserved: [0; 7] };
        (find(&mut found), found)
    }

    /// Unwinding on an older glibc relies on the search alone.
    #[test]
    fn the_search_finds_what_glibc_finds() {
        let Some(glibcs) = FIND_OBJECT.get() else { return };
        for address in [search as *const () as *mut c_void, libc::malloc as *const () as *mut c_void] {
            // SAFETY: any address, and room for the answer.
            let (status, expected) = asked(|found| unsafe { glibcs(address, found) });
            let (own_status, own) = asked(|found| search(address, found));
            assert_eq!((own_status, own.eh_frame), (status, expected.eh_frame));
            assert!(status == 0 && (own.start..own.end).contains(&address.cast_const()));
        }
        assert_eq!(asked(|found| search(core::ptr::without_provenance_mut(8), found)).0, -1);
    }

    #[test]
    fn files_are_described_as_by_libc() {
        let mut statuses = [[0u64; 18]; 3];
        // SAFETY: `struct stat` has 144 bytes or fewer.
        unsafe {
            let file = libc::open(c"/proc/self/exe".as_ptr(), libc::O_RDONLY);
            assert_eq!(stat(c"/proc/self/exe".as_ptr(), statuses[0].as_mut_ptr().cast()), 0);
            assert_eq!(fstat(file, statuses[1].as_mut_ptr().cast()), 0);
            assert_eq!(lstat(c"/proc/self/exe".as_ptr(), statuses[2].as_mut_ptr().cast()), 0);
            libc::close(file);
            assert_eq!(stat(c"/nowhere".as_ptr(), statuses[0].as_mut_ptr().cast()), -1);
        }
        assert_eq!(std::io::Error::last_os_error().raw_os_error(), Some(libc::ENOENT));
        assert_eq!(statuses[0][1], statuses[1][1], "the number of the file");
        assert_ne!(statuses[0][1], statuses[2][1], "of the link");
    }
}
