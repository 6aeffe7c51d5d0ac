//! A program: steps on one file, each with requests whose outcome the model can tell.

use std::fmt;

/// The largest size that the file grows to.
pub const FILE_BYTES: u32 = 512 << 10;
/// The largest transfer of a single request.
pub const TRANSFER_BYTES: u32 = 64 << 10;
/// The unit of offsets, lengths and addresses of direct transfers, and of ranges that are cut out or put in.
pub const BLOCK: u32 = 4096;
/// The largest number of processes.
pub const PROCESSES: u8 = 3;
/// The rings of a process.
pub const RINGS: u8 = 2;
/// The requests that one ring has in flight at most.
pub const REQUESTS: usize = 12;

/// A range of the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Range {
    /// Its first byte.
    pub at: u32,
    /// The number of its bytes, which is not 0.
    pub len: u32,
}

impl Range {
    /// Returns the offset after its last byte.
    pub fn end(self) -> u32 {
        self.at + self.len
    }
}

/// The descriptor that a request uses. Each process has one of each kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Opened {
    /// Opened without further flags: transfers go through the page cache.
    Plain,
    /// Opened with O_DIRECT.
    Direct,
    /// Opened with O_APPEND: each write begins at the file's end.
    Append,
}

/// The memory of a transfer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Memory {
    /// One piece.
    Single,
    /// Several pieces: READV and WRITEV.
    Vector,
    /// A registered buffer: READ_FIXED and WRITE_FIXED.
    Registered,
}

/// The change of an allocation: fallocate(2)'s modes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)] // named after the modes
pub enum Allocation {
    Extend,
    KeepSize,
    PunchHole,
    Zero,
    ZeroKeepSize,
    Collapse,
    Insert,
}

/// All of them.
pub const ALLOCATIONS: [Allocation; 7] = [
    Allocation::Extend,
    Allocation::KeepSize,
    Allocation::PunchHole,
    Allocation::Zero,
    Allocation::ZeroKeepSize,
    Allocation::Collapse,
    Allocation::Insert,
];

impl Allocation {
    /// Returns fallocate(2)'s mode.
    pub fn mode(self) -> i32 {
        match self {
            Allocation::Extend => 0,
            Allocation::KeepSize => libc::FALLOC_FL_KEEP_SIZE,
            Allocation::PunchHole => libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE,
            Allocation::Zero => libc::FALLOC_FL_ZERO_RANGE,
            Allocation::ZeroKeepSize => libc::FALLOC_FL_ZERO_RANGE | libc::FALLOC_FL_KEEP_SIZE,
            Allocation::Collapse => libc::FALLOC_FL_COLLAPSE_RANGE,
            Allocation::Insert => libc::FALLOC_FL_INSERT_RANGE,
        }
    }

    /// True if it moves the bytes after its range.
    pub fn moves(self) -> bool {
        matches!(self, Allocation::Collapse | Allocation::Insert)
    }
}

/// The work of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Work {
    /// READ and its kind.
    Read(Range, Opened, Memory),
    /// WRITE and its kind. The bytes follow from the request's number.
    Write(Range, Opened, Memory),
    /// FTRUNCATE to this size.
    Truncate(u32),
    /// FALLOCATE.
    Allocate(Range, Allocation),
    /// FSYNC, or fdatasync if true.
    Sync(bool),
    /// SYNC_FILE_RANGE.
    SyncRange(Range),
    /// FADVISE that drops cached pages.
    Drop(Range),
    /// Loads from a mapping of the file, without io_uring.
    Load(Range),
    /// Stores to a mapping of the file, without io_uring.
    Store(Range),
}

impl Work {
    /// Returns its range, if its effect is limited to one.
    pub fn range(self) -> Option<Range> {
        match self {
            Work::Read(range, ..) | Work::Write(range, ..) | Work::Allocate(range, _) => Some(range),
            Work::Load(range) | Work::Store(range) => Some(range),
            Work::Truncate(_) | Work::Sync(_) | Work::SyncRange(_) | Work::Drop(_) => None,
        }
    }
}

/// A request, or an access to a mapping.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request {
    /// A number that no other request of the program has.
    pub id: u32,
    /// The process that makes it.
    pub process: u8,
    /// The ring of that process.
    pub ring: u8,
    /// The work.
    pub work: Work,
    /// IOSQE_ASYNC.
    pub on_worker: bool,
    /// The descriptor is named by its place among the registered files.
    pub registered_file: bool,
}

/// The order of a step's requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// Each is submitted once the one before has ended.
    Single,
    /// A chain of IOSQE_IO_LINK, which a short read or an error breaks.
    Linked,
    /// A chain of IOSQE_IO_HARDLINK.
    HardLinked,
    /// Each with IOSQE_IO_DRAIN.
    Drained,
    /// Any, on ranges that do not overlap.
    Free,
}

/// A part of a program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Requests. In each order but [`Order::Free`] they are of one ring.
    Requests(Order, Vec<Request>),
    /// A process closes its descriptors and mapping by requests of a ring, and opens and registers new ones.
    Reopen(u8, u8),
    /// A process compares the whole file.
    Compare(u8),
}

/// A program of a seed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Program {
    /// The seed.
    pub seed: u64,
    /// The number of processes.
    pub processes: u8,
    /// The setup flags of each process's rings.
    pub setup_flags: [[u32; RINGS as usize]; PROCESSES as usize],
    /// System call instructions of its own instead of libc's `syscall`.
    pub by_instructions: bool,
    /// The steps.
    pub steps: Vec<Step>,
}

impl Program {
    /// Leaves out these steps.
    pub fn without(mut self, steps: &[usize]) -> Program {
        let mut index = 0;
        self.steps.retain(|_| {
            index += 1;
            !steps.contains(&(index - 1))
        });
        self
    }
}

impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let flags = &self.setup_flags[..self.processes as usize];
        writeln!(f, "seed {}, {} processes, setup flags {flags:x?}", self.seed, self.processes)?;
        for (index, step) in self.steps.iter().enumerate() {
            match step {
                Step::Requests(order, requests) => {
                    writeln!(f, "{index}: {order:?}")?;
                    requests.iter().try_for_each(|request| writeln!(f, "    {request}"))?;
                }
                Step::Reopen(process, ring) => {
                    writeln!(f, "{index}: process {process} opens the file anew by ring {ring}")?;
                }
                Step::Compare(process) => writeln!(f, "{index}: process {process} compares the file")?,
            }
        }
        Ok(())
    }
}

impl fmt::Display for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Request { id, process, ring, work, .. } = self;
        write!(f, "request {id} (process {process}, ring {ring}): {work:?}")?;
        let notes = [(self.on_worker, ", IOSQE_ASYNC"), (self.registered_file, ", registered file")];
        notes.iter().filter(|(is, _)| *is).try_for_each(|(_, note)| f.write_str(note))
    }
}
