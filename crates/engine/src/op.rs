//! Operations: the SQE fields that each opcode reads, and the system call that carries it out.
//!
//! Each family of operations has one file. An operation owns its arguments and has the methods `prep` and `issue`.
//! `prep` reads each SQE field once and rejects values that it does not know. `issue` attempts the operation and
//! returns a [`Verdict`]. An operation never posts a CQE, picks a path or takes a ring's lock. The module `issue` alone
//! decides what follows from a verdict.

pub mod buffers;
pub mod cancel;
pub mod cut;
mod dispatch;
pub mod epoll;
pub mod file_table;
pub mod first_call;
pub mod fs;
pub mod futex;
mod iovecs;
pub mod msg_ring;
pub mod net;
pub mod nop;
pub mod operation;
pub mod pipe;
pub mod poll;
pub mod rw;
pub mod selection;
pub mod splice;
mod stamps;
pub mod sync;
mod table;
pub mod timeout;
pub mod uring_cmd;
pub mod waitid;
pub mod xattr;

pub use dispatch::Op;
pub use operation::{HandledBefore, OnRing, Operation, Turn, Waiter};
pub use table::{count, definition, is_supported, row, AtOnce, Definition, FileUse, Identity};

use crate::os::check;
use crate::Errno;
use anyring_abi::{Sqe, IOSQE_FIXED_FILE};

/// The readiness that a request waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// `EPOLLIN` and the events that imply it.
    Read,
    /// `EPOLLOUT` and the events that imply it.
    Write,
}

/// The reason for giving a request to a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Punt {
    /// The program set IOSQE_ASYNC.
    AskedFor,
    /// The call would sleep in this thread, most often for a device: the data of a read is not in the page cache.
    WouldWait,
    /// The file or the operation has no nonblocking form.
    NoForm,
    /// The transfer uses O_DIRECT, and the kernel's AIO does not take it.
    Direct,
    /// Only a thread with the submitter's identity may make the request.
    Identity,
    /// The worker copies data from the page cache, while the submitting thread copies more of it.
    Parallel,
}

impl Punt {
    /// All reasons, in the order of the variants.
    pub const ALL: [Punt; 6] =
        [Punt::AskedFor, Punt::WouldWait, Punt::NoForm, Punt::Direct, Punt::Identity, Punt::Parallel];

    /// The name of the reason in a trace.
    pub fn name(self) -> &'static str {
        match self {
            Punt::AskedFor => "asked_for",
            Punt::WouldWait => "would_wait",
            Punt::NoForm => "no_nonblocking_form",
            Punt::Direct => "direct",
            Punt::Identity => "identity",
            Punt::Parallel => "parallel",
        }
    }
}

/// The reason for skipping an attempt. It also says how the engine notices a file that is ready already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Skip {
    /// The last attempt found nothing, and no event has come since. The next event leads to an attempt.
    KnownEmpty,
    /// The last few attempts found nothing. The attempt is made later, but before any thread sleeps.
    Postponed,
    /// The program asked to wait first (`IORING_RECVSEND_POLL_FIRST`, `IORING_ACCEPT_POLL_FIRST`). Arming raises an
    /// event if the file is ready already.
    PollFirst,
    /// The attempt is made once the request is armed, which shows whether the file can be polled. Arming raises an
    /// event if the file is ready already.
    LookOnceArmed,
    /// Only a thread with the submitter's identity may make the attempt. Arming raises an event if the file is ready
    /// already.
    OthersIdentity,
    /// The operation has no nonblocking form. Arming raises an event if the file is ready already.
    NoForm,
}

impl Skip {
    /// All reasons, in the order of the variants.
    pub const ALL: [Skip; 6] = [
        Skip::KnownEmpty,
        Skip::Postponed,
        Skip::PollFirst,
        Skip::LookOnceArmed,
        Skip::OthersIdentity,
        Skip::NoForm,
    ];

    /// The name of the reason in a trace.
    pub fn name(self) -> &'static str {
        match self {
            Skip::KnownEmpty => "known_empty",
            Skip::Postponed => "postponed",
            Skip::PollFirst => "poll_first",
            Skip::LookOnceArmed => "look_once_armed",
            Skip::OthersIdentity => "identity",
            Skip::NoForm => "no_nonblocking_form",
        }
    }

    /// True if arming raises an event for a file that is ready already.
    pub fn reports_present(self) -> bool {
        matches!(self, Skip::PollFirst | Skip::LookOnceArmed | Skip::OthersIdentity | Skip::NoForm)
    }

    /// True if the attempt will be made before any thread sleeps, even without an event.
    pub fn is_postponed(self) -> bool {
        matches!(self, Skip::Postponed | Skip::LookOnceArmed)
    }
}

