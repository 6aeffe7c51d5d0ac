//! `anyring run`: what the program sees, and which programs are refused.
#![cfg(target_arch = "x86_64")]

mod common;

use common::{
    answering, anyring, below, calling, compiled, conformance, install, kernel_works, killing, library,
    one_line_failure, output, plainly, skipped, stdout, Elf, ANYRING,
};
use seccompiler::SeccompAction;
use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Command, Stdio};

const BACKENDS: [&str; 2] = ["auto", "user"];

/// `anyring run --backend BACKEND --`, with the library in its place.
fn run(backend: &str, words: &[&str]) -> Command {
    library();
    anyring(&[&["run", "--backend", backend, "--"], words].concat())
}

/// `words` below `deny`.
fn denied(words: &[&str]) -> Command {
    library();
    anyring(&[&["deny", "--", ANYRING], words].concat())
}

#[test]
fn exit_status_and_signal_pass_through() {
    for backend in BACKENDS {
        assert_eq!(output(&mut run(backend, &["sh", "-c", "exit 42"])).status.code(), Some(42));
        let killed = output(&mut run(backend, &["sh", "-c", "kill -TERM $$"])).status;
        assert_eq!(killed.signal(), Some(libc::SIGTERM), "{backend}");
    }
}

#[test]
fn standard_streams_pass_through() {
    for backend in BACKENDS {
        let mut command = run(backend, &["sh", "-c", "cat; echo seen >&2"]);
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("{command:?}: {error}"));
        child.stdin.take().expect("a pipe").write_all(b"in and out").expect("write");
        let output = child.wait_with_output().expect("wait");
        assert_eq!((stdout(&output).as_str(), &output.stderr[..]), ("in and out", &b"seen\n"[..]), "{backend}");
    }
}

/// The output of the shell script `script` when its `$RUN` is empty, and when it is `anyring` with these words.
fn plain_and_run(script: &str, run: &str) -> [String; 2] {
    ["", &format!("{ANYRING} {run} --")].map(|prefix| {
        let mut shell = Command::new("sh");
        let output = output(shell.args(["-c", &script.replace("$RUN", prefix)]));
        assert!(output.status.success(), "{script}: {output:?}");
        stdout(&output)
    })
}

#[test]
fn stepping_aside_is_invisible() {
    if !kernel_works("what a program sees when run steps aside") {
        return;
    }
    // Not `SigQ`, which counts the signals of all processes of the user.
    let scripts = [
        "exec $RUN env",
        "trap '' PIPE CHLD; exec $RUN grep -E '^(Sig[^Q]|Shd|NoNewPrivs|Seccomp)' /proc/self/status",
        "exec $RUN grep -E '^(Sig[^Q]|Shd|NoNewPrivs|Seccomp)' /proc/self/status",
        "exec $RUN ls /proc/self/fd",
        "exec <&-; exec $RUN ls /proc/self/fd",
        "exec $RUN sh -c 'ulimit -a; umask; pwd; echo $0 \"$@\"' zero one ''",
    ];
    for script in scripts {
        for run in ["run --backend kernel --aio kernel", "run"] {
            let [plain, run] = plain_and_run(script, run).map(|text| without_ours(&text));
            assert_eq!(plain, run, "{script}");
        }
    }
    let [plain, run] = plain_and_run("exec $RUN env", "run --backend kernel --aio kernel");
    assert_eq!(plain, run);
}

/// An environment without the variables of the library that stands by.
fn without_ours(environment: &str) -> String {
    let is_ours = |line: &&str| line.starts_with("ANYRING_") || line.starts_with("LD_PRELOAD=");
    environment.lines().filter(|line| !is_ours(line)).collect::<Vec<_>>().join("\n")
}

/// A process that made a context waits at its end for the kernel's grace periods, 30 ms. That would slow every start.
#[test]
fn no_context_of_linux_aio_is_made_to_start_a_program() {
    library();
    let contexts = |words: &[&str]| {
        let folder = tempfile::tempdir().expect("a folder");
        let counter = compiled("unread-ring", folder.path())?;
        let counted = output(plainly(Command::new(counter)).arg("count").args(words));
        Some(stdout(&counted).lines().last()?.to_owned())
    };
    let Some(seen) = contexts(&[ANYRING, "doctor"]) else { return skipped("there is no C compiler") };
    if seen == "0" {
        return skipped("whether a start makes contexts: doctor makes none here");
    }
    assert_eq!(contexts(&[ANYRING, "run", "--", "true"]).as_deref(), Some("0"));
}

