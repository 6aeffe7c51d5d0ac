//! `anyring doctor`: its findings follow changes of the calls.
#![cfg(target_arch = "x86_64")]

mod common;

use common::{
    anyring, below, compiled, doctor, filter_with, kernel_works, killing, library, output, plainly, skipped,
    stdout, ANYRING, ERRNOS,
};
use seccompiler::SeccompAction;
use std::ffi::OsStr;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

#[test]
fn the_verdict_flips_below_deny() {
    if kernel_works("the kernel's half of the verdict") {
        let outside = doctor(&[]);
        assert_eq!(outside["verdict"]["by"], "kernel");
        assert_eq!(outside["io_uring"]["cause"], "none");
        assert_eq!(outside["run"]["auto"], "kernel");
        assert_eq!(outside["run"]["kernel"], "kernel");
    }
    for (name, _) in ERRNOS {
        let report = doctor(&["deny", "--errno", name, "--", ANYRING]);
        assert_eq!(report["io_uring"]["works"], false, "{name}");
        assert_eq!(report["io_uring"]["answer"], format!("io_uring_setup answered {name}"));
        assert_eq!(report["evidence"]["seccomp_mode"], 2);
        for call in report["evidence"]["calls"].as_array().expect("calls") {
            assert_eq!(call["answer"], name, "{call}");
        }
        assert_eq!(report["run"]["auto"], "user");
        assert_eq!(report["run"]["kernel"], serde_json::Value::Null);
        assert_ne!(report["verdict"]["by"], "kernel");
        assert!(!report["advice"].as_array().expect("advice").is_empty());
        // Before Linux 6.6 nothing distinguishes a filter's ENOSYS from that of a kernel without io_uring.
        let undecided = name == "ENOSYS" && report["evidence"]["io_uring_disabled"].is_null();
        assert_eq!(report["io_uring"]["cause"], if undecided { "unknown" } else { "seccomp" }, "{name}");
    }
}

#[test]
fn a_filter_that_kills_is_survived_and_named() {
    library();
    let output = output(below(killing(), &mut anyring(&["doctor", "--json"])));
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(report["io_uring"]["answer"], "killed by SIGSYS");
    assert_eq!(report["io_uring"]["cause"], "seccomp");
    assert_eq!(report["evidence"]["calls"][0]["answer"], "killed by SIGSYS");
    assert_ne!(report["evidence"]["calls"][1]["answer"], "killed by SIGSYS");
}

/// Imitates a kernel that does NOPs but no reads: some seeds plant such an answer of anyring's own to READ.
#[test]
fn a_ring_that_does_no_read_does_not_work() {
    library();
    let run_seed = |seed: u32| {
        let words = ["run", "--guest", "--backend", "user", "--", ANYRING, "entry-point", "guest"];
        let mut command = anyring(&words);
        let seen = output(command.env("ANYRING_CHAOS", seed.to_string()).env("ANYRING_CHAOS_RULES", "eio"));
        (seen.status.code(), String::from_utf8_lossy(&seen.stderr).into_owned())
    };
    let refused = (Some(1), "anyring: IORING_OP_READ answered EIO\n".to_owned());
    let (seen, works) = ((0..64).map(run_seed).collect::<Vec<_>>(), (Some(0), String::new()));
    assert!(seen.contains(&refused), "{seen:?}");
    assert!(seen.iter().all(|one| *one == refused || *one == works), "{seen:?}");
}

