//! Tests that descriptors are distinguished, with and without the system calls for it.

use super::*;
use crate::os::refusing::{refusing, Refusal};
use rustix::fd::AsRawFd;
use rustix::net::{socketpair, AddressFamily, SocketFlags, SocketType};

const NO_SO_COOKIE: &[Refusal] = &[(libc::SYS_getsockopt, Some((2, libc::SO_COOKIE as u64)), libc::ENOPROTOOPT)];
const NO_F_DUPFD_QUERY: Refusal = (libc::SYS_fcntl, Some((1, 1027)), libc::EINVAL);

fn sockets_are_distinguished() {
    let (a, b) = socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
    let again = a.try_clone().unwrap();
    let of = |file: &dyn AsRawFd| cookie_of(file.as_raw_fd());
    assert!(of(&a).is_some());
    assert_eq!(of(&a), of(&again));
    assert_ne!(of(&a), of(&b));
    let counter = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).unwrap();
    assert_eq!((of(&counter), cookie_of(-1), cookie_of(i32::MAX)), (None, None, None));
}

#[test]
fn sockets_are_distinguished_by_cookie_or_inode() {
    sockets_are_distinguished();
    refusing(NO_SO_COOKIE, sockets_are_distinguished);
}

/// Compares pipes and files. `files`: regular files can be compared, too.
fn descriptions_are_distinguished(files: bool) {
    let (a, b) = rustix::pipe::pipe().unwrap();
    let again = a.try_clone().unwrap();
    assert!(same_description(a.as_raw_fd(), a.as_raw_fd()));
    assert!(same_description(a.as_raw_fd(), again.as_raw_fd()));
    assert!(same_description(again.as_raw_fd(), a.as_raw_fd()));
    assert!(!same_description(a.as_raw_fd(), b.as_raw_fd()));
    assert!(!same_description(a.as_raw_fd(), i32::MAX));
    let open = || std::fs::File::open(std::env::current_exe().unwrap()).unwrap();
    let (file, other) = (open(), open());
    assert!(!same_description(file.as_raw_fd(), other.as_raw_fd()));
    assert!(
        !same_description(file.as_raw_fd(), a.as_raw_fd()) && !same_description(a.as_raw_fd(), file.as_raw_fd())
    );
    assert_eq!(same_description(file.as_raw_fd(), file.try_clone().unwrap().as_raw_fd()), files);
}

#[test]
fn descriptions_are_distinguished_by_whatever_there_is() {
    descriptions_are_distinguished(true);
    refusing(&[NO_F_DUPFD_QUERY], || descriptions_are_distinguished(true));
    refusing(&[NO_F_DUPFD_QUERY, (libc::SYS_kcmp, None, libc::EPERM)], || descriptions_are_distinguished(false));
}
