//! Cases: their definition, their context, and the lists of all of them.

use crate::door::Door;
use crate::ring::Ring;
use anyring_abi::*;
use linkme::distributed_slice;
use std::sync::OnceLock;

/// One claim about io_uring, in the form of a function that panics when the claim does not hold. `#[case]` makes it.
pub struct Case {
    /// The module and the function.
    pub path: &'static str,
    /// The line in the topic's file.
    pub line: u32,
    /// The function's documentation; empty if the name says it all.
    pub documentation: &'static str,
    /// The first kernel on which it holds, if that is not the topic's.
    pub since: Option<&'static str>,
    /// The first kernel with this answer, where an earlier one answered otherwise.
    pub from: Option<&'static str>,
    /// The first kernel that no longer gives this answer.
    pub until: Option<&'static str>,
    /// The source of the claim, if it is not the topic's.
    pub source: Option<&'static str>,
    /// Checks the claim; runs in a process of its own.
    pub body: fn(&Context),
    /// True if the claim holds for every set of setup flags, so that `--matrix` runs it with each.
    pub any_flags: bool,
    /// The only door that it is about, if there is one: with another it is not run.
    pub door: Option<Door>,
    /// True if the claim relies on more than io_uring promises, and does not hold under `anyring chaos`.
    pub undisturbed: bool,
}

/// The common properties of one file's cases. `topic!` makes it.
pub struct Topic {
    /// The module.
    pub path: &'static str,
    /// The first kernel on which its cases hold, except for cases that name another.
    pub since: &'static str,
    /// The source of the topic's claims: a man page, or a kernel source file. A case may name another source. Each case
    /// was also tried on the kernel itself.
    pub source: &'static str,
}

/// Every case, in no order.
#[distributed_slice]
pub static CASES: [Case];

/// Every topic, in no order.
#[distributed_slice]
pub static TOPICS: [Topic];

/// Declares the first kernel on which this file's cases hold, and their source.
macro_rules! topic {
    (since: $since:literal, source: $source:literal $(,)?) => {
        const _: () = {
            #[linkme::distributed_slice($crate::case::TOPICS)]
            static TOPIC: $crate::case::Topic =
                $crate::case::Topic { path: module_path!(), since: $since, source: $source };
        };
    };
}
pub(crate) use topic;

/// The release of the kernel whose answers are expected; by default the running one's.
pub static RELEASE: OnceLock<String> = OnceLock::new();

/// Every case, by topic and in the order in which they are written.
pub fn all() -> Vec<&'static Case> {
    let mut cases: Vec<&Case> = CASES.iter().collect();
    cases.sort_by_key(|case| (case.topic().path, case.line));
    cases
}

impl Case {
    /// The name without the crate's and the `cases` module's: `rw_pipe::read_of_closed_pipe_is_eof`.
    pub fn name(&self) -> &'static str {
        self.path.split_once("cases::").map_or(self.path, |(_, rest)| rest)
    }

    /// The topic it belongs to.
    pub fn topic(&self) -> &'static Topic {
        let module = self.path.rsplit_once("::").map_or("", |(module, _)| module);
        TOPICS.iter().find(|topic| topic.path == module).expect("every file of cases has a topic!")
    }

    /// Returns the claim, in words.
    pub fn claim(&self) -> String {
        if !self.documentation.is_empty() {
            return self.documentation.to_owned();
        }
        let function = self.path.rsplit_once("::").map_or(self.path, |(_, function)| function);
        let words = function.split('_').map(|word| match word.strip_prefix('e') {
            Some(_) if is_error(word) => word.to_uppercase(),
            _ => word.to_owned(),
        });
        words.collect::<Vec<_>>().join(" ")
    }

    /// The first kernel on which it holds: `5.6`.
    pub fn since(&self) -> &'static str {
        self.since.unwrap_or(self.topic().since)
    }

    /// True if a kernel of this release answers as claimed, provided that it has the names.
    pub fn is_answer_of(&self, release: &str) -> bool {
        let reached = |of: &str| version(release) >= version(of);
        self.from.is_none_or(reached) && !self.until.is_some_and(reached)
    }

    /// True if a kernel of this release has the names that the case is about.
    pub fn is_known_to(&self, release: &str) -> bool {
        version(release) >= version(self.since())
    }

    /// Returns the source of the claim.
    pub fn source(&self) -> &'static str {
        self.source.unwrap_or(self.topic().source)
    }
}

