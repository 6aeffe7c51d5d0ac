//! Several shots of a multishot RECV by one system call.
//!
//! Where a TCP socket has more to receive than one provided buffer takes, one recvmsg(2) fills as many buffers as there are
//! bytes for, and each gets the CQE that it would have had from a call of its own: on a plain byte stream nothing else is
//! between two receives. How many follow each other before others have their turn is not changed by it (`RingGuard::shoot`).
//!
//! Called with the ring's lock, as all that issues requests.

use crate::op::net::{Emptied, Net};
use crate::op::{Direction, Op, Verdict};
use crate::request::Id;
use crate::resource::buf_ring::Upcoming;
use crate::ring::RingGuard;
use crate::Errno;
use anyring_abi::IORING_CQE_F_SOCK_NONEMPTY;

impl RingGuard {
    /// Receives into up to `most` buffers by one call and posts a CQE for each but the last one that was used: how many that
    /// are, and the verdict of the last. `None` where a shot is to be had by an attempt of its own.
    pub(crate) fn receive_several(&mut self, id: Id, most: u32) -> Option<(u32, Verdict)> {
        let request = &mut self.slab[id];
        let (Op::Net(Net::Transfer(transfer)), Some(fd)) = (&mut request.op, request.target.number()) else {
            return None;
        };
        let (group, wanted, unread) = transfer.wants_several()?;
        let most = most.min(self.room()) as usize;
        if most < 2 {
            return None;
        }
        let mut buffers = Upcoming::default();
        self.groups.look_ahead(group, wanted, unread, most, &mut buffers);
        if buffers.count < 2 {
            return None;
        }
        let Op::Net(Net::Transfer(transfer)) = &mut self.slab[id].op else { return None };
        if !transfer.is_on_plain_tcp(fd) {
            return None;
        }
        let received = match transfer.receive_several(fd, &buffers.ranges[..buffers.count])? {
            // Somebody else has received what was there: no buffer is used.
            Ok(0) => return Some((0, Verdict::Done(0))),
            Err(Errno::AGAIN) => {
                transfer.forget_transferred();
                return Some((0, Verdict::WouldBlock(Direction::Read)));
            }
            Err(error) => return Some((0, Verdict::error(error))),
            Ok(received) => received,
        };
        Some(self.shots_of(id, fd, group, &buffers, received))
    }

    /// The CQEs of the `received` bytes.
    fn shots_of(&mut self, id: Id, fd: i32, group: u16, buffers: &Upcoming, received: usize) -> (u32, Verdict) {
        let (mut left, mut used) = (received, 0);
        while used + 1 < buffers.count && left > buffers.ranges[used][1] {
            left -= buffers.ranges[used][1];
            used += 1;
        }
        self.groups.take(group, used as u16 + 1);
        let filled = left == buffers.ranges[used][1];
        let mut unread = 0;
        if let Op::Net(Net::Transfer(transfer)) = &mut self.slab[id].op {
            unread = transfer.note_several(fd, filled);
        }
        if unread == 0 && (self.submits_and_waits || !self.ring().defers()) {
            self.poll_set.note_emptied(fd, if filled { Emptied::Surely } else { Emptied::Seemingly });
        }
        for shot in 0..used {
            let flags = buffers.cqe_flags[shot] | IORING_CQE_F_SOCK_NONEMPTY;
            let posted = self.shot(id, buffers.ranges[shot][1] as i32, flags);
            debug_assert!(posted || self.is_broken(), "there was room for all of them");
        }
        let more = if unread != 0 { IORING_CQE_F_SOCK_NONEMPTY } else { 0 };
        (used as u32, Verdict::Shot { result: left as i32, flags: buffers.cqe_flags[used] | more })
    }
}
