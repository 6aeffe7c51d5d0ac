//! The oracle: a committed file of the kernel's answers in each case, with which anyring's answers are compared.
//!
//! `make oracle` makes it (`anyring-conformance --record FILE`). It runs every case that passes on the kernel, through
//! each door, with each flag set, several times. Answers of every run are kept apart from those of only some runs.
//! Where the kernel gives either of two outcomes, the record holds both. The record of a later kernel is a file of its
//! own. It has only the cases that this kernel answers otherwise, and those about names that it brought.

use crate::case::version;
use crate::evidence::{Evidence, Set};
use crate::report::{Outcome, Report};
use anyring_abi::interface::{self, Name};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// A set of names, or of answers.
type Words = BTreeSet<String>;

/// The kernel's answers in one case.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Recorded {
    /// The reason why the case could not be tried; all other fields are empty then.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub skipped: Option<String>,
    /// True if the record holds for every set of setup flags.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub any_flags: bool,
    /// Names of the interface with which something succeeded in each run.
    #[serde(skip_serializing_if = "Words::is_empty")]
    pub works: Words,
    /// Names with which something succeeded in some runs, with plain setup flags.
    #[serde(skip_serializing_if = "Words::is_empty")]
    pub sometimes: Words,
    /// Names that were tried, and with which nothing ever succeeded.
    #[serde(skip_serializing_if = "Words::is_empty")]
    pub refused: Words,
    /// The answers of every run.
    #[serde(skip_serializing_if = "Words::is_empty")]
    pub answers: Words,
    /// The answers of only some runs.
    #[serde(skip_serializing_if = "Words::is_empty")]
    pub either: Words,
}

/// The names in a set, except those that every ring has: [`of_every_ring`].
fn words(set: &Set) -> Words {
    set.names().filter(|name| !is_of_every_ring(name)).map(ToString::to_string).collect()
}

/// True if every ring has this name: features, and the two areas that are mapped first.
fn is_of_every_ring(name: &Name) -> bool {
    let areas = ["IORING_OFF_SQ_RING", "IORING_OFF_SQES"];
    interface::FEATURES.contains(name) || interface::AREAS.contains(name) && areas.contains(&name.name)
}

/// The names in a set that every ring has; none if no ring was made.
fn of_every_ring(set: &Set) -> Words {
    set.names().filter(|name| is_of_every_ring(name)).map(ToString::to_string).collect()
}

impl Recorded {
    /// The record of one run.
    fn of_run(run: &Evidence) -> Recorded {
        let (tried, works) = (words(&run.tried), words(&run.succeeded));
        let refused = tried.difference(&works).cloned().collect();
        Recorded { works, refused, answers: run.answers.clone(), ..Recorded::default() }
    }

    /// Adds further runs. Unless they are `plain`, new names of these runs are dropped.
    fn add(&mut self, other: &Recorded, plain: bool) {
        let common = |a: &Words, b: &Words| a.intersection(b).cloned().collect::<Words>();
        let works = common(&self.works, &other.works);
        self.sometimes.extend(self.works.difference(&works).cloned());
        if plain {
            self.sometimes.extend(other.works.difference(&works).cloned());
            self.refused.extend(other.refused.iter().cloned());
        }
        self.sometimes.extend(other.sometimes.iter().cloned());
        self.works = works;
        self.sometimes = self.sometimes.difference(&self.works).cloned().collect();
        let answers = common(&self.answers, &other.answers);
        self.either.extend(self.answers.symmetric_difference(&other.answers).cloned());
        self.either.extend(other.either.iter().cloned());
        self.answers = answers;
        self.refused.retain(|name| !self.works.contains(name) && !self.sometimes.contains(name));
    }

