//! libc's `syscall()`, the variadic function for any system call. Most language bindings call io_uring through it.
//!
//! Programs also use it for clone, vfork and the fast paths of language run-times, which must not be disturbed. A
//! number that is not served here therefore passes through a few instructions of assembly without a stack frame, as in
//! libc.

use crate::{arch, dispatch, entry, sys};
use anyring_engine::descriptors::level;
use anyring_engine::forced::{point, Point};
use anyring_engine::identity;
use anyring_engine::process::{concerns_number, concerns_range};
use anyring_serve::descriptor::{record_fcntl, rings_exist};
use anyring_serve::dispatch::{DUP2, EPOLL_WAIT, POLL, SELECT};
use anyring_serve::named;
use anyring_serve::signals::guarded;

/// One bit for each number in [`ALWAYS`] and [`named::CALLS`].
static OURS: [u64; LIMIT / 64] = ours();
/// One bit for each number in [`dispatch::NUMBERS`] and [`identity::NUMBERS`], and for execve(2), execveat(2) and
/// exit(2). An exit(2) by the program's own instruction is not handled: such a thread may have no stack left to trap
/// on.
const ALWAYS: [u64; LIMIT / 64] = always();
const LIMIT: usize = 512;

const fn always() -> [u64; LIMIT / 64] {
    let map = with(with([0; LIMIT / 64], dispatch::NUMBERS), &identity::NUMBERS);
    with(map, &[libc::SYS_exit, libc::SYS_execve, libc::SYS_execveat])
}

const fn ours() -> [u64; LIMIT / 64] {
    let mut map = with(ALWAYS, arch::LENDERS);
    let mut index = 0;
    while index < named::CALLS.len() {
        map = with(map, &[named::CALLS[index].number]);
        index += 1;
    }
    map
}

const fn with(mut map: [u64; LIMIT / 64], numbers: &[i64]) -> [u64; LIMIT / 64] {
    let mut index = 0;
    while index < numbers.len() {
        let number = numbers[index] as usize;
        map[number / 64] |= 1 << (number % 64);
        index += 1;
    }
    map
}

/// syscall(2).
///
/// # Safety
/// As libc's `syscall`: the number and arguments as the system call's manual page says.
#[cfg_attr(not(test), no_mangle)]
#[unsafe(naked)]
pub unsafe extern "C" fn syscall() -> isize {
    arch::syscall!(LIMIT, OURS, special)
}

/// True if the call is the kernel's alone. [`dispatch::call`] would do nothing else for it.
fn passes(number: i64, args: &[usize; 6]) -> bool {
    let [a, b, c, d, e, _] = *args;
    let stays = |mask| mask == 0 || guarded() == 0;
    !named::may_be_refused(number, args)
        && match number {
            libc::SYS_close => !concerns_number(a as i32),
            DUP2 => !concerns_number(b as i32),
            libc::SYS_dup3 => !concerns_number(b as i32),
            libc::SYS_close_range => c == 0 && !concerns_range(a as u32, b as u32),
            libc::SYS_fcntl | libc::SYS_epoll_ctl => true,
            libc::SYS_mmap => !named::concerns(e as i32),
            EPOLL_WAIT => !level::any(),
            libc::SYS_epoll_pwait | libc::SYS_epoll_pwait2 => stays(e) && !level::any(),
            POLL | SELECT => !rings_exist(),
            libc::SYS_sendmsg | libc::SYS_sendmmsg => !rings_exist(),
            libc::SYS_ppoll => stays(d) && !rings_exist(),
            _ => ALWAYS[number as usize / 64] & (1 << (number % 64)) == 0,
        }
}

/// Serves the numbers in [`OURS`], and answers as libc does.
///
/// # Safety
/// `words` points to the number and its six arguments.
unsafe extern "C" fn special(words: *const [usize; 7]) -> isize {
    // SAFETY: the assembly above passes the array that it just built on its stack.
    let [number, args @ ..] = unsafe { &*words };
    if *number as i64 == libc::SYS_fcntl {
        record_fcntl(args[1] as i32);
    }
    if !passes(*number as i64, args) {
        return serve(*number as i64, args);
    }
    // SAFETY: the program's own call.
    entry::libc_answer(unsafe { sys::call(*number as i64, *args) })
}

fn serve(number: i64, args: &[usize; 6]) -> isize {
    if dispatch::is_prepared_only(number) {
        let mut verdict = Ok(());
        entry::aside(|| verdict = dispatch::prepare(number, args));
        return entry::libc_answer(match verdict {
            // SAFETY: the program's own call.
            Ok(()) => unsafe { sys::call(number, *args) },
            Err(error) => -(error.raw_os_error() as isize),
        });
    }
    entry::libc_answer(entry::answer_any(|| {
        point(Point::Syscall);
        dispatch::call(number, *args)
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    type Syscall = unsafe extern "C" fn(usize, usize, usize, usize, usize, usize, usize) -> isize;

    fn ours() -> Syscall {
        // SAFETY: a variadic call passes integers as these named parameters are passed.
        unsafe { core::mem::transmute(syscall as unsafe extern "C" fn() -> isize) }
    }

    #[test]
    fn ordinary_numbers_answer_as_libc_does() {
        // SAFETY: getpid takes nothing; close(-1) and mmap of nothing only fail.
        unsafe {
            assert_eq!(ours()(libc::SYS_getpid as usize, 0, 0, 0, 0, 0, 0), libc::getpid() as isize);
            crate::sys::set_errno(0);
            assert_eq!(ours()(libc::SYS_lseek as usize, usize::MAX, 0, 0, 0, 0, 0), -1);
            assert_eq!(crate::sys::errno(), libc::EBADF);
            crate::sys::set_errno(77);
            assert!(ours()(libc::SYS_gettid as usize, 0, 0, 0, 0, 0, 0) > 0);
            assert_eq!(crate::sys::errno(), 77);
        }
    }

    #[test]
    fn special_numbers_answer_as_libc_does() {
        // SAFETY: the descriptor is invalid, so nothing is closed; the second mapping is new and unmapped again.
        unsafe {
            assert_eq!(ours()(libc::SYS_close as usize, usize::MAX, 0, 0, 0, 0, 0), -1);
            assert_eq!(crate::sys::errno(), libc::EBADF);
            let flags = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS) as usize;
            let page = ours()(libc::SYS_mmap as usize, 0, 4096, libc::PROT_READ as usize, flags, usize::MAX, 0);
            assert_ne!(page, -1);
            assert_eq!(libc::munmap(page as *mut _, 4096), 0);
            assert_eq!(ours()(usize::MAX, 0, 0, 0, 0, 0, 0), -1);
            assert_eq!(crate::sys::errno(), libc::ENOSYS);
        }
    }
}
