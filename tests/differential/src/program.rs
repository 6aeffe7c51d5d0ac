//! A program, as a seed defines it. Descriptors and memory are named, not numbered, so that the same program can be
//! made on the kernel and on the engine, printed, and shrunk.

use anyring_abi::Opcode;
use anyring_conformance::door::Door;
use std::fmt;

/// Entries of a program's ring.
pub const ENTRIES: u32 = 16;
/// Slots of the registered files that a program begins with.
pub const FILE_SLOTS: u32 = 8;
/// Registered buffers that a program begins with, of [`BUFFER_BYTES`] each.
pub const BUFFERS: u16 = 4;
/// Bytes of one registered buffer.
pub const BUFFER_BYTES: u32 = 4096;
/// The group whose buffers are in a ring, filled at the beginning.
pub const RING_GROUP: u16 = 1;
/// The group for PROVIDE_BUFFERS.
pub const LIST_GROUP: u16 = 2;
/// Buffers of the ring group.
pub const GROUP_ENTRIES: u16 = 16;
/// Bytes of one of them.
pub const GROUP_BYTES: u32 = 64;

/// Words that futexes are made of, all zero.
pub const WORDS: u8 = 4;
/// Children of a program that waits for any.
pub const CHILDREN: u8 = 4;

/// The state of a child.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChildState {
    /// Has not ended.
    Runs,
    /// Has ended, and nobody reaped it.
    Exited,
    /// Was reaped.
    Gone,
}

/// The children that a program begins with.
pub const INITIAL_CHILDREN: [ChildState; CHILDREN as usize] =
    [ChildState::Exited, ChildState::Exited, ChildState::Runs, ChildState::Runs];

/// The registered files that a program begins with; -1 is an empty slot.
pub const INITIAL_FILES: [Target; FILE_SLOTS as usize] = [
    Target::Of(End::PipeRead(0)),
    Target::Of(End::PipeWrite(0)),
    Target::Of(End::File(0)),
    Target::Of(End::Stream(0, 0)),
    Target::Of(End::Tcp(0, 0)),
    Target::Number(-1),
    Target::Number(-1),
    Target::Number(-1),
];

/// A descriptor that a program begins with, or that one of its requests makes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum End {
    /// The read end of a pipe: 0 and 1 are blocking, 2 is O_NONBLOCK.
    PipeRead(u8),
    /// The write end of a pipe. Pipe 1 has room for one page.
    PipeWrite(u8),
    /// A regular file: 0 on disk, 1 on disk with O_APPEND, 2 on tmpfs, 3 a memfd.
    File(u8),
    /// One side of a pair of Unix stream sockets.
    Stream(u8, u8),
    /// One side of a pair of Unix datagram sockets.
    Datagram(u8, u8),
    /// One side of a TCP connection over loopback.
    Tcp(u8, u8),
    /// A TCP listener on loopback.
    Listener,
    /// A TCP socket that is not connected.
    Unconnected(u8),
    /// An eventfd: 0 counts, 1 is a semaphore.
    Eventfd(u8),
    /// An epoll instance.
    Epoll,
    /// A directory: 0 on disk, 1 on tmpfs.
    Directory(u8),
    /// A second ring, for messages.
    OtherRing,
    /// The ring itself.
    ThisRing,
    /// A word that is waited for, no descriptor.
    Word(u8),
    /// A child: its process ID instead of a descriptor.
    Child(u8),
    /// The descriptor that the request of this `user_data` returned.
    Made(u64),
}

/// An SQE's `fd`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target {
    /// A number as it stands.
    Number(i32),
    /// One of the program's descriptors.
    Of(End),
    /// A slot of the registered files.
    Fixed(u32),
}

