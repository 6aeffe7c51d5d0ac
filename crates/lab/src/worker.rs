//! Starts the worker process for a backend, and checks that this backend served it.

use crate::backend::Backend;
use crate::message::{Door, Measured, Proof, Reply, Task};
use crate::trace::PuntCounter;
use anyring_engine::stats::Snapshot;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The worker's file name, beside the `anyring` command or, when installed, beside the library.
pub const NAME: &str = "anyring-lab-worker";

/// The count of requests that a worker thread had to carry out.
pub const PUNTED: &str = "punted";

/// The variables that would change a worker's behaviour.
const VARIABLES: [&str; 7] = [
    "LD_PRELOAD",
    "ANYRING_BACKEND",
    "ANYRING_AIO",
    "ANYRING_RAW",
    "ANYRING_LOG",
    "ANYRING_STATS",
    "UV_THREADPOOL_SIZE",
];

/// The files needed to start workers.
#[derive(Debug, Clone)]
pub struct Launcher {
    worker: PathBuf,
    library: PathBuf,
}

impl Launcher {
    /// Uses the worker beside the running executable or beside the library, and this libanyring.so. The error is one
    /// line for people.
    pub fn new(library: &Path) -> Result<Self, String> {
        // Without /proc the executable's path is unknown.
        let beside = std::env::current_exe().ok().map(|executable| executable.with_file_name(NAME));
        let places: Vec<PathBuf> = beside.into_iter().chain([library.with_file_name(NAME)]).collect();
        let Some(worker) = places.iter().find(|place| place.is_file()).cloned() else {
            let looked: Vec<_> = places.iter().map(|place| place.display().to_string()).collect();
            return Err(format!("{NAME} not found: looked for {}", looked.join(", ")));
        };
        Ok(Launcher { worker, library: library.to_owned() })
    }

    /// Returns the path of libanyring.so.
    pub fn library(&self) -> &Path {
        &self.library
    }

    /// Runs one task to its end, and counts the kernel's punted requests if `punts` is given. An error, one line for
    /// people, says that the result cannot be used.
    pub fn run(&self, backend: Backend, task: &Task, punts: Option<&PuntCounter>) -> Result<Reply, String> {
        let counters = tempfile::NamedTempFile::new().map_err(|error| format!("a temporary file: {error}"))?;
        let mut command = self.command(backend, task, counters.path());
        if let Some(punts) = punts {
            punts.follow(&mut command)?;
        }
        let output = command.output().map_err(|error| format!("{}: {error}", self.worker.display()))?;
        let complaint = String::from_utf8_lossy(&output.stderr).replace('\n', " ").trim().to_owned();
        let mut reply: Reply = match output.status.signal() {
            // A filter may kill a caller of io_uring.
            Some(libc::SIGSYS) if !backend.is_ours() => {
                return Ok(Reply::Missing("a seccomp filter here kills the caller (SIGSYS)".to_owned()))
            }
            Some(signal) => return Err(format!("{backend}: {NAME} was killed by signal {signal} {complaint}")),
            None => serde_json::from_slice(&output.stdout).map_err(|error| {
                format!("{backend}: {NAME} gave no answer ({}): {error} {complaint}", output.status)
            })?,
        };
        // The loader complains here when it cannot preload.
        if !complaint.is_empty() {
            return Err(format!("{backend}: {NAME}: {complaint}"));
        }
        if let Reply::Measured(measured) = &mut reply {
            self.check(backend, task.door, measured, counters.path()).map_err(|why| format!("{backend}: {why}"))?;
        }
        Ok(reply)
    }

    fn command(&self, backend: Backend, task: &Task, counters: &Path) -> Command {
        let mut command = Command::new(&self.worker);
        let task_text = serde_json::to_string(task).unwrap_or_default(); // plain data: it always is JSON
        command.arg(task_text).stdin(Stdio::null());
        for variable in VARIABLES {
            command.env_remove(variable);
        }
        command.env("RUST_BACKTRACE", "0");
        // libuv since 1.45 may do its file operations by io_uring, but its thread pool is to be measured.
        command.env("UV_USE_IO_URING", "0");
        if backend.is_ours() {
            command.env("LD_PRELOAD", &self.library).env("ANYRING_BACKEND", "user").env("ANYRING_AIO", "user");
            command.env("ANYRING_STATS", counters);
            // The worker has instructions for the raw door, which matter to no program that uses liburing. A program
            // that uses libc's syscall() counts as one that makes its calls by instructions.
            command.env("ANYRING_RAW", if task.door == Door::Liburing { "0" } else { "1" });
        }
        command
    }

    /// Checks that the measurement is of this backend and has figures.
    fn check(&self, backend: Backend, door: Door, measured: &mut Measured, counters: &Path) -> Result<(), String> {
        if measured.figures.is_empty() || measured.figures.iter().any(|figure| !figure.is_finite()) {
            return Err(format!("these are no figures: {:?}", measured.figures));
        }
        let Some(proof) = measured.proof.clone() else { return Ok(()) };
        if let Some(provider) = &proof.provider {
            // dladdr(3) names a file as LD_PRELOAD did. The raw door calls no function.
            let ours = Path::new(provider) == self.library;
            if door != Door::Raw && ours != backend.is_ours() {
                return Err(format!("the calls were answered by {provider}"));
            }
        }
        match backend {
            ours if ours.is_ours() && proof.completions > 0 => {
                let punted = self.check_counters(&proof, counters)?;
                measured.counts.insert(PUNTED.to_owned(), punted);
                Ok(())
            }
            Backend::KernelAio | Backend::KernelAioPoll if !is_of_kernel_aio(proof.ring.as_deref()) => {
                Err(format!("the completion ring is not the kernel's: {:?}", proof.ring))
            }
            Backend::Kernel if proof.ring.as_deref() != Some("anon_inode:[io_uring]") => {
                Err(format!("the ring is no io_uring of the kernel's: {:?}", proof.ring))
            }
            _ => Ok(()),
        }
    }

    /// Checks that the engine completed the requests that the worker reaped. Returns the number that its workers
    /// carried out.
    fn check_counters(&self, proof: &Proof, counters: &Path) -> Result<u64, String> {
        let bytes = std::fs::read(counters).map_err(|error| format!("the engine's counters: {error}"))?;
        let counted = Snapshot::from_bytes(&bytes).map_err(|why| format!("the engine's counters: {why}"))?;
        let completed: u64 = counted.completions.iter().flatten().sum();
        if completed < proof.completions || counted.errors > proof.negative {
            return Err(format!(
                "the engine counted {completed} completions and {} errors, the program {} and {}",
                counted.errors, proof.completions, proof.negative
            ));
        }
        Ok(counted.completions.iter().map(|[.., worker]| worker).sum())
    }
}

/// True if this is the name in /proc/self/maps of a completion ring that the kernel made.
fn is_of_kernel_aio(ring: Option<&str>) -> bool {
    ring.is_some_and(|ring| ring.starts_with("/[aio]"))
}
