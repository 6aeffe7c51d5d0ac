//! What a case is, and what it is given.

use crate::door::Door;
use crate::ring::Ring;
use anyring_abi::*;

/// One claim about io_uring, in the form of a function that panics when the claim does not hold.
#[derive(Clone, Copy)]
pub struct Case {
    /// The topic and the claim: `nop::completes_with_zero`.
    pub name: &'static str,
    /// Checks the claim; runs in a process of its own.
    pub body: fn(&Context),
    /// Whether the claim holds for every set of setup flags, so that `--matrix` runs it with each.
    pub any_flags: bool,
    /// The only door that it is about, if there is one: with another it is not run.
    pub door: Option<Door>,
}

/// Declares a topic's cases: the functions under `any_flags` make their rings with [`Context::ring`] and hold for every
/// flag set of the matrix, those under `own_flags` choose their flags and run once, those under `liburing` call
/// liburing's functions and run with that door only. A function that is in no list is dead code, which the compiler
/// reports.
macro_rules! cases {
    (any_flags: [$($any:ident),* $(,)?], own_flags: [$($own:ident),* $(,)?] $(,)?) => {
        $crate::case::cases!(@table $(($any, true, None))* $(($own, false, None))*);
    };
    (liburing: [$($name:ident),* $(,)?] $(,)?) => {
        $crate::case::cases!(@table $(($name, false, Some($crate::door::Door::Liburing)))*);
    };
    (@table $(($body:ident, $any_flags:literal, $door:expr))*) => {
        /// The cases of this topic.
        pub const CASES: &[$crate::case::Case] = &[
            $($crate::case::Case {
                name: concat!(module_path!(), "::", stringify!($body)),
                body: $body,
                any_flags: $any_flags,
                door: $door,
            },)*
        ];
    };
}
pub(crate) use cases;

impl Case {
    /// The name without the crate's and the `cases` module's: `rw_pipe::read_of_closed_pipe_is_eof`.
    pub fn short_name(&self) -> &'static str {
        self.name.split_once("cases::").map_or(self.name, |(_, rest)| rest)
    }
}

/// A set of setup flags that the matrix runs the cases with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FlagSet {
    /// As it stands between brackets after a case's name.
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

/// What a case runs with.
#[derive(Clone, Copy)]
pub struct Context {
    /// How to reach io_uring.
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

    /// Ends this case as skipped. The reason is printed.
    pub fn skip(&self, reason: &str) -> ! {
        skip(reason)
    }
}