/// A 64-bit field of an SQE, or the memory that it points to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Value {
    /// A number.
    Plain(u64),
    /// This many bytes for the kernel to read, different for each request.
    Source(u32),
    /// This many bytes for the kernel to write. What it writes is recorded.
    Sink(u32),
    /// Eight bytes that hold a number.
    Number(u64),
    /// iovecs over bytes, for the kernel to read (`false`) or write (`true`).
    Vectors(Vec<u32>, bool),
    /// A registered buffer, at this byte.
    Registered(u16, u32),
    /// iovecs into one registered buffer: (offset, length) each.
    RegisteredVectors(u16, Vec<(u32, u32)>),
    /// A path.
    Path(&'static str),
    /// A timespec: seconds, nanoseconds.
    Time(i64, i64),
    /// A timespec that is this many milliseconds from now on this clock.
    Later(i32, i64),
    /// A msghdr over bytes to be sent.
    Message(Vec<u32>),
    /// A msghdr over bytes to be received, with this much room for control data.
    Receive(Vec<u32>, u32),
    /// struct open_how: flags, mode, resolve.
    How(u64, u64, u64),
    /// struct statx; size and type are recorded.
    Statx,
    /// struct epoll_event.
    Event(u32, u64),
    /// Room for this many struct epoll_event. What the kernel writes there is recorded.
    Events(u32),
    /// The listener's address.
    ListenerAddress,
    /// A loopback address with port 0.
    AnyAddress,
    /// Room for a socket address and its length; the family is recorded.
    AddressSink,
    /// Length word of the request's AddressSink.
    AddressLength,
    /// Descriptors' numbers.
    Descriptors(Vec<Target>),
    /// Room for two descriptor numbers, which are recorded.
    TwoNumbers,
    /// Buffers to be provided: count, and bytes of each.
    Buffers(u32, u32),
    /// One of the words.
    Word(u8),
    /// struct futex_waitv over these words.
    Words(Vec<u8>),
    /// siginfo_t of a child; all but the process ID is recorded.
    ChildInfo,
    /// An inaccessible page.
    Bad,
}

/// One SQE, with names for numbers.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs)] // the fields of struct io_uring_sqe
pub struct Request {
    /// The SQE's `user_data`, which is also the request's number in the program.
    pub user_data: u64,
    pub opcode: u8,
    pub flags: u8,
    pub ioprio: u16,
    pub fd: Target,
    pub off: Value,
    /// The descriptor of operations that take one in `off`.
    pub off_of: Option<End>,
    pub addr: Value,
    pub len: u32,
    pub op_flags: u32,
    pub buf_index: u16,
    pub personality: u16,
    pub file_index: u32,
    /// The descriptor of operations that take one in `file_index`.
    pub file_index_of: Option<End>,
    pub addr3: Value,
    pub pad2: u64,
    /// True if the request was changed so that it is probably refused.
    pub mutated: bool,
}

impl Request {
    /// Returns an SQE of zeroes, except for the opcode and descriptor -1.
    pub fn new(opcode: Opcode) -> Request {
        Request {
            user_data: 0,
            opcode: opcode as u8,
            flags: 0,
            ioprio: 0,
            fd: Target::Number(-1),
            off: Value::Plain(0),
            off_of: None,
            addr: Value::Plain(0),
            len: 0,
            op_flags: 0,
            buf_index: 0,
            personality: 0,
            file_index: 0,
            file_index_of: None,
            addr3: Value::Plain(0),
            pad2: 0,
            mutated: false,
        }
    }
}

/// An action of the program itself, between its requests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Writes this many bytes with write(2).
    Write(End, u32),
    /// Reads and drops what is available, up to this many bytes.
    Read(End, u32),
    /// A client connects to the listener.
    Connect,
    /// Wakes one request that waits for the word.
    Wake(u8),
    /// Ends a child and waits for its end.
    Exit(u8),
    /// Puts all buffers of the ring group back.
    RefillGroup,
}

