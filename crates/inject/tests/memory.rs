//! Decision 19 in docs/decisions: if any allocation fails, the program goes on, and every accepted request has its CQE.
//! The test makes each allocation fail in turn, in the build of the library that has the feature `forced-panics`.
//! `engine.rs` tests programs that have used up all their memory.

mod common;

use anyring_xtask::artifacts;
use common::running::{Running, USUAL};
use common::{compile, no_liburing, no_reference, scratch, skip, text, LIBRARY};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

#[test]
fn memory_may_fail_anywhere() {
    const NAME: &str = "memory_may_fail_anywhere";
    if let Some(reason) = no_reference().or_else(no_liburing) {
        return skip(NAME, reason);
    }
    let named = std::env::var_os(LIBRARY).map(PathBuf::from);
    let library = named.unwrap_or_else(|| artifacts::build_for_tests().expect("build it"));
    let program = scratch("memory").join("failing");
    compile("failing", &program, &["-luring"]);
    let user = Path::new("user");
    let engine = [("LD_PRELOAD", library.as_path()), ("ANYRING_BACKEND", user), ("ANYRING_AIO", user)];
    // The program reports a hang itself: each child has its alarm.
    for (how, environment) in [("natively", &[][..]), ("on the engine", &engine)] {
        for (flags, in_a_row) in [("plain", "1"), ("plain", "1000000"), ("deferred", "1"), ("deferred", "1000000")]
        {
            let mut command = Command::new(&program);
            command.args([flags, in_a_row]).envs(environment.iter().copied()).current_dir(scratch("memory"));
            // The program makes each of its allocations fail in turn, so it takes long.
            let output =
                Running::start(command.stdin(Stdio::null())).output(10 * USUAL).expect("a program that ends");
            let whole = output.status.success() && output.stdout == b"done\n" && output.stderr.is_empty();
            assert!(whole, "{how}, {flags}, {in_a_row} in a row: {}", text(&output));
        }
    }
}
