//! The buffers of a request with IOSQE_BUFFER_SELECT: those that it asks for, those that it has, and what its CQE
//! reports about them. Source: io_uring/kbuf.c, net.c and rw.c.
//!
//! The ring decides which buffer a request gets (`resource::buf_ring`).

use super::net::socket_option;
use super::{Direction, Op, Operation, Verdict};
use crate::os::{Os, Sys};
use crate::resource::buf_ring::Held;
use crate::{descriptors, Errno};
use core::num::NonZeroU32;

/// The buffers that a request with IOSQE_BUFFER_SELECT asks for, and those that it has.
#[derive(Debug)]
pub struct Selection {
    /// The group to choose from.
    pub group: u16,
    /// The most bytes to use; 0 for as many as the buffer has.
    pub wanted: usize,
    /// The buffer that the request has (several for a bundle). Only set during an attempt, unless it is `committed`.
    pub held: Option<Held>,
    /// The memory to transfer from or to: the used part of the held buffers.
    pub ranges: Vec<[usize; 2]>,
    /// The most ranges that the request has had.
    pub most_ranges: u16,
    /// Number of bytes that the socket still had after the last receive; 0 if unknown.
    pub unread: usize,
    /// The bytes that a bundle has received so far for one result, and the flags that name its first buffer.
    pub gathered: Option<(usize, u32)>,
    /// Number of bytes after which a multishot receive ends, if there is a limit.
    pub limit: Option<NonZeroU32>,
    /// The message just received is the last of a multishot request.
    pub ended: bool,
    /// A multishot receive has posted a result since it chose a buffer.
    pub follows_shot: bool,
}

impl Selection {
    /// Makes a selection without a chosen buffer.
    pub fn new(group: u16, wanted: usize) -> Box<Selection> {
        Box::new(Selection {
            group,
            wanted,
            held: None,
            ranges: Vec::new(),
            most_ranges: 0,
            unread: 0,
            gathered: None,
            limit: None,
            ended: false,
            follows_shot: false,
        })
    }

    /// Counts `bytes` against the limit of a multishot receive. True if they are the last that it receives.
    pub fn ends_with(&mut self, bytes: usize) -> bool {
        let Some(limit) = self.limit else { return self.ended };
        self.limit = NonZeroU32::new(limit.get().saturating_sub(bytes as u32));
        self.limit.is_none()
    }
}

/// The verdict on an attempt that chose its buffer, before the buffer is consumed or given back.
#[derive(Clone, Copy)]
pub struct Attempted {
    /// The CQE's result.
    pub result: i32,
    /// The kernel counts the result as a failure.
    pub failed: bool,
    /// `IORING_CQE_F_*` without those that name the buffer.
    pub flags: u32,
}

impl Attempted {
    /// Converts a verdict; `None` if the verdict does not end the request.
    pub fn of(verdict: Verdict) -> Option<Attempted> {
        let (result, failed, flags) = match verdict {
            Verdict::Done(result) => (result, result < 0, 0),
            Verdict::DoneShort(result) => (result, true, 0),
            Verdict::DoneWith { result, flags, failed } => (result, failed, flags),
            _ => return None,
        };
        Some(Attempted { result, failed, flags })
    }

    /// Converts back to a verdict, with the flags that are set by now.
    pub fn verdict(self) -> Verdict {
        Verdict::DoneWith { result: self.result, flags: self.flags, failed: self.failed }
    }
}

/// Number of buffers that the first `bytes` bytes touch (`io_bundle_nbufs`).
pub fn used_buffers(ranges: &[[usize; 2]], bytes: usize) -> u16 {
    let (mut left, mut count) = (bytes, 1);
    for [_, room] in ranges {
        if left <= *room {
            break;
        }
        left -= room;
        count += 1;
    }
    count.min(ranges.len().max(1)) as u16
}

/// Returns the verdict on a request that found no buffer. It is `error`, unless the request has a result to post
/// first, or does not need a buffer yet.
#[cold]
pub fn without_buffer(op: &mut Op, fd: i32, submitted: bool, error: Errno) -> Verdict {
    let Some(selection) = op.selection() else { return Verdict::error(error) };
    if let Some((result, flags)) = selection.gathered.take() {
        return Attempted { result: result as i32, failed: true, flags }.verdict();
    }
    let follows_shot = core::mem::take(&mut selection.follows_shot);
    let looks_when_ready = match op {
        // After its submission, a READ_MULTISHOT polls before each attempt (`io_poll_check_events`).
        Op::Rw(rw) => rw.is_multishot() && !submitted,
        // After a result, the socket reports that it has no more data (`io_recv_finish`).
        _ => follows_shot && socket_option(fd, libc::SO_TYPE) == Ok(libc::SOCK_STREAM),
    };
    if looks_when_ready && Sys::poll_now(fd, libc::POLLIN as u16) == Ok(0) {
        op.forget_transferred();
        return Verdict::WouldBlock(Direction::Read);
    }
    Verdict::error(refusal_before_buffers(op, fd).unwrap_or(error))
}

/// Returns the error with which the request would have failed before it looked for a buffer, if there is one.
fn refusal_before_buffers(op: &Op, fd: i32) -> Option<Errno> {
    let open = descriptors::check_open(fd);
    let socket = match op {
        Op::Net(_) => socket_option(fd, libc::SO_TYPE).err(),
        _ => None,
    };
    open.err().or(socket)
}
