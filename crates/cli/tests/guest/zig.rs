//! A static Zig program (`tests/zig/main.zig`), as a guest and directly on the kernel.

use crate::common::{guest, native, no_reference, scratch, skip, text};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The compiler: the system's, or the one that `scripts/setup.sh soak` has fetched.
fn compiler() -> Option<PathBuf> {
    let fetched = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.build/zig/ziglang/zig");
    // The language still changes: only the version that the program was written for works.
    let is_right = |zig: &PathBuf| {
        let version = Command::new(zig).arg("version").output();
        version.is_ok_and(|version| version.stdout.starts_with(b"0.13."))
    };
    [fetched, PathBuf::from("zig")].into_iter().find(is_right)
}

fn program() -> Option<PathBuf> {
    let Some(zig) = compiler() else {
        skip("zig", "there is no Zig 0.13 (`scripts/setup.sh soak` fetches it)");
        return None;
    };
    let (folder, program) = (scratch("zig"), scratch("zig").join("program"));
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/zig/main.zig");
    let mut command = Command::new(zig);
    command.args(["build-exe", "-O", "ReleaseSafe"]).arg(source);
    command.arg(format!("-femit-bin={}", program.display()));
    for cache in ["ZIG_GLOBAL_CACHE_DIR", "ZIG_LOCAL_CACHE_DIR"] {
        command.env(cache, folder.join("cache"));
    }
    let output = command.current_dir(&folder).output().expect("run zig");
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    Some(program)
}

#[test]
fn a_static_zig_program_runs_as_natively() {
    if let Some(why) = no_reference() {
        return skip("zig", why);
    }
    let Some(program) = program() else { return };
    let expected = native(&program, &[]);
    assert_eq!(expected.status.code(), Some(3), "{}", text(&expected));
    for _ in 0..3 {
        let output = guest(&program, &[]);
        assert_eq!(output, expected, "{}\ninstead of {}", text(&output), text(&expected));
    }
}
