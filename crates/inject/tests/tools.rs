//! Programs with LeakSanitizer in them, and programs under tracers and debuggers. The tools work with the engine as
//! they do with the kernel's io_uring. The program is `tests/c/tools/rings.c`.

mod common;

use common::running::{output, patience, Running, USUAL};
use common::{built, compile_with, no_liburing, no_reference, scratch, skip, text};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Instant;

/// The ways in which the program uses its ring.
const USES: [&str; 3] = ["none", "liburing", "instruction"];

/// Returns the reason why a test of `tool` cannot run here, if there is one.
fn obstacle(tool: &str) -> Option<String> {
    if let Some(reason) = no_reference().or_else(no_liburing) {
        return Some(reason.to_owned());
    }
    Command::new(tool).arg("--version").output().err().map(|error| format!("{tool} cannot be run: {error}"))
}

/// Builds the program with its own flags.
fn program(name: &str, compiler: &str, flags: &[&str]) -> PathBuf {
    let program = scratch("tools").join(name);
    let all = [flags, &["-luring"]].concat();
    compile_with(compiler, "tools/rings", &program, &all);
    program
}

fn natively(program: &Path) -> Command {
    let mut command = Command::new(program);
    // The sanitizer reports an error if a test is itself traced, or if ptrace(2) is refused, on the kernel's io_uring
    // as well.
    command.current_dir(scratch("tools")).stdin(Stdio::null()).env("ASAN_OPTIONS", "verify_asan_link_order=0");
    command
}

fn on_the_engine(program: &Path) -> Command {
    let mut command = natively(program);
    command.env("LD_PRELOAD", built().shared).env("ANYRING_BACKEND", "user");
    command
}

/// Runs the program under a tool, on the engine. The library is loaded into the tool as well.
fn under(tool: &[&str], program: &Path, arguments: [&str; 2]) -> Output {
    let mut command = on_the_engine(Path::new(tool[0]));
    output(command.args(&tool[1..]).arg(program).args(arguments))
}

/// A program with LeakSanitizer reports its leaks, and ends with the sanitizer's exit status. A program without leaks
/// ends with success.
fn leaks_are_found(test: &str, compiler: &str, flags: &[&str]) {
    if let Some(reason) = obstacle(compiler) {
        return skip(test, &reason);
    }
    let program = program(test, compiler, flags);
    for use_of_ring in USES {
        for (case, leaks) in [("leaks", true), ("asks", false), ("ends", false)] {
            let outputs = [natively(&program), on_the_engine(&program)]
                .map(|mut command| output(command.args([use_of_ring, case])));
            if text(&outputs[0]).contains("LeakSanitizer has encountered a fatal error") {
                return skip(test, "LeakSanitizer does not work here: is the test traced, or ptrace(2) refused?");
            }
            for (how, output) in ["natively", "on the engine"].iter().zip(&outputs) {
                let what = format!("{how}, {use_of_ring} {case}: {}", text(output));
                assert_eq!(output.status.code(), outputs[0].status.code(), "{what}");
                assert_eq!(output.status.success(), !leaks, "{what}");
                assert_eq!(output.stdout, b"done\n", "{what}");
                assert_eq!(text(output).contains("1234 byte(s) leaked in 1 allocation(s)"), leaks, "{what}");
                assert_eq!(output.stderr.is_empty(), !leaks, "{what}");
            }
        }
    }
}

macro_rules! sanitizers {
    ($($test:ident: $compiler:literal $($flag:literal)*;)*) => {$(
        #[test]
        fn $test() {
            leaks_are_found(stringify!($test), $compiler, &[$($flag),*]);
        }
    )*};
}

sanitizers! {
    leaks_are_found_by_gccs_address_sanitizer: "gcc" "-fsanitize=address";
    leaks_are_found_by_gccs_static_address_sanitizer: "gcc" "-fsanitize=address" "-static-libasan";
    leaks_are_found_by_gccs_leak_sanitizer: "gcc" "-fsanitize=leak";
    leaks_are_found_by_clangs_address_sanitizer: "clang" "-fsanitize=address";
    leaks_are_found_by_clangs_leak_sanitizer: "clang" "-fsanitize=leak";
}

