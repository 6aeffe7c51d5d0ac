//! Helpers of the command's tests: starting it and building the library. Programs are made byte by byte, so their
//! behaviour and linkage depend on no compiler.
#![allow(dead_code)] // each test file uses its own part

use seccompiler::{BpfProgram, SeccompAction, SeccompFilter, TargetArch};
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

pub const ANYRING: &str = env!("CARGO_BIN_EXE_anyring");

pub const BACKENDS: [&str; 2] = ["auto", "user"];

/// The error numbers that `deny --errno` accepts.
pub const ERRNOS: [(&str, i32); 5] = [
    ("EPERM", libc::EPERM),
    ("ENOSYS", libc::ENOSYS),
    ("EOPNOTSUPP", libc::EOPNOTSUPP),
    ("ENOMEM", libc::ENOMEM),
    ("EINVAL", libc::EINVAL),
];

/// The command with these arguments, without environment variables that would change its behaviour.
pub fn anyring(args: &[&str]) -> Command {
    let mut command = plainly(Command::new(ANYRING));
    command.args(args);
    command
}

/// `anyring run --backend BACKEND --`, with the library in its place.
pub fn run(backend: &str, words: &[&str]) -> Command {
    library();
    anyring(&[&["run", "--backend", backend, "--"], words].concat())
}

/// `words` below `deny`.
pub fn denied(words: &[&str]) -> Command {
    library();
    anyring(&[&["deny", "--", ANYRING], words].concat())
}

/// Another command, prepared in the same way.
pub fn plainly(mut command: Command) -> Command {
    for variable in [
        "LD_PRELOAD",
        "ANYRING_LIBRARY",
        "ANYRING_GUEST",
        "ANYRING_BACKEND",
        "ANYRING_AIO",
        "ANYRING_RAW",
        "ANYRING_LOG",
        "ANYRING_STATS",
        "ANYRING_TRACE",
        "ANYRING_CHAOS",
    ] {
        command.env_remove(variable);
    }
    command
}

/// Runs the command to its end.
pub fn output(command: &mut Command) -> Output {
    command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"))
}

pub fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).expect("standard output is UTF-8")
}

/// Asserts that the command failed with this status and gave the reason in one line. Returns that line.
pub fn one_line_failure(output: &Output, status: i32) -> String {
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(status), "standard error: {text}");
    assert!(text.starts_with("anyring: ") && text.ends_with('\n'), "not a message of anyring's: {text:?}");
    assert_eq!(text.lines().count(), 1, "more than one line: {text:?}");
    assert!(output.stdout.is_empty());
    text
}

/// libanyring.so beside the command, built by the cargo that runs the tests.
pub fn library() -> &'static Path {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    LIBRARY.get_or_init(|| build_beside(&["--lib"], "libanyring.so"))
}

/// The worker of `anyring lab` beside the command, and the library that it needs.
pub fn lab_worker() {
    static WORKER: OnceLock<PathBuf> = OnceLock::new();
    library();
    WORKER.get_or_init(|| build_beside(&["--bin", "anyring-lab-worker"], "anyring-lab-worker"));
}

/// The conformance cases beside the command.
pub fn conformance() -> &'static Path {
    static CASES: OnceLock<PathBuf> = OnceLock::new();
    CASES.get_or_init(|| build_beside(&["--bin", "anyring-conformance"], "anyring-conformance"))
}

/// Builds with the features of the whole workspace, as `cargo test` usually does, so that its build is reused.
fn build_beside(what: &[&str], file: &str) -> PathBuf {
    let directory = Path::new(ANYRING).parent().expect("the command is in a directory");
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.args(["build", "--quiet", "--workspace", "--exclude", "anyring-e2e"]).args(what).arg("--target-dir");
    cargo.arg(directory.parent().expect("the profile's directory is in the target directory"));
    if directory.ends_with("release") {
        cargo.arg("--release");
    }
    let built = output(cargo.current_dir(env!("CARGO_MANIFEST_DIR")));
    assert!(built.status.success(), "{file}: {}", String::from_utf8_lossy(&built.stderr));
    directory.join(file)
}

/// The output of `doctor --json` below `outer` (words put before it).
pub fn doctor(outer: &[&str]) -> serde_json::Value {
    library();
    let words = [outer, &["doctor", "--json"]].concat();
    let output = output(&mut anyring(&words));
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).expect("doctor --json prints JSON");
    let runs = report["verdict"]["runs"].as_bool().expect("verdict.runs");
    assert_eq!(output.status.code(), Some(i32::from(!runs)), "the exit status agrees with the verdict");
    report
}

/// Says which test is skipped and why. Not by `println!`, which libtest hides for a test that passes.
pub fn skipped(what: &str) {
    let _ = writeln!(std::io::stderr(), "SKIPPED: {what}");
}

/// True if the kernel's io_uring works where the tests run; otherwise says what is left out.
pub fn kernel_works(left_out: &str) -> bool {
    let works = doctor(&[])["io_uring"]["works"] == true;
    if !works {
        skipped(&format!("{left_out}: the kernel's io_uring does not work here"));
    }
    works
}

