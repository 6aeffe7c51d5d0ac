//! A hostile program: steps that name memory and descriptors symbolically. So a step stays the same when others are
//! left out.

use crate::arena::Area;
use anyring_abi::Opcode;
use std::fmt;

/// Number of rings that a program has at a time.
pub const RINGS: u8 = 6;
/// Number of the program's contexts of Linux AIO.
pub const CONTEXTS: u8 = 3;
/// The first descriptor that requests may name, and that any thread may close or replace.
pub const FIRST_VICTIM: i32 = 100;
/// Number of such descriptors.
pub const VICTIMS: i32 = 40;

/// A word: a number, or an address in the arena.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Word {
    /// A plain number.
    Plain(u64),
    /// An address this many bytes after the beginning of an area.
    At(Area, u32),
}

/// A descriptor.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Fd {
    /// This number, whatever it is.
    Number(i32),
    /// The descriptor of the ring in this slot.
    Ring(u8),
}

/// The contents of an SQE.
#[derive(Debug, Clone, Copy)]
#[allow(missing_docs)] // the fields of anyring_abi::Sqe
pub struct Request {
    pub opcode: u8,
    pub flags: u8,
    pub ioprio: u16,
    pub fd: Fd,
    pub off: Word,
    pub addr: Word,
    pub len: u32,
    pub op_flags: u32,
    pub user_data: u64,
    pub buf_index: u16,
    pub personality: u16,
    pub file_index: Fd,
    pub addr3: Word,
    pub pad2: u64,
}

/// The arguments of io_uring_enter(2).
#[derive(Debug, Clone, Copy)]
#[allow(missing_docs)]
pub struct Enter {
    pub ring: Fd,
    pub to_submit: u32,
    pub min_complete: u32,
    pub flags: u32,
    pub argument: Word,
    pub size: u64,
}

/// The disturbance that a thread causes until the program ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Nuisance {
    /// Changes addresses, lengths and descriptors in SQEs, vectors and buffer rings.
    Rewrites,
    /// Protects, unmaps and maps again the memory meant for that.
    Unmaps,
    /// Closes descriptors, and opens others under their numbers.
    Closes,
    /// Enters rings, to wait and to submit.
    Enters,
    /// Sends signals to the first thread, whose handler enters a ring.
    Signals,
    /// Forks children, which enter and close rings.
    Forks,
    /// Overwrites the words of rings.
    Scrambles,
    /// Writes to the standard descriptors that are closed.
    Logs,
}

/// The place where steps run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// A child, which then executes a program, or ends. Its parent runs the same steps.
    Child { birth: Birth, executes: bool },
    /// A thread, which the program waits for: its [`manner`].
    Thread { manner: u8 },
    /// Another context, by swapcontext(3), in which all signals but the alarm's may be blocked. If `leaps`, a handler
    /// that interrupts a call there leaves it by setcontext(3), and skips the rest.
    Context { masked: bool, leaps: bool },
    /// A sigsetjmp(3): a handler that interrupts a call leaves it by siglongjmp(3), and skips the rest.
    Jump,
    /// A handler, on an alternate stack of 16 KiB.
    Handler,
}

/// The odd attributes of a thread, in bits.
#[allow(missing_docs)]
pub mod manner {
    pub const PINNED: u8 = 1;
    pub const NICE: u8 = 2;
    pub const BATCH: u8 = 4;
    pub const SLACK: u8 = 8;
    /// All signals but the alarm's are blocked, by pthread_attr_setsigmask_np(3).
    pub const MASKED: u8 = 16;
    /// A stack of 16 KiB.
    pub const SMALL: u8 = 32;
    /// A seccomp filter of its own, which refuses fsync(2).
    pub const FILTERED: u8 = 64;
}

/// The call that makes a child.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Birth {
    /// fork(3).
    Fork,
    /// _Fork(3), which runs no handlers.
    Bare,
    /// clone3(2) with these flags, without libc's wrapper.
    Clone(u64),
    /// clone(2) with the flags of vfork(2) and these: the child runs in its parent's memory.
    Vfork(i32),
}

