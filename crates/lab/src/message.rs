//! The messages between the lab and its worker process: a task as JSON in the one argument, and one line of JSON as
//! reply.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::PathBuf;

/// The way in which a program calls io_uring or Linux AIO.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Door {
    /// liburing's functions, by symbol. For Linux AIO, libaio's, or libc's `syscall()` where there is no libaio.
    Liburing,
    /// libc's `syscall()`.
    Libc,
    /// Its own system call instructions.
    Raw,
}

/// The program that the worker process becomes. As [`Program::Uring`], [`Program::Aio`] and [`Program::AioPoll`] it
/// does not know which server serves it.
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

/// A worker's task.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Task {
    /// The program to be.
    pub program: Program,
    /// The way in which a program of the interfaces calls io_uring or Linux AIO.
    pub door: Door,
    /// The measurement.
    pub work: Work,
}

/// One measurement.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Work {
    /// Submit and reap NOPs, `batch` at a time, `operations` in all (a multiple of `batch`): ns for each NOP.
    Nop {
        /// SQEs in a submit call.
        batch: u32,
        /// Number of timed operations.
        operations: u64,
    },
    /// Call `syscall(SYS_getpid)` so many times: ns for each call.
    Syscall {
        /// Number of timed calls.
        calls: u64,
    },
    /// Start /bin/true so many times; done by the lab itself: the median, us.
    Start {
        /// Number of timed starts.
        times: u32,
    },
    /// Read from and write to many pipes: ms in all.
    Pipes(Pipes),
    /// Read a file: ns for each block.
    Files(Files),
    /// Serve TCP connections that echo: ns for each message.
    Echo(Echo),
    /// Arm and cancel timeouts: ns for both.
    ArmAndCancel(ArmAndCancel),
    /// Let timeouts fire: mean and greatest lateness, us.
    Fire {
        /// Number of timeouts.
        timeouts: u32,
        /// Spread evenly over this time.
        over_ms: u32,
    },
    /// Wait on many descriptors, few of them ready at a time: ns for each that becomes ready.
    Polls(Polls),
    /// Pass tokens from pipe to pipe: passes a second.
    TokenPasses(TokenPasses),
    /// Do nothing: us of CPU in all, KiB resident for each ring.
    Idle {
        /// Number of rings.
        rings: u32,
        /// Time to wait, in ms.
        for_ms: u32,
    },
    /// Send messages from one thread to another: see [`Messages`].
    Messages(Messages),
    /// Send from several threads to one: ns and us of CPU for each message.
    FanIn(FanIn),
    /// Accept connections in one thread and serve each in another: us for each connection.
    FanOut(FanOut),
    /// Write blocks with O_DIRECT, one request at a time: the median, us.
    DirectWrites(DirectWrites),
    /// Make requests without and with IOSQE_ASYNC: see [`Paired`].
    Paired(Paired),
}

/// The published measurement of nonblocking pipes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pipes {
    /// Number of pipes.
    pub pipes: u32,
    /// Number of times that each is read and written.
    pub rounds: u32,
    /// True if data is there when the read is submitted.
    pub ready: bool,
    /// True if every request is to go to a worker (IOSQE_ASYNC; a thread pool does so anyway).
    pub forced: bool,
}

/// Reading blocks of a file with the contents of [`crate::scratch::word_at`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Files {
    /// The file.
    pub path: PathBuf,
    /// Its size in bytes.
    pub bytes: u64,
    /// Bytes in a read.
    pub block: u32,
    /// Reads in flight.
    pub depth: u32,
    /// True: at random places. False: one after the other.
    pub random: bool,
    /// True: bypass the page cache.
    pub direct: bool,
    /// Reads in all.
    pub operations: u64,
}

/// A TCP server on loopback; the client is a separate process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Echo {
    /// Connections at the same time.
    pub connections: u32,
    /// Bytes in a message.
    pub bytes: u32,
    /// Messages in all, over all connections.
    pub messages: u64,
    /// The way in which the ring is used.
    pub style: EchoStyle,
}

/// The way in which a ring serves connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum EchoStyle {
    /// A RECV, then a SEND, on a ring without flags.
    Plain,
    /// A RECV, then a SEND, on a ring with IORING_SETUP_DEFER_TASKRUN and SINGLE_ISSUER.
    DeferTaskrun,
    /// A multishot RECV with a buffer ring.
    Multishot,
}

/// Timeouts far in the future.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ArmAndCancel {
    /// Number of timeouts armed before the first is cancelled.
    pub timeouts: u32,
    /// The order in which they are cancelled.
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
    /// Number of eventfds that never become ready.
    pub idle: u32,
    /// Number of eventfds that become ready in each round.
    pub active: u32,
    /// Number of rounds.
    pub rounds: u32,
}

/// Tokens that go round pipes: pipetest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenPasses {
    /// Pipes that they go round.
    pub active: u32,
    /// Further pipes that are waited on and stay empty.
    pub idle: u32,
    /// Number of tokens, at most one for each active pipe.
    pub tokens: u32,
    /// Bytes of each, 12 at least.
    pub bytes: u32,
    /// Number of timed passes, of all tokens together; poll(2) makes fewer.
    pub passes: u64,
    /// Events of Linux AIO are read from the completion ring in memory. The program waits for them only if there is
    /// none.
    pub from_memory: bool,
}

