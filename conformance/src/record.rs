//! The record of a run for CONFORMANCE.md: for each case how it ended and which names of the interface it used.

use crate::runner::{Outcome, Report};
use std::collections::{BTreeMap, BTreeSet};

/// One case, over all of its runs.
#[derive(Default, serde::Serialize)]
struct Case {
    /// Whether it passed in every run, a flaky one in the end; a skip is no pass.
    passed: bool,
    /// Names that it passed to the kernel.
    tried: BTreeSet<String>,
    /// Names with which something succeeded in a run that passed.
    succeeded: BTreeMap<String, Runs>,
}

/// In which runs.
#[derive(Default, serde::Serialize)]
struct Runs {
    doors: BTreeSet<String>,
    /// Sets of setup flags; empty for a case that chooses its own.
    flag_sets: BTreeSet<&'static str>,
}

/// Writes the record of these runs as JSON, an object of cases.
pub fn write(path: &std::path::Path, reports: &[Report]) -> Result<(), String> {
    let mut cases: BTreeMap<&str, Case> = BTreeMap::new();
    for report in reports {
        let passed = matches!(report.outcome, Outcome::Passed | Outcome::Flaky(_));
        let case = cases.entry(report.case).or_insert_with(|| Case { passed: true, ..Case::default() });
        case.passed &= passed;
        case.tried.extend(report.evidence.tried.names().map(ToString::to_string));
        if !passed {
            continue;
        }
        for name in report.evidence.succeeded.names() {
            let runs = case.succeeded.entry(name.to_string()).or_default();
            runs.doors.insert(report.door.clone());
            runs.flag_sets.extend(report.flag_set);
        }
    }
    let text = serde_json::to_string(&cases).map_err(|error| error.to_string())?;
    std::fs::write(path, text).map_err(|error| format!("{}: {error}", path.display()))
}
