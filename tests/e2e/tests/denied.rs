//! Checks that `anyring deny` alone denies. Without `anyring run` each client fails with the expected errno. Only
//! Node works: it falls back to its thread pool and to plain epoll_ctl.

use anyring_e2e::{cases, programs, stage::Program, Environment, Refusal, Stage};
use std::process::ExitCode;

fn main() -> ExitCode {
    let refusals = [Refusal::Eperm, Refusal::Enosys].into_iter().chain(Refusal::PROFILES);
    let environments: Vec<_> = refusals.map(Environment::of_caller).collect();
    anyring_e2e::cases::run(&environments, &cases![fio, qemu_img, qemu_io, clients_of_ours, node_falls_back])
}

fn fails(stage: &Stage, program: &Program, message: &str) {
    let outcome = stage.deny(program);
    assert!(!outcome.status.success(), "it ran although io_uring is denied: {outcome}");
    let printed = format!("{}{}", outcome.stdout, outcome.stderr);
    assert!(printed.contains(message), "it failed, but not with `{message}`: {outcome}");
}

fn fio(environment: Environment) {
    let job = ["--name=denied", "--ioengine=io_uring", "--rw=read", "--size=1m", "--directory=."];
    fails(&Stage::new(environment), &Program::new("fio").args(job), environment.refusal.message());
}

/// qemu drops the errno from its message.
const QEMU_MESSAGE: &str = "failed to init linux io_uring ring";

fn qemu_img(environment: Environment) {
    let stage = Stage::new(environment);
    stage.make_file("disk", 0, 1 << 20);
    let arguments = ["bench", "-i", "io_uring", "-f", "raw", "-c", "10", "disk"];
    fails(&stage, &Program::new("qemu-img").args(arguments), QEMU_MESSAGE);
}

fn qemu_io(environment: Environment) {
    let stage = Stage::new(environment);
    stage.make_file("disk", 0, 1 << 20);
    let arguments = ["-f", "raw", "-i", "io_uring", "-c", "read 0 4k", "disk"];
    fails(&stage, &Program::new("qemu-io").args(arguments), QEMU_MESSAGE);
}

fn clients_of_ours(environment: Environment) {
    let stage = Stage::new(environment);
    for client in ["io-uring", "io-uring-direct", "tokio-uring", "monoio", "static-liburing"] {
        fails(&stage, &Program::new(programs::client(client)).args(["file"]), environment.refusal.message());
    }
    fails(&stage, &Program::new(programs::client("nop")), environment.refusal.message());
}

fn node_falls_back(environment: Environment) {
    let program = Program::new(programs::node()).args([programs::node_script()]).args(["."]);
    let outcome = Stage::new(environment).deny(&program.env("UV_USE_IO_URING", "1")).succeeded();
    assert!(outcome.stdout.contains("verified"), "{outcome}");
}
