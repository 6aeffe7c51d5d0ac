//! Takes parts out of a diverging program for as long as it diverges.

use crate::compare::{print_divergence, CompareOptions, Runner};
use crate::confirm::Repeats;
use crate::known::Known;
use crate::record::Difference;
use anyhow::Result;

/// Prints the smallest program that was found. Returns false if there is none.
pub fn shrink(options: &CompareOptions) -> Result<bool> {
    let runner = Runner::new(options.runner.clone())?;
    let known = Known::read(options.expect.as_deref())?;
    let seed = options.runner.seeds.0;
    let diverges = |without: &[u64]| -> Result<Vec<Difference>> {
        Ok(Repeats::new(&runner, &known, seed, without).confirm(None)?.differences)
    };
    let mut differences = diverges(&[])?;
    if differences.is_empty() {
        println!("seed {seed} does not diverge");
        return Ok(false);
    }
    let mut without: Vec<u64> = Vec::new();
    let mut size = runner.program(seed).parts().len() / 2;
    while size > 0 {
        let parts: Vec<u64> =
            runner.program(seed).parts().into_iter().filter(|part| !without.contains(part)).collect();
        let mut smaller = false;
        for chunk in parts.chunks(size) {
            let attempt: Vec<u64> = without.iter().chain(chunk).copied().collect();
            let found = diverges(&attempt)?;
            if !found.is_empty() {
                (without, differences, smaller) = (attempt, found, true);
            }
        }
        if !smaller || size > 1 {
            size /= 2;
        }
    }
    let program = runner.program(seed).without(&without);
    print_divergence(&program, &differences);
    Ok(true)
}
