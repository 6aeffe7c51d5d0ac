//! The backends: anyring's engine, the kernel's io_uring, and the interfaces that a program would use instead.

use crate::message::Program;
use serde::{Deserialize, Serialize};

/// A side of a comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Backend {
    /// libanyring.so, preloaded into a program that uses io_uring.
    Anyring,
    /// Kernel io_uring, for that program.
    Kernel,
    /// Nonblocking calls, edge-triggered epoll.
    Epoll,
    /// poll(2).
    Poll,
    /// libuv: its thread pool for files and pipes, its loop for timers.
    Libuv,
    /// glibc's aio_read(3): threads.
    PosixAio,
    /// io_submit(2).
    KernelAio,
    /// io_submit(2) with IOCB_CMD_POLL only.
    KernelAioPoll,
    /// io_submit(2), with libanyring.so preloaded.
    AnyringAio,
    /// io_submit(2) with IOCB_CMD_POLL only, with libanyring.so preloaded.
    AnyringAioPoll,
    /// Blocking calls, on threads if several are to overlap.
    Threads,
    /// A queue in memory, and futex(2) to wake its reader.
    Futex,
    /// The C library without anything preloaded.
    Libc,
}

impl Backend {
    /// All backends, in the order of tables.
    pub const ALL: [Backend; 13] = [
        Backend::Anyring,
        Backend::Kernel,
        Backend::Epoll,
        Backend::Poll,
        Backend::Libuv,
        Backend::PosixAio,
        Backend::AnyringAio,
        Backend::AnyringAioPoll,
        Backend::KernelAio,
        Backend::KernelAioPoll,
        Backend::Threads,
        Backend::Futex,
        Backend::Libc,
    ];

    /// Returns the name in `--backends` and JSON.
    pub fn name(self) -> &'static str {
        match self {
            Backend::Anyring => "anyring",
            Backend::Kernel => "kernel",
            Backend::Epoll => "epoll",
            Backend::Poll => "poll",
            Backend::Libuv => "libuv",
            Backend::PosixAio => "posix-aio",
            Backend::AnyringAio => "anyring-aio",
            Backend::AnyringAioPoll => "anyring-aio-poll",
            Backend::KernelAio => "kernel-aio",
            Backend::KernelAioPoll => "kernel-aio-poll",
            Backend::Threads => "threads",
            Backend::Futex => "futex",
            Backend::Libc => "libc",
        }
    }

    /// Returns the name in tables and charts.
    pub fn title(self) -> &'static str {
        match self {
            Backend::Anyring => "anyring",
            Backend::Kernel => "kernel io_uring",
            Backend::Epoll => "epoll",
            Backend::Poll => "poll",
            Backend::Libuv => "libuv",
            Backend::PosixAio => "POSIX AIO",
            Backend::AnyringAio => "anyring AIO",
            Backend::AnyringAioPoll => "anyring AIO poll",
            Backend::KernelAio => "kernel AIO",
            Backend::KernelAioPoll => "kernel AIO poll",
            Backend::Threads => "blocking threads",
            Backend::Futex => "futex and queue",
            Backend::Libc => "libc alone",
        }
    }

    /// Returns the documentation that its program follows.
    pub fn follows(self) -> &'static str {
        match self {
            Backend::Anyring | Backend::Kernel => {
                "io_uring(7) and liburing's man pages, without registered files or buffers"
            }
            Backend::Epoll => "epoll(7), edge-triggered: calls until EAGAIN",
            Backend::Poll => "poll(2): one array, looked through up to the last that is ready",
            Backend::Libuv => {
                "docs.libuv.org: uv_fs_read and uv_queue_work on the default pool of 4 threads, uv_timer"
            }
            Backend::PosixAio => "aio(7), glibc with its default of 20 threads, completions by aio_suspend(3)",
            Backend::KernelAio => "io_submit(2), io_getevents(2): as many in one call as there are",
            Backend::KernelAioPoll => "io_submit(2): IOCB_CMD_POLL, then plain read(2)",
            Backend::AnyringAio | Backend::AnyringAioPoll => "the same programs as for the kernel's AIO",
            Backend::Threads => "pthreads(7): plain blocking calls",
            Backend::Futex => "futex(2): FUTEX_WAKE only when the reader said that it sleeps",
            Backend::Libc => "syscall(2)",
        }
    }

    /// True if libanyring.so serves this backend.
    pub fn is_ours(self) -> bool {
        matches!(self, Backend::Anyring | Backend::AnyringAio | Backend::AnyringAioPoll)
    }

    /// Returns the program that the worker process becomes.
    pub fn program(self) -> Program {
        match self {
            Backend::Anyring | Backend::Kernel => Program::Uring,
            Backend::Epoll => Program::Epoll,
            Backend::Poll => Program::Poll,
            Backend::Libuv => Program::Libuv,
            Backend::PosixAio => Program::PosixAio,
            Backend::AnyringAio | Backend::KernelAio => Program::Aio,
            Backend::AnyringAioPoll | Backend::KernelAioPoll => Program::AioPoll,
            Backend::Threads => Program::Threads,
            Backend::Futex => Program::Futex,
            Backend::Libc => Program::Libc,
        }
    }
}

impl std::fmt::Display for Backend {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.pad(self.title())
    }
}

impl std::str::FromStr for Backend {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        Backend::ALL.into_iter().find(|backend| backend.name() == name).ok_or_else(|| {
            let names: Vec<_> = Backend::ALL.iter().map(|backend| backend.name()).collect();
            format!("there is no such backend; there are {}", names.join(", "))
        })
    }
}
