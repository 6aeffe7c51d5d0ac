//! Who does the work: our engine, the kernel's io_uring, and what a program would use instead.

use crate::message::Program;
use serde::{Deserialize, Serialize};

/// A side of a comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Backend {
    /// libanyring.so, preloaded into a program of the interface.
    Anyring,
    /// The same program on the kernel's io_uring.
    Kernel,
    /// Nonblocking calls, edge-triggered epoll.
    Epoll,
    /// libuv: its thread pool for files and pipes, its loop for timers.
    Libuv,
    /// glibc's aio_read(3): threads.
    PosixAio,
    /// io_submit(2).
    KernelAio,
    /// Blocking calls, on threads where several are to overlap.
    Threads,
    /// A queue in memory, and futex(2) to wake its reader.
    Futex,
    /// The C library without anything preloaded.
    Libc,
}

impl Backend {
    /// In the order in which tables have them.
    pub const ALL: [Backend; 9] = [
        Backend::Anyring,
        Backend::Kernel,
        Backend::Epoll,
        Backend::Libuv,
        Backend::PosixAio,
        Backend::KernelAio,
        Backend::Threads,
        Backend::Futex,
        Backend::Libc,
    ];

    /// As `--backends` and the JSON have it.
    pub fn name(self) -> &'static str {
        match self {
            Backend::Anyring => "anyring",
            Backend::Kernel => "kernel",
            Backend::Epoll => "epoll",
            Backend::Libuv => "libuv",
            Backend::PosixAio => "posix-aio",
            Backend::KernelAio => "kernel-aio",
            Backend::Threads => "threads",
            Backend::Futex => "futex",
            Backend::Libc => "libc",
        }
    }

    /// As tables and charts have it.
    pub fn title(self) -> &'static str {
        match self {
            Backend::Anyring => "anyring",
            Backend::Kernel => "kernel io_uring",
            Backend::Epoll => "epoll",
            Backend::Libuv => "libuv",
            Backend::PosixAio => "POSIX AIO",
            Backend::KernelAio => "kernel AIO",
            Backend::Threads => "blocking threads",
            Backend::Futex => "futex and queue",
            Backend::Libc => "libc alone",
        }
    }

    /// The documentation that its program follows.
    pub fn follows(self) -> &'static str {
        match self {
            Backend::Anyring | Backend::Kernel => {
                "io_uring(7) and liburing's man pages, without registered files or buffers"
            }
            Backend::Epoll => "epoll(7), edge-triggered: calls until EAGAIN",
            Backend::Libuv => {
                "docs.libuv.org: uv_fs_read and uv_queue_work on the default pool of 4 threads, uv_timer"
            }
            Backend::PosixAio => "aio(7), glibc with its default of 20 threads, completions by aio_suspend(3)",
            Backend::KernelAio => "io_submit(2), io_getevents(2): as many in one call as there are",
            Backend::Threads => "pthreads(7): plain blocking calls",
            Backend::Futex => "futex(2): FUTEX_WAKE only when the reader said that it sleeps",
            Backend::Libc => "syscall(2)",
        }
    }

    /// The program that the worker is to be.
    pub fn program(self) -> Program {
        match self {
            Backend::Anyring | Backend::Kernel => Program::Uring,
            Backend::Epoll => Program::Epoll,
            Backend::Libuv => Program::Libuv,
            Backend::PosixAio => Program::PosixAio,
            Backend::KernelAio => Program::KernelAio,
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
