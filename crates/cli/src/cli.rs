//! The flags of the command: the single source of parsing, `--help`, the man pages and the completions.
//! crates/xtask/dist includes this file, so it names nothing else of the crate.

use anyring_engine::chaos::rules::RULES;
use clap::{Args, Parser, Subcommand, ValueEnum, ValueHint};
use std::ffi::OsString;
use std::path::PathBuf;

/// Run unmodified io_uring programs where the kernel denies io_uring
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
    Trace(TraceOptions),
    Report(ReportOptions),
    Check(CheckOptions),
    Lab(LabOptions),
    Advise(AdviseOptions),
    Chaos(ChaosOptions),
    /// Tries one way into the engine, in a process that doctor has started
    #[command(hide = true)]
    EntryPoint {
        name: EntryPoint,
        #[arg(long)]
        least: bool,
    },
}

const RUN_EXAMPLES: &str = "\
Examples:
  anyring run -- fio job.fio
  anyring run --backend user --stats /tmp/fio.stats -- fio job.fio
  anyring run --needs /tmp/fio.stats,sqe_mixed -- fio job.fio
  anyring deny --aio -- anyring run -- fio --ioengine=libaio job.fio
  anyring deny -- anyring run -- qemu-img bench -i io_uring disk.img

A library cannot be preloaded into a program that is statically linked or linked with musl. anyring
maps such a program into its own process as a guest, and serves it and everything that it starts.
Without libanyring.so every program is a guest.

Exit status: the program's own. 125 when anyring itself failed, 126 when the program cannot be
executed or cannot be served (32-bit, set-user-ID ...), 127 when it was not found, 2 for a usage
error.";

