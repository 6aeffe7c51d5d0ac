//! Planted programs (`tests/c/planted.c`): what a trace of the kernel's io_uring says of them must be true.

mod common;

use common::{anyring, kernel_works, output, skipped};
use serde_json::Value;
use std::path::Path;
use std::process::Command;

/// The JSON report on a planted program that the kernel serves. `None`, after saying so, if it cannot be traced here.
fn traced(what: &str) -> Option<Value> {
    if !Path::new("/sys/kernel/tracing/instances").is_dir() {
        skipped(&format!("the planted program {what}: tracefs is not mounted, or only for root"));
        return None;
    }
    if !kernel_works(&format!("the planted program {what}")) {
        return None;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let [program, file, report] = ["program", "file", "report"].map(|name| folder.path().join(name));
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c/planted.c");
    let compiled = Command::new("cc").args(["-O1", "-o"]).arg(&program).arg(source).arg("-luring").output();
    if !compiled.is_ok_and(|compiled| compiled.status.success()) {
        skipped(&format!("the planted program {what}: there is no C compiler, or no liburing.h (liburing-dev)"));
        return None;
    }
    let mut trace = anyring(&["trace", "--backend", "kernel", "--json", "-o"]);
    let run = output(trace.arg(&report).arg("--").arg(&program).arg(what).arg(&file));
    assert!(run.status.success(), "{what}: {run:?}");
    let text = std::fs::read_to_string(report).expect("the report");
    Some(serde_json::from_str(&text).expect("JSON"))
}

/// A polling thread looks for task work thousands of times a second.
#[test]
fn a_polling_thread_does_not_fill_the_trace() {
    let Some(report) = traced("sqpoll") else { return };
    assert_eq!((&report["events_lost"], &report["rings"][0]["submitted"]), (&0.into(), &600.into()), "{report}");
}
