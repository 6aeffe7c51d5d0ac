//! `anyring run`: what the program sees, and who serves it.
#![cfg(target_arch = "x86_64")]

mod common;

use anyring_abi::interface::{Name, OPCODES, SETUP_FLAGS};
use anyring_abi::Opcode;
use common::{
    anyring, below, calling, compiled, conformance, denied, filter_with, kernel_works, library, one_line_failure,
    output, plainly, run, skipped, stdout, Elf, ANYRING, BACKENDS,
};
use seccompiler::SeccompAction;
use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};

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
    // 3 ms, as installed; the development profile takes twice that, and the machine may have only two cores.
    let most = if cfg!(debug_assertions) { 20.0 } else { 5.0 };
    for below in [&[][..], &[ANYRING, "deny", "--"]] {
        let [plain, run] =
            [&["true"][..], &[ANYRING, "run", "--", "true"]].map(|words| median_ms(&[below, words].concat()));
        assert!(run - plain < most, "{below:?}: {run} ms by `anyring run`, {plain} ms plainly");
    }
}

/// The kernel answers four setups, two of them of `run` itself, and has no memory for a fifth ring.
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
            .args(["4", "12", ANYRING, "run", "--backend", backend, "--log"])
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
        text.contains("the kernel serves io_uring (its own works here), and anyring what the kernel refuses; "),
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
fn the_kernel_serves_alone_without_the_library() {
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
        text.contains("started without the library (") && text.contains("what the kernel refuses stays refused"),
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

/// A ring without IORING_REGISTER_PROBE is of no use to programs, although it completes NOPs.
#[test]
fn auto_preloads_where_the_kernel_does_a_part_only() {
    if !kernel_works("a kernel that has a part of io_uring only") {
        return;
    }
    library();
    let register_is_refused =
        || filter_with(SeccompAction::Errno(libc::ENOSYS as u32), &[libc::SYS_io_uring_register]);
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
            plain
                .contains("the kernel serves io_uring (its own works here), and anyring what the kernel refuses; "),
            "{plain}"
        );
        assert!(plain.contains("; with "), "{plain}");
        let kernels = log_of(&[], &["--backend", "kernel", "--aio", "kernel"]);
        assert!(kernels.ends_with("; started without the library\n"), "{kernels}");
    }
}

/// The answer of the kernel to IORING_REGISTER_QUERY: the number of opcodes, and the setup flags. `None` before Linux
/// 6.18.
fn known_to_kernel() -> Option<(u64, u64)> {
    let mut answer = [0_u64; 6];
    // struct io_uring_query_hdr: next, data, the question's number and size, a result, and reserved words.
    let mut header = [0, answer.as_mut_ptr() as u64, (size_of_val(&answer) as u64) << 32, 0, 0];
    // SAFETY: the header and the answer outlive the call.
    let done = unsafe {
        libc::syscall(libc::SYS_io_uring_register, -1, anyring_abi::IORING_REGISTER_QUERY, header.as_mut_ptr(), 0)
    };
    (done == 0).then_some((answer[0] & 0xffff_ffff, answer[2]))
}

/// The log's line of `anyring run --needs NEEDS -- true`.
fn decision(needs: &str) -> String {
    let folder = tempfile::tempdir().expect("a folder");
    let log = folder.path().join("log");
    let seen = output(anyring(&["run", "--needs", needs, "--log"]).arg(&log).args(["--", "true"]));
    assert!(seen.status.success(), "{needs}: {seen:?}");
    std::fs::read_to_string(log).expect("a log")
}

#[test]
fn anyring_serves_if_the_kernel_lacks_what_is_needed() {
    if !kernel_works("a kernel that lacks what a program needs") {
        return;
    }
    library();
    let Some((opcodes, flags)) = known_to_kernel() else {
        return skipped("which names the kernel has: it has no IORING_REGISTER_QUERY");
    };
    let is_lacked = |name: &Name| match OPCODES.contains(name) {
        true => name.value >= opcodes,
        false => name.value & flags == 0,
    };
    let short = |name: &Name| name.name.trim_start_matches("IORING_SETUP_").to_owned();
    let (lacked, had): (Vec<_>, Vec<_>) = OPCODES.iter().chain(SETUP_FLAGS).partition(|name| is_lacked(name));
    let had = had.into_iter().map(short).collect::<Vec<_>>().join(",");
    for words in [&had, &had.to_lowercase()] {
        let line = decision(words);
        assert!(line.contains("the kernel serves io_uring (its own works here)"), "{line}");
    }
    for name in &lacked {
        let (words, why) = (format!("nop,{}", name.name), format!("the kernel lacks {}", short(name)));
        let line = decision(&words);
        assert!(line.contains(&format!("anyring serves io_uring ({why}); ")), "{line}");
        let mut command = anyring(&["run", "--backend", "kernel", "--needs", &words, "--", "true"]);
        assert_eq!(one_line_failure(&output(&mut command), 125), format!("anyring: --needs: {why}\n"));
    }
    // More than one.
    if lacked.len() > 1 {
        let names = lacked.iter().map(|name| short(name)).collect::<Vec<_>>();
        let line = decision(&names.join(","));
        assert!(line.contains(&format!("(the kernel lacks {}); ", names.join(", "))), "{line}");
    }
}

/// A program whose own instructions make a ring with requests that the kernel lacks. Beside the kernel's rings they
/// would not be trapped.
#[test]
fn a_program_gets_the_opcode_that_it_was_seen_to_need() {
    if !kernel_works("a kernel that lacks an opcode") {
        return;
    }
    if known_to_kernel().is_some_and(|(opcodes, _)| opcodes > Opcode::Nop128 as u64) {
        return skipped("a kernel that lacks NOP128: this one has it");
    }
    let folder = tempfile::tempdir().expect("a folder");
    let [seen, needless] = ["seen", "needless"].map(|name| folder.path().join(name).display().to_string());
    let run = |words: &[&str], case: &str| {
        let mut command = anyring(&[&["run"], words, &["--"]].concat());
        output(command.arg(conformance()).args(["--quiet", "--door", "raw", "--exact", "--filter", case]))
    };
    let (needing, other) = ("sqe_mixed::a_large_one_counts_twice", "nop::completes_with_zero");
    assert!(!run(&[], needing).status.success());
    for (file, case) in [(&seen, needing), (&needless, other)] {
        assert!(run(&["--backend", "user", "--stats", file], case).status.success(), "{case}");
    }
    let served = run(&["--needs", &seen], needing);
    assert!(stdout(&served).contains("1 passed, 0 failed"), "{served:?}");
    assert!(!run(&["--needs", &needless], needing).status.success());
    assert!(decision(&format!("{needless},{seen}")).contains("anyring serves io_uring (the kernel lacks NOP128); "));
}

#[test]
fn a_name_that_nothing_has_is_one_line() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("file").display().to_string();
    std::fs::write(&file, "not counters").expect("write");
    for (needs, status, why) in [
        ("nop,nop129", 2, "--needs: `nop129` is no opcode, no setup flag and no file; the names are NOP, READV, "),
        ("", 2, "NOP128, URING_CMD128, IOPOLL, "),
        (&file, 125, "--needs "),
    ] {
        let line = one_line_failure(&output(&mut anyring(&["run", "--needs", needs, "--", "true"])), status);
        assert!(line.contains(why), "{line}");
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

/// Programs of x86-64 in qemu's user emulation, which lacks io_uring's calls, seccomp(2), and children without an exit
/// signal.
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
