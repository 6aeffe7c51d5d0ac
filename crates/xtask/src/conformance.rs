//! docs/conformance.md: a line for each name of the interface, made from committed files alone. They are the record of
//! the kernel's answers (tests/conformance/oracle.json), the list of known differences, the engine's opcode table and
//! docs/limits.md. The conformance runs show that anyring answers as the record says, except for those differences.

use anyhow::{Context, Result};
use anyring_abi::interface::{self, Name, OPCODES};
use anyring_abi::since::since;
use anyring_conformance::differences::{self, Difference, Kind};
use anyring_conformance::oracle::{Oracle, Recorded};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::Path;

/// Names for hardware and drivers that user space cannot replace. They may fail as on a kernel that was built without
/// them. They belong to zcrx. NVMe passthrough and ublk have no names, since they are commands of a
/// driver.
const OF_DRIVERS: &[&str] = &[
    "RECV_ZC",
    "IORING_REGISTER_ZCRX_IFQ",
    "IORING_REGISTER_ZCRX_CTRL",
    "REGISTER_ZCRX_IFQ: IORING_ZCRX_AREA_DMABUF",
];

/// Names that the kernel itself refuses, or never sets, each with the reason.
const OF_NOBODY: &[(&str, &str)] = &[
    ("POLL_ADD: IORING_POLL_ADD_LEVEL", "Linux 6.18 defines it and accepts it nowhere"),
    ("URING_CMD: IORING_URING_CMD_MULTISHOT", "only driver commands complete with it"),
    ("READ: IORING_RW_ATTR_FLAG_PI", "it needs a block device with protection information"),
    ("WRITE: IORING_RW_ATTR_FLAG_PI", "it needs a block device with protection information"),
    ("IORING_CQE_F_TSTAMP_HW", "it needs a network card with hardware timestamps"),
];

/// The most topics that a line names.
const TOPICS: usize = 3;

/// Splits the reason of a known difference (`NAME, NAME: reason`) into the names that it is about and the rest.
fn names_of(difference: &Difference) -> (Vec<&str>, &str) {
    let known: BTreeSet<String> = interface::names().map(Name::to_string).collect();
    let reason = difference.reason.as_str();
    // A name may have a colon of its own.
    let ends = reason.match_indices(": ").map(|(at, _)| (reason[..at].split(", "), &reason[at + 2..]));
    let of_names = ends.filter(|(names, _)| names.clone().all(|name| known.contains(name.trim()))).last();
    of_names.map_or((Vec::new(), reason), |(names, rest)| (names.map(str::trim).collect(), rest))
}

/// Maps each word to its heading in docs/limits.md. That is the first heading that the index names for the word, or
/// else the one below which the word first stands.
struct Limits<'a>(BTreeMap<&'a str, String>);

