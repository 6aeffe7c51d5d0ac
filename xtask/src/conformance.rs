//! CONFORMANCE.md: a line for each name of the interface, made of what the conformance runs recorded
//! (`anyring-conformance --record`), the engine's opcode table, the list of known differences and docs/limits.md.

use anyhow::{bail, Context, Result};
use anyring_abi::interface::{self, Name, OPCODES};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::Path;

/// What io_uring has for hardware and drivers that user space cannot stand in for: these may fail as on a kernel that was
/// built without them. They are names of zcrx; NVMe passthrough and ublk have none, being commands of a driver's.
const OF_DRIVERS: &[&str] = &["RECV_ZC", "IORING_REGISTER_ZCRX_IFQ", "REGISTER_ZCRX_IFQ: IORING_ZCRX_AREA_DMABUF"];

/// What the kernel itself refuses here, or never gives, and why.
const OF_NOBODY: &[(&str, &str)] = &[
    ("POLL_ADD: IORING_POLL_ADD_LEVEL", "Linux 6.18 names it and takes it nowhere"),
    ("URING_CMD: IORING_URING_CMD_MULTISHOT", "only commands of drivers complete with it"),
    ("READ: IORING_RW_ATTR_FLAG_PI", "it takes a block device with protection information"),
    ("WRITE: IORING_RW_ATTR_FLAG_PI", "it takes a block device with protection information"),
    ("IORING_CQE_F_TSTAMP_HW", "it takes a network card that tells times"),
];

/// Topics that are named in a line, at most.
const TOPICS: usize = 3;

/// One case of a record; see `record.rs` in conformance/.
#[derive(Debug, Clone, Default, serde::Deserialize)]
pub struct Case {
    /// It passed in every run.
    pub passed: bool,
    /// Names that it passed to the kernel.
    pub tried: BTreeSet<String>,
    /// Names with which something succeeded.
    pub succeeded: BTreeMap<String, Runs>,
}

impl Case {
    /// Adds the runs of another record.
    fn add(&mut self, other: Case) {
        self.passed &= other.passed;
        self.tried.extend(other.tried);
        for (name, runs) in other.succeeded {
            let known = self.succeeded.entry(name).or_default();
            known.doors.extend(runs.doors);
            known.flag_sets.extend(runs.flag_sets);
        }
    }
}

/// In which runs something succeeded.
#[derive(Debug, Clone, Default, serde::Deserialize)]
pub struct Runs {
    /// Through which doors.
    pub doors: BTreeSet<String>,
    /// With which sets of setup flags; empty for a case that chooses its own.
    pub flag_sets: BTreeSet<String>,
}

impl Runs {
    /// Whether the run through libc's door with plain flags is among them. The text rests on those alone, so that it is
    /// the same after a quick run and after one with every door and set.
    fn plain(&self) -> bool {
        self.doors.contains("libc") && (self.flag_sets.is_empty() || self.flag_sets.contains("plain"))
    }
}

/// A record: the cases by name.
pub type Record = BTreeMap<String, Case>;

/// Reads what `anyring-conformance --record` wrote: a file, or the files of a folder, one for each door.
pub fn read(path: &Path) -> Result<Record> {
    if !path.is_dir() {
        let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
        return serde_json::from_str(&text).with_context(|| path.display().to_string());
    }
    let mut whole = Record::new();
    for entry in path.read_dir()? {
        for (name, case) in read(&entry?.path())? {
            match whole.get_mut(&name) {
                Some(known) => known.add(case),
                None => drop(whole.insert(name, case)),
            }
        }
    }
    Ok(whole)
}

/// A line of the list of known differences.
#[derive(Debug)]
struct Difference {
    case: String,
    /// The names that it is about, which the reason begins with: `NAME, NAME: reason`.
    names: Vec<String>,
    reason: String,
}

fn differences(text: &str) -> Result<Vec<Difference>> {
    let known: BTreeSet<String> = interface::names().map(Name::to_string).collect();
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines
        .map(|line| {
            let Some((case, reason)) = line.split_once(char::is_whitespace) else { bail!("no reason: {line}") };
            // A name may have a colon of its own.
            let ends = reason.match_indices(": ").map(|(at, _)| reason[..at].trim().split(", "));
            let of_names = ends.filter(|names| names.clone().all(|name| known.contains(name))).last();
            let names: Vec<String> = of_names.into_iter().flatten().map(str::to_owned).collect();
            Ok(Difference {
                case: case.trim_start_matches('?').to_owned(),
                names,
                reason: reason.trim().to_owned(),
            })
        })
        .collect()
}