/// Messages at a steady rate. The figures, in this order:
///
/// - Percentiles of the time that sending took the sender, in ns ([`crate::statistics::PERCENTILES`]).
/// - Percentiles of the time until the receiver had the message, likewise.
/// - Messages not sent, in % of those that the time had room for. [`Program::Libc`] sends nothing and has this figure
///   alone.
/// - CPU time in us for each message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Messages {
    /// Time from the end of one send to the next. The time that the sender needs to read the clock does not count.
    pub delay_us: u32,
    /// Time of the run, in ms.
    pub for_ms: u32,
    /// The receiver's behaviour.
    pub receiver: Receiver,
}

/// The behaviour of the receiving thread until a message comes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Receiver {
    /// Polls all the time.
    Looks,
    /// Waits in io_uring_enter(2), epoll_wait(2) or futex(2).
    Waits,
}

/// Messages from several threads, as fast as they are received.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct FanIn {
    /// Number of threads that send.
    pub senders: u32,
    /// Number of messages that each of them sends, below 2^24.
    pub each: u32,
}

/// TCP connections on loopback, from a client that is a separate process.
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
    /// Bytes in a write.
    pub bytes: u32,
    /// True if the requests have IOSQE_ASYNC.
    pub forced: bool,
    /// Number of writes.
    pub writes: u32,
}

/// Requests, made one at a time. Each round makes a request without IOSQE_ASYNC and, if `forced`, one with it. The
/// order alternates from round to round. Each round that counts has figures of the request without IOSQE_ASYNC, then of
/// the one with it. These are us from the submission to the CQE, and us of the submitting call. The counts are the
/// number of requests by way ([`Way::count`]), `short` transfers, and `cached` reads that should have found no page.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Paired {
    /// The subject of the requests.
    pub on: On,
    /// READ, WRITE, RECV or SEND.
    pub opcode: Transferring,
    /// Bytes in a request.
    pub bytes: u32,
    /// The situation that a request finds.
    pub situation: Situation,
    /// The most rounds that count, after one that is dropped if `forced`.
    pub rounds: u32,
    /// No round begins after this time, in ms, once [`crate::statistics::LEAST_RUNS`] count.
    pub for_ms: u32,
    /// True if there are requests with IOSQE_ASYNC.
    pub forced: bool,
}

/// The kind of descriptor.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum On {
    /// A file or block device. Writes write the present contents again.
    Path(PathBuf),
    /// An end of a new pipe.
    Pipe,
    /// An end of a new TCP connection on loopback.
    Tcp,
}

/// The operations that advice can be given on.
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
    /// True if the transfer takes bytes from memory.
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

/// The situation that a request finds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Situation {
    /// Its pages are in the page cache.
    Cached,
    /// None of its pages is in the page cache.
    Uncached,
    /// The file is open with O_DIRECT, without the page cache.
    Direct,
    /// The data, or the room for it, is there.
    Ready,
    /// The data, or the room for it, comes after the submission.
    Waiting,
}

/// The way in which a request completed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Way {
    /// Its CQE was there when the submitting call returned.
    Inline,
    /// The submitting call began it, and it completed without any thread's help when the device was done.
    Device,
    /// Completed after a wait for readiness.
    Poll,
    /// Completed with the help of a worker thread.
    Worker,
}

impl Way {
    /// All ways, in the order of tables.
    pub const ALL: [Way; 4] = [Way::Inline, Way::Device, Way::Poll, Way::Worker];

    /// Returns the name in tables and JSON.
    pub fn name(self) -> &'static str {
        match self {
            Way::Inline => "inline",
            Way::Device => "device",
            Way::Poll => "poll",
            Way::Worker => "worker",
        }
    }

    /// Returns the name of the count.
    pub fn count(self, forced: bool) -> String {
        format!("{}{}", if forced { "forced " } else { "" }, self.name())
    }
}

/// The end of a task.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reply {
    /// Done, and every result was right.
    Measured(Measured),
    /// An interface is unavailable here.
    Refused(Refusal),
    /// The task cannot be measured here: the missing part, and how to get it.
    Missing(String),
    /// A result was wrong.
    Failed(String),
}

/// A task that was done.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// The figures that [`Work`] names, in its order.
    pub figures: Vec<f64>,
    /// Further counts.
    pub counts: BTreeMap<String, u64>,
    /// The proof of the server, for programs of the interfaces.
    pub proof: Option<Proof>,
}

/// The facts by which a program of the interfaces can identify its server.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Proof {
    /// The file whose function was called, from dladdr(3); none for the raw door.
    pub provider: Option<String>,
    /// The ring's descriptor in /proc/self/fd.
    pub ring: Option<String>,
    /// Number of CQEs reaped.
    pub completions: u64,
    /// Number of these with a negative result.
    pub negative: u64,
}

/// An interface that returned an error.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    /// The call that returned it.
    pub call: String,
    /// The error number.
    pub errno: i32,
}

/// Formats an error as other commands print it.
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
