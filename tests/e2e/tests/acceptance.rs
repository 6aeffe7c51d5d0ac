//! Programs that LD_PRELOAD does not reach, or not with this machine's libraries. They are static ones, musl's, Go's
//! and Zig's, and Debian 11's with that release's glibc. Each runs where io_uring is refused with EPERM, with ENOSYS,
//! and by Docker's profile, and verifies its own data. A program that cannot be built or fetched here is skipped, and
//! the reason is printed.

use anyring_e2e::stage::Program;
use anyring_e2e::{cases, programs, Environment, Outcome, Refusal, Stage};
use std::path::PathBuf;
use std::process::ExitCode;

fn main() -> ExitCode {
    let environments = [Refusal::Eperm, Refusal::Enosys, Refusal::Docker].map(Environment::of_caller);
    let cases = cases![
        liburing_static,
        liburing_static_pie,
        liburing_musl,
        liburing_musl_dynamic,
        strangers_static,
        strangers_musl,
        rust_io_uring_musl,
        rust_io_uring_direct_musl,
        rust_monoio_musl,
        rust_compio_musl,
        rust_tokio_uring_static,
        zig,
        go,
        fio_static,
        fio_static_threads,
        debian11_fio,
        debian11_qemu,
        a_static_shell_as_parent,
    ];
    anyring_e2e::cases::run(&environments, &cases)
}

type Minimum = &'static [(&'static str, u64)];

/// Returns the program if it could be built; otherwise prints the reason.
fn had(name: &str, program: Result<PathBuf, String>) -> Option<PathBuf> {
    program.inspect_err(|reason| println!("skipped: {name}: {reason}")).ok()
}

/// Runs a client. It must print `says`, and the engine must complete at least `minimum` for it.
fn accepts(environment: Environment, client: &str, arguments: &[&str], says: &str, minimum: Minimum) {
    let Some(path) = had(client, programs::client_or_reason(client)) else { return };
    let program = Program::new(path).args(arguments);
    let outcome = Stage::new(environment).serve(&program, |_| minimum.to_vec());
    assert!(outcome.stdout.contains(says), "{outcome}");
}

fn liburing(environment: Environment, way: &str) {
    let minimum =
        &[("WRITE", 128), ("READ", 257), ("FSYNC", 1), ("TIMEOUT", 1), ("POLL_ADD", 1), ("LINK_TIMEOUT", 1)];
    accepts(environment, &format!("static-liburing-{way}"), &["file"], "as they should be", minimum);
}

fn liburing_static(environment: Environment) {
    liburing(environment, "static");
}

fn liburing_static_pie(environment: Environment) {
    liburing(environment, "static-pie");
}

fn liburing_musl(environment: Environment) {
    liburing(environment, "musl");
}

fn liburing_musl_dynamic(environment: Environment) {
    liburing(environment, "musl-dynamic");
}

fn strangers(environment: Environment, way: &str) {
    let client = format!("strangers-{way}");
    accepts(environment, &client, &["fclose"], "500 descriptors reused", &[("READ", 1000)]);
    accepts(environment, &client, &["handler"], "300 submissions by signals", &[("NOP", 300)]);
    accepts(environment, &client, &["setgid"], "100 changes of the group", &[("OPENAT", 1)]);
}

fn strangers_static(environment: Environment) {
    strangers(environment, "static");
}

fn strangers_musl(environment: Environment) {
    strangers(environment, "musl");
}

const FILE_AND_NET: Minimum =
    &[("WRITE", 128), ("READ", 128), ("FSYNC", 1), ("CONNECT", 1), ("ACCEPT", 1), ("SEND", 128), ("RECV", 128)];

fn rust_io_uring_musl(environment: Environment) {
    accepts(environment, "io-uring-musl", &["file"], "checksums equal", FILE_AND_NET);
}

fn rust_io_uring_direct_musl(environment: Environment) {
    accepts(environment, "io-uring-direct-musl", &["file"], "checksums equal", FILE_AND_NET);
}

fn rust_monoio_musl(environment: Environment) {
    let minimum = &[("ACCEPT", 32), ("CONNECT", 32), ("SEND", 1280), ("RECV", 1280), ("ASYNC_CANCEL", 128)];
    accepts(environment, "monoio-musl", &[], "all as they should be", minimum);
}

/// A runtime on each of three threads.
fn rust_compio_musl(environment: Environment) {
    let minimum = &[("WRITE", 384), ("READ", 384), ("OPENAT", 3), ("FSYNC", 3), ("CONNECT", 3), ("ACCEPT", 3)];
    accepts(environment, "compio-musl", &["file"], "checksums equal", minimum);
}

/// Builds with glibc, since the crate's release 0.5 does not compile for musl (it takes msg_controllen for a usize).
fn rust_tokio_uring_static(environment: Environment) {
    let minimum = &[("OPENAT", 1), ("WRITE", 256), ("READ", 256), ("FSYNC", 1), ("CONNECT", 1), ("ACCEPT", 1)];
    accepts(environment, "tokio-uring-static", &["file"], "checksums equal", minimum);
}

