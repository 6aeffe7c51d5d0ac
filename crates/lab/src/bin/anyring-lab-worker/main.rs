//! One workload of the lab, in its own process: ordinary programs that know nothing of anyring. The argument is a
//! [`Task`] as JSON, the answer is one line of JSON, a [`Reply`].
//!
//! `work/` has a file for each workload, with its programs. Programs of the interfaces use `ring` and `aio`, the
//! others use `peer/`.

mod aio;
mod arch;
mod outcome;
mod peer;
mod provider;
mod ring;
mod syscall;
mod work;

use anyring_lab::message::{Reply, Task, Work};
use outcome::Outcome;
use std::process::ExitCode;

/// The limit of a task, which takes seconds at most. A ring that never completes ends with SIGALRM, which the parent
/// reports.
const PATIENCE_S: u32 = 120;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    // SAFETY: no pointers; the default action of SIGALRM is to end this process.
    unsafe { libc::alarm(PATIENCE_S) };
    if let [first, rest @ ..] = &words[..] {
        let client = match first.as_str() {
            work::echo::CLIENT => Some(work::echo::talk as fn(&[u64]) -> Outcome<f64>),
            work::messages::fan_out::CLIENT => Some(work::messages::fan_out::connect as _),
            _ => None,
        };
        if let Some(client) = client {
            return work::echo::client(rest, client);
        }
    }
    let task = match &words[..] {
        [text] => serde_json::from_str::<Task>(text).map_err(|error| error.to_string()),
        _ => Err(format!("{} arguments", words.len())),
    };
    let reply = match task {
        Ok(task) => run(&task),
        Err(why) => {
            eprintln!("anyring-lab-worker is started by `anyring lab` and `anyring advise`; it does not understand this: {why}");
            return ExitCode::from(2);
        }
    };
    match serde_json::to_string(&reply) {
        Ok(line) => println!("{line}"),
        Err(error) => eprintln!("{error}"),
    }
    match reply {
        Reply::Failed(_) => ExitCode::FAILURE,
        Reply::Measured(_) | Reply::Refused(_) | Reply::Missing(_) => ExitCode::SUCCESS,
    }
}

fn run(task: &Task) -> Reply {
    let (program, door) = (task.program, task.door);
    outcome::reply(match &task.work {
        Work::Nop { batch, operations } => work::nop::run(door, *batch, *operations),
        Work::Syscall { calls } => return syscall::run(*calls),
        Work::Start { .. } => Err("the lab starts processes itself".into()),
        Work::Pipes(pipes) => work::pipes::run(program, door, pipes),
        Work::Files(files) => work::files::run(program, door, files),
        Work::Echo(echo) => work::echo::run(program, door, echo),
        Work::ArmAndCancel(timers) => work::timers::arm_and_cancel(program, door, timers),
        Work::Fire { timeouts, over_ms } => work::timers::fire(program, door, *timeouts, *over_ms),
        Work::Polls(polls) => work::polls::run(program, door, polls),
        Work::TokenPasses(tokens) => work::tokens::run(program, door, tokens),
        Work::Idle { rings, for_ms } => work::idle::run(program, door, *rings, *for_ms),
        Work::Messages(messages) => work::messages::run(program, door, messages),
        Work::FanIn(fan_in) => work::messages::fan_in::run(program, door, fan_in),
        Work::FanOut(fan_out) => work::messages::fan_out::run(program, door, fan_out),
        Work::DirectWrites(writes) => work::writes::run(program, door, writes),
        Work::Paired(paired) => work::paired::run(program, door, paired),
    })
}
