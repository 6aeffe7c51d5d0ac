//! The cost of single things: a NOP, loading the library, an unused ring.

use super::{Measurement, Plan, Setting, Workload};
use crate::backend::Backend::*;
use crate::message::Work;
use crate::report::{Figure, WorkloadReport};
use crate::text;

/// The workload `nop`.
pub const NOP: Workload = Workload {
    name: "nop",
    title: "One NOP, submitted and reaped",
    axis: "",
    about:
        "io_uring_get_sqe, io_uring_submit, io_uring_wait_cqe, io_uring_cqe_seen, with 1 or 32 SQEs a submit call; \
            one NOP, in ns. The user_data and res of each CQE are checked.",
    share: 1,
    plan: plan_nop,
};

fn plan_nop(setting: &mut Setting) -> Result<Plan, String> {
    let operations: u64 = setting.pick(200_000, 2_000);
    let measurements = [1, 32].map(|batch| {
        let work = Work::Nop { batch, operations: operations.next_multiple_of(u64::from(batch)) };
        Measurement::new(work, &[Anyring, Kernel], vec![Figure::new("nop", format!("batch of {batch}"), "ns")])
    });
    Ok(Plan { measurements: measurements.to_vec(), ..Plan::default() })
}

/// The workload `load`.
pub const LOAD: Workload = Workload {
    name: "load",
    title: "What libanyring.so costs a program that never uses io_uring",
    axis: "",
    about: "/bin/true from posix_spawn(3) to the end of waitpid(2), in us, with the variables that `anyring run` sets \
            and with none; the goal is a difference below 200 us. The way through libc's syscall(), which the library \
            defines: syscall(SYS_getpid), in ns.",
    share: 1,
    plan: plan_load,
};

fn plan_load(setting: &mut Setting) -> Result<Plan, String> {
    let start = Work::Start { times: setting.pick(25, 2) };
    let syscall = Work::Syscall { calls: setting.pick(300_000, 1_000) };
    let measurements = [
        (start, Figure::new("starting a process", "/bin/true", "us")),
        (syscall, Figure::new("a system call", "syscall(SYS_getpid)", "ns")),
    ]
    .map(|(work, figure)| Measurement { runs: 15, ..Measurement::new(work, &[Anyring, Libc], vec![figure]) });
    Ok(Plan { measurements: measurements.to_vec(), conclude: cost_of_loading, ..Plan::default() })
}

/// Adds the conclusion about the one figure for which anyring has a goal.
fn cost_of_loading(report: &mut WorkloadReport) {
    const LIMIT_US: f64 = 200.0;
    let starts = report.rows.iter().find(|row| row.figure.unit == "us");
    let cost = starts.and_then(|row| row.columns.iter().find_map(|column| column.difference));
    if let Some(cost) = cost {
        report.notes.push(format!("loading costs {} us (limit {LIMIT_US:.0})", text::estimate(&cost, 0)));
    }
}

/// The workload `idle`.
pub const IDLE: Workload = Workload {
    name: "idle",
    title: "Rings that nobody uses",
    axis: "",
    about:
        "1 and 1,000 rings, each used once and then left alone: the process's CPU time while it sleeps, in us, and \
            the growth of its resident memory (Pss) for each ring, in KiB. The kernel's own structures behind a ring \
            are in no process's memory and are not counted, on either side.",
    share: 1,
    plan: plan_idle,
};

fn plan_idle(setting: &mut Setting) -> Result<Plan, String> {
    let for_ms = setting.pick(2_000, 50);
    let measurements = [1, setting.pick(1_000, 40)].map(|rings| {
        let plural = if rings == 1 { "" } else { "s" };
        let cpu = Figure::new("CPU", format!("{rings} ring{plural}, {for_ms} ms"), "us");
        let memory = Figure::new("memory", format!("{rings} ring{plural}, each"), "KiB");
        let work = Work::Idle { rings, for_ms };
        Measurement { runs: 5, ..Measurement::new(work, &[Anyring, Kernel, Epoll], vec![cpu, memory]) }
    });
    let notes = vec!["epoll: an epoll descriptor with one eventfd for each ring.".to_owned()];
    Ok(Plan { measurements: measurements.to_vec(), notes, ..Plan::default() })
}
