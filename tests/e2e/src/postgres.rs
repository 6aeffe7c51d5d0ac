//! PostgreSQL 18: a copy that runs here, and one server with its data in a test's folder.
//!
//! The programs are those of Debian packages that `scripts/postgres.sh` unpacked. The server alone, with initdb, is
//! under `anyring deny -- anyring run`; the clients are as they are.

use crate::daemon::Daemon;
use crate::stage::{Program, Stage};
use crate::{Outcome, Statistics};
use rustix::process::Signal;
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;

/// A copy of the programs in a folder that everybody can reach; removed at the end.
pub struct Programs {
    _directory: TempDir,
    bin: PathBuf,
}

impl Programs {
    /// Makes the copy. The error is the reason why no PostgreSQL is available.
    ///
    /// # Panics
    ///
    /// When there is one and it cannot be copied.
    pub fn place() -> Result<Self, String> {
        use std::os::unix::fs::PermissionsExt;
        let directory = tempfile::Builder::new().prefix("anyring-postgres-").tempdir_in("/var/tmp");
        let directory = directory.expect("a temporary folder");
        let everybody = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(directory.path(), everybody).expect("open the folder to all");
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/postgres.sh");
        let output = Command::new(script).arg("place").arg(directory.path()).output().expect("run postgres.sh");
        let printed = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        match output.status.code() {
            Some(0) => Ok(Programs { _directory: directory, bin: PathBuf::from(printed) }),
            Some(77) => Err(printed),
            _ => {
                panic!(
                    "postgres.sh place: {}\n{printed}\n{}",
                    output.status,
                    String::from_utf8_lossy(&output.stderr)
                )
            }
        }
    }

    /// The folder of the programs.
    pub fn bin(&self) -> &Path {
        &self.bin
    }
}

/// A server's data, and the server while it runs.
pub struct Server {
    daemon: Daemon,
    bin: PathBuf,
}

impl Server {
    /// initdb with io_method=io_uring and data checksums.
    ///
    /// # Panics
    ///
    /// When it fails.
    pub fn init(stage: Stage, bin: &Path) -> Self {
        let server = Server { daemon: Daemon::new(stage), bin: bin.to_owned() };
        let (outcome, statistics) = server.stage().attempt(&server.initdb());
        outcome.succeeded();
        let refusal = server.stage().environment().refusal;
        // The few rings of initdb fit under a limit.
        if let Some(statistics) = statistics.filter(|_| refusal.memlock().is_none()) {
            statistics.assert_served(refusal.errno(), &[("READ", 100)]);
        }
        server
    }

    /// Asserts that initdb fails with the kernel's error under `anyring deny` without `anyring run`.
    ///
    /// # Panics
    ///
    /// When it does not.
    pub fn is_denied(stage: Stage, bin: &Path) {
        let server = Server { daemon: Daemon::new(stage), bin: bin.to_owned() };
        let outcome = server.stage().deny(&server.initdb());
        let message =
            format!("FATAL:  could not setup io_uring queue: {}", server.stage().environment().refusal.message());
        let printed = format!("{}{}", outcome.stdout, outcome.stderr);
        assert!(
            !outcome.status.success() && printed.contains(&message),
            "it should fail with `{message}`: {outcome}"
        );
    }

    fn initdb(&self) -> Program {
        let fixed = ["--pgdata=data", "--data-checksums", "--no-locale", "--encoding=UTF8", "--username=tester"];
        self.client("initdb", &fixed).args(["--no-sync", "--set=io_method=io_uring", "--set=shared_buffers=8MB"])
    }

    /// Starts the server and waits until it answers.
    ///
    /// # Panics
    ///
    /// When it does not.
    pub fn start(&mut self, settings: &[&str]) {
        let program = self.postmaster(settings);
        self.daemon.start(&program);
        self.wait_until_ready();
    }

    /// Runs the server without `anyring run`, where it should end by itself.
    pub fn start_alone(&self, settings: &[&str]) -> Outcome {
        self.stage().plain(&self.postmaster(settings))
    }

