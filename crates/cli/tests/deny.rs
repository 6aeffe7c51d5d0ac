//! `anyring deny`, seen by programs that make the calls themselves.
#![cfg(target_arch = "x86_64")]

mod common;

use common::{anyring, calling, calling_i386, one_line_failure, output, skipped, stdout, Elf, ANYRING, ERRNOS};
use std::os::unix::process::ExitStatusExt;
use std::process::Command;

const IO_URING_CALLS: std::ops::RangeInclusive<u32> = 425..=427;
/// io_setup, io_destroy, io_getevents, io_submit, io_cancel, io_pgetevents on x86-64.
const AIO_CALLS: [u32; 6] = [206, 207, 208, 209, 210, 333];

/// The errno that call `number` answers below `deny` with these options.
fn answer(options: &[&str], number: u32) -> i32 {
    let directory = tempfile::tempdir().expect("a directory");
    let program = Elf::new(calling(number)).write(&directory.path().join("call"));
    let mut command = anyring(&[&["deny"], options, &["--"]].concat());
    command.arg(program).status().expect("start it").code().expect("an exit status")
}

/// What call `number` answers where the tests run.
fn answer_outside(number: u32) -> i32 {
    let directory = tempfile::tempdir().expect("a directory");
    let program = Elf::new(calling(number)).write(&directory.path().join("call"));
    Command::new(program).status().expect("start it").code().expect("an exit status")
}

#[test]
fn every_call_answers_every_errno() {
    for (name, code) in ERRNOS {
        for number in IO_URING_CALLS {
            assert_eq!(answer(&["--errno", name], number), code, "call {number} with {name}");
        }
    }
}

#[test]
fn eperm_is_the_default() {
    assert_eq!(answer(&[], 425), libc::EPERM);
}

#[test]
fn kernel_aio_is_refused_only_when_asked() {
    for number in AIO_CALLS {
        assert_eq!(answer(&["--errno", "EOPNOTSUPP", "--aio"], number), libc::EOPNOTSUPP, "call {number}");
        assert_eq!(answer(&["--errno", "EOPNOTSUPP"], number), answer_outside(number), "call {number}");
    }
}

#[test]
fn the_innermost_of_nested_filters_answers() {
    assert_eq!(answer(&["--errno", "EPERM", "--", ANYRING, "deny", "--errno", "ENOSYS"], 425), libc::ENOSYS);
    assert_eq!(answer(&["--errno", "ENOSYS", "--", ANYRING, "deny", "--errno", "EPERM"], 425), libc::EPERM);
}

#[test]
fn a_32_bit_program_is_refused_too_and_not_killed() {
    let directory = tempfile::tempdir().expect("a directory");
    let elf = Elf { class_64: false, machine: 3, ..Elf::new(calling_i386(425)) };
    let program = elf.write(&directory.path().join("call"));
    if let Err(error) = Command::new(&program).status() {
        skipped(&format!("this kernel runs no 32-bit programs: {error}"));
        return;
    }
    let status = anyring(&["deny", "--errno", "EOPNOTSUPP", "--"]).arg(program).status().expect("start it");
    assert_eq!(status.code(), Some(libc::EOPNOTSUPP), "{status}");
}

#[test]
fn exit_status_signal_and_streams_pass_through() {
    assert_eq!(output(&mut anyring(&["deny", "--", "sh", "-c", "exit 42"])).status.code(), Some(42));
    assert_eq!(
        output(&mut anyring(&["deny", "--", "sh", "-c", "kill -TERM $$"])).status.signal(),
        Some(libc::SIGTERM)
    );
    assert_eq!(stdout(&output(&mut anyring(&["deny", "--", "echo", "--aio", "-x"]))), "--aio -x\n");
}

#[test]
fn a_program_that_cannot_be_started_is_one_line() {
    one_line_failure(&output(&mut anyring(&["deny", "--", "/nonexistent/program"])), 127);
    one_line_failure(&output(&mut anyring(&["deny", "--", "no-such-program-in-path"])), 127);
    one_line_failure(&output(&mut anyring(&["deny", "--", "/etc/passwd"])), 126);
}

#[test]
fn bad_usage_is_one_line_and_status_2() {
    let unknown = one_line_failure(&output(&mut anyring(&["deny", "--errno", "EFOO", "--", "true"])), 2);
    assert!(unknown.contains("EFOO") && unknown.contains("EOPNOTSUPP"), "{unknown}");
    one_line_failure(&output(&mut anyring(&["deny"])), 2);
    one_line_failure(&output(&mut anyring(&["deny", "--backend", "user", "--", "true"])), 2);
    one_line_failure(&output(&mut anyring(&["refuse", "--", "true"])), 2);
}