/// What docs/limits.md says of names: the heading below which each word first stands.
struct Limits<'a>(BTreeMap<&'a str, String>);

impl<'a> Limits<'a> {
    fn new(text: &'a str) -> Limits<'a> {
        let (mut heading, mut words) = (String::new(), BTreeMap::new());
        for line in text.lines() {
            match line.strip_prefix("## ") {
                Some(title) => heading = anchor(title),
                None => line.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').for_each(|word| {
                    words.entry(word).or_insert_with(|| heading.clone());
                }),
            }
        }
        Limits(words)
    }

    fn link(&self, name: &Name) -> Option<String> {
        self.0.get(name.name).map(|heading| format!("[limits](docs/limits.md#{heading})"))
    }
}

/// A heading's anchor, as forges make it.
fn anchor(title: &str) -> String {
    let kept = title.chars().filter(|c| c.is_ascii_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.map(|c| if c == ' ' { '-' } else { c.to_ascii_lowercase() }).collect()
}

/// How a name fares.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Status {
    Works,
    Differs(String),
    /// As on a kernel that was built without it.
    WithoutDriver,
    /// The kernel refuses it for this reason, and the engine answers the same.
    Refused(&'static str),
    NotYet,
    NoCase,
}

/// Everything that the lines are made of.
struct Evidence<'a> {
    kernel: &'a Record,
    engine: &'a Record,
    /// Through which the cases of both records went.
    doors: BTreeSet<&'a String>,
    differences: Vec<Difference>,
    limits: Limits<'a>,
}

impl<'a> Evidence<'a> {
    fn new(kernel: &'a Record, engine: &'a Record, documents: &Documents<'a>) -> Result<Evidence<'a>> {
        let runs = kernel.values().chain(engine.values()).flat_map(|case| case.succeeded.values());
        Ok(Evidence {
            kernel,
            engine,
            doors: runs.flat_map(|runs| &runs.doors).collect(),
            differences: differences(documents.differences)?,
            limits: Limits::new(documents.limits),
        })
    }

    /// The cases that pass on the kernel and succeed there with `label`, and in which runs.
    fn natively<'b>(&'b self, label: &'b str) -> impl Iterator<Item = (&'b str, &'b Runs)> {
        let passed = self.kernel.iter().filter(|(_, case)| case.passed);
        passed.filter_map(move |(name, case)| Some((name.as_str(), case.succeeded.get(label)?)))
    }