/// Run PROGRAM; anyring serves it if the kernel's io_uring does not work
#[derive(Debug, Args)]
#[command(after_help = RUN_EXAMPLES, override_usage = "anyring run [OPTIONS] -- PROGRAM [ARGS]...")]
pub struct RunOptions {
    /// Choose who serves io_uring. auto: the kernel if its io_uring works, and anyring for rings that the kernel
    /// refuses [default: ANYRING_BACKEND, else auto]
    #[arg(long, value_enum)]
    pub backend: Option<Backend>,
    /// Choose who serves Linux AIO: io_setup, io_submit and the others [default: ANYRING_AIO, else auto]
    #[arg(long, value_enum)]
    pub aio: Option<Backend>,
    /// Let anyring serve io_uring if the kernel lacks one of these: opcodes and setup flags, such as send_zc or
    /// sqe_mixed. A FILE of `run --stats` stands for the opcodes that the program used then
    #[arg(long, value_name = "NAME|FILE,...", value_delimiter = ',')]
    pub needs: Vec<String>,
    /// Keep counters of what anyring serves in FILE; `anyring stats` prints them (ANYRING_STATS)
    #[arg(long, value_name = "FILE")]
    pub stats: Option<PathBuf>,
    /// Write anyring's messages to FILE (ANYRING_LOG)
    #[arg(long, value_name = "FILE")]
    pub log: Option<PathBuf>,
    /// Do not trap the program's own system call instructions. A trap needs a filter and no_new_privs (ANYRING_RAW=0)
    #[arg(long)]
    pub no_raw: bool,
    /// Run PROGRAM as a guest, even if the library can be preloaded into it or the kernel serves it
    #[arg(long, conflicts_with_all = ["no_guest", "no_raw"])]
    pub guest: bool,
    /// Never run a guest: refuse a program into which the library cannot be preloaded
    #[arg(long)]
    pub no_guest: bool,
    #[command(flatten)]
    pub program: Program,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Backend {
    /// The kernel if its io_uring works, otherwise anyring
    Auto,
    /// The kernel; fail if its io_uring does not work
    Kernel,
    /// anyring, even if the kernel's io_uring works
    User,
}

const DENY_EXAMPLES: &str = "\
Examples:
  anyring deny -- fio job.fio                             as under a container's default profile
  anyring deny --errno ENOSYS --aio -- myserver           no io_uring and no kernel AIO
  anyring deny --errno kill -- myserver                   io_uring calls kill the process
  anyring deny --profile rhel8 -- myserver                with the system calls of Linux 4.18
  anyring deny --profile minimal -- anyring doctor        doctor with the fewest calls allowed

Every process that PROGRAM starts inherits the filter, and cannot remove it. The filter sets
no_new_privs, so set-user-ID programs run without their privileges.

Exit status: the program's own. 125 when the filter cannot be installed, 126 when the program cannot
be executed, 127 when it was not found, 2 for a usage error.";

/// Run PROGRAM with the io_uring calls refused, as containers do
#[derive(Debug, Args)]
#[command(after_help = DENY_EXAMPLES, override_usage = "anyring deny [OPTIONS] -- PROGRAM [ARGS]...")]
pub struct DenyOptions {
    /// Answer to io_uring_setup, io_uring_enter and io_uring_register [default: EPERM, or the profile's]
    #[arg(long, value_enum, ignore_case = true)]
    pub errno: Option<DenyErrno>,
    /// Imitate this environment: refuse io_uring and everything else that it lacks (docs/profiles.md)
    #[arg(long, value_enum)]
    pub profile: Option<Profile>,
    /// Also refuse io_setup, io_submit, io_getevents, io_pgetevents, io_destroy and io_cancel
    #[arg(long)]
    pub aio: bool,
    /// Also refuse new seccomp filters, with EPERM. anyring then cannot serve programs with system call
    /// instructions of their own
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
    /// Kill the process with SIGSYS, like a filter that lists the allowed calls
    #[value(name = "kill")]
    Kill,
    /// Send the thread a SIGSYS, as Android does
    #[value(name = "trap")]
    Trap,
}

/// An environment that lacks io_uring and more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Profile {
    /// A container under the default seccomp profile of Docker or containerd (EPERM)
    Docker,
    /// Linux 4.18, as in Red Hat Enterprise Linux 8 (ENOSYS)
    Rhel8,
    /// The gVisor sandbox (ENOSYS)
    Gvisor,
    /// Only the calls that anyring cannot do without, and no /proc (EPERM)
    Minimal,
    /// A coding agent's sandbox without network: no sockets that reach other processes, no ptrace (EPERM)
    Agent,
    /// The agent's sandbox, also without socket pairs: there a ring's descriptor is a pipe (EPERM)
    AgentStrict,
    /// A service whose filter kills the process for any call that it does not list (kill)
    Kill,
}

impl DenyErrno {
    /// The filter's answer to the system calls.
    pub fn action(self) -> u32 {
        let errno = |code: i32| libc::SECCOMP_RET_ERRNO | code as u32;
        match self {
            DenyErrno::Eperm => errno(libc::EPERM),
            DenyErrno::Enosys => errno(libc::ENOSYS),
            DenyErrno::Eopnotsupp => errno(libc::EOPNOTSUPP),
            DenyErrno::Enomem => errno(libc::ENOMEM),
            DenyErrno::Einval => errno(libc::EINVAL),
            DenyErrno::Kill => libc::SECCOMP_RET_KILL_PROCESS,
            DenyErrno::Trap => libc::SECCOMP_RET_TRAP,
        }
    }
}

const DOCTOR_EXAMPLES: &str = "\
Examples:
  anyring doctor
  anyring doctor --json | jq .verdict
  anyring doctor --pid $(pidof fio)
  docker run --rm -v \"$PWD:/a\" debian /a/anyring doctor

Exit status: 0 when an io_uring program would run here, served by the kernel or by anyring; 1 when
not. With --pid: 0 when anyring is in that process; 1 when not.

--pid lists each ring of the process: its descriptors, who serves it, entries, flags, the process that
made it, and the error by which the kernel refused it. It needs permission to trace the process (ptrace(2)).";

