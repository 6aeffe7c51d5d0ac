//! `anyring trace`: runs a program, or joins a running one, and reports the path of each of its io_uring and AIO
//! requests.
//!
//! The program is a child of this process. Signals from other processes are passed on to it. It gets the terminal's
//! signals directly. When the program ends, this process ends in the same way.

use crate::cli::{Backend, Program, TraceOptions};
use crate::elf::Way;
use crate::exec::resolve;
use crate::failure::{Failure, CANNOT_EXECUTE};
use crate::places::Places;
use crate::run::chosen;
use crate::{costs, elf, exec, library, ring};
use anyring_engine::os::backing::handle_faults;
use anyring_guest::State;
use anyring_lab::text::date;
use anyring_trace::{
    Costs, EngineSource, Event, FileSystems, Head, JoinedSource, KernelSource, Processes, Rates, Report, Source,
    Spent, Summary, Tail,
};
use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

mod later;
mod outputs;
mod subject;
mod unserved;
mod verify;

pub use later::report;
use later::Record;
pub use outputs::create;
use outputs::{backend_of, check_files, filter_of, Outputs};
use subject::{Child, Running, Subject};
use unserved::Unserved;
use verify::Before;

/// The program or process to trace.
#[derive(Clone, Copy)]
pub enum Whom<'a> {
    /// A program to start.
    Program(&'a Program),
    /// A running process.
    Process(i32),
}

/// A program that has ended, and the report on its events.
pub struct Traced {
    pub report: Report,
    head: Head,
    tail: Tail,
    subject: Subject,
    status: i32,
}

impl Traced {
    /// The server of the program's rings.
    pub fn backend(&self) -> &'static str {
        backend_of(&self.head)
    }

    /// The reason for that server.
    pub fn why(&self) -> &str {
        &self.head.why
    }

    /// The program's exit status as a shell reports it: after a signal, 128 and the signal's number.
    pub fn status(&self) -> i32 {
        match libc::WIFSIGNALED(self.status) {
            true => 128 + libc::WTERMSIG(self.status),
            false => libc::WEXITSTATUS(self.status),
        }
    }

    /// Returns the program's exit status. If a signal killed the program, this process dies by the same signal.
    pub fn end_as_it_did(&self) -> Result<i32, Failure> {
        self.subject.end_as_it_did(self.status)
    }
}

/// Runs the program, or joins the process. Passes each event to `each`, with the server and the known threads. In
/// every period it passes the sums so far to `glance`. If `each` returns false, it stops tracing a process that was
/// joined.
///
/// `about_kernel` names a flag that asks about the kernel, if one was given. `auto` must not choose another engine
/// then.
pub fn run_traced(
    backend: Backend,
    about_kernel: Option<&str>,
    whom: Whom<'_>,
    mut each: impl FnMut(&Event, &Head, &Processes) -> bool,
    mut glance: impl FnMut(&Summary),
) -> Result<Traced, Failure> {
    let now = || (Instant::now(), own_cpu_ns(), costs::idle());
    let (chosen, mut subject, (began, own_ns, idle)) = match whom {
        Whom::Program(program) => {
            let chosen = choose(backend, about_kernel, program)?;
            let begun = now();
            let child = Child::start(chosen.by_host.as_ref().unwrap_or(program))?;
            (chosen, Subject::Child(child), begun)
        }
        Whom::Process(pid) => {
            let subject = Subject::Running(Running::join(pid)?);
            (join(backend, pid)?, subject, now())
        }
    };
    let Chosen { mut source, by_kernel, why, not_kernel, unserved, .. } = chosen;
    let head = Head { by_kernel, why, not_kernel, title: title_of(whom), made: made() };
    let mut summary = Summary::new(!by_kernel);
    let root = match whom {
        Whom::Program(_) => std::process::id(),
        Whom::Process(pid) => pid as u32,
    };
    let (processes, file_systems) = (Processes::below(root), FileSystems::new(by_kernel));
    let mut tail = Tail { processes, file_systems, ..Tail::default() };
    let mut events: Vec<Event> = Vec::new();
    let (status, spent) = loop {
        let ended = subject.try_wait()?;
        let busy = match ended {
            Some(_) => {
                source.finish(&mut events);
                false
            }
            None => source.drain(&mut events),
        };
        for event in events.drain(..) {
            tail.processes.observe(&event);
            tail.file_systems.observe(&event, &tail.processes);
            if !each(&event, &head, &tail.processes) {
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
                let elapsed_ns = began.elapsed().as_nanos() as u64;
                let tracer_cpu_ns = own_cpu_ns() - own_ns;
                let (cpu_ns, switches) = subject.reap().unzip();
                break (status, Spent { elapsed_ns, cpu_ns, switches, tracer_cpu_ns, costs: None });
            }
            None if !busy => subject.sleep(),
            None => {}
        }
    };
    tail.events_lost = source.dropped();
    (tail.unserved, tail.unheard) = unserved.map_or_else(Default::default, |log| (log.children(), log.unheard()));
    drop(source);
    let idle = costs::idle().zip(idle).map(|(now, before)| now.saturating_sub(before));
    let costs = || Some(among_others(costs_of(by_kernel)?, idle, spent.elapsed_ns));
    tail.spent = Spent { costs: summary.says_much().then(costs).flatten(), ..spent };
    let report = tail.report(summary);
    Ok(Traced { report, head, tail, subject, status })
}

