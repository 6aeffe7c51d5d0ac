//! `anyring lab`: every workload runs and verifies its data on every backend, and the report has the documented form. A
//! value that was not measured never looks as if it were. No figure is compared with another: the machine may be busy.

mod common;

use common::{anyring, kernel_works, lab_worker, one_line_failure, output, skipped, stdout, ANYRING};
use serde_json::Value;
use std::process::Command;

/// The JSON of some workloads. If liburing.so.2 is not installed, prints that and returns `None`.
fn report(outer: &[&str], words: &[&str]) -> Option<Value> {
    lab_worker();
    let output = output(&mut anyring(&[outer, &["lab", "--quick", "--json"], words].concat()));
    let complaint = String::from_utf8_lossy(&output.stderr);
    if complaint.contains("apt-get install liburing2") {
        skipped(&format!("lab {words:?}: {complaint}"));
        return None;
    }
    assert_eq!(output.status.code(), Some(0), "{complaint}");
    assert!(complaint.is_empty(), "no progress bar, no other word: {complaint}");
    Some(serde_json::from_slice(&output.stdout).expect("lab --json prints JSON"))
}

fn text<'a>(value: &'a Value, field: &str) -> &'a str {
    value[field].as_str().unwrap_or_else(|| panic!("{field} of {value} is no text"))
}

fn list<'a>(value: &'a Value, field: &str) -> &'a Vec<Value> {
    value[field].as_array().unwrap_or_else(|| panic!("{field} of {value} is no list"))
}

fn number(value: &Value, field: &str) -> f64 {
    value[field].as_f64().unwrap_or_else(|| panic!("{field} of {value} is no number"))
}

/// Asserts that it has exactly these fields: docs/lab.md names each.
fn assert_fields(value: &Value, fields: &[&str]) {
    let object = value.as_object().unwrap_or_else(|| panic!("{value} is no object"));
    let (mut found, mut expected): (Vec<&str>, Vec<&str>) =
        (object.keys().map(String::as_str).collect(), fields.to_vec());
    found.sort_unstable();
    expected.sort_unstable();
    assert_eq!(found, expected);
}

/// Asserts the form that docs/lab.md describes.
fn assert_schema(report: &Value) {
    assert_fields(report, &["schema", "version", "unix_time", "quick", "door", "machine", "workloads", "skipped"]);
    assert_eq!((&report["schema"], &report["quick"]), (&1.into(), &true.into()));
    let machine = &report["machine"];
    assert_fields(machine, &["cpu", "cores", "virtualised", "kernel", "mitigations", "root"]);
    assert!(number(machine, "cores") >= 1.0, "{machine}");
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").expect("osrelease");
    assert_eq!(text(machine, "kernel"), release.trim());
    for workload in list(report, "workloads") {
        let fields = ["name", "title", "about", "axis", "marks", "runs", "comparisons", "rows", "notes"];
        assert_fields(workload, &fields);
        assert!(!list(workload, "rows").is_empty(), "{workload}");
        list(workload, "rows").iter().for_each(assert_row);
        for comparison in list(workload, "comparisons") {
            assert_fields(comparison, &["what", "of", "value", "interval"]);
            assert!(number(comparison, "value") > 0.0 && comparison["interval"].is_null(), "{comparison}");
        }
    }
}

