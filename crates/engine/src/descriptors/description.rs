//! Compares the files that descriptors name.

use super::ends;
use crate::os::calls;
use crate::os::{check, file_status, is_permitted, syscall, Os, Question, Sys};
use crate::{descriptors, Errno};

/// Returns a number that identifies the socket `fd` names, or `None` if that is no socket. The number is SO_COOKIE.
/// If that is missing (gVisor, qemu's user emulation), it is the inode number, which is unique in its file system.
/// Where rings are pipes (`ends`), a pipe has such a number, too.
pub fn cookie_of(fd: i32) -> Option<u64> {
    if !ASKS_SOCKETS.is_always_yes() {
        return inode_of_socket(fd);
    }
    let (mut cookie, mut size) = (0u64, 8u32);
    let (value, length) = (&mut cookie as *mut u64 as usize, &mut size as *mut u32 as usize);
    let args = [fd as usize, libc::SOL_SOCKET as usize, libc::SO_COOKIE as usize, value, length, 0];
    match check(syscall(libc::SYS_getsockopt, args)) {
        Ok(_) => Some(cookie),
        Err(Errno::NOPROTOOPT | Errno::PERM | Errno::OPNOTSUPP | Errno::INVAL) => inode_of_socket(fd),
        Err(Errno::NOTSOCK) => ends::may_be_pipes().then(|| ends::identity(fd)).flatten(),
        Err(_) => None,
    }
}

/// Whether getsockopt(2) is permitted.
pub(crate) static ASKS_SOCKETS: Question = Question::new(|| {
    let (mut value, mut bytes) = (0u32, size_of::<u32>() as u32);
    let [value, bytes] = [&raw mut value, &raw mut bytes].map(|at| at as usize);
    is_permitted(libc::SYS_getsockopt, [usize::MAX, 0, 0, value, bytes, 0])
});

#[cold]
fn inode_of_socket(fd: i32) -> Option<u64> {
    let status = file_status(fd).ok()?;
    match status.kind {
        libc::S_IFSOCK => Some(status.inode),
        libc::S_IFIFO if ends::may_be_pipes() => ends::identity(fd),
        _ => None,
    }
}

/// True if two numbers name the same open file description. Asks F_DUPFD_QUERY (Linux 6.10), else kcmp(2), else
/// epoll, which distinguishes descriptions itself. False for files that none of the three can compare. epoll refuses
/// regular files and directories.
pub fn same_description(one: i32, other: i32) -> bool {
    const F_DUPFD_QUERY: usize = 1027;
    const KCMP_FILE: usize = 0;
    if one == other {
        return true;
    }
    let queried = syscall(libc::SYS_fcntl, [one as usize, F_DUPFD_QUERY, other as usize, 0, 0, 0]);
    if queried >= 0 {
        return queried == 1;
    }
    let pid = Sys::process_id() as usize;
    match syscall(libc::SYS_kcmp, [pid, pid, KCMP_FILE, one as usize, other as usize, 0]) {
        answer @ 0.. => answer == 0,
        _ => same_for_epoll(one, other).unwrap_or(false),
    }
}

/// Compares two descriptions by epoll(7), which keys its entries by number and description. A duplicate of `one` is
/// added to the set, then replaced by a duplicate of `other`, and added again. That fails with EEXIST only if the
/// description is the same.
fn same_for_epoll(one: i32, other: i32) -> Result<bool, Errno> {
    let epoll = calls::epoll_create(rustix::event::epoll::CreateFlags::CLOEXEC)?;
    let epoll = rustix::fd::AsRawFd::as_raw_fd(&epoll);
    let watch = |number| Sys::epoll_ctl(epoll, libc::EPOLL_CTL_ADD, number, 0, 0);
    // Fails for regular files, so no duplicate of one is made. Closing such a duplicate would give up the program's
    // POSIX locks on the file.
    watch(one)?;
    watch(other)?;
    let number = descriptors::duplicate_in_flight(one)?;
    let compare = || {
        watch(number)?;
        check(syscall(libc::SYS_dup3, [other as usize, number as usize, libc::O_CLOEXEC as usize, 0, 0, 0]))?;
        Ok(watch(number) == Err(Errno::EXIST))
    };
    let answer = compare();
    descriptors::close(number);
    answer
}

#[cfg(test)]
mod tests;
