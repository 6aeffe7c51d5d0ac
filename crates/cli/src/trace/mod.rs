//! `anyring trace`: runs a program, or joins one that runs, and says which path each of its io_uring and AIO requests took.
//!
//! The program is a child of this process. Signals that another process sends to us are passed on to it; those of the
//! terminal it gets by itself. At its end we end as it did.

use crate::cli::{Backend, Program, TraceOptions};
use crate::elf::Way;
use crate::exec::resolve;
use crate::failure::{Failure, CANNOT_EXECUTE, USAGE};
use crate::run::chosen;
use crate::{elf, exec, library, output, ring};
use anyring_engine::os::backing::handle_faults;
use anyring_trace::{
    line, page, EngineSource, Event, FileSystems, Filter, JoinedSource, KernelSource, Perfetto, Processes, Rates,
    Report, Source, Summary,
};
use std::fs::File;
use std::io::{BufWriter, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

mod subject;

use subject::{Child, Running, Subject};

/// Whom to trace.
#[derive(Clone, Copy)]
pub enum Whom<'a> {
    /// A program to start.
    Program(&'a Program),
    /// A process that runs.
    Process(i32),
}

/// A program that has ended, and what its events add up to.
pub struct Watched {
    pub report: Report,
    by_kernel: bool,
    why: String,
    not_kernel: Option<String>,
    subject: Subject,
    status: i32,
}

impl Watched {
    /// Who served the program's rings.
    pub fn backend(&self) -> &'static str {
        if self.by_kernel {
            "kernel"
        } else {
            "anyring"
        }
    }

    /// Why it was that one.
    pub fn why(&self) -> &str {
        &self.why
    }

    /// Why it was not the kernel, where that was to be if it could.
    pub fn not_kernel(&self) -> Option<&str> {
        self.not_kernel.as_deref()
    }

    /// The program's exit status as a shell tells it: 128 and its number after a signal.
    pub fn status(&self) -> i32 {
        match libc::WIFSIGNALED(self.status) {
            true => 128 + libc::WTERMSIG(self.status),
            false => libc::WEXITSTATUS(self.status),
        }
    }

    /// The program's exit status, or its death by the same signal.
    pub fn end_as_it_did(&self) -> Result<i32, Failure> {
        self.subject.end_as_it_did(self.status)
    }
}

/// Runs the program, or joins the process, and hands each event to `each`, with what is known of its threads and whether its
/// SUBMIT_REQ tells what is in the SQE, and what they add up to so far to `glance`, every period. A process that runs is left when `each` answers false.
/// `about_kernel` names the flag for which `auto` must not take another engine than the kernel.
pub fn watch(
    backend: Backend,
    about_kernel: Option<&str>,
    whom: Whom<'_>,
    mut each: impl FnMut(&Event, bool, &Processes) -> bool,
    mut glance: impl FnMut(&Summary),
) -> Result<Watched, Failure> {
    let (Chosen { mut source, by_kernel, why, not_kernel, .. }, mut subject) = match whom {
        Whom::Program(program) => {
            let chosen = choose(backend, about_kernel, program)?;
            let child = Child::start(chosen.by_host.as_ref().unwrap_or(program))?;
            (chosen, Subject::Child(child))
        }
        Whom::Process(pid) => {
            let subject = Subject::Running(Running::join(pid)?);
            (join(backend, pid)?, subject)
        }
    };
    let mut summary = Summary::new(!by_kernel);
    let (mut processes, mut file_systems) = (Processes::default(), FileSystems::default());
    let mut events: Vec<Event> = Vec::new();
    let status = loop {
        let ended = subject.look()?;
        let busy = match ended {
            Some(_) => {
                source.finish(&mut events);
                false
            }
            None => source.drain(&mut events),
        };
        for event in events.drain(..) {
            processes.meet(&event);
            file_systems.meet(&event);
            if !each(&event, !by_kernel, &processes) {
                subject.leave();
            }
            summary.add(&event);
        }
        if let Some(why) = source.refusal() {
            return Err(Failure::own(format!("the process: {why}")));
        }
        glance(&summary);
        match ended {
            Some(status) => {
                subject.reap();
                break status;
            }
            None if !busy => subject.sleep(),
            None => {}
        }
    };
    let mut report = summary.report(source.dropped());
    report.name_processes(&processes);
    report.name_file_systems(&file_systems);
    Ok(Watched { report, by_kernel, why, not_kernel, subject, status })
}

