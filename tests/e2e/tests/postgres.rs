//! PostgreSQL 18 with io_method=io_uring. Before the postmaster starts any process, it makes one ring for each that
//! it may start. Its children submit to their own rings, wait on each other's rings for each other's reads, and are
//! killed.
//!
//! The server refuses to run as root, so all of it runs as an ordinary user.

use anyring_e2e::postgres::{Programs, Server};
use anyring_e2e::programs::anyring;
use anyring_e2e::stage::{on_kernel, Program};
use anyring_e2e::{cases, Environment, Outcome, Refusal, Stage, User};
use rustix::process::{kill_process, Pid, Signal};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::OnceLock;
use std::time::Duration;

static BIN: OnceLock<PathBuf> = OnceLock::new();

fn main() -> ExitCode {
    let refusals = std::iter::once(Refusal::Eperm).chain(Refusal::PROFILES);
    let environments: Vec<_> = refusals.map(|refusal| Environment { refusal, user: User::Ordinary }).collect();
    let programs = Programs::place();
    if let Ok(programs) = &programs {
        BIN.set(programs.bin().to_owned()).expect("set once");
    }
    let cases = cases![denied, page_cache, direct, a_damaged_page_is_noticed];
    let limited = Environment { refusal: Refusal::Memlock, user: User::Ordinary };
    let missing = programs.as_ref().err().map(String::as_str);
    let sets: [(&[_], &[_]); 2] = [(&environments, &cases), (&[limited], &cases![a_thousand_connections])];
    anyring_e2e::cases::run_all_unless(missing, &sets)
}

fn server(environment: Environment) -> Server {
    Server::init(Stage::new(environment), BIN.get().expect("set by main"))
}

/// Reads the accounts in the ways that read ahead, by processes that want the same pages at the same time. The last
/// query is one of parallel workers.
const SCANS: &str = "
set max_parallel_workers_per_gather = 0;
select sum(abalance) from pgbench_accounts;
set enable_seqscan = off;
set enable_indexscan = off;
select sum(abalance) from pgbench_accounts where aid between 1 and 100000;
reset enable_seqscan;
set max_parallel_workers_per_gather = 2;
set min_parallel_table_scan_size = 0;
set parallel_setup_cost = 0;
select sum(abalance) from pgbench_accounts;
";

/// Every transaction of pgbench adds one number in four places.
const BALANCED: &str = "select (select sum(abalance) from pgbench_accounts) = d
    and (select sum(tbalance) from pgbench_tellers) = d and (select sum(bbalance) from pgbench_branches) = d
    from (select coalesce(sum(delta), 0) as d from pgbench_history)";

fn denied(environment: Environment) {
    Server::is_denied(Stage::new(environment), BIN.get().expect("set by main"));
}

/// Reads that the page cache may answer, so that most complete in the calling process.
fn page_cache(environment: Environment) {
    works(environment, &[], environment.size("5", "2"));
}

/// Reads that always wait for the device, so that processes find each other's reads in flight.
fn direct(environment: Environment) {
    works(environment, &["debug_io_direct=data"], environment.size("3", "1"));
}

fn works(environment: Environment, settings: &[&str], scale: &str) {
    let mut server = server(environment);
    server.start(settings);
    assert_eq!(server.query("show io_method"), "io_uring");
    assert_eq!(server.query("show data_checksums"), "on");
    let transactions = environment.size("1000", "200");
    server.run("pgbench", &["--initialize", "--quiet", "--scale", scale]);
    let load = server.run("pgbench", &["--client=4", "--jobs=2", "--transactions", transactions]);
    assert!(load.stdout.contains("number of failed transactions: 0 "), "{load}");
    assert_eq!(server.query(BALANCED), "t");
    scan(&server, environment.size("3", "2"));
    for round in 1..=environment.size(2, 1) {
        kill_one_backend(&mut server, round);
    }
    // Every page and every index, against each other.
    server.run("pg_amcheck", &["--install-missing", "--heapallindexed"]);
    server.stop();
    let checked = server.run("pg_checksums", &["--check", "--pgdata=data"]);
    assert!(checked.stdout.contains("Bad checksums:  0\n"), "{checked}");
    if let Some(statistics) = server.statistics() {
        let minimum = environment.size([("READ", 5000), ("READV", 1000)], [("READ", 500), ("READV", 100)]);
        statistics.assert_served(environment.refusal.errno(), &minimum);
    }
}

/// Several processes read all of a table that is not in memory, side by side.
fn scan(server: &Server, times: &str) {
    let script = server.stage().file("scans.sql");
    std::fs::write(&script, SCANS).expect("write a script");
    server.cool_down();
    let script = script.to_str().expect("a path in UTF-8");
    let load =
        server.run("pgbench", &["--no-vacuum", "--client=6", "--jobs=2", "--transactions", times, "-f", script]);
    assert!(load.stdout.contains("number of failed transactions: 0 "), "{load}");
}

