//! fio with `--ioengine=io_uring` and `--ioengine=libaio`: mixed random reads and writes in blocks of many sizes, verified
//! with crc32c.
//!
//! With io_uring fio sets its ring up with libc's `syscall()` and enters it with raw instructions.

use anyring_e2e::{cases, stage::Program, Environment, Outcome, Stage};
use serde_json::Value;
use std::process::ExitCode;

fn main() -> ExitCode {
    let cases = cases![
        buffered_depth_1,
        buffered_depth_8,
        buffered_depth_64,
        direct_depth_1,
        direct_depth_32,
        registered_depth_1,
        registered_depth_32,
        registered_direct,
        two_threads,
        two_processes,
        polled_depth_1,
        polled_depth_32,
        polled_on_a_cpu,
        polled_registered_direct,
        polled_two_threads,
        polled_two_processes,
        a_corrupted_block_is_noticed,
    ];
    let aio = cases![
        aio_buffered_depth_1,
        aio_buffered_depth_32,
        aio_direct_depth_1,
        aio_direct_depth_32,
        aio_events_from_memory,
        aio_two_threads,
        aio_two_processes,
    ];
    let everywhere = [Environment::all(), Environment::killing()].concat();
    anyring_e2e::cases::run_all(&[(&everywhere, &cases), (&Environment::without_aio(), &aio)])
}

/// The size of one job's file.
fn size(environment: Environment) -> u64 {
    environment.size(16 << 20, 4 << 20)
}

fn job(environment: Environment, engine: &str, extra: &[&str]) -> Program {
    let size = format!("--size={}", size(environment));
    let fixed = ["--name=verified", engine, "--rw=randrw", "--bsrange=4k-128k", size.as_str()];
    let verify = ["--verify=crc32c", "--verify_fatal=1", "--directory=.", "--output-format=json"];
    Program::new("fio").args(fixed).args(verify).args(extra)
}

/// fio's JSON; what fio prints before it (warnings) is skipped.
fn report(outcome: &Outcome) -> Value {
    let start = outcome.stdout.find('{').unwrap_or_else(|| panic!("fio printed no JSON: {outcome}"));
    serde_json::from_str(&outcome.stdout[start..]).unwrap_or_else(|error| panic!("{error}: {outcome}"))
}

/// Returns the sum of one counter over the jobs. Each job must have ended without an error.
fn total(outcome: &Outcome, direction: &str, counter: &str) -> u64 {
    let report = report(outcome);
    let jobs = report["jobs"].as_array().expect("fio's list of jobs");
    let one = |job: &Value| {
        assert_eq!(job["error"], 0, "a job failed: {outcome}");
        job[direction][counter].as_u64().unwrap_or_else(|| panic!("no {direction} {counter}: {outcome}"))
    };
    jobs.iter().map(one).sum()
}

/// Runs a job of `jobs` copies on io_uring, and compares fio's own counts with the engine's.
fn verified(environment: Environment, jobs: u64, read: &str, write: &str, extra: &[&str]) {
    verified_on("--ioengine=io_uring", environment, jobs, [read, write], extra);
}

fn verified_on(engine: &str, environment: Environment, jobs: u64, [read, write]: [&str; 2], extra: &[&str]) {
    let stage = Stage::new(environment);
    let minimum = |outcome: &Outcome| {
        vec![(read, total(outcome, "read", "total_ios")), (write, total(outcome, "write", "total_ios"))]
    };
    let Some(outcome) = stage.serve_raw(&job(environment, engine, extra), minimum) else { return };
    // Reads and writes together are the size; the verification then reads what was written.
    let (bytes_read, bytes_written) = (total(&outcome, "read", "io_bytes"), total(&outcome, "write", "io_bytes"));
    let file = size(environment);
    assert_eq!(report(&outcome)["jobs"].as_array().map(Vec::len), Some(jobs as usize), "{outcome}");
    assert_eq!(bytes_read, jobs * file, "bytes read, verification included: {outcome}");
    assert!(bytes_written > jobs * file / 4, "only {bytes_written} bytes were written: {outcome}");
}

fn buffered_depth_1(environment: Environment) {
    verified(environment, 1, "READ", "WRITE", &["--iodepth=1"]);
}

fn buffered_depth_8(environment: Environment) {
    verified(environment, 1, "READ", "WRITE", &["--iodepth=8"]);
}

fn buffered_depth_64(environment: Environment) {
    verified(environment, 1, "READ", "WRITE", &["--iodepth=64"]);
}

fn direct_depth_1(environment: Environment) {
    verified(environment, 1, "READ", "WRITE", &["--direct=1", "--iodepth=1"]);
}

fn direct_depth_32(environment: Environment) {
    verified(environment, 1, "READ", "WRITE", &["--direct=1", "--iodepth=32"]);
}

fn registered_depth_1(environment: Environment) {
    verified(environment, 1, "READ_FIXED", "WRITE_FIXED", &["--fixedbufs", "--registerfiles", "--iodepth=1"]);
}

