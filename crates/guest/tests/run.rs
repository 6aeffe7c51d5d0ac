//! `anyring-guest run`: one file by which a program is served where nothing else of ours is.

mod common;

use common::{program, run, scratch, text, Linked, ALL, HOST};
use std::fs;
use std::path::Path;
use std::process::{Command, Output};

/// In an empty root with a copy of the host and the program alone, as root there; `None` where user namespaces are refused.
fn in_empty_root(test: &str, program: &Path, words: &[&str]) -> Option<Output> {
    let root = scratch("run").join(test);
    fs::create_dir_all(root.join("proc")).expect("a folder");
    fs::copy(HOST, root.join("anyring")).expect("copy the host");
    fs::copy(program, root.join("program")).expect("copy the program");
    let mut command = Command::new("unshare");
    command.args(["--user", "--map-root-user", "--mount", "--root"]).arg(&root);
    let output = run(command.args(["/anyring", "run"]).args(words));
    if String::from_utf8_lossy(&output.stderr).starts_with("unshare: ") {
        common::skip(test, &text(&output));
        return None;
    }
    Some(output)
}

fn command(words: &[&str]) -> Output {
    run(Command::new(HOST).arg("run").args(words).env_remove("ANYRING_BACKEND").env_remove("ANYRING_AIO"))
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

#[test]
fn a_program_of_any_libc_is_found_in_path() {
    for linked in ALL {
        let Some(program) = program(linked) else { continue };
        let (folder, name) = (program.parent().expect("a folder"), program.file_name().expect("a name"));
        let mut host = Command::new(HOST);
        host.args(["run", "--backend=user", "--aio", "kernel"]).arg(name).arg("nop").env("PATH", folder);
        let output = run(&mut host);
        assert!(output.status.success(), "{linked:?}: {}", text(&output));
    }
}

#[test]
fn what_cannot_be_run_is_told_in_one_line() {
    for (words, status, said) in [
        (&["--", "/nonexistent/program"][..], 127, "no such file"),
        (&["--backend", "user", "--", "not-in-path"], 127, "no such file"),
        (&["--backend", "user", "/dev/null"], 126, "no regular file"),
        (&["--backend", "mine", "--", "true"], 2, "auto, kernel or user"),
        (&["--unknown", "x", "--", "true"], 2, "usage: "),
        (&["--stats"], 2, "usage: "),
        (&[], 2, "usage: "),
    ] {
        let output = command(words);
        let error = String::from_utf8_lossy(&output.stderr).to_lowercase();
        assert_eq!(output.status.code(), Some(status), "{words:?}: {}", text(&output));
        assert!(output.stdout.is_empty() && error.lines().count() == 1, "{words:?}: {error}");
        assert!(error.starts_with("anyring: ") && error.contains(said), "{words:?}: {error}");
    }
}
