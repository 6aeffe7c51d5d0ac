//! Tests of both kinds of ends, also where the usual calls on them are refused.

use super::*;
use crate::os::refusing::{refusing, Refusal};
use rustix::event::{poll, PollFd, PollFlags};
use rustix::fd::AsFd;

const NO_PAIRS: Refusal = (libc::SYS_socketpair, None, libc::EPERM);
const NO_MESSAGES: [Refusal; 2] = [(libc::SYS_sendto, None, libc::EPERM), (libc::SYS_recvfrom, None, libc::ENOSYS)];

fn readiness(fd: i32) -> PollFlags {
    // SAFETY: the test keeps the descriptor open.
    let fd = unsafe { rustix::fd::BorrowedFd::borrow_raw(fd) };
    let mut set = [PollFd::from_borrowed_fd(fd, PollFlags::IN | PollFlags::OUT)];
    poll(&mut set, Some(&Default::default())).expect("poll");
    set[0].revents()
}

/// Tries all that a ring needs of its descriptor. `are_pipes` says which kind it has to be.
fn ends_do_what_a_ring_needs(are_pipes: bool) {
    let (pending, program) = make().expect("ends");
    let ends = pending.into_raw();
    assert_eq!(ends.is_pipe(), are_pipes);
    let number = program.as_raw_fd();
    let again = program.as_fd().try_clone_to_owned().expect("a duplicate");
    let other = make().expect("other ends").1;
    let identity = |fd: &dyn AsRawFd| descriptors::cookie_of(fd.as_raw_fd()).expect("an identity");
    assert_eq!(identity(&program), identity(&again));
    assert_ne!(identity(&program), identity(&other));
    for _ in 0..3 {
        assert_eq!(readiness(number), PollFlags::OUT);
        (0..100).for_each(|_| ends.send_byte());
        assert_eq!(readiness(number), PollFlags::IN | PollFlags::OUT);
        ends.take_bytes(number);
    }
    assert!(!readiness(ends.kicked).contains(PollFlags::IN));
    (0..100).for_each(|index| ends.kick(number, index == 50));
    assert!(readiness(ends.kicked).contains(PollFlags::IN));
    assert!(!readiness(number).contains(PollFlags::IN), "a kick is not for the program");
    drop(program);
    assert!(!last_copy_gone(ends.sender), "a duplicate is left");
    drop(again);
    assert!(last_copy_gone(ends.sender));
    ends.send_byte(); // raises no SIGPIPE
    ends.close();
}

#[test]
fn socket_pairs_do_what_a_ring_needs() {
    ends_do_what_a_ring_needs(false);
    refusing(&NO_MESSAGES, || ends_do_what_a_ring_needs(false));
}

#[test]
fn pipes_do_what_a_ring_needs() {
    refusing(&[NO_PAIRS], || ends_do_what_a_ring_needs(true));
}

#[test]
fn a_byte_for_a_pipe_without_readers_raises_no_signal() {
    let child = || {
        // SAFETY: no handler is set. The child is a process of its own.
        unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
        let (reader, writer) = rustix::pipe::pipe().expect("a pipe");
        drop(reader);
        write_byte_quietly(writer.as_raw_fd());
        0
    };
    assert_eq!(crate::os::in_child::in_child(child), 0);
}
