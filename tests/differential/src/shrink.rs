//! Takes parts out of a diverging program for as long as it diverges.

use crate::compare::{print_divergence, CompareOptions, Runner};
use crate::confirm::Repeats;
use crate::known::Known;
use crate::record::Difference;
use anyhow::Result;
use anyring_test_kit::fewest;

/// Prints the smallest program that was found. Returns false if there is none.
pub fn shrink(options: &CompareOptions) -> Result<bool> {
    let runner = Runner::new(options.runner.clone())?;
    let known = Known::read(options.expect.as_deref())?;
    let seed = options.runner.seeds.seed;
    let diverges = |without: &[u64]| -> Result<Option<Vec<Difference>>> {
        let found = Repeats::new(&runner, &known, seed, without).confirm(None)?.differences;
        Ok((!found.is_empty()).then_some(found))
    };
    let Some(differences) = diverges(&[])? else {
        println!("seed {seed} does not diverge");
        return Ok(false);
    };
    let program = runner.program(seed);
    let (without, differences) = fewest(&program.parts(), Vec::new(), differences, diverges)?;
    print_divergence(&program.without(&without), &differences);
    Ok(true)
}
