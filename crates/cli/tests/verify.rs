//! Gains: whether a changed program takes less time (`anyring trace --verify`).

mod common;

use common::{anyring, library, output};
use std::process::Stdio;
use std::time::{Duration, Instant};

/// A loop that takes long enough to stand out.
const LOOP: &str = "at=0; while [ $at -lt 300000 ]; do at=$((at + 1)); done";

/// The exit status, and the last line on standard error, of a trace of the shell script `traced`.
fn verify(traced: &str, changed: &str) -> (Option<i32>, String) {
    library();
    let words = ["trace", "--backend", "user", "--verify", changed, "--", "sh", "-c", traced];
    let run = output(&mut anyring(&words));
    let printed = String::from_utf8_lossy(&run.stderr);
    (run.status.code(), printed.lines().last().unwrap_or_default().to_owned())
}

#[test]
fn a_shorter_run_helped_and_the_reverse_made_it_worse() {
    for (traced, changed, sign, verdict) in
        [(LOOP, "true", "less", ": it helped"), ("true", LOOP, "more", ": it made it worse")]
    {
        let (status, line) = verify(traced, changed);
        assert_eq!(status, Some(0), "{line}");
        assert!(line.starts_with("anyring trace: in 5 turns: elapsed ") && line.ends_with(verdict), "{line}");
        assert_eq!(line.matches(&format!("% {sign})")).count(), 2, "{line}");
    }
}

#[test]
fn a_changed_program_that_fails_proves_nothing() {
    let (status, line) = verify("true", "exit 3");
    assert_eq!(status, Some(125), "{line}");
    assert!(line.contains("--verify: the changed program: ") && line.ends_with("so nothing is proven"), "{line}");
}

/// A signal during the runs that follow the trace ends them, and the command.
#[test]
fn a_signal_ends_the_turns() {
    use std::os::unix::process::ExitStatusExt;
    library();
    let folder = tempfile::tempdir().expect("a folder");
    let pid_file = folder.path().join("pid");
    let changed = format!("echo $$ >{0}.new; mv {0}.new {0}; exec sleep 600", pid_file.display());
    let mut trace = anyring(&["trace", "--backend", "user", "--verify", &changed, "--", "true"]);
    let mut trace = trace.stderr(Stdio::null()).spawn().expect("a trace");
    let patience = Instant::now() + Duration::from_secs(300);
    let turn = loop {
        if let Ok(text) = std::fs::read_to_string(&pid_file) {
            break text.trim().to_owned();
        }
        assert!(Instant::now() < patience, "no turn begins");
        std::thread::sleep(Duration::from_millis(5));
    };
    // SAFETY: takes no pointers; our own child, not yet waited for.
    assert_eq!(unsafe { libc::kill(trace.id() as libc::pid_t, libc::SIGTERM) }, 0);
    assert_eq!(trace.wait().expect("its end").signal(), Some(libc::SIGTERM));
    let is_there = || {
        std::fs::read_to_string(format!("/proc/{turn}/comm"))
            .is_ok_and(|name| ["sh", "sleep"].contains(&name.trim()))
    };
    while is_there() {
        assert!(Instant::now() < patience, "the turn goes on");
        std::thread::sleep(Duration::from_millis(5));
    }
}