#[test]
#[ignore = "soak: it measures"]
fn a_program_starts_in_5_ms_more() {
    let library = library();
    let median_ms = |words: &[&str]| {
        let mut command = plainly(Command::new(words[0]));
        command.args(&words[1..]).env("ANYRING_LIBRARY", library);
        let mut times: Vec<_> = (0..101)
            .map(|_| {
                let start = std::time::Instant::now();
                assert!(output(&mut command).status.success());
                start.elapsed().as_secs_f64() * 1e3
            })
            .collect();
        times.sort_by(f64::total_cmp);
        times[times.len() / 2]
    };
    let [plain, run] = [&["true"][..], &[ANYRING, "run", "--", "true"]].map(median_ms);
    // 3 ms, as installed; the development profile takes twice that, and the machine may have only two cores.
    let most = if cfg!(debug_assertions) { 20.0 } else { 5.0 };
    assert!(run - plain < most, "{run} ms by `anyring run`, {plain} ms plainly");
}

/// The kernel makes three rings, one of them for `run` itself, and has no memory for a fourth.
#[test]
fn rings_that_the_kernel_refuses_later_are_served() {
    if !kernel_works("a kernel that refuses the third ring") {
        return;
    }
    library();
    let folder = tempfile::tempdir().expect("a folder");
    let [Some(nth), Some(rings)] = ["nth", "rings"].map(|source| compiled(source, folder.path())) else {
        return skipped("there is no C compiler");
    };
    let [log, stats] = ["log", "stats"].map(|name| folder.path().join(name));
    let run = |backend: &str| {
        let mut command = Command::new(&nth);
        command
            .args(["3", "12", ANYRING, "run", "--backend", backend, "--log"])
            .arg(&log)
            .arg("--stats")
            .arg(&stats);
        output(command.arg("--").arg(&rings).arg("5"))
    };
    let seen = run("kernel");
    assert!(
        !seen.status.success() && String::from_utf8_lossy(&seen.stderr).contains("Cannot allocate memory"),
        "{seen:?}"
    );
    for file in [&log, &stats] {
        std::fs::remove_file(file).expect("written");
    }
    let seen = run("auto");
    assert!(seen.status.success(), "{seen:?}");
    assert_eq!(stdout(&seen), "5 rings, 2 of the kernel\n");
    let text = std::fs::read_to_string(&log).expect("a log");
    assert!(
        text.contains("the kernel serves io_uring (its own works here), anyring what that refuses; "),
        "{text}"
    );
    assert_eq!(text.matches(" is the kernel's\n").count(), 2, "{text}");
    let ours = " is anyring's: the kernel's io_uring_setup answered Cannot allocate memory";
    assert_eq!(text.matches(ours).count(), 3, "{text}");
    let counters = output(anyring(&["stats", "--json"]).arg(&stats));
    let counters: serde_json::Value = serde_json::from_slice(&counters.stdout).expect("JSON");
    assert_eq!((&counters["rings"], &counters["kernel_rings"]), (&3.into(), &2.into()), "{counters}");
    assert_eq!(counters["kernel_refused_errno"], 12);
}

