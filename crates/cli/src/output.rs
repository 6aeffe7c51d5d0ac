//! What the command itself writes: a result to standard output, a line of its own to standard error.

use crate::errno;
use crate::failure::Failure;
use std::io::{self, ErrorKind, Write};

/// Writes a result to standard output, to its last byte.
pub fn print(text: &str) -> Result<(), Failure> {
    let mut output = io::stdout().lock();
    let written = output.write_all(text.as_bytes()).and_then(|()| output.flush());
    written.map_err(|error| unwritten("standard output", &error))
}

/// Why `what` could not be written. A reader that has gone knows that it has, and is told nothing.
pub fn unwritten(what: &str, error: &io::Error) -> Failure {
    match error.kind() {
        ErrorKind::BrokenPipe => Failure { status: 128 + libc::SIGPIPE, message: String::new() },
        _ => Failure::own(format!("cannot write to {what}: {}", errno::of(error))),
    }
}

/// A line on standard error. Where nobody can read it, the exit status has to say enough.
pub fn complain(line: &str) {
    let _ = writeln!(io::stderr(), "{}", one_line(line));
}

/// Control characters as escapes: a name may have any, and a message is one line whatever it names.
fn one_line(text: &str) -> String {
    let escaped = |character: char| match character.is_control() {
        true => character.escape_default().collect(),
        false => character.to_string(),
    };
    text.chars().map(escaped).collect()
}
