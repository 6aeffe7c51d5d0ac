//! Serves the program's io_uring where the kernel refuses it.
//!
//! With this crate in a program, anyring's engine serves that program from the start of the process. The program's
//! calls of `syscall()`, of liburing's functions and of functions on descriptors lead to the engine. The crates
//! io-uring and tokio-uring, and programs that use them, need nothing else.
//!
//! ```no_run
//! match anyring::install() {
//!     Ok(server) => println!("io_uring by {server:?}"),
//!     Err(why) => println!("no io_uring: {why}"),
//! }
//! ```
//!
//! Programs that make system calls by their own instructions are not served (rustix, io-uring's feature
//! `direct-syscall`). These instructions are in the same executable as the engine's own, which must reach the kernel.
//! `anyring run -- PROGRAM` serves such programs, too. It is the only way to serve static programs and programs with
//! musl.
#![cfg(target_os = "linux")]

use std::fmt;

/// The server of the program's rings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Server {
    /// The kernel. anyring serves the rings that the kernel refuses.
    Kernel,
    /// The engine of anyring.
    Anyring,
}

/// The reason why nobody serves the program's rings.
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

/// Decides who serves the program's rings, by making a ring. It is best called first in `main`. Later calls return
/// the same.
///
/// # Errors
/// Nobody serves the rings. Either `ANYRING_BACKEND=kernel` switches anyring off and the kernel refuses io_uring. Or
/// something that anyring needs is refused, too.
pub fn install() -> Result<Server, Error> {
    match served::embed::anyring_install() {
        0 => Ok(Server::Kernel),
        1 => Ok(Server::Anyring),
        answer => Err(Error(-answer)),
    }
}

/// Guards a test of code that uses rings: see [`Guard::new`].
#[derive(Debug)]
#[must_use = "the test ends where it is dropped"]
pub struct Guard {
    server: Server,
    before: u64,
}

impl Guard {
    /// Begins a test, which fails at once if no ring is available. Where anyring serves, the test also fails at its
    /// end if it made no ring. Without that check, a program that falls back to something else would pass untested.
    ///
    /// # Panics
    /// If no ring is available.
    pub fn new() -> Guard {
        match install() {
            Ok(server) => Guard { server, before: served::embed::rings() },
            Err(why) => panic!("{why}"),
        }
    }

    /// Returns the server of the test's rings.
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