/// Runs the program and reports. The answer is its exit status.
pub fn run(options: &TraceOptions) -> Result<i32, Failure> {
    let program = Program { words: options.words.clone() };
    let whom = options.pid.map_or(Whom::Program(&program), Whom::Process);
    let backend = chosen(options.backend, "ANYRING_BACKEND")?;
    let mut filter = options.filter.as_deref().map(parse_filter).transpose()?;
    // Before the files of an earlier trace are emptied.
    if let Whom::Program(program) = whom {
        exec::check_found(program)?;
    }
    check_files(options)?;
    let mut output = open_output(options)?;
    let mut page = options.html.as_deref().map(create).transpose()?;
    let mut live = options.live.map(Live::new);
    let unwritten = |file: &Option<PathBuf>, error: std::io::Error| {
        let name = file.as_ref().map_or("standard error".to_owned(), |file| file.display().to_string());
        output::unwritten(&name, &error)
    };
    let (to_output, to_perfetto) =
        (|error| unwritten(&options.output, error), |error| unwritten(&options.perfetto, error));
    let mut perfetto = match &options.perfetto {
        Some(file) => Some(Perfetto::new(BufWriter::new(create(file)?)).map_err(to_perfetto)?),
        None => None,
    };
    let mut written = Ok(());
    let mut zero_ns = options.monotonic.then_some(0);
    let each = |event: &Event, has_sqe: bool, processes: &Processes| {
        let zero_ns = *zero_ns.get_or_insert(event.time_ns);
        let is_wanted = options.events && filter.as_mut().is_none_or(|filter| filter.passes(event, has_sqe));
        if is_wanted && written.is_ok() {
            written = writeln!(output, "{}", line(event, has_sqe, zero_ns)).map_err(to_output);
        }
        if let (Some(perfetto), true) = (&mut perfetto, written.is_ok()) {
            written = perfetto.add(event, has_sqe, processes).map_err(to_perfetto);
        }
        written.is_ok()
    };
    let glance = |summary: &Summary| live.iter_mut().for_each(|live| live.show(summary));
    let watched = watch(backend, None, whom, each, glance)?;
    written?;
    perfetto.map_or(Ok(()), Perfetto::finish).map_err(to_perfetto)?;
    if let Some(file) = &mut page {
        let text = page_of(&watched.report, watched.backend(), whom);
        file.write_all(text.as_bytes()).map_err(|error| unwritten(&options.html, error))?;
    }
    write_report(options, &watched, &mut output).and_then(|()| output.flush()).map_err(to_output)?;
    drop(output);
    watched.end_as_it_did()
}

fn write_report(options: &TraceOptions, watched: &Watched, output: &mut impl Write) -> std::io::Result<()> {
    let (report, backend, not_kernel) = (&watched.report, watched.backend(), watched.not_kernel());
    if options.events {
        return match report.events_lost {
            0 => Ok(()),
            lost => writeln!(output, "{lost} events were lost (the program was faster)"),
        };
    }
    if options.json {
        let json = JsonReport { schema: SCHEMA, backend, why: watched.why(), not_kernel, report };
        return writeln!(output, "{}", serde_json::to_string_pretty(&json)?);
    }
    write!(output, "served by {backend}: {}\n{report}", watched.why())
}

fn parse_filter(text: &str) -> Result<Filter, Failure> {
    text.parse().map_err(|why| Failure { status: USAGE, message: format!("--filter: {why}") })
}

