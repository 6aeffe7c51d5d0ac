//! Debian 11's shell and fio with that release's glibc, 2.31. libpthread and libdl are libraries of their own there,
//! and the shell needs neither. If they are unavailable, all cases count as ignored.

use anyring_e2e::stage::Program;
use anyring_e2e::{cases, programs, Environment, Outcome, Refusal, Stage, User};
use std::process::ExitCode;

fn main() -> ExitCode {
    let here = programs::debian11();
    let docker = Environment { refusal: Refusal::Docker, user: User::Ordinary };
    let environments = [docker, Environment::of_caller(Refusal::NoAio)];
    let cases = cases![shell, buffered, direct, two_threads, linux_aio];
    anyring_e2e::cases::run_unless(here.as_ref().err().map(String::as_str), &environments, &cases)
}

/// A stage with the programs in it: they name their loader and libraries by their place.
fn stage(environment: Environment) -> Stage {
    let stage = Stage::new(environment);
    programs::place_debian11(stage.directory());
    stage
}

fn fio(stage: &Stage, engine: &str, extra: &[&str]) -> Program {
    let fixed = ["--name=verified", "--rw=randrw", "--size=4m", "--bsrange=4k-128k", "--iodepth=16"];
    let verify = ["--verify=crc32c", "--verify_fatal=1", "--directory=.", "--output-format=terse"];
    Program::new(stage.file("fio")).args(fixed).args(verify).args([engine]).args(extra)
}

fn verified(environment: Environment, engine: &str, extra: &[&str]) {
    let stage = stage(environment);
    let minimum = |_: &Outcome| vec![("READ", 30), ("WRITE", 15)];
    stage.serve_raw(&fio(&stage, engine, extra), minimum);
}

/// The library brings libpthread into a program that has none. The programs that this one starts are served.
fn shell(environment: Environment) {
    let stage = stage(environment);
    let job = "./fio --name=shell --ioengine=io_uring --rw=write --size=1m --verify=crc32c --output-format=terse";
    let script = format!("exec 3</dev/null; {job} >fio.log && exec ./dash -c 'echo \"$0\"' grandchild");
    let shell = Program::new(stage.file("dash")).args(["-c", &script]);
    let Some(outcome) = stage.serve_raw(&shell, |_| vec![("READ", 200), ("WRITE", 200)]) else { return };
    assert_eq!((&*outcome.stdout, &*outcome.stderr), ("grandchild\n", ""), "{outcome}");
}

fn buffered(environment: Environment) {
    verified(environment, "--ioengine=io_uring", &[]);
}

fn direct(environment: Environment) {
    verified(environment, "--ioengine=io_uring", &["--direct=1"]);
}

fn two_threads(environment: Environment) {
    verified(environment, "--ioengine=io_uring", &["--numjobs=2", "--thread"]);
}

fn linux_aio(environment: Environment) {
    if environment.refusal == Refusal::NoAio {
        verified(environment, "--ioengine=libaio", &["--direct=1"]);
    }
}
