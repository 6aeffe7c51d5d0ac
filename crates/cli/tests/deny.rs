//! `anyring deny`, as seen by programs that make the calls themselves.
#![cfg(target_arch = "x86_64")]

mod common;

use common::{
    anyring, calling, calling_i386, calling_with, compiled, conformance, install, library, one_line_failure,
    output, skipped, stdout, Elf, ANYRING, ERRNOS,
};
use std::fs::{read, set_permissions};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::Command;

const IO_URING_CALLS: std::ops::RangeInclusive<u32> = 425..=427;
/// io_setup, io_destroy, io_getevents, io_submit, io_cancel, io_pgetevents on x86-64.
const AIO_CALLS: [u32; 6] = [206, 207, 208, 209, 210, 333];

/// The errno of call `number` below `deny` with these options.
fn answer(options: &[&str], number: u32) -> i32 {
    let directory = tempfile::tempdir().expect("a directory");
    let program = Elf::new(calling(number)).write(&directory.path().join("call"));
    let mut command = anyring(&[&["deny"], options, &["--"]].concat());
    command.arg(program).status().expect("start it").code().expect("an exit status")
}

/// The errno of call `number` where the tests run.
fn answer_outside(number: u32) -> i32 {
    let directory = tempfile::tempdir().expect("a directory");
    let program = Elf::new(calling(number)).write(&directory.path().join("call"));
    Command::new(program).status().expect("start it").code().expect("an exit status")
}

#[test]
fn every_call_answers_every_errno() {
    for (name, code) in ERRNOS {
        for number in IO_URING_CALLS {
            assert_eq!(answer(&["--errno", name], number), code, "call {number} with {name}");
        }
    }
}

#[test]
fn calls_may_kill_or_trap() {
    let directory = tempfile::tempdir().expect("a directory");
    for number in [IO_URING_CALLS.collect(), vec![libc::SYS_seccomp as u32]].concat() {
        let program = Elf::new(calling(number)).write(&directory.path().join(number.to_string()));
        let ended = |options: &[&str]| {
            let status = anyring(&[&["deny"], options, &["--"]].concat()).arg(&program).status().expect("start it");
            status.signal() == Some(libc::SIGSYS)
        };
        let is_of_rings = IO_URING_CALLS.contains(&number);
        for errno in ["kill", "trap"] {
            assert_eq!(ended(&["--errno", errno]), is_of_rings, "call {number} with {errno}");
        }
        assert!(ended(&["--profile", "kill"]), "call {number}");
        assert_eq!(ended(&["--profile", "kill", "--errno", "EPERM"]), !is_of_rings, "call {number}");
    }
}

/// Calls through libc, and by instructions that can be replaced, are served. Others are reported before the program
/// starts.
#[test]
fn programs_are_served_or_refused_below_filters_that_kill_or_trap() {
    library();
    let directory = tempfile::tempdir().expect("a directory");
    let Some(fixed) = compiled("fixed", directory.path()) else { return skipped("there is no C compiler") };
    for refusal in [["--errno", "trap"], ["--errno", "kill"], ["--profile", "kill"]] {
        let run = |words: &[&str]| {
            output(&mut anyring(&[&["deny"], &refusal[..], &["--", ANYRING, "run"], words].concat()))
        };
        let cases = conformance();
        let cases = cases.to_str().expect("UTF-8");
        for door in ["libc", "raw"] {
            let served = run(&["--", cases, "--door", door, "--quiet", "--filter", "nop::", "--filter", "enter::"]);
            let all_passed = stdout(&served).contains(" passed, 0 failed");
            assert!(served.status.success() && all_passed, "{refusal:?} {door}: {served:?}");
        }
        let fixed = fixed.to_str().expect("UTF-8");
        if refusal[1] == "trap" {
            assert_eq!(stdout(&run(&["--", fixed, "calls"])), format!("{}\n", -libc::EBADF));
            continue;
        }
        let line = one_line_failure(&run(&["--", fixed]), 125);
        assert!(
            line.contains("kills for the program's own calls of io_uring") && line.contains("cannot be replaced"),
            "{line}"
        );
        assert_eq!(stdout(&run(&["--no-raw", "--", fixed])), "0\n");
        // Programs that it starts are not checked.
        let started = run(&["--", "sh", "-c", &format!("{fixed}; true")]);
        assert!(started.status.success() && stdout(&started) == "0\n", "{started:?}");
    }
}

#[test]
fn eperm_is_the_default() {
    assert_eq!(answer(&[], 425), libc::EPERM);
}

