//! EPOLL_CTL and EPOLL_WAIT: epoll_ctl(2) and epoll_wait(2) on one of the program's epoll instances.

use super::{call, reject_unused, Context, Direction, Field, OnRing, Operation, Verdict};
use crate::descriptors::{is_ring, level, of_program};
use crate::os::{user_read_slice, EpollEvent};
use crate::Errno;
use anyring_abi::Sqe;

/// Changes an epoll instance. Source: io_uring_enter(2), IORING_OP_EPOLL_CTL; io_uring/epoll.c.
#[derive(Debug)]
pub struct EpollCtl {
    epoll: i32,
    operation: i32,
    fd: i32,
    /// The program's `struct epoll_event`, as bytes. The engine reads it only to find out whether a ring is watched
    /// edge-triggered.
    event: [u8; size_of::<EpollEvent>()],
}

impl EpollCtl {
    /// Reads the SQE. Like the kernel, it copies the event now, for every operation except `EPOLL_CTL_DEL`.
    pub fn prep(sqe: &Sqe) -> Result<EpollCtl, Errno> {
        reject_unused(sqe, &[Field::BufIndex, Field::FileIndex])?;
        let operation = sqe.len as i32;
        let mut event = [0; size_of::<EpollEvent>()];
        if operation != libc::EPOLL_CTL_DEL {
            user_read_slice(sqe.addr, &mut event)?;
        }
        Ok(EpollCtl { epoll: sqe.fd, operation, fd: sqe.off as i32, event })
    }

    /// Returns the ring that the operation adds or changes, and true if the program watches it edge-triggered. A
    /// level-triggered watcher is recorded.
    pub fn watches_ring(&self) -> Option<(i32, bool)> {
        let adds = matches!(self.operation, libc::EPOLL_CTL_ADD | libc::EPOLL_CTL_MOD);
        if !adds || !is_ring(self.fd) {
            return None;
        }
        let [a, b, c, d, ..] = self.event;
        let edge_triggered = u32::from_ne_bytes([a, b, c, d]) & libc::EPOLLET as u32 != 0;
        if !edge_triggered {
            level::record(self.fd);
        }
        Some((self.fd, edge_triggered))
    }
}

impl Operation for EpollCtl {
    fn issue(&mut self, _context: Context) -> Verdict {
        if let Err(error) = of_program(self.epoll).and(of_program(self.fd)) {
            return Verdict::error(error);
        }
        let args = [self.epoll, self.operation, self.fd].map(|value| value as usize);
        let event = self.event.as_ptr() as usize;
        Verdict::of(call(libc::SYS_epoll_ctl, [args[0], args[1], args[2], event, 0, 0]))
    }

    /// Lets CQEs make a ring's descriptor readable from now on, if the operation adds or changes a ring.
    fn look_up(&mut self, ring: &mut impl OnRing, _fd: i32) -> Result<(), Errno> {
        if let Some((fd, edge_triggered)) = self.watches_ring() {
            ring.watch_ring(fd, edge_triggered);
        }
        Ok(())
    }
}

/// Reports events of an epoll instance. Source: io_uring_enter(2), IORING_OP_EPOLL_WAIT; io_uring/epoll.c.
#[derive(Debug, Clone, Copy)]
pub struct EpollWait {
    events: u64,
    count: u32,
}

impl EpollWait {
    /// Reads the SQE and checks its fields.
    pub fn prep(sqe: &Sqe) -> Result<EpollWait, Errno> {
        reject_unused(sqe, &[Field::Off, Field::OpFlags, Field::BufIndex, Field::FileIndex])?;
        Ok(EpollWait { events: sqe.addr, count: sqe.len })
    }

    /// Calls `place` for the array of events, as [`super::Op::each_part`] says.
    pub fn each_part(&mut self, place: &mut dyn FnMut(&'static str, usize, usize) -> usize) {
        let bytes = (self.count as usize).saturating_mul(size_of::<EpollEvent>());
        self.events = place("events", self.events as usize, bytes) as u64;
    }
}

impl Operation for EpollWait {
    fn issue(&mut self, context: Context) -> Verdict {
        let args = [context.fd as usize, self.events as usize, self.count as usize, 0, 0, 0];
        match call(libc::SYS_epoll_pwait, args) {
            Ok(0) => Verdict::WouldBlock(Direction::Read),
            answer => Verdict::of(answer),
        }
    }

    fn worker_fails_with_eagain(&self, _number: Option<i32>) -> bool {
        true
    }

    fn is_brought(&self, result: i32, _inline: bool) -> bool {
        result < 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::os::{Os, Sys};
    use rustix::event::epoll::{create, CreateFlags};
    use std::os::fd::AsRawFd;

    const HERE: Context = Context { fd: -1, nonblock: true };

    #[test]
    fn epoll_ctl_uses_the_event_as_it_was_at_submission() {
        let epoll = create(CreateFlags::CLOEXEC).unwrap();
        let (_reader, writer) = rustix::pipe::pipe().unwrap();
        let mut event = EpollEvent { events: libc::EPOLLOUT as u32, data: 77 };
        let address = &mut event as *mut EpollEvent as u64;
        let sqe = Sqe {
            fd: epoll.as_raw_fd(),
            off: writer.as_raw_fd() as u64,
            addr: address,
            len: libc::EPOLL_CTL_ADD as u32,
            ..Sqe::default()
        };
        let mut add = EpollCtl::prep(&sqe).unwrap();
        std::hint::black_box(&mut event).data = 78;
        assert_eq!(add.issue(HERE), Verdict::Done(0));
        let mut seen = [EpollEvent::default(); 4];
        assert_eq!(Sys::epoll_wait(epoll.as_raw_fd(), &mut seen, Some(0), None), Ok(1));
        assert_eq!({ seen[0].data }, 77);

        let remove = Sqe { len: libc::EPOLL_CTL_DEL as u32, addr: 0, ..sqe };
        assert_eq!(EpollCtl::prep(&remove).unwrap().issue(HERE), Verdict::Done(0));
        assert_eq!(EpollCtl::prep(&remove).unwrap().issue(HERE), Verdict::error(Errno::NOENT));
    }

    #[test]
    fn a_bad_event_address_is_efault_at_prep_even_for_an_unknown_operation() {
        let sqe = Sqe { addr: 8, len: libc::EPOLL_CTL_ADD as u32, ..Sqe::default() };
        assert_eq!(EpollCtl::prep(&sqe).err(), Some(Errno::FAULT));
        assert_eq!(EpollCtl::prep(&Sqe { len: 77, ..sqe }).err(), Some(Errno::FAULT));
        assert_eq!(EpollCtl::prep(&Sqe { buf_index: 1, ..sqe }).err(), Some(Errno::INVAL));
        assert_eq!(EpollCtl::prep(&Sqe { file_index: 1, ..sqe }).err(), Some(Errno::INVAL));
    }
}