/// Sets the number of processors that the program could use during the trace: those that it used, and those that
/// were `idle`. A processor that was busy for more than a quarter of the time is not idle: followed advice that needs
/// it made programs slower.
fn among_others(costs: Costs, idle: Option<Duration>, elapsed_ns: u64) -> Costs {
    let idle = idle.map(|idle| (idle.as_nanos() as f64 / elapsed_ns.max(1) as f64 + 0.25) as u32);
    Costs { cores: costs.cores.min(idle.map_or(u32::MAX, |idle| 1 + idle)), ..costs }
}

/// Measures the costs of requests and of events on this machine.
fn costs_of(by_kernel: bool) -> Option<Costs> {
    let costs = costs::here(by_kernel)?;
    // Events of one step share the time of the first, so that an event of one program costs more than one of another.
    let event_ns = [false, true].into_iter().filter_map(|polls| event_ns(by_kernel, polls));
    let event_ns = event_ns.filter(|event_ns| *event_ns > 0.0).min_by(f64::total_cmp);
    Some(Costs { event_ns: event_ns.unwrap_or(0.0), ..costs }.rounded())
}

/// Measures the cost of an event, by the same requests traced and untraced. The least of several times counts.
fn event_ns(by_kernel: bool, polls: bool) -> Option<f64> {
    const TIMES: usize = 3;
    let least = |all: &mut dyn Iterator<Item = f64>| all.min_by(f64::total_cmp);
    let mut count = 1;
    let mut traced_ns = || {
        let mut events = Vec::new();
        let took_ns = if by_kernel {
            let mut source = KernelSource::new().ok()?;
            let took_ns = costs::rounds_ns(by_kernel, polls, None);
            source.finish(&mut events);
            took_ns
        } else {
            let mut source = EngineSource::new().ok()?;
            let file = source.file().to_owned();
            let took_ns = costs::rounds_ns(by_kernel, polls, Some(&file));
            source.finish(&mut events);
            took_ns
        };
        count = events.len().max(1);
        took_ns
    };
    let traced_ns = least(&mut (0..TIMES).filter_map(|_| traced_ns()))?;
    let untraced_ns = least(&mut (0..TIMES).filter_map(|_| costs::rounds_ns(by_kernel, polls, None)))?;
    Some((traced_ns - untraced_ns).max(0.0) / count as f64)
}

/// CPU time of this process so far.
fn own_cpu_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Runs the program and reports. Returns its exit status.
pub fn run(options: &TraceOptions) -> Result<i32, Failure> {
    let program = Program { words: options.words.clone() };
    let whom = options.pid.map_or(Whom::Program(&program), Whom::Process);
    let backend = chosen(options.backend, "ANYRING_BACKEND")?;
    let before = Before::new();
    let form = &options.form;
    let filter = filter_of(form)?;
    // First, so that the files of an earlier trace are kept if the program does not exist.
    if let Whom::Program(program) = whom {
        exec::check_found(program)?;
    }
    check_files(form, ("--record", options.record.as_deref()))?;
    // A recording is reported later, unless a report is requested now as well.
    let is_later = options.record.is_some() && !form.events && !form.json;
    let screen: Box<dyn Write> = if is_later { Box::new(std::io::sink()) } else { Box::new(std::io::stderr()) };
    let mut outputs = Outputs::open(form, filter, ("standard error", screen))?;
    let mut record = options.record.as_deref().map(Record::create).transpose()?;
    let mut live = options.live.map(Live::new);
    let each = |event: &Event, head: &Head, processes: &Processes| {
        outputs.add(event, head, processes) && record.as_mut().is_none_or(|record| record.add(event, head))
    };
    let glance = |summary: &Summary| live.iter_mut().for_each(|live| live.show(summary));
    let mut traced = run_traced(backend, None, whom, each, glance)?;
    name_places(&mut traced.report);
    record.map_or(Ok(()), |record| record.finish(&traced.head, &traced.tail))?;
    outputs.finish(&traced.report, &traced.head)?;
    if let Some(changed) = options.verify.as_deref() {
        traced.subject.unblock_signals();
        before.verify(traced.head.by_kernel, &program, changed)?;
    }
    traced.end_as_it_did()
}

/// Names the places in the program from which its requests were submitted.
fn name_places(report: &mut Report) {
    let places = Places::new();
    report.name_places(|frames| places.callers(frames));
}

