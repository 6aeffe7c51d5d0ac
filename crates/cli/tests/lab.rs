//! `anyring lab`: the figures are there and belong together, and what was not measured is not shown as if it were.

mod common;

use common::{anyring, kernel_works, lab_worker, one_line_failure, output, skipped, stdout, ANYRING};
use serde_json::Value;

/// The JSON of a workload, or `None` (and why, printed) where liburing.so.2 is not installed.
fn report(outer: &[&str], words: &[&str]) -> Option<Value> {
    lab_worker();
    let output = output(&mut anyring(&[outer, &["lab"], words, &["--json"]].concat()));
    let complaint = String::from_utf8_lossy(&output.stderr);
    if complaint.contains("apt-get install liburing2") {
        skipped(&format!("lab {words:?}: {complaint}"));
        return None;
    }
    assert_eq!(output.status.code(), Some(0), "{complaint}");
    Some(serde_json::from_slice(&output.stdout).expect("lab --json prints JSON"))
}

fn median(summary: &Value) -> f64 {
    let [median, min, max] = ["median_ns", "min_ns", "max_ns"].map(|name| summary[name].as_f64().expect(name));
    assert!(0.0 < min && min <= median && median <= max, "{summary}");
    median
}

fn assert_machine(report: &Value) {
    let machine = &report["machine"];
    assert!(machine["cores"].as_u64() >= Some(1), "{machine}");
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").expect("osrelease");
    assert_eq!(machine["kernel"], release.trim());
}

#[test]
fn nop_compares_both_sides() {
    if !kernel_works("lab nop beside the kernel") {
        return;
    }
    let Some(report) = report(&[], &["nop", "--runs", "3", "--batch", "1,3"]) else { return };
    assert_machine(&report);
    assert_eq!((&report["workload"], &report["runs"]), (&"nop".into(), &3.into()));
    let batches = report["batches"].as_array().expect("batches");
    assert_eq!(batches.iter().map(|entry| entry["batch"].as_u64()).collect::<Vec<_>>(), [Some(1), Some(3)]);
    for entry in batches {
        let expected = median(&entry["anyring"]) / median(&entry["kernel"]["measured"]);
        let [ratio, low, high] = ["value", "low", "high"].map(|name| entry["ratio"][name].as_f64().expect(name));
        assert!((ratio - expected).abs() < 1e-9 && low <= ratio && ratio <= high, "{entry}");
    }
}

#[test]
fn nop_says_where_the_kernel_refuses() {
    let outer = ["deny", "--errno", "ENOSYS", "--", ANYRING];
    let words = ["nop", "--runs", "1", "--batch", "2"];
    let Some(report) = report(&outer, &words) else { return };
    let entry = &report["batches"][0];
    assert!(median(&entry["anyring"]) > 0.0);
    assert_eq!(entry["kernel"]["refused"]["errno"], libc::ENOSYS, "{entry}");
    assert!(entry["ratio"].is_null() && entry["kernel"]["measured"].is_null(), "{entry}");
    let text = stdout(&output(&mut anyring(&[&outer[..], &["lab"], &words].concat())));
    assert!(text.contains("none here: ENOSYS") && text.contains("io_uring_queue_init answered"), "{text}");
}

#[test]
fn load_says_what_loading_costs() {
    let report = report(&[], &["load", "--runs", "20"]).expect("needs no liburing");
    assert_machine(&report);
    assert_eq!((&report["workload"], &report["runs"]), (&"load".into(), &20.into()));
    let cost = report["cost_ns"]["value"].as_f64().expect("cost_ns");
    assert!((median(&report["preloaded"]) - median(&report["plain"]) - cost).abs() < 1e-6, "{report}");
    let syscall = &report["syscall"];
    let difference = median(&syscall["anyring"]) - median(&syscall["libc"]);
    assert!((syscall["cost_ns"]["value"].as_f64().expect("cost_ns") - difference).abs() < 1e-6, "{syscall}");
    let text = stdout(&output(&mut anyring(&["lab", "load", "--runs", "2"])));
    assert!(text.starts_with("loading costs ") && text.contains(" us (limit 200)\n"), "{text}");
}

/// Both sides native: no figure may come out.
#[test]
fn another_library_is_not_taken_for_ours() {
    lab_worker();
    let maps = std::fs::read_to_string("/proc/self/maps").expect("maps");
    let mut files = maps.lines().filter_map(|line| line.find('/').map(|at| &line[at..]));
    let unwinder = files.find(|file| file.contains("/libgcc_s.so")).expect("this test is linked with libgcc_s");
    for workload in ["nop", "load"] {
        let mut command = anyring(&["lab", workload, "--runs", "1"]);
        let message = one_line_failure(&output(command.env("ANYRING_LIBRARY", unwinder)), 125);
        assert!(message.contains("side was answered by") || message.contains("liburing2"), "{message}");
    }
}

#[test]
fn what_cannot_be_measured_is_a_usage_error() {
    for words in
        [&["lab", "nop", "--runs", "0"][..], &["lab", "nop", "--batch", "0"], &["lab", "load", "--runs", "x"]]
    {
        one_line_failure(&output(&mut anyring(words)), 2);
    }
}