/// The calls work, but a restriction of each ring refuses READ.
#[test]
fn an_operation_that_is_denied_is_named() {
    if !kernel_works("rings with restrictions") {
        return;
    }
    if !rustix::process::getuid().is_root() {
        return skipped("rings with restrictions: only root may write to the memory of doctor's child");
    }
    let folder = tempfile::tempdir().expect("a folder");
    let [Some(nth), Some(rings)] = ["nth", "rings"].map(|source| compiled(source, folder.path())) else {
        return skipped("there is no C compiler");
    };
    let [log, rings] = [folder.path().join("log"), rings].map(|path| path.display().to_string());
    let below = |words: &[&str]| output(plainly(Command::new(&nth)).args(["0", "no-read", ANYRING]).args(words));
    let report: serde_json::Value = serde_json::from_slice(&below(&["doctor", "--json"]).stdout).expect("JSON");
    assert_eq!(report["io_uring"]["cause"], "denied-operation", "{report}");
    assert_eq!(report["io_uring"]["answer"], "IORING_OP_READ answered EACCES");
    assert_eq!((&report["run"]["auto"], &report["run"]["kernel"]), (&"user".into(), &serde_json::Value::Null));
    library();
    assert_eq!(stdout(&below(&["run", "--log", &log, "--", &rings])), "1 rings, 0 of the kernel\n");
    let text = std::fs::read_to_string(&log).expect("a log");
    assert!(
        text.contains("anyring serves io_uring (the kernel's does not work: IORING_OP_READ answered EACCES)"),
        "{text}"
    );
}

/// The output of `doctor --json` where one more call is refused.
fn refused(call: i64) -> serde_json::Value {
    let words = ["deny", "--", ANYRING, "doctor", "--json"];
    let output =
        output(below(filter_with(SeccompAction::Errno(libc::EPERM as u32), &[call]), &mut anyring(&words)));
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("call {call}: {error}: {output:?}"))
}

/// The first line of the report is about the calls that a program makes, not about calls that only doctor would like to
/// make.
#[test]
fn the_verdict_is_of_what_a_program_meets() {
    library();
    for call in [libc::SYS_pipe2, libc::SYS_epoll_pwait, libc::SYS_readlink, libc::SYS_poll, libc::SYS_setrlimit] {
        let report = refused(call);
        assert_eq!(report["verdict"]["runs"], true, "call {call}: {report}");
    }
    let program =
        ["deny", "--", ANYRING, "run", "--guest", "--backend", "user", "--", ANYRING, "entry-point", "guest"];
    for call in [libc::SYS_preadv2, libc::SYS_recvfrom, libc::SYS_getsockopt, libc::SYS_madvise] {
        let filter = filter_with(SeccompAction::Errno(libc::EPERM as u32), &[call]);
        let is_served = output(below(filter, &mut anyring(&program))).status.success();
        let report = refused(call);
        let guest = &report["entry_points"][4];
        assert_eq!(
            (&guest["name"], &guest["works"]),
            (&"guest".into(), &is_served.into()),
            "call {call}: {report}"
        );
        let ways = report["entry_points"].as_array().expect("a list");
        let works = ways.iter().any(|way| way["name"] != "preload" && way["works"] == true);
        assert_eq!(report["verdict"]["runs"], works, "call {call}: {report}");
    }
}

#[test]
fn no_file_but_its_own_is_needed() {
    library();
    let below = |words: &[&str]| {
        let mut command = plainly(Command::new("unshare"));
        let hide = "mount -t tmpfs none /dev && exec \"$@\"";
        output(command.args(["--user", "--map-root-user", "--mount", "sh", "-c", hide, "sh"]).args(words))
    };
    if !below(&["true"]).status.success() {
        return skipped("doctor without /dev: there is no leave to mount over it");
    }
    let report = below(&[ANYRING, "deny", "--", ANYRING, "doctor", "--json"]);
    let report: serde_json::Value = serde_json::from_slice(&report.stdout).expect("JSON");
    assert_eq!(report["verdict"]["runs"], true, "{report}");
}