/// One step of a program.
#[derive(Debug, Clone)]
pub enum Step {
    /// io_uring_setup(2), and mmap(2) of the ring.
    Setup {
        slot: u8,
        entries: u32,
        cq_entries: u32,
        flags: u32,
        idle_ms: u32,
        attach: Fd,
        params: Option<Word>,
        map: bool,
    },
    /// Writes SQEs into the ring's memory, then enters.
    Submit { slot: u8, requests: Vec<Request>, enter: Enter },
    /// io_uring_enter(2) alone.
    Enter(Enter),
    /// io_uring_register(2).
    Register { ring: Fd, opcode: u32, argument: Word, count: u32 },
    /// Writes words into memory.
    Write { at: Word, words: Vec<Word> },
    /// mmap(2) of a buffer ring that the kernel made.
    MapBufferRing { slot: u8, group: u32, number: u8 },
    /// Reaps all CQEs, by the head.
    Reap { slot: u8 },
    /// Polls descriptors of rings by poll(2), epoll(7) or select(2), for a few milliseconds at most.
    Poll { slot: u8, how: u8 },
    /// mprotect(2), or another mapping in its place.
    Protect { area: Area, page: u8, pages: u8, how: u8 },
    /// close(2).
    Close(Fd),
    /// close_range(2), of victims only.
    CloseRange { first: i32, last: i32 },
    /// dup3(2) onto a victim, or fcntl(F_DUPFD).
    Dup { from: Fd, onto: i32 },
    /// Opens another file under a victim's number.
    Reopen { victim: i32, kind: u8 },
    /// Writes to, or reads from, a pipe or socket.
    Feed { victim: i32, write: bool, bytes: u16 },
    /// setrlimit(2) of the soft limit; `None` restores the initial one.
    Limit { resource: u32, value: Option<u64> },
    /// Runs this many of the following steps somewhere else.
    Within { place: Place, steps: u8 },
    /// Closes some of the numbers 0 to 2 (bit n: number n), until the end.
    Standard { numbers: u8 },
    /// Makes a call on every open number that is not the program's.
    Name { call: u8 },
    /// setrlimit(2) to `limit` descriptors; all of them except `left` are then in use.
    Fill { limit: u32, left: u8 },
    /// Closes those again; the limit stays.
    Empty,
    /// Makes a ring that no other step names: see `witness`.
    Witness { flags: u32 },
    /// Sends a signal to this thread, or to the process.
    Signal { signal: i32, to_process: bool },
    /// Starts a thread that is a nuisance from now on.
    Start(Nuisance, u64),
    /// io_setup(2).
    AioSetup { slot: u8, events: u32, context: Option<Word> },
    /// io_submit(2).
    AioSubmit { slot: u8, count: i64, pointers: Word, context: Option<Word> },
    /// io_getevents(2).
    AioGetevents { slot: u8, min: i64, max: i64, events: Word, timeout: Word, context: Option<Word> },
    /// io_cancel(2).
    AioCancel { slot: u8, iocb: Word, result: Word, context: Option<Word> },
    /// io_destroy(2).
    AioDestroy { slot: u8, context: Option<Word> },
    /// Overwrites a word of a completion ring of Linux AIO.
    AioScramble { slot: u8, word: u8, value: u32 },
    /// Waits a little, so that other threads run.
    Pause,
}

impl Step {
    /// Number of calls on such numbers.
    pub const CALLS: u8 = 18;
}

/// A hostile program.
#[derive(Debug, Clone)]
pub struct Program {
    /// The seed from which the program was made.
    pub seed: u64,
    /// True if the program calls by `syscall` instructions instead of libc's syscall().
    pub raw: bool,
    /// True if the program runs as a user without privileges, so that RLIMIT_NPROC counts.
    pub unprivileged: bool,
    /// True if the program has two copies of the library.
    pub twice: bool,
    /// Its steps.
    pub steps: Vec<Step>,
}

impl Program {
    /// True if a thread may have a filter of its own. The engine's threads may inherit it (docs/limits.md).
    pub fn filters_threads(&self) -> bool {
        let filters = |step: &Step| matches!(step, Step::Within { place: Place::Thread { manner }, .. } if manner & manner::FILTERED != 0);
        self.steps.iter().any(filters)
    }

    /// The program without these steps.
    pub fn without(mut self, left_out: &[usize]) -> Program {
        let mut number = 0;
        self.steps.retain(|_| {
            number += 1;
            !left_out.contains(&(number - 1))
        });
        self
    }
}

impl fmt::Display for Word {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Word::Plain(value) => write!(f, "{value:#x}"),
            Word::At(area, offset) => write!(f, "{area:?}+{offset:#x}"),
        }
    }
}

impl fmt::Display for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = Opcode::from_u8(self.opcode).map_or("?", |opcode| opcode.name());
        write!(
            f,
            "{name}({}) flags {:#x} ioprio {:#x} {:?} off {} addr {} len {:#x} op_flags {:#x} user_data {} buf {} \
             personality {} index {:?} addr3 {} pad2 {:#x}",
            self.opcode,
            self.flags,
            self.ioprio,
            self.fd,
            self.off,
            self.addr,
            self.len,
            self.op_flags,
            self.user_data,
            self.buf_index,
            self.personality,
            self.file_index,
            self.addr3,
            self.pad2
        )
    }
}

impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let by = if self.raw { "instructions" } else { "syscall()" };
        writeln!(f, "seed {}, by {by}{}", self.seed, if self.unprivileged { ", unprivileged" } else { "" })?;
        if self.twice {
            writeln!(f, "with two copies of the library")?;
        }
        for (number, step) in self.steps.iter().enumerate() {
            match step {
                Step::Submit { slot, requests, enter } => {
                    writeln!(f, "{number:4} Submit to {slot}, {enter:?}")?;
                    requests.iter().try_for_each(|request| writeln!(f, "       {request}"))?;
                }
                Step::Write { at, words } => {
                    write!(f, "{number:4} Write {at}:")?;
                    words.iter().try_for_each(|word| write!(f, " {word}"))?;
                    writeln!(f)?;
                }
                step => writeln!(f, "{number:4} {step:?}")?,
            }
        }
        Ok(())
    }
}
