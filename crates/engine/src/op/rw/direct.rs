//! Transfers of files opened with O_DIRECT, between program memory and a device, by the kernel's AIO.

use super::{Buffers, Rw, CURRENT_POSITION, RWF_NOWAIT};
use crate::op::{Operation, Verdict};
use crate::Errno;
use anyring_abi::{Iocb, IOCB_CMD_PREAD, IOCB_CMD_PREADV, IOCB_CMD_PWRITE, IOCB_CMD_PWRITEV, IOCB_FLAG_IOPRIO};

/// The RWF_* flags that mean the same to io_submit(2).
const RWF_OF_AIO: u32 = (libc::RWF_DSYNC | libc::RWF_SYNC | libc::RWF_APPEND | libc::RWF_NOWAIT) as u32;

impl Rw {
    /// True if the system call would wait for a device on a file opened with O_DIRECT. RWF_NOWAIT does not help: a
    /// synchronous call still waits for a transfer that it has started.
    #[inline]
    pub fn may_be_direct(&self) -> bool {
        self.aligned
    }

    /// True if the program asked not to wait (RWF_NOWAIT).
    #[inline]
    pub fn may_not_wait(&self) -> bool {
        self.flags & RWF_NOWAIT != 0
    }

    /// True if address, length and offset are multiples of a sector.
    pub fn is_aligned(&self) -> bool {
        self.aligned
    }

    /// True if io_submit(2) can make the transfer: it has its own position, and something to transfer.
    pub fn suits_device(&self) -> bool {
        let positioned = i64::try_from(self.offset).is_ok();
        debug_assert!(!positioned || self.offset != CURRENT_POSITION);
        positioned
            && self.flags & !RWF_OF_AIO == 0
            && !self.protected
            && !self.selects()
            && self.total() != self.done
    }

    /// Returns the rest of the transfer for io_submit(2), which must not wait. The kernel's io_uring makes the same
    /// attempt before its worker makes the transfer (`io_rw_init_file` and `io_iter_do_read` in io_uring/rw.c).
    pub fn iocb(&self, fd: i32) -> Iocb {
        let (opcode, buf, bytes) = match (&self.buffers, self.write) {
            (Buffers::One([address, bytes]), false) => (IOCB_CMD_PREAD, *address, *bytes),
            (Buffers::One([address, bytes]), true) => (IOCB_CMD_PWRITE, *address, *bytes),
            (Buffers::Many(iovecs), false) => (IOCB_CMD_PREADV, iovecs.as_ptr() as usize, iovecs.len()),
            (Buffers::Many(iovecs), true) => (IOCB_CMD_PWRITEV, iovecs.as_ptr() as usize, iovecs.len()),
        };
        Iocb {
            opcode,
            fd: fd as u32,
            buf: buf as u64,
            bytes: bytes as u64,
            offset: self.offset as i64,
            rw_flags: self.flags | RWF_NOWAIT,
            flags: if self.priority != 0 { IOCB_FLAG_IOPRIO } else { 0 },
            priority: self.priority,
            ..Iocb::default()
        }
    }

    /// Returns the verdict on an event of the AIO. `None` if a call that may wait has to make the transfer, or the rest
    /// of it. RWF_NOWAIT can end a transfer in the middle, for example where part of the file is cached
    /// (`need_complete_io` in io_uring/rw.c).
    pub fn followed(&mut self, result: i64) -> Option<Verdict> {
        match result {
            0.. => {
                let total = self.total();
                self.advance(result as usize);
                let goes_on = result != 0 && self.done != total;
                (!goes_on || self.may_not_wait()).then(|| self.finish(total))
            }
            error => match Errno::from_raw_os_error(-error as i32) {
                // OPNOTSUPP: the file system has no such write (ext4, after the program cleared O_DIRECT).
                Errno::AGAIN | Errno::OPNOTSUPP if !self.may_not_wait() => None,
                error => Some(self.finish_error(error, self.total())),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyring_abi::{Opcode, Sqe};

    fn read(off: u64, len: u32, op_flags: u32) -> Rw {
        let sqe = Sqe { opcode: Opcode::Read as u8, off, addr: 0x10000, len, op_flags, ..Sqe::default() };
        Rw::prep(Opcode::Read, &sqe).expect("a read")
    }

    #[test]
    fn a_read_that_io_submit_cannot_make_is_left_to_others() {
        assert!(read(4096, 512, 0).suits_device());
        assert!(read(0, 512, RWF_NOWAIT).suits_device());
        assert!(!read(u64::MAX, 512, 0).suits_device(), "the file's own position");
        assert!(!read(1 << 63, 512, 0).suits_device(), "no position");
        assert!(!read(0, 0, 0).suits_device(), "nothing to do");
        assert!(!read(0, 512, 0x40).suits_device(), "RWF_ATOMIC");
    }

    #[test]
    fn the_iocb_says_what_the_request_does() {
        let iocb = read(4096, 512, 0).iocb(7);
        assert_eq!((iocb.opcode, iocb.fd, iocb.buf, iocb.bytes), (IOCB_CMD_PREAD, 7, 0x10000, 512));
        assert_eq!((iocb.offset, iocb.rw_flags, iocb.flags), (4096, RWF_NOWAIT, 0));
    }

    #[test]
    fn events_become_verdicts() {
        assert_eq!(read(0, 512, 0).followed(512), Some(Verdict::Done(512)));
        let mut short = read(0, 1024, 0);
        assert_eq!(short.followed(512), None, "a worker goes on");
        assert_eq!((short.done, short.offset, short.total()), (512, 512, 1024));
        assert_eq!(read(0, 1024, RWF_NOWAIT).followed(512), Some(Verdict::DoneShort(512)));
        assert_eq!(read(0, 512, 0).followed(0), Some(Verdict::DoneShort(0)));
        assert_eq!(read(0, 512, 0).followed(-22), Some(Verdict::error(Errno::INVAL)));
        assert_eq!(read(0, 512, 0).followed(-11), None, "a worker waits");
        assert_eq!(read(0, 512, 0).followed(-95), None, "a worker may");
        assert_eq!(read(0, 512, RWF_NOWAIT).followed(-11), Some(Verdict::error(Errno::AGAIN)));
    }
}
