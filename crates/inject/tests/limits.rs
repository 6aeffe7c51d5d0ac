//! The limits of a container (`tests/c/engine/limits.c`): a small share of a CPU, few processes, little memory. The
//! program moves into a control group that the test makes and removes. `engine.rs` has the tests in which RLIMIT_NPROC
//! is the limit.

mod common;

use common::running::{Running, USUAL};
use common::{built, compile, no_liburing, scratch, skip, text};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// A control group of version 1. Dropping this value removes it and kills all processes in it.
struct Group(PathBuf);

impl Group {
    /// Makes a control group. The error is the reason why that is impossible.
    fn new(controller: &str, test: &str) -> Result<Group, String> {
        let hierarchy = Path::new("/sys/fs/cgroup").join(controller);
        if !hierarchy.join("cgroup.procs").exists() {
            return Err(format!("{} is no hierarchy of version 1 of control groups", hierarchy.display()));
        }
        let group = hierarchy.join(format!("anyring-test-{test}-{}", std::process::id()));
        fs::create_dir(&group).map_err(|error| format!("{}: {error}", group.display()))?;
        Ok(Group(group))
    }

    fn limit(&self, file: &str, value: &str) {
        fs::write(self.0.join(file), value).unwrap_or_else(|error| panic!("{file}: {error}"));
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let begin = Instant::now();
        // It is busy until its last process is gone; a test that failed may have left some.
        while fs::remove_dir(&self.0).is_err() && begin.elapsed() < Duration::from_secs(10) {
            let left = fs::read_to_string(self.0.join("cgroup.procs")).unwrap_or_default();
            for process in left.lines().filter_map(|line| line.parse().ok()) {
                // SAFETY: takes plain numbers; the processes in the group were started by this test.
                unsafe { libc::kill(process, libc::SIGKILL) };
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// Runs these cases on the engine, each in a new group of this controller with the limit. Runs them on the kernel's
/// io_uring, too, if the last argument is true.
fn in_group(test: &str, controller: &str, limit: Option<(&str, &str)>, cases: &[&str], natively: bool) {
    if let Some(reason) = no_liburing() {
        return skip(test, reason);
    }
    let program = scratch("limits").join(test);
    compile("engine/limits", &program, &["-luring"]);
    let (library, user) = (built().shared, Path::new("user"));
    let engine = [("LD_PRELOAD", library.as_path()), ("ANYRING_BACKEND", user), ("ANYRING_AIO", user)];
    let environments = [&[][..], &engine];
    for (case, environment) in
        cases.iter().flat_map(|case| environments[usize::from(!natively)..].iter().map(move |it| (case, it)))
    {
        let group = match Group::new(controller, test) {
            Ok(group) => group,
            Err(reason) => return skip(test, &reason),
        };
        if let Some((file, value)) = limit {
            group.limit(file, value);
        }
        let mut command = Command::new(&program);
        command.arg(case).env("ANYRING_TEST_GROUP", &group.0).envs(environment.iter().copied());
        let output = Running::start(command.stdin(Stdio::null())).output(USUAL);
        let output = output.unwrap_or_else(|why| panic!("{case} with {environment:?} {why}"));
        if let Some(reason) = String::from_utf8_lossy(&output.stdout).strip_prefix("skipped: ") {
            return skip(test, reason.trim_end());
        }
        let whole = output.status.success() && output.stdout == b"done\n" && output.stderr.is_empty();
        assert!(whole, "{case} with {environment:?}: {}", text(&output));
    }
}

/// A waiting thread is scheduled less often than once a second.
#[test]
#[ignore = "soak: makes control groups, as root"]
fn nothing_spins_below_a_quota_of_cpu_time() {
    let tenth = Some(("cpu.cfs_quota_us", "10000"));
    in_group("nothing_spins_below_a_quota_of_cpu_time", "cpu", tenth, &["quiet"], true);
}

#[test]
#[ignore = "soak: makes control groups, as root"]
fn requests_are_made_without_threads_below_a_limit_of_processes() {
    let cases = ["alone", "after-a-sleeper", "family"];
    in_group("requests_are_made_without_threads_below_a_limit_of_processes", "pids", None, &cases, false);
}

#[test]
#[ignore = "soak: makes control groups, as root"]
fn nobody_aborts_below_a_limit_of_memory() {
    let limit = Some(("memory.limit_in_bytes", "16M"));
    in_group("nobody_aborts_below_a_limit_of_memory", "memory", limit, &["little-memory"], true);
}