/// Say whether io_uring works here, and if not, why and what to do
#[derive(Debug, Args)]
#[command(after_help = DOCTOR_EXAMPLES)]
pub struct DoctorOptions {
    /// Examine the running process PID: who serves it, which rings it has, what was refused
    #[arg(long, value_name = "PID")]
    pub pid: Option<u32>,
    /// Print the findings as JSON (docs/doctor.md describes it)
    #[arg(long)]
    pub json: bool,
}

const STATS_EXAMPLES: &str = "\
Examples:
  anyring run --backend user --stats fio.stats -- fio job.fio && anyring stats fio.stats
  anyring stats fio.stats --json | jq .completions
  anyring stats --pid $(pidof fio)
  anyring stats --prometheus >anyring.prom.new && mv anyring.prom.new /var/lib/prometheus/node-exporter/anyring.prom
  anyring stats --listen 127.0.0.1:9639 &
  anyring stats --listen /run/anyring.sock & curl --unix-socket /run/anyring.sock http://localhost/metrics

A process counts from its first ring on, with or without a FILE. --pid needs permission to trace the
process (ptrace(2)), as do --prometheus and --listen without a FILE. They find a process only while
it has a ring that anyring serves.

Exit status: 0 when the counters were printed, 125 when FILE or PID has none.";

/// Print anyring's counters, from a file of `run --stats` (ANYRING_STATS) or from a running process
#[derive(Debug, Args)]
#[command(after_help = STATS_EXAMPLES)]
pub struct StatsOptions {
    /// The counters file, which may be in use. With --prometheus or --listen: several files, or none for all
    /// processes that anyring serves
    #[arg(required_unless_present_any = ["pid", "prometheus", "listen"], value_hint = ValueHint::FilePath)]
    pub files: Vec<PathBuf>,
    /// Print the counters of the running process PID
    #[arg(long, value_name = "PID", conflicts_with = "files", value_parser = clap::value_parser!(i32).range(1..))]
    pub pid: Option<i32>,
    /// Print the counters as JSON (docs/configuration.md describes it)
    #[arg(long)]
    pub json: bool,
    /// Print the counters as OpenMetrics text, for Prometheus (docs/configuration.md describes it)
    #[arg(long, conflicts_with = "json")]
    pub prometheus: bool,
    /// Serve the counters as OpenMetrics text at http://ADDRESS/metrics, until a signal arrives. ADDRESS: a loopback
    /// address with a port, or the path of a Unix socket, with a slash
    #[arg(long, value_name = "ADDRESS", conflicts_with = "json")]
    pub listen: Option<String>,
}

const TRACE_EXAMPLES: &str = "\
Examples:
  anyring trace -- fio job.fio
  anyring trace --backend user --events -o events.txt -- ./myserver
  anyring trace --events --filter 'opcode=READ,res<0' -- ./myserver
  anyring trace --perfetto trace.json -- ./myserver
  anyring trace --pid 1234 --live
  anyring trace --record trace.rec -- ./myserver && anyring report trace.rec
  anyring trace --verify './mybench --depth 32' -- ./mybench --depth 1
  anyring trace --json -o report.json -- ./mytest && jq '.rings[].kinds[]' report.json

Tracing anyring's own engine needs no privilege. Tracing the kernel's io_uring needs root, for
tracefs, and reports no sizes.

Exit status: the program's own; a signal that ended it ends anyring too. 125 when anyring itself
failed, 126 when the program cannot be executed or cannot be served, 127 when it was not found, 2 for
a usage error.";

