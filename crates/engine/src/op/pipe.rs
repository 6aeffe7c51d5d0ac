//! PIPE: pipe2(2), whose two ends may also go to the registered files.

use super::{call, reject_unused, Context, Field, Identity, OnRing, Operation, Verdict};
use crate::os::user_write;
use crate::{descriptors, Errno};
use anyring_abi::Sqe;

/// `O_NOTIFICATION_PIPE` of linux/watch_queue.h.
const O_NOTIFICATION_PIPE: i32 = libc::O_EXCL;

/// Makes a pipe. Source: io_uring_enter(2), IORING_OP_PIPE; io_uring/openclose.c, `io_pipe`.
#[derive(Debug)]
pub struct Pipe {
    fds: u64,
    flags: u32,
    /// The SQE's `file_index`: the read end's slot plus one. The write end goes to the next slot.
    pub slot: u32,
}

impl Pipe {
    /// Reads the SQE and checks its fields.
    pub fn prep(sqe: &Sqe) -> Result<Pipe, Errno> {
        const KNOWN: i32 = libc::O_CLOEXEC | libc::O_NONBLOCK | libc::O_DIRECT | O_NOTIFICATION_PIPE;
        reject_unused(sqe, &[Field::Off, Field::Addr3])?;
        if sqe.fd != 0 || sqe.op_flags & !(KNOWN as u32) != 0 {
            return Err(Errno::INVAL);
        }
        Ok(Pipe { fds: sqe.addr, flags: sqe.op_flags, slot: sqe.file_index })
    }

    /// Makes a pipe for two slots. Its ends are close-on-exec until they are installed.
    pub fn make_for_slots(&self) -> Result<[i32; 2], Errno> {
        if self.flags & libc::O_CLOEXEC as u32 != 0 {
            return Err(Errno::INVAL);
        }
        self.make(self.flags | libc::O_CLOEXEC as u32)
    }

    /// Writes the numbers or slots of the two ends to the program's memory.
    pub fn write_back(&self, ends: [i32; 2]) -> Result<(), Errno> {
        user_write(self.fds, &ends.map(|end| end as u32))
    }

    fn make(&self, flags: u32) -> Result<[i32; 2], Errno> {
        let mut ends = [-1i32; 2];
        call(libc::SYS_pipe2, [ends.as_mut_ptr() as usize, flags as usize, 0, 0, 0, 0]).map(|_| ends)
    }
}

impl Operation for Pipe {
    fn issue(&mut self, _context: Context) -> Verdict {
        match self.make(self.flags) {
            Ok(ends) => match self.write_back(ends) {
                Ok(()) => Verdict::Done(0),
                Err(error) => {
                    ends.into_iter().for_each(descriptors::close);
                    Verdict::error(error)
                }
            },
            Err(error) => Verdict::error(error),
        }
    }

    fn issue_on(&mut self, ring: &mut impl OnRing, fd: i32) -> Verdict {
        match self.slot {
            0 => self.issue(Context { fd, nonblock: true }),
            _ => ring.make_registered_pipe(self),
        }
    }

    fn identity(&self, row: Identity) -> Identity {
        if self.slot != 0 {
            Identity::Never
        } else {
            row
        }
    }
}