    /// Returns the answers in `run` that the kernel never gave, and those it always gave that `run` lacks. `None` if
    /// it agrees.
    fn disagrees(&self, run: &Evidence) -> Option<String> {
        let mut complaints = Vec::new();
        let mut complain = |what: &str, words: Vec<&String>| {
            if !words.is_empty() {
                let words: Vec<_> = words.into_iter().map(String::as_str).collect();
                complaints.push(format!("{what}: {}", words.join(", ")));
            }
        };
        // If there were too many answers to keep, they depend on chance.
        let none_kept = run.answers.is_empty() || self.answers.is_empty() && self.either.is_empty();
        if !none_kept {
            let known = |answer: &&String| !self.answers.contains(*answer) && !self.either.contains(*answer);
            complain("answered, natively never", run.answers.iter().filter(known).collect());
            complain("not answered, natively each time", self.answers.difference(&run.answers).collect());
        }
        // Timing decides whether a bit of the SQ's flags is seen; cases about these bits assert them.
        let works = words(&run.succeeded);
        let lacks = self.works.difference(&works).filter(|name| !name.starts_with("IORING_SQ_"));
        complain("did not succeed, natively each time", lacks.collect());
        (!complaints.is_empty()).then(|| complaints.join("\n"))
    }
}

/// The record of all cases.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Oracle {
    /// The release of the kernel that answered.
    pub kernel: String,
    /// The names that every ring has: its features, and the areas that can be mapped. The cases leave them out.
    pub every_ring: Words,
    /// The cases, by name.
    pub cases: BTreeMap<String, Recorded>,
}

fn json(value: &impl Serialize) -> String {
    serde_json::to_string(value).expect("words and sets of words")
}

/// The running kernel's release, without the suffix of its builder: `6.18.44`.
pub fn running_kernel() -> String {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let digits = release.split(|c: char| !c.is_ascii_digit() && c != '.').next();
    digits.filter(|digits| !digits.is_empty()).unwrap_or("unknown").to_owned()
}

impl Oracle {
    /// The oracle of these reports. Each is of a case that passed, if only when it ran again, or was skipped.
    pub fn of(reports: &[Report]) -> Oracle {
        let mut oracle = Oracle { kernel: running_kernel(), ..Oracle::default() };
        // The plain runs come first, so that the names that they use are known.
        let plain = |report: &Report| matches!(report.flag_set, None | Some("plain"));
        let (first, then): (Vec<_>, Vec<_>) = reports.iter().partition(|report| plain(report));
        for report in first.into_iter().chain(then) {
            if let Outcome::Skipped(reason) = &report.outcome {
                let skipped = Recorded { skipped: Some(reason.clone()), ..Recorded::default() };
                oracle.cases.entry(report.case.to_owned()).or_insert(skipped);
                continue;
            }
            if report.failed() {
                continue;
            }
            for run in &report.runs {
                oracle.every_ring.extend(of_every_ring(&run.succeeded));
                let recorded = Recorded { any_flags: report.flag_set.is_some(), ..Recorded::of_run(run) };
                oracle.add(report.case, recorded, plain(report));
            }
        }
        oracle
    }

    fn add(&mut self, case: &str, recorded: Recorded, plain: bool) {
        match self.cases.get_mut(case) {
            Some(known) if known.skipped.is_none() => known.add(&recorded, plain),
            _ => drop(self.cases.insert(case.to_owned(), recorded)),
        }
    }

    /// Merges the cases of `earlier`, a record of the same kernel. Cases that this record lacks are added only if
    /// they `are_there`.
    pub fn extend(&mut self, earlier: Oracle, are_there: impl Fn(&str) -> bool) {
        self.every_ring.extend(earlier.every_ring);
        for (case, known) in earlier.cases {
            match self.cases.get_mut(&case) {
                Some(recorded) if known.skipped.is_none() && recorded.skipped.is_none() => {
                    recorded.add(&known, true)
                }
                Some(_) => {}
                None if are_there(&case) => drop(self.cases.insert(case, known)),
                None => {}
            }
        }
    }

