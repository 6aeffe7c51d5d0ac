//! qemu-img bench and qemu-io with aio=io_uring: liburing.so.2, readv and writev, and the ring's eventfd in a main loop.
//! With aio=native: libaio.so.1, an eventfd for each request, and events read from the completion ring's memory.

use anyring_e2e::{cases, stage::Program, Environment, Stage};
use std::process::ExitCode;

const IMAGE_BYTES: usize = 16 << 20;

fn main() -> ExitCode {
    let cases = cases![
        bench_reads,
        bench_writes_with_flushes,
        bench_direct,
        patterns,
        patterns_direct,
        requests_in_parallel,
        a_wrong_pattern_is_noticed,
    ];
    let native =
        cases![native_bench, native_patterns, native_requests_in_parallel, native_wrong_pattern_is_noticed];
    anyring_e2e::cases::run_all(&[(&Environment::all(), &cases), (&Environment::without_aio(), &native)])
}

/// The options of qemu for AIO and its cache. aio=native needs direct transfers (cache=none).
#[derive(Clone, Copy)]
struct Access {
    aio: &'static str,
    cache: &'static str,
}

const BUFFERED: Access = Access { aio: "io_uring", cache: "writeback" };
const DIRECT: Access = Access { aio: "io_uring", cache: "none" };
const NATIVE: Access = Access { aio: "native", cache: "none" };

/// Number of requests of 4,096 bytes that a benchmark makes: at least once around the image.
fn requests(environment: Environment) -> u64 {
    environment.size(5000, 4096)
}

fn bench(environment: Environment, access: Access, extra: &[&str]) -> Program {
    let requests = requests(environment).to_string();
    let fixed = ["bench", "-f", "raw", "-c", requests.as_str(), "-d", "32", "-s", "4096"];
    let access = ["-i", access.aio, "-t", access.cache];
    Program::new("qemu-img").args(fixed).args(access).args(extra).args(["disk"])
}

fn bench_reads(environment: Environment) {
    let stage = Stage::new(environment);
    stage.make_file("disk", 0, IMAGE_BYTES);
    stage.serve(&bench(environment, BUFFERED, &[]), |_| vec![("READV", requests(environment))]);
}

/// Reads the data back with an ordinary read: the whole range must hold the pattern.
fn bench_writes_with_flushes(environment: Environment) {
    let stage = Stage::new(environment);
    let disk = stage.make_file("disk", 0, IMAGE_BYTES);
    // qemu merges flushes that coincide: on the kernel 6 to 10 of the ten reach the ring. The 5,000 requests of 4,096
    // bytes cover a disk of 4,096 such blocks more than once.
    stage.serve(&bench(environment, BUFFERED, &["-w", "--pattern=171", "--flush-interval=500"]), |_| {
        vec![("WRITEV", requests(environment)), ("FSYNC", 1)]
    });
    let bytes = std::fs::read(disk).expect("read the image");
    assert_eq!(bytes.len(), IMAGE_BYTES);
    assert!(bytes.iter().all(|&byte| byte == 171), "a block does not hold the pattern");
}

fn bench_of_both(environment: Environment, access: Access) {
    let stage = Stage::new(environment);
    let disk = stage.make_file("disk", 0, IMAGE_BYTES);
    stage.serve(&bench(environment, access, &["-w", "--pattern=92"]), |_| vec![("WRITEV", requests(environment))]);
    stage.serve(&bench(environment, access, &[]), |_| vec![("READV", requests(environment))]);
    let bytes = std::fs::read(disk).expect("read the image");
    assert!(bytes.iter().all(|&byte| byte == 92), "a block does not hold the pattern");
}

fn bench_direct(environment: Environment) {
    bench_of_both(environment, DIRECT);
}

fn native_bench(environment: Environment) {
    bench_of_both(environment, NATIVE);
}

/// qemu-io with commands; it stops at the first one that fails and says so with its exit status.
fn qemu_io(access: Access, commands: &[&str]) -> Program {
    let program = Program::new("qemu-io").args(["-f", "raw", "-i", access.aio, "-t", access.cache]);
    commands.iter().fold(program, |program, command| program.args(["-c", command])).args(["disk"])
}

