//! What libanyring.so costs a process that never uses io_uring: to load it, and to call libc's `syscall()` through it.

use crate::message::{Reply, Task};
use crate::spawn::Program;
use crate::statistics::{Estimate, Summary};
use crate::worker::{Launcher, Side};
use serde::Serialize;

/// A program that does nothing, on every machine.
const PROGRAM: &str = "/bin/true";
/// What loading may cost.
pub const LIMIT_NS: f64 = 200_000.0;
/// Runs of the passthrough measurement, and calls in each.
const SYSCALL_RUNS: usize = 15;
const SYSCALL_CALLS: u64 = 300_000;
/// Starts that are not counted, while the files get into the page cache.
const WARM_UP: usize = 10;

/// The whole measurement.
#[derive(Debug, Serialize)]
pub struct LoadReport {
    /// What was started.
    pub program: String,
    /// How often, with and without the library.
    pub runs: usize,
    /// From posix_spawn(3) to the end of waitpid(2), without the library.
    pub plain: Summary,
    /// The same with the library preloaded.
    pub preloaded: Summary,
    /// preloaded - plain, in ns.
    pub cost_ns: Estimate,
    /// The goal for it.
    pub limit_ns: f64,
    /// `syscall()`.
    pub syscall: SyscallReport,
}

/// `syscall(SYS_getpid)`.
#[derive(Debug, Serialize)]
pub struct SyscallReport {
    /// Processes started on each side.
    pub runs: usize,
    /// Calls timed in each.
    pub calls: u64,
    /// Through libc.
    pub libc: Summary,
    /// Through our symbol.
    pub anyring: Summary,
    /// anyring - libc, in ns.
    pub cost_ns: Estimate,
}

/// Measures both, each side in turns. `progress` is told of each process that ended. The error is one line for people.
pub fn measure(launcher: &Launcher, runs: usize, mut progress: impl FnMut()) -> Result<LoadReport, String> {
    let preload = format!("LD_PRELOAD={}", launcher.library().display());
    let plain = Program::new(PROGRAM, &[])?;
    // The variables that `anyring run` sets.
    let preloaded = Program::new(PROGRAM, &[&preload, "ANYRING_BACKEND=user"])?;
    check_loaded(launcher)?;
    for _ in 0..WARM_UP {
        preloaded.time_ns()?;
        plain.time_ns()?;
    }
    let mut pairs = Vec::new();
    for _ in 0..runs {
        pairs.push((preloaded.time_ns()?, plain.time_ns()?));
        progress();
    }
    let (with, without): (Vec<_>, Vec<_>) = pairs.iter().copied().unzip();
    Ok(LoadReport {
        program: PROGRAM.to_owned(),
        runs,
        plain: Summary::of(&without),
        preloaded: Summary::of(&with),
        cost_ns: Estimate::difference(&pairs),
        limit_ns: LIMIT_NS,
        syscall: measure_syscall(launcher)?,
    })
}

/// Asks the loader whether it loads the library into the program: a static one would ignore it.
fn check_loaded(launcher: &Launcher) -> Result<(), String> {
    let mut command = std::process::Command::new(PROGRAM);
    let output =
        command.env_clear().env("LD_TRACE_LOADED_OBJECTS", "1").env("LD_PRELOAD", launcher.library()).output();
    let output = output.map_err(|error| format!("{PROGRAM}: {error}"))?;
    let objects = String::from_utf8_lossy(&output.stdout);
    let library = launcher.library().to_string_lossy();
    match objects.lines().any(|line| line.trim().starts_with(library.as_ref())) {
        true => Ok(()),
        false => Err(format!("the loader does not load {library} into {PROGRAM}: is it a static program?")),
    }
}

fn measure_syscall(launcher: &Launcher) -> Result<SyscallReport, String> {
    let task = Task::Syscall { calls: SYSCALL_CALLS };
    let one = |side| match launcher.run(side, task)? {
        Reply::Measured(measured) => Ok(measured.ns_per_operation),
        Reply::Refused(refusal) => Err(format!("{}: errno {}", refusal.call, refusal.errno)),
        Reply::Failed(why) => Err(why),
    };
    let pairs: Vec<_> =
        (0..SYSCALL_RUNS).map(|_| Ok((one(Side::Anyring)?, one(Side::Native)?))).collect::<Result<_, String>>()?;
    let (anyring, libc): (Vec<_>, Vec<_>) = pairs.iter().copied().unzip();
    Ok(SyscallReport {
        runs: SYSCALL_RUNS,
        calls: SYSCALL_CALLS,
        libc: Summary::of(&libc),
        anyring: Summary::of(&anyring),
        cost_ns: Estimate::difference(&pairs),
    })
}