    fn postmaster(&self, settings: &[&str]) -> Program {
        let directory = self.stage().directory().to_str().expect("a path in UTF-8");
        let fixed = ["-D", "data", "-k", directory, "-c", "listen_addresses=", "-c", "max_connections=20"];
        let small =
            ["-c", "max_worker_processes=4", "-c", "io_max_concurrency=32", "-c", "effective_io_concurrency=32"];
        // A backend that is killed while it makes a segment in /dev/shm leaves it there, on the kernel too.
        let shared = ["-c", "dynamic_shared_memory_type=mmap"];
        let settings = settings.iter().flat_map(|setting| ["-c", setting]);
        self.client("postgres", &fixed).args(small).args(shared).args(settings)
    }

    /// Waits until a new connection is served.
    ///
    /// # Panics
    ///
    /// When that takes too long.
    pub fn wait_until_ready(&mut self) {
        let look = self.psql("select 1");
        self.daemon.wait_until(|stage| stage.plain(&look).status.success());
    }

    /// Stops the server as `pg_ctl stop -m fast` does, and asserts that nothing is left of it.
    ///
    /// # Panics
    ///
    /// When it does not end well, or leaves something.
    pub fn stop(&mut self) {
        self.daemon.stop(Signal::INT);
        let sockets = std::fs::read_dir(self.stage().directory()).expect("the folder");
        let sockets: Vec<_> = sockets.map(|entry| entry.expect("an entry").file_name()).collect();
        let left = sockets.iter().any(|name| name.to_string_lossy().starts_with(".s."));
        assert!(!left, "sockets that are left: {sockets:?}");
    }

    /// The library's counters.
    ///
    /// # Panics
    ///
    /// If there are no counters.
    pub fn statistics(&self) -> Option<Statistics> {
        self.daemon.statistics()
    }

    /// The server's log so far.
    pub fn log(&self) -> String {
        self.daemon.log()
    }

    /// The stage.
    pub fn stage(&self) -> &Stage {
        self.daemon.stage()
    }

    /// One of PostgreSQL's programs that talks to this server.
    pub fn client(&self, name: &str, arguments: &[&str]) -> Program {
        let directory = self.stage().directory().to_str().expect("a path in UTF-8");
        let program = Program::new(self.bin.join(name)).args(arguments).env("PGHOST", directory);
        program.env("PGUSER", "tester").env("PGDATABASE", "postgres").env("PGCONNECT_TIMEOUT", "10")
    }

    /// Runs a client to its end.
    ///
    /// # Panics
    ///
    /// When it fails.
    pub fn run(&self, name: &str, arguments: &[&str]) -> Outcome {
        self.stage().plain(&self.client(name, arguments)).succeeded()
    }

    /// Runs one query in psql, and returns the outcome, even of a failure.
    pub fn attempt(&self, query: &str) -> Outcome {
        self.stage().plain(&self.psql(query))
    }

    fn psql(&self, query: &str) -> Program {
        self.client("psql", &["--no-psqlrc", "--quiet", "--tuples-only", "--no-align", "-c", query])
    }

    /// The answer to one query.
    ///
    /// # Panics
    ///
    /// When it fails.
    pub fn query(&self, query: &str) -> String {
        self.attempt(query).succeeded().stdout.trim().to_owned()
    }

    /// Writes everything out and takes the data out of the page cache, as far as the kernel does so on request.
    ///
    /// # Panics
    ///
    /// When a file cannot be read.
    pub fn cool_down(&self) {
        self.query("checkpoint");
        for file in files_below(&self.stage().file("data/base")) {
            // The server may have removed a file by now.
            let Ok(file) = std::fs::File::open(file) else { continue };
            rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).expect("fadvise");
        }
    }
}

fn files_below(directory: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(directory).expect("a folder of the server");
    let paths = entries.map(|entry| entry.expect("an entry").path());
    paths.flat_map(|path| if path.is_dir() { files_below(&path) } else { vec![path] }).collect()
}
