//! The outcome of a case, printed as plain lines or as TAP (Test Anything Protocol, version 14).

use crate::case::{Case, Context};
use crate::differences::Difference;
use crate::evidence::Evidence;

/// The outcome of a case.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
#[serde(tag = "outcome", content = "message", rename_all = "lowercase")]
pub enum Outcome {
    /// The claim held.
    Passed,
    /// The claim did not hold, or the case crashed or hung: the observation.
    Failed(String),
    /// The claim held, but the answers are not the kernel's: the difference.
    Otherwise(String),
    /// The claim failed once, then held when the case ran again alone: the first observation. It proves nothing.
    Flaky(String),
    /// The case could not be tried here: the reason.
    Skipped(String),
}

/// One case, with one flag set and one door.
#[derive(Debug, Clone, serde::Serialize)]
pub struct Report {
    /// `topic::claim`.
    pub case: &'static str,
    /// The flag set's name; none for a case that chooses its own flags.
    pub flag_set: Option<&'static str>,
    /// `liburing`, `libc` or `raw`.
    pub door: &'static str,
    /// The outcome.
    #[serde(flatten)]
    pub outcome: Outcome,
    /// The duration of all its runs together, in milliseconds.
    pub elapsed_ms: u64,
    /// The evidence of each of its runs; empty without a request for evidence.
    #[serde(skip)]
    pub runs: Vec<Evidence>,
}

impl Report {
    /// The report of a case that is about to run.
    pub fn new(case: &Case, context: Context) -> Report {
        Report {
            flag_set: case.any_flags.then_some(context.flag_set.name),
            door: context.door.name(),
            ..Report::of(case.name(), Outcome::Passed)
        }
    }

    /// The report of a case by its name, through libc's door.
    pub fn of(case: &'static str, outcome: Outcome) -> Report {
        Report { case, flag_set: None, door: "libc", outcome, elapsed_ms: 0, runs: Vec::new() }
    }

    /// `topic::claim[flag_set]@door`, without the parts that do not apply.
    pub fn name(&self) -> String {
        match self.flag_set {
            Some(set) => format!("{}[{set}]@{}", self.case, self.door),
            None => format!("{}@{}", self.case, self.door),
        }
    }

    /// True if the case failed, or if its answers are not the kernel's.
    pub fn failed(&self) -> bool {
        matches!(self.outcome, Outcome::Failed(_) | Outcome::Otherwise(_))
    }

    /// Returns the line of these that explains its outcome.
    pub fn explained_by<'d>(&self, differences: &'d [Difference]) -> Option<&'d Difference> {
        differences.iter().find(|difference| difference.covers(self) && difference.kind.explains(&self.outcome))
    }
}

/// The form in which results are printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// A line a case, then the totals.
    Plain,
    /// Test Anything Protocol, version 14.
    Tap,
    /// Nothing is printed.
    #[value(skip)]
    None,
}

/// Prints results as they come, then the totals.
pub struct Printer<'d> {
    format: Format,
    differences: &'d [Difference],
    quiet: bool,
    printed: usize,
}

