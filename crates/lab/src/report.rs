//! What came out of a measurement: the JSON that docs/lab.md describes.

use crate::backend::Backend;
use crate::machine::Machine;
use crate::message::Door;
use crate::statistics::{Estimate, Summary};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The version of this layout; it grows when a field changes its meaning or goes away.
pub const SCHEMA: u32 = 1;

/// Everything that one command measured.
#[derive(Debug, Serialize, Deserialize)]
pub struct Report {
    /// [`SCHEMA`].
    pub schema: u32,
    /// Our version.
    pub version: String,
    /// Seconds since 1970 when it was begun.
    pub unix_time: u64,
    /// Whether the work was cut down to see that it runs: no figure of it is worth anything.
    pub quick: bool,
    /// How the programs of the interface reached io_uring.
    pub door: Door,
    /// Where.
    pub machine: Machine,
    /// What was measured.
    pub workloads: Vec<WorkloadReport>,
    /// Workloads of which nothing could be measured here, and why: a line each.
    pub skipped: Vec<String>,
}

/// One workload.
#[derive(Debug, Serialize, Deserialize)]
pub struct WorkloadReport {
    /// As on the command line.
    pub name: String,
    /// In a few words.
    pub title: String,
    /// What is done, and what a figure is.
    pub about: String,
    /// What the axis of a chart has, where rows have an `x`.
    pub axis: String,
    /// Places on that axis that mean something.
    pub marks: Vec<Mark>,
    /// Counted runs of each figure, after one that is dropped.
    pub runs: usize,
    /// The figures.
    pub rows: Vec<Row>,
    /// What follows from several of them.
    pub comparisons: Vec<Comparison>,
    /// What a reader must know of this measurement.
    pub notes: Vec<String>,
}

/// A place on a chart's axis.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Mark {
    /// Where.
    pub x: f64,
    /// What is there.
    pub label: String,
}

/// Two figures of one workload, as the ratio of their medians.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Comparison {
    /// What is divided by what.
    pub what: String,
    /// Whose figures, or in which chart.
    pub of: String,
    /// The ratio, with its interval.
    #[serde(flatten)]
    pub ratio: Estimate,
}

/// One thing that was measured on several backends.
#[derive(Debug, Serialize, Deserialize)]
pub struct Row {
    /// What.
    #[serde(flatten)]
    pub figure: Figure,
    /// In the order of [`Backend::ALL`].
    pub columns: Vec<Column>,
}

/// What a number is.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Figure {
    /// Figures of one group belong into one chart.
    pub group: String,
    /// What it is, within the group.
    pub name: String,
    /// Its unit.
    pub unit: String,
    /// Whether higher is better, as of rates; of everything else lower is.
    pub more_is_better: bool,
    /// What the axis of its chart has, if that is not the workload's.
    pub axis: Option<String>,
    /// Where it is on a chart's axis, if the group has one.
    pub x: Option<f64>,
    /// Tells figures of one place apart: a line of its own.
    pub variant: Option<String>,
    /// Whether the table on the terminal has it.
    pub headline: bool,
    /// What others published of the same measurement, on their machines.
    pub published: Vec<Published>,
}

/// One backend's figures.
#[derive(Debug, Serialize, Deserialize)]
pub struct Column {
    /// Whose.
    pub backend: Backend,
    /// Each counted run, in the order in which they were made.
    pub runs: Vec<f64>,
    /// Of them; `None` when there are none.
    pub summary: Option<Summary>,
    /// Why there are none.
    pub missing: Option<String>,
    /// The medians' anyring / this, with its interval.
    pub ratio: Option<Estimate>,
    /// The medians' anyring - this, with its interval.
    pub difference: Option<Estimate>,
    /// What was counted beside: the greatest of all runs.
    pub counts: BTreeMap<String, u64>,
}

/// A figure that somebody published.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Published {
    /// What it is of.
    pub label: String,
    /// The mean or percentile, in the row's unit.
    pub value: f64,
    /// Standard deviation, least and greatest, where they were published.
    pub spread: Option<[f64; 3]>,
    /// By whom, where.
    pub source: String,
}

impl Report {
    /// The report that `json` is.
    ///
    /// # Errors
    /// Why it is none, or none of this version's layout.
    pub fn from_json(json: &[u8]) -> Result<Self, String> {
        #[derive(Deserialize)]
        struct Layout {
            schema: u32,
        }
        let no_report = |error: serde_json::Error| format!("no report.json of `anyring lab`: {error}");
        let Layout { schema } = serde_json::from_slice(json).map_err(no_report)?;
        if schema != SCHEMA {
            return Err(format!("its schema is {schema}; this version of anyring reads {SCHEMA} only"));
        }
        serde_json::from_slice(json).map_err(no_report)
    }
}

impl Row {
    /// This backend's column.
    pub fn column(&self, backend: Backend) -> Option<&Column> {
        self.columns.iter().find(|column| column.backend == backend)
    }
}

impl WorkloadReport {
    /// The groups, in order.
    pub fn groups(&self) -> Vec<(&str, Vec<&Row>)> {
        grouped(&self.rows, |row| &row.figure.group)
    }
}

/// How anyring's figures of a workload lie beside those of another backend.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Finding {
    /// Figures of which the whole interval of the ratio is on the better side of 1.
    pub better: usize,
    /// On the worse side.
    pub worse: usize,
    /// The interval holds 1, or there is none.
    pub neither: usize,
    /// The least and the greatest anyring / other.
    pub ratios: [f64; 2],
}

impl Finding {
    /// Of the workload's figures that both have; `None` if there is no such figure.
    pub fn of(workload: &WorkloadReport, other: Backend) -> Option<Self> {
        let mut finding = Finding { better: 0, worse: 0, neither: 0, ratios: [f64::INFINITY, f64::NEG_INFINITY] };
        for row in &workload.rows {
            let Some(ratio) = row.column(other).and_then(|column| column.ratio) else { continue };
            let more_is_better = row.figure.more_is_better;
            let count = match ratio.interval {
                Some([low, _]) if low > 1.0 && more_is_better => &mut finding.better,
                Some([_, high]) if high < 1.0 && !more_is_better => &mut finding.better,
                Some([low, high]) if low > 1.0 || high < 1.0 => &mut finding.worse,
                _ => &mut finding.neither,
            };
            *count += 1;
            let [least, greatest] = finding.ratios;
            finding.ratios = [least.min(ratio.value), greatest.max(ratio.value)];
        }
        (finding.better + finding.worse + finding.neither > 0).then_some(finding)
    }
}

/// Those of one name together, names in the order in which they come first.
pub fn grouped<T>(all: &[T], name: impl Fn(&T) -> &str) -> Vec<(&str, Vec<&T>)> {
    let mut groups: Vec<(&str, Vec<&T>)> = Vec::new();
    for one in all {
        match groups.iter_mut().find(|(known, _)| *known == name(one)) {
            Some((_, members)) => members.push(one),
            None => groups.push((name(one), vec![one])),
        }
    }
    groups
}