/// If the kernel works, a library that is missing or cannot be preloaded does not keep the program from starting.
#[test]
fn without_the_library_the_kernel_serves_alone() {
    if !kernel_works("runs without the library") {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let log = folder.path().join("log");
    let mut command = anyring(&["run", "--log"]);
    command.arg(&log).args(["--", "sh", "-c", "echo $LD_PRELOAD started"]).env("ANYRING_LIBRARY", "/nonexistent");
    let seen = output(&mut command);
    assert!(seen.status.success() && seen.stderr.is_empty(), "{seen:?}");
    assert_eq!(stdout(&seen), "started\n");
    let text = std::fs::read_to_string(&log).expect("a log");
    assert!(
        text.contains("started without the library (") && text.contains("what the kernel refuses stays so"),
        "{text}"
    );
}

#[test]
fn a_preloaded_program_gets_the_library_first_and_the_flags() {
    let show = "echo $LD_PRELOAD $ANYRING_BACKEND $ANYRING_RAW $ANYRING_STATS $ANYRING_LOG";
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path().canonicalize().expect("its path");
    let log = folder.join("l").display().to_string();
    let mut command = anyring(&["run", "--backend", "user", "--no-raw", "--stats", "s", "--log", &log, "--"]);
    let other = "/nonexistent-other.so";
    library();
    let output = output(command.args(["sh", "-c", show]).env("LD_PRELOAD", other).current_dir(&folder));
    let stats = folder.join("s").display().to_string();
    assert_eq!(stdout(&output), format!("{}:{other} user 0 {stats} {log}\n", library().display()));
}

#[test]
fn a_nested_run_does_not_preload_twice() {
    let mut command = run("user", &[ANYRING, "run", "--backend", "user", "--", "sh", "-c", "echo $LD_PRELOAD"]);
    assert_eq!(stdout(&output(&mut command)), format!("{}\n", library().display()));
}

/// A ring without IORING_REGISTER_PROBE is of no use to programs, though it completes NOPs.
#[test]
fn auto_preloads_where_the_kernel_does_a_part_only() {
    if !kernel_works("a kernel that has a part of io_uring only") {
        return;
    }
    library();
    let register_is_refused =
        || answering(SeccompAction::Errno(libc::ENOSYS as u32), &[libc::SYS_io_uring_register]);
    let mut command = anyring(&["run", "--", "sh", "-c", "echo $LD_PRELOAD"]);
    let seen = output(below(register_is_refused(), &mut command));
    assert_eq!(stdout(&seen), format!("{}\n", library().display()), "{seen:?}");
    let refused = output(below(register_is_refused(), &mut anyring(&["run", "--backend", "kernel", "--", "true"])));
    let line = one_line_failure(&refused, 125);
    assert!(line.contains("io_uring_register answered ENOSYS"), "{line}");
    // The library decides likewise when it is preloaded without `run`.
    let mut preloaded = Command::new(conformance());
    preloaded.args(["--filter", "register::probe_reports_the_operations"]).env("LD_PRELOAD", library());
    let seen = output(below(register_is_refused(), preloaded.env_remove("ANYRING_BACKEND")));
    assert!(stdout(&seen).ends_with("1 passed, 0 failed, 0 skipped\n"), "{seen:?}");
}

#[test]
fn auto_preloads_where_the_kernel_refuses() {
    let output = output(&mut denied(&["run", "--", "sh", "-c", "echo $LD_PRELOAD; exit 7"]));
    assert_eq!(output.status.code(), Some(7));
    assert_eq!(stdout(&output), format!("{}\n", library().display()));
}

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
                let seen = output(below(answering(action.clone(), &OURS), command));
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
        let seen = output(below(answering(action.clone(), &[call]), &mut run));
        assert_eq!(
            (seen.status.code(), stdout(&seen).as_str()),
            (Some(0), "served\n"),
            "{call} {action:?}: {seen:?}"
        );
    }
}

/// If a filter kills a process that makes a ring, no program is started. If it kills only for traps, system call
/// instructions are left alone.
#[test]
fn nothing_is_started_to_be_killed() {
    library();
    let folder = tempfile::tempdir().expect("a folder");
    let Some(requests) = compiled("requests", folder.path()) else { return skipped("there is no C compiler") };
    let requests = requests.to_str().expect("UTF-8");
    let below_one = |call, more: &[&str]| {
        let words = [&["run", "--backend", "user"], more, &["--", requests]].concat();
        output(below(answering(SeccompAction::KillProcess, &[call]), &mut anyring(&words)))
    };
    for call in [libc::SYS_fcntl, libc::SYS_fstat, libc::SYS_getxattr, libc::SYS_wait4] {
        let why = one_line_failure(&below_one(call, &[]), 125);
        assert!(why.contains("anyring cannot serve io_uring: "), "{call}: {why}");
    }
    one_line_failure(&below_one(libc::SYS_rt_sigreturn, &["--guest"]), 125);
    let log = folder.path().join("log");
    let seen = below_one(libc::SYS_rt_sigreturn, &["--log", log.to_str().expect("UTF-8")]);
    assert_eq!(stdout(&seen), "served\n", "{seen:?}");
    let log = std::fs::read_to_string(log).expect("the log");
    assert!(log.contains("are left to the kernel (the process was killed by SIGSYS)"), "{log}");
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

#[test]
fn backend_kernel_says_why_it_cannot() {
    let why = one_line_failure(&output(&mut denied(&["run", "--backend", "kernel", "--", "true"])), 125);
    assert!(why.contains("io_uring_setup answered EPERM"), "{why}");
}

#[test]
fn backend_kernel_does_not_take_an_emulation_for_the_kernel() {
    let mut command =
        denied(&["run", "--backend", "user", "--", ANYRING, "run", "--backend", "kernel", "--", "true"]);
    one_line_failure(&output(&mut command), 125);
}

#[test]
fn a_missing_library_is_one_line() {
    let mut command = anyring(&["run", "--backend", "user", "--", "true"]);
    let why = one_line_failure(&output(command.env("ANYRING_LIBRARY", "/nonexistent/libanyring.so")), 125);
    assert!(why.contains("/nonexistent/libanyring.so"), "{why}");
    let directory = tempfile::Builder::new().prefix("with space").tempdir().expect("a directory");
    let path = directory.path().join("libanyring.so");
    std::fs::write(&path, "").expect("write");
    let mut command = anyring(&["run", "--backend", "user", "--", "true"]);
    let why = one_line_failure(&output(command.env("ANYRING_LIBRARY", &path)), 125);
    assert!(why.contains("space"), "{why}");
}

/// On a file system mounted noexec the library cannot be mapped; only the program's loader reports that.
#[test]
fn a_library_that_cannot_be_mapped_is_not_said_to_serve() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name).display().to_string();
    let mount = "mount -t tmpfs -o noexec none \"$1\" && cp \"$2\" \"$1/libanyring.so\" && shift 2 && exec \"$@\"";
    std::fs::create_dir(path("noexec")).expect("a folder");
    let below = |words: &[&str]| {
        let mut command = plainly(Command::new("unshare"));
        command.args(["--user", "--map-root-user", "--mount", "sh", "-c", mount, "sh", &path("noexec")]);
        output(command.arg(library()).args(words))
    };
    if !below(&["true"]).status.success() {
        return skipped("a file system that is mounted noexec: there is no leave to mount one");
    }
    let named = format!("ANYRING_LIBRARY={}", path("noexec/libanyring.so"));
    let run = [ANYRING, "run", "--backend", "user", "--", "true"];
    let line = one_line_failure(&below(&[&["env", &named][..], &run].concat()), 125);
    assert!(line.contains("cannot be preloaded"), "{line}");
}

