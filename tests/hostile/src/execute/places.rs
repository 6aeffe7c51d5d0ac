//! The places where steps run: other processes, threads and contexts.

pub mod context;
mod thread;

use super::{call, child, witness, Runner};
use crate::program::{Birth, Place, Step};
use libc::{c_int, c_void};
use std::sync::atomic::{AtomicUsize, Ordering};

/// CLONE_CLEAR_SIGHAND.
pub const NO_HANDLERS: u64 = 1 << 32;
/// The size of the stack for steps that do not run on the thread's own.
const STACK_BYTES: usize = 256 << 10;
/// The address of that stack. Relaxed: stored before any thread is made.
static STACK: AtomicUsize = AtomicUsize::new(0);

extern "C" {
    fn _Fork() -> libc::pid_t;
}

/// Maps that stack, after an inaccessible page.
pub fn prepare() {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: a new mapping.
    unsafe {
        let start = libc::mmap(std::ptr::null_mut(), STACK_BYTES + 4096, libc::PROT_NONE, flags, -1, 0);
        assert_ne!(start, libc::MAP_FAILED, "map a stack");
        libc::mprotect(start.byte_add(4096), STACK_BYTES, libc::PROT_READ | libc::PROT_WRITE);
        STACK.store(start as usize + 4096, Ordering::Relaxed);
    }
}

fn stack() -> *mut c_void {
    STACK.load(Ordering::Relaxed) as *mut c_void
}

/// The steps for a child that shares its parent's memory, and their runner.
struct Work<'a> {
    runner: &'a Runner,
    steps: &'a [Step],
    executes: bool,
}

impl Runner {
    /// Runs the next steps in that place. Returns the number of steps that this covers.
    pub fn within(&mut self, place: Place, steps: &[Step]) -> usize {
        if self.is_elsewhere {
            return 0;
        }
        if let Place::Child { birth, executes } = place {
            self.make_child(birth, steps, executes);
            return 0;
        }
        self.is_elsewhere = true;
        let mut is_done = true;
        match place {
            Place::Thread { manner } => is_done = self.on_thread(manner, steps),
            Place::Context { masked, leaps } => self.in_context(masked, leaps, steps),
            Place::Jump => self.before_jumps(steps),
            Place::Handler | Place::Child { .. } => self.in_handler(steps),
        }
        self.is_elsewhere = false;
        witness::arm();
        if is_done {
            steps.len()
        } else {
            0
        }
    }

    fn make_child(&mut self, birth: Birth, steps: &[Step], executes: bool) {
        let Some(free) = self.children.iter().position(|child| *child == 0) else { return };
        let mut work = Work { runner: self, steps, executes };
        // SAFETY: a child runs steps, which take no lock that another thread could hold, and ends by _exit. Where it has its
        // parent's memory it has a stack of its own, and its parent waits for it.
        let child = unsafe {
            match birth {
                Birth::Fork => libc::fork(),
                Birth::Bare => _Fork(),
                Birth::Clone(flags) => clone(flags),
                Birth::Vfork(flags) => {
                    let flags = flags | libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
                    libc::clone(be_vforked, stack().byte_add(STACK_BYTES), flags, (&raw mut work).cast())
                }
            }
        };
        if child == 0 {
            self.be_child(steps, executes);
        }
        self.children[free] = child.max(0);
    }

    /// Runs the steps in a child, and ends it.
    fn be_child(&mut self, steps: &[Step], executes: bool) -> ! {
        (self.is_elsewhere, self.is_child) = (true, true);
        child::handle_signals();
        child::set_alarm(true);
        self.steps(steps, None);
        if executes {
            // An alarm, or a limit on memory, would make the new program fail.
            child::set_alarm(false);
            self.limits.restore(None);
            execute();
        }
        // SAFETY: ends a child without its parent's exit handlers.
        unsafe { libc::_exit(0) }
    }
}

/// Makes a child that returns here, too, on a copy of the stack: clone3(2). Without handlers one of its own
/// instructions may kill it (docs/limits.md).
fn clone(flags: u64) -> libc::pid_t {
    let flags = if call::is_by_instructions() { flags & !NO_HANDLERS } else { flags };
    // SAFETY: all zeroes are arguments.
    let mut args: libc::clone_args = unsafe { std::mem::zeroed() };
    (args.flags, args.exit_signal) = (flags, libc::SIGCHLD as u64);
    call::call(libc::SYS_clone3, [&raw mut args as u64, size_of::<libc::clone_args>() as u64, 0, 0, 0, 0]) as c_int
}

/// Runs on a copy of the runner, so that the parent's stays as it is.
extern "C" fn be_vforked(work: *mut c_void) -> c_int {
    // SAFETY: its parent waits, and keeps `work` alive.
    let work = unsafe { &*work.cast::<Work>() };
    work.runner.clone().be_child(work.steps, work.executes)
}

/// Executes this program, which reports the descriptors that it inherits.
fn execute() {
    let arguments = [c"anyring-hostile".as_ptr(), c"survivors".as_ptr(), std::ptr::null()];
    // SAFETY: constant strings, and the environment that the process began with.
    unsafe { libc::execv(c"/proc/self/exe".as_ptr(), arguments.as_ptr()) };
}

/// Returns a mask of all signals but the alarm, which must still wake a sleeping call.
fn all_but_the_alarm() -> libc::sigset_t {
    // SAFETY: all zeroes are a set, which outlives the calls.
    unsafe {
        let mut mask: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&mut mask);
        libc::sigdelset(&mut mask, libc::SIGALRM);
        mask
    }
}
