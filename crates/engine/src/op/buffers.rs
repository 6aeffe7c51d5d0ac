//! PROVIDE_BUFFERS and REMOVE_BUFFERS: arguments and checks. The ring owns the groups, so `issue` makes the change.

use super::{reject_unused, Field, OnRing, Operation, Verdict};
use crate::resource::buf_ring::{Groups, Listed, MAX_BUFFERS};
use crate::Errno;
use anyring_abi::{Opcode, Sqe};

/// A change to a group of provided buffers. Source: io_uring_enter(2), IORING_OP_PROVIDE_BUFFERS, _REMOVE_BUFFERS.
#[derive(Debug)]
pub struct BuffersChange {
    group: u16,
    count: u32,
    /// The first buffer to add; `None` for REMOVE_BUFFERS.
    first: Option<Listed>,
}

impl BuffersChange {
    /// Reads the SQE and checks its fields.
    pub fn prep(opcode: Opcode, sqe: &Sqe) -> Result<BuffersChange, Errno> {
        reject_unused(sqe, &[Field::OpFlags, Field::FileIndex])?;
        let count = u32::try_from(sqe.fd).ok().filter(|count| (1..=MAX_BUFFERS).contains(count));
        let group = sqe.buf_index;
        if opcode == Opcode::RemoveBuffers {
            reject_unused(sqe, &[Field::Addr, Field::Len, Field::Off])?;
            return Ok(BuffersChange { group, count: count.ok_or(Errno::INVAL)?, first: None });
        }
        let count = count.ok_or(Errno::TOOBIG)?;
        if sqe.len == 0 {
            return Err(Errno::INVAL);
        }
        let end = sqe.addr.checked_add(u64::from(sqe.len) * u64::from(count)).ok_or(Errno::OVERFLOW)?;
        if end > PROGRAM_END {
            return Err(Errno::FAULT);
        }
        let id = u16::try_from(sqe.off).map_err(|_| Errno::TOOBIG)?;
        if u32::from(id) + count > MAX_BUFFERS {
            return Err(Errno::INVAL);
        }
        Ok(BuffersChange { group, count, first: Some(Listed { address: sqe.addr, bytes: sqe.len, id }) })
    }

    /// Changes the groups. Returns 0, or the number of buffers that were removed.
    pub fn apply(&self, groups: &mut Groups) -> Result<usize, Errno> {
        let done = match self.first {
            Some(first) => groups.provide(self.group, first, self.count),
            None => groups.remove(self.group, self.count),
        };
        done.map(|count| count as usize)
    }
}

impl Operation for BuffersChange {
    fn issue_on(&mut self, ring: &mut impl OnRing, _fd: i32) -> Verdict {
        Verdict::of(self.apply(ring.groups()))
    }
}

/// The first kernel address: the program's addresses are below it (`access_ok`).
const PROGRAM_END: u64 = 1 << 63;
