//! Serves the program's io_uring where the kernel refuses it.
//!
//! With this crate in a program its calls of `syscall()`, of liburing's functions and of those on descriptors lead to anyring's engine,
//! from the start of the process on. The crates io-uring, tokio-uring and what is made of them need nothing else.
//!
//! ```no_run
//! match anyring::install() {
//!     Ok(server) => println!("io_uring by {server:?}"),
//!     Err(why) => println!("no io_uring: {why}"),
//! }
//! ```
//!
//! What makes system calls by instructions of its own (rustix, io-uring's feature `direct-syscall`) is not served: these are in the same
//! executable as the engine, whose own have to reach the kernel. `anyring run -- PROGRAM` serves them, too. Musl's and static programs
//! are served by that alone.
#![cfg(target_os = "linux")]

use std::fmt;

/// Who serves the program's rings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Server {
    /// The kernel, and anyring the rings that it refuses.
    Kernel,
    /// anyring.
    Anyring,
}

/// Why nobody serves the program's rings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Error(i32);

impl Error {
    /// The error number.
    pub fn errno(&self) -> i32 {
        self.0
    }
}

impl fmt::Display for Error {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            libc::EEXIST => formatter.write_str("another library's io_uring functions stand before anyring's"),
            errno => write!(formatter, "no ring is available: {}", std::io::Error::from_raw_os_error(errno)),
        }
    }
}

impl std::error::Error for Error {}

impl From<Error> for std::io::Error {
    fn from(error: Error) -> Self {
        std::io::Error::from_raw_os_error(error.0)
    }
}

/// Decides who serves the program's rings, by making one. Best called first in `main`; later it answers the same.
///
/// # Errors
/// Why nobody does: the kernel refuses and anyring is switched off (`ANYRING_BACKEND=kernel`), or what anyring needs is refused, too.
pub fn install() -> Result<Server, Error> {
    match served::embed::anyring_install() {
        0 => Ok(Server::Kernel),
        1 => Ok(Server::Anyring),
        answer => Err(Error(-answer)),
    }
}

/// For a test of what uses rings: see [`Guard::new`].
#[derive(Debug)]
#[must_use = "the test ends where it is dropped"]
pub struct Guard {
    server: Server,
    before: u64,
}

impl Guard {
    /// Begins a test. It fails here where no ring is to be had and, where anyring serves, at the end if no ring was made: a program that
    /// falls back to something else would pass without having been tested.
    ///
    /// # Panics
    /// Where no ring is to be had.
    pub fn new() -> Guard {
        match install() {
            Ok(server) => Guard { server, before: served::embed::rings() },
            Err(why) => panic!("{why}"),
        }
    }

    /// Who serves the test's rings.
    pub fn server(&self) -> Server {
        self.server
    }
}

impl Default for Guard {
    fn default() -> Self {
        Guard::new()
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if self.server == Server::Anyring && !std::thread::panicking() {
            assert_ne!(served::embed::rings(), self.before, "the test has made no ring");
        }
    }
}
