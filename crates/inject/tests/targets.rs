//! Targets other than x86-64 Linux with glibc. Tests the build for aarch64, and the build script's refusal of other
//! targets.

mod common;

use common::{scratch, skip, text};
use std::path::Path;
use std::process::Command;

fn manifest_directory() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Returns the build script's output for a target, given as cargo does.
fn build_script_says(architecture: &str, libc: &str) -> String {
    let folder = scratch("targets");
    let script = folder.join(format!("build-{architecture}-{libc}"));
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let source = manifest_directory().join("build.rs");
    let built = Command::new(rustc).args(["--edition", "2021", "-o"]).arg(&script).arg(source).output();
    let built = built.expect("run rustc");
    assert!(built.status.success(), "{}", text(&built));
    let mut run = Command::new(&script);
    run.env("CARGO_CFG_TARGET_OS", "linux").env("CARGO_CFG_TARGET_ARCH", architecture);
    run.env("CARGO_CFG_TARGET_ENV", libc).env("TARGET", format!("{architecture}-unknown-linux-{libc}"));
    let output = run.env("OUT_DIR", folder).output().expect("run the build script");
    assert!(output.status.success(), "{}", text(&output));
    String::from_utf8(output.stdout).expect("UTF-8")
}

#[test]
fn the_library_refuses_other_targets_in_one_line() {
    for (architecture, libc) in [("riscv64", "gnu"), ("x86_64", "musl")] {
        let printed = build_script_says(architecture, libc);
        let errors: Vec<_> = printed.lines().filter_map(|line| line.strip_prefix("cargo::error=")).collect();
        let [error] = errors[..] else { panic!("one line, not {errors:?}") };
        assert!(error.contains(&format!("not for {architecture}-unknown-linux-{libc}")), "{error}");
    }
    let printed = build_script_says("x86_64", "gnu");
    assert!(!printed.contains("cargo::error"), "{printed}");
}

#[test]
fn the_library_compiles_for_aarch64() {
    const LINKER: &str = "aarch64-linux-gnu-gcc";
    const TARGET: &str = "aarch64-unknown-linux-gnu";
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let library = Command::new(rustc).args(["--print", "target-libdir", "--target", TARGET]).output();
    let library = String::from_utf8(library.expect("run rustc").stdout).expect("UTF-8");
    if !Path::new(library.trim()).is_dir() {
        skip(
            "compiling for aarch64",
            "its standard library is not installed (rustup target add aarch64-unknown-linux-gnu)",
        );
        return;
    }
    if Command::new(LINKER).arg("--version").output().is_err() {
        skip("compiling for aarch64", "there is no aarch64-linux-gnu-gcc (Debian's gcc-aarch64-linux-gnu)");
        return;
    }
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.args(["check", "--quiet", "--locked", "--target", TARGET]);
    cargo.args(["-p", "anyring-inject"]).env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER", LINKER);
    let output = cargo.current_dir(manifest_directory()).output().expect("run cargo");
    assert!(output.status.success(), "{}", text(&output));
}