/// Run PROGRAM and report which path each of its io_uring requests took
#[derive(Debug, Args)]
#[command(after_help = TRACE_EXAMPLES, override_usage = "anyring trace [OPTIONS] -- PROGRAM [ARGS]...\n       anyring trace [OPTIONS] --pid PID")]
pub struct TraceOptions {
    /// Choose who serves io_uring. auto: the kernel if its io_uring works and can be traced, otherwise anyring
    /// [default: ANYRING_BACKEND, else auto]
    #[arg(long, value_enum)]
    pub backend: Option<Backend>,
    #[command(flatten)]
    pub form: Form,
    /// Record the events in FILE for `anyring report`. To report now as well, add --events, --json or --output
    #[arg(long, value_name = "FILE")]
    pub record: Option<PathBuf>,
    /// While the program runs, show rates, paths and latencies of each interval on standard error, as iostat does
    /// [default interval: 1 second]
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, require_equals = true, default_missing_value = "1", value_parser = clap::value_parser!(u32).range(1..))]
    pub live: Option<u32>,
    /// Afterwards run PROGRAM and COMMAND in turns, five times each and untraced, and say whether COMMAND takes less time.
    /// sh(1) runs COMMAND, which should do the same work as PROGRAM, changed as a finding advises
    #[arg(long, value_name = "COMMAND", conflicts_with = "pid")]
    pub verify: Option<OsString>,
    /// Trace the running process PID until it ends or anyring gets SIGINT
    #[arg(long, value_name = "PID", value_parser = clap::value_parser!(i32).range(1..))]
    pub pid: Option<i32>,
    /// The program, looked up in PATH, and its arguments
    #[arg(required_unless_present = "pid", conflicts_with = "pid", trailing_var_arg = true, value_names = ["PROGRAM", "ARGS"], num_args = 1.., value_hint = ValueHint::CommandWithArguments)]
    pub words: Vec<OsString>,
}

/// The forms of output of trace and report.
#[derive(Debug, Args)]
pub struct Form {
    /// Print a line for each event, named as in bpftrace, instead of the summary
    #[arg(long)]
    pub events: bool,
    /// Print only events that meet all conditions, such as opcode=READ,fd=7,ring=1,res<0. Further fields: thread, len,
    /// user_data, event. Further operators: != <= > >=
    #[arg(long, value_name = "CONDITIONS", requires = "events")]
    pub filter: Option<String>,
    /// Print the times of events as CLOCK_MONOTONIC has them, not relative to the first event
    #[arg(long, requires = "events")]
    pub monotonic: bool,
    /// Print the summary as JSON (docs/trace.md describes it)
    #[arg(long, conflicts_with = "events")]
    pub json: bool,
    /// Write to FILE instead of standard error (trace) or standard output (report)
    #[arg(long, short, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Also write the events to FILE for the Perfetto UI (ui.perfetto.dev)
    #[arg(long, value_name = "FILE")]
    pub perfetto: Option<PathBuf>,
    /// Also write the summary to FILE as an HTML page, with shares of the paths and latency histograms
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
}

const REPORT_EXAMPLES: &str = "\
Examples:
  anyring trace --record trace.rec -- ./myserver
  anyring report trace.rec
  anyring report --events --filter 'res<0' trace.rec
  anyring report --html page.html --perfetto trace.json -o report.txt trace.rec

A recording has no end if the trace was killed or still runs. It is reported as far as it goes, with
status 125.

Exit status: 0 when everything was reported, 125 when FILE is no recording or has no end, or when
the report cannot be written, 2 for a usage error.";

/// Report on a recording of `anyring trace --record`
#[derive(Debug, Args)]
#[command(after_help = REPORT_EXAMPLES)]
pub struct ReportOptions {
    /// A recording by anyring trace --record
    #[arg(value_hint = ValueHint::FilePath)]
    pub file: PathBuf,
    #[command(flatten)]
    pub form: Form,
}

const CHECK_EXAMPLES: &str = "\
Examples:
  anyring check --no-punts --no-overflow -- ./mytest
  anyring check --no-punts --except FSYNC --junit check.xml -- ./mytest
  anyring check --lint -- ./mytest
  anyring check --backend user --max-worker-share 5% --max-p99 2ms -- ./myserver-test

The verdict goes to standard error: a line for each broken expectation, or one line that all held.
Another line says who served the program and why.

--no-punts and --max-worker-share check the kernel's io_uring. If that cannot be traced, the check
fails before the program starts. --backend user checks anyring's own workers instead.

