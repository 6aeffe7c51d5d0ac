//! Runs programs on the io_uring that this process has. Each seed has a forked child of its own, so that a crash or a
//! hang is that seed's result. Each child begins in the same state.
//!
//! This process has one thread and makes no ring, so a child may run anything.

use crate::execute::{self, Patience};
use crate::generate;
use crate::record::Record;
use anyhow::{Context, Result};
use anyring_conformance::door::Door;
use anyring_test_kit::{set_soft_limit, Child, End};
use std::collections::BTreeMap;
use std::ffi::CString;
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The time that a program may take.
const LIMIT: Duration = Duration::from_secs(30);
/// The size that a file may grow to in a child: files on tmpfs and memfds are memory, and a length may be anything.
const FILE_LIMIT_BYTES: u64 = 64 << 20;
/// The addresses that a child may use.
const ADDRESS_LIMIT_BYTES: u64 = 2 << 30;
/// The descriptor of the record's file in a child, above the numbers that a run compares.
const RECORD_FD: i32 = 400;

/// The options of a process that runs seeds.
#[derive(clap::Args, Debug, Clone)]
pub struct RunOptions {
    /// The seeds, one after the other
    #[arg(long, value_delimiter = ',', required = true)]
    pub seeds: Vec<u64>,
    /// The file for the records, one line of JSON each
    #[arg(long, value_name = "FILE")]
    pub record: PathBuf,
    /// Records of an earlier run: wait for the CQEs that it had
    #[arg(long, value_name = "FILE")]
    pub counts: Option<PathBuf>,
    /// Microseconds without a CQE after which a ring counts as quiet, if no counts are given
    #[arg(long, default_value_t = 4000)]
    pub quiet_us: u64,
    /// Parts of the programs that are left out
    #[arg(long, value_delimiter = ',')]
    pub without: Vec<u64>,
    /// The door, instead of the one that the seed chooses
    #[arg(long, value_enum)]
    pub door: Option<Door>,
    /// Chaos is active
    #[arg(long)]
    pub disturbed: bool,
}

/// Runs the seeds.
pub fn run(options: &RunOptions) -> Result<()> {
    let counts = options.counts.as_deref().map(read_records).transpose()?.unwrap_or_default();
    let output = File::options().append(true).create(true).open(&options.record).context("the file of records")?;
    let name = format!("anyring-differential-{}", std::process::id());
    let folders = [std::env::temp_dir().join(&name), Path::new("/dev/shm").join(&name)];
    for &seed in &options.seeds {
        for folder in &folders {
            std::fs::create_dir_all(folder).with_context(|| format!("make {}", folder.display()))?;
        }
        let counts = counts.get(&seed).map(|record| record.counts.clone());
        if let Some(failure) = run_one(options, seed, counts, &folders, &output) {
            let record = Record { seed, failure: Some(failure), ..Record::default() };
            write_record(&output, &record);
        }
        for folder in &folders {
            std::fs::remove_dir_all(folder).with_context(|| format!("remove {}", folder.display()))?;
        }
    }
    Ok(())
}

/// Runs one seed in a child. Returns the reason if the child did not come to its end.
fn run_one(
    options: &RunOptions,
    seed: u64,
    counts: Option<Vec<usize>>,
    folders: &[PathBuf; 2],
    output: &File,
) -> Option<String> {
    // SAFETY: this process has one thread, so the child's memory is consistent and it may run anything.
    let child = unsafe { libc::fork() };
    assert!(child >= 0, "fork: {}", std::io::Error::last_os_error());
    if child == 0 {
        in_child(options, seed, counts, folders, output);
    }
    let child = Child::watch(child, LIMIT);
    child.wait();
    match child.end() {
        End::Exited(0) => None,
        end => Some(end.to_string()),
    }
}

fn in_child(
    options: &RunOptions,
    seed: u64,
    counts: Option<Vec<usize>>,
    folders: &[PathBuf; 2],
    output: &File,
) -> ! {
    // SAFETY: numbers only, and a path that is NUL-terminated. What the process that started us left open would change which
    // numbers are free, and programs write to the lowest ones.
    unsafe {
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
        let null = libc::open(c"/dev/null".as_ptr(), libc::O_RDWR);
        (0..3).for_each(|number| assert_eq!(libc::dup2(null, number), number, "dup2"));
        libc::dup2(output.as_raw_fd(), RECORD_FD);
        libc::close_range(3, RECORD_FD as u32 - 1, 0);
    }
    set_limits();
    std::env::set_current_dir(&folders[0]).expect("enter the folder");
    std::panic::set_hook(Box::new(|_| {}));
    let ran = std::panic::catch_unwind(|| {
        let program = generate::program(seed, options.door).without(&options.without);
        let tmpfs = CString::new(folders[1].to_string_lossy().into_owned()).expect("no NUL in a path");
        let quiet = Duration::from_micros(options.quiet_us);
        execute::run(&program, &tmpfs, Patience { quiet, counts, disturbed: options.disturbed })
    });
    let record = ran.unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or(panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
        Record { seed, failure: Some(text.unwrap_or_default()), ..Record::default() }
    });
    // SAFETY: the number was made above, and has no other owner in this process.
    let output = unsafe { <File as std::os::fd::FromRawFd>::from_raw_fd(RECORD_FD) };
    write_record(&output, &record);
    // SAFETY: ends the child without the parent's exit handlers.
    unsafe { libc::_exit(0) }
}

/// Keeps a child from taking the machine's memory. A call that would take too much fails with EFBIG or ENOMEM, on both
/// sides.
fn set_limits() {
    set_soft_limit(libc::RLIMIT_FSIZE, FILE_LIMIT_BYTES);
    // The hard limit stays: the engine makes a ring's memory, which is larger and sparse, under a soft limit that it
    // raises for a moment.
    set_soft_limit(libc::RLIMIT_AS, ADDRESS_LIMIT_BYTES);
    // SAFETY: no handler, and this process has one thread. A write that is too large is EFBIG, without a signal.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
}

fn write_record(mut output: &File, record: &Record) {
    let mut line = serde_json::to_vec(record).expect("a record is plain data");
    line.push(b'\n');
    output.write_all(&line).expect("write the record");
}

/// The records in a file, by seed.
pub fn read_records(path: &Path) -> Result<BTreeMap<u64, Record>> {
    let file = File::open(path).with_context(|| format!("open {}", path.display()))?;
    let mut records = BTreeMap::new();
    for line in BufReader::new(file).lines() {
        let record: Record = serde_json::from_str(&line?).context("a line of the file of records")?;
        records.insert(record.seed, record);
    }
    Ok(records)
}
