//! fio with `--ioengine=io_uring`: mixed random reads and writes in blocks of many sizes, verified with crc32c.
//!
//! fio sets its ring up with libc's `syscall()` and enters it with raw instructions.

use anyring_e2e::{stage::Program, under_each_refusal, Outcome, Refusal, Stage};
use serde_json::Value;

const SIZE: &str = "16m";

under_each_refusal!(
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
);

fn job(extra: &[&str]) -> Program {
    let size = format!("--size={SIZE}");
    let fixed = ["--name=verified", "--ioengine=io_uring", "--rw=randrw", "--bsrange=4k-128k", size.as_str()];
    let verify = ["--verify=crc32c", "--verify_fatal=1", "--directory=.", "--output-format=json"];
    Program::new("fio").args(fixed).args(verify).args(extra)
}

/// fio's JSON; what fio prints before it (warnings) is skipped.
fn report(outcome: &Outcome) -> Value {
    let start = outcome.stdout.find('{').unwrap_or_else(|| panic!("fio printed no JSON: {outcome}"));
    serde_json::from_str(&outcome.stdout[start..]).unwrap_or_else(|error| panic!("{error}: {outcome}"))
}

/// The sum of one counter over the jobs, each of which must have ended without an error.
fn total(outcome: &Outcome, direction: &str, counter: &str) -> u64 {
    let report = report(outcome);
    let jobs = report["jobs"].as_array().expect("fio's list of jobs");
    let one = |job: &Value| {
        assert_eq!(job["error"], 0, "a job failed: {outcome}");
        job[direction][counter].as_u64().unwrap_or_else(|| panic!("no {direction} {counter}: {outcome}"))
    };
    jobs.iter().map(one).sum()
}

/// Runs a job of `jobs` copies and holds fio's own counts against ours.
fn verified(refusal: Refusal, jobs: u64, read: &str, write: &str, extra: &[&str]) {
    let stage = Stage::new(refusal);
    let minimum = |outcome: &Outcome| {
        vec![(read, total(outcome, "read", "total_ios")), (write, total(outcome, "write", "total_ios"))]
    };
    let outcome = stage.serve(&job(extra), minimum);
    // Reads and writes together are the size; the verification then reads what was written.
    let (bytes_read, bytes_written) = (total(&outcome, "read", "io_bytes"), total(&outcome, "write", "io_bytes"));
    let file = 16 << 20;
    assert_eq!(report(&outcome)["jobs"].as_array().map(Vec::len), Some(jobs as usize), "{outcome}");
    assert_eq!(bytes_read, jobs * file, "bytes read, verification included: {outcome}");
    assert!(bytes_written > jobs * file / 4, "only {bytes_written} bytes were written: {outcome}");
}

fn buffered_depth_1(refusal: Refusal) {
    verified(refusal, 1, "READ", "WRITE", &["--iodepth=1"]);
}

fn buffered_depth_8(refusal: Refusal) {
    verified(refusal, 1, "READ", "WRITE", &["--iodepth=8"]);
}

fn buffered_depth_64(refusal: Refusal) {
    verified(refusal, 1, "READ", "WRITE", &["--iodepth=64"]);
}

fn direct_depth_1(refusal: Refusal) {
    verified(refusal, 1, "READ", "WRITE", &["--direct=1", "--iodepth=1"]);
}

fn direct_depth_32(refusal: Refusal) {
    verified(refusal, 1, "READ", "WRITE", &["--direct=1", "--iodepth=32"]);
}

fn registered_depth_1(refusal: Refusal) {
    verified(refusal, 1, "READ_FIXED", "WRITE_FIXED", &["--fixedbufs", "--registerfiles", "--iodepth=1"]);
}

fn registered_depth_32(refusal: Refusal) {
    verified(refusal, 1, "READ_FIXED", "WRITE_FIXED", &["--fixedbufs", "--registerfiles", "--iodepth=32"]);
}

fn registered_direct(refusal: Refusal) {
    let extra = ["--fixedbufs", "--registerfiles", "--direct=1", "--iodepth=16"];
    verified(refusal, 1, "READ_FIXED", "WRITE_FIXED", &extra);
}

fn two_threads(refusal: Refusal) {
    verified(refusal, 2, "READ", "WRITE", &["--numjobs=2", "--thread", "--iodepth=16"]);
}

fn two_processes(refusal: Refusal) {
    verified(refusal, 2, "READ", "WRITE", &["--numjobs=2", "--iodepth=16"]);
}

/// A thread of the engine's takes the SQEs (IORING_SETUP_SQPOLL): fio enters only to wake it. The opcodes are those of
/// plain requests; fio 3.33 registers its files with it.
fn polled(refusal: Refusal, jobs: u64, extra: &[&str]) {
    verified(refusal, jobs, "READ", "WRITE", &[&["--sqthread_poll=1"], extra].concat());
}

fn polled_depth_1(refusal: Refusal) {
    polled(refusal, 1, &["--iodepth=1"]);
}

fn polled_depth_32(refusal: Refusal) {
    polled(refusal, 1, &["--iodepth=32"]);
}

fn polled_on_a_cpu(refusal: Refusal) {
    polled(refusal, 1, &["--sqthread_poll_cpu=0", "--iodepth=8"]);
}

fn polled_registered_direct(refusal: Refusal) {
    let extra = ["--sqthread_poll=1", "--fixedbufs", "--registerfiles", "--direct=1", "--iodepth=16"];
    verified(refusal, 1, "READ_FIXED", "WRITE_FIXED", &extra);
}

fn polled_two_threads(refusal: Refusal) {
    polled(refusal, 2, &["--numjobs=2", "--thread", "--iodepth=8"]);
}

fn polled_two_processes(refusal: Refusal) {
    polled(refusal, 2, &["--numjobs=2", "--iodepth=8"]);
}

/// Verification through the engine sees a wrong byte: fio writes, one byte is changed, fio only verifies and must fail.
fn a_corrupted_block_is_noticed(refusal: Refusal) {
    let stage = Stage::new(refusal);
    let job = |extra: &[&str]| {
        let fixed =
            ["--name=corrupted", "--ioengine=io_uring", "--rw=write", "--bs=64k", "--size=1m", "--verify=crc32c"];
        Program::new("fio").args(fixed).args(["--filename=corrupted", "--iodepth=8"]).args(extra)
    };
    stage.serve(&job(&["--do_verify=1"]), |_| vec![("WRITE", 16), ("READ", 16)]);
    let mut bytes = std::fs::read(stage.file("corrupted")).expect("read fio's file");
    bytes[(512 << 10) + 4321] ^= 1;
    std::fs::write(stage.file("corrupted"), bytes).expect("corrupt fio's file");
    let (outcome, statistics) = stage.attempt(&job(&["--verify_only=1", "--verify_fatal=1"]));
    assert!(!outcome.status.success(), "fio did not notice: {outcome}");
    assert!(outcome.stderr.contains("at file corrupted offset 524288"), "fio failed otherwise: {outcome}");
    if let Some(statistics) = statistics {
        statistics.assert_served(refusal.errno(), &[("READ", 9)]); // the ninth block is the bad one
    }
}
