//! Where steps are made: other processes.

use super::{child, Runner};
use crate::program::{Place, Step};

impl Runner {
    /// Makes the steps there: how many of them are made by that.
    pub fn within(&mut self, place: Place, steps: &[Step]) -> usize {
        if self.is_elsewhere {
            return 0;
        }
        match place {
            Place::Fork => self.fork(steps),
        }
        0
    }

    fn fork(&mut self, steps: &[Step]) {
        let Some(free) = self.children.iter().position(|child| *child == 0) else { return };
        // SAFETY: the child runs steps, which take no lock that another thread could hold, and ends by _exit.
        let child = unsafe { libc::fork() };
        if child == 0 {
            self.be_child(steps);
        }
        self.children[free] = child.max(0);
    }

    /// What a child does.
    fn be_child(&mut self, steps: &[Step]) -> ! {
        (self.is_elsewhere, self.is_child) = (true, true);
        child::set_alarm();
        self.steps(steps, None);
        // SAFETY: ends a child without its parent's exit handlers.
        unsafe { libc::_exit(0) }
    }
}
