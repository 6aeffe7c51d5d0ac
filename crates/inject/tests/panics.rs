//! Decision 14 in docs/decisions: a panic forced at each point of `anyring_engine::forced` leaves the host running,
//! with -EIO on that ring alone. The tests take the points from that table. They use a separate build of the library
//! that can be made to panic (feature `forced-panics`).

mod common;

use anyring_engine::forced::{Breaks, POINTS};
use anyring_xtask::{artifacts, symbols};
use common::running::{Running, USUAL};
use common::{compile, no_liburing, no_reference, scratch, skip, text, LIBRARY};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Mutex;

/// Number of programs that run at the same time. They mostly sleep.
const TOGETHER: usize = 12;
/// Points that are also hit in a ring whose completions wait for its owner.
const DEFERRED: [&str; 18] = [
    "room",
    "calls",
    "left",
    "intake",
    "prep",
    "attempt",
    "arm",
    "punt",
    "stage",
    "reap",
    "finish",
    "retry",
    "timer",
    "cancel",
    "post",
    "worker-inside",
    "worker-after",
    "sleep",
];
/// Points that are also hit in a ring that a thread polls. Most are in the polling thread, which serves the program's
/// other ring, too.
const POLLED: [&str; 23] = [
    "room",
    "left",
    "sqpoll-round",
    "sqpoll-ring",
    "enter",
    "intake",
    "attempt",
    "arm",
    "punt",
    "stage",
    "reap",
    "finish",
    "serve",
    "retry",
    "timer",
    "cancel",
    "post",
    "sleep",
    "register-locked",
    "close-ring",
    "teardown",
    "worker-inside",
    "worker-after",
];
/// The environment variable that names a single point to test.
const ONLY: &str = "ANYRING_TEST_POINT";
/// Points that are passed before the program can arm one.
const FROM_THE_START: [&str; 2] = ["constructor", "helper-start"];

/// The library that can be made to panic.
fn forced_library() -> PathBuf {
    let named = std::env::var_os(LIBRARY).map(PathBuf::from);
    named.unwrap_or_else(|| artifacts::build_for_tests().expect("build it"))
}

fn start(program: &Path, library: &Path, point: &str, breaks: &str, deferral: &str) -> (Running, PathBuf) {
    let log = scratch("panics").join(format!("{point}-{deferral}.log"));
    let _ = std::fs::remove_file(&log); // of an earlier run
    let mut command = Command::new(program);
    command.args([point, breaks, deferral]).current_dir(scratch("panics"));
    command.env("LD_PRELOAD", library).env("ANYRING_BACKEND", "user").env("ANYRING_LOG", &log);
    command.env_remove("ANYRING_PANIC").env("RUST_BACKTRACE", "0");
    if FROM_THE_START.contains(&point) {
        command.env("ANYRING_PANIC", point);
    }
    (Running::start(command.stdin(Stdio::null())), log)
}

/// Makes the program panic at this point. Returns a description of what went wrong, or `None`.
fn complaint(program: &Path, library: &Path, point: &str, breaks: Breaks, deferral: &str) -> Option<String> {
    let breaks = match breaks {
        Breaks::Ring => "ring",
        Breaks::Nothing => "nothing",
    };
    let (running, log) = start(program, library, point, breaks, deferral);
    let output = match running.output(USUAL) {
        Ok(output) => output,
        Err(why) => return Some(format!("{point}, {deferral}: {why}")),
    };
    if output.status.code() == Some(77) {
        eprintln!("skipped {point}, {deferral}: no file here that the kernel's AIO reads without waiting");
        return None;
    }
    let logged = std::fs::read_to_string(log).unwrap_or_default();
    let panics = logged.lines().filter(|line| line.contains("panicked at")).count();
    let wrong = match () {
        () if output.status.code() != Some(7) => "status 7 was expected",
        () if !output.stdout.is_empty() || !output.stderr.is_empty() => "nothing is to be printed",
        () if !logged.contains(&format!("forced at {point}\n")) => "the point was not reached",
        () if panics != 1 => "one panic was expected in the log",
        () => return None,
    };
    Some(format!("{point}, {deferral}: {wrong}; {}log: {logged}", text(&output)))
}

#[test]
fn a_panic_anywhere_breaks_one_ring_at_most() {
    const NAME: &str = "a_panic_anywhere_breaks_one_ring_at_most";
    if let Some(reason) = no_reference().or_else(no_liburing) {
        return skip(NAME, reason);
    }
    let library = forced_library();
    let program = scratch("panics").join("panics");
    compile("panics", &program, &["-luring"]);
    let mut runs: Vec<(&str, Breaks, &str)> = Vec::new();
    for (_, name, breaks) in POINTS {
        let of_poller = name.starts_with("sqpoll-");
        let ways =
            [("plain", !of_poller), ("deferred", DEFERRED.contains(name)), ("polled", POLLED.contains(name))];
        assert!(!of_poller || POLLED.contains(name), "{name} is tried");
        runs.extend(ways.iter().filter(|(_, tried)| *tried).map(|(way, _)| (*name, *breaks, *way)));
    }
    let of_poller = POINTS.iter().filter(|(_, name, _)| name.starts_with("sqpoll-")).count();
    assert_eq!(
        runs.len() + of_poller,
        POINTS.len() + DEFERRED.len() + POLLED.len(),
        "DEFERRED and POLLED name points"
    );
    // Here the panicking ring is named by the thread's own table.
    runs.push(("enter", Breaks::Ring, "registered"));
    if let Ok(only) = std::env::var(ONLY) {
        runs.retain(|(point, ..)| *point == only);
        assert!(!runs.is_empty(), "{ONLY}={only} names no point");
    }
    let (next, complaints) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..TOGETHER {
            scope.spawn(|| {
                while let Some((point, breaks, deferral)) = runs.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let wrong = complaint(&program, &library, point, *breaks, deferral);
                    complaints.lock().expect("nobody panics with it").extend(wrong);
                }
            });
        }
    });
    let complaints = complaints.into_inner().expect("nobody panicked with it");
    assert!(complaints.is_empty(), "{} of {}:\n{}", complaints.len(), runs.len(), complaints.join("\n"));
}

/// `cargo xtask check-symbols` checks the library that is installed. This test shows that its check can distinguish the
/// two builds.
#[test]
fn only_the_build_for_tests_can_be_made_to_panic_or_break() {
    let forced = forced_library();
    assert_eq!(symbols::check_not_for_tests(&forced).expect("read it").len(), 2);
    assert!(symbols::check_not_for_tests(&common::built().shared).expect("read it").is_empty());
}
