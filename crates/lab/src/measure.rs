//! Takes turns: every measurement on every backend, then again, so that a busy or slow moment affects all of them.

use crate::backend::Backend;
use crate::message::{self, Door, Reply, Task, Work};
use crate::report::{Column, Row, WorkloadReport};
use crate::spawn::Program;
use crate::statistics::{median, Estimate, Summary};
use crate::trace::PuntCounter;
use crate::worker::{Launcher, PUNTED};
use crate::workloads::{Measurement, Plan, Workload};
use std::collections::BTreeMap;
use std::time::Instant;

/// The options of the command line for a measurement.
#[derive(Debug, Clone)]
pub struct Options {
    /// The backends to measure, of those that a workload has; `None` for all.
    pub backends: Option<Vec<Backend>>,
    /// Number of counted runs, in place of the workload's own.
    pub runs: Option<usize>,
    /// The way in which programs of the interfaces reach io_uring.
    pub door: Door,
    /// Once each side has two counted runs, no turn begins that would end after this time.
    pub deadline: Option<Instant>,
}

/// Number of counted turns that are taken whatever time they need.
const LEAST_TURNS: usize = 2;

/// One backend's runs of one measurement.
#[derive(Debug, Default)]
struct Side {
    /// The figures of each counted run.
    runs: Vec<Vec<f64>>,
    missing: Option<String>,
    counts: BTreeMap<String, u64>,
}

/// One measurement with its sides.
struct Turns<'a> {
    measurement: &'a Measurement,
    runs: usize,
    sides: Vec<(Backend, Side)>,
}

impl Options {
    fn turns<'a>(&self, measurement: &'a Measurement) -> Turns<'a> {
        let selected = |backend: &Backend| self.backends.as_ref().is_none_or(|some| some.contains(backend));
        let backends = measurement.backends.iter().copied().filter(selected);
        let sides = backends.map(|backend| (backend, Side::default())).collect();
        Turns { measurement, runs: self.runs.unwrap_or(measurement.runs), sides }
    }

    /// Returns the number of processes that [`run`] will start, for a progress bar.
    pub fn steps(&self, plan: &Plan) -> u64 {
        let one = |turns: Turns<'_>| (turns.sides.len() * (turns.runs + 1)) as u64;
        plan.measurements.iter().map(|measurement| one(self.turns(measurement))).sum()
    }
}

/// The result of a workload.
#[derive(Debug)]
pub enum Measured {
    /// Figures, of one backend at least.
    Report(WorkloadReport),
    /// No backend has any: the reason, in one line for people.
    Nothing(String),
}

/// Measures. Calls `progress` after each process; it may end the measurement. The error is one line for people.
pub fn run(
    launcher: &Launcher,
    workload: &Workload,
    plan: &Plan,
    options: &Options,
    mut progress: impl FnMut() -> Result<(), String>,
) -> Result<Measured, String> {
    let mut all: Vec<_> = plan.measurements.iter().map(|measurement| options.turns(measurement)).collect();
    all.retain(|turns| !turns.sides.is_empty());
    let planned = all.iter().map(|turns| turns.runs).max().unwrap_or(0);
    let mut begun = Instant::now();
    let mut taken = 0;
    for turn in 0..=planned {
        let last = std::mem::replace(&mut begun, Instant::now()).elapsed();
        if turn > LEAST_TURNS && options.deadline.is_some_and(|deadline| Instant::now() + last > deadline) {
            break;
        }
        taken = turn;
        for one in all.iter_mut().filter(|one| turn <= one.runs) {
            for (backend, side) in one.sides.iter_mut() {
                if side.missing.is_none() {
                    let reply = reply(launcher, *backend, &one.measurement.work, options.door)?;
                    side.record(*backend, reply, turn, one.measurement)
                        .map_err(|why| format!("{}: {why}", workload.name))?;
                }
                progress()?;
            }
        }
    }
    let sides = || all.iter().flat_map(|turns| &turns.sides);
    if sides().all(|(_, side)| side.runs.is_empty()) {
        let why = sides().find_map(|(_, side)| side.missing.clone());
        let why = why.unwrap_or_else(|| "none of these backends has a part in it".to_owned());
        return Ok(Measured::Nothing(format!("{}: nothing could be measured: {why}", workload.name)));
    }
    for one in all.iter_mut().filter(|one| one.measurement.count_punted) {
        let kernel = one.sides.iter_mut().find(|(backend, _)| *backend == Backend::Kernel);
        let Some((_, side)) = kernel.filter(|(_, side)| side.missing.is_none()) else { continue };
        count_punted(launcher, side, &one.measurement.work, options.door)?;
    }
    let mut report = WorkloadReport {
        name: workload.name.to_owned(),
        title: workload.title.to_owned(),
        about: workload.about.to_owned(),
        axis: workload.axis.to_owned(),
        marks: plan.marks.clone(),
        runs: taken,
        rows: all.iter().flat_map(rows).collect(),
        comparisons: Vec::new(),
        notes: plan.notes.clone(),
    };
    (plan.conclude)(&mut report);
    if taken < planned {
        report.notes.push(format!("{taken} runs of each instead of {planned}: the time was up (--minutes)."));
    }
    Ok(Measured::Report(report))
}

