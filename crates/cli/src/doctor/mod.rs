//! `anyring doctor`: every verdict comes from a probe made just now. The structures here are the JSON of
//! docs/doctor.md. Fields may be added; `schema` changes when one is removed or changes its meaning.

mod cause;
mod entry;
mod probe;
mod process;
mod report;
mod rings;

pub use entry::{try_guest, try_library, Trial};
pub use probe::{aio_in_brief, kernel_aio, kernel_aio_in_brief, missing_block};
pub use process::kept_out;

use crate::child::NO_CHILD;
use crate::cli::{DoctorOptions, EntryPoint};
use crate::failure::Failure;
use crate::{library, output, ring};
use cause::{Cause, Evidence};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// A system call number that no kernel uses.
const UNUSED_CALL: u32 = 0x3ff0;

/// A probe and its result.
#[derive(Debug, Serialize)]
pub struct Check {
    name: String,
    /// The purpose for which anyring uses the probed facility.
    purpose: String,
    /// True if anyring cannot serve any program without it.
    needed: bool,
    /// The replacement that anyring uses if the facility does not work.
    instead: Option<&'static str>,
    /// True if the facility works.
    pub works: bool,
    /// `works`, or what went wrong.
    pub answer: String,
}

impl Check {
    /// Whether it works, and the answer.
    pub fn outcome(self) -> (bool, String) {
        (self.works, self.answer)
    }

