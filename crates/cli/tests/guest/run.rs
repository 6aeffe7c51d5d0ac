//! `anyring run` without any other file of anyring: one file serves a program with any C library.

use crate::common::{install, program, run, scratch, skip, text, Linked, ALL, HOST};
use std::fs;
use std::path::Path;
use std::process::{Command, Output};

/// Runs the program as root in an empty root folder, with only a copy of the host and the program. `None`: no user
/// namespaces.
fn in_empty_root(test: &str, program: &Path, words: &[&str]) -> Option<Output> {
    let root = scratch("run").join(test);
    fs::create_dir_all(root.join("proc")).expect("a folder");
    install(Path::new(HOST), &root.join("anyring"));
    install(program, &root.join("program"));
    let mut command = Command::new("unshare");
    command.args(["--user", "--map-root-user", "--mount", "--root"]).arg(&root);
    let output = run(command.args(["/anyring", "run"]).args(words));
    if String::from_utf8_lossy(&output.stderr).starts_with("unshare: ") {
        skip(test, &text(&output));
        return None;
    }
    Some(output)
}

#[test]
fn static_programs_run_in_an_empty_root() {
    for linked in [Linked::Static, Linked::StaticPie] {
        let Some(program) = program(linked) else { continue };
        let test = format!("{linked:?}");
        let words = ["--backend", "user", "--stats=/statistics", "--", "/program", "nop"];
        let Some(output) = in_empty_root(&test, &program, &words) else { return };
        assert!(output.status.success(), "{linked:?}: {}", text(&output));
        let statistics = fs::metadata(scratch("run").join(test).join("statistics")).expect("statistics");
        assert!(statistics.len() > 0);
    }
}

/// A server that is started by root counts, although it cannot open the file by the time of its first ring.
#[test]
fn a_guest_that_has_given_up_root_counts() {
    const TEST: &str = "a_guest_that_has_given_up_root_counts";
    // SAFETY: takes nothing.
    if unsafe { libc::geteuid() } != 0 {
        return skip(TEST, "only root can become another user");
    }
    let Some(program) = program(Linked::Static) else { return };
    let file = scratch("run").join("counters-of-another-user");
    let _ = fs::remove_file(&file); // of a run that failed
    let mut command = Command::new(HOST);
    let output = run(command
        .args(["run", "--backend", "user", "--stats"])
        .arg(&file)
        .arg("--")
        .arg(program)
        .args(["user", "65534"]));
    assert!(output.status.success(), "{}", text(&output));
    let printed = run(Command::new(HOST).args(["stats", "--json"]).arg(&file));
    fs::remove_file(&file).expect("remove it");
    assert!(String::from_utf8_lossy(&printed.stdout).contains("\"rings\": 1,"), "{}", text(&printed));
}

#[test]
fn a_program_of_any_libc_is_a_guest_without_the_library() {
    let alone = scratch("run").join("alone");
    fs::create_dir_all(&alone).expect("a folder");
    install(Path::new(HOST), &alone.join("anyring"));
    for linked in ALL {
        let Some(program) = program(linked) else { continue };
        let (folder, name) = (program.parent().expect("a folder"), program.file_name().expect("a name"));
        let log = alone.join(format!("{linked:?}.log"));
        let _ = fs::remove_file(&log);
        let mut command = Command::new(alone.join("anyring"));
        command
            .args(["run", "--backend=user", "--aio", "kernel", "--log"])
            .arg(&log)
            .arg("--")
            .arg(name)
            .arg("nop");
        let output = run(command.env("PATH", folder).env_remove("ANYRING_LIBRARY"));
        assert!(output.status.success(), "{linked:?}: {}", text(&output));
        let printed = fs::read_to_string(&log).expect("a log");
        assert!(printed.contains("as a guest"), "{linked:?}: {printed}");
        let mut trace = Command::new(alone.join("anyring"));
        trace.args(["trace", "--backend", "user", "--"]).arg(&program).arg("nop").env_remove("ANYRING_LIBRARY");
        let output = run(&mut trace);
        assert!(output.status.success() && text(&output).contains("NOP"), "{linked:?}: {}", text(&output));
    }
}

/// `anyring` in a guest is a guest itself, until it runs a program as one.
#[test]
fn the_command_runs_as_a_guest() {
    for linked in ALL {
        let Some(program) = program(linked) else { continue };
        let program = program.to_str().expect("UTF-8");
        let words =
            [HOST, "run", "--guest", "--backend", "user", "--", HOST, "run", "--guest", "--", program, "nop"];
        let output = run(Command::new(words[0]).args(&words[1..]));
        assert!(output.status.success(), "{linked:?}: {}", text(&output));
    }
    let version = run(Command::new(HOST).args(["--program=ra", HOST, HOST, "anyring", "--version"]));
    assert_eq!(version, run(Command::new(HOST).arg("--version")));
}
