//! Nonblocking first attempts on pipes, as published in March 2023.

use super::{Measurement, Plan, Setting, Workload};
use crate::backend::Backend::{self, *};
use crate::message::{Pipes, Work};
use crate::report::{Figure, Published};

/// The workload `pipes`.
pub const PIPES: Workload = Workload {
    name: "pipes",
    title: "128 pipes, 256 rounds of reading and writing",
    axis: "",
    about: "16 bytes through each of 128 pipes, 256 times, each checked; in all, in ms. Empty: the reads are \
            submitted before the writes. Before: every request goes to a worker thread (IOSQE_ASYNC, or a thread \
            pool), as all did until Linux 6.4. After: a nonblocking attempt comes first. Punted is how many requests \
            a worker carried out in one run.",
    share: 1,
    plan,
};

const SOURCE: &str = "J. Axboe's benchmark for Linux 6.4, in M. Larabel, Phoronix, 8 March 2023";
const POOLS: &[Backend] = &[Anyring, Kernel, Libuv, PosixAio, Threads];
const NONBLOCKING: &[Backend] = &[Anyring, Kernel, Epoll, KernelAio];

struct Case {
    name: &'static str,
    ready: bool,
    forced: bool,
    backends: &'static [Backend],
    published: [f64; 4],
}

const CASES: [Case; 4] = [
    Case {
        name: "empty, before",
        ready: false,
        forced: true,
        backends: POOLS,
        published: [262.52, 2.12, 261.07, 267.91],
    },
    Case {
        name: "empty, after",
        ready: false,
        forced: false,
        // io_submit(2) blocks in a read of an empty pipe.
        backends: &[Anyring, Kernel, Epoll],
        published: [24.14, 9.61, 17.84, 43.75],
    },
    Case {
        name: "data ready, before",
        ready: true,
        forced: true,
        backends: POOLS,
        published: [249.24, 0.20, 248.96, 249.53],
    },
    Case {
        name: "data ready, after",
        ready: true,
        forced: false,
        backends: NONBLOCKING,
        published: [10.86, 0.91, 10.02, 12.67],
    },
];

fn plan(setting: &mut Setting) -> Result<Plan, String> {
    let (pipes, rounds) = setting.pick((128, 256), (16, 8));
    let measurements = CASES.iter().map(|case| {
        let mut figure = Figure::new("pipes", case.name, "ms");
        let [value, stdev, min, max] = case.published;
        figure.published.push(Published {
            label: "published".to_owned(),
            value,
            spread: Some([stdev, min, max]),
            source: SOURCE.to_owned(),
        });
        let work = Work::Pipes(Pipes { pipes, rounds, ready: case.ready, forced: case.forced });
        Measurement { count_punted: true, ..Measurement::new(work, case.backends, vec![figure]) }
    });
    let notes = vec![
        "Thread pools get the reads of an empty pipe only: a pool that sleeps in them would never come to the \
         writes, which are plain calls."
            .to_owned(),
        "The published figures are from another machine; what compares is before with after.".to_owned(),
    ];
    Ok(Plan { measurements: measurements.collect(), notes, ..Plan::default() })
}