#[test]
fn leaks_are_found_by_clangs_shared_address_sanitizer() {
    const NAME: &str = "leaks_are_found_by_clangs_shared_address_sanitizer";
    if let Some(reason) = obstacle("clang") {
        return skip(NAME, &reason);
    }
    let run_time = Command::new("clang").arg("-print-file-name=libclang_rt.asan-x86_64.so").output();
    let run_time = run_time.expect("run clang").stdout;
    let run_time = String::from_utf8_lossy(&run_time);
    let Some(folder) = Path::new(run_time.trim()).parent().filter(|folder| folder.is_absolute()) else {
        return skip(NAME, "clang's run-time libraries are not installed (Debian: libclang-rt-14-dev)");
    };
    let path = format!("-Wl,-rpath,{}", folder.display());
    leaks_are_found(NAME, "clang", &["-fsanitize=address", "-shared-libasan", &path]);
}

/// One thread writes data and submits, and another reads the data after the CQE. On the kernel's io_uring,
/// ThreadSanitizer reports this as a race, since it cannot observe how the kernel orders the two. On the engine it
/// learns the order, and still finds true races.
#[test]
fn thread_sanitizer_sees_that_completions_synchronise() {
    const NAME: &str = "thread_sanitizer_sees_that_completions_synchronise";
    if let Some(reason) = obstacle("gcc") {
        return skip(NAME, &reason);
    }
    let program = scratch("tools").join(NAME);
    if !Command::new("gcc").arg("-print-file-name=libtsan.so").output().is_ok_and(|it| it.stdout.starts_with(b"/"))
    {
        return skip(NAME, "gcc's ThreadSanitizer is not installed (Debian: libtsan2)");
    }
    compile_with("gcc", "tools/races", &program, &["-fsanitize=thread", "-luring"]);
    for way in ["liburing", "inline", "batch", "syscall", "instruction", "aio"] {
        for (case, races) in [("passes", false), ("races", true)] {
            let outputs = [natively(&program), on_the_engine(&program)]
                .map(|mut command| output(command.env("ANYRING_AIO", "user").args([way, case])));
            if text(&outputs[0]).contains("FATAL: ThreadSanitizer") {
                return skip(NAME, "ThreadSanitizer does not work here: it wants another layout of memory");
            }
            for (how, output, reported) in [("natively", &outputs[0], true), ("on the engine", &outputs[1], races)]
            {
                let what = format!("{how}, {way} {case}: {}", text(output));
                assert_eq!(output.stdout, b"done\n", "{what}");
                assert_eq!(text(output).contains("ThreadSanitizer: data race"), reported, "{what}");
                assert_eq!(output.status.success(), !reported, "{what}");
            }
        }
    }
}

/// Checks the reports that MemorySanitizer would get. The program defines the sanitizer's function itself, in place of
/// clang's run-time library.
#[test]
fn memory_sanitizer_learns_what_is_filled() {
    const NAME: &str = "memory_sanitizer_learns_what_is_filled";
    if let Some(reason) = obstacle("cc") {
        return skip(NAME, &reason);
    }
    let program = scratch("tools").join(NAME);
    compile_with("cc", "tools/filled", &program, &["-rdynamic", "-luring"]);
    let output = output(&mut on_the_engine(&program));
    assert!(output.status.success() && output.stdout == b"done\n", "{}", text(&output));
}

#[test]
fn strace_follows_a_program() {
    const NAME: &str = "strace_follows_a_program";
    if let Some(reason) = obstacle("strace") {
        return skip(NAME, &reason);
    }
    let program = program(NAME, "cc", &[]);
    for use_of_ring in USES {
        let output = under(&["strace", "-f", "-o", "strace.log"], &program, [use_of_ring, "ends"]);
        assert!(output.status.success() && output.stdout == b"done\n", "{use_of_ring}: {}", text(&output));
    }
}