#[test]
fn kernel_aio_is_refused_only_when_asked() {
    for number in AIO_CALLS {
        assert_eq!(answer(&["--errno", "EOPNOTSUPP", "--aio"], number), libc::EOPNOTSUPP, "call {number}");
        assert_eq!(answer(&["--errno", "EOPNOTSUPP"], number), answer_outside(number), "call {number}");
    }
}

#[test]
fn the_innermost_of_nested_filters_answers() {
    assert_eq!(answer(&["--errno", "EPERM", "--", ANYRING, "deny", "--errno", "ENOSYS"], 425), libc::ENOSYS);
    assert_eq!(answer(&["--errno", "ENOSYS", "--", ANYRING, "deny", "--errno", "EPERM"], 425), libc::EPERM);
}

#[test]
fn a_32_bit_program_is_refused_too_and_not_killed() {
    let directory = tempfile::tempdir().expect("a directory");
    let elf = Elf { class_64: false, machine: 3, ..Elf::new(calling_i386(425)) };
    let program = elf.write(&directory.path().join("call"));
    if let Err(error) = Command::new(&program).status() {
        skipped(&format!("this kernel runs no 32-bit programs: {error}"));
        return;
    }
    let status = anyring(&["deny", "--errno", "EOPNOTSUPP", "--"]).arg(program).status().expect("start it");
    assert_eq!(status.code(), Some(libc::EOPNOTSUPP), "{status}");
}

#[test]
fn exit_status_signal_and_streams_pass_through() {
    assert_eq!(output(&mut anyring(&["deny", "--", "sh", "-c", "exit 42"])).status.code(), Some(42));
    assert_eq!(
        output(&mut anyring(&["deny", "--", "sh", "-c", "kill -TERM $$"])).status.signal(),
        Some(libc::SIGTERM)
    );
    assert_eq!(stdout(&output(&mut anyring(&["deny", "--", "echo", "--aio", "-x"]))), "--aio -x\n");
}

#[test]
fn a_program_that_cannot_be_started_is_one_line() {
    one_line_failure(&output(&mut anyring(&["deny", "--", "/nonexistent/program"])), 127);
    one_line_failure(&output(&mut anyring(&["deny", "--", "no-such-program-in-path"])), 127);
    one_line_failure(&output(&mut anyring(&["deny", "--", "/etc/passwd"])), 126);
}

#[test]
fn bad_usage_is_one_line_and_status_2() {
    let unknown = one_line_failure(&output(&mut anyring(&["deny", "--errno", "EFOO", "--", "true"])), 2);
    assert!(unknown.contains("EFOO") && unknown.contains("EOPNOTSUPP"), "{unknown}");
    one_line_failure(&output(&mut anyring(&["deny"])), 2);
    one_line_failure(&output(&mut anyring(&["deny", "--backend", "user", "--", "true"])), 2);
    one_line_failure(&output(&mut anyring(&["refuse", "--", "true"])), 2);
}

