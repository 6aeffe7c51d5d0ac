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
Examples:
  anyring lab nop
  anyring lab nop --runs 50 --batch 1,8,64 --json
  anyring lab load

Exit status: 0 when it was measured, whatever came out; 125 when it could not be, or when a result was wrong.";

/// Measure anyring and the kernel's io_uring in turns
#[derive(Debug, Args)]
#[command(after_help = LAB_EXAMPLES)]
pub struct LabOptions {
    #[command(subcommand)]
    pub workload: Workload,
}

#[derive(Debug, Subcommand)]
pub enum Workload {
    /// Submitting and reaping one NOP through liburing
    Nop {
        /// How many SQEs a submit call has: a list
        #[arg(long, value_name = "LIST", value_delimiter = ',', default_values_t = [1, 32], value_parser = clap::value_parser!(u32).range(1..=4096))]
        batch: Vec<u32>,
        /// Processes started for each side and batch size
        #[arg(long, value_name = "N", default_value_t = 15, value_parser = clap::value_parser!(u16).range(1..))]
        runs: u16,
        /// Print the figures as JSON (docs/lab.md describes it)
        #[arg(long)]
        json: bool,
    },
    /// Loading libanyring.so into a process that never uses io_uring
    Load {
        /// How often the process is started with and without it
        #[arg(long, value_name = "N", default_value_t = 400, value_parser = clap::value_parser!(u16).range(1..))]
        runs: u16,
        /// Print the figures as JSON (docs/lab.md describes it)
        #[arg(long)]
        json: bool,
    },
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