impl<'a> Limits<'a> {
    fn new(text: &'a str) -> Limits<'a> {
        let (mut heading, mut is_index) = (String::new(), false);
        let (mut indexed, mut below) = (BTreeMap::new(), BTreeMap::new());
        for line in text.lines() {
            if let Some(title) = line.strip_prefix("## ").or_else(|| line.strip_prefix("### ")) {
                is_index = if line.starts_with("### ") { is_index } else { title == "Index" };
                heading = anchor(title);
            } else if !is_index {
                words(line).for_each(|word| {
                    below.entry(word).or_insert_with(|| heading.clone());
                });
            } else if let Some((names, to)) = line.split_once(": [") {
                let to = anchor(to.split(']').next().unwrap_or(to));
                words(names).for_each(|word| {
                    indexed.entry(word).or_insert_with(|| to.clone());
                });
            }
        }
        below.extend(indexed);
        Limits(below)
    }

    fn link(&self, name: &Name) -> Option<String> {
        self.0.get(name.name).map(|heading| format!("[limits](limits.md#{heading})"))
    }
}

fn words(line: &str) -> impl Iterator<Item = &str> {
    line.split(|c: char| !c.is_ascii_alphanumeric() && c != '_')
}

/// A heading's anchor, as forges make it.
fn anchor(title: &str) -> String {
    let kept = title.chars().filter(|c| c.is_ascii_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.map(|c| if c == ' ' { '-' } else { c.to_ascii_lowercase() }).collect()
}

/// The status of a name.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Status {
    Works,
    Differs(String),
    /// The name may fail as on a kernel that was built without its driver.
    WithoutDriver,
    /// The kernel refuses it for this reason, and the engine answers the same.
    Refused(&'static str),
    NotYet,
    NoCase,
}

/// Everything that the lines are made of.
struct Evidence<'a> {
    oracle: &'a Oracle,
    differences: &'a [Difference],
    limits: Limits<'a>,
}

impl<'a> Evidence<'a> {
    /// The cases in which something succeeds with `label` on the kernel.
    fn natively<'b>(&'b self, label: &'b str) -> impl Iterator<Item = (&'b str, &'b Recorded)> {
        let with = move |case: &Recorded| case.works.contains(label) || case.sometimes.contains(label);
        self.oracle.cases.iter().filter(move |(_, case)| with(case)).map(|(name, case)| (name.as_str(), case))
    }

    /// True if one of these cases passes on the engine, too.
    fn works(&self, label: &str) -> bool {
        let fails =
            |name: &str| self.differences.iter().any(|line| line.kind == Kind::Fails && line.pattern() == name);
        self.oracle.every_ring.contains(label) || self.natively(label).any(|(name, _)| !fails(name))
    }

    /// True if a case tries `label` in vain, on the kernel and on the engine.
    fn refused(&self, label: &str) -> bool {
        self.natively(label).next().is_none() && self.oracle.cases.values().any(|case| case.refused.contains(label))
    }

    fn never_seen(&self, label: &str) -> bool {
        label.starts_with("IORING_CQE_F_") && self.natively(label).next().is_none()
    }

    fn status(&self, label: &str) -> Status {
        let named = self.differences.iter().map(names_of).filter(|(names, _)| names.contains(&label));
        let reasons: Vec<_> = named.map(|(_, reason)| reason).collect();
        if !reasons.is_empty() {
            return Status::Differs(reasons.join("; "));
        }
        if self.works(label) {
            return Status::Works;
        }
        if OF_DRIVERS.contains(&label) && self.refused(label) {
            return Status::WithoutDriver;
        }
        match OF_NOBODY.iter().find(|(name, _)| *name == label) {
            // A bit of a CQE's cannot be tried: it is enough that neither ever sets it.
            Some((_, why)) if self.refused(label) || self.never_seen(label) => Status::Refused(why),
            _ if self.natively(label).next().is_some() => Status::NotYet,
            _ => Status::NoCase,
        }
    }

    /// Returns the faults of `name`'s entry.
    fn complaints(&self, name: &Name, status: &Status) -> Vec<String> {
        let label = name.to_string();
        let mut complaints = Vec::new();
        match status {
            Status::NotYet => complaints.push(format!("{label}: not yet: it succeeds on the kernel only")),
            Status::NoCase => complaints.push(format!("{label}: no case succeeds with it on the kernel")),
            _ => {}
        }
        if OPCODES.contains(name) {
            let served = anyring_engine::op::definition(name.value as u8).is_some();
            let works = matches!(status, Status::Works | Status::Differs(_));
            if served != works {
                complaints
                    .push(format!("{label}: served according to the opcode table: {served}, to cases: {works}"));
            }
        }
        complaints
    }

