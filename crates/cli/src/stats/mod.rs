//! `anyring stats`: prints the counters that the library kept in a file, or keeps in a running process.

mod listen;
mod prometheus;

use crate::cli::StatsOptions;
use crate::doctor;
use crate::errno;
use crate::failure::{self, Failure};
use crate::output;
use anyring_abi::Opcode;
use anyring_engine::stats::{self, Snapshot, Stats};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::atomic::Ordering;

/// The version of the JSON below. It changes when a field changes or is removed.
const SCHEMA: u32 = 1;

/// The JSON of `anyring stats --json`.
#[derive(Serialize)]
pub struct Counters {
    schema: u32,
    kernel_refused_errno: u64,
    /// Rings made by anyring.
    pub rings: u64,
    /// Rings that the kernel made in addition.
    kernel_rings: u64,
    enters: u64,
    overflows: u64,
    errors: u64,
    traps: u64,
    patches: u64,
    /// Programs that `anyring run` left to the kernel.
    left_to_kernel: LeftToKernel,
    unserved_children: u64,
    /// The first children that were not served, each with the reason.
    unserved: Vec<String>,
    /// Running processes that may not write the file.
    kept_out: Vec<String>,
    /// Completions by opcode, named as in the kernel's header without `IORING_OP_`. Leaves out opcodes without
    /// completions.
    completions: BTreeMap<&'static str, Paths>,
}

/// Programs left to the kernel. Whether they make any request is not counted.
#[derive(Serialize)]
struct LeftToKernel {
    io_uring: u64,
    aio: u64,
}

/// Completions of one opcode, by the path that the request took.
#[derive(Serialize)]
struct Paths {
    inline: u64,
    poll: u64,
    kernel_aio: u64,
    worker: u64,
}

/// Prints the counters, or serves them by HTTP.
pub fn run(options: &StatsOptions) -> Result<i32, Failure> {
    if let Some(address) = &options.listen {
        return listen::run(address, || prometheus::text(options)).map(|never| match never {});
    }
    let text = match options {
        StatsOptions { prometheus: true, .. } => prometheus::text(options)?,
        StatsOptions { json: true, .. } => {
            let json = serde_json::to_string_pretty(&read(options)?);
            json.map_err(|error| Failure::own(error.to_string()))? + "\n"
        }
        _ => table(&read(options)?),
    };
    output::print(&text)?;
    Ok(0)
}

/// A size in bytes that no layout of the counters exceeds. Of a larger file, which is none of anyring's, no more is
/// read.
const LIMIT_BYTES: u64 = 1 << 20;

fn read(options: &StatsOptions) -> Result<Counters, Failure> {
    match (options.pid, &options.files[..]) {
        (Some(pid), _) => {
            let counters = of_process(pid).map_err(|why| Failure::own(format!("--pid {pid}: {why}")))?;
            Ok(Counters::from(counters))
        }
        (None, [file]) => of(file).map_err(|why| Failure::own(format!("{}: {why}", file.display()))),
        _ => {
            let message = "several counters files: only with --prometheus or --listen (see --help)".to_owned();
            Err(Failure { status: failure::USAGE, message })
        }
    }
}

/// Returns the counters in a file, or the reason why the file has none.
pub fn of(file: &Path) -> Result<Counters, String> {
    Ok(Counters { kept_out: doctor::kept_out(file), ..Counters::from(snapshot(file)?) })
}

/// The opcodes that were completed, as a file's counters say.
pub fn opcodes_in(file: &Path) -> Result<Vec<&'static str>, String> {
    Ok(Counters::from(snapshot(file)?).completions.into_keys().collect())
}

fn snapshot(file: &Path) -> Result<Snapshot, String> {
    let bytes = bytes(file, OpenOptions::new().read(true))?;
    if bytes.is_empty() {
        return Err("the file is empty: nothing was counted".to_owned());
    }
    Snapshot::from_bytes(&bytes).map_err(|why| why.to_string())
}

/// The counters that a process keeps, in a file or in memory.
pub fn of_process(pid: i32) -> Result<Snapshot, String> {
    let found = file_of(pid)?;
    Snapshot::from_bytes(&bytes_of(found)?).map_err(|why| why.to_string())
}

fn file_of(pid: i32) -> Result<File, String> {
    let found = anyring_trace::find_counters(pid, OpenOptions::new().read(true))?;
    found.ok_or_else(|| "it has no ring of anyring's now (`anyring doctor --pid` says who serves it)".to_owned())
}

fn bytes_of(file: File) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::new();
    file.take(LIMIT_BYTES).read_to_end(&mut bytes).map(|_| bytes).map_err(|error| errno::of(&error))
}

/// Returns the bytes of a regular file. Opens no other kind of file, since that may wait forever (a FIFO) or have
/// an effect (a device).
fn bytes(file: &Path, options: &OpenOptions) -> Result<Vec<u8>, String> {
    match std::fs::metadata(file) {
        Ok(found) if found.is_dir() => return Err("it is a directory".to_owned()),
        Ok(found) if !found.is_file() => return Err("it is not a regular file".to_owned()),
        _ => {}
    }
    bytes_of(options.open(file).map_err(|error| errno::of(&error))?)
}

