//! Waiting: for connections, for time, for a few of many descriptors.

use super::{Measurement, Plan, Setting, Workload};
use crate::backend::Backend::*;
use crate::message::{ArmAndCancel, CancelOrder, Echo, EchoStyle, Polls, Work};
use crate::report::Figure;

/// The workload `echo`.
pub const ECHO: Workload = Workload {
    name: "echo",
    title: "A TCP server that echoes",
    axis: "connections",
    about:
        "Clients on loopback, in a process of their own (epoll), send a message over each connection and wait for \
            the same bytes, which are compared; one message there and back, in ns. Plain: a RECV, then a SEND. \
            Deferred: the same with IORING_SETUP_DEFER_TASKRUN. Multishot: one RECV for all, with a buffer ring.",
    share: 2,
    plan: plan_echo,
};

fn plan_echo(setting: &mut Setting) -> Result<Plan, String> {
    let mut measurements = Vec::new();
    let connections: &[u32] = if setting.quick { &[1, 8] } else { &[1, 16, 64, 256] };
    for bytes in [64, 16 << 10] {
        for (style, name) in [
            (EchoStyle::Plain, "plain"),
            (EchoStyle::DeferTaskrun, "deferred"),
            (EchoStyle::Multishot, "multishot"),
        ] {
            for connections in connections.iter().copied() {
                let size = if bytes == 64 { "64 B" } else { "16 KiB" };
                let plural = if connections == 1 { "" } else { "s" };
                let group = format!("{size}, {name}");
                let figure = Figure::new(&group, format!("{connections} connection{plural}"), "ns")
                    .at(f64::from(connections));
                let messages = setting.pick(if bytes == 64 { 15_000 } else { 6_000 }, 64);
                let work = Work::Echo(Echo { connections, bytes, messages, style });
                measurements.push(Measurement {
                    runs: 5,
                    ..Measurement::new(work, &[Anyring, Kernel, Epoll, Threads], vec![figure])
                });
            }
        }
    }
    let notes = vec!["Blocking threads: one for each connection.".to_owned()];
    Ok(Plan { measurements, notes, ..Plan::default() })
}

/// The workload `timers`.
pub const TIMERS: Workload = Workload {
    name: "timers",
    title: "Timeouts",
    axis: "",
    about: "10,000 timeouts armed and then cancelled, in three orders: both together, in ns. And 1,000 timeouts spread \
            evenly over 100 ms: how late they fire, in us. epoll: a timerfd set to the first of a binary heap.",
    share: 1,
    plan: plan_timers,
};

fn plan_timers(setting: &mut Setting) -> Result<Plan, String> {
    let count = setting.pick(10_000, 200);
    let orders =
        [(CancelOrder::FirstIn, "first in"), (CancelOrder::LastIn, "last in"), (CancelOrder::Random, "random")];
    let backends = [Anyring, Kernel, Epoll, Libuv];
    let mut measurements: Vec<_> = orders
        .into_iter()
        .map(|(order, name)| {
            let work = Work::ArmAndCancel(ArmAndCancel { timeouts: count, order });
            let figure = Figure::new("arm and cancel", format!("{name} first"), "ns");
            Measurement { runs: 5, ..Measurement::new(work, &backends, vec![figure]) }
        })
        .collect();
    let work = Work::Fire { timeouts: setting.pick(1_000, 20), over_ms: setting.pick(100, 20) };
    let figures =
        vec![Figure::new("lateness", "mean of a run", "us"), Figure::new("lateness", "greatest of a run", "us")];
    measurements.push(Measurement { runs: 5, ..Measurement::new(work, &backends, figures) });
    let notes =
        vec!["libuv's timers are counted in whole milliseconds; so are those it was given here.".to_owned()];
    Ok(Plan { measurements, notes, ..Plan::default() })
}

/// The workload `polls`.
pub const POLLS: Workload = Workload {
    name: "polls",
    title: "Few of many descriptors become ready",
    axis: "idle descriptors",
    about: "Eventfds are polled, of which 64 are written in each round, found ready, read, checked, and polled again; one \
            of them, in ns.",
    share: 1,
    plan: plan_polls,
};

fn plan_polls(setting: &mut Setting) -> Result<Plan, String> {
    let counts: [u32; 3] = setting.pick([0, 1_000, 10_000], [0, 10, 300]);
    let measurements = counts.map(|idle| {
        let figure = Figure::new("polls", format!("{idle} idle"), "ns").at(f64::from(idle));
        let work = Work::Polls(Polls { idle, active: 64, rounds: setting.pick(500, 5) });
        Measurement::new(work, &[Anyring, Kernel, Epoll, KernelAio], vec![figure])
    });
    let notes = vec!["It needs as many descriptors: RLIMIT_NOFILE of 10,300.".to_owned()];
    Ok(Plan { measurements: measurements.to_vec(), notes, ..Plan::default() })
}