/// Two of them in one file would be neither.
fn check_files(options: &TraceOptions) -> Result<(), Failure> {
    let files = [("--output", &options.output), ("--perfetto", &options.perfetto), ("--html", &options.html)];
    let named: Vec<_> = files.iter().filter_map(|(flag, file)| Some((flag, file.as_deref()?))).collect();
    for (index, (flag, file)) in named.iter().enumerate() {
        if let Some((other, _)) = named[..index].iter().find(|(_, before)| is_same(before, file)) {
            let message = format!("{other} and {flag} name the same file: {}", file.display());
            return Err(Failure { status: USAGE, message });
        }
    }
    Ok(())
}

/// Whether both are one regular file, there already or not.
fn is_same(one: &Path, other: &Path) -> bool {
    match (std::fs::metadata(one), std::fs::metadata(other)) {
        (Ok(one), Ok(other)) => one.is_file() && (one.dev(), one.ino()) == (other.dev(), other.ino()),
        (Err(_), Err(_)) => std::path::absolute(one).ok() == std::path::absolute(other).ok(),
        _ => false,
    }
}

fn page_of(report: &Report, backend: &str, whom: Whom<'_>) -> String {
    let title = match whom {
        Whom::Process(pid) => format!("process {pid}"),
        Whom::Program(program) => {
            let words: Vec<_> = program.words.iter().map(|word| word.to_string_lossy()).collect();
            words.join(" ")
        }
    };
    page(report, backend, &title)
}

/// The table of `--live`.
struct Live {
    interval: Duration,
    since: Instant,
    rates: Rates,
}

impl Live {
    fn new(seconds: u32) -> Live {
        let interval = Duration::from_secs(seconds.into());
        Live { interval, since: Instant::now(), rates: Rates::default() }
    }

    /// What is not shown now is shown an interval later.
    fn show(&mut self, summary: &Summary) {
        let passed = self.since.elapsed();
        if passed < self.interval {
            return;
        }
        self.since = Instant::now();
        let _ = writeln!(std::io::stderr(), "{}", self.rates.next(summary, passed));
    }
}

/// The version of the form below, which changes when a field changes or goes away.
const SCHEMA: u32 = 1;

/// The JSON of `anyring trace --json`.
#[derive(serde::Serialize)]
struct JsonReport<'a> {
    schema: u32,
    backend: &'static str,
    why: &'a str,
    not_kernel: Option<&'a str>,
    #[serde(flatten)]
    report: &'a Report,
}

fn open_output(options: &TraceOptions) -> Result<BufWriter<Box<dyn Write>>, Failure> {
    let output: Box<dyn Write> = match &options.output {
        None => Box::new(std::io::stderr()),
        Some(file) => Box::new(create(file)?),
    };
    Ok(BufWriter::new(output))
}

/// A file that the program does not get.
pub fn create(file: &Path) -> Result<File, Failure> {
    File::create(file).map_err(|error| Failure::own(format!("{}: {error}", file.display())))
}

/// Where the events come from.
struct Chosen {
    source: Box<dyn Source>,
    by_kernel: bool,
    /// Why it is that one.
    why: String,
    /// Why the kernel could not be chosen, where it was to be if it could.
    not_kernel: Option<String>,
    /// What is to be started where no library can be preloaded into the program.
    by_host: Option<Program>,
}

/// The events of a process that runs: our engine's if it serves that, else the kernel's.
fn join(backend: Backend, pid: i32) -> Result<Chosen, Failure> {
    let refused = |why: String| Failure::own(format!("--pid {pid}: {why}"));
    if backend != Backend::Kernel {
        match JoinedSource::of_process(pid) {
            Ok(Some(source)) => {
                let why = "it serves the process".to_owned();
                return Ok(Chosen {
                    source: Box::new(source),
                    by_kernel: false,
                    why,
                    not_kernel: None,
                    by_host: None,
                });
            }
            Ok(None) if backend == Backend::User => {
                return Err(refused("anyring does not serve it, or it has no ring now".to_owned()));
            }
            Ok(None) => {}
            Err(why) => return Err(refused(why)),
        }
    }
    let source = KernelSource::of_process(pid).map_err(|why| match has_ring(pid) {
        true => refused(format!("the kernel cannot be traced here: {why}")),
        false => refused(format!(
            "it has no ring now, neither of anyring nor of the kernel, and those to come cannot be traced here: {why}"
        )),
    })?;
    let why = match backend {
        Backend::Kernel => "asked for".to_owned(),
        _ => "anyring serves no ring of the process".to_owned(),
    };
    Ok(Chosen { source: Box::new(source), by_kernel: true, why, not_kernel: None, by_host: None })
}

