//! The ends of a workload's program, other than with figures.

use anyring_lab::message::{Measured, Proof, Refusal, Reply};
use std::io;

/// The reason why there are no figures.
#[derive(Debug)]
pub enum Stop {
    /// An interface returned an error before anything began.
    Refused(Refusal),
    /// Something is not installed or not allowed.
    Missing(String),
    /// A result was wrong.
    Failed(String),
}

/// A program's result.
pub type Outcome<T> = Result<T, Stop>;

impl From<String> for Stop {
    fn from(why: String) -> Self {
        Stop::Failed(why)
    }
}

impl From<&str> for Stop {
    fn from(why: &str) -> Self {
        Stop::Failed(why.to_owned())
    }
}

impl From<io::Error> for Stop {
    fn from(error: io::Error) -> Self {
        Stop::Failed(error.to_string())
    }
}

/// Makes the reply from a program's result.
pub fn reply(outcome: Outcome<Measured>) -> Reply {
    match outcome {
        Ok(measured) => Reply::Measured(measured),
        Err(Stop::Refused(refusal)) => Reply::Refused(refusal),
        Err(Stop::Missing(what)) => Reply::Missing(what),
        Err(Stop::Failed(why)) => Reply::Failed(why),
    }
}

/// Makes a result with one figure.
pub fn figure(value: f64, proof: Option<Proof>) -> Measured {
    Measured { figures: vec![value], proof, ..Measured::default() }
}

/// Fails, unless `fact` is true: a result was wrong.
pub fn expect(fact: bool, otherwise: impl FnOnce() -> String) -> Outcome<()> {
    match fact {
        true => Ok(()),
        false => Err(Stop::Failed(otherwise())),
    }
}

/// Makes an error that names the call from libc's -1.
pub fn checked(call: &str, answer: impl Into<i64>) -> Outcome<i64> {
    match answer.into() {
        -1 => Err(Stop::Failed(format!("{call}: {}", io::Error::last_os_error()))),
        value => Ok(value),
    }
}

/// Makes a refusal from libc's -1. Used before the work begins, where an error means that the interface is
/// unavailable here.
pub fn available(call: &str, answer: impl Into<i64>) -> Outcome<i64> {
    match answer.into() {
        -1 => Err(refused(call, io::Error::last_os_error().raw_os_error().unwrap_or(0))),
        value => Ok(value),
    }
}

/// Makes a refusal: the interface is unavailable.
pub fn refused(call: &str, errno: i32) -> Stop {
    Stop::Refused(Refusal { call: call.to_owned(), errno })
}

/// Raises the limit on descriptors to `count`, and the hard limit, too, if that is allowed.
pub fn want_descriptors(count: u64) -> Outcome<()> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is writable.
    checked("getrlimit", unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) })?;
    if limit.rlim_cur >= count {
        return Ok(());
    }
    let raised = libc::rlimit { rlim_cur: count, rlim_max: limit.rlim_max.max(count) };
    // SAFETY: an initialised rlimit.
    match unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raised) } {
        0 => Ok(()),
        _ => Err(Stop::Missing(format!(
            "it needs {count} descriptors and the hard limit is {}: be root, or raise it (ulimit -Hn)",
            limit.rlim_max
        ))),
    }
}