/// A call of io_uring_register(2).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Registration {
    /// FILES of a new table; refused while there is one.
    Files(Vec<Target>),
    /// FILES2 of a sparse table.
    SparseFiles(u32),
    /// UNREGISTER_FILES.
    NoFiles,
    /// FILES_UPDATE from this slot on.
    FilesUpdate(u32, Vec<Target>),
    /// FILE_ALLOC_RANGE: offset, length.
    AllocRange(u32, u32),
    /// BUFFERS: the usual ones.
    Buffers,
    /// UNREGISTER_BUFFERS.
    NoBuffers,
    /// EVENTFD, with one of the program's eventfds.
    Eventfd(u8),
    /// UNREGISTER_EVENTFD.
    NoEventfd,
    /// SYNC_CANCEL: user_data, descriptor, flags, opcode.
    SyncCancel(u64, Target, u32, u8),
    /// PBUF_STATUS: whose head is recorded.
    GroupStatus(u16),
    /// UNREGISTER_PBUF_RING.
    NoGroup(u16),
    /// An opcode that does not exist.
    Unknown(u32),
}

/// One step of a program. Everything is quiet before it begins and after it ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// These requests are submitted by one enter.
    Submit(Vec<Request>),
    /// A register call.
    Register(Registration),
    /// An action outside of the ring.
    Act(Action),
    /// Stops reaping if true, so that the CQ overflows. False: reaps again.
    HoldCompletions(bool),
}

/// A seed's program.
#[derive(Debug, Clone)]
pub struct Program {
    /// The seed from which the program was made.
    pub seed: u64,
    /// The door through which it reaches io_uring.
    pub door: Door,
    /// `IORING_SETUP_*`.
    pub setup_flags: u32,
    /// Entries of the CQ with CQSIZE.
    pub cq_entries: u32,
    /// One enter submits and waits, instead of one enter for each.
    pub wait_while_submitting: bool,
    /// The steps, in their order.
    pub steps: Vec<Step>,
}

impl Program {
    /// The door's name.
    pub fn door_name(&self) -> String {
        format!("{:?}", self.door).to_lowercase()
    }

    /// Every request, in the order of submission.
    pub fn requests(&self) -> impl Iterator<Item = &Request> {
        self.steps.iter().flat_map(|step| match step {
            Step::Submit(requests) => requests.as_slice(),
            _ => &[],
        })
    }

    /// The program without these parts: requests by `user_data`, other steps by [`Program::part_of_step`].
    pub fn without(mut self, parts: &[u64]) -> Program {
        let mut steps = Vec::new();
        for (index, step) in self.steps.drain(..).enumerate() {
            match step {
                Step::Submit(mut requests) => {
                    requests.retain(|request| !parts.contains(&request.user_data));
                    // No chain that the end of the submission cuts off, where there was none.
                    if let Some(last) = requests.last_mut().filter(|_| !parts.is_empty()) {
                        last.flags &= !(anyring_abi::IOSQE_IO_LINK | anyring_abi::IOSQE_IO_HARDLINK);
                    }
                    // Empty steps stay, so that the others keep their numbers.
                    steps.push(Step::Submit(requests));
                }
                _ if parts.contains(&Program::part_of_step(index)) => steps.push(Step::Submit(Vec::new())),
                other => steps.push(other),
            }
        }
        self.steps = steps;
        self
    }

    /// The number that `without` takes to leave out a step that is no submission.
    pub fn part_of_step(index: usize) -> u64 {
        10_000 + index as u64
    }

    /// Everything that can be left out.
    pub fn parts(&self) -> Vec<u64> {
        let mut parts = Vec::new();
        for (index, step) in self.steps.iter().enumerate() {
            match step {
                Step::Submit(requests) => parts.extend(requests.iter().map(|request| request.user_data)),
                _ => parts.push(Program::part_of_step(index)),
            }
        }
        parts
    }
}

