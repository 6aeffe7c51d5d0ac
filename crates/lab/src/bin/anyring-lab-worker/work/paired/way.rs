//! The way of a request, observed without privilege.
//!
//! anyring's engine counts completions by path in the file that ANYRING_STATS names, as for any program. The threads of
//! the kernel's io-wq appear in /proc/self/task. The request is the only one in flight, so a thread of io-wq that
//! ran at that time ran for this request. Without such a thread, the way follows from whether the CQE is there when
//! the submitting call returns.

use crate::outcome::{Outcome, Stop};
use anyring_abi::Opcode;
use anyring_engine::stats::{Snapshot, PATHS};
use anyring_lab::message::{Proof, Way};
use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Observes one request at a time.
pub enum Observer {
    /// The file of the engine's counters, the opcode that selects a row, and the row's values before the request.
    Engine { counters: PathBuf, opcode: Opcode, before: [u64; PATHS] },
    /// Number of times that each thread of io-wq had run.
    Kernel { before: BTreeMap<i32, u64> },
}

/// The time that io-wq's threads may take to go to sleep.
const BEDTIME: Duration = Duration::from_millis(20);
/// The time that the engine may take to count a posted CQE.
const PATIENCE: Duration = Duration::from_secs(1);

impl Observer {
    /// Makes an observer for a ring with the server that `proof` names.
    pub fn new(proof: &Proof, opcode: Opcode) -> Outcome<Self> {
        if proof.ring.as_deref() == Some("anon_inode:[io_uring]") {
            if !PathBuf::from("/proc/self/schedstat").exists() {
                let why = "the way of a request cannot be seen: this kernel has no /proc/self/schedstat";
                return Err(Stop::Missing(why.to_owned()));
            }
            return Ok(Observer::Kernel { before: BTreeMap::new() });
        }
        let counters = std::env::var_os("ANYRING_STATS").ok_or("the engine keeps no counters")?;
        Ok(Observer::Engine { counters: counters.into(), opcode, before: [0; PATHS] })
    }

    /// Records the state before the request.
    pub fn begin(&mut self) -> Outcome<()> {
        self.wait_until_idle();
        match self {
            Observer::Engine { counters, opcode, before } => *before = counted(counters, *opcode)?,
            Observer::Kernel { before } => {
                *before = threads().into_iter().map(|(id, runs, _)| (id, runs)).collect()
            }
        }
        Ok(())
    }

    /// Waits until no thread of io-wq is at work. The engine's threads show by their counters when they are done.
    pub fn wait_until_idle(&self) {
        let Observer::Kernel { .. } = self else { return std::thread::sleep(Duration::from_micros(50)) };
        let end = Instant::now() + BEDTIME;
        while threads().iter().any(|(_, _, sleeps)| !sleeps) && Instant::now() < end {
            std::thread::sleep(Duration::from_micros(20));
        }
    }

    /// Returns the way of the request whose CQE was just taken; `early` says that it was there at once. On the
    /// kernel, a request that needed no thread and did not complete at once counts as one that waited for the
    /// device.
    pub fn end(&self, early: bool) -> Outcome<Way> {
        match self {
            Observer::Engine { counters, opcode, before } => {
                let end = Instant::now() + PATIENCE;
                loop {
                    let now = counted(counters, *opcode)?;
                    let ways = [Way::Inline, Way::Poll, Way::Device, Way::Worker]
                        .into_iter()
                        .zip(now.into_iter().zip(before));
                    if let Some((way, _)) = ways.clone().find(|(_, (now, before))| now != *before) {
                        return Ok(way);
                    }
                    if Instant::now() > end {
                        return Err("the engine did not count a request".into());
                    }
                }
            }
            Observer::Kernel { before } => {
                let ran = |(id, runs, _): &(i32, u64, bool)| before.get(id) != Some(runs);
                Ok(match threads().iter().any(ran) {
                    true => Way::Worker,
                    false if early => Way::Inline,
                    false => Way::Device,
                })
            }
        }
    }
}

/// Returns completions by path.
fn counted(counters: &PathBuf, opcode: Opcode) -> Outcome<[u64; PATHS]> {
    let snapshot = Snapshot::from_bytes(&fs::read(counters)?).map_err(|why| why.to_string())?;
    Ok(snapshot.completions[opcode as usize])
}

/// Returns the threads of io-wq. Each has its id, the number of times that it was put on a processor, and a flag that
/// is true if it sleeps.
fn threads() -> Vec<(i32, u64, bool)> {
    let Ok(tasks) = fs::read_dir("/proc/self/task") else { return Vec::new() };
    let thread = |task: fs::DirEntry| {
        // "17 (iou-wrk-12) S ...": one that has just ended has no file.
        let stat = fs::read_to_string(task.path().join("stat")).ok()?;
        let (_, state) = stat.split_once("(iou-wrk-")?;
        // A thread that was preempted on its way to sleep has the state already, but waits at no place in the kernel.
        let waits_at = fs::read_to_string(task.path().join("wchan"));
        let sleeps = state.split_once(") ")?.1.starts_with('S') && !waits_at.is_ok_and(|place| place == "0");
        let runs = fs::read_to_string(task.path().join("schedstat")).ok()?;
        let runs = runs.split_whitespace().nth(2)?.parse().ok()?;
        Some((task.file_name().to_str()?.parse().ok()?, runs, sleeps))
    };
    tasks.flatten().filter_map(thread).collect()
}