/// Makes `path` an executable file of these bytes. Another process writes the file. If this process wrote it, a child
/// that another test starts could inherit the writable descriptor. Executing the file would then fail with ETXTBSY.
pub fn install(bytes: &[u8], path: &Path) -> PathBuf {
    let source = path.with_extension("bytes");
    std::fs::write(&source, bytes).expect("write");
    let status = Command::new("install").args(["-m", "755"]).arg(source).arg(path).status().expect("start install");
    assert!(status.success(), "install: {status}");
    path.to_owned()
}

/// A filter that kills a process that calls io_uring_setup.
pub fn killing() -> BpfProgram {
    filter_with(SeccompAction::KillProcess, &[libc::SYS_io_uring_setup])
}

/// A filter with this answer to these calls.
pub fn filter_with(answer: SeccompAction, calls: &[i64]) -> BpfProgram {
    let rules = calls.iter().map(|call| (*call, vec![])).collect();
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, answer, TargetArch::x86_64).expect("a filter");
    filter.try_into().expect("a BPF program")
}

/// Starts the command below `filter`.
pub fn below(filter: BpfProgram, command: &mut Command) -> &mut Command {
    let install = move || seccompiler::apply_filter(&filter).map_err(|_| std::io::ErrorKind::Other.into());
    // SAFETY: two system calls on a program made before the fork.
    unsafe { command.pre_exec(install) }
}

/// An x86-64 ELF executable with one loaded segment.
pub struct Elf {
    pub class_64: bool,
    pub machine: u16,
    pub kind: u16,
    pub interpreter: Option<&'static str>,
    pub code: Vec<u8>,
}

impl Elf {
    /// A statically linked x86-64 program.
    pub fn new(code: Vec<u8>) -> Self {
        Elf { class_64: true, machine: 62, kind: 2, interpreter: None, code }
    }

    /// Writes it as an executable file.
    pub fn write(&self, path: &Path) -> PathBuf {
        install(&if self.class_64 { self.bytes_64() } else { self.bytes_32() }, path)
    }

    fn bytes_64(&self) -> Vec<u8> {
        const BASE: u64 = 0x40_0000;
        let name = self.interpreter.map(|name| [name.as_bytes(), b"\0"].concat()).unwrap_or_default();
        let segments: u16 = if self.interpreter.is_some() { 2 } else { 1 };
        let name_at = 64 + 56 * u64::from(segments);
        let code_at = name_at + name.len() as u64;
        let end = code_at + self.code.len() as u64;
        let mut bytes = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0".to_vec();
        let header = [&self.kind.to_le_bytes()[..], &self.machine.to_le_bytes(), &1u32.to_le_bytes()].concat();
        bytes.extend(header);
        for word in [BASE + code_at, 64, 0] {
            bytes.extend(word.to_le_bytes());
        }
        bytes.extend(0u32.to_le_bytes());
        for half in [64u16, 56, segments, 0, 0, 0] {
            bytes.extend(half.to_le_bytes());
        }
        if self.interpreter.is_some() {
            bytes.extend(segment_64(3, 4, name_at, BASE + name_at, name.len() as u64, 1));
        }
        bytes.extend(segment_64(1, 5, 0, BASE, end, 0x1000));
        bytes.extend(name);
        bytes.extend(&self.code);
        bytes
    }

    fn bytes_32(&self) -> Vec<u8> {
        const BASE: u32 = 0x40_0000;
        let code_at = 52 + 32;
        let end = code_at + self.code.len() as u32;
        let mut bytes = b"\x7fELF\x01\x01\x01\0\0\0\0\0\0\0\0\0".to_vec();
        bytes.extend([&self.kind.to_le_bytes()[..], &self.machine.to_le_bytes()].concat());
        for word in [1u32, BASE + code_at, 52, 0, 0] {
            bytes.extend(word.to_le_bytes());
        }
        for half in [52u16, 32, 1, 0, 0, 0] {
            bytes.extend(half.to_le_bytes());
        }
        for word in [1u32, 0, BASE, BASE, end, end, 5, 0x1000] {
            bytes.extend(word.to_le_bytes());
        }
        bytes.extend(&self.code);
        bytes
    }
}

fn segment_64(kind: u32, flags: u32, offset: u64, address: u64, size: u64, align: u64) -> Vec<u8> {
    let mut bytes = [kind.to_le_bytes(), flags.to_le_bytes()].concat();
    for word in [offset, address, address, size, size, align] {
        bytes.extend(word.to_le_bytes());
    }
    bytes
}

/// Machine code: makes the x86-64 system call `number` with a closed descriptor as first argument, and zeros as the
/// others. It then exits with the errno of the call.
pub fn calling(number: u32) -> Vec<u8> {
    let mut code = vec![0xb8]; // mov eax, number
    code.extend(number.to_le_bytes());
    code.extend([0xbf, 0xfe, 0xff, 0xff, 0xff]); // mov edi, -2
    code.extend([0x31, 0xf6, 0x31, 0xd2, 0x4d, 0x31, 0xd2, 0x0f, 0x05]); // xor esi, edx, r10; syscall
    code.extend([0xf7, 0xd8, 0x89, 0xc7]); // neg eax; mov edi, eax
    code.extend([0xb8, 60, 0, 0, 0, 0x0f, 0x05]); // exit(edi)
    code
}