/// Programs of crates/cli/tests, which end with 3: what they print is compared with the kernel's answer there.
fn ends_with_3(environment: Environment, client: &str, says: &[&str], minimum: Minimum) {
    let Some(path) = had(client, programs::client_or_reason(client)) else { return };
    let stage = Stage::new(environment);
    // It writes beside itself.
    let path = stage.copy(&path);
    let (outcome, statistics) = stage.attempt(&Program::new(path));
    assert_eq!(outcome.status.code(), Some(3), "{outcome}");
    for line in says {
        assert!(outcome.stdout.contains(line), "it should say `{line}`: {outcome}");
    }
    if let Some(statistics) = statistics {
        statistics.assert_served(environment.refusal.errno(), minimum);
    }
}

fn zig(environment: Environment) {
    let minimum = &[("ACCEPT", 1), ("CONNECT", 1), ("SEND", 200), ("RECV", 200), ("WRITE", 1), ("READ", 1)];
    ends_with_3(environment, "zig", &[], minimum);
}

fn go(environment: Environment) {
    let says =
        ["bad requests: 0 a profile: true", "200 threads", "400 answers, a profile: true", "a child's NOP: 0"];
    ends_with_3(environment, "go", &says, &[("NOP", 16200), ("READ", 16400)]);
}

fn fio(path: PathBuf, extra: &[&str]) -> Program {
    let fixed = ["--name=verified", "--rw=randrw", "--size=4m", "--bsrange=4k-128k", "--iodepth=16"];
    let verify = ["--verify=crc32c", "--verify_fatal=1", "--directory=.", "--output-format=terse"];
    Program::new(path).args(fixed).args(verify).args(["--ioengine=io_uring"]).args(extra)
}

fn verified_by_fio(environment: Environment, extra: &[&str]) {
    let Some(path) = had("fio", programs::static_fio()) else { return };
    Stage::new(environment).serve(&fio(path, extra), |_: &Outcome| vec![("READ", 30), ("WRITE", 15)]);
}

fn fio_static(environment: Environment) {
    verified_by_fio(environment, &[]);
    verified_by_fio(environment, &["--direct=1"]);
}

fn fio_static_threads(environment: Environment) {
    verified_by_fio(environment, &["--numjobs=2", "--thread"]);
}

/// A stage with Debian 11's programs in it.
fn debian11(environment: Environment) -> Option<Stage> {
    if let Err(reason) = programs::debian11() {
        println!("skipped: {reason}");
        return None;
    }
    let stage = Stage::new(environment);
    programs::place_debian11(stage.directory());
    Some(stage)
}

fn debian11_fio(environment: Environment) {
    let Some(stage) = debian11(environment) else { return };
    stage.serve(&fio(stage.file("fio"), &[]), |_| vec![("READ", 30), ("WRITE", 15)]);
}

/// qemu is linked with liburing.so.1, whose functions the preloaded library leaves to it.
fn debian11_qemu(environment: Environment) {
    let Some(stage) = debian11(environment) else { return };
    let disk = stage.make_file("disk", 0, 1 << 20);
    let io = ["-f", "raw", "-i", "io_uring", "-c", "write -P 5 0 64k", "-c", "read -P 5 0 64k", "disk"];
    let program = |words: &[&str]| Program::new(stage.file("qemu-io")).args(words);
    stage.serve(&program(&io), |_| vec![("WRITEV", 1), ("READV", 1)]);
    stage.serve_guest(&program(&io), |_| vec![("WRITEV", 1), ("READV", 1)]);
    let bench =
        ["bench", "-f", "raw", "-c", "512", "-d", "32", "-s", "4096", "-i", "io_uring", "-w", "--pattern=171"];
    let program = Program::new(stage.file("qemu-img")).args(bench).args(["disk"]);
    stage.serve(&program, |_| vec![("WRITEV", 512)]);
    let bytes = std::fs::read(disk).expect("read the image");
    assert!(bytes.iter().all(|&byte| byte == 171), "a block does not hold the pattern");
}

/// The static busybox starts static programs, a dynamic one and itself, and executes a program in its own place. A
/// program without an environment is not counted.
fn a_static_shell_as_parent(environment: Environment) {
    let Some(stage) = debian11(environment) else { return };
    let clients = ["nop", "nop-musl", "static-liburing-static"];
    for client in clients {
        let Some(path) = had(client, programs::client_or_reason(client)) else { return };
        stage.copy(&path);
    }
    let script = "./nop 10 5 | ./busybox cat && ./nop-musl 10 5 & wait $! && ./busybox env -i ./nop-musl 10 5 && \
                  exec ./static-liburing-static file";
    let shell = Program::new(stage.file("busybox")).args(["sh", "-c", script]);
    let outcome = stage.serve(&shell, |_| vec![("NOP", 100), ("READ", 257)]);
    assert_eq!(outcome.stdout.matches("50 completions verified").count(), 3, "{outcome}");
    assert!(outcome.stdout.contains("as they should be"), "{outcome}");
}
