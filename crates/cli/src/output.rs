//! Output of the command itself: results go to standard output, and messages to standard error, each on its own line.

use crate::errno;
use crate::failure::Failure;
use std::io::{self, ErrorKind, Write};

/// Writes a result to standard output, to its last byte.
pub fn print(text: &str) -> Result<(), Failure> {
    let mut output = io::stdout().lock();
    let written = output.write_all(text.as_bytes()).and_then(|()| output.flush());
    written.map_err(|error| unwritten("standard output", &error))
}

/// Returns the failure to write to `what`. If the reader has closed its end, it knows that, so nothing is printed.
pub fn unwritten(what: &str, error: &io::Error) -> Failure {
    match error.kind() {
        ErrorKind::BrokenPipe => Failure { status: 128 + libc::SIGPIPE, message: String::new() },
        _ => Failure::own(format!("cannot write to {what}: {}", errno::of(error))),
    }
}

/// Prints a line on standard error. Ignores a failure to do so, since the exit status also reports the problem.
pub fn complain(line: &str) {
    let _ = writeln!(io::stderr(), "{}", one_line(line));
}

/// Escapes control characters. A file's name may have any, but a message must stay one line.
fn one_line(text: &str) -> String {
    let escaped = |character: char| match character.is_control() {
        true => character.escape_default().collect(),
        false => character.to_string(),
    };
    text.chars().map(escaped).collect()
}
