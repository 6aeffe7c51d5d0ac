//! The counters as OpenMetrics text, a family for each counter, which Prometheus scrapes and node_exporter collects.
//! The label of a file's counters is the file's name. Counters of running processes have the number and name of the
//! oldest process that adds to them, since children share their parent's counters.

use super::{bytes_of, file_of, snapshot};
use crate::cli::StatsOptions;
use crate::failure::Failure;
use anyring_abi::Opcode;
use anyring_engine::stats::Snapshot;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::os::unix::fs::MetadataExt;

/// The samples of a family, each with its additional labels.
type Samples = fn(&Snapshot) -> Vec<(String, u64)>;

struct Family {
    name: &'static str,
    is_counter: bool,
    help: &'static str,
    samples: Samples,
}

const fn counter(name: &'static str, help: &'static str, samples: Samples) -> Family {
    Family { name, is_counter: true, help, samples }
}

fn one(value: u64) -> Vec<(String, u64)> {
    vec![(String::new(), value)]
}

/// The family for processes whose counters have the layout of another version, because another release started them.
const UNREADABLE: &str = "anyring_unreadable";

const FAMILIES: [Family; 11] = [
    Family {
        name: "anyring_kernel_refused_errno",
        is_counter: false,
        help: "Error number with which the kernel refused io_uring, 0 if it did not or was not asked.",
        samples: |of| one(of.kernel_refused_errno),
    },
    counter("anyring_rings", "Rings made by anyring.", |of| one(of.rings)),
    counter("anyring_kernel_rings", "Rings that the kernel made beside those.", |of| one(of.kernel_rings)),
    counter("anyring_enters", "io_uring_enter(2) calls served.", |of| one(of.enters)),
    counter("anyring_overflows", "CQEs that found the CQ full.", |of| one(of.overflows)),
    counter("anyring_errors", "Completions with a negative result.", |of| one(of.errors)),
    counter("anyring_traps", "System calls that came by a trap (SIGSYS).", |of| one(of.traps)),
    counter("anyring_patches", "Trapped instructions that were replaced by a jump.", |of| one(of.patches)),
    counter("anyring_unserved_children", "Programs that were executed and cannot be served.", |of| {
        one(of.unserved_children)
    }),
    counter("anyring_left_to_kernel", "Programs that anyring run left to the kernel.", |of| {
        ["io_uring", "aio"]
            .iter()
            .zip(of.left_to_kernel)
            .map(|(interface, count)| (label("interface", interface), count))
            .collect()
    }),
    counter("anyring_completions", "Completions, by opcode and the path that the request took.", completions),
];

/// Completions of the opcodes that occurred.
fn completions(of: &Snapshot) -> Vec<(String, u64)> {
    let by_opcode = Opcode::ALL.iter().zip(of.completions);
    let occurred = by_opcode.filter(|(_, paths)| paths.iter().any(|count| *count > 0));
    occurred
        .flat_map(|(opcode, counts)| {
            let paths = ["inline", "poll", "kernel_aio", "worker"].into_iter().zip(counts);
            paths
                .map(|(path, count)| (format!("{},{}", label("opcode", opcode.name()), label("path", path)), count))
        })
        .collect()
}

fn label(name: &str, value: &str) -> String {
    let value = value.replace('\\', r"\\").replace('"', "\\\"").replace('\n', r"\n");
    format!("{name}=\"{value}\"")
}

/// A source of counters: its labels, and the counters or the reason why they cannot be read.
struct Subject {
    labels: String,
    counters: Result<Snapshot, String>,
}

/// The whole text.
pub fn text(options: &StatsOptions) -> Result<String, Failure> {
    let subjects = match (options.pid, &options.files[..]) {
        (Some(pid), _) => {
            let file = file_of(pid).map_err(|why| Failure::own(format!("--pid {pid}: {why}")))?;
            vec![of_file(pid, file)]
        }
        (None, []) => all_processes(),
        (None, files) => {
            let of = |file: &std::path::PathBuf| {
                let name = file.display().to_string();
                let counters = snapshot(file).map_err(|why| Failure::own(format!("{name}: {why}")))?;
                Ok(Subject { labels: label("file", &name), counters: Ok(counters) })
            };
            files.iter().map(of).collect::<Result<_, Failure>>()?
        }
    };
    Ok(form(&subjects))
}

fn form(subjects: &[Subject]) -> String {
    let mut text = String::new();
    let mut family = |name: &str, is_counter: bool, help: &str, samples: Vec<(String, u64)>| {
        let (kind, suffix) = if is_counter { ("counter", "_total") } else { ("gauge", "") };
        let _ = writeln!(text, "# TYPE {name} {kind}\n# HELP {name} {help}");
        for (labels, value) in samples {
            let _ = writeln!(text, "{name}{suffix}{{{labels}}} {value}");
        }
    };
    for Family { name, is_counter, help, samples } in &FAMILIES {
        let of = |subject: &Subject| -> Vec<(String, u64)> {
            let Ok(counters) = &subject.counters else { return Vec::new() };
            let with = |own: String| match own.is_empty() {
                true => subject.labels.clone(),
                false => format!("{},{own}", subject.labels),
            };
            samples(counters).into_iter().map(|(own, value)| (with(own), value)).collect()
        };
        family(name, *is_counter, help, subjects.iter().flat_map(of).collect());
    }
    let unreadable = subjects.iter().filter(|subject| subject.counters.is_err());
    let samples = unreadable.map(|subject| (subject.labels.clone(), 1)).collect();
    family(UNREADABLE, false, "1 for a process that is served by another version of anyring.", samples);
    text.push_str("# EOF\n");
    text
}

fn of_file(pid: i32, file: std::fs::File) -> Subject {
    let bytes = bytes_of(file);
    let counters = bytes.and_then(|bytes| Snapshot::from_bytes(&bytes).map_err(|why| why.to_string()));
    Subject { labels: labels_of(pid), counters }
}

fn labels_of(pid: i32) -> String {
    let name = std::fs::read(format!("/proc/{pid}/comm")).unwrap_or_default();
    let name = String::from_utf8_lossy(&name).trim_end().replace(char::is_control, "\u{fffd}");
    format!("{},{}", label("pid", &pid.to_string()), label("program", &name))
}

/// Returns each block of counters that an accessible process has open, once.
fn all_processes() -> Vec<Subject> {
    let mut blocks = BTreeMap::new();
    let mut unreadable = Vec::new();
    for (_, pid) in processes() {
        match file_of(pid) {
            Ok(file) => {
                let Ok(found) = file.metadata() else { continue };
                blocks.entry((found.dev(), found.ino())).or_insert((pid, file));
            }
            Err(why) if why == anyring_trace::ANOTHER_VERSION => {
                unreadable.push(Subject { labels: labels_of(pid), counters: Err(why) });
            }
            Err(_) => {}
        }
    }
    let mut blocks: Vec<_> = blocks.into_values().collect();
    blocks.sort_by_key(|(pid, _)| *pid);
    blocks.into_iter().map(|(pid, file)| of_file(pid, file)).chain(unreadable).collect()
}

/// All processes, the oldest first.
fn processes() -> Vec<(u64, i32)> {
    let folders = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = folders.filter_map(|folder| folder.file_name().to_str()?.parse::<i32>().ok());
    let started = |pid: i32| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // After the name, which may contain spaces: the state is field 3, the start time is field 22.
        stat.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse::<u64>().ok()
    };
    let mut processes: Vec<_> = pids.filter_map(|pid| Some((started(pid)?, pid))).collect();
    processes.sort_unstable();
    processes
}
