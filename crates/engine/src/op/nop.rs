//! IORING_OP_NOP.

use super::{Context, OnRing, Op, Operation, Punt, Verdict};
use crate::{descriptors, Errno};
use anyring_abi::{
    Sqe, IORING_CQE_F_32, IORING_NOP_CQE32, IORING_NOP_FILE, IORING_NOP_FIXED_BUFFER, IORING_NOP_FIXED_FILE,
    IORING_NOP_INJECT_RESULT, IORING_NOP_TW, IOSQE_FIXED_FILE,
};

/// Does nothing, or returns the result that `IORING_NOP_INJECT_RESULT` names in `len`. Source: io_uring_enter(2).
#[derive(Debug, Default)]
pub struct Nop {
    result: i32,
}

/// A NOP that looks up a file or buffer first, completes by task work, or has a CQE of 32 bytes. Source:
/// io_uring/nop.c.
#[derive(Debug)]
pub struct NopWith {
    /// The result, unless the lookup fails.
    result: i32,
    /// The file that must be open; true if it is an index into the registered files.
    pub file: Option<(i32, bool)>,
    /// The slot that must hold a registered buffer.
    pub buffer: Option<u16>,
    by_task_work: bool,
    /// The second half of the CQE (`IORING_NOP_CQE32`).
    pub extra: Option<[u64; 2]>,
}

/// Reads the SQE and checks its fields.
#[inline]
pub fn prep(sqe: &Sqe) -> Result<Op, Errno> {
    if sqe.op_flags == 0 {
        return Ok(Op::Nop(Nop::default()));
    }
    let has = |flag| sqe.op_flags & flag != 0;
    let others =
        IORING_NOP_FILE | IORING_NOP_FIXED_FILE | IORING_NOP_FIXED_BUFFER | IORING_NOP_TW | IORING_NOP_CQE32;
    if has(!(IORING_NOP_INJECT_RESULT | others)) {
        return Err(Errno::INVAL);
    }
    let result = if has(IORING_NOP_INJECT_RESULT) { sqe.len as i32 } else { 0 };
    if !has(others) {
        return Ok(Op::Nop(Nop { result }));
    }
    Ok(Op::NopWith(NopWith {
        result,
        file: has(IORING_NOP_FILE)
            .then_some((sqe.fd, has(IORING_NOP_FIXED_FILE) || sqe.flags & IOSQE_FIXED_FILE != 0)),
        buffer: has(IORING_NOP_FIXED_BUFFER).then_some(sqe.buf_index),
        by_task_work: has(IORING_NOP_TW),
        extra: has(IORING_NOP_CQE32).then_some([sqe.off, sqe.addr]),
    }))
}

impl Operation for Nop {
    #[inline]
    fn issue(&mut self, _context: Context) -> Verdict {
        Verdict::Done(self.result)
    }
}

impl NopWith {
    /// Records the result of the lookup, which is made only once.
    pub fn looked_up(&mut self, found: Result<(), Errno>) {
        (self.file, self.buffer) = (None, None);
        if let Err(error) = found {
            self.result = -error.raw_os_error();
        }
    }
}

impl Operation for NopWith {
    fn issue(&mut self, context: Context) -> Verdict {
        if self.by_task_work && context.nonblock {
            return Verdict::NeedsWorker(Punt::NoForm);
        }
        match self.extra {
            None => Verdict::Done(self.result),
            Some(_) => Verdict::DoneWith { result: self.result, flags: IORING_CQE_F_32, failed: self.result < 0 },
        }
    }

    fn check_on(&self, ring: &mut impl OnRing) -> Result<(), Errno> {
        match self.extra.is_some() && !ring.has_large_cqes() {
            true => Err(Errno::INVAL),
            false => Ok(()),
        }
    }

    /// The file and the registered buffer only have to exist.
    fn look_up(&mut self, ring: &mut impl OnRing, _fd: i32) -> Result<(), Errno> {
        if let Some((fd, false)) = self.file {
            ring.record_file(fd);
        }
        let file = match self.file {
            None => Ok(()),
            Some((index, true)) => ring.fixed_file(index as u32).map(|_| ()),
            Some((fd, false)) if descriptors::is_own(fd) => Err(Errno::BADF), // not open to the program
            Some((fd, false)) => descriptors::check_open(fd),
        };
        let buffer = match self.buffer {
            None => Ok(()),
            Some(index) => ring.buffers().ok_or(Errno::FAULT).and_then(|buffers| buffers.get(index).map(|_| ())),
        };
        self.looked_up(file.and(buffer));
        Ok(())
    }

    fn by_task_work(&self) -> bool {
        true
    }

    fn extra(&self) -> Option<[u64; 2]> {
        self.extra
    }
}
