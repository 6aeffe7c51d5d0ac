//! `anyring advise`: the ways that it distinguishes, its conclusions, and its refusals. Times are not judged here.

mod common;

use anyring_lab::scratch::Scratch;
use common::{anyring, kernel_works, lab_worker, one_line_failure, output, skipped, stdout, ANYRING};
use serde_json::Value;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::Command;

/// The report of `advise` with these arguments and few rounds.
fn advise(arguments: &[&str]) -> Value {
    lab_worker();
    let output = output(anyring(&["advise", "--json", "--rounds", "15"]).args(arguments));
    assert!(output.status.success() && output.stderr.is_empty(), "{arguments:?}: {output:?}");
    let report: Value = serde_json::from_slice(&output.stdout).expect("advise --json prints JSON");
    assert_eq!(report["schema"], 2);
    check_advice(&report);
    report
}

/// Checks that the advice has a clause for each measured situation, with the interval of one of the situation's
/// rows.
fn check_advice(report: &Value) {
    let rows = report["rows"].as_array().expect("rows");
    let clauses = report["advice"]["clauses"].as_array().expect("clauses");
    assert!(!clauses.is_empty() && report["advice"]["sentence"].as_str().is_some_and(|text| text.ends_with('.')));
    for row in rows {
        assert!(clauses.iter().any(|clause| clause["situation"] == row["situation"]), "{report:#}");
        assert!(row["pairs"].as_u64() >= Some(15), "{row:#}");
        assert_eq!(row["turns"].as_array().map(Vec::len), Some(3), "{row:#}");
    }
    for clause in clauses {
        let rests_on = |row: &&Value| {
            row["situation"] == clause["situation"]
                && row["bytes"] == clause["evidence_bytes"]
                && row["ratio"] == clause["ratio"]
        };
        assert_eq!(rows.iter().filter(rests_on).count(), 1, "{clause:#}");
    }
}

/// The share of requests without IOSQE_ASYNC that went this way, for each size in this situation.
fn shares(report: &Value, situation: &str, way: &str) -> Vec<f64> {
    let rows = report["rows"].as_array().expect("rows").iter().filter(|row| row["situation"] == situation);
    let share = |row: &Value| {
        let ways = row["plain"]["ways"].as_object().expect("ways");
        let all: u64 = ways.values().filter_map(Value::as_u64).sum();
        ways[way].as_u64().expect("a count") as f64 / all as f64
    };
    rows.map(share).collect()
}

/// Asserts that nearly all requests took the path whose shares are given, one for each size. Other programs may evict a
/// page or keep the device busy.
fn nearly_all(shares: &[f64], sizes: usize) {
    assert!(shares.len() == sizes && shares.iter().all(|share| *share > 0.8), "{shares:?}");
}

/// The backends that work here.
fn backends(left_out: &str) -> Vec<&'static str> {
    let kernel = kernel_works(left_out).then_some("kernel");
    kernel.into_iter().chain(["user"]).collect()
}

/// A file on a disk, if /var/tmp is on one, in which every byte differs from those around it.
fn file(bytes: usize) -> tempfile::NamedTempFile {
    let file = tempfile::NamedTempFile::new_in("/var/tmp").expect("a file in /var/tmp");
    let contents: Vec<u8> = (0..bytes).map(|at| (at % 251) as u8).collect();
    std::fs::write(file.path(), contents).expect("write");
    std::fs::File::open(file.path()).and_then(|file| file.sync_all()).expect("fsync");
    file
}

fn path(file: &tempfile::NamedTempFile) -> &str {
    file.path().to_str().expect("UTF-8")
}

#[test]
#[ignore = "soak: it measures"]
fn cached_reads_complete_inline_where_rwf_nowait_works() {
    let file = file(1 << 20);
    for backend in backends("advise on the kernel's io_uring") {
        let report = advise(&[path(&file), "--backend", backend, "--size", "4K,64K"]);
        let way = if report["subject"]["nowait"] == true { "inline" } else { "worker" };
        nearly_all(&shares(&report, "cached", way), 2);
        let limit =
            report["limits"].as_array().expect("limits").iter().find(|limit| limit["situation"] == "cached");
        let found = limit.map(|limit| limit["threshold"]["found"].clone()).expect("a threshold");
        assert_eq!(found, if way == "inline" { "never" } else { "always" });
        for row in report["rows"].as_array().expect("rows") {
            let forced = row["forced"]["ways"].as_object().expect("ways");
            let all: u64 = forced.values().filter_map(Value::as_u64).sum();
            assert_eq!(forced["worker"], all, "{backend}: IOSQE_ASYNC is a worker's: {row:#}");
        }
        let missed =
            report["rows"].as_array().expect("rows").iter().filter(|row| row["situation"] == "uncached").count();
        let noted = report["notes"].to_string().contains("not measured: its pages do not leave the page cache");
        assert!(missed == 2 || noted, "{report:#}");
    }
}