/// Whether the process has a ring of the kernel's open, as far as that can be seen.
fn has_ring(pid: i32) -> bool {
    let Ok(files) = std::fs::read_dir(format!("/proc/{pid}/fd")) else { return true };
    let mut links = files.flatten().filter_map(|file| std::fs::read_link(file.path()).ok());
    links.any(|link| link.as_os_str() == "anon_inode:[io_uring]")
}

/// The words by which the program runs as a guest, with its io_uring served by anyring, and its AIO unless ANYRING_AIO says
/// otherwise.
fn by_host(file: &Path, program: &Program) -> Result<Program, Failure> {
    let host = library::find_guest().map_err(Failure::own)?;
    let has_kernel_aio = std::env::var_os("ANYRING_AIO").is_some_and(|value| value == "kernel");
    let state = if has_kernel_aio { "--program=r" } else { "--program=ra" };
    let lead = [host.into_os_string(), state.into(), file.into(), file.into()];
    Ok(Program { words: lead.into_iter().chain(program.words.iter().cloned()).collect() })
}

/// The events of a program that is to be started, which is prepared for it.
fn choose(backend: Backend, about_kernel: Option<&str>, program: &Program) -> Result<Chosen, Failure> {
    let mut not_kernel = None;
    if backend != Backend::User {
        let trial = ring::try_here();
        let source = match ring::kernel_works(&trial) {
            true => KernelSource::new().map_err(|why| format!("the kernel cannot be traced here: {why}")),
            false => Err(format!("the kernel's io_uring does not work here: {}", ring::describe(&trial))),
        };
        match source {
            Ok(source) => {
                let asked = if backend == Backend::Kernel { "asked for; " } else { "" };
                let why = format!("{asked}its io_uring works and can be traced here");
                return Ok(Chosen { source: Box::new(source), by_kernel: true, why, not_kernel, by_host: None });
            }
            Err(why) if backend == Backend::Kernel => return Err(Failure::own(why)),
            Err(why) => match about_kernel {
                Some(flag) => {
                    let instead = "--backend user checks anyring's own workers instead";
                    return Err(Failure::own(format!("{flag} asks what the kernel does, and {why} ({instead})")));
                }
                None => not_kernel = Some(why),
            },
        }
    }
    let file = resolve(&program.words[0]);
    let way = file.as_deref().map_or(Ok(Way::Preloaded), elf::way_of);
    let (library, by_host) = match (way.map_err(|message| Failure { status: CANNOT_EXECUTE, message })?, file) {
        (Way::Guest { .. }, Some(file)) => (None, Some(by_host(&file, program)?)),
        _ => (Some(library::find_loadable().map_err(Failure::own)?), None),
    };
    // The program knows the file, and may make it smaller while we read.
    handle_faults().map_err(|error| Failure::own(format!("no handler for SIGBUS: {error}")))?;
    let source = EngineSource::new().map_err(Failure::own)?;
    if let Some(library) = library {
        std::env::set_var("LD_PRELOAD", library::preload_list(&library));
    }
    std::env::set_var("ANYRING_BACKEND", "user");
    chosen(None, "ANYRING_AIO")?;
    if std::env::var_os("ANYRING_AIO").is_none_or(|value| value.is_empty()) {
        std::env::set_var("ANYRING_AIO", "user"); // the kernel tells nothing of its own
    }
    std::env::set_var("ANYRING_TRACE", source.file());
    let why = not_kernel.clone().unwrap_or_else(|| "asked for".to_owned());
    Ok(Chosen { source: Box::new(source), by_kernel: false, why, not_kernel, by_host })
}