    /// The topics whose cases use `label` most of all, as links.
    fn topics(&self, label: &str) -> String {
        let mut of_topic: BTreeMap<&str, usize> = BTreeMap::new();
        self.oracle.cases.keys().for_each(|case| *of_topic.entry(topic(case)).or_default() += 1);
        let mut cases: Vec<_> = self.natively(label).map(|(case, _)| case).collect();
        if cases.is_empty() {
            let tried = self.oracle.cases.iter().filter(|(_, case)| case.refused.contains(label));
            cases = tried.map(|(case, _)| case.as_str()).collect();
        }
        let mut with: BTreeMap<&str, usize> = BTreeMap::new();
        cases.into_iter().for_each(|case| *with.entry(topic(case)).or_default() += 1);
        let mut topics: Vec<_> =
            with.into_iter().map(|(topic, count)| (1000 * count / of_topic[topic], topic)).collect();
        topics.sort_by_key(|(share, topic)| (std::cmp::Reverse(*share), *topic));
        let mut links: Vec<_> = topics.iter().take(TOPICS).map(|(_, topic)| format!("[{topic}]")).collect();
        links.sort_unstable();
        if topics.len() > TOPICS {
            links.push("...".to_owned());
        }
        links.join(", ")
    }

    fn line(&self, name: &Name, status: &Status) -> String {
        let (label, (major, minor)) = (name.to_string(), since(name));
        let since = format!("{major}.{minor}");
        let limits = self.limits.link(name);
        let status = match (status, limits) {
            (Status::Works, None) => "works".to_owned(),
            (Status::Works, Some(link)) => format!("works, {link}"),
            (Status::Differs(how), None) => format!("differs: {how}"),
            (Status::Differs(how), Some(link)) => format!("differs: {how}; {link}"),
            (Status::WithoutDriver, _) => "fails as a kernel without it".to_owned(),
            (Status::Refused(why), _) => format!("refused as by the kernel: {why}"),
            (Status::NotYet, _) => "not yet".to_owned(),
            (Status::NoCase, _) => "no case".to_owned(),
        };
        if self.oracle.every_ring.contains(&label) {
            return format!("| {label} | {since} | {status} | every ring | every set | [setup] |");
        }
        let count = self.natively(&label).count();
        let sets = match count {
            0 => "",
            _ if self.natively(&label).any(|(_, case)| case.any_flags) => "every set",
            _ => "own",
        };
        format!("| {label} | {since} | {status} | {} | {sets} | {} |", about(count), self.topics(&label))
    }
}

/// A case's topic.
fn topic(case: &str) -> &str {
    case.split_once("::").map_or(case, |(topic, _)| topic)
}

/// Returns a number of cases, rounded so that a few new cases do not change it.
fn about(count: usize) -> String {
    match [50, 20, 10, 5, 3].into_iter().find(|round| count >= *round) {
        Some(round) => format!("{round}+"),
        None => count.to_string(),
    }
}

/// Reads the record of Linux 6.18. From the records of later kernels, adds the cases about names that these kernels
/// brought.
fn record(root: &Path) -> Result<Oracle> {
    let paths = ["oracle.json", "oracle-7.3.json"].map(|name| root.join("tests/conformance").join(name));
    let record = Oracle::of_release(&paths, "6.18").map_err(anyhow::Error::msg)?;
    record.context("a record")
}

/// The sources of docs/conformance.md.
pub struct Sources {
    oracle: Oracle,
    differences: Vec<Difference>,
    limits: String,
}

impl Sources {
    /// Reads them from the repository.
    pub fn read(root: &Path) -> Result<Sources> {
        let text = |name: &str| std::fs::read_to_string(root.join(name)).with_context(|| name.to_owned());
        let oracle = record(root)?;
        let mut known = Vec::new();
        differences::parse(&text("tests/conformance/differences.txt")?, &mut known).map_err(anyhow::Error::msg)?;
        Ok(Sources { oracle, differences: known, limits: text("docs/limits.md")? })
    }

