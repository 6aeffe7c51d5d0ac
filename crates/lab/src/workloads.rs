//! What the lab measures: each workload says what is done, on which backends, and what the figures mean.

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

/// Something that can be measured.
#[derive(Debug, Clone, Copy)]
pub struct Workload {
    /// As on the command line.
    pub name: &'static str,
    /// In a few words.
    pub title: &'static str,
    /// What is done, and what a figure is.
    pub about: &'static str,
    /// What the axis of a chart has, where figures have an `x`.
    pub axis: &'static str,
    /// Its part of the time that there is, beside the others' (`--minutes`).
    pub share: u32,
    /// Makes what it needs and says what is to be run.
    pub plan: fn(&mut Setting) -> Result<Plan, String>,
}

/// What a plan is made for.
#[derive(Debug)]
pub struct Setting {
    /// Cut down, to see that it runs.
    pub quick: bool,
    /// For files; they live as long as this.
    pub scratch: Scratch,
}

impl Setting {
    /// The one or the other.
    fn pick<T>(&self, full: T, quick: T) -> T {
        match self.quick {
            true => quick,
            false => full,
        }
    }
}

/// What a workload runs.
#[derive(Debug)]
pub struct Plan {
    /// In the order in which each turn has them.
    pub measurements: Vec<Measurement>,
    /// For the report.
    pub notes: Vec<String>,
    /// For its charts.
    pub marks: Vec<Mark>,
    /// Adds what follows from the figures.
    pub conclude: fn(&mut WorkloadReport),
}

impl Default for Plan {
    /// Nothing, and nothing that follows.
    fn default() -> Self {
        Plan { measurements: Vec::new(), notes: Vec::new(), marks: Vec::new(), conclude: |_| () }
    }
}

/// One task, on several backends.
#[derive(Debug, Clone)]
pub struct Measurement {
    /// The task's work.
    pub work: Work,
    /// Where it has a meaning, in the order of [`Backend::ALL`].
    pub backends: Vec<Backend>,
    /// What its figures are, as many as [`Work`] says.
    pub figures: Vec<Figure>,
    /// Whether requests that went to a worker are counted.
    pub count_punted: bool,
    /// Counted runs if the command does not say.
    pub runs: usize,
}

/// Counted runs of each figure unless a workload says otherwise; with the dropped one the 10 of the published pipes.
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

/// Every workload, in the order in which a whole run has them.
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
    // Last, since it takes longest: where the time is limited it gets what the others left.
    messages::MSG,
];

/// The workload of this name; the error is one line for people.
pub fn find(name: &str) -> Result<Workload, String> {
    ALL.into_iter().find(|workload| workload.name == name).ok_or_else(|| {
        let names: Vec<_> = ALL.iter().map(|workload| workload.name).collect();
        format!("there is no such workload; there are {}", names.join(", "))
    })
}
