//! The list of known differences between the kernel and the engine in programs.

use crate::program::{Program, Registration, Step, SETUP_FLAGS};
use crate::record::Difference;
use anyhow::{bail, Context, Result};
use std::collections::BTreeMap;
use std::path::Path;

/// One line of the list: its subject, each side's observation, and the reason.
struct Line {
    subject: String,
    kernel: String,
    anyring: String,
    reason: String,
    /// True if a race decides whether the sides differ: not every run shows the difference.
    sometimes: bool,
}

/// The list.
pub struct Known {
    lines: Vec<Line>,
}

impl Known {
    /// Reads `SUBJECT | KERNEL | ANYRING | REASON` lines. `*` stands for any text, the same on both sides. A prefix
    /// limits a line to one seed (`seed N: `) or one setup flag (`SQPOLL: `). `sometimes` before all that means that
    /// a race decides.
    pub fn read(path: Option<&Path>) -> Result<Known> {
        let mut lines = Vec::new();
        let Some(path) = path else { return Ok(Known { lines }) };
        let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
        for line in text.lines().filter(|line| !line.trim().is_empty() && !line.starts_with('#')) {
            // A subject that begins with # is quoted.
            let line = line.strip_prefix('\\').unwrap_or(line);
            let (line, sometimes) = line.strip_prefix("sometimes ").map_or((line, false), |line| (line, true));
            let parts: Vec<String> = line.split('|').map(|part| part.trim().to_owned()).collect();
            let [subject, kernel, anyring, reason] =
                parts.try_into().ok().context(format!("four parts: {line}"))?;
            if [&subject, &kernel, &anyring].iter().any(|pattern| pattern.matches('*').count() > 1) {
                bail!("more than one * in a part: {line}");
            }
            if reason.is_empty() {
                bail!("a known difference without a reason: {line}");
            }
            lines.push(Line { subject, kernel, anyring, reason, sometimes });
        }
        Ok(Known { lines })
    }

    /// Separates differences that are neither listed nor follow from listed ones; also returns the reasons of the
    /// listed ones.
    pub fn divide(&self, found: Vec<Difference>, program: &Program) -> (Vec<Difference>, Vec<String>) {
        let (listed, mut others): (Vec<_>, Vec<_>) =
            found.into_iter().partition(|difference| self.line(difference, program).is_some());
        let requests = listed.iter().filter(|difference| difference.subject.starts_with('#')).count() as i64;
        others.retain(|difference| !is_other_count(difference, program, requests));
        let reasons = listed.iter().filter_map(|difference| self.line(difference, program));
        (others, reasons.map(|line| line.reason.clone()).collect())
    }

    fn line(&self, difference: &Difference, program: &Program) -> Option<&Line> {
        let subject = &difference.subject;
        let mut subjects = vec![subject.clone(), format!("seed {}: {subject}", program.seed)];
        let flags = SETUP_FLAGS.iter().filter(|(bit, _)| program.setup_flags & bit != 0);
        subjects.extend(flags.map(|(_, name)| format!("{name}: {subject}")));
        self.lines.iter().find(|line| {
            let [kernel, anyring] = &difference.seen;
            let texts = [open_text(&line.kernel, kernel), open_text(&line.anyring, anyring)];
            let both_open = line.kernel.contains('*') && line.anyring.contains('*');
            subjects.iter().any(|subject| open_text(&line.subject, subject).is_some())
                && matches!(texts, [Some(one), Some(other)] if !both_open || one == other)
        })
    }

    /// Returns lines that no difference matched, although every run of all seeds should.
    pub fn stale(&self, met: &BTreeMap<String, u64>) -> Vec<String> {
        let unmet = self.lines.iter().filter(|line| !line.sometimes && !met.contains_key(&line.reason));
        unmet.map(|line| format!("listed as different, but not met: {} | {}", line.subject, line.reason)).collect()
    }
}

/// True if these are results of a cancel that differ by at most `requests`. A cancel counts the requests that it
/// ended, and that many listed requests may end otherwise on one side. The kernel's EALREADY counts as 0: a worker
/// sleeps in the one request.
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

/// Returns the text that the `*` of `pattern` stands for; empty without a `*`. `None` if `text` has another form.
fn open_text<'t>(pattern: &str, text: &'t str) -> Option<&'t str> {
    match pattern.split_once('*') {
        None => (pattern == text).then_some(""),
        Some((before, after)) => text.strip_prefix(before)?.strip_suffix(after),
    }
}
