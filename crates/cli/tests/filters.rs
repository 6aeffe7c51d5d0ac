//! `anyring run` below filters of system calls, and rules that a program makes for itself.
#![cfg(target_arch = "x86_64")]

mod common;

use common::{
    anyring, below, compiled, conformance, filter_with, kernel_works, killing, library, one_line_failure, output,
    plainly, run, skipped, stdout,
};
use seccompiler::SeccompAction;
use std::process::Command;

#[test]
fn a_filter_that_kills_does_not_kill_run() {
    let mut command = run("auto", &["sh", "-c", "echo $ANYRING_BACKEND; exit 7"]);
    let output = output(below(killing(), &mut command));
    assert_eq!((output.status.code(), stdout(&output).as_str()), (Some(7), "user\n"));
}

/// A service's filter lists the permitted calls and lacks some that only anyring makes. anyring does without these,
/// and does not make them at all where they would kill.
#[test]
fn filters_without_the_calls_of_ours_kill_nobody() {
    // systemd 247 does not know the last two.
    const OURS: [i64; 5] = [
        libc::SYS_seccomp,
        libc::SYS_process_vm_readv,
        libc::SYS_process_vm_writev,
        libc::SYS_epoll_pwait2,
        libc::SYS_futex_waitv,
    ];
    let cases = conformance().to_str().expect("UTF-8");
    for action in [SeccompAction::KillProcess, SeccompAction::Errno(libc::EPERM as u32)] {
        for door in ["libc", "raw"] {
            // The plain cases, and waits on a ring's descriptor, which are trapped from the start here.
            let words = [
                cases,
                "--door",
                door,
                "--quiet",
                "--filter",
                "nop::",
                "--filter",
                "enter::",
                "--filter",
                "timeout::",
                "--filter",
                "futex::wait_",
            ];
            let mut preloaded = Command::new(cases);
            preloaded.args(&words[1..]).env("LD_PRELOAD", library()).env("ANYRING_BACKEND", "user");
            let mut guest = anyring(&[&["run", "--guest", "--backend", "user", "--"], &words[..]].concat());
            for command in [&mut run("user", &words), &mut preloaded, &mut guest] {
                let seen = output(below(filter_with(action.clone(), &OURS), command));
                let all_passed = stdout(&seen).contains(" passed, 0 failed");
                assert!(seen.status.success() && all_passed, "{action:?} {door}: {seen:?}");
            }
        }
    }
}

/// The engine does without every call that it can replace, also below a filter that kills for it.
#[test]
fn calls_that_have_another_way_are_not_made_below_a_filter() {
    library();
    let folder = tempfile::tempdir().expect("a folder");
    let Some(requests) = compiled("requests", folder.path()) else { return skipped("there is no C compiler") };
    let requests = requests.to_str().expect("UTF-8");
    let calls = [
        libc::SYS_epoll_wait,
        libc::SYS_getsockopt,
        libc::SYS_mremap,
        libc::SYS_nanosleep,
        libc::SYS_preadv2,
        libc::SYS_pwrite64,
        libc::SYS_pwritev2,
    ];
    let kills = calls.into_iter().map(|call| (call, SeccompAction::KillProcess));
    let refuses =
        [libc::SYS_exit_group, libc::SYS_ppoll].map(|call| (call, SeccompAction::Errno(libc::EPERM as u32)));
    for (call, action) in kills.chain(refuses) {
        let mut run = run("user", &[requests]);
        let seen = output(below(filter_with(action.clone(), &[call]), &mut run));
        assert_eq!(
            (seen.status.code(), stdout(&seen).as_str()),
            (Some(0), "served\n"),
            "{call} {action:?}: {seen:?}"
        );
    }
}

/// If a filter kills a process that makes a ring, `run` starts no program. If the filter kills only for traps, the
/// program's system call instructions are not trapped.
#[test]
fn nothing_is_started_to_be_killed() {
    library();
    let folder = tempfile::tempdir().expect("a folder");
    let Some(requests) = compiled("requests", folder.path()) else { return skipped("there is no C compiler") };
    let requests = requests.to_str().expect("UTF-8");
    let below_one = |call, more: &[&str]| {
        let words = [&["run", "--backend", "user"], more, &["--", requests]].concat();
        output(below(filter_with(SeccompAction::KillProcess, &[call]), &mut anyring(&words)))
    };
    for call in [libc::SYS_fcntl, libc::SYS_fstat, libc::SYS_getxattr, libc::SYS_wait4, libc::SYS_futex] {
        let why = one_line_failure(&below_one(call, &[]), 125);
        assert!(why.contains("anyring cannot serve io_uring: "), "{call}: {why}");
    }
    // A thread makes this call only when another thread holds the lock that it wants.
    one_line_failure(&below_one(libc::SYS_futex, &["--guest"]), 125);
    one_line_failure(&below_one(libc::SYS_rt_sigreturn, &["--guest"]), 125);
    let log = folder.path().join("log");
    let seen = below_one(libc::SYS_rt_sigreturn, &["--log", log.to_str().expect("UTF-8")]);
    assert_eq!(stdout(&seen), "served\n", "{seen:?}");
    let log = std::fs::read_to_string(log).expect("the log");
    assert!(log.contains("are left to the kernel (the process was killed by SIGSYS)"), "{log}");
}

/// Each process that is made before a start takes time. In a PID namespace of its own, a program's child has the next
/// number.
#[test]
fn few_processes_are_made_before_a_start() {
    library();
    let apart = ["--user", "--map-root-user", "--pid", "--fork"];
    let below_one = |words: &[&str]| {
        let mut command = plainly(Command::new("unshare"));
        command.args(apart).args(words);
        output(below(
            filter_with(SeccompAction::Errno(libc::EPERM as u32), &[libc::SYS_io_uring_setup]),
            &mut command,
        ))
    };
    if !below_one(&["true"]).status.success() {
        return skipped("a start in a PID namespace of its own: there is no leave to make one");
    }
    let seen = below_one(&[common::ANYRING, "run", "--backend", "user", "--", "sh", "-c", "sh -c 'echo $$'; :"]);
    let number: u32 = stdout(&seen).trim().parse().unwrap_or_else(|_| panic!("{seen:?}"));
    // anyring itself, the rehearsal, the trial, the child of its first question, and perhaps a thread of its own.
    assert!(number <= 7, "the program's first child is process {number}");
}

/// Calls that a filter or Landlock refuses to the program are refused to its requests: each is a call of the process.
#[test]
fn rules_of_the_program_hold_for_its_requests() {
    library();
    let folder = tempfile::tempdir().expect("a folder");
    let Some(rules) = compiled("rules", folder.path()) else { return skipped("there is no C compiler") };
    let rules = rules.to_str().expect("UTF-8");
    let refused = format!("call {0}, request {0}\n", libc::EACCES);
    for rule in ["connect", "open"] {
        for way in [&[][..], &["--guest"]] {
            let run = [&["run", "--backend", "user"], way, &["--", rules, rule]].concat();
            let seen = output(&mut anyring(&run));
            if seen.status.code() == Some(77) {
                skipped(&format!("whether the rule on {rule} holds: it cannot be made here: {seen:?}"));
                continue;
            }
            assert_eq!(stdout(&seen), refused, "{rule} {way:?}: {seen:?}");
        }
    }
    if kernel_works("that the kernel's io_uring passes seccomp by") {
        let natively = output(plainly(Command::new(rules)).arg("connect"));
        assert_eq!(stdout(&natively), format!("call {}, request 0\n", libc::EACCES));
    }
}
