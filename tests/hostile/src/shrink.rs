//! Leaves out steps for as long as the finding stays.

use crate::generate;
use crate::watch::{print, Outcome, WatchOptions, Watcher};
use anyhow::Result;
use std::time::{Duration, Instant};

/// The default number of runs without some steps before these count as needed.
const TIMES: u32 = 3;

/// Prints the shortest program that was found. True if there is one.
pub fn shrink(options: &WatchOptions) -> Result<bool> {
    let watcher = Watcher::new(options.clone())?;
    let (seed, times) = (options.seed, options.times.max(TIMES));
    let length = generate::program(seed).steps.len();
    let mut outcome = None;
    for _ in 0..times {
        outcome =
            outcome.or(Some(watcher.watch(seed, &options.without)?).filter(|outcome| !outcome.findings.is_empty()));
    }
    let Some(mut outcome) = outcome else {
        println!("seed {seed}: nothing found in {times} runs");
        return Ok(false);
    };
    let kind = kind(&outcome);
    let start = Instant::now();
    let late = || options.seconds.is_some_and(|seconds| start.elapsed() > Duration::from_secs(seconds));
    let mut without = options.without.clone();
    // Steps that were never begun are not needed.
    if (outcome.step as usize) < length {
        without.extend((outcome.step as usize + 1..length).filter(|step| !options.without.contains(step)));
    }
    let mut size = (length / 2).max(1);
    while size > 0 && !late() {
        let left: Vec<usize> = (0..length).filter(|step| !without.contains(step)).collect();
        let mut smaller = false;
        for chunk in left.chunks(size) {
            let attempt: Vec<usize> = without.iter().chain(chunk).copied().collect();
            for _ in 0..times {
                let found = watcher.watch(seed, &attempt)?;
                if !found.findings.is_empty() && self::kind(&found) == kind {
                    (without, outcome, smaller) = (attempt.clone(), found, true);
                    break;
                }
                if late() {
                    break;
                }
            }
        }
        if !smaller || size > 1 {
            size /= 2;
        }
    }
    print!("{}", generate::program(seed).without(&without));
    print(options, seed, &outcome);
    let list: Vec<String> = without.iter().map(usize::to_string).collect();
    println!("--without {}", list.join(","));
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