fn patterns_of_many_sizes(environment: Environment, access: Access, syncs: u64) {
    let stage = Stage::new(environment);
    stage.make_file("disk", 0, IMAGE_BYTES);
    let writes = ["write -P 17 0 4k", "write -P 34 64k 64k", "write -P 51 1M 1M", "write -P 68 4M 3M", "flush"];
    let reads =
        ["read -P 17 0 4k", "read -P 34 64k 64k", "read -P 51 1M 1M", "read -P 68 4M 3M", "read -P 0 4k 60k"];
    let vectors = ["writev -P 85 8M 4k 64k 12k", "flush", "readv -P 85 8M 12k 4k 64k", "read -P 85 8M 80k"];
    let commands: Vec<_> = [&writes[..], &reads, &vectors].concat();
    let minimum = vec![("WRITEV", 5), ("READV", 7), ("FSYNC", syncs)];
    stage.serve(&qemu_io(access, &commands), |_| minimum);
    let disk = std::fs::read(stage.file("disk")).expect("read the image");
    for (start, len, byte) in
        [(0, 4 << 10, 17), (64 << 10, 64 << 10, 34), (1 << 20, 1 << 20, 51), (4 << 20, 3 << 20, 68)]
    {
        assert!(
            disk[start..start + len].iter().all(|&found| found == byte),
            "{len} bytes at {start} are not all {byte}"
        );
    }
}

fn patterns(environment: Environment) {
    patterns_of_many_sizes(environment, BUFFERED, 2);
}

fn patterns_direct(environment: Environment) {
    patterns_of_many_sizes(environment, DIRECT, 2);
}

/// qemu makes its flushes itself with aio=native.
fn native_patterns(environment: Environment) {
    patterns_of_many_sizes(environment, NATIVE, 0);
}

/// Asynchronous requests that are in flight together, each verified by a read of its own.
fn requests_together(environment: Environment, access: Access) {
    let stage = Stage::new(environment);
    stage.make_file("disk", 0, IMAGE_BYTES);
    let range = |index: u32| format!("{} {}k {}k", index + 1, index * 256, 4 * (index + 1));
    let writes = (0..32).map(|index| format!("aio_write -P {}", range(index)));
    let reads = (0..32).map(|index| format!("aio_read -P {}", range(index)));
    let flush = || std::iter::once("aio_flush".to_owned());
    let commands: Vec<String> = writes.chain(flush()).chain(reads).chain(flush()).collect();
    let commands: Vec<&str> = commands.iter().map(String::as_str).collect();
    let outcome = stage.serve(&qemu_io(access, &commands), |_| vec![("WRITEV", 32), ("READV", 32)]);
    // aio_read reports a mismatch only in its output.
    assert!(!outcome.stdout.contains("failed") && !outcome.stderr.contains("failed"), "{outcome}");
    assert_eq!(outcome.stdout.matches("read ").count(), 32, "{outcome}");
}

fn requests_in_parallel(environment: Environment) {
    requests_together(environment, BUFFERED);
}

fn native_requests_in_parallel(environment: Environment) {
    requests_together(environment, NATIVE);
}

fn wrong_pattern(environment: Environment, access: Access) {
    let stage = Stage::new(environment);
    stage.make_file("disk", 7, IMAGE_BYTES);
    let (outcome, statistics) = stage.attempt(&qemu_io(access, &["read -P 8 0 64k"]));
    assert!(!outcome.status.success(), "qemu-io did not notice: {outcome}");
    assert!(outcome.stdout.contains("Pattern verification failed"), "qemu-io failed otherwise: {outcome}");
    if let Some(statistics) = statistics {
        statistics.assert_served(environment.refusal.errno(), &[("READV", 1)]);
    }
}

fn a_wrong_pattern_is_noticed(environment: Environment) {
    wrong_pattern(environment, BUFFERED);
}

fn native_wrong_pattern_is_noticed(environment: Environment) {
    wrong_pattern(environment, NATIVE);
}