impl<'d> Printer<'d> {
    /// A printer of results, judged by these known differences. With `quiet` only unexpected ones are printed.
    pub fn new(format: Format, differences: &'d [Difference], quiet: bool) -> Printer<'d> {
        if format == Format::Tap {
            println!("TAP version 14");
        }
        Printer { format, differences, quiet, printed: 0 }
    }

    /// Prints one result.
    pub fn print(&mut self, report: &Report) {
        let known = report.explained_by(self.differences);
        self.printed += 1;
        match self.format {
            Format::Plain => self.print_plain(report, known),
            Format::Tap => println!("{}", tap(self.printed, report, known)),
            Format::None => {}
        }
    }

    fn print_plain(&self, report: &Report, known: Option<&Difference>) {
        let name = report.name();
        match (&report.outcome, known) {
            (Outcome::Passed, _) if self.quiet => {}
            (Outcome::Failed(_) | Outcome::Otherwise(_), Some(_)) if self.quiet => {}
            (Outcome::Passed, _) => println!("pass   {name} ({} ms)", report.elapsed_ms),
            (Outcome::Skipped(reason), _) => println!("skip   {name}: {reason}"),
            (Outcome::Flaky(message), _) => {
                println!("FLAKY  {name}: failed once, then passed alone\n         {}", indented(message, 9));
            }
            (Outcome::Failed(_) | Outcome::Otherwise(_), Some(known)) => {
                println!("known  {name}: {}", known.reason)
            }
            (Outcome::Failed(message) | Outcome::Otherwise(message), None) => {
                println!("FAIL   {name}\n         {}", indented(message, 9));
            }
        }
    }

    /// True if it counts as a known difference: it is one, or the list says that timing decides. So totals are the
    /// same in each run.
    fn is_known(&self, report: &Report) -> bool {
        let by_timing = |difference: &Difference| difference.kind.may_agree() && difference.covers(report);
        match report.outcome {
            Outcome::Passed => self.differences.iter().any(by_timing),
            _ => report.explained_by(self.differences).is_some(),
        }
    }

    /// Prints the errors of the list of differences, and the totals. True if everything was as expected.
    pub fn summarise(mut self, reports: &[Report]) -> bool {
        let mut errors = reports
            .iter()
            .filter(|report| report.failed() && report.explained_by(self.differences).is_none())
            .count();
        let known = reports.iter().filter(|report| self.is_known(report)).count();
        let stale: Vec<_> = self.differences.iter().filter(|difference| is_stale(difference, reports)).collect();
        errors += stale.len();
        for difference in stale {
            self.printed += 1;
            let what = format!("{} is listed as different, but it is not", difference.pattern());
            match self.format {
                Format::Plain => println!("STALE  {what}"),
                Format::Tap => println!("not ok {} - {what}", self.printed),
                Format::None => {}
            }
        }
        let count = |wanted: fn(&Outcome) -> bool| reports.iter().filter(|report| wanted(&report.outcome)).count();
        let passed =
            reports.iter().filter(|report| report.outcome == Outcome::Passed && !self.is_known(report)).count();
        let flaky = count(|outcome| matches!(outcome, Outcome::Flaky(_)));
        let skipped = count(|outcome| matches!(outcome, Outcome::Skipped(_))) + flaky;
        match self.format {
            Format::None => {}
            Format::Tap => println!("1..{}", self.printed),
            Format::Plain => {
                if known > 0 {
                    println!("{known} known differences");
                }
                if flaky > 0 {
                    println!("{flaky} flaky, counted as skipped");
                }
                println!("{passed} passed, {errors} failed, {skipped} skipped");
            }
        }
        errors == 0
    }
}

/// True if some of the runs that the line covers passed, and none failed in the way that the line says.
fn is_stale(difference: &Difference, reports: &[Report]) -> bool {
    let covered = || reports.iter().filter(|report| difference.covers(report));
    !difference.kind.may_agree()
        && covered().any(|report| report.outcome == Outcome::Passed)
        && !covered().any(|report| difference.kind.explains(&report.outcome))
}

/// Formats a result as a line of TAP. A known difference is a TODO, which is TAP's name for an expected failure.
fn tap(number: usize, report: &Report, known: Option<&Difference>) -> String {
    let name = report.name();
    match (&report.outcome, known) {
        (Outcome::Passed, _) => format!("ok {number} - {name}"),
        (Outcome::Skipped(reason), _) => format!("ok {number} - {name} # SKIP {}", indented(reason, 0)),
        (Outcome::Flaky(message), _) => {
            format!("ok {number} - {name} # SKIP flaky\n# {}", message.replace('\n', "\n# "))
        }
        (Outcome::Failed(_) | Outcome::Otherwise(_), Some(known)) => {
            format!("not ok {number} - {name} # TODO {}", known.reason)
        }
        (Outcome::Failed(message) | Outcome::Otherwise(message), None) => {
            format!("not ok {number} - {name}\n  ---\n  message: |\n    {}\n  ...", indented(message, 4))
        }
    }
}

fn indented(message: &str, columns: usize) -> String {
    match columns {
        0 => message.replace('\n', " "),
        _ => message.replace('\n', &format!("\n{:columns$}", "")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tap_tells_each_kind_of_result() {
        let mut known = Vec::new();
        crate::differences::parse("a::b why so", &mut known).expect("a list");
        let line = |outcome, known| tap(3, &Report::of("a::b", outcome), known);
        assert_eq!(line(Outcome::Passed, None), "ok 3 - a::b@libc");
        assert_eq!(line(Outcome::Skipped("no\ntmpfs".into()), None), "ok 3 - a::b@libc # SKIP no tmpfs");
        assert_eq!(line(Outcome::Flaky("1\n2".into()), None), "ok 3 - a::b@libc # SKIP flaky\n# 1\n# 2");
        assert_eq!(line(Outcome::Failed("x".into()), known.first()), "not ok 3 - a::b@libc # TODO why so");
        let failed = "not ok 3 - a::b@libc\n  ---\n  message: |\n    1\n    2\n  ...";
        assert_eq!(line(Outcome::Failed("1\n2".into()), None), failed);
    }

    #[test]
    fn cases_that_timing_decides_count_alike() {
        let mut known = Vec::new();
        crate::differences::parse("?a::b by timing\n~?a::c by timing", &mut known).expect("a list");
        let printer = Printer::new(Format::Plain, &known, true);
        for outcome in [Outcome::Passed, Outcome::Failed(String::new())] {
            assert!(printer.is_known(&Report::of("a::b", outcome)));
        }
        for outcome in [Outcome::Passed, Outcome::Otherwise(String::new())] {
            assert!(printer.is_known(&Report::of("a::c", outcome)));
        }
        assert!(!printer.is_known(&Report::of("a::d", Outcome::Passed)));
        assert!(!printer.is_known(&Report::of("a::c", Outcome::Failed(String::new()))));
    }

    #[test]
    fn a_listed_case_that_passes_is_stale() {
        let mut known = Vec::new();
        crate::differences::parse("a::b why\n?a::c by timing\n~a::e why", &mut known).expect("a list");
        let passes = |reports: &[Report]| Printer::new(Format::Plain, &known, true).summarise(reports);
        assert!(!passes(&[Report::of("a::b", Outcome::Passed)]));
        assert!(passes(&[Report::of("a::b", Outcome::Failed(String::new())), Report::of("a::c", Outcome::Passed)]));
        assert!(!passes(&[Report::of("a::d", Outcome::Failed(String::new()))]));
        assert!(passes(&[Report::of("a::d", Outcome::Flaky(String::new()))]));
        assert!(passes(&[Report::of("a::e", Outcome::Otherwise(String::new()))]));
        assert!(!passes(&[Report::of("a::e", Outcome::Passed)]));
        assert!(!passes(&[Report::of("a::e", Outcome::Failed(String::new()))]));
    }
}
