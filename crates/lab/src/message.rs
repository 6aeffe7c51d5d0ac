//! What passes between the lab and its worker process: a task as JSON in the one argument, one line of JSON back.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::PathBuf;

/// How a program of the interface reaches io_uring, and Linux AIO.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Door {
    /// liburing's functions, by symbol; libaio's, or libc's `syscall()` where there is no libaio.
    Liburing,
    /// libc's `syscall()`.
    Libc,
    /// System call instructions of its own.
    Raw,
}

/// Which program the worker is. It does not know who serves [`Program::Uring`], [`Program::Aio`] and
/// [`Program::AioPoll`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[allow(missing_docs)] // as in Backend
pub enum Program {
    Uring,
    Epoll,
    Poll,
    Libuv,
    PosixAio,
    Aio,
    AioPoll,
    Threads,
    Futex,
    Libc,
}

/// What a worker is to do.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Task {
    /// As which program.
    pub program: Program,
    /// For programs of the interfaces.
    pub door: Door,
    /// What.
    pub work: Work,
}

/// One measurement.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Work {
    /// Submit and reap NOPs, `batch` at a time, `operations` in all (a multiple of `batch`): ns a NOP.
    Nop {
        /// SQEs a submit call.
        batch: u32,
        /// How many are timed.
        operations: u64,
    },
    /// Call `syscall(SYS_getpid)` so many times: ns a call.
    Syscall {
        /// How many are timed.
        calls: u64,
    },
    /// Start /bin/true so many times; done by the lab itself: the median, us.
    Start {
        /// How many are timed.
        times: u32,
    },
    /// Read from and write to many pipes: ms in all.
    Pipes(Pipes),
    /// Read a file: ns a block.
    Files(Files),
    /// Serve TCP connections that echo: ns a message.
    Echo(Echo),
    /// Arm and cancel timeouts: ns for both.
    ArmAndCancel(ArmAndCancel),
    /// Let timeouts fire: mean and greatest lateness, us.
    Fire {
        /// How many.
        timeouts: u32,
        /// Spread evenly over this time.
        over_ms: u32,
    },
    /// Wait on many descriptors of which few become ready: ns for one that does.
    Polls(Polls),
    /// Pass tokens from pipe to pipe: passes a second.
    TokenPasses(TokenPasses),
    /// Do nothing: us of CPU in all, KiB resident for each ring.
    Idle {
        /// How many rings.
        rings: u32,
        /// For how long.
        for_ms: u32,
    },
    /// Send messages from one thread to another: see [`Messages`].
    Messages(Messages),
    /// Send from several threads to one: ns and us of CPU a message.
    FanIn(FanIn),
    /// Accept connections in one thread and serve each in another: us a connection.
    FanOut(FanOut),
    /// Write blocks with O_DIRECT, one request at a time: the median, us.
    DirectWrites(DirectWrites),
    /// Make requests without and with IOSQE_ASYNC: see [`Paired`].
    Paired(Paired),
}

/// The published measurement of nonblocking pipes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pipes {
    /// How many pipes.
    pub pipes: u32,
    /// How often each is read and written.
    pub rounds: u32,
    /// Whether data is there when the read is submitted.
    pub ready: bool,
    /// Whether every request is to go to a worker (IOSQE_ASYNC; a thread pool does so anyway).
    pub forced: bool,
}

/// Reading blocks of a file whose contents [`crate::scratch::word_at`] tells.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Files {
    /// The file.
    pub path: PathBuf,
    /// Its size.
    pub bytes: u64,
    /// Bytes a read.
    pub block: u32,
    /// Reads in flight.
    pub depth: u32,
    /// At random places instead of one after the other.
    pub random: bool,
    /// Past the page cache.
    pub direct: bool,
    /// Reads in all.
    pub operations: u64,
}

/// A TCP server on loopback; the client is a process of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Echo {
    /// Connections at the same time.
    pub connections: u32,
    /// Bytes a message.
    pub bytes: u32,
    /// Messages in all, over all connections.
    pub messages: u64,
    /// How the ring is used.
    pub style: EchoStyle,
}