#[test]
fn a_library_that_is_none_is_one_line() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = |name: &str| directory.path().join(name);
    std::fs::write(path("text"), "not a library").expect("write");
    let foreign = Elf { kind: 3, machine: 183, ..Elf::new(calling(0)) }.write(&path("foreign"));
    let cases = [
        (path("text"), "not a shared library"),
        (foreign, "for aarch64, not x86-64"),
        (directory.path().to_owned(), "it is a directory"),
    ];
    for (library, expected) in cases {
        for words in
            [&["run", "--backend", "user", "--", "true"][..], &["trace", "--backend", "user", "--", "true"]]
        {
            let why = one_line_failure(&output(anyring(words).env("ANYRING_LIBRARY", &library)), 125);
            assert!(why.contains(expected) && why.contains(&*library.to_string_lossy()), "{expected}: {why}");
        }
    }
}

/// The program's file cannot be read, so it may be one that cannot be served.
#[test]
fn a_program_that_may_only_be_executed_is_said_to_be_unknown() {
    library();
    let directory = tempfile::tempdir().expect("a directory");
    std::fs::set_permissions(directory.path(), std::fs::Permissions::from_mode(0o755)).expect("chmod");
    let program = install(&std::fs::read("/bin/true").expect("read"), &directory.path().join("program"));
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o711)).expect("chmod");
    let mut command = run("user", &[&program.to_string_lossy()]);
    if rustix::process::getuid().is_root() {
        let copies = [(ANYRING, "anyring"), (library().to_str().expect("UTF-8"), "libanyring.so")];
        let [anyring, library] =
            copies.map(|(file, name)| install(&std::fs::read(file).expect("read"), &directory.path().join(name)));
        let mut of_nobody = Command::new(anyring);
        of_nobody.args(["run", "--backend", "user", "--"]).arg(&program).uid(65534).gid(65534);
        of_nobody.env("ANYRING_LIBRARY", library).current_dir("/");
        command = of_nobody;
    } else {
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o111)).expect("chmod");
    }
    let output = output(&mut command);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "it is started all the same: {said}");
    assert!(said.contains("executed but not read") && said.lines().count() == 1, "{said}");
}

#[test]
fn a_program_that_cannot_be_started_is_one_line() {
    for backend in BACKENDS {
        one_line_failure(&output(&mut run(backend, &["/nonexistent/program"])), 127);
        one_line_failure(&output(&mut run(backend, &["no-such-program-in-path"])), 127);
        one_line_failure(&output(&mut run(backend, &["/etc/passwd"])), 126);
    }
}

/// The message that refuses `program` where the library has to be preloaded.
fn refusal(program: &Path) -> String {
    library();
    one_line_failure(&output(anyring(&["run", "--backend", "user", "--no-guest", "--"]).arg(program)), 126)
}

#[test]
fn programs_out_of_reach_are_refused() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("program");
    let native = || Elf::new(calling(0));
    let cases = [
        (native(), "statically linked,"),
        (Elf { kind: 3, ..native() }, "statically linked (static-pie)"),
        (Elf { class_64: false, machine: 3, ..native() }, "32-bit program (i386)"),
        (Elf { class_64: false, ..native() }, "32-bit program (x86-64)"),
        (Elf { machine: 183, ..native() }, "for aarch64, not x86-64"),
        (Elf { interpreter: Some("/lib/ld-musl-x86_64.so.1"), ..native() }, "musl"),
        (Elf { interpreter: Some("/nonexistent/ld.so"), ..native() }, "the loader, /nonexistent/ld.so, is missing"),
    ];
    for (elf, expected) in cases {
        let said = refusal(&elf.write(&file));
        assert!(said.contains(expected), "{expected}: {said}");
        assert!(said.contains(&*file.to_string_lossy()), "names the file: {said}");
    }
}