    /// The text of docs/conformance.md, and its faults.
    pub fn table(&self) -> Result<(String, Vec<String>)> {
        let limits = Limits::new(&self.limits);
        let evidence = Evidence { oracle: &self.oracle, differences: &self.differences, limits };
        let (mut text, mut complaints) = (HEAD.to_owned(), Vec::new());
        for group in interface::GROUPS {
            write!(text, "\n## {}\n\n{COLUMNS}", group.title)?;
            for name in group.names {
                let status = evidence.status(&name.to_string());
                complaints.extend(evidence.complaints(name, &status));
                writeln!(text, "{}", evidence.line(name, &status))?;
            }
        }
        writeln!(text, "\n## Known differences\n\n{DIFFERENCES}\n")?;
        for line in evidence.differences {
            writeln!(text, "- `{}`: {}", line.pattern(), line.reason)?;
        }
        let topics: BTreeSet<_> = self.oracle.cases.keys().map(|case| topic(case)).collect();
        text.push('\n');
        for topic in topics {
            writeln!(text, "[{topic}]: ../tests/conformance/src/cases/{topic}.rs")?;
        }
        Ok((text, complaints))
    }
}

const COLUMNS: &str = "| name | since Linux | status | cases | setup flags | topics |\n|---|---|---|---|---|---|\n";

const HEAD: &str = "\
# What is supported

This file lists every name of the io_uring interface of Linux 7.3 with its status. `cargo xtask conformance` makes it from
the known differences and from the kernel's answers in the conformance cases (tests/conformance/oracle.json, and for names
after 6.18 oracle-7.3.json). `make test` runs the cases on anyring and compares the answers with the same files.

- *works*: a case succeeds with the name on the kernel and on anyring. A request's CQE says so, a call returns no error, or
  a flag was seen set. A link leads to the differences in docs/limits.md.
- *differs*: a case that is listed below shows how.
- *fails as a kernel without it*: only a driver can provide it.
- *refused as by the kernel*: cases show that the kernel and anyring both refuse it, or that neither ever sets it.
- *not yet*: a case succeeds on the kernel only. *no case*: no case succeeds with the name on the kernel.

NVMe passthrough and ublk are driver commands through URING_CMD, and have no names here. They fail as on a kernel without
those drivers. With `ANYRING_KERNEL=6.18` the names that came after that release are unavailable.

Each case runs through liburing's functions, libc's `syscall()` and raw instructions. With *every set*, the topic's cases
that hold for any setup flags also run with each set of `--matrix`. *cases* is the number of cases that succeed with the name.
";

const DIFFERENCES: &str = "\
These cases fail on anyring, or get another answer there. tests/conformance/differences.txt lists them with the reasons.
[limits.md](limits.md) explains them, and lists differences that no case can show.";

#[cfg(test)]
mod tests {
    use super::*;

    /// A record of cases, each with names that work; a refused name has a `-` before it.
    fn sources(cases: &[(&str, &[&str])], listed: &str, limits: &str) -> Sources {
        let mut oracle = Oracle::default();
        for (name, words) in cases {
            let mut case = Recorded::default();
            for word in *words {
                match word.strip_prefix('-') {
                    Some(refused) => case.refused.insert(refused.to_owned()),
                    None => case.works.insert((*word).to_owned()),
                };
            }
            oracle.cases.insert((*name).to_owned(), case);
        }
        let mut known = Vec::new();
        differences::parse(listed, &mut known).expect("a list");
        Sources { oracle, differences: known, limits: limits.to_owned() }
    }

    fn status(cases: &[(&str, &[&str])], label: &str, listed: &str) -> Status {
        let sources = sources(cases, listed, "");
        let limits = Limits::new("");
        Evidence { oracle: &sources.oracle, differences: &sources.differences, limits }.status(label)
    }

    #[test]
    fn a_status_follows_from_the_record_and_the_differences() {
        let cases: &[(&str, &[&str])] = &[("a::b", &["NOP"]), ("a::z", &["-RECV_ZC"])];
        assert_eq!(status(cases, "NOP", ""), Status::Works);
        assert_eq!(status(cases, "NOP", "a::b fails"), Status::NotYet);
        assert_eq!(status(cases, "NOP", "~a::b about: no name"), Status::Works);
        assert_eq!(status(cases, "READ", ""), Status::NoCase);
        assert_eq!(status(cases, "RECV_ZC", ""), Status::WithoutDriver);
        assert_eq!(status(cases, "NOP", "a::b NOP: so"), Status::Differs("so".to_owned()));
    }