#[test]
#[ignore = "soak: it measures"]
fn streams_complete_inline_when_ready_and_by_poll_when_not() {
    for backend in backends("advise on the kernel's io_uring") {
        for arguments in [
            &["pipe"][..],
            &["pipe", "--op", "write"],
            &["tcp"],
            &["tcp", "--op", "send"],
            &["tcp", "--op", "read"],
        ] {
            let report = advise(&[arguments, &["--backend", backend, "--size", "64,4K"]].concat());
            nearly_all(&shares(&report, "ready", "inline"), 2);
            nearly_all(&shares(&report, "waiting", "poll"), 2);
            assert_eq!(report["limits"], Value::Array(Vec::new()), "a stream has no threshold");
        }
    }
}

#[test]
fn the_backend_is_chosen_as_by_run_and_reported() {
    lab_worker();
    let words = ["deny", "--", ANYRING, "advise", "pipe", "--size", "64", "--rounds", "15"];
    let denied = output(&mut anyring(&words));
    assert!(denied.status.success(), "{denied:?}");
    let text = stdout(&denied);
    assert!(
        text.starts_with("READ: a pipe, served by anyring's engine\n") && text.contains("inline 100 %"),
        "{text}"
    );
    let (verdict, table) = (text.find("IOSQE_ASYNC").or(text.find("ndecided")), text.find("with / without"));
    assert!(verdict.is_some() && verdict < table, "the verdict comes first: {text}");
    assert!(text.lines().all(|line| line.len() <= 100), "{text}");
    // The profile `minimal` has no /proc.
    let words = [&["deny", "--profile", "minimal"], &words[1..]].concat();
    let least = output(&mut anyring(&words));
    assert!(least.status.success() && stdout(&least).contains("inline 100 %"), "{least:?}");
    let refused = output(&mut anyring(&["deny", "--", ANYRING, "advise", "pipe", "--backend", "kernel"]));
    assert!(one_line_failure(&refused, 125).contains("io_uring_setup answered EPERM"));
}

#[test]
#[ignore = "soak: it measures"]
fn writes_need_the_flag_and_leave_what_was_there() {
    let file = file(1 << 20);
    let before = std::fs::read(file.path()).expect("read");
    let modified = || std::fs::metadata(file.path()).and_then(|data| data.modified()).expect("a time");
    let time = modified();
    let refused = output(&mut anyring(&["advise", path(&file), "--op", "write"]));
    assert!(one_line_failure(&refused, 125).contains("--rewrite"));
    assert_eq!(time, modified());
    for backend in backends("writes on the kernel's io_uring") {
        let report =
            advise(&[path(&file), "--op", "write", "--rewrite", "--backend", backend, "--size", "4K,100000"]);
        assert_eq!(report["operation"], "WRITE");
        let way = if report["subject"]["nowait"] == true { "inline" } else { "worker" };
        nearly_all(&shares(&report, "cached", way), 2);
        assert!(std::fs::read(file.path()).expect("read") == before, "{backend} changed the file");
    }
    assert!(time < modified());
}

#[test]
fn a_question_that_cannot_or_must_not_be_asked_is_named() {
    let file = file(8192);
    let file = path(&file);
    for (arguments, status, named) in [
        (&["/nonexistent/file"][..], 125, "/nonexistent/file: no such file"),
        (&["/proc"], 125, "directory"),
        (&["/dev/null"], 125, "neither a file nor a block device"),
        (&[file, "--size", "4K,16K"], 2, "--size 16384"),
        (&[file, "--direct", "--size", "100"], 2, "multiples of"),
        (&[file, "--size", "4KB"], 2, "a number of bytes"),
        (&[file, "--size", "0"], 2, "a number of bytes"),
        (&[file, "--size", "1000000M"], 2, "less than 4 GiB"),
        (&[file, "--rewrite"], 2, "--op write"),
        (&[file, "--op", "send"], 2, "ask about tcp"),
        (&["pipe", "--direct"], 2, "--direct is for files"),
        (&["tcp", "--size", "1M"], 2, "up to 65536 bytes"),
        (&["pipe", "--rounds", "3"], 2, "--rounds"),
        (&[], 2, "PATH|pipe|tcp"),
    ] {
        let message = one_line_failure(&output(anyring(&["advise"]).args(arguments)), status);
        assert!(message.contains(named), "{arguments:?}: {message}");
    }
}