fn assert_row(row: &Value) {
    let fields = ["group", "name", "unit", "more_is_better", "axis", "x", "variant", "headline"];
    assert_fields(row, &[&fields[..], &["columns", "published"]].concat());
    assert_eq!(row["more_is_better"], text(row, "unit").ends_with("/s"), "{row}");
    let columns = list(row, "columns");
    let ours = columns.iter().find(|column| column["backend"] == "anyring");
    for column in columns {
        assert_fields(column, &["backend", "runs", "summary", "missing", "ratio", "difference", "counts"]);
        let runs: Vec<f64> = list(column, "runs").iter().map(|run| run.as_f64().expect("a run")).collect();
        assert_eq!(runs.is_empty(), column["summary"].is_null(), "{column}");
        assert_eq!(runs.is_empty(), column["missing"].is_string(), "{column}");
        if runs.is_empty() {
            continue;
        }
        let summary = &column["summary"];
        assert_fields(summary, &["median", "mean", "stdev", "min", "max"]);
        let [median, min, max] = ["median", "min", "max"].map(|field| number(summary, field));
        assert!(0.0 <= min && min <= median && median <= max, "{column}");
        assert!(runs.iter().all(|run| (min..=max).contains(run)), "{column}");
        if let (Some(ours), false) = (ours, column["ratio"].is_null()) {
            let expected = number(&ours["summary"], "median") / median;
            assert_fields(&column["ratio"], &["value", "interval"]);
            let value = number(&column["ratio"], "value");
            assert!((value - expected).abs() <= 1e-9 * expected, "{column}");
            // A single run has no interval.
            assert_eq!(column["ratio"]["interval"].is_null(), runs.len() < 5, "{column}");
        }
    }
    for published in list(row, "published") {
        assert_fields(published, &["label", "value", "spread", "source"]);
        assert!(number(published, "value") > 0.0);
    }
}

/// The column of each row of the report's first workload.
fn columns<'a>(report: &'a Value, backend: &str) -> Vec<&'a Value> {
    let rows = list(&report["workloads"][0], "rows");
    let column = |row: &'a Value| list(row, "columns").iter().find(|column| column["backend"] == backend);
    rows.iter().filter_map(column).collect()
}

/// Runs one workload. Checks its form, and that every backend has figures or says what is not installed or allowed.
fn assert_measured(name: &str, backends: &[&str]) {
    let Some(report) = report(&[], &[name]) else { return };
    assert_schema(&report);
    assert_eq!(text(&report["workloads"][0], "name"), name);
    for backend in backends {
        let columns = columns(&report, backend);
        assert!(!columns.is_empty(), "{name} has no column {backend}");
        for column in columns {
            let Some(why) = column["missing"].as_str() else { continue };
            let ours = *backend == "anyring" && !why.contains("liburing2");
            assert!(!ours, "{name}: {why}");
            skipped(&format!("lab {name} on {backend}: {why}"));
        }
    }
}

#[test]
fn nop() {
    assert_measured("nop", &["anyring", "kernel"]);
}

#[test]
fn pipes() {
    assert_measured("pipes", &["anyring", "kernel", "epoll", "libuv", "posix-aio", "kernel-aio", "threads"]);
}

/// The published claim: after a nonblocking attempt no request is punted, and with IOSQE_ASYNC every request that
/// can be punted is.
#[test]
fn pipes_count_what_was_punted() {
    let Some(report) = report(&[], &["pipes", "--backends", "anyring,kernel"]) else { return };
    for row in list(&report["workloads"][0], "rows") {
        for column in list(row, "columns").iter().filter(|column| column["missing"].is_null()) {
            let Some(punted) = column["counts"]["punted"].as_u64() else {
                // Only root may ask tracefs, but any user sees io-wq's threads.
                let threads = column["counts"]["io_wq_threads"].as_u64().expect("io_wq_threads");
                assert_eq!(threads == 0, text(row, "name").ends_with("after"), "{row}");
                skipped("the kernel's count of punted requests: no tracefs for us here");
                continue;
            };
            match text(row, "name").ends_with("after") {
                true => assert_eq!(punted, 0, "{row}"),
                // 16 pipes and 8 rounds; a worker that finds a pipe empty returns the read to be armed.
                false => assert!(punted >= 16 * 8, "{row}"),
            }
        }
    }
}

#[test]
fn files() {
    assert_measured("files", &["anyring", "kernel", "libuv", "posix-aio", "kernel-aio", "threads"]);
}

#[test]
fn echo() {
    assert_measured("echo", &["anyring", "kernel", "epoll", "threads"]);
}

#[test]
fn timers() {
    assert_measured("timers", &["anyring", "kernel", "epoll", "libuv"]);
}

