//! `anyring doctor --pid`: finds the server of a running process from /proc and from the counters that the process
//! keeps.

use super::rings::{self, Ring};
use crate::failure::Failure;
use crate::stats::{self, Counters};
use crate::{errno, output};
use anyring_serve::environment::WORKS;
use serde::Serialize;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The JSON of `doctor --pid N --json`.
#[derive(Serialize)]
struct Process {
    schema: u32,
    pid: u32,
    name: String,
    summary: String,
    /// `library`, `guest`, or `null` if anyring is not in the process.
    way: Option<&'static str>,
    /// The path of the library that is mapped into the process.
    library: Option<String>,
    /// ANYRING_BACKEND and ANYRING_AIO, as they were when the process started.
    backend: Option<String>,
    aio: Option<String>,
    /// The process's descriptors of the kernel's rings.
    kernel_rings: Vec<u32>,
    /// The kernel's rings and anyring's.
    rings: Vec<Ring>,
    /// The process's counters. They include those of its children, and of all other processes with the same file.
    counters: Option<Counters>,
    /// The reason why there are no counters.
    no_counters: Option<String>,
    /// The file for its messages.
    log: Option<String>,
}

/// Prints the report on process `pid`, and returns 0 if anyring is in it, otherwise 1.
pub fn run(pid: u32, json: bool) -> Result<i32, Failure> {
    let process = inspect(pid)?;
    let text = match json {
        true => {
            let json = serde_json::to_string_pretty(&process);
            json.map_err(|error| Failure::own(format!("cannot write JSON: {error}")))? + "\n"
        }
        false => text(&process),
    };
    output::print(&text)?;
    Ok(i32::from(process.way.is_none()))
}

fn inspect(pid: u32) -> Result<Process, Failure> {
    let folder = PathBuf::from(format!("/proc/{pid}"));
    let failed = |error: std::io::Error| match error.raw_os_error() {
        Some(libc::ENOENT | libc::ESRCH) => Failure::own(format!("--pid {pid}: no such process, or no /proc")),
        _ => Failure::own(format!("--pid {pid}: {}", errno::of(&error))),
    };
    let name = fs::read_to_string(folder.join("comm")).map_err(failed)?.trim().to_owned();
    let maps = fs::read(folder.join("maps")).map_err(failed)?;
    let environment = fs::read(folder.join("environ")).map_err(failed)?;
    let maps = String::from_utf8_lossy(&maps);
    let library = maps
        .lines()
        .filter_map(|line| line.find('/').map(|at| &line[at..]))
        .find(|path| Path::new(path).file_name().is_some_and(|file| file.as_bytes().starts_with(b"libanyring")));
    let variable = |name: &str| {
        let of = |line: &[u8]| line.strip_prefix(name.as_bytes())?.strip_prefix(b"=").map(<[u8]>::to_vec);
        let value = environment.split(|byte| *byte == 0).find_map(of).filter(|value| !value.is_empty())?;
        Some(String::from_utf8_lossy(&value).into_owned())
    };
    // The executable itself is the host of guests.
    let is_host = || fs::read_link(folder.join("exe")).is_ok_and(|file| is_host(&file));
    let way = match library {
        Some(_) => Some("library"),
        None if is_host() => Some("guest"),
        None => None,
    };
    let rings = rings::of(pid, &folder, &maps).map_err(failed)?;
    let file = variable("ANYRING_STATS");
    let counters = match &file {
        None => stats::of_process(pid as i32).map(Counters::from),
        // The path is relative to the root of the process.
        Some(file) => stats::of(&folder.join("root").join(file.trim_start_matches('/'))),
    };
    let backend = variable("ANYRING_BACKEND");
    let summary = summary(way, backend.as_deref(), &rings);
    Ok(Process {
        schema: 1,
        pid,
        name,
        summary,
        way,
        library: library.map(str::to_owned),
        backend,
        aio: variable("ANYRING_AIO"),
        kernel_rings: rings
            .iter()
            .filter(|ring| ring.server == "kernel")
            .flat_map(|ring| ring.numbers.clone())
            .collect(),
        rings,
        no_counters: counters.as_ref().err().cloned(),
        counters: counters.ok(),
        log: variable("ANYRING_LOG"),
    })
}