/// A loop device of 4 MiB; `None` if it cannot be made, after saying what is missing.
fn loop_device(scratch: &mut Scratch, left_out: &str) -> Option<String> {
    match scratch.loop_device(4 << 20) {
        Ok(device) => Some(device.to_str().expect("UTF-8").to_owned()),
        Err(why) => {
            skipped(&format!("{left_out}: {why}"));
            None
        }
    }
}

/// The published experiment: 512 blocks inline, 513 on a worker, and the cut moves with max_sectors_kb.
#[test]
#[ignore = "soak: it measures"]
fn the_threshold_of_a_loop_device_follows_its_limit() {
    const WHAT: &str = "the threshold of a loop device";
    if !kernel_works(WHAT) {
        return;
    }
    let mut scratch = Scratch::new().expect("a folder");
    let Some(device) = loop_device(&mut scratch, WHAT) else { return };
    for limit_kib in [256, 128] {
        let limits = scratch.limit_requests(Path::new(&device), limit_kib);
        if limits.is_none_or(|limits| limits.sectors_kib != limit_kib || limits.segments_kib < limit_kib) {
            return skipped(&format!("{WHAT}: max_sectors_kb cannot be set: {limits:?}"));
        }
        let arguments =
            [&device, "--direct", "--op", "write", "--rewrite", "--backend", "kernel", "--size", "512,512K,1M"];
        let report = advise(&arguments);
        let limit = &report["limits"][0];
        assert_eq!(limit["threshold"]["last_bytes"], limit_kib * 1024, "{report:#}");
        assert_eq!(limit["threshold"]["first_bytes"], limit_kib * 1024 + 512, "{report:#}");
        assert!(
            limit["because"][0].as_str().is_some_and(|why| why.contains(&format!("is {limit_kib}:"))),
            "{limit:#}"
        );
        // 512 bytes, the two sides of the cut, which are measured in addition, and the requested sizes above it.
        let workers = shares(&report, "direct", "worker");
        assert!(workers[0] < 0.2 && workers[1] < 0.2 && workers[2..] == [1.0; 3], "{report:#}");
        match report["tracepoint"].as_object() {
            Some(tracepoint) => assert!(tracepoint["traced"].as_u64() >= Some(14), "{tracepoint:?}"),
            None => skipped("the comparison with the tracepoint: tracefs needs root and a mount"),
        }
    }
}

#[test]
fn a_device_in_use_is_not_written() {
    const WHAT: &str = "devices in use";
    let mut scratch = Scratch::new().expect("a folder");
    let Some(device) = loop_device(&mut scratch, WHAT) else { return };
    let attempt = || output(&mut anyring(&["advise", &device, "--op", "write", "--rewrite"]));
    let holder =
        std::fs::OpenOptions::new().read(true).custom_flags(libc::O_EXCL).open(&device).expect("the device");
    assert!(one_line_failure(&attempt(), 125).contains("mounted or otherwise in use"));
    drop(holder);
    let made = Command::new("mkfs.ext2").args(["-q", &device]).output();
    if !made.is_ok_and(|made| made.status.success()) {
        return skipped(&format!("{WHAT}: mounted ones: mkfs.ext2 is missing or fails"));
    }
    let place = tempfile::tempdir().expect("a folder");
    let mounted = output(Command::new("mount").arg(&device).arg(place.path()));
    if !mounted.status.success() {
        return skipped(&format!("{WHAT}: mounted ones: {}", String::from_utf8_lossy(&mounted.stderr).trim()));
    }
    // Nothing is asserted while it is mounted.
    let refused = attempt();
    let unmounted = output(Command::new("umount").arg(place.path()));
    assert!(unmounted.status.success(), "{unmounted:?}");
    let refused = one_line_failure(&refused, 125);
    assert!(refused.contains(&format!("mounted on {}", place.path().display())), "{refused}");
}
