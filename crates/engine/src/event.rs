//! Events: what happened on each ring, under the names of the kernel's tracepoints, in shared memory.
//!
//! `anyring trace` makes a file with [`Reader::create`]. Every process that finds the file's name in `ANYRING_TRACE`
//! maps the file before its first ring ([`open`]) and writes events to it. A tracer can also join a running process
//! (`session`).
//!
//! `recorder` makes a ring's events, under the ring's lock. `chunks` has the file's layout: who may write where, and
//! how a record is encoded in words. `worked` has the times that workers record. `context` makes the events of Linux
//! AIO. The kernel has no tracepoints for Linux AIO: its contexts appear as rings with the same events ([`AIO`]).

pub(crate) mod chunks;
pub(crate) mod session;
mod worked;

pub use chunks::Reader;
pub(crate) use session::{follow, Room};
pub use session::{open, reset_after_fork, trace_request, wanted, REFUSED};
pub use worked::{WorkTimes, Worked};

use crate::op::{Punt, Skip};

/// The fields that most events of a request have in common.
#[derive(Clone, Copy, Default)]
pub(crate) struct Known {
    pub request: u32,
    pub user_data: u64,
    pub opcode: u8,
}

/// The kind of an event. The kinds before [`Enter`](Kind::Enter) are io_uring tracepoints of the kernel: see
/// include/trace/events/io_uring.h.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
#[allow(missing_docs)] // each has the name of its tracepoint
pub enum Kind {
    Create = 1,
    Register,
    FileGet,
    SubmitReq,
    QueueAsyncWork,
    PollArm,
    TaskAdd,
    TaskWorkRun,
    LocalWorkRun,
    Defer,
    Link,
    FailLink,
    CqringWait,
    CqeOverflow,
    Complete,
    ShortWrite,
    ReqFailed,
    /// A call of io_uring_enter(2). The kernel has it as a tracepoint of the group syscalls.
    Enter,
    /// Chaos changed the request or the call.
    Injection,
    /// Chaos found a defect in the program.
    Finding,
    /// The place from which the thread makes its next call on the ring.
    Caller,
    /// A part of the text of the stack that the next CALLER of the thread names.
    Frames,
}

impl Kind {
    /// Every kind.
    pub const ALL: [Kind; 22] = [
        Kind::Create,
        Kind::Register,
        Kind::FileGet,
        Kind::SubmitReq,
        Kind::QueueAsyncWork,
        Kind::PollArm,
        Kind::TaskAdd,
        Kind::TaskWorkRun,
        Kind::LocalWorkRun,
        Kind::Defer,
        Kind::Link,
        Kind::FailLink,
        Kind::CqringWait,
        Kind::CqeOverflow,
        Kind::Complete,
        Kind::ShortWrite,
        Kind::ReqFailed,
        Kind::Enter,
        Kind::Injection,
        Kind::Finding,
        Kind::Caller,
        Kind::Frames,
    ];

    /// The tracepoint's name, or a name of its own for a kind without a tracepoint.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Create => "io_uring_create",
            Kind::Register => "io_uring_register",
            Kind::FileGet => "io_uring_file_get",
            Kind::SubmitReq => "io_uring_submit_req",
            Kind::QueueAsyncWork => "io_uring_queue_async_work",
            Kind::PollArm => "io_uring_poll_arm",
            Kind::TaskAdd => "io_uring_task_add",
            Kind::TaskWorkRun => "io_uring_task_work_run",
            Kind::LocalWorkRun => "io_uring_local_work_run",
            Kind::Defer => "io_uring_defer",
            Kind::Link => "io_uring_link",
            Kind::FailLink => "io_uring_fail_link",
            Kind::CqringWait => "io_uring_cqring_wait",
            Kind::CqeOverflow => "io_uring_cqe_overflow",
            Kind::Complete => "io_uring_complete",
            Kind::ShortWrite => "io_uring_short_write",
            Kind::ReqFailed => "io_uring_req_failed",
            Kind::Enter => "sys_enter_io_uring_enter",
            Kind::Injection => "injection",
            Kind::Finding => "finding",
            Kind::Caller => "caller",
            Kind::Frames => "frames",
        }
    }

    /// True if only [`chaos`](crate::chaos) makes this kind, never the kernel.
    pub fn is_of_chaos(self) -> bool {
        matches!(self, Kind::Injection | Kind::Finding)
    }

    /// True if this kind says where the program is, and not what happened on the ring.
    pub fn is_of_place(self) -> bool {
        matches!(self, Kind::Caller | Kind::Frames)
    }
}

/// Added to the opcode in every event of an AIO context. The rest of that opcode is the iocb's command (`IOCB_CMD_*`).
pub const AIO: u16 = 0x100;

/// The kind of file that a descriptor names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
#[allow(missing_docs)] // as in inode(7)
pub enum FileKind {
    /// The kind was not asked for, or is not known.
    Unknown = 0,
    Regular,
    Directory,
    Block,
    Character,
    Fifo,
    Socket,
    /// Any other file: an eventfd, a timerfd, a pidfd ...
    Other,
}

impl FileKind {
    /// Converts the mode of stat(2).
    pub fn of_mode(mode: u32) -> FileKind {
        match mode & libc::S_IFMT {
            libc::S_IFREG => FileKind::Regular,
            libc::S_IFDIR => FileKind::Directory,
            libc::S_IFBLK => FileKind::Block,
            libc::S_IFCHR => FileKind::Character,
            libc::S_IFIFO => FileKind::Fifo,
            libc::S_IFSOCK => FileKind::Socket,
            _ => FileKind::Other,
        }
    }

