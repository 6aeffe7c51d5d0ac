//! The workloads of the lab. Each states the work, its backends, and the meaning of the figures.

use crate::backend::Backend;
use crate::message::Work;
use crate::report::{Figure, Mark, WorkloadReport};
use crate::scratch::Scratch;

mod disk;
mod messages;
mod pipes;
mod small;
mod tokens;
mod waiting;

/// One workload.
#[derive(Debug, Clone, Copy)]
pub struct Workload {
    /// The name on the command line.
    pub name: &'static str,
    /// The title, in a few words.
    pub title: &'static str,
    /// The work, and the meaning of a figure.
    pub about: &'static str,
    /// The name of a chart's axis, if figures have an `x`.
    pub axis: &'static str,
    /// Its share of the time that is available (`--minutes`), relative to the others'.
    pub share: u32,
    /// Prepares the workload and returns the plan of its runs.
    pub plan: fn(&mut Setting) -> Result<Plan, String>,
}

/// The setting for which a plan is made.
#[derive(Debug)]
pub struct Setting {
    /// True: cut the work down, to check that it runs.
    pub quick: bool,
    /// The folder for files, which live as long as this.
    pub scratch: Scratch,
}

impl Setting {
    /// Returns `quick` if the work is cut down, else `full`.
    fn pick<T>(&self, full: T, quick: T) -> T {
        match self.quick {
            true => quick,
            false => full,
        }
    }
}

/// The runs of a workload.
#[derive(Debug)]
pub struct Plan {
    /// The measurements, in the order within each turn.
    pub measurements: Vec<Measurement>,
    /// Records for the report.
    pub notes: Vec<String>,
    /// Marks for its charts.
    pub marks: Vec<Mark>,
    /// Adds the conclusions from the figures to the report.
    pub conclude: fn(&mut WorkloadReport),
}

impl Default for Plan {
    /// Returns a plan without measurements and conclusions.
    fn default() -> Self {
        Plan { measurements: Vec::new(), notes: Vec::new(), marks: Vec::new(), conclude: |_| () }
    }
}

/// One task, on several backends.
#[derive(Debug, Clone)]
pub struct Measurement {
    /// The task's work.
    pub work: Work,
    /// The backends on which the task has a meaning, in the order of [`Backend::ALL`].
    pub backends: Vec<Backend>,
    /// The meaning of the task's figures, as many as [`Work`] has.
    pub figures: Vec<Figure>,
    /// True if requests that went to a worker are counted.
    pub count_punted: bool,
    /// Number of counted runs, if the command has no other.
    pub runs: usize,
}

/// Number of counted runs of each figure, unless a workload says otherwise. With the dropped run they are the 10 runs
/// of the published pipes.
pub const RUNS: usize = 9;

impl Measurement {
    fn new(work: Work, backends: &[Backend], figures: Vec<Figure>) -> Self {
        Measurement { work, backends: backends.to_vec(), figures, count_punted: false, runs: RUNS }
    }
}

impl Figure {
    fn new(group: &str, name: impl Into<String>, unit: &str) -> Self {
        Figure {
            group: group.to_owned(),
            name: name.into(),
            unit: unit.to_owned(),
            headline: true,
            ..Figure::default()
        }
    }

    fn at(mut self, x: f64) -> Self {
        self.x = Some(x);
        self
    }
}

/// Every workload, in the order of a whole run.
pub const ALL: [Workload; 11] = [
    pipes::PIPES,
    small::NOP,
    disk::FILES,
    waiting::ECHO,
    waiting::TIMERS,
    waiting::POLLS,
    tokens::PIPETEST,
    small::IDLE,
    disk::ASYNC,
    small::LOAD,
    // The last, since it takes longest: in a limited time it gets the rest.
    messages::MSG,
];

/// Finds the workload of this name. The error is one line for people.
pub fn find(name: &str) -> Result<Workload, String> {
    ALL.into_iter().find(|workload| workload.name == name).ok_or_else(|| {
        let names: Vec<_> = ALL.iter().map(|workload| workload.name).collect();
        format!("there is no such workload; there are {}", names.join(", "))
    })
}
