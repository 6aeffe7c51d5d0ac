//! Leaves out steps for as long as the finding stays.

use crate::generate;
use crate::runs::{print, Outcome, RunOptions, Runner};
use anyhow::Result;
use anyring_test_kit::{fewest, list};

/// The default number of runs without some steps before these count as needed.
const TIMES: u32 = 3;

/// Prints the shortest program that was found. True if there is one.
pub fn shrink(options: &RunOptions) -> Result<bool> {
    let runner = Runner::new(options.clone())?;
    let (seed, times) = (options.seeds.seed, options.times.max(TIMES));
    let length = generate::program(seed).steps.len();
    let mut outcome = None;
    for _ in 0..times {
        outcome = outcome
            .or(Some(runner.run_once(seed, &options.without)?).filter(|outcome| !outcome.findings.is_empty()));
    }
    let Some(outcome) = outcome else {
        println!("seed {seed}: nothing found in {times} runs");
        return Ok(false);
    };
    let kind = kind(&outcome);
    let late = options.seeds.clock();
    let mut without = options.without.clone();
    // Steps that were never begun are not needed.
    if (outcome.step as usize) < length {
        without.extend((outcome.step as usize + 1..length).filter(|step| !options.without.contains(step)));
    }
    let fails = |without: &[usize]| {
        for _ in 0..times {
            if late() {
                break;
            }
            let found = runner.run_once(seed, without)?;
            if !found.findings.is_empty() && self::kind(&found) == kind {
                return Ok(Some(found));
            }
        }
        Ok(None)
    };
    let (without, outcome) = fewest(&Vec::from_iter(0..length), without, outcome, fails)?;
    print!("{}", generate::program(seed).without(&without));
    print(options, seed, &outcome);
    println!("--without {}", list(&without));
    Ok(true)
}

/// Returns the first word of the first finding, to compare it with another; of a signal, the next word, too.
fn kind(outcome: &Outcome) -> String {
    let words: Vec<&str> = outcome.findings[0].split_whitespace().collect();
    match words[..] {
        ["signal", number, ..] => format!("signal {number}"),
        [kind, ..] => kind.to_owned(),
        [] => String::new(),
    }
}
