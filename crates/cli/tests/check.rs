//! `anyring check`: expectations that hold or do not, the verdict, and what proves nothing.

mod common;

use common::{anyring, conformance, library, one_line_failure, output};

/// The output of `check` with these expectations for one conformance case on anyring's engine.
fn check(expectations: &[&str], case: &str) -> std::process::Output {
    library();
    let mut command = anyring(&["check", "--backend", "user"]);
    command.args(expectations).arg("--").arg(conformance()).args(["--quiet", "--filter", case]);
    output(&mut command)
}

#[test]
fn check_fails_by_each_expectation_that_does_not_hold() {
    let holds = check(
        &["--no-punts", "--no-overflow", "--max-worker-share", "0%", "--max-p99", "1000s"],
        "nop::completes_with_zero",
    );
    assert_eq!(holds.status.code(), Some(0), "{holds:?}");
    let printed = String::from_utf8_lossy(&holds.stderr);
    let line = "anyring check: --no-punts, --max-worker-share 0%, --no-overflow, --max-p99 1000s: held by ";
    assert!(printed.starts_with(line) && printed.lines().count() == 1, "one line on success: {printed}");
    assert!(printed.ends_with("served by anyring: asked for\n"), "{printed}");
    let cases = [
        (["--no-punts", ""], "rw_file::async_writev_of_a_file", "--no-punts: ring 1: "),
        (["--max-worker-share", "1.5"], "rw_file::async_writev_of_a_file", "--max-worker-share 1.5%: "),
        (["--no-overflow", ""], "overflow::", "--no-overflow: ring "),
        (["--max-p99", "1ns"], "nop::completes_with_zero", "--max-p99 1ns: ring 1: NOP took "),
    ];
    for (expectation, case, line) in cases {
        let expectation: Vec<_> = expectation.into_iter().filter(|word| !word.is_empty()).collect();
        let broken = check(&expectation, case);
        let text = String::from_utf8_lossy(&broken.stderr);
        assert_eq!(broken.status.code(), Some(1), "{expectation:?}: {text}");
        assert!(text.lines().any(|printed| printed.starts_with(&format!("anyring check: {line}"))), "{text}");
    }
}

#[test]
fn check_proves_nothing_where_nothing_was_seen() {
    library();
    let program =
        |script| output(anyring(&["check", "--no-punts", "--backend", "user", "--", "sh", "-c"]).arg(script));
    one_line_failure(&program("true"), 125);
    assert_eq!(program("exit 7").status.code(), Some(7), "the program's own failure goes first");
    for wrong in [&["--"][..], &["--max-worker-share", "101%", "--"], &["--max-p99", "2", "--"]] {
        let usage = output(anyring(&["check"]).args(wrong).arg("true"));
        assert_eq!(usage.status.code(), Some(2), "{usage:?}");
    }
}

#[test]
fn check_echoes_the_bound_in_its_unit() {
    let slow = check(&["--max-p99", "0.001us"], "nop::completes_with_zero");
    let text = String::from_utf8_lossy(&slow.stderr);
    let line = text.lines().find(|line| line.contains("--max-p99 0.001us: ring 1: NOP took ")).expect("the line");
    assert!(line.ends_with("us") && !line.ends_with("0us"), "{line}");
}

#[test]
fn check_leaves_excepted_opcodes_out() {
    let case = "rw_file::async_writev_of_a_file";
    assert_eq!(check(&["--no-punts"], case).status.code(), Some(1));
    let mut others = anyring(&["check", "--backend", "user", "--no-punts", "--max-worker-share", "0"]);
    others.args(["--except", "writev,IORING_OP_READV", "--"]).arg(conformance());
    let without = output(others.args(["--quiet", "--filter", case, "--filter", "nop::completes_with_zero"]));
    assert_eq!(without.status.code(), Some(0), "{without:?}");
    let nothing = check(&["--no-punts", "--except", "NOP"], "nop::completes_with_zero");
    let printed = String::from_utf8_lossy(&nothing.stderr);
    assert_eq!(nothing.status.code(), Some(125), "{printed}");
    assert!(printed.contains("no request completed that the expectations are about"), "{printed}");
    let wrong = one_line_failure(&check(&["--no-punts", "--except", "WRITEX"], case), 2);
    assert!(wrong.contains("--except WRITEX"), "{wrong}");
}

#[test]
fn check_writes_its_verdict_for_programs() {
    let directory = tempfile::tempdir().expect("a directory");
    let [json, junit] = ["json", "xml"].map(|name| directory.path().join(name).to_str().expect("UTF-8").to_owned());
    let run = |expectations: &[&str], case: &str| {
        let words = [expectations, &["--json", &json, "--junit", &junit]].concat();
        let status = check(&words, case).status.code();
        let verdict = std::fs::read(&json).expect("the verdict");
        let verdict: serde_json::Value = serde_json::from_slice(&verdict).expect("JSON");
        (status, verdict, std::fs::read_to_string(&junit).expect("the test report"))
    };
    let (status, verdict, xml) = run(&["--no-punts", "--no-overflow"], "nop::completes_with_zero");
    assert_eq!((status, &verdict["holds"], &verdict["status"]), (Some(0), &true.into(), &0.into()));
    assert_eq!((&verdict["backend"], &verdict["why"]), (&"anyring".into(), &"asked for".into()));
    assert!(xml.contains("tests=\"3\" failures=\"0\" errors=\"0\""), "{xml}");
    let (status, verdict, xml) = run(&["--no-punts", "--no-overflow"], "rw_file::async_writev_of_a_file");
    assert_eq!((status, &verdict["holds"]), (Some(1), &false.into()));
    assert_eq!(verdict["expectations"][0]["expectation"], "--no-punts");
    assert_eq!(
        (&verdict["expectations"][0]["holds"], &verdict["expectations"][1]["holds"]),
        (&false.into(), &true.into())
    );
    assert!(xml.contains("failures=\"1\"") && xml.contains("WRITEV (file) went to a worker"), "{xml}");
    let mut command = anyring(&["check", "--backend", "user", "--no-punts", "--junit", &junit, "--", "true"]);
    assert_eq!(output(&mut command).status.code(), Some(125));
    let xml = std::fs::read_to_string(&junit).expect("the test report");
    assert!(xml.contains("<error message=\"the program made no ring\"/>"), "nothing is proven: {xml}");
}

/// A run on anyring's engine cannot answer whether the kernel punts.
#[test]
fn check_of_punts_does_not_fall_back_to_our_engine() {
    library();
    for expectation in [&["--no-punts"][..], &["--max-worker-share", "5%", "--no-overflow"]] {
        let words =
            [&["deny", "--", common::ANYRING, "check"], expectation, &["--", "sh", "-c", "echo started"]].concat();
        let why = one_line_failure(&output(&mut anyring(&words)), 125);
        assert!(
            why.contains(expectation[0]) && why.contains("answered EPERM") && why.contains("--backend user"),
            "{why}"
        );
    }
    let words = ["deny", "--", common::ANYRING, "check", "--no-overflow", "--"];
    let falls_back =
        output(anyring(&words).arg(conformance()).args(["--quiet", "--filter", "nop::completes_with_zero"]));
    let printed = String::from_utf8_lossy(&falls_back.stderr);
    assert_eq!(falls_back.status.code(), Some(0), "{printed}");
    let why = "served by anyring: the kernel's io_uring does not work here: io_uring_setup answered EPERM";
    assert!(printed.contains(why), "it says so: {printed}");
}