    /// Leaves out cases where `base`, another kernel's record, agrees.
    pub fn keep_what_differs(&mut self, reports: &[Report], base: &Oracle) {
        let differs = |report: &&Report| {
            let recorded = base.cases.get(report.case).filter(|recorded| recorded.skipped.is_none());
            recorded.is_none_or(|recorded| report.runs.iter().any(|run| recorded.disagrees(run).is_some()))
        };
        let different: BTreeSet<_> = reports.iter().filter(differs).map(|report| report.case).collect();
        // A case that could not be tried there says nothing about that kernel.
        self.cases.retain(|name, recorded| recorded.skipped.is_none() && different.contains(name.as_str()));
        self.every_ring = self.every_ring.difference(&base.every_ring).cloned().collect();
    }

    /// Returns the answers of a kernel of this release. Each later record overrides the first if the kernel is at
    /// least as new as the record's. Otherwise it only adds the cases that the first lacks.
    pub fn of_release(paths: &[PathBuf], release: &str) -> Result<Option<Oracle>, String> {
        let mut records = paths.iter().map(|path| Oracle::read(path));
        let Some(mut oracle) = records.next().transpose()? else { return Ok(None) };
        for later in records {
            let later = later?;
            let counts = version(release) >= version(&later.kernel);
            for (name, recorded) in later.cases {
                if counts || !oracle.cases.contains_key(&name) {
                    oracle.cases.insert(name, recorded);
                }
            }
        }
        Ok(Some(oracle))
    }

    /// Reads a record.
    pub fn read(path: &Path) -> Result<Oracle, String> {
        let in_file = |error: String| format!("{}: {error}", path.display());
        let text = std::fs::read_to_string(path).map_err(|error| in_file(error.to_string()))?;
        serde_json::from_str(&text).map_err(|error| in_file(error.to_string()))
    }

    /// Writes the record, one line a case, so that a difference of two can be read.
    pub fn write(&self, path: &Path) -> Result<(), String> {
        let line = |(name, case)| format!("{}:{}", json(name), json(case));
        let cases: Vec<_> = self.cases.iter().map(line).collect();
        let head = format!("\"kernel\":{},\n\"every_ring\":{}", json(&self.kernel), json(&self.every_ring));
        let text = format!("{{{head},\n\"cases\":{{\n{}\n}}}}\n", cases.join(",\n"));
        std::fs::write(path, text).map_err(|error| format!("{}: {error}", path.display()))
    }

    /// Returns how the rings of this run differ from the kernel's, if they do.
    fn other_ring(&self, run: &Evidence) -> Option<String> {
        let seen = of_every_ring(&run.succeeded);
        let features =
            |words: &Words| words.iter().filter(|name| name.contains("_FEAT_")).cloned().collect::<Words>();
        let (ours, natively) = (features(&seen), features(&self.every_ring));
        (!ours.is_empty() && ours != natively).then(|| format!("the rings have {ours:?}, natively {natively:?}"))
    }