/// valgrind lacks seccomp(2), so only calls through liburing or libc are served. valgrind reports no error in the
/// library's code.
#[test]
fn valgrind_runs_a_program() {
    const NAME: &str = "valgrind_runs_a_program";
    if let Some(reason) = obstacle("valgrind") {
        return skip(NAME, &reason);
    }
    let program = program(NAME, "cc", &[]);
    let memcheck: &[&str] = &["valgrind", "-q", "--error-exitcode=9"];
    let callgrind: &[&str] = &["valgrind", "-q", "--tool=callgrind", "--callgrind-out-file=callgrind.out"];
    for tool in [memcheck, callgrind] {
        for use_of_ring in ["none", "liburing"] {
            let output = under(tool, &program, [use_of_ring, "ends"]);
            assert!(output.status.success() && output.stdout == b"done\n", "{tool:?}: {}", text(&output));
        }
    }
}

/// Runs gdb with the program, on the engine, and with `commands`. Returns its output.
fn gdb(program: &Path, arguments: [&str; 2], commands: &[&str]) -> String {
    let library = format!("set environment LD_PRELOAD {}", built().shared.display());
    let mut command = Command::new("gdb");
    command.args(["-nx", "-batch", "-ex", &library, "-ex", "set environment ANYRING_BACKEND user"]);
    // A trapped instruction is a signal, at which a debugger need not stop.
    command.args(["-ex", "handle SIGSYS nostop noprint pass", "-ex", "set debuginfod enabled off"]);
    commands.iter().for_each(|each| _ = command.args(["-ex", each]));
    text(&output(command.arg("--args").arg(program).args(arguments)))
}

#[test]
fn gdb_stops_and_goes_on() {
    const NAME: &str = "gdb_stops_and_goes_on";
    if let Some(reason) = obstacle("gdb") {
        return skip(NAME, &reason);
    }
    let program = program(NAME, "cc", &[]);
    // Steps over a round, with its waits. A step over a trapped instruction leads into the handler, as with any signal.
    let steps = ["next"; 6];
    for (use_of_ring, function, steps) in
        [("liburing", "use_liburing", &steps[..]), ("instruction", "use_instructions", &[])]
    {
        let mut commands = vec!["break round_begins if round == 3", "run", "finish"];
        commands.extend(steps);
        commands.extend(["info symbol $pc", "delete", "catch syscall write", "continue", "delete", "detach"]);
        let printed = gdb(&program, [use_of_ring, "ends"], &commands);
        assert!(printed.contains(&format!("{function} + ")), "{use_of_ring}: {printed}");
        assert!(printed.contains("call to syscall write"), "{use_of_ring}: {printed}");
        // The program ended without gdb, which sometimes loses a process with threads at its end.
        assert!(printed.contains("done\n"), "{use_of_ring}: {printed}");
    }
}

/// A debugger attaches while the program sleeps in a wait, prints the place, and detaches. The wait continues.
#[test]
fn gdb_comes_and_goes() {
    const NAME: &str = "gdb_comes_and_goes";
    if let Some(reason) = obstacle("gdb") {
        return skip(NAME, &reason);
    }
    let program = program(NAME, "cc", &[]);
    for use_of_ring in ["liburing", "instruction"] {
        let mut program =
            Running::start(on_the_engine(&program).args([use_of_ring, "reads"]).stdin(Stdio::piped()));
        let process = program.id().to_string();
        let mut printed = String::new();
        // Try again until the program is in the wait.
        let begin = Instant::now();
        while !printed.contains("read_a_byte") && !program.has_ended() {
            assert!(begin.elapsed() < patience(USUAL), "{use_of_ring}: no wait is seen: {printed}");
            let mut gdb = Command::new("gdb");
            gdb.args(["-nx", "-batch", "-p", &process, "-ex", "backtrace", "-ex", "detach"]);
            printed = text(&output(&mut gdb));
            if printed.contains("ptrace: Operation not permitted") {
                return skip(NAME, "gdb may not attach to a program here");
            }
        }
        assert!(printed.contains("main ("), "{use_of_ring}: the program's frames behind ours: {printed}");
        program.stdin().expect("a pipe").write_all(b"x").expect("write to it");
        let output = program.output(USUAL).expect("a program that ends");
        assert!(output.status.success() && output.stdout == b"done\n", "{use_of_ring}: {}", text(&output));
    }
}