impl fmt::Display for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "#{} {}", self.user_data, opcode_name(self.opcode))?;
        match self.fd {
            Target::Number(-1) => {}
            Target::Number(number) => write!(f, " fd {number}")?,
            Target::Of(end) => write!(f, " {end:?}")?,
            Target::Fixed(slot) => write!(f, " Fixed({slot})")?,
        }
        let mut value = |name: &str, value: &Value| match value {
            Value::Plain(0) => Ok(()),
            Value::Plain(number) => write!(f, " {name} {number:#x}"),
            other => write!(f, " {name} {other:?}"),
        };
        value("addr", &self.addr)?;
        value("off", &self.off)?;
        value("addr3", &self.addr3)?;
        let numbers = [
            ("len", u64::from(self.len)),
            ("op_flags", self.op_flags.into()),
            ("ioprio", self.ioprio.into()),
            ("buf_index", self.buf_index.into()),
            ("personality", self.personality.into()),
            ("file_index", self.file_index.into()),
            ("pad2", self.pad2),
        ];
        for (name, number) in numbers.into_iter().filter(|(_, number)| *number != 0) {
            write!(f, " {name} {number:#x}")?;
        }
        if let Some(end) = self.off_of {
            write!(f, " off {end:?}")?;
        }
        if let Some(end) = self.file_index_of {
            write!(f, " file_index {end:?}")?;
        }
        for (bit, name) in SQE_FLAGS {
            if self.flags & bit != 0 {
                write!(f, " {name}")?;
            }
        }
        Ok(())
    }
}

/// `IOSQE_*`, with names.
pub const SQE_FLAGS: [(u8, &str); 8] = [
    (anyring_abi::IOSQE_FIXED_FILE, "FIXED_FILE"),
    (anyring_abi::IOSQE_IO_DRAIN, "IO_DRAIN"),
    (anyring_abi::IOSQE_IO_LINK, "IO_LINK"),
    (anyring_abi::IOSQE_IO_HARDLINK, "IO_HARDLINK"),
    (anyring_abi::IOSQE_ASYNC, "ASYNC"),
    (anyring_abi::IOSQE_BUFFER_SELECT, "BUFFER_SELECT"),
    (anyring_abi::IOSQE_CQE_SKIP_SUCCESS, "CQE_SKIP_SUCCESS"),
    (0x80, "UNKNOWN"),
];

/// `IORING_SETUP_*` that programs use, with names.
pub const SETUP_FLAGS: [(u32, &str); 12] = [
    (anyring_abi::IORING_SETUP_SQPOLL, "SQPOLL"),
    (anyring_abi::IORING_SETUP_CQSIZE, "CQSIZE"),
    (anyring_abi::IORING_SETUP_R_DISABLED, "R_DISABLED"),
    (anyring_abi::IORING_SETUP_SUBMIT_ALL, "SUBMIT_ALL"),
    (anyring_abi::IORING_SETUP_COOP_TASKRUN, "COOP_TASKRUN"),
    (anyring_abi::IORING_SETUP_TASKRUN_FLAG, "TASKRUN_FLAG"),
    (anyring_abi::IORING_SETUP_SQE128, "SQE128"),
    (anyring_abi::IORING_SETUP_CQE32, "CQE32"),
    (anyring_abi::IORING_SETUP_SINGLE_ISSUER, "SINGLE_ISSUER"),
    (anyring_abi::IORING_SETUP_DEFER_TASKRUN, "DEFER_TASKRUN"),
    (anyring_abi::IORING_SETUP_NO_MMAP, "NO_MMAP"),
    (anyring_abi::IORING_SETUP_NO_SQARRAY, "NO_SQARRAY"),
];

/// An opcode's name.
pub fn opcode_name(opcode: u8) -> String {
    Opcode::from_u8(opcode).map_or(format!("opcode {opcode}"), |opcode| format!("{opcode:?}"))
}

impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "seed {}, door {:?}, setup", self.seed, self.door)?;
        for (bit, name) in SETUP_FLAGS {
            if self.setup_flags & bit != 0 {
                write!(f, " {name}")?;
            }
        }
        writeln!(f, "{}", if self.wait_while_submitting { ", waits while submitting" } else { "" })?;
        for (index, step) in self.steps.iter().enumerate() {
            match step {
                Step::Submit(requests) if requests.is_empty() => {}
                Step::Submit(requests) => {
                    writeln!(f, "  step {index}: submit")?;
                    for request in requests {
                        writeln!(f, "    {request}")?;
                    }
                }
                other => writeln!(f, "  step {index}: {other:?}")?,
            }
        }
        Ok(())
    }
}