/// Opens the counters as the library will, to make sure that the library can. Creates a missing file and reserves its
/// space on the disk. `left`: the programs that are now left to the kernel. `Err` says why the file cannot be used.
pub fn open(file: &Path, left: [u64; 2]) -> Result<(), String> {
    let name = file.to_str().ok_or("its name is not UTF-8")?;
    let mut options = OpenOptions::new();
    let bytes = bytes(file, options.read(true).write(true).create(true).mode(0o644))?;
    // Just created, perhaps by another program that is about to write its first word.
    let is_new = bytes.is_empty() || bytes.len() == size_of::<Stats>() && bytes.starts_with(&[0; 8]);
    if !is_new {
        Snapshot::from_bytes(&bytes).map_err(|why| why.to_string())?;
    }
    stats::open(Some(name)).map_err(|error| errno::describe(error.raw_os_error()))?;
    for (counter, more) in stats::stats().left_to_kernel.iter().zip(left) {
        counter.fetch_add(more, Ordering::Relaxed); // a sum, like all counters
    }
    Ok(())
}

impl From<Snapshot> for Counters {
    fn from(snapshot: Snapshot) -> Self {
        let by_opcode = Opcode::ALL.iter().zip(snapshot.completions);
        let occurred = by_opcode.filter(|(_, paths)| paths.iter().any(|count| *count > 0));
        Counters {
            schema: SCHEMA,
            kernel_refused_errno: snapshot.kernel_refused_errno,
            rings: snapshot.rings,
            kernel_rings: snapshot.kernel_rings,
            enters: snapshot.enters,
            overflows: snapshot.overflows,
            errors: snapshot.errors,
            traps: snapshot.traps,
            patches: snapshot.patches,
            left_to_kernel: LeftToKernel { io_uring: snapshot.left_to_kernel[0], aio: snapshot.left_to_kernel[1] },
            unserved_children: snapshot.unserved_children,
            unserved: snapshot.unserved,
            kept_out: Vec::new(),
            completions: occurred
                .map(|(opcode, [inline, poll, kernel_aio, worker])| {
                    (opcode.name(), Paths { inline, poll, kernel_aio, worker })
                })
                .collect(),
        }
    }
}

/// The counters as a table for people.
pub fn table(counters: &Counters) -> String {
    let refused = match counters.kernel_refused_errno {
        0 => "no (or it was not asked)".to_owned(),
        code => i32::try_from(code).map_or_else(|_| format!("errno {code}"), errno::name),
    };
    let mut text = format!(
        "kernel refused io_uring  {refused}\nrings                    {}\nenter calls              {}\n\
         CQ overflows             {}\nfailed requests          {}\n\
         trapped calls            {}\npatched instructions     {}\nchildren not served      {}\n",
        counters.rings,
        counters.enters,
        counters.overflows,
        counters.errors,
        counters.traps,
        counters.patches,
        counters.unserved_children
    );
    if counters.kernel_rings != 0 {
        text.push_str(&format!("rings of the kernel      {} (not counted otherwise)\n", counters.kernel_rings));
    }
    for child in &counters.unserved {
        text.push_str(&format!("  not served: {child}\n"));
    }
    let others = counters.unserved_children.saturating_sub(counters.unserved.len() as u64);
    if others != 0 && !counters.unserved.is_empty() {
        text.push_str(&format!("  and {others} more, which `--log` names\n"));
    }
    for process in &counters.kept_out {
        text.push_str(&format!("  not counted: {process}, which may not write this file\n"));
    }
    let left = &counters.left_to_kernel;
    for (what, programs) in
        [("io_uring", left.io_uring), ("Linux AIO", left.aio)].iter().filter(|(_, left)| *left != 0)
    {
        text.push_str(&format!(
            "{:25}{programs} programs, which may not have used it\n",
            format!("{what} left to kernel")
        ));
    }
    if counters.completions.is_empty() {
        text.push_str("\nanyring completed no request.\n");
        if left.io_uring != 0 {
            text.push_str("What the kernel serves is counted by: anyring trace --backend kernel -- PROGRAM\n");
        }
        return text;
    }
    let width = counters.completions.keys().map(|name| name.len()).max().unwrap_or(0).max("completions".len());
    let mut row = |name: &str, cells: [&dyn std::fmt::Display; 4]| {
        let [inline, poll, kernel_aio, worker] = cells;
        text.push_str(&format!("{name:width$}  {inline:>12}  {poll:>12}  {kernel_aio:>12}  {worker:>12}\n"));
    };
    row("\ncompletions", [&" inline", &"poll", &"kernel AIO", &"worker"]);
    for (name, paths) in &counters.completions {
        row(name, [&paths.inline, &paths.poll, &paths.kernel_aio, &paths.worker]);
    }
    text
}