#[test]
fn damaged_files_are_refused() {
    let directory = tempfile::tempdir().expect("a directory");
    let sound = std::fs::read(Elf::new(calling(0)).write(&directory.path().join("sound"))).expect("read");
    for (name, bytes, status, expected) in [
        ("header", &sound[..40], 126, "damaged ELF file"),
        ("headers", &sound[..100], 126, "damaged ELF file"),
        (
            "lost",
            &b"#!/nonexistent/interpreter\n"[..],
            127,
            "its interpreter, /nonexistent/interpreter, is missing",
        ),
    ] {
        let file = install(bytes, &directory.path().join(name));
        let said = one_line_failure(&output(&mut run("user", &[&file.to_string_lossy()])), status);
        assert!(said.contains(expected) && said.contains(name), "{expected}: {said}");
    }
}

#[test]
fn real_musl_programs_are_refused() {
    if Command::new("musl-gcc").arg("--version").output().is_err() {
        skipped("real musl programs: there is no musl-gcc (Debian: musl-tools)");
        return;
    }
    let directory = tempfile::tempdir().expect("a directory");
    let source = directory.path().join("program.c");
    std::fs::write(&source, "int main(void) { return 0; }\n").expect("write");
    for (flag, expected) in
        [("-O0", "linked with musl (its loader is /lib/ld-musl"), ("-static", "statically linked,")]
    {
        let program = directory.path().join("program");
        let built = output(Command::new("musl-gcc").arg(flag).arg(&source).arg("-o").arg(&program));
        assert!(built.status.success(), "{built:?}");
        assert!(output(&mut Command::new(&program)).status.success(), "runs as it is");
        let said = refusal(&program);
        assert!(said.contains(expected), "{said}");
    }
}

/// `anyring run` with these flags, for a program that becomes a guest.
fn run_guest(flags: &[&str], words: &[&str]) -> Command {
    library();
    anyring(&[&["run", "--backend", "user", "--aio", "user"], flags, &["--"], words].concat())
}

#[test]
fn programs_that_no_library_reaches_run_as_guests() {
    let directory = tempfile::tempdir().expect("a directory");
    let status = |code: u8| Elf::new(vec![0xbf, code, 0, 0, 0, 0xb8, 231, 0, 0, 0, 0x0f, 0x05]); // exit_group(code)
    for (number, kind) in [(21, 2), (22, 3)] {
        let program = Elf { kind, ..status(number) }.write(&directory.path().join(format!("program{number}")));
        let output = output(&mut run_guest(&[], &[program.to_str().expect("UTF-8")]));
        assert_eq!(output.status.code(), Some(i32::from(number)), "{output:?}");
        assert!(output.stdout.is_empty() && output.stderr.is_empty(), "{output:?}");
    }
    let shell =
        |flags: &[&str]| output(&mut run_guest(flags, &["sh", "-c", "echo $0 $LD_PRELOAD; exit 8", "zero"]));
    assert_eq!((shell(&["--guest"]).status.code(), stdout(&shell(&["--guest"])).as_str()), (Some(8), "zero\n"));
    assert_eq!(stdout(&shell(&["--no-guest"])), format!("zero {}\n", library().display()));
}

#[test]
fn a_missing_guest_host_is_one_line() {
    let directory = tempfile::tempdir().expect("a directory");
    let program = Elf::new(calling(0)).write(&directory.path().join("program"));
    let words = [program.to_str().expect("UTF-8")];
    let mut command = run_guest(&[], &words);
    let why = one_line_failure(&output(command.env("ANYRING_GUEST", "/nonexistent/anyring")), 125);
    assert!(why.contains("/nonexistent/anyring"), "{why}");
    one_line_failure(&output(&mut run_guest(&["--guest", "--no-guest"], &words)), 2);
}

#[test]
fn a_script_is_judged_by_its_interpreter() {
    let directory = tempfile::tempdir().expect("a directory");
    let interpreter = Elf::new(calling(0)).write(&directory.path().join("interpreter"));
    let script = directory.path().join("script");
    install(format!("#! {} -x\n", interpreter.display()).as_bytes(), &script);
    let said = refusal(&script);
    assert!(said.contains("script") && said.contains("interpreter"), "{said}");
    install(b"#!/bin/sh\nexit 9\n", &script);
    assert_eq!(output(&mut run("user", &[&script.to_string_lossy()])).status.code(), Some(9));
}

