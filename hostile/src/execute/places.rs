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
            Place::Fork { executes } => self.fork(steps, executes),
        }
        0
    }

    fn fork(&mut self, steps: &[Step], executes: bool) {
        let Some(free) = self.children.iter().position(|child| *child == 0) else { return };
        // SAFETY: the child runs steps, which take no lock that another thread could hold, and ends by _exit.
        let child = unsafe { libc::fork() };
        if child == 0 {
            self.be_child(steps, executes);
        }
        self.children[free] = child.max(0);
    }

    /// What a child does.
    fn be_child(&mut self, steps: &[Step], executes: bool) -> ! {
        (self.is_elsewhere, self.is_child) = (true, true);
        child::set_alarm(true);
        self.steps(steps, None);
        if executes {
            // With an alarm, or without memory, it would not come to anything.
            child::set_alarm(false);
            self.limits.restore(None);
            execute();
        }
        // SAFETY: ends a child without its parent's exit handlers.
        unsafe { libc::_exit(0) }
    }
}

/// Executes this program, to see what it gets then.
fn execute() {
    let arguments = [c"anyring-hostile".as_ptr(), c"survivors".as_ptr(), std::ptr::null()];
    // SAFETY: constant strings, and the environment that the process began with.
    unsafe { libc::execv(c"/proc/self/exe".as_ptr(), arguments.as_ptr()) };
}
