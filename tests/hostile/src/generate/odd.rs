//! Steps that are about the process around the rings.

use super::Generator;
use crate::execute::places::NO_HANDLERS;
use crate::program::*;
use anyring_abi::*;
use anyring_test_kit::Choices;

/// True if two copies of the library cannot serve this step (docs/limits.md): a small stack has no room for the
/// thread-local memory of both.
pub fn is_for_one_copy(step: &Step) -> bool {
    matches!(step, Step::Within { place: Place::Thread { manner }, .. } if manner & manner::SMALL != 0)
}

/// Removes calls on the engine's numbers if a child with memory of its own has some in the same table
/// (docs/limits.md).
pub fn leave_out_names(steps: &mut [Step]) {
    let shares = |step: &Step| {
        matches!(step, Step::Within { place: Place::Child { birth: Birth::Clone(flags), .. }, .. }
            if flags & libc::CLONE_FILES as u64 != 0)
    };
    if steps.iter().any(shares) {
        steps.iter_mut().filter(|step| matches!(step, Step::Name { .. })).for_each(|step| *step = Step::Pause);
    }
}

impl Generator {
    /// Chooses the place of some steps.
    pub fn place(&mut self) -> Place {
        match self.below(8) {
            0..=2 => return Place::Thread { manner: self.manner() },
            3 => return Place::Context { masked: self.chance(3, 4), leaps: self.chance(1, 2) },
            4 if self.chance(1, 2) => return Place::Jump,
            4 => return Place::Handler,
            _ => {}
        }
        const FILES: u64 = libc::CLONE_FILES as u64;
        let births = [
            Birth::Fork,
            Birth::Fork,
            Birth::Bare,
            Birth::Clone(self.choose(&[0, FILES, NO_HANDLERS, FILES | NO_HANDLERS])),
            Birth::Vfork(self.choose(&[0, 0, libc::CLONE_FILES])),
        ];
        Place::Child { birth: self.choose(&births), executes: self.chance(1, 5) }
    }

    /// Chooses a thread's odd attributes, mostly one.
    fn manner(&mut self) -> u8 {
        let kinds = [1u32, 2, 4, 8, 16, 32, 64];
        (self.choose(&kinds) | self.bits(&kinds, 1, 6)) as u8
    }

    /// Makes a thread with odd attributes run the first 40 steps, in some programs.
    pub fn odd_beginning(&mut self, steps: &mut Vec<Step>) {
        if self.chance(1, 6) {
            let place = Place::Thread { manner: self.manner() };
            steps.insert(0, Step::Within { place, steps: 40 });
        }
    }

    /// Closes standard descriptors before the first ring is made, and lets a thread write there, in some programs.
    pub fn standard(&mut self, steps: &mut Vec<Step>) {
        if self.chance(1, 6) {
            let step = Step::Standard { numbers: self.choose(&[7, 7, 1, 4, 6, 3]) };
            steps.insert(0, step);
            steps.insert(1, Step::Start(Nuisance::Logs, self.random.u64(..)));
        }
    }

    /// Makes a step that has nothing to do with rings.
    pub fn odd(&mut self) -> Step {
        if self.chance(1, 5) {
            // Below the numbers of the engine's own descriptors so far.
            let limit = self.choose(&[64, 150, 320, 600, 1000]);
            return Step::Fill { limit, left: self.choose(&[0, 0, 1, 2, 5]) };
        }
        if self.chance(1, 16) {
            return Step::Empty;
        }
        if self.chance(1, 8) {
            return Step::Standard { numbers: self.choose(&[7, 1, 2, 4]) };
        }
        // The first ones, F_SETFD among them, are for a program that executes another.
        let calls = self.choose(&[3, Step::CALLS, Step::CALLS, Step::CALLS]);
        Step::Name { call: self.below(u32::from(calls)) as u8 }
    }

    /// Adds, in most programs, a ring that no other step names: from the beginning, or from some step on.
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