    /// Holds a report that passed against the record.
    pub fn judge(&self, report: &mut Report) {
        if report.outcome != Outcome::Passed {
            return;
        }
        let complaint = match self.cases.get(report.case) {
            None => Some(
                "tests/conformance/oracle.json has no such case: record it, see tests/conformance/README.md"
                    .to_owned(),
            ),
            Some(recorded) if recorded.skipped.is_some() => None,
            Some(recorded) => {
                report.runs.iter().find_map(|run| recorded.disagrees(run).or_else(|| self.other_ring(run)))
            }
        };
        if let Some(complaint) = complaint {
            report.outcome = Outcome::Otherwise(complaint);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(answers: &[&str]) -> Evidence {
        Evidence { answers: answers.iter().map(ToString::to_string).collect(), ..Evidence::default() }
    }

    fn report(runs: Vec<Evidence>) -> Report {
        Report { runs, ..Report::of("a::b", Outcome::Passed) }
    }

    fn outcome(oracle: &Oracle, answers: &[&str]) -> Outcome {
        let mut report = report(vec![run(answers)]);
        oracle.judge(&mut report);
        report.outcome
    }

    #[test]
    fn a_name_of_some_runs_may_come_and_a_name_of_each_must() {
        let oracle = Oracle::of(&[report(vec![run(&["NOP 0", "READ +"]), run(&["NOP 0", "READ 0"])])]);
        assert_eq!(outcome(&oracle, &["NOP 0"]), Outcome::Passed);
        assert_eq!(outcome(&oracle, &["NOP 0", "READ 0"]), Outcome::Passed);
        assert!(matches!(outcome(&oracle, &["READ 0"]), Outcome::Otherwise(_)));
        assert!(matches!(outcome(&oracle, &["NOP 0", "READ -EIO"]), Outcome::Otherwise(_)));
    }

    #[test]
    fn runs_that_are_added_later_widen_the_record() {
        let earlier = Oracle::of(&[report(vec![run(&["NOP 0", "READ +"])])]);
        let mut oracle = Oracle::of(&[report(vec![run(&["NOP 0"])])]);
        oracle.extend(earlier, |_| true);
        let case = &oracle.cases["a::b"];
        assert_eq!((case.answers.len(), case.either.len()), (1, 1));
    }

    #[test]
    fn cases_that_do_not_run_keep_their_place_while_they_are_there() {
        let of = |name| Report { runs: vec![run(&["NOP 0"])], ..Report::of(name, Outcome::Passed) };
        let earlier = Oracle::of(&[of("a::b"), of("a::gone")]);
        let mut oracle = Oracle::of(&[of("a::c")]);
        oracle.extend(earlier, |name| name != "a::gone");
        assert_eq!(oracle.cases.keys().collect::<Vec<_>>(), ["a::b", "a::c"]);
    }

    #[test]
    fn another_kernels_record_has_what_differs_only() {
        let of = |name, answer| Report { runs: vec![run(&[answer])], ..Report::of(name, Outcome::Passed) };
        let base = Oracle::of(&[of("a::b", "NOP 0"), of("a::c", "NOP 0")]);
        let reports = [of("a::b", "NOP 0"), of("a::c", "NOP -EIO"), of("a::new", "NOP 0")];
        let mut oracle = Oracle::of(&reports);
        oracle.keep_what_differs(&reports, &base);
        assert_eq!(oracle.cases.keys().collect::<Vec<_>>(), ["a::c", "a::new"]);
    }

    #[test]
    fn a_later_kernels_record_changes_answers_of_that_kernel_only() {
        let folder = std::env::temp_dir().join(format!("anyring-oracles-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("make it");
        let of = |name, answer| Report { runs: vec![run(&[answer])], ..Report::of(name, Outcome::Passed) };
        let paths = ["6.18.1", "7.3.4"].map(|kernel| folder.join(kernel));
        let first = Oracle { kernel: "6.18.1".into(), ..Oracle::of(&[of("a::b", "NOP 0")]) };
        let later =
            Oracle { kernel: "7.3.4".into(), ..Oracle::of(&[of("a::b", "NOP -EIO"), of("a::new", "NOP 0")]) };
        first.write(&paths[0]).and_then(|()| later.write(&paths[1])).expect("write them");
        let [old, new] = ["6.18.44", "7.3.0"].map(|release| Oracle::of_release(&paths, release));
        std::fs::remove_dir_all(&folder).expect("remove it");
        let [old, new] = [old, new].map(|read| read.expect("read them").expect("there are some").cases);
        assert_eq!([&old, &new].map(|cases| cases.contains_key("a::new")), [true; 2]);
        assert!(old["a::b"].answers.contains("NOP 0") && new["a::b"].answers.contains("NOP -EIO"));
    }

    #[test]
    fn a_case_that_the_record_lacks_fails() {
        assert!(matches!(outcome(&Oracle::default(), &["NOP 0"]), Outcome::Otherwise(_)));
    }

    #[test]
    fn a_record_comes_back_as_it_was_written() {
        let oracle =
            Oracle::of(&[report(vec![run(&["NOP 0"])]), Report::of("a::c", Outcome::Skipped("no".into()))]);
        let path = std::env::temp_dir().join(format!("anyring-oracle-{}", std::process::id()));
        oracle.write(&path).expect("write it");
        let read = Oracle::read(&path);
        std::fs::remove_file(&path).expect("remove it");
        assert_eq!(read.expect("read it").cases, oracle.cases);
    }
}