#[test]
fn a_set_user_id_program_is_refused() {
    let directory = tempfile::tempdir().expect("a directory");
    let mut program = directory.path().join("program");
    install(&std::fs::read("/bin/true").expect("read"), &program);
    // Root gives the program to another user; anyone else has to find a program of root's.
    if rustix::process::getuid().is_root() {
        std::os::unix::fs::chown(&program, Some(65534), None).expect("chown");
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o4755)).expect("chmod");
    } else {
        program = "/bin/su".into();
        if !std::fs::metadata(&program).is_ok_and(|status| status.mode() & 0o4000 != 0 && status.uid() == 0) {
            skipped("not root, and /bin/su is not set-user-ID");
            return;
        }
    }
    let said = refusal(&program);
    assert!(said.contains("set-user-ID"), "{said}");
    // Below no_new_privs the bit does nothing, and LD_PRELOAD works.
    let said = output(&mut denied(&["run", "--", &program.to_string_lossy(), "--version"]));
    assert_ne!(said.status.code(), Some(126), "{said:?}");
}

#[test]
fn a_program_with_file_capabilities_is_refused() {
    if !rustix::process::getuid().is_root() {
        skipped("only root gives a file capabilities");
        return;
    }
    let directory = tempfile::tempdir().expect("a directory");
    std::fs::set_permissions(directory.path(), std::fs::Permissions::from_mode(0o755)).expect("chmod");
    let [program, anyring] = [("/bin/true", "program"), (ANYRING, "anyring")]
        .map(|(from, name)| install(&std::fs::read(from).expect("read"), &directory.path().join(name)));
    // linux/capability.h, struct vfs_cap_data of revision 2: effective, CAP_NET_RAW permitted.
    let capabilities: Vec<u8> =
        [0x0200_0001u32, 1 << 13, 0, 0, 0].iter().flat_map(|word| word.to_le_bytes()).collect();
    let flags = rustix::fs::XattrFlags::empty();
    if let Err(error) = rustix::fs::setxattr(&program, "security.capability", &capabilities, flags) {
        skipped(&format!("the temporary directory takes no file capabilities: {error}"));
        return;
    }
    let mut command = Command::new(anyring);
    command.args(["run", "--backend", "user", "--"]).arg(program).uid(65534).gid(65534);
    // Never loaded: the program is refused first.
    let said = one_line_failure(&output(command.env("ANYRING_LIBRARY", "/bin/true")), 126);
    assert!(said.contains("file capabilities"), "{said}");
}

#[test]
fn bad_usage_is_one_line_and_status_2() {
    for words in [&["run"][..], &["run", "--backend", "magic", "--", "true"], &["run", "--stats"]] {
        one_line_failure(&output(&mut anyring(words)), 2);
    }
}

#[test]
fn a_mistyped_word_gets_a_suggestion() {
    for (words, meant) in [
        (&["run", "--statz", "f", "--", "true"][..], "'--stats'"),
        (&["trase", "--", "true"], "'trace'"),
        (&["run", "--backend", "kernell", "--", "true"], "'kernel'"),
    ] {
        let why = one_line_failure(&output(&mut anyring(words)), 2);
        assert!(why.contains("similar") && why.contains(meant), "{why}");
    }
}

#[test]
fn no_color_is_minded() {
    let help = |no_color: &str| {
        let mut command = anyring(&["run", "--help"]);
        stdout(&output(command.env("CLICOLOR_FORCE", "1").env("NO_COLOR", no_color)))
    };
    assert!(help("").contains('\x1b'), "an empty variable is none, and colours were forced");
    assert!(!help("1").contains('\x1b'));
}

#[test]
fn a_variable_counts_where_there_is_no_flag() {
    library();
    let show = "echo $ANYRING_BACKEND $ANYRING_AIO $LD_PRELOAD";
    let with = |words: &[&str], backend: &str, aio: &str| {
        let mut command = anyring(&[&["run"], words, &["--", "sh", "-c", show]].concat());
        output(command.env("ANYRING_BACKEND", backend).env("ANYRING_AIO", aio))
    };
    let by_variables = stdout(&with(&[], "user", "user"));
    assert_eq!(by_variables, format!("user user {}\n", library().display()));
    assert_eq!(stdout(&with(&["--backend", "user", "--aio", "user"], "wrong", "wrong")), by_variables);
    let empty = with(&["--aio", "user"], "", "");
    assert!(stdout(&empty).contains(" user "), "an empty variable is none: {empty:?}");
    let why = one_line_failure(&with(&[], "kernel-only", "user"), 2);
    assert!(why.contains("ANYRING_BACKEND=kernel-only"), "{why}");
    let why = one_line_failure(&with(&["--backend", "user"], "", "on"), 2);
    assert!(why.contains("ANYRING_AIO=on"), "{why}");
    for words in [&["trace", "--", "true"][..], &["check", "--no-punts", "--", "true"], &["advise", "pipe"]] {
        let why = one_line_failure(&output(anyring(words).env("ANYRING_BACKEND", "wrong")), 2);
        assert!(why.contains("ANYRING_BACKEND=wrong"), "{words:?}: {why}");
    }
}