#[test]
fn polls() {
    assert_measured("polls", &["anyring", "kernel", "epoll", "kernel-aio"]);
}

const PIPETEST: [&str; 7] =
    ["anyring", "kernel", "epoll", "poll", "anyring-aio", "anyring-aio-poll", "kernel-aio-poll"];

#[test]
fn pipetest() {
    assert_measured("pipetest", &PIPETEST);
}

/// An asynchronous read on the kernel's AIO gives no figure and does not hang; on anyring's it is measured.
#[test]
fn pipetest_says_that_the_kernels_io_submit_blocks() {
    let backends = "anyring-aio,anyring-aio-poll,kernel-aio,kernel-aio-poll";
    let Some(report) = report(&[], &["pipetest", "--backends", backends]) else { return };
    assert!(columns(&report, "anyring-aio").iter().all(|column| column["missing"].is_null()), "{report}");
    for column in columns(&report, "kernel-aio") {
        let why = text(column, "missing");
        if why.starts_with("io_setup answered") {
            return skipped(&format!("lab pipetest, a blocking io_submit: {why}"));
        }
        assert!(why.contains("io_submit blocks on an empty pipe"), "{why}");
    }
    // The flatness of each curve, and the lowest place of anyring's curve relative to the kernel's.
    let comparisons = list(&report["workloads"][0], "comparisons");
    let about = |what: &str, of: &str| {
        let is_it =
            |comparison: &&Value| text(comparison, "what").contains(what) && text(comparison, "of").starts_with(of);
        comparisons.iter().filter(is_it).count()
    };
    let flat = "300 idle descriptors / 16";
    assert_eq!((about(flat, "figure 1: "), about(flat, "figure 2: "), about(flat, "figure 3: ")), (2, 2, 6));
    for (ours, figures) in [("anyring AIO /", "345"), ("anyring AIO poll /", "12345")] {
        for figure in figures.chars() {
            assert_eq!(about(ours, &format!("figure {figure}, at ")), 1, "{ours} {figure}: {comparisons:?}");
        }
    }
}

#[test]
fn idle() {
    assert_measured("idle", &["anyring", "kernel", "epoll"]);
}

#[test]
fn messages() {
    assert_measured("msg", &["anyring", "kernel", "epoll", "futex", "threads"]);
}

#[test]
fn direct_writes() {
    assert_measured("async", &["anyring", "kernel", "posix-aio", "kernel-aio", "threads"]);
}

/// The published experiment: a write that the device takes as one request is inline, one block more is punted.
#[test]
fn the_threshold_of_direct_writes_is_the_devices_limit() {
    let Some(report) = report(&[], &["async", "--backends", "anyring,kernel"]) else { return };
    let marks: Vec<(&str, f64)> = list(&report["workloads"][0], "marks")
        .iter()
        .map(|mark| (text(mark, "label"), number(mark, "x")))
        .collect();
    // With a larger limit it depends on how the buffer's pages lie in memory.
    if !marks.contains(&("max_sectors_kb 256", 256.0)) {
        return skipped("lab async, its threshold: no loop device here whose limit can be set");
    }
    if columns(&report, "kernel").iter().any(|column| column["counts"]["punted"].is_null()) {
        return skipped("lab async, its threshold: the kernel's punted requests are not counted here");
    }
    assert!(marks.contains(&("the kernel punts above", 256.0)), "{marks:?}");
}

#[test]
fn every_door() {
    for door in ["libc", "raw"] {
        let words =
            ["nop", "pipes", "echo", "pipetest", "--backends", "anyring,kernel,anyring-aio", "--door", door];
        let Some(report) = report(&[], &words) else { return };
        assert_schema(&report);
        assert_eq!(text(&report, "door"), door);
        for workload in list(&report, "workloads") {
            for column in list(workload, "rows").iter().flat_map(|row| list(row, "columns")) {
                let ours = text(column, "backend").starts_with("anyring");
                assert!(!ours || column["missing"].is_null(), "{column}");
            }
        }
    }
}

