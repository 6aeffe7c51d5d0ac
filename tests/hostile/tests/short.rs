//! A few hostile programs on this build's library. `make soak` runs thousands.

use anyring_xtask::artifacts::Artifacts;
use std::process::Command;

/// Runs programs that end by themselves and find nothing. Only a program's actions decide, never the time they take,
/// up to a limit that detects hangs.
#[test]
fn hostile_programs_find_nothing() {
    let test = std::env::current_exe().expect("the test has a path");
    let built = test.parent().map(Artifacts::in_directory).expect("target/PROFILE/deps/TEST");
    let library = built.expect("libanyring.so").shared;
    let mut command = Command::new(env!("CARGO_BIN_EXE_anyring-hostile"));
    command.args(["run", "--runs", "300", "--seconds", "25", "--limit", "120", "--library"]).arg(library);
    let output = command.output().expect("run the programs");
    let printed = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{printed}{errors}");
    assert!(!printed.starts_with("0 runs"), "none was run");
}
