//! `--verify COMMAND`: compares the time of a changed program with that of the traced one. Both run in turns,
//! untraced.

use crate::cli::Program;
use crate::failure::Failure;
use crate::{library, output};
use anyring_lab::statistics::median;
use anyring_trace::time;
use std::ffi::{OsStr, OsString};
use std::os::unix::process::{parent_id, CommandExt, ExitStatusExt};
use std::process::{Command, ExitStatus, Stdio};
use std::time::Instant;

/// Number of runs of each program.
const TURNS: usize = 5;
/// The smallest relative difference that counts.
const LEAST: f64 = 0.03;

/// The environment of this process as it was before the trace changed it.
pub struct Before(Vec<(OsString, OsString)>);

/// The times of one run: elapsed time and CPU time, in nanoseconds.
type RunTimes = [f64; 2];

impl Before {
    pub fn new() -> Before {
        Before(std::env::vars_os().collect())
    }

    /// Runs both programs in turns on this backend, and prints which took less time.
    ///
    /// # Errors
    /// One of the programs could not be run, or failed.
    pub fn verify(&self, by_kernel: bool, program: &Program, changed: &OsStr) -> Result<(), Failure> {
        let backend = if by_kernel { "kernel" } else { "user" };
        let changed: [&OsStr; 3] = ["sh".as_ref(), "-c".as_ref(), changed];
        let mut turns: [Vec<RunTimes>; 2] = Default::default();
        for _ in 0..TURNS {
            turns[0].push(self.run(backend, &program.words, "the program")?);
            turns[1].push(self.run(backend, &changed, "the changed program")?);
        }
        output::complain(&format!("anyring trace: {}", verdict(&turns)));
        Ok(())
    }

    fn run(&self, backend: &str, words: &[impl AsRef<OsStr>], what: &str) -> Result<RunTimes, Failure> {
        let failed = |why: String| Failure::own(format!("--verify: {what}: {why}"));
        let anyring = library::executable().map_err(|error| failed(error.to_string()))?;
        let mut command = Command::new(anyring);
        command.args(["run", "--backend", backend, "--"]).args(words).env_clear();
        command.envs(self.0.iter().map(|(name, value)| (name, value)));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let parent = std::process::id();
        // SAFETY: the closure makes two system calls, which a forked child may make.
        unsafe {
            command.pre_exec(move || {
                // A signal that ends this process ends the run, too.
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGTERM);
                match parent_id() == parent {
                    true => Ok(()),
                    false => Err(std::io::ErrorKind::Interrupted.into()),
                }
            })
        };
        let began = Instant::now();
        let child = command.spawn().map_err(|error| failed(error.to_string()))?;
        let (status, cpu_ns) = wait(child.id() as libc::pid_t);
        let elapsed_ns = began.elapsed().as_nanos() as f64;
        match status.success() {
            true => Ok([elapsed_ns, cpu_ns]),
            false => Err(failed(format!("{status}, so nothing is proven"))),
        }
    }
}

/// A child's status, and the CPU time of it and of the children that it waited for.
fn wait(pid: libc::pid_t) -> (ExitStatus, f64) {
    // SAFETY: both places are writable, and all zeros are a rusage.
    let (status, used) = unsafe {
        let (mut status, mut used) = (0, std::mem::zeroed::<libc::rusage>());
        while libc::wait4(pid, &mut status, 0, &mut used) == -1 && crate::errno::last() == libc::EINTR {}
        (status, used)
    };
    let ns = |time: libc::timeval| time.tv_sec as f64 * 1e9 + time.tv_usec as f64 * 1e3;
    (ExitStatus::from_raw(status), ns(used.ru_utime) + ns(used.ru_stime))
}

/// Compares the programs. A difference counts only if the medians differ and all turns, except at most one, agree.
fn verdict([before, after]: &[Vec<RunTimes>; 2]) -> String {
    let [elapsed, cpu] = [0, 1].map(|which| {
        let of = |turns: &[RunTimes]| median(&turns.iter().map(|took| took[which]).collect::<Vec<_>>());
        let (old, new) = (of(before), of(after));
        let change = (new - old) / old.max(1.0);
        let agree =
            before.iter().zip(after).filter(|(old, new)| (new[which] < old[which]) == (change < 0.0)).count();
        let is_clear = change.abs() >= LEAST && agree + 1 >= before.len();
        let times = format!("{} -> {}", time(Some(old as u64)), time(Some(new as u64)));
        let sign = if change < 0.0 { "less" } else { "more" };
        let text = match is_clear {
            true => format!("{times} ({:.0}% {sign})", 100.0 * change.abs()),
            false => format!("{times} (no clear difference)"),
        };
        (text, if is_clear { change } else { 0.0 })
    });
    let says = match (elapsed.1, cpu.1) {
        (elapsed, cpu) if elapsed <= 0.0 && cpu <= 0.0 && elapsed + cpu < 0.0 => "it helped",
        (elapsed, cpu) if elapsed >= 0.0 && cpu >= 0.0 && elapsed + cpu > 0.0 => "it made it worse",
        (elapsed, cpu) if elapsed == 0.0 && cpu == 0.0 => "it did not help",
        _ => "one time for the other",
    };
    format!("in {} turns: elapsed {}, CPU time {}: {says}", before.len(), elapsed.0, cpu.0)
}
