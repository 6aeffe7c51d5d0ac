//! Files: cached and direct reads, and direct writes with and without IOSQE_ASYNC.

use super::{Measurement, Plan, Setting, Workload};
use crate::backend::Backend::*;
use crate::message::{DirectWrites, Files, Work};
use crate::report::{Figure, Mark, Published, WorkloadReport};
use crate::scratch::RequestLimits;
use crate::worker::PUNTED;

/// The workload `files`.
pub const FILES: Workload = Workload {
    name: "files",
    title: "Reading a file",
    axis: "reads in flight",
    about:
        "Reads of a file on the disk, through the page cache (which holds all of it) or with O_DIRECT, so many in \
            flight; one read, in ns. Of each block the first and the last words are checked. Blocking threads: as \
            many as reads are in flight, each making its share of pread(2) calls.",
    share: 1,
    plan: plan_files,
};

struct Shape {
    group: &'static str,
    direct: bool,
    random: bool,
    block: u32,
    depths: &'static [u32],
    operations: u64,
}

const SHAPES: [Shape; 4] = [
    Shape {
        group: "page cache, 4 KiB random",
        direct: false,
        random: true,
        block: 4096,
        depths: &[1, 8, 32],
        operations: 20_000,
    },
    Shape {
        group: "page cache, 1 MiB sequential",
        direct: false,
        random: false,
        block: 1 << 20,
        depths: &[1, 8],
        operations: 1_000,
    },
    Shape {
        group: "O_DIRECT, 4 KiB random",
        direct: true,
        random: true,
        block: 4096,
        depths: &[1, 8, 32],
        operations: 4_000,
    },
    Shape {
        group: "O_DIRECT, 128 KiB sequential",
        direct: true,
        random: false,
        block: 128 << 10,
        depths: &[1, 8],
        operations: 1_000,
    },
];

fn plan_files(setting: &mut Setting) -> Result<Plan, String> {
    let bytes = setting.pick(128 << 20, 4 << 20);
    let path = setting.scratch.file("data", bytes)?;
    let mut measurements = Vec::new();
    for shape in SHAPES {
        for depth in shape.depths.iter().copied() {
            let work = Work::Files(Files {
                path: path.clone(),
                bytes,
                block: shape.block,
                depth,
                random: shape.random,
                direct: shape.direct,
                operations: setting.pick(shape.operations, 40),
            });
            let figure = Figure::new(shape.group, format!("depth {depth}"), "ns").at(f64::from(depth));
            let backends = [Anyring, Kernel, Libuv, PosixAio, KernelAio, Threads];
            let measurement = Measurement::new(work, &backends, vec![figure]);
            measurements.push(Measurement { count_punted: true, ..measurement });
        }
    }
    Ok(Plan { measurements, ..Plan::default() })
}

/// The workload `async`.
pub const ASYNC: Workload = Workload {
    name: "async",
    title: "O_DIRECT writes, with and without IOSQE_ASYNC",
    axis: "KiB a write",
    about: "One write of 1 to 2,048 blocks of 512 bytes at a time, from the submission to the CQE; the median, in us. \
            Punted is how many of the writes a worker carried out: without IOSQE_ASYNC the kernel punts those above \
            what the device takes in one request. What was written is read back and compared.",
    share: 1,
    plan: plan_async,
};

/// Numbers of 512-byte blocks in a write: those of the published figures (1 to 1,024), and larger ones. A loop
/// device does not take the largest in one request.
const BLOCKS: [u32; 15] = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 768, 1024, 1280, 1536, 2048];
const BLOCK_BYTES: u32 = 512;

/// `max_sectors_kb` of the published experiment.
const PUBLISHED_LIMIT_KIB: u64 = 256;
const SOURCE: &str = "an article on when to use IOSQE_ASYNC: an EBS volume, Linux 6.12, cycles at 2.5 GHz";
/// Number of blocks of the write whose time was published, and its times in us, without and with IOSQE_ASYNC.
const PUBLISHED: (u32, [f64; 2]) = (1024, [2202.4, 2187.8]);

