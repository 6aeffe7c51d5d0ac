//! epoll(7), as its questions and answers say: calls until EAGAIN where edge-triggered.

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
    /// An empty one.
    pub fn new() -> Outcome<Self> {
        // SAFETY: no pointers.
        let fd = available("epoll_create1", unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) })? as i32;
        // SAFETY: the call just returned this descriptor, and nobody else knows it.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        Ok(Epoll { fd, events: vec![libc::epoll_event { events: 0, u64: 0 }; EVENTS] })
    }

    /// Readability of `fd`, with these further flags; `data` comes back.
    pub fn add(&self, fd: i32, flags: i32, data: u64) -> Outcome<()> {
        let mut event = libc::epoll_event { events: (libc::EPOLLIN | flags) as u32, u64: data };
        // SAFETY: an initialised event.
        let answer = unsafe { libc::epoll_ctl(self.fd.as_raw_fd(), libc::EPOLL_CTL_ADD, fd, &mut event) };
        checked("epoll_ctl", answer)?;
        Ok(())
    }

    /// Without `fd` from now on.
    pub fn remove(&self, fd: i32) -> Outcome<()> {
        // SAFETY: the event is ignored, so it may be null.
        let answer = unsafe { libc::epoll_ctl(self.fd.as_raw_fd(), libc::EPOLL_CTL_DEL, fd, std::ptr::null_mut()) };
        checked("epoll_ctl", answer)?;
        Ok(())
    }

    /// Waits until something is ready; the data of all that is.
    pub fn wait(&mut self) -> Outcome<impl Iterator<Item = u64> + '_> {
        let room = self.events.len() as i32;
        // SAFETY: room for as many events as is said.
        let answer = unsafe { libc::epoll_wait(self.fd.as_raw_fd(), self.events.as_mut_ptr(), room, -1) };
        let count = checked("epoll_wait", answer)? as usize;
        Ok(self.events[..count].iter().map(|event| event.u64))
    }
}
