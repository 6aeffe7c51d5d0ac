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

/// The only row of an opcode.
fn row<'a>(report: &'a Value, opcode: &str) -> &'a Value {
    let kinds = report["rings"][0]["kinds"].as_array().expect("kinds");
    let rows: Vec<_> = kinds.iter().filter(|kind| kind["opcode"] == opcode).collect();
    assert_eq!(rows.len(), 1, "{opcode}: {report}");
    rows[0]
}

/// A polling thread looks for task work thousands of times a second.
#[test]
fn a_polling_thread_does_not_fill_the_trace() {
    let Some(report) = traced("sqpoll") else { return };
    assert_eq!((&report["events_lost"], &report["rings"][0]["submitted"]), (&0.into(), &600.into()), "{report}");
}

/// A polling thread makes no calls, and frees later what its workers have completed.
#[test]
fn reads_by_a_polling_thread_are_inline() {
    let Some(report) = traced("sqpoll") else { return };
    let read = row(&report, "READ");
    assert_eq!((&read["inline"], &read["count"]), (&300.into(), &300.into()), "{read}");
    assert_eq!(row(&report, "FSYNC")["worker"], 300);
}

#[test]
fn a_drain_is_the_reason_for_workers() {
    let Some(report) = traced("drain") else { return };
    let read = row(&report, "READ");
    assert!(read["worker_by_drain"].as_u64() >= Some(500) && read["worker_by_drain"] == read["worker"], "{read}");
    let found = report["findings"].as_array().expect("findings");
    assert!(found.iter().all(|it| it["name"] != "reads_punted"), "{found:?}");
}