/// Machine code: makes the x86-64 system call `number` with these arguments, then exits with its errno, or with 0 if
/// it succeeded.
pub fn calling_with(number: u32, arguments: [u64; 6]) -> Vec<u8> {
    let mut code = vec![0xb8]; // mov eax, number
    code.extend(number.to_le_bytes());
    // mov rdi, rsi, rdx, r10, r8, r9
    let moves = [[0x48, 0xbf], [0x48, 0xbe], [0x48, 0xba], [0x49, 0xba], [0x49, 0xb8], [0x49, 0xb9]];
    for (register, argument) in moves.iter().zip(arguments) {
        code.extend(register);
        code.extend(argument.to_le_bytes());
    }
    code.extend([0x0f, 0x05, 0x31, 0xff]); // syscall; xor edi, edi
    code.extend([0x85, 0xc0, 0x79, 0x04, 0x89, 0xc7, 0xf7, 0xdf]); // if eax < 0: edi = -eax
    code.extend([0xb8, 60, 0, 0, 0, 0x0f, 0x05]); // exit(edi)
    code
}

/// Machine code of i386 that does the same as that of [`calling`], with i386's own call numbers and `int 0x80`.
pub fn calling_i386(number: u32) -> Vec<u8> {
    let mut code = vec![0xb8];
    code.extend(number.to_le_bytes());
    code.extend([0xbb, 0xfe, 0xff, 0xff, 0xff, 0x31, 0xc9, 0xcd, 0x80]); // mov ebx, -2; xor ecx, ecx; int 0x80
    code.extend([0xf7, 0xd8, 0x89, 0xc3, 0xb8, 1, 0, 0, 0, 0xcd, 0x80]); // exit(-eax)
    code
}

/// Machine code of i386: exits with 1 if the environment has a variable that begins with `LD_P`, otherwise with 0.
pub fn seeing_preload_i386() -> Vec<u8> {
    let mut code = vec![0x8b, 0x0c, 0x24, 0x8d, 0x54, 0x8c, 0x08]; // mov ecx, [esp]; lea edx, [esp + ecx * 4 + 8]
    code.extend([0x8b, 0x02, 0x85, 0xc0, 0x74, 0x12, 0x83, 0xc2, 0x04]); // mov eax, [edx]; test eax, eax; jz; add edx, 4
    code.extend([0x81, 0x38, b'L', b'D', b'_', b'P', 0x75, 0xef]); // cmp [eax], ...; jne
    code.extend([0xbb, 1, 0, 0, 0, 0xeb, 0x02, 0x31, 0xdb]); // mov ebx, 1; jmp; xor ebx, ebx
    code.extend([0xb8, 1, 0, 0, 0, 0xcd, 0x80]); // exit(ebx)
    code
}

/// A C program of `tests/c`, compiled into `folder`; `None` without a compiler.
pub fn compiled(source: &str, folder: &Path) -> Option<PathBuf> {
    let program = folder.join(source);
    let text = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c").join(source).with_extension("c");
    let mut cc = Command::new("cc");
    let built =
        cc.args(["-std=gnu17", "-O1", "-Wall", "-Wextra", "-Werror", "-o"]).arg(&program).arg(text).output();
    let built = built.ok()?;
    assert!(built.status.success(), "{built:?}");
    Some(program)
}

/// The programs of tests/c/chaos.c; `None`, after saying so, if they cannot be compiled.
pub fn chaos_program() -> Option<&'static str> {
    static PROGRAM: OnceLock<Option<tempfile::TempDir>> = OnceLock::new();
    let folder = PROGRAM.get_or_init(|| {
        let compiler = Command::new("cc").arg("--version").output();
        if compiler.is_err() || !Path::new("/usr/include/liburing.h").exists() {
            eprintln!("skipped: there is no C compiler, or no liburing.h (Debian: liburing-dev)");
            return None;
        }
        let folder = tempfile::tempdir().expect("a folder");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c/chaos.c");
        let mut cc = Command::new("cc");
        cc.args(["-std=gnu17", "-O1", "-g", "-Wall", "-Wextra", "-Werror"]).arg(source);
        let compiled = output(cc.arg("-o").arg(folder.path().join("chaos")).arg("-luring"));
        assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
        Some(folder)
    });
    let path = folder.as_ref()?.path().join("chaos");
    static PATH: OnceLock<String> = OnceLock::new();
    Some(PATH.get_or_init(|| path.to_str().expect("UTF-8").to_owned()))
}

/// `anyring chaos` with these options, for a program.
pub fn chaos(options: &[&str], words: &[&str]) -> Output {
    library();
    output(&mut anyring(&[&["chaos"], options, &["--"], words].concat()))
}

pub fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}
