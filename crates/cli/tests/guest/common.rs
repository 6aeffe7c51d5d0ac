//! Helpers of the guest tests: compiled programs, run directly on the kernel and as a guest.
#[path = "../../../inject/tests/common/running.rs"]
#[allow(dead_code)] // other tests use all of it
pub mod running;

use running::{Running, USUAL};
use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::{Mutex, PoisonError};

pub const HOST: &str = env!("CARGO_BIN_EXE_anyring");

/// Ways to link a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Linked {
    Static,
    StaticPie,
    Musl,
    Dynamic,
}

pub const ALL: [Linked; 4] = [Linked::Static, Linked::StaticPie, Linked::Musl, Linked::Dynamic];

/// A directory for a test's files.
pub fn scratch(name: &str) -> PathBuf {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("guest").join(name);
    std::fs::create_dir_all(&directory).expect("a scratch directory");
    directory
}

/// Copies an executable file. Another process writes the copy. If this process wrote it, a child that another test
/// starts could inherit the writable descriptor.
pub fn install(from: &Path, to: &Path) {
    let status = Command::new("install").args(["-m", "755"]).arg(from).arg(to).status().expect("start install");
    assert!(status.success(), "{from:?} {to:?}");
}

/// Says, past the capture of test output, why a test did nothing.
pub fn skip(test: &str, reason: &str) {
    writeln!(std::io::stderr(), "skipped: {test}: {reason}").expect("write to stderr");
}

/// The reason why nothing can be compared with the kernel where the tests run; `None` if it can.
pub fn no_reference() -> Option<&'static str> {
    // SAFETY: io_uring_setup(2) with no parameters only answers an error.
    let answer = unsafe { libc::syscall(libc::SYS_io_uring_setup, 1, 0) };
    let error = std::io::Error::last_os_error().raw_os_error();
    let works = answer == -1 && error == Some(libc::EFAULT);
    (!works).then_some("the kernel's io_uring is not usable here, and it is the reference")
}

/// `tests/c/guest.c`, linked in this way; `None`, after saying so once, if that is not possible.
pub fn program(linked: Linked) -> Option<PathBuf> {
    program_of("guest", linked)
}

/// `tests/c/NAME.c`, likewise.
pub fn program_of(name: &str, linked: Linked) -> Option<PathBuf> {
    static BUILT: Mutex<BTreeMap<(String, usize), Option<PathBuf>>> = Mutex::new(BTreeMap::new());
    let mut built = BUILT.lock().unwrap_or_else(PoisonError::into_inner);
    built.entry((name.to_owned(), linked as usize)).or_insert_with(|| build(name, linked)).clone()
}

fn build(name: &str, linked: Linked) -> Option<PathBuf> {
    let archive = ["/usr/lib/x86_64-linux-gnu/liburing.a", "/usr/lib64/liburing.a", "/usr/lib/liburing.a"];
    let Some(archive) = archive.into_iter().find(|path| Path::new(path).exists()) else {
        skip(&format!("{linked:?}"), "there is no liburing.a (Debian: liburing-dev)");
        return None;
    };
    let (compiler, flags): (_, &[&str]) = match linked {
        Linked::Static => ("cc", &["-static"]),
        Linked::StaticPie => ("cc", &["-static-pie"]),
        // The headers of the kernel and of liburing are the system's.
        Linked::Musl => {
            ("musl-gcc", &["-static", "-idirafter", "/usr/include", "-idirafter", "/usr/include/x86_64-linux-gnu"])
        }
        Linked::Dynamic => ("cc", &[]),
    };
    if Command::new(compiler).arg("--version").output().is_err() {
        skip(&format!("{linked:?}"), &format!("there is no {compiler}"));
        return None;
    }
    let program = scratch("programs").join(format!("{name}-{linked:?}"));
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/c/{name}.c"));
    let mut command = Command::new(compiler);
    command.args(["-std=gnu17", "-O1", "-g", "-pthread"]).args(flags).arg("-o").arg(&program);
    let output = command.arg(source).arg(archive).output().expect("run the compiler");
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    Some(program)
}

/// Runs `program` with `words` directly on the kernel.
pub fn native(program: &Path, words: &[&str]) -> Output {
    let mut command = Command::new(program);
    run(command.args(words))
}

/// Runs `program` with `words` as a guest whose io_uring the engine serves.
pub fn guest(program: &Path, words: &[&str]) -> Output {
    run(&mut guest_command(program, words))
}

/// The command of [`guest`].
pub fn guest_command(program: &Path, words: &[&str]) -> Command {
    let mut command = Command::new(HOST);
    command.arg("--program=ra").args([program, program, program]).args(words);
    command
}

/// Runs a command without input to its end.
pub fn run(command: &mut Command) -> Output {
    command.env_remove("LD_PRELOAD").env("ANYRING_TEST_MARK", "some value");
    let output = Running::start(command.stdin(Stdio::null())).output(USUAL);
    output.unwrap_or_else(|why| panic!("{command:?} {why}"))
}

/// The way a program ended, and its output.
pub fn text(output: &Output) -> String {
    let (printed, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    format!("{}: {printed}{errors}", output.status)
}
