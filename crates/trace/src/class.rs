//! Classes of requests: by the bytes that they ask for, and by whether the operation itself waits.

use crate::line::ring_opcode;
use anyring_abi::{Opcode, IOCB_CMD_POLL, IOCB_CMD_PREAD, IOCB_CMD_PREADV, IOCB_CMD_PWRITE, IOCB_CMD_PWRITEV};
use anyring_engine::event::AIO;

/// True if an SQE's `len` is a number of bytes.
pub fn counts_bytes(opcode: u16) -> bool {
    use Opcode::*;
    const IN_AIO: [u16; 2] = [AIO | IOCB_CMD_PREAD, AIO | IOCB_CMD_PWRITE];
    let by_ring = matches!(
        ring_opcode(opcode),
        Some(Read | Write | ReadFixed | WriteFixed | Send | Recv | SendZc | Splice | Tee)
    );
    by_ring || IN_AIO.contains(&opcode)
}

/// True if the result in its CQEs is a number of bytes.
pub fn moves_bytes(opcode: u16) -> bool {
    use Opcode::*;
    const IN_AIO: [u16; 2] = [AIO | IOCB_CMD_PREADV, AIO | IOCB_CMD_PWRITEV];
    let by_ring = matches!(
        ring_opcode(opcode),
        Some(Readv | Writev | ReadvFixed | WritevFixed | ReadMultishot | Sendmsg | Recvmsg | SendmsgZc)
    );
    by_ring || IN_AIO.contains(&opcode) || counts_bytes(opcode)
}

/// True if the purpose of the operation is to wait (for a poll, timeout, futex or child).
pub fn waits(opcode: u16) -> bool {
    use Opcode::*;
    let by_ring =
        matches!(ring_opcode(opcode), Some(PollAdd | Timeout | LinkTimeout | FutexWait | FutexWaitv | Waitid));
    by_ring || opcode == AIO | IOCB_CMD_POLL
}

/// True if a result is an error. A timeout that ends by its time is none, nor is a LINK_TIMEOUT whose request ends first.
pub fn is_error(opcode: u16, result: i32) -> bool {
    result < 0
        && match ring_opcode(opcode) {
            Some(Opcode::Timeout) => result != -libc::ETIME,
            Some(Opcode::LinkTimeout) => result != -libc::ECANCELED,
            _ => true,
        }
}

/// The size class of a kind of request, named after the most bytes that it allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[allow(missing_docs)] // each is named after its bound
pub enum SizeClass {
    Unknown,
    Upto512,
    Upto4K,
    Upto64K,
    Upto1M,
    Above,
}

impl SizeClass {
    /// The class of this number of bytes.
    pub fn of(bytes: u32) -> SizeClass {
        match bytes {
            0..=512 => SizeClass::Upto512,
            513..=4_096 => SizeClass::Upto4K,
            4_097..=65_536 => SizeClass::Upto64K,
            65_537..=1_048_576 => SizeClass::Upto1M,
            _ => SizeClass::Above,
        }
    }

    /// The name in the JSON and in texts.
    pub fn name(self) -> &'static str {
        match self {
            SizeClass::Unknown => "-",
            SizeClass::Upto512 => "<=512",
            SizeClass::Upto4K => "<=4K",
            SizeClass::Upto64K => "<=64K",
            SizeClass::Upto1M => "<=1M",
            SizeClass::Above => ">1M",
        }
    }
}
