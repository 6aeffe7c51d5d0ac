//! `anyring trace`: runs a program, or joins one that runs, and says which path each of its io_uring and AIO requests took.
//!
//! The program is a child of this process. Signals that another process sends to us are passed on to it; those of the
//! terminal it gets by itself. At its end we end as it did.

use crate::cli::{Backend, Program, TraceOptions};
use crate::exec::resolve;
use crate::failure::{Failure, CANNOT_EXECUTE, USAGE};
use crate::{elf, library, ring};
use anyring_trace::{
    line, page, EngineSource, Event, JoinedSource, KernelSource, Perfetto, Report, Source, Summary,
};
use std::fs::File;
use std::io::{BufWriter, IsTerminal, Write};
use std::path::Path;
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

    /// The program's exit status, or its death by the same signal.
    pub fn end_as_it_did(&self) -> Result<i32, Failure> {
        self.subject.end_as_it_did(self.status)
    }
}

/// Runs the program, or joins the process, and hands each event to `each`, with whether its SUBMIT_REQ tells what is in the
/// SQE, and what they add up to so far to `glance`, every period.
pub fn watch(
    backend: Backend,
    whom: Whom<'_>,
    mut each: impl FnMut(&Event, bool),
    mut glance: impl FnMut(&Summary),
) -> Result<Watched, Failure> {
    let (mut source, by_kernel, mut subject) = match whom {
        Whom::Program(program) => {
            let (source, by_kernel) = choose(backend, program)?;
            (source, by_kernel, Subject::Child(Child::start(program)?))
        }
        Whom::Process(pid) => {
            let subject = Subject::Running(Running::join(pid)?);
            let (source, by_kernel) = join(backend, pid)?;
            (source, by_kernel, subject)
        }
    };
    let mut summary = Summary::new(!by_kernel);
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
            each(&event, !by_kernel);
            summary.add(&event);
        }
        if let Some(why) = source.refusal() {
            return Err(Failure::own(format!("the process: {why}")));
        }
        glance(&summary);
        match ended {
            Some(status) => break status,
            None if !busy => subject.sleep(),
            None => {}
        }
    };
    let report = summary.report(source.dropped());
    Ok(Watched { report, by_kernel, subject, status })
}