/// Processes that should keep their counters in `file` but may not write it, for example after a change of user. Covers
/// the processes that the caller may see in /proc.
pub fn kept_out(file: &Path) -> Vec<String> {
    let (Ok(file), Ok(found)) = (fs::canonicalize(file), fs::metadata(file)) else { return Vec::new() };
    let of = |folder: &Path| {
        let environment = fs::read(folder.join("environ")).ok()?;
        let mut lines = environment.split(|byte| *byte == 0);
        let named = lines.find_map(|line| line.strip_prefix(b"ANYRING_STATS="))?;
        let named = fs::canonicalize(Path::new(std::ffi::OsStr::from_bytes(named))).ok()?;
        let status = fs::read_to_string(folder.join("status")).ok()?;
        let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
        // The fields: real, effective, saved, file system.
        let own = |name: &str| field(name).split_whitespace().nth(1)?.parse::<u32>().ok();
        let (user, group) = (own("Uid:")?, own("Gid:")?);
        let is_in = |group: u32| field("Groups:").split_whitespace().any(|it| it.parse() == Ok(group));
        let bit = match () {
            () if user == 0 => return None,
            () if user == found.uid() => 0o200,
            () if group == found.gid() || is_in(found.gid()) => 0o020,
            () => 0o002,
        };
        let is_kept_out = named == file && found.mode() & bit == 0;
        let number = folder.file_name()?.to_string_lossy();
        is_kept_out.then(|| format!("process {number} ({}), of user {user}", field("Name:").trim()))
    };
    let folders = fs::read_dir("/proc").into_iter().flatten().flatten().map(|entry| entry.path());
    folders.filter_map(|folder| of(&folder)).collect()
}

/// True if the executable is this command, the only host of guests.
fn is_host(file: &Path) -> bool {
    let is_same = || crate::library::executable().ok().is_some_and(|own| own == file);
    file.file_name().is_some_and(|name| name.as_bytes().starts_with(b"anyring")) || is_same()
}

fn summary(way: Option<&str>, backend: Option<&str>, rings: &[Ring]) -> String {
    let of = |server: &str| rings.iter().filter(|ring| ring.server == server).count();
    let (kernels, ours) = (of("kernel"), of("anyring"));
    let count = |number: usize| format!("{number} ring{}", if number == 1 { "" } else { "s" });
    let rings = match ours {
        0 => format!("{} of the kernel's", count(kernels)),
        _ => format!("{} of the kernel's, {ours} of anyring's", count(kernels)),
    };
    let Some(way) = way else { return format!("anyring is not in this process; it has {rings}.") };
    let who = match backend {
        Some("user") => "anyring serves this process",
        Some("kernel") => "the kernel alone serves this process's io_uring",
        Some(WORKS) => "the kernel serves this process, and anyring what the kernel refuses",
        _ if ours != 0 => "anyring serves what the kernel refuses to this process",
        _ => "anyring is in this process, and asks the kernel at its first ring",
    };
    format!("{who} ({way}): {rings}.")
}

/// A line for each ring.
fn table(rings: &[Ring]) -> String {
    let mut text = "\nrings\n".to_owned();
    for ring in rings {
        let numbers: Vec<_> = ring.numbers.iter().map(u32::to_string).collect();
        let number = if numbers.is_empty() { "closed".to_owned() } else { numbers.join(", ") };
        let entries = |entries: Option<u32>| entries.map_or("?".to_owned(), |entries| entries.to_string());
        let entries = format!("{} + {} entries", entries(ring.sq_entries), entries(ring.cq_entries));
        let mut more = vec![ring.server.to_owned(), entries];
        more.extend(ring.flags.as_ref().map(|flags| format!("flags {flags}")));
        more.extend(ring.maker.map(|maker| format!("made by process {maker}")));
        more.extend(ring.refused.as_ref().map(|refused| format!("the kernel refused it: {refused}")));
        text.push_str(&format!("  {number:22} {}\n", more.join(", ")));
    }
    text
}

fn text(process: &Process) -> String {
    let mut text = format!("{} ({}): {}\n", process.name, process.pid, process.summary);
    let mut row = |name: &str, value: &str| text.push_str(&format!("  {name:22} {value}\n"));
    let or_none = |value: &Option<String>| value.clone().unwrap_or_else(|| "none".to_owned());
    row("library", &or_none(&process.library));
    row("ANYRING_BACKEND", &or_none(&process.backend));
    row("ANYRING_AIO", &or_none(&process.aio));
    row("log", &or_none(&process.log));
    if !process.rings.is_empty() {
        text.push_str(&table(&process.rings));
    }
    match (&process.counters, &process.no_counters) {
        (Some(counters), _) => {
            text.push_str("\ncounters of all processes that keep them together\n");
            text.push_str(&stats::table(counters));
        }
        (None, why) => text.push_str(&format!("\nno counters: {}\n", or_none(why))),
    }
    text
}