/// The library itself cannot report this: its message would appear as the program's.
#[test]
fn files_that_cannot_be_used_are_refused_before_the_program_starts() {
    library();
    let directory = tempfile::tempdir().expect("a directory");
    let path = |name: &str| directory.path().join(name).to_str().expect("UTF-8").to_owned();
    let (foreign, other, fifo) = (path("foreign"), path("other"), path("fifo"));
    std::fs::write(&foreign, "root:x:0:0:root").expect("write");
    std::fs::write(&other, b"anyring\x63").expect("write");
    assert!(Command::new("mkfifo").arg(&fifo).status().expect("start mkfifo").success());
    let with = |backend: &str, flag: &str, file: &str| {
        output(&mut anyring(&["run", "--backend", backend, flag, file, "--", "sh", "-c", "echo started"]))
    };
    let works = kernel_works("files of runs that the kernel serves");
    let backends = if works { &["user", "auto"][..] } else { &["user"] };
    let cases = [
        ("--stats", "/nonexistent/x", "no such file"),
        ("--stats", "/", "directory"),
        ("--stats", "/dev/full", "regular file"),
        ("--stats", &fifo, "regular file"),
        ("--stats", &foreign, "not a counters file"),
        ("--stats", &other, "layout version 99"),
        ("--log", "/nonexistent/x", "no such file"),
        ("--log", "/", "directory"),
        ("--log", "/dev/full", "no space"),
        ("--log", &fifo, "no such device"),
    ];
    for (flag, file, expected) in cases {
        for backend in backends {
            let why = one_line_failure(&with(backend, flag, file), 125);
            assert!(why.contains(flag) && why.contains(file) && why.contains(expected), "{expected}: {why}");
        }
    }
    for (variable, file) in [("ANYRING_STATS", &foreign), ("ANYRING_LOG", &path("none/log"))] {
        let mut command = anyring(&["run", "--", "sh", "-c", "echo started"]);
        let why = one_line_failure(&output(command.env(variable, file)), 125);
        assert!(why.contains(variable) && why.contains(file), "{why}");
    }
    for (flag, file) in [("--stats", path("counters")), ("--log", path("log")), ("--log", foreign)] {
        for backend in backends.iter().chain(backends) {
            assert_eq!(stdout(&with(backend, flag, &file)), "started\n", "{flag} {file}");
        }
    }
}

/// On a full file system of 64 KiB, and as a user who does not own the file.
#[test]
fn files_on_a_full_disk_or_of_others_are_refused_before_the_program_starts() {
    library();
    if !rustix::process::getuid().is_root() {
        return skipped("only root can mount a small file system, and become somebody else");
    }
    let directory = tempfile::tempdir().expect("a directory");
    std::fs::set_permissions(directory.path(), std::fs::Permissions::from_mode(0o755)).expect("chmod");
    let full = directory.path().join("full");
    std::fs::create_dir(&full).expect("mkdir");
    // In a mount namespace, whose end removes the file system.
    let script =
        "mount -t tmpfs -o size=64k none $0 || exit 99; head -c 65536 /dev/zero >$0/rest; shift; exec \"$@\"";
    for (flag, name) in [("--stats", "counters"), ("--log", "log")] {
        let file = full.join(name);
        let words = ["-m", "sh", "-c", script, &full.to_string_lossy(), "-"].map(str::to_owned);
        let mut command = Command::new("unshare");
        command.args(words).args([ANYRING, "run", flag]).arg(&file).args(["--", "echo", "started"]);
        let full = output(&mut command);
        if full.status.code() == Some(99) {
            return skipped("no small file system can be mounted here");
        }
        let why = one_line_failure(&full, 125);
        assert!(why.contains("no space left") && why.contains(flag), "{why}");

        let of_root = directory.path().join(name);
        std::fs::write(&of_root, "").expect("write");
        let copies = [(ANYRING, "anyring"), (library().to_str().expect("UTF-8"), "libanyring.so")];
        let [anyring, _] =
            copies.map(|(file, name)| install(&std::fs::read(file).expect("read"), &directory.path().join(name)));
        let mut of_nobody = Command::new(anyring);
        of_nobody.args(["run", flag]).arg(&of_root).args(["--", "echo", "started"]).uid(65534).gid(65534);
        let why = one_line_failure(&output(of_nobody.current_dir("/")), 125);
        assert!(why.contains("permission denied") && why.contains(flag), "{why}");
    }
}

