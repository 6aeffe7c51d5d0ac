//! `anyring trace --verify COMMAND`: whether a changed program takes less time.

mod common;

use common::{anyring, library, output};

/// A loop that takes long enough to stand out.
const LOOP: &str = "at=0; while [ $at -lt 300000 ]; do at=$((at + 1)); done";

/// The exit status, and the last line on standard error, of a trace of the shell script `traced`.
fn verify(traced: &str, changed: &str) -> (Option<i32>, String) {
    library();
    let words = ["trace", "--backend", "user", "--verify", changed, "--", "sh", "-c", traced];
    let run = output(&mut anyring(&words));
    let said = String::from_utf8_lossy(&run.stderr);
    (run.status.code(), said.lines().last().unwrap_or_default().to_owned())
}

#[test]
fn what_takes_less_time_helped_and_the_reverse_made_it_worse() {
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
    assert!(
        line.contains("--verify: the changed program: ") && line.ends_with("so that nothing is proven"),
        "{line}"
    );
}
