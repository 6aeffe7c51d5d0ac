//! The engine's threads, told by their names: they are the process's, whichever thread needed one first.

use crate::child::report;
use crate::program::{Program, Step};
use std::time::Duration;

/// Those that serve the whole process; some workers serve an identity alone, and are scheduled as whoever has it.
const NAMES: [&str; 3] = ["anyring-helper\n", "anyring-waitid\n", "anyring-maker\n"];

/// How a thread is scheduled and filtered, and what signals it may take.
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

/// Reports one of them that is not as the process's first thread is, or takes its signals.
pub fn check(program: &Program) {
    // A nice value that is lower again, and another scheduler, take rights.
    let (any_nice, any_filters) = (program.unprivileged, program.filters_threads());
    // Whether a filter permits the calls is asked in a child, for which there may be no room.
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
        // One that has just begun is so a moment later, and one that ends is not there.
        std::thread::sleep(Duration::from_millis(50));
        let (its, first) = (manner(&task), manner(&own));
        if is_engines() && its != first {
            let name = read(&task, "comm");
            report(format_args!("thread: {} is {its:?}, and the first thread {first:?}", name.trim()));
        }
    }
}
