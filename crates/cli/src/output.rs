//! Output of the command itself: a result on standard output, a line of its own on standard error.

use crate::errno;
use crate::failure::Failure;
use std::io::{self, ErrorKind, Write};

/// Writes a result to standard output, to its last byte.
pub fn print(text: &str) -> Result<(), Failure> {
    let mut output = io::stdout().lock();
    let written = output.write_all(text.as_bytes()).and_then(|()| output.flush());
    written.map_err(|error| unwritten("standard output", &error))
}

/// The failure to write to `what`. A reader that has closed its end knows that, so nothing is printed.
pub fn unwritten(what: &str, error: &io::Error) -> Failure {
    match error.kind() {
        ErrorKind::BrokenPipe => Failure { status: 128 + libc::SIGPIPE, message: String::new() },
        _ => Failure::own(format!("cannot write to {what}: {}", errno::of(error))),
    }
}

/// Prints a line on standard error. If nobody can read it, the exit status must suffice.
pub fn complain(line: &str) {
    let _ = writeln!(io::stderr(), "{}", one_line(line));
}

/// Escapes control characters: a name may have any, and a message must stay one line.
fn one_line(text: &str) -> String {
    let escaped = |character: char| match character.is_control() {
        true => character.escape_default().collect(),
        false => character.to_string(),
    };
    text.chars().map(escaped).collect()
}