    #[test]
    fn the_table_of_cases_is_held_against_the_opcode_table() {
        let (text, complaints) =
            sources(&[("a::b", &["RECV_ZC"])], "", "## Of It\n\nNOP and so on").table().expect("a table");
        assert!(complaints
            .iter()
            .any(|line| line.starts_with("RECV_ZC: served according to the opcode table: false")));
        assert!(complaints.iter().any(|line| line.starts_with("NOP: no case")));
        assert!(text.contains("| RECV_ZC | 6.15 | works | 1 | own | [a] |"), "{text}");
        assert!(text.ends_with("\n[a]: ../tests/conformance/src/cases/a.rs\n"));
    }

    #[test]
    fn limits_are_found_below_their_heading() {
        let limits = Limits::new("## Rings, and more\nNOP is\n## Later\nNOP again");
        assert_eq!(limits.link(&OPCODES[0]).as_deref(), Some("[limits](limits.md#rings-and-more)"));
        assert_eq!(limits.link(&OPCODES[1]), None);
    }

    #[test]
    fn the_index_of_limits_goes_before_where_a_name_first_stands() {
        let text =
            "## Index\n### By name\n- NOP, READV: [Late I/O], [rings]\n## Rings\n### More\nNOP, READV and WRITEV\n";
        let limits = Limits::new(text);
        assert_eq!(limits.link(&OPCODES[0]).as_deref(), Some("[limits](limits.md#late-io)"));
        assert_eq!(limits.link(&OPCODES[1]).as_deref(), Some("[limits](limits.md#late-io)"));
        assert_eq!(limits.link(&OPCODES[2]).as_deref(), Some("[limits](limits.md#more)"));
    }

    #[test]
    fn links_within_limits_lead_to_headings() {
        let root = crate::root();
        let text = std::fs::read_to_string(root.join("docs/limits.md")).expect("the limits");
        let titles = text.lines().filter(|line| line.starts_with('#'));
        let headings: BTreeSet<_> = titles.map(|title| anchor(title.trim_start_matches('#').trim())).collect();
        let links = text.split("](#").skip(1).chain(text.split("]: #").skip(1));
        let targets = links.filter_map(|link| link.split([')', '\n']).next()).map(str::to_owned);
        for target in targets.chain(Limits::new(&text).0.into_values().filter(|heading| !heading.is_empty())) {
            assert!(headings.contains(&target), "{target}");
        }
    }

    #[test]
    fn a_case_is_no_older_than_the_names_that_it_needs() {
        let root = crate::root();
        let oracle = record(root).expect("the record");
        let names: BTreeMap<String, &Name> = interface::names().map(|name| (name.to_string(), name)).collect();
        for case in anyring_conformance::case::all() {
            let (major, minor) = case.since().split_once('.').expect("a release");
            let release = (major.parse().expect("a number"), minor.parse().expect("a number"));
            // A case whose answer only a later kernel gives is in that kernel's record.
            let Some(recorded) = oracle.cases.get(case.name()) else { continue };
            let younger = recorded.works.iter().find(|label| since(names[*label]) > release && release >= (5, 1));
            assert_eq!(younger, None, "{} is said to hold since {major}.{minor}", case.name());
        }
    }

    #[test]
    fn conformance_md_is_what_its_sources_say() {
        let root = crate::root();
        let (text, complaints) = Sources::read(root).and_then(|sources| sources.table()).expect("a table");
        assert_eq!(complaints, [""; 0], "not every name is as it should be");
        let current = std::fs::read_to_string(root.join("docs/conformance.md")).expect("docs/conformance.md");
        assert!(
            current == text,
            "docs/conformance.md is not what its sources say: `cargo xtask conformance` writes it anew"
        );
    }
}
