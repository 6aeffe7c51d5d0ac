//! Tables for the terminal.

use crate::report::{grouped, Column, Comparison, Figure, Report, Row, WorkloadReport};
use crate::statistics::{Estimate, LEAST_RUNS};
use crate::worker::PUNTED;

/// Formats the report as text, below 100 columns wide.
pub fn report(report: &Report) -> String {
    let mut text: String = report.workloads.iter().map(workload).collect();
    for why in &report.skipped {
        text.push_str(&format!("{}\n\n", fold(why)));
    }
    if report.quick {
        text.push_str("--quick: this shows that it runs; the figures are worth nothing.\n");
    }
    let method = format!(
        "In turns; each run a process. In brackets after a ratio of medians: its 95 % bootstrap interval; with fewer \
         than {LEAST_RUNS} runs there is none."
    );
    for line in [method, report.machine.to_string(), format!("mitigations: {}", mitigations(report))] {
        text.push_str(&format!("{}\n", fold(&line)));
    }
    text
}

/// Formats the kernel's mitigations for the processor's vulnerabilities, for people.
pub fn mitigations(report: &Report) -> String {
    match report.machine.mitigations.is_empty() {
        true => "none".to_owned(),
        false => report.machine.mitigations.join("; "),
    }
}

/// Formats seconds since 1970 as a date and a time of day, UTC.
pub fn date(unix_time: u64) -> String {
    let leap = |year: u64| year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    let (mut days, minutes) = (unix_time / 86_400, unix_time / 60);
    let mut year = 1970;
    while days >= 365 + u64::from(leap(year)) {
        days -= 365 + u64::from(leap(year));
        year += 1;
    }
    let lengths = [31, 28 + u64::from(leap(year)), 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let mut month = 1;
    for length in lengths {
        if days < length {
            break;
        }
        days -= length;
        month += 1;
    }
    format!("{year}-{month:02}-{:02} {:02}:{:02} UTC", days + 1, minutes / 60 % 24, minutes % 60)
}

const WIDTH: usize = 96;

fn workload(workload: &WorkloadReport) -> String {
    let plural = if workload.runs == 1 { "" } else { "s" };
    let mut text = format!("{}: {} ({} run{plural} of each)\n\n", workload.name, workload.title, workload.runs);
    text.push_str(&format!(
        "  {:22}{:>9}{:>9}{:>9}{:>9}{:>9}  {}\n",
        "", "median", "mean", "stdev", "least", "most", "anyring / this"
    ));
    for (group, rows) in workload.groups() {
        for row in rows.iter().filter(|row| row.figure.headline) {
            let group = if group == workload.name { String::new() } else { format!("{group}, ") };
            text.push_str(&format!("{group}{} ({})\n", name(row), unit(&row.figure)));
            row.columns.iter().for_each(|column| text.push_str(&line(column)));
            published(row, &mut text);
        }
    }
    for (what, comparisons) in comparisons(workload) {
        text.push_str(&format!("\n{what}\n"));
        for comparison in comparisons {
            text.push_str(&format!("  {:66}  {}\n", comparison.of, estimate(&comparison.ratio, 2)));
        }
    }
    for note in notes(workload) {
        text.push_str(&format!("\n{}\n", fold(&note)));
    }
    text.push('\n');
    text
}

/// Groups the comparisons by their subject.
pub fn comparisons(workload: &WorkloadReport) -> Vec<(&str, Vec<&Comparison>)> {
    grouped(&workload.comparisons, |comparison| &comparison.what)
}

/// Returns the row's name, with its variant.
pub fn name(row: &Row) -> String {
    row.figure.variant.as_ref().map_or(row.figure.name.clone(), |variant| format!("{}, {variant}", row.figure.name))
}

/// Returns the figure's unit, with the direction in which it gets better.
pub fn unit(figure: &Figure) -> String {
    let better = if figure.more_is_better { "higher" } else { "lower" };
    format!("{}, {better} is better", figure.unit)
}

fn line(column: &Column) -> String {
    let Some(summary) = &column.summary else {
        let why = column.missing.as_deref().unwrap_or("no run");
        return format!("  {:22}none here: {why}\n", column.backend);
    };
    let [median, mean, stdev, min, max] =
        [summary.median, summary.mean, summary.stdev, summary.min, summary.max].map(figure);
    let mut line =
        format!("  {:22}{median:>9}{mean:>9}{stdev:>9}{min:>9}{max:>9}  {}", column.backend, ratio(column));
    if let Some(punted) = punted(column) {
        line.push_str(&format!("  {punted}"));
    }
    line.truncate(line.trim_end().len());
    line.push('\n');
    line
}

/// Formats the count of the requests that a worker carried out, as far as it is known.
pub fn punted(column: &Column) -> Option<String> {
    let workers = column.counts.get("io_wq_threads");
    match (column.counts.get(PUNTED), workers) {
        (Some(punted), _) => Some(format!("{punted} punted")),
        (None, Some(0)) => Some("0 punted (no io-wq thread)".to_owned()),
        (None, Some(1)) => Some("punted to an io-wq thread (to count them takes root and tracefs)".to_owned()),
        (None, Some(threads)) => {
            Some(format!("punted to {threads} io-wq threads (to count them takes root and tracefs)"))
        }
        (None, None) => None,
    }
}

/// Formats the ratio with its interval.
pub fn ratio(column: &Column) -> String {
    column.ratio.as_ref().map_or(String::new(), |ratio| estimate(ratio, 2))
}

/// Formats the value with its interval, if it has one.
pub fn estimate(estimate: &Estimate, digits: usize) -> String {
    let value = format!("{:.digits$}", estimate.value);
    match estimate.interval {
        Some([low, high]) => format!("{value} ({low:.digits$}..{high:.digits$})"),
        None => value,
    }
}

fn published(row: &Row, text: &mut String) {
    for figures in &row.figure.published {
        let value = as_published(figures.value);
        text.push_str(&match figures.spread.map(|spread| spread.map(as_published)) {
            Some([stdev, min, max]) => {
                format!("  {:22}{:>9}{value:>9}{stdev:>9}{min:>9}{max:>9}\n", figures.label, "")
            }
            None => format!("  {:22}{value:>9}\n", figures.label),
        });
    }
}

/// Returns the notes that a reader needs, including the marks of charts.
pub fn notes(workload: &WorkloadReport) -> Vec<String> {
    let marks = workload.marks.iter().map(|mark| format!("{}: {} {}", mark.label, mark.x, workload.axis));
    workload.notes.iter().cloned().chain(marks).collect()
}

/// Formats a number with its significant digits.
pub fn figure(value: f64) -> String {
    match value.abs() {
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        0.0 => "0".to_owned(),
        _ => format!("{value:.2}"),
    }
}

/// Formats a published number with all its digits. A quotient of such numbers has more digits than are significant.
pub fn as_published(value: f64) -> String {
    let all = format!("{value}");
    match all.split_once('.').is_none_or(|(_, digits)| digits.len() <= 2) {
        true => all,
        false => figure(value),
    }
}

/// Folds text into lines of at most 96 columns.
pub fn fold(text: &str) -> String {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.is_empty() => line.push_str(word),
            Some(line) if line.len() + 1 + word.len() <= WIDTH => line.push_str(&format!(" {word}")),
            _ => lines.push(word.to_owned()),
        }
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_the_calendar() {
        for (seconds, expected) in [
            (0, "1970-01-01 00:00 UTC"),
            (951_782_340, "2000-02-28 23:59 UTC"),
            (951_782_400, "2000-02-29 00:00 UTC"),
            (951_868_800, "2000-03-01 00:00 UTC"),
            (1_735_689_599, "2024-12-31 23:59 UTC"),
            (4_107_542_400, "2100-03-01 00:00 UTC"),
        ] {
            assert_eq!(date(seconds), expected, "{seconds}");
        }
    }
}