fn registered_depth_32(environment: Environment) {
    verified(environment, 1, "READ_FIXED", "WRITE_FIXED", &["--fixedbufs", "--registerfiles", "--iodepth=32"]);
}

fn registered_direct(environment: Environment) {
    let extra = ["--fixedbufs", "--registerfiles", "--direct=1", "--iodepth=16"];
    verified(environment, 1, "READ_FIXED", "WRITE_FIXED", &extra);
}

fn two_threads(environment: Environment) {
    verified(environment, 2, "READ", "WRITE", &["--numjobs=2", "--thread", "--iodepth=16"]);
}

fn two_processes(environment: Environment) {
    verified(environment, 2, "READ", "WRITE", &["--numjobs=2", "--iodepth=16"]);
}

/// One of the engine's threads takes the SQEs (IORING_SETUP_SQPOLL). fio calls io_uring_enter(2) only to wake it. The
/// opcodes are those of plain requests. fio 3.33 registers its files with SQPOLL.
fn polled(environment: Environment, jobs: u64, extra: &[&str]) {
    verified(environment, jobs, "READ", "WRITE", &[&["--sqthread_poll=1"], extra].concat());
}

fn polled_depth_1(environment: Environment) {
    polled(environment, 1, &["--iodepth=1"]);
}

fn polled_depth_32(environment: Environment) {
    polled(environment, 1, &["--iodepth=32"]);
}

fn polled_on_a_cpu(environment: Environment) {
    polled(environment, 1, &["--sqthread_poll_cpu=0", "--iodepth=8"]);
}

fn polled_registered_direct(environment: Environment) {
    let extra = ["--sqthread_poll=1", "--fixedbufs", "--registerfiles", "--direct=1", "--iodepth=16"];
    verified(environment, 1, "READ_FIXED", "WRITE_FIXED", &extra);
}

fn polled_two_threads(environment: Environment) {
    polled(environment, 2, &["--numjobs=2", "--thread", "--iodepth=8"]);
}

fn polled_two_processes(environment: Environment) {
    polled(environment, 2, &["--numjobs=2", "--iodepth=8"]);
}

/// Verification through the engine sees a wrong byte: fio writes, one byte is changed, fio only verifies and must fail.
fn a_corrupted_block_is_noticed(environment: Environment) {
    let stage = Stage::new(environment);
    let job = |extra: &[&str]| {
        let fixed =
            ["--name=corrupted", "--ioengine=io_uring", "--rw=write", "--bs=64k", "--size=1m", "--verify=crc32c"];
        Program::new("fio").args(fixed).args(["--filename=corrupted", "--iodepth=8"]).args(extra)
    };
    let served = stage.serve_raw(&job(&["--do_verify=1"]), |_| vec![("WRITE", 16), ("READ", 16)]);
    if served.is_none() {
        return;
    }
    let mut bytes = std::fs::read(stage.file("corrupted")).expect("read fio's file");
    bytes[(512 << 10) + 4321] ^= 1;
    std::fs::write(stage.file("corrupted"), bytes).expect("corrupt fio's file");
    let (outcome, statistics) = stage.attempt(&job(&["--verify_only=1", "--verify_fatal=1"]));
    assert!(!outcome.status.success(), "fio did not notice: {outcome}");
    assert!(outcome.stderr.contains("at file corrupted offset 524288"), "fio failed otherwise: {outcome}");
    if let Some(statistics) = statistics {
        statistics.assert_served(environment.refusal.errno(), &[("READ", 9)]); // the ninth block is the bad one
    }
}

/// libaio, which the engine serves where the kernel's AIO is refused.
fn on_aio(environment: Environment, jobs: u64, extra: &[&str]) {
    verified_on("--ioengine=libaio", environment, jobs, ["READ", "WRITE"], extra);
}

fn aio_buffered_depth_1(environment: Environment) {
    on_aio(environment, 1, &["--iodepth=1"]);
}

fn aio_buffered_depth_32(environment: Environment) {
    on_aio(environment, 1, &["--iodepth=32"]);
}

fn aio_direct_depth_1(environment: Environment) {
    on_aio(environment, 1, &["--direct=1", "--iodepth=1"]);
}

fn aio_direct_depth_32(environment: Environment) {
    on_aio(environment, 1, &["--direct=1", "--iodepth=32"]);
}

/// fio reads the completion ring's memory itself.
fn aio_events_from_memory(environment: Environment) {
    on_aio(environment, 1, &["--direct=1", "--iodepth=16", "--userspace_reap"]);
    on_aio(environment, 1, &["--iodepth=16", "--userspace_reap", "--iodepth_batch=8"]);
}

fn aio_two_threads(environment: Environment) {
    on_aio(environment, 2, &["--numjobs=2", "--thread", "--iodepth=16"]);
}

fn aio_two_processes(environment: Environment) {
    on_aio(environment, 2, &["--numjobs=2", "--iodepth=16"]);
}
