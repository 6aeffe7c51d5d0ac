//! The library's counters, read through `anyring stats FILE --json`.

use crate::programs;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

/// The counters of all processes that wrote to one statistics file.
#[derive(Debug, Deserialize)]
pub struct Statistics {
    /// The errno of the kernel's io_uring_setup when the library tried it; 0 if it succeeded.
    pub kernel_refused_errno: i32,
    /// Rings that this engine set up.
    pub rings: u64,
    /// Rings that the kernel set up, in programs that load the library for those that the kernel refuses.
    #[serde(default)]
    pub kernel_rings: u64,
    /// Calls of io_uring_enter that it served.
    pub enters: u64,
    /// Completions by opcode name, then by the path that the request took.
    pub completions: BTreeMap<String, BTreeMap<String, u64>>,
    /// Completions with a negative result, which may be what the program wants (a timeout's -ETIME).
    pub errors: u64,
}

impl Statistics {
    /// Reads a statistics file.
    ///
    /// # Panics
    ///
    /// When there is no such file or it is not understood: the library never wrote it, so it served nothing.
    pub fn read(file: &Path) -> Self {
        let output =
            Command::new(programs::anyring()).arg("stats").arg(file).arg("--json").output().expect("anyring");
        let complaint = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "anyring stats: {}; {complaint}", output.status);
        serde_json::from_slice(&output.stdout).expect("the JSON of anyring stats")
    }

    /// Returns the number of completed requests of this opcode, on all paths.
    pub fn completed(&self, opcode: &str) -> u64 {
        self.completions.get(opcode).map_or(0, |paths| paths.values().sum())
    }

    /// Asserts that the kernel refused with `errno` and that the engine completed at least this many of each opcode.
    ///
    /// # Panics
    ///
    /// When any of it does not hold; the message has all counters.
    pub fn assert_served(&self, errno: i32, minimum: &[(&str, u64)]) {
        assert_eq!(self.kernel_refused_errno, errno, "the kernel's answer as the library saw it: {self:?}");
        assert!(self.rings > 0, "no ring was made: {self:?}"); // SQPOLL may do without an enter
        for &(opcode, count) in minimum {
            let completed = self.completed(opcode);
            assert!(completed >= count, "{completed} completions of {opcode}, {count} were due: {self:?}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Statistics {
        let json = r#"{"kernel_refused_errno": 1, "rings": 1, "enters": 9, "errors": 0,
            "completions": {"READ": {"inline": 5, "poll": 2, "worker": 1}}}"#;
        serde_json::from_str(json).expect("the sample")
    }

    #[test]
    fn completions_are_summed_over_the_paths() {
        assert_eq!(sample().completed("READ"), 8);
        assert_eq!(sample().completed("WRITE"), 0);
        sample().assert_served(libc::EPERM, &[("READ", 8)]);
    }

    #[test]
    #[should_panic(expected = "8 completions of READ, 9 were due")]
    fn one_completion_short_is_noticed() {
        sample().assert_served(libc::EPERM, &[("READ", 9)]);
    }

    #[test]
    #[should_panic(expected = "the kernel's answer")]
    fn another_refusal_is_noticed() {
        sample().assert_served(libc::ENOSYS, &[]);
    }
}