fn title_of(whom: Whom<'_>) -> String {
    match whom {
        Whom::Process(pid) => format!("process {pid}"),
        Whom::Program(program) => {
            let words: Vec<_> = program.words.iter().map(|word| word.to_string_lossy()).collect();
            words.join(" ")
        }
    }
}

/// The tracer's version, host and kernel, and the date of the trace.
fn made() -> String {
    let tell = |what: &str| {
        let text = std::fs::read_to_string(Path::new("/proc/sys/kernel").join(what));
        text.map_or("unknown".to_owned(), |text| text.trim().to_owned())
    };
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    let (host, release, date) = (tell("hostname"), tell("osrelease"), date(now.as_secs()));
    format!("anyring {} on {host}, Linux {release}, {date}", env!("CARGO_PKG_VERSION"))
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

    /// Shows the rates once the interval is over.
    fn show(&mut self, summary: &Summary) {
        let passed = self.since.elapsed();
        if passed < self.interval {
            return;
        }
        self.since = Instant::now();
        let _ = writeln!(std::io::stderr(), "{}", self.rates.next(summary, passed));
    }
}

/// The source of the events: the kernel or anyring's engine.
struct Chosen {
    source: Box<dyn Source>,
    by_kernel: bool,
    /// The reason for this choice.
    why: String,
    /// The reason why the kernel could not be chosen, if it was preferred.
    not_kernel: Option<String>,
    /// The program to start instead, if no library can be preloaded.
    by_host: Option<Program>,
    /// The children that the program's log names.
    unserved: Option<Unserved>,
}

/// The events of a running process: from anyring's engine if it serves the process, otherwise from the kernel.
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
                    unserved: None,
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
    Ok(Chosen { source: Box::new(source), by_kernel: true, why, not_kernel: None, by_host: None, unserved: None })
}

/// True if the process has one of the kernel's rings open, or if /proc does not show that.
fn has_ring(pid: i32) -> bool {
    let Ok(files) = std::fs::read_dir(format!("/proc/{pid}/fd")) else { return true };
    let mut links = files.flatten().filter_map(|file| std::fs::read_link(file.path()).ok());
    links.any(|link| link.as_os_str() == "anon_inode:[io_uring]")
}

/// The command line that runs the program as a guest. anyring serves its io_uring, and its AIO unless ANYRING_AIO
/// says otherwise.
fn by_host(file: &Path, program: &Program) -> Result<Program, Failure> {
    let host = library::find_guest().map_err(Failure::own)?;
    let has_kernel_aio = std::env::var_os("ANYRING_AIO").is_some_and(|value| value == "kernel");
    let state = State { rings: true, aio: !has_kernel_aio, ..State::default() };
    let lead = [host.into_os_string()].into_iter().chain(anyring_guest::lead(state, file));
    Ok(Program { words: lead.chain(program.words.iter().cloned()).collect() })
}

/// Chooses the source for a program, and prepares the environment in which it will start.
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
                return Ok(Chosen {
                    source: Box::new(source),
                    by_kernel: true,
                    why,
                    not_kernel,
                    by_host: None,
                    unserved: None,
                });
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
        (_, file) => match (library::try_find(file.as_deref()).map_err(Failure::own)?, file) {
            (Ok(library), _) => (Some(library), None),
            (Err(_), Some(file)) => (None, Some(by_host(&file, program)?)),
            (Err(why), None) => return Err(Failure::own(why)),
        },
    };
    // The program knows the file, and may truncate it while it is read here.
    handle_faults().map_err(|error| Failure::own(format!("no handler for SIGBUS: {error}")))?;
    let source = EngineSource::new().map_err(Failure::own)?;
    if let Some(library) = library {
        std::env::set_var("LD_PRELOAD", library::preload_list(&library));
    }
    std::env::set_var("ANYRING_BACKEND", "user");
    chosen(None, "ANYRING_AIO")?;
    if std::env::var_os("ANYRING_AIO").is_none_or(|value| value.is_empty()) {
        std::env::set_var("ANYRING_AIO", "user"); // the kernel has no tracepoints of its own AIO
    }
    std::env::set_var("ANYRING_TRACE", source.file());
    let unserved = Some(Unserved::follow(source.file()));
    let why = not_kernel.clone().unwrap_or_else(|| "asked for".to_owned());
    Ok(Chosen { source: Box::new(source), by_kernel: false, why, not_kernel, by_host, unserved })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_processor_that_others_use_half_of_the_time_is_not_idle() {
        let cores = |idle_ms| {
            let here = Costs { cores: 4, ..Costs::default() };
            among_others(here, Some(Duration::from_millis(idle_ms)), 1_000_000_000).cores
        };
        assert_eq!([cores(0), cores(600), cores(800), cores(1_700), cores(9_000)], [1, 1, 2, 2, 4]);
        assert_eq!(among_others(Costs { cores: 4, ..Costs::default() }, None, 1).cores, 4);
    }
}