/// The first two numbers of a release: `6.1.0-13-amd64` is 6.1.
pub fn version(release: &str) -> [u32; 2] {
    let mut numbers =
        release.split(|character: char| !character.is_ascii_digit()).map(|part| part.parse().unwrap_or(0));
    [numbers.next().unwrap_or(0), numbers.next().unwrap_or(0)]
}

/// True if a word of a case's name is an error's name in small letters.
fn is_error(word: &str) -> bool {
    (1..4096).any(|error| crate::answers::error_name(error).is_some_and(|name| name.eq_ignore_ascii_case(word)))
}

/// A set of setup flags that the matrix runs the cases with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FlagSet {
    /// The name between the brackets after a case's name.
    pub name: &'static str,
    /// `IORING_SETUP_*`.
    pub flags: u32,
}

/// The flag sets, the plain one first.
pub const FLAG_SETS: &[FlagSet] = &[
    FlagSet { name: "plain", flags: 0 },
    FlagSet { name: "coop_taskrun", flags: IORING_SETUP_COOP_TASKRUN },
    FlagSet { name: "defer_taskrun", flags: IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN },
    FlagSet { name: "no_sqarray", flags: IORING_SETUP_NO_SQARRAY },
    FlagSet { name: "cqe32", flags: IORING_SETUP_CQE32 },
    FlagSet { name: "cqe_mixed", flags: IORING_SETUP_CQE_MIXED },
    FlagSet { name: "sqe128", flags: IORING_SETUP_SQE128 },
    FlagSet { name: "submit_all", flags: IORING_SETUP_SUBMIT_ALL },
    FlagSet { name: "cqsize", flags: IORING_SETUP_CQSIZE },
    FlagSet { name: "no_mmap", flags: IORING_SETUP_NO_MMAP },
];

pub use crate::sys::{skip, SKIP_STATUS};

/// The context that a case runs in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Context {
    /// The door to io_uring.
    pub door: Door,
    /// The flag set that `ring` uses.
    pub flag_set: FlagSet,
}

impl Context {
    /// A ring of the flag set under test.
    pub fn ring(&self, entries: u32) -> Ring {
        self.ring_with(entries, self.flag_set.flags)
    }

    /// A ring of exactly these flags (with CQSIZE: a CQ of four times the SQ).
    pub fn ring_with(&self, entries: u32, flags: u32) -> Ring {
        match Ring::new(self.door, entries, flags) {
            Ok(ring) => ring,
            Err(answer) => panic!("io_uring_setup({entries}, flags {flags:#x}) answered {answer}"),
        }
    }

    /// True if the kernel whose answers are expected is of this release or later. It is for a case in which one of
    /// several answers changed.
    pub fn answers_since(&self, release: &str) -> bool {
        version(RELEASE.get_or_init(crate::oracle::running_kernel)) >= version(release)
    }

    /// Returns the result of a LINK_TIMEOUT that ended a FUTEX_WAIT or WAITID.
    pub fn link_timeout_result(&self) -> i32 {
        if self.answers_since("7.3") {
            -libc::ETIME
        } else {
            1
        }
    }

    /// Ends this case as skipped. The reason is printed.
    pub fn skip(&self, reason: &str) -> ! {
        skip(reason)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_whole() {
        let mut names: Vec<_> = all().iter().map(|case| case.name()).collect();
        let count = names.len();
        assert!(count > 2000, "the linker kept {count} cases");
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count);
        assert!(names.iter().all(|name| name.matches("::").count() == 1));
    }

    #[test]
    fn a_claim_is_the_name_in_words_unless_there_is_more_to_say() {
        let case = all().into_iter().find(|case| case.name() == "rw_pipe::read_of_a_closed_pipe_is_eof");
        assert_eq!(case.map(Case::claim).as_deref(), Some("read of a closed pipe is eof"));
        let case = all().into_iter().find(|case| case.name() == "nop::unknown_opcode_is_einval");
        assert_eq!(case.map(Case::claim).as_deref(), Some("unknown opcode is EINVAL"));
    }

    #[test]
    fn an_answer_that_changed_is_of_one_of_two_kernels() {
        let case = |from, until| Case { from, until, ..*all()[0] };
        let holds = |case: Case| ["6.18.44", "7.2.13", "7.3.4-amd64"].map(|release| case.is_answer_of(release));
        assert_eq!(holds(case(None, None)), [true; 3]);
        assert_eq!(holds(case(Some("7.3"), None)), [false, false, true]);
        assert_eq!(holds(case(None, Some("7.3"))), [true, true, false]);
    }

    #[test]
    fn the_first_flag_set_is_plain() {
        assert_eq!((FLAG_SETS[0].name, FLAG_SETS[0].flags), ("plain", 0));
    }
}