#[test]
fn the_log_tells_in_one_line_who_serves_and_why() {
    library();
    let directory = tempfile::tempdir().expect("a directory");
    let log_of = |outer: &[&str], words: &[&str]| {
        let log = directory.path().join("log");
        let _ = std::fs::remove_file(&log);
        let mut command = anyring(&[outer, &["run"], words, &["--log"]].concat());
        let output = output(command.arg(&log).args(["--", "true"]));
        assert!(output.status.success(), "{output:?}");
        let text = std::fs::read_to_string(&log).expect("a log");
        assert!(text.starts_with("anyring[") && text.lines().count() == 1, "{text}");
        text
    };
    let denied = log_of(&["deny", "--", ANYRING], &[]);
    let why = "true: anyring serves io_uring (the kernel's does not work: io_uring_setup answered EPERM); ";
    assert!(denied.contains(why) && denied.contains("libanyring.so"), "{denied}");
    let asked = log_of(&[], &["--backend", "user", "--aio", "user"]);
    assert!(asked.contains("anyring serves io_uring (asked for); anyring serves Linux AIO (asked for)"), "{asked}");
    if kernel_works("who serves, of a run that the kernel serves") {
        let plain = log_of(&[], &[]);
        assert!(
            plain.contains("the kernel serves io_uring (its own works here), anyring what that refuses; "),
            "{plain}"
        );
        assert!(plain.contains("; with "), "{plain}");
        let kernels = log_of(&[], &["--backend", "kernel", "--aio", "kernel"]);
        assert!(kernels.ends_with("; started without the library\n"), "{kernels}");
    }
}

#[test]
fn nobody_is_said_to_serve_what_cannot_be_started() {
    library();
    let folder = tempfile::tempdir().expect("a folder");
    let (log, stats, script) =
        (folder.path().join("log"), folder.path().join("stats"), folder.path().join("script"));
    common::install(b"#!/nonexistent/interpreter\n", &script);
    let cannot =
        [("/no/such/program", 127), ("no-such-program", 127), ("/", 126), (script.to_str().expect("UTF-8"), 127)];
    for backend in ["auto", "user", "kernel"] {
        for (program, status) in cannot {
            let mut command = anyring(&["run", "--backend", backend, "--log"]);
            command.arg(&log).arg("--stats").arg(&stats).args(["--", program]);
            let run = output(&mut command);
            let is_refused = run.status.code() == Some(125) && backend == "kernel";
            assert!(run.status.code() == Some(status) || is_refused, "{run:?}");
            assert!(!log.exists() && !stats.exists(), "{backend} {program}");
        }
    }
}

/// Programs of x86-64 on another processor: no io_uring calls, no seccomp(2), no child without an exit signal.
#[test]
fn programs_below_an_emulator_are_served_or_refused_in_one_line() {
    let emulator = ["qemu-x86_64-static", "qemu-x86_64"]
        .into_iter()
        .find(|name| Command::new(name).arg("--version").output().is_ok_and(|output| output.status.success()));
    let Some(emulator) = emulator else { return skipped("programs below qemu-user: it is not installed") };
    library();
    let folder = tempfile::tempdir().expect("a folder");
    let Some(rings) = compiled("rings", folder.path()) else { return skipped("there is no C compiler") };
    let below = |words: &[&str]| output(plainly(Command::new(emulator)).args(words));
    let preload = format!("LD_PRELOAD={}", library().display());
    let seen = below(&["-E", &preload, rings.to_str().expect("UTF-8"), "2"]);
    assert_eq!(stdout(&seen), "2 rings, 0 of the kernel\n", "{seen:?}");
    let report = below(&[ANYRING, "doctor", "--json"]);
    let report: serde_json::Value = serde_json::from_slice(&report.stdout).expect("JSON");
    assert_eq!(report["io_uring"]["cause"], "user-emulation", "{report}");
    // The emulator does not apply to programs that it executes, so run's program is of this processor: that it starts
    // is enough.
    let seen = below(&[ANYRING, "run", "--", "true"]);
    assert!(seen.status.success(), "{seen:?}");
    // The command by which `run` starts the host of a guest.
    let rings = rings.to_str().expect("UTF-8");
    one_line_failure(&below(&[ANYRING, "--program=ra", rings, rings, rings]), 125);
}
