//! Programs, libraries and files that `anyring run` refuses, in one line.
#![cfg(target_arch = "x86_64")]

mod common;

use common::{
    anyring, calling, denied, install, kernel_works, library, one_line_failure, output, plainly, run, skipped,
    stdout, Elf, ANYRING, BACKENDS,
};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

#[test]
fn backend_kernel_says_why_it_cannot() {
    let why = one_line_failure(&output(&mut denied(&["run", "--backend", "kernel", "--", "true"])), 125);
    assert!(why.contains("io_uring_setup answered EPERM"), "{why}");
}

#[test]
fn backend_kernel_does_not_mistake_an_emulation_for_the_kernel() {
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

/// The library cannot be mapped from a file system mounted noexec. Only the program's loader reports that.
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
    let printed = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "it is started all the same: {printed}");
    assert!(printed.contains("executed but not read") && printed.lines().count() == 1, "{printed}");
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
        (
            Elf { interpreter: Some("/nonexistent/ld.so"), ..native() },
            "whose loader, /nonexistent/ld.so, is missing",
        ),
    ];
    for (elf, expected) in cases {
        let printed = refusal(&elf.write(&file));
        assert!(printed.contains(expected), "{expected}: {printed}");
        assert!(printed.contains(&*file.to_string_lossy()), "names the file: {printed}");
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
        let printed = one_line_failure(&output(&mut run("user", &[&file.to_string_lossy()])), status);
        assert!(printed.contains(expected) && printed.contains(name), "{expected}: {printed}");
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
        let printed = refusal(&program);
        assert!(printed.contains(expected), "{printed}");
    }
}

#[test]
fn a_script_is_judged_by_its_interpreter() {
    let directory = tempfile::tempdir().expect("a directory");
    let interpreter = Elf::new(calling(0)).write(&directory.path().join("interpreter"));
    let script = directory.path().join("script");
    install(format!("#! {} -x\n", interpreter.display()).as_bytes(), &script);
    let printed = refusal(&script);
    assert!(printed.contains("script") && printed.contains("interpreter"), "{printed}");
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
    let printed = refusal(&program);
    assert!(printed.contains("set-user-ID"), "{printed}");
    // Below no_new_privs the bit does nothing, and LD_PRELOAD works.
    let printed = output(&mut denied(&["run", "--", &program.to_string_lossy(), "--version"]));
    assert_ne!(printed.status.code(), Some(126), "{printed:?}");
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
    let printed = one_line_failure(&output(command.env("ANYRING_LIBRARY", "/bin/true")), 126);
    assert!(printed.contains("file capabilities"), "{printed}");
}

#[test]
fn bad_usage_is_one_line_and_status_2() {
    for words in [&["run"][..], &["run", "--backend", "magic", "--", "true"], &["run", "--stats"]] {
        one_line_failure(&output(&mut anyring(words)), 2);
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

/// Tried on a full file system of 64 KiB, and as a user who does not own the file.
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