#[test]
fn the_column_of_a_kernel_that_refuses_says_why() {
    let outer = ["deny", "--errno", "ENOSYS", "--", ANYRING];
    let Some(report) = report(&outer, &["nop"]) else { return };
    assert_schema(&report);
    assert!(columns(&report, "anyring").iter().all(|column| column["missing"].is_null()));
    for column in columns(&report, "kernel") {
        let why = text(column, "missing");
        assert!(why.contains("io_uring_queue_init answered \"function not implemented\""), "{why}");
    }
    let table = stdout(&output(&mut anyring(&[&outer[..], &["lab", "nop", "--quick"]].concat())));
    assert!(table.contains("kernel io_uring       none here: io_uring_queue_init answered"), "{table}");
}

#[test]
fn the_column_of_a_refused_kernel_aio_says_why() {
    let Some(report) = report(&["deny", "--aio", "--", ANYRING], &["polls"]) else { return };
    for column in columns(&report, "kernel-aio") {
        assert!(text(column, "missing").starts_with("io_setup answered"), "{column}");
    }
}

#[test]
fn everything_else_is_measured_where_io_uring_and_aio_are_refused() {
    let outer = ["deny", "--aio", "--", ANYRING];
    let words = ["pipes", "files", "timers", "pipetest", "idle", "msg", "async", "load"];
    let Some(report) = report(&outer, &words) else { return };
    assert_schema(&report);
    for workload in list(&report, "workloads") {
        for column in list(workload, "rows").iter().flat_map(|row| list(row, "columns")) {
            let refused = text(column, "backend").starts_with("kernel");
            assert_eq!(column["missing"].is_string(), refused, "{column}");
        }
    }
}

/// Runs as an ordinary user, whose limits cannot be raised.
#[test]
fn too_few_descriptors_are_an_empty_column() {
    lab_worker();
    let mut command = Command::new("prlimit");
    command.args(["--nofile=400:400", "--"]);
    // SAFETY: takes nothing and cannot fail.
    if unsafe { libc::geteuid() } == 0 {
        // Root could raise the limit again.
        command.args(["setpriv", "--bounding-set=-sys_resource", "--inh-caps=-sys_resource", "--"]);
    }
    let output = output(command.args([ANYRING, "lab", "polls", "--quick", "--json"]));
    if !output.status.success() && String::from_utf8_lossy(&output.stderr).contains("liburing2") {
        return skipped("lab polls with few descriptors: no liburing2");
    }
    let report: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|error| {
        panic!("{error}: {}", String::from_utf8_lossy(&output.stderr));
    });
    let why: Vec<_> = columns(&report, "anyring").iter().map(|column| column["missing"].clone()).collect();
    assert!(why[0].is_null() && why[2].as_str().is_some_and(|why| why.contains("descriptors")), "{why:?}");
}

#[test]
fn load_says_what_loading_costs() {
    let report = report(&[], &["load"]).expect("needs no liburing");
    assert_schema(&report);
    let libc = columns(&report, "libc");
    let difference = number(&libc[0]["difference"], "value");
    let ours = number(&columns(&report, "anyring")[0]["summary"], "median");
    assert!((ours - number(&libc[0]["summary"], "median") - difference).abs() < 1e-6, "{report}");
    let table = stdout(&output(&mut anyring(&["lab", "load", "--quick"])));
    assert!(table.contains("\nloading costs ") && table.contains(" us (limit 200)\n"), "{table}");
}

/// Both sides run on the kernel's io_uring, since another library is preloaded: there must be no figure.
#[test]
fn another_library_is_not_mistaken_for_ours() {
    lab_worker();
    let maps = std::fs::read_to_string("/proc/self/maps").expect("maps");
    let mut files = maps.lines().filter_map(|line| line.find('/').map(|at| &line[at..]));
    let unwinder = files.find(|file| file.contains("/libgcc_s.so")).expect("this test is linked with libgcc_s");
    for workload in ["nop", "load"] {
        let mut command = anyring(&["lab", workload, "--quick"]);
        let message = one_line_failure(&output(command.env("ANYRING_LIBRARY", unwinder)), 125);
        assert!(message.contains("the calls were answered by") || message.contains("liburing2"), "{message}");
    }
}