/// The limit of processes counts those of the user; here no other process has this user.
#[test]
fn a_trial_that_cannot_be_made_is_not_said_to_fail() {
    let folder = tempfile::tempdir().expect("a folder");
    for file in [Path::new(ANYRING), library()] {
        std::fs::copy(file, folder.path().join(file.file_name().expect("a name"))).expect("copy");
    }
    std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o755)).expect("chmod");
    let program = folder.path().join("anyring");
    let one_process = || {
        let limit = libc::rlimit { rlim_cur: 1, rlim_max: 1 };
        // SAFETY: system calls on numbers and a local.
        let answers = unsafe {
            [
                libc::setresgid(54321, 54321, 54321),
                libc::setresuid(54321, 54321, 54321),
                libc::setrlimit(libc::RLIMIT_NPROC, &limit),
            ]
        };
        if answers == [0; 3] {
            Ok(())
        } else {
            Err(std::io::Error::last_os_error())
        }
    };
    let mut command = anyring(&["deny", "--"]);
    command.arg(program).args(["doctor", "--json"]);
    // SAFETY: only system calls.
    let Ok(seen) = unsafe { command.pre_exec(one_process) }.output() else {
        return skipped("one process: there is no leave to become another user");
    };
    let report: serde_json::Value = serde_json::from_slice(&seen.stdout).expect("JSON");
    assert_eq!(report["verdict"]["runs"], true, "{report}");
    assert!(report["verdict"]["summary"].as_str().is_some_and(|text| text.contains("cannot be tried")), "{report}");
}

/// The server of a running process, from what the process has in it and from its counters.
#[test]
fn a_process_that_runs_is_explained() {
    library();
    let folder = tempfile::tempdir().expect("a folder");
    let counters = folder.path().join("counters").display().to_string();
    let explained = |words: &[&str], is_served: bool| {
        let mut child = anyring(words).stdin(std::process::Stdio::piped()).spawn().expect("start");
        let asked = || {
            let printed = output(&mut anyring(&["doctor", "--json", "--pid", &child.id().to_string()]));
            serde_json::from_slice::<serde_json::Value>(&printed.stdout)
                .ok()
                .map(|report| (printed.status.code(), report))
        };
        // The child may not have executed the program yet, or the loader may not have mapped the library yet.
        let start = std::time::Instant::now();
        let is_there =
            |report: &serde_json::Value| report["name"] == "cat" && (!is_served || !report["way"].is_null());
        let found = loop {
            match asked() {
                Some(found) if is_there(&found.1) || start.elapsed().as_secs() > 10 => break found,
                _ => std::thread::yield_now(),
            }
        };
        drop(child.stdin.take());
        child.wait().expect("an end");
        found
    };
    let (status, report) = explained(&["deny", "--", ANYRING, "run", "--stats", &counters, "--", "cat"], true);
    assert_eq!(
        (status, &report["way"], &report["backend"]),
        (Some(0), &"library".into(), &"user".into()),
        "{report}"
    );
    assert_eq!(report["library"], library().display().to_string());
    assert_eq!(
        (&report["counters"]["rings"], &report["kernel_rings"]),
        (&0.into(), &serde_json::json!([])),
        "{report}"
    );
    let (status, report) = explained(&["deny", "--", "cat"], false);
    assert_eq!((status, &report["way"]), (Some(1), &serde_json::Value::Null), "{report}");
    let missing = output(&mut anyring(&["doctor", "--pid", "4194304"]));
    assert_eq!(common::one_line_failure(&missing, 125), "anyring: --pid 4194304: no such process, or no /proc\n");
}

/// A program of tests/c/rings.c that keeps its rings until this is dropped.
struct Staying(std::process::Child);

