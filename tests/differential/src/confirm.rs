//! Confirms a seed that seemed to diverge. The kernel itself does not do the same each time with every program. Its
//! workers have no order, and a moment can be too short for a busy machine. So a pair of runs proves nothing.
//!
//! A seed diverges if the engine did something, in any of its runs, that the kernel did in none of many. The kernel's
//! runs have different waiting times.

use crate::compare::{Runner, Side};
use crate::known::Known;
use crate::program::Program;
use crate::record::{Difference, Record};
use anyhow::{Context, Result};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// The time without a CQE after which a run with time counts as quiet, in microseconds.
const LONG_QUIET_US: u64 = 15_000;
/// The quiet times of the kernel's further runs, which stop as soon as they explain what the engine did.
const FURTHER_QUIETS_US: [u64; 6] = [4_000, 15_000, 1_000, 30_000, 4_000, 60_000];
/// The number of kernel runs without any waiting time, compared with the engine's hurried run alone. Requests for a
/// worker are then cancelled before a worker has begun them.
const HASTY_RUNS: usize = 8;
/// Runs of the engine alone and with time.
const ENGINE_RUNS: usize = 2;

/// A run on each side. The engine waited for the CQEs that the kernel had posted by the end of each step.
pub struct Pair {
    /// The kernel's results.
    pub kernel: Record,
    /// The engine's results.
    pub anyring: Record,
}

/// The result of a seed's repeated runs.
#[derive(Debug, Default)]
pub struct Confirmed {
    /// Differences that the engine showed and the kernel never did. None if the seed agrees.
    pub differences: Vec<Difference>,
    /// The number of initial differences that another run of the kernel had, too.
    pub explained: usize,
    /// True if only the engine's first run had these differences, and the kernel never.
    pub hurried: bool,
    /// The reasons of listed differences that occurred.
    pub listed: BTreeSet<String>,
}

/// The runs of one seed.
pub struct Repeats<'r> {
    runner: &'r Runner,
    known: &'r Known,
    program: Program,
    without: &'r [u64],
    kernel: Vec<Record>,
    confirmed: Confirmed,
}

impl<'r> Repeats<'r> {
    /// Prepares the runs of this seed's program with these parts left out.
    pub fn new(runner: &'r Runner, known: &'r Known, seed: u64, without: &'r [u64]) -> Repeats<'r> {
        let program = runner.program(seed).without(without);
        Repeats { runner, known, program, without, kernel: Vec::new(), confirmed: Confirmed::default() }
    }

    /// Runs the program several times on both sides. `first` is the pair of runs in a hurry.
    pub fn confirm(mut self, first: Option<Pair>) -> Result<Confirmed> {
        for again in 0..ENGINE_RUNS {
            let (kernel, path) = self.run(Side::Kernel, None, LONG_QUIET_US)?;
            self.kernel.push(kernel);
            let (anyring, _) = self.run(Side::Anyring, Some(&path), LONG_QUIET_US)?;
            if !self.explain(&anyring)? {
                return Ok(self.confirmed);
            }
            if again > 0 {
                continue;
            }
            if let Some(first) = &first {
                // The engine waited for the CQEs that the kernel had posted by the end of each step. If the kernel
                // posts others when it has more time, those counts, and the engine's run with them, mean nothing.
                let meant = first.kernel.counts == self.kernel[0].counts
                    && self.compare(&first.kernel, &self.kernel[0]).is_empty();
                if meant && !self.explain(&first.anyring)? && !self.explain_by_haste(&first.anyring)? {
                    self.confirmed.hurried = true;
                    break;
                }
            }
        }
        Ok(self.confirmed)
    }

    fn run(&self, side: Side, counts: Option<&Path>, quiet_us: u64) -> Result<(Record, PathBuf)> {
        let seed = self.program.seed;
        let (mut records, path) = self.runner.run(side, &[seed], counts, quiet_us, self.without)?;
        Ok((records.remove(&seed).context("a record")?, path))
    }

    fn compare(&self, kernel: &Record, anyring: &Record) -> Vec<Difference> {
        self.known.divide(kernel.differences(anyring, &self.program), &self.program).0
    }

    /// True if each of these results is listed, or the kernel had it in some run. The kernel runs again until it had
    /// all of them.
    fn explain(&mut self, anyring: &Record) -> Result<bool> {
        let (mut left, listed) =
            self.known.divide(self.kernel[0].differences(anyring, &self.program), &self.program);
        let differed = left.len();
        self.confirmed.listed.extend(listed);
        let mut quiets = FURTHER_QUIETS_US.into_iter();
        let mut compared = 1;
        while !left.is_empty() {
            if compared == self.kernel.len() {
                let Some(quiet_us) = quiets.next() else { break };
                let (kernel, _) = self.run(Side::Kernel, None, quiet_us)?;
                self.kernel.push(kernel);
            }
            let found = self.compare(&self.kernel[compared], anyring);
            left.retain(|difference| found.iter().any(|other| other.subject == difference.subject));
            compared += 1;
        }
        self.confirmed.explained += differed - left.len();
        self.confirmed.differences = left;
        Ok(self.confirmed.differences.is_empty())
    }

    /// True if runs of the kernel without waiting time had the results that [`explain`](Self::explain) has left.
    fn explain_by_haste(&mut self, anyring: &Record) -> Result<bool> {
        for _ in 0..HASTY_RUNS {
            let (kernel, _) = self.run(Side::Kernel, None, 0)?;
            let found = self.compare(&kernel, anyring);
            let left = &mut self.confirmed.differences;
            let differed = left.len();
            left.retain(|difference| found.iter().any(|other| other.subject == difference.subject));
            self.confirmed.explained += differed - left.len();
            if left.is_empty() {
                return Ok(true);
            }
        }
        Ok(false)
    }
}
