//! LD_PRELOAD of a program that is executed. ld.so(8) prints on the program's standard error which entries it cannot
//! load. The library's entry is therefore left out if the process cannot reach the file (after chroot(2), or as another
//! user). It is also left out for a program of another kind of processor, such as a 32-bit program.

use super::{peek, text, with_copy, Environment};
use crate::sys;

/// The variable's name in an environment.
pub const NAME: &[u8] = b"LD_PRELOAD=";
/// The longest list that is changed. Longer ones are left as they are.
pub const LONGEST: usize = 512;

/// Calls `then` with the environment at `list`, without those of the library's entries that cannot be loaded. For a
/// foreign program, all of the library's entries are left out.
pub fn loadable(list: usize, is_foreign: bool, then: &mut dyn FnMut(usize)) {
    let environment = Environment::read(list);
    let (mut rest, mut string, mut is_given) = ([0; LONGEST], [0; LONGEST + NAME.len()], false);
    if let Some(rest) =
        environment.preloads.then(|| shortened(environment.preload, is_foreign, &mut rest)).flatten()
    {
        with_copy(list, 1, &mut |words| {
            let Some(at) = words.iter().position(|word| *word == environment.preload - NAME.len()) else { return };
            match text(&mut string, &[NAME, rest], None) {
                Some(string) if !rest.is_empty() => words[at] = string,
                _ => words.copy_within(at + 1.., at),
            }
            is_given = true;
            then(words.as_ptr() as usize);
        });
    }
    if !is_given {
        then(list);
    }
}

/// Returns the list at `value` without those of the library's entries that cannot be loaded, or, if `all`, without any
/// of them. `None` if nothing would be removed.
pub fn shortened(value: usize, all: bool, into: &mut [u8; LONGEST]) -> Option<&[u8]> {
    let mut list = [0; LONGEST];
    let list = peek(value, &mut list);
    if list.len() == LONGEST {
        return None;
    }
    let (mut length, mut is_shorter) = (0, false);
    for entry in list.split(|byte| b": ".contains(byte)).filter(|entry| !entry.is_empty()) {
        if is_ours(entry) && (all || !can_be_loaded(entry)) {
            is_shorter = true;
            continue;
        }
        let colon: &[u8] = if length == 0 { b"" } else { b":" };
        for part in [colon, entry] {
            into[length..length + part.len()].copy_from_slice(part);
            length += part.len();
        }
    }
    is_shorter.then(|| &into[..length])
}

/// True if one of the library's entries in the list at `value` cannot be loaded.
pub fn is_absent(value: usize) -> bool {
    shortened(value, false, &mut [0; LONGEST]).is_some()
}

/// True if an entry names the library's file by a path. An entry without a slash, for which ld.so(8) searches, does not
/// count. Nor does an entry with a `$`, which only ld.so(8) can expand.
fn is_ours(entry: &[u8]) -> bool {
    let mut parts = entry.rsplit(|byte| *byte == b'/');
    parts.next().is_some_and(|file| file.starts_with(b"libanyring"))
        && parts.next().is_some()
        && !entry.contains(&b'$')
}

/// True if the process may read the file and map it executable, as ld.so(8) does.
pub fn can_be_loaded(file: &[u8]) -> bool {
    let mut path = [0; LONGEST + 1];
    let Some(path) = text(&mut path, &[file], None) else { return false };
    let open =
        [libc::AT_FDCWD as usize, path, (libc::O_RDONLY | libc::O_CLOEXEC | libc::O_NONBLOCK) as usize, 0, 0, 0];
    // SAFETY: the kernel reads a path in this function's memory. Nothing else uses the descriptor and the mapping, and
    // both are released at once.
    unsafe {
        let number = sys::call(libc::SYS_openat, open);
        if number < 0 {
            // A lack of descriptor numbers or memory does not count: the new program will not suffer from it.
            return [libc::EMFILE, libc::ENFILE, libc::ENOMEM, libc::EINTR].contains(&(-number as i32));
        }
        let (protection, flags) = (libc::PROT_READ | libc::PROT_EXEC, libc::MAP_PRIVATE);
        let page = sys::call(libc::SYS_mmap, [0, 1, protection as usize, flags as usize, number as usize, 0]);
        sys::call(libc::SYS_close, [number as usize, 0, 0, 0, 0, 0]);
        if !(-4095..0).contains(&page) {
            sys::call(libc::SYS_munmap, [page as usize, 1, 0, 0, 0, 0]);
        }
        // EPERM and EACCES: a file system mounted noexec, or a security policy.
        page != -(libc::EPERM as isize) && page != -(libc::EACCES as isize)
    }
}