Exit status: the program's own if that is not 0; else 1 when an expectation did not hold, and 125
when nothing is proven, since events were lost or no ring was made. Other statuses are as for
`anyring trace`.";

/// Run PROGRAM and fail if its io_uring requests break the given expectations
#[derive(Debug, Args)]
#[command(after_help = CHECK_EXAMPLES, override_usage = "anyring check [OPTIONS] -- PROGRAM [ARGS]...")]
#[group(id = "expectations", required = true, multiple = true, args = ["no_punts", "max_worker_share", "no_overflow", "max_p99", "lint"])]
pub struct CheckOptions {
    /// Choose who serves io_uring. auto: the kernel if its io_uring works and can be traced, otherwise anyring
    /// [default: ANYRING_BACKEND, else auto]
    #[arg(long, value_enum)]
    pub backend: Option<Backend>,
    /// Expect that no request goes to a worker
    #[arg(long)]
    pub no_punts: bool,
    /// Expect that at most this share of all requests goes to workers
    #[arg(long, value_name = "PERCENT", value_parser = parse_percent)]
    pub max_worker_share: Option<f64>,
    /// Expect that no CQE finds the CQ full
    #[arg(long)]
    pub no_overflow: bool,
    /// Expect that 99 of 100 requests of each kind complete within TIME: 250us, 2ms, 1s. Requests whose
    /// purpose is to wait do not count (timeouts, polls, futexes, waitid)
    #[arg(long, value_name = "TIME", value_parser = parse_patience)]
    pub max_p99: Option<Bound>,
    /// Report misuse that no errno shows: unread CQEs, user_data twice in flight, files closed while in use. Nothing
    /// else is checked, and anyring serves the rings (docs/chaos.md)
    #[arg(long, conflicts_with_all = ["no_punts", "max_worker_share", "no_overflow", "max_p99", "except", "backend"])]
    pub lint: bool,
    /// Leave out requests with these opcodes: FSYNC, or FSYNC,FALLOCATE (--no-overflow still counts them)
    #[arg(long, value_name = "OPCODES", value_delimiter = ',')]
    pub except: Vec<String>,
    /// Also write the verdict to FILE as JSON (docs/trace.md describes it)
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Also write the verdict to FILE as JUnit XML, with a test case for each expectation
    #[arg(long, value_name = "FILE")]
    pub junit: Option<PathBuf>,
    #[command(flatten)]
    pub program: Program,
}

/// Parses a percentage, with or without its sign.
fn parse_percent(text: &str) -> Result<f64, String> {
    let number = text.strip_suffix('%').unwrap_or(text);
    let percent = number.parse().ok().filter(|percent| (0.0..=100.0).contains(percent));
    percent.ok_or_else(|| "a percentage such as 5%".to_owned())
}

/// A time as it was given.
#[derive(Debug, Clone)]
pub struct Bound {
    /// The time in nanoseconds.
    pub ns: u64,
    /// The text from the command line.
    pub text: String,
    /// The unit in that text.
    pub unit: &'static str,
    /// The length of that unit in nanoseconds.
    pub unit_ns: f64,
}

/// Parses a time with its unit.
fn parse_bound(text: &str) -> Result<Bound, String> {
    let units = [("ns", 1.0), ("us", 1e3), ("ms", 1e6), ("s", 1e9)];
    let found = units.iter().find_map(|(unit, unit_ns)| {
        let ns = text.strip_suffix(unit)?.trim_end().parse::<f64>().ok()? * unit_ns;
        let ns = (0.0..1e18).contains(&ns).then_some(ns as u64)?;
        Some(Bound { ns, text: text.to_owned(), unit, unit_ns: *unit_ns })
    });
    found.ok_or_else(|| "a time with its unit: ns, us, ms or s".to_owned())
}

/// Parses a time limit.
fn parse_patience(text: &str) -> Result<Bound, String> {
    let bound = parse_bound(text)?;
    (bound.ns != 0).then_some(bound).ok_or_else(|| "a time above 0".to_owned())
}