/// Runs the program and reports. The answer is its exit status.
pub fn run(options: &TraceOptions) -> Result<i32, Failure> {
    let program = Program { words: options.words.clone() };
    let whom = options.pid.map_or(Whom::Program(&program), Whom::Process);
    let mut output = open_output(options)?;
    let mut page = options.html.as_deref().map(create).transpose()?;
    let mut screen = options.live.then(Screen::new).transpose()?;
    let mut perfetto = match &options.perfetto {
        Some(file) => Some(Perfetto::new(BufWriter::new(create(file)?)).map_err(unwritten)?),
        None => None,
    };
    let mut written = Ok(());
    let each = |event: &Event, has_sqe: bool| {
        if options.events && written.is_ok() {
            written = writeln!(output, "{}", line(event, has_sqe));
        }
        if let (Some(perfetto), true) = (&mut perfetto, written.is_ok()) {
            written = perfetto.add(event, has_sqe);
        }
    };
    let glance = |summary: &Summary| screen.iter_mut().for_each(|screen| screen.show(summary));
    let watched = watch(options.backend, whom, each, glance)?;
    let (report, backend) = (&watched.report, watched.backend());
    let written = written.and_then(|()| perfetto.map_or(Ok(()), Perfetto::finish));
    let written = written.and_then(|()| match &mut page {
        Some(file) => file.write_all(page_of(report, backend, whom).as_bytes()),
        None => Ok(()),
    });
    let written = written.and_then(|()| match (options.events, options.json) {
        (true, _) if report.events_lost == 0 => Ok(()),
        (true, _) => writeln!(output, "{} events were lost (the program was faster)", report.events_lost),
        (false, true) => serde_json::to_string_pretty(&JsonReport { backend, report })
            .map_err(std::io::Error::from)
            .and_then(|text| writeln!(output, "{text}")),
        (false, false) => write!(output, "served by {backend}\n{report}"),
    });
    written.and_then(|()| output.flush()).map_err(unwritten)?;
    drop(output);
    watched.end_as_it_did()
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

/// The terminal of `--live`.
struct Screen {
    next: Instant,
}

impl Screen {
    const PERIOD: Duration = Duration::from_secs(1);

    fn new() -> Result<Screen, Failure> {
        match std::io::stderr().is_terminal() {
            true => Ok(Screen { next: Instant::now() + Screen::PERIOD }),
            false => {
                Err(Failure { status: USAGE, message: "--live needs a terminal as standard error".to_owned() })
            }
        }
    }

    /// What is not shown now is shown a period later, or at the end.
    fn show(&mut self, summary: &Summary) {
        if Instant::now() < self.next {
            return;
        }
        self.next = Instant::now() + Screen::PERIOD;
        // From the upper left corner over what was there, then the rest is cleared.
        let _ = write!(std::io::stderr(), "\x1b[H\x1b[2J{}", summary.clone().report(0));
    }
}

/// The JSON of `anyring trace --json`.
#[derive(serde::Serialize)]
struct JsonReport<'a> {
    backend: &'static str,
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
fn create(file: &Path) -> Result<File, Failure> {
    File::create(file).map_err(|error| Failure::own(format!("{}: {error}", file.display())))
}

fn unwritten(error: std::io::Error) -> Failure {
    Failure::own(format!("the report: {error}"))
}

/// The events of a process that runs: our engine's if it serves that, else the kernel's, and whether they are those.
fn join(backend: Backend, pid: i32) -> Result<(Box<dyn Source>, bool), Failure> {
    let refused = |why: String| Failure::own(format!("--pid {pid}: {why}"));
    if backend != Backend::Kernel {
        match JoinedSource::of_process(pid) {
            Ok(Some(source)) => return Ok((Box::new(source), false)),
            Ok(None) if backend == Backend::User => {
                return Err(refused("anyring does not serve it, or it has no ring now".to_owned()));
            }
            Ok(None) => {}
            Err(why) => return Err(refused(why)),
        }
    }
    let source = KernelSource::of_process(pid);
    let source = source.map_err(|why| refused(format!("the kernel cannot be traced here: {why}")))?;
    Ok((Box::new(source), true))
}

/// Where the events come from, and whether that is the kernel.
fn choose(backend: Backend, program: &Program) -> Result<(Box<dyn Source>, bool), Failure> {
    if backend != Backend::User {
        let trial = ring::try_here();
        let works = ring::kernel_works(&trial);
        if !works && backend == Backend::Kernel {
            let why = ring::describe(&trial);
            return Err(Failure::own(format!("the kernel's io_uring does not work here: {why}")));
        }
        match works.then(KernelSource::new) {
            Some(Ok(source)) => return Ok((Box::new(source), true)),
            Some(Err(why)) if backend == Backend::Kernel => {
                return Err(Failure::own(format!("the kernel cannot be traced here: {why}")));
            }
            _ => {}
        }
    }
    let library = library::find().map_err(Failure::own)?;
    if let Some(file) = resolve(&program.words[0]) {
        elf::check_preloadable(&file).map_err(|message| Failure { status: CANNOT_EXECUTE, message })?;
    }
    let source = EngineSource::new().map_err(Failure::own)?;
    std::env::set_var("LD_PRELOAD", library::preload_list(&library));
    std::env::set_var("ANYRING_BACKEND", "user");
    if std::env::var_os("ANYRING_AIO").is_none() {
        std::env::set_var("ANYRING_AIO", "user"); // the kernel tells nothing of its own
    }
    std::env::set_var("ANYRING_TRACE", source.file());
    Ok((Box::new(source), false))
}
