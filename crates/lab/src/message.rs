//! What passes between the lab and its worker process: a task as JSON in the one argument, one line of JSON back.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::PathBuf;

/// How a program of the interface reaches io_uring.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Door {
    /// liburing's functions, by symbol.
    Liburing,
    /// libc's `syscall()`.
    Libc,
    /// System call instructions of its own.
    Raw,
}

/// Which program the worker is. It does not know who serves [`Program::Uring`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[allow(missing_docs)] // as in Backend
pub enum Program {
    Uring,
    Epoll,
    Libuv,
    PosixAio,
    KernelAio,
    Threads,
    Futex,
    Libc,
}

/// What a worker is to do.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Task {
    /// As which program.
    pub program: Program,
    /// For [`Program::Uring`].
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

/// Messages at a steady rate. The figures: percentiles of what sending cost the sender, percentiles of the time until
/// the receiver had it (both [`crate::statistics::PERCENTILES`], ns), messages not sent in % of those that the time
/// had room for, CPU us a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Messages {
    /// From one message to the next.
    pub delay_us: u32,
    /// For how long.
    pub for_ms: u32,
    /// Whether the receiver looks all the time instead of sleeping.
    pub polling: bool,
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

impl std::fmt::Display for Refusal {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let text = std::io::Error::from_raw_os_error(self.errno).to_string();
        let text = text.split(" (os error").next().unwrap_or_default().to_lowercase();
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
