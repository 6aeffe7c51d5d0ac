//! `--shrink`: reduces the injections of a failing run by leaving out smaller and smaller parts of them.
//!
//! Delta debugging: Zeller and Hildebrandt, "Simplifying and isolating failure-inducing input", 2002.

use super::one::{Injection, Run, Runner};
use crate::failure::Failure;

/// Returns injections of a failed run with which the program still fails. None of them can be left out.
///
/// # Errors
/// A run could not be started, or the program does not fail again with all injections.
pub fn shrink(runner: &Runner, seed: u64, run: &Run) -> Result<Vec<Injection>, Failure> {
    let mut left = run.injections.clone();
    left.dedup_by(|one, other| one.name == other.name);
    let fails = |some: &[Injection]| -> Result<bool, Failure> {
        let names: Vec<_> = some.iter().map(|injection| injection.name.clone()).collect();
        let run = runner.run(seed, Some(&names))?;
        Ok(runner.failure(&run).is_some())
    };
    if fails(&[])? {
        return Ok(Vec::new());
    }
    if !fails(&left)? {
        let message = format!("seed {seed} does not fail each time: the program's threads or time decide, too");
        return Err(Failure::own(message));
    }
    let mut parts = 2;
    while left.len() > 1 {
        let size = left.len().div_ceil(parts);
        let mut smaller = None;
        for place in (0..left.len()).step_by(size) {
            let mut rest = left.clone();
            rest.drain(place..(place + size).min(left.len()));
            if fails(&rest)? {
                smaller = Some(rest);
                break;
            }
        }
        match smaller {
            Some(rest) => {
                left = rest;
                parts = parts.saturating_sub(1).max(2);
            }
            None if size == 1 => break,
            None => parts = (2 * parts).min(left.len()),
        }
    }
    Ok(left)
}
