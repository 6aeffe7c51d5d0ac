//! io_uring in user space: rings, requests, and the paths they take.
//!
//! This crate does not know how a program's calls reach it; `crates/inject` does. The functions for the three
//! system calls take the arguments of these calls. These arguments are plain numbers and addresses in the program's
//! memory, and may be invalid. ARCHITECTURE.md describes the path of a request through the files.

pub mod aio;
pub mod aio_ring;
pub mod alloc;
pub mod chaos;
pub mod descriptors;
pub mod device;
pub mod driver;
pub mod event;
pub mod forced;
pub mod identity;
pub mod issue;
pub mod lock;
pub mod log;
pub mod memory;
pub mod mutation;
pub mod op;
pub mod os;
pub mod poll;
pub mod process;
pub mod register;
pub mod request;
pub mod resource;
pub mod ring;
pub mod setup;
pub mod shared;
pub mod stats;
mod sync;
pub mod thread;
pub mod wait;
pub mod wq;

pub use register::register;
pub use setup::setup;
pub use wait::enter::{enter, Enter};

/// An error number of errno(3).
pub type Errno = rustix::io::Errno;