/// The answers of a call below each profile: docker, rhel8, gvisor, minimal. `None` is the answer outside.
type Row = (&'static str, libc::c_long, [u64; 6], [Option<i32>; 4]);

const SAME: Option<i32> = None;
const PERM: Option<i32> = Some(libc::EPERM);
const NOSYS: Option<i32> = Some(libc::ENOSYS);
const INVAL: Option<i32> = Some(libc::EINVAL);
const OPNOTSUPP: Option<i32> = Some(libc::EOPNOTSUPP);
const CLOSED: u64 = -2i64 as u64;
const NO_OFFSET: u64 = u64::MAX;

/// Calls with a closed descriptor or a length of 0. Without a profile the kernel refuses them or does nothing.
const ROWS: [Row; 26] = [
    ("io_uring_setup", libc::SYS_io_uring_setup, [1, 0, 0, 0, 0, 0], [PERM, NOSYS, NOSYS, PERM]),
    ("clone3", libc::SYS_clone3, [0; 6], [NOSYS, NOSYS, SAME, NOSYS]),
    ("clone(CLONE_NEWUSER | CLONE_PIDFD)", libc::SYS_clone, [0x1000_1000, 0, 8, 0, 0, 0], [PERM, SAME, SAME, SAME]),
    ("unshare", libc::SYS_unshare, [0; 6], [PERM, SAME, SAME, PERM]),
    ("socket(AF_VSOCK)", libc::SYS_socket, [40, 99, 0, 0, 0, 0], [PERM, SAME, SAME, SAME]),
    ("socket(AF_INET)", libc::SYS_socket, [2, 99, 0, 0, 0, 0], [SAME; 4]),
    ("personality(0xffffffff)", libc::SYS_personality, [0xffff_ffff, 0, 0, 0, 0, 0], [SAME; 4]),
    ("personality(ADDR_NO_RANDOMIZE)", libc::SYS_personality, [0x4_0000, 0, 0, 0, 0, 0], [PERM, SAME, SAME, SAME]),
    ("close_range", libc::SYS_close_range, [9, 8, 0, 0, 0, 0], [SAME, NOSYS, SAME, NOSYS]),
    ("openat2", libc::SYS_openat2, [CLOSED, 0, 0, 0, 0, 0], [SAME, NOSYS, SAME, NOSYS]),
    ("pidfd_getfd", libc::SYS_pidfd_getfd, [CLOSED, 0, 0, 0, 0, 0], [PERM, NOSYS, SAME, NOSYS]),
    ("epoll_pwait2", libc::SYS_epoll_pwait2, [CLOSED, 0, 1, 0, 0, 0], [SAME, NOSYS, SAME, NOSYS]),
    ("kcmp", libc::SYS_kcmp, [0; 6], [PERM, SAME, PERM, PERM]),
    ("process_vm_readv", libc::SYS_process_vm_readv, [0, 0, 0, 0, 0, 1], [SAME, SAME, SAME, PERM]),
    ("waitid(P_PGID, 0)", libc::SYS_waitid, [2, 0, 0, 5, 0, 0], [SAME, INVAL, SAME, SAME]),
    ("waitid(P_PGID, 1)", libc::SYS_waitid, [2, 1, 0, 5, 0, 0], [SAME; 4]),
    ("seccomp", libc::SYS_seccomp, [99, 0, 0, 0, 0, 0], [SAME, SAME, SAME, SAME]),
    ("io_setup", libc::SYS_io_setup, [0; 6], [SAME, SAME, SAME, PERM]),
    ("preadv2", libc::SYS_preadv2, [CLOSED, 0, 0, 0, 0, 0], [SAME; 4]),
    ("preadv2(RWF_NOWAIT)", libc::SYS_preadv2, [CLOSED, 0, 0, 0, 0, 8], [SAME, SAME, OPNOTSUPP, OPNOTSUPP]),
    (
        "preadv2(RWF_NOWAIT) at no offset",
        libc::SYS_preadv2,
        [CLOSED, 0, 0, NO_OFFSET, 0, 8],
        [SAME, OPNOTSUPP, OPNOTSUPP, OPNOTSUPP],
    ),
    (
        "preadv2 with an unknown flag at no offset",
        libc::SYS_preadv2,
        [CLOSED, 0, 0, NO_OFFSET, 0, 1 << 31],
        [SAME, OPNOTSUPP, Some(0), OPNOTSUPP],
    ),
    ("pwritev2(RWF_NOWAIT)", libc::SYS_pwritev2, [CLOSED, 0, 0, 0, 0, 8], [SAME, OPNOTSUPP, OPNOTSUPP, OPNOTSUPP]),
    ("madvise(MADV_WIPEONFORK)", libc::SYS_madvise, [0, 0, 18, 0, 0, 0], [SAME, SAME, INVAL, INVAL]),
    ("madvise(MADV_POPULATE_READ)", libc::SYS_madvise, [0, 0, 22, 0, 0, 0], [SAME, INVAL, INVAL, INVAL]),
    (
        "getsockopt(SO_COOKIE)",
        libc::SYS_getsockopt,
        [CLOSED, 1, 57, 0, 0, 0],
        [SAME, SAME, Some(libc::ENOPROTOOPT), Some(libc::ENOPROTOOPT)],
    ),
];

#[test]
fn profiles_refuse_what_is_missing_there_and_nothing_else() {
    let directory = tempfile::tempdir().expect("a directory");
    for (index, (what, number, arguments, answers)) in ROWS.into_iter().enumerate() {
        let path = directory.path().join(index.to_string());
        let program = Elf::new(calling_with(number as u32, arguments)).write(&path);
        let status = |command: &mut Command| command.status().expect("start it").code();
        let outside = status(&mut Command::new(&program));
        for (profile, answer) in ["docker", "rhel8", "gvisor", "minimal"].into_iter().zip(answers) {
            let inside = status(anyring(&["deny", "--profile", profile, "--"]).arg(&program));
            assert_eq!(inside, answer.or(outside), "{what} below {profile}");
        }
    }
}

/// The profile `agent-strict` leaves rings a pipe as their descriptor.
#[test]
fn sandboxes_of_agents_refuse_what_reaches_others() {
    let sockets = [libc::SYS_connect, libc::SYS_bind, libc::SYS_sendto, libc::SYS_getsockopt, libc::SYS_setsockopt];
    for number in [&[libc::SYS_io_uring_setup, libc::SYS_ptrace], &sockets[..]].concat() {
        for profile in ["agent", "agent-strict"] {
            assert_eq!(answer(&["--profile", profile], number as u32), libc::EPERM, "{number} below {profile}");
        }
    }
    assert_ne!(answer(&["--profile", "agent"], libc::SYS_socketpair as u32), libc::EPERM);
    assert_eq!(answer(&["--profile", "agent-strict"], libc::SYS_socketpair as u32), libc::EPERM);
    library();
    let run = |profile: &str| {
        let words =
            ["deny", "--profile", profile, "--", ANYRING, "run", "--", conformance().to_str().expect("UTF-8")];
        output(anyring(&words).args(["--filter", "register::probe_reports_the_operations"]))
    };
    for profile in ["agent", "agent-strict"] {
        let served = run(profile);
        assert!(stdout(&served).ends_with("1 passed, 0 failed, 0 skipped\n"), "{profile}: {served:?}");
    }
}

#[test]
fn errno_and_aio_add_to_a_profile() {
    let rhel8 = ["--profile", "rhel8", "--errno", "EOPNOTSUPP", "--aio"];
    assert_eq!(answer(&rhel8, 425), libc::EOPNOTSUPP);
    assert_eq!(answer(&rhel8, AIO_CALLS[0]), libc::EOPNOTSUPP);
    assert_eq!(answer(&rhel8, libc::SYS_close_range as u32), libc::ENOSYS);
}

/// The test runs as its own user, and as an ordinary user, who needs a user namespace.
#[test]
fn minimal_has_no_proc_or_says_why_not() {
    let script = "ls /proc | wc -l; id -u; id -g";
    let proc_is_hidden_or_reported = |mut command: Command, ids: (u32, u32)| {
        let output = output(&mut command);
        let (seen, printed) = (stdout(&output), String::from_utf8_lossy(&output.stderr).into_owned());
        let mut lines = seen.lines();
        let entries: u32 = lines.next().expect("a count").parse().expect("a number");
        assert_eq!(lines.collect::<Vec<_>>(), [ids.0.to_string(), ids.1.to_string()], "the ids are kept");
        if entries > 0 {
            assert!(
                printed.starts_with("anyring: /proc stays visible: ") && printed.lines().count() == 1,
                "{printed:?}"
            );
            skipped(&format!("that /proc is hidden: {}", printed.trim_end()));
        } else {
            assert_eq!(printed, "");
        }
    };
    // SAFETY: they only report.
    let (user, group) = unsafe { (libc::getuid(), libc::getgid()) };
    let mut command = anyring(&["deny", "--profile", "minimal", "--"]);
    command.args(["sh", "-c", script]);
    proc_is_hidden_or_reported(command, (user, group));
    if user != 0 {
        skipped("the same as another user: only root can become one");
        return;
    }
    // An ordinary user may be unable to reach the command where it is.
    let directory = tempfile::tempdir().expect("a directory");
    set_permissions(directory.path(), PermissionsExt::from_mode(0o755)).expect("chmod");
    let reachable = install(&read(ANYRING).expect("read"), &directory.path().join("anyring"));
    let mut command = Command::new(reachable);
    command.args(["deny", "--profile", "minimal", "--", "sh", "-c", script]).uid(65534).gid(65534);
    proc_is_hidden_or_reported(command, (65534, 65534));
    assert!(std::path::Path::new("/proc/self/status").exists(), "only the program's own /proc is hidden");
}

/// The fragment for seccomp profiles and the line for systemd units list the same calls. They list no call that
/// Docker's profile or systemd already permits.
#[test]
fn the_published_lists_of_calls_agree() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let read = |file: &str| std::fs::read_to_string(root.join(file)).expect(file);
    let fragment: serde_json::Value = serde_json::from_str(&read("packaging/seccomp/anyring.json")).expect("JSON");
    assert_eq!(fragment["action"], "SCMP_ACT_ALLOW");
    let names = fragment["names"].as_array().expect("a list").iter().map(|name| name.as_str().expect("a name"));
    let names: Vec<_> = names.collect();
    assert!(names.iter().all(|name| !name.starts_with("io_uring")) && names.is_sorted(), "{names:?}");
    assert!(
        ["epoll_ctl", "futex", "memfd_create", "socketpair"].iter().all(|name| names.contains(name)),
        "{names:?}"
    );
    let line = format!("\nSystemCallFilter={}\n", names.join(" "));
    assert!(
        read("docs/containers.md").contains(&line),
        "docs/containers.md has another line: scripts/calls.py --write"
    );
}
