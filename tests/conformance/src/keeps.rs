//! `--keeps`: the claims that the running kernel keeps, as a table by topic, and a list of those that it breaks. It
//! is for kernels and emulations without a suite of their own.

use crate::case::{self, version, Case};
use crate::report::{Outcome, Report};
use std::collections::BTreeMap;
use std::fmt::Write;

/// A kernel's standing on one claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Standing {
    Kept,
    /// The claim was not tried, or held only in a second attempt.
    Untried,
    /// The claim is about a later release of Linux than the kernel says it is.
    Younger,
    Broken,
}

/// Returns the standing of one run, on a kernel that says it is this release.
fn standing(report: &Report, since: &str, release: &str) -> Standing {
    match report.outcome {
        Outcome::Passed => Standing::Kept,
        Outcome::Skipped(_) | Outcome::Flaky(_) => Standing::Untried,
        Outcome::Failed(_) | Outcome::Otherwise(_) if version(since) > version(release) => Standing::Younger,
        Outcome::Failed(_) | Outcome::Otherwise(_) => Standing::Broken,
    }
}

/// Returns the kernel's own name and release. An emulation may have no /proc.
pub fn running_system() -> (String, String) {
    // SAFETY: all-zero bytes are a value of this C struct of arrays, which the call fills with C strings.
    let names = unsafe {
        let mut names: libc::utsname = std::mem::zeroed();
        libc::uname(&mut names);
        names
    };
    let text = |name: &[libc::c_char]| {
        let bytes: Vec<u8> = name.iter().map(|byte| *byte as u8).take_while(|byte| *byte != 0).collect();
        String::from_utf8_lossy(&bytes).into_owned()
    };
    (text(&names.sysname), text(&names.release))
}

/// Returns the summary, and whether nothing is broken. A claim that was tried in several ways has the worst standing
/// of them.
pub fn summary(reports: &[Report], system: &str, release: &str) -> (String, bool) {
    let cases: BTreeMap<&str, &Case> = case::all().into_iter().map(|case| (case.name(), case)).collect();
    let mut claims: BTreeMap<&str, (Standing, &Report)> = BTreeMap::new();
    for report in reports {
        let Some(case) = cases.get(report.case) else { continue };
        let found = (standing(report, case.since(), release), report);
        let claim = claims.entry(report.case).or_insert(found);
        if found.0 > claim.0 {
            *claim = found;
        }
    }
    let mut topics: BTreeMap<&str, [usize; 4]> = BTreeMap::new();
    let mut total = [0; 4];
    for (name, (standing, _)) in &claims {
        let topic = name.split_once("::").map_or("", |(topic, _)| topic);
        topics.entry(topic).or_default()[*standing as usize] += 1;
        total[*standing as usize] += 1;
    }
    let [kept, untried, younger, broken] = total;
    let mut text = format!(
        "{system} {release} keeps {kept} of {} claims and breaks {broken}; {younger} are of a later Linux and do not hold, {untried} \
         could not be tried\n\n{:28} {:>6} {:>6} {:>6} {:>7}\n",
        claims.len(),
        "topic",
        "kept",
        "broken",
        "later",
        "untried"
    );
    for (topic, [kept, untried, younger, broken]) in topics {
        let _ = writeln!(text, "{topic:28} {kept:6} {broken:6} {younger:6} {untried:7}");
    }
    for (name, (standing, report)) in claims {
        let (case, message) = match &report.outcome {
            Outcome::Failed(message) | Outcome::Otherwise(message) if standing == Standing::Broken => {
                (cases[name], message)
            }
            _ => continue,
        };
        let _ = write!(text, "\nbroken: {name}: {}\n    since {}, {}\n", case.claim(), case.since(), case.source());
        message.lines().for_each(|line| _ = writeln!(text, "    {line}"));
    }
    (text, broken == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_case_that_fails_is_broken_unless_it_is_of_a_later_release() {
        let of = |outcome| standing(&Report::of("a::b", outcome), "5.19", "5.4.0-26-generic");
        assert_eq!(of(Outcome::Failed(String::new())), Standing::Younger);
        assert_eq!(of(Outcome::Passed), Standing::Kept);
        assert_eq!(of(Outcome::Flaky(String::new())), Standing::Untried);
        let at = |release| standing(&Report::of("a::b", Outcome::Failed(String::new())), "5.19", release);
        assert_eq!([at("5.19.0"), at("5.100"), at("6.1.0-13-amd64")], [Standing::Broken; 3]);
    }

    #[test]
    fn a_claim_stands_as_in_the_worst_of_its_runs() {
        let name = case::all()[0].name();
        let reports =
            [Outcome::Passed, Outcome::Failed("seen".to_owned()), Outcome::Passed].map(|it| Report::of(name, it));
        let (text, all_kept) = summary(&reports, "Linux", "6.18.0");
        assert!(!all_kept && text.starts_with("Linux 6.18.0 keeps 0 of 1 claims and breaks 1; 0 "), "{text}");
        assert!(text.contains(&format!("\nbroken: {name}: ")) && text.ends_with("    seen\n"), "{text}");
        assert!(summary(&reports[..1], "Linux", "6.18.0").1);
    }
}
