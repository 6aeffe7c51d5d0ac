//! `anyring trace --pid` for a process that anyring's engine serves: joining, leaving, and processes that cannot be
//! joined.

mod common;

use anyring_abi::{IORING_ENTER_GETEVENTS, IORING_ENTER_SQ_WAKEUP, IORING_SETUP_SQPOLL};
use anyring_conformance::{aio::Aio, door::Door, ring::Ring, sqe};
use common::{anyring, library, one_line_failure, output};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A child that ends with the test, however the test ends.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Ended {
    fn signal(&self, signal: i32) {
        // SAFETY: kill(2) on a child that was not waited for.
        assert_eq!(unsafe { libc::kill(self.0.id() as i32, signal) }, 0);
    }

    /// Waits for the child's end, which must come soon, and returns the exit status.
    fn status(&mut self) -> Option<i32> {
        let limit = Instant::now() + Duration::from_secs(60);
        loop {
            match self.0.try_wait().expect("wait") {
                Some(status) => return status.code(),
                None => assert!(Instant::now() < limit, "it does not end"),
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// The variable that selects the behaviour of [`program`].
const MODE: &str = "ANYRING_TEST_PROGRAM";

/// The [`program`] of this file, served by anyring's engine.
fn served(mode: &str) -> Ended {
    library();
    let mut command = anyring(&["run", "--backend", "user", "--aio", "user", "--"]);
    command.arg(std::env::current_exe().expect("this program")).args(["--ignored", "--exact", "program"]);
    Ended(command.env(MODE, mode).stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("start the program"))
}

#[test]
#[ignore = "is what the other tests trace"]
fn program() {
    // `make soak` runs all ignored tests.
    let Ok(mode) = std::env::var(MODE) else { return };
    let (flags, wakeup) = if mode == "poll" { (IORING_SETUP_SQPOLL, IORING_ENTER_SQ_WAKEUP) } else { (0, 0) };
    let mut ring = Ring::new(Door::Libc, 8, flags).expect("a ring");
    let aio = Aio::new(Door::Libc, 8);
    let zero = std::fs::File::open("/dev/zero").expect("a file");
    let (reader, writer) = rustix::pipe::pipe().expect("a pipe");
    let mut buffer = [0u8; 512];
    let began = Instant::now();
    for round in 0.. {
        if began.elapsed() > Duration::from_secs(300) {
            return; // its test is gone
        }
        ring.push(sqe::read(sqe::fd(&reader), &mut buffer, 0));
        let count = ring.publish();
        assert_eq!(ring.enter(count, 0, wakeup, 0, 0), 1);
        assert_eq!(rustix::io::write(&writer, &[1; 512]), Ok(512));
        assert_eq!(ring.wait().res, 512);
        assert_eq!(aio.run(anyring_conformance::aio::pread(&zero, &mut buffer, 0)), 512);
        assert_eq!(Ring::new(Door::Libc, 8, 0).expect("another ring").run(sqe::nop()), 0);
        match mode.as_str() {
            "stay" => std::thread::sleep(Duration::from_millis(1)),
            _ if round == 400 => return,
            "fork" => use_in_child(&ring),
            _ => {}
        }
    }
}

/// Has a child of fork use the ring that it inherits, and a ring of its own.
fn use_in_child(ring: &Ring) {
    // SAFETY: the child makes system calls, which its only thread may make, and ends.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let inherited = ring.enter(0, 0, IORING_ENTER_GETEVENTS, 0, 0);
        let own = Ring::new(Door::Libc, 8, 0).map(|mut own| own.run(sqe::nop()));
        // SAFETY: ends the child, without running the test's exit handlers.
        unsafe { libc::_exit(i32::from((inherited, own) != (0, Ok(0)))) }
    }
    let mut status = 0;
    // SAFETY: `status` is writable.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert_eq!(status, 0);
}

/// A tracer of that process, with its standard error.
fn tracer(process: &Ended, form: &str, report: &Path) -> Ended {
    let mut command = anyring(&["trace", "--backend", "user", "--pid", &process.0.id().to_string(), form, "-o"]);
    Ended(command.arg(report).stderr(Stdio::piped()).spawn().expect("start anyring"))
}

/// Waits until the process has a ring, and so can be joined.
fn wait_for_ring(process: &Ended) {
    wait_until("a ring", || is_served(process.0.id()));
}

/// True if the process has a ring (a socket) and its counters. The counters alone prove nothing: they are open for a
/// moment before the first ring.
fn is_served(process: u32) -> bool {
    let links = links_of(process);
    let has = |name: &str| links.iter().any(|link| link.starts_with(name));
    has("socket:") && has("/memfd:anyring-counters")
}

fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    let limit = Instant::now() + Duration::from_secs(60);
    while !is_so() {
        assert!(Instant::now() < limit, "not in time: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// The files of the process's descriptors and mappings.
fn links_of(process: u32) -> Vec<String> {
    let folder = format!("/proc/{process}");
    let fds = std::fs::read_dir(format!("{folder}/fd")).into_iter().flatten().flatten();
    let links = fds.filter_map(|fd| std::fs::read_link(fd.path()).ok());
    let maps = std::fs::read_to_string(format!("{folder}/maps")).unwrap_or_default();
    links.map(|link| link.to_string_lossy().into_owned()).chain(maps.lines().map(str::to_owned)).collect()
}

/// Number of times that the threads of the process went to sleep: a [`program`] that stays does so in each round.
fn sleeps_of(process: &Ended) -> u64 {
    let tasks = std::fs::read_dir(format!("/proc/{}/task", process.0.id())).expect("its threads");
    let counts = tasks.flatten().filter_map(|task| {
        let status = std::fs::read_to_string(task.path().join("status")).ok()?;
        status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"))?.trim().parse::<u64>().ok()
    });
    counts.sum()
}

fn is_followed(process: &Ended) -> bool {
    links_of(process.0.id()).iter().filter(|link| link.contains("anyring-events")).count() >= 2
}

fn report(file: &Path) -> serde_json::Value {
    let text = std::fs::read_to_string(file).expect("the report");
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

fn has_kind(report: &serde_json::Value, opcode: &str, path: &str) -> bool {
    let rings = report["rings"].as_array().expect("rings");
    let mut kinds = rings.iter().flat_map(|ring| ring["kinds"].as_array().expect("kinds"));
    kinds.any(|kind| kind["opcode"] == opcode && kind[path].as_u64() > Some(0))
}

#[test]
fn a_served_process_is_joined_again_and_again() {
    let process = served("stay");
    wait_for_ring(&process);
    let directory = tempfile::tempdir().expect("a directory");
    for round in 0..3 {
        let file = directory.path().join(format!("report-{round}"));
        let mut tracer = tracer(&process, "--json", &file);
        wait_until("it is heard", || is_followed(&process));
        let before = sleeps_of(&process);
        wait_until("it goes round", || sleeps_of(&process) > before + 10);
        // While this tracer is there, no other is let in.
        let number = process.0.id().to_string();
        let second = output(&mut anyring(&["trace", "--backend", "user", "--pid", &number]));
        let line = one_line_failure(&second, 125);
        assert!(line.contains("another anyring trace has joined it"), "{line}");
        tracer.signal(libc::SIGINT);
        assert_eq!(tracer.status(), Some(0));
        let report = report(&file);
        assert_eq!(report["backend"], "anyring");
        for (opcode, path) in [("READ", "poll"), ("PREAD", "inline"), ("NOP", "inline")] {
            assert!(has_kind(&report, opcode, path), "{opcode}: {report}");
        }
        wait_until("nothing is left of it", || {
            !links_of(process.0.id()).iter().any(|it| it.contains("anyring-events"))
        });
    }
    let mut process = process;
    assert!(process.0.try_wait().expect("wait").is_none(), "it runs on");
}

#[test]
fn the_tracer_ends_with_the_process_and_a_killed_one_is_no_harm() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("report");
    let mut process = served("stay");
    wait_for_ring(&process);
    let mut killed = tracer(&process, "--events", &directory.path().join("events"));
    wait_until("it is heard", || is_followed(&process));
    killed.0.kill().expect("kill");
    killed.status();
    let mut tracer = tracer(&process, "--json", &file);
    // Long enough to join: the killed tracer's traces look like those of the new one.
    std::thread::sleep(Duration::from_millis(300));
    process.0.kill().expect("kill the cases");
    assert_eq!(tracer.status(), Some(0));
    assert!(has_kind(&report(&file), "READ", "poll"), "{}", report(&file));
}

#[test]
fn programs_that_fork_or_have_rings_polled_are_unharmed() {
    let directory = tempfile::tempdir().expect("a directory");
    for mode in ["fork", "poll"] {
        let mut process = served(mode);
        wait_for_ring(&process);
        let mut status = None;
        for round in 0..50 {
            let mut tracer = tracer(&process, "--events", &directory.path().join("events"));
            std::thread::sleep(Duration::from_millis(20 + 10 * round));
            tracer.signal(libc::SIGINT);
            tracer.status();
            status = process.0.try_wait().expect("wait");
            if status.is_some() {
                break;
            }
        }
        let code = status.map_or_else(|| process.status(), |status| status.code());
        assert_eq!(code, Some(0), "{mode}");
    }
}

#[test]
fn a_process_that_cannot_be_joined_is_named_in_one_line() {
    let join = |pid: &str| output(&mut anyring(&["trace", "--backend", "user", "--pid", pid]));
    let mut sleeping = Ended(Command::new("sleep").arg("1000").spawn().expect("sleep"));
    let line = one_line_failure(&join(&sleeping.0.id().to_string()), 125);
    assert!(line.contains("anyring does not serve it, or it has no ring now"), "{line}");
    sleeping.0.kill().expect("kill");
    sleeping.0.wait().expect("wait");
    let line = one_line_failure(&join(&sleeping.0.id().to_string()), 125);
    assert!(line.contains("no such process"), "{line}");
    // A preloaded library alone is not enough: it needs a ring.
    let mut idle = anyring(&["run", "--backend", "user", "--", "sleep", "1000"]);
    let idle = Ended(idle.spawn().expect("start"));
    let is_loaded = || {
        let links = links_of(idle.0.id());
        ["/sleep", "/libanyring.so"].iter().all(|name| links.iter().any(|link| link.ends_with(name)))
    };
    wait_until("the library", is_loaded);
    let line = one_line_failure(&join(&idle.0.id().to_string()), 125);
    assert!(line.contains("has no ring now"), "{line}");
}

#[test]
fn a_process_that_writes_events_already_is_refused() {
    let directory = tempfile::tempdir().expect("a directory");
    library();
    let mut command = anyring(&["trace", "--backend", "user", "--events", "-o"]);
    command.arg(directory.path().join("events")).arg("--").arg(std::env::current_exe().expect("this program"));
    command.args(["--ignored", "--exact", "program"]).env(MODE, "stay").stdout(Stdio::null()).stderr(Stdio::null());
    let mut first = Ended(command.spawn().expect("start anyring"));
    let children = format!("/proc/{0}/task/{0}/children", first.0.id());
    let child = || std::fs::read_to_string(&children).unwrap_or_default().trim().to_owned();
    // Its first child only asks the loader whether it accepts the library.
    wait_until("a ring", || child().parse().is_ok_and(is_served));
    let child: u32 = child().parse().expect("a number");
    let line =
        one_line_failure(&output(&mut anyring(&["trace", "--backend", "user", "--pid", &child.to_string()])), 125);
    assert!(line.contains("its events go to another anyring trace"), "{line}");
    first.signal(libc::SIGTERM); // the program gets it
    first.status();
}

#[test]
fn another_users_process_is_refused() {
    // SAFETY: takes no arguments and returns a number.
    if unsafe { libc::geteuid() } != 0 {
        return common::skipped("that another user's process is refused: only root can be two users");
    }
    let process = served("stay");
    wait_for_ring(&process);
    let mut stranger = anyring(&["trace", "--backend", "user", "--pid", &process.0.id().to_string()]);
    match stranger.uid(65534).gid(65534).output() {
        Err(error) => {
            common::skipped(&format!("that another user's process is refused: nobody cannot start it: {error}"))
        }
        Ok(refused) => {
            let line = one_line_failure(&refused, 125);
            assert!(line.contains("not permitted"), "{line}");
        }
    }
}
