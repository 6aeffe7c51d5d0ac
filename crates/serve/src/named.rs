//! The owner of a descriptor number, and what a call that names it may do.
//!
//! The engine's own numbers are not open for the program. A call that changes, duplicates, reads or writes such a
//! descriptor fails with EBADF. So it is not damaged, nor inherited by a program that is executed. anyring's ring
//! descriptors are sockets. If a call has another result on a kernel ring than on a socket, the program gets the
//! result that the kernel ring would give.
//!
//! Calls that only query a descriptor pass: fstat(2), lseek(2), and F_GETFD. A program that searches for free numbers
//! must find these numbers taken, since dup2(2) onto them is refused.

use crate::door::{self, KNOWN_NUMBERS};
use crate::filters::bpf;
use anyring_engine::mutation::{mutated, Mutation};
use anyring_engine::{descriptors, process, Errno};
use core::ops::Range;

/// A system call that names descriptors.
pub struct Row {
    /// Its number.
    pub number: i64,
    /// The arguments that name descriptors.
    pub names: &'static [usize],
    on_ring: OnRing,
    /// True if filters trap the call when its first argument is in the range of known numbers. False for calls that
    /// move data, wait, or are made for each connection. A program with many descriptors would pay for a trap each
    /// time.
    is_trapped: bool,
}

/// The answer to a call that names a ring's number. Source: `io_uring_fops` in io_uring/io_uring.c, and such calls made
/// on rings of the kernel.
enum OnRing {
    /// The call is made on the socket that the ring's descriptor is.
    Passes,
    Fails(Errno),
    /// A call at the current offset fails with EINVAL. The kernel answers other calls, as for a socket.
    Positioned,
    /// The call fails with ENOTTY, except for requests that `do_vfs_ioctl` in fs/ioctl.c answers for every file.
    Ioctl,
}

const fn row(number: i64, names: &'static [usize], on_ring: OnRing) -> Row {
    Row { number, names, on_ring, is_trapped: false }
}

const fn rare(number: i64, on_ring: OnRing) -> Row {
    Row { number, names: &[0], on_ring, is_trapped: true }
}

const INVALID: OnRing = OnRing::Fails(Errno::INVAL);
const NO_SOCKET: OnRing = OnRing::Fails(Errno::NOTSOCK);
const UNSUPPORTED: OnRing = OnRing::Fails(Errno::OPNOTSUPP);

/// The calls, including those that [`crate::descriptor`] handles too.
pub const CALLS: &[Row] = &[
    rare(libc::SYS_fcntl, OnRing::Passes),
    rare(libc::SYS_ioctl, OnRing::Ioctl),
    rare(libc::SYS_dup, OnRing::Passes),
    rare(libc::SYS_dup3, OnRing::Passes),
    #[cfg(target_arch = "x86_64")]
    rare(libc::SYS_dup2, OnRing::Passes),
    rare(libc::SYS_ftruncate, OnRing::Passes),
    rare(libc::SYS_fallocate, OnRing::Fails(Errno::NODEV)),
    rare(libc::SYS_fchmod, UNSUPPORTED),
    rare(libc::SYS_fchown, UNSUPPORTED),
    rare(libc::SYS_shutdown, NO_SOCKET),
    rare(libc::SYS_setsockopt, NO_SOCKET),
    row(libc::SYS_getsockopt, &[0], NO_SOCKET),
    row(libc::SYS_bind, &[0], NO_SOCKET),
    row(libc::SYS_listen, &[0], NO_SOCKET),
    row(libc::SYS_connect, &[0], NO_SOCKET),
    row(libc::SYS_accept, &[0], NO_SOCKET),
    row(libc::SYS_accept4, &[0], NO_SOCKET),
    row(libc::SYS_getsockname, &[0], NO_SOCKET),
    row(libc::SYS_getpeername, &[0], NO_SOCKET),
    row(libc::SYS_sendto, &[0], NO_SOCKET),
    row(libc::SYS_sendmsg, &[0], NO_SOCKET),
    row(libc::SYS_sendmmsg, &[0], NO_SOCKET),
    row(libc::SYS_recvfrom, &[0], NO_SOCKET),
    row(libc::SYS_recvmsg, &[0], NO_SOCKET),
    row(libc::SYS_recvmmsg, &[0], NO_SOCKET),
    row(libc::SYS_read, &[0], INVALID),
    row(libc::SYS_write, &[0], INVALID),
    row(libc::SYS_readv, &[0], INVALID),
    row(libc::SYS_writev, &[0], INVALID),
    row(libc::SYS_pread64, &[0], OnRing::Passes),
    row(libc::SYS_pwrite64, &[0], OnRing::Passes),
    row(libc::SYS_preadv, &[0], OnRing::Passes),
    row(libc::SYS_pwritev, &[0], OnRing::Passes),
    row(libc::SYS_preadv2, &[0], OnRing::Positioned),
    row(libc::SYS_pwritev2, &[0], OnRing::Positioned),
    row(libc::SYS_sendfile, &[0, 1], INVALID),
    row(libc::SYS_splice, &[0, 2], INVALID),
    row(libc::SYS_tee, &[0, 1], INVALID),
    row(libc::SYS_copy_file_range, &[0, 2], INVALID),
    row(libc::SYS_vmsplice, &[0], OnRing::Fails(Errno::BADF)),
    row(libc::SYS_timerfd_settime, &[0], OnRing::Passes),
    row(libc::SYS_epoll_ctl, &[0, 2], OnRing::Passes),
    #[cfg(target_arch = "x86_64")]
    row(libc::SYS_epoll_wait, &[0], OnRing::Passes),
    row(libc::SYS_epoll_pwait, &[0], OnRing::Passes),
    row(libc::SYS_epoll_pwait2, &[0], OnRing::Passes),
];