const LAB_EXAMPLES: &str = "\
Workloads:
  pipes    128 pipes, 256 rounds of reading and writing: a benchmark published for Linux 6.4
  nop      one NOP, submitted and reaped
  files    reading a file: page cache and O_DIRECT, random and sequential, several depths
  echo     a TCP server: 1 to 256 connections, small and large messages, plain and multishot
  timers   arming, cancelling and firing timeouts
  polls    up to 10,000 idle descriptors, a few of which become ready
  pipetest tokens that go round 128 pipes, beside up to 10,000 empty pipes: a published benchmark
  idle     memory and CPU of rings that nobody uses
  msg      messages from ring to ring: a benchmark published in 2024
  async    O_DIRECT writes with and without IOSQE_ASYNC (as root, on a loop device)
  load     loading libanyring.so into a process that never uses io_uring

Backends: anyring, kernel, epoll, poll, libuv, posix-aio, anyring-aio, anyring-aio-poll, kernel-aio,
kernel-aio-poll, threads, futex, libc. Each workload uses those that can do its work.

Examples:
  anyring lab nop load
  anyring lab pipes --backends anyring,kernel,epoll --runs 20
  anyring lab --out results             everything: tables, report.html, report.json, charts
  anyring lab --from results/report.json --out results     the same, without measuring

Exit status: 0 when the measurement was made, whatever its result; 125 when it could not be made, or
a program computed something wrong; 2 for a usage error; 128 plus the signal's number when
interrupted.";

/// Measure anyring, the kernel's io_uring and the alternatives in turns
#[derive(Debug, Args)]
#[command(after_help = LAB_EXAMPLES)]
pub struct LabOptions {
    /// Workloads to measure [default: everything]
    #[arg(value_name = "WORKLOAD")]
    pub workloads: Vec<String>,
    /// Measure only these backends
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub backends: Option<Vec<String>>,
    /// Number of runs that count; one run before them is discarded [default: 9, or what the workload needs]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub runs: Option<u16>,
    /// Approximate total time in minutes. If it is short, workloads make fewer runs, but at least 2
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub minutes: Option<u16>,
    /// Do little work, in 1 run, to check that everything works. Do not use the figures
    #[arg(long)]
    pub quick: bool,
    /// Measure nothing: show the report.json of an earlier run, and with --out draw its charts again
    #[arg(
        long,
        value_name = "FILE",
        conflicts_with_all = ["workloads", "backends", "runs", "minutes", "quick", "door", "json"]
    )]
    pub from: Option<PathBuf>,
    /// Write report.html, report.json (not with --from) and each chart as SVG and PNG to DIR, which is created if
    /// missing
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Print the report as JSON instead of tables (docs/lab.md describes it)
    #[arg(long)]
    pub json: bool,
    /// The interface by which the programs reach io_uring
    #[arg(long, value_enum, default_value_t = LabDoor::Liburing)]
    pub door: LabDoor,
}

/// The interface by which a program reaches io_uring.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LabDoor {
    /// liburing's functions, by symbol
    Liburing,
    /// libc's syscall()
    Libc,
    /// System call instructions of the program itself
    Raw,
}

const ADVISE_EXAMPLES: &str = "\
Examples:
  anyring advise /var/lib/db/table                    reads of a file, cached and not cached
  anyring advise /dev/nvme1n1 --direct --json
  anyring advise /dev/loop0 --direct --op write --rewrite --size 256K,512K,1M
  anyring deny -- anyring advise tcp                  on anyring's engine, where io_uring is denied

The verdict comes first, then the figures behind it. A size counts as faster or slower with
IOSQE_ASYNC if two conditions hold: its time differs by 5 % or more in each of three turns, and the
confidence interval excludes that the times are equal. The interval is corrected for the number of
sizes. Otherwise the size is undecided.

To measure cache misses, advise evicts the file's pages from the page cache. It needs no root, only
the right to open the file.