/// How a ring serves connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum EchoStyle {
    /// A RECV, then a SEND, ring without flags.
    Plain,
    /// The same with IORING_SETUP_DEFER_TASKRUN and SINGLE_ISSUER.
    DeferTaskrun,
    /// A multishot RECV with a buffer ring.
    Multishot,
}

/// Timeouts far in the future.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ArmAndCancel {
    /// How many are armed before the first is cancelled.
    pub timeouts: u32,
    /// Which are cancelled first.
    pub order: CancelOrder,
}

/// The order in which timeouts are cancelled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[allow(missing_docs)]
pub enum CancelOrder {
    FirstIn,
    LastIn,
    Random,
}

/// Eventfds that are polled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Polls {
    /// How many never become ready.
    pub idle: u32,
    /// How many become ready in each round.
    pub active: u32,
    /// How often.
    pub rounds: u32,
}

/// Tokens that go round pipes: pipetest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenPasses {
    /// Pipes that they go round.
    pub active: u32,
    /// Pipes beside them that are waited on and stay empty.
    pub idle: u32,
    /// How many there are, at most one for each active pipe.
    pub tokens: u32,
    /// Bytes of each, 12 at least.
    pub bytes: u32,
    /// How many passes are timed, of all tokens together; poll(2) makes fewer.
    pub passes: u64,
    /// Events of Linux AIO are read from the completion ring in memory, and waited for only when there is none.
    pub from_memory: bool,
}

/// Messages at a steady rate. The figures: percentiles of what sending cost the sender, percentiles of the time until
/// the receiver had it (both [`crate::statistics::PERCENTILES`], ns), messages not sent in % of those that the time
/// had room for, CPU us a message. [`Program::Libc`] sends nothing: the third of them alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Messages {
    /// From when one message was sent until the next one is. What the sender itself takes to note a time is not counted.
    pub delay_us: u32,
    /// For how long.
    pub for_ms: u32,
    /// What the receiver does.
    pub receiver: Receiver,
}

/// What the thread that gets messages does until one comes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Receiver {
    /// It looks all the time.
    Looks,
    /// It waits, in enter, epoll_wait or futex.
    Waits,
}

/// Messages from several threads, as fast as they are taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct FanIn {
    /// How many threads send.
    pub senders: u32,
    /// How many messages each of them sends, below 2^24.
    pub each: u32,
}

/// TCP connections on loopback, from a client that is a process of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct FanOut {
    /// Threads that serve.
    pub workers: u32,
    /// Connections at the same time.
    pub connections: u32,
    /// Connections in all.
    pub total: u32,
}

/// Writes to a device or file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DirectWrites {
    /// A block device or a file.
    pub path: PathBuf,
    /// Bytes a write.
    pub bytes: u32,
    /// With IOSQE_ASYNC.
    pub forced: bool,
    /// How many.
    pub writes: u32,
}

/// Requests one at a time, in each round one as it comes and, if `forced`, one with IOSQE_ASYNC, in changing order. The
/// figures of each round that counts: us from the submission to the CQE and us of the submitting call, of the one, then of
/// the other. The counts: how many went which way ([`Way::count`]), `short` transfers, and `cached` reads that were to
/// find no page.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Paired {
    /// On what.
    pub on: On,
    /// READ, WRITE, RECV or SEND.
    pub opcode: Transferring,
    /// Bytes a request.
    pub bytes: u32,
    /// What a request meets.
    pub situation: Situation,
    /// How many at most count, after one that is dropped if `forced`.
    pub rounds: u32,
    /// No round is begun after this time, once [`crate::statistics::LEAST_RUNS`] count.
    pub for_ms: u32,
    /// Whether there are requests with IOSQE_ASYNC.
    pub forced: bool,
}