/// Other calls that filters trap, each with the argument that must be in the range of known numbers.
const OTHERS: &[(i64, usize)] = &[
    (libc::SYS_close, 0),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_dup2, 1),
    (libc::SYS_dup3, 1),
    (libc::SYS_epoll_ctl, 2),
    (libc::SYS_mmap, 4),
];

/// The standard descriptors' numbers. Filters trap their close, too, since the engine keeps track of whether they are
/// free.
const STANDARD: Range<i32> = 0..3;

/// Returns the calls that filters trap, each with the argument that must be in the range of known numbers.
pub fn trapped() -> impl Iterator<Item = (i64, usize)> {
    CALLS.iter().filter(|row| row.is_trapped).map(|row| (row.number, 0)).chain(OTHERS.iter().copied())
}

/// Makes a filter select these calls.
pub fn find(found: &mut bpf::Calls) {
    for index in 0..6 {
        let numbers: Vec<i64> = trapped().filter(|(_, of)| *of == index).map(|(number, _)| number).collect();
        if !numbers.is_empty() {
            found.within(&numbers, index, KNOWN_NUMBERS);
        }
    }
    found.within(&[libc::SYS_close], 0, STANDARD);
}

/// True if a call that names `fd` may be refused at all. The check costs two loads.
#[inline]
pub fn concerns(fd: i32) -> bool {
    door::is_own(fd) || door::is_ring(fd)
}

/// The arguments of each of [`CALLS`] that are descriptors, one bit for each argument, by system call number.
static NAMES: [u8; CALLS_END] = names();
/// One past the highest number in [`CALLS`], rounded up.
const CALLS_END: usize = 512;

const fn names() -> [u8; CALLS_END] {
    let (mut all, mut index) = ([0; CALLS_END], 0);
    while index < CALLS.len() {
        let (row, mut at) = (&CALLS[index], 0);
        while at < row.names.len() {
            all[row.number as usize] |= 1 << row.names[at];
            at += 1;
        }
        index += 1;
    }
    all
}

/// True if system call `number` names a descriptor for which it may be refused.
#[inline]
pub fn may_be_refused(number: i64, args: &[usize; 6]) -> bool {
    let mut names = NAMES.get(number as usize).copied().unwrap_or(0);
    while names != 0 {
        if concerns(args[names.trailing_zeros() as usize] as i32) {
            return true;
        }
        names &= names - 1;
    }
    false
}

/// Checks that system call `number` may name the descriptors in these arguments.
///
/// # Errors
/// The error that answers the call instead.
pub fn check(number: i64, args: &[usize; 6]) -> Result<(), Errno> {
    if !may_be_refused(number, args) || mutated(Mutation::OwnNumbersAreOpen) {
        return Ok(());
    }
    let Some(row) = CALLS.iter().find(|row| row.number == number) else { return Ok(()) };
    row.names.iter().try_for_each(|argument| row.check_number(args[*argument] as i32, args))
}

impl Row {
    fn check_number(&self, fd: i32, args: &[usize; 6]) -> Result<(), Errno> {
        if door::is_own(fd) {
            let only_asks = self.number == libc::SYS_fcntl && args[1] as i32 == libc::F_GETFD;
            return if only_asks { Ok(()) } else { Err(Errno::BADF) };
        }
        let refusal = match self.on_ring {
            OnRing::Passes => return Ok(()),
            OnRing::Fails(error) => error,
            OnRing::Positioned if args[3] == usize::MAX => Errno::INVAL,
            OnRing::Positioned => return Ok(()),
            OnRing::Ioctl if OF_EVERY_FILE.contains(&(args[1] as u32)) => return Ok(()),
            OnRing::Ioctl => Errno::NOTTY,
        };
        // After a close that was not seen, a ring's former number may be the program's file by now.
        match descriptors::is_ring(fd) && process::verified_ring(fd).is_some() {
            true => Err(refusal),
            false => Ok(()),
        }
    }
}

/// FIONBIO, FIOASYNC, FIOCLEX and FIONCLEX, which act on the descriptor, or the open file description, of any file.
/// Source: fs/ioctl.c.
const OF_EVERY_FILE: [u32; 4] =
    [libc::FIONBIO as u32, libc::FIOASYNC as u32, libc::FIOCLEX as u32, libc::FIONCLEX as u32];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_numbers_are_open_to_questions_only() {
        let own = descriptors::duplicate(2).expect("stderr is open");
        let on = |number, argument: usize| {
            let mut args = [2, usize::MAX, 0, usize::MAX, 0, 0];
            args[argument] = own as usize;
            check(number, &args)
        };
        for row in CALLS {
            for argument in row.names {
                assert_eq!(on(row.number, *argument), Err(Errno::BADF), "{}", row.number);
            }
        }
        assert_eq!(on(libc::SYS_write, 2), Ok(()), "a count");
        assert_eq!(on(libc::SYS_fstat, 0), Ok(()));
        assert_eq!(check(libc::SYS_fcntl, &[own as usize, libc::F_GETFD as usize, 0, 0, 0, 0]), Ok(()));
        descriptors::close(own);
        assert_eq!(on(libc::SYS_write, 0), Ok(()), "the program's, once it is closed");
    }
}
