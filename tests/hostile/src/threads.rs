//! Checks the engine's threads, found by their names: they belong to the process, whichever thread needed one first.

use crate::child::report;
use crate::program::{Program, Step};
use std::time::Duration;

/// Threads that serve the whole process. Some workers serve only one identity, and are scheduled as its thread.
const NAMES: [&str; 3] = ["anyring-helper\n", "anyring-waitid\n", "anyring-maker\n"];

/// A thread's policy and nice value, CPUs, and number of seccomp filters.
#[derive(Debug, PartialEq, Eq)]
struct Manner {
    policy_and_nice: Option<(i32, i32)>,
    cpus: Option<String>,
    filters: Option<String>,
}

fn read(task: &str, file: &str) -> String {
    std::fs::read_to_string(format!("/proc/self/task/{task}/{file}")).unwrap_or_default()
}

fn field(status: &str, name: &str) -> Option<String> {
    Some(status.lines().find_map(|line| line.strip_prefix(name))?.trim().to_owned())
}

/// Reports such a thread if its scheduling, CPUs or filters differ from those of the process's first thread.
pub fn check(program: &Program) {
    // To lower a nice value again, or to change the scheduler, takes privileges.
    let (any_nice, any_filters) = (program.unprivileged, program.filters_threads());
    // A child finds out whether a filter permits the calls. Limits may leave no room for that child.
    let has_no_room = |step: &Step| {
        matches!(step, Step::Limit { resource: libc::RLIMIT_AS | libc::RLIMIT_NPROC, value: Some(_) })
    };
    if program.steps.iter().any(has_no_room) {
        return;
    }
    let manner = |task: &str| {
        let (status, number) = (read(task, "status"), task.parse().unwrap_or(0));
        // SAFETY: only asks.
        let scheduled =
            unsafe { (libc::sched_getscheduler(number), libc::getpriority(libc::PRIO_PROCESS, number as u32)) };
        Manner {
            policy_and_nice: Some(scheduled).filter(|_| !any_nice),
            cpus: field(&status, "Cpus_allowed:"),
            filters: field(&status, "Seccomp_filters:").filter(|_| !any_filters),
        }
    };
    let own = std::process::id().to_string();
    let tasks = std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    for task in tasks.map(|entry| entry.file_name().to_string_lossy().into_owned()) {
        let is_as_the_process = || manner(&task) == manner(&own);
        let is_engines = || NAMES.contains(&read(&task, "comm").as_str());
        if !is_engines() || is_as_the_process() {
            continue;
        }
        // A thread that has just begun may still change them. One that is about to end is gone after the sleep.
        std::thread::sleep(Duration::from_millis(50));
        let (its, first) = (manner(&task), manner(&own));
        if is_engines() && its != first {
            let name = read(&task, "comm");
            report(format_args!("thread: {} is {its:?}, and the first thread {first:?}", name.trim()));
        }
    }
}