fn plan_async(setting: &mut Setting) -> Result<Plan, String> {
    let most = BLOCKS[BLOCKS.len() - 1];
    let bytes = u64::from(most * BLOCK_BYTES);
    let mut plan = Plan { conclude: threshold, ..Plan::default() };
    plan.notes.push(
        "Published: with max_sectors_kb 256, writes of 1 and 512 blocks (256 KiB) were inline, of 513 punted; \
         with IOSQE_ASYNC all are. The published times are of a write beyond that limit."
            .to_owned(),
    );
    let mut sizes = setting.pick(BLOCKS.to_vec(), vec![8, 64, 1024, 2048]);
    let (path, smallest) = match setting.scratch.loop_device(bytes) {
        Ok(device) => {
            plan.notes.push("On a loop device of its own, with that limit where sysfs can be written.".to_owned());
            if let Some(limits) = setting.scratch.limit_requests(&device, PUBLISHED_LIMIT_KIB) {
                let RequestLimits { sectors_kib, segments_kib } = limits;
                plan.marks.push(Mark { x: sectors_kib as f64, label: format!("max_sectors_kb {sectors_kib}") });
                if segments_kib < sectors_kib {
                    // If the buffer's pages are adjacent in memory, one request holds more.
                    let label = format!("max_segments {segments_kib} KiB");
                    plan.marks.push(Mark { x: segments_kib as f64, label });
                }
                // The last size that one request holds, and the first that it does not.
                let limit = (sectors_kib.min(segments_kib) * 1024 / u64::from(BLOCK_BYTES)) as u32;
                sizes.extend([limit, limit + 1]);
                sizes.retain(|blocks| *blocks <= most);
                sizes.sort_unstable();
                sizes.dedup();
            }
            (device, 1)
        }
        Err(why) => {
            let note = format!("On a file, and from 8 blocks on: no block device without root ({why}).");
            plan.notes.push(note);
            (setting.scratch.file("blocks", bytes)?, 8)
        }
    };
    for blocks in sizes.into_iter().filter(|blocks| *blocks >= smallest) {
        for forced in [false, true] {
            let work = Work::DirectWrites(DirectWrites {
                path: path.clone(),
                bytes: blocks * BLOCK_BYTES,
                forced,
                writes: setting.pick(60, 5),
            });
            let name = format!("{blocks} block{}", if blocks == 1 { "" } else { "s" });
            let mut figure = Figure::new("O_DIRECT writes", name, "us").at(f64::from(blocks) / 2.0);
            figure.variant = forced.then(|| "IOSQE_ASYNC".to_owned());
            if blocks == PUBLISHED.0 {
                figure.published.push(Published {
                    label: if forced { "published, IOSQE_ASYNC" } else { "published" }.to_owned(),
                    value: PUBLISHED.1[usize::from(forced)],
                    spread: None,
                    source: SOURCE.to_owned(),
                });
            }
            let backends: &[_] =
                if forced { &[Anyring, Kernel] } else { &[Anyring, Kernel, PosixAio, KernelAio, Threads] };
            let measurement = Measurement::new(work, backends, vec![figure]);
            plan.measurements.push(Measurement { count_punted: true, runs: 5, ..measurement });
        }
    }
    Ok(plan)
}

/// Marks the size from which the kernel punts requests that were not forced, if sizes on both sides were measured.
fn threshold(report: &mut WorkloadReport) {
    let plain = report.rows.iter().filter(|row| row.figure.variant.is_none());
    let punts: Vec<(f64, bool)> = plain
        .filter_map(|row| {
            let kernel = row.column(Kernel).filter(|kernel| kernel.summary.is_some())?;
            // Without root only the threads of io-wq were counted.
            let count = kernel.counts.get(PUNTED).or_else(|| kernel.counts.get("io_wq_threads"))?;
            Some((row.figure.x?, *count > 0))
        })
        .collect();
    let first = punts.iter().position(|(_, punted)| *punted);
    match first {
        Some(first) if first > 0 && punts[first..].iter().all(|(_, punted)| *punted) => {
            report.marks.push(Mark { x: punts[first - 1].0, label: "the kernel punts above".to_owned() });
        }
        None if !punts.is_empty() => report.notes.push("The kernel punted none of these sizes.".to_owned()),
        _ => {}
    }
}
