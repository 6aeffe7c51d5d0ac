//! musl programs that a served program starts, and which therefore have libanyring.so in LD_PRELOAD. They must run as
//! they do without it.

mod common;

use common::running::output;
use common::{built, scratch, skip, text};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Compiles `tests/c/musl.c` with musl's compiler. If there is none, prints why the test is skipped.
fn program(name: &str) -> Option<PathBuf> {
    if Command::new("musl-gcc").arg("--version").output().is_err() {
        skip(name, "there is no musl-gcc (Debian: musl-tools)");
        return None;
    }
    let program = scratch("musl").join(name);
    common::compile_with("musl-gcc", "musl", &program, &[]);
    Some(program)
}

fn run(words: &[&Path], preload: Option<&Path>) -> Output {
    let mut command = Command::new(words[0]);
    command.args(&words[1..]).env_remove("LD_PRELOAD").env("ANYRING_BACKEND", "user");
    if let Some(library) = preload {
        command.env("LD_PRELOAD", library);
    }
    output(&mut command)
}

fn runs_as_without(program: &Path) {
    let library = built().shared;
    let [plain, preloaded] = [None, Some(&*library)].map(|preload| run(&[program], preload));
    assert!(plain.status.success() && preloaded.status.success(), "{} / {}", text(&plain), text(&preloaded));
    let expected = String::from_utf8_lossy(&plain.stdout).replace("preloaded: no", "preloaded: yes");
    assert_eq!(expected, String::from_utf8_lossy(&preloaded.stdout));
    assert_eq!(preloaded.stderr, b"", "{}", text(&preloaded));
}

#[test]
fn a_dynamically_linked_one_runs_with_the_library_preloaded() {
    if let Some(program) = program("dynamic") {
        runs_as_without(&program);
    }
}

#[test]
fn a_glibc_child_of_a_musl_child_has_the_library_again() {
    let Some(program) = program("between") else { return };
    let library = built().shared;
    // dash, which loads the library; then musl's program; then a shell that finds the library mapped.
    let (shell, option) = (Path::new("/bin/sh"), Path::new("-c"));
    let script = format!("{} /bin/sh -c 'grep -c libanyring.so /proc/$$/maps'", program.display());
    let output = run(&[shell, option, Path::new(&script)], Some(&library));
    let printed = String::from_utf8_lossy(&output.stdout);
    let mappings: u32 = printed.lines().last().and_then(|line| line.parse().ok()).unwrap_or_default();
    assert!(output.status.success() && mappings > 0, "{}", text(&output));
}
