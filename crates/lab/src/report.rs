//! The results of measurements: the JSON that docs/lab.md describes.

use crate::backend::Backend;
use crate::machine::Machine;
use crate::message::Door;
use crate::statistics::{Estimate, Summary};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The version of this layout. It is raised when a field changes its meaning or is removed.
pub const SCHEMA: u32 = 1;

/// All measurements of one command.
#[derive(Debug, Serialize, Deserialize)]
pub struct Report {
    /// The layout's version, [`SCHEMA`].
    pub schema: u32,
    /// The version of anyring.
    pub version: String,
    /// Seconds since 1970 at the beginning.
    pub unix_time: u64,
    /// True if the work was cut down to check that it runs: its figures mean nothing.
    pub quick: bool,
    /// The way in which the programs of the interfaces reached io_uring.
    pub door: Door,
    /// The machine of the measurements.
    pub machine: Machine,
    /// The measured workloads.
    pub workloads: Vec<WorkloadReport>,
    /// Workloads without any measurement here, with the reason: one line each.
    pub skipped: Vec<String>,
}

/// One workload.
#[derive(Debug, Serialize, Deserialize)]
pub struct WorkloadReport {
    /// The name on the command line.
    pub name: String,
    /// The title, in a few words.
    pub title: String,
    /// The work, and the meaning of a figure.
    pub about: String,
    /// The name of a chart's axis, if rows have an `x`.
    pub axis: String,
    /// Meaningful places on that axis.
    pub marks: Vec<Mark>,
    /// Counted runs of each figure, after one that is dropped.
    pub runs: usize,
    /// The figures.
    pub rows: Vec<Row>,
    /// Comparisons between figures.
    pub comparisons: Vec<Comparison>,
    /// Records that a reader needs.
    pub notes: Vec<String>,
}

/// A place on a chart's axis.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Mark {
    /// The place on the axis.
    pub x: f64,
    /// The text at that place.
    pub label: String,
}

/// Two figures of one workload, as the ratio of their medians.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Comparison {
    /// The two figures: dividend and divisor.
    pub what: String,
    /// The backend of the figures, or the chart.
    pub of: String,
    /// The ratio, with its interval.
    #[serde(flatten)]
    pub ratio: Estimate,
}

/// One figure, measured on several backends.
#[derive(Debug, Serialize, Deserialize)]
pub struct Row {
    /// The figure.
    #[serde(flatten)]
    pub figure: Figure,
    /// The backends' columns, in the order of [`Backend::ALL`].
    pub columns: Vec<Column>,
}

/// The meaning of a number.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Figure {
    /// The group. Figures of one group are in one chart.
    pub group: String,
    /// The name, within the group.
    pub name: String,
    /// Its unit.
    pub unit: String,
    /// True if higher is better, as for rates. For all other figures lower is better.
    pub more_is_better: bool,
    /// The name of the chart's axis for this figure, if it differs from the workload's.
    pub axis: Option<String>,
    /// The place on a chart's axis, if the group has one.
    pub x: Option<f64>,
    /// Distinguishes figures at one place: each variant has its own line in the chart.
    pub variant: Option<String>,
    /// True if the table on the terminal has it.
    pub headline: bool,
    /// Published figures of the same measurement, on other machines.
    pub published: Vec<Published>,
}

/// One backend's figures.
#[derive(Debug, Serialize, Deserialize)]
pub struct Column {
    /// The backend.
    pub backend: Backend,
    /// Each counted run, in the order of the runs.
    pub runs: Vec<f64>,
    /// The summary of the runs; `None` if there are none.
    pub summary: Option<Summary>,
    /// The reason why there are none.
    pub missing: Option<String>,
    /// Anyring's median / this backend's, with its interval.
    pub ratio: Option<Estimate>,
    /// Anyring's median - this backend's, with its interval.
    pub difference: Option<Estimate>,
    /// Further counts: the greatest of all runs.
    pub counts: BTreeMap<String, u64>,
}

/// A published figure.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Published {
    /// The subject of the figure.
    pub label: String,
    /// The mean or percentile, in the row's unit.
    pub value: f64,
    /// Standard deviation, least and greatest, if they were published.
    pub spread: Option<[f64; 3]>,
    /// The publisher and the place.
    pub source: String,
}

impl Report {
    /// Parses a report from JSON.
    ///
    /// # Errors
    /// If `json` is not a report, or has the layout of another version.
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
    /// Returns this backend's column.
    pub fn column(&self, backend: Backend) -> Option<&Column> {
        self.columns.iter().find(|column| column.backend == backend)
    }
}

impl WorkloadReport {
    /// Returns the groups, in order.
    pub fn groups(&self) -> Vec<(&str, Vec<&Row>)> {
        grouped(&self.rows, |row| &row.figure.group)
    }
}

/// The comparison of anyring's figures of a workload with those of another backend.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Finding {
    /// Number of figures whose ratio has its whole interval on the better side of 1.
    pub better: usize,
    /// Number of figures with the interval on the worse side.
    pub worse: usize,
    /// Number of figures whose interval contains 1, or that have none.
    pub neither: usize,
    /// The least and the greatest ratio anyring / other.
    pub ratios: [f64; 2],
}

impl Finding {
    /// Compares the workload's figures that both have: its rates, or its other figures. `None` if there is no such
    /// figure.
    pub fn of(workload: &WorkloadReport, other: Backend, more_is_better: bool) -> Option<Self> {
        let mut finding = Finding { better: 0, worse: 0, neither: 0, ratios: [f64::INFINITY, f64::NEG_INFINITY] };
        for row in workload.rows.iter().filter(|row| row.figure.more_is_better == more_is_better) {
            let Some(ratio) = row.column(other).and_then(|column| column.ratio) else { continue };
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

/// Groups items by name. The names are in the order of their first item.
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