    fn from_u8(byte: u8) -> FileKind {
        use FileKind::*;
        [Unknown, Regular, Directory, Block, Character, Fifo, Socket, Other]
            .into_iter()
            .find(|kind| *kind as u8 == byte)
            .unwrap_or(Unknown)
    }

    /// The name for output, also as a key in JSON.
    pub fn name(self) -> &'static str {
        match self {
            FileKind::Unknown => "-",
            FileKind::Regular => "file",
            FileKind::Directory => "directory",
            FileKind::Block => "block",
            FileKind::Character => "char",
            FileKind::Fifo => "pipe",
            FileKind::Socket => "socket",
            FileKind::Other => "other",
        }
    }
}

/// An event. Its kind decides which fields have a meaning; the other fields are 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Event {
    /// CLOCK_MONOTONIC, in nanoseconds. Events that follow from each other in one step share a time.
    pub time_ns: u64,
    /// The request's `user_data`. Linux AIO: the iocb's `aio_data`. CREATE: the context's address. CALLER: the
    /// number of the stack (`chaos::caller::number_of_stack`). FRAMES: text, also in `offset`, `result` and `flags`.
    pub user_data: u64,
    /// SUBMIT_REQ, REQ_FAILED: the SQE's `off`. CREATE: entries of the CQ, or places in the completion ring. REGISTER:
    /// registered buffers. ENTER: `min_complete`. LINK: the request that this request follows. FAIL_LINK: the request
    /// that fails. TASK_ADD: see [`worked`](Event::worked), also for `fd`, `result` and `flags`. CALLER: when the walk
    /// over the stack began. INJECTION, FINDING: see [`Name::of`](crate::chaos::Name::of), also for `len` and `result`.
    pub offset: u64,
    /// The ring's number, unique in this file.
    pub ring: u32,
    /// The request's number, unique among requests in flight; 0 for no request.
    pub request: u32,
    /// The thread that caused the event.
    pub thread: u32,
    /// The descriptor, or the index of a registered file.
    pub fd: i32,
    /// SUBMIT_REQ, REQ_FAILED: the SQE's `len`. CREATE: entries of the SQ, or the count passed to io_setup(2).
    /// REGISTER: registered files. ENTER: `to_submit`. CQRING_WAIT: number of CQEs. TASK_WORK_RUN, LOCAL_WORK_RUN:
    /// number of items. SHORT_WRITE: bytes wanted. The kernel's FILE_GET, COMPLETE, CQE_OVERFLOW: 1 if an io-wq thread
    /// caused the event. The kernel's SUBMIT_REQ: 1 if the request goes to a worker without an attempt, because of its
    /// flags, its opcode or a drain.
    pub len: u32,
    /// COMPLETE, CQE_OVERFLOW: the CQE's result. REGISTER: the call's result. REQ_FAILED: the error. SHORT_WRITE: bytes
    /// written. POLL_ARM: see [`skip`](Event::skip). QUEUE_ASYNC_WORK: see [`punt`](Event::punt).
    pub result: i32,
    /// SUBMIT_REQ, REQ_FAILED: `IOSQE_*`. COMPLETE, CQE_OVERFLOW: `IORING_CQE_F_*`. CREATE: `IORING_SETUP_*`. POLL_ARM:
    /// the events of poll(2). ENTER: `IORING_ENTER_*`. ENTER of Linux AIO: IORING_ENTER_GETEVENTS for io_getevents(2),
    /// with IORING_ENTER_EXT_ARG for io_pgetevents(2), and 0 for io_submit(2).
    pub flags: u32,
    /// The kind of event.
    pub kind: Kind,
    /// The request's opcode as a number, which may be unknown. REGISTER: the opcode of the call. See also [`AIO`].
    pub opcode: u16,
    /// FILE_GET: the kind of file that the descriptor names.
    pub file: FileKind,
}

impl Event {
    /// Makes an event whose fields, except its kind, are all 0.
    pub fn new(kind: Kind) -> Event {
        Event {
            time_ns: 0,
            user_data: 0,
            offset: 0,
            ring: 0,
            request: 0,
            thread: 0,
            fd: 0,
            len: 0,
            result: 0,
            flags: 0,
            kind,
            opcode: 0,
            file: FileKind::Unknown,
        }
    }

    /// POLL_ARM: the reason why no attempt was made before the wait; `None` if an attempt was made. The kernel always
    /// makes one.
    pub fn skip(&self) -> Option<Skip> {
        Skip::ALL.get(self.reason(Kind::PollArm)?).copied()
    }

    /// QUEUE_ASYNC_WORK: the reason why a worker gets the request; `None` for the kernel's own events, which have no
    /// reason.
    pub fn punt(&self) -> Option<Punt> {
        Punt::ALL.get(self.reason(Kind::QueueAsyncWork)?).copied()
    }

    /// The index of the reason in an event of this kind. The stored index counts from 1.
    fn reason(&self, kind: Kind) -> Option<usize> {
        usize::try_from(self.result).ok()?.checked_sub(1).filter(|_| self.kind == kind)
    }

    /// Returns the event with this reason.
    pub fn with_punt(self, punt: Punt) -> Event {
        let place = Punt::ALL.iter().position(|known| *known == punt);
        Event { result: place.map_or(0, |place| place as i32 + 1), ..self }
    }

    pub(crate) fn with_skip(self, skip: Option<Skip>) -> Event {
        let place = skip.and_then(|skip| Skip::ALL.iter().position(|known| *known == skip));
        Event { result: place.map_or(0, |place| place as i32 + 1), ..self }
    }

    /// True if the event belongs to an AIO context.
    pub fn is_aio(&self) -> bool {
        self.opcode & AIO != 0
    }
}

#[cfg(test)]
mod tests;