    /// The same on the engine: a case counts if it passes and succeeds with `label` on both.
    fn here<'b>(&'b self, label: &'b str) -> impl Iterator<Item = (&'b str, &'b Runs)> {
        self.natively(label).filter_map(move |(name, _)| {
            let case = self.engine.get(name).filter(|case| case.passed)?;
            Some((name, case.succeeded.get(label)?))
        })
    }

    /// Whether a case tries `label` in vain on both, and passes on both: it is refused alike.
    fn refused_alike(&self, label: &str) -> bool {
        self.natively(label).next().is_none()
            && self.kernel.iter().any(|(name, case)| {
                let alike = |case: &Case| case.passed && case.tried.contains(label);
                alike(case) && self.engine.get(name).is_some_and(alike)
            })
    }

    fn never_seen(&self, label: &str) -> bool {
        let cases = || self.kernel.values().chain(self.engine.values());
        label.starts_with("IORING_CQE_F_") && !cases().any(|case| case.succeeded.contains_key(label))
    }

    fn status(&self, label: &str) -> Status {
        let listed: Vec<_> =
            self.differences.iter().filter(|line| line.names.iter().any(|name| name == label)).collect();
        if !listed.is_empty() {
            let reasons = listed.iter().map(|line| {
                let names = line.names.join(", ");
                line.reason.strip_prefix(&names).map_or("", |reason| reason.trim_start_matches(": "))
            });
            return Status::Differs(reasons.collect::<Vec<_>>().join("; "));
        }
        if self.here(label).any(|(_, runs)| runs.plain()) {
            return Status::Works;
        }
        if OF_DRIVERS.contains(&label) && self.refused_alike(label) {
            return Status::WithoutDriver;
        }
        match OF_NOBODY.iter().find(|(name, _)| *name == label) {
            // A bit of a CQE's cannot be tried: it is enough that neither ever sets it.
            Some((_, why)) if self.refused_alike(label) || self.never_seen(label) => Status::Refused(why),
            _ if self.natively(label).next().is_some() => Status::NotYet,
            _ => Status::NoCase,
        }
    }

    /// What is wrong with `name`, its status aside: doors that no case leads through.
    fn complaints(&self, name: &Name, status: &Status) -> Vec<String> {
        let label = name.to_string();
        let mut complaints = Vec::new();
        match status {
            Status::NotYet => complaints.push(format!("{label}: not yet: it succeeds on the kernel only")),
            Status::NoCase => complaints.push(format!("{label}: no case succeeds with it on the kernel")),
            Status::Works => {
                let doors: BTreeSet<_> = self.here(&label).flat_map(|(_, runs)| &runs.doors).collect();
                let missing: Vec<_> = self.doors.iter().filter(|door| !doors.contains(*door)).collect();
                if !missing.is_empty() {
                    complaints.push(format!("{label}: nothing succeeds through {missing:?}"));
                }
            }
            _ => {}
        }
        if OPCODES.contains(name) {
            let served = anyring_engine::op::definition(name.value as u8).is_some();
            let succeeds = self.here(&label).next().is_some();
            if served != succeeds {
                complaints
                    .push(format!("{label}: served according to the opcode table: {served}, to cases: {succeeds}"));
            }
        }
        complaints
    }

    /// The topics whose cases use `label` most of all, as links.
    fn topics(&self, label: &str) -> String {
        let mut of_topic: BTreeMap<&str, usize> = BTreeMap::new();
        self.kernel.keys().for_each(|case| *of_topic.entry(topic(case)).or_default() += 1);
        let mut with: BTreeMap<&str, usize> = BTreeMap::new();
        let plain = self.natively(label).filter(|(_, runs)| runs.plain()).map(|(case, _)| case);
        let tried =
            self.kernel.iter().filter(|(_, case)| case.tried.contains(label)).map(|(case, _)| case.as_str());
        let mut cases: Vec<_> = plain.collect();
        if cases.is_empty() {
            cases = tried.collect();
        }
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
        let label = name.to_string();
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
        let plain = || self.natively(&label).filter(|(_, runs)| runs.plain());
        let sets = match plain().count() {
            0 => "",
            _ if plain().any(|(_, runs)| !runs.flag_sets.is_empty()) => "every set",
            _ => "own",
        };
        format!("| {label} | {status} | {} | {sets} | {} |", about(plain().count()), self.topics(&label))
    }
}

/// A case's topic.
fn topic(case: &str) -> &str {
    case.split_once("::").map_or(case, |(topic, _)| topic)
}

/// A number of cases, so roughly that it stays the same for a while.
fn about(count: usize) -> String {
    match [50, 20, 10, 5, 3].into_iter().find(|round| count >= *round) {
        Some(round) => format!("{round}+"),
        None => count.to_string(),
    }
}

/// The documents that the table is made of besides the records.
pub struct Documents<'a> {
    /// conformance/differences.txt.
    pub differences: &'a str,
    /// docs/limits.md.
    pub limits: &'a str,
}

/// The text of CONFORMANCE.md, and what is wrong with it.
pub fn table(kernel: &Record, engine: &Record, documents: &Documents) -> Result<(String, Vec<String>)> {
    let evidence = Evidence::new(kernel, engine, documents)?;
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
    for line in &evidence.differences {
        writeln!(text, "- `{}`: {}", line.case, line.reason)?;
    }
    let topics: BTreeSet<_> = kernel.keys().map(|case| topic(case)).collect();
    text.push('\n');
    for topic in topics {
        writeln!(text, "[{topic}]: conformance/src/cases/{topic}.rs")?;
    }
    Ok((text, complaints))
}

