//! IORING_RECVSEND_POLL_FIRST, and the file of a multishot receive with IOSQE_ASYNC.

use super::socket_option;
use super::transfer::{Data, Transfer};
use crate::op::{Direction, Skip, Verdict};
use crate::os::version;
use crate::Errno;

/// The step before the first attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum First {
    /// Nothing.
    Attempt,
    /// A wait for readiness (`IORING_RECVSEND_POLL_FIRST`).
    Poll,
    /// A wait for readiness, unless the file is a socket. A multishot RECV or RECVMSG with IOSQE_ASYNC is armed before
    /// its attempt (`io_wq_submit_work` in io_uring/io_uring.c).
    PollNoSocket,
}

impl Transfer {
    /// See [`Operation::wait_first`](crate::op::Operation::wait_first).
    #[inline]
    pub(super) fn wait_first(&mut self, fd: i32) -> Option<Result<(Direction, Skip), Errno>> {
        if self.first == First::Attempt {
            return None;
        }
        let first = core::mem::replace(&mut self.first, First::Attempt);
        self.poll_before(fd, first)
    }

    #[cold]
    fn poll_before(&mut self, fd: i32, first: First) -> Option<Result<(Direction, Skip), Errno>> {
        let polls_anything = first == First::PollNoSocket || self.polls_before_it_looks_for_a_socket();
        let is_socket = match socket_option(fd, libc::SO_TYPE) {
            Ok(_) if first == First::PollNoSocket => return None,
            Ok(_) => true,
            Err(Errno::NOTSOCK) if polls_anything => false,
            Err(error) => return Some(Err(error)),
        };
        let Verdict::WouldBlock(direction) = self.nothing() else { return Some(Err(Errno::AGAIN)) };
        // An attempt on another file would end the request before the file is ready.
        let looks = is_socket && direction == Direction::Read && self.selection.is_some();
        Some(Ok((direction, if looks { Skip::LookOnceArmed } else { Skip::PollFirst })))
    }

    /// True for RECV before Linux 7.3: `io_recv` in io_uring/net.c.
    fn polls_before_it_looks_for_a_socket(&self) -> bool {
        let is_recv = self.direction == Direction::Read && !matches!(self.data, Data::Message(_));
        is_recv && !version::answers_as_7_3()
    }

    /// True if the program asked to wait before the first attempt.
    pub(super) fn will_poll_first(&self) -> bool {
        self.first == First::Poll
    }
}