#[test]
fn a_workload_that_cannot_be_measured_is_a_usage_error() {
    let wrong: [&[&str]; 5] = [
        &["lab", "nop", "--runs", "0"],
        &["lab", "sorting"],
        &["lab", "nop", "--backends", "kernel,windows"],
        &["lab", "load", "--runs", "x"],
        &["lab", "--door", "window"],
    ];
    for words in wrong {
        one_line_failure(&output(&mut anyring(words)), 2);
    }
    lab_worker();
    one_line_failure(&output(&mut anyring(&["lab", "nop", "--quick", "--out", "/proc/nowhere"])), 125);
    let message = one_line_failure(&output(&mut anyring(&["lab", "nop", "--quick", "--backends", "epoll"])), 125);
    assert!(message.contains("none of these backends has a part in it"), "{message}");
}

/// If a workload cannot be measured, the others are measured nevertheless.
#[test]
fn a_workload_without_figures_is_skipped_with_its_reason() {
    lab_worker();
    let words = ["lab", "nop", "pipes", "--quick", "--backends", "epoll"];
    let run = |more: &[&str]| output(&mut anyring(&[&words[..], more].concat()));
    let why = "nop: nothing could be measured: none of these backends has a part in it";
    let report: Value = serde_json::from_slice(&run(&["--json"]).stdout).expect("JSON");
    assert_schema(&report);
    assert_eq!(report["skipped"], Value::Array(vec![why.into()]));
    assert_eq!(text(&report["workloads"][0], "name"), "pipes");
    assert!(stdout(&run(&[])).contains(why));
}

#[test]
fn an_interruption_leaves_nothing() {
    lab_worker();
    let folder = tempfile::tempdir().expect("a folder");
    let mut command = anyring(&["lab", "files"]);
    let mut lab = command.env("TMPDIR", folder.path()).spawn().expect("start");
    let entries = || std::fs::read_dir(folder.path()).expect("read_dir").count();
    for _ in 0..600 {
        std::thread::sleep(std::time::Duration::from_millis(50));
        if entries() > 0 {
            break;
        }
    }
    assert_eq!(entries(), 1, "the measurement's files");
    // SAFETY: our own child, not waited for yet.
    assert_eq!(unsafe { libc::kill(lab.id() as libc::pid_t, libc::SIGTERM) }, 0);
    let status = lab.wait().expect("wait");
    assert_eq!(status.code(), Some(128 + libc::SIGTERM), "{status}");
    assert_eq!(entries(), 0, "files were left");
}

#[test]
fn the_report_is_written_with_a_picture_of_each_chart() {
    if !kernel_works("the report with a kernel column") {
        return;
    }
    lab_worker();
    let folder = tempfile::tempdir().expect("a folder");
    let out = folder.path().join("made/if/missing");
    let path = out.to_str().expect("a path of text");
    let output = output(&mut anyring(&["lab", "pipes", "files", "pipetest", "--quick", "--out", path]));
    let complaint = String::from_utf8_lossy(&output.stderr);
    if complaint.contains("liburing2") {
        return skipped(&format!("the report: {complaint}"));
    }
    assert_eq!(output.status.code(), Some(0), "{complaint}");
    let read = |name: &str| std::fs::read(out.join(name)).unwrap_or_else(|error| panic!("{name}: {error}"));
    assert_schema(&serde_json::from_slice(&read("report.json")).expect("JSON"));
    let page = String::from_utf8(read("report.html")).expect("UTF-8");
    for piece in ["<!doctype html>", "name=\"viewport\"", "prefers-color-scheme:dark", "262", "J. Axboe", "</html>"]
    {
        assert!(page.contains(piece), "the page lacks {piece}");
    }
    // Nothing to fetch, nothing to run.
    for piece in ["<script", "<link", "<img", "url(", "@import"] {
        assert!(!page.contains(piece), "the page has {piece}");
    }
    let charts = [
        "pipes",
        "files-page-cache-4-kib-random",
        "files-o-direct-128-kib-sequential",
        "pipetest-figure-1-idle-descriptors-poll",
        "pipetest-figure-2-idle-descriptors-events-in-memory",
        "pipetest-figure-3-idle-descriptors-async-read",
        "pipetest-figure-4-message-size",
        "pipetest-figure-5-tokens-in-flight",
    ];
    for chart in charts {
        let svg = String::from_utf8(read(&format!("{chart}.svg"))).expect("UTF-8");
        assert!(
            svg.starts_with("<svg ") && svg.trim_end().ends_with("</svg>") && svg.contains("anyring"),
            "{chart}"
        );
        let png = read(&format!("{chart}.png"));
        assert!(png.starts_with(b"\x89PNG\r\n\x1a\n") && png.len() > 5_000, "{chart}: {} bytes", png.len());
    }
}

