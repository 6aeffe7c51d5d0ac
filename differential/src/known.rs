//! The list of known differences between the kernel and the engine that programs meet.

use crate::program::{Program, Registration, Step};
use crate::record::Difference;
use anyhow::{bail, Context, Result};
use std::collections::BTreeMap;
use std::path::Path;

/// One line of the list: what it is about, what each side sees, and why.
struct Line {
    subject: String,
    kernel: String,
    anyring: String,
    reason: String,
}

/// The list.
pub struct Known {
    lines: Vec<Line>,
}

impl Known {
    /// Reads `SUBJECT | KERNEL | ANYRING | REASON` lines, in which `*` stands for any text.
    pub fn read(path: Option<&Path>) -> Result<Known> {
        let mut lines = Vec::new();
        let Some(path) = path else { return Ok(Known { lines }) };
        let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
        for line in text.lines().filter(|line| !line.trim().is_empty() && !line.starts_with('#')) {
            // A subject that begins with # is quoted.
            let line = line.strip_prefix('\\').unwrap_or(line);
            let parts: Vec<String> = line.split('|').map(|part| part.trim().to_owned()).collect();
            let [subject, kernel, anyring, reason] =
                parts.try_into().ok().context(format!("four parts: {line}"))?;
            if reason.is_empty() {
                bail!("a known difference without a reason: {line}");
            }
            lines.push(Line { subject, kernel, anyring, reason });
        }
        Ok(Known { lines })
    }

    /// What is not on the list and does not follow from what is; and the reasons of what is.
    pub fn divide(&self, found: Vec<Difference>, program: &Program) -> (Vec<Difference>, Vec<String>) {
        let (listed, mut others): (Vec<_>, Vec<_>) =
            found.into_iter().partition(|difference| self.line(difference).is_some());
        let requests = listed.iter().filter(|difference| difference.subject.starts_with('#')).count() as i64;
        others.retain(|difference| !is_other_count(difference, program, requests));
        let reasons = listed.iter().filter_map(|difference| self.line(difference)).map(|line| line.reason.clone());
        (others, reasons.collect())
    }

    fn line(&self, difference: &Difference) -> Option<&Line> {
        self.lines.iter().find(|line| {
            matches(&line.subject, &difference.subject)
                && matches(&line.kernel, &difference.seen[0])
                && matches(&line.anyring, &difference.seen[1])
        })
    }

    /// Lines that nothing matched.
    pub fn stale(&self, met: &BTreeMap<String, u64>) -> Vec<String> {
        let unmet = self.lines.iter().filter(|line| !met.contains_key(&line.reason));
        unmet.map(|line| format!("listed as different, but not met: {} | {}", line.subject, line.reason)).collect()
    }
}

/// Whether these are answers of a cancel that differ by no more than `requests`: it counts what it ended, and of so many
/// requests it is listed that a cancel ends them otherwise. One that a worker sleeps in is EALREADY to a cancel of one.
fn is_other_count(difference: &Difference, program: &Program, requests: i64) -> bool {
    let step = difference.subject.strip_prefix("step ").and_then(|step| step.parse::<usize>().ok());
    let registers = step.and_then(|step| program.steps.get(step));
    let cancels = match registers {
        Some(step) => matches!(step, Step::Register(Registration::SyncCancel(..))),
        None => difference.subject.ends_with(" AsyncCancel"),
    };
    let [kernel, anyring] = &difference.seen;
    let (Some(kernel), Some(anyring)) = (count(kernel), count(anyring)) else { return false };
    let kernel = if kernel == -i64::from(libc::EALREADY) { 0 } else { kernel };
    cancels && kernel >= 0 && anyring >= 0 && (kernel - anyring).abs() <= requests
}

/// The one answer in `[1]`, or the one result in `[(1, 0)]`.
fn count(text: &str) -> Option<i64> {
    let inner = text.strip_prefix('[')?.strip_suffix(']')?;
    inner.strip_prefix('(').and_then(|inner| inner.strip_suffix(", 0)")).unwrap_or(inner).parse().ok()
}

/// Whether `text` is of the form of `pattern`.
fn matches(pattern: &str, text: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == text,
        Some((before, after)) => text.strip_prefix(before).is_some_and(|rest| {
            (0..=rest.len()).any(|at| rest.is_char_boundary(at) && matches(after, &rest[at..]))
        }),
    }
}