/// The outcome of an attempt at an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum Verdict {
    /// The request is finished with this result: a value, or `-errno`. A negative result breaks links.
    Done(i32),
    /// The request is finished with this result, which the kernel counts as a failure although it is no error (a short
    /// transfer). Links break.
    DoneShort(i32),
    /// The file is not ready in this direction, for this request or any other: wait for readiness and try again. If the
    /// file cannot be polled, a worker makes the request.
    WouldBlock(Direction),
    /// No attempt was made: wait for readiness. [`Skip`] says how a file that is ready already is noticed.
    Skipped(Direction, Skip),
    /// This call has no nonblocking form on this file (for example, RWF_NOWAIT is not supported). If the file can be
    /// polled, the request waits for readiness first. Then a worker makes the plain call, which may sleep if another
    /// reader wins.
    NeedsWorkerWhenReady(Direction),
    /// Only a thread that may sleep can make the call, for this reason.
    NeedsWorker(Punt),
    /// The submitting thread can make the call once it has released the ring. Any other thread must be a worker.
    NeedsCaller,
    /// The kernel's AIO shall make the transfer.
    NeedsDevice,
    /// The request is finished, and its CQE has flags (for a buffer that was chosen). `failed` breaks links.
    /// `IORING_CQE_F_32` means that the operation's [`Op::extra`] returns the second half of its CQE.
    DoneWith {
        /// The CQE's result.
        result: i32,
        /// `IORING_CQE_F_*`.
        flags: u32,
        /// The kernel counts the result as a failure.
        failed: bool,
    },
    /// One result of a multishot request, which then continues.
    Shot {
        /// The CQE's result.
        result: i32,
        /// `IORING_CQE_F_*` without F_MORE.
        flags: u32,
    },
    /// The call made this descriptor. The program gets its number, or it is installed in the registered files.
    Descriptor(i32),
}

impl Verdict {
    /// Returns `Done` with the result of a system call.
    pub fn of(result: Result<usize, Errno>) -> Verdict {
        match result {
            Ok(value) => Verdict::Done(value as i32),
            Err(error) => Verdict::Done(-error.raw_os_error()),
        }
    }

    /// Returns `Done` with the result of a call whose error the kernel does not count as a failure. Links continue
    /// after such an error, and with IOSQE_CQE_SKIP_SUCCESS it has no CQE. Source: the operations in io_uring/ that
    /// answer without `req_set_fail`.
    pub fn uncounted(result: Result<usize, Errno>) -> Verdict {
        match result {
            Ok(value) => Verdict::Done(value as i32),
            Err(error) => Verdict::DoneWith { result: -error.raw_os_error(), flags: 0, failed: false },
        }
    }

    /// Does the same as [`uncounted`](Self::uncounted) for a call on `fd`. A missing file is a failure, since the
    /// kernel finds it before the operation begins.
    pub fn uncounted_on(fd: i32, result: Result<usize, Errno>) -> Verdict {
        if result == Err(Errno::BADF) {
            let flags = crate::descriptors::status_flags(fd);
            if flags.map_or(true, |flags| flags & libc::O_PATH != 0) {
                return Verdict::error(Errno::BADF);
            }
        }
        Verdict::uncounted(result)
    }

    /// The readiness to wait for, if the attempt found the file not ready or was skipped.
    pub fn waits(self) -> Option<Direction> {
        match self {
            Verdict::WouldBlock(direction) | Verdict::Skipped(direction, _) => Some(direction),
            _ => None,
        }
    }

    /// True if the request does not have to wait any more.
    pub fn is_final(self) -> bool {
        let done = matches!(self, Verdict::Done(_) | Verdict::DoneShort(_) | Verdict::DoneWith { .. });
        done || matches!(self, Verdict::Descriptor(_))
    }

    /// Returns `Done` with `-error`.
    pub fn error(error: Errno) -> Verdict {
        Verdict::Done(-error.raw_os_error())
    }
}

/// The circumstances in which an operation is issued.
#[derive(Debug, Clone, Copy)]
pub struct Context {
    /// The descriptor, with registered files resolved; -1 for operations without one.
    pub fd: i32,
    /// The calling thread must not sleep: return `WouldBlock` or `NeedsWorker` instead. False on a worker.
    pub nonblock: bool,
}

/// NOP stands in for the operation of a request whose own operation was moved away (to a worker, for example). It also
/// stands in for the operation of a refused SQE.
impl Default for Op {
    fn default() -> Op {
        Op::Nop(nop::Nop::default())
    }
}

// A request contains its operation, and both are moved when the request is made: rare parts belong in a box.
const _: () = assert!(size_of::<Op>() <= 80 && size_of::<Verdict>() <= 12);

/// The SQE fields that an operation may require to be zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)] // fields of Sqe
pub enum Field {
    Ioprio,
    Off,
    Addr,
    Len,
    OpFlags,
    BufIndex,
    FileIndex,
    Addr3,
    Pad2,
}

/// Returns `EINVAL` if one of `fields` is not zero.
#[inline(always)] // with the caller's constant list, each field is one comparison
pub fn reject_unused(sqe: &Sqe, fields: &[Field]) -> Result<(), Errno> {
    for field in fields {
        let used = match field {
            Field::Ioprio => sqe.ioprio != 0,
            Field::Off => sqe.off != 0,
            Field::Addr => sqe.addr != 0,
            Field::Len => sqe.len != 0,
            Field::OpFlags => sqe.op_flags != 0,
            Field::BufIndex => sqe.buf_index != 0,
            Field::FileIndex => sqe.file_index != 0,
            Field::Pad2 => sqe.pad2 != 0,
            Field::Addr3 => sqe.addr3 != 0,
        };
        if used {
            return Err(Errno::INVAL);
        }
    }
    Ok(())
}

/// Returns `EBADF` if `IOSQE_FIXED_FILE` is set. For operations whose `fd` names a directory or nothing.
pub fn reject_fixed_file(sqe: &Sqe) -> Result<(), Errno> {
    if sqe.flags & IOSQE_FIXED_FILE != 0 {
        return Err(Errno::BADF);
    }
    Ok(())
}

/// Makes a system call with the program's own arguments.
#[inline]
pub fn call(number: libc::c_long, args: [usize; 6]) -> Result<usize, Errno> {
    check(crate::os::syscall(number, args))
}
