//! Every flag of the command, in the one place that parsing, `--help`, the man pages and the completions are made
//! from (xtask includes this file, so it names nothing else of the crate).

use clap::{Args, Parser, Subcommand, ValueEnum};
use std::ffi::OsString;
use std::path::PathBuf;

/// Runs io_uring programs, unmodified, where the kernel denies io_uring.
#[derive(Debug, Parser)]
#[command(name = "anyring", version, max_term_width = 100)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    Run(RunOptions),
    Deny(DenyOptions),
    Doctor(DoctorOptions),
    Stats(StatsOptions),
    Lab(LabOptions),
    /// Tries one way into libanyring.so, in a process that doctor started with the library preloaded.
    #[command(hide = true)]
    EntryPoint {
        name: EntryPoint,
    },
}

const RUN_EXAMPLES: &str = "\
Examples:
  anyring run -- fio job.fio
  anyring run --backend user --stats /tmp/fio.stats -- fio job.fio
  anyring deny -- anyring run -- qemu-img bench -i io_uring disk.img

Exit status: the program's own. 125 when anyring could not do its part, 126 when the program cannot be executed or
cannot be served (statically linked, set-user-ID ...), 127 when it was not found, 2 for a usage error.";

/// Run PROGRAM; where the kernel's io_uring does not work, anyring serves it
#[derive(Debug, Args)]
#[command(after_help = RUN_EXAMPLES, override_usage = "anyring run [OPTIONS] -- PROGRAM [ARGS]...")]
pub struct RunOptions {
    /// Who serves io_uring
    #[arg(long, value_enum, default_value_t = Backend::Auto)]
    pub backend: Backend,
    /// Keep counters of what anyring served in FILE (ANYRING_STATS)
    #[arg(long, value_name = "FILE")]
    pub stats: Option<PathBuf>,
    /// Write anyring's messages to FILE (ANYRING_LOG)
    #[arg(long, value_name = "FILE")]
    pub log: Option<PathBuf>,
    /// Do not trap raw `syscall` instructions, so that no_new_privs stays as it is (ANYRING_RAW=0)
    #[arg(long)]
    pub no_raw: bool,
    #[command(flatten)]
    pub program: Program,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Backend {
    /// The kernel where its io_uring works (the program is then started plainly), otherwise anyring
    Auto,
    /// The kernel; fail where its io_uring does not work
    Kernel,
    /// anyring, even where the kernel's io_uring works
    User,
}

const DENY_EXAMPLES: &str = "\
Examples:
  anyring deny -- fio job.fio                             as under a container's default profile
  anyring deny --errno ENOSYS --aio -- myserver           no io_uring and no kernel AIO
  anyring deny --profile rhel8 -- myserver                without all that Linux 4.18 does not have
  anyring deny --profile minimal -- anyring doctor        what anyring finds where most is missing

The filter is inherited by every process that PROGRAM starts and cannot be taken off again; it sets no_new_privs, so
set-user-ID programs run without their privileges below it.

Exit status: the program's own. 125 when the filter cannot be installed, 126 when the program cannot be executed,
127 when it was not found, 2 for a usage error.";

/// Run PROGRAM where the io_uring calls are refused, as containers refuse them
#[derive(Debug, Args)]
#[command(after_help = DENY_EXAMPLES, override_usage = "anyring deny [OPTIONS] -- PROGRAM [ARGS]...")]
pub struct DenyOptions {
    /// What io_uring_setup, io_uring_enter and io_uring_register answer [default: EPERM, or the profile's]
    #[arg(long, value_enum, ignore_case = true)]
    pub errno: Option<DenyErrno>,
    /// Take away what else is missing in this environment (docs/profiles.md lists it)
    #[arg(long, value_enum)]
    pub profile: Option<Profile>,
    /// Refuse io_setup, io_submit, io_getevents, io_pgetevents, io_destroy and io_cancel too
    #[arg(long)]
    pub aio: bool,
    /// Refuse seccomp(2) with EPERM too: programs that enter by instructions of their own cannot be served then
    #[arg(long)]
    pub seccomp: bool,
    #[command(flatten)]
    pub program: Program,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum DenyErrno {
    #[value(name = "EPERM")]
    Eperm,
    #[value(name = "ENOSYS")]
    Enosys,
    #[value(name = "EOPNOTSUPP")]
    Eopnotsupp,
    #[value(name = "ENOMEM")]
    Enomem,
    #[value(name = "EINVAL")]
    Einval,
}

/// An environment in which io_uring and more is missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Profile {
    /// A container under the default seccomp profile of Docker or containerd (EPERM)
    Docker,
    /// Linux 4.18, as in Red Hat Enterprise Linux 8 (ENOSYS)
    Rhel8,
    /// The gVisor sandbox (ENOSYS)
    Gvisor,
    /// Everything that anyring can do without, and /proc (EPERM)
    Minimal,
}

impl DenyErrno {
    /// The number the system calls answer (negated in the register).
    pub fn code(self) -> i32 {
        match self {
            DenyErrno::Eperm => libc::EPERM,
            DenyErrno::Enosys => libc::ENOSYS,
            DenyErrno::Eopnotsupp => libc::EOPNOTSUPP,
            DenyErrno::Enomem => libc::ENOMEM,
            DenyErrno::Einval => libc::EINVAL,
        }
    }
}

const DOCTOR_EXAMPLES: &str = "\
Examples:
  anyring doctor
  anyring doctor --json | jq .verdict
  docker run --rm -v \"$PWD:/a\" debian /a/anyring doctor

Exit status: 0 when an io_uring program would run here (by the kernel or by anyring), 1 when not.";

/// Say whether io_uring works here, if not why, and what to do
#[derive(Debug, Args)]
#[command(after_help = DOCTOR_EXAMPLES)]
pub struct DoctorOptions {
    /// Print the findings as JSON (docs/doctor.md describes it)
    #[arg(long)]
    pub json: bool,
}

const STATS_EXAMPLES: &str = "\
Examples:
  anyring run --backend user --stats fio.stats -- fio job.fio && anyring stats fio.stats
  anyring stats fio.stats --json | jq .completions

Exit status: 0 when the counters were printed, 125 when FILE has none.";

/// Print the counters that `run --stats FILE` (ANYRING_STATS) keeps
#[derive(Debug, Args)]
#[command(after_help = STATS_EXAMPLES)]
pub struct StatsOptions {
    /// The counters file; it may be in use
    pub file: PathBuf,
    /// Print them as JSON (docs/configuration.md describes it)
    #[arg(long)]
    pub json: bool,
}

const LAB_EXAMPLES: &str = "\
Workloads:
  pipes    128 pipes, 256 rounds of reading and writing, as published for Linux 6.4
  nop      one NOP, submitted and reaped
  files    reading a file: page cache and O_DIRECT, random and sequential, several depths
  echo     a TCP server: 1 to 256 connections, small and large messages, plain and multishot
  timers   arming, cancelling and firing timeouts
  polls    up to 10,000 idle descriptors of which few become ready
  idle     memory and CPU of rings that nobody uses
  msg      messages from ring to ring, as published in 2024
  async    O_DIRECT writes with and without IOSQE_ASYNC (on a loop device when root)
  load     loading libanyring.so into a process that never uses io_uring

Backends: anyring, kernel, epoll, libuv, posix-aio, kernel-aio, threads, futex, libc; each where it has a meaning.

Examples:
  anyring lab nop load
  anyring lab pipes --backends anyring,kernel,epoll --runs 20
  anyring lab --out results             everything, as tables and into results/: report.html, report.json, charts

Exit status: 0 when it was measured, whatever came out; 125 when it could not be, or when a result was wrong; 2 for a
usage error; 128 and the signal's number when interrupted.";

/// Measure anyring, the kernel's io_uring and the alternatives in turns
#[derive(Debug, Args)]
#[command(after_help = LAB_EXAMPLES)]
pub struct LabOptions {
    /// What to measure [default: everything]
    #[arg(value_name = "WORKLOAD")]
    pub workloads: Vec<String>,
    /// Only these backends
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub backends: Option<Vec<String>>,
    /// Runs that count, after one that is dropped [default: 9, or what the workload needs]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub runs: Option<u16>,
    /// About how long it may take in all: workloads for which the time is short take fewer runs, at least 2
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub minutes: Option<u16>,
    /// Little work and 1 run, to see that it runs: the figures are worth nothing
    #[arg(long)]
    pub quick: bool,
    /// Write report.html, report.json and each chart as SVG and PNG into DIR, which is made if missing
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Print the report as JSON instead of tables (docs/lab.md describes it)
    #[arg(long)]
    pub json: bool,
    /// How the programs reach io_uring
    #[arg(long, value_enum, default_value_t = LabDoor::Liburing)]
    pub door: LabDoor,
}

/// How a program of the interface reaches io_uring.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LabDoor {
    /// liburing's functions, by symbol
    Liburing,
    /// libc's syscall()
    Libc,
    /// System call instructions of their own
    Raw,
}

/// A way into the library. The names are those of the hidden subcommand and of the JSON.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum EntryPoint {
    Preload,
    Liburing,
    Syscall,
    Raw,
}

/// The program to execute, after `--`.
#[derive(Debug, Args)]
pub struct Program {
    /// The program, looked up in PATH, and its arguments
    #[arg(required = true, trailing_var_arg = true, value_names = ["PROGRAM", "ARGS"], num_args = 1..)]
    pub words: Vec<OsString>,
}
