//! Counts the requests that the kernel's io_uring hands to a worker thread, by its tracepoint
//! `io_uring_queue_async_work`. Uses a separate instance of tracefs. This needs root.

use std::fs;
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The mount points of tracefs.
const TRACEFS: [&str; 2] = ["/sys/kernel/tracing", "/sys/kernel/debug/tracing"];
const PIDS: &str = "set_event_pid";
const EVENT: &str = "events/io_uring/io_uring_queue_async_work/enable";

/// An instance of tracefs, removed when dropped. It counts one process.
#[derive(Debug)]
pub struct PuntCounter {
    folder: PathBuf,
}

impl PuntCounter {
    /// Makes the instance. The error says, in one line, why nothing can be counted.
    pub fn new() -> Result<Self, String> {
        let why = |error: std::io::Error| format!("not counted: tracefs needs root and a mount ({error})");
        let mounted = TRACEFS.iter().map(Path::new).find(|place| place.join("instances").is_dir());
        let instances = mounted.ok_or_else(|| why(std::io::ErrorKind::NotFound.into()))?.join("instances");
        let folder = instances.join(format!("anyring-lab-{}", std::process::id()));
        fs::create_dir(&folder).map_err(why)?;
        let counter = PuntCounter { folder };
        // At first the list holds this process, which has no rings: an empty list would mean every process.
        fs::write(counter.folder.join(PIDS), std::process::id().to_string()).map_err(why)?;
        fs::write(counter.folder.join(EVENT), "1").map_err(why)?;
        Ok(counter)
    }

    /// Counts the requests of the process that `command` becomes, and of no other.
    pub fn follow(&self, command: &mut Command) -> Result<(), String> {
        let path = self.folder.join(PIDS);
        // Without O_TRUNC, which would empty the list, a number is added to it.
        let file = fs::OpenOptions::new().write(true).open(&path);
        let mut file = file.map_err(|error| format!("{}: {error}", path.display()))?;
        let write_own = move || file.write_all(std::process::id().to_string().as_bytes());
        // SAFETY: formats a number and writes it. The child of a process with other threads may do that, since it
        // allocates only after glibc's atfork handlers have put malloc in order.
        unsafe { command.pre_exec(write_own) };
        Ok(())
    }

    /// Returns the number of events since the instance was made, including those that its buffer has lost.
    pub fn count(&self) -> Result<u64, String> {
        let processors = fs::read_dir(self.folder.join("per_cpu")).map_err(|error| error.to_string())?;
        let mut events = 0;
        for processor in processors.flatten() {
            let text = fs::read_to_string(processor.path().join("stats")).map_err(|error| error.to_string())?;
            for line in text.lines() {
                if let Some((_, count)) = line.split_once(':').filter(|(name, _)| LOST_OR_KEPT.contains(name)) {
                    events += count.trim().parse::<u64>().map_err(|_| format!("tracefs says {line:?}"))?;
                }
            }
        }
        Ok(events)
    }
}

const LOST_OR_KEPT: [&str; 3] = ["entries", "overrun", "dropped events"];

impl Drop for PuntCounter {
    fn drop(&mut self) {
        // A failure here leaves an empty instance, which costs nothing.
        let _ = fs::write(self.folder.join(EVENT), "0");
        let _ = fs::remove_dir(&self.folder);
    }
}
