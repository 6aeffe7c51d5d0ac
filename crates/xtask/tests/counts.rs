//! Checks how the gate counts tests: scripts/cargo-test.sh runs a stand-in for cargo, and scripts/summary.sh reads its log.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A stand-in for `cargo test` with one test. The test prints the closing line of one of anyring's runners, and fails
/// the first time.
const FAILS_ONCE: &str = r#"#!/bin/sh
case "$*" in *--exact*) echo 'test result: ok. 1 passed; 0 failed; 0 ignored'; exit ;; esac
cat <<'END'
running 2 tests
---- seeds_find_nothing stdout ----

thread 'seeds_find_nothing' panicked at tests/short.rs:18:5:
seed 7: a finding
291 passed, 1 failed, 0 skipped

stack backtrace:
   0: begin

failures:
    seeds_find_nothing

test result: FAILED. 1 passed; 1 failed; 0 ignored
END
exit 101
"#;

fn scripts() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts")
}

#[test]
fn the_output_of_a_failed_test_is_shown_and_not_counted() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("counts");
    fs::create_dir_all(folder.join("logs")).expect("a folder");
    let cargo = folder.join("cargo");
    fs::write(&cargo, FAILS_ONCE).expect("a script");
    fs::set_permissions(&cargo, fs::Permissions::from_mode(0o755)).expect("to be executed");
    let inherited = std::env::var("PATH").unwrap_or_default();
    let path = format!("{}:{inherited}", folder.display());

    let run = Command::new(scripts().join("cargo-test.sh")).env("PATH", path).output().expect("run the tests");
    let log = String::from_utf8_lossy(&run.stdout);
    assert!(run.status.success(), "{log}");
    let flaky = log.split_once("FLAKY  seeds_find_nothing").expect("it is named").1;
    assert!(flaky.contains("seed 7: a finding") && !flaky.contains("begin"), "{log}");

    fs::write(folder.join("logs/unit.log"), format!("{log}step: 0 1\n")).expect("a log");
    // Without .ci/flaky.txt beside it, to which this run has nothing to add.
    fs::copy(scripts().join("summary.sh"), folder.join("summary.sh")).expect("a copy");
    fs::write(folder.join("flaky.sh"), "#!/bin/sh\n").expect("a script");
    fs::set_permissions(folder.join("flaky.sh"), fs::Permissions::from_mode(0o755)).expect("to be executed");
    let sum =
        Command::new(folder.join("summary.sh")).arg(folder.join("logs")).arg("unit").output().expect("sum up");
    let table = String::from_utf8_lossy(&sum.stdout);
    assert!(sum.status.success() && table.ends_with("\n1 passed, 0 failed, 1 skipped\n"), "{table}");
    assert!(table.contains("seed 7: a finding"), "{table}");
}