    /// Describes a probe that failed.
    fn fault(&self) -> String {
        format!("{} does not work here: {}", self.name, self.answer)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Server {
    Kernel,
    User,
}

#[derive(Debug, Serialize)]
struct Verdict {
    /// True if an io_uring program would run here under `anyring run`.
    runs: bool,
    /// The server of the program.
    by: Option<Server>,
    summary: String,
}

#[derive(Debug, Serialize)]
struct KernelRing {
    works: bool,
    /// The outcome of the requests.
    answer: String,
    cause: Cause,
    /// The observation that shows the cause.
    because: String,
    /// Number of rings that fit at the same time; `None` if none works.
    room: Option<ring::Room>,
}

/// The server that `run` uses for each `--backend`; `None` if it refuses.
#[derive(Debug, Serialize)]
struct Choices {
    auto: Option<Server>,
    kernel: Option<Server>,
    user: Option<Server>,
}

#[derive(Debug, Serialize)]
struct Report {
    schema: u32,
    verdict: Verdict,
    io_uring: KernelRing,
    evidence: Evidence,
    kernel_aio: Check,
    /// Path of libanyring.so, or null when it was not found.
    library: Option<PathBuf>,
    /// The reason why the library was not found.
    no_library: Option<String>,
    /// The version of the C library of the program into which libanyring.so was loaded.
    glibc: Option<String>,
    entry_points: Vec<Check>,
    building_blocks: Vec<Check>,
    run: Choices,
    /// The server for each `--aio`.
    run_aio: Choices,
    advice: Vec<String>,
}

/// Probes, prints the report, and returns 0 if an io_uring program would run here, otherwise 1.
pub fn run(options: &DoctorOptions) -> Result<i32, Failure> {
    if let Some(pid) = options.pid {
        return process::run(pid, options.json);
    }
    // SAFETY: no handler is involved. If SIGCHLD was inherited as ignored, the end of our children would be hidden.
    unsafe { libc::signal(libc::SIGCHLD, libc::SIG_DFL) };
    let report = examine();
    let text = if options.json {
        let json = serde_json::to_string_pretty(&report);
        json.map_err(|error| Failure::own(format!("cannot write JSON: {error}")))? + "\n"
    } else {
        report::text(&report)
    };
    output::print(&text)?;
    Ok(i32::from(!report.verdict.runs))
}

/// Runs the hidden subcommand: tries one way into the engine in this process.
pub fn try_entry_point(name: EntryPoint, least: bool) -> Result<i32, Failure> {
    let needs = if least { ring::Needs::Least } else { ring::Needs::All };
    entry::run(name, needs).map(|()| 0).map_err(|message| Failure { status: 1, message })
}

fn examine() -> Report {
    let trial = ring::try_here();
    let evidence = Evidence::gather();
    let (cause, because) = cause::find(&trial, &evidence);
    let works = ring::kernel_works(&trial);
    let room = works.then(ring::room).flatten();
    let io_uring = KernelRing { works, answer: ring::describe(&trial), cause, because, room };
    let kernel_aio = probe::kernel_aio();
    let building_blocks = probe::building_blocks();
    let library = library::find_loadable();
    let (entry_points, glibc) = entry::entry_points(library.as_deref().ok());

    let missing = missing(&library, &entry_points, &building_blocks);
    let auto = if works { Server::Kernel } else { Server::User };
    let runs = works || missing.is_none();
    let is_tried = entry_points.iter().any(|way| way.works);
    let summary = summary(&io_uring, missing.as_deref(), is_tried);
    let run = Choices {
        auto: (works || missing.is_none()).then_some(auto),
        kernel: works.then_some(Server::Kernel),
        user: missing.is_none().then_some(Server::User),
    };
    let run_aio = Choices {
        auto: match kernel_aio.works {
            true => Some(Server::Kernel),
            false => run.user,
        },
        kernel: kernel_aio.works.then_some(Server::Kernel),
        user: run.user,
    };
    let mut advice = Vec::new();
    if !works {
        advice.push(match &missing {
            None => "anyring run -- PROGRAM ARGS".to_owned(),
            Some(why) => format!("anyring itself: {why}"),
        });
        advice.extend(permit(cause).map(str::to_owned));
        if missing.is_none() && is_tried {
            advice.extend(limits(&entry_points));
        }
    }
    advice.extend(io_uring.room.as_ref().and_then(|room| crowded(room, missing.is_none())));
    Report {
        schema: 1,
        verdict: Verdict { runs, by: runs.then_some(auto), summary },
        io_uring,
        evidence,
        kernel_aio,
        no_library: library.as_ref().err().cloned(),
        library: library.ok(),
        glibc,
        entry_points,
        building_blocks,
        run,
        run_aio,
        advice,
    }
}

/// Returns the reason why anyring can serve no program here, or `None` if it can. The trials decide whether it can.
/// A failed building block only gives the reason.
fn missing(library: &Result<PathBuf, String>, entries: &[Check], blocks: &[Check]) -> Option<String> {
    let is_untried = |way: &Check| way.answer.starts_with(NO_CHILD);
    match library {
        // The library that ANYRING_LIBRARY names must work.
        Err(reason) if library::is_named() => return Some(reason.clone()),
        _ if entries.iter().all(is_untried) && blocks.iter().all(|block| block.works || !block.needed) => {
            return None
        }
        _ if entries.iter().any(|way| way.works && way.name != "preload") => return None,
        _ => {}
    }
    if let Some(broken) = blocks.iter().find(|check| check.needed && !check.works) {
        return Some(broken.fault());
    }
    // The first of the ways that failed.
    let ways: Vec<_> = entries.iter().filter(|way| !way.works).collect();
    match (library, ways.first()) {
        (Err(reason), None) => Some(reason.clone()),
        (_, way) => way.map(|way| format!("it serves no ring here ({}: {})", way.name, way.answer)),
    }
}

fn summary(io_uring: &KernelRing, missing: Option<&str>, is_tried: bool) -> String {
    let cause = io_uring.cause.name();
    match (io_uring.works, missing) {
        (true, _) => "io_uring programs run here: the kernel's io_uring works.".to_owned(),
        (false, None) if !is_tried => {
            format!("io_uring programs may run here under `anyring run`, which cannot be tried: {NO_CHILD}.")
        }
        (false, None) => {
            format!("io_uring programs run here under `anyring run`; the kernel's own does not work ({cause}).")
        }
        (false, Some(_)) => {
            format!("io_uring programs do not run here: neither the kernel ({cause}) nor anyring works.")
        }
    }
}

/// Returns the advice for a machine on which only a limited number of rings fit.
fn crowded(room: &ring::Room, anyring_works: bool) -> Option<String> {
    let end = room.end.as_ref()?;
    let instead = if anyring_works { "anyring run -- PROGRAM ARGS serves them" } else { "raise it (ulimit -l)" };
    Some(format!(
        "beyond {} rings of 64 entries {end}, mostly for the limit of locked memory: {instead}",
        room.rings
    ))
}

/// The change that would make the kernel's io_uring work.
fn permit(cause: Cause) -> Option<&'static str> {
    Some(match cause {
        Cause::None => return None,
        Cause::Seccomp => {
            "for the kernel's own: permit io_uring_setup, io_uring_enter and io_uring_register in the seccomp profile \
             (docker run --security-opt seccomp=PROFILE)"
        }
        Cause::Sysctl => "for the kernel's own: as root, sysctl kernel.io_uring_disabled=0, or join kernel.io_uring_group",
        Cause::KernelLacksIt => "for the kernel's own: a kernel with CONFIG_IO_URING (5.6 or newer)",
        Cause::UserEmulation => "for the kernel's own: run the program on its own kind of processor",
        Cause::Memlock => "for the kernel's own: raise the limit of locked memory (ulimit -l, LimitMEMLOCK=)",
        Cause::DescriptorLimit => "raise the limit of open files (ulimit -n); anyring needs descriptors too",
        Cause::SecurityModule => "for the kernel's own: permit io_uring in the security module's policy",
        Cause::DeniedOperation => "for the kernel's own: permit the operation in the ring's restrictions",
        Cause::Emulated => "to examine the kernel itself, run doctor without `anyring run`",
        Cause::Unknown => return None,
    })
}

/// Programs that anyring cannot serve here, if it serves others. If the library cannot be loaded, guests can still
/// run.
fn limits(entries: &[Check]) -> Vec<String> {
    let works = |name: &str| entries.iter().find(|check| check.name == name).map(|check| check.works);
    let describe = |check: &Check| format!("{} ({})", check.purpose, check.answer);
    if let (Some(preload), Some(true)) = (entries.iter().find(|check| check.name == "preload"), works("guest")) {
        if !preload.works {
            return vec![format!(
                "all programs run as guests, since the library cannot be loaded ({})",
                preload.answer
            )];
        }
    }
    let broken = entries.iter().filter(|check| !check.works);
    broken.map(|check| format!("not served by anyring: {}", describe(check))).collect()
}
