//! Helpers for tests that run C programs. They find this build's libraries, run the compiler, and report why a test is
//! skipped.
#![allow(dead_code)] // each test file uses its own part

pub mod running;

use anyring_xtask::artifacts::Artifacts;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// The environment variable that names a libanyring.so to test instead of this build's.
pub const LIBRARY: &str = "ANYRING_TEST_LIBRARY";
/// The environment variable that names another folder for the tests' files, so that several test runs can work at the
/// same time.
const SCRATCH: &str = "ANYRING_TEST_SCRATCH";

/// Finds the libraries of this build. They are in the test executable's folder. `cargo test` does not update the
/// copies in the folder above it.
pub fn built() -> Artifacts {
    let test = std::env::current_exe().expect("the test has a path");
    let built = test.parent().map(Artifacts::in_directory).expect("target/PROFILE/deps/TEST");
    let built = built.expect("libanyring.so and libanyring.a");
    match std::env::var_os(LIBRARY) {
        Some(named) => Artifacts { shared: named.into(), ..built },
        None => built,
    }
}

/// Makes a directory of that name for a test's files.
pub fn scratch(name: &str) -> PathBuf {
    let all = std::env::var_os(SCRATCH).unwrap_or_else(|| env!("CARGO_TARGET_TMPDIR").into());
    let directory = Path::new(&all).join(name);
    std::fs::create_dir_all(&directory).expect("a scratch directory");
    directory
}

/// Prints why a test did nothing, past the capturing of test output.
pub fn skip(test: &str, reason: &str) {
    writeln!(std::io::stderr(), "skipped: {test}: {reason}").expect("write to stderr");
}

/// Returns the reason why C programs cannot be compiled and compared with the kernel here, if there is one.
pub fn no_reference() -> Option<&'static str> {
    let compiler = Command::new("cc").arg("--version").output();
    // SAFETY: io_uring_setup(2) with no parameters only answers an error.
    let answer = unsafe { libc::syscall(libc::SYS_io_uring_setup, 1, 0) };
    let error = std::io::Error::last_os_error().raw_os_error();
    if compiler.is_err() {
        Some("there is no C compiler")
    } else if answer != -1 || error != Some(libc::EFAULT) {
        Some("the kernel's io_uring is not usable here, and it is the reference")
    } else {
        None
    }
}

/// Returns the reason why C programs cannot use liburing here, if there is one.
pub fn no_liburing() -> Option<&'static str> {
    let installed = Path::new("/usr/include/liburing.h").exists();
    (!installed).then_some("liburing's header is not installed (Debian: liburing-dev)")
}

/// Compiles `tests/c/SOURCE.c` to `program`, without a warning.
pub fn compile(source: &str, program: &Path, arguments: &[&str]) {
    compile_with("cc", source, program, arguments);
}

/// Compiles as [`compile`] does, with another compiler. A C++ compiler compiles `tests/c/SOURCE.cc`.
pub fn compile_with(compiler: &str, source: &str, program: &Path, arguments: &[&str]) {
    let (extension, standard) = if compiler == "c++" { ("cc", "-std=gnu++17") } else { ("c", "-std=gnu17") };
    let text = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/c").join(source).with_extension(extension);
    let mut cc = Command::new(compiler);
    cc.args([standard, "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-pthread"]);
    let output = cc.arg(&text).arg("-o").arg(program).args(arguments).output().expect("run the compiler");
    assert!(output.status.success(), "{compiler} {text:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// Returns the reason why C++ programs cannot be compiled here, if there is one.
pub fn no_cxx() -> Option<&'static str> {
    let compiler = Command::new("c++").arg("--version").output();
    compiler.is_err().then_some("there is no C++ compiler")
}

/// Formats a program's exit status and output.
pub fn text(output: &Output) -> String {
    let (printed, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    format!("{}: {printed}{errors}", output.status)
}
