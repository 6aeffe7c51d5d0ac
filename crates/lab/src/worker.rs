//! Starting the worker process on either side, and making sure that it was that side.

use crate::message::{Measured, Reply, Task};
use anyring_abi::Opcode;
use anyring_engine::stats::Snapshot;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The worker's file name, beside the `anyring` command or, when installed, beside the library.
pub const NAME: &str = "anyring-lab-worker";

/// Who serves the worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// libanyring.so, preloaded.
    Anyring,
    /// The libraries that are installed, and the kernel below them.
    Native,
}

/// The variables that would change what a worker does.
const VARIABLES: [&str; 5] = ["LD_PRELOAD", "ANYRING_BACKEND", "ANYRING_RAW", "ANYRING_LOG", "ANYRING_STATS"];

/// What is needed to start workers.
#[derive(Debug, Clone)]
pub struct Launcher {
    worker: PathBuf,
    library: PathBuf,
}

impl Launcher {
    /// With the worker beside the running executable or beside the library, and this libanyring.so. The error is one
    /// line for people.
    pub fn new(library: &Path) -> Result<Self, String> {
        let executable = std::env::current_exe().map_err(|error| format!("cannot find {NAME}: {error}"))?;
        let places = [executable.with_file_name(NAME), library.with_file_name(NAME)];
        let Some(worker) = places.iter().find(|place| place.is_file()).cloned() else {
            let [beside, installed] = places.each_ref().map(|place| place.display());
            return Err(format!("{NAME} not found: looked for {beside}, {installed}"));
        };
        Ok(Launcher { worker, library: library.to_owned() })
    }

    /// libanyring.so.
    pub fn library(&self) -> &Path {
        &self.library
    }

    /// Runs one task to its end. An error, one line for people, says that the result cannot be used.
    pub fn run(&self, side: Side, task: Task) -> Result<Reply, String> {
        let counters = tempfile::NamedTempFile::new().map_err(|error| format!("a temporary file: {error}"))?;
        let mut command = Command::new(&self.worker);
        command.args(task.words()).stdin(Stdio::null());
        for variable in VARIABLES {
            command.env_remove(variable);
        }
        if side == Side::Anyring {
            command.env("LD_PRELOAD", &self.library).env("ANYRING_BACKEND", "user");
            command.env("ANYRING_STATS", counters.path());
        }
        let output = command.output().map_err(|error| format!("{}: {error}", self.worker.display()))?;
        let complaint = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        let reply: Reply = match output.status.signal() {
            Some(signal) => return Err(format!("{NAME} was killed by signal {signal} {complaint}")),
            None => serde_json::from_slice(&output.stdout)
                .map_err(|error| format!("{NAME} gave no answer ({}): {error} {complaint}", output.status))?,
        };
        // The loader complains here when it cannot preload.
        if !complaint.is_empty() {
            return Err(format!("{NAME}: {complaint}"));
        }
        if let Reply::Measured(measured) = &reply {
            self.check(side, task, measured, counters.path())?;
        }
        Ok(reply)
    }

    /// Whether what was measured is what was to be measured.
    fn check(&self, side: Side, task: Task, measured: &Measured, counters: &Path) -> Result<(), String> {
        // dladdr(3) names a file as LD_PRELOAD did.
        let ours = Path::new(&measured.provider) == self.library;
        if ours != (side == Side::Anyring) {
            return Err(format!("the {side:?} side was answered by {}", measured.provider));
        }
        let Task::Nop { operations, .. } = task else { return Ok(()) };
        if side == Side::Native {
            return match measured.ring.as_deref() {
                Some("anon_inode:[io_uring]") => Ok(()),
                other => Err(format!("the Native side's ring is no io_uring of the kernel's: {other:?}")),
            };
        }
        let bytes = std::fs::read(counters).map_err(|error| format!("the engine's counters: {error}"))?;
        let counted = Snapshot::from_bytes(&bytes).map_err(|why| format!("the engine's counters: {why}"))?;
        let nops: u64 = counted.completions[Opcode::Nop as usize].iter().sum();
        match nops >= operations && counted.errors == 0 {
            true => Ok(()),
            false => Err(format!("the engine counted {nops} NOPs of {operations}, {} failed", counted.errors)),
        }
    }
}