/// Charts of an earlier run are drawn again, identical to the byte, and its tables are printed again.
#[test]
fn an_earlier_report_is_shown_again() {
    lab_worker();
    let folder = tempfile::tempdir().expect("a folder");
    let [first, again] =
        ["first", "again"].map(|name| folder.path().join(name).to_str().expect("a path of text").to_owned());
    let tables = stdout(&output(&mut anyring(&["lab", "load", "--quick", "--out", &first])));
    let report = format!("{first}/report.json");
    assert_eq!(stdout(&output(&mut anyring(&["lab", "--from", &report, "--out", &again]))), tables);
    let files = |folder: &str| -> std::collections::BTreeMap<_, _> {
        let entries = std::fs::read_dir(folder).expect("read_dir").map(|entry| entry.expect("an entry"));
        entries.map(|entry| (entry.file_name(), std::fs::read(entry.path()).expect("read"))).collect()
    };
    let mut expected = files(&first);
    expected.remove(std::ffi::OsStr::new("report.json")).expect("report.json");
    let found = files(&again);
    assert!(expected.keys().eq(found.keys()), "{:?} and {:?}", expected.keys(), found.keys());
    let different: Vec<_> = expected.iter().filter(|(name, bytes)| found[*name] != **bytes).collect();
    assert!(different.is_empty(), "{:?}", different.iter().map(|(name, _)| name).collect::<Vec<_>>());
    assert!(expected.len() >= 5, "the page and two charts in two formats: {:?}", expected.keys());
}

#[test]
fn a_file_that_is_no_report_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("report.json");
    let path = file.to_str().expect("a path of text");
    let refused = |json: &str, expected: &str| {
        std::fs::write(&file, json).expect("write");
        let message = one_line_failure(&output(&mut anyring(&["lab", "--from", path])), 125);
        assert!(message.contains(path) && message.contains(expected), "{message}");
    };
    refused("{}", "no report.json of `anyring lab`: missing field `schema`");
    refused("{\"schema\": 1}", "no report.json of `anyring lab`: missing field");
    refused("{\"schema\": 2}", "its schema is 2; this version of anyring reads 1 only");
    let missing = one_line_failure(&output(&mut anyring(&["lab", "--from", "/proc/nowhere"])), 125);
    assert!(missing.contains("/proc/nowhere"), "{missing}");
    for words in [&["nop"][..], &["--runs", "3"], &["--quick"], &["--json"], &["--door", "raw"]] {
        one_line_failure(&output(&mut anyring(&[&["lab", "--from", path], words].concat())), 2);
    }
}

#[test]
fn the_help_names_every_workload_and_backend() {
    let help = stdout(&output(&mut anyring(&["lab", "--help"])));
    let words: Vec<&str> = help.split(|letter: char| !letter.is_alphanumeric() && letter != '-').collect();
    let workloads = anyring_lab::workloads::ALL.iter().map(|workload| workload.name);
    for name in workloads.chain(anyring_lab::backend::Backend::ALL.iter().map(|backend| backend.name())) {
        assert!(words.contains(&name), "{name} is missing: {help}");
    }
}
