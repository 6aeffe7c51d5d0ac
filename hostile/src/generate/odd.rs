//! Steps that are about the process around the rings.

use super::Generator;
use crate::program::*;
use anyring_abi::*;

impl Generator {
    /// A ring that nobody names, in most programs: from the beginning, or from some step on.
    pub fn witness(&mut self, steps: &mut Vec<Step>) {
        let kinds = [
            0,
            0,
            IORING_SETUP_COOP_TASKRUN,
            IORING_SETUP_SINGLE_ISSUER,
            IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN,
        ];
        let step = Step::Witness { flags: self.choose(&kinds) };
        let at = match self.below(8) {
            0 => return,
            1 => self.below(steps.len() as u32) as usize,
            _ => 0,
        };
        steps.insert(at, step);
    }
}