const COLUMNS: &str = "| name | status | cases | setup flags | topics |\n|---|---|---|---|---|\n";

const HEAD: &str = "\
# What is supported

Every name of the io_uring interface of Linux 6.18, and how it fares. `cargo xtask conformance` makes this file of the
conformance cases' results on the kernel and on anyring; `make test` fails when it is not what the results say.

- *works*: a case succeeds with it on the kernel and on anyring: a request whose CQE says so, a call, a bit that was seen.
  What docs/limits.md says of it is linked.
- *differs*: a listed case shows how.
- *fails as a kernel without it*: what only drivers can give.
- *refused as by the kernel*: cases show that both refuse it, or that neither ever gives it.
- *not yet*: it succeeds on the kernel only. *no case*: nothing is known.

NVMe passthrough and ublk are commands of drivers through URING_CMD, without names here; they fail as on a kernel without
those drivers. Opcodes that 6.18 does not know (NOP128, URING_CMD128) are EINVAL, as there.

Each case runs through liburing's functions, libc's `syscall()` and raw instructions; with *every set*, those of the topic
that hold for any setup flags also run with the sets of `--matrix`. *cases* counts those that succeed with the name.
";

const DIFFERENCES: &str = "\
Cases that fail on anyring, with the reason, from conformance/differences.txt. [docs/limits.md](docs/limits.md) tells more,
and what no case can show.";

#[cfg(test)]
mod tests {
    use super::*;

    fn record(cases: &[(&str, bool, &[&str])]) -> Record {
        let runs = || Runs { doors: BTreeSet::from(["libc".to_owned()]), flag_sets: BTreeSet::new() };
        let case = |passed, names: &[&str]| Case {
            passed,
            tried: names.iter().map(|name| name.trim_start_matches('-').to_string()).collect(),
            succeeded: names
                .iter()
                .filter(|name| !name.starts_with('-'))
                .map(|name| (name.to_string(), runs()))
                .collect(),
        };
        cases.iter().map(|(name, passed, names)| (name.to_string(), case(*passed, names))).collect()
    }

    fn status(kernel: &Record, engine: &Record, label: &str, listed: &str) -> Status {
        let documents = Documents { differences: listed, limits: "" };
        Evidence::new(kernel, engine, &documents).expect("a list").status(label)
    }

    #[test]
    fn a_status_follows_from_results() {
        let native = record(&[("a::b", true, &["NOP"]), ("a::z", true, &["-RECV_ZC"])]);
        let failing = record(&[("a::b", false, &["NOP"]), ("a::z", true, &["-RECV_ZC"])]);
        assert_eq!(status(&native, &native, "NOP", ""), Status::Works);
        assert_eq!(status(&native, &failing, "NOP", ""), Status::NotYet);
        assert_eq!(status(&native, &native, "READ", ""), Status::NoCase);
        assert_eq!(status(&native, &native, "RECV_ZC", ""), Status::WithoutDriver);
        assert_eq!(status(&native, &failing, "NOP", "a::b NOP: so"), Status::Differs("so".to_owned()));
        assert_eq!(status(&native, &native, "NOP", "a::b about: no name"), Status::Works);
    }

    #[test]
    fn what_the_table_says_is_held_against_cases() {
        let one = record(&[("a::b", true, &["RECV_ZC"])]);
        let documents = Documents { differences: "", limits: "## Of It\n\nNOP and so on" };
        let (text, complaints) = table(&one, &one, &documents).expect("a table");
        assert!(complaints
            .iter()
            .any(|line| line.starts_with("RECV_ZC: served according to the opcode table: false")));
        assert!(complaints.iter().any(|line| line.starts_with("NOP: no case")));
        assert!(text.contains("| RECV_ZC | works | 1 | own | [a] |"), "{text}");
        assert!(text.ends_with("\n[a]: conformance/src/cases/a.rs\n"));
    }

    #[test]
    fn limits_are_found_below_their_heading() {
        let limits = Limits::new("## Rings, and more\nNOP is\n## Later\nNOP again");
        assert_eq!(limits.link(&OPCODES[0]).as_deref(), Some("[limits](docs/limits.md#rings-and-more)"));
        assert_eq!(limits.link(&OPCODES[1]), None);
    }
}