/// A descriptor of this kind.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum On {
    /// A file or block device. Writes write what is there again.
    Path(PathBuf),
    /// An end of a pipe of its own.
    Pipe,
    /// An end of a TCP connection of its own, on loopback.
    Tcp,
}

/// The operations that advice is given on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
#[allow(missing_docs)]
pub enum Transferring {
    Read,
    Write,
    Recv,
    Send,
}

impl Transferring {
    /// Whether it takes bytes from memory.
    pub fn is_write(self) -> bool {
        matches!(self, Transferring::Write | Transferring::Send)
    }
}

impl From<Transferring> for anyring_abi::Opcode {
    fn from(operation: Transferring) -> Self {
        match operation {
            Transferring::Read => anyring_abi::Opcode::Read,
            Transferring::Write => anyring_abi::Opcode::Write,
            Transferring::Recv => anyring_abi::Opcode::Recv,
            Transferring::Send => anyring_abi::Opcode::Send,
        }
    }
}

/// What a request meets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Situation {
    /// Its pages are in the page cache.
    Cached,
    /// None of its pages is.
    Uncached,
    /// It goes past the page cache (O_DIRECT).
    Direct,
    /// The data, or the room for it, is there.
    Ready,
    /// It comes after the submission.
    Waiting,
}

/// The way that a request went.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Way {
    /// Its CQE was there when the submitting call returned.
    Inline,
    /// It was begun in the submitting call, and completed without any thread's help when the device was done.
    Device,
    /// It waited to become ready.
    Poll,
    /// A worker thread had to do with it.
    Worker,
}

impl Way {
    /// In the order of tables.
    pub const ALL: [Way; 4] = [Way::Inline, Way::Device, Way::Poll, Way::Worker];

    /// As tables and the JSON have it.
    pub fn name(self) -> &'static str {
        match self {
            Way::Inline => "inline",
            Way::Device => "device",
            Way::Poll => "poll",
            Way::Worker => "worker",
        }
    }

    /// The name of the count.
    pub fn count(self, forced: bool) -> String {
        format!("{}{}", if forced { "forced " } else { "" }, self.name())
    }
}

/// How a task ended.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reply {
    /// It was done, and every result was as it must be.
    Measured(Measured),
    /// An interface is not to be had here.
    Refused(Refusal),
    /// It cannot be measured here: what is missing, and how to have it.
    Missing(String),
    /// A result was wrong.
    Failed(String),
}

/// A task that was done.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// As [`Work`] says, in its order.
    pub figures: Vec<f64>,
    /// What was counted beside.
    pub counts: BTreeMap<String, u64>,
    /// What proves who served it, for programs of the interface.
    pub proof: Option<Proof>,
}

/// What a program of the interface can tell of who served it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Proof {
    /// The file whose function was called, by dladdr(3); for the raw door there is none.
    pub provider: Option<String>,
    /// What /proc/self/fd says that the ring's descriptor is.
    pub ring: Option<String>,
    /// CQEs that were reaped.
    pub completions: u64,
    /// Those of them that had a negative result.
    pub negative: u64,
}

/// An interface that answered with an error.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    /// Who answered.
    pub call: String,
    /// With which error number.
    pub errno: i32,
}

/// An error as other commands print it.
pub fn in_words(error: &std::io::Error) -> String {
    error.to_string().split(" (os error").next().unwrap_or_default().to_lowercase()
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let text = in_words(&std::io::Error::from_raw_os_error(self.errno));
        write!(formatter, "{} answered \"{text}\" (errno {})", self.call, self.errno)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_task_survives_its_command_line() {
        let work = Work::Pipes(Pipes { pipes: 128, rounds: 256, ready: true, forced: false });
        let task = Task { program: Program::Uring, door: Door::Raw, work };
        let text = serde_json::to_string(&task).expect("JSON");
        assert_eq!(serde_json::from_str::<Task>(&text).expect("a task"), task);
        assert!(serde_json::from_str::<Task>(r#"{"program":"uring","door":"raw","work":"fork"}"#).is_err());
    }
}
