//! One workload of the lab, in a process of its own: an ordinary program that knows nothing of anyring. The command
//! line is a [`Task`], the answer one line of JSON, a [`Reply`].

mod liburing;
mod nop;
mod provider;
mod syscall;

use anyring_lab::message::{Reply, Task};
use std::process::ExitCode;

/// A task takes a fraction of a second; a ring that never completes ends with SIGALRM, which the parent reports.
const PATIENCE_S: u32 = 60;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let Some(task) = Task::parse(&words) else {
        eprintln!("anyring-lab-worker is started by `anyring lab`; it does not understand {words:?}");
        return ExitCode::from(2);
    };
    // SAFETY: no pointers; the default action of SIGALRM is to end this process.
    unsafe { libc::alarm(PATIENCE_S) };
    let reply = match task {
        Task::Nop { batch, operations } => nop::run(batch, operations),
        Task::Syscall { calls } => syscall::run(calls),
    };
    match serde_json::to_string(&reply) {
        Ok(line) => println!("{line}"),
        Err(error) => eprintln!("{error}"),
    }
    match reply {
        Reply::Failed(_) => ExitCode::FAILURE,
        Reply::Measured(_) | Reply::Refused(_) => ExitCode::SUCCESS,
    }
}
