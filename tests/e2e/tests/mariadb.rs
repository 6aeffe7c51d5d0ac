//! MariaDB with innodb_linux_aio=aio. It uses io_submit for writes and read-ahead. Its own threads wait in io_getevents
//! until io_destroy ends them.

use anyring_e2e::daemon::Daemon;
use anyring_e2e::stage::{on_kernel, Program, Stage};
use anyring_e2e::{cases, programs, Environment, Outcome, Refusal, User};
use rustix::process::Signal;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::OnceLock;

/// The folder of the programs.
static USR: OnceLock<PathBuf> = OnceLock::new();

fn main() -> ExitCode {
    let usr = programs::mariadb();
    if let Ok(usr) = &usr {
        USR.set(usr.clone()).expect("set once");
    }
    let environments = [Refusal::NoAio, Refusal::Minimal].map(Environment::of_caller);
    let cases = cases![buffered, direct];
    anyring_e2e::cases::run_unless(usr.as_ref().err().map(String::as_str), &environments, &cases)
}

fn program(name: &str) -> Program {
    let usr = USR.get().expect("set by main");
    let libraries = usr.join("lib/x86_64-linux-gnu");
    Program::new(usr.join(name)).env("LD_LIBRARY_PATH", libraries.to_str().expect("UTF-8"))
}

/// A server without users or a network, and with a pool much smaller than the data. It warns about its own tables,
/// which were never created. It purges deleted rows before it ends: CHECK TABLE would report the rest.
fn server(stage: &Stage, flush_method: &str) -> Program {
    let messages = USR.get().expect("set by main").join("share/mysql");
    let places = [("datadir", stage.file("data")), ("socket", stage.file("socket")), ("lc-messages-dir", messages)];
    let places = places.map(|(name, path)| format!("--{name}={}", path.display()));
    let fixed = ["--skip-grant-tables", "--skip-networking", "--pid-file=pid"];
    let innodb = ["--innodb-log-file-size=8M", "--innodb-buffer-pool-size=8M", "--innodb-linux-aio=aio"];
    let user = if User::caller() == User::Root { &["--user=root"][..] } else { &[] };
    let further = ["--innodb-fast-shutdown=0".to_owned(), format!("--innodb-flush-method={flush_method}")];
    program("sbin/mariadbd").args(["--no-defaults"]).args(places).args(fixed).args(innodb).args(user).args(further)
}

fn attempt(stage: &Stage, query: &str) -> Outcome {
    let options = ["--no-defaults", "--socket=socket", "--skip-column-names", "--batch", "--execute", query];
    stage.plain(&program("bin/mariadb").args(options))
}

/// The answer to one query.
fn query(daemon: &Daemon, query: &str) -> String {
    attempt(daemon.stage(), query).succeeded().stdout.trim().to_owned()
}

fn start(daemon: &mut Daemon, flush_method: &str) {
    let server = server(daemon.stage(), flush_method);
    daemon.start(&server);
    daemon.wait_until(|stage| attempt(stage, "select 1").status.success());
    assert_eq!(query(daemon, "select @@innodb_use_native_aio, @@innodb_linux_aio"), "1\taio", "{}", daemon.log());
}

/// Writes a table, restarts the server and reads it. Sums over every row must equal the expected ones and those from
/// before the restart. Every page must have the checksum that it was written with.
fn works(environment: Environment, flush_method: &str) {
    let mut daemon = Daemon::new(Stage::new(environment));
    std::fs::create_dir(daemon.stage().file("data")).expect("a folder");
    start(&mut daemon, flush_method);
    let rows = environment.size(60_000, 30_000);
    query(
        &daemon,
        "create database test; create table test.t (id int primary key, v varchar(200), k int, index (k))",
    );
    let values = format!("select seq, repeat(md5(seq), 6), seq * 7 % 1000 from test.seq_1_to_{rows}");
    query(&daemon, &format!("insert into test.t {values}"));
    query(&daemon, "update test.t set k = k + 1 where id % 3 = 0; delete from test.t where id % 5 = 0");
    let expected = query(
        &daemon,
        &format!("select count(*), sum(crc32(repeat(md5(seq), 6))) from test.seq_1_to_{rows} where seq % 5 != 0"),
    );
    let sums = "select count(*), sum(crc32(v)) from test.t";
    assert_eq!(query(&daemon, sums), expected);
    let checksum = query(&daemon, "checksum table test.t extended");
    daemon.stop(Signal::TERM);
    start(&mut daemon, flush_method);
    assert_eq!(query(&daemon, "checksum table test.t extended"), checksum);
    assert_eq!(query(&daemon, sums), expected);
    assert_eq!(query(&daemon, "check table test.t extended"), "test.t\tcheck\tstatus\tOK", "{}", daemon.log());
    daemon.stop(Signal::TERM);
    daemon.stage().plain(&program("bin/innochecksum").args(["data/test/t.ibd"])).succeeded();
    assert!(!daemon.log().contains("[ERROR]"), "{}", daemon.log());
    match daemon.statistics() {
        Some(statistics) => statistics.assert_served(environment.refusal.errno(), &[("READ", 10), ("WRITE", 100)]),
        None => assert!(on_kernel()),
    }
}

fn buffered(environment: Environment) {
    works(environment, "fsync");
}

fn direct(environment: Environment) {
    works(environment, "O_DIRECT");
}
