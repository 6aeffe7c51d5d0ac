//! What a NOP through liburing costs, from io_uring_get_sqe() to io_uring_cqe_seen().

use crate::message::{Refusal, Reply, Task};
use crate::statistics::{Estimate, Summary};
use crate::worker::{Launcher, Side};
use serde::Serialize;

/// NOPs in one run: some 0.1 s on the kernel.
const OPERATIONS: u64 = 200_000;

/// The whole measurement.
#[derive(Debug, Serialize)]
pub struct NopReport {
    /// Processes started for each side and batch size.
    pub runs: usize,
    /// One entry for each batch size.
    pub batches: Vec<BatchReport>,
}

/// NOPs of one batch size.
#[derive(Debug, Serialize)]
pub struct BatchReport {
    /// SQEs a submit call.
    pub batch: u32,
    /// NOPs timed in each run.
    pub operations: u64,
    /// One NOP on our engine.
    pub anyring: Summary,
    /// One NOP on the kernel's io_uring.
    pub kernel: KernelColumn,
    /// anyring / kernel.
    pub ratio: Option<Estimate>,
}

/// The kernel's figures, or why there are none.
#[derive(Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum KernelColumn {
    /// It worked.
    Measured(Summary),
    /// It does not work here.
    Refused(Refusal),
}

/// Measures each batch size with `runs` processes a side, in turns. `progress` is told of each process that ended.
/// The error is one line for people.
pub fn measure(
    launcher: &Launcher,
    runs: usize,
    batches: &[u32],
    mut progress: impl FnMut(),
) -> Result<NopReport, String> {
    let batches = batches.iter().map(|batch| measure_batch(launcher, runs, *batch, &mut progress));
    Ok(NopReport { runs, batches: batches.collect::<Result<_, _>>()? })
}

fn measure_batch(
    launcher: &Launcher,
    runs: usize,
    batch: u32,
    progress: &mut impl FnMut(),
) -> Result<BatchReport, String> {
    let operations = OPERATIONS.next_multiple_of(u64::from(batch));
    let task = Task::Nop { batch, operations };
    let mut anyring = Vec::new();
    let mut kernel = Vec::new();
    let mut refusal = None;
    for _ in 0..runs {
        match launcher.run(Side::Anyring, task)? {
            Reply::Measured(measured) => anyring.push(measured.ns_per_operation),
            Reply::Refused(refusal) => {
                return Err(format!("anyring: {} failed: errno {}", refusal.call, refusal.errno))
            }
            Reply::Failed(why) => return Err(format!("on anyring: {why}")),
        }
        progress();
        if refusal.is_none() {
            match launcher.run(Side::Native, task)? {
                Reply::Measured(measured) => kernel.push(measured.ns_per_operation),
                Reply::Refused(answer) => refusal = Some(answer),
                Reply::Failed(why) => return Err(format!("on the kernel: {why}")),
            }
        }
        progress();
    }
    let ours = Summary::of(&anyring);
    let (column, ratio) = match refusal {
        None => {
            let pairs: Vec<_> = anyring.into_iter().zip(kernel.iter().copied()).collect();
            (KernelColumn::Measured(Summary::of(&kernel)), Some(Estimate::ratio(&pairs)))
        }
        Some(refusal) if kernel.is_empty() => (KernelColumn::Refused(refusal), None),
        Some(refusal) => return Err(format!("the kernel's {} worked first and then did not", refusal.call)),
    };
    Ok(BatchReport { batch, operations, anyring: ours, kernel: column, ratio })
}
