//! A static Go program (`tests/go/main.go`), as a guest and directly on the kernel.

use crate::common::{guest, native, no_reference, scratch, skip, text};
use std::path::{Path, PathBuf};
use std::process::Command;

fn program() -> Option<PathBuf> {
    if Command::new("go").arg("version").output().is_err() {
        skip("go", "there is no Go toolchain");
        return None;
    }
    let folder = scratch("go");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/go/main.go");
    let mut command = Command::new("go");
    command.args(["build", "-o"]).arg(folder.join("program")).arg(&source);
    command
        .env("CGO_ENABLED", "0")
        .env("GO111MODULE", "off")
        .env("GOFLAGS", "")
        .env("GOCACHE", folder.join("cache"));
    let output = command.current_dir(&folder).output().expect("run go");
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    Some(folder.join("program"))
}

#[test]
fn a_static_go_program_runs_as_natively() {
    runs_as_natively(3);
}

#[test]
#[ignore = "soak: takes a minute"]
fn a_static_go_program_runs_as_natively_twenty_times() {
    runs_as_natively(20);
}

fn runs_as_natively(times: u32) {
    if let Some(why) = no_reference() {
        return skip("go", why);
    }
    let Some(program) = program() else { return };
    let expected = native(&program, &[]);
    assert_eq!(expected.status.code(), Some(3), "{}", text(&expected));
    for _ in 0..times {
        let output = guest(&program, &[]);
        assert_eq!(output, expected, "{}\ninstead of {}", text(&output), text(&expected));
    }
}