/// SIGKILL of a backend under load: the postmaster ends the others, makes new rings and recovers, and no committed
/// transaction is lost.
fn kill_one_backend(server: &mut Server, round: usize) {
    let script = server.stage().file("scans.sql");
    let arguments = [
        "--no-vacuum",
        "--client=6",
        "--jobs=2",
        "--time=30",
        "-b",
        "tpcb-like@3",
        "-f",
        script.to_str().expect("UTF-8"),
    ];
    let program = server.client("pgbench", &arguments);
    let outcome: Outcome = std::thread::scope(|scope| {
        let load = scope.spawn(|| server.stage().plain(&program));
        std::thread::sleep(Duration::from_millis(300));
        let backends =
            "select pid from pg_stat_activity where application_name = 'pgbench' and state = 'active' limit 1";
        let mut backend = String::new();
        while backend.is_empty() {
            assert!(!load.is_finished(), "the load ended by itself");
            backend = server.query(backends);
        }
        let backend = backend.parse().ok().and_then(Pid::from_raw).expect("a process id");
        kill_process(backend, Signal::KILL).expect("kill a backend");
        load.join().expect("the load")
    });
    assert!(!outcome.status.success(), "the load went on: {outcome}");
    server.wait_until_ready();
    let log = server.log();
    for line in ["was terminated by signal 9: Killed", "all server processes terminated; reinitializing"] {
        assert_eq!(log.matches(line).count(), round, "`{line}` in the log, {round} expected: {log}");
    }
    assert_eq!(server.query(BALANCED), "t");
}

/// The server makes a ring for each connection that it permits. The kernel has no memory for all of them: rings of both
/// sides serve one server.
fn a_thousand_connections(environment: Environment) {
    const SETTINGS: [&str; 2] = ["max_connections=1000", "io_max_concurrency=64"];
    if on_kernel() {
        println!("skipped: the kernel alone cannot make all these rings");
        return;
    }
    let mut server = server(environment);
    let doctor = Program::new(anyring()).args(["doctor", "--json"]);
    let report: serde_json::Value = serde_json::from_str(&server.stage().plain(&doctor).stdout).expect("JSON");
    if report["io_uring"]["room"]["end"].is_null() {
        println!("skipped: no ring is refused for locked memory here: {}", report["io_uring"]);
        return;
    }
    let alone = server.start_alone(&SETTINGS);
    let message = "FATAL:  could not setup io_uring queue: Cannot allocate memory";
    assert!(!alone.status.success() && alone.stderr.contains(message), "without anyring: {alone}");
    server.start(&SETTINGS);
    assert_eq!(server.query("show io_method"), "io_uring");
    assert_eq!(server.query("show max_connections"), "1000");
    server.run("pgbench", &["--initialize", "--quiet", "--scale=2"]);
    let load = server.run("pgbench", &["--client=50", "--jobs=2", "--transactions=10"]);
    assert!(load.stdout.contains("number of failed transactions: 0 "), "{load}");
    scan(&server, "2");
    assert_eq!(server.query(BALANCED), "t");
    server.stop();
    // The kernel frees the rings of the server that died a little later, so it may have no room for any of these.
    let statistics = server.statistics().expect("counters");
    assert!(statistics.rings > 0, "anyring made no ring: {statistics:?}");
    assert!(statistics.kernel_rings + statistics.rings > 1000, "too few rings: {statistics:?}");
}

/// A byte on disk is changed. The process that completes the read verifies the checksum, and the reader gets an
/// error.
fn a_damaged_page_is_noticed(environment: Environment) {
    let mut server = server(environment);
    server.start(&[]);
    server.run("pgbench", &["--initialize", "--quiet", "--scale=1"]);
    let file = server.query("select pg_relation_filepath('pgbench_accounts')");
    server.stop();
    let file = server.stage().file("data").join(file);
    let mut bytes = std::fs::read(&file).expect("read the table");
    bytes[100 * 8192 + 4321] ^= 1;
    std::fs::write(&file, bytes).expect("damage the table");
    server.start(&[]);
    let outcome = server.attempt("select sum(abalance) from pgbench_accounts");
    assert!(!outcome.status.success(), "nobody noticed: {outcome}");
    assert!(outcome.stderr.contains("invalid page in block 100 of relation"), "it failed otherwise: {outcome}");
    server.stop();
    let checked = server.stage().plain(&server.client("pg_checksums", &["--check", "--pgdata=data"]));
    assert!(checked.stdout.contains("Bad checksums:  1\n"), "{checked}");
    if let Some(statistics) = server.statistics() {
        statistics.assert_served(environment.refusal.errno(), &[("READ", 100)]);
    }
}
