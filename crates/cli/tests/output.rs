//! Output that cannot be written. If a result is lost, the command fails and says so in one line. If the line of an
//! error is lost, the exit status stays that of the error.

mod common;

use common::{anyring, lab_worker, library, one_line_failure, output};
use std::fs::File;
use std::process::{Command, Stdio};

fn full() -> Stdio {
    File::options().write(true).open("/dev/full").expect("/dev/full").into()
}

/// A pipe that nobody reads.
fn deaf() -> Stdio {
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    writer.into()
}

/// Commands that print a result, quickly.
fn printing(counters: &str) -> Vec<Command> {
    let words: [&[&str]; 6] = [
        &["doctor"],
        &["doctor", "--json"],
        &["stats", counters],
        &["stats", "--json", counters],
        &["--help"],
        &["--version"],
    ];
    words.iter().map(|words| anyring(words)).collect()
}

#[test]
fn a_result_that_cannot_be_written_is_one_line() {
    library();
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("counters");
    anyring_engine::stats::open(file.to_str()).expect("a counters file");
    let file = file.to_str().expect("UTF-8");
    for mut command in printing(file) {
        let output = output(command.stdout(full()));
        let why = one_line_failure(&output, 125);
        assert!(why.contains("standard output"), "{command:?}: {why}");
    }
    // By SIGPIPE, as other commands, or by an error without a message.
    for mut command in printing(file) {
        let output = output(command.stdout(deaf()));
        assert!(output.stderr.is_empty() && !output.status.success(), "{command:?}: {output:?}");
    }
}

#[test]
fn an_error_keeps_its_status_though_nobody_reads_it() {
    library();
    let cases: [(&[&str], i32); 4] = [
        (&["run", "--", "no-such-program-in-path"], 127),
        (&["trace", "--backend", "user", "--", "no-such-program-in-path"], 127),
        (&["stats", "/nonexistent/counters"], 125),
        (&["no-such-command"], 2),
    ];
    for (words, status) in cases {
        let output = output(anyring(words).stderr(full()));
        assert_eq!(output.status.code(), Some(status), "{words:?}");
    }
}

#[test]
fn the_labs_files_are_there_though_its_tables_are_lost() {
    lab_worker();
    let directory = tempfile::tempdir().expect("a directory");
    let mut command = anyring(&["lab", "--quick", "--backends", "epoll", "pipes", "--out"]);
    let output = output(command.arg(directory.path()).stdout(full()));
    let why = one_line_failure(&output, 125);
    assert!(why.contains("standard output"), "{why}");
    for name in ["report.json", "report.html"] {
        assert!(directory.path().join(name).is_file(), "{name} is missing");
    }
}

#[test]
fn a_message_is_one_line_whatever_it_names() {
    let output = output(&mut anyring(&["stats", "/nonexistent/two\nlines\u{1b}[31m"]));
    let why = one_line_failure(&output, 125);
    assert!(why.contains(r"two\nlines\u{1b}[31m"), "{why}");
}
