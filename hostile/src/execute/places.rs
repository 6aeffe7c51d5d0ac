//! Where steps are made: other processes and threads.

mod thread;

use super::{call, child, witness, Runner};
use crate::program::{Birth, Place, Step};
use libc::c_int;

extern "C" {
    fn _Fork() -> libc::pid_t;
}

impl Runner {
    /// Makes the steps there: how many of them are made by that.
    pub fn within(&mut self, place: Place, steps: &[Step]) -> usize {
        if self.is_elsewhere {
            return 0;
        }
        match place {
            Place::Child { birth, executes } => {
                self.give_birth(birth, steps, executes);
                return 0;
            }
            Place::Thread { manner } => {
                self.is_elsewhere = true;
                let is_done = self.on_thread(manner, steps);
                self.is_elsewhere = false;
                witness::arm();
                if !is_done {
                    return 0;
                }
            }
        }
        steps.len()
    }

    fn give_birth(&mut self, birth: Birth, steps: &[Step], executes: bool) {
        let Some(free) = self.children.iter().position(|child| *child == 0) else { return };
        // SAFETY: a child runs steps, which take no lock that another thread could hold, and ends by _exit.
        let child = unsafe {
            match birth {
                Birth::Fork => libc::fork(),
                Birth::Bare => _Fork(),
                Birth::Clone(flags) => clone(flags),
            }
        };
        if child == 0 {
            self.be_child(steps, executes);
        }
        self.children[free] = child.max(0);
    }

    /// What a child does.
    fn be_child(&mut self, steps: &[Step], executes: bool) -> ! {
        (self.is_elsewhere, self.is_child) = (true, true);
        child::handle_signals();
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

/// A child that goes on here, on a copy of the stack. Source: clone3(2).
fn clone(flags: u64) -> libc::pid_t {
    // SAFETY: all zeroes are arguments.
    let mut args: libc::clone_args = unsafe { std::mem::zeroed() };
    (args.flags, args.exit_signal) = (flags, libc::SIGCHLD as u64);
    call::call(libc::SYS_clone3, [&raw mut args as u64, size_of::<libc::clone_args>() as u64, 0, 0, 0, 0]) as c_int
}

/// Executes this program, to see what it gets then.
fn execute() {
    let arguments = [c"anyring-hostile".as_ptr(), c"survivors".as_ptr(), std::ptr::null()];
    // SAFETY: constant strings, and the environment that the process began with.
    unsafe { libc::execv(c"/proc/self/exe".as_ptr(), arguments.as_ptr()) };
}

/// What keeps nobody from being woken.
fn all_but_the_alarm() -> libc::sigset_t {
    // SAFETY: all zeroes are a set, which outlives the calls.
    unsafe {
        let mut mask: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&mut mask);
        libc::sigdelset(&mut mask, libc::SIGALRM);
        mask
    }
}