impl Staying {
    /// Starts `command` with the words that make `rings` keep `count` rings, and waits until it has them.
    fn start(mut command: Command, count: &str) -> Staying {
        command.args([count, "0", "stay"]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("start");
        let (mut printed, mut lines) = (String::new(), BufReader::new(child.stdout.take().expect("a pipe")));
        while printed.lines().count() < 2 {
            assert_ne!(lines.read_line(&mut printed).expect("read"), 0, "{printed}");
        }
        Staying(child)
    }

    fn pid(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for Staying {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

/// `doctor --pid`: its JSON and its text.
fn doctor_of(pid: u32) -> (serde_json::Value, String) {
    let pid = pid.to_string();
    let [json, text] = [&["doctor", "--json", "--pid", &pid][..], &["doctor", "--pid", &pid]]
        .map(|words| stdout(&output(&mut anyring(words))).to_owned());
    (serde_json::from_str(&json).expect("JSON"), text)
}

#[test]
fn the_rings_of_a_process_are_listed() {
    let folder = tempfile::tempdir().expect("a folder");
    let Some(rings) = compiled("rings", folder.path()) else {
        return skipped("there is no C compiler");
    };
    library();
    let refused = 0x50000 | libc::EPERM;
    let by_pipes = format!("{}={refused}", libc::SYS_socketpair);
    for (way, below) in [("socket pairs", None), ("pipes", Some(by_pipes))] {
        let mut command = anyring(&["deny", "--"]);
        if let Some(pair) = &below {
            let Some(refusing) = compiled("refusing", folder.path()) else { return };
            let (number, action) = pair.split_once('=').expect("a pair");
            command.arg(refusing).args([number, action, "--"]);
        }
        command.args([ANYRING, "run", "--backend", "user", "--"]).arg(&rings);
        let program = Staying::start(command, "2");
        let (report, text) = doctor_of(program.pid());
        let listed = report["rings"].as_array().expect("rings");
        assert_eq!(listed.len(), 2, "{way}: {report}");
        for ring in listed {
            assert_eq!(ring["server"], "anyring", "{way}: {ring}");
            assert_eq!((&ring["sq_entries"], &ring["cq_entries"]), (&4.into(), &8.into()), "{way}: {ring}");
            assert_eq!((&ring["flags"], &ring["maker"]), (&"none".into(), &program.pid().into()), "{way}: {ring}");
            let numbers = ring["numbers"].as_array().expect("numbers");
            assert_eq!(numbers.len(), 1, "{way}: {ring}");
            let number = numbers[0].as_u64().expect("a number");
            assert!(text.contains(&format!("\n  {number:<22} anyring, 4 + 8 entries, ")), "{way}: {text}");
            let link = std::fs::read_link(format!("/proc/{}/fd/{number}", program.pid())).expect("open");
            let kind = if below.is_some() { "pipe:" } else { "socket:" };
            assert!(link.to_str().is_some_and(|link| link.starts_with(kind)), "{way}: {link:?}");
        }
        assert!(text.contains("anyring serves this process (library): 0 rings of the kernel's, 2 of anyring's."));
    }
}

/// The kernel makes two rings of the program, and has no memory for the others.
#[test]
fn rings_of_both_sides_are_listed() {
    if !kernel_works("a process with rings of both sides") {
        return;
    }
    library();
    let folder = tempfile::tempdir().expect("a folder");
    let [Some(nth), Some(rings)] = ["nth", "rings"].map(|source| compiled(source, folder.path())) else {
        return skipped("there is no C compiler");
    };
    let mut command = plainly(Command::new(&nth));
    command.args(["4", "12", ANYRING, "run", "--"]).arg(&rings);
    let program = Staying::start(command, "3");
    let children = std::fs::read_to_string(format!("/proc/{0}/task/{0}/children", program.pid()));
    let Some(pid) = children.ok().and_then(|text| text.split_whitespace().next()?.parse().ok()) else {
        return skipped("/proc does not list children");
    };
    let (report, text) = doctor_of(pid);
    let of = |server: &str| {
        let rings = report["rings"].as_array().into_iter().flatten();
        rings.filter(|ring| ring["server"] == server).collect::<Vec<_>>()
    };
    let (kernels, ours) = (of("kernel"), of("anyring"));
    assert_eq!((kernels.len(), ours.len()), (2, 1), "{report}");
    assert_eq!(ours[0]["refused"], "ENOMEM", "{report}");
    assert!(kernels.iter().all(|ring| ring["refused"].is_null() && ring["maker"].is_null()), "{report}");
    let numbers: Vec<_> = kernels.iter().map(|ring| ring["numbers"][0].clone()).collect();
    assert_eq!(report["kernel_rings"], serde_json::Value::from(numbers), "{report}");
    assert!(
        text.contains("the kernel serves this process, and anyring what the kernel refuses (library): 2 rings"),
        "{text}"
    );
    assert!(text.contains(", the kernel refused it: ENOMEM\n"), "{text}");
}

/// anyring serves no ring with `--backend kernel`, whatever the kernel refuses.
#[test]
fn a_process_left_to_the_kernel_is_not_said_to_be_served() {
    if !kernel_works("a process that is left to the kernel") {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let Some(rings) = compiled("rings", folder.path()) else {
        return skipped("there is no C compiler");
    };
    library();
    let mut command = anyring(&["run", "--backend", "kernel", "--aio", "user", "--"]);
    command.arg(&rings);
    let program = Staying::start(command, "1");
    let (report, text) = doctor_of(program.pid());
    assert_eq!((&report["way"], &report["backend"]), (&"library".into(), &"kernel".into()), "{report}");
    assert!(text.contains(": the kernel alone serves this process's io_uring (library): 1 ring of the kernel's.\n"));
    assert!(!text.contains("what the kernel refuses"), "{text}");
}

#[test]
fn kernel_aio_is_probed() {
    let outside = doctor(&[]);
    let inside = doctor(&["deny", "--aio", "--errno", "ENOSYS", "--", ANYRING]);
    assert_eq!(inside["kernel_aio"]["works"], false);
    assert_eq!(inside["kernel_aio"]["answer"], "io_setup answered ENOSYS");
    if outside["kernel_aio"]["works"] == true {
        assert_eq!(doctor(&["deny", "--", ANYRING])["kernel_aio"]["works"], true);
    } else {
        skipped("that deny without --aio leaves kernel AIO alone: it does not work here anyway");
    }
}

/// The names are the interface. The results depend on the machine, except for features that every Linux has.
#[test]
fn the_json_has_its_documented_parts() {
    let report = doctor(&[]);
    assert_eq!(report["schema"], 1);
    assert_eq!(report["library"], library().display().to_string());
    let names = |part: &str| -> Vec<String> {
        let checks = report[part].as_array().unwrap_or_else(|| panic!("{part} is a list"));
        checks.iter().map(|check| check["name"].as_str().expect("a name").to_owned()).collect()
    };
    assert_eq!(names("entry_points"), ["preload", "liburing", "syscall", "raw", "guest"]);
    let blocks = names("building_blocks");
    for (index, block) in report["building_blocks"].as_array().expect("a list").iter().enumerate() {
        if ["shared memory", "ring descriptor", "eventfd", "epoll"].contains(&blocks[index].as_str()) {
            assert_eq!((&block["works"], &block["needed"]), (&true.into(), &true.into()), "{block}");
        }
    }
}

#[test]
fn instructions_are_not_caught_without_seccomp() {
    let report = doctor(&["deny", "--seccomp", "--", ANYRING]);
    assert_eq!(report["verdict"]["runs"], true);
    assert_eq!(report["entry_points"][3]["works"], false);
}

#[test]
fn a_missing_part_is_named_with_what_happens_instead() {
    for (profile, missing) in [("docker", 1), ("gvisor", 5), ("minimal", 12)] {
        let report = doctor(&["deny", "--profile", profile, "--", ANYRING]);
        assert_eq!(report["verdict"]["runs"], true, "{profile}");
        assert_eq!(report["io_uring"]["cause"], "seccomp", "{profile}");
        assert_eq!(report["entry_points"][3]["works"], true, "{profile}");
        let blocks = report["building_blocks"].as_array().expect("a list");
        let count = blocks.iter().filter(|block| block["works"] == false && block["instead"].is_string()).count();
        // Before Linux 6.10 the kernel itself lacks F_DUPFD_QUERY, which docker permits.
        assert!(count + 1 >= missing && count <= missing + 1, "{count} below {profile}: {blocks:?}");
    }
}

#[test]
fn a_library_that_cannot_be_loaded_is_found_out() {
    let mut command = anyring(&["deny", "--", ANYRING, "doctor", "--json"]);
    let output = output(command.env("ANYRING_LIBRARY", "/etc/passwd"));
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(report["library"], serde_json::Value::Null, "{report}");
    assert!(report["no_library"].as_str().is_some_and(|why| why.contains("/etc/passwd")), "{report}");
    assert_eq!(report["verdict"]["runs"], false);
}

#[test]
fn the_text_begins_with_the_verdict_and_fits_the_terminal() {
    for outer in [&[][..], &["deny", "--", ANYRING]] {
        let summary = doctor(outer)["verdict"]["summary"].as_str().expect("a summary").to_owned();
        let text = stdout(&output(&mut anyring(&[outer, &["doctor"]].concat())));
        assert_eq!(text.lines().next(), Some(summary.as_str()));
        // A path cannot be wrapped.
        for line in text.lines().filter(|line| !line.contains('/')) {
            assert!(line.chars().count() <= 100, "{line}");
        }
    }
}

/// The number of rings that fit: without a limit in sight, and where the kernel has no memory for more.
#[test]
fn the_room_for_rings_is_measured() {
    if !kernel_works("how many of its rings fit") {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let Some(nth) = compiled("nth", folder.path()) else { return skipped("there is no C compiler") };
    let mut command = plainly(Command::new(nth));
    let report = output(command.args(["40", "12", ANYRING, "doctor", "--json"]));
    let report: serde_json::Value = serde_json::from_slice(&report.stdout).expect("JSON");
    assert_eq!(report["io_uring"]["works"], true, "{report}");
    let room = &report["io_uring"]["room"];
    assert!((10..40).contains(&room["rings"].as_u64().expect("a number")), "{room}");
    assert_eq!(room["end"], "io_uring_setup answered ENOMEM");
    let advice = report["advice"].to_string();
    assert!(advice.contains(&format!("beyond {} rings of 64 entries", room["rings"])), "{advice}");
    // Nothing is charged to root.
    let outside = doctor(&[]);
    if outside["evidence"]["memlock_limit_bytes"].is_null() || rustix::process::getuid().is_root() {
        let room = &outside["io_uring"]["room"];
        assert!(room["end"].is_null() && room["rings"].as_u64() > Some(40), "{room}");
    }
}

/// Linux AIO as in gVisor, on whose completion ring qemu would wait forever: `auto` serves it, with and without
/// `run`.
#[test]
fn a_completion_ring_that_nobody_fills_is_found() {
    library();
    let (directory, source) = (tempfile::tempdir().expect("a directory"), "tests/c/unread-ring.c");
    let program = directory.path().join("unread-ring");
    let Ok(built) = Command::new("cc").args(["-std=gnu17", "-O1", "-w", "-o"]).arg(&program).arg(source).output()
    else {
        return skipped("a completion ring that nobody fills: there is no cc");
    };
    assert!(built.status.success(), "{built:?}");
    let below = |words: &[&OsStr]| {
        let mut outer = plainly(Command::new(&program));
        outer.arg("below").args(words);
        outer
    };
    let run = [ANYRING, "run", "--backend", "user", "--"].map(OsStr::new);
    let attempt = [program.as_os_str(), OsStr::new("try")];
    let seen = output(&mut below(&attempt));
    if seen.status.code() != Some(1) {
        return skipped(&format!("a completion ring that nobody fills: it cannot be made here: {seen:?}"));
    }
    let report = output(&mut below(&[ANYRING, "doctor", "--json"].map(OsStr::new)));
    let report: serde_json::Value = serde_json::from_slice(&report.stdout).expect("JSON");
    assert_eq!(report["kernel_aio"]["answer"], "programs cannot read the completion ring: it is empty memory");
    assert_eq!(
        (&report["run_aio"]["auto"], &report["run_aio"]["kernel"]),
        (&"user".into(), &serde_json::Value::Null)
    );
    let seen = output(&mut below(&[&run[..], &attempt].concat()));
    assert_eq!(seen.status.code(), Some(0), "anyring run: {seen:?}");
    let seen = output(below(&attempt).env("LD_PRELOAD", library()));
    assert_eq!(seen.status.code(), Some(0), "LD_PRELOAD: {seen:?}");
}
