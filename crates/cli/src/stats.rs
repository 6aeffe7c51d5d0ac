//! `anyring stats`: prints the counters that the library kept in a file.

use crate::cli::StatsOptions;
use crate::errno;
use crate::failure::Failure;
use anyring_abi::Opcode;
use anyring_engine::stats::Snapshot;
use serde::Serialize;
use std::collections::BTreeMap;
use std::io::Read;

/// The JSON of `anyring stats --json`.
#[derive(Serialize)]
struct Counters {
    kernel_refused_errno: u64,
    rings: u64,
    enters: u64,
    overflows: u64,
    errors: u64,
    /// Only the opcodes that were completed at all, by the kernel header's name without `IORING_OP_`.
    completions: BTreeMap<&'static str, Paths>,
}

/// Completions of one opcode, by the path that the request took.
#[derive(Serialize)]
struct Paths {
    inline: u64,
    poll: u64,
    kernel_aio: u64,
    worker: u64,
}

/// Prints the counters in the file.
pub fn run(options: &StatsOptions) -> Result<i32, Failure> {
    let counters = read(options)?;
    if options.json {
        let text = serde_json::to_string_pretty(&counters).map_err(|error| Failure::own(error.to_string()))?;
        println!("{text}");
    } else {
        print!("{}", table(&counters));
    }
    Ok(0)
}

/// More than any layout of the counters: a foreign file is not read to its end.
const LIMIT_BYTES: u64 = 1 << 20;

fn read(options: &StatsOptions) -> Result<Counters, Failure> {
    let failure = |why: &dyn std::fmt::Display| Failure::own(format!("{}: {why}", options.file.display()));
    let mut bytes = Vec::new();
    std::fs::File::open(&options.file)
        .and_then(|file| file.take(LIMIT_BYTES).read_to_end(&mut bytes))
        .map_err(|error| failure(&error.raw_os_error().map_or(error.to_string(), errno::describe)))?;
    if bytes.is_empty() {
        return Err(failure(&"the file is empty: nothing was counted"));
    }
    Snapshot::from_bytes(&bytes).map(Counters::from).map_err(|why| failure(&why))
}

impl From<Snapshot> for Counters {
    fn from(snapshot: Snapshot) -> Self {
        let by_opcode = Opcode::ALL.iter().zip(snapshot.completions);
        let occurred = by_opcode.filter(|(_, paths)| paths.iter().any(|count| *count > 0));
        Counters {
            kernel_refused_errno: snapshot.kernel_refused_errno,
            rings: snapshot.rings,
            enters: snapshot.enters,
            overflows: snapshot.overflows,
            errors: snapshot.errors,
            completions: occurred
                .map(|(opcode, [inline, poll, kernel_aio, worker])| {
                    (opcode.name(), Paths { inline, poll, kernel_aio, worker })
                })
                .collect(),
        }
    }
}

fn table(counters: &Counters) -> String {
    let refused = match counters.kernel_refused_errno {
        0 => "no (or it was not asked)".to_owned(),
        code => i32::try_from(code).map_or_else(|_| format!("errno {code}"), errno::name),
    };
    let mut text = format!(
        "kernel refused io_uring  {refused}\nrings                    {}\nenter calls              {}\n\
         CQ overflows             {}\nfailed requests          {}\n",
        counters.rings, counters.enters, counters.overflows, counters.errors
    );
    if counters.completions.is_empty() {
        text.push_str("\nNo request was completed.\n");
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
