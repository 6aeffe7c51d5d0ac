//! `--shrink`: reduces the injections of a failing run by leaving out smaller and smaller parts of them.
//!
//! Delta debugging: Zeller and Hildebrandt, "Simplifying and isolating failure-inducing input", 2002.

use super::jobs::Jobs;
use super::one::{Injection, Run};
use crate::failure::Failure;
use std::ops::ControlFlow;

/// Returns the fewest injections of a failed run with which the program still fails: it passes without any of them.
///
/// # Errors
/// A run could not be started, or the program does not fail again with all injections.
pub fn shrink(jobs: &Jobs, seed: u64, run: &Run) -> Result<Vec<Injection>, Failure> {
    let mut left = run.injections.clone();
    left.dedup_by(|one, other| one.name == other.name);
    if first_failing(jobs, seed, [vec![]])?.is_some() {
        return Ok(Vec::new());
    }
    if first_failing(jobs, seed, [left.clone()])?.is_none() {
        let message = format!("seed {seed} does not fail each time: threads or timing of the program matter, too");
        return Err(Failure::own(message));
    }
    let mut parts = 2;
    while left.len() > 1 {
        let size = left.len().div_ceil(parts);
        let without = |place: usize| {
            let mut rest = left.clone();
            rest.drain(place..(place + size).min(left.len()));
            rest
        };
        match first_failing(jobs, seed, (0..left.len()).step_by(size).map(without))? {
            Some(part) => {
                left = without(part * size);
                parts = parts.saturating_sub(1).max(2);
            }
            None if size == 1 => break,
            None => parts = (2 * parts).min(left.len()),
        }
    }
    Ok(left)
}

/// Returns the index of the first set of injections with which the program fails.
fn first_failing(
    jobs: &Jobs,
    seed: u64,
    sets: impl IntoIterator<Item = Vec<Injection>>,
) -> Result<Option<usize>, Failure> {
    let names = |set: Vec<Injection>| set.into_iter().map(|injection| injection.name).collect();
    let tasks = sets.into_iter().map(|set| (seed, Some(names(set))));
    let (mut place, mut found) = (0, None);
    jobs.each(tasks, true, |_, run| {
        if run.failure.is_some() {
            found = Some(place);
            return ControlFlow::Break(());
        }
        place += 1;
        ControlFlow::Continue(())
    })?;
    Ok(found)
}