impl Side {
    /// Records the reply of one turn. The first turn is dropped: it is a little slower.
    fn record(
        &mut self,
        backend: Backend,
        reply: Reply,
        turn: usize,
        measurement: &Measurement,
    ) -> Result<(), String> {
        let missing = match reply {
            Reply::Measured(measured) if measured.figures.len() == measurement.figures.len() => {
                for (name, count) in measured.counts.into_iter().filter(|_| measurement.count_punted) {
                    let greatest = self.counts.entry(name).or_default();
                    *greatest = count.max(*greatest);
                }
                if turn > 0 {
                    self.runs.push(measured.figures);
                }
                return Ok(());
            }
            Reply::Measured(measured) => {
                return Err(format!("{backend} gave {} figures", measured.figures.len()));
            }
            Reply::Failed(why) => return Err(format!("{backend}: {why}")),
            // A program of the interfaces that anyring's engine does not serve is a fault, not a gap.
            Reply::Refused(refusal) if backend.is_ours() => return Err(format!("{backend}: {refusal}")),
            Reply::Refused(refusal) => refusal.to_string(),
            Reply::Missing(what) => what,
        };
        if turn > 0 {
            return Err(format!("{backend}: it worked, and then: {missing}"));
        }
        self.missing = Some(missing);
        Ok(())
    }
}

fn reply(launcher: &Launcher, backend: Backend, work: &Work, door: Door) -> Result<Reply, String> {
    if let Work::Start { times } = work {
        return time_starts(launcher, backend, *times);
    }
    let task = Task { program: backend.program(), door, work: work.clone() };
    launcher.run(backend, &task, None)
}

/// A program that does nothing, and is on every machine.
const PROGRAM: &str = "/bin/true";

/// Does [`Work::Start`], with the variables that `anyring run` sets or with none.
fn time_starts(launcher: &Launcher, backend: Backend, times: u32) -> Result<Reply, String> {
    let preload = format!("LD_PRELOAD={}", launcher.library().display());
    let program = match backend {
        Backend::Anyring => {
            check_loaded(launcher)?;
            Program::new(PROGRAM, &[&preload, "ANYRING_BACKEND=user"])?
        }
        _ => Program::new(PROGRAM, &[])?,
    };
    let times_ns = (0..times).map(|_| program.time_ns()).collect::<Result<Vec<_>, _>>()?;
    let figures = vec![median(&times_ns) / 1000.0];
    Ok(Reply::Measured(message::Measured { figures, ..Default::default() }))
}

/// Checks that the loader loads the library into the program: a static one would ignore it.
fn check_loaded(launcher: &Launcher) -> Result<(), String> {
    let mut command = std::process::Command::new(PROGRAM);
    let output =
        command.env_clear().env("LD_TRACE_LOADED_OBJECTS", "1").env("LD_PRELOAD", launcher.library()).output();
    let output = output.map_err(|error| format!("{PROGRAM}: {error}"))?;
    let objects = String::from_utf8_lossy(&output.stdout);
    let library = launcher.library().to_string_lossy();
    match objects.lines().any(|line| line.trim().starts_with(library.as_ref())) {
        true => Ok(()),
        false => Err(format!("the loader does not load {library} into {PROGRAM}: is it a static program?")),
    }
}

/// Makes one more run of the kernel's side, untimed, with its tracepoint on. If the tracepoint is unavailable, the
/// worker's count of io-wq's threads takes its place.
fn count_punted(launcher: &Launcher, side: &mut Side, work: &Work, door: Door) -> Result<(), String> {
    let Ok(counter) = PuntCounter::new() else { return Ok(()) };
    let task = Task { program: Backend::Kernel.program(), door, work: work.clone() };
    match launcher.run(Backend::Kernel, &task, Some(&counter))? {
        Reply::Measured(_) => side.counts.insert(PUNTED.to_owned(), counter.count()?),
        other => return Err(format!("the kernel's io_uring worked, and then answered {other:?}")),
    };
    Ok(())
}

fn rows<'a>(turns: &'a Turns<'a>) -> impl Iterator<Item = Row> + 'a {
    turns.measurement.figures.iter().enumerate().map(|(index, figure)| {
        let runs = |side: &Side| side.runs.iter().map(|figures| figures[index]).collect::<Vec<f64>>();
        let anyring = turns.sides.iter().find(|(backend, _)| *backend == Backend::Anyring);
        let ours = anyring.map(|(_, side)| runs(side)).unwrap_or_default();
        let column = |(backend, side): &(Backend, Side)| {
            let runs = runs(side);
            let pairs: Vec<_> = ours.iter().copied().zip(runs.iter().copied()).collect();
            let compared = !pairs.is_empty() && *backend != Backend::Anyring;
            // A ratio to 0 means nothing.
            let ratio = compared && runs.iter().all(|run| *run > 0.0);
            Column {
                backend: *backend,
                summary: (!runs.is_empty()).then(|| Summary::of(&runs)),
                missing: side.missing.clone(),
                ratio: ratio.then(|| Estimate::ratio(&pairs)),
                difference: compared.then(|| Estimate::difference(&pairs)),
                counts: side.counts.clone(),
                runs,
            }
        };
        Row { figure: figure.clone(), columns: turns.sides.iter().map(column).collect() }
    })
}