Exit status: 0 when the measurement was made, whatever its result; 125 when it could not or must not
be made; 2 for a usage error; 128 plus the signal's number when interrupted.";

/// Measure whether, and from which size on, IOSQE_ASYNC helps on a file, a device, pipes or TCP
#[derive(Debug, Args)]
#[command(after_help = ADVISE_EXAMPLES)]
pub struct AdviseOptions {
    /// A file or a block device, `pipe` or `tcp` (./pipe is a file)
    #[arg(value_name = "PATH|pipe|tcp")]
    pub subject: OsString,
    /// The kind of requests [default: read; recv for tcp]
    #[arg(long, value_enum)]
    pub op: Option<AdviseOperation>,
    /// Bytes per request, such as 4096,64K,1M; K means 1024 and M means 1024 * 1024 [default: several sizes]
    #[arg(long = "size", value_name = "LIST", value_delimiter = ',', value_parser = parse_size)]
    pub sizes: Vec<u32>,
    /// Bypass the page cache (O_DIRECT)
    #[arg(long)]
    pub direct: bool,
    /// Permit writes: data is read and written back unchanged, so nothing else may write to it during the measurement
    #[arg(long)]
    pub rewrite: bool,
    /// Choose who serves io_uring [default: ANYRING_BACKEND, else auto]
    #[arg(long, value_enum)]
    pub backend: Option<Backend>,
    /// Number of pairs of requests per size, one without and one with IOSQE_ASYNC; at least 15, fewer if they are slow
    #[arg(long, value_name = "N", default_value_t = 150, value_parser = clap::value_parser!(u16).range(15..))]
    pub rounds: u16,
    /// Print the report as JSON (docs/advise.md describes it)
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum AdviseOperation {
    Read,
    Write,
    Recv,
    Send,
}

/// Parses a number of bytes, with K or M.
fn parse_size(text: &str) -> Result<u32, String> {
    let (number, unit) = match text.strip_suffix(['k', 'K', 'm', 'M']) {
        Some(number) if text.ends_with(['k', 'K']) => (number, 1 << 10),
        Some(number) => (number, 1 << 20),
        None => (text, 1),
    };
    let digits = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
    let bytes = number.parse::<u32>().ok().and_then(|number| number.checked_mul(unit));
    match bytes {
        Some(bytes) if bytes > 0 => Ok(bytes),
        None if digits => Err("a request has less than 4 GiB".to_owned()),
        _ => Err("a number of bytes, such as 4096, 64K or 1M".to_owned()),
    }
}

const CHAOS_EXAMPLES: &str = "\
Examples:
  anyring chaos -- ./mytest                                one run, with a seed that it prints
  anyring chaos --runs 100 -- ./mytest                     seeds 1 to 100; prints which of them fail
  anyring chaos --seed 17 --shrink -- ./mytest             the fewest injections that fail
  anyring chaos --rules short,late --log log.jsonl -- ./mytest
  anyring chaos --runs 100 --junit chaos.xml -- ./mytest   for CI: a test case for each seed

A run fails when PROGRAM ends by a signal or with another status than 0, takes longer than
--timeout, prints the text of --fail-output, changes memory that `lifetimes` watches, or does what
`misuse` reports. With --runs or --shrink, PROGRAM has no standard input, and anyring shows
the last output of the first run of each kind of failure, and the command that repeats it.

Exit status: 0 when no run failed, 1 when one did, 125 when nothing is proven (PROGRAM made no ring)
or anyring itself failed, 126 when PROGRAM cannot be executed or cannot be served, 127 when it was
not found, 2 for a usage error, 128 plus the signal's number when interrupted.";

/// The list of rules, from the engine's table.
fn chaos_help() -> String {
    let line = |row: &anyring_engine::chaos::rules::Row| format!("  {:9}  {}\n", row.name, row.what);
    let rules = |permitted| RULES.iter().filter(move |row| row.page.is_some() == permitted).map(line);
    let (permitted, outside) = (rules(true).collect::<String>(), rules(false).collect::<String>());
    format!(
        "Rules that the manual permits (docs/chaos.md says where):\n{permitted}\n\
         Rules that are followed only when named:\n{outside}\n{CHAOS_EXAMPLES}"
    )
}

/// Parses the name of an injection or a finding.
fn parse_injection(text: &str) -> Result<String, String> {
    let name = anyring_engine::chaos::Name::parse(text);
    name.map(|name| name.to_string()).ok_or_else(|| "RING.POSITION.RULE, such as 1.2.short".to_owned())
}

/// Run PROGRAM while anyring injects rare but legal behaviour, chosen by a seed: short reads, late CQEs ...
#[derive(Debug, Args)]
#[command(after_help = chaos_help(), override_usage = "anyring chaos [OPTIONS] -- PROGRAM [ARGS]...")]
pub struct ChaosOptions {
    /// Seed of the choices; with --runs, the first of several [default: a random one; 1 with --runs]
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,
    /// Rules to follow: names separated by commas, or a file of names. `all`: the rules that the manual permits.
    /// `thorough`: those, lifetimes and misuse [default: all]
    #[arg(long, value_name = "FILE|RULE,...")]
    pub rules: Option<String>,
    /// Number of runs, each with its own seed
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub runs: Option<u32>,
    /// Make up to N runs at once. They may use the seed, $ANYRING_CHAOS, to name their own files and ports
    #[arg(long, value_name = "N", default_value_t = 1, hide_default_value = true, value_parser = clap::value_parser!(u32).range(1..=256))]
    pub jobs: u32,
    /// Stop at the first run that fails
    #[arg(long, requires = "runs")]
    pub fail_fast: bool,
    /// Find the fewest injections with which the first failing seed still fails
    #[arg(long)]
    pub shrink: bool,
    /// Make only these injections, named as by --shrink and in the log
    #[arg(long, value_name = "NAME,...", value_delimiter = ',', value_parser = parse_injection)]
    pub only: Vec<String>,
    /// Kill a run that takes longer than TIME (500ms, 10s), and count it as failed [default: none; 10s with --runs or
    /// --shrink]
    #[arg(long, value_name = "TIME", value_parser = parse_patience)]
    pub timeout: Option<Bound>,
    /// Count a run as failed if it prints TEXT on standard output or standard error
    #[arg(long, value_name = "TEXT")]
    pub fail_output: Option<String>,
    /// Write what was injected and found to FILE, as JSON, one line each (docs/chaos.md describes it)
    #[arg(long, value_name = "FILE")]
    pub log: Option<PathBuf>,
    /// Also write the outcome of the runs to FILE as JUnit XML, with a test case for each seed
    #[arg(long, value_name = "FILE", requires = "runs", conflicts_with = "shrink")]
    pub junit: Option<PathBuf>,
    /// Simulate a power loss while PROGRAM changes files in FOLDER: kill PROGRAM, and give FOLDER contents that a disk
    /// might have then
    #[arg(long, value_name = "FOLDER", requires = "recover", conflicts_with_all = ["only", "junit", "log", "fail_output"])]
    pub crash: Vec<PathBuf>,
    /// Run COMMAND by sh(1) after the power loss of --crash. The seed fails if COMMAND fails
    #[arg(long, value_name = "COMMAND", requires = "crash")]
    pub recover: Option<String>,
    #[command(flatten)]
    pub program: Program,
}

/// A way into the engine, named as in the hidden subcommand and in the JSON.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum EntryPoint {
    Preload,
    Liburing,
    Syscall,
    Raw,
    Guest,
}

/// The program to execute, after `--`.
#[derive(Debug, Args)]
pub struct Program {
    /// The program, looked up in PATH, and its arguments
    #[arg(required = true, trailing_var_arg = true, value_names = ["PROGRAM", "ARGS"], num_args = 1.., value_hint = ValueHint::CommandWithArguments)]
    pub words: Vec<OsString>,
}
