//! epoll(7), as its man page advises: calls until EAGAIN if edge-triggered.

use crate::outcome::{available, checked, Outcome};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// Events taken in one call.
const EVENTS: usize = 256;

/// An epoll set.
pub struct Epoll {
    fd: OwnedFd,
    events: Vec<libc::epoll_event>,
}

impl Epoll {
    /// Makes an empty set.
    pub fn new() -> Outcome<Self> {
        // SAFETY: no pointers.
        let fd = available("epoll_create1", unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) })? as i32;
        // SAFETY: the call just returned this descriptor, and no other code knows it.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        Ok(Epoll { fd, events: vec![libc::epoll_event { events: 0, u64: 0 }; EVENTS] })
    }

    /// Adds `fd` for readability, with these further flags; `wait` returns `data`.
    pub fn add(&self, fd: i32, flags: i32, data: u64) -> Outcome<()> {
        let mut event = libc::epoll_event { events: (libc::EPOLLIN | flags) as u32, u64: data };
        // SAFETY: an initialised event.
        let answer = unsafe { libc::epoll_ctl(self.fd.as_raw_fd(), libc::EPOLL_CTL_ADD, fd, &mut event) };
        checked("epoll_ctl", answer)?;
        Ok(())
    }

    /// Removes `fd`.
    pub fn remove(&self, fd: i32) -> Outcome<()> {
        // SAFETY: the event is ignored, so it may be null.
        let answer = unsafe { libc::epoll_ctl(self.fd.as_raw_fd(), libc::EPOLL_CTL_DEL, fd, std::ptr::null_mut()) };
        checked("epoll_ctl", answer)?;
        Ok(())
    }

    /// Waits until something is ready. Returns the data of all ready descriptors.
    pub fn wait(&mut self) -> Outcome<impl Iterator<Item = u64> + '_> {
        let room = self.events.len() as i32;
        // SAFETY: room for as many events as stated.
        let answer = unsafe { libc::epoll_wait(self.fd.as_raw_fd(), self.events.as_mut_ptr(), room, -1) };
        let count = checked("epoll_wait", answer)? as usize;
        Ok(self.events[..count].iter().map(|event| event.u64))
    }
}
